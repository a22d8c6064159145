"""What a person waits for: every command on the quickstart's cache, cold and warm.

Each command runs on a terminal of its own, as a person's does. Wall seconds are the least of the
warm runs; cold is the first run after the files of Python, of the project and of the cache were
dropped from the page cache. `first` is when the first character came, `silent` the longest time
without one, `imports` the share of the CPU seconds that imports take. The last column is the ratio
to a reference that was run in turns with it: importing the libraries that the command cannot do
without, and for `route` loading the three models.

    python benchmarks/hand.py [--place DIR] [--rounds 3] [--only NAME,…]

`--place`: a folder where `hierrouter quickstart` has run; default: a new one, where it runs first.
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

MODELS = ROOT / "hierrouter/questions/models/testbed"
READING = "import duckdb, numpy, pyarrow, typer._adapters, rich.console"
LOADING = (
    "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T\n"
    f"for name in 'calc', 'text', 'facts': M.from_pretrained(f'{MODELS}/{{name}}'); "
    f"T.from_pretrained(f'{MODELS}/{{name}}')"
)
REFERENCES = {
    "bare": "import duckdb, numpy, pyarrow",
    "reading": READING,
    "torch": "import torch",
    "loading": LOADING,
}
# Every command of the quickstart's cache, and what it is compared with.
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
NUMBERS = count()
IMPORTED = re.compile(r"^import time:\s+(\d+) \|", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    print(", ".join(f"{name} {version(name)}" for name in ("numpy", "duckdb", "torch")))
    with TemporaryDirectory() as fresh:
        place = args.place or Path(fresh)
        if not (place / "caches").is_dir():
            show("quickstart", watched(hierrouter("quickstart"), place))
        chosen = {name: at for name, at in COMMANDS.items() if fits(name, args.only)}
        for name, against in chosen.items():
            bare = [sys.executable, "-c", REFERENCES[against]]
            evict(place)
            cold = watched(hierrouter(name), place)
            turns = [
                (watched(hierrouter(name), place), watched(bare, place)) for _ in range(args.rounds)
            ]
            warm, least = (min(runs, key=lambda run: run.wall) for runs in zip(*turns, strict=True))
            show(name, warm, cold, import_share(hierrouter(name), place), against, least)


def fits(name: str, only: str) -> bool:
    return not only or name.split()[0] in only.split(",")


def hierrouter(flags: str) -> list[str]:
    flags = flags.format(f"runs/hand-{next(NUMBERS)}")  # a run of its own each time
    return [sys.executable, "-m", "hierrouter_cli", *shlex.split(flags)]


@dataclass(frozen=True)
class Run:
    """One process, as the person saw it who waited for it; seconds and MiB."""

    wall: float
    cpu: float
    memory: float
    first: float
    silent: float


def watched(words: Sequence[str], place: Path) -> Run:
    """Run it in `place` on a terminal of 100 columns."""
    mine, its = pty.openpty()
    began = last = time.monotonic()
    first, silent = None, 0.0
    process = subprocess.Popen(
        words, cwd=place, stdin=its, stdout=its, stderr=its, env=environment() | {"COLUMNS": "100"}
    )
    os.close(its)
    while some_came(mine):
        now = time.monotonic()
        first, silent, last = first or now - began, max(silent, now - last), now
    os.close(mine)
    _, _, used = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    process.returncode = 0  # it has been waited for
    silent = max(silent, wall - (last - began))
    return Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, first or wall, silent)


def some_came(terminal: int) -> bool:
    """Wait for output; whether there was any before the end."""
    select.select([terminal], [], [])
    try:
        return bool(os.read(terminal, 65_536))
    except OSError:  # how Linux says that nobody holds the other end
        return False


def environment() -> dict[str, str]:
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "cache", "cli"))
    return {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}


def import_share(words: Sequence[str], place: Path) -> float:
    """The share of a run's wall time that its imports take, as Python itself says."""
    timing = [words[0], "-X", "importtime", *words[1:]]
    began = time.monotonic()
    done = subprocess.run(timing, cwd=place, env=environment(), capture_output=True, text=True)
    wall = time.monotonic() - began
    return sum(map(int, IMPORTED.findall(done.stderr))) / 1e6 / wall


def evict(place: Path) -> None:
    """Drop what the next run reads from the page cache, as far as the system lets go of it."""
    for file in files([Path(sysconfig.get_path("purelib")), ROOT / "hierrouter", place]):
        with contextlib.suppress(OSError), file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        for where, _, names in os.walk(folder):
            yield from (Path(where, name) for name in names)


def show(
    name: str,
    warm: Run,
    cold: Run | None = None,
    imports: float | None = None,
    against: str = "",
    least: Run | None = None,
) -> None:
    first = f"cold {cold.wall:5.1f} s, " if cold else ""
    share = f", imports {imports:3.0%}" if imports is not None else ""
    ratio = f", {warm.wall / least.wall:5.2f} x {against} ({least.wall:.2f} s)" if least else ""
    print(
        f"{name:58} {first}warm {warm.wall:5.2f} s, CPU {warm.cpu:5.2f} s, {warm.memory:4.0f} MiB, "
        f"first {warm.first:4.2f} s, silent {warm.silent:4.2f} s{share}{ratio}",
        flush=True,
    )


if __name__ == "__main__":
    main()
