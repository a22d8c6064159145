"""Calls per second through a server, and the overhead of the engine over a bare loop.

    python benchmarks/endpoint.py [--calls 1000] [--delay 0.05] [--replicas]

A server in another process answers each call after a fixed delay. The engine makes one call at a
time, and 16 at a time. A bare loop of asyncio and the HTTP client makes the same calls, 16 at a
time, without retries, checks or counts. Then the engine makes the same calls while every fifth
reply is a fault (429 with Retry-After, 500, cut replies). Finally, three such servers with a model
each: a collection of 25 questions, 300 calls, is compared with 100 calls of one server alone. The
script prints ratios.

With `--replicas` it measures only this: two servers of one model, one of which answers 500 at once,
against the healthy one alone.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2
import measuring  # noqa: F401  makes this copy of the project importable

from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines import backend
from hierrouter.engines.generator import Response
from hierrouter.engines.health import forget_health
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec, Pool
from hierrouter.questions.query import Query

CONCURRENCY = 16
RETRY_AFTER_S = 1
FAULTS = (
    f"429 Too Many Requests\r\nRetry-After: {RETRY_AFTER_S}",
    "500 Internal Server Error",
    "200 OK\r\nX-Cut: yes",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--delay", type=float, default=0.05, help="seconds for each call")
    parser.add_argument("--replicas", action="store_true", help="only beside a failing replica")
    args = parser.parse_args()
    if args.replicas:
        for width in (4, CONCURRENCY):
            beside_a_failing_replica(4 * args.delay, width, prompts=50 * width)
        return
    prompts = [f"question {n}" for n in range(args.calls)]
    with TestServer(args.delay, share=0.0) as url:
        engine(
            url, CONCURRENCY, prompts[:CONCURRENCY]
        )  # so that imports and first connections are not measured
        bare = measure_times(lambda: asyncio.run(bare_loop(url, prompts)))
        wide = measure_times(lambda: engine(url, CONCURRENCY, prompts))
        narrow = measure_times(lambda: engine(url, 1, prompts[: args.calls // CONCURRENCY]))
    faulty_server = TestServer(args.delay, share=0.2)
    with faulty_server as url:
        faulty = measure_times(lambda: engine(url, CONCURRENCY, prompts))
        silence = faulty_server.silence.value
    rate = len(prompts) / wide[0]
    print(f"{len(prompts)} calls of {args.delay * 1000:.0f} ms each")
    print(f"1 at a time:    {args.calls // CONCURRENCY / narrow[0]:7.1f} calls/s")
    share = rate * args.delay / CONCURRENCY
    print(f"{CONCURRENCY} at a time:   {rate:7.1f} calls/s, {share:.2f} of the most")
    print(f"bare loop:      {len(prompts) / bare[0]:7.1f} calls/s")
    print(f"ratio to 1 at a time {rate * narrow[0] / (args.calls // CONCURRENCY):.1f}")
    print(f"wall time over the bare loop {wide[0] / bare[0]:.2f}")
    per_call = (1000 * seconds / len(prompts) for seconds in (wide[1], bare[1]))
    print("CPU a call: {:.2f} ms, bare loop {:.2f} ms".format(*per_call))
    print(
        f"a fifth of faults: {faulty[0]:.1f} s; without {wide[0]:.1f} s, and {silence:.1f} s "
        f"in which the server asked not to be called: ratio {faulty[0] / (wide[0] + silence):.2f}"
    )
    collect_from_three(10 * args.delay)


def collect_from_three(delay_s: float, width: int = 4, questions: int = 25) -> None:
    """Compare a collection from three servers with the calls of a single one."""
    names = ("a", "b", "c")
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(TestServer(delay_s, share=0.0, name=name)) for name in names]
        models = tuple(
            ModelSpec(name, name, 0.1, backend="openai", endpoint=Endpoint(url, concurrency=width))
            for name, url in zip(names, urls, strict=True)
        )
        pool = Pool(models, 2, ("",), encoder="hashed-ngrams")
        queries = [
            Query(str(n), "made", f"question {n}", ("x",), "train") for n in range(questions)
        ]
        # One model answers one direct call, and three calls at the second hop, per question.
        direct_prompts = [f"prompt {n}" for n in range(4 * questions)]
        alone_wall, _ = measure_times(lambda: engine(urls[0], width, direct_prompts, "a"))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        start = time.perf_counter()
        call_count = fill_cache(pool, queries, Path(folder)).calls
        wall = time.perf_counter() - start
    print(
        f"three servers, {call_count} calls: {wall:.1f} s; one of them alone, "
        f"{len(direct_prompts)} calls: {alone_wall:.1f} s; ratio {wall / alone_wall:.2f}"
    )


def beside_a_failing_replica(delay_s: float, width: int, prompts: int) -> None:
    """Compare a healthy server beside one that answers 500 at once with the healthy one alone."""
    texts = [f"question {n}" for n in range(prompts)]
    failing = TestServer(0.0, share=1.0, faults=FAULTS[1:2])
    with TestServer(delay_s, share=0.0) as url, failing as bad_url:
        engine(url, width, texts[:width])
        alone_wall, _ = measure_times(lambda: engine(url, width, texts))
        # The failing one first: what was learned of the other one must not help.
        forget_health()
        both_wall, _ = measure_times(lambda: engine(bad_url, width, texts, replicas=(url,)))
    print(
        f"{prompts} calls of {delay_s * 1000:.0f} ms, {width} at a time, by two servers of which "
        f"one fails at once: {both_wall:.2f} s; by the other alone: {alone_wall:.2f} s; "
        f"ratio {both_wall / alone_wall:.2f}; failed calls: {failing.failed.value}"
    )


def measure_times(work: Callable[[], None]) -> tuple[float, float]:
    """Call a function, and return wall-clock and CPU seconds."""
    wall_start = time.perf_counter()
    cpu_start = time.process_time()
    work()
    return time.perf_counter() - wall_start, time.process_time() - cpu_start


def engine(
    url: str, width: int, prompts: list[str], name: str = "m", replicas: tuple[str, ...] = ()
) -> None:
    """Make all calls by the openai engine, and check that each has a response."""
    endpoint = Endpoint(url, concurrency=width, replicas=replicas)
    spec = ModelSpec(name, name, 0.1, generation=Generation(8), endpoint=endpoint)
    answers = dict(backend("openai").load(spec).generate(prompts))
    assert len(answers) == len(prompts)
    assert all(isinstance(answer, Response) for answer in answers.values())


async def bare_loop(url: str, prompts: list[str]) -> None:
    """Make all calls by the shortest program possible."""
    slots = asyncio.Semaphore(CONCURRENCY)
    async with httpx2.AsyncClient() as client:

        async def ask(prompt: str) -> str:
            body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
            async with slots:
                answer = await client.post(f"{url}/chat/completions", json=body)
            text: str = answer.json()["choices"][0]["message"]["content"]
            return text

        await asyncio.gather(*map(ask, prompts))


class TestServer:
    """A server in another process.

    Args:
        delay_s: seconds for each reply.
        share: share of faulty replies.
        name: its model.
        faults: the faulty replies.

    Attributes:
        silence: seconds during which it asked not to be called; overlaps count once.
        failed: number of faulty replies.
    """

    def __init__(
        self, delay_s: float, share: float, name: str = "m", faults: Sequence[str] = FAULTS
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._receiver, sender = spawn.Pipe()
        self.silence = spawn.Value("d", 0.0)
        self.failed = spawn.Value("i", 0)
        self._process = spawn.Process(
            target=serve,
            args=(delay_s, share, name, tuple(faults), sender, self.silence, self.failed),
        )

    def __enter__(self) -> str:
        self._process.start()
        return f"http://127.0.0.1:{self._receiver.recv()}/v1"

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def serve(
    delay_s: float,
    share: float,
    model: str,
    faults: Sequence[str],
    sender: Connection,
    silence: Any,
    failed: Any,
) -> None:
    """Serve until the process is terminated; send the port by `sender`.

    Each response has a different text, so that no prompt of a second hop occurs twice.
    """
    rng = random.Random(0)
    quiet_until = 0.0
    completion = {
        "model": model,
        "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    body = json.dumps(completion)
    count = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal quiet_until, count
        while head := await reader.readline():
            length = 0
            while (line := await reader.readline()).strip():
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            await reader.readexactly(length)
            count += 1
            status = "200 OK"
            reply = body.replace('"x"', f'"{model}{count}"')
            if head.startswith(b"POST"):
                await asyncio.sleep(delay_s)
                if rng.random() < share:
                    status = rng.choice(faults)
                    failed.value += 1
                    reply = "{}"
                if "Retry-After" in status:
                    end = time.monotonic() + RETRY_AFTER_S
                    silence.value += end - max(time.monotonic(), quiet_until)
                    quiet_until = end
            else:
                reply = '{"data": []}'
            missing = 9 if "X-Cut" in status else 0  # bytes that are announced but not sent
            header = f"HTTP/1.1 {status}\r\nContent-Length: {len(reply) + missing}\r\n\r\n"
            writer.write((header + reply).encode())
            await writer.drain()
            if missing:
                break
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        sender.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


if __name__ == "__main__":
    main()
