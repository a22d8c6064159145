"""Whether choices are the best as often as was said: plain loops, and a tree where it is known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.intervals import expanded_tail, interval
from hierrouter.evaluation.outcome import Actions
from hierrouter.evaluation.reliability import decisions, share_interval
from hierrouter.learning.config import Objective
from hierrouter.learning.training import Constant, train
from hierrouter.reports.evaluated import report_on
from hierrouter.reports.results import as_object
from hierrouter.reports.tables import named_tables
from hierrouter.reports.values import Bootstrap
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluation import enumeration as by_hand
from tests.hierrouter.evaluation.enumeration import Path, alphas, node, seeds, small_trees
from tests.hierrouter.evaluation.test_return import table_for, worth
from tests.hierrouter.learning.runs import EXACT_GLIMPSE, VALUE
from tests.hierrouter.trees import two_step_tree


@by_hand.unhurried
@given(small_trees, alphas, st.booleans(), st.booleans(), seeds)
def test_decisions_are_those_that_playing_every_choice_gives(
    tree: RouteTree, alpha: float, stop: bool, returns: bool, seed: int
) -> None:
    models = len(tree.models)
    table = table_for(tree, Actions(tree.routes, stop, returns), seed)
    calls = 2 * models if stop else models

    def follow(query: int, path: Path, action: int) -> tuple[float, Path | None]:
        """R of the episode if one goes on greedily, and the state after the action."""
        if action >= calls:
            return worth(tree, query, path, action - calls + 1, alpha), None
        longer = (*path, action % models)
        if action >= models or (len(longer) == tree.hops and not returns):
            return worth(tree, query, longer, len(longer), alpha), None
        return follow(query, longer, int(table[query, node(tree, longer)].argmax()))[0], longer

    expected = []
    for query in range(len(tree)):
        path: Path | None = ()
        while path is not None:
            row = table[query, node(tree, path)]
            played = {int(at): follow(query, path, int(at)) for at in np.flatnonzero(row)}
            reward, after = played[int(row.argmax())]
            if len(played) > 1:
                lost = max(one for one, _ in played.values()) - reward
                expected.append((query, row.max(), lost))
            path = after
    found = zip(*decisions(tree, Actions(tree.routes, stop, returns), table, alpha), strict=True)
    assert sorted(found) == sorted(expected)


def test_all_decisions_of_a_query_are_drawn_with_it() -> None:
    rng = np.random.default_rng(0)
    best = rng.random(40) < 0.7
    single = interval(best.astype(float), 500, rng=np.random.default_rng(1))
    for times in (1, 2):  # said twice it is no surer
        query = np.repeat(np.arange(7, 47), times)
        found = share_interval(query, best.repeat(times), 500, 0.95, np.random.default_rng(1))
        assert found == pytest.approx(single)
    query = np.arange(30).repeat(rng.integers(1, 4, 30))
    best = rng.random(len(query)) < rng.random(30)[query]
    each = [best[query == at] for at in range(30)]
    drawn = [np.concatenate([each[at] for at in rng.integers(0, 30, 30)]) for _ in range(4000)]
    tail = expanded_tail(30)
    expected = np.quantile([np.mean(one) for one in drawn], [tail, 1 - tail])
    found = share_interval(query, best, 4000, 0.95, rng)
    assert found == pytest.approx(expected, abs=0.02)


def test_a_report_shows_how_right_a_value_model_is_and_of_no_other_router() -> None:
    """Two questions: what comes first is certain, the second choice is right twice in three."""
    tree, free = two_step_tree(models=2, view="query"), Objective(0.0)
    trained, exact = (train(tree, free, config, 0) for config in (VALUE, EXACT_GLIMPSE))
    report = report_on(tree, 0.0, trained, None, {}, bootstrap=Bootstrap(n=500))
    second, first, together = report.reliability
    assert [(row.least, row.below, row.n) for row in report.reliability[::2]] == [
        (0.5, 0.7, 30),
        (0.9, None, 30),
    ]
    assert (second.said, second.best) == (pytest.approx(2 / 3, abs=0.06), pytest.approx(2 / 3))
    assert second.best_low < 0.55 and second.best_high > 0.75
    assert second.lost == pytest.approx(1)  # right or wrong; every call costs the same
    assert (first.n, first.best, first.lost, together.best_low) == (30, 1, None, 1)
    table = named_tables(report)["reliability"]
    assert "with 0.9 or more, 1.000 were [1.000, 1.000]" in table.note
    assert table.shown()[0][:2] == ["0.5 to 0.7", "30"]
    assert table.shown()[-1][-1] == "-"
    assert len(as_object(report)["analysis"]["reliability"]) == 3
    fixed = replace(trained, constant=Constant(3, 0.0, 0.0, 0.0, 0))
    for other, alpha in ((exact, 0.0), (fixed, 0.0), (trained, 0.1)):
        report = report_on(tree, alpha, other, None, {}, bootstrap=Bootstrap(n=50))
        assert report.reliability == () and "reliability" not in named_tables(report)
        assert as_object(report)["analysis"]["reliability"] == []
