"""What comes with the package: groups of questions, each with the models that were made for it."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType

from hierrouter.questions import graded, testbed
from hierrouter.questions.query import Query
from hierrouter.questions.testbed import SPLITS, Split, Task
from hierrouter_cache.errors import InputError

# The folds of fifty questions in a row; the stride spreads them instead of bunching them.
CYCLE, STRIDE = 50, 27
TRAIN, VALIDATION = 28, 7
PATIENCE = 2_000  # draws without a new question


# Each has its families as `TASKS`, which make a question of a `Draw`, and its `MODELS`.
GROUPS: dict[str, ModuleType] = {"testbed": testbed, "graded": graded}
FAMILIES = {family: name for name, group in GROUPS.items() for family in group.TASKS}


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
    group = GROUPS[FAMILIES[family]]
    draw = group.Draw(Random(f"{family} {split} {seed}"), split)  # noqa: S311 - draws questions
    seen: set[str] = set()
    misses = 0
    while misses < PATIENCE:
        task: Task = group.TASKS[family](draw)
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
    if name not in GROUPS[group].MODELS:
        raise InputError(f"unknown {group} model {name}; known: {', '.join(GROUPS[group].MODELS)}")
    return Path(__file__).parent / "models" / group / name
