"""Datasets that come with the package: groups of families, each group with its own models."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from hierrouter.questions import graded, testbed
from hierrouter.questions.query import Query
from hierrouter.questions.testbed import SPLITS, Split, Task
from hierrouter_cache.errors import InputError

# The folds of fifty questions in a row: 28 of train, 7 of validation and 15 of test. The stride has
# no common divisor with the cycle: it mixes the folds, so that any few questions have all three.
FOLD_CYCLE = 50
FOLD_STRIDE = 27
TRAIN_QUESTIONS = 28
VALIDATION_QUESTIONS = 7
MAX_REPEATED_DRAWS = 2_000  # draws without a new question before a family counts as exhausted


@dataclass(frozen=True)
class DatasetGroup:
    """Families of questions, and the models that were trained for them.

    Attributes:
        families: makes a question from a draw, by the name of the family.
        draw: random parts of the questions of one fold.
        models: names of the models.
    """

    families: Mapping[str, Callable[[Any], Task]]
    draw: Callable[[Random, Split], Any]
    models: tuple[str, ...]


DATASET_GROUPS: dict[str, DatasetGroup] = {
    "testbed": DatasetGroup(testbed.TESTBED_TASKS, testbed.Draw, testbed.TESTBED_MODELS),
    "graded": DatasetGroup(graded.GRADED_TASKS, graded.Draw, graded.GRADED_MODELS),
}
GROUP_BY_FAMILY = {
    family: name for name, group in DATASET_GROUPS.items() for family in group.families
}


def group_of(names: list[str]) -> str | None:
    """The group that all these groups and families belong to; None if they differ or have none."""
    groups = {name if name in DATASET_GROUPS else GROUP_BY_FAMILY.get(name) for name in names}
    return groups.pop() if len(groups) == 1 else None


def questions(family: str, seed: int = 42, limit: int = 300) -> list[Query]:
    """The questions of one family, the same for the same arguments.

    No text occurs twice, and no operands, word, room or country of one fold occur in another one.
    Some families are finite. If a fold has no new question, its turns are skipped, so that fewer
    than `limit` questions are returned.

    Args:
        family: name of the family, which becomes the dataset of its queries.
        seed: of the random parts.
        limit: the largest number of questions.

    Raises:
        InputError: an unknown family, or a negative limit.
    """
    if family not in GROUP_BY_FAMILY:
        raise InputError(f"unknown family: {family!r}; choose from {', '.join(GROUP_BY_FAMILY)}")
    if limit < 0:
        raise InputError(f"a limit cannot be negative: {limit}; give 0 or more")
    tasks = {split: _distinct_tasks(family, split, seed) for split in SPLITS}
    queries = []
    for number in range(limit):
        split = _fold_of_turn(number)
        task = next(tasks[split], None)
        if task is not None:
            id = f"{family}-{number:04d}"
            queries.append(Query(id, family, task.question, (task.answer,), split))
    return queries


def turn_of(id: str, family: str) -> int | None:
    """Return the turn at which `questions` makes the question with this id, counted from 0.

    It is made with every limit above its turn. None is the id of another dataset of this name.
    """
    name, _, number = id.rpartition("-")
    return int(number) if name == family and number.isdecimal() else None


def _fold_of_turn(number: int) -> Split:
    position = number * FOLD_STRIDE % FOLD_CYCLE
    if position < TRAIN_QUESTIONS:
        return "train"
    return "validation" if position < TRAIN_QUESTIONS + VALIDATION_QUESTIONS else "test"


def _distinct_tasks(family: str, split: Split, seed: int) -> Iterator[Task]:
    """Tasks with different questions, until `MAX_REPEATED_DRAWS` draws bring no new one."""
    group = DATASET_GROUPS[GROUP_BY_FAMILY[family]]
    draw = group.draw(Random(f"{family} {split} {seed}"), split)  # noqa: S311 - no secret
    make_task = group.families[family]
    texts: set[str] = set()
    repeated_draws = 0
    while repeated_draws < MAX_REPEATED_DRAWS:
        task = make_task(draw)
        if task.question in texts:
            repeated_draws += 1
        else:
            texts.add(task.question)
            repeated_draws = 0
            yield task


def is_shipped(model: str) -> bool:
    """Whether a model of a pool comes with the package, such as `testbed:calc`."""
    return model.partition(":")[0] in DATASET_GROUPS


def model_path(model: str) -> Path:
    """The `from_pretrained` folder of a model such as `testbed:calc`.

    Raises:
        InputError: the group has no such model.
    """
    group, _, name = model.partition(":")
    models = DATASET_GROUPS[group].models
    if name not in models:
        raise InputError(f"unknown {group} model {name}; known: {', '.join(models)}")
    return Path(__file__).parent / "models" / group / name
