"""Baselines by scikit-learn: neighbours, regressions, support vector machines, networks.

Matrix factorisation is here, too: it rates arms for a question by battles between them, as RouteLLM
does.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.cluster import KMeans
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.svm import SVC
from torch import Tensor

from hierrouter.evaluation.bounds import cheapest_best
from hierrouter.learning.baselines.arms import (
    REWARD_DIGITS,
    Arms,
    Candidates,
    FittedRouter,
    GridSearch,
    Play,
    RouterInputs,
    always,
    best_arm,
)
from hierrouter_cache.tree import net_reward

MLP_BATCH_SIZE = 200
# Models that `fit_expectation` chooses from, and the folds of its cross-validation.
EXPECTATION_PENALTIES = (0.1, 1.0, 10.0, 100.0)
EXPECTATION_NEIGHBOURS = (10, 30, 100)
EXPECTATION_FOLDS = 5


def _by_regression(model: Any, train: Arms, alpha: float) -> FittedRouter:
    """Fit a router that takes the arm with the highest predicted R; ties: lower predicted cost.

    A quality or a cost that is the same on all queries of `train` is predicted as such.

    Args:
        model: one regression of quality and cost of all arms on the question.
        train: the fold to learn from.
        alpha: of R = Q - alpha * C.
    """
    target = np.concatenate([train.quality, train.cost], axis=1)
    is_constant = target.min(axis=0) == target.max(axis=0)
    model.fit(train.seen.question, target)

    def play(inputs: RouterInputs) -> Play:
        predicted = np.where(is_constant, target[0], model.predict(inputs.question))
        quality, cost = np.split(predicted, 2, axis=1)
        reward = np.round(net_reward(quality, cost, alpha), REWARD_DIGITS)
        return Play.of(inputs, cheapest_best(reward, cost.round(REWARD_DIGITS)))

    return play


@dataclass(frozen=True)
class NearestNeighbours(GridSearch):
    """Quality and cost of every arm: the mean over the nearest questions.

    Attributes:
        neighbours: how many.
        weights: "uniform", or "distance" for one over the cosine distance.
    """

    neighbours: tuple[int, ...] = (3, 5, 10, 20, 40, 80)
    weights: tuple[str, ...] = ("uniform", "distance")
    name: ClassVar[str] = "kNN"
    source: ClassVar[str] = "Hu et al. 2024, arXiv 2403.12031; Li 2025, arXiv 2505.12601"

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """One for each number of neighbours and each weighting."""
        sizes = sorted({min(size, len(train)) for size in self.neighbours})
        for size, weights in product(sizes, self.weights):
            model = KNeighborsRegressor(size, weights=weights, metric="cosine", algorithm="brute")
            yield {"neighbours": size, "weights": weights}, _by_regression(model, train, alpha)


@dataclass(frozen=True)
class Mlp(GridSearch):
    """A network of one hidden layer, trained by Adam for a given number of steps.

    Attributes:
        steps: of the optimiser; the passes over the train fold follow from it.
        penalties: weights of the squared length of the weights.
        hidden: width of the layer.
    """

    steps: tuple[int, ...] = (200, 800)
    penalties: tuple[float, ...] = (0.01, 1.0, 10.0)
    hidden: int = 64
    name: ClassVar[str] = "MLP"
    source: ClassVar[str] = "Hu et al. 2024, arXiv 2403.12031"

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """One for each number of steps and each penalty.

        Inputs and targets have mean 0 and spread 1, so that quality and cost count alike.
        """
        seed = int(rng.integers(2**31))
        batch = min(MLP_BATCH_SIZE, len(train))
        for steps, penalty in product(self.steps, self.penalties):
            passes = math.ceil(steps / math.ceil(len(train) / batch))
            network = MLPRegressor(
                hidden_layer_sizes=(self.hidden,),
                alpha=penalty,
                batch_size=batch,
                max_iter=passes,
                n_iter_no_change=passes,
                random_state=seed,
            )
            model = TransformedTargetRegressor(
                make_pipeline(Normalizer(), StandardScaler(), network), transformer=StandardScaler()
            )
            with warnings.catch_warnings():
                # The number of steps is a setting, so an end before convergence is intended.
                warnings.simplefilter("ignore", ConvergenceWarning)
                router = _by_regression(model, train, alpha)
            yield {"steps": steps, "penalty": penalty}, router


@dataclass(frozen=True)
class Svm(GridSearch):
    """One support vector machine for each pair of arms, and a vote among them.

    Attributes:
        kernels: of scikit-learn's `SVC`.
        slack: its C.
    """

    kernels: tuple[str, ...] = ("linear", "rbf")
    slack: tuple[float, ...] = (1.0, 10.0)
    name: ClassVar[str] = "SVM"
    source: ClassVar[str] = "LLMRouter, github.com/ulab-uiuc/LLMRouter"

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """One for each kernel and each slack."""
        best = cheapest_best(train.reward(alpha), train.cost)
        if (best == best[0]).all():
            # `SVC` needs at least two labels.
            constant = always(train, int(best[0]))
            yield constant.settings, constant.play
            return
        # A tie of votes goes to the lower label, so labels are ranks by mean cost.
        by_cost = train.cost.mean(axis=0).argsort(kind="stable")
        rank = by_cost.argsort()
        for kernel, slack in product(self.kernels, self.slack):
            model = make_pipeline(Normalizer(), SVC(C=slack, kernel=kernel))
            model.fit(train.seen.question, rank[best])
            yield {"kernel": kernel, "C": slack}, partial(_by_predicted_rank, model, by_cost)


def _by_predicted_rank(model: Any, by_cost: NDArray[np.int64], inputs: RouterInputs) -> Play:
    """Take the arm whose rank by cost a classifier predicts."""
    return Play.of(inputs, by_cost[model.predict(inputs.question)])


@dataclass(frozen=True)
class Clusters(GridSearch):
    """The best arm of each cluster of the questions' embeddings, by k-means.

    Attributes:
        clusters: how many; no more than there are questions.
    """

    clusters: tuple[int, ...] = (2, 4, 8, 16, 32)
    name: ClassVar[str] = "clusters"
    source: ClassVar[str] = "Jitkrittum et al. 2025, arXiv 2502.08773"

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """One for each number of clusters."""
        seed = int(rng.integers(2**31))
        vectors = _unit_vectors_and_constant(train.seen.question)
        distinct = len(np.unique(vectors, axis=0))
        reward = train.reward(alpha)
        for count in sorted({min(count, distinct) for count in self.clusters}):
            model = KMeans(count, n_init=3, random_state=seed).fit(vectors)
            cluster = model.predict(vectors)
            arms = [best_arm(reward[cluster == k], train.cost[cluster == k]) for k in range(count)]
            yield {"clusters": count}, partial(_by_cluster, model, np.array(arms, np.int64))


def _by_cluster(model: Any, arms: NDArray[np.int64], inputs: RouterInputs) -> Play:
    """Take the arm of the cluster that a fitted k-means finds."""
    return Play.of(inputs, arms[model.predict(_unit_vectors_and_constant(inputs.question))])


@dataclass(frozen=True)
class RidgePerArm(GridSearch):
    """Least squares with a penalty on the weights, on embeddings of length 1.

    Attributes:
        penalties: strengths of the penalty.
    """

    penalties: tuple[float, ...] = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    name: ClassVar[str] = "ridge"
    source: ClassVar[str] = "Li 2025, arXiv 2505.12601"

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """One for each penalty."""
        for penalty in self.penalties:
            model = make_pipeline(Normalizer(), Ridge(penalty))
            yield {"penalty": penalty}, _by_regression(model, train, alpha)


@dataclass(frozen=True)
class Expectation:
    """A fitted map from questions to expected values.

    Attributes:
        model: fitted on all train questions.
        held_out: float64[queries, targets], expected values of the train questions, each by a model
            that has not learned from it.
    """

    model: RegressorMixin
    held_out: NDArray[np.float64]

    def predict(self, question: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[queries, targets]: expected values of questions, float32[queries, dim]."""
        predicted = np.asarray(self.model.predict(_with_zero_column(question)), np.float64)
        # A single target comes back without its axis.
        return predicted.reshape(len(question), -1)


def fit_expectation(
    question: NDArray[np.float32], values: NDArray[np.float64], rng: np.random.Generator
) -> Expectation:
    """Fit the model with the least cross-validated error, of ridge regressions and neighbours.

    Args:
        question: float32[queries, dim], of the train fold, at least one.
        values: float64[queries, targets].
        rng: cuts the folds of the cross-validation.
    """
    inputs = _with_zero_column(question)
    queries = len(question)
    if queries == 1:
        return Expectation(Ridge().fit(inputs, values), values)
    folds = KFold(
        min(EXPECTATION_FOLDS, queries), shuffle=True, random_state=int(rng.integers(2**31))
    )
    largest_fold = -(-queries // folds.n_splits)
    candidates = []
    for model in _candidate_models(queries - largest_fold):
        held_out = np.asarray(cross_val_predict(model, inputs, values, cv=folds), np.float64)
        candidates.append(Expectation(model, held_out.reshape(values.shape)))

    def error(candidate: Expectation) -> float:
        return float(((values - candidate.held_out) ** 2).sum())

    best = min(candidates, key=error)
    return Expectation(best.model.fit(inputs, values), best.held_out)


def _candidate_models(questions: int) -> Iterator[RegressorMixin]:
    """The models to compare, if the smallest training set has this number of questions."""
    yield from map(Ridge, EXPECTATION_PENALTIES)
    for neighbours in sorted({min(count, questions) for count in EXPECTATION_NEIGHBOURS}):
        yield KNeighborsRegressor(neighbours, weights="distance", algorithm="brute")


def _with_zero_column(question: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64[queries, dim + 1]: a view without texts has no column, which a regression refuses."""
    return np.pad(question.astype(np.float64), ((0, 0), (0, 1)))


# Matrix factorisation.

Battles = Literal["all", "best"]


@dataclass(frozen=True)
class Factorisation(GridSearch):
    """Strengths of arms by matrix factorisation: question vector times map times arm vector.

    The strengths are fitted to who wins battles of two arms on a question. The grid is over who
    fights whom, and over the number of training steps.

    Attributes:
        battles: "all" arms against all, or the "best" arm of a query against all others.
        steps: of Adam, each over all train queries; ascending.
        rank: length of the vectors.
        weighed: weigh a win by its gain in R; False is the method of the source.
        learning_rate: Adam's.
    """

    battles: tuple[Battles, ...] = ("all", "best")
    steps: tuple[int, ...] = (50, 150, 400)
    rank: int = 32
    weighed: bool = True
    learning_rate: float = 0.01
    name: ClassVar[str] = "matrix factorisation"
    source: ClassVar[str] = "Ong et al. 2024, arXiv 2406.18665"

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """One training for each kind of battles; a candidate after each number of steps."""
        question = torch.from_numpy(_unit_vectors_and_constant(train.seen.question))
        reward = torch.from_numpy(train.reward(alpha).astype(np.float32))
        best = torch.from_numpy(cheapest_best(train.reward(alpha), train.cost))[:, None]
        for battles in self.battles:
            initial = rng.normal(0, self.rank**-0.5, (question.shape[1], self.rank))
            question_map = torch.tensor(initial.astype(np.float32), requires_grad=True)
            # Arms start as equals, so that without anything to learn the cheapest is chosen.
            arm_vectors = torch.zeros((train.seen.arms, self.rank), requires_grad=True)
            adam = torch.optim.Adam([question_map, arm_vectors], lr=self.learning_rate)
            for step in range(1, max(self.steps) + 1):
                # Every arm meets another one, the same on all questions.
                others = torch.from_numpy(rng.permutation(len(arm_vectors)))
                opponent = (best if battles == "best" else others).expand(reward.shape)
                strength = question @ question_map @ arm_vectors.T
                lead = strength - strength.gather(1, opponent)
                gap = reward - reward.gather(1, opponent)
                adam.zero_grad()
                battle_loss(lead, gap, self.weighed).backward()  # type: ignore[no-untyped-call]
                adam.step()
                if step in self.steps:
                    weights = (question_map @ arm_vectors.T).detach().numpy()
                    play = partial(_strongest_arm, weights, train.cost.mean(axis=0))
                    yield {"battles": battles, "steps": step}, play


def battle_loss(lead: Tensor, gap: Tensor, weighed: bool) -> Tensor:
    """Mean negative log-likelihood of the winners.

    Args:
        lead: float32[...], strength of one arm less that of its opponent.
        gap: float32[...], its reward less the opponent's; 0 is no battle.
        weighed: weigh a battle by the size of its gap.
    """
    weight = gap.abs() if weighed else (gap != 0).float()
    loss = torch.nn.functional.softplus(-torch.sign(gap) * lead)
    return (weight * loss).sum() / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)


def _unit_vectors_and_constant(question: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[queries, dim + 1]: the vectors at length 1 (zeros stay), and a constant."""
    length = np.linalg.norm(question, axis=1, keepdims=True)
    unit = np.divide(question, np.where(length > 0, length, 1), dtype=np.float32)
    return np.pad(unit, ((0, 0), (0, 1)), constant_values=1)


def _strongest_arm(
    weights: NDArray[np.float32], cost: NDArray[np.float64], inputs: RouterInputs
) -> Play:
    """Take the strongest arm for each question; of equals the cheapest on average.

    Args:
        weights: float32[dim + 1, arms].
        cost: float64[arms], mean cost.
        inputs: the queries.
    """
    vectors = _unit_vectors_and_constant(inputs.question)
    strength = (vectors @ weights).astype(np.float64).round(REWARD_DIGITS)
    return Play.of(inputs, cheapest_best(strength, np.broadcast_to(cost, strength.shape)))
