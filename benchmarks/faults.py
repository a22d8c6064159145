"""Fail every call of the system that a command makes below its folder, one run for each call.

    python benchmarks/faults.py [--how eio,short,enomem] [--every 1] [--commands collect,report]
    python benchmarks/faults.py --sites
    python benchmarks/faults.py --how clock,nolocks,readonly

Each command is run once to count its calls: open, read, write, fsync, rename, unlink, mkdir, list,
stat, map, lock, whoever makes them, Python, Arrow or DuckDB (`faults.c`, a library that is loaded
first; it wants a C compiler and Linux). Then it is run again, and again, each time with another
call that fails. It must end well with the result that it has without faults, or with one line and
its exit code; and then the same command, without faults, must end well with that result. The result
is what is printed and what the command is for: caches, mirrors, exports, checkpoints, reports,
pages. The script exits with 1 if anything is wrong.

With `--sites` only the first and the last call of each kind on each kind of file fail: calls of one
name on paths that differ in numbers and digests alone. Of the last line each holds over one whole
run: a clock whose time of day jumps at every look, a disk without locks, and a cache that cannot be
written.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import measuring  # noqa: F401  makes `tests` importable

from hierrouter.replay.inspection import ask_cache
from hierrouter.runs.folders import file_digest
from hierrouter_cache.errors import HierRouterError
from tests.cli.conftest import BRIEF, COMMAND
from tests.conftest import SOURCES, environment
from tests.warm import WarmProcess

CACHE = "caches/default"
ANSWERS = "SELECT query, route, call, response FROM nodes ORDER BY ALL"
# What each command needs before it, and its words.
COMMANDS: dict[str, tuple[str, str]] = {
    "collect": ("empty", "collect --datasets testbed --limit 6"),
    "collect more": ("collected", "collect --datasets testbed --limit 7"),
    "compact": ("collected", "cache compact"),
    "repair": ("damaged", "cache repair"),
    "verify": ("trained", "verify"),
    "push": ("collected", "cache push mirror"),
    "pull": ("mirrored", "cache pull mirror"),
    "export": ("collected", "cache export --out all.jsonl"),
    "import": ("exported", "cache import all.jsonl --cache caches/other"),
    "train": ("collected", "train --algo exact --epochs 2 --out run"),
    "train again": ("begun", "train --algo ppo --epochs 3 --out run"),
    "sweep-alpha": ("collected", "sweep-alpha --alphas 0,0.5 --out run"),
    "report": ("trained", "report --format json --out page"),
    "compare": ("trained", "compare --baselines best-static,ridge --format json --out page"),
    "explain": ("trained", "explain --worst 3 --format json"),
    "explore": ("trained", "explore --out page.html"),
    "route": ("trained", "route --dry-run What_is_19_x_23?"),
    "deploy": ("trained", "deploy train"),
    "deploy again": ("deployed", "deploy train --share 0.5"),
}

WHOLE = ("clock", "nolocks", "readonly")
# The last: a name that could not be removed is named once more by the part that comes next.
NEVER_THE_SAME = re.compile(
    r'"(fit_cpu_seconds|all_routers|this_router)": [0-9.e-]+|bytes -> [0-9,]+'
)
NUMBERS = re.compile(r"[0-9a-f]{8,}|[0-9]+|[a-z0-9_]{8}(?=\.tmp)")
FIGURES = ("verify", "report", "compare", "explain", "route")


class Bench:
    """Commands with and without faults, on copies of a few folders.

    Args:
        folder: for all of them.
        library: `faults.c`, compiled.
    """

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.process = WarmProcess({**environment(), "LD_PRELOAD": str(library)}, SOURCES)
        self.made: dict[str, Path] = {}

    def run(self, words: str, place: Path, **faults: str) -> subprocess.CompletedProcess[str]:
        env = {**environment(), **faults}
        command = ("-c", BRIEF + COMMAND, *words.split())
        done: subprocess.CompletedProcess[str] = self.process.warm.start(
            *command, cwd=place, env=env
        ).result()
        return done

    def state(self, name: str) -> Path:
        """A folder as a command finds it."""
        if name not in self.made:
            self.made[name] = self.folder / f"state {name}"
            self._make(name, self.made[name])
        return self.made[name]

    def _make(self, name: str, place: Path) -> None:
        after: dict[str, tuple[str, Callable[[Path], object]]] = {
            "collected": (
                "empty",
                lambda at: self.does("collect --datasets testbed --limit 6", at),
            ),
            "damaged": ("collected", _damage),
            "mirrored": ("collected", self._mirror),
            "exported": ("collected", lambda at: self.does("cache export --out all.jsonl", at)),
            "trained": ("collected", self._train),
            "begun": ("collected", lambda at: self._begin(at)),
            "deployed": ("trained", lambda at: self.does("deploy train", at)),
        }
        if name == "empty":
            place.mkdir()
            return
        before, then = after[name]
        shutil.copytree(self.state(before), place)
        then(place)

    def does(self, words: str, place: Path) -> None:
        done = self.run(words, place)
        assert done.returncode == 0, done.stderr

    def _mirror(self, place: Path) -> None:
        self.does("cache push mirror", place)
        shutil.rmtree(place / CACHE)
        self.does("collect --datasets testbed --limit 1", place)

    def _train(self, place: Path) -> None:
        self.does("train --algo exact --epochs 2 --out runs/train", place)
        self.does("sweep-alpha --alphas 0,0.5 --out runs/sweep", place)

    def _begin(self, place: Path) -> None:
        self.does("train --algo ppo --epochs 3 --dry-run", place)

    def copied(self, name: str) -> Path:
        place = self.folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.state(name), place)
        return place

    def result(self, done: subprocess.CompletedProcess[str], place: Path) -> str:
        """What a command has printed and left, without what is never the same."""
        said = [done.stdout]
        for root in (CACHE, "caches/other", "mirror"):
            if (place / root).exists():
                try:
                    said.append(str(ask_cache(place / root, ANSWERS).to_pylist()))
                except HierRouterError as error:
                    said.append(str(error))
        for file in sorted(place.rglob("*")):
            if file.name in ("policy.safetensors", "page.html", "all.jsonl"):
                said.append(f"{file.relative_to(place)} {file_digest(file)}")
            elif file.name in ("report.json", "compare.json", "service.json"):
                said.append(file.read_text())
        return NEVER_THE_SAME.sub("", "\n".join(said))


def _damage(place: Path) -> None:
    part = next((place / CACHE / "parts").glob("scores-*"))
    part.write_bytes(part.read_bytes()[:-9])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--how", default="eio")
    parser.add_argument("--every", type=int, default=1, help="only each n-th call")
    parser.add_argument("--sites", action="store_true", help="two calls of each kind on each file")
    parser.add_argument("--commands", default=",".join(COMMANDS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name).resolve()
        library = folder / "faults.so"
        source = Path(__file__).with_suffix(".c")
        compiler = ("cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl")
        subprocess.run(compiler, check=True)
        bench = Bench(folder, library)
        sites = wrong = 0
        for command in args.commands.split(","):
            counts, faults = tried(bench, command, args.how.split(","), args.every, args.sites)
            sites += counts["calls"]
            wrong += len(faults)
            shown = ", ".join(f"{what} {n}" for what, n in counts.items())
            print(f"{command:<14}{shown}", flush=True)
            for line in faults:
                print(f"  {line}", flush=True)
        print(f"{sites} calls, {wrong} wrong")
        bench.process.close()
    sys.exit(1 if wrong else 0)


def tried(
    bench: Bench, command: str, hows: list[str], every: int, sites: bool
) -> tuple[Counter[str], list[str]]:
    """(counts, what went wrong) of one command with each of its calls failing."""
    state, words = COMMANDS[command]
    place = bench.copied(state)
    root = {"FAULT_ROOT": str(place)}
    bench.log.unlink(missing_ok=True)
    done = bench.run(words, place, FAULT_LOG=str(bench.log), **root)
    assert done.returncode == 0, done.stderr
    calls = [line.split("\t") for line in bench.log.read_text().splitlines()]
    names = [name for name, _ in calls]
    due = list(range(1, len(names) + 1, every))
    expected, stdout = bench.result(done, place), done.stdout
    counts, faults = Counter({"calls": len(names)}), []
    if sites:
        kinds = [(name, NUMBERS.sub("#", path)) for name, path in calls]
        latest = {kind: at for at, kind in enumerate(kinds, 1)}
        first = {kind: at for at, kind in reversed(list(enumerate(kinds, 1)))}
        due = sorted({*first.values(), *latest.values()})
        counts["sites"] = len(first)
    for how in hows:
        for number in [0] if how in WHOLE else due:
            if how == "short" and names[number - 1] not in ("Read", "Write"):
                continue
            place = bench.copied(state)
            where = f"{how} at {number}, {names[number - 1]}" if number else how
            if how == "readonly":
                root = {"FAULT_ROOT": str(place / CACHE)}
            at = {"FAULT_AT": str(number)} if number else {}
            done = bench.run(words, place, FAULT_HOW=how, **at, **root)
            if done.returncode == 0:
                counts["finished"] += 1
                if bench.result(done, place) != expected:
                    faults.append(f"{where}: another result")
                continue
            counts[f"exit {done.returncode}"] += 1
            if not number:
                print(f"  {how}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
            if "Traceback" in done.stderr or "error: " not in done.stderr:
                faults.append(f"{where}: {done.stderr.strip().splitlines()[-1:]}")
            again = bench.run(words, place)
            if command not in FIGURES:  # it says how much of it was done the second time
                again.stdout = stdout
            if again.returncode == 0 and bench.result(again, place) == expected:
                continue
            last = again.stderr.strip().splitlines()[-1:]
            faults.append(f"{where}: then exit {again.returncode}, {last}")
    return counts, faults


if __name__ == "__main__":
    main()
