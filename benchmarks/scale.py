"""Time and memory of the commands, for caches from a thousand queries to a million.

    OMP_NUM_THREADS=1 python benchmarks/scale.py --queries 1000 10000 100000 --keep /big/disk
        [--models 3] [--hops 2] [--only info train ...] [--memory 16] [--minutes 30]

Each cache is synthetic (`scale_cache.py`), by default with 3 models, 2 hops and 12 calls per query,
and is kept in `--keep`. The installed commands run one after the other, each in a new process. Each
line has wall-clock and CPU seconds, and peak memory, in total (mapped files count once they are
read) and without files. A command that takes more memory or time than allowed is killed, and its
line says which. `scan` is a lower bound for `info`: the same bytes are hashed and the same columns
are read by pyarrow alone, without a join. `import` is the time of imports. The last lines are
exponents of CPU time without imports from one size to the next; 1 means proportional.
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
# The commands, in this order; they run in a separate folder beside the cache.
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
SAMPLING_S = 0.05  # between two measurements of the memory
GB = 1 << 30


@dataclass(frozen=True)
class Usage:
    """Time and memory of one process.

    Attributes:
        wall: seconds.
        cpu: seconds, including its children.
        memory: peak bytes, mapped files included.
        own: peak bytes without mapped files, measured 20 times a second.
        end: "" if it succeeded, else how it ended.
    """

    wall: float
    cpu: float
    memory: int
    own: int
    end: str


def measure(command: list[str], folder: Path, max_bytes: float, max_seconds: float) -> Usage:
    """Run a command in `folder`, within limits; its output goes to a file there.

    Args:
        command: the command line.
        folder: the working folder.
        max_bytes: of memory without mapped files.
        max_seconds: of wall-clock time.

    Returns:
        Its time and memory.
    """
    started = time.monotonic()
    own = 0
    end = ""
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, env=_environment()
        )
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            own = max(own, _own_bytes(process.pid))
            wall = time.monotonic() - started
            if not end and (own > max_bytes or wall > max_seconds):
                end = "memory" if own > max_bytes else "time"
                process.send_signal(signal.SIGKILL)
            time.sleep(SAMPLING_S)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode and not end:
        end = (folder / "output.txt").read_text("utf-8", "replace").strip()[-200:]
    wall = time.monotonic() - started
    return Usage(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, own, end)


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


def _own_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    match = re.search(r"RssAnon:\s+(\d+) kB", status)
    return int(match[1]) * 1024 if match else 0


def cache_of(queries: int, args: argparse.Namespace) -> Path:
    """Return the cache of a number of queries, and make it if it does not exist."""
    keep: Path = args.keep
    cache = keep / f"{queries}-{args.models}x{args.hops}"
    if not cache.exists():
        draft = cache.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        size = map(str, (queries, args.models, args.hops))
        usage = measure([sys.executable, "-c", MAKE, str(draft), *size], keep, 1e18, 1e9)
        show(queries, "make", usage)
        if usage.end:
            sys.exit(usage.end)
        draft.rename(cache)
    return cache


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def show(queries: int, name: str, usage: Usage) -> None:
    """Print the line of one command."""
    print(
        f"{queries:>9,}  {name:<12} {usage.wall:8.1f} s {usage.cpu:8.1f} CPU-s "
        f"{usage.memory / GB:7.2f} GB {usage.own / GB:7.2f} GB own  {usage.end}".rstrip(),
        flush=True,
    )


def command_line(name: str, cache: Path) -> list[str]:
    """Return the command line of a name."""
    if name in FLOORS:
        return [*FLOORS[name], str(cache)]
    return [HIERROUTER, *COMMANDS[name].split(), "--cache", str(cache)]


def measure_size(queries: int, args: argparse.Namespace) -> dict[str, Usage]:
    """Measure all commands on a cache of one size, and return those that succeed."""
    cache = cache_of(queries, args)
    folder = cache.with_suffix(".work")
    folder.mkdir(exist_ok=True)
    usages = {}
    for name in args.only:
        line = command_line(name, cache)
        usage = measure(line, folder, args.memory * GB, args.minutes * 60)
        show(queries, name, usage)
        if not usage.end:
            usages[name] = usage
    sizes = {"parts": size_of(cache / "parts"), "embeddings": size_of(cache / "derived")}
    sizes |= {page.name: page.stat().st_size for page in folder.glob("**/*.html")}
    words = [f"{name} {size / 1e6:,.1f} MB" for name, size in sizes.items()]
    print(f"{queries:>9,}  on disk: {', '.join(words)}", flush=True)
    return usages


def exponents(sizes: dict[int, dict[str, Usage]]) -> None:
    """Print how CPU time grows from each size to the next: its log ratio over that of the sizes."""
    for small, large in zip(sizes, list(sizes)[1:], strict=False):
        small_cpu = _without_imports(sizes[small])
        large_cpu = _without_imports(sizes[large])
        texts = []
        for name in small_cpu:
            if name in large_cpu and min(small_cpu[name], large_cpu[name]) > 0:
                growth = math.log(large_cpu[name] / small_cpu[name])
                texts.append(f"{name} {growth / math.log(large / small):.2f}")
        print(f"{small:,} to {large:,}: {', '.join(texts)}")


def _without_imports(usages: dict[str, Usage]) -> dict[str, float]:
    """Return the CPU seconds of each command, minus those of imports if they were measured."""
    import_cpu = usages["import"].cpu if "import" in usages else 0.0
    return {name: usage.cpu - import_cpu for name, usage in usages.items() if name in COMMANDS}


def main() -> None:
    """Measure all sizes and commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--hops", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for the caches; default: a temporary one")
    parser.add_argument("--only", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument(
        "--memory", type=float, default=16.0, help="GB that a command may use without files"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="that a command may take")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        args.keep = (args.keep or Path(scratch)).resolve()
        args.keep.mkdir(parents=True, exist_ok=True)
        sizes = {queries: measure_size(queries, args) for queries in sorted(args.queries)}
        exponents(sizes)


if __name__ == "__main__":
    main()
