"""How long a person waits for each command on the quickstart's cache, cold and warm.

Each command runs on a new terminal, as for a person. Wall seconds are the least of the warm runs;
the cold run is the first one after the files of Python, of the project and of the cache were
dropped from the page cache. `first` is the time of the first character, `silent` the longest time
without one, `imports` the share of the wall time that imports take. The last column is the ratio to
a reference that alternates with the command: importing the libraries that it needs, and for `route`
also loading the three models.

    python benchmarks/hand.py [--place DIR] [--rounds 3] [--only NAME,…]

`--place` is a folder in which `hierrouter quickstart` has run; by default a new one, in which it is
run first.
"""

import argparse
import contextlib
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from measuring import ROOT

MODELS_FOLDER = ROOT / "hierrouter/questions/models/testbed"
READING_IMPORTS = "import duckdb, numpy, pyarrow, typer._adapters, rich.console"
LOADING_MODELS = (
    "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T\n"
    f"for name in 'calc', 'text', 'facts': M.from_pretrained(f'{MODELS_FOLDER}/{{name}}'); "
    f"T.from_pretrained(f'{MODELS_FOLDER}/{{name}}')"
)
REFERENCES = {
    "bare": "import duckdb, numpy, pyarrow",
    "reading": READING_IMPORTS,
    "torch": "import torch",
    "loading": LOADING_MODELS,
}
# Every command on the quickstart's cache, and its reference.
COMMANDS = {
    "--help": "torch",
    "train --alpa 1": "torch",
    "cache info": "reading",
    "cache sql 'SELECT count(*) FROM nodes'": "reading",
    "verify": "reading",
    "explain arith-0": "reading",
    "explain --worst 3": "reading",
    "explore --split validation --out {}.html": "reading",
    "report --split validation": "torch",
    "compare --split validation": "torch",
    "train --dry-run": "torch",
    "train --algo exact --alpha 0.4 --allow-stop --out {}": "torch",
    "sweep-alpha --alphas 0.3,0.6,1.2 --allow-stop --out {}": "torch",
    "route 'compute 12+7'": "loading",
    "collect": "loading",
}
RUN_NUMBERS = count()
IMPORT_TIME_PATTERN = re.compile(r"^import time:\s+(\d+) \|", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    print(", ".join(f"{name} {version(name)}" for name in ("numpy", "duckdb", "torch")))
    with TemporaryDirectory() as fresh:
        folder = args.place or Path(fresh)
        if not (folder / "caches").is_dir():
            show("quickstart", watch(hierrouter("quickstart"), folder))
        for name, reference in COMMANDS.items():
            if not is_selected(name, args.only):
                continue
            bare = [sys.executable, "-c", REFERENCES[reference]]
            evict(folder)
            cold = watch(hierrouter(name), folder)
            warm_runs = []
            reference_runs = []
            for _ in range(args.rounds):
                warm_runs.append(watch(hierrouter(name), folder))
                reference_runs.append(watch(bare, folder))
            warm = min(warm_runs, key=lambda run: run.wall)
            fastest = min(reference_runs, key=lambda run: run.wall)
            share = import_share(hierrouter(name), folder)
            show(name, warm, cold, share, reference, fastest)


def is_selected(name: str, only: str) -> bool:
    return not only or name.split()[0] in only.split(",")


def hierrouter(flags: str) -> list[str]:
    flags = flags.format(f"runs/hand-{next(RUN_NUMBERS)}")  # a new run each time
    return [sys.executable, "-m", "hierrouter_cli", *shlex.split(flags)]


@dataclass(frozen=True)
class Run:
    """One process, as seen by the person who waits for it.

    Attributes:
        wall: seconds until its end.
        cpu: seconds.
        memory: MiB.
        first: seconds until its first character.
        silent: the longest time without a character, in seconds.
    """

    wall: float
    cpu: float
    memory: float
    first: float
    silent: float


def watch(words: Sequence[str], folder: Path) -> Run:
    """Run a command in `folder` on a terminal of 100 columns."""
    our_end, its_end = pty.openpty()
    start = time.monotonic()
    last = start
    first = None
    silent = 0.0
    process = subprocess.Popen(
        words,
        cwd=folder,
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        env=environment() | {"COLUMNS": "100"},
    )
    os.close(its_end)
    while wait_for_output(our_end):
        now = time.monotonic()
        first = first or now - start
        silent = max(silent, now - last)
        last = now
    os.close(our_end)
    _, _, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - start
    process.returncode = 0  # `wait4` has taken its exit code from `process`
    silent = max(silent, wall - (last - start))
    cpu = usage.ru_utime + usage.ru_stime
    return Run(wall, cpu, usage.ru_maxrss / 1024, first or wall, silent)


def wait_for_output(terminal: int) -> bool:
    """Wait for output, and tell whether there was any before the end."""
    select.select([terminal], [], [])
    try:
        return bool(os.read(terminal, 65_536))
    except OSError:  # on Linux: the other end is closed
        return False


def environment() -> dict[str, str]:
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "cache", "cli"))
    return {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}


def import_share(words: Sequence[str], folder: Path) -> float:
    """Return the share of a run's wall time that imports take, as measured by Python."""
    timing = [words[0], "-X", "importtime", *words[1:]]
    start = time.monotonic()
    completed = subprocess.run(
        timing, cwd=folder, env=environment(), capture_output=True, text=True
    )
    wall = time.monotonic() - start
    return sum(map(int, IMPORT_TIME_PATTERN.findall(completed.stderr))) / 1e6 / wall


def evict(folder: Path) -> None:
    """Drop the files that the next run reads from the page cache, as far as the system allows."""
    for path in files([Path(sysconfig.get_path("purelib")), ROOT / "hierrouter", folder]):
        with contextlib.suppress(OSError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        for parent, _, names in os.walk(folder):
            yield from (Path(parent, name) for name in names)


def show(
    name: str,
    warm: Run,
    cold: Run | None = None,
    imports: float | None = None,
    reference: str = "",
    fastest: Run | None = None,
) -> None:
    """Print the line of one command."""
    first = f"cold {cold.wall:5.1f} s, " if cold else ""
    share = f", imports {imports:3.0%}" if imports is not None else ""
    ratio = ""
    if fastest:
        ratio = f", {warm.wall / fastest.wall:5.2f} x {reference} ({fastest.wall:.2f} s)"
    print(
        f"{name:58} {first}warm {warm.wall:5.2f} s, CPU {warm.cpu:5.2f} s, {warm.memory:4.0f} MiB, "
        f"first {warm.first:4.2f} s, silent {warm.silent:4.2f} s{share}{ratio}",
        flush=True,
    )


if __name__ == "__main__":
    main()
