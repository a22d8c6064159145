"""Graded questions: true, disjoint in their folds, and taught in steps."""

import re
from collections.abc import Callable
from itertools import combinations
from random import Random

import pytest

from benchmarks import graded_recipe
from benchmarks.graded_questions import FAMILIES, TASKS, TAUGHT, Draw, fold_of, world

PLACES = {place.name: place for place in world()}


def terms(question: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", question)]


def places(question: str) -> list[str]:
    return [word for word in question.split() if word in PLACES]


def people(question: str) -> str:
    return str(sum(PLACES[name].people for name in places(question)))


def word(question: str) -> str:
    return str(re.findall(r"(?:word|write|letters of) (\w+)", question)[-1])


# What is right, from the question alone.
TRUE: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(("small", "plus", "total"), lambda question: str(sum(terms(question)))),
    "spell": lambda question: word(question)[::-1],
    "letters": lambda question: "".join(sorted(word(question))),
    "capital": lambda question: PLACES[places(question)[0]].capital,
    "people": people,
    "backcapital": lambda question: PLACES[places(question)[0]].capital[::-1],
    "bothpeople": people,
    "backsum": lambda question: str(sum(terms(question)))[::-1],
    "backpeople": lambda question: people(question)[::-1],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_answer_is_the_true_one_and_no_fold_shares_a_piece(family: str) -> None:
    """What is taught of sums and words is asked nobody; places are known to all."""
    folds: dict[str, set[str]] = {}
    for fold in ("train", "validation", "test", TAUGHT):
        draw = Draw(Random(3), fold)
        for task in (TASKS[family](draw) for _ in range(60)):
            assert task.answer == TRUE[family](task.question)
            pieces = places(task.question)
            if pieces and fold == TAUGHT:
                continue
            if not pieces:
                said = terms(task.question)
                text = "+".join(map(str, sorted(said))) if said else word(task.question)
                pieces = [text if said else min(text, text[::-1])]
                assert fold_of(pieces[0]) == fold
            folds.setdefault(fold, set()).update(pieces)
    for one, other in combinations(folds.values(), 2):
        assert not one & other


def test_a_lesson_asks_a_specialist_for_its_own_step() -> None:
    draw, told = Draw(Random(2), TAUGHT), ("12+30",)
    task = TASKS["backpeople"](draw)
    terms_of, total, answer = (step.response for step in task.steps)
    assert graded_recipe.reply("facts", task, ("wrong",)) == terms_of
    assert graded_recipe.reply("calc", task, told) == "42"
    assert graded_recipe.reply("text", task, (terms_of, total)) == answer
    for model in ("nano", "general"):
        assert graded_recipe.reply(model, task, told) == answer
