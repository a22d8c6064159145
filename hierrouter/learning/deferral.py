"""A trained router in doubt: how sure it is, and the threshold below which it hands over.

What any threshold gives, of any policy, is in `hierrouter.evaluation.deferral`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.deferral import DeferralPoint, DeferringPolicy, best_point, point_within
from hierrouter.evaluation.outcome import Outcome, continuation_probability, greedy, single_calls
from hierrouter.learning.training import TrainedRouter, choosing_fold, training_folds
from hierrouter.learning.value import ValueRouter
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.tree import RouteTree

SHRINKAGE = 0.1  # of the ridge regression, times the mean variance of a feature


@dataclass(frozen=True)
class GainHead:
    """Expected gain of going on over handing over, linear in the router's features.

    Attributes:
        weight: float64[L, hidden], of each stage.
        bias: float64[L].
    """

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]

    def __call__(
        self, features: NDArray[np.float64], stage: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """float64[...]: R of going on less R of handing over, as expected.

        Args:
            features: float64[..., hidden].
            stage: int64[...].
        """
        return (features * self.weight[stage]).sum(axis=-1) + self.bias[stage]


@dataclass(frozen=True)
class Deferral:
    """A router, and when its queries go to a stronger model.

    Attributes:
        head: how sure the router is.
        threshold: a query is handed over where confidence is below it.
        point: what that gives on the fold that chose the threshold.
        chosen_on: name of that fold; empty where the threshold was given.
    """

    trained: TrainedRouter
    stronger: str
    head: GainHead
    threshold: float
    point: DeferralPoint | None = None
    chosen_on: str = ""

    def on(self, fold: RouteTree) -> DeferringPolicy:
        """The router on a fold, for any threshold.

        Raises InputError: the tree is not one this router can read, or has no such direct call.
        """
        stage = fold.routes.depth()[: fold.routes.states]
        return DeferringPolicy(
            tree=fold,
            endings=self.trained.endings(fold),
            confidence=self.head(self.trained.features(fold), stage),
            stronger=direct_call(fold, self.stronger),
        )

    def outcome(self, fold: RouteTree) -> Outcome:
        """The exact outcome on a fold at the threshold; raises InputError: as `on`."""
        return self.on(fold).outcome(self.threshold)

    def doubts(
        self,
        embedding: NDArray[np.float32],
        paths: Sequence[tuple[int, ...]],
        costs: Sequence[float],
    ) -> NDArray[np.bool_]:
        """bool[n]: whether it hands over at some live states; as `TrainedRouter.decide_each`."""
        router, routes = self.trained.router, self.trained.origin.routes
        node = np.array([routes.node(path) for path in paths])
        if isinstance(router, ValueRouter):
            values = router.expected(embedding, node.tolist(), costs)
            features = np.nan_to_num(values[..., 0] - router.alpha * values[..., 1])
        else:
            spent = np.array(costs, np.float32)
            features = router.features(embedding, node, spent).astype(np.float64)
        return self.head(features, routes.depth()[node]) < self.threshold


def calibrated(
    trained: TrainedRouter, tree: RouteTree, stronger: str, share: float | None = None
) -> Deferral:
    """The deferral whose threshold is best on the validation fold.

    Raises InputError: no such direct call, a share outside [0, 1], nothing to fit on, or the router
    may give earlier answers.

    Args:
        tree: all folds; without a validation fold the train fold chooses.
        stronger: one of `tree.direct.models`.
        share: hand over as many as possible up to this share; None is what gives the highest R at
            the router's alpha.
    """
    if share is not None and not 0 <= share <= 1:
        raise InputError(f"a share of the queries is a number from 0 to 1, got {share}")
    if trained.objective.allow_return:
        raise InputError("a router with --allow-return cannot hand over; leave --defer-to out")
    learn_from, choose_on = training_folds(tree)
    deferral = Deferral(trained, stronger, fit_head(trained, learn_from, stronger), -np.inf)
    curve = deferral.on(choose_on).curve(trained.alpha)
    point = best_point(curve) if share is None else point_within(curve, share)
    return replace(deferral, threshold=point.threshold, point=point, chosen_on=choosing_fold(tree))


def fit_head(trained: TrainedRouter, fold: RouteTree, stronger: str) -> GainHead:
    """Ridge regression of what going on gains, over the states that the router visits."""
    visited = continuation_probability(fold.routes, trained.endings(fold)) > 0
    seen, gain = trained.features(fold), gain_of_going_on(trained, fold, stronger)
    heads = []
    for stage in range(fold.hops):
        level = fold.routes.level(stage)
        here = visited[:, level]
        if not here.any():  # the router always stops earlier: nobody will ask, but on other folds
            here = np.ones_like(here)
        heads.append(_ridge(seen[:, level][here], gain[:, level][here]))
    return GainHead(
        np.stack([weight for weight, _ in heads]), np.array([bias for _, bias in heads])
    )


def gain_of_going_on(trained: TrainedRouter, fold: RouteTree, stronger: str) -> NDArray[np.float64]:
    """float64[queries, states]: exact R of the greedy policy from each state, less handing over."""
    alpha, routes = trained.alpha, fold.routes
    table = greedy(trained.probabilities(fold), fold.base_rate)
    reward, levels = fold.node_reward(alpha), list[NDArray[np.float64]]()
    value = reward[:, routes.leaves]
    for level in reversed(range(routes.hops)):
        after = value.reshape(len(fold), -1, routes.models)
        if trained.actions.allow_stop:
            stopped = reward[:, routes.level(level + 1)].reshape(after.shape)
            after = np.concatenate([after, stopped], axis=2)
        value = (table[:, routes.level(level)] * after).sum(axis=2)
        levels.insert(0, value)
    handed = direct_call(fold, stronger).reward(alpha)[:, None]
    spent = alpha * fold.cost[:, : fold.routes.states]
    return np.concatenate(levels, axis=1) - (handed - spent)


def direct_call(tree: RouteTree, name: str) -> Outcome:
    """The outcome of one direct call on every query.

    Raises InputError: the tree has no direct call of this model.
    """
    calls = {call.name: call for call in single_calls(tree)}
    if name not in calls:
        raise InputError(
            f"no direct call of this model: {name}; {suggestion(name, calls)}".rstrip("; ")
        )
    return calls[name]


def _ridge(
    inputs: NDArray[np.float64], target: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Weights, float64[hidden], and bias, for inputs float64[n, hidden]."""
    mean, middle = inputs.mean(axis=0), float(target.mean())
    moments = (inputs - mean).T @ (inputs - mean)
    size = SHRINKAGE * (np.trace(moments) / len(moments) or 1.0)
    wanted = (inputs - mean).T @ (target - middle)
    weight: NDArray[np.float64] = np.linalg.solve(moments + size * np.eye(len(moments)), wanted)
    return weight, middle - float(mean @ weight)
