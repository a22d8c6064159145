"""A log on disk: what is written is read, and the first bad line is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.collection.files import require_free
from hierrouter.serving.logs import Episode, LogShape, Step, has_texts, line_of, read_log, write_log
from hierrouter_cache.errors import InputError

MODELS = ("calc", "text")
SHAPE = LogShape(MODELS, hops=2, rate=((0.1, 0.2), (0.3, 0.4)))
BOTH = [
    {"model": "calc", "propensity": 0.5, "cost": 1},
    {"model": "text", "propensity": 1, "cost": 2},
]
LINE: dict[str, Any] = {"query": "q1", "steps": BOTH, "quality": 0.5}

numbers = st.floats(0, 1e6)
names = st.text(min_size=1, max_size=20)


@st.composite
def all_episodes(draw: st.DrawFn, texts: bool = False) -> Episode:
    length = draw(st.integers(1, 2))
    steps = [
        Step(
            model=draw(st.integers(0, 1)),
            propensity=draw(st.floats(1e-9, 1)),
            stop=length == 1 or (hop == 1 and draw(st.booleans())),
            cost=draw(numbers),
            response=draw(st.text()) if texts else None,
        )
        for hop in range(length)
    ]
    question = draw(names) if texts else None
    return Episode(
        draw(names), draw(st.text(max_size=20)), tuple(steps), draw(st.floats(0, 1)), "p", question
    )


@given(st.one_of(st.lists(all_episodes(), min_size=1), st.lists(all_episodes(True), min_size=1)))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[Episode]
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    write_log(episodes, MODELS, path)
    assert [replace(episode, where="") for episode in read_log(path, SHAPE)] == episodes
    assert has_texts(path) == (episodes[0].question is not None)


def read(tmp_path: Path, *lines: object) -> list[Episode]:
    path = tmp_path / "log.jsonl"
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return read_log(path, SHAPE)


def with_step(number: int = 0, /, **changed: object) -> dict[str, Any]:
    steps = [dict(step) for step in BOTH]
    steps[number].update(changed)
    return {**LINE, "steps": steps}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in LINE.items() if key != name}


def test_tokens_are_priced_and_other_keys_are_let_be(tmp_path: Path) -> None:
    steps = [
        {"model": "text", "propensity": 0.25, "tokens_in": 10, "tokens_out": 5, "latency": 3},
        BOTH[1],
    ]
    [episode] = read(tmp_path, {**LINE, "steps": steps, "request": "abc", "dataset": "mine"})
    assert episode.steps[0] == Step(1, 0.25, False, pytest.approx(0.3 * 10 + 0.4 * 5))
    assert (episode.dataset, episode.policy, episode.question) == ("mine", "", None)


def test_a_question_that_is_null_is_none(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for question, expected in ((None, False), ("how many?", True)):
        path.write_text(json.dumps({**LINE, "question": question}))
        assert has_texts(path) is expected


def test_a_key_that_is_null_is_not_there(tmp_path: Path) -> None:
    steps = [
        {"model": "text", "propensity": 0.25, "cost": None, "tokens_in": 10, "tokens_out": 5},
        {**BOTH[1], "stop": None, "tokens_in": None, "response": None},
    ]
    nulls = dict.fromkeys(("dataset", "policy", "question"))
    [episode] = read(tmp_path, {**LINE, **nulls, "steps": steps})
    [bare] = read(tmp_path, {**LINE, "steps": [{**steps[0], "cost": 0.3 * 10 + 0.4 * 5}, BOTH[1]]})
    assert (episode.steps, episode.dataset) == (bare.steps, "")


def test_blank_lines_do_not_count_but_keep_their_numbers(tmp_path: Path) -> None:
    first, second = read(tmp_path, "", LINE, "", LINE)
    assert (first.where, second.where) == (
        f"{tmp_path / 'log.jsonl'}:2",
        f"{tmp_path / 'log.jsonl'}:4",
    )


BAD: dict[str, tuple[object, str]] = {
    "no JSON": ("{", "not JSON"),
    "no object": ([1], "not a JSON object"),
    "no query": (without("query"), "query is missing"),
    "a number for a query": ({**LINE, "query": 3}, "query is 3"),
    "an empty query": ({**LINE, "query": ""}, "query is ''"),
    "no steps": (without("steps"), "steps is no list"),
    "an empty list of steps": ({**LINE, "steps": []}, "steps is no list"),
    "a step that is none": ({**LINE, "steps": ["calc", "text"]}, "a step is no object"),
    "too many steps": ({**LINE, "steps": [*BOTH, BOTH[0]]}, "3 steps"),
    "too few steps": ({**LINE, "steps": BOTH[:1]}, "1 of 2 steps and no stop"),
    "a step after the end": (with_step(stop=True), "a step after one that stops"),
    "stop that is no truth": (with_step(1, stop="yes"), "stop is neither"),
    "an unknown model": (with_step(model="calk"), "unknown model calk"),
    "no model": (with_step(model=None), "model is missing"),
    "no propensity": (with_step(propensity=None), "propensity is missing"),
    "a propensity of 0": (with_step(propensity=0), "propensity is 0"),
    "a propensity above 1": (with_step(propensity=1.01), "propensity is 1.01"),
    "a negative propensity": (with_step(propensity=-0.5), "propensity is -0.5"),
    "a truth for a propensity": (with_step(propensity=True), "propensity is True"),
    "a text for a propensity": (with_step(propensity="0.5"), "propensity is '0.5'"),
    "NaN": ('{"query": "q", "steps": [{"model": "calc", "propensity": NaN}]}', "propensity is nan"),
    "a negative cost": (with_step(cost=-1), "cost is -1"),
    "an infinite cost": (json.dumps(with_step(cost=7)).replace("7", "1e999"), "cost is inf"),
    "a huge cost": (with_step(cost=10**400), "cost is 1000"),
    "no cost": (
        {**LINE, "steps": [{"model": "calc", "propensity": 1}, BOTH[1]]},
        "no cost",
    ),
    "no quality": (without("quality"), "quality is missing"),
    "a quality above 1": ({**LINE, "quality": 100}, "quality is 100"),
    "a dataset that is no text": ({**LINE, "dataset": 3}, "dataset is 3"),
    "an answer missing": ({**LINE, "question": "why?"}, "a response is missing"),
    "a question beside none": (
        {**with_step(response="so"), "question": "why?"},
        "no question",
    ),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_the_first_bad_line_is_named(tmp_path: Path, bad: tuple[object, str]) -> None:
    line, said = bad
    with pytest.raises(InputError) as refused:
        read(tmp_path, LINE, LINE, line)
    message = str(refused.value)
    where = f"{tmp_path / 'log.jsonl'}:"
    assert said in message
    assert where + ("1" if said == "no question" else "3") in message
    assert len(message) - len(str(tmp_path)) < 250
    assert "\n" not in message


def test_a_log_without_lines(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a log without episodes"):
        read(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path / "none.jsonl", SHAPE)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    require_free(tmp_path / "log.jsonl", "--keep")
    (tmp_path / "log.jsonl").touch()
    with pytest.raises(InputError, match="output exists"):
        require_free(tmp_path / "log.jsonl", "--keep")
    with pytest.raises(InputError, match="does not exist"):
        require_free(tmp_path / "none" / "log.jsonl", "--keep")


def test_a_line_holds_what_is_known_and_nothing_else() -> None:
    episode = Episode("q1", "", (Step(0, 0.5, True, 2.0),), 0.25)
    assert line_of(episode, MODELS) == {
        "query": "q1",
        "steps": [{"model": "calc", "propensity": 0.5, "stop": True, "cost": 2.0}],
        "quality": 0.25,
    }


def test_a_status_that_is_null_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    assert len(read(tmp_path, {**LINE, "status": None}, {**LINE, "status": 502})) == 1
