"""A run that shows no gain is a constant choice, says so, and does no harm."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierrouter.evaluation.outcome import Actions, fixed_route
from hierrouter.learning.config import ExactConfig, Objective, TrainConfig
from hierrouter.learning.cross_fit import Repetition, sweep_with_fallback, with_fallback
from hierrouter.learning.router import MAX_QUERIES_NEEDED, Constant, TrainedRouter, training_queries
from hierrouter.learning.sweep import TrainedSweep, train_sweep
from hierrouter.learning.training import train
from hierrouter.runs.checkpoint import load_checkpoint, save_checkpoint
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.test_value import odd
from tests.hierrouter.learning.trainings import ALPHA, GRID, OBJECTIVE, VALUE, decided, digest
from tests.hierrouter.trees import planted_tree, random_tree

QUICK = ExactConfig(epochs=3, queries=8, steps=10, hidden=16)
each_way = pytest.mark.parametrize("config", [QUICK, VALUE], ids=["exact", "value"])
ANY = Constant(1, 0.0, 0.0, 0.0, 0)


def split(tree: RouteTree) -> RouteTree:
    """Three queries of five to train on, one to choose on, one to test."""
    folds = np.array(["train", "train", "train", "validation", "test"])
    return replace(tree, splits=tuple(folds[np.arange(len(tree)) % 5].tolist()), encoder="planted")


@pytest.fixture(scope="module")
def noise() -> RouteTree:
    """Nothing that is seen tells anything."""
    return split(random_tree(Layout.full(3, 2), 100, seed=3))


@pytest.mark.parametrize(("stop", "give"), [(True, False), (False, True), (True, True)])
def test_a_constant_choice_is_the_fixed_route(noise: RouteTree, stop: bool, give: bool) -> None:
    trained = train(noise, replace(OBJECTIVE, allow_stop=stop), replace(QUICK, epochs=1), 0)
    trained = replace(trained, objective=Objective(ALPHA, stop, allow_return=give))
    for node in range(1, noise.layout.nodes):
        found = replace(trained, constant=replace(ANY, node=node)).outcome(noise)
        expected = fixed_route(noise, node)
        np.testing.assert_array_equal(found.quality, expected.quality)
        np.testing.assert_array_equal(found.cost, expected.cost)
        table = replace(ANY, node=node).policy(trained.actions)
        assert (table.astype(bool) <= trained.actions.legal()).all()


def test_without_stop_it_ends_at_a_leaf(noise: RouteTree) -> None:
    actions = Actions(noise.layout)
    assert replace(ANY, node=5).policy(actions)[[0, 1]].argmax(axis=1).tolist() == [0, 1]


@each_way
def test_where_there_is_nothing_to_learn_it_is_a_constant(
    noise: RouteTree, config: TrainConfig
) -> None:
    learned = train(noise, OBJECTIVE, config, 0)
    found = with_fallback(learned, noise, Repetition())
    assert found.constant and found.constant.low <= 0
    assert replace(found, constant=None) == learned
    table = found.probabilities(noise.split("test"))
    assert (table == table[0]).all() and set(np.unique(table)) == {0, 1}
    live = np.zeros(noise.dim, dtype=np.float32)
    np.testing.assert_array_equal(decided(found, live, (), 0.0), table[0, 0])
    said = found.why_constant
    route = noise.layout.name(found.constant.node, noise.models)
    assert said.startswith(f"no gain is shown at alpha {ALPHA}: always {route}; the best")
    assert learned.why_constant == ""
    assert found.constant.judged == len(training_queries(noise))


@pytest.mark.parametrize(("needed", "judged"), [(2, 600), (600, 600), (601, 600), (787, 90)])
def test_no_fewer_questions_are_named_than_were_judged(
    noise: RouteTree, needed: int, judged: int
) -> None:
    constant = Constant(4, -0.002, -0.004, 0.001, needed, judged)
    said = constant.sentence(ALPHA, Actions(noise.layout), noise.models)
    [named] = re.findall(r"(\d+) questions could show a gain of 0.01$", said)
    assert int(named) == max(needed, judged)
    assert (" about " in said) == (needed > judged)


@pytest.mark.parametrize(
    "config", [ExactConfig(epochs=24, hidden=32), VALUE], ids=["exact", "value"]
)
def test_where_there_is_something_it_is_the_router(config: TrainConfig) -> None:
    tree = replace(planted_tree(per_family=(30, 15, 5), dim=32), encoder="planted")
    learned = train(tree, OBJECTIVE, config, 0)
    assert with_fallback(learned, tree) is learned


def test_who_wants_it_keeps_it(noise: RouteTree) -> None:
    kept = train(noise, OBJECTIVE, replace(QUICK, keep_anyway=True), 0)
    assert with_fallback(kept, noise) is kept


ODD = (
    *("one query", "fewer queries than positions", "constant scores", "free", "one model"),
    "prices apart by a million",
)


@each_way
@pytest.mark.parametrize("name", ODD)
def test_odd_trees_give_a_constant_choice_or_a_router_and_no_error(
    noise: RouteTree, name: str, config: TrainConfig
) -> None:
    tree = odd(noise)[name]
    found = with_fallback(train(tree, OBJECTIVE, config, 0), tree, Repetition())
    assert np.isfinite(found.outcome(tree).reward(ALPHA)).all()
    if name in ("one query", "constant scores", "one model"):
        assert found.constant and found.why_constant


def prices_matter(seed: int) -> RouteTree:
    """Nothing to learn, but dear routes are better: another fixed route at nearly every alpha."""
    tree = split(random_tree(Layout.full(3, 2), 60, seed))
    rank = tree.cost.mean(axis=0).argsort().argsort() / tree.layout.nodes
    noise = np.random.default_rng(seed).normal(0, 0.02, tree.score.shape)
    return replace(tree, score=(np.sqrt(rank) + noise).clip(0, 1))


def best_by_hand(tree: RouteTree, alpha: float, first: int) -> float:
    """The highest mean R of all fixed routes, one by one."""
    nodes = range(first, tree.layout.nodes)
    return max(float(np.mean(tree.score[:, n] - alpha * tree.cost[:, n])) for n in nodes)


@given(seed=st.integers(0, 50), stop=st.booleans(), algo=st.sampled_from(["exact", "value"]))
@settings(max_examples=8)
def test_between_the_alphas_of_a_grid_a_sweep_takes_the_best_route_there(
    seed: int, stop: bool, algo: str
) -> None:
    """On a dense line from below the grid to far above it; the grid has two alphas alone."""
    tree = prices_matter(seed)
    config = QUICK if algo == "exact" else VALUE
    objective = replace(OBJECTIVE, allow_stop=stop)
    swept = sweep_with_fallback(train_sweep(tree, (0.01, 1.0), objective, config, 0), tree)
    chooser = training_queries(tree)
    first = 1 if stop else tree.layout.inner
    line = (0.0, *np.geomspace(1e-4, 1e4, 80).tolist())
    assert swept.fixed
    for alpha in line:
        taken = swept.fixed.hull.best(alpha)
        reward = float(np.mean(chooser.score[:, taken] - alpha * chooser.cost[:, taken]))
        assert reward == pytest.approx(best_by_hand(chooser, alpha, first), abs=1e-9 * (1 + alpha))
        router = swept.at(alpha)
        judged = router.judging_fold(tree)
        own = router.outcome(judged).reward(alpha).mean()
        fixed = fixed_route(judged, taken).reward(alpha).mean()
        if router.constant:
            assert router.constant.node == taken
        assert own >= fixed - 1e-9  # a router that decides has shown a gain on these queries


def test_a_sweep_whose_routers_show_a_gain_decides_between_its_alphas_too() -> None:
    tree = replace(planted_tree(per_family=(30, 15, 5), dim=32), encoder="planted")
    swept = sweep_with_fallback(train_sweep(tree, (0.0, 0.05), OBJECTIVE, VALUE, 0), tree)
    assert swept.fixed is not None
    fold = swept.at(0.0).judging_fold(tree)
    routed = 0
    for alpha in np.linspace(0, 0.05, 30).tolist():
        router = swept.at(alpha)
        gain = replace(router, constant=None).outcome(fold).reward(alpha)
        gain = gain - fixed_route(fold, swept.fixed.hull.best(alpha)).reward(alpha)
        assert router.constant is None or gain.mean() < 0.05
        routed += router.constant is None
    assert routed > 20


def test_a_sweep_says_where_a_gain_was_measured(noise: RouteTree) -> None:
    swept = sweep_with_fallback(train_sweep(noise, GRID, OBJECTIVE, VALUE, 0), noise)
    assert len(swept.constants) == len(GRID)
    assert [swept.at(alpha).constant for alpha in GRID] == list(swept.constants)
    for alpha in (0.0042, 9.0, 1e6):
        constant = swept.at(alpha).constant
        assert constant and swept.fixed
        if constant.alpha is None:
            assert alpha in swept.fixed.alphas
            continue
        assert constant.alpha in swept.fixed.alphas
        sentence = swept.at(alpha).why_constant
        assert f"at alpha {alpha:g}: always" in sentence
        assert f" at alpha {constant.alpha:g}" in sentence.partition("always")[2]


def test_a_sweep_of_an_earlier_version_takes_the_choice_of_the_nearest_alpha(
    noise: RouteTree,
) -> None:
    swept = sweep_with_fallback(train_sweep(noise, GRID, OBJECTIVE, VALUE, 0), noise)
    constants = (replace(ANY, node=4), None, replace(ANY, node=6))
    old = replace(swept, constants=constants, fixed=None)
    routers = map(old.at, (0, ALPHA, 0.05, 0.04, 9.0))
    assert [router.constant and router.constant.node for router in routers] == [4, None, 6, 6, 6]
    assert old.at(ALPHA * 1.5).constant is None


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        (Constant(4, 0.0, 0.0, 0.0, 0, 30), "; the best router found does the same"),
        # The same loss on every question: no spread, and yet another policy.
        (Constant(4, -0.02, -0.02, -0.02, 0, 30), "; the best router found would be -0.0200"),
        (
            Constant(4, -5.0, -9.0, 1.0, MAX_QUERIES_NEEDED, 30),
            "; the best router found would be -5.0000 [-9.0000, +1.0000]; not even 10,000,000 "
            "questions could show a gain of 0.01",
        ),
        (
            Constant(4, -0.002, -0.004, 0.001, 787, 90, alpha=0.25),
            "; the best router found would be -0.0020 [-0.0040, +0.0010] at alpha 0.25; about 787 "
            "questions could show a gain of 0.01",
        ),
    ],
)
def test_the_reason_of_a_constant_choice_is_true(
    noise: RouteTree, constant: Constant, expected: str
) -> None:
    sentence = constant.sentence(0.3, Actions(noise.layout), noise.models)
    assert sentence.partition("always ")[2].partition(">")[2].partition(";")[1:] == (
        ";",
        expected[1:],
    )


@each_way
def test_a_checkpoint_keeps_it(noise: RouteTree, config: TrainConfig, tmp_path: Path) -> None:
    found = with_fallback(train(noise, OBJECTIVE, config, 0), noise)
    save_checkpoint(found, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, TrainedRouter) and loaded.constant == found.constant
    assert digest(loaded, tmp_path / "a") == digest(found, tmp_path / "b")
    swept = sweep_with_fallback(train_sweep(noise, GRID, OBJECTIVE, VALUE, 0), noise)
    save_checkpoint(swept, tmp_path)
    again = load_checkpoint(tmp_path)
    assert isinstance(again, TrainedSweep) and again.constants == swept.constants
    assert again.fixed == swept.fixed


@pytest.mark.parametrize("allow_stop", [False, True])
@pytest.mark.parametrize("allow_return", [False, True])
@pytest.mark.parametrize("draws", [1, 2])
def test_a_constant_route_is_legal_on_routes_of_unequal_length(
    allow_stop: bool, allow_return: bool, draws: int
) -> None:
    """Nothing follows action 1, and only action 1 follows action 0."""
    offers = {(): (0, 1), (0,): (1,)}
    layout = Layout.grown(2, lambda path: offers.get(path, ()), lambda action: draws)
    if draws > 1:  # nothing is offered after the second draw of action 0
        first = layout.node((0,))
        kept = (layout.parent != first + 1) | (layout.action != 1)
        number = np.cumsum(kept) - 1
        parent = np.append(-1, number[layout.parent[kept][1:]])
        layout, _ = Layout.sorted(2, parent, layout.action[kept], layout.draw[kept])
    if allow_return:
        layout = layout.with_returns
    actions = Actions(layout, allow_stop)
    legal = actions.legal()
    for node in range(1, layout.nodes):
        if not (allow_stop or allow_return) and layout.route[node] < layout.inner:
            continue  # no policy ends there
        policy = Constant(node, 0.0, 0.0, 0.0, 0).policy(actions)
        states = np.arange(actions.states)
        assert legal[states, policy.argmax(axis=1)].all()
        # Whatever draws come, it ends after the calls of the route, with its last answer.
        reached = [0]
        ends = []
        while reached:
            state = reached.pop()
            action = int(policy[state].argmax())
            if action >= actions.calls:
                ends.append((state, layout.path(state)))
                answers = layout.give_back[state]
                assert answers[action - actions.calls] == state
                continue
            called = action % 2
            for child in np.flatnonzero((layout.parent == state) & (layout.action == called)):
                is_over = action >= 2 or child >= actions.states
                if is_over:
                    ends.append((int(child), layout.path(int(child))))
                else:
                    reached.append(int(child))
        path = layout.path(node)
        # A leaf ends the episode also where other draws of its call go on.
        assert {end for _, end in ends} >= {path}
        assert all(end == path[: len(end)] for _, end in ends)
        assert all(end == path or state >= layout.inner for state, end in ends)
