"""The texts of answers are those of the cache, arm by arm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.engines.encoders import HashedNgrams
from hierrouter.learning.baselines.answers import WIDTH, load_answers
from hierrouter.learning.baselines.arms import Answers, Arms, macro_arms, single_models
from hierrouter.questions.answers import exact_match
from hierrouter.replay.inspection import ask_cache
from hierrouter.replay.opening import Selection, open_tree
from hierrouter_cache.errors import CacheError
from hierrouter_cache.tree import RouteTree

BOTH = ("A", "B")
Texts = dict[tuple[str, str, str], str]


@pytest.fixture(scope="module")
def texts(testbed_cache: Path) -> Texts:
    """Every response, by dataset, query and route."""
    rows = ask_cache(testbed_cache, "SELECT dataset, id, route, response FROM nodes").to_pylist()
    return {(row["dataset"], row["id"], row["route"]): row["response"] for row in rows}


def assert_they_are(answers: Answers, texts: Texts, arms: Arms, tree: RouteTree) -> None:
    queries = list(zip(tree.datasets, tree.query_ids, strict=True))
    for place, arm in enumerate(arms.names):
        said = [texts[(*query, arm)] for query in queries]
        found = answers.vectors[answers.row[:, place]]
        assert np.array_equal(found, HashedNgrams(WIDTH).encode(said))


def test_they_are_the_last_answer_of_every_arm(testbed_cache: Path, texts: Texts) -> None:
    tree = open_tree(testbed_cache)
    direct, routes = load_answers(testbed_cache, tree, BOTH).values()
    assert_they_are(direct, texts, single_models(tree), tree)
    assert_they_are(routes, texts, macro_arms(tree), tree)
    assert np.array_equal(routes.tokens, tree.tokens_out[:, tree.routes.leaves])
    assert np.array_equal(direct.tokens, tree.direct.tokens_out[:, :3])


def test_the_same_group_is_an_exact_match(testbed_cache: Path, texts: Texts) -> None:
    tree = open_tree(testbed_cache)
    routes = load_answers(testbed_cache, tree, ["B"])["B"]
    names = macro_arms(tree).names
    queries = list(zip(tree.datasets, tree.query_ids, strict=True))
    for row, query in enumerate(queries):
        said = [texts[(*query, arm)] for arm in names]
        same = [[exact_match(one, [other]) == 1 for other in said] for one in said]
        assert np.array_equal(routes.group[row][:, None] == routes.group[row], same)


def test_each_distinct_text_is_encoded_once(testbed_cache: Path, texts: Texts) -> None:
    tree = open_tree(testbed_cache)
    arms = {*single_models(tree).names, *macro_arms(tree).names}
    said = {text for (_, _, route), text in texts.items() if route in arms}
    assert len(load_answers(testbed_cache, tree, BOTH)["A"].vectors) == len(said)


@pytest.mark.parametrize(("name", "arms"), [("A", single_models), ("B", macro_arms)])
def test_one_set_reads_the_answers_of_its_own_arms_alone(
    testbed_cache: Path, texts: Texts, name: str, arms: Callable[[RouteTree], Arms]
) -> None:
    tree = open_tree(testbed_cache)
    found = load_answers(testbed_cache, tree, [name])
    names = arms(tree).names
    said = {text for (_, _, route), text in texts.items() if route in names}
    assert list(found) == [name]
    assert len(found[name].vectors) == len(said)
    assert_they_are(found[name], texts, arms(tree), tree)


def test_a_part_of_the_tree(testbed_cache: Path, texts: Texts) -> None:
    tree = open_tree(testbed_cache, Selection(models=("facts", "calc"))).split("test")
    direct, routes = load_answers(testbed_cache, tree, BOTH).values()
    assert routes.row.shape == (len(tree), 4)
    assert_they_are(direct, texts, single_models(tree), tree)
    assert_they_are(routes, texts, macro_arms(tree), tree)


def test_fewer_direct_calls_are_a_smaller_set(testbed_cache: Path, texts: Texts) -> None:
    tree = open_tree(testbed_cache)
    one = tree.direct.models.index("text")
    direct = replace(
        tree.direct,
        models=("text",),
        score=tree.direct.score[:, [one]],
        accuracy=tree.direct.accuracy[:, [one]],
        tokens_in=tree.direct.tokens_in[:, [one]],
        tokens_out=tree.direct.tokens_out[:, [one]],
        rate=tree.direct.rate[[one]],
    )
    fewer = replace(tree, direct=direct)
    answers, routes = load_answers(testbed_cache, fewer, BOTH).values()
    assert answers.row.shape == (len(tree), 1)
    assert_they_are(answers, texts, single_models(fewer), fewer)
    assert routes.row.shape == (len(tree), 9)


def test_the_tree_of_another_cache_is_refused(testbed_cache: Path) -> None:
    tree = open_tree(testbed_cache)
    strange = replace(tree, query_ids=("nobody", *tree.query_ids[1:]))
    with pytest.raises(CacheError, match=r"1 of \d+ queries are not in the cache"):
        load_answers(testbed_cache, strange, BOTH)


def test_selecting_queries_selects_their_answers(testbed_cache: Path) -> None:
    tree = open_tree(testbed_cache)
    rows = np.array([5, 2])
    whole = (
        macro_arms(tree, load_answers(testbed_cache, tree, ["B"])["B"]).select(rows).seen.answers
    )
    part = load_answers(testbed_cache, tree.select(rows), ["B"])["B"]
    assert whole is not None
    assert np.array_equal(whole.vectors[whole.row], part.vectors[part.row])
    assert np.array_equal(whole.tokens, part.tokens)
