"""Hand a query to a stronger model when in doubt."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hierrouter.evaluation.outcome import ROUTER, Floats, Outcome, continuation_probability
from hierrouter_cache.tree import RouteTree

POINTS = 512  # of a curve at most
ROUNDING = 1e-9  # of a sum of probabilities
Gained = tuple[Floats, Floats]  # share handed over; gain in mean R


@dataclass(frozen=True)
class DeferralPoint:
    """One threshold on the deferral curve of a policy; all values are exact means of a fold.

    Attributes:
        threshold: a query is handed over where confidence is below it; -inf none, inf all.
        share: expected share of the queries that are handed over.
        chance: mean R when queries drawn at random are handed over at once, the same share.
        oracle: mean R when those are that gain most, the same share, knowing all answers.
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
    """A policy on one fold, whose queries may be handed over.

    Attributes:
        tree: the fold.
        endings: float64[queries, nodes], where the policy's episodes end, see `outcome.ending`.
        confidence: float64[queries, states], in any unit; higher is surer.
        stronger: the outcome of the direct call that is made instead. Its answer is final.
    """

    tree: RouteTree
    endings: Floats
    confidence: Floats
    stronger: Outcome

    def outcome(self, threshold: float) -> Outcome:
        """The policy that hands over below the threshold, exactly."""
        kept, handed = self._parted(threshold)
        share = handed.sum(axis=1)
        spent = (handed * self.tree.cost[:, : self.tree.routes.states]).sum(axis=1)
        return Outcome(
            name=ROUTER,
            kind="router",
            quality=(kept * self.tree.score).sum(axis=1) + share * self.stronger.quality,
            accuracy=(kept * self.tree.accuracy).sum(axis=1) + share * self.stronger.accuracy,
            cost=(kept * self.tree.cost).sum(axis=1) + spent + share * self.stronger.cost,
        )

    def share(self, threshold: float) -> float:
        """Expected share of the queries that are handed over."""
        return float(self._parted(threshold)[1].sum() / len(self.tree))

    def curve(self, alpha: float, points: int = POINTS) -> list[DeferralPoint]:
        """From handing over no query to handing over all, by rising share.

        Args:
            alpha: of the reward.
            points: at most so many thresholds. They lie halfway between the confidences that
                occur, so that rounding decides nothing; where these are more, quantiles of them.
        """
        visited = np.unique(self.confidence[self.deciding > 0])
        halfway = (visited[1:] + visited[:-1]) / 2
        if len(halfway) > points - 2:
            halfway = np.quantile(halfway, np.linspace(0, 1, points - 2), method="nearest")
        gained = self._gained(alpha)
        return [self.point(float(at), alpha, gained) for at in (-np.inf, *halfway, np.inf)]

    def point(self, threshold: float, alpha: float, gained: Gained | None = None) -> DeferralPoint:
        """What one threshold gives, in means of R at this alpha.

        `gained`: of this alpha, where it is known.
        """
        outcome, share = self.outcome(threshold), self.share(threshold)
        kept = float((self.endings * self.tree.node_reward(alpha)).sum() / len(self.tree))
        handed = float(self.stronger.reward(alpha).mean())
        return DeferralPoint(
            threshold=threshold,
            share=share,
            quality=float(outcome.quality.mean()),
            cost=float(outcome.cost.mean()),
            reward=float(outcome.reward(alpha).mean()),
            chance=(1 - share) * kept + share * handed,
            oracle=kept + float(np.interp(share, *(gained or self._gained(alpha)))),
        )

    def _gained(self, alpha: float) -> Gained:
        """What handing over the best episodes, at once, adds to the mean of R, by rising share."""
        at = self.endings > 0
        gain = (self.stronger.reward(alpha)[:, None] - self.tree.node_reward(alpha))[at]
        weight, order = self.endings[at] / len(self.tree), np.argsort(-gain)
        share, total = weight[order].cumsum(), (gain * weight)[order].cumsum()
        return np.append(0.0, share), np.append(0.0, total)

    def _parted(self, threshold: float) -> tuple[Floats, Floats]:
        """Probabilities of ending at each node, and of being handed over at each state."""
        reached = self._lowest_above >= threshold
        doubtful = reached[:, : self.tree.routes.states] & (self.confidence < threshold)
        return self.endings * reached, self.deciding * doubtful

    @cached_property
    def deciding(self) -> Floats:
        """float64[queries, states]: probability that the policy has to decide there."""
        return continuation_probability(self.tree.routes, self.endings)

    @cached_property
    def _lowest_above(self) -> Floats:
        """float64[queries, nodes]: the lowest confidence on the way to each node, its own apart."""
        routes, lowest = self.tree.routes, [np.full((len(self.tree), 1), np.inf)]
        for level in range(routes.hops):
            here = np.minimum(lowest[-1], self.confidence[:, routes.level(level)])
            lowest.append(np.repeat(here, routes.models, axis=1))
        return np.concatenate(lowest, axis=1)


def best_point(curve: Sequence[DeferralPoint]) -> DeferralPoint:
    """The point with the highest mean R; ties go to handing over less."""
    return max(curve, key=lambda point: (point.reward, -point.share))


def point_within(curve: Sequence[DeferralPoint], share: float) -> DeferralPoint:
    """The point that hands over most, but no more than `share` of the queries."""
    within = [point for point in curve if point.share <= share + ROUNDING]
    return max(within, key=lambda point: point.share)
