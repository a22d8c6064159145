"""What comes with the package: groups of questions, each with the models that were made for it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from hierrouter.questions import graded, testbed
from hierrouter.questions.query import Query
from hierrouter.questions.testbed import SPLITS, Split, Task
from hierrouter_cache.errors import InputError

# The folds of fifty questions in a row; the stride spreads them instead of bunching them.
CYCLE, STRIDE = 50, 27
TRAIN, VALIDATION = 28, 7
PATIENCE = 2_000  # draws without a new question


@dataclass(frozen=True)
class Group:
    """Families of questions, and models.

    Attributes:
        tasks: what makes a question of each family, of one fold.
    """

    models: tuple[str, ...]
    tasks: Mapping[str, Callable[[Random, Split], Task]]


def _group(of: Any) -> Group:
    def made(family: str) -> Callable[[Random, Split], Task]:
        return lambda rng, split: of.TASKS[family](of.Draw(rng, split))

    return Group(of.MODELS, {family: made(family) for family in of.TASKS})


GROUPS = {"testbed": _group(testbed), "graded": _group(graded)}
FAMILIES = {family: name for name, group in GROUPS.items() for family in group.tasks}


def group_of(names: list[str]) -> str | None:
    """The one group that all these names are of, groups or families; None where there is none."""
    groups = {name if name in GROUPS else FAMILIES.get(name) for name in names}
    return groups.pop() if len(groups) == 1 else None


def questions(family: str, seed: int = 42, limit: int = 300) -> list[Query]:
    """At most `limit` questions of `family`, the same for the same arguments.

    No text occurs twice, and no operands, word, room or place of one split occur in another. Finite
    families run dry: then the turns of that split are skipped, so fewer than `limit` questions come
    back. Raises InputError: an unknown family, or a negative limit.
    """
    if family not in FAMILIES:
        raise InputError(f"unknown family: {family!r}; choose from {', '.join(FAMILIES)}")
    if limit < 0:
        raise InputError(f"a limit cannot be negative: {limit}; give 0 or more")
    tasks = {split: _distinct(family, split, seed) for split in SPLITS}
    found = []
    for number in range(limit):
        place = number * STRIDE % CYCLE
        split: Split = "validation" if place < TRAIN + VALIDATION else "test"
        if place < TRAIN:
            split = "train"
        if task := next(tasks[split], None):
            identity = f"{family}-{number:04d}"
            found.append(Query(identity, family, task.question, (task.answer,), split))
    return found


def _distinct(family: str, split: Split, seed: int) -> Iterator[Task]:
    """Tasks with new question texts until none has turned up for so many draws."""
    make = GROUPS[FAMILIES[family]].tasks[family]
    rng = Random(f"{family} {split} {seed}")  # noqa: S311 - draws questions
    seen: set[str] = set()
    misses = 0
    while misses < PATIENCE:
        task = make(rng, split)
        misses += 1
        if task.question not in seen:
            seen.add(task.question)
            misses = 0
            yield task


def is_shipped(model: str) -> bool:
    """Whether a model of a pool is one of the package's, such as `testbed:calc`."""
    return model.partition(":")[0] in GROUPS


def model_path(model: str) -> Path:
    """The `from_pretrained` folder of a model such as `testbed:calc`.

    Raises InputError: there is no such model.
    """
    group, _, name = model.partition(":")
    if name not in GROUPS[group].models:
        raise InputError(f"unknown {group} model {name}; known: {', '.join(GROUPS[group].models)}")
    return Path(__file__).parent / "models" / group / name
