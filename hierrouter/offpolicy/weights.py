"""Importance weights, and whether a log can say anything.

In: a `Log` and its `LoggedStates`. Out: `Weights`: how much likelier the policy to be valued was to
do what was done; `Overlap`: how many episodes that leaves, and what the log never tried. Not
covered: values, see `estimators`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hierrouter.offpolicy.clustered import clustered_mean
from hierrouter.offpolicy.log import Log
from hierrouter.offpolicy.states import LoggedStates

SMALLEST_SHARE = 0.001  # of the episodes; what is rarer is not worth a warning
SURE = 0.999  # level of the interval that decides whether weights average 1


@dataclass(frozen=True)
class Weights:
    """Ratios of two policies' probabilities.

    Attributes:
        step: float64[episodes, L], pi(a_t | s_t) / mu(a_t | s_t); 1 after the end.
    """

    step: NDArray[np.float64]

    @classmethod
    def of(cls, log: Log, states: LoggedStates) -> Weights:
        """Of the policy to be valued over the policy that logged."""
        likely = np.take_along_axis(states.chances, log.action[:, :, None], axis=2)[:, :, 0]
        return cls(np.where(log.alive, likely / log.propensity, 1.0))

    @cached_property
    def so_far(self) -> NDArray[np.float64]:
        """float64[episodes, L]: the product up to and with each call."""
        return self.step.cumprod(axis=1)

    @cached_property
    def before(self) -> NDArray[np.float64]:
        """float64[episodes, L]: the product up to each call, without it; 1 at the first."""
        before = np.ones_like(self.step)
        before[:, 1:] = self.so_far[:, :-1]
        return before

    @property
    def whole(self) -> NDArray[np.float64]:
        """float64[episodes]: of whole episodes; their expectation is 1 where nothing is missing."""
        return self.so_far[:, -1]


@dataclass(frozen=True)
class NeverTaken:
    """Something that the policy to be valued does and the log never shows.

    Attributes:
        node: the node at which it does it.
        action: what it does.
        share: of its episodes that do so, as estimated from the log.
    """

    node: int
    action: int
    share: float


@dataclass(frozen=True)
class Overlap:
    """How much of a log is about the policy to be valued.

    Attributes:
        effective: (sum w)^2 / sum w^2, the number of episodes that equal weights would have to have
            for the same variance (Kish, Survey Sampling, 1965).
        largest: the largest weight of an episode.
        mean: of the weights.
        misses: whether they clearly do not average 1: then the log lacks what the policy does, or
            the propensities are not those of the logging policy.
        never_taken: what the log never shows, the largest share first; less than one in a
            thousand is not named.
        share_never_taken: of the episodes of the policy to be valued that the log does not show.
    """

    effective: float
    largest: float
    mean: float
    misses: bool
    never_taken: tuple[NeverTaken, ...]
    share_never_taken: float

    @classmethod
    def of(cls, log: Log, states: LoggedStates) -> Overlap:
        """Of the episodes in `log`."""
        weights = Weights.of(log, states)
        whole, mean = weights.whole, clustered_mean(weights.whole, log.query)
        low, high = mean.interval(SURE)
        missing = sorted(_never_taken(log, states, weights.before), key=lambda found: -found.share)
        return cls(
            effective=float(whole.sum() ** 2 / max(np.square(whole).sum(), np.finfo(float).tiny)),
            largest=float(whole.max()),
            mean=mean.value,
            misses=not low <= 1 <= high,
            never_taken=tuple(found for found in missing if found.share >= SMALLEST_SHARE),
            share_never_taken=min(1.0, math.fsum(found.share for found in missing)),
        )


def _never_taken(
    log: Log, states: LoggedStates, before: NDArray[np.float64]
) -> Iterator[NeverTaken]:
    """What the policy to be valued does at a node where no episode does it, hop by hop."""
    chances, count = states.chances, log.actions.count
    for hop in range(log.hops):
        here = log.alive[:, hop]
        nodes, place = np.unique(log.node[here, hop], return_inverse=True)
        taken = np.zeros((len(nodes), count), dtype=bool)
        taken[place, log.action[here, hop]] = True
        share = np.zeros((len(nodes), count))
        np.add.at(share, place, before[here, hop, None] * chances[here, hop])
        for at, action in np.argwhere(~taken & (share > 0)):
            # Of all episodes: weights before this hop already lack what was never taken there.
            yield NeverTaken(int(nodes[at]), int(action), float(share[at, action] / len(log)))
