"""Compare a dry run with the collection that follows it.

    python benchmarks/dry_run.py [SETTING ...]

Each setting is a pilot, a dry run of a larger collection, and that collection, all by the command.
For calls, tokens, cost and seconds by the clock the script prints estimate over actual, whether the
actual value lies in the estimated range, and bound over actual: of a dry run without any call for
the first setting of a pool, else of the one after the pilot. Also printed is the rule that the
estimate once followed: the mean seconds of a call in the cache times the expected calls.

The seconds are those from the start of the command to its line "collected", so that embeddings and
scores do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import measuring

from hierrouter_cache.reader import CacheReader

COMMAND = [sys.executable, "-m", "hierrouter_cli", "collect"]
CAP = 64  # `max_new_tokens` of the served models


@dataclass(frozen=True)
class Setting:
    """A collection that follows a pilot.

    Attributes:
        name: for people.
        pilot: flags of the pilot.
        collection: flags of the collection.
        delays: seconds of a reply of each scripted server; none for local models.
        pool: keys of each served model, e.g. `concurrency = 4`.
        local: names of testbed models in the same pool.
        hops: of the served pool.
    """

    name: str
    pilot: str
    collection: str
    delays: tuple[float, ...] = ()
    pool: str = ""
    local: tuple[str, ...] = ()
    hops: int = 2


SETTINGS = (
    Setting("testbed 10 to 100", "--datasets testbed --limit 10", "--datasets testbed --limit 100"),
    Setting("testbed 10 to 30", "--datasets testbed --limit 10", "--datasets testbed --limit 30"),
    Setting("testbed 60 to 120", "--datasets testbed --limit 60", "--datasets testbed --limit 120"),
    Setting("one family, 4 to 300", "--datasets arith --limit 4", "--datasets arith --limit 300"),
    Setting(
        "other families",
        "--datasets arith --limit 10",
        "--datasets arith,story,mirror,fact --limit 60",
    ),
    Setting("graded 10 to 60", "--datasets graded --limit 10", "--datasets graded --limit 60"),
    Setting(
        "three servers",
        "--datasets arith,story --limit 5",
        "--datasets arith,story --limit 60",
        delays=(0.1, 0.2, 0.4),
    ),
    Setting(
        "a server, a tiny pilot",
        "--datasets arith --limit 2",
        "--datasets arith --limit 100",
        delays=(0.3, 0.3),
    ),
    Setting(
        "a limit a minute",
        "--datasets arith --limit 3",
        "--datasets arith --limit 24",
        delays=(0.05, 0.05),
        pool="requests_per_minute = 600\n",
    ),
    Setting(
        "three hops, servers",
        "--datasets arith --limit 4",
        "--datasets arith --limit 40",
        delays=(0.2, 0.2),
        hops=3,
    ),
    Setting(
        "a server and local models",
        "--datasets testbed --limit 5",
        "--datasets testbed --limit 40",
        delays=(0.05,),
        local=("calc", "text"),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="settings; default: all")
    args = parser.parse_args()
    names = ("calls", "tokens_in", "tokens_out", "cost", "seconds")
    print(f"{'estimate / actual':28}" + "".join(f"{name:>12}" for name in names))
    worst: list[float] = []
    for setting in SETTINGS:
        if args.names and setting.name not in args.names:
            continue
        with tempfile.TemporaryDirectory() as folder, served_pool(setting, Path(folder)):
            before = dry_run(setting.collection, Path(folder))
            collect(setting.pilot, Path(folder))
            after = dry_run(setting.collection, Path(folder))
            by_mean = mean_rule(after, Path(folder) / "cache")
            actual = collect(setting.collection, Path(folder))
        estimate = after["estimate"]["total"]
        ratios = [estimate[name]["likely"] / actual[name] for name in names]
        worst += ratios
        marks = [
            " " if estimate[name]["low"] <= actual[name] <= estimate[name]["high"] else "*"
            for name in names
        ]
        cells = [f"{ratio:11.2f}{mark}" for ratio, mark in zip(ratios, marks, strict=True)]
        print(f"{setting.name:28}" + "".join(cells))
        bounds = [
            f"{bound['bound']['total'][name] / actual[name]:11.2f} "
            for bound in (before, after)
            for name in names[:4]
        ]
        print(f"{'  bound / actual':28}" + "".join(bounds[:4]) + "  before the pilot")
        print(f"{'':28}" + "".join(bounds[4:]) + "  after it")
        in_models = model_seconds(after) / actual["model_seconds"]
        print(
            f"  {actual['seconds']:.1f} s; in the models alone {actual['model_seconds']:.1f} s: "
            f"{in_models:.2f}; mean seconds times calls: {by_mean / actual['seconds']:.2f}",
            flush=True,
        )
    print(f"all between {min(worst):.2f} and {max(worst):.2f}; * is beyond the range")


@contextlib.contextmanager
def served_pool(setting: Setting, folder: Path) -> Iterator[None]:
    """Start the setting's servers, and write their pool to `pool.toml`."""
    with contextlib.ExitStack() as stack:
        if not setting.delays:
            yield
            return
        text = (
            f'[pool]\nhops = {setting.hops}\nper_tokens = 1\nstage_prompts = ["Plan.", "Solve."]\n'
            'encoder = "hashed-ngrams"\n'
        )
        for number, delay_s in enumerate(setting.delays):
            name = f"served-{number}"
            port = stack.enter_context(scripted_server(name, delay_s))
            text += (
                f'[[models]]\nname = "{name}"\nmodel = "{name}"\nbackend = "openai"\n'
                f"rate_in = 0.1\nrate_out = 0.4\ngeneration = {{ max_new_tokens = {CAP} }}\n"
                f'[models.endpoint]\nbase_url = "http://127.0.0.1:{port}/v1"\n{setting.pool}'
            )
        for name in setting.local:
            text += (
                f'[[models]]\nname = "{name}"\nmodel = "testbed:{name}"\nbase_rate = 0.03\n'
                'dtype = "float32"\ngeneration = { max_new_tokens = 16 }\n'
            )
        (folder / "pool.toml").write_text(text)
        yield


@contextlib.contextmanager
def scripted_server(name: str, delay_s: float) -> Iterator[int]:
    """A server in another process; yields its port.

    Args:
        name: of its model.
        delay_s: seconds of a reply of the usual length; longer replies take longer.
    """
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe()
    process = spawn.Process(target=serve, args=(name, delay_s, sender))
    process.start()
    try:
        yield receiver.recv()
    finally:
        process.terminate()
        process.join()


USUAL_TOKENS = 12  # of a reply


def serve(name: str, delay_s: float, sender: Connection) -> None:
    """Answer every prompt with its own text; lengths have a long tail."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            length = 0
            while (line := await reader.readline()).strip():
                key, _, value = line.partition(b":")
                length = int(value) if key.lower() == b"content-length" else length
            request = json.loads(await reader.readexactly(length) or "{}")
            reply: dict[str, Any] = {"data": []}
            if head.startswith(b"POST"):
                prompt = request["messages"][0]["content"]
                rng = random.Random(f"{name} {prompt}")
                tokens = min(int(rng.lognormvariate(0, 0.7) * USUAL_TOKENS) + 1, CAP)
                await asyncio.sleep(delay_s * tokens / USUAL_TOKENS)
                text = " ".join(str(rng.randrange(1000)) for _ in range(tokens))
                finish = "length" if tokens == CAP else "stop"
                usage = {"prompt_tokens": len(prompt) // 4 + 9, "completion_tokens": tokens}
                reply = {
                    "model": name,
                    "choices": [{"message": {"content": text}, "finish_reason": finish}],
                    "usage": usage,
                }
            body = json.dumps(reply).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        sender.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def arguments(flags: str, folder: Path) -> list[str]:
    pool = ["--pool", "pool.toml"] if (folder / "pool.toml").exists() else []
    return [*COMMAND, *flags.split(), *pool, "--cache", "cache", "--format", "json"]


def dry_run(flags: str, folder: Path) -> Any:
    """Return what a dry run prints."""
    command = [*arguments(flags, folder), "--dry-run"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def collect(flags: str, folder: Path) -> dict[str, float]:
    """Collect; return calls, tokens, cost, and the seconds until all calls are made."""
    started = time.perf_counter()
    process = subprocess.Popen(
        arguments(flags, folder),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    seconds = 0.0
    assert process.stderr
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("collected:"):
            seconds = time.perf_counter() - started
    assert process.stdout
    output = process.stdout.read()
    assert process.wait() == 0, "".join(lines)
    summary = json.loads(output)
    return {
        "calls": summary["calls"],
        "tokens_in": summary["tokens_in"],
        "tokens_out": summary["tokens_out"],
        "cost": sum(spending["cost"] for spending in summary["spent"].values()),
        "seconds": seconds,
        "model_seconds": summary["seconds"],
    }


def model_seconds(estimate: Any) -> float:
    """Return the likely seconds in the models, without what comes before and after the calls."""
    models = estimate["estimate"]["models"]
    by_name = {name: models[name]["seconds"]["likely"] for name in models}
    local = sum(seconds for name, seconds in by_name.items() if not name.startswith("served"))
    served = [seconds for name, seconds in by_name.items() if name.startswith("served")]
    return max([local, *served])


def mean_rule(estimate: Any, cache: Path) -> float:
    """Return the mean seconds of a call of each model in the cache, times its expected calls."""
    rows = CacheReader(cache).sql("SELECT model, avg(latency_s) AS s FROM calls GROUP BY model")
    seconds = {row["model"]: row["s"] for row in rows.to_pylist()}
    models = estimate["estimate"]["models"]
    return sum(seconds[name] * models[name]["calls"]["likely"] for name in models)


def environment() -> dict[str, str]:
    roots = (measuring.ROOT, measuring.ROOT / "cache", measuring.ROOT / "cli")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots)), "HF_HUB_OFFLINE": "1"}


if __name__ == "__main__":
    main()
