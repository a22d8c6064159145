"""Load test of `hierrouter serve` on this machine.

The script starts the installed command on a run, and many clients that ask questions one after the
other for some seconds. Each client checks that an answer is the one that its question had without
load. It prints requests per second, those of the same models without a router (the calls of the
routes, in one thread), errors, mixed answers, the router's time per hop, and the server's memory
over time.

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
class LoadResult:
    """Results of all clients.

    Attributes:
        answered: number of questions.
        mixed: answers that differ from those without load.
        errors: messages.
        seconds: of each question.
        router_s: seconds of encoder and policy, for each hop.
        rest_s: seconds per hop besides model and router, for each question.
    """

    answered: int = 0
    mixed: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    router_s: list[float] = field(default_factory=list)
    rest_s: list[float] = field(default_factory=list)


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
    expected = answer_without_load(args.checkpoint, questions)
    with ExitStack() as stack:
        pool = stack.enter_context(served_pool()) if args.running_server else None
        process = stack.enter_context(running_server(args.checkpoint, pool))
        url = wait_for_address(process)
        result, memory = asyncio.run(load(url, expected, args.clients, args.seconds, process.pid))
    show(result, memory, args.seconds, args.clients)


@contextmanager
def terminating(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Yield a process, and terminate it at the end of the block."""
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def running_server(run: Path, pool: Path | None) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start `hierrouter serve` on a run."""
    flags = ["--port", "0", "--checkpoint", str(run)]
    flags += ["--pool", str(pool)] if pool else []
    command = [sys.executable, "-m", "hierrouter_cli", "serve", *flags]
    return terminating(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))


@contextmanager
def served_pool() -> Iterator[Path]:
    """Start a server with the testbed's models, and yield the file of a pool that calls it."""
    command = [sys.executable, str(Path(__file__).with_name("testbed_server.py"))]
    with (
        terminating(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process,
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


def answer_without_load(run: Path, questions: list[str]) -> dict[str, str]:
    """Return the answer to each question; print how long the calls of the routes take alone."""
    with Router(run) as router:
        routed = [router.route(question) for question in questions]
    bundle = load_bundle(run)
    assert bundle
    generators = {spec.name: backend(spec.backend).load(spec) for spec in bundle.pool.models}
    started = time.perf_counter()
    for answer in routed:
        responses: list[str] = []
        for level, hop in enumerate(answer.hops):
            prompt = prompt_text(answer.question, responses, bundle.pool.instruction(level))
            [response] = answers_in_order(generators[hop.model], [prompt])
            assert isinstance(response, Response)
            responses.append(response.text)
    bare = time.perf_counter() - started
    print(f"the bare calls, one after the other: {len(routed) / bare:.1f} questions/s")
    return {answer.question: answer.answer for answer in routed}


def wait_for_address(process: subprocess.Popen[str]) -> str:
    """Read the server's address from its stderr."""
    assert process.stderr
    for line in process.stderr:
        match = SERVER_ADDRESS_PATTERN.search(line)
        if match:
            return match[1]
    raise SystemExit("the server does not start")


async def load(
    url: str, expected: dict[str, str], clients: int, seconds: float, pid: int
) -> tuple[LoadResult, list[float]]:
    """Run all clients until the time is over; return results, and the server's memory in MiB."""
    result = LoadResult()
    memory = []
    end = time.monotonic() + seconds
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        tasks = [
            asyncio.create_task(ask(client, list(expected.items()), start, end, result))
            for start in range(clients)
        ]
        server = psutil.Process(pid)
        while time.monotonic() < end:
            memory.append(server.memory_info().rss / 2**20)
            await asyncio.sleep(1)
        await asyncio.gather(*tasks)
    return result, memory


async def ask(
    client: openai.AsyncOpenAI,
    expected: list[tuple[str, str]],
    start: int,
    end: float,
    result: LoadResult,
) -> None:
    """Run one client; `start` is the number of its first question."""
    first = start % len(expected)
    order = cycle(expected[first:] + expected[:first])
    while time.monotonic() < end:
        question, answer = next(order)
        started = time.perf_counter()
        try:
            completion = await client.chat.completions.create(
                model="hierrouter", messages=[{"role": "user", "content": question}]
            )
        except openai.OpenAIError as error:
            result.errors.append(f"{type(error).__name__}: {error}")
            continue
        seconds = time.perf_counter() - started
        result.seconds.append(seconds)
        result.answered += 1
        if completion.choices[0].message.content != answer:
            result.mixed += 1
        steps = (completion.model_extra or {})["hierrouter"]["steps"]
        result.router_s += [step["router_s"] for step in steps]
        explained = sum(step["router_s"] + step["model_s"] for step in steps)
        result.rest_s.append((seconds - explained) / len(steps))


def show(result: LoadResult, memory: list[float], seconds: float, clients: int) -> None:
    median, p95 = np.percentile(result.seconds, [50, 95])
    hop = np.percentile(np.array(result.router_s) * 1e3, [50, 95])
    third = max(1, len(memory) // 3)
    print(f"{clients} clients, {seconds:g} s: {result.answered / seconds:.1f} questions/s")
    print(f"errors {len(result.errors)}, mixed answers {result.mixed}")
    print(f"a question: median {median:.3f} s, p95 {p95:.3f} s")
    rest = np.percentile(np.array(result.rest_s) * 1e3, [50, 95])
    print(f"encoder and policy, a hop: median {hop[0]:.2f} ms, p95 {hop[1]:.2f} ms")
    print(f"queues, HTTP and client, a hop: median {rest[0]:.2f} ms, p95 {rest[1]:.2f} ms")
    print(
        f"memory: {np.mean(memory[third : 2 * third]):.0f} MiB in the middle third, "
        f"{np.mean(memory[2 * third :]):.0f} in the last"
    )
    for message in sorted(set(result.errors))[:5]:
        print(f"  {message[:200]}")


if __name__ == "__main__":
    main()
