"""The material of the testbed's questions: a fixed world, sums, made-up words, wordings."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

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


def any_word(rng: Random) -> str:
    """Two syllables and, half the time, a last consonant: four or five letters."""
    syllables = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(2))
    return syllables + rng.choice(CONSONANTS) if rng.random() < 0.5 else syllables


def word_split(word: str) -> Split:
    """The split of a word; a word and its reverse go together."""
    return _hashed(min(word, word[::-1]))


def _hashed(text: str) -> Split:
    percent = zlib.crc32(text.encode()) % 100
    if percent < _TRAIN_PERCENT:
        return "train"
    return "validation" if percent < _TRAIN_PERCENT + _VALIDATION_PERCENT else "test"


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
    "string.double": (
        "double the word {word}",
        "write {word} twice without a space",
    ),
    "string.both": (
        "reverse the words {word} and {other}",
        "write {word} and {other} backwards",
    ),
    "fact.occupant": (
        "who lives in room {room} ?",
        "name the person in room {room}",
    ),
    "fact.capital": (
        "what is the capital of {place} ?",
        "name the capital of {place}",
    ),
    "fact.people": (
        "how many people live in {place} ?",
        "give the population of {place}",
    ),
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


PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|user|>", "<|assistant|>", "<|system|>")
BLANK_LINE = "\n\n"
CONTEXT_TOKENS = 512
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer() -> Any:
    """A `transformers` fast tokenizer with chat template, padding on the left."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    bytes_and_words = models.BPE(vocab=_numbered(), merges=[], ignore_merges=True)
    backend = Tokenizer(bytes_and_words)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(BLANK_LINE, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        padding_side="left",
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _numbered() -> dict[str, int]:
    """Token to id. `Ġ` is the byte-level spelling of a space before a word."""
    from tokenizers import pre_tokenizers

    words = sorted(vocabulary())
    tokens = [PAD, END, *ROLES, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += ["Ġ?", "Ġ.", *words, *(f"Ġ{word}" for word in words)]
    return {token: number for number, token in enumerate(tokens)}
