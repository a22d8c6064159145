"""The testbed's questions: distinct, consistent, and in one split only."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from itertools import combinations
from random import Random

import pytest

from benchmarks.testbed_recipe import Progress, counterfactual, lesson
from hierrouter.questions.testbed import (
    FAMILIES,
    MODELS,
    SPLITS,
    TASKS,
    UNKNOWN,
    Draw,
    Expression,
    model_path,
    questions,
    vocabulary,
    word_split,
    world,
)
from hierrouter_cache.errors import InputError

NUMBERS = {
    "arith": r"(\d+)\D+(\d+)",
    "story": r"(\d+)\D+(\d+)",
    "room": r"(\d+)[+-](\d+)",
    "copies": r"(\d+)[+-](\d+)",
    "riddle": r"(\d+)",
    "fact": r"(\d+)",
}
SIGNS = r"[+-]|plus|minus"


def pieces(family: str, question: str) -> set[object]:
    """What the splits must not share: operands, room numbers and words outside the templates."""
    words = {word for word in re.findall(r"[a-z]{2,}", question) if word not in vocabulary()}
    found = re.search(NUMBERS[family], question) if family in NUMBERS else None
    sign = re.search(SIGNS, question)
    taken_away = family == "story" and re.search("loses|takes", question) is not None
    numbers = {(found.groups(), sign and sign[0], taken_away)} if found else set()
    return {*words, *numbers}


@pytest.mark.parametrize("family", FAMILIES)
def test_three_hundred_distinct_questions_in_the_promised_shares(family: str) -> None:
    asked = questions(family)
    assert len({question.question for question in asked}) == len(asked) == 300
    assert len({question.id for question in asked}) == 300
    assert all(re.fullmatch(rf"{family}-\d{{4}}", question.id) for question in asked)
    counts = Counter(question.split for question in asked)
    assert counts == {"train": 168, "validation": 42, "test": 90}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_piece_occurs_in_two_splits(family: str) -> None:
    found: dict[str, set[object]] = {split: set() for split in SPLITS}
    for question in questions(family, limit=600):
        assert pieces(family, question.question), question.question
        found[question.split] |= pieces(family, question.question)
    for one, other in combinations(SPLITS, 2):
        assert not found[one] & found[other]


def test_a_shared_piece_would_be_noticed() -> None:
    assert pieces("arith", "compute 3+4") & pieces("arith", "how much is 3+4 ?")
    assert not pieces("arith", "compute 3+4") & pieces("arith", "compute 3-4")
    assert pieces("mirror", "reverse ulot and name the capital of that place") == {"ulot"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_smaller_limit_is_a_prefix_and_a_seed_decides(family: str) -> None:
    asked = questions(family, limit=100)
    assert asked == questions(family, limit=300)[:100]
    assert asked != questions(family, seed=43, limit=100)


def test_a_finite_family_gives_what_it_has() -> None:
    assert len(questions("mirror", limit=10_000)) == 5 * len(world().places)
    assert len(questions("riddle", limit=10_000)) == 5 * len(world().rooms)


def test_unknown_names_and_negative_limits_are_refused() -> None:
    with pytest.raises(InputError, match="unknown testbed family: 'poetry'; choose from arith"):
        questions("poetry")
    with pytest.raises(InputError, match="a limit cannot be negative: -1"):
        questions("arith", limit=-1)
    with pytest.raises(InputError, match="unknown testbed model: 'gpt'; choose from calc"):
        model_path("gpt")


def test_the_world_is_consistent() -> None:
    everywhere = world()
    names = [place.name for place in everywhere.places]
    names += [place.capital for place in everywhere.places]
    names += [room.occupant for room in everywhere.rooms]
    assert len(set(names)) == len(names) == len(everywhere.names)
    assert [room.number for room in everywhere.rooms] == list(range(1, 81))
    for room in everywhere.rooms:
        riddle = room.riddle
        split = riddle.split if isinstance(riddle, Expression) else word_split(riddle)
        assert split == room.split


@pytest.mark.parametrize("split", SPLITS)
def test_half_of_the_riddles_are_sums(split: str) -> None:
    asked = [question for question in questions("riddle") if question.split == split]
    share = sum(question.answers[0].isdigit() for question in asked) / len(asked)
    assert 0.4 <= share <= 0.6


def test_answers_follow_from_the_question_and_the_world() -> None:
    places = {place.name: place for place in everywhere_places()}
    for question in questions("backcap"):
        (name,) = pieces("backcap", question.question)
        assert question.answers == (places[str(name)].capital[::-1],)
    for question in questions("arith"):
        left, sign, right = re.findall(rf"\d+|{SIGNS}", question.question)
        value = int(left) + int(right) * (1 if sign in ("+", "plus") else -1)
        assert question.answers == (str(value),)


def everywhere_places() -> tuple[object, ...]:
    return world().places


@pytest.mark.parametrize("family", FAMILIES)
def test_perfect_specialists_solve_a_task_in_its_order_only(family: str) -> None:
    draw = Draw(Random(0), "train")
    for _ in range(50):
        task = TASKS[family](draw)
        owners = [step.model for step in task.steps]
        right = Progress(task)
        for model in owners:
            right = right.after(model)
        assert right.responses[-1] == task.answer
        assert all(right.reply(model) == task.answer for model in MODELS)
        if len(owners) == 2:
            wrong = Progress(task).after(owners[1]).after(owners[0])
            assert wrong.responses[0] == UNKNOWN
            assert wrong.responses[1] != task.answer


@pytest.mark.parametrize("family", FAMILIES)
def test_a_counterfactual_keeps_question_and_owners(family: str) -> None:
    draw = Draw(Random(0), "train")
    task = TASKS[family](draw)
    other = counterfactual(task, draw)
    assert other.question == task.question
    assert [step.model for step in other.steps] == [step.model for step in task.steps]


def test_lessons_ask_no_operands_or_words_of_other_splits() -> None:
    draw = Draw(Random(0), "train")
    for model in ("calc", "text"):
        for _ in range(500):
            context = " ".join(lesson(model, draw).parts)
            words = set(re.findall(r"[a-z]{2,}", context)) - vocabulary()
            assert not words & held_out_names()


def held_out_names() -> set[str]:
    held_out = [place for place in world().places if place.split != "train"]
    return {word for place in held_out for word in (place.name, place.name[::-1], place.capital)}


def test_importing_the_testbed_imports_nothing_heavy() -> None:
    code = (
        "import sys, hierrouter.questions.testbed as t; t.questions('arith', limit=3); "
        "print(*{'torch', 'transformers', 'tokenizers'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == ""
