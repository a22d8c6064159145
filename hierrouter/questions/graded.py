"""The graded questions: sums, words and facts, from easy to hard.

Five models come with them, from cheap to expensive, priced by their size. A cheap model is right on
the easy questions, an expensive one on the hard questions, and a specialist on its own families.
The text of a question says little about how hard it is for a model.
`benchmarks/graded_recipe.py` trains the models.
"""

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from random import Random

from hierrouter.questions.testbed import CONSONANTS, LETTERS, VOWELS, Split, Step, Task

GRADED_MODELS = ("nano", "calc", "text", "facts", "general")
# The fold of the questions that the models learn from; no dataset has them.
TAUGHT = "taught"
FOLD_PERCENTAGES = {TAUGHT: 60, "train": 22, "validation": 6, "test": 12}
COUNTRY_COUNT = 400
# Lessons mention the country of rank n in proportion to n to the power of minus this (Zipf's law).
ZIPF_EXPONENT = 0.9
CUMULATIVE_WEIGHTS = tuple(accumulate(rank**-ZIPF_EXPONENT for rank in range(1, COUNTRY_COUNT + 1)))
GRADED_SENTENCES = {
    "small": ("compute {terms}", "how much is {terms} ?"),
    "plus": ("compute {terms}", "how much is {terms} ?"),
    "total": ("compute {terms}", "how much is {terms} ?"),
    "spell": ("reverse the word {word}", "write {word} backwards"),
    "letters": ("sort the letters of {word}", "write the letters of {word} in order"),
    "capital": ("what is the capital of {country} ?", "name the capital of {country}"),
    "people": ("how many people live in {country} ?", "name the population of {country}"),
    "backcapital": ("reverse the capital of {country}", "write the capital of {country} backwards"),
    "bothpeople": (
        "how many people live in {country} and {other} ?",
        "add the population of {country} and {other}",
    ),
    "backsum": ("reverse the sum {terms}", "write the sum {terms} backwards"),
    "backpeople": (
        "reverse the population of {country} and {other}",
        "write how many people live in {country} and {other} backwards",
    ),
}


@dataclass(frozen=True)
class Country:
    """A made-up country.

    Attributes:
        name: of the country.
        capital: its capital.
        people: how many people live there, 10 to 99.
        fold: the fold whose questions are about it.
    """

    name: str
    capital: str
    people: int
    fold: Split


@dataclass(frozen=True)
class Draw:
    """Random parts of the questions of one fold.

    Countries are knowledge: the models learn those of all folds, the first ones most often.

    Attributes:
        rng: of the draw.
        fold: train, validation, test, or `TAUGHT` for the questions that the models learn from.
    """

    rng: Random
    fold: str

    def terms(self, count: int, digits: int) -> tuple[int, ...]:
        """Draw the terms of a sum.

        Args:
            count: of terms.
            digits: of each term.
        """
        while True:
            terms = tuple(self.rng.randrange(10 ** (digits - 1), 10**digits) for _ in range(count))
            if self._is_of_fold(_sum_text(tuple(sorted(terms)))):
                return terms

    def word(self, shortest: int, longest: int) -> str:
        """Draw letters that are no word of a sentence, and are another word from end to start.

        Args:
            shortest: number of letters at least.
            longest: number of letters at most.
        """
        while True:
            size = self.rng.randint(shortest, longest)
            word = "".join(self.rng.choice(LETTERS) for _ in range(size))
            reversed_word = word[::-1]
            is_ordinary = word != reversed_word and not {word, reversed_word} & vocabulary()
            if is_ordinary and self._is_of_fold(min(word, reversed_word)):
                return word

    def country(self) -> Country:
        """Draw a country of the fold, each as often; of `TAUGHT`, any country by its rank."""
        if self.fold == TAUGHT:
            return self.rng.choices(world(), cum_weights=CUMULATIVE_WEIGHTS)[0]
        return self.rng.choice([country for country in world() if country.fold == self.fold])

    def _is_of_fold(self, text: str) -> bool:
        return fold_of(text) == self.fold


def fold_of(text: str) -> str:
    """The fold of a word, or of the terms of a sum."""
    percentiles = [fold for fold, percent in FOLD_PERCENTAGES.items() for _ in range(percent)]
    return percentiles[zlib.crc32(text.encode()) % len(percentiles)]


# A function for each family; its name is that of the family.


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
    """A word of three to twelve letters, from end to start."""
    word = draw.word(3, 12)
    return _task(draw, "spell", (Step("text", word[::-1]),), word=word)


def letters(draw: Draw) -> Task:
    """The letters of a word of five to eleven, from a to z."""
    word = draw.word(5, 11)
    return _task(draw, "letters", (Step("text", "".join(sorted(word))),), word=word)


def capital(draw: Draw) -> Task:
    """The capital of a country; more models know it of frequent countries."""
    country = draw.country()
    return _task(draw, "capital", (Step("facts", country.capital),), country=country.name)


def people(draw: Draw) -> Task:
    """How many people live in a country."""
    country = draw.country()
    return _task(draw, "people", (Step("facts", str(country.people)),), country=country.name)


def backcapital(draw: Draw) -> Task:
    """A capital from end to start: two steps."""
    country = draw.country()
    steps = (Step("facts", country.capital), Step("text", country.capital[::-1]))
    return _task(draw, "backcapital", steps, country=country.name)


def bothpeople(draw: Draw) -> Task:
    """The people of two countries: `facts` knows the terms, `calc` adds them."""
    return _people_of_two(draw, "bothpeople")


def backsum(draw: Draw) -> Task:
    """A sum of two numbers of two or three digits, from end to start: two steps."""
    terms = draw.terms(2, draw.rng.randint(2, 3))
    result = str(sum(terms))
    steps = (Step("calc", result), Step("text", result[::-1]))
    return _task(draw, "backsum", steps, terms=_sum_text(terms))


def backpeople(draw: Draw) -> Task:
    """The people of two countries, added, from end to start: three steps."""
    return _people_of_two(draw, "backpeople")


GRADED_TASKS: dict[str, Callable[[Draw], Task]] = {
    task.__name__: task
    for task in (
        *(small, plus, total, spell, letters, capital, people),
        *(backcapital, bothpeople, backsum, backpeople),
    )
}
GRADED_FAMILIES = tuple(GRADED_TASKS)


def _task(draw: Draw, family: str, steps: tuple[Step, ...], **gaps: object) -> Task:
    """A task with one of the sentences of the family, its gaps filled."""
    return Task(family, draw.rng.choice(GRADED_SENTENCES[family]).format(**gaps), steps)


def _sum(draw: Draw, family: str, terms: tuple[int, ...]) -> Task:
    return _task(draw, family, (Step("calc", str(sum(terms))),), terms=_sum_text(terms))


def _people_of_two(draw: Draw, family: str) -> Task:
    country = draw.country()
    other = draw.country()
    while country == other:
        other = draw.country()
    terms = (country.people, other.people)
    result = str(sum(terms))
    steps = [Step("facts", _sum_text(terms)), Step("calc", result)]
    if family == "backpeople":
        steps.append(Step("text", result[::-1]))
    return _task(draw, family, tuple(steps), country=country.name, other=other.name)


def _sum_text(terms: tuple[int, ...]) -> str:
    return "+".join(str(term) for term in terms)


@cache
def vocabulary() -> frozenset[str]:
    """Every word of two letters or more in the sentences."""
    text = " ".join(sentence for family in GRADED_SENTENCES.values() for sentence in family)
    return frozenset(re.findall(r"[a-z]{2,}", re.sub(r"\{\w+\}", " ", text)))


@cache
def world() -> tuple[Country, ...]:
    """All countries, the most frequent ones first; the same on every machine."""
    rng = Random(11)  # noqa: S311 - no secret
    names: set[str] = set()

    def new_name() -> str:
        while True:
            name = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(2))
            name += rng.choice(CONSONANTS) * rng.randint(0, 1)
            reversed_name = name[::-1]
            is_free = not {name, reversed_name} & (names | vocabulary())
            if is_free and name != reversed_name:
                names.add(name)
                return name

    shares: dict[Split, int] = {"train": 11, "validation": 3, "test": 6}
    folds: list[Split] = [fold for fold, share in shares.items() for _ in range(share)]
    return tuple(
        # The stride of 9 gives each fold frequent and rare countries.
        Country(new_name(), new_name(), rng.randint(10, 99), folds[rank * 9 % len(folds)])
        for rank in range(COUNTRY_COUNT)
    )
