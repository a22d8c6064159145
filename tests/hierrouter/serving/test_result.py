"""Logs from files, warnings, and what is printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from hierrouter.engines.encoders import HashedNgrams
from hierrouter.evaluation.outcome import greedy
from hierrouter.learning.config import Objective
from hierrouter.learning.trained import TrainedRouter
from hierrouter.learning.training import train
from hierrouter.serving.logs import Episode, Step, from_texts, in_cache
from hierrouter.serving.off_policy_result import Result, as_json, long_table, result_tables
from hierrouter.serving.off_policy_study import (
    LoggingPolicy,
    value_by_simulation,
    value_from_log,
)
from hierrouter.tables import as_csv, as_latex, as_markdown
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.runs import ALPHA, EXACT_GLIMPSE, GLIMPSE, small_tree

UNIFORM = LoggingPolicy("uniform")
SOURCE: Mapping[str, object] = {"cache": "here"}


@pytest.fixture(scope="module")
def tree() -> RouteTree:
    return small_tree()


@pytest.fixture(scope="module")
def router(tree: RouteTree) -> TrainedRouter:
    return train(tree, Objective(ALPHA, allow_stop=True), EXACT_GLIMPSE, 0)


@pytest.fixture(scope="module")
def played(tree: RouteTree, router: TrainedRouter) -> tuple[Result, list[Episode]]:
    size = {"episodes": 400, "repeats": 3}
    return value_by_simulation(router, tree, ALPHA, UNIFORM, SOURCE, **size, seed=0)


def test_a_log_written_down_says_what_it_said(
    tree: RouteTree, router: TrainedRouter, played: tuple[Result, list[Episode]]
) -> None:
    result, episodes = played
    again = value_from_log(router, episodes, tree, ALPHA, SOURCE)
    assert again.evaluation == result.evaluation
    assert (again.logged_by, again.scores) == ({"uniform": 400}, ())
    exact = router.outcome(tree).reward(ALPHA)
    assert result.truth == pytest.approx(exact.mean())
    asked = [tree.query_ids.index(episode.query) for episode in episodes]
    assert again.truth == pytest.approx(exact[asked].mean())


def episode(query: str, dataset: str = "", stop: bool = False, **changed: object) -> Episode:
    calls = tuple(Step(0, 0.5, stop, 1.0, "an answer") for _ in range(1 if stop else 2))
    return replace(Episode(query, dataset, calls, 0.5, where="log:7"), **changed)


def test_a_question_is_found_by_id_and_where_it_must_by_dataset(
    tree: RouteTree, router: TrainedRouter
) -> None:
    twice = replace(
        tree, query_ids=("q0", "q0", *tree.query_ids[2:]), datasets=tuple("ab" * 23)[:45]
    )
    found = in_cache([episode("q0", "b"), episode("q2"), episode("q0", "a")], router, twice)
    assert found.query.tolist() == [1, 2, 0]
    for wrong, said in (
        (episode("q0"), "query q0 is in 2 datasets: log:7; give dataset: a, b"),
        (episode("q2", "b"), "query q2 is not in the cache: log:7"),
        (episode("none"), "query none is not in the cache: log:7"),
    ):
        with pytest.raises(InputError, match=said):
            in_cache([episode("q3"), wrong], router, twice)


def test_one_question_is_no_log(tree: RouteTree, router: TrainedRouter) -> None:
    with pytest.raises(InputError, match="at least 2 questions"):
        value_from_log(router, [episode("q0"), episode("q0")], tree, ALPHA, SOURCE)


def test_a_log_that_stops_values_a_router_that_never_does(tree: RouteTree) -> None:
    steady = train(tree, Objective(ALPHA), EXACT_GLIMPSE, 0)
    stopping = [episode(name, stop=True) for name in tree.query_ids[:5]]
    going_on = [episode(name) for name in tree.query_ids[5:10]]
    found = value_from_log(steady, [*stopping, *going_on], tree, ALPHA, {})
    assert found.truth is not None
    log = in_cache([*stopping, *going_on], steady, tree)
    assert (log.actions.count, log.length.tolist()) == (6, [1] * 5 + [2] * 5)
    assert log.action.tolist() == [[3, 0]] * 5 + [[0, 0]] * 5


def test_texts_are_seen_as_a_live_router_sees_them(router: TrainedRouter) -> None:
    texts = [
        episode(f"r{number}", question=f"what is {number}?", steps=steps)
        for number, steps in enumerate(
            [
                (Step(1, 0.5, False, 0.5, "a plan"), Step(2, 0.5, False, 0.25)),
                (Step(0, 0.5, True, 0.75),),
            ]
        )
    ]
    encoder = HashedNgrams(8)
    log, states = from_texts(texts, router, encoder)
    assert log.alive.tolist() == [[True, True], [True, False]]
    contexts = ["what is 0?", "what is 0?\n\na plan", "what is 1?"]
    paths, spent = [(), (1,), ()], [0.0, 0.5, 0.0]
    for row, vector, path, cost in zip(
        states.row[log.alive], encoder.encode(contexts), paths, spent, strict=True
    ):
        np.testing.assert_array_equal(states.features[row, :8], vector)
        chances = router.decide(vector, path, cost)
        np.testing.assert_array_equal(states.target[row], greedy(chances, router.origin.base_rate))
    assert states.features[1, 8:].tolist() == [0, 1, 0, 1]  # model 1 was called, and C is the most


def test_texts_do_not_tell_what_prompts_would_cost(tree: RouteTree) -> None:
    limited = train(tree, Objective(0.02, max_cost=1.5), GLIMPSE, 0)
    with pytest.raises(InputError, match="a limit on cost"):
        from_texts([episode("a"), episode("b")], limited, HashedNgrams(8))


def test_a_reader_is_warned(tree: RouteTree, router: TrainedRouter) -> None:
    shy = [episode(name, stop=True) for name in tree.query_ids]
    for one in shy:
        assert one.steps[0].model == 0
    found = value_from_log(router, shy, tree, ALPHA, SOURCE)
    told = " ".join(found.notes)
    assert found.notes[0].startswith("support: the router calls model-")
    assert " first" in told
    assert "the log never does" in told
    assert "the weights average" in told
    assert "effective episodes are few" in told
    assert found.evaluation.overlap.share_never_taken > 0.9
    epsilon = LoggingPolicy("epsilon", 0.5)
    loud, _ = value_by_simulation(router, tree, ALPHA, epsilon, SOURCE, episodes=900, seed=0)
    assert loud.notes == ()


def test_what_is_not_known_is_null_and_empty(tree: RouteTree, router: TrainedRouter) -> None:
    shy = [episode(name, stop=True) for name in tree.query_ids]
    found = replace(value_from_log(router, shy, tree, ALPHA, SOURCE), truth=None)
    read = json.loads(as_json(found))
    estimates = {item["estimator"]: item for item in read["estimates"]}
    assert (read["truth"], read["truth_on"]) == (None, None)
    assert (estimates["SNIPS"]["value"], estimates["SNIPS"]["low"]) == (None, None)
    assert "SNIPS,,,,," in as_csv(long_table(found)).splitlines()
    assert "| SNIPS | - | - | - |" in as_markdown(result_tables(found)[0])


def test_every_table_says_the_same(played: tuple[Result, list[Episode]]) -> None:
    result, _ = played
    estimated, studied, overlap = result_tables(result)
    assert f"exactly {result.truth:.4f} on all 45 questions of the fold" in estimated.title
    assert studied.title == "The same on 3 fresh logs"
    assert [row.cells[0] for row in estimated.rows] == [row.cells[0] for row in studied.rows]
    assert estimated.rows[0].group == "logged by uniform (400)"
    read = json.loads(as_json(result))
    assert read["overlap"]["effective"] == pytest.approx(overlap.rows[0].cells[1])
    assert read["provenance"] == SOURCE
    assert read["scores"][0]["bias"] == pytest.approx(studied.rows[0].cells[1])
    for table in (estimated, studied, overlap):
        assert as_latex(table).count(r"\begin{table}") == 1
    assert len(as_csv(long_table(result)).splitlines()) == 7


def test_too_few_to_estimate_from(tree: RouteTree, router: TrainedRouter) -> None:
    one = tree.select(np.array([0]))
    with pytest.raises(InputError, match="too few questions to estimate from: 1"):
        value_by_simulation(router, one, ALPHA, UNIFORM, SOURCE, episodes=10, seed=0)
