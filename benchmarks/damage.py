"""Damage each kind of file of a cache and its runs, and count how the commands react.

    python benchmarks/damage.py [--flips 100] [--cuts 20] [--kinds checkpoint,record] [--rows roles]

`--rows roles` has the draws of a pool with roles instead, `--rows log` an imported log.

After each flip of a bit and each cut, `verify` and one other command are run, a different one each
time; after deletions, renamings and exchanges, all commands are. A damage is silent if a command
succeeds with another result than on the intact files, and without a further message. "same" counts
commands that succeed with the same result, because they do not read the file. See `damaging.py`.
The script exits with 1 if a damage is silent.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import measuring  # noqa: F401  makes `tests` importable
from damaging import COMMANDS, OTHER_WORLDS, Bench, build, build_other, files_of

from tests.cli.conftest import BRIEF, COMMAND
from tests.conftest import SOURCES, environment
from tests.warm import WarmProcess


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--rows", choices=("models", *OTHER_WORLDS), default="models")
    args = parser.parse_args()
    process = WarmProcess(environment(), SOURCES)

    def start(*words: str | Path, cwd: Path, brief: bool = False) -> Any:
        command = ("-c", BRIEF + COMMAND) if brief else ("-m", "hierrouter_cli")
        return process.warm.start(*command, *map(str, words), cwd=cwd, env=environment())

    def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        running = start(*words, cwd=cwd, brief=True)
        completed: subprocess.CompletedProcess[str] = running.result()
        return completed

    with tempfile.TemporaryDirectory(prefix="damage-") as folder:
        world = Path(folder) / "world"
        older = Path(folder) / "older"
        other = Path(folder) / "other"
        make = build if args.rows == "models" else partial(build_other, args.rows)
        make(world, run, older=older)
        make(other, run, seed=7)
        tried = OTHER_WORLDS.get(args.rows, COMMANDS)
        bench = Bench(world, {"another seed": other, "older": older}, run, Path(folder), tried)
        print(
            f"{'kind':<18}{'damage':<22}{'tried':>6}{'refused':>9}{'said':>6}{'same':>6}{'SILENT':>8}"
        )
        total: Counter[str] = Counter()
        for kind, files in files_of(world).items():
            if args.kinds and kind not in args.kinds.split(","):
                continue
            verdicts: dict[str, Counter[str]] = {}
            others = cycle([name for name in tried if name not in ("verify", "resume", "deploy")])
            if kind == "training state":
                others = cycle(["resume"])  # no other command reads it
            if kind == "service":
                others = cycle(["deploy"])
            for name, damage in bench.damages(kind, files, args.flips, args.cuts):
                # Flips and cuts are many: they are tried with two commands only.
                pair = ["verify", next(others)]
                commands = pair if name in ("flip", "cut") else tried
                for command in commands:
                    verdict = bench.verdict(damage, command)
                    verdicts.setdefault(name, Counter())[verdict] += 1
                    verdicts[name][f"{command} {verdict}"] += 1
                    if verdict == "SILENT":
                        print(f"silent: {kind}, {name}, {command}", flush=True)
            for name, counts in verdicts.items():
                columns = [counts[verdict] for verdict in ("refused", "said", "same", "SILENT")]
                widths = (9, 6, 6, 8)
                line = f"{kind:<18}{name:<22}{sum(columns):>6}"
                for count, width in zip(columns, widths, strict=True):
                    line += f"{count:>{width}}"
                if counts["verify same"]:
                    line += f"   unseen by verify: {counts['verify same']}"
                print(line, flush=True)
                total.update({"tried": sum(columns), "silent": columns[3]})
        print(f"{total['tried']} commands on damaged files, {total['silent']} silent")
    process.close()
    sys.exit(1 if total["silent"] else 0)


if __name__ == "__main__":
    main()
