"""Damage each kind of file that results depend on, and judge the reaction of each command.

A damage is silent if a command succeeds with another result, and without a further message.
`damage.py` counts them; `tests/cli/test_integrity.py` tries some.
"""

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from hierrouter.replay.open_tree import OpenTree
from hierrouter.runs import saved_states
from hierrouter.runs.folders import file_digest
from hierrouter.runs.train import Train
from hierrouter.runs.training import RunCallbacks
from hierrouter_cache.keys import call_key
from hierrouter_cache.parts import ROW_SCHEMAS, parts_folder
from hierrouter_cache.writer import PartWriter
from tests.conftest import Run, works

# All kinds of files in a cache or a run, by the pattern of their paths below its folder. A file
# that matches no pattern is unknown.
FILE_PATTERNS = {
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
    "training state": r"(.*/)?progress\.safetensors",
    "looks": r"(.*/)?test_looks\.jsonl",
    "contents": r"contents\.json",
    "service": r"service\.json",
    "report": r"[^/]*\.(html|json|md|svg|pdf|png)",
}


def kind_of(name: str) -> str | None:
    """Return the kind of a file by its path below a cache or a run; None if it is unknown."""
    for kind, pattern in FILE_PATTERNS.items():
        if re.fullmatch(pattern, name):
            return kind
    return None


CACHE = Path("caches/default")
RUNS = Path("runs")
# No result depends on these. A log reports its own torn lines.
IGNORED_KINDS = ("lock", "draft", "looks", "number of a cache", "in quarantine")
COMMANDS = {
    "verify": "verify",
    "report": "report --format json",
    "train": "train --algo exact --epochs 2 --out new",
    "route": "route --dry-run What_is_19_x_23?",
    "explore": "explore --texts 3 --out new/page.html",
    "resume": "train --epochs 8 --out runs/interrupted",
    "deploy": "deploy --format json",
}
# Worlds whose rows are of other kinds: draws of actions with roles, and the rows of an imported log
# of routes of unequal length. The others need no command that the first world does not try.
OTHER_WORLDS = {
    "roles": {name: COMMANDS[name] for name in ("verify", "report", "train", "route")},
    "log": {
        "verify": "verify",
        "report": "report --format json",
        "train": "train --algo exact --epochs 2 --encoder hashed-ngrams --out new",
    },
}
ROLES = """
[pool]
hops = 2
draws = 2
per_tokens = 1
encoder = "hashed-ngrams"
[[models]]
name = "text"
model = "testbed:text"
dtype = "float32"
base_rate = 0.02
generation = { max_new_tokens = 16, temperature = 0.7 }
[[models]]
name = "calc"
model = "testbed:calc"
dtype = "float32"
base_rate = 0.03
generation = { max_new_tokens = 16 }
[[actions]]
name = "sum"
model = "text"
after = []
[[actions]]
name = "again"
model = "text"
instruction = "Again."
after = ["sum"]
base_rate = 0.05
[[actions]]
name = "tool"
model = "calc"
"""
INTERRUPTED_EPOCHS = 8  # as in "resume"
PROGRESS_LINE = re.compile(r": epoch \d+ of \d+, ")


def build(folder: Path, run: Run, seed: int = 42, older: Path | None = None) -> None:
    """Make a folder with all kinds of files: a cache with rows of each kind, runs and a report.

    Args:
        folder: the new folder.
        run: runs a command.
        seed: of the commands.
        older: where to copy the folder to before the last training of each run; None for no copy.
    """
    folder.mkdir(parents=True)

    def execute(words: str) -> None:
        works(run(*words.split(), cwd=folder))

    execute(f"collect --datasets testbed --limit 6 --seed {seed}")
    execute("cache compact")
    execute(f"quickstart --limit 8 --seed {seed}")
    if older:
        shutil.copytree(folder, older)
    execute(f"quickstart --limit 9 --alpha 0.3 --seed {seed}")
    # The commands leave no failures and decisions.
    step = "1" * 32
    context = "2" * 32
    failure = [call_key(step, context), step, context, "calc", "filtered", "no words", 3, None]
    writer = PartWriter(folder / CACHE)
    rows = {"failures": failure, "decisions": [*failure[:4], False, 0.25, [0.5]]}
    for kind, row in rows.items():
        writer.append(kind, pa.table([[value] for value in row], names=ROW_SCHEMAS[kind].names))
    execute("deploy quickstart-train --share 0.25")
    interrupt_training(folder)
    execute(COMMANDS["report"])  # stores the tree of the cache as it is now


def build_other(
    kind: str, folder: Path, run: Run, seed: int = 42, older: Path | None = None
) -> None:
    """Make a folder with a cache whose rows are of another kind, a run and a report.

    Args:
        kind: of `OTHER_WORLDS`.
        folder: the new folder.
        run: runs a command.
        seed: of the questions.
        older: where to copy the folder to before the last commit; None for no copy.
    """
    folder.mkdir(parents=True)

    def execute(words: str) -> None:
        works(run(*words.split(), cwd=folder))

    (folder / "roles.toml").write_text(ROLES)
    if kind == "roles":
        collect = f"collect --pool roles.toml --datasets arith,story --seed {seed}"
        fill = {"first": f"{collect} --limit 10", "further": f"{collect} --limit 14"}
        learn = "train --algo exact --epochs 2"
    else:
        fill = {}
        for name, count in (("first", 60), ("further", 80)):
            lines = (json.dumps(row) for row in ragged_log(count, seed))
            (folder / f"{name}.jsonl").write_text("\n".join(lines))
            fill[name] = f"cache import {name}.jsonl"
        learn = "train --algo exact --epochs 2 --encoder hashed-ngrams"
    execute(fill["first"])
    execute("cache compact")
    execute(f"{learn} --out runs/first")
    if older:
        shutil.copytree(folder, older)
    execute(fill["further"])
    execute(f"{learn} --alpha 0.1 --out runs/second")
    execute(COMMANDS["report"])  # stores the tree of the cache as it is now


def ragged_log(queries: int, seed: int) -> Iterator[dict[str, object]]:
    """Yield the rows of a log: a solver of two draws, and after the second one a critic."""
    rng = random.Random(seed)
    for number in range(queries):
        term = rng.randrange(100)
        query = {"query_id": f"q{number}", "question": f"What is {number} + {term}?"}
        routes = (
            ("a", None, "solve", f"{number + term}", 1.0),
            ("b", None, "solve", f"{number - term}, surely", float(term == 0)),
            ("c", "b", "critic", "the sign is wrong", None),
            ("d", "c", "solve", f"{number + term + number % 2}", 1.0 - number % 2),
        )
        for name, parent, action, response, score in routes:
            yield {
                **query,
                "node": f"{number}{name}",
                "parent": parent and f"{number}{parent}",
                "action": action,
                "response": response,
                "runs": 1,
                "score": score,
            }


def interrupt_training(folder: Path) -> None:
    """Leave a training that was interrupted in its third epoch, with its saved state."""

    class Interruption(Exception):
        """Ends the training."""

    def on_epoch(label: str, done: int, *_: float) -> None:
        if done == 3:
            raise Interruption

    tree = OpenTree(cache=folder / CACHE).run()
    training = Train(epochs=INTERRUPTED_EPOCHS, out=folder / RUNS / "interrupted")
    with (
        patch.object(saved_states, "SECONDS_BETWEEN_SAVES", 0.0),
        patch.object(saved_states, "MAX_SAVING_SHARE", float("inf")),
        suppress(Interruption),
    ):
        training.run(tree, RunCallbacks.of(on_epoch))


def files_of(world: Path) -> dict[str, list[Path]]:
    """Return the paths of files that results depend on, by kind, the largest first."""
    by_kind: dict[str, list[Path]] = {}
    for root in (world / CACHE, world / RUNS, *sorted((world / RUNS).glob("*/"))):
        files = root.glob("*") if root == world / RUNS else root.rglob("*")
        for file in sorted(path for path in files if path.is_file()):
            kind = kind_of(file.relative_to(root).as_posix())
            assert kind, f"a kind of file that FILE_PATTERNS does not have: {file}"
            if kind not in IGNORED_KINDS:
                by_kind.setdefault(kind, []).append(file.relative_to(world))
    return {
        kind: sorted(files, key=lambda file: -(world / file).stat().st_size)
        for kind, files in sorted(by_kind.items())
    }


def flip_bit(world: Path, file: Path, rng: random.Random) -> None:
    """Flip a random bit."""
    data = bytearray((world / file).read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    (world / file).write_bytes(data)


def cut(world: Path, file: Path, rng: random.Random) -> None:
    """Cut a file off at a random byte."""
    data = (world / file).read_bytes()
    (world / file).write_bytes(data[: rng.randrange(len(data))])


def delete(world: Path, file: Path) -> None:
    """Delete a file."""
    (world / file).unlink()


def rename(world: Path, file: Path) -> None:
    """Rename a file; a part gets the greatest number, so that its rows would be the latest."""
    kind, _, suffix = file.name.partition("-")
    name = f"old {file.name}"
    if file.parent == parts_folder(CACHE) and kind != "head":
        name = f"{kind}-00000999{suffix[8:]}"
    (world / file).rename(world / file.with_name(name))


def replace_by(world: Path, file: Path, other: Path) -> None:
    """Replace a file by one of another world."""
    shutil.copy(other, world / file)


@dataclass
class Bench:
    """Runs commands on damaged copies of a folder, and compares their results.

    Attributes:
        world: a folder with all kinds of files.
        others: folders of the same shape: of another seed, and an older state of this one.
        run: runs a command.
        scratch: the folder for the copies.
        commands: that are tried, by name.
        intact_results: what each command returns on an undamaged copy.
    """

    world: Path
    others: dict[str, Path]
    run: Run
    scratch: Path
    commands: Mapping[str, str] = field(default_factory=lambda: COMMANDS)
    intact_results: dict[str, tuple[int, str, str]] = field(default_factory=dict)

    def result_of(self, command: str, folder: Path) -> tuple[int, str, str]:
        """Run a command; return exit code, a digest of its result, and stderr."""
        (folder / "new").mkdir(exist_ok=True)
        completed = self.run(*self.commands[command].split(), cwd=folder)
        new_files = [file for file in sorted((folder / "new").glob("*")) if file.suffix != ".lock"]
        new_files += sorted(folder.glob("runs/interrupted/policy.safetensors"))
        # `verify` prints no results.
        result = "" if command == "verify" else completed.stdout
        result += "".join(file_digest(file) for file in new_files if file.name != "run.json")
        assert "Traceback" not in completed.stderr, completed.stderr
        # Whether a training prints its progress depends on the time that it takes.
        messages = [
            line for line in completed.stderr.splitlines() if not PROGRESS_LINE.search(line)
        ]
        return completed.returncode, result, "\n".join(messages)

    def verdict(self, damage: Callable[[Path], None], command: str) -> str:
        """Run a command on a damaged copy, and judge its reaction.

        Args:
            damage: damages a folder.
            command: of `commands`.

        Returns:
            "refused", "said" (it succeeded with a further message), "same" or "SILENT".
        """
        if command not in self.intact_results:
            intact = self._run_on_copy(command)
            assert intact[0] == 0, intact
            assert intact == self._run_on_copy(command)  # else results could not be compared
            self.intact_results[command] = intact
        code, result, messages = self._run_on_copy(command, damage)
        _, intact_result, intact_messages = self.intact_results[command]
        if code:
            assert code in (1, 2, 3) and "error: " in messages, messages
            return "refused"
        if set(messages.splitlines()) - set(intact_messages.splitlines()):
            return "said"
        return "same" if result == intact_result else "SILENT"

    def _run_on_copy(
        self, command: str, damage: Callable[[Path], None] | None = None
    ) -> tuple[int, str, str]:
        # Always the same name, because messages may contain it.
        folder = self.scratch / "place"
        shutil.copytree(self.world, folder)
        try:
            if damage:
                damage(folder)
            return self.result_of(command, folder)
        finally:
            shutil.rmtree(folder)

    def damages(
        self, kind: str, files: list[Path], flips: int, cuts: int
    ) -> Iterator[tuple[str, Callable[[Path], None]]]:
        """Yield all damages of one kind of file.

        Args:
            kind: of `FILE_PATTERNS`.
            files: the files of this kind.
            flips: number of flipped bits, over all files in turn.
            cuts: number of cuts, over all files in turn.

        Yields:
            Name of a damage, and a function that damages a folder.
        """
        rng = random.Random(kind)
        not_empty = [file for file in files if (self.world / file).stat().st_size]
        for number in range(max(flips, cuts) if not_empty else 0):
            file = not_empty[number % len(not_empty)]
            if number < flips:
                yield "flip", partial(flip_bit, file=file, rng=rng)
            if number < cuts:
                yield "cut", partial(cut, file=file, rng=rng)
        for file in files:
            yield "deletion", partial(delete, file=file)
            yield "renaming", partial(rename, file=file)
            for name, other in {**self.others, "another of its kind": self.world}.items():
                # The file of the same name if there is one, else one of the same kind.
                candidates = [other / file]
                candidates += [other / path for path in files_of(other).get(kind, [])]
                data = (self.world / file).read_bytes()
                for candidate in candidates:
                    if candidate.is_file() and candidate.read_bytes() != data:
                        yield name, partial(replace_by, file=file, other=candidate)
                        break
