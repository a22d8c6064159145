"""The value model: Q and C after every action, for every alpha, in closed form.

At each state one kernel ridge regression, see `regression`, predicts what follows each action until
the episode ends, once for each of some alphas (knots): what follows depends on the later choices,
and these on alpha. The fit goes from the last decisions to the first
(`_BackwardInduction`). Each choice on a query is predicted without that query (leave-one-out, in
closed form), so that no fold has to be held back. There are no epochs, and nothing is random.

On a tree whose queries lack nodes, as a log has, there is one regression for each route: for all
nodes that the same actions lead to, whatever draws came, weighted by the probability of the draws.
Routes of few queries share one (`_regression_numbers`). A choice on a query is predicted without
all rows of this query.

Letters of shapes: S states of a query, A actions, a legal actions of a state, K knots, n queries of
a state. The last axis of an observed value, of length 2, is Q and C from the state on. That of a
prediction, of length 3, has the probability that the action is the best one after them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hierrouter.declarations.checks import MAX_ALPHA
from hierrouter.evaluation.bounds import greedy_decisions
from hierrouter.evaluation.budget import policy_break_points
from hierrouter.evaluation.outcome import (
    Actions,
    Booleans,
    Floats,
    Integers,
    LegalActions,
    greedy,
    has_holes,
    reach_probability,
)
from hierrouter.learning.config import Objective, ValueConfig
from hierrouter.learning.forward import softmax_policy
from hierrouter.learning.regression import (
    PREDICTED,
    Calibration,
    Regression,
    RowGroups,
    TextProjection,
    fit_route,
    fit_rows,
    leave_one_out,
    with_is_best,
)
from hierrouter.learning.resumption import prefix
from hierrouter.learning.router import (
    Origin,
    PolicyFamily,
    RewardPolicy,
    StateBatch,
    Tensors,
    training_queries,
)
from hierrouter_cache.layout import NOT_OFFERED
from hierrouter_cache.tree import RouteTree

Array = NDArray[np.float32]

MAX_BASIS_VECTORS = 8192  # about how many vectors of a text its directions are computed from
BREAK_POINT_KNOTS = 32  # knots at quantiles of the break-points
BEYOND_LAST_BREAK_POINT = 2.0  # the last knot, as a multiple of the last break-point
MIN_ROUTE_QUERIES = 20  # a route of fewer queries shares its regression with others
CALIBRATION_QUERIES = 1_024  # queries whose choices calibrate probabilities, at most
CALIBRATION_ALPHAS = 8  # about as many alphas at which they choose
MAX_CACHED_NUMBERS = 1 << 26  # numbers of predictions that are kept for the next alpha
# Names of the tensors of a checkpoint, or of the attributes in them, that are integers.
INTEGER_TENSORS = ("numbers", "learned", "kernel", "columns", "regression", "owner")


@dataclass(frozen=True, eq=False)
class StateRegression(Regression):
    """The regression at one state; checkpoints store its fields.

    Attributes:
        leverage: float32[n, a], by how much each query that was learned from decides its own
            prediction; 0 if the call was never made there. float32[n, 1] if all columns are equal.
    """

    leverage: Array

    def fits_queries(self, queries: int, states: int, choices: int) -> bool:
        """Whether its leverage fits a model, see `Regression.fits_queries`."""
        leverage = self.leverage
        return (
            len(leverage) == queries
            and leverage.shape[1:] in ((1,), (choices,))
            and bool(((leverage >= 0) & (leverage < 1)).all())
        )


@dataclass(frozen=True, eq=False)
class RouteRegression(Regression):
    """The regression at all nodes of some routes; checkpoints store its fields.

    Attributes:
        owner: int64[h, 2], ascending: the rows with a choice that were learned from, each by the
            position of its query in `ValueModel.learned` and by its node.
        without_query: float32[h, a * K * 3], the prediction of each of these rows without its
            query.
    """

    owner: Integers
    without_query: Array

    def fits_queries(self, queries: int, states: int, choices: int) -> bool:
        """Whether its rows fit a model, see `Regression.fits_queries`."""
        owner = self.owner
        if owner.dtype != np.int64 or owner.ndim != 2 or owner.shape[1] != 2:
            return False
        return (
            bool(((owner >= 0) & (owner < [queries, states])).all())
            and bool((np.diff(owner @ [states, 1]) > 0).all())
            and self.without_query.shape == (len(owner), len(self.added))
        )

    def owned_rows(
        self, learned: Integers, node: Integers, states: int
    ) -> tuple[Integers, Integers]:
        """Find the states that it learned from.

        Args:
            learned: int64[n], row of each query among those that were learned from, or -1.
            node: int64[n].
            states: S.

        Returns:
            int64[m], positions of these states; int64[m], their rows of `owner`.
        """
        keys = self.owner @ [states, 1]
        wanted = learned * states + node
        row = np.searchsorted(keys, wanted)
        owned = np.flatnonzero((learned >= 0) & (np.append(keys, -1)[row] == wanted))
        return owned, row[owned]


Part = TypeVar("Part", TextProjection, StateRegression, RouteRegression)


@dataclass(frozen=True, eq=False)
class ValueModel(PolicyFamily):
    """Predictions of Q and C after every action at every state, at any alpha.

    Attributes:
        actions: what may be chosen.
        knots: K alphas, ascending.
        rate: M pairs, the prices it was learned under.
        fingerprint: of the tree it was learned from.
        texts: a projection for each text of a state.
        numbers: int64[numbers], 1 if a number was present at some state, else 0.
        positions: a regression for each state; or for each of some groups of routes, if queries
            lacked nodes.
        learned: int64[n], ascending: the first 8 bytes of the digest of each query that it learned
            from.
        number: int64[S], position of each state's regression; None if each state has its own.
        calibration: of the probability that the action with the highest expected R is the best.

    Raises:
        ValueError: the parts do not fit together.
    """

    actions: Actions
    knots: tuple[float, ...]
    rate: tuple[tuple[float, ...], ...]
    fingerprint: str
    texts: tuple[TextProjection, ...]
    numbers: Integers
    positions: tuple[StateRegression, ...] | tuple[RouteRegression, ...]
    learned: Integers
    number: Integers | None = None
    calibration: Calibration = field(default_factory=Calibration)
    # Predictions by fingerprint, datasets and ids of the queries.
    _cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        fits = [
            len(self.knots) > 0 and self.knots == tuple(sorted(set(self.knots))),
            all(0 <= knot <= MAX_ALPHA for knot in self.knots),
            self.numbers.ndim == self.learned.ndim == 1,
            self.numbers.dtype == self.learned.dtype == np.int64,
            bool((self.learned[:-1] <= self.learned[1:]).all()),
            all(
                text.basis.ndim == 2 and text.mean.shape == text.basis.shape[:1]
                for text in self.texts
            ),
        ]
        if self.number is None:
            fits.append(len(self.positions) == self.actions.states)
        else:
            fits += [
                self.number.shape == (self.actions.states,),
                set(self.number.tolist()) == set(range(len(self.positions))),
            ]
        if not all(fits):
            raise ValueError("the parts of a value model do not fit")
        components = sum(text.basis.shape[1] for text in self.texts)
        queries = len(self.learned)
        for choices, regression in zip(self.choices, self.positions, strict=True):
            fits += [
                regression.fits(components, len(self.numbers), len(choices), len(self.knots)),
                regression.fits_queries(queries, self.actions.states, len(choices)),
            ]
        if not all(fits):
            raise ValueError("the parts of a value model do not fit")

    @classmethod
    def from_object(
        cls, values: Mapping[str, Any], tensors: Tensors, actions: Actions, origin: Origin
    ) -> ValueModel:
        """Return the model that `as_object` and `tensors` describe.

        Args:
            values: what `as_object` returned.
            tensors: what `tensors` returned.
            actions: what may be chosen.
            origin: of the model.

        Raises:
            ValueError, TypeError, KeyError: they describe none.
        """
        for name, tensor in tensors.items():
            is_integer = name.rpartition(".")[2] in INTEGER_TENSORS
            if tensor.dtype != (np.int64 if is_integer else np.float32):
                raise TypeError(f"{name} of {tensor.dtype}")

        knots = tuple(map(float, values["knots"]))
        if "calibration" not in values:
            tensors = _with_unknown_best(tensors, len(knots))

        def parts(part_class: type[Part], name: str, count: int) -> tuple[Part, ...]:
            names = [each.name for each in fields(part_class)]
            return tuple(
                part_class(**{each: tensors[f"{name}{number}.{each}"] for each in names})
                for number in range(count)
            )

        number = tensors.get("regression")
        positions: tuple[StateRegression, ...] | tuple[RouteRegression, ...]
        if number is None:
            positions = parts(StateRegression, "state", actions.states)
        else:
            is_possible = 0 <= number.min() <= number.max() < len(number)
            if number.shape != (actions.states,) or not is_possible:
                raise ValueError("regressions of other states")
            positions = parts(RouteRegression, "state", int(number.max()) + 1)
        return cls(
            actions=actions,
            knots=knots,
            rate=origin.rate,
            fingerprint=origin.fingerprint,
            texts=parts(TextProjection, "text", values["texts"]),
            numbers=tensors["numbers"],
            positions=positions,
            learned=tensors["learned"],
            number=number,
            calibration=Calibration(*map(float, values.get("calibration", ()))),
        )

    def as_object(self) -> dict[str, Any]:
        """What the tensors do not hold, as JSON values."""
        values: dict[str, Any] = {"knots": self.knots, "texts": len(self.texts)}
        if self._predicts_best:  # models of versions that did not predict it have no such key
            values["calibration"] = [self.calibration.intercept, self.calibration.slope]
        return values

    def tensors(self) -> Tensors:
        """The arrays, by name."""
        arrays = {"learned": self.learned, "numbers": self.numbers}
        if self.number is not None:  # a model of states has one regression for each
            arrays["regression"] = self.number
        for kind, parts in (("text", self.texts), ("state", self.positions)):
            for number, part in enumerate(parts):
                arrays.update(prefix(f"{kind}{number}", vars(part)))
        return arrays if self._predicts_best else _without_unknown_best(arrays, len(self.knots))

    @property
    def _predicts_best(self) -> bool:
        """Whether it was learned by a version that predicts which action is the best."""
        return not any(np.isnan(regression.added).any() for regression in self.positions)

    def at(self, alpha: float, alphas: Sequence[float], actions: Actions) -> ValueRouter:
        """The value model at one alpha, which need not be of the grid."""
        return ValueRouter(self, alpha)

    @cached_property
    def choices(self) -> list[Integers]:
        """For each regression int64[a], the actions that are legal at one of its states."""
        number = np.arange(self.actions.states) if self.number is None else self.number
        return _choices(self.actions, number, len(self.positions))

    @property
    def dim(self) -> int:
        """Length of the embeddings that it reads."""
        return sum(len(text.mean) for text in self.texts) + len(self.numbers)

    @property
    def prediction_shape(self) -> tuple[int, int, int, int]:
        """(S, A, K, 3), the shape of the predictions for one query."""
        return self.actions.states, self.actions.count, len(self.knots), PREDICTED

    def predictions(self, tree: RouteTree) -> Array:
        """Predict Q and C from each state on, after each action, and whether it is the best.

        A query that it learned from is predicted as if it had not.

        Returns:
            float32[queries, S, A, K, 3]; 0 for an action that is not legal, and, with a regression
            for each route, where there is one legal action.
        """
        if self.number is not None:
            values = np.zeros((len(tree), *self.prediction_shape), np.float32)
            for rows in self.predictions_of_choices(tree):
                cells = (rows.query[:, None], rows.node[:, None], rows.actions)
                values[cells] = rows.values * rows.legal[:, :, None, None]
            return values
        key = (tree.fingerprint, tree.datasets, tree.query_ids)
        if key in self._cache:
            cached: Array = self._cache[key]
            return cached
        tree = tree.with_layout(self.actions.layout)
        row = learned_rows(tree, self.fingerprint, self.learned)
        new = np.flatnonzero(row < 0)
        learned = np.flatnonzero(row >= 0)
        values = np.empty((len(tree), *self.prediction_shape), np.float32)
        values[new] = self._plain_predictions(tree.select(new))
        values[learned] = self._held_out_predictions(tree.select(learned), row[learned])
        if sum(map(np.size, self._cache.values())) + values.size > MAX_CACHED_NUMBERS:
            self._cache.clear()
        self._cache[key] = values
        return values

    def predictions_of_choices(self, tree: RouteTree) -> list[ChoicePredictions]:
        """The predictions of each state with a choice; for models of routes.

        A query that it learned from is predicted as if it had not.
        """
        key = (tree.fingerprint, tree.datasets, tree.query_ids)
        if key in self._cache:
            cached: list[ChoicePredictions] = self._cache[key]
            return cached
        assert self.number is not None
        tree = tree.with_layout(self.actions.layout)
        legal = LegalActions.of(tree, self.actions)
        every_query, every_node = np.nonzero(legal.table.sum(axis=2) > 1)
        if len(legal.table) < len(tree):
            every_query = np.repeat(np.arange(len(tree)), len(every_node))
            every_node = np.tile(every_node, len(tree))
        learned = learned_rows(tree, self.fingerprint, self.learned)
        predictions = []
        with threadpool_limits(1):
            for position, regression in enumerate(self.positions):
                assert isinstance(regression, RouteRegression)
                rows = np.flatnonzero(self.number[every_node] == position)
                query = every_query[rows]
                node = every_node[rows]
                choices = self.choices[position]
                texts, numbers = _state_inputs(tree, query, node, self.texts)
                values = regression.predict(texts, numbers)
                owned, row = regression.owned_rows(learned[query], node, self.actions.states)
                values[owned] = regression.without_query[row]
                predictions.append(
                    ChoicePredictions(
                        query,
                        node,
                        choices,
                        legal.at(query, node)[:, choices],
                        values.reshape(len(rows), len(choices), len(self.knots), PREDICTED),
                    )
                )
        self._cache.clear()
        self._cache[key] = predictions
        return predictions

    def _plain_predictions(self, tree: RouteTree) -> Array:
        """float32[queries, S, A, K, 3]: predictions of queries, as if all of them were new."""
        values = np.zeros((len(tree), *self.prediction_shape), np.float32)
        legal = self.actions.legal()
        queries = np.arange(len(tree))
        with threadpool_limits(1):
            for state, regression in enumerate(self.positions):
                node = np.full(len(tree), state)
                texts, numbers = _state_inputs(tree, queries, node, self.texts)
                predicted = regression.predict(texts, numbers)
                shape = (len(tree), int(legal[state].sum()), len(self.knots), PREDICTED)
                values[:, state, legal[state]] = predicted.reshape(shape)
        return values

    def _held_out_predictions(self, tree: RouteTree, row: Integers) -> Array:
        """Predict each query as if the model had not learned from it (leave-one-out).

        Uses the prices of the training, whatever they are now: leave-one-out is exact only for
        them.

        Args:
            tree: queries that it learned from.
            row: int64[queries], the row of each among them.

        Returns:
            float32[queries, S, A, K, 3].
        """
        tree = replace(tree, rate=np.array(self.rate))
        values = self._plain_predictions(tree)

        legal = self.actions.legal()
        induction = _BackwardInduction(tree, self.actions, self.knots)
        for state in induction.states():
            choices = np.flatnonzero(legal[state])
            observed = induction.targets(state, choices)
            target = with_is_best(observed, np.array(self.knots))
            regression = self.positions[state]
            assert isinstance(regression, StateRegression)
            leverage = regression.leverage[row][:, :, None, None]
            held_out = leave_one_out(values[:, state, choices], target, leverage)
            values[:, state, choices] = held_out
            induction.set_value(state, observed, held_out[..., :2].astype(np.float64))
        return values

    def interpolate(self, values: Array, alpha: float) -> Array:
        """[..., 3]: predictions at an alpha, from those at all knots, [..., K, 3]."""
        low, share = self._knot_below(alpha)
        at_low: Array = values[..., low, :]
        if not share:
            return at_low
        at_high: Array = values[..., low + 1, :]
        return at_low + share * (at_high - at_low)  # pyright: ignore[reportReturnType]

    def temperatures(self, alpha: float) -> Floats:
        """float64[S]: temperature of each state at an alpha, in units of R."""
        low, share = self._knot_below(alpha)
        high = min(low + 1, len(self.knots) - 1)
        at_knots = np.stack([regression.temperature for regression in self.positions])
        logs = np.log(at_knots.astype(np.float64))
        if self.number is not None:
            logs = logs[self.number]
        return np.exp(logs[:, low] + share * (logs[:, high] - logs[:, low]))

    def _knot_below(self, alpha: float) -> tuple[int, np.float32]:
        """The knot below alpha, and alpha's share of the way to the next knot, from 0 to 1."""
        position = float(np.interp(alpha, self.knots, range(len(self.knots))))
        low = int(position)
        return low, np.float32(position - low)


def _with_unknown_best(tensors: Tensors, knots: int) -> Tensors:
    """Complete the tensors of versions whose value models predicted Q and C only, with NaN."""
    complete = dict(tensors)
    for name, tensor in tensors.items():
        if name.rpartition(".")[2] in ("weight", "added", "without_query"):
            predicted = tensor.reshape(*tensor.shape[:-1], -1, knots, 2)
            is_best = np.full((*predicted.shape[:-1], 1), np.nan, tensor.dtype)
            values = np.concatenate([predicted, is_best], axis=-1)
            complete[name] = values.reshape(*tensor.shape[:-1], -1)
    return complete


def _without_unknown_best(tensors: Tensors, knots: int) -> Tensors:
    """The tensors as such a version wrote them: the reverse of `_with_unknown_best`."""
    written = dict(tensors)
    for name, tensor in tensors.items():
        if name.rpartition(".")[2] in ("weight", "added", "without_query"):
            predicted = tensor.reshape(*tensor.shape[:-1], -1, knots, PREDICTED)[..., :2]
            written[name] = predicted.reshape(*tensor.shape[:-1], -1)
    return written


@dataclass(frozen=True, eq=False)
class ChoicePredictions:
    """Predictions of one regression at r states with a choice.

    Attributes:
        query: int64[r], positions of the queries.
        node: int64[r], the states.
        actions: int64[a], what the regression predicts.
        legal: bool[r, a], which of these actions may be chosen.
        values: float32[r, a, K, 3].
    """

    query: Integers
    node: Integers
    actions: Integers
    legal: Booleans
    values: Array


@dataclass(frozen=True)
class ValueRouter(RewardPolicy):
    """The value model at one alpha: it takes the action with the highest expected R.

    Attributes:
        model: the value model.
        alpha: reward lost per unit of cost.
    """

    kind: ClassVar[str] = "a value model"
    can_defer: ClassVar[bool] = True

    model: ValueModel
    alpha: float

    @property
    def dim(self) -> int:
        """Length of the embeddings that it reads."""
        return self.model.dim

    def as_object(self) -> dict[str, Any]:
        """What the tensors of the model do not hold, as JSON values."""
        return self.model.as_object()

    def tensors(self) -> Tensors:
        """The arrays of the model, by name."""
        return self.model.tensors()

    def has_learned(self, number: int) -> bool:
        """Whether one of the numbers was present in training."""
        return bool(self.model.numbers[number])

    def rewards(self, tree: RouteTree) -> Floats:
        """Compute the expected R from each state on.

        Returns:
            float64[queries, S, A]; `-inf` for an illegal action. With a regression for each route
            it is 0 for the only legal action of a state.
        """
        return self._of_predictions(tree, self._reward, 0.0, -np.inf)

    def choice_probability(self, tree: RouteTree, choice: Integers) -> Floats:
        """Predict how probable it is that a choice is the best: no other leads to a higher R.

        After it the router decides. Of a query that the model learned from as if it had not.

        Args:
            tree: the queries.
            choice: int64[queries, S], an action at each state. The calibration is made for the one
                with the highest expected R.

        Returns:
            float64[queries, S]; NaN if the model was learned by a version that did not predict it.
        """
        predicted = self._of_predictions(tree, _is_best, 1.0, 0.0)
        chosen = np.take_along_axis(predicted, choice[:, :, None], axis=2)[:, :, 0]
        layout = self.model.actions.layout
        legal = LegalActions.of(tree.with_layout(layout), self.model.actions).table
        return self._calibrated(chosen, legal.sum(axis=2) <= 1)

    def _of_predictions(
        self,
        tree: RouteTree,
        function: Callable[[Array], Floats],
        value_without_choice: float,
        illegal_value: float,
    ) -> Floats:
        """Apply a function to the predictions at each state.

        Args:
            tree: the queries.
            function: from predictions at this alpha, [..., 3], to float64[...].
            value_without_choice: with a regression for each route, of the only legal action of a
                state.
            illegal_value: of an action that is not legal.

        Returns:
            float64[queries, S, A].
        """
        model = self.model
        if model.number is not None:
            return self._of_choices(tree, function, value_without_choice, illegal_value)
        states, actions, _, _ = model.prediction_shape
        result = np.empty((len(tree), states, actions))
        # In chunks, because predictions of all knots are many times as large.
        size = max(1, MAX_CACHED_NUMBERS // 4 // int(np.prod(model.prediction_shape)))
        for start in range(0, len(tree), size):
            rows = np.arange(start, min(start + size, len(tree)))
            values = model.predictions(tree.select(rows) if size < len(tree) else tree)
            result[rows] = function(model.interpolate(values, self.alpha))
        return np.where(model.actions.legal(), result, illegal_value)

    def probabilities(self, tree: RouteTree) -> Floats:
        """float64[queries, S, A]: the stochastic policy, a softmax of the expected R."""
        return softmax_policy(self.rewards(tree), self.model.temperatures(self.alpha))

    def _of_choices(
        self,
        tree: RouteTree,
        function: Callable[[Array], Floats],
        value_without_choice: float,
        illegal_value: float,
    ) -> Floats:
        """The result of `_of_predictions` with a regression for each route."""
        model = self.model
        tree = tree.with_layout(model.actions.layout)
        legal = LegalActions.of(tree, model.actions).table
        result = np.where(legal, value_without_choice, illegal_value)
        result = np.repeat(result, len(tree) // len(legal), axis=0)
        for rows in model.predictions_of_choices(tree):
            values = function(model.interpolate(rows.values, self.alpha))
            cells = (rows.query[:, None], rows.node[:, None], rows.actions)
            result[cells] = np.where(rows.legal, values, illegal_value)
        return result

    def expected(self, states: StateBatch) -> Floats:
        """Expected quality and cost after each action at some states.

        Returns:
            float64[n, A, 2]: Q, and C from the state on; NaN for an action that is not legal.
        """
        return self._live_predictions(states)[..., :2]

    def live_choice_probability(self, states: StateBatch, choice: Integers) -> Floats:
        """float64[n]: see `choice_probability`; of an action, int64[n], at each of some states."""
        predicted = _is_best(self._live_predictions(states))
        is_forced = self.model.actions.legal().sum(axis=1)[states.node] <= 1
        return self._calibrated(predicted[np.arange(len(predicted)), choice], is_forced)

    def _calibrated(self, predicted: Floats, is_forced: Booleans) -> Floats:
        """The probability that a choice is the best; 1 where it is the only legal one."""
        calibrated = self.model.calibration(predicted)
        return np.where(is_forced & ~np.isnan(predicted), 1.0, calibrated)

    def _live_predictions(self, states: StateBatch) -> Floats:
        """float64[n, A, 3], NaN for an action that is not legal; see `expected`."""
        model = self.model
        nodes = states.node
        legal = model.actions.legal()
        expected = np.full((len(nodes), model.actions.count, PREDICTED), np.nan)
        for state in np.unique(nodes).tolist():
            rows = np.flatnonzero(nodes == state)
            texts, numbers = _split_inputs(states.embedding[rows], states.cost[rows], model.texts)
            position = state if model.number is None else int(model.number[state])
            predicted = model.positions[position].predict(texts, numbers)
            values = predicted.reshape(len(rows), -1, len(model.knots), PREDICTED)
            choices = model.choices[position]
            expected[np.ix_(rows, choices)] = model.interpolate(values, self.alpha)
            expected[np.ix_(rows, np.flatnonzero(~legal[state]))] = np.nan
        return expected

    def live_probabilities(self, states: StateBatch) -> Floats:
        """float64[n, A]: the stochastic policy at some states, a softmax of the expected R."""
        temperature = self.model.temperatures(self.alpha)[states.node]
        return softmax_policy(self._reward(self.expected(states)), temperature)

    def _reward(self, values: Array | Floats) -> Floats:
        """float64[...]: R of values, [..., 2], or of predictions."""
        return values[..., 0] - self.alpha * values[..., 1].astype(np.float64)


def _is_best(predictions: Array | Floats) -> Floats:
    """float64[...]: what is predicted of "it is the best", of predictions, [..., 3]."""
    return predictions[..., 2].astype(np.float64)


def fit(
    tree: RouteTree,
    alphas: Sequence[float],
    objective: Objective,
    config: ValueConfig,
    on_state: Callable[[int, int], None] = lambda done, total: None,
) -> ValueModel:
    """Learn from the queries of the folds "train" and "validation".

    Args:
        tree: all folds.
        alphas: knots, beside those at which decisions change on the tree.
        objective: how an episode may end; its alpha is not used.
        config: the settings; they limit the number of queries.
        on_state: called with (done, total) after each state.

    Raises:
        InputError: there is nothing to learn from.
    """
    # Loaded before the threads are limited, so that those of its own library are, too.
    import scipy.linalg  # noqa: F401

    actions = objective.actions(tree.layout)
    fold = objective.view(training_queries(tree).with_pruned())
    fold, digests = in_digest_order(fold, config.queries)  # a fixed subset, as good as random
    parts = fold.require_embedded()
    knots = _knots(fold, alphas, objective)
    number = None
    positions: tuple[StateRegression, ...] | tuple[RouteRegression, ...]
    # One thread: another number of threads adds up in another order.
    with threadpool_limits(1):
        texts = tuple(
            TextProjection.of(_distinct_vectors(part.vectors, part.row), config.components)
            for part in parts
            if part.is_text
        )
        if has_holes(fold):
            number = _regression_numbers(fold, actions)
            positions = _fit_routes(fold, actions, knots, texts, config, number, on_state)
        else:
            positions = _fit_states(fold, actions, knots, texts, config, on_state)
    present = [(part.vectors[part.row] != 0).any(axis=(0, 1)) for part in parts if not part.is_text]
    model = ValueModel(
        actions=actions,
        knots=knots,
        rate=tuple(map(tuple, tree.rate.tolist())),
        fingerprint=tree.fingerprint,
        texts=texts,
        numbers=np.concatenate([np.empty(0, bool), *present]).astype(np.int64),
        positions=positions,
        learned=digests,
        number=number,
    )
    return replace(model, calibration=_calibration(model, fold))


def _calibration(model: ValueModel, fold: RouteTree) -> Calibration:
    """Compare what is predicted of choices with how often they are the best.

    Args:
        model: not yet calibrated.
        fold: the queries that it learned from; it decides on each as if it had not.
    """
    fold = fold.select(np.arange(min(len(fold), CALIBRATION_QUERIES)))
    every = max(1, len(model.knots) // CALIBRATION_ALPHAS)
    alphas = model.knots[::every]
    decisions = []
    for alpha in alphas:
        router = ValueRouter(model, alpha)
        policy = router.probabilities(fold)
        choice = greedy(policy, fold.base_rate, model.actions.returns).argmax(axis=2)
        probability = router.choice_probability(fold, choice)
        _, *decision = greedy_decisions(fold, model.actions, choice, probability, alpha)
        decisions.append(decision)
    predicted, is_best, weight = map(np.concatenate, zip(*decisions, strict=True))
    return Calibration.of(predicted, is_best, weight / len(alphas))


def _fit_states(
    fold: RouteTree,
    actions: Actions,
    knots: tuple[float, ...],
    texts: Sequence[TextProjection],
    config: ValueConfig,
    on_state: Callable[[int, int], None],
) -> tuple[StateRegression, ...]:
    """Fit a regression for each state; the arguments are those of `fit` and what it made."""
    regressions: dict[int, StateRegression] = {}
    legal = actions.legal()
    induction = _BackwardInduction(fold, actions, knots)
    for state in induction.states():
        choices = np.flatnonzero(legal[state])
        target = induction.targets(state, choices)
        rows = _reached_queries(fold, state)
        predicted = np.full((*target.shape[:-1], PREDICTED), np.nan)
        node = np.full(len(rows), state)
        state_texts, state_numbers = _state_inputs(fold, rows, node, texts)
        regression, row_leverage, predicted[rows] = fit_rows(
            state_texts, state_numbers, target[rows], np.array(knots), config
        )
        # The state was not reached on the other queries, so these decide nothing.
        leverage = np.zeros((len(fold), row_leverage.shape[1]), np.float32)
        leverage[rows] = row_leverage
        regressions[state] = StateRegression(**vars(regression), leverage=leverage)
        on_state(len(regressions), actions.states)
        induction.set_value(state, target, predicted[..., :2])
    return tuple(regressions[state] for state in range(actions.states))


def _regression_numbers(tree: RouteTree, actions: Actions) -> Integers:
    """Choose which states share a regression: those to which the same actions lead.

    Routes of fewer than `MIN_ROUTE_QUERIES` queries share one with the other such routes that have
    as many calls and the same last action; if that has too few, with all such of as many calls.

    Args:
        tree: the queries to learn from.
        actions: what may be chosen.

    Returns:
        int64[S], numbers from 0, in the order of the first states.
    """
    layout = actions.layout
    depth = layout.depth()
    present = reach_probability(tree)[:, : actions.states] > 0
    # Each key is more general than the one before.
    node = np.arange(actions.states)
    keys = np.stack(
        [
            layout.route[node],
            layout.nodes + depth[node] * layout.call_actions + layout.action[node] + 1,
            2 * layout.nodes * (layout.call_actions + 1) + depth[node],
        ]
    )
    chosen = keys[-1].copy()
    is_open = np.ones(actions.states, np.bool_)
    for level in keys[:-1]:
        for key in np.unique(level[is_open]).tolist():
            members = np.flatnonzero(is_open & (level == key))
            if present[:, members].any(axis=1).sum() >= MIN_ROUTE_QUERIES:
                chosen[members] = key
                is_open[members] = False
    _, first, number = np.unique(chosen, return_index=True, return_inverse=True)
    rank = np.empty_like(first)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[number]


def _choices(actions: Actions, number: Integers, total: int) -> list[Integers]:
    """For each regression int64[a], the actions that are legal at one of its states.

    Args:
        actions: what may be chosen.
        number: int64[S], number of each state's regression.
        total: number of regressions.
    """
    choices = np.zeros((total, actions.count), np.bool_)
    np.logical_or.at(choices, number, actions.legal())
    return [np.flatnonzero(row) for row in choices]


def _fit_routes(
    fold: RouteTree,
    actions: Actions,
    knots: tuple[float, ...],
    texts: Sequence[TextProjection],
    config: ValueConfig,
    number: Integers,
    on_state: Callable[[int, int], None],
) -> tuple[RouteRegression, ...]:
    """Fit a regression for each group of routes.

    Args:
        fold: see `fit`, as the others.
        actions: what may be chosen.
        knots: K alphas.
        texts: a projection for each text.
        config: the settings.
        number: int64[S], see `_regression_numbers`.
        on_state: called with (done, total) after each regression.
    """
    total = int(number.max()) + 1
    every_choice = _choices(actions, number, total)
    unknown = np.array([0.0, np.nanmax(fold.cost, initial=0.0), 0.0])
    induction = _RaggedInduction(fold, actions, knots)
    regressions: dict[int, RouteRegression] = {}
    for states in induction.states():
        target = induction.targets(states)
        predicted = np.full((*target.shape[:-1], PREDICTED), np.nan)
        query = induction.query[states]
        node = induction.node[states]
        has_choice = induction.legal[states].sum(axis=1) > 1
        for position in np.unique(number[node]).tolist():
            rows = np.flatnonzero(number[node] == position)
            rows = rows[np.lexsort((node[rows], query[rows]))]
            choices = every_choice[position]
            inputs = _state_inputs(fold, query[rows], node[rows], texts)
            regression, held_out = fit_route(
                *inputs,
                target[np.ix_(rows, choices)],
                np.array(knots),
                config,
                RowGroups(query[rows], induction.presence[states][rows]),
                unknown,
            )
            predicted[np.ix_(rows, choices)] = held_out
            owned = np.flatnonzero(has_choice[rows])
            regressions[position] = RouteRegression(
                **vars(regression),
                owner=np.stack([query[rows], node[rows]], axis=1)[owned],
                without_query=held_out[owned]
                .reshape(len(owned), len(regression.added))
                .astype(np.float32),
            )
            on_state(len(regressions), total)
        induction.set_values(states, target, predicted[..., :2])
    nothing = np.empty(0, np.int64)
    for position in sorted(set(range(total)) - set(regressions)):
        # No query that it learns from has such a route.
        choices = every_choice[position]
        regression, _ = fit_route(
            *_state_inputs(fold, nothing, nothing, texts),
            np.empty((0, len(choices), len(knots), 2)),
            np.array(knots),
            config,
            RowGroups(nothing, np.empty(0)),
            unknown,
        )
        regressions[position] = RouteRegression(
            **vars(regression),
            owner=np.empty((0, 2), np.int64),
            without_query=np.empty((0, len(regression.added)), np.float32),
        )
    return tuple(regressions[position] for position in range(total))


def _distinct_vectors(vectors: Array, row: Integers) -> Array:
    """float32[n, dim]: the vectors at some rows, each once; of very many an even selection."""
    rows = np.unique(row)
    return vectors[rows[:: 1 + len(rows) // MAX_BASIS_VECTORS]]


def _reached_queries(tree: RouteTree, state: int) -> Integers:
    """int64[n]: the queries on which the call that leads to a state was made."""
    return np.flatnonzero(~np.isnan(tree.score[:, state]))


def _knots(tree: RouteTree, alphas: Sequence[float], objective: Objective) -> tuple[float, ...]:
    """0, the given alphas, alphas at which decisions change on the tree, and one beyond these."""
    break_points = policy_break_points(tree, objective.ends_early)
    evenly = np.empty(0)
    if len(break_points):
        evenly = np.quantile(break_points, np.linspace(0, 1, BREAK_POINT_KNOTS))
    knots = np.concatenate([[0.0], alphas, evenly, BEYOND_LAST_BREAK_POINT * evenly[-1:]])
    return tuple(np.unique(np.minimum(knots, MAX_ALPHA)).tolist())


def query_digests(tree: RouteTree) -> Integers:
    """int64[queries]: the first 8 bytes of each query's digest, the same in any tree."""
    digests = []
    for dataset, query in zip(tree.datasets, tree.query_ids, strict=True):
        digest = hashlib.sha256(f"{dataset}\n{query}".encode()).digest()
        digests.append(int.from_bytes(digest[:8], "big", signed=True))
    return np.array(digests, np.int64)


def in_digest_order(tree: RouteTree, limit: int | None = None) -> tuple[RouteTree, Integers]:
    """The first queries in the order of their digests, and int64[queries], these; None is all."""
    digests = query_digests(tree)
    order = np.argsort(digests, kind="stable")[:limit]
    return tree.select(order), digests[order]


def learned_rows(tree: RouteTree, fingerprint: str, learned: Integers) -> Integers:
    """Find the queries that a policy learned from.

    Args:
        tree: the queries.
        fingerprint: of the tree that it learned from.
        learned: int64[n], ascending, their digests.

    Returns:
        int64[queries]: row of each query among those, or -1.
    """
    content, _, _ = fingerprint.rpartition("-")
    if not len(learned) or tree.content != content:
        return np.full(len(tree), -1)
    digests = query_digests(tree)
    row = np.searchsorted(learned, digests).clip(max=len(learned) - 1)
    return np.where(learned[row] == digests, row, -1)


def _state_inputs(
    tree: RouteTree, query: Integers, node: Integers, texts: Sequence[TextProjection]
) -> tuple[Array, Array]:
    """The inputs of a regression: some states, int64[n] each; see `_split_inputs`."""
    return _split_inputs(tree.embedding_at(query, node), tree.cost[query, node], texts)


def _split_inputs(
    embedding: Array, cost: Floats, texts: Sequence[TextProjection]
) -> tuple[Array, Array]:
    """Split embeddings into texts and numbers; C so far becomes the last number.

    Args:
        embedding: float32[n, dim].
        cost: float64[n], C so far.
        texts: a projection for each text.

    Returns:
        Components of the texts, float32[n, components], and numbers, float32[n, numbers + 1].
    """
    components = [np.empty((len(embedding), 0), np.float32)]
    start = 0
    for text in texts:
        end = start + len(text.mean)
        components.append(text(embedding[:, start:end]))
        start = end
    numbers = np.concatenate([embedding[:, start:], cost[:, None].astype(np.float32)], axis=1)
    return np.concatenate(components, axis=1), numbers


class _BackwardInduction:
    """The values after each action, computed from the last decisions to the first.

    For each state of `states()`, first `targets`, then `set_value`. Both uses of the value model
    go this way: fitting, which learns to predict the targets, and predicting without the query
    itself.

    Attributes:
        tree: the queries; NaN in `tree.score` for a call that was never made.
        actions: what may be chosen.
    """

    def __init__(self, tree: RouteTree, actions: Actions, knots: Sequence[float]) -> None:
        """Begin at the last decisions.

        Args:
            tree: the queries.
            actions: what may be chosen.
            knots: K alphas.
        """
        self.tree = tree
        self.actions = actions
        self._alphas = np.array(knots)
        # Q and C from a state on, float64[queries, K, 2]; of states whose parent is still to come.
        self._values: dict[int, Floats] = {}

    def states(self) -> Iterable[int]:
        """The numbers of all states, children before parents."""
        return reversed(range(self.actions.states))

    def targets(self, state: int, choices: Integers) -> Floats:
        """Compute the observed Q and C from a state on, after each action.

        Args:
            state: its number; all of its children have a value.
            choices: int64[a], its legal actions.

        Returns:
            float64[queries, a, K, 2]; NaN for a call that was never made.
        """
        weight = self.tree.weight
        target = np.empty((len(self.tree), len(choices), len(self._alphas), 2))
        # A stop with a call and the call itself go to the same nodes.
        values: dict[int, Floats] = {}
        for column, action in enumerate(choices.tolist()):
            if weight is None or action >= self.actions.calls:
                target[:, column] = self._after(state, action, None, values)
                continue
            draws = self.tree.layout.draws_of_calls[state, self.actions.model(action)]
            target[:, column] = 0.0
            for child in draws[draws != NOT_OFFERED].tolist():
                after = self._after(state, action, child, values)
                target[:, column] += weight[:, child, None, None] * after
        return target

    def _after(
        self, state: int, action: int, drawn: int | None, values: dict[int, Floats]
    ) -> Floats:
        """Q and C from a state on, after an action, float64[queries, K, 2].

        Args:
            state: its number.
            action: one of its legal actions.
            drawn: the node that the call of the action leads to; None is the first draw.
            values: the values of children that were used already.
        """
        make_call = None if drawn is None else lambda node, call: np.int64(drawn)
        child, ending, is_over = self.actions.transition(state, action, make_call)
        cost = self.tree.cost
        result = np.empty((len(self.tree), len(self._alphas), 2))
        if is_over:
            end_node = self.tree.layout.ending_node[ending]
            answer_node = self.tree.layout.answer_node[ending]
            result[..., 0] = self.tree.score[:, answer_node, None]
            result[..., 1] = (cost[:, end_node] - cost[:, state])[:, None]
            return result
        child = int(child)
        if child not in values:
            values[child] = self._values.pop(child)
        result[:] = values[child]
        result[..., 1] += (cost[:, child] - cost[:, state])[:, None]
        return result

    def set_value(self, state: int, target: Floats, predicted: Floats) -> None:
        """Set the state's value, which its parent uses.

        It is the observed value of the action that is predicted to be the best, at each knot. If
        that action was never called, its predicted value takes the place of the observed one.

        Args:
            state: its number.
            target: float64[queries, a, K, 2], of `targets`.
            predicted: float64[queries, a, K, 2], predictions of them.
        """
        best = (predicted[..., 0] - self._alphas * predicted[..., 1]).argmax(axis=1)
        index = best[:, None, :, None]
        observed_value = np.take_along_axis(target, index, 1)[:, 0]
        predicted_value = np.take_along_axis(predicted, index, 1)[:, 0]
        self._values[state] = np.where(np.isnan(observed_value), predicted_value, observed_value)


class _RaggedInduction:
    """As `_BackwardInduction`, where queries lack nodes: only over those that they have.

    For each array of `states()`, first `targets`, then `set_values`.

    Args:
        tree: the queries.
        actions: what may be chosen.
        knots: K alphas.

    Attributes:
        query: int64[n], position of each node's query, see `Layout.forest`.
        node: int64[n], its number.
        presence: float64[n], its probability if its calls are made.
        legal: bool[n, A]; of nodes that are states.
    """

    def __init__(self, tree: RouteTree, actions: Actions, knots: Sequence[float]) -> None:
        reach = reach_probability(tree)
        self._layout, query, node = actions.layout.forest(reach > 0)
        self.query = np.append(0, query)
        self.node = np.append(0, node)
        self.presence = np.append(0.0, reach[query, node])
        weight = reach if tree.weight is None else tree.weight
        self._weight = np.append(1.0, weight[query, node])
        self._score = np.append(0.0, tree.score[query, node])
        self._cost = np.append(0.0, tree.cost[query, node])
        self._actions = actions
        self._alphas = np.array(knots)
        is_state = self.node < actions.states
        self.legal = np.zeros((len(self.node), actions.count), np.bool_)
        legal = LegalActions.of(tree, actions)
        self.legal[is_state] = legal.at(self.query[is_state], self.node[is_state])
        # Q and C from a node on. Where nothing is legal, the episode ends with the newest answer.
        self._values = np.zeros((len(self.node), len(knots), 2))
        self._values[..., 0] = self._score[:, None]

    def states(self) -> Iterator[Integers]:
        """Yield the states after the same number of calls, children before parents."""
        # The first level is the root of the forest, which is no state of a query.
        for level in reversed(self._layout.levels[1:]):
            self._level = level
            yield level.numbers

    def targets(self, states: Integers) -> Floats:
        """Compute the observed Q and C from some states on, after each action.

        Args:
            states: of `states()`.

        Returns:
            float64[states, A, K, 2]; NaN for an action that is not legal.
        """
        level = self._level
        actions = self._actions
        calls = actions.layout.call_actions
        inner = level.inner.stop - level.inner.start
        shape = (inner * calls, len(self._alphas), 2)
        after_call = np.zeros(shape)
        after_stop = np.zeros(shape)
        for group in level.calls:
            child = np.arange(group.nodes.start, group.nodes.stop)
            step = self._cost[child] - self._cost[self._layout.parent[child]]
            values = self._values[child].copy()
            values[..., 1] += step[:, None]
            ended = np.stack([self._score[child], step], axis=1)[:, None]
            weight = self._weight[child, None, None]
            np.add.at(after_call, group.source, weight * values)
            np.add.at(after_stop, group.source, weight * ended)
        target = np.full((len(states), actions.count, len(self._alphas), 2), np.nan)
        # Inner nodes are the first states of a level.
        target[:inner, :calls] = after_call.reshape(inner, calls, *shape[1:])
        if actions.allow_stop:
            target[:inner, calls : actions.calls] = after_stop.reshape(inner, calls, *shape[1:])
        row, column, ending = level.give_backs.T
        target[row, actions.calls + column, :, 0] = self._score[
            self._layout.answer_node[ending], None
        ]
        target[row, actions.calls + column, :, 1] = 0.0
        target[~self.legal[states]] = np.nan
        return target

    def set_values(self, states: Integers, target: Floats, predicted: Floats) -> None:
        """Set the values of some states, as `_BackwardInduction.set_value` does.

        Args:
            states: of `states()`.
            target: float64[states, A, K, 2], of `targets`.
            predicted: float64[states, A, K, 2], predictions of them.
        """
        legal = self.legal[states]
        reward = predicted[..., 0] - self._alphas * predicted[..., 1]
        best = np.where(legal[:, :, None], reward, -np.inf).argmax(axis=1)
        index = best[:, None, :, None]
        observed = np.take_along_axis(target, index, 1)[:, 0]
        expected = np.take_along_axis(predicted, index, 1)[:, 0]
        decides = legal.any(axis=1)
        values = np.where(np.isnan(observed), expected, observed)
        self._values[states[decides]] = values[decides]
