"""The texts of answers are those of the cache, arm by arm; a scorer learns from them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.engines.encoders import HashedNgrams
from hierrouter.learning.baselines.answers import ANSWER_DIM, AnswerScorer, fit_scorer, load_answers
from hierrouter.learning.baselines.arms import Answers, Arms, macro_arms, single_models
from hierrouter.questions.answers import exact_match
from hierrouter.replay.inspection import ask_cache
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.errors import CacheError
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.baselines.known import answered, folds

BOTH = ("A", "B")
Texts = dict[tuple[str, str, str], str]


@pytest.fixture(scope="module")
def texts(testbed_cache: Path) -> Texts:
    """Every response, by dataset, query and route."""
    rows = ask_cache(testbed_cache, "SELECT dataset, id, route, response FROM nodes").to_pylist()
    return {(row["dataset"], row["id"], row["route"]): row["response"] for row in rows}


@pytest.fixture(scope="module")
def tree(testbed_cache: Path) -> RouteTree:
    return OpenTree(cache=testbed_cache).run()


def assert_they_are(answers: Answers, texts: Texts, arms: Arms, tree: RouteTree) -> None:
    queries = list(zip(tree.datasets, tree.query_ids, strict=True))
    for place, arm in enumerate(arms.names):
        said = [texts[(*query, arm)] for query in queries]
        found = answers.vectors[answers.row[:, place]]
        assert np.array_equal(found, HashedNgrams(ANSWER_DIM).encode(said))


def test_they_are_each_arms_last_answer(testbed_cache: Path, texts: Texts, tree: RouteTree) -> None:
    """Also of a part of the tree; a text is encoded once, and a set reads its own arms alone."""
    for part in (tree, OpenTree(cache=testbed_cache, models=("facts", "calc")).run().split("test")):
        direct, routes = load_answers(testbed_cache, part, BOTH).values()
        assert_they_are(direct, texts, single_models(part), part)
        assert_they_are(routes, texts, macro_arms(part), part)
        assert np.array_equal(routes.tokens, part.tokens_out[:, part.layout.leaves])
        assert np.array_equal(direct.tokens, part.direct.tokens_out[:, : len(part.models)])
    names = {"A": set(single_models(tree).names), "B": set(macro_arms(tree).names)}
    for sets in (["A"], ["B"], BOTH):
        answers = load_answers(testbed_cache, tree, sets)[sets[0]]
        arms = set[str]().union(*(names[name] for name in sets))
        said = {text for (_, _, route), text in texts.items() if route in arms}
        assert len(answers.vectors) == len(said)


def test_a_group_is_an_exact_match(testbed_cache: Path, texts: Texts, tree: RouteTree) -> None:
    routes = load_answers(testbed_cache, tree, ["B"])["B"]
    names = macro_arms(tree).names
    for row, query in enumerate(zip(tree.datasets, tree.query_ids, strict=True)):
        said = [texts[(*query, arm)] for arm in names]
        same = [[exact_match(one, [other]) == 1 for other in said] for one in said]
        assert np.array_equal(routes.group[row][:, None] == routes.group[row], same)


def test_the_tree_of_another_cache_is_refused(testbed_cache: Path, tree: RouteTree) -> None:
    strange = replace(tree, query_ids=("nobody", *tree.query_ids[1:]))
    with pytest.raises(CacheError, match=r"1 of \d+ queries are not in the cache"):
        load_answers(testbed_cache, strange, BOTH)


QUERIES = 400
COST = np.ones(3)
NONE = np.zeros(3, bool)


def scores(scorer: AnswerScorer, arms: Arms, arm: int, read: np.ndarray) -> np.ndarray:
    return scorer.for_queries(arms.seen).score(
        np.arange(len(arms)), np.full(len(arms), arm), np.tile(read, (len(arms), 1))
    )


def scorer_of(arms: Arms) -> tuple[AnswerScorer, Arms]:
    train, _, test = folds(arms)
    return fit_scorer(train, np.random.default_rng(0)), test


def drawn(share: float = 0.5) -> np.ndarray:
    return np.random.default_rng(1).random((QUERIES, 3)) < share


def test_words_tell_right_from_wrong() -> None:
    scorer, test = scorer_of(answered(drawn(), COST, looks=drawn()))
    for arm in range(3):
        assert np.abs(scores(scorer, test, arm, NONE) - test.quality[:, arm]).max() < 0.1


def test_who_agrees_is_right() -> None:
    """Right answers are equal, wrong ones all differ: the more agree, the better."""
    right = drawn(0.6)
    says = np.where(right, -1, np.arange(QUERIES * 3).reshape(QUERIES, 3))
    scorer, test = scorer_of(answered(right, COST, says=says))
    alone = scores(scorer, test, 0, np.array([True, False, False]))
    after = scores(scorer, test, 0, np.array([True, True, True]))
    agreed = (test.seen.answers.group[:, 1:] == test.seen.answers.group[:, :1]).any(axis=1)
    assert after[agreed].mean() > 0.9
    assert after[~agreed].mean() < alone.mean() - 0.1
    assert abs(alone.mean() - 0.6) < 0.1


def test_nothing_is_learned_where_nothing_can_be() -> None:
    scorer, test = scorer_of(answered(drawn(0.3), COST))
    assert abs(scores(scorer, test, 0, NONE).mean() - 0.3) < 0.1
    scorer, test = scorer_of(answered(np.full((80, 3), 0.25), COST))
    assert scores(scorer, test, 1, NONE) == pytest.approx(0.25)
