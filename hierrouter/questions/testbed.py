"""Ten families of questions, and the routes of three tiny specialists that solve them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from hierrouter.questions.query import Query
from hierrouter.questions.testbed_world import (
    LETTERS,
    PEOPLE,
    REVERSE,
    SENTENCES,
    SIGN_WORDS,
    SPLITS,
    THINGS,
    Expression,
    Place,
    Room,
    Split,
    any_expression,
    any_word,
    is_ordinary,
    word_split,
    world,
)
from hierrouter_cache.errors import InputError

Model = Literal["calc", "text", "facts"]
MODELS: tuple[Model, ...] = ("calc", "text", "facts")
LONGEST_ROW = 9


@dataclass(frozen=True)
class Step:
    """What one specialist contributes to a task."""

    model: Model
    response: str


@dataclass(frozen=True)
class Task:
    """A question and the steps that answer it, in order."""

    family: str
    question: str
    steps: tuple[Step, ...]

    @property
    def answer(self) -> str:
        return self.steps[-1].response


@dataclass(frozen=True)
class Draw:
    """Random pieces of one split."""

    rng: Random
    split: Split

    def expression(self, allowed: Callable[[int], bool] = lambda value: True) -> Expression:
        """An expression of this split whose value is `allowed`."""
        while True:
            expression = any_expression(self.rng)
            if expression.split == self.split and allowed(expression.value):
                return expression

    def word(self) -> str:
        """A word of this split that is no name of the world."""
        while True:
            word = any_word(self.rng)
            if word_split(word) == self.split and is_ordinary(word, world().names):
                return word

    def place(self) -> Place:
        return self.rng.choice(world().places_of(self.split))

    def room(self) -> Room:
        return self.rng.choice(world().rooms_of(self.split))

    def sentence(self, kind: str, **gaps: object) -> str:
        """One of the sentences of `kind` with its gaps filled."""
        return self.rng.choice(SENTENCES[kind]).format(**gaps)


def arith(draw: Draw) -> Task:
    """A sum or a difference."""
    x = draw.expression()
    question = draw.sentence("arith", sum=x, left=x.left, right=x.right, sign=SIGN_WORDS[x.sign])
    return Task("arith", question, (Step("calc", str(x.value)),))


def string(draw: Draw) -> Task:
    """Words turned round or written twice."""
    kind = draw.rng.choice(("string.reverse", "string.double", "string.both"))
    word, other = draw.word(), draw.word()
    response = {
        "string.reverse": word[::-1],
        "string.double": word + word,
        "string.both": f"{word[::-1]} {other[::-1]}",
    }[kind]
    return Task("string", draw.sentence(kind, word=word, other=other), (Step("text", response),))


def fact(draw: Draw) -> Task:
    """Something about a place, or who lives in a room."""
    kind = draw.rng.choice(("fact.occupant", "fact.capital", "fact.people", "fact.both"))
    place, room = draw.place(), draw.room()
    response = {
        "fact.occupant": room.occupant,
        "fact.capital": place.capital,
        "fact.people": str(place.people),
        "fact.both": f"{place.capital} {place.people}",
    }[kind]
    question = draw.sentence(kind, place=place.name, room=room.number)
    return Task("fact", question, (Step("facts", response),))


def story(draw: Draw) -> Task:
    """A story told in words: `text` finds the sum, `calc` solves it."""
    x = draw.expression()
    question = draw.sentence(
        "story.plus" if x.sign == "+" else "story.minus",
        person=draw.rng.choice(PEOPLE),
        things=draw.rng.choice(THINGS),
        left=x.left,
        right=x.right,
    )
    return Task("story", question, (Step("text", str(x)), Step("calc", str(x.value))))


def census(draw: Draw) -> Task:
    """The people of two places: `facts` knows the terms, `calc` adds them."""
    while True:
        place, other = draw.place(), draw.place()
        x = Expression(place.people, "+", other.people)
        if place != other and x.split == draw.split:
            break
    question = draw.sentence("census", place=place.name, other=other.name)
    return Task("census", question, (Step("facts", str(x)), Step("calc", str(x.value))))


def backcap(draw: Draw) -> Task:
    """A capital turned round: `facts` names it, `text` turns it."""
    place = draw.place()
    steps = (Step("facts", place.capital), Step("text", place.capital[::-1]))
    return Task("backcap", draw.sentence("backcap", place=place.name), steps)


def room(draw: Draw) -> Task:
    """Who lives in a room whose number is a sum: `calc`, then `facts`."""
    rooms = {room.number: room for room in world().rooms_of(draw.split)}
    x = draw.expression(lambda value: value in rooms)
    steps = (Step("calc", str(x.value)), Step("facts", rooms[x.value].occupant))
    return Task("room", draw.sentence("room", sum=x), steps)


def copies(draw: Draw) -> Task:
    """A row of equal letters: `calc` counts, `text` writes."""
    x, letter = draw.expression(lambda value: 1 <= value <= LONGEST_ROW), draw.rng.choice(LETTERS)
    steps = (Step("calc", str(x.value)), Step("text", letter * x.value))
    return Task("copies", draw.sentence("copies", letter=letter, sum=x), steps)


def mirror(draw: Draw) -> Task:
    """The capital of a place written backwards: `text`, then `facts`."""
    place = draw.place()
    steps = (Step("text", place.name), Step("facts", place.capital))
    return Task("mirror", draw.sentence("mirror", mirrored=place.name[::-1]), steps)


def riddle(draw: Draw) -> Task:
    """A room's riddle: `facts` tells it, then `calc` or `text` solves it."""
    room = draw.room()
    return Task("riddle", draw.sentence("riddle", room=room.number), riddle_steps(room.riddle))


def riddle_steps(riddle: Expression | str) -> tuple[Step, Step]:
    """What `facts` says about a riddle, and what follows from it."""
    if isinstance(riddle, Expression):
        return Step("facts", str(riddle)), Step("calc", str(riddle.value))
    return Step("facts", REVERSE.format(word=riddle)), Step("text", riddle[::-1])


TASKS: dict[str, Callable[[Draw], Task]] = {
    "arith": arith,
    "string": string,
    "fact": fact,
    "story": story,
    "census": census,
    "backcap": backcap,
    "room": room,
    "copies": copies,
    "mirror": mirror,
    "riddle": riddle,
}


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
    if family not in TASKS:
        raise InputError(f"unknown testbed family: {family!r}; choose from {', '.join(TASKS)}")
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
        task = TASKS[family](draw)
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


FAMILIES = tuple(TASKS)


def model_path(name: str) -> Path:
    """The shipped `from_pretrained` folder of specialist `name`.

    Raises `InputError` where there is no such specialist.
    """
    if name not in MODELS:
        raise InputError(f"unknown testbed model: {name!r}; choose from {', '.join(MODELS)}")
    return Path(__file__).parent / "specialists" / name
