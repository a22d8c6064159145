"""Time and memory of the commands from a thousand queries to a million.

    OMP_NUM_THREADS=1 python benchmarks/scale.py --queries 1000 10000 100000 --keep /big/disk
        [--models 3] [--hops 2] [--only info train ...] [--memory 16] [--minutes 30]

Each size is a made-up cache (`scale_cache.py`), of 3 models at 2 hops and 12 calls a query unless
asked otherwise, kept in `--keep`. Each command runs as a process of its own, as installed, one
after the other: wall and CPU seconds; peak memory, in all (mapped files count as they are touched)
and of the process alone. One that takes more memory or time than allowed is ended, and said so.
`scan` is the floor of `info`: the same bytes hashed and the same columns read by pyarrow alone,
joined to nothing; `import` what imports take. At the end: exponents of CPU time without imports
from one size to the next; 1 is in proportion.
"""

import argparse
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
HIERROUTER = str(Path(sys.executable).with_name("hierrouter"))
SCAN = """
import hashlib, sys
from pathlib import Path
import pyarrow.parquet as pq
for path in Path(sys.argv[1]).glob("parts/*"):
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")
calls = sorted(map(str, Path(sys.argv[1]).glob("parts/calls-*")))
columns = ["key", "step", "context", "outcome", "tokens_in", "tokens_out"]
pq.ParquetDataset(calls).read(columns, use_threads=False)
"""
IMPORT = "import torch, hierrouter.learning.training, hierrouter_cli.train"
MAKE = """
import sys
from pathlib import Path
from scale_cache import make_cache
make_cache(Path(sys.argv[1]), *map(int, sys.argv[2:]))
"""
# What runs, in this order, in a folder of its own beside the cache.
COMMANDS = {
    "compact": "cache compact",
    "info": "cache info",
    "verify": "verify",
    "train": "train --encoder hashed-ngrams --out runs/1-ppo",
    "train-exact": "train --algo exact --encoder hashed-ngrams --out runs/2-exact",
    "sweep": "sweep-alpha --encoder hashed-ngrams --out runs/3-sweep",
    "report": "report --checkpoint runs/1-ppo --out report",
    "explain": "explain --worst 5 --checkpoint runs/1-ppo",
    "explore": "explore --checkpoint runs/1-ppo --out explore.html",
    "compare": "compare --checkpoint runs/1-ppo --out compare",
}
FLOORS = {"import": [sys.executable, "-c", IMPORT], "scan": [sys.executable, "-c", SCAN]}
ALL = (*FLOORS, *COMMANDS)
LOOK_S = 0.05
GB = 1 << 30


@dataclass(frozen=True)
class Spent:
    """What one process took.

    Attributes:
        wall, cpu: seconds; CPU of its children, too.
        memory: bytes at the peak, mapped files included.
        own: bytes at the peak that belong to no file, looked at 20 times a second.
        end: "" where it ended well, else how it ended.
    """

    wall: float
    cpu: float
    memory: int
    own: int
    end: str


def measure(command: list[str], folder: Path, most_bytes: float, most_seconds: float) -> Spent:
    """Run a command in `folder`, within limits; its output goes to a file there."""
    started, own, end = time.monotonic(), 0, ""
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, env=_environment()
        )
        while True:
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
            if done:
                break
            own = max(own, _own_bytes(process.pid))
            wall = time.monotonic() - started
            if not end and (own > most_bytes or wall > most_seconds):
                end = "memory" if own > most_bytes else "time"
                process.send_signal(signal.SIGKILL)
            time.sleep(LOOK_S)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode and not end:
        end = (folder / "output.txt").read_text("utf-8", "replace").strip()[-200:]
    wall = time.monotonic() - started
    return Spent(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, own, end)


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


def _own_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def cache_of(queries: int, args: argparse.Namespace) -> Path:
    """The cache of so many queries, made where it is not there yet."""
    keep: Path = args.keep
    cache = keep / f"{queries}-{args.models}x{args.hops}"
    if not cache.exists():
        draft = cache.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        size = map(str, (queries, args.models, args.hops))
        spent = measure([sys.executable, "-c", MAKE, str(draft), *size], keep, 1e18, 1e9)
        show(queries, "make", spent)
        if spent.end:
            sys.exit(spent.end)
        draft.rename(cache)
    return cache


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def show(queries: int, name: str, spent: Spent) -> None:
    """A line a command."""
    print(
        f"{queries:>9,}  {name:<12} {spent.wall:8.1f} s {spent.cpu:8.1f} CPU-s "
        f"{spent.memory / GB:7.2f} GB {spent.own / GB:7.2f} GB own  {spent.end}".rstrip(),
        flush=True,
    )


def command_line(name: str, cache: Path) -> list[str]:
    """What runs under a name."""
    if name in FLOORS:
        return [*FLOORS[name], str(cache)]
    return [HIERROUTER, *COMMANDS[name].split(), "--cache", str(cache)]


def measure_size(queries: int, args: argparse.Namespace) -> dict[str, Spent]:
    """Every command on a cache of this size; those that end well."""
    cache = cache_of(queries, args)
    folder = cache.with_suffix(".work")
    folder.mkdir(exist_ok=True)
    found = {}
    for name in args.only:
        line = command_line(name, cache)
        spent = measure(line, folder, args.memory * GB, args.minutes * 60)
        show(queries, name, spent)
        if not spent.end:
            found[name] = spent
    sizes = {"parts": size_of(cache / "parts"), "embeddings": size_of(cache / "derived")}
    sizes |= {page.name: page.stat().st_size for page in folder.glob("**/*.html")}
    words = [f"{name} {size / 1e6:,.1f} MB" for name, size in sizes.items()]
    print(f"{queries:>9,}  on disk: {', '.join(words)}", flush=True)
    return found


def exponents(sizes: dict[int, dict[str, Spent]]) -> None:
    """How CPU time grows from each size to the next: log of its ratio by log of theirs."""
    for small, large in zip(sizes, list(sizes)[1:], strict=False):
        less, more = (_without_import(sizes[size]) for size in (small, large))
        words = [
            f"{name} {math.log(more[name] / less[name]) / math.log(large / small):.2f}"
            for name in less
            if name in more and min(less[name], more[name]) > 0
        ]
        print(f"{small:,} to {large:,}: {', '.join(words)}")


def _without_import(found: dict[str, Spent]) -> dict[str, float]:
    """CPU seconds of each command less those of importing, where that was measured."""
    floor = found["import"].cpu if "import" in found else 0.0
    return {name: spent.cpu - floor for name, spent in found.items() if name in COMMANDS}


def main() -> None:
    """All sizes, all commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--hops", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for the caches; default: removed after")
    parser.add_argument("--only", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--memory", type=float, default=16.0, help="GB a command may own")
    parser.add_argument("--minutes", type=float, default=30.0, help="that a command may take")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        args.keep = (args.keep or Path(scratch)).resolve()
        args.keep.mkdir(parents=True, exist_ok=True)
        sizes = {queries: measure_size(queries, args) for queries in sorted(args.queries)}
        exponents(sizes)


if __name__ == "__main__":
    main()
