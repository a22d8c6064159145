"""Routers that read answers: cascades."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from hierrouter.evaluation.bounds import cheapest_best
from hierrouter.evaluation.outcome import Booleans, Floats, Integers
from hierrouter.learning.baselines import answers, arms
from hierrouter.learning.baselines.arms import DIGITS, Arms, GridSearch, Play, Seen, Tuned
from hierrouter.learning.baselines.classifiers import Expectation, expectation
from hierrouter.learning.baselines.simple import best_static


@dataclass(frozen=True)
class Chain:
    """Which arms are asked, in order, and the score that ends it after each but the last."""

    arms: tuple[int, ...]
    thresholds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Cascade:
    """A cascade of at least one arm: it ends with the first answer that looks good enough.

    Attributes:
        name, source: see `Baseline`.
        fit_reader: learns on a fold what tells a good answer.
        longest: arms of a cascade.
        kept: of each length, how many cascades are grown further; of one arm, all are.
    """

    name: str
    source: str
    fit_reader: Callable[[Arms, np.random.Generator], Callable[[Seen], answers.Reads]]
    longest: int = 6
    kept: int = 12
    reads_answers: ClassVar[bool] = True

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        if not len(validation):
            return best_static(train, alpha)
        reader = self.fit_reader(train, rng)
        chain = self._best(reader(validation.seen), validation, alpha)

        def play(seen: Seen) -> Play:
            answer, read, _ = _follow(chain, seen, reader(seen))
            return Play.after(seen, answer, read)

        names = [train.names[arm] for arm in chain.arms]
        return Tuned(play, {"arms": names, "thresholds": list(chain.thresholds)})

    def _best(self, score: answers.Reads, fold: Arms, alpha: float) -> Chain:
        """The cascade of the highest mean R on a fold, of those that were looked at."""
        value = fold.reward(alpha).mean(axis=0)
        grown = [(float(value[arm]), Chain((int(arm),))) for arm in _by_cost(fold)]
        found = grown
        for _ in range(1, self.longest):
            longer = [
                candidate
                for value, chain in grown
                for candidate in _longer(value, chain, score, fold, alpha)
            ]
            grown = _highest(longer)[: self.kept]
            found = [*found, *grown]
        return _highest(found)[0][1]


ALWAYS = 3.0  # no score is as high: everything goes on


def _longer(
    value: float, chain: Chain, score_of: answers.Reads, fold: Arms, alpha: float
) -> Iterator[tuple[float, Chain]]:
    """With each arm added at the end, at its best threshold, where that makes R higher.

    `value`: mean R of the chain on the fold.
    """
    _, read, query = _follow(chain, fold.seen, score_of)
    last, read = chain.arms[-1], read[query]
    score = score_of(query, np.full(len(query), last), read)
    unpaid = fold.call_cost[query] * ~fold.seen.made(read)
    gain = fold.quality[query] - fold.quality[query, last][:, None]
    gain -= alpha * unpaid @ fold.seen.calls.T
    worst_first = score.argsort(kind="stable")
    score = score[worst_first]
    cuts = np.flatnonzero(np.diff(score, append=ALWAYS) > 10**-DIGITS)
    added = gain[worst_first].cumsum(axis=0)[cuts] / len(fold)
    for arm in [arm for arm in _by_cost(fold) if arm not in chain.arms]:
        best = int(np.argmax(added[:, arm]))
        if added[best, arm] > 10**-DIGITS:
            after = [*score[cuts[best] + 1 :], ALWAYS][0]
            threshold = float((score[cuts[best]] + after) / 2)
            longer = Chain((*chain.arms, int(arm)), (*chain.thresholds, threshold))
            yield value + float(added[best, arm]), longer


def _follow(
    chain: Chain, seen: Seen, score_of: answers.Reads
) -> tuple[Integers, Booleans, Integers]:
    """What a cascade does.

    Returns int64[queries], the arm whose answer is given; bool[queries, arms], which were asked;
    and the positions of the queries that reach the last arm.
    """
    queries = len(seen)
    answer = np.full(queries, chain.arms[-1])
    read = np.zeros((queries, seen.arms), np.bool_)
    going = np.arange(queries)
    for arm, threshold in zip(chain.arms, chain.thresholds, strict=False):
        read[going, arm] = True
        score = score_of(going, np.full(len(going), arm), read[going])
        answer[going[score >= threshold]] = arm
        going = going[score < threshold]
    read[going, chain.arms[-1]] = True
    return answer, read, going


def _by_cost(fold: Arms) -> Integers:
    return fold.cost.mean(axis=0).argsort(kind="stable")


def _highest(found: list[tuple[float, Chain]]) -> list[tuple[float, Chain]]:
    """By R, highest first; of equals the one that was found first: shorter, then cheaper."""
    return sorted(found, key=lambda candidate: -round(candidate[0], DIGITS))


CASCADES = (
    Cascade(
        "cascade",
        "FrugalGPT, Chen et al. 2023, arXiv 2305.05176; AutoMix, arXiv 2310.12963",
        answers.fit_judge,
    ),
    Cascade(
        "confidence cascade",
        "Gupta et al. 2024, arXiv 2404.10136; Zadrozny and Elkan 2002, 10.1145/775047.775151",
        answers.fit_confidence,
    ),
    Cascade(
        "agreement cascade",
        "Yue et al. 2023, arXiv 2310.03094; Kolawole et al. 2024, arXiv 2407.02348",
        answers.fit_agreement,
    ),
)

CERTAIN = 1e-6  # no quality is expected to be lower


@dataclass(frozen=True)
class CascadeRouting(GridSearch):
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

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> arms.Candidates:
        """One fit on `train`, of which each router trusts the answers differently."""
        scorer = answers.fit_scorer(train, rng)
        cost = expectation(train.seen.question, train.call_cost, rng)
        left = train.quality - scorer.prior.held_out
        doubt = np.atleast_2d(np.cov(left.T, bias=True))
        for trust in self.trust:
            yield {"trust": trust}, partial(self._play, scorer, cost, doubt, alpha, trust)

    def _play(
        self,
        scorer: answers.AnswerScorer,
        expected: Expectation,
        doubt: Floats,
        alpha: float,
        trust: float,
        seen: Seen,
    ) -> Play:
        """What a fitted router does on each query.

        `scorer`: expects quality before and after an answer; `expected`: the cost of every call;
        `doubt`: float64[arms, arms], covariance of what the question does not tell.
        """
        judge = scorer.judge(seen)
        read = np.zeros((len(seen), seen.arms), np.bool_)
        cost = np.maximum(expected.predict(seen.question), 0)
        quality = np.clip(judge.prior, CERTAIN, 1)
        going = np.arange(len(seen))
        for _ in range(min(self.longest, seen.arms)):
            unpaid = (cost[going] * ~seen.made(read[going])) @ seen.calls.T
            worth = reservation(quality[going], alpha * unpaid, trust).round(DIGITS)
            worth[read[going]] = -np.inf
            best = np.where(read[going], quality[going], -np.inf).max(axis=1)
            arm = cheapest_best(worth, unpaid)
            on = worth.max(axis=1) > best + 10**-DIGITS
            going = going[on]
            read[going, arm[on]] = True
            quality[going] = _after(judge, doubt, going, read[going])
        answer = np.where(read, quality, -np.inf).argmax(axis=1)
        return Play.after(seen, answer, read)


def _after(judge: answers.Judge, doubt: Floats, query: Integers, read: Booleans) -> Floats:
    """float64[n, arms]: expected quality once the answers of bool[n, arms] were read."""
    prior = np.clip(judge.prior[query], CERTAIN, 1)
    quality = prior.copy()
    row, arm = np.nonzero(read)
    quality[row, arm] = judge.score(query[row], arm, read[row])
    patterns, pattern = np.unique(read, axis=0, return_inverse=True)
    for number, known in enumerate(patterns):
        rows = np.flatnonzero(pattern == number)
        surprise = quality[np.ix_(rows, known)] - prior[np.ix_(rows, known)]
        told = np.linalg.pinv(doubt[np.ix_(known, known)]) @ doubt[known][:, ~known]
        quality[np.ix_(rows, ~known)] += surprise @ told
    return np.clip(quality, CERTAIN, 1)


def reservation(quality: Floats, price: Floats, trust: float) -> Floats:
    """float64[...]: what a sure answer must be worth, for asking this arm to be worth it no more.

    The reading says `right` with the probability of `quality`, and then expects more by
    `trust` of what is lacking, else less. With z in hand, the gain of asking is
    max(0, quality * (right - z), quality - z), which equals the price at the value returned.

    `quality`: float64[...], expected quality, above 0; `price`: float64[...], alpha times the cost
    still to pay.
    """
    right = quality + trust * (1 - quality)
    return np.maximum(right - price / quality, quality - price)
