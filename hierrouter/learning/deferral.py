"""Deferral of a trained router: how sure it is, and the threshold below which it hands over.

The results of any threshold of any policy are in `hierrouter.evaluation.deferral`.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.deferral import DeferralPoint, DeferringPolicy, best_point, point_within
from hierrouter.evaluation.outcome import Outcome, continuation_probability, greedy, single_calls
from hierrouter.learning.router import StateBatch, TrainedRouter, choosing_fold, training_folds
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.tree import RouteTree

RIDGE_STRENGTH = 0.1  # of the ridge regression, times the mean variance of a feature


@dataclass(frozen=True)
class GainHead:
    """Expected gain of going on over deferring, linear in the router's features.

    Attributes:
        weight: float64[L, hidden], of each stage.
        bias: float64[L].
    """

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]

    def __call__(
        self, features: NDArray[np.float64], stage: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Expected R of going on, less R of deferring.

        Args:
            features: float64[..., hidden].
            stage: int64[...].

        Returns:
            float64[...].
        """
        return (features * self.weight[stage]).sum(axis=-1) + self.bias[stage]


@dataclass(frozen=True)
class Deferral:
    """A router with the rule by which its queries go to a stronger model.

    Attributes:
        trained: the router.
        stronger: name of the model.
        head: how sure the router is: its confidence.
        threshold: a query is deferred if confidence is below it.
        point: result of the threshold on the fold that chose it; None if it was chosen otherwise.
        chosen_on: name of that fold; empty if there is none.
    """

    trained: TrainedRouter
    stronger: str
    head: GainHead
    threshold: float
    point: DeferralPoint | None = None
    chosen_on: str = ""

    def on_fold(self, fold: RouteTree) -> DeferringPolicy:
        """The router on a fold, for any threshold.

        Raises:
            InputError: this router cannot read the tree, or the tree has no such direct call.
        """
        stage = fold.layout.depth()[: fold.layout.inner]
        return DeferringPolicy(
            tree=fold,
            endings=self.trained.endings(fold),
            confidence=self.head(self.trained.features(fold), stage),
            stronger=direct_call(fold, self.stronger),
        )

    def outcome(self, fold: RouteTree) -> Outcome:
        """The exact outcome on a fold at the threshold.

        Raises:
            InputError: as `on_fold`.
        """
        return self.on_fold(fold).outcome(self.threshold)

    def defers(self, states: StateBatch) -> NDArray[np.bool_]:
        """bool[n]: whether to defer at some live states, see `TrainedRouter.live_states`."""
        features = self.trained.router.live_features(states)
        stage = self.trained.origin.layout.depth()[states.node]
        return self.head(features, stage) < self.threshold


def calibrate(
    trained: TrainedRouter, tree: RouteTree, stronger: str, share: float | None = None
) -> Deferral:
    """Choose the threshold that is best on the validation fold.

    Args:
        trained: the router.
        tree: all folds; without a validation fold the train fold chooses.
        stronger: one of `tree.direct.models`.
        share: defer as many queries as possible up to this share; None is the share with the
            highest R at the router's alpha.

    Raises:
        InputError: no such direct call, a share outside [0, 1], nothing to fit on, or the router
            may give earlier answers, is a table of routes, or may end without a call, as runs of
            a log do.
    """
    if share is not None and not 0 <= share <= 1:
        raise InputError(f"a share of the queries is a number from 0 to 1, got {share}")
    if trained.objective.allow_return:
        raise InputError("a router with --allow-return cannot hand over; leave --defer-to out")
    if not trained.router.can_defer:
        raise InputError(
            "a router with a table of routes does not say when it is in doubt, and cannot hand "
            "over; leave --defer-to out"
        )
    if trained.actions.returns:
        raise InputError(
            "a router of a log whose runs end without a call cannot hand over; leave --defer-to out"
        )
    learn_from, choose_on = training_folds(tree)
    head = fit_head(trained, learn_from, stronger)
    deferral = Deferral(trained, stronger, head, threshold=-np.inf)
    curve = deferral.on_fold(choose_on).curve(trained.alpha)
    point = best_point(curve) if share is None else point_within(curve, share)
    return replace(deferral, threshold=point.threshold, point=point, chosen_on=choosing_fold(tree))


def fit_head(trained: TrainedRouter, fold: RouteTree, stronger: str) -> GainHead:
    """Fit the gain of going on by ridge regression, over the states that the router visits."""
    is_visited = continuation_probability(fold.layout, trained.endings(fold)) > 0
    features = trained.features(fold)
    gain = gain_of_going_on(trained, fold, stronger)
    weights = []
    biases = []
    for stage in range(fold.hops):
        level = fold.layout.level(stage)
        rows = is_visited[:, level]
        if not rows.any():
            # The router always stops earlier on this fold. On other folds it may not, so the head
            # of this stage learns from all states of the stage.
            rows = np.ones_like(rows)
        weight, bias = _ridge(features[:, level][rows], gain[:, level][rows])
        weights.append(weight)
        biases.append(bias)
    return GainHead(np.stack(weights), np.array(biases))


def gain_of_going_on(trained: TrainedRouter, fold: RouteTree, stronger: str) -> NDArray[np.float64]:
    """float64[queries, states]: exact R of the greedy policy from each state, less deferring."""
    alpha = trained.alpha
    layout = fold.layout
    choice = greedy(trained.probabilities(fold), fold.base_rate)
    reward = fold.node_reward(alpha)
    value = reward.copy()  # of having reached a node
    for level in reversed(layout.levels):
        after = level.gather(value, weight=fold.weight)
        if trained.actions.allow_stop:
            stopping = level.gather(reward, weight=fold.weight)
            after = np.concatenate([after, stopping], axis=2)
        value[:, level.inner] = (choice[:, level.inner] * after).sum(axis=2)
    # Deferring pays for the stronger model and for the calls so far.
    deferred = direct_call(fold, stronger).reward(alpha)[:, None]
    cost_so_far = alpha * fold.cost[:, : layout.inner]
    return value[:, : layout.inner] - (deferred - cost_so_far)


def direct_call(tree: RouteTree, name: str) -> Outcome:
    """The outcome of one direct call on every query.

    Raises:
        InputError: the tree has no direct call of this model.
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
    """Ridge regression with a bias that is not penalised.

    Args:
        inputs: float64[n, hidden].
        target: float64[n].

    Returns:
        Weights float64[hidden], and the bias.
    """
    input_mean = inputs.mean(axis=0)
    target_mean = float(target.mean())
    centred = inputs - input_mean
    moments = centred.T @ centred
    penalty = RIDGE_STRENGTH * (np.trace(moments) / len(moments) or 1.0)
    weight: NDArray[np.float64] = np.linalg.solve(
        moments + penalty * np.eye(len(moments)), centred.T @ (target - target_mean)
    )
    return weight, target_mean - float(input_mean @ weight)
