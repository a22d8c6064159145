"""Calls a second through a server, and what the engine costs above a bare loop.

    python benchmarks/endpoint.py [--calls 1000] [--delay 0.05]

A server in a process of its own answers each call after a fixed delay. The engine asks it with one
call at a time and with 16; a bare loop of asyncio and the HTTP client asks it the same 16 at a
time, without attempts, checks or counts. Then the same calls again with every fifth reply a fault
(429 with Retry-After, 500, cut streams). Then three such servers, a model each: a collection of 25
questions, 300 calls, against one server alone with its 100. Prints ratios.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2

from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines import backend
from hierrouter.engines.generator import Response
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec, Pool
from hierrouter.questions.query import Query

WIDTH = 16
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
    args = parser.parse_args()
    prompts = [f"question {n}" for n in range(args.calls)]
    with Serving(args.delay, share=0.0) as url:
        engine(url, WIDTH, prompts[:WIDTH])  # imports, first connections
        bare = measure_times(lambda: asyncio.run(bare_loop(url, prompts)))
        wide = measure_times(lambda: engine(url, WIDTH, prompts))
        narrow = measure_times(lambda: engine(url, 1, prompts[: args.calls // WIDTH]))
    with (faults := Serving(args.delay, share=0.2)) as url:
        faulty = measure_times(lambda: engine(url, WIDTH, prompts))
        silence = faults.silence.value
    rate = len(prompts) / wide[0]
    print(f"{len(prompts)} calls of {args.delay * 1000:.0f} ms each")
    print(f"1 at a time:    {args.calls // WIDTH / narrow[0]:7.1f} calls/s")
    print(f"{WIDTH} at a time:   {rate:7.1f} calls/s, {rate * args.delay / WIDTH:.2f} of the most")
    print(f"bare loop:      {len(prompts) / bare[0]:7.1f} calls/s")
    print(f"ratio to 1 at a time {rate * narrow[0] / (args.calls // WIDTH):.1f}")
    print(f"wall time over the bare loop {wide[0] / bare[0]:.2f}")
    per_call = (1000 * seconds / len(prompts) for seconds in (wide[1], bare[1]))
    print("CPU a call: {:.2f} ms, bare loop {:.2f} ms".format(*per_call))
    print(
        f"a fifth of faults: {faulty[0]:.1f} s; without {wide[0]:.1f} s, and {silence:.1f} s "
        f"in which the server asked not to be called: ratio {faulty[0] / (wide[0] + silence):.2f}"
    )
    side_by_side(10 * args.delay)


def side_by_side(delay_s: float, width: int = 4, questions: int = 25) -> None:
    """Print how long a collection from three servers takes, and one of them alone."""
    names = ("a", "b", "c")
    with contextlib.ExitStack() as running:
        urls = [running.enter_context(Serving(delay_s, share=0.0, name=name)) for name in names]
        models = tuple(
            ModelSpec(name, name, 0.1, backend="openai", endpoint=Endpoint(url, concurrency=width))
            for name, url in zip(names, urls, strict=True)
        )
        pool = Pool(models, 2, ("",), encoder="hashed-ngrams")
        queries = [
            Query(str(n), "made", f"question {n}", ("x",), "train") for n in range(questions)
        ]
        alone = [f"prompt {n}" for n in range(4 * questions)]  # of one hop, and of three before
        own = measure_times(lambda: engine(urls[0], width, alone, "a"))[0]
        folder = running.enter_context(tempfile.TemporaryDirectory())
        began = time.perf_counter()
        made = fill_cache(pool, queries, Path(folder)).calls
        took = time.perf_counter() - began
    print(
        f"three servers, {made} calls: {took:.1f} s; one of them alone, {len(alone)} calls: "
        f"{own:.1f} s; ratio {took / own:.2f}"
    )


def measure_times(work: Callable[[], None]) -> tuple[float, float]:
    """Wall and processor seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def engine(url: str, width: int, prompts: list[str], name: str = "m") -> None:
    """The openai engine."""
    endpoint = Endpoint(url, concurrency=width)
    spec = ModelSpec(name, name, 0.1, generation=Generation(8), endpoint=endpoint)
    answers = dict(backend("openai").load(spec).generate(prompts))
    assert len(answers) == len(prompts)
    assert all(isinstance(answer, Response) for answer in answers.values())


async def bare_loop(url: str, prompts: list[str]) -> None:
    """The least that one can write."""
    free = asyncio.Semaphore(WIDTH)
    async with httpx2.AsyncClient() as client:

        async def ask(prompt: str) -> str:
            body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
            async with free:
                answer = await client.post(f"{url}/chat/completions", json=body)
            text: str = answer.json()["choices"][0]["message"]["content"]
            return text

        await asyncio.gather(*map(ask, prompts))


class Serving:
    """A server in a process of its own; `share` of its replies are faults.

    `silence` is how many seconds it asked not to be called, overlaps counted once.
    """

    def __init__(self, delay_s: float, share: float, name: str = "m") -> None:
        spawn = multiprocessing.get_context("spawn")
        self._here, there = spawn.Pipe()
        self.silence = spawn.Value("d", 0.0)
        self._process = spawn.Process(
            target=serve, args=(delay_s, share, name, there, self.silence)
        )

    def __enter__(self) -> str:
        self._process.start()
        return f"http://127.0.0.1:{self._here.recv()}/v1"

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def serve(delay_s: float, share: float, model: str, told: Connection, silence: Any) -> None:
    """Answer what nobody answered before until the process is ended; the port goes to `told`."""
    draws = random.Random(0)
    quiet_until = 0.0
    completion = {
        "model": model,
        "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    body, count = json.dumps(completion), 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal quiet_until, count
        while head := await reader.readline():
            length = 0
            while (line := await reader.readline()).strip():
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            await reader.readexactly(length)
            count += 1
            status, sent = "200 OK", body.replace('"x"', f'"{model}{count}"')
            if head.startswith(b"POST"):
                await asyncio.sleep(delay_s)
                if draws.random() < share:
                    status, sent = draws.choice(FAULTS), "{}"
                if "Retry-After" in status:
                    ends = time.monotonic() + RETRY_AFTER_S
                    silence.value += ends - max(time.monotonic(), quiet_until)
                    quiet_until = ends
            else:
                sent = '{"data": []}'
            missing = 9 if "X-Cut" in status else 0
            header = f"HTTP/1.1 {status}\r\nContent-Length: {len(sent) + missing}\r\n\r\n"
            writer.write((header + sent).encode())
            await writer.drain()
            if missing:
                break
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


if __name__ == "__main__":
    main()
