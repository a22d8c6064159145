"""Kernel ridge regression in closed form, which predicts each row as if it had not learned from it.

The kernel compares the texts of two states by the distance of their vectors, and their numbers by
rank. Some of the rows, the landmarks, span it (Nystroem's method). Kernel and strength of the ridge
are those with the least leave-one-out error.

Letters of shapes: n rows, m landmarks, a actions, K knots, which are alphas. The last axis of an
observed value, of length 2, is Q and C from a state on. That of a prediction, of length 3, has the
probability that the action is the best one after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.bounds import REWARD_ROUNDING
from hierrouter.evaluation.outcome import Booleans, Floats, Integers
from hierrouter.learning.config import ValueConfig

Array = NDArray[np.float32]

# What is predicted of an action: Q, C, and whether it is the best one; see `with_is_best`.
PREDICTED = 3
# The kernels by number: Gaussians, exp(-factor * squared distance), by their factor; None is
# Laplace's. The last two are so wide that a regression on them is nearly a linear one, of each
# action.
KERNELS = (0.5, 2.0, None, 0.1, 0.02)
# Strengths of the ridge to choose from; of equally good ones the first, strongest one is taken.
KERNEL_RIDGES = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
VARIANCE_POWER = 0.15  # weight of a direction of a text: its variance to this power
KERNEL_CHOICE_LANDMARKS = 256  # landmarks with which kernels are compared
QUANTILE_COUNT = 33  # quantiles by which a number is ranked
DIAGONAL_JITTER = 1e-6  # added to the diagonal, so that rounding leaves a kernel positive definite
MAX_LEVERAGE = 0.9999  # at 1 a query alone decides its prediction, and leave-one-out divides by 0
REWARD_TOLERANCE = 1e-9  # two R that differ by less, in standard deviations, are equal
MIN_LIKELIHOOD = 1e-9  # a likelihood below it counts as this one
MIN_VARIANCE = 1e-9  # a smaller sum of variances counts as this one
MIN_ACTION_QUERIES = 2  # an action of fewer queries is not learned: without one, nothing is left
TEMPERATURES = np.geomspace(0.003, 3.0, 25)  # to choose from, in standard deviations of R
# Predictions of a regression nearer to 0 or 1 count as these: it may also leave the range.
LEAST_PROBABILITY = 0.01
# Strength of the penalty on the squares of intercept and (slope - 1): few questions change little.
CALIBRATION_PENALTY = 4.0


@dataclass(frozen=True, eq=False)
class TextProjection:
    """Projection of a text's vectors on their main directions; large ones weigh slightly more.

    Attributes:
        mean: float32[dim].
        basis: float32[dim, components], orthogonal columns.
    """

    mean: Array
    basis: Array

    @classmethod
    def of(cls, vectors: Array, components: int) -> TextProjection:
        """The projection on the main directions of some vectors, float32[n, dim]."""
        mean = vectors.mean(axis=0, dtype=np.float32)
        centred = vectors - mean
        if len(centred) < centred.shape[1]:
            # Fewer vectors than numbers span few directions: their own are quicker to find.
            _, deviation, rows = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
            variance = deviation[:components] ** 2
            basis = rows[:components].T
        else:
            variance, basis = np.linalg.eigh((centred.T @ centred).astype(np.float64))
            # `eigh` returns the largest directions last.
            variance = variance[::-1][:components].clip(min=0)
            basis = basis[:, ::-1][:, :components]
        weight = variance**VARIANCE_POWER
        # Distances keep their mean size.
        weighted_sum = max((variance * weight**2).sum(), MIN_VARIANCE)
        weight *= np.sqrt(variance.sum() / weighted_sum)
        return cls(mean, np.ascontiguousarray(basis * weight, np.float32))

    def __call__(self, vectors: Array) -> Array:
        """float32[n, components]: the components of some vectors, float32[n, dim]."""
        return np.asarray((vectors - self.mean) @ self.basis, np.float32)


@dataclass(frozen=True, eq=False)
class KernelInputs:
    """The inputs of a kernel: one state on n queries.

    Attributes:
        texts: float32[n, components], components of all texts, side by side.
        ranks: float32[n, c], each number's rank among those of the training, from 0 to 1.
    """

    texts: Array
    ranks: Array

    def select(self, rows: slice | Integers) -> KernelInputs:
        """Some of the rows."""
        return KernelInputs(self.texts[rows], self.ranks[rows])

    def similarity(self, other: KernelInputs, kernel: int) -> Floats:
        """The kernel's values between these rows and others.

        A difference in one number halves the similarity at most, so that a number without
        information does little harm.

        Args:
            other: m rows to compare with.
            kernel: number of the kernel, see `KERNELS`.

        Returns:
            float64[n, m], at most 1.
        """
        own_texts = self.texts.astype(np.float64)
        other_texts = other.texts.astype(np.float64)
        squares = (own_texts**2).sum(axis=1)[:, None] + (other_texts**2).sum(axis=1)
        # Rounding may make the square of a small distance negative.
        squared_distance = np.maximum(squares - 2 * own_texts @ other_texts.T, 0)
        factor = KERNELS[kernel]
        if factor is None:
            exponent = -np.sqrt(squared_distance)
        else:
            exponent = -factor * squared_distance
        similarity: Floats = np.exp(exponent)
        for own_rank, other_rank in zip(self.ranks.T, other.ranks.T, strict=True):
            difference = own_rank[:, None].astype(np.float64) - other_rank
            similarity *= (1 + np.exp(-8 * difference**2)) / 2
        return similarity


@dataclass(frozen=True, eq=False)
class Regression:
    """A regression, of a legal actions and K knots.

    Attributes:
        kernel: int64[1], number of the kernel, see `KernelInputs.similarity`.
        texts: float32[m, components], of the landmarks.
        ranks: float32[m, c], of the landmarks.
        columns: int64[c], which numbers are read; the highest column is C so far.
        quantiles: float32[c, QUANTILE_COUNT], by which they are ranked.
        weight: float32[m, a * K * 3], of the landmarks.
        added: float32[a * K * 3], the constant of each output.
        temperature: float32[K], of the softmax over expected R, in units of R.
    """

    kernel: Integers
    texts: Array
    ranks: Array
    columns: Integers
    quantiles: Array
    weight: Array
    added: Array
    temperature: Array

    def fits(self, components: int, numbers: int, choices: int, knots: int) -> bool:
        """Whether its parts fit each other, and what it reads and predicts.

        Args:
            components: of all texts.
            numbers: of a state, C so far aside.
            choices: a.
            knots: K.
        """
        (count,) = self.columns.shape
        landmarks = len(self.weight)
        outputs = choices * knots * PREDICTED
        return all(
            [
                self.kernel.dtype == self.columns.dtype == np.int64,
                self.kernel.shape == (1,) and int(self.kernel[0]) in range(len(KERNELS)),
                self.texts.shape == (landmarks, components),
                self.ranks.shape == (landmarks, count),
                self.quantiles.shape == (count, QUANTILE_COUNT),
                all(0 <= column <= numbers for column in self.columns),
                self.weight.shape == (landmarks, outputs),
                self.added.shape == (outputs,),
                self.temperature.shape == (knots,),
                bool((self.temperature > 0).all()),
            ]
        )

    def fits_queries(self, queries: int, states: int, choices: int) -> bool:
        """Whether what it knows of queries fits a model; this one knows nothing of them.

        Args:
            queries: number of those that were learned from.
            states: S, of each.
            choices: a.
        """
        return True

    def inputs(self, texts: Array, numbers: Array) -> KernelInputs:
        """The inputs of the kernel; the arguments are those of `predict`."""
        return KernelInputs(texts, rank_among(numbers[:, self.columns], self.quantiles))

    def predict(self, texts: Array, numbers: Array) -> Array:
        """Predict what follows each action.

        Args:
            texts: float32[n, components].
            numbers: float32[n, numbers + 1], the last one C so far.

        Returns:
            float32[n, a * K * 3].
        """
        landmarks = KernelInputs(self.texts, self.ranks)
        similarity = self.inputs(texts, numbers).similarity(landmarks, int(self.kernel[0]))
        return (similarity @ self.weight + self.added).astype(np.float32)


def rank_among(numbers: Array, quantiles: Array) -> Array:
    """Rank each number among the quantiles of its column.

    Args:
        numbers: float32[n, c].
        quantiles: float32[c, QUANTILE_COUNT], ascending.

    Returns:
        float32[n, c], from 0 to 1.
    """
    levels = np.linspace(0, 1, quantiles.shape[1])
    last = len(levels) - 1
    ranks = np.empty(numbers.shape, np.float32)
    for column, points in enumerate(quantiles):
        values = numbers[:, column]
        first_equal = np.searchsorted(points, values, "left")
        after_equal = np.searchsorted(points, values, "right")
        # A number that equals several quantiles has the middle of their levels; one between two
        # quantiles is interpolated.
        low_level = levels[np.minimum(first_equal, last)]
        high_level = levels[np.maximum(after_equal - 1, 0)]
        ranks[:, column] = np.where(
            after_equal > first_equal,
            (low_level + high_level) / 2,
            np.interp(values, points, levels),
        )
    return ranks


def fit_route(
    texts: Array,
    numbers: Array,
    target: Floats,
    knots: Floats,
    config: ValueConfig,
    row_groups: RowGroups,
    unknown: Floats,
) -> tuple[Regression, Floats]:
    """Fit the regression of some routes; the arguments and results are as in `fit_rows`.

    Args:
        texts: float32[n, components].
        numbers: float32[n, numbers + 1].
        target: float64[n, a, K, 2].
        knots: float64[K].
        config: the settings.
        row_groups: the queries of the rows.
        unknown: float64[3], what is predicted of an action of fewer than `MIN_ACTION_QUERIES`
            queries.
    """
    output_shape = (*target.shape[1:-1], PREDICTED)
    is_called = ~np.isnan(target[:, :, 0, 0])
    queries = [len(np.unique(row_groups.query[column])) for column in is_called.T]
    learned = np.flatnonzero(np.array(queries, np.int64) >= MIN_ACTION_QUERIES)
    held_out = np.empty((len(target), *output_shape))
    held_out[:] = unknown
    rows = np.flatnonzero(is_called[:, learned].any(axis=1))
    if len(learned):
        part, _, held_out[np.ix_(rows, learned)] = fit_rows(
            texts[rows],
            numbers[rows],
            target[np.ix_(rows, learned)],
            knots,
            config,
            row_groups.select(rows),
        )
    else:
        part = Regression(
            kernel=np.array([0]),
            texts=texts[:0],
            ranks=np.empty((0, 0), np.float32),
            columns=np.empty(0, np.int64),
            quantiles=np.empty((0, QUANTILE_COUNT), np.float32),
            weight=np.empty((0, 0), np.float32),
            added=np.empty(0, np.float32),
            temperature=np.ones(len(knots), np.float32),
        )
    landmarks = len(part.texts)
    weight = np.zeros((landmarks, *output_shape), np.float32)
    weight[:, learned] = part.weight.reshape(landmarks, len(learned), len(knots), PREDICTED)
    added = np.empty(output_shape, np.float32)
    added[:] = unknown
    added[learned] = part.added.reshape(len(learned), len(knots), PREDICTED)
    weight = weight.reshape(landmarks, added.size)
    return replace(part, weight=weight, added=added.ravel()), held_out


def fit_rows(
    texts: Array,
    numbers: Array,
    target: Floats,
    knots: Floats,
    config: ValueConfig,
    row_groups: RowGroups | None = None,
) -> tuple[Regression, Array, Floats]:
    """Fit a regression.

    Kernel and ridge are those with the least leave-one-out error on advantages; the regression
    itself then learns Q, C, and whether an action is the best.

    Args:
        texts: float32[n, components].
        numbers: float32[n, numbers + 1].
        target: float64[n, a, K, 2], what followed each action; NaN if it was never called there.
        knots: float64[K].
        config: the settings: the kernels to choose from, and how many rows span them: the first
            ones; of rows of routes an even selection.
        row_groups: the queries of the rows, and their weights; None if each row is a query.

    Returns:
        The regression; float32[n, a] or float32[n, 1], see `StateRegression.leverage`, of rows that
        are queries; and the prediction of each row without its query, float64[n, a, K, 3].
    """
    columns = np.flatnonzero(np.ptp(numbers, axis=0) > 0)
    quantiles = np.quantile(numbers[:, columns], np.linspace(0, 1, QUANTILE_COUNT), axis=0).T
    quantiles = quantiles.astype(np.float32).reshape(-1, QUANTILE_COUNT)
    inputs = KernelInputs(texts, rank_among(numbers[:, columns], quantiles))
    is_called = ~np.isnan(target[:, :, 0, 0])
    groups = _action_groups(is_called)
    reward = target[..., 0] - knots * target[..., 1]
    target = with_is_best(target, knots)
    output_shape = target.shape[1:]
    advantage, scale = _advantages(reward, is_called)

    def span(kernel: int, landmarks: KernelInputs) -> list[_LandmarkRegression]:
        """The regression of each group."""
        return [
            _LandmarkRegression(inputs.select(group.rows), kernel, landmarks)
            if row_groups is None
            else _GroupedRegression(
                inputs.select(group.rows), kernel, landmarks, row_groups.select(group.rows)
            )
            for group in groups
        ]

    def select_landmarks(count: int) -> KernelInputs:
        """Some of the rows."""
        if row_groups is None or count >= len(texts):
            return inputs.select(slice(count))
        return inputs.select(np.linspace(0, len(texts) - 1, count).astype(np.int64))

    def errors(regressions: Sequence[_LandmarkRegression]) -> Floats:
        """float64[ridges]: total squared error over all actions with each ridge."""
        total = np.zeros(len(KERNEL_RIDGES))
        for group, regression in zip(groups, regressions, strict=True):
            scaled = advantage[np.ix_(group.rows, group.actions)] / scale
            outputs = scaled.reshape(len(group.rows), -1)
            total += outputs.size * regression.errors(outputs)
        return total

    few_landmarks = select_landmarks(min(KERNEL_CHOICE_LANDMARKS, config.landmarks))
    least_errors = [errors(span(kernel, few_landmarks)).min() for kernel in config.kernels]
    kernel = config.kernels[int(np.argmin(least_errors))]
    landmarks = select_landmarks(config.landmarks)
    regressions = span(kernel, landmarks)
    ridge = KERNEL_RIDGES[int(errors(regressions).argmin())]

    weight = np.empty((len(landmarks.texts), *output_shape))
    constant = np.empty(output_shape)
    leverage = np.zeros(is_called.shape)
    held_out = np.empty(target.shape)
    for group, regression in zip(groups, regressions, strict=True):
        size = len(group.actions)
        cells = np.ix_(group.rows, group.actions)
        outputs = target[cells].reshape(len(group.rows), -1)
        slopes, level, fitted = regression.fit(outputs, ridge)
        weight[:, group.actions] = slopes.reshape(-1, size, *output_shape[1:])
        constant[group.actions] = level.reshape(-1, *output_shape[1:])
        leverage[cells] = regression.leverage(ridge)[:, None]
        without_self = regression.without_self(outputs, fitted, ridge)
        held_out[cells] = without_self.reshape(len(group.rows), size, *output_shape[1:])
        if len(group.other_rows):
            # Nothing was learned from these queries, so a plain prediction is held out.
            similarity = inputs.select(group.other_rows).similarity(landmarks, kernel)
            predicted = (similarity @ slopes + level).reshape(-1, size, *output_shape[1:])
            held_out[np.ix_(group.other_rows, group.actions)] = predicted

    expected_reward = held_out[..., 0] - knots * held_out[..., 1]
    expected_reward[~is_called] = -np.inf
    reward[~is_called] = -np.inf
    has_call = is_called.any(axis=1)
    temperature = _likeliest_temperature(expected_reward[has_call], reward[has_call], scale)
    fitted_regression = Regression(
        kernel=np.array([kernel]),
        texts=landmarks.texts,
        ranks=landmarks.ranks,
        columns=columns,
        quantiles=quantiles,
        weight=weight.reshape(len(weight), -1).astype(np.float32),
        added=constant.ravel().astype(np.float32),
        temperature=temperature.astype(np.float32),
    )
    leverage = leverage[:, :1] if is_called.all() else leverage
    return fitted_regression, leverage.astype(np.float32), held_out


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Which rows of a regression belong to the same query, and how much each row counts.

    Attributes:
        query: int64[n], ascending.
        weight: float64[n], above 0.
    """

    query: Integers
    weight: Floats

    def select(self, rows: Integers) -> RowGroups:
        """Some of the rows; their mean weight is 1."""
        weight = self.weight[rows]
        return RowGroups(self.query[rows], weight / weight.mean())

    @property
    def table(self) -> Integers:
        """int64[queries, g], the rows of each query; -1 where it has fewer than others."""
        _, group = np.unique(self.query, return_inverse=True)
        counts = np.bincount(group)
        position = np.arange(len(group)) - (np.cumsum(counts) - counts)[group]
        table = np.full((len(counts), counts.max()), -1)
        table[group, position] = np.arange(len(group))
        return table


@dataclass(frozen=True)
class _ActionGroup:
    """Actions that were called on the same queries, which share one regression.

    Attributes:
        rows: int64[r], the queries on which they were called.
        other_rows: int64[n - r], the other queries.
        actions: int64[g], positions among the legal actions.
    """

    rows: Integers
    other_rows: Integers
    actions: Integers


def _action_groups(is_called: Booleans) -> list[_ActionGroup]:
    """Group the actions by the queries on which they were called, bool[n, a]."""
    groups = []
    for pattern in np.unique(is_called, axis=1).T:
        is_member = (is_called == pattern[:, None]).all(axis=0)
        groups.append(
            _ActionGroup(
                rows=np.flatnonzero(pattern),
                other_rows=np.flatnonzero(~pattern),
                actions=np.flatnonzero(is_member),
            )
        )
    return groups


def with_is_best(observed: Floats, knots: Floats) -> Floats:
    """Add to what followed each action whether no other one was better.

    Args:
        observed: float64[n, a, K, 2], Q and C; NaN if the action was never called there.
        knots: float64[K].

    Returns:
        float64[n, a, K, 3]; the last number is 1 or 0.
    """
    reward = observed[..., 0] - knots * observed[..., 1]
    best = np.fmax.reduce(reward, axis=1, keepdims=True)
    is_best = np.where(np.isnan(reward), np.nan, reward >= best - REWARD_ROUNDING)
    return np.concatenate([observed, is_best[..., None]], axis=-1)


def _advantages(reward: Floats, is_called: Booleans) -> tuple[Floats, Floats]:
    """The reward of each action less the mean of all actions, and its scale.

    Args:
        reward: float64[n, a, K]; NaN if the action was never called on the query.
        is_called: bool[n, a].

    Returns:
        Advantages, float64[n, a, K], and their standard deviation at each knot, float64[K].
    """
    # An action that was not called counts with its mean over the other queries.
    complete = np.where(is_called[..., None], reward, np.nanmean(reward, axis=0))
    advantage = reward - complete.mean(axis=1, keepdims=True)
    scale = advantage[is_called].std(axis=0)
    return advantage, np.where(scale > 0, scale, 1.0)


def leave_one_out(
    predicted: Array | Floats, target: Floats, leverage: Array | Floats
) -> Array | Floats:
    """The prediction of each row by a ridge regression that has not learned from that row.

    Args:
        predicted: [...], by the regression that learned from all rows.
        target: [...], what it learned; NaN if it learned nothing from an entry, which then stays.
        leverage: of the same number of axes, see `_LandmarkRegression.leverage`.
    """
    without_self = (predicted - leverage * target) / (1 - leverage)
    return np.where(np.isnan(target), predicted, without_self)


class _LandmarkRegression:
    """Ridge regressions on a kernel that some landmarks span (Nystroem's method).

    If all rows are landmarks it is kernel ridge regression itself.

    Args:
        inputs: n rows.
        kernel: see `KernelInputs.similarity`.
        landmarks: m landmarks.
    """

    def __init__(self, inputs: KernelInputs, kernel: int, landmarks: KernelInputs) -> None:
        # Imported here: only a fit needs scipy, which deciding need not wait for.
        from scipy.linalg import solve_triangular

        between_landmarks = landmarks.similarity(landmarks, kernel)
        jitter = DIAGONAL_JITTER * np.eye(len(between_landmarks))
        root = np.linalg.cholesky(between_landmarks + jitter)
        self._mean, centred = self._centred(inputs.similarity(landmarks, kernel))  # float64[m]
        # Features whose inner products are the spanned kernel, turned to their main axes, so that
        # a ridge of any strength is a division by `_variance + ridge`.
        features = solve_triangular(root, centred.T, lower=True).T
        self._variance, axes = np.linalg.eigh(features.T @ features)  # float64[m]
        self._features = features @ axes  # float64[n, m]
        self._squares = self._features**2
        self._to_weights = solve_triangular(root.T, axes)  # float64[m, m]

    def _centred(self, values: Floats) -> tuple[Floats, Floats]:
        """The mean of float64[n, columns], and what is left without it."""
        mean = values.mean(axis=0)
        return mean, values - mean

    def leverage(self, ridge: float) -> Floats:
        """float64[n]: by how much each row decides its own prediction, the mean included."""
        leverage: Floats = self._squares @ (1 / (self._variance + ridge)) + 1 / len(self._features)
        return leverage.clip(max=MAX_LEVERAGE)

    def errors(self, outputs: Floats) -> Floats:
        """float64[ridges]: mean square leave-one-out error on float64[n, outputs]."""
        centred = outputs - outputs.mean(axis=0)
        correlation = self._features.T @ centred
        errors = []
        for ridge in KERNEL_RIDGES:
            residual = centred - self._features @ (correlation / (self._variance + ridge)[:, None])
            errors.append(np.mean((residual / (1 - self.leverage(ridge))[:, None]) ** 2))
        return np.array(errors)

    def without_self(self, outputs: Floats, fitted: Floats, ridge: float) -> Array | Floats:
        """Predict each row as if nothing had been learned from it, float64[n, outputs].

        Args:
            outputs: float64[n, outputs], what was learned.
            fitted: float64[n, outputs], predictions of all rows.
            ridge: strength of the penalty.
        """
        return leave_one_out(fitted, outputs, self.leverage(ridge)[:, None])

    def fit(self, outputs: Floats, ridge: float) -> tuple[Floats, Floats, Floats]:
        """Fit the regressions of some outputs.

        Args:
            outputs: float64[n, outputs].
            ridge: strength of the penalty.

        Returns:
            Weights of the landmarks, float64[m, outputs]; the constant of each output,
            float64[outputs]; and the predictions, float64[n, outputs].
        """
        mean = outputs.mean(axis=0)
        correlation = self._features.T @ (outputs - mean)
        coefficients = correlation / (self._variance + ridge)[:, None]
        weight = self._to_weights @ coefficients
        return weight, mean - self._mean @ weight, self._features @ coefficients + mean


class _GroupedRegression(_LandmarkRegression):
    """The same with weights of the rows, and several rows of a query, which are left out together.

    A row of weight w is as good as w equal rows.

    Args:
        inputs: n rows.
        kernel: see `KernelInputs.similarity`.
        landmarks: m landmarks.
        row_groups: the queries of the rows.
    """

    def __init__(
        self, inputs: KernelInputs, kernel: int, landmarks: KernelInputs, row_groups: RowGroups
    ) -> None:
        self._row_weight = row_groups.weight
        self._root_weight = np.sqrt(row_groups.weight)[:, None]
        self._table = row_groups.table
        super().__init__(inputs, kernel, landmarks)

    def _centred(self, values: Floats) -> tuple[Floats, Floats]:
        mean = np.average(values, axis=0, weights=self._row_weight)
        return mean, self._root_weight * (values - mean)

    def errors(self, outputs: Floats) -> Floats:
        """float64[ridges]: mean square error of rows without their query, by weight."""
        _, centred = self._centred(outputs)
        correlation = self._features.T @ centred
        errors = []
        for ridge in KERNEL_RIDGES:
            residual = centred - self._features @ (correlation / (self._variance + ridge)[:, None])
            errors.append(np.mean(self._without_group(residual, ridge) ** 2))
        return np.array(errors)

    def without_self(self, outputs: Floats, fitted: Floats, ridge: float) -> Floats:
        """Predict each row as if nothing had been learned from its query."""
        residual = self._root_weight * (outputs - fitted)
        left: Floats = outputs - self._without_group(residual, ridge) / self._root_weight
        return left

    def fit(self, outputs: Floats, ridge: float) -> tuple[Floats, Floats, Floats]:
        """Fit the regressions of some outputs, as in `_LandmarkRegression`."""
        mean, centred = self._centred(outputs)
        coefficients = (self._features.T @ centred) / (self._variance + ridge)[:, None]
        weight = self._to_weights @ coefficients
        fitted = self._features @ coefficients / self._root_weight + mean
        return weight, mean - self._mean @ weight, fitted

    def _without_group(self, residual: Floats, ridge: float) -> Floats:
        """The weighted residuals that are left if all rows of a row's query are left out.

        Solves (I - H) r' = r, where H is the part of the hat matrix between the rows of a query.

        Args:
            residual: float64[n, outputs], of the regression on all rows.
            ridge: strength of the penalty.
        """
        features = self._features / np.sqrt(self._variance + ridge)
        own_mean = self._root_weight / np.sqrt(self._row_weight.sum())
        # A row of zeros stands for the rows that a query has not.
        padded = np.pad(np.concatenate([features, own_mean], axis=1), ((0, 1), (0, 0)))[self._table]
        hat = padded @ padded.transpose(0, 2, 1)
        residuals = np.pad(residual, ((0, 1), (0, 0)))[self._table]
        solved = np.linalg.solve(np.eye(hat.shape[1]) - MAX_LEVERAGE * hat, residuals)
        result = np.empty_like(residual)
        is_row = self._table >= 0
        result[self._table[is_row]] = solved[is_row]
        return result


def _likeliest_temperature(expected: Floats, reward: Floats, scale: Floats) -> Floats:
    """The temperature with which the softmax of expected rewards best predicts the best action.

    Args:
        expected: float64[n, a, K], expected rewards.
        reward: float64[n, a, K], true rewards.
        scale: float64[K], of the rewards.

    Returns:
        float64[K], in units of R.
    """
    is_best = reward >= reward.max(axis=1, keepdims=True) - REWARD_TOLERANCE * scale
    logits = (expected - expected.max(axis=1, keepdims=True)) / scale
    log_likelihoods = []
    for temperature in TEMPERATURES:
        powers = np.exp(logits / temperature)
        probability = (powers * is_best).sum(axis=1) / powers.sum(axis=1)
        log_likelihoods.append(np.log(probability.clip(MIN_LIKELIHOOD)).mean(axis=0))
    return TEMPERATURES[np.argmax(log_likelihoods, axis=0)] * scale


@dataclass(frozen=True)
class Calibration:
    """A correction of predicted probabilities, so that of those near 90 % about 90 % come true.

    A regression predicts how probable it is that an action is the best one. For the action that a
    router takes this is too low, because it takes what looks best, or too high, because kernel and
    ridge were chosen on the same questions. Two numbers correct it: the log-odds are multiplied by
    a slope, and an intercept is added (Platt scaling). They are learned from choices on questions
    that the regression was made without.

    Attributes:
        intercept: added to the log-odds.
        slope: by which they are multiplied before.
    """

    intercept: float = 0.0
    slope: float = 1.0

    @classmethod
    def of(cls, predicted: Floats, happened: Booleans, weight: Floats) -> Calibration:
        """The likeliest correction, with a penalty that draws it towards none.

        Args:
            predicted: float64[n], probabilities; those below 0 and above 1 count as 0 and 1.
            happened: bool[n], whether what was predicted came true.
            weight: float64[n], how much each prediction counts; 1 is a question of its own.
        """
        # Imported here: only a fit needs scipy.
        from scipy.optimize import minimize
        from scipy.special import log_expit

        log_odds = _log_odds(predicted)
        sign = np.where(happened, 1.0, -1.0)

        def loss(change: Floats) -> float:
            corrected = change[0] + (1 + change[1]) * log_odds
            log_likelihood = weight @ log_expit(sign * corrected)
            return float(CALIBRATION_PENALTY / 2 * change @ change - log_likelihood)

        intercept, slope_change = minimize(loss, np.zeros(2), method="BFGS").x.tolist()
        return cls(intercept, 1 + slope_change)

    def __call__(self, predicted: Floats) -> Floats:
        """Correct probabilities, float64[...]; NaN stays NaN."""
        # Imported here: a decision needs no probability.
        from scipy.special import expit

        corrected: Floats = expit(self.intercept + self.slope * _log_odds(predicted))
        return corrected


def _log_odds(probability: Floats) -> Floats:
    likely = probability.clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    log_odds: Floats = np.log(likely / (1 - likely))
    return log_odds
