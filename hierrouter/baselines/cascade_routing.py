"""Route, look at the answer, and route again or stop.

In: `Arms` with answers. Out: a router that holds, for every arm, an expected quality and the cost
still to pay: before an answer from the question, after it from the answer, and of the others from
the answers of those asked. It asks the arm that is most worth it, as long as one is worth more than
the best answer so far. Source: cascade routing (Dekoninck et al. 2024, arXiv 2410.10347), which
looks for the best set of arms to ask in the same trade of quality for alpha * cost. Here the next
arm is the one of highest reservation value (Weitzman 1979, Econometrica 47:641), which also counts
that it may stop early.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hierrouter.baselines.answer_scorer import AnswerScorer, Judge, fit_scorer
from hierrouter.baselines.arms import Arms, Play, Seen
from hierrouter.baselines.baseline import DIGITS, Tuned, best_of
from hierrouter.baselines.expectation import Expectation, expectation
from hierrouter.evaluate.bounds import cheapest_best

CERTAIN = 1e-6  # no quality is expected to be lower


@dataclass(frozen=True)
class CascadeRouting:
    """At each step the arm most worth asking, or an end.

    Attributes:
        trust: how much of the doubt about an answer its reading settles, 0 to 1; with 0 another
            arm is asked only where it is expected to be better by more than its cost.
        longest: arms asked at most.
    """

    trust: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    longest: int = 4
    name: ClassVar[str] = "cascade routing"
    source: ClassVar[str] = "Dekoninck et al. 2024, arXiv 2410.10347; Weitzman 1979"
    reads_answers: ClassVar[bool] = True

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        scorer = fit_scorer(train, rng)
        cost = expectation(train.seen.question, train.call_cost, rng)
        left = train.quality - scorer.prior.held_out
        doubt = np.atleast_2d(np.cov(left.T, bias=True))
        router = partial(CascadeRouter, scorer, cost, doubt, alpha)
        return best_of(
            [({"trust": trust}, router(trust, self.longest)) for trust in self.trust],
            validation,
            alpha,
        )


@dataclass(frozen=True)
class CascadeRouter:
    """A fitted router.

    Attributes:
        scorer: expects quality before and after an answer.
        cost: expects the cost of every call.
        doubt: float64[arms, arms], covariance of what the question does not tell.
        alpha, trust, longest: see `CascadeRouting`.
    """

    scorer: AnswerScorer
    cost: Expectation
    doubt: NDArray[np.float64]
    alpha: float
    trust: float
    longest: int

    def __call__(self, seen: Seen) -> Play:
        """What it does on each query."""
        judge = self.scorer.judge(seen)
        read = np.zeros((len(seen), seen.arms), np.bool_)
        cost = np.maximum(self.cost.predict(seen.question), 0)
        quality = np.clip(judge.prior, CERTAIN, 1)
        going = np.arange(len(seen))
        for _ in range(min(self.longest, seen.arms)):
            unpaid = (cost[going] * ~seen.made(read[going])) @ seen.calls.T
            worth = reservation(quality[going], self.alpha * unpaid, self.trust).round(DIGITS)
            worth[read[going]] = -np.inf
            best = np.where(read[going], quality[going], -np.inf).max(axis=1)
            arm = cheapest_best(worth, unpaid)
            on = worth.max(axis=1) > best + 10**-DIGITS
            going = going[on]
            read[going, arm[on]] = True
            quality[going] = self._after(judge, going, read[going])
        answer = np.where(read, quality, -np.inf).argmax(axis=1)
        return Play.after(seen, answer, read)

    def _after(
        self, judge: Judge, query: NDArray[np.int64], read: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """float64[n, arms]: expected quality once the answers of bool[n, arms] were read."""
        prior = np.clip(judge.prior[query], CERTAIN, 1)
        quality = prior.copy()
        row, arm = np.nonzero(read)
        quality[row, arm] = judge.score(query[row], arm, read[row])
        patterns, pattern = np.unique(read, axis=0, return_inverse=True)
        for number, known in enumerate(patterns):
            rows = np.flatnonzero(pattern == number)
            surprise = quality[np.ix_(rows, known)] - prior[np.ix_(rows, known)]
            told = np.linalg.pinv(self.doubt[np.ix_(known, known)]) @ self.doubt[known][:, ~known]
            quality[np.ix_(rows, ~known)] += surprise @ told
        return np.clip(quality, CERTAIN, 1)


def reservation(
    quality: NDArray[np.float64], price: NDArray[np.float64], trust: float
) -> NDArray[np.float64]:
    """float64[...]: what a sure answer must be worth, for asking this arm to be worth it no more.

    The reading says `right` with the probability of `quality`, and then expects more by
    `trust` of what is lacking, else less. With z in hand, the gain of asking is
    max(0, quality * (right - z), quality - z), which equals the price at the value returned.

    Args:
        quality: float64[...], expected quality, above 0.
        price: float64[...], alpha times the cost still to pay.
    """
    right = quality + trust * (1 - quality)
    return np.maximum(right - price / quality, quality - price)
