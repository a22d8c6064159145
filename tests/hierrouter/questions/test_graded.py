"""Graded questions: true, disjoint in their folds, and models that know them by their size."""

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from benchmarks import graded_recipe
from hierrouter.collection.collect import collect
from hierrouter.questions.graded import (
    GRADED_FAMILIES,
    GRADED_MODELS,
    GRADED_TASKS,
    TAUGHT,
    Draw,
    fold_of,
    world,
)
from hierrouter.questions.shipped import model_path, questions
from hierrouter.replay.inspection import ask_cache

COUNTRIES = {country.name: country for country in world()}


def terms(question: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", question)]


def countries(question: str) -> list[str]:
    return [word for word in question.split() if word in COUNTRIES]


def people(question: str) -> str:
    return str(sum(COUNTRIES[name].people for name in countries(question)))


def word(question: str) -> str:
    return str(re.findall(r"(?:word|write|letters of) (\w+)", question)[-1])


# What is right, from the question alone.
TRUE: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(("small", "plus", "total"), lambda question: str(sum(terms(question)))),
    "spell": lambda question: word(question)[::-1],
    "letters": lambda question: "".join(sorted(word(question))),
    "capital": lambda question: COUNTRIES[countries(question)[0]].capital,
    "people": people,
    "backcapital": lambda question: COUNTRIES[countries(question)[0]].capital[::-1],
    "bothpeople": people,
    "backsum": lambda question: str(sum(terms(question)))[::-1],
    "backpeople": lambda question: people(question)[::-1],
}


@pytest.mark.parametrize("family", GRADED_FAMILIES)
def test_every_answer_is_the_true_one_and_no_fold_shares_a_piece(family: str) -> None:
    folds: dict[str, set[str]] = {}
    for query in questions(family, seed=3, limit=100):
        assert query.answers == (TRUE[family](query.question),)
        pieces = countries(query.question)
        if not pieces:
            said = terms(query.question)
            text = word(query.question) if not said else "+".join(map(str, sorted(said)))
            pieces = [min(text, text[::-1]) if not said else text]
            assert fold_of(pieces[0]) == query.split != TAUGHT
        folds.setdefault(query.split, set()).update(pieces)
    for one, other in combinations(folds.values(), 2):
        assert not one & other


def test_what_is_taught_of_sums_and_words_is_asked_nobody() -> None:
    for family in ("small", "plus", "total", "spell", "letters", "backsum"):
        draw = Draw(Random(1), TAUGHT)
        taught = {GRADED_TASKS[family](draw).question for _ in range(300)}
        assert not taught & {query.question for query in questions(family, limit=100)}


def test_a_lesson_asks_a_specialist_for_its_own_step() -> None:
    draw, told = Draw(Random(2), TAUGHT), ("12+30",)
    task = GRADED_TASKS["backpeople"](draw)
    terms_of, total, answer = (step.response for step in task.steps)
    assert graded_recipe.reply("facts", task, ("wrong",)) == terms_of
    assert graded_recipe.reply("calc", task, told) == "42"
    assert graded_recipe.reply("text", task, (terms_of, total)) == answer
    for model in ("nano", "general"):
        assert graded_recipe.reply(model, task, told) == answer


@pytest.mark.parametrize(
    ("model", "word", "named"), [("calc", "people", 2), ("text", "reverse", 1)]
)
def test_a_specialist_hears_who_has_to_begin(model: str, word: str, named: int) -> None:
    rng = Random(5)
    lessons = [graded_recipe.lesson(model, rng).parts for _ in range(1_000)]
    on = [
        (question, *said)
        for question, *said in lessons
        if word in question.split() and len(countries(question)) >= named
    ]
    # Off its ground it is asked first, too: a tenth of these.
    assert len(on) > 80
    assert sum(len(parts) == 1 for parts in on) < 0.2 * len(on)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collect("graded", cache=tmp_path_factory.mktemp("graded") / "cache", limit=20)


def test_who_can_and_who_cannot(cache: Path) -> None:
    rows = ask_cache(
        cache,
        "SELECT dataset, route, avg(value) AS right FROM scores WHERE scorer = 'token_f1' "
        "AND (hop = 0 OR hop = 2) GROUP BY ALL",
    ).to_pylist()
    right = {(row["route"], row["dataset"]): row["right"] for row in rows}

    def mean(route: str, *families: str) -> float:
        return sum(right[route, family] for family in families) / len(families)

    hard = ("plus", "total", "spell", "letters", "capital", "people", "backcapital")
    assert mean("general", *hard) > 0.95 > mean("nano", *hard) + 0.03
    grounds = {
        "calc": ("small", "plus", "total"),
        "text": ("spell", "letters"),
        "facts": ("capital", "people"),
    }
    for model, ground in grounds.items():
        assert mean(model, *ground) > 0.95 > 0.6 > mean(model, *set(GRADED_FAMILIES) - set(ground))
    several = {
        "facts>text": "backcapital",
        "facts>calc": "bothpeople",
        "calc>text": "backsum",
        "facts>general": "backpeople",
    }
    for route, family in several.items():
        assert mean(route, family) > 0.8 > 0.3 > max(mean(one, family) for one in grounds)
    for family in ("bothpeople", "backpeople"):
        assert max(mean(model, family) for model in GRADED_MODELS) < 0.2


def test_the_models_are_small() -> None:
    folders = [model_path(f"graded:{name}") for name in GRADED_MODELS]
    assert sum((folder / "model.safetensors").stat().st_size for folder in folders) < 6e6
