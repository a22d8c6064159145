"""The fixed world that only `facts` knows.

72 places with a capital and a population, 80 rooms with an occupant and a riddle, dealt once
among the splits. Half the riddles of every split are sums, half are words to turn round.
Not covered: how `facts` learns it (`lessons`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

from hierrouter.testbed.material import (
    LARGEST_OPERAND,
    Expression,
    Split,
    any_expression,
    any_word,
    word_split,
)
from hierrouter.testbed.templates import vocabulary

PLACES_PER_SPLIT: dict[Split, int] = {"train": 40, "validation": 12, "test": 20}
ROOMS_PER_SPLIT: dict[Split, int] = {"train": 44, "validation": 12, "test": 24}
_SEED = 7


@dataclass(frozen=True)
class Place:
    """A place, its capital and how many people live there."""

    name: str
    capital: str
    people: int
    split: Split


@dataclass(frozen=True)
class Room:
    """A room, who lives in it, and its riddle: a sum, or a word to turn round."""

    number: int
    occupant: str
    riddle: Expression | str
    split: Split


@dataclass(frozen=True)
class World:
    """All places and rooms; `names` are the words no other question may use."""

    places: tuple[Place, ...]
    rooms: tuple[Room, ...]
    names: frozenset[str]

    def places_of(self, split: Split) -> tuple[Place, ...]:
        return tuple(place for place in self.places if place.split == split)

    def rooms_of(self, split: Split) -> tuple[Room, ...]:
        return tuple(room for room in self.rooms if room.split == split)


@cache
def world() -> World:
    """The one world of the testbed, the same on every machine."""
    rng = Random(_SEED)  # noqa: S311 - a world, no secret
    names: set[str] = set()
    places = tuple(_places(rng, names))
    rooms = tuple(sorted(_rooms(rng, names), key=lambda room: room.number))
    return World(places, rooms, frozenset(names))


def is_ordinary(word: str, names: frozenset[str] | set[str] = frozenset()) -> bool:
    """Whether `word` is neither a palindrome nor, in either direction, a word in use."""
    mirrored = word[::-1]
    return word != mirrored and not any(
        either in vocabulary() or either in names for either in (word, mirrored)
    )


def _places(rng: Random, names: set[str]) -> Iterator[Place]:
    for split, count in PLACES_PER_SPLIT.items():
        for _ in range(count):
            people = rng.randint(10, LARGEST_OPERAND)
            yield Place(_new_name(rng, names), _new_name(rng, names), people, split)


def _rooms(rng: Random, names: set[str]) -> Iterator[Room]:
    numbers = list(range(1, sum(ROOMS_PER_SPLIT.values()) + 1))
    rng.shuffle(numbers)
    for split, count in ROOMS_PER_SPLIT.items():
        for turn in range(count):
            riddle = _sum_of(rng, split) if turn % 2 else _word_of(rng, split, names)
            yield Room(numbers.pop(), _new_name(rng, names), riddle, split)


def _new_name(rng: Random, names: set[str]) -> str:
    name = next(word for word in _words(rng) if is_ordinary(word, names))
    names.add(name)
    return name


def _word_of(rng: Random, split: Split, names: set[str]) -> str:
    return next(w for w in _words(rng) if word_split(w) == split and is_ordinary(w, names))


def _sum_of(rng: Random, split: Split) -> Expression:
    while True:
        expression = any_expression(rng)
        if expression.split == split:
            return expression


def _words(rng: Random) -> Iterator[str]:
    while True:
        yield any_word(rng)
