"""How the questions are worded.

Every family's sentences stand here, and nothing else: the tokenizer makes one token of each word
found in them. Not covered: what fills the gaps (`families`).
"""

from __future__ import annotations

import re
from functools import cache

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
