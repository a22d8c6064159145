"""Baselines that read answers before they choose: cascades, and cascade routing."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import numpy as np

from hierrouter.evaluation.bounds import cheapest_best
from hierrouter.evaluation.outcome import Booleans, Floats, Integers
from hierrouter.learning.baselines import answers
from hierrouter.learning.baselines.answers import (
    AnswerReader,
    AnswerScorer,
    FoldScorer,
    ScoreAnswers,
    fit_scorer,
)
from hierrouter.learning.baselines.arms import (
    REWARD_DIGITS,
    Arms,
    Candidates,
    FitResult,
    GridSearch,
    Play,
    RouterInputs,
    best_static,
)
from hierrouter.learning.baselines.classifiers import Expectation, fit_expectation

LEAST_GAIN = 10**-REWARD_DIGITS  # a smaller difference of R or of a score is rounding
UNREACHABLE_SCORE = 3.0  # as a threshold it ends no cascade: no score is as high
MIN_EXPECTED_QUALITY = 1e-6  # a lower expectation counts as this one, by which prices are divided


@dataclass(frozen=True)
class Chain:
    """Arms in the order in which they are asked.

    Attributes:
        arms: numbers of the arms.
        thresholds: for each arm but the last, the score from which on its answer is returned.
    """

    arms: tuple[int, ...]
    thresholds: tuple[float, ...] = ()


class FitAnswerReader(Protocol):
    """Learns on a fold to score answers."""

    def __call__(self, train: Arms, rng: np.random.Generator) -> AnswerReader: ...


@dataclass(frozen=True)
class Cascade:
    """A chain of at least one arm: it ends with the first answer that looks good enough.

    The chain is found by beam search on the validation fold.

    Attributes:
        name: see `Baseline`.
        source: see `Baseline`.
        fit_reader: learns on the train fold to score answers.
        longest: arms of a chain, at most.
        beam_width: chains of each length that are extended; of length 1, all are.
    """

    name: str
    source: str
    fit_reader: FitAnswerReader
    longest: int = 6
    beam_width: int = 12
    reads_answers: ClassVar[bool] = True

    def fit(
        self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator
    ) -> FitResult:
        """Learn to score answers on `train`; choose the chain on `validation`."""
        if not len(validation):
            return best_static(train, alpha)
        reader = self.fit_reader(train, rng)
        chain = self._best_chain(reader(validation.seen), validation, alpha)

        def play(inputs: RouterInputs) -> Play:
            answer, read, _ = _follow(chain, inputs, reader(inputs))
            return Play.after(inputs, answer, read)

        names = [train.names[arm] for arm in chain.arms]
        return FitResult(play, {"arms": names, "thresholds": list(chain.thresholds)})

    def _best_chain(self, score: ScoreAnswers, fold: Arms, alpha: float) -> Chain:
        """The chain of the highest mean R on a fold, of those that the search visits."""
        reward = fold.reward(alpha).mean(axis=0)
        beam = [(float(reward[arm]), Chain((int(arm),))) for arm in _arms_by_cost(fold)]
        visited = beam
        for _ in range(1, self.longest):
            extended = [
                extension
                for chain_reward, chain in beam
                for extension in _extensions(chain_reward, chain, score, fold, alpha)
            ]
            beam = _best_first(extended)[: self.beam_width]
            visited = [*visited, *beam]
        _, best = _best_first(visited)[0]
        return best


def _extensions(
    chain_reward: float, chain: Chain, score_of: ScoreAnswers, fold: Arms, alpha: float
) -> Iterator[tuple[float, Chain]]:
    """A chain with each arm added at its end, at the best threshold, if that makes R higher.

    Args:
        chain_reward: mean R of the chain on the fold.
        chain: the chain.
        score_of: scores the answers of the fold.
        fold: the fold.
        alpha: of R = Q - alpha * C.

    Yields:
        Mean R, and the longer chain.
    """
    _, read, query = _follow(chain, fold.seen, score_of)
    read = read[query]
    last = chain.arms[-1]
    score = score_of(query, np.full(len(query), last), read)
    # float64[n, arms]: what is gained on each query that reaches the last arm, if it goes on.
    unpaid = fold.call_cost[query] * ~fold.seen.calls_to_read(read)
    gain = fold.quality[query] - fold.quality[query, last][:, None]
    gain -= alpha * unpaid @ fold.seen.calls.T
    # A threshold sends on the queries with the lowest scores, and does not part equal scores.
    worst_first = score.argsort(kind="stable")
    score = score[worst_first]
    cuts = np.flatnonzero(np.diff(score, append=UNREACHABLE_SCORE) > LEAST_GAIN)
    total_gain = gain[worst_first].cumsum(axis=0)[cuts] / len(fold)
    for arm in _arms_by_cost(fold):
        if arm in chain.arms:
            continue
        best = int(np.argmax(total_gain[:, arm]))
        if total_gain[best, arm] > LEAST_GAIN:
            cut = cuts[best]
            next_score = score[cut + 1] if cut + 1 < len(score) else UNREACHABLE_SCORE
            threshold = float((score[cut] + next_score) / 2)
            longer = Chain((*chain.arms, int(arm)), (*chain.thresholds, threshold))
            yield chain_reward + float(total_gain[best, arm]), longer


def _follow(
    chain: Chain, inputs: RouterInputs, score_of: ScoreAnswers
) -> tuple[Integers, Booleans, Integers]:
    """Play a chain.

    Returns:
        int64[queries], the arm whose answer is returned; bool[queries, arms], the arms that are
        asked; and int64[n], positions of the queries that reach the last arm.
    """
    queries = len(inputs)
    answer = np.full(queries, chain.arms[-1])
    read = np.zeros((queries, inputs.arms), np.bool_)
    playing = np.arange(queries)
    for arm, threshold in zip(chain.arms, chain.thresholds, strict=False):
        read[playing, arm] = True
        score = score_of(playing, np.full(len(playing), arm), read[playing])
        answer[playing[score >= threshold]] = arm
        playing = playing[score < threshold]
    read[playing, chain.arms[-1]] = True
    return answer, read, playing


def _arms_by_cost(fold: Arms) -> Integers:
    """int64[arms]: the arms, cheapest first."""
    return fold.cost.mean(axis=0).argsort(kind="stable")


def _best_first(chains: list[tuple[float, Chain]]) -> list[tuple[float, Chain]]:
    """Sort by R, highest first; equals keep their order: shorter chains, then cheaper arms."""
    return sorted(chains, key=lambda candidate: -round(candidate[0], REWARD_DIGITS))


CASCADES = (
    Cascade(
        "cascade",
        "FrugalGPT, Chen et al. 2023, arXiv 2305.05176; AutoMix, arXiv 2310.12963",
        answers.fit_forest,
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


@dataclass(frozen=True)
class CascadeRouting(GridSearch):
    """At each step ask the arm that is most worth it, or end.

    Attributes:
        trust: how much of the uncertainty about an answer reading it resolves, 0 to 1; with 0
            another arm is asked only if it is expected to be better by more than its cost.
        longest: arms asked, at most.
    """

    trust: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    longest: int = 4
    name: ClassVar[str] = "cascade routing"
    source: ClassVar[str] = "Dekoninck et al. 2024, arXiv 2410.10347; Weitzman 1979"
    reads_answers: ClassVar[bool] = True

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """One fit on `train`; each candidate trusts the answers differently."""
        scorer = fit_scorer(train, rng)
        cost = fit_expectation(train.seen.question, train.call_cost, rng)
        residual = train.quality - scorer.prior.held_out
        covariance = np.atleast_2d(np.cov(residual.T, bias=True))
        for trust in self.trust:
            yield {"trust": trust}, partial(self._play, scorer, cost, covariance, alpha, trust)

    def _play(
        self,
        scorer: AnswerScorer,
        expected_cost: Expectation,
        covariance: Floats,
        alpha: float,
        trust: float,
        inputs: RouterInputs,
    ) -> Play:
        """Play a fitted router.

        Args:
            scorer: expects quality before and after an answer.
            expected_cost: of every call, by the question.
            covariance: float64[arms, arms], of the qualities, given the question.
            alpha: of R = Q - alpha * C.
            trust: one of the settings.
            inputs: the queries.
        """
        fold_scorer = scorer.for_queries(inputs)
        read = np.zeros((len(inputs), inputs.arms), np.bool_)
        cost = np.maximum(expected_cost.predict(inputs.question), 0)
        quality = np.clip(fold_scorer.prior, MIN_EXPECTED_QUALITY, 1)
        playing = np.arange(len(inputs))
        for _ in range(min(self.longest, inputs.arms)):
            unpaid = (cost[playing] * ~inputs.calls_to_read(read[playing])) @ inputs.calls.T
            worth = reservation(quality[playing], alpha * unpaid, trust).round(REWARD_DIGITS)
            worth[read[playing]] = -np.inf
            best = np.where(read[playing], quality[playing], -np.inf).max(axis=1)
            arm = cheapest_best(worth, unpaid)
            goes_on = worth.max(axis=1) > best + LEAST_GAIN
            playing = playing[goes_on]
            read[playing, arm[goes_on]] = True
            quality[playing] = _quality_after(fold_scorer, covariance, playing, read[playing])
        answer = np.where(read, quality, -np.inf).argmax(axis=1)
        return Play.after(inputs, answer, read)


def _quality_after(
    scorer: FoldScorer, covariance: Floats, query: Integers, read: Booleans
) -> Floats:
    """Expected quality of all arms once some answers are read.

    Scores replace the prior of the arms whose answers are read. The prior of the other arms moves
    with the surprise about these, by linear regression.

    Args:
        scorer: scores the answers.
        covariance: float64[arms, arms], of the qualities, given the question.
        query: int64[n].
        read: bool[n, arms], the arms whose answers are read.

    Returns:
        float64[n, arms].
    """
    prior = np.clip(scorer.prior[query], MIN_EXPECTED_QUALITY, 1)
    quality = prior.copy()
    row, arm = np.nonzero(read)
    quality[row, arm] = scorer.score(query[row], arm, read[row])
    # Queries with the same read arms share their regression.
    patterns, pattern_of_row = np.unique(read, axis=0, return_inverse=True)
    for number, is_read in enumerate(patterns):
        rows = np.flatnonzero(pattern_of_row == number)
        cells = np.ix_(rows, is_read)
        surprise = quality[cells] - prior[cells]
        read_covariance = covariance[np.ix_(is_read, is_read)]
        coefficients = np.linalg.pinv(read_covariance) @ covariance[is_read][:, ~is_read]
        quality[np.ix_(rows, ~is_read)] += surprise @ coefficients
    return np.clip(quality, MIN_EXPECTED_QUALITY, 1)


def reservation(quality: Floats, price: Floats, trust: float) -> Floats:
    """The worth of a certain answer at which asking another arm no longer pays.

    Reading the arm's answer finds it right with the probability of `quality`, and then expects more
    by `trust` of what is lacking to 1, else less. With a certain worth z in hand, the gain of
    asking is max(0, quality * (right - z), quality - z), which equals the price at the returned z.

    Args:
        quality: float64[...], expected quality of the arm, above 0.
        price: float64[...], alpha times the cost still to pay for it.
        trust: see `CascadeRouting`.

    Returns:
        float64[...].
    """
    right = quality + trust * (1 - quality)
    return np.maximum(right - price / quality, quality - price)
