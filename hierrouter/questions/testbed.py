"""The testbed: a small world, ten families of questions about it, and who answers what.

Three tiny specialists come with it. Each question tells which of them, one after the other, solve
it; some need two. `benchmarks/testbed_recipe.py` trains them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Model = Literal["calc", "text", "facts"]
MODELS: tuple[Model, ...] = ("calc", "text", "facts")

LONGEST_ROW = 9  # letters that `copies` asks for


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
        return _word_of(self.rng, self.split, world().names)

    def place(self) -> Place:
        return self.rng.choice([one for one in world().places if one.split == self.split])

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
    task.__name__: task
    for task in (arith, string, fact, story, census, backcap, room, copies, mirror, riddle)
}
FAMILIES = tuple(TASKS)

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
LETTERS = CONSONANTS + VOWELS
LARGEST_OPERAND = 40

_TRAIN_PERCENT = 75
_VALIDATION_PERCENT = 10


@dataclass(frozen=True)
class Expression:
    """A sum or a difference of two whole numbers, never negative."""

    left: int
    sign: Literal["+", "-"]
    right: int

    def __str__(self) -> str:
        return f"{self.left}{self.sign}{self.right}"

    @property
    def value(self) -> int:
        return self.left + self.right if self.sign == "+" else self.left - self.right

    @property
    def split(self) -> Split:
        """The split of the operands; `3+5` and `5+3` go together."""
        if self.sign == "+":
            low, high = sorted((self.left, self.right))
            return _hashed(f"{low}+{high}")
        return _hashed(str(self))


def any_expression(rng: Random) -> Expression:
    """An expression of any split with operands from 1 to `LARGEST_OPERAND`."""
    left, right = rng.randint(1, LARGEST_OPERAND), rng.randint(1, LARGEST_OPERAND)
    if rng.random() < 0.5:
        return Expression(left, "+", right)
    return Expression(max(left, right), "-", min(left, right))


def word_split(word: str) -> Split:
    """The split of a word; a word and its reverse go together."""
    return _hashed(min(word, word[::-1]))


def _hashed(text: str) -> Split:
    place = zlib.crc32(text.encode()) % 100
    if place < _TRAIN_PERCENT:
        return "train"
    return "validation" if place < _TRAIN_PERCENT + _VALIDATION_PERCENT else "test"


UNKNOWN = "unknown"
REVERSE = "reverse {word}"

PEOPLE = ("tom", "ann", "bob", "eva", "max", "lea", "sam", "ida")
THINGS = ("apples", "books", "coins", "pens", "cards", "eggs", "shells", "stamps")
SIGN_WORDS = {"+": "plus", "-": "minus"}

SENTENCES: dict[str, tuple[str, ...]] = {
    "arith": (
        "compute {sum}",
        "find the value of {sum}",
        "how much is {sum} ?",
        "what is {left} {sign} {right} ?",
    ),
    "string.reverse": (
        "reverse the word {word}",
        "write {word} backwards",
        "spell {word} from the end",
    ),
    "string.double": ("double the word {word}", "write {word} twice without a space"),
    "string.both": ("reverse the words {word} and {other}", "write {word} and {other} backwards"),
    "fact.occupant": ("who lives in room {room} ?", "name the person in room {room}"),
    "fact.capital": ("what is the capital of {place} ?", "name the capital of {place}"),
    "fact.people": ("how many people live in {place} ?", "give the population of {place}"),
    "fact.both": (
        "give the capital and the population of {place}",
        "what is the capital of {place} and how many people live there ?",
    ),
    "story.plus": (
        "{person} has {left} {things} and buys {right} more . how many {things} now ?",
        "there are {left} {things} in a box and {right} on a table . how many {things} are there ?",
    ),
    "story.minus": (
        "{person} has {left} {things} and loses {right} . how many {things} are left ?",
        "of {left} {things} in a box {person} takes {right} . how many {things} stay ?",
    ),
    "census": (
        "how many people live in {place} and {other} together ?",
        "give the sum of the populations of {place} and {other}",
        "add the population of {place} to that of {other}",
        "count the people of {place} and of {other}",
        "what is the population of {place} and {other} in total ?",
    ),
    "backcap": (
        "write the capital of {place} backwards",
        "reverse the name of the capital of {place}",
        "spell the capital of {place} from the end",
        "what is the capital of {place} backwards ?",
        "turn round the capital of {place}",
    ),
    "room": (
        "who lives in room {sum} ?",
        "name the person in room {sum}",
        "who is behind the door of room {sum} ?",
        "find the person of room {sum}",
        "the door says {sum} . who lives there ?",
    ),
    "copies": (
        "write the letter {letter} {sum} times",
        "a row of {sum} letters {letter}",
        "repeat the letter {letter} {sum} times",
        "print {sum} copies of the letter {letter}",
        "how does the letter {letter} look {sum} times ?",
    ),
    "mirror": (
        "what is the capital of the place spelled backwards as {mirrored} ?",
        "reverse {mirrored} and name the capital of that place",
        "{mirrored} is a place in the mirror . what is the capital ?",
        "turn {mirrored} round and give the capital of the place",
        "name the capital of the place that reads {mirrored} from the end",
    ),
    "riddle": (
        "solve the riddle of room {room}",
        "what is the answer to the riddle of room {room} ?",
        "answer the riddle in room {room}",
        "room {room} asks a riddle . what is the answer ?",
        "find the answer to the riddle that room {room} keeps",
    ),
}


@cache
def vocabulary() -> frozenset[str]:
    """Every word of two letters or more that a sentence or a fixed response can hold."""
    sentences = [sentence for family in SENTENCES.values() for sentence in family]
    texts = [*sentences, *PEOPLE, *THINGS, *SIGN_WORDS.values(), UNKNOWN, REVERSE]
    return frozenset(re.findall(r"[a-z]{2,}", re.sub(r"\{\w+\}", " ", " ".join(texts))))


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


def is_ordinary(word: str, names: frozenset[str] | set[str]) -> bool:
    """Whether `word` is neither a palindrome nor, in either direction, a word in use."""
    both = {word, word[::-1]}
    return len(both) == 2 and not both & vocabulary() and not both & names


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
            riddle = Draw(rng, split).expression() if turn % 2 else _word_of(rng, split, names)
            yield Room(numbers.pop(), _new_name(rng, names), riddle, split)


def _new_name(rng: Random, names: set[str]) -> str:
    name = next(word for word in _words(rng) if is_ordinary(word, names))
    names.add(name)
    return name


def _word_of(rng: Random, split: Split, names: frozenset[str] | set[str]) -> str:
    return next(w for w in _words(rng) if word_split(w) == split and is_ordinary(w, names))


def _words(rng: Random) -> Iterator[str]:
    """Two syllables and, half the time, a last consonant: four or five letters."""
    while True:
        syllables = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(2))
        yield syllables + rng.choice(CONSONANTS) if rng.random() < 0.5 else syllables
