"""Deferral: give a query to a stronger model when the policy is in doubt."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hierrouter.evaluation.outcome import ROUTER, Floats, Outcome, continuation_probability
from hierrouter_cache.tree import RouteTree

MAX_CURVE_POINTS = 512  # of a deferral curve
SHARE_ROUNDING = 1e-9  # shares are rounded sums of probabilities: one this far above is not above
OracleGain = tuple[Floats, Floats]  # rising share of deferred queries; its gain in mean R


@dataclass(frozen=True)
class DeferralPoint:
    """One threshold on the deferral curve of a policy; all values are exact means over a fold.

    Attributes:
        threshold: a query is deferred if the confidence is below it; -inf defers none, inf all.
        share: expected share of the queries that are deferred.
        quality: mean Q.
        cost: mean C, in money.
        reward: mean R.
        chance: mean R if the same share of queries, drawn at random, is deferred at once.
        oracle: mean R if the same share of queries is deferred at once, those that gain most in
            hindsight.
    """

    threshold: float
    share: float
    quality: float
    cost: float
    reward: float
    chance: float
    oracle: float


@dataclass(frozen=True)
class DeferringPolicy:
    """A policy on one fold that may defer its queries, for any threshold.

    Attributes:
        tree: the fold.
        endings: float64[queries, nodes], where the policy's episodes end, see
            `hierrouter.evaluation.outcome.ending_probabilities`.
        confidence: float64[queries, states], in any unit; higher is more confident.
        stronger: the outcome of the direct call that is made instead. Its answer is final.
    """

    tree: RouteTree
    endings: Floats
    confidence: Floats
    stronger: Outcome

    def outcome(self, threshold: float) -> Outcome:
        """Compute the exact outcome of the policy that defers below a threshold."""
        kept_endings, deferred_states = self._split(threshold)
        share = deferred_states.sum(axis=1)
        # The calls before the deferral are paid for as well.
        sunk_cost = (deferred_states * self.tree.cost[:, : self.tree.layout.inner]).sum(axis=1)
        quality = (kept_endings * self.tree.score).sum(axis=1)
        accuracy = (kept_endings * self.tree.accuracy).sum(axis=1)
        cost = (kept_endings * self.tree.cost).sum(axis=1)
        return Outcome(
            name=ROUTER,
            kind="router",
            quality=quality + share * self.stronger.quality,
            accuracy=accuracy + share * self.stronger.accuracy,
            cost=cost + sunk_cost + share * self.stronger.cost,
        )

    def share(self, threshold: float) -> float:
        """Compute the expected share of the queries that are deferred below a threshold."""
        _, deferred_states = self._split(threshold)
        return float(deferred_states.sum() / len(self.tree))

    def curve(self, alpha: float, points: int = MAX_CURVE_POINTS) -> list[DeferralPoint]:
        """Compute the curve from deferring no query to deferring all.

        Args:
            alpha: cost penalty of R = Q - alpha * C.
            points: the most thresholds. They lie halfway between the confidences that occur, so
                that rounding decides nothing; if these are more, they are quantiles of them.

        Returns:
            The points, by rising share.
        """
        visited = np.unique(self.confidence[self.deciding > 0])
        halfway = (visited[1:] + visited[:-1]) / 2
        if len(halfway) > points - 2:
            halfway = np.quantile(halfway, np.linspace(0, 1, points - 2), method="nearest")
        gain = self._oracle_gain(alpha)
        thresholds = (-np.inf, *halfway, np.inf)
        return [self.point(float(threshold), alpha, gain) for threshold in thresholds]

    def point(
        self, threshold: float, alpha: float, oracle_gain: OracleGain | None = None
    ) -> DeferralPoint:
        """Compute the point of one threshold.

        Args:
            threshold: the confidence below which queries are deferred.
            alpha: cost penalty of R = Q - alpha * C.
            oracle_gain: that of this alpha, if it was computed before.
        """
        outcome = self.outcome(threshold)
        share = self.share(threshold)
        shares, gains = oracle_gain or self._oracle_gain(alpha)
        kept_reward = float((self.endings * self.tree.node_reward(alpha)).sum() / len(self.tree))
        deferred_reward = float(self.stronger.reward(alpha).mean())
        return DeferralPoint(
            threshold=threshold,
            share=share,
            quality=float(outcome.quality.mean()),
            cost=float(outcome.cost.mean()),
            reward=float(outcome.reward(alpha).mean()),
            chance=(1 - share) * kept_reward + share * deferred_reward,
            oracle=kept_reward + float(np.interp(share, shares, gains)),
        )

    def _oracle_gain(self, alpha: float) -> OracleGain:
        """Compute what deferring the episodes that gain most, at once, adds to the mean of R."""
        occurs = self.endings > 0
        gain = (self.stronger.reward(alpha)[:, None] - self.tree.node_reward(alpha))[occurs]
        weight = self.endings[occurs] / len(self.tree)
        order = np.argsort(-gain)
        share = weight[order].cumsum()
        total_gain = (gain * weight)[order].cumsum()
        return np.append(0.0, share), np.append(0.0, total_gain)

    def _split(self, threshold: float) -> tuple[Floats, Floats]:
        """Split the episodes by whether they are deferred.

        Returns:
            float64[queries, nodes], the probability of ending at each node without deferral, and
            float64[queries, states], the probability of deferring at each state.
        """
        is_reached = self._lowest_above >= threshold
        is_doubtful = is_reached[:, : self.tree.layout.inner] & (self.confidence < threshold)
        return self.endings * is_reached, self.deciding * is_doubtful

    @cached_property
    def deciding(self) -> Floats:
        """float64[queries, states]: probability that the policy has to decide there."""
        return continuation_probability(self.tree.layout, self.endings)

    @cached_property
    def _lowest_above(self) -> Floats:
        """float64[queries, nodes]: the lowest confidence at the states above each node."""
        layout = self.tree.layout
        lowest = np.full((len(self.tree), layout.nodes), np.inf)
        for node in range(1, layout.nodes):
            parent = layout.parent[node]
            lowest[:, node] = np.minimum(lowest[:, parent], self.confidence[:, parent])
        return lowest


def best_point(curve: Sequence[DeferralPoint]) -> DeferralPoint:
    """Find the point with the highest mean R; ties go to the lower share."""
    return max(curve, key=lambda point: (point.reward, -point.share))


def point_within(curve: Sequence[DeferralPoint], share: float) -> DeferralPoint:
    """Find the point with the highest share of deferred queries that is at most `share`."""
    allowed = [point for point in curve if point.share <= share + SHARE_ROUNDING]
    return max(allowed, key=lambda point: point.share)
