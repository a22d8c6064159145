"""Many clients on `hierrouter serve`, on this machine.

Starts the installed command on a run, and C clients that ask questions one after the other for some
seconds, each checking that its answer is the one that its question had before. Prints requests a
second beside the same models asked without a router (the route's calls, in one thread), errors,
mixed answers, the router's own time a hop, and the server's memory over time.

    python benchmarks/serve_load.py --checkpoint runs/mine --cache caches/default
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import openai
import psutil
from measuring import SERVER_ADDRESS_PATTERN, versions

from hierrouter.engines import backend
from hierrouter.engines.generator import Response, prompt_text
from hierrouter.pools.files import load_pool
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import load_texts
from hierrouter.runs.bundle import load_bundle
from hierrouter.serving.router import Router
from tests.engines import answers_in_order


@dataclass
class Seen:
    """What the clients saw."""

    answered: int = 0
    mixed: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    router_s: list[float] = field(default_factory=list)
    rest_s: list[float] = field(default_factory=list)  # a hop, all but model and router


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--served", action="store_true", help="the models in another process")
    args = parser.parse_args()
    print(versions(openai))
    fold = OpenTree(cache=args.cache).run().split("test")
    fold = fold.select(np.arange(min(args.questions, len(fold))))
    questions = [text.question for text in load_texts(args.cache, fold)]
    wanted = routed_alone(args.checkpoint, questions)
    with ExitStack() as opened:
        pool = opened.enter_context(served_pool()) if args.served else None
        process = opened.enter_context(served(args.checkpoint, pool))
        url = address(process)
        seen, memory = asyncio.run(load(url, wanted, args.clients, args.seconds, process.pid))
    show(seen, memory, args.seconds, args.clients)


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """The process, until the block ends."""
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def served(run: Path, pool: Path | None) -> AbstractContextManager[subprocess.Popen[str]]:
    """`hierrouter serve` on a run."""
    flags = ["--port", "0", "--checkpoint", str(run)]
    flags += ["--pool", str(pool)] if pool else []
    command = [sys.executable, "-m", "hierrouter_cli", "serve", *flags]
    return ended(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))


@contextmanager
def served_pool() -> Iterator[Path]:
    """The testbed's pool, its models behind a server of their own."""
    command = [sys.executable, str(Path(__file__).with_name("testbed_server.py"))]
    with (
        ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process,
        TemporaryDirectory() as folder,
    ):
        assert process.stdout
        port = int(process.stdout.readline())
        pool = load_pool("testbed")
        prompts = ", ".join(json.dumps(prompt) for prompt in pool.stage_prompts)
        lines = ["[pool]", f"hops = {pool.hops}", f"stage_prompts = [{prompts}]"]
        for spec in pool.models:
            lines += [
                "[[models]]",
                f'name = "{spec.name}"',
                f'model = "{spec.name}"',
                f"base_rate = {spec.base_rate}",
                'backend = "openai"',
                f"generation = {{ max_new_tokens = {spec.generation.max_new_tokens} }}",
                f'endpoint = {{ base_url = "http://127.0.0.1:{port}/v1", concurrency = 64 }}',
            ]
        path = Path(folder) / "served.toml"
        path.write_text("\n".join(lines) + "\n")
        yield path


def routed_alone(run: Path, questions: list[str]) -> dict[str, str]:
    """Answers by question, one at a time; and how long the bare calls of their routes take."""
    with Router(run) as router:
        routed = [router.route(question) for question in questions]
    bundle = load_bundle(run)
    assert bundle
    generators = {spec.name: backend(spec.backend).load(spec) for spec in bundle.pool.models}
    started = time.perf_counter()
    for way in routed:
        said: list[str] = []
        for level, hop in enumerate(way.hops):
            prompt = prompt_text(way.question, said, bundle.pool.instruction(level))
            [answer] = answers_in_order(generators[hop.model], [prompt])
            assert isinstance(answer, Response)
            said.append(answer.text)
    bare = time.perf_counter() - started
    print(f"the bare calls, one after the other: {len(routed) / bare:.1f} questions/s")
    return {way.question: way.answer for way in routed}


def address(process: subprocess.Popen[str]) -> str:
    """Where the server says that it listens."""
    assert process.stderr
    for line in process.stderr:
        if found := SERVER_ADDRESS_PATTERN.search(line):
            return found[1]
    raise SystemExit("the server does not start")


async def load(
    url: str, wanted: dict[str, str], clients: int, seconds: float, pid: int
) -> tuple[Seen, list[float]]:
    """All clients until the time is over; the server's memory, MiB, each second."""
    seen, memory = Seen(), []
    end = time.monotonic() + seconds
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        tasks = [
            asyncio.create_task(ask(client, list(wanted.items()), start, end, seen))
            for start in range(clients)
        ]
        server = psutil.Process(pid)
        while time.monotonic() < end:
            memory.append(server.memory_info().rss / 2**20)
            await asyncio.sleep(1)
        await asyncio.gather(*tasks)
    return seen, memory


async def ask(
    client: openai.AsyncOpenAI, wanted: list[tuple[str, str]], start: int, end: float, seen: Seen
) -> None:
    """One client, which begins with another question than the others."""
    order = cycle(wanted[start % len(wanted) :] + wanted[: start % len(wanted)])
    while time.monotonic() < end:
        question, answer = next(order)
        began = time.perf_counter()
        try:
            found = await client.chat.completions.create(
                model="hierrouter", messages=[{"role": "user", "content": question}]
            )
        except openai.OpenAIError as error:
            seen.errors.append(f"{type(error).__name__}: {error}")
            continue
        took = time.perf_counter() - began
        seen.seconds.append(took)
        seen.answered += 1
        seen.mixed += found.choices[0].message.content != answer
        steps = (found.model_extra or {})["hierrouter"]["steps"]
        seen.router_s += [step["router_s"] for step in steps]
        known = sum(step["router_s"] + step["model_s"] for step in steps)
        seen.rest_s.append((took - known) / len(steps))


def show(seen: Seen, memory: list[float], seconds: float, clients: int) -> None:
    middle, late = np.percentile(seen.seconds, [50, 95])
    hop = np.percentile(np.array(seen.router_s) * 1e3, [50, 95])
    third = max(1, len(memory) // 3)
    print(f"{clients} clients, {seconds:g} s: {seen.answered / seconds:.1f} questions/s")
    print(f"errors {len(seen.errors)}, mixed answers {seen.mixed}")
    print(f"a question: median {middle:.3f} s, p95 {late:.3f} s")
    rest = np.percentile(np.array(seen.rest_s) * 1e3, [50, 95])
    print(f"encoder and policy, a hop: median {hop[0]:.2f} ms, p95 {hop[1]:.2f} ms")
    print(f"queues, HTTP and client, a hop: median {rest[0]:.2f} ms, p95 {rest[1]:.2f} ms")
    print(
        f"memory: {np.mean(memory[third : 2 * third]):.0f} MiB in the middle third, "
        f"{np.mean(memory[2 * third :]):.0f} in the last"
    )
    for said in sorted(set(seen.errors))[:5]:
        print(f"  {said[:200]}")


if __name__ == "__main__":
    main()
