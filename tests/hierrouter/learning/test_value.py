"""The value model: what it expects of queries it has seen and has not, and of odd trees."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq

from hierrouter.evaluation.bounds import REWARD_ROUNDING, best_fixed_route, oracle
from hierrouter.evaluation.outcome import Actions, LegalActions, reach_probability
from hierrouter.learning import regression, value
from hierrouter.learning.config import ExactConfig, Objective, RidgeConfig, TrainConfig, ValueConfig
from hierrouter.learning.router import StateBatch, TrainedRouter, training_queries
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.learning.training import train
from hierrouter.learning.value import ValueModel, ValueRouter, fit
from hierrouter.replay.opening import LEARNED_FROM
from hierrouter.runs.checkpoint import load_checkpoint, save_checkpoint
from hierrouter_cache.layout import NEWEST, Layout
from hierrouter_cache.tree import Rate, RouteTree, reprice
from tests.hierrouter.learning.trainings import ALPHA, GRID, OBJECTIVE, VALUE, digest, small_tree
from tests.hierrouter.trees import (
    FOLDS,
    one_part,
    planted_tree,
    ragged_tree,
    random_tree,
    showing_leaves,
    two_step_tree,
)

Floats = NDArray[np.float64]
OTHER = "f" * 32  # the content of a tree that nobody learned from
MAY = {
    "calls": OBJECTIVE,
    "stop": replace(OBJECTIVE, allow_stop=True),
    "return": replace(OBJECTIVE, allow_return=True),
    "both": Objective(ALPHA, allow_stop=True, allow_return=True),
}


def random(models: int, hops: int) -> RouteTree:
    """A tree of noise, in folds of ten queries."""
    return replace(random_tree(Layout.full(models, hops), 30, seed=0), splits=FOLDS * 10)


def with_numbers(tree: RouteTree) -> RouteTree:
    """The same, and three numbers: any, one that is never there, and one that answers have."""
    numbers = np.random.default_rng(0).normal(size=(*tree.parts[0].row.shape, 3))
    numbers[:, :, 1], numbers[:, 0, 2] = 0, 0
    [part] = one_part(numbers)
    return replace(tree, parts=(*tree.parts, replace(part, is_text=False)))


@pytest.fixture(scope="module")
def tree() -> RouteTree:
    return small_tree()


@pytest.fixture(scope="module")
def model(tree: RouteTree) -> ValueModel:
    return fit(tree, GRID, OBJECTIVE, VALUE)


def followed(tree: RouteTree, predicted: Floats, state: int, alpha: float) -> Floats:
    """float64[n, M, 3]: Q, C and "is the best" of each call at a state of two hops.

    After the call the best expected action is taken. `predicted`: float32[n, S, A, 3], what is
    expected at each state.
    """
    routes, rows = tree.layout, np.arange(len(tree))[:, None]
    node = np.tile(routes.child(state, np.arange(routes.call_actions)), (len(tree), 1))
    if not state:
        node = routes.child(node, (predicted[rows, node] @ (1, -alpha, 0)).argmax(axis=2))
    quality = tree.score[rows, node]
    cost = tree.cost[rows, node] - tree.cost[:, [state]]
    reward = quality - alpha * cost
    is_best = reward >= reward.max(axis=1, keepdims=True) - REWARD_ROUNDING
    return np.stack([quality, cost, is_best], axis=2)


def regressed(alike: Floats, wanted: Floats, ridge: float, row: int) -> Floats:
    """Kernel ridge regression with a free constant, from all rows but one, at that one."""
    others = np.delete(np.arange(len(alike)), row)
    system = np.ones((len(alike), len(alike)))
    system[:-1, :-1] = alike[np.ix_(others, others)] + ridge * np.eye(len(others))
    system[-1, -1] = 0
    found = np.linalg.solve(system, np.vstack([wanted[others], np.zeros(wanted.shape[1])]))
    predicted: Floats = alike[row, others] @ found[:-1] + found[-1]
    return predicted


def ridge_of(alike: Floats, leverage: Floats) -> float:
    """The ridge at which the rows have these leverages, by their sum."""
    centring = np.eye(len(alike)) - 1 / len(alike)
    size = np.linalg.eigvalsh(centring @ alike @ centring).clip(min=0)

    def excess(ridge: float) -> float:
        return float((size / (size + ridge)).sum() + 1 - leverage.sum())

    return float(brentq(excess, 1e-6, 1e6, rtol=1e-12))


def test_a_learned_query_is_expected_what_a_regression_without_it_expects(
    tree: RouteTree, model: ValueModel
) -> None:
    fold = training_queries(tree)
    held_out, plain = map(model.predictions, (fold, replace(fold, content=OTHER)))
    for state, position in enumerate(model.positions):
        vectors = fold.embedding_at(np.arange(len(fold)), np.full(len(fold), state))
        cost = fold.cost[:, [state]].astype(np.float32)
        inputs = position.inputs(model.texts[0](vectors), cost)
        alike = inputs.similarity(inputs, int(position.kernel[0]))
        ridge = ridge_of(alike, position.leverage.astype(float))
        for knot, alpha in enumerate(model.knots):
            wanted = followed(fold, held_out[:, :, :, knot], state, alpha).reshape(len(fold), -1)
            expected = [regressed(alike, wanted, ridge, row) for row in range(len(fold))]
            found = held_out[:, state, :, knot].reshape(len(fold), -1)
            np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.abs(held_out - plain).max(axis=(0, 2, 3, 4)).min() > 0.1  # at each state


def differ(one: NDArray[np.float32], other: NDArray[np.float32]) -> list[bool]:
    """Of each query, whether what is expected differs by more than rounding."""
    return (np.abs(one - other).max(axis=(1, 2, 3, 4)) > 1e-3).tolist()


def test_only_what_was_learned_is_expected_without_itself(
    tree: RouteTree, model: ValueModel
) -> None:
    plain = model.predictions(replace(tree, content=OTHER))
    is_learned = np.isin(tree.splits, LEARNED_FROM)
    assert differ(model.predictions(tree), plain) == is_learned.tolist()
    elsewhere = replace(tree, datasets=("elsewhere",) * len(tree))
    renamed = replace(tree, query_ids=tuple(f"x{at}" for at in range(len(tree))))
    for other in (elsewhere, renamed):
        assert not any(differ(model.predictions(other), plain))


@pytest.mark.parametrize("factor", [1.05, 0.1, 20.0])
def test_under_other_prices_a_learned_query_is_expected_what_it_was(
    tree: RouteTree, model: ValueModel, factor: float
) -> None:
    priced = zip(tree.direct.models, factor * tree.direct.rate, strict=True)
    other = reprice(tree, {name: Rate(*rate) for name, rate in priced})
    before, found = model.predictions(tree), model.predictions(other)
    is_new = ~np.isin(tree.splits, LEARNED_FROM)
    np.testing.assert_array_equal(found[~is_new], before[~is_new])
    assert any(differ(found[is_new], before[is_new]))  # it has cost another sum so far
    assert np.abs(found[is_new]).max() < 2 * np.abs(before[is_new]).max()


def test_of_too_many_queries_some_are_learned_and_the_others_are_new(tree: RouteTree) -> None:
    model = fit(tree, GRID, OBJECTIVE, replace(VALUE, queries=10))
    plain = model.predictions(replace(tree, content=OTHER))
    is_learned = differ(model.predictions(tree), plain)
    assert len(model.learned) == sum(is_learned) == 10
    assert set(np.array(tree.splits)[is_learned]) == {"train", "validation"}


def test_a_query_is_expected_the_same_in_whatever_company(
    tree: RouteTree, model: ValueModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = model.predictions(tree)
    order = np.random.default_rng(0).permutation(len(tree))
    np.testing.assert_allclose(model.predictions(tree.select(order)), whole[order], atol=1e-4)
    one = [model.predictions(tree.select(np.array([row]))) for row in range(len(tree))]
    np.testing.assert_allclose(np.concatenate(one), whole, atol=1e-4)
    router = ValueRouter(model, 0.03)
    expected = router.rewards(tree)
    monkeypatch.setattr(
        value, "MAX_CACHED_NUMBERS", 5 * whole[0].size
    )  # as if the tree were a great one
    fresh = ValueRouter(replace(model), 0.03)
    np.testing.assert_allclose(fresh.rewards(tree), expected, atol=1e-4)


def test_queries_of_two_datasets_may_have_the_same_ids(tree: RouteTree) -> None:
    each = len(tree) // 5  # of a family
    named = replace(tree, query_ids=tuple(str(row % each) for row in range(len(tree))))
    model = fit(named, GRID, OBJECTIVE, VALUE)
    whole = model.predictions(named)
    for rows in np.arange(len(tree)).reshape(5, each):
        np.testing.assert_allclose(model.predictions(named.select(rows)), whole[rows], atol=1e-4)


def test_the_order_of_the_queries_changes_no_byte(tree: RouteTree, tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(len(tree))
    shuffled = train(tree.select(order), OBJECTIVE, VALUE, 0)
    assert digest(shuffled, tmp_path / "a") == digest(
        train(tree, OBJECTIVE, VALUE, 0), tmp_path / "b"
    )


def test_who_waits_is_told_of_each_state(tree: RouteTree) -> None:
    told: list[tuple[int, int]] = []
    train(tree, OBJECTIVE, VALUE, 0, lambda *said: told.append(said[:2]))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def odd(tree: RouteTree) -> dict[str, RouteTree]:
    """Trees at which a statistic could break."""
    learned, [part] = training_queries(tree), tree.parts
    alike = replace(part, vectors=np.ones_like(part.vectors))
    absent = replace(part, vectors=np.zeros_like(part.vectors), is_text=False)
    return {
        "one query": learned.select(np.arange(1)),
        "two queries": learned.select(np.arange(2)),
        "fewer queries than positions": learned.select(np.arange(3)),
        "the same query again and again": learned.select(np.zeros(20, dtype=int)),
        "constant scores": replace(tree, score=np.full_like(tree.score, 0.5)),
        "no right answer": replace(tree, score=np.zeros_like(tree.score)),
        "free": replace(tree, rate=np.zeros_like(tree.rate)),
        "a free model": replace(tree, rate=tree.rate * [[0], [1], [1]]),
        "dear": replace(tree, rate=tree.rate * 1e6),
        "prices apart by a million": replace(tree, rate=tree.rate * [[1e-6], [1], [1]]),
        "texts all alike": replace(tree, parts=(alike,)),
        "numbers that are never there": replace(tree, parts=(part, absent)),
        "no text": replace(tree, parts=()),
        "one model": random(1, 2),
        "one model and one hop": random(1, 1),
    }


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("name", odd(small_tree()))
def test_odd_trees_give_chances_all_the_same(tree: RouteTree, name: str, stop: bool) -> None:
    given = odd(tree)[name]
    model = fit(given, GRID, Objective(0.0, allow_stop=stop), VALUE)
    for alpha, content in itertools.product((0.0, ALPHA, 1e9), (given.content, OTHER)):
        chances = ValueRouter(model, alpha).probabilities(replace(given, content=content))
        assert np.isfinite(chances).all() and (chances >= 0).all()
        np.testing.assert_allclose(chances.sum(axis=2), 1)
        assert not chances[:, ~model.actions.legal()].any()


def test_either_fold_is_enough(tree: RouteTree) -> None:
    assert len(fit(tree.split("validation"), GRID, OBJECTIVE, VALUE).learned) == 15


SEEN: dict[str, Callable[[], RouteTree]] = {
    "a text": lambda: showing_leaves(small_tree()),
    "a text and numbers": lambda: with_numbers(showing_leaves(small_tree())),
    "two texts": lambda: showing_leaves(two_step_tree(view="query+answer", copies=(1, 1, 1))),
    "nothing": lambda: two_step_tree(view="stage", copies=(1, 1, 1)),
    "three hops": lambda: showing_leaves(random(2, 3)),
}


@pytest.mark.parametrize("objective", MAY.values(), ids=MAY)
@pytest.mark.parametrize("made", SEEN.values(), ids=SEEN)
def test_a_live_state_gets_the_chances_of_the_fold(
    made: Callable[[], RouteTree], objective: Objective
) -> None:
    tree = made()
    router = train(tree, objective, VALUE, 0).router
    assert isinstance(router, ValueRouter) and router.model.dim == tree.dim
    fold = tree.split("test")
    chances = router.probabilities(fold)
    query, node = (each.ravel() for each in np.indices(chances.shape[:2]))
    vectors = fold.embedding_at(query, node)
    states = StateBatch(vectors, node, fold.cost[query, node], ("",) * len(node), vectors)
    live = router.live_probabilities(states)
    np.testing.assert_allclose(live, chances[query, node], atol=1e-5)
    assert not chances[:, ~router.model.actions.legal()].any()
    np.testing.assert_allclose(chances.sum(axis=2), 1)


def test_many_queries_that_only_numbers_tell_apart_are_learned() -> None:
    """More than landmarks, and alike: where rounding decides whether a kernel is positive."""
    noise = random_tree(Layout.full(3, 2), 900, seed=0)
    tree = replace(noise, splits=FOLDS * 300, parts=())
    found = ValueRouter(fit(tree, GRID, OBJECTIVE, ValueConfig()), ALPHA).probabilities(tree)
    np.testing.assert_allclose(found.sum(axis=2), 1)


def test_a_number_that_was_never_there_is_not_looked_at() -> None:
    tree = with_numbers(small_tree())
    trained, (text, numbers) = train(tree, OBJECTIVE, VALUE, 0), tree.parts
    assert [trained.router.has_learned(number) for number in range(3)] == [True, False, True]

    def decided(shift: list[float]) -> NDArray[np.float64]:
        shifted = replace(numbers, vectors=numbers.vectors + np.float32(shift))
        return trained.probabilities(replace(tree, parts=(text, shifted), content=str(shift)))

    plain = decided([0, 0, 0])
    np.testing.assert_array_equal(decided([0, 9, 0]), plain)
    for seen in ([9, 0, 0], [0, 0, 9]):
        assert np.abs(decided(seen) - plain).max() > 0.1


def test_between_knots_values_are_too_and_beyond_the_last_one_its_own(
    tree: RouteTree, model: ValueModel
) -> None:
    predicted, last = model.predictions(tree), model.knots[-1]
    assert model.knots[0] == 0 and set(GRID) <= set(model.knots)
    for place, knot in enumerate(model.knots):
        np.testing.assert_array_equal(model.interpolate(predicted, knot), predicted[..., place, :])
        temperature = [at.temperature[place] for at in model.positions]
        np.testing.assert_allclose(model.temperatures(knot), temperature)
    for place, (low, high) in enumerate(itertools.pairwise(model.knots)):
        between, ends = (low + high) / 2, (predicted[..., place, :], predicted[..., place + 1, :])
        np.testing.assert_allclose(model.interpolate(predicted, between), sum(ends) / 2, atol=1e-5)
        squared = model.temperatures(low) * model.temperatures(high)
        np.testing.assert_allclose(model.temperatures(between), np.sqrt(squared), rtol=1e-6)
    for alpha in (1.01 * last, 1e9):
        np.testing.assert_array_equal(model.interpolate(predicted, alpha), predicted[..., -1, :])
        np.testing.assert_array_equal(model.temperatures(alpha), model.temperatures(last))


def test_more_landmarks_than_queries_are_all_and_fewer_expect_nearly_the_same() -> None:
    tree = planted_tree(per_family=(30, 10, 20), dim=16, luck=0.0, noise=0.3)
    fold, count = tree.split("test"), len(training_queries(tree))
    whole, more, few = (
        train(tree, OBJECTIVE, replace(VALUE, landmarks=landmarks), 0)
        for landmarks in (count, 10 * count, count // 4)
    )
    models = [each.router.model for each in (whole, more, few)]
    exact, same, near = (each.predictions(fold) for each in models)
    np.testing.assert_array_equal(same, exact)
    assert [len(each.positions[0].weight) for each in models] == [count, count, count // 4]
    for each in range(2):  # of Q and C, beside how far these differ at all
        assert (near - exact)[..., each].std() < 0.2 * exact[..., each].std()
    reached = [each.outcome(fold).reward(ALPHA).mean() for each in (whole, few)]
    assert reached[1] == pytest.approx(reached[0], abs=0.01)


@pytest.mark.parametrize("objective", MAY.values(), ids=MAY)
def test_of_equally_good_answers_it_takes_the_cheapest(objective: Objective) -> None:
    """On queries that it learned from, on new ones, and live."""
    tree = showing_leaves(small_tree())
    tree = replace(tree, score=np.full_like(tree.score, 0.5))
    trained = train(tree, replace(objective, alpha=0.1), VALUE, 0)
    cheapest = 1 if objective.ends_early else tree.layout.node((0,) * tree.hops)
    for fold in FOLDS:
        queries = tree.split(fold)
        np.testing.assert_allclose(trained.outcome(queries).cost, queries.cost[:, cheapest])
    root = tree.embedding_at(np.arange(len(tree)), np.zeros(len(tree), dtype=np.int64))
    states = trained.live_states(root, [()] * len(tree), [0.0] * len(tree))
    live = trained.decide_each(states)
    assert set(live.argmax(axis=1) % len(tree.models)) == {0}


@pytest.mark.parametrize("alpha", [0.0, ALPHA, 0.03, 0.1])
def test_where_the_text_tells_the_best_route_it_is_nearly_the_oracle(
    planted: RouteTree, every_alpha: TrainedSweep, alpha: float
) -> None:
    fold, router = planted.split("test"), every_alpha.at(alpha)
    fixed = best_fixed_route(planted.split("train"), alpha, fold).reward(alpha).mean()
    bound = oracle(fold, alpha).reward(alpha).mean()
    reached = router.outcome(fold).reward(alpha).mean()
    assert bound - fixed > 0.3 and reached > bound - 0.03 * (bound - fixed)
    # It is judged on the queries it learned from, on each as if it had not learned from it.
    judging = router.judging_fold(planted)
    assert len(judging) == 400 and router.holds_out
    bound = oracle(judging, alpha).reward(alpha).mean()
    gap = bound - router.outcome(judging).reward(alpha).mean()
    assert 0 < gap < 0.05


# Several draws of a call.


def lucky_tree(questions: int = 60) -> RouteTree:
    """One hop, two actions: the first draw of action 0 is always right, the second always wrong.

    Action 1 has the same two draws, of .7 both. A learner that looks at first draws alone takes
    action 0.
    """
    layout = Layout.grown(2, lambda path: () if path else (0, 1), lambda action: 2)
    tree = random_tree(layout, questions, seed=0)
    luck = np.where(layout.draw[1:] == 0, 1.0, 0.0)
    score = np.zeros(tree.score.shape)
    score[:, 1:] = np.where(layout.action[1:] == 0, luck, 0.7)
    weight = np.full(score.shape, 0.5)
    weight[:, 0] = 1.0
    splits = ("train",) * (questions // 2) + ("test",) * (questions - questions // 2)
    zeros = np.zeros_like(tree.tokens_in)
    return replace(
        tree,
        score=score,
        accuracy=score,
        tokens_in=zeros,
        tokens_out=zeros,
        weight=weight,
        splits=splits,
    )


def test_an_action_is_worth_the_mean_of_its_draws() -> None:
    tree = lucky_tree()
    trained = train(tree, Objective(0.0), VALUE, seed=0)
    for fold in ("train", "test"):
        outcome = trained.outcome(tree.split(fold))
        np.testing.assert_allclose(outcome.quality, 0.7)


# Trees whose questions lack nodes.


def ragged_folds(seed: int, layout: Layout | None = None, unjudged: float = 0.0) -> RouteTree:
    """Roles with several draws and holes: 90 questions to learn from and 30 others."""
    roles = [(0,), (0, 1, 2), (1, 2)]
    layout = layout or Layout.grown(
        3, lambda path: roles[len(path)] if len(path) < 3 else (), lambda action: 1 + action
    )
    tree = ragged_tree(layout, 120, seed, unjudged=unjudged)
    return replace(tree, splits=("train",) * 60 + ("validation",) * 30 + ("test",) * 30)


def enumerated(tree: RouteTree, choice: dict[tuple[int, int], int], alpha: float) -> list[float]:
    """R of each question under a choice by question and node, by recursion over its own calls."""
    layout = tree.layout
    assert tree.weight is not None
    calls = layout.call_actions

    def result(query: int, node: int) -> float:
        reward = float(tree.score[query, node] - alpha * tree.cost[query, node])
        if node >= layout.inner or (query, node) not in choice:
            return reward
        action = choice[query, node]
        if action >= 2 * calls:
            return reward
        total = 0.0
        for child in np.flatnonzero(layout.parent == node).tolist():
            share = float(tree.weight[query, child])
            if layout.action[child] == action % calls and share:
                ended = float(tree.score[query, child] - alpha * tree.cost[query, child])
                total += share * (ended if action >= calls else result(query, child))
        return total

    return [result(query, 0) for query in range(len(tree))]


@pytest.mark.parametrize("config", [VALUE, ExactConfig(epochs=2, hidden=8)], ids=["value", "exact"])
@pytest.mark.parametrize("unjudged", [0.0, 0.3])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_router_on_holes_takes_what_is_offered_and_is_worth_what_an_enumeration_says(
    config: TrainConfig, unjudged: float, seed: int
) -> None:
    tree = ragged_folds(seed, unjudged=unjudged)
    tree = tree.with_layout(tree.layout.with_give_backs((NEWEST,)))
    trained = train(tree, Objective(ALPHA, allow_stop=True), config, seed=0)
    table = trained.probabilities(tree)
    legal = LegalActions.of(tree, trained.actions).table
    assert not table[~legal & legal.any(axis=2, keepdims=True)].any()
    np.testing.assert_allclose(table.sum(axis=2), 1.0)
    assert tree.weight is not None
    choice = {}
    prices = [*tree.base_rate, *tree.base_rate, -1.0]
    for query, node in np.argwhere(tree.weight[:, : tree.layout.inner] > 0).tolist():
        offered = np.flatnonzero(legal[query, node]).tolist()
        if offered:
            best = table[query, node].max()
            likeliest = [action for action in offered if table[query, node, action] == best]
            # Of equal ones the cheapest, then a stop, then the lower number.
            choice[query, node] = min(
                likeliest, key=lambda action: (prices[action], action < 3, action)
            )
    expected = enumerated(tree, choice, ALPHA)
    outcome = trained.outcome(tree)
    np.testing.assert_allclose(outcome.reward(ALPHA), expected, atol=1e-9)


def test_a_log_that_shows_what_pays_is_learned() -> None:
    """What the first response shows decides which critic is right; some questions lack one."""
    tree = ragged_folds(3)
    layout = tree.layout
    assert tree.weight is not None
    shown = np.random.default_rng(0).integers(0, 2, tree.score.shape)
    score = np.zeros(tree.score.shape)
    for node in range(1, layout.nodes):
        parent = int(layout.parent[node])
        before = int(layout.parent[parent])
        if before > 0 or (parent > 0 and before == 0):
            state = before if before > 0 else parent
            critic = layout.action[parent] if before > 0 else layout.action[node]
            score[:, node] = critic == 1 + shown[:, state]
    score = np.where(tree.weight > 0, score, 0.0)
    vectors = np.eye(2)[shown[:, : layout.inner]]
    tree = replace(tree, score=score, accuracy=score, parts=one_part(vectors))
    objective = Objective(0.0)
    bound = oracle(tree.split("test"), 0.0).reward(0.0).mean()
    blind = train(replace(tree, parts=one_part(vectors * 0)), objective, VALUE, seed=0)
    reward = train(tree, objective, VALUE, seed=0).outcome(tree.split("test")).reward(0.0).mean()
    assert blind.outcome(tree.split("test")).reward(0.0).mean() < bound - 0.1
    assert reward > bound - 0.05


def test_routes_of_few_questions_share_a_regression() -> None:
    layout = Layout.grown(3, lambda path: range(3) if len(path) < 3 else (), lambda _: 2)
    tree = ragged_tree(layout, 30, 0, missing=0.6)
    actions = Actions(tree.layout)
    number = value._regression_numbers(tree, actions)
    assert tree.weight is not None
    for node in range(layout.inner):
        same = np.flatnonzero(number == number[node])
        assert set(layout.depth()[same]) == {layout.depth()[node]}
        # All draws of a route are together.
        assert set(np.flatnonzero(layout.route[: layout.inner] == layout.route[node])) <= set(same)
        routes = set(layout.route[same].tolist())
        for route in routes if len(routes) > 1 else ():
            nodes = np.flatnonzero(layout.route == route)
            queries = (reach_probability(tree)[:, nodes] > 0).any(axis=1).sum()
            assert queries < value.MIN_ROUTE_QUERIES
    assert len(set(number.tolist())) < len(set(layout.route[: layout.inner].tolist()))


def test_a_row_without_its_query_is_predicted_by_a_fit_on_the_other_queries() -> None:
    rng = np.random.default_rng(0)
    query = np.repeat(np.arange(12), [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3])
    inputs = regression.KernelInputs(
        rng.normal(size=(24, 3)).astype(np.float32), np.empty((24, 0), np.float32)
    )
    weights = rng.uniform(0.2, 1.0, 24)
    outputs = rng.normal(size=(24, 2))
    landmarks = inputs.select(np.arange(0, 24, 3))
    groups = regression.RowGroups(query, weights)
    grouped = regression._GroupedRegression(inputs, 0, landmarks, groups)
    _, _, fitted = grouped.fit(outputs, 0.3)
    without = grouped.without_self(outputs, fitted, 0.3)
    for left_out in range(12):
        others = np.flatnonzero(query != left_out)
        rest = regression._GroupedRegression(
            inputs.select(others),
            0,
            landmarks,
            regression.RowGroups(query[others], weights[others]),
        )
        slopes, constant, _ = rest.fit(outputs[others], 0.3)
        own = np.flatnonzero(query == left_out)
        expected = inputs.select(own).similarity(landmarks, 0) @ slopes + constant
        np.testing.assert_allclose(without[own], expected, atol=1e-3)


@pytest.mark.parametrize("few", [1, 2, 3])
def test_a_log_of_few_questions_is_learned(few: int) -> None:
    tree = ragged_folds(0)
    splits = ("train",) * few + ("test",) * (120 - few)
    trained = train(replace(tree, splits=splits), Objective(0.01), VALUE, seed=0)
    outcome = trained.outcome(tree)
    assert np.isfinite(outcome.reward(0.01)).all()
    legal = LegalActions.of(tree, trained.actions).table
    assert not trained.probabilities(tree)[~legal & legal.any(axis=2, keepdims=True)].any()


@pytest.mark.parametrize("returns", [False, True])
def test_a_model_of_routes_is_stored(tmp_path: Path, returns: bool) -> None:
    tree = ragged_folds(1)
    vectors = np.random.default_rng(0).normal(size=(len(tree), tree.layout.nodes, 4))
    tree = replace(tree, parts=one_part(vectors))
    trained = train(tree, Objective(ALPHA, allow_return=returns), VALUE, seed=0)
    save_checkpoint(trained, tmp_path)
    loaded = load_checkpoint(tmp_path)
    np.testing.assert_array_equal(loaded.probabilities(tree), trained.probabilities(tree))
    # A live state has the chances of the fold.
    test = tree.split("test")
    roots = test.embedding_at(np.arange(30), np.zeros(30, int))
    live = loaded.decide_each(loaded.live_states(roots, [()] * 30, [0] * 30))
    legal = LegalActions.of(trained.objective.view(test), trained.actions).at(
        np.arange(30), np.zeros(30, int)
    )
    complete = legal.all(axis=1) | (legal == loaded.actions.legal()[0]).all(axis=1)
    np.testing.assert_allclose(live[complete], trained.probabilities(test)[complete, 0], atol=1e-5)


def test_damaged_models_of_routes_are_refused() -> None:
    model = fit(ragged_folds(0), [ALPHA], MAY["stop"], VALUE)
    assert model.number is not None
    first = model.positions[0]
    assert isinstance(first, value.RouteRegression)
    rest = model.positions[1:]
    damages = [
        {"number": model.number[:-1]},
        {"number": model.number + 1},
        {"positions": rest},
        {"positions": (replace(first, owner=first.owner[::-1]), *rest)},
        {"positions": (replace(first, owner=first.owner + 1000), *rest)},
        {"positions": (replace(first, without_query=first.without_query[:-1]), *rest)},
        {"positions": (replace(first, weight=first.weight[:, :-1]), *rest)},
    ]
    assert len(first.owner) > 1
    for damage in damages:
        with pytest.raises(ValueError, match=r"do not fit|shorter|longer"):
            replace(model, **damage)


def test_a_ridge_is_nearly_linear_and_stored(tmp_path: Path) -> None:
    """Wide kernels alone: what is linear in the embedding is learned beyond the questions seen."""
    tree = replace(planted_tree(noise=0.5), encoder="planted")
    trained = train(tree, Objective(ALPHA), RidgeConfig(), 0)
    assert isinstance(trained.router, ValueRouter)
    kernels = {int(part.kernel[0]) for part in trained.router.model.positions}
    assert kernels <= {3, 4}
    test = tree.split("test")
    constant = best_fixed_route(tree.split("train"), ALPHA, test).reward(ALPHA).mean()
    assert trained.outcome(test).reward(ALPHA).mean() > constant + 0.1
    save_checkpoint(trained, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, TrainedRouter)
    assert loaded.origin.config == RidgeConfig()
    np.testing.assert_array_equal(loaded.probabilities(tree), trained.probabilities(tree))
