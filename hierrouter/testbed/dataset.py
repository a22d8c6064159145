"""The families' questions as a dataset.

In: a family, a seed, a limit. Out: distinct questions with answer and split; of every 50 in a
row, 28 train, 7 validation, 15 test. A smaller limit gives a prefix of a larger one. Not
covered: the steps behind an answer (`families`).
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hierrouter.query import Query
from hierrouter.testbed.families import FAMILIES, Draw, Task
from hierrouter.testbed.material import SPLITS, Split
from hierrouter_cache.errors import InputError

_CYCLE = 50
_STRIDE = 27  # coprime with the cycle: spreads the splits instead of bunching them
_TRAIN, _VALIDATION = 28, 7
_PATIENCE = 2000


def questions(family: str, seed: int = 42, limit: int = 300) -> list[Query]:
    """At most `limit` questions of `family`, the same for the same arguments.

    No text occurs twice, and no operand pair, word, room or place of one split occurs in
    another. Families about places or rooms are finite: once a split has run dry its turns are
    skipped, so fewer than `limit` questions come back (never below 300 if asked for 300 or
    more). Raises `InputError` for an unknown family or a negative limit.
    """
    if family not in FAMILIES:
        raise InputError(f"unknown testbed family: {family!r}; choose from {', '.join(FAMILIES)}")
    if limit < 0:
        raise InputError(f"a limit cannot be negative: {limit}; give 0 or more")
    tasks = {split: _distinct(family, split, seed) for split in SPLITS}
    found = []
    for number in range(limit):
        split = _split_of_turn(number)
        task = next(tasks[split], None)
        if task is not None:
            identity = f"{family}-{number:04d}"
            found.append(Query(identity, family, task.question, (task.answer,), split))
    return found


def _distinct(family: str, split: Split, seed: int) -> Iterator[Task]:
    """Tasks with new question texts until none has turned up for `_PATIENCE` draws."""
    draw = Draw(Random(f"{family} {split} {seed}"), split)  # noqa: S311 - draws questions
    seen: set[str] = set()
    misses = 0
    while misses < _PATIENCE:
        task = FAMILIES[family](draw)
        misses += 1
        if task.question not in seen:
            seen.add(task.question)
            misses = 0
            yield task


def _split_of_turn(number: int) -> Split:
    place = number * _STRIDE % _CYCLE
    if place < _TRAIN:
        return "train"
    return "validation" if place < _TRAIN + _VALIDATION else "test"
