"""Weights and overlap by hand; the regressions; estimators on logs of known worlds."""

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from benchmarks.off_policy import Setting, states_in_tree
from hierrouter.evaluation.outcome import Actions
from hierrouter.serving import estimators as est
from hierrouter.serving.estimators import Overlap, Weights
from hierrouter.serving.off_policy import warnings_of
from hierrouter_cache.layout import Layout
from tests.hierrouter.evaluation.test_outcome import random_table
from tests.hierrouter.trees import one_part, random_tree

LOGS = 1_000
SURE = 4  # standard errors

# --- small trees with two policies, on which every expectation can be worked out

ALPHA = 0.05


@dataclass(frozen=True)
class LogData:
    """The arguments of an estimator."""

    log: est.Log
    states: est.LoggedStates
    weights: Weights
    reward: np.ndarray


Estimator = Callable[[LogData], est.Estimate]


def world(
    *, queries: int = 6, models: int = 2, hops: int = 2, allow_stop: bool = False, seed: int = 0
) -> Setting:
    """A tree without structure; both policies choose differently at every state."""
    tree = random_tree(Layout.full(models, hops), queries, seed)
    logging, target = (random_table(tree, seed + n, allow_stop=allow_stop) for n in (1, 2))
    # A third of its probability is shared by all that it may do.
    legal = logging > 0
    logging = (2 * logging + legal / legal.sum(axis=2, keepdims=True)) / 3
    return Setting(tree, Actions(tree.layout, allow_stop), logging, target, ALPHA)


def bandit(score: np.ndarray, logging: list[float], target: list[float]) -> Setting:
    """One hop, no cost: a call of model a answers question q with Q = score[q, a]."""
    queries, models = score.shape
    tree = random_tree(Layout.full(models, 1), queries, 0)
    nodes = np.concatenate([np.zeros((queries, 1)), score], axis=1)
    tables = [np.broadcast_to(np.array(row), (queries, 1, models)) for row in (logging, target)]
    return Setting(replace(tree, score=nodes), Actions(tree.layout), *tables, alpha=0.0)


def log_data(setting: Setting, log: est.Log) -> LogData:
    states = states_in_tree(log, setting.tree, setting.target)
    return LogData(log, states, Weights.of(log, states), log.reward(setting.alpha))


def played(setting: Setting, episodes: int, seed: Any = 0) -> LogData:
    """A fresh log."""
    return log_data(setting, setting.play(episodes, np.random.default_rng(seed)))


@dataclass(frozen=True)
class ManyEstimates:
    """The estimates from many logs, and the true value."""

    estimates: list[est.Estimate]
    truth: float

    @property
    def values(self) -> np.ndarray:
        return np.array([estimate.value for estimate in self.estimates])

    @property
    def bias(self) -> float:
        return float(self.values.mean() - self.truth)

    @property
    def error(self) -> float:
        """Of the bias."""
        return float(self.values.std(ddof=1) / np.sqrt(len(self.values)))

    @property
    def coverage(self) -> float:
        """Share of the intervals that hold the truth."""
        intervals = [estimate.interval() for estimate in self.estimates]
        return float(np.mean([low <= self.truth <= high for low, high in intervals]))


def on_logs(setting: Setting, episodes: int, logs: int, estimator: Estimator) -> ManyEstimates:
    """Estimate from fresh logs."""
    sources = np.random.SeedSequence(0).spawn(logs)
    estimates = [estimator(played(setting, episodes, source)) for source in sources]
    return ManyEstimates(estimates, setting.truth)


def expected_returns(setting: Setting) -> np.ndarray:
    """float64[queries, states, A]: return of each action under the policy to be evaluated.

    By definition, action by action: what the call costs, and Q or what comes after it.
    """
    tree = setting.tree
    actions = setting.actions
    values = np.zeros_like(setting.target)
    for node in reversed(range(tree.layout.inner)):
        for action in range(actions.count):
            child, _, over = actions.transition(node, action)
            cost = tree.cost[:, child] - tree.cost[:, node]
            if over:
                after = tree.score[:, child]
            else:
                after = (setting.target[:, child] * values[:, child]).sum(axis=1)
            values[:, node, action] = after - setting.alpha * cost
    return values


def snips(log_data: LogData) -> est.Estimate:
    return est.snips(log_data.log, log_data.weights, log_data.reward)


def robust(expected: np.ndarray) -> Estimator:
    """Doubly robust with these expected returns at all states, float64[queries, states, A]."""
    return lambda log_data: est.doubly_robust(
        *vars(log_data).values(), expected[log_data.log.query[:, None], log_data.log.node]
    )


def with_wrong_propensities(estimator: Estimator) -> Estimator:
    """Apply an estimator to a log whose propensities are not those of its policy."""

    def wrong(log_data: LogData) -> est.Estimate:
        log = replace(
            log_data.log, propensity=np.where(log_data.log.alive, log_data.log.propensity**0.5, 1.0)
        )
        return estimator(replace(log_data, log=log, weights=est.Weights.of(log, log_data.states)))

    return wrong


@pytest.mark.parametrize("allow_stop", [False, True])
def test_doubly_robust_is_unbiased_if_propensities_or_returns_are_right(allow_stop: bool) -> None:
    """Doubly robust with any model, or with any propensities."""
    setting = world(allow_stop=allow_stop)
    garbage = np.random.default_rng(9).normal(size=setting.target.shape)
    for estimator in (robust(garbage), with_wrong_propensities(robust(expected_returns(setting)))):
        many = on_logs(setting, 20, LOGS, estimator)
        assert abs(many.bias) <= SURE * many.error
        assert many.error < 0.1


def test_estimates_are_biased_if_both_are_wrong() -> None:
    """Weights with wrong propensities; doubly robust where both are wrong."""
    setting = world()
    garbage = 1 + np.random.default_rng(9).normal(size=setting.target.shape)
    for estimator in (with_wrong_propensities(snips), with_wrong_propensities(robust(garbage))):
        many = on_logs(setting, 20, LOGS, estimator)
        assert abs(many.bias) > 2 * SURE * many.error


def test_self_normalising_is_consistent_and_intervals_hold_the_truth() -> None:
    setting = world()
    [value] = on_logs(setting, 200_000, 1, snips).values
    assert value == pytest.approx(setting.truth, abs=0.01)
    always = bandit(np.ones((50, 2)), logging=[0.8, 0.2], target=[0.2, 0.8])
    assert snips(played(always, 20)).value == pytest.approx(1)  # whatever was drawn
    setting = world(queries=2_000)
    noise = np.random.default_rng(3).normal(0, 0.2, setting.target.shape)
    for estimator in (snips, robust(expected_returns(setting) + noise)):
        assert 0.93 <= on_logs(setting, 200, LOGS, estimator).coverage <= 0.98


def test_a_question_asked_often_counts_as_one() -> None:
    setting = world(queries=2_000)
    same = replace(setting, logging=setting.target)
    clustered = []
    independent = []
    for source in np.random.SeedSequence(0).spawn(300):
        rng = np.random.default_rng(source)
        position = np.repeat(rng.integers(len(setting.tree), size=40), 10)
        data = log_data(setting, same.play_on(position, rng))
        clustered.append(snips(data))
        independent.append(
            snips(replace(data, log=replace(data.log, query=np.arange(len(position)))))
        )
    assert ManyEstimates(clustered, setting.truth).coverage >= 0.91
    assert ManyEstimates(independent, setting.truth).coverage < 0.8


def reaches_a_tree(name: str) -> bool:
    nodes = ast.walk(ast.parse((Path(est.__file__).parent / f"{name}.py").read_text()))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    rooms = {(node.module or "").rpartition(".")[0] for node in imports}
    names = {alias.name for node in imports for alias in node.names}
    return "RouteTree" in names or bool(rooms & {"hierrouter.replay", "hierrouter.serving"})


def test_estimators_import_no_tree() -> None:
    assert not reaches_a_tree("estimators")
    assert reaches_a_tree("off_policy")  # the guard can fail


def fit_on_all(log: est.Log, states: est.LoggedStates, reward: np.ndarray) -> np.ndarray:
    """By ordinary least squares, on all episodes."""
    return est.fit(log, states, reward, np.ones(len(log), dtype=bool), LinearRegression)


@pytest.mark.parametrize("allow_stop", [False, True])
def test_the_fit_is_exact_if_every_state_has_its_own_feature(allow_stop: bool) -> None:
    setting = world(queries=4, allow_stop=allow_stop)
    states = setting.tree.layout.inner
    parts = one_part(np.eye(4 * states).reshape(4, states, -1))
    setting = replace(setting, tree=replace(setting.tree, parts=parts))
    log, logged, _, reward = vars(played(setting, 8_000)).values()
    cell = log.query[:, None], log.node
    legal = setting.actions.legal()[log.node] & log.alive[:, :, None]
    estimate = fit_on_all(log, logged, reward)
    expected = expected_returns(setting)[cell]
    np.testing.assert_allclose(estimate[legal], expected[legal], atol=1e-4)


def test_no_question_is_judged_by_what_was_fitted_on_it() -> None:
    query = np.random.default_rng(0).integers(25, size=300)
    fold = est.question_folds(query)
    assert set(fold) == set(range(est.MAX_CROSS_FITTING_FOLDS))
    assert all(len(set(fold[query == number])) == 1 for number in range(25))
    fold = est.question_folds(np.array([7, 7, 3]))
    assert fold[0] == fold[1] != fold[2]
    log, states, _, reward = vars(played(world(queries=12, seed=5), 100, seed=1)).values()
    before = est.cross_fit(log, states, reward, LinearRegression)
    of_one = log.query == log.query[0]
    altered = replace(log, quality=np.where(of_one, 1 - log.quality, log.quality))
    after = est.cross_fit(altered, states, altered.reward(ALPHA), LinearRegression)
    np.testing.assert_array_equal(after[of_one], before[of_one])
    assert (after[~of_one] != before[~of_one]).any()


def test_an_action_that_was_never_taken_is_expected_to_earn_the_mean() -> None:
    log = est.Log(
        actions=Actions(Layout.full(3, 1)),
        query=np.arange(4),
        action=np.array([[0], [0], [1], [1]]),
        propensity=np.full((4, 1), 0.5),
        length=np.ones(4, dtype=np.int64),
        quality=np.array([1.0, 0.5, 0.0, 0.5]),
        cost=np.zeros((4, 1)),
    )
    row = np.zeros((4, 1), dtype=np.int64)
    features = np.zeros((1, 1), dtype=np.float32)
    values = fit_on_all(
        log, est.LoggedStates(row, features, np.full((1, 3), 1 / 3)), log.reward(0.0)
    )
    np.testing.assert_allclose(values[:, 0], np.tile([0.75, 0.25, 0.5], (4, 1)), atol=1e-6)


def overlap_of(setting: Setting, episodes: int = 2_000) -> Overlap:
    data = played(setting, episodes)
    return Overlap.of(data.log, data.states)


def test_a_weight_is_the_product_of_the_ratios_on_the_way() -> None:
    setting = world(hops=3, allow_stop=True)
    log, _, weights, _ = vars(played(setting, 40)).values()
    for episode, position in enumerate(log.query):
        product = 1.0
        for hop in range(log.length[episode]):
            cell = position, log.node[episode, hop], log.action[episode, hop]
            assert weights.before[episode, hop] == pytest.approx(product)
            product *= setting.target[cell] / setting.logging[cell]
            assert weights.cumulative[episode, hop] == pytest.approx(product)
        assert weights.episode[episode] == pytest.approx(product)


def test_effective_episodes_and_the_largest_weight() -> None:
    setting = bandit(np.zeros((50, 2)), logging=[0.8, 0.2], target=[0.2, 0.8])
    overlap = overlap_of(setting)
    rare = (setting.play(2_000, np.random.default_rng(0)).action == 1).sum()
    total = 4 * rare + (2_000 - rare) / 4
    squares = 16 * rare + (2_000 - rare) / 16
    assert overlap.effective == pytest.approx(total**2 / squares)
    assert (overlap.largest, overlap.mean) == pytest.approx((4, total / 2_000))
    # The policy that logged has all of its episodes.
    setting = world(queries=20)
    overlap = overlap_of(replace(setting, target=setting.logging), 100)
    assert (overlap.effective, overlap.largest, overlap.mean) == pytest.approx((100, 1, 1))
    assert (overlap.misses, overlap.share_never_taken) == (False, 0)


def test_the_share_of_actions_that_the_log_never_takes() -> None:
    setting = world(queries=50, models=3)
    logging = setting.logging.copy()
    logging[:, 0] = [0.5, 0.5, 0.0]
    logging[:, 1] = [0.0, 0.5, 0.5]
    overlap = overlap_of(replace(setting, logging=logging), 20_000)
    chances = setting.target
    expected = chances[:, 0, 2].mean() + (chances[:, 0, 0] * chances[:, 1, 0]).mean()
    assert overlap.share_never_taken == pytest.approx(expected, rel=0.1)
    assert overlap.misses
    # Actions that the log has at other states only show in the mean weight alone.
    setting = bandit(np.zeros((50, 2)), logging=[0.5, 0.5], target=[0.5, 0.5])
    one_action_each = np.tile(np.array([[[1.0, 0.0]], [[0.0, 1.0]]]), (25, 1, 1))
    overlap = overlap_of(replace(setting, logging=one_action_each))
    assert (overlap.share_never_taken, overlap.misses, overlap.mean) == (0, True, 0.5)


@pytest.mark.parametrize(("share", "is_reported"), [(0.0005, False), (0.002, True)])
def test_rare_things_are_not_worth_a_warning(share: float, is_reported: bool) -> None:
    setting = bandit(np.zeros((20, 2)), logging=[1.0, 0.0], target=[1 - share, share])
    overlap = overlap_of(setting)
    assert overlap.share_never_taken == pytest.approx(share)
    assert any("support: " in warning for warning in warnings_of(overlap)) == is_reported


def test_a_policy_that_never_stops_has_no_weight_where_the_log_stops() -> None:
    setting = world(queries=20, allow_stop=True)
    log = played(setting, 200).log
    going_on = world(queries=20).target  # M columns
    weight = Weights.of(log, states_in_tree(log, setting.tree, going_on)).episode
    stopped = log.length < 2
    assert stopped.any()
    assert not weight[stopped].any()
    assert weight[~stopped].all()
