"""Graded questions: sums, words and facts from easy to hard, for models from cheap to dear.

Five models come with them, priced by size. A cheap one is right on the easy questions, a dear one
on the hard ones, and a specialist on its own ground; how hard a question is for a model its text
hardly tells. `benchmarks/graded_recipe.py` trains the models.
"""

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from random import Random

from hierrouter.questions.testbed import CONSONANTS, LETTERS, VOWELS, Split, Step, Task

MODELS = ("nano", "calc", "text", "facts", "general")
# A question's fold; what is taught is asked nobody.
TAUGHT = "taught"
FOLDS = {TAUGHT: 60, "train": 22, "validation": 6, "test": 12}  # in percent
PLACES = 400
ZIPF = 0.9  # the place of rank n is spoken of in proportion to n to the power of minus this
SPOKEN_OF = tuple(accumulate(rank**-ZIPF for rank in range(1, PLACES + 1)))
SENTENCES = {
    "small": ("compute {terms}", "how much is {terms} ?"),
    "plus": ("compute {terms}", "how much is {terms} ?"),
    "total": ("compute {terms}", "how much is {terms} ?"),
    "spell": ("reverse the word {word}", "write {word} backwards"),
    "letters": ("sort the letters of {word}", "write the letters of {word} in order"),
    "capital": ("what is the capital of {place} ?", "name the capital of {place}"),
    "people": ("how many people live in {place} ?", "name the population of {place}"),
    "backcapital": ("reverse the capital of {place}", "write the capital of {place} backwards"),
    "bothpeople": (
        "how many people live in {place} and {other} ?",
        "add the population of {place} and {other}",
    ),
    "backsum": ("reverse the sum {terms}", "write the sum {terms} backwards"),
    "backpeople": (
        "reverse the population of {place} and {other}",
        "write how many people live in {place} and {other} backwards",
    ),
}


@dataclass(frozen=True)
class Place:
    """A place, its capital, how many people live there, and whose questions it is in."""

    name: str
    capital: str
    people: int
    fold: Split


@dataclass(frozen=True)
class Draw:
    """Random pieces of one fold; `TAUGHT` are those that the models learn from.

    Places are knowledge: those of all folds are taught, the first of them most often.
    """

    rng: Random
    fold: str

    def terms(self, count: int, digits: int) -> tuple[int, ...]:
        """So many whole numbers of so many digits."""
        while True:
            found = tuple(self.rng.randrange(10 ** (digits - 1), 10**digits) for _ in range(count))
            if self._is_ours("+".join(map(str, sorted(found)))):
                return found

    def word(self, shortest: int, longest: int) -> str:
        """Letters that are no word of a sentence, and read from the end are another word."""
        while True:
            size = self.rng.randint(shortest, longest)
            word = "".join(self.rng.choice(LETTERS) for _ in range(size))
            is_ordinary = word != word[::-1] and not {word, word[::-1]} & vocabulary()
            if is_ordinary and self._is_ours(min(word, word[::-1])):
                return word

    def place(self) -> Place:
        """One of this fold's, each as often; of all, by its rank, where it is taught."""
        if self.fold == TAUGHT:
            return self.rng.choices(world(), cum_weights=SPOKEN_OF)[0]
        return self.rng.choice([place for place in world() if place.fold == self.fold])

    def _is_ours(self, text: str) -> bool:
        return fold_of(text) == self.fold


def fold_of(text: str) -> str:
    """The fold of a word, or of the terms of a sum."""
    shares = [fold for fold, percent in FOLDS.items() for _ in range(percent)]
    return shares[zlib.crc32(text.encode()) % len(shares)]


def small(draw: Draw) -> Task:
    """A sum of two or three numbers of one or two digits."""
    return _sum(draw, "small", draw.terms(draw.rng.randint(2, 3), draw.rng.randint(1, 2)))


def plus(draw: Draw) -> Task:
    """A sum of two numbers of three or four digits."""
    return _sum(draw, "plus", draw.terms(2, draw.rng.randint(3, 4)))


def total(draw: Draw) -> Task:
    """A sum of three numbers of two or three digits."""
    return _sum(draw, "total", draw.terms(3, draw.rng.randint(2, 3)))


def spell(draw: Draw) -> Task:
    """A word of three to twelve letters, read from its end."""
    word = draw.word(3, 12)
    return _asked(draw, "spell", (Step("text", word[::-1]),), word=word)


def letters(draw: Draw) -> Task:
    """The letters of a word of five to eleven, from a to z."""
    word = draw.word(5, 11)
    return _asked(draw, "letters", (Step("text", "".join(sorted(word))),), word=word)


def capital(draw: Draw) -> Task:
    """The capital of a place; of frequent places more models know it."""
    place = draw.place()
    return _asked(draw, "capital", (Step("facts", place.capital),), place=place.name)


def people(draw: Draw) -> Task:
    """How many people live in a place."""
    place = draw.place()
    return _asked(draw, "people", (Step("facts", str(place.people)),), place=place.name)


def backcapital(draw: Draw) -> Task:
    """A capital from its end: two steps."""
    place = draw.place()
    steps = Step("facts", place.capital), Step("text", place.capital[::-1])
    return _asked(draw, "backcapital", steps, place=place.name)


def bothpeople(draw: Draw) -> Task:
    """The people of two places: `facts` knows the terms, `calc` adds them."""
    return _people_of_two(draw, "bothpeople")


def backsum(draw: Draw) -> Task:
    """A sum of two numbers of two or three digits, from its end: two steps."""
    terms = draw.terms(2, draw.rng.randint(2, 3))
    steps = Step("calc", str(sum(terms))), Step("text", str(sum(terms))[::-1])
    return _asked(draw, "backsum", steps, terms=_written(terms))


def backpeople(draw: Draw) -> Task:
    """The people of two places, added, from the end: three steps."""
    return _people_of_two(draw, "backpeople")


TASKS: dict[str, Callable[[Draw], Task]] = {
    task.__name__: task
    for task in (
        *(small, plus, total, spell, letters, capital, people),
        *(backcapital, bothpeople, backsum, backpeople),
    )
}
FAMILIES = tuple(TASKS)


def _asked(draw: Draw, family: str, steps: tuple[Step, ...], **gaps: object) -> Task:
    return Task(family, draw.rng.choice(SENTENCES[family]).format(**gaps), steps)


def _sum(draw: Draw, family: str, terms: tuple[int, ...]) -> Task:
    return _asked(draw, family, (Step("calc", str(sum(terms))),), terms=_written(terms))


def _people_of_two(draw: Draw, family: str) -> Task:
    place, other = draw.place(), draw.place()
    while place == other:
        other = draw.place()
    terms = place.people, other.people
    steps = [Step("facts", _written(terms)), Step("calc", str(sum(terms)))]
    if family == "backpeople":
        steps.append(Step("text", str(sum(terms))[::-1]))
    return _asked(draw, family, tuple(steps), place=place.name, other=other.name)


def _written(terms: tuple[int, ...]) -> str:
    return "+".join(map(str, terms))


@cache
def vocabulary() -> frozenset[str]:
    """Every word of two letters or more that a sentence holds."""
    text = " ".join(sentence for family in SENTENCES.values() for sentence in family)
    return frozenset(re.findall(r"[a-z]{2,}", re.sub(r"\{\w+\}", " ", text)))


@cache
def world() -> tuple[Place, ...]:
    """All places, the most spoken of first; the same on every machine."""
    rng, names = Random(11), set[str]()  # noqa: S311 - a world, no secret

    def name() -> str:
        while True:
            found = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(2))
            found += rng.choice(CONSONANTS) * rng.randint(0, 1)
            if not {found, found[::-1]} & (names | vocabulary()) and found != found[::-1]:
                names.add(found)
                return found

    shares: dict[Split, int] = {"train": 11, "validation": 3, "test": 6}
    folds: list[Split] = [fold for fold, share in shares.items() for _ in range(share)]
    return tuple(
        Place(name(), name(), rng.randint(10, 99), folds[rank * 9 % len(folds)])
        for rank in range(PLACES)
    )
