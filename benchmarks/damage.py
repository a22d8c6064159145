"""Damage every kind of file of a cache and its runs, and count what each command makes of it.

    python benchmarks/damage.py [--flips 100] [--cuts 20] [--kinds checkpoint,record]

Each flip and cut goes through `verify` and through one other command, in turn; deletions, renamings
and exchanges go through all. A damage is silent where a command ends well, says nothing more than
on the sound files, and has another result. "same": the command ended well with the same result, as
it does not read the file. See `damaging.py`.
"""

import argparse
import subprocess
import tempfile
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

import measuring  # noqa: F401  makes `tests` importable
from damaging import COMMANDS, Bench, build, files_of

from tests.cli.conftest import BRIEF, COMMAND
from tests.conftest import SOURCES, environment
from tests.warm import WarmProcess


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--kinds", default="")
    asked = parser.parse_args()
    process = WarmProcess(environment(), SOURCES)

    def start(*words: str | Path, cwd: Path, brief: bool = False) -> Any:
        command = ("-c", BRIEF + COMMAND) if brief else ("-m", "hierrouter_cli")
        return process.warm.start(*command, *map(str, words), cwd=cwd, env=environment())

    def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = start(*words, cwd=cwd, brief=True).result()
        return done

    with tempfile.TemporaryDirectory(prefix="damage-") as folder:
        world, older, other = (Path(folder) / name for name in ("world", "older", "other"))
        build(world, run, older=older)
        build(other, run, seed=7)
        bench = Bench(world, {"another seed": other, "older": older}, run, Path(folder))
        print(
            f"{'kind':<18}{'damage':<22}{'tried':>6}{'refused':>9}{'said':>6}{'same':>6}{'SILENT':>8}"
        )
        total: Counter[str] = Counter()
        for kind, files in files_of(world).items():
            if asked.kinds and kind not in asked.kinds.split(","):
                continue
            found: dict[str, Counter[str]] = {}
            others = cycle([name for name in COMMANDS if name != "verify"])
            for name, damage in bench.damages(kind, files, asked.flips, asked.cuts):
                few = ["verify", next(others)]
                for command in few if name in ("flip", "cut") else COMMANDS:
                    verdict = bench.verdict(damage, command)
                    found.setdefault(name, Counter())[verdict] += 1
                    found[name][f"{command} {verdict}"] += 1
                    if verdict == "SILENT":
                        print(f"silent: {kind}, {name}, {command}", flush=True)
            for name, counts in found.items():
                columns = [counts[verdict] for verdict in ("refused", "said", "same", "SILENT")]
                unseen = f"   unseen by verify: {n}" if (n := counts["verify same"]) else ""
                print(
                    f"{kind:<18}{name:<22}{sum(columns):>6}"
                    + "".join(f"{n:>{w}}" for n, w in zip(columns, (9, 6, 6, 8), strict=True))
                    + unseen,
                    flush=True,
                )
                total.update({"tried": sum(columns), "silent": columns[3]})
        print(f"{total['tried']} commands on damaged files, {total['silent']} silent")
    process.close()


if __name__ == "__main__":
    main()
