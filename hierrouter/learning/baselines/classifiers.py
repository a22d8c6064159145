"""Routers by scikit-learn: neighbours, regressions, networks."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.svm import SVC

from hierrouter.evaluation.bounds import cheapest_best
from hierrouter.learning.baselines import arms
from hierrouter.learning.baselines.arms import Arms, Candidates, Fitted, GridSearch, Play, Seen
from hierrouter.learning.baselines.simple import always
from hierrouter_cache.tree import net_reward


def _regression(model: Any, train: Arms, alpha: float) -> Fitted:
    """The arm with the highest predicted R = Q - alpha * C; ties: lower predicted cost.

    `model`: one regression of quality and cost of all arms on the question. What is the same on all
    queries of `train` is predicted as such.
    """
    learned = np.concatenate([train.quality, train.cost], axis=1)
    constant = learned.min(axis=0) == learned.max(axis=0)
    model.fit(train.seen.question, learned)

    def play(seen: Seen) -> Play:
        predicted = np.where(constant, learned[0], model.predict(seen.question))
        quality, cost = np.split(predicted, 2, axis=1)
        utility = np.round(net_reward(quality, cost, alpha), arms.DIGITS)
        return Play.of(seen, cheapest_best(utility, cost.round(arms.DIGITS)))

    return play


@dataclass(frozen=True)
class NearestNeighbours(GridSearch):
    """Quality and cost of every arm: the mean over the nearest questions.

    Attributes:
        weights: "uniform", or "distance" for one over the cosine distance.
    """

    neighbours: tuple[int, ...] = (3, 5, 10, 20, 40, 80)
    weights: tuple[str, ...] = ("uniform", "distance")
    name: ClassVar[str] = "kNN"
    source: ClassVar[str] = "Hu et al. 2024, arXiv 2403.12031; Li 2025, arXiv 2505.12601"

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        sizes = sorted({min(size, len(train)) for size in self.neighbours})
        for size, weights in product(sizes, self.weights):
            model = KNeighborsRegressor(size, weights=weights, metric="cosine", algorithm="brute")
            yield {"neighbours": size, "weights": weights}, _regression(model, train, alpha)


BATCH = 200


@dataclass(frozen=True)
class Mlp(GridSearch):
    """One hidden layer, trained by Adam for a given number of steps.

    Attributes:
        steps: of the optimiser; as many passes over the train fold as that takes.
    """

    steps: tuple[int, ...] = (200, 800)
    penalties: tuple[float, ...] = (0.01, 1.0, 10.0)
    hidden: int = 64
    name: ClassVar[str] = "MLP"
    source: ClassVar[str] = "Hu et al. 2024, arXiv 2403.12031"

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """Inputs and targets have mean 0 and spread 1, so that quality and cost count alike."""
        seed, batch = int(rng.integers(2**31)), min(BATCH, len(train))
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
                # It ends after the steps it was given; how many is a setting.
                warnings.simplefilter("ignore", ConvergenceWarning)
                router = _regression(model, train, alpha)
            yield {"steps": steps, "penalty": penalty}, router


@dataclass(frozen=True)
class Svm(GridSearch):
    """One machine for each pair of arms, and a vote among them.

    Attributes:
        kernels: of scikit-learn's `SVC`.
    """

    kernels: tuple[str, ...] = ("linear", "rbf")
    slack: tuple[float, ...] = (1.0, 10.0)
    name: ClassVar[str] = "SVM"
    source: ClassVar[str] = "LLMRouter, github.com/ulab-uiuc/LLMRouter"

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """A tie of votes goes to the lower label, so labels are ranks by mean cost."""
        best = cheapest_best(train.reward(alpha), train.cost)
        if (best == best[0]).all():
            alone = always(train, int(best[0]))
            yield alone.settings, alone.play
            return
        by_cost = train.cost.mean(axis=0).argsort(kind="stable")
        rank = by_cost.argsort()
        for kernel, slack in product(self.kernels, self.slack):
            model = make_pipeline(Normalizer(), SVC(C=slack, kernel=kernel))
            model.fit(train.seen.question, rank[best])
            yield {"kernel": kernel, "C": slack}, partial(_arm_of_rank, model, by_cost)


def _arm_of_rank(model: Any, by_cost: NDArray[np.int64], seen: Seen) -> Play:
    return Play.of(seen, by_cost[model.predict(seen.question)])


@dataclass(frozen=True)
class RidgePerArm(GridSearch):
    """Least squares with a penalty on the weights, on embeddings of length 1."""

    penalties: tuple[float, ...] = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    name: ClassVar[str] = "ridge"
    source: ClassVar[str] = "Li 2025, arXiv 2505.12601"

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        for penalty in self.penalties:
            model = make_pipeline(Normalizer(), Ridge(penalty))
            yield {"penalty": penalty}, _regression(model, train, alpha)


PENALTIES = (0.1, 1.0, 10.0, 100.0)
NEIGHBOURS = (10, 30, 100)
FOLDS = 5


@dataclass(frozen=True)
class Expectation:
    """A map from questions to expected values.

    Attributes:
        held_out: float64[queries, targets], of the train questions, each from a model that has
            not seen it.
    """

    model: RegressorMixin
    held_out: NDArray[np.float64]

    def predict(self, question: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[queries, targets]."""
        predicted = np.asarray(self.model.predict(_padded(question)), np.float64)
        return predicted.reshape(len(question), -1)


def expectation(
    question: NDArray[np.float32], values: NDArray[np.float64], rng: np.random.Generator
) -> Expectation:
    """Fit it.

    `question`: float32[queries, dim], of the train fold, at least one; `values`: float64[queries,
    targets]; `rng`: cuts the folds.
    """
    columns, queries = _padded(question), len(question)
    if queries == 1:
        return Expectation(Ridge().fit(columns, values), values)
    folds = KFold(min(FOLDS, queries), shuffle=True, random_state=int(rng.integers(2**31)))
    tried = []
    for model in _models(queries - -(-queries // folds.n_splits)):
        held_out = np.asarray(cross_val_predict(model, columns, values, cv=folds), np.float64)
        # A single target comes back without its axis.
        tried.append(Expectation(model, held_out.reshape(values.shape)))
    best = min(tried, key=lambda found: float(((values - found.held_out) ** 2).sum()))
    return Expectation(best.model.fit(columns, values), best.held_out)


def _models(questions: int) -> Iterator[RegressorMixin]:
    """What is tried, for at least so many questions to learn from."""
    yield from map(Ridge, PENALTIES)
    for neighbours in sorted({min(count, questions) for count in NEIGHBOURS}):
        yield KNeighborsRegressor(neighbours, weights="distance", algorithm="brute")


def _padded(question: NDArray[np.float32]) -> NDArray[np.float64]:
    """With a column of zeros: the view without texts has none, which a regression refuses."""
    return np.pad(question.astype(np.float64), ((0, 0), (0, 1)))
