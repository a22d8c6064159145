"""The testbed: a small made-up world, and ten families of questions about it.

Three tiny models come with it, each a specialist. The text of a question shows which specialist
solves it, or which two, one after the other. `benchmarks/testbed_recipe.py` trains them.
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
TESTBED_MODELS: tuple[Model, ...] = ("calc", "text", "facts")

MAX_COPIES = 9  # letters that a question of the family `copies` asks for


@dataclass(frozen=True)
class Step:
    """The contribution of one specialist to a task.

    Attributes:
        model: the specialist.
        response: its right response.
    """

    model: Model
    response: str


@dataclass(frozen=True)
class Task:
    """A question and the steps that answer it.

    Attributes:
        family: of the question.
        question: its text.
        steps: in order; the last response is the answer.
    """

    family: str
    question: str
    steps: tuple[Step, ...]

    @property
    def answer(self) -> str:
        """The reference answer."""
        return self.steps[-1].response


@dataclass(frozen=True)
class Draw:
    """Random parts of the questions of one split.

    Attributes:
        rng: of the draw.
        split: train, validation or test.
    """

    rng: Random
    split: Split

    def expression(self, is_allowed: Callable[[int], bool] = lambda value: True) -> Expression:
        """Draw an expression of this split.

        Args:
            is_allowed: accepts the value of the expression.
        """
        while True:
            expression = any_expression(self.rng)
            if expression.split == self.split and is_allowed(expression.value):
                return expression

    def word(self) -> str:
        """Draw a word of this split that is no name of the world."""
        return _word_of_split(self.rng, self.split, world().names)

    def country(self) -> Country:
        """Draw a country of this split."""
        countries = [country for country in world().countries if country.split == self.split]
        return self.rng.choice(countries)

    def room(self) -> Room:
        """Draw a room of this split."""
        return self.rng.choice(world().rooms_of(self.split))

    def sentence(self, kind: str, **gaps: object) -> str:
        """Draw one of the sentences of a kind, and fill its gaps."""
        return self.rng.choice(TESTBED_SENTENCES[kind]).format(**gaps)


# A function for each family; its name is that of the family.


def arith(draw: Draw) -> Task:
    """A sum or a difference."""
    expression = draw.expression()
    question = draw.sentence(
        "arith",
        sum=expression,
        left=expression.left,
        right=expression.right,
        sign=SIGN_WORDS[expression.sign],
    )
    return Task("arith", question, (Step("calc", str(expression.value)),))


def string(draw: Draw) -> Task:
    """Words written backwards or twice."""
    kind = draw.rng.choice(("string.reverse", "string.double", "string.both"))
    word = draw.word()
    other = draw.word()
    response = {
        "string.reverse": word[::-1],
        "string.double": word + word,
        "string.both": f"{word[::-1]} {other[::-1]}",
    }[kind]
    return Task("string", draw.sentence(kind, word=word, other=other), (Step("text", response),))


def fact(draw: Draw) -> Task:
    """A fact about a country, or the person who lives in a room."""
    kind = draw.rng.choice(("fact.occupant", "fact.capital", "fact.people", "fact.both"))
    country = draw.country()
    room = draw.room()
    response = {
        "fact.occupant": room.occupant,
        "fact.capital": country.capital,
        "fact.people": str(country.people),
        "fact.both": f"{country.capital} {country.people}",
    }[kind]
    question = draw.sentence(kind, country=country.name, room=room.number)
    return Task("fact", question, (Step("facts", response),))


def story(draw: Draw) -> Task:
    """A sum within a story: `text` extracts the sum, `calc` solves it."""
    expression = draw.expression()
    question = draw.sentence(
        "story.plus" if expression.sign == "+" else "story.minus",
        person=draw.rng.choice(STORY_PEOPLE),
        things=draw.rng.choice(STORY_THINGS),
        left=expression.left,
        right=expression.right,
    )
    return Task("story", question, _sum_steps(expression, "text"))


def census(draw: Draw) -> Task:
    """The people of two countries: `facts` knows the terms, `calc` adds them."""
    while True:
        country = draw.country()
        other = draw.country()
        expression = Expression(country.people, "+", other.people)
        if country != other and expression.split == draw.split:
            break
    question = draw.sentence("census", country=country.name, other=other.name)
    return Task("census", question, _sum_steps(expression, "facts"))


def _sum_steps(expression: Expression, source: Model) -> tuple[Step, Step]:
    """Two steps: `source` states the sum, `calc` solves it."""
    return Step(source, str(expression)), Step("calc", str(expression.value))


def backcap(draw: Draw) -> Task:
    """A capital backwards: `facts` names it, `text` reverses it."""
    country = draw.country()
    steps = (Step("facts", country.capital), Step("text", country.capital[::-1]))
    return Task("backcap", draw.sentence("backcap", country=country.name), steps)


def room(draw: Draw) -> Task:
    """The person who lives in a room whose number is a sum: `calc`, then `facts`."""
    rooms = {room.number: room for room in world().rooms_of(draw.split)}
    expression = draw.expression(lambda value: value in rooms)
    number = expression.value
    steps = (Step("calc", str(number)), Step("facts", rooms[number].occupant))
    return Task("room", draw.sentence("room", sum=expression), steps)


def copies(draw: Draw) -> Task:
    """A row of equal letters: `calc` counts, `text` writes."""
    expression = draw.expression(lambda value: 1 <= value <= MAX_COPIES)
    letter = draw.rng.choice(LETTERS)
    count = expression.value
    steps = (Step("calc", str(count)), Step("text", letter * count))
    return Task("copies", draw.sentence("copies", letter=letter, sum=expression), steps)


def mirror(draw: Draw) -> Task:
    """The capital of a country whose name is written backwards: `text`, then `facts`."""
    country = draw.country()
    steps = (Step("text", country.name), Step("facts", country.capital))
    return Task("mirror", draw.sentence("mirror", mirrored=country.name[::-1]), steps)


def riddle(draw: Draw) -> Task:
    """The riddle of a room: `facts` states it, then `calc` or `text` solves it."""
    room = draw.room()
    return Task("riddle", draw.sentence("riddle", room=room.number), riddle_steps(room.riddle))


def riddle_steps(riddle: Expression | str) -> tuple[Step, Step]:
    """Two steps: `facts` states the riddle, and a specialist solves it."""
    if isinstance(riddle, Expression):
        return Step("facts", str(riddle)), Step("calc", str(riddle.value))
    return Step("facts", WORD_RIDDLE.format(word=riddle)), Step("text", riddle[::-1])


TESTBED_TASKS: dict[str, Callable[[Draw], Task]] = {
    task.__name__: task
    for task in (arith, string, fact, story, census, backcap, room, copies, mirror, riddle)
}

TESTBED_FAMILIES = tuple(TESTBED_TASKS)

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
LETTERS = CONSONANTS + VOWELS
MAX_OPERAND = 40

# Of the operands and words; the rest are for test.
TRAIN_PERCENT = 75
VALIDATION_PERCENT = 10


@dataclass(frozen=True)
class Expression:
    """A sum or a difference of two whole numbers, never negative.

    Attributes:
        left: the first operand.
        sign: plus or minus.
        right: the second operand.
    """

    left: int
    sign: Literal["+", "-"]
    right: int

    def __str__(self) -> str:
        return f"{self.left}{self.sign}{self.right}"

    @property
    def value(self) -> int:
        """The result."""
        return self.left + self.right if self.sign == "+" else self.left - self.right

    @property
    def split(self) -> Split:
        """The split of the operands; `3+5` and `5+3` are in the same one."""
        if self.sign == "+":
            low, high = sorted((self.left, self.right))
            return _split_of_text(f"{low}+{high}")
        return _split_of_text(str(self))


def any_expression(rng: Random) -> Expression:
    """Draw an expression of any split with operands from 1 to `MAX_OPERAND`."""
    left = rng.randint(1, MAX_OPERAND)
    right = rng.randint(1, MAX_OPERAND)
    if rng.random() < 0.5:
        return Expression(left, "+", right)
    return Expression(max(left, right), "-", min(left, right))


def word_split(word: str) -> Split:
    """The split of a word; a word and its reverse are in the same one."""
    return _split_of_text(min(word, word[::-1]))


def _split_of_text(text: str) -> Split:
    percentile = zlib.crc32(text.encode()) % 100
    if percentile < TRAIN_PERCENT:
        return "train"
    return "validation" if percentile < TRAIN_PERCENT + VALIDATION_PERCENT else "test"


UNKNOWN_RESPONSE = "unknown"  # of a specialist that cannot contribute, without an earlier response
WORD_RIDDLE = "reverse {word}"

STORY_PEOPLE = ("tom", "ann", "bob", "eva", "max", "lea", "sam", "ida")
STORY_THINGS = ("apples", "books", "coins", "pens", "cards", "eggs", "shells", "stamps")
SIGN_WORDS = {"+": "plus", "-": "minus"}

TESTBED_SENTENCES: dict[str, tuple[str, ...]] = {
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
    "fact.capital": ("what is the capital of {country} ?", "name the capital of {country}"),
    "fact.people": ("how many people live in {country} ?", "give the population of {country}"),
    "fact.both": (
        "give the capital and the population of {country}",
        "what is the capital of {country} and how many people live there ?",
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
        "how many people live in {country} and {other} together ?",
        "give the sum of the populations of {country} and {other}",
        "add the population of {country} to that of {other}",
        "count the people of {country} and of {other}",
        "what is the population of {country} and {other} in total ?",
    ),
    "backcap": (
        "write the capital of {country} backwards",
        "reverse the name of the capital of {country}",
        "spell the capital of {country} from the end",
        "what is the capital of {country} backwards ?",
        "turn round the capital of {country}",
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
    sentences = [sentence for kind in TESTBED_SENTENCES.values() for sentence in kind]
    story_words = [*STORY_PEOPLE, *STORY_THINGS, *SIGN_WORDS.values()]
    text = " ".join([*sentences, *story_words, UNKNOWN_RESPONSE, WORD_RIDDLE])
    return frozenset(re.findall(r"[a-z]{2,}", re.sub(r"\{\w+\}", " ", text)))


COUNTRIES_PER_SPLIT: dict[Split, int] = {"train": 40, "validation": 12, "test": 20}
ROOMS_PER_SPLIT: dict[Split, int] = {"train": 44, "validation": 12, "test": 24}
WORLD_SEED = 7


@dataclass(frozen=True)
class Country:
    """A made-up country.

    Attributes:
        name: of the country.
        capital: its capital.
        people: how many people live there, 10 to `MAX_OPERAND`.
        split: the split whose questions are about it.
    """

    name: str
    capital: str
    people: int
    split: Split


@dataclass(frozen=True)
class Room:
    """A room with a person and a riddle.

    Attributes:
        number: of the room.
        occupant: the person who lives there.
        riddle: a sum, or a word to reverse.
        split: the split whose questions are about it.
    """

    number: int
    occupant: str
    riddle: Expression | str
    split: Split


@dataclass(frozen=True)
class World:
    """All countries and rooms.

    Attributes:
        countries: of all splits.
        rooms: of all splits, by number.
        names: words that no other question may use.
    """

    countries: tuple[Country, ...]
    rooms: tuple[Room, ...]
    names: frozenset[str]

    def rooms_of(self, split: Split) -> tuple[Room, ...]:
        """The rooms of one split."""
        return tuple(room for room in self.rooms if room.split == split)


@cache
def world() -> World:
    """The one world of the testbed, the same on every machine."""
    rng = Random(WORLD_SEED)  # noqa: S311 - no secret
    names: set[str] = set()
    countries = tuple(_countries(rng, names))
    rooms = tuple(sorted(_rooms(rng, names), key=lambda room: room.number))
    return World(countries, rooms, frozenset(names))


def is_ordinary(word: str, names: frozenset[str] | set[str]) -> bool:
    """Whether a word is neither a palindrome nor, in either direction, a word in use."""
    directions = {word, word[::-1]}
    return len(directions) == 2 and not directions & vocabulary() and not directions & names


def _countries(rng: Random, names: set[str]) -> Iterator[Country]:
    for split, count in COUNTRIES_PER_SPLIT.items():
        for _ in range(count):
            people = rng.randint(10, MAX_OPERAND)
            yield Country(_new_name(rng, names), _new_name(rng, names), people, split)


def _rooms(rng: Random, names: set[str]) -> Iterator[Room]:
    numbers = list(range(1, sum(ROOMS_PER_SPLIT.values()) + 1))
    rng.shuffle(numbers)
    for split, count in ROOMS_PER_SPLIT.items():
        for index in range(count):
            riddle: Expression | str
            if index % 2:
                riddle = Draw(rng, split).expression()
            else:
                riddle = _word_of_split(rng, split, names)
            yield Room(numbers.pop(), _new_name(rng, names), riddle, split)


def _new_name(rng: Random, names: set[str]) -> str:
    name = next(word for word in _words(rng) if is_ordinary(word, names))
    names.add(name)
    return name


def _word_of_split(rng: Random, split: Split, names: frozenset[str] | set[str]) -> str:
    return next(
        word for word in _words(rng) if word_split(word) == split and is_ordinary(word, names)
    )


def _words(rng: Random) -> Iterator[str]:
    """Endless words of two syllables and, half of the time, a last consonant."""
    while True:
        word = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(2))
        if rng.random() < 0.5:
            word += rng.choice(CONSONANTS)
        yield word
