"""A server in front of traffic: what it starts with, how fast it decides, what it loses in trouble.

`start`: CPU seconds and memory of `hierrouter serve` over models on servers when it says where it
listens; with `--before TREE`, another copy of the project, the same of that one in the same run.

`decide`: N requests for a decision over C connections at R a second, beside as many for `/live`
under the same load, in turns.

`soak`: clients that ask without a break while every 20 s the other of two routers is put in service
by `hierrouter deploy` and a reload, and every 30 s one of the models' servers is killed and started
again. Each answer is checked against what the router that gave it answers when nothing happens.
Counts mixed answers (of neither router), lost requests (that failed though no server of their route
was down) and the server's memory.

    python benchmarks/operations.py --runs runs/one runs/other --cache caches/default decide soak
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
import numpy as np
import psutil
from measuring import ROOT, SERVER_ADDRESS_PATTERN, versions

from hierrouter.pools.files import load_pool
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import load_texts
from hierrouter.serving.router import Router

NAMES = ("calc", "text", "facts")
DOWN_S = 5.0  # how long a killed server stays away


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=["start", "decide", "soak"])
    parser.add_argument("--runs", type=Path, nargs=2, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=32)
    args = parser.parse_args()
    print(versions(httpx2, np))
    tree = OpenTree(cache=args.cache).run()
    questions = [text.question for text in load_texts(args.cache, tree.split("test"))][:200]
    with TemporaryDirectory() as name, ExitStack() as opened:
        place = Path(name)
        for run, link in zip(args.runs, ("one", "other"), strict=True):
            (place / link).symlink_to(run.absolute())
        servers = [opened.enter_context(Backend(name).running()) for name in NAMES]
        write_pool(place / "pool.toml", servers)
        if "start" in args.parts:
            start(place, args.before)
        if "decide" in args.parts:
            with served(place) as (url, _):
                decide(url, questions, args.requests, args.connections, args.rate)
        if "soak" in args.parts:
            wanted = [answers_of(run, questions) for run in args.runs]
            with served(place) as (url, process):
                soak(url, process, place, servers, wanted, args.seconds, args.clients)


@dataclass
class Backend:
    """A server for one model, that can be killed and started again at its port."""

    name: str
    port: int = 0
    process: subprocess.Popen[str] | None = None
    down: list[tuple[float, float]] = field(default_factory=list)  # from, to

    def start(self) -> None:
        words = [sys.executable, str(ROOT / "benchmarks/testbed_server.py"), str(self.port)]
        self.process = subprocess.Popen([*words, self.name], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.port = int(self.process.stdout.readline())

    @contextmanager
    def running(self) -> Iterator["Backend"]:
        self.start()
        try:
            yield self
        finally:
            assert self.process
            self.process.kill()
            self.process.wait()

    def kill_and_start(self) -> None:
        began = time.monotonic()
        self.down.append((began, np.inf))
        assert self.process
        self.process.kill()
        self.process.wait()
        time.sleep(DOWN_S)
        self.start()
        self.down[-1] = began, time.monotonic()

    def was_down(self, since: float, until: float) -> bool:
        """Whether it was away at a moment between these two."""
        return any(began <= until and since <= ended for began, ended in self.down)


def write_pool(file: Path, servers: Sequence[Backend]) -> None:
    """The testbed's pool, each model on a server of its own."""
    pool = load_pool("testbed")
    prompts = ", ".join(json.dumps(prompt) for prompt in pool.stage_prompts)
    lines = ["[pool]", f"hops = {pool.hops}", f"stage_prompts = [{prompts}]"]
    for spec, server in zip(pool.models, servers, strict=True):
        assert spec.name == server.name
        lines += [
            "[[models]]",
            f'name = "{spec.name}"\nmodel = "{spec.name}"\nbase_rate = {spec.base_rate}',
            'backend = "openai"',
            f"generation = {{ max_new_tokens = {spec.generation.max_new_tokens} }}",
            f'endpoint = {{ base_url = "http://127.0.0.1:{server.port}/v1", concurrency = 64, '
            "attempts = 2 }",
        ]
    file.write_text("\n".join(lines) + "\n")


@contextmanager
def served(
    place: Path, tree: Path = ROOT, flags: Sequence[str] = ()
) -> Iterator[tuple[str, psutil.Process]]:
    """`hierrouter serve` of a copy of the project over the pool of the servers; its process."""
    paths = os.pathsep.join(str(tree / part) for part in (".", "cache", "cli"))
    (place / "runs").mkdir(exist_ok=True)
    (place / "runs/service.json").write_text(json.dumps({"run": "one", "before": []}))
    words = [sys.executable, "-m", "hierrouter_cli", "serve", "--port", "0", "--pool", "pool.toml"]
    process = subprocess.Popen(
        [*words, *flags],
        cwd=place,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        assert process.stderr
        for line in process.stderr:
            if found := SERVER_ADDRESS_PATTERN.search(line):
                break
        else:
            raise SystemExit("the server does not start")
        yield found[1].removesuffix("/v1"), psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def start(place: Path, before: Path | None) -> None:
    """What it takes to start, in turns with the copy of before."""
    trees = {"now": ROOT, **({"before": before} if before else {})}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
    for _ in range(3):
        for name, tree in trees.items():
            with served(place, tree, ["--checkpoint", "one"]) as (_, process):
                times = process.cpu_times()
                memory = process.memory_info().rss / 2**20
                found[name].append((times.user + times.system, memory))
    middle = {name: np.median(np.array(rows), axis=0) for name, rows in found.items()}
    for name, (cpu, memory) in middle.items():
        print(f"start, {name}: {cpu:.2f} CPU seconds, {memory:.0f} MiB")
    if before:
        cpu, memory = middle["now"] / middle["before"]
        print(f"start, ratio: CPU {cpu:.2f}, memory {memory:.2f}")


def decide(
    url: str, questions: Sequence[str], requests: int, connections: int, rate: float
) -> None:
    """Decisions and signs of life under the same load, a block of each in turns."""

    async def measured() -> dict[str, list[float]]:
        limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
        async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=60) as client:

            async def decided(number: int) -> httpx2.Response:
                question = {"role": "user", "content": questions[number % len(questions)]}
                return await client.post("/v1/decide", json={"messages": [question]})

            async def lives(number: int) -> httpx2.Response:
                return await client.get("/live")

            ways = {"decide": decided, "live": lives}
            found: dict[str, list[float]] = {name: [] for name in ways}
            block = 500
            for begun in range(0, requests, block):
                for name, way in ways.items():
                    found[name] += await paced(way, min(block, requests - begun), rate)
            return found

    found = asyncio.run(measured())
    for name, seconds in found.items():
        errors = sum(map(np.isnan, seconds))
        middle, late = np.nanpercentile(np.array(seconds) * 1e3, [50, 95])
        print(
            f"{name}: {len(seconds):,} requests over {connections} connections at {rate:g} a "
            f"second, {errors} errors, median {middle:.2f} ms, p95 {late:.2f} ms"
        )
    late = {name: np.nanpercentile(np.array(each) * 1e3, 95) for name, each in found.items()}
    print(f"decide above live: p95 {late['decide'] - late['live']:.2f} ms")


async def paced(
    way: Callable[[int], Awaitable[httpx2.Response]], count: int, rate: float
) -> list[float]:
    """Seconds of each request, begun one after the other at this rate; NaN of one that failed."""
    began = time.perf_counter()

    async def one(number: int) -> float:
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        sent = time.perf_counter()
        try:
            reply = await way(number)
        except httpx2.HTTPError:
            return np.nan
        return time.perf_counter() - sent if reply.status_code == 200 else np.nan

    return list(await asyncio.gather(*map(one, range(count))))


def answers_of(run: Path, questions: Sequence[str]) -> dict[str, tuple[str, str]]:
    """(route, answer) of each question by a run's router, when nothing happens."""
    with Router(run) as router:
        routed = [router.route(question) for question in questions]
    return {each.question: (each.route, each.answer) for each in routed}


def soak(
    url: str,
    process: psutil.Process,
    place: Path,
    servers: Sequence[Backend],
    wanted: Sequence[Mapping[str, tuple[str, str]]],
    seconds: float,
    clients: int,
) -> None:
    """Trouble for so many seconds, and what came of it."""
    counts: Counter[str] = Counter()
    lost: list[str] = []
    memory: list[float] = []
    ends = time.monotonic() + seconds

    async def client(asker: httpx2.AsyncClient, number: int) -> None:
        questions = list(wanted[0])
        while time.monotonic() < ends:
            question = questions[(number * 7 + counts["asked"]) % len(questions)]
            counts["asked"] += 1
            sent = time.monotonic()
            body = {"messages": [{"role": "user", "content": question}]}
            try:
                reply = await asker.post("/v1/chat/completions", json=body)
            except httpx2.HTTPError as error:
                lost.append(f"{type(error).__name__}: {error}")
                continue
            if reply.status_code == 200:
                said = reply.json()
                got = said["hierrouter"]["route"], said["choices"][0]["message"]["content"]
                counts["answered"] += 1
                counts["mixed"] += got not in [each[question] for each in wanted]
            elif any(server.was_down(sent, time.monotonic()) for server in servers):
                counts["on a dead server"] += 1
            else:
                lost.append(f"{reply.status_code}: {reply.text[:200]}")

    async def reloads() -> None:
        turn = 0
        async with httpx2.AsyncClient(base_url=url, timeout=60) as asker:
            while time.monotonic() < ends - 20:
                await asyncio.sleep(20)
                turn += 1
                words = [sys.executable, "-m", "hierrouter_cli", "deploy"]
                done = await asyncio.to_thread(
                    subprocess.run,
                    [*words, ("one", "other")[turn % 2]],
                    cwd=place,
                    check=True,
                    capture_output=True,
                )
                assert done.returncode == 0
                reply = await asker.post("/admin/reload", json={})
                counts["reloads"] += reply.status_code == 200

    async def kills() -> None:
        turn = 0
        while time.monotonic() < ends - 40:
            await asyncio.sleep(30)
            await asyncio.to_thread(servers[turn % len(servers)].kill_and_start)
            turn += 1
            counts["kills"] += 1

    async def watched() -> None:
        while time.monotonic() < ends:
            memory.append(process.memory_info().rss / 2**20)
            await asyncio.sleep(1)

    async def everything() -> None:
        limits = httpx2.Limits(max_connections=clients)
        async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=120) as asker:
            asking = (client(asker, number) for number in range(clients))
            await asyncio.gather(*asking, reloads(), kills(), watched())

    asyncio.run(everything())
    print(f"soak, {seconds:g} s, {clients} clients: {json.dumps(counts)}, lost {len(lost)}")
    quarter = max(1, len(memory) // 4)
    parts = [np.mean(memory[at * quarter : (at + 1) * quarter]) for at in range(4)]
    print("memory by quarter: " + ", ".join(f"{part:.0f} MiB" for part in parts))
    for said in sorted(set(lost))[:5]:
        print(f"  {said}")


if __name__ == "__main__":
    main()
