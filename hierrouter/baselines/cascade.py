"""Ask, judge the answer, go on where it does not look good enough.

In: `Arms` with answers. Out: a router that asks arms in a fixed order and gives the first answer
whose expected quality reaches the threshold of its place, else the last one. It pays all calls it
made, a shared one once. Source: FrugalGPT (Chen et al. 2023, arXiv 2305.05176); AutoMix (Aggarwal
et al. 2023, arXiv 2310.12963) lets a small model judge itself. Here a cascade is grown at its end,
arm and threshold by mean R on the validation fold, a few of the best at a time; FrugalGPT
searches all orders and thresholds at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hierrouter.baselines.answer_scorer import AnswerScorer, Judge, fit_scorer
from hierrouter.baselines.arms import Arms, Play, Seen
from hierrouter.baselines.baseline import DIGITS, Tuned
from hierrouter.baselines.static import best_static


@dataclass(frozen=True)
class Chain:
    """Which arms are asked, in order, and the score that ends it after each but the last."""

    arms: tuple[int, ...]
    thresholds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Cascade:
    """A cascade of at least one arm.

    Attributes:
        longest: arms of a cascade.
        kept: of each length, how many cascades are grown further; of one arm, all are.
    """

    longest: int = 6
    kept: int = 12
    name: ClassVar[str] = "cascade"
    source: ClassVar[str] = (
        "FrugalGPT, Chen et al. 2023, arXiv 2305.05176; AutoMix, arXiv 2310.12963"
    )
    reads_answers: ClassVar[bool] = True

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        if not len(validation):
            return best_static(train, alpha)
        scorer = fit_scorer(train, rng)
        chain = self._best(scorer.judge(validation.seen), validation, alpha)
        settings = {
            "arms": [train.names[arm] for arm in chain.arms],
            "thresholds": list(chain.thresholds),
        }
        return Tuned(partial(_play, chain, scorer), settings)

    def _best(self, judge: Judge, arms: Arms, alpha: float) -> Chain:
        """The cascade of the highest mean R on a fold, of those that were looked at."""
        value = arms.reward(alpha).mean(axis=0)
        grown = [(float(value[arm]), Chain((int(arm),))) for arm in _by_cost(arms)]
        found = grown
        for _ in range(1, self.longest):
            longer = [
                candidate
                for value, chain in grown
                for candidate in _longer(value, chain, judge, arms, alpha)
            ]
            grown = _highest(longer)[: self.kept]
            found = [*found, *grown]
        return _highest(found)[0][1]


def _longer(
    value: float, chain: Chain, judge: Judge, arms: Arms, alpha: float
) -> Iterator[tuple[float, Chain]]:
    """With each arm added at the end, at its best threshold, where that makes R higher.

    Args:
        value: mean R of the chain on the fold.
    """
    _, read, query = _follow(chain, judge)
    last, read = chain.arms[-1], read[query]
    score = judge.score(query, np.full(len(query), last), read)
    unpaid = arms.call_cost[query] * ~arms.seen.made(read)
    gain = arms.quality[query] - arms.quality[query, last][:, None]
    gain -= alpha * unpaid @ arms.seen.calls.T
    worst_first = score.argsort(kind="stable")
    score = score[worst_first]
    cuts = np.flatnonzero(np.diff(score) > 10**-DIGITS)
    if not len(cuts):
        return
    added = gain[worst_first].cumsum(axis=0)[cuts] / len(arms)
    for arm in [arm for arm in _by_cost(arms) if arm not in chain.arms]:
        best = int(np.argmax(added[:, arm]))
        if added[best, arm] > 10**-DIGITS:
            threshold = float(score[cuts[best] : cuts[best] + 2].mean())
            longer = Chain((*chain.arms, int(arm)), (*chain.thresholds, threshold))
            yield value + float(added[best, arm]), longer


def _play(chain: Chain, scorer: AnswerScorer, seen: Seen) -> Play:
    answer, read, _ = _follow(chain, scorer.judge(seen))
    return Play.after(seen, answer, read)


def _follow(
    chain: Chain, judge: Judge
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
    """What a cascade does.

    Returns:
        int64[queries], the arm whose answer is given; bool[queries, arms], which were asked; and
        the positions of the queries that reach the last arm.
    """
    queries = len(judge.seen)
    answer = np.full(queries, chain.arms[-1])
    read = np.zeros((queries, judge.seen.arms), np.bool_)
    going = np.arange(queries)
    for arm, threshold in zip(chain.arms, chain.thresholds, strict=False):
        read[going, arm] = True
        score = judge.score(going, np.full(len(going), arm), read[going])
        answer[going[score >= threshold]] = arm
        going = going[score < threshold]
    read[going, chain.arms[-1]] = True
    return answer, read, going


def _by_cost(arms: Arms) -> NDArray[np.int64]:
    order: NDArray[np.int64] = arms.cost.mean(axis=0).argsort(kind="stable")
    return order


def _highest(found: list[tuple[float, Chain]]) -> list[tuple[float, Chain]]:
    """By R, highest first; of equals the one that was found first: shorter, then cheaper."""
    return sorted(found, key=lambda candidate: -round(candidate[0], DIGITS))
