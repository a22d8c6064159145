"""Every kind of file that figures rest on, damaged in every way, and what each command makes of it.

A damage is silent where a command ends well, says nothing that it did not say before, and has
another result. `damage.py` counts; `tests/cli/test_integrity.py` tries some.
"""

import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from hierrouter.runs.folders import file_digest
from hierrouter_cache.keys import call_key
from hierrouter_cache.parts import ROW_SCHEMAS, parts_folder
from hierrouter_cache.writer import PartWriter
from tests.conftest import Run, works

# Every kind of file that a cache or a run holds, by the pattern of its path below one of them. A
# file of another name is nobody's.
FILES = {
    **{f"{kind} part": rf"parts/{kind}-.*\.parquet" for kind in (*ROW_SCHEMAS, "seals")},
    "head": r"parts/head-.*",
    "number of a cache": r"parts/[0-9a-f]{16}\.cache",
    "embeddings": r"derived/[^/]*/emb-.*\.npy",
    "kept tree": r"derived/trees/tree-.*\.arrow",
    "note of hashes": r"derived/[^/]*/hashed\.json",
    "note of a pull": r"pull\.json",
    "lock": r"(.*/)?[^/]*\.lock",
    "draft": r"(tmp/.*|(.*/)?\.[^/]*\.tmp)",
    "in quarantine": r"quarantine/.*",
    "record": r"run\.json",
    "checkpoint": r"(.*/)?policy\.safetensors",
    "live file": r"live\.json",
    "looks": r"(.*/)?test_looks\.jsonl",
    "contents": r"contents\.json",
    "report": r"[^/]*\.(html|json|md|svg|pdf|png)",
}


def kind_of(name: str) -> str | None:
    """The first of `FILES` that a path below a cache or a run fits; None without one."""
    return next((kind for kind, form in FILES.items() if re.fullmatch(form, name)), None)


CACHE, RUNS = Path("caches/default"), Path("runs")
# What makes no figure: a lock, a log that says itself what is torn, a note for pulls.
NO_FIGURE = ("lock", "draft", "looks", "number of a cache", "in quarantine")
COMMANDS = {
    "verify": "verify",
    "report": "report --format json",
    "train": "train --algo exact --epochs 2 --out new",
    "route": "route --dry-run What_is_19_x_23?",
    "explore": "explore --texts 3 --out new/page.html",
}


def build(folder: Path, run: Run, seed: int = 42, older: Path | None = None) -> None:
    """A folder with every kind of file: a cache with a row of each kind, runs and a report.

    `older`: where to copy it to before the last training of each run.
    """
    folder.mkdir(parents=True)

    def does(words: str) -> None:
        works(run(*words.split(), cwd=folder))

    does(f"collect --datasets testbed --limit 6 --seed {seed}")
    does("cache compact")
    does(f"quickstart --limit 8 --seed {seed}")
    if older:
        shutil.copytree(folder, older)
    does(f"quickstart --limit 9 --alpha 0.3 --seed {seed}")
    step, context = "1" * 32, "2" * 32
    failed = [call_key(step, context), step, context, "calc", "filtered", "no words", 3]
    writer = PartWriter(folder / CACHE)
    rows = {"failures": failed, "decisions": [*failed[:4], False, 0.25, [0.5]]}
    for kind, row in rows.items():
        writer.append(kind, pa.table([[value] for value in row], names=ROW_SCHEMAS[kind].names))
    does(COMMANDS["report"])  # opens the cache as it is now, and so a tree is kept beside it


def files_of(world: Path) -> dict[str, list[Path]]:
    """Paths below a world of the files that make figures, by kind, the largest first."""
    found: dict[str, list[Path]] = {}
    for root in (world / CACHE, *sorted((world / RUNS).iterdir())):
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            kind = kind_of(file.relative_to(root).as_posix())
            assert kind, f"a kind of file that FILES does not know: {file}"
            if kind not in NO_FIGURE:
                found.setdefault(kind, []).append(file.relative_to(world))
    return {
        kind: sorted(files, key=lambda file: -(world / file).stat().st_size)
        for kind, files in sorted(found.items())
    }


def flipped(world: Path, file: Path, rng: random.Random) -> None:
    data = bytearray((world / file).read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    (world / file).write_bytes(data)


def cut(world: Path, file: Path, rng: random.Random) -> None:
    data = (world / file).read_bytes()
    (world / file).write_bytes(data[: rng.randrange(len(data))])


def deleted(world: Path, file: Path) -> None:
    (world / file).unlink()


def renamed(world: Path, file: Path) -> None:
    """A part gets the greatest number, so that its rows would be the latest; others get a name."""
    kind, _, rest = file.name.partition("-")
    name = f"old {file.name}"
    if file.parent == parts_folder(CACHE) and kind != "head":
        name = f"{kind}-00000999{rest[8:]}"
    (world / file).rename(world / file.with_name(name))


def exchanged(world: Path, file: Path, other: Path) -> None:
    """The bytes of the file of another world in its place."""
    shutil.copy(other, world / file)


@dataclass
class Bench:
    """Commands on copies of a world, and what they said of it when it was sound.

    Args:
        world: with every kind of file.
        others: worlds of the same shape: of another seed, and an older state of this one.
        run: runs a command.
        scratch: where the copies are made.
    """

    world: Path
    others: dict[str, Path]
    run: Run
    scratch: Path
    sound: dict[str, tuple[int, str, str]] = field(default_factory=dict)

    def said(self, command: str, place: Path) -> tuple[int, str, str]:
        """Exit code, result, and the lines of stderr without numbers."""
        (place / "new").mkdir(exist_ok=True)
        done = self.run(*COMMANDS[command].split(), cwd=place)
        made = [file for file in sorted((place / "new").glob("*")) if file.suffix != ".lock"]
        made += sorted(place.glob("runs/interrupted/policy.safetensors"))
        result = "" if command == "verify" else done.stdout  # which prints no figure
        result += "".join(file_digest(file) for file in made if file.name != "run.json")
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, result, done.stderr

    def verdict(self, damage: Callable[[Path], None], command: str) -> str:
        """refused, said, same or SILENT."""
        if command not in self.sound:
            self.sound[command] = self._on_a_copy(command)
            assert self.sound[command][0] == 0, self.sound[command]
            assert self.sound[command] == self._on_a_copy(command)  # else nothing can be compared
        code, result, told = self._on_a_copy(command, damage)
        _, sound, before = self.sound[command]
        if code:
            assert code in (1, 2, 3) and "error: " in told, told
            return "refused"
        if told != before and set(told.splitlines()) - set(before.splitlines()):
            return "said"
        return "same" if result == sound else "SILENT"

    def _on_a_copy(
        self, command: str, damage: Callable[[Path], None] | None = None
    ) -> tuple[int, str, str]:
        place = self.scratch / "place"  # one name: it may stand in what is said
        shutil.copytree(self.world, place)
        try:
            if damage:
                damage(place)
            return self.said(command, place)
        finally:
            shutil.rmtree(place)

    def damages(
        self, kind: str, files: list[Path], flips: int, cuts: int
    ) -> Iterator[tuple[str, Callable[[Path], None]]]:
        """(name, damage) of a kind of file; flips and cuts of the largest file and others."""
        rng = random.Random(kind)
        whole = [file for file in files if (self.world / file).stat().st_size]
        for number in range(max(flips, cuts) if whole else 0):
            file = whole[number % len(whole)]
            if number < flips:
                yield "flip", partial(flipped, file=file, rng=rng)
            if number < cuts:
                yield "cut", partial(cut, file=file, rng=rng)
        for file in files:
            yield "deletion", partial(deleted, file=file)
            yield "renaming", partial(renamed, file=file)
            for name, other in {**self.others, "another of its kind": self.world}.items():
                rivals = [other / file, *(other / path for path in files_of(other).get(kind, []))]
                for rival in rivals:
                    if rival.is_file() and rival.read_bytes() != (self.world / file).read_bytes():
                        yield name, partial(exchanged, file=file, other=rival)
                        break
