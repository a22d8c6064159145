"""Small policy classes: tables of fixed routes, one for each group of questions.

A group is a data set, or a label that the user knows of a question in service (`groups`), or a
cluster of the questions' embeddings (`clusters`). Each group takes the fixed route that is best in
it; its means are drawn towards those of all questions, the more so the fewer questions it has
(partial pooling). How strongly, and how many clusters there are, is what is best on questions that
are left out, each by itself. If no grouping does better there than one route for all, there is
none.

Letters of shapes: n queries, G groups, r fixed routes, S states of a query, A actions. The last
axis of a value, of length 2, is Q and C.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hierrouter.evaluation.bounds import RANK_DIGITS, cheapest_best, rank_routes
from hierrouter.evaluation.outcome import (
    Actions,
    FixedRoutes,
    Floats,
    Integers,
    is_plain,
    route_policy,
    step_ranks,
)
from hierrouter.learning.config import (
    ClustersConfig,
    GroupsConfig,
    Objective,
    RidgeConfig,
    TableConfig,
    ValueConfig,
)
from hierrouter.learning.forward import softmax_policy
from hierrouter.learning.resumption import prefix, select
from hierrouter.learning.router import (
    Origin,
    PolicyFamily,
    RewardPolicy,
    StateBatch,
    Tensors,
    nearest_alpha,
    training_queries,
)
from hierrouter.learning.value import ValueModel, ValueRouter, fit, in_digest_order, learned_rows
from hierrouter.tables import safe_text
from hierrouter_cache.tree import RouteTree, net_reward

Array = NDArray[np.float32]

ALL = 0  # row of a table that has the means over all questions
# Strengths of the pooling, in questions: as many questions of the mean of all are added to a group.
# Of equally good ones the first, strongest one is taken.
POOLINGS = (300.0, 100.0, 30.0, 10.0, 3.0, 0.0)
MAX_CENTRE_QUERIES = 4_096  # queries from which centres are computed, at most
CENTRE_STARTS = 1  # random starts of k-means
TABLE_TENSORS = ("centres", "route", "listed", "values", "count", "learned", "without_self")
TABLE_GROUP = "table"  # begins the names of the tensors of a table of several
VALUE_GROUP = "value"  # begins the names of the tensors of a value model of several
MAX_LISTED_GROUPS = 8  # groups that a sentence lists, at most


@dataclass(frozen=True, eq=False)
class RouteTable:
    """The mean Q and C of every fixed route, over all questions and in each of some groups.

    Attributes:
        actions: what may be chosen.
        alpha: reward lost per unit of cost.
        fingerprint: of the tree it was learned from.
        dim: length of the embeddings of the states.
        names: data set or label of each group, ascending; empty if groups are clusters.
        centres: float32[G, width], of clusters; float32[0, width] if groups have names.
        route: int64[r], the numbers of the routes, ascending; see `Layout.route`.
        listed: int64[l], positions of the routes that are a group's choice; others are taken where
            a question does not offer that.
        values: float64[1 + G, r, 2], mean Q and C: of all questions, then of each group.
        count: int64[1 + G], questions of each.
        pooling: by how many questions of the mean of all a group's mean is drawn to it.
        learned: int64[n], ascending, the digests of the queries it learned from.
        without_self: int64[n], position of the route that each of them takes without itself.

    Raises:
        ValueError: the parts do not fit together.
    """

    actions: Actions
    alpha: float
    fingerprint: str
    dim: int
    pooling: float
    names: tuple[str, ...]
    centres: Array
    route: Integers
    listed: Integers
    values: Floats
    count: Integers
    learned: Integers
    without_self: Integers

    def __post_init__(self) -> None:
        integers = (self.route, self.listed, self.count, self.learned, self.without_self)
        fits = [
            all(array.dtype == np.int64 and array.ndim == 1 for array in integers),
            self.centres.dtype == np.float32 and self.centres.ndim == 2,
            self.values.dtype == np.float64,
            self.values.shape == (len(self.count), len(self.route), 2),
            len(self.count) == 1 + max(len(self.names), len(self.centres)),
            not (self.names and len(self.centres)),
            self.names == tuple(sorted(set(self.names))),
            self.centres.shape[1:] <= (self.dim,),
            len(self.listed) > 0,
            len(self.learned) == len(self.without_self),
        ]
        if not all(fits) or not self._has_routes:
            raise ValueError("the parts of a table of routes do not fit")

    @classmethod
    def from_object(
        cls, values: Mapping[str, Any], tensors: Tensors, actions: Actions, origin: Origin
    ) -> RouteTable:
        """Return the table that `as_object` and `tensors` describe.

        Args:
            values: what `as_object` returned.
            tensors: what `tensors` returned.
            actions: what may be chosen.
            origin: of the table.

        Raises:
            ValueError, TypeError, KeyError: they describe none.
        """
        names = tuple(values["names"])
        is_plain = isinstance(values["dim"], int) and all(isinstance(name, str) for name in names)
        if set(tensors) != set(TABLE_TENSORS) or not is_plain:
            raise ValueError("tensors of no table of routes")
        alpha = float(values["alpha"])
        pooling = float(values["pooling"])
        if not (0 <= alpha < np.inf and 0 <= pooling < np.inf):
            raise ValueError(f"alpha {alpha}, pooling {pooling}")
        return cls(
            actions=actions,
            alpha=alpha,
            pooling=pooling,
            fingerprint=origin.fingerprint,
            dim=values["dim"],
            names=names,
            **tensors,
        )

    def as_object(self) -> dict[str, Any]:
        """What the tensors do not hold, as JSON values."""
        return {
            "alpha": self.alpha,
            "dim": self.dim,
            "names": list(self.names),
            "pooling": self.pooling,
        }

    def tensors(self) -> Tensors:
        """The arrays, by name."""
        return {name: getattr(self, name) for name in TABLE_TENSORS}

    @property
    def _has_routes(self) -> bool:
        """Whether all numbers and positions of routes are possible."""
        nodes = self.actions.layout.nodes
        positions = np.concatenate([self.listed, self.without_self])
        return bool(
            ((self.route > 0) & (self.route < nodes)).all()
            and (np.diff(self.route) > 0).all()
            and ((positions >= 0) & (positions < len(self.route))).all()
            and (self.learned[:-1] <= self.learned[1:]).all()
        )

    @property
    def groups(self) -> int:
        """G; 0 if no grouping did better than one route for all on left-out questions."""
        return len(self.count) - 1

    @cached_property
    def best(self) -> Integers:
        """int64[1 + G], number of the route of all questions and of each group."""
        return np.array([ranking[0] for ranking in self.rankings], np.int64)

    @cached_property
    def rankings(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the routes of all questions and of each group, the best one first."""
        quality, cost = np.moveaxis(self.values.round(RANK_DIGITS), -1, 0)
        reward = np.round(net_reward(quality, cost, self.alpha), RANK_DIGITS)
        is_other = np.ones(len(self.route), np.bool_)
        is_other[self.listed] = False
        # Other routes are in the order of all questions: few questions of a group offer them.
        reward = np.where(is_other, reward[ALL], reward)
        orders = (np.lexsort((self.route, cost[row], -reward[row], is_other)) for row in self._rows)
        return tuple(tuple(self.route[order].tolist()) for order in orders)

    def position(self, node: int) -> int:
        """Position of a route in `route`, by the number of its node."""
        return int(np.searchsorted(self.route, node))

    def values_without(self, row: Integers, own: Floats) -> Floats:
        """The means of each question's group without the question itself, pooled again.

        Args:
            row: int64[n], of each question, which is one of those learned from; see `row_of`.
            own: float64[n, r, 2], Q and C of the routes on it.

        Returns:
            float64[n, r, 2].
        """
        count = self.count[ALL]
        if count == 1:  # nothing is left without it
            return np.repeat(self.values[:1], len(row), axis=0)
        all_others = (count * self.values[ALL] - own) / (count - 1)
        share = _share(self.count, self.pooling)[:, None, None]
        # The means before they were pooled: every group has questions, and so a share.
        means = self.values[ALL] + (self.values - self.values[ALL]) / share
        others = self.count[row] - 1
        group_others = self.count[row][:, None, None] * means[row] - own
        group_others /= np.maximum(others, 1)[:, None, None]
        weight = np.where(row == ALL, 0.0, _share(others, self.pooling))[:, None, None]
        return all_others + weight * (group_others - all_others)

    @cached_property
    def goes_on(self) -> NDArray[np.bool_]:
        """bool[S, A, r]: whether a route begins with the actions so far and goes on with each."""
        legal = self.actions.legal()
        ranks = [step_ranks(self.actions, (node,)) for node in self.route.tolist()]
        return np.isfinite(np.stack(ranks, axis=-1)) & legal[:, :, None]

    @property
    def _rows(self) -> range:
        return range(len(self.count))

    def row_of(self, groups: Sequence[str], vectors: Array) -> Integers:
        """Find the row of each question: that of its group, or `ALL` if the group is unknown.

        Args:
            groups: data set or label of each question; "" is unknown.
            vectors: float32[n, dim], embedding of each question, before any answer.

        Returns:
            int64[n].
        """
        if self.names:
            row = {name: number for number, name in enumerate(self.names, 1)}
            return np.array([row.get(group, ALL) for group in groups], np.int64)
        if len(self.centres):
            return 1 + nearest_centre(vectors[:, : self.centres.shape[1]], self.centres)
        return np.full(len(vectors), ALL)

    @cached_property
    def expected(self) -> Floats:
        """float64[1 + G, S, A, 2]: Q and C of the best route that goes on with each action.

        NaN for an action that is not legal.
        """
        shape = (self.actions.states, self.actions.count)
        expected = np.full((len(self.count), *shape, 2), np.nan)
        for row, ranking in enumerate(self.rankings):
            ranks = np.ceil(step_ranks(self.actions, ranking))
            state, action = np.nonzero(np.isfinite(ranks) & self.actions.legal())
            routes = np.array(ranking)[ranks[state, action].astype(np.int64)]
            expected[row, state, action] = self.values[row, np.searchsorted(self.route, routes)]
        return expected

    @cached_property
    def choice(self) -> Integers:
        """int64[1 + G, S]: the action of all questions and of each group at each state."""
        last = float(self.actions.layout.nodes)
        legal = self.actions.legal()
        choices = []
        for ranking in self.rankings:
            ranks = np.minimum(step_ranks(self.actions, ranking), last)
            choices.append(np.where(legal, ranks, np.inf).argmin(axis=1))
        return np.array(choices)


@dataclass(frozen=True)
class TableRouter(RewardPolicy):
    """A table of fixed routes as a router: each question takes the route of its group.

    Attributes:
        table: the table.
    """

    kind: ClassVar[str] = "a table of routes"

    table: RouteTable

    @property
    def alpha(self) -> float:
        """Reward lost per unit of cost."""
        return self.table.alpha

    def at(self, alpha: float) -> TableRouter:
        """The same groups, with the routes that are the best at another alpha.

        A query that it learned from takes the route that is best without it at the old one.
        """
        return TableRouter(replace(self.table, alpha=alpha))

    @property
    def dim(self) -> int:
        """Length of the embeddings that it reads."""
        return self.table.dim

    @property
    def reads_question(self) -> bool:
        """Whether it reads the embedding of the question also after answers."""
        return len(self.table.centres) > 0

    @property
    def groups(self) -> tuple[str, ...]:
        """The data sets or labels that it has routes for; empty if groups are clusters."""
        return self.table.names

    def as_object(self) -> dict[str, Any]:
        """The table without its tensors, as JSON values."""
        return {"table": self.table.as_object()}

    def tensors(self) -> Tensors:
        """The arrays of the table, by name."""
        return self.table.tensors()

    def probabilities(self, tree: RouteTree) -> Floats:
        """Compute float64[queries, S, A], one-hot: the action at every state.

        A query that it learned from takes the route that is best without it.
        """
        table = self.table
        tree = tree.with_layout(table.actions.layout)
        row = self.rows(tree)
        taken = table.best[row]
        learned = learned_rows(tree, table.fingerprint, table.learned)
        is_learned = learned >= 0
        taken[is_learned] = table.route[table.without_self[learned[is_learned]]]
        policy = np.empty((len(tree), table.actions.states, table.actions.count))
        for key in np.unique(np.stack([row, taken], axis=1), axis=0):
            group, first = key.tolist()
            rows = np.flatnonzero((row == group) & (taken == first))
            others = (node for node in table.rankings[group] if node != first)
            policy[rows] = route_policy(tree.select(rows), table.actions, (first, *others))
        return policy

    def rewards(self, tree: RouteTree) -> Floats:
        """Compute the expected R of the best route that goes on with each action.

        The means are without the query itself, if the table learned from it and its prices are
        those of the training.

        Returns:
            float64[queries, S, A]; -inf for an action that is not legal.
        """
        table = self.table
        row = self.rows(tree)
        rewards = self._reward(table.expected[row])
        rows = np.flatnonzero(learned_rows(tree, table.fingerprint, table.learned) >= 0)
        if not len(rows) or tree.fingerprint != table.fingerprint:
            return rewards
        ends_early = table.actions.endings.start == 1
        fold = tree.select(rows)
        means = FixedRoutes(fold, ends_early, () if is_plain(tree) else table.rankings[ALL])
        own = np.stack([means.quality, means.cost], axis=-1)
        values = table.values_without(row[rows], own)
        reward = net_reward(values[..., 0], values[..., 1], self.alpha)
        for state, action in np.argwhere(table.goes_on.any(axis=2)).tolist():
            rewards[rows, state, action] = reward[:, table.goes_on[state, action]].max(axis=1)
        return rewards

    def expected(self, states: StateBatch) -> Floats:
        """Expected Q, and C from the state on, after each action at some states.

        Returns:
            float64[n, A, 2]; NaN for an action that is not legal.
        """
        expected = self._values(states)
        expected[..., 1] -= states.cost[:, None]
        return expected

    def live_probabilities(self, states: StateBatch) -> Floats:
        """float64[n, A], one-hot: the action at some states."""
        row = self.table.row_of(states.groups, states.roots)
        return np.eye(self.table.actions.count)[self.table.choice[row, states.node]]

    def preferences(self, states: StateBatch) -> Floats:
        """float64[n, A]: expected R of the best route that goes on with each action."""
        return self._reward(self._values(states))

    def _values(self, states: StateBatch) -> Floats:
        """float64[n, A, 2]: Q and C in total, see `RouteTable.expected`."""
        row = self.table.row_of(states.groups, states.roots)
        return self.table.expected[row, states.node]

    def in_words(self, models: Sequence[str]) -> str:
        """The table in a sentence: the route of each group, and that of all others."""
        table = self.table

        def name(row: int) -> str:
            return safe_text(table.actions.layout.name(int(table.best[row]), models))

        if not table.groups:
            return f"no grouping did better than one route on left-out questions: {name(ALL)}"
        if table.names:
            listed = range(1, 1 + min(table.groups, MAX_LISTED_GROUPS))
            parts = [f"{safe_text(table.names[row - 1])}: {name(row)}" for row in listed]
            if table.groups > len(listed):
                parts.append(f"{table.groups - len(listed):,} more groups")
            return f"a route for each group: {'; '.join(parts)}; other questions: {name(ALL)}"
        routes, first, number = np.unique(table.best[1:], return_index=True, return_inverse=True)
        shares = np.bincount(number, table.count[1:]) / table.count[ALL]
        parts = [
            f"{name(1 + int(first[position]))} for {shares[position]:.0%}"
            for position in np.argsort(-shares, kind="stable")[:MAX_LISTED_GROUPS].tolist()
        ]
        if len(routes) > len(parts):
            parts.append(f"{len(routes) - len(parts):,} more routes")
        return f"a route for each of {table.groups:,} clusters of questions: {'; '.join(parts)}"

    def rows(self, tree: RouteTree) -> Integers:
        """int64[queries], the row of the table that each query belongs to, see `row_of`."""
        vectors = np.zeros((len(tree), self.table.dim), np.float32)
        if self.reads_question:
            vectors = question_vectors(tree)
        return self.table.row_of(tree.datasets, vectors)

    def _reward(self, values: Floats) -> Floats:
        reward = net_reward(values[..., 0], values[..., 1], self.alpha)
        return np.where(np.isnan(reward), -np.inf, reward)


@dataclass(frozen=True)
class MeanRouter(RewardPolicy):
    """Several policy classes as one: it takes the action with the highest mean of their R.

    Attributes:
        values: value models at one alpha, at least one.
        tables: tables of routes.
    """

    kind: ClassVar[str] = "a mean of policy classes"

    values: tuple[ValueRouter, ...]
    tables: tuple[TableRouter, ...]

    @property
    def alpha(self) -> float:
        """Reward lost per unit of cost."""
        return self.values[0].alpha

    @property
    def dim(self) -> int:
        """Length of the embeddings that it reads."""
        return self.values[0].dim

    @property
    def reads_question(self) -> bool:
        """Whether it reads the embedding of the question also after answers."""
        return any(table.reads_question for table in self.tables)

    @property
    def groups(self) -> tuple[str, ...]:
        """The data sets or labels that one of its tables has routes for."""
        return next((table.groups for table in self.tables if table.groups), ())

    def as_object(self) -> dict[str, Any]:
        """What the tensors do not hold, as JSON values."""
        return self._family.as_object()

    def tensors(self) -> Tensors:
        """The arrays of all of them, by name."""
        return self._family.tensors()

    @property
    def _family(self) -> MeanModel:
        """The same parts, as if they were for a grid of this alpha."""
        tables = tuple(TableGrid((table,)) for table in self.tables)
        return MeanModel(tuple(value.model for value in self.values), tables)

    def has_learned(self, number: int) -> bool:
        """Whether one of the numbers was present in training."""
        return any(value.has_learned(number) for value in self.values)

    def rewards(self, tree: RouteTree) -> Floats:
        """Compute the mean of the expected R; of a query that it learned from as if it had not.

        Returns:
            float64[queries, S, A]; -inf for an action that is not legal.
        """
        rewards = [router.rewards(tree) for router in (*self.values, *self.tables)]
        return _mean_of_known(np.stack(rewards))

    def probabilities(self, tree: RouteTree) -> Floats:
        """float64[queries, S, A]: the stochastic policy, a softmax of the expected R."""
        return softmax_policy(self.rewards(tree), self._temperatures)

    def choice_probability(self, tree: RouteTree, choice: Integers) -> Floats:
        """The mean of what the value models predict, see `ValueRouter.choice_probability`."""
        return np.mean([value.choice_probability(tree, choice) for value in self.values], axis=0)

    def live_choice_probability(self, states: StateBatch, choice: Integers) -> Floats:
        """The mean of what the value models predict at some states."""
        each = [value.live_choice_probability(states, choice) for value in self.values]
        return np.mean(each, axis=0)

    def expected(self, states: StateBatch) -> Floats:
        """Expected Q, and C from the state on, after each action at some states.

        Returns:
            float64[n, A, 2]; NaN for an action that is not legal.
        """
        expected = [router.expected(states) for router in self.values]
        for table in self.tables:
            values = table.expected(states)
            # A route of the table begins with every legal action, unless no question offers it.
            expected.append(np.where(np.isnan(values), expected[0], values))
        return np.mean(expected, axis=0)

    def live_probabilities(self, states: StateBatch) -> Floats:
        """float64[n, A]: the stochastic policy at some states, a softmax of the expected R."""
        reward = self._reward(self.expected(states))
        return softmax_policy(reward, self._temperatures[states.node])

    def _reward(self, values: Floats) -> Floats:
        return net_reward(values[..., 0], values[..., 1], self.alpha)

    @property
    def _temperatures(self) -> Floats:
        """float64[S], in units of R: the mean of the value models'."""
        each = [value.model.temperatures(self.alpha) for value in self.values]
        return np.mean(each, axis=0)


def _mean_of_known(rewards: Floats) -> Floats:
    """The mean of the rewards of several routers, float64[m, ..., A], to float64[..., A].

    The first one knows which actions are legal. One that knows nothing of a legal action, because
    no question offered it, is left out.
    """
    is_known = np.isfinite(rewards)
    total = np.where(is_known, rewards, 0.0).sum(axis=0)
    mean = total / np.maximum(is_known.sum(axis=0), 1)
    return np.where(is_known[0], mean, -np.inf)


@dataclass(frozen=True)
class MeanModel(PolicyFamily):
    """Several policy classes for every alpha.

    Attributes:
        values: value models.
        tables: of each class of tables, one for each alpha of a grid.
    """

    values: tuple[ValueModel, ...]
    tables: tuple[TableGrid, ...]

    @classmethod
    def from_object(
        cls,
        values: Mapping[str, Any],
        tensors: Tensors,
        actions: Actions,
        origin: Origin,
        count: int,
    ) -> MeanModel:
        """Return the classes that `as_object` and `tensors` describe.

        Args:
            values: the mean that `as_object` returned.
            tensors: what `tensors` returned.
            actions: what may be chosen.
            origin: of the classes.
            count: number of alphas of the grid.

        Raises:
            ValueError, TypeError, KeyError: they describe none.
        """
        models = [
            ValueModel.from_object(
                model, select(tensors, f"{VALUE_GROUP}{number}"), actions, origin
            )
            for number, model in enumerate(values["values"])
        ]
        grids = [
            TableGrid.from_object(
                grid, select(tensors, f"{TABLE_GROUP}s{number}"), actions, origin, count
            )
            for number, grid in enumerate(values["tables"])
        ]
        if not models:
            raise ValueError("no value model")
        return cls(tuple(models), tuple(grids))

    def as_object(self) -> dict[str, Any]:
        """What the tensors do not hold, as JSON values."""
        return {
            "mean": {
                "values": [model.as_object() for model in self.values],
                "tables": [grid.as_object()["tables"] for grid in self.tables],
            }
        }

    def tensors(self) -> Tensors:
        """The arrays of all classes, by name."""
        arrays: Tensors = {}
        for number, model in enumerate(self.values):
            arrays.update(prefix(f"{VALUE_GROUP}{number}", model.tensors()))
        for number, grid in enumerate(self.tables):
            arrays.update(prefix(f"{TABLE_GROUP}s{number}", grid.tensors()))
        return arrays

    def at(self, alpha: float, alphas: Sequence[float], actions: Actions) -> MeanRouter:
        """The mean at one alpha, with the tables of the nearest alpha of the grid."""
        return MeanRouter(
            tuple(model.at(alpha, alphas, actions) for model in self.values),
            tuple(grid.at(alpha, alphas, actions) for grid in self.tables),
        )


# The classes of a mean: the value model, the ridge, and a route for each group;
# docs/decisions.md has others.
MEAN_CLASSES: tuple[ValueConfig | TableConfig, ...] = (ValueConfig(), RidgeConfig(), GroupsConfig())


def fit_mean(
    tree: RouteTree,
    alphas: Sequence[float],
    objective: Objective,
    seed: int,
    fitted: Mapping[str, PolicyFamily] | None = None,
) -> MeanModel:
    """Learn the classes of a mean from the folds "train" and "validation".

    Args:
        tree: all folds.
        alphas: the grid.
        objective: how an episode may end; its alpha is not used.
        seed: of the tables.
        fitted: models by algorithm that were fitted to the same tree with the same arguments, so
            that they need not be fitted again.

    Raises:
        InputError: there is nothing to learn from.
    """

    def model_of(config: ValueConfig | TableConfig) -> PolicyFamily:
        if fitted and config.learner in fitted:
            return fitted[config.learner]
        if isinstance(config, ValueConfig):
            return fit(tree, alphas, objective, config)
        return TableGrid(fit_tables(tree, alphas, objective, config, seed))

    models = [model_of(config) for config in MEAN_CLASSES]
    return MeanModel(
        tuple(model for model in models if isinstance(model, ValueModel)),
        tuple(model for model in models if isinstance(model, TableGrid)),
    )


@dataclass(frozen=True)
class TableGrid(PolicyFamily):
    """A table of routes for each alpha of a grid.

    Attributes:
        tables: in the order of the alphas.
    """

    tables: tuple[TableRouter, ...]

    @classmethod
    def from_object(
        cls,
        values: Sequence[Mapping[str, Any]],
        tensors: Tensors,
        actions: Actions,
        origin: Origin,
        count: int,
    ) -> TableGrid:
        """Return the tables that `as_object` and `tensors` describe.

        Args:
            values: the tables that `as_object` returned.
            tensors: what `tensors` returned.
            actions: what may be chosen.
            origin: of the tables.
            count: number of tables.

        Raises:
            ValueError, TypeError, KeyError: they describe none.
        """
        if len(values) != count:
            raise ValueError(f"{len(values)} tables")
        tables = [
            RouteTable.from_object(
                table, select(tensors, f"{TABLE_GROUP}{number}"), actions, origin
            )
            for number, table in enumerate(values)
        ]
        return cls(tuple(map(TableRouter, tables)))

    def as_object(self) -> dict[str, Any]:
        """The tables without their tensors, as JSON values."""
        return {"tables": [router.table.as_object() for router in self.tables]}

    def tensors(self) -> Tensors:
        """The arrays of all tables, by name."""
        arrays: Tensors = {}
        for number, router in enumerate(self.tables):
            arrays.update(prefix(f"{TABLE_GROUP}{number}", router.tensors()))
        return arrays

    def at(self, alpha: float, alphas: Sequence[float], actions: Actions) -> TableRouter:
        """The table of the nearest alpha of the grid, whose routes are chosen anew."""
        return self.tables[nearest_alpha(alpha, alphas)].at(alpha)


def question_vectors(tree: RouteTree) -> Array:
    """float32[queries, dim]: the embedding at the root, before any answer."""
    rows = np.arange(len(tree))
    return tree.embedding_at(rows, np.zeros_like(rows))


def nearest_centre(vectors: Array, centres: Array) -> Integers:
    """int64[n]: the nearest centre of each vector; of equally near ones the first.

    Args:
        vectors: float32[n, width].
        centres: float32[k, width].
    """
    squares = (centres.astype(np.float64) ** 2).sum(axis=1)
    distance = squares - 2 * vectors.astype(np.float64) @ centres.T.astype(np.float64)
    return distance.argmin(axis=1)


@dataclass(frozen=True, eq=False)
class _Grouping:
    """A way to group the queries.

    Attributes:
        group: int64[n], of each query, from 0; all of them occur.
        names: of the groups; empty for clusters.
        centres: float32[G, width], of clusters.
    """

    group: Integers
    names: tuple[str, ...]
    centres: Array


def fit_tables(
    tree: RouteTree, alphas: Sequence[float], objective: Objective, config: TableConfig, seed: int
) -> tuple[TableRouter, ...]:
    """Learn a table of routes for each alpha from the folds "train" and "validation".

    Args:
        tree: all folds.
        alphas: of the tables.
        objective: how an episode may end; its alpha is not used.
        config: the settings; their class says what a group is.
        seed: of the random starts of the centres.

    Raises:
        InputError: there is nothing to learn from.
    """
    fold, digests = in_digest_order(training_queries(tree))
    # What is grouped does not depend on alpha.
    groupings = [
        _Grouping(np.zeros(len(fold), np.int64), (), np.empty((0, 0), np.float32)),
        *_groupings(fold, config, seed),
    ]
    return tuple(
        TableRouter(_table(tree, fold, groupings, replace(objective, alpha=alpha), config, digests))
        for alpha in alphas
    )


def _table(
    tree: RouteTree,
    fold: RouteTree,
    groupings: Sequence[_Grouping],
    objective: Objective,
    config: TableConfig,
    digests: Integers,
) -> RouteTable:
    """Choose among groupings, see `fit_tables`.

    Args:
        tree: all folds.
        fold: the queries to learn from, ascending by their digests.
        groupings: of these queries; the first one has one group.
        objective: alpha, and how an episode may end.
        config: the settings.
        digests: int64[n], of these queries.
    """
    alpha = objective.alpha
    ranking = rank_routes(fold, alpha, objective.ends_early)
    means = FixedRoutes(fold, objective.ends_early, ranking if len(ranking) > 1 else ())
    listed = means.listed
    values = np.stack([means.quality, means.cost], axis=-1)
    candidates = _Candidates(values[:, listed], alpha, config.folds)
    for number, grouping in enumerate(groupings):
        for pooling in POOLINGS if number else POOLINGS[:1]:
            candidates.add(number, grouping.group, pooling)
    number, pooling = candidates.best
    grouping = groupings[number]
    all_values = values.mean(axis=0)
    sums, count = sums_by_group(values, grouping.group)
    share = _share(count, pooling)[:, None, None]
    group_values = all_values + share * (sums / count[:, None, None] - all_values)
    if not number:  # one route for all
        group_values = group_values[:0]
        count = count[:0]
    return RouteTable(
        actions=objective.actions(tree.layout),
        alpha=alpha,
        pooling=pooling,
        fingerprint=tree.fingerprint,
        dim=tree.dim,
        names=grouping.names,
        centres=grouping.centres,
        route=means.node,
        listed=listed,
        values=np.concatenate([all_values[None], group_values]),
        count=np.concatenate([[len(fold)], count]).astype(np.int64),
        learned=digests,
        without_self=listed[candidates.without_self],
    )


def _groupings(fold: RouteTree, config: TableConfig, seed: int) -> Iterator[_Grouping]:
    """The ways to group some queries that a policy class compares; none if all are alike."""
    if isinstance(config, GroupsConfig):
        names, group = np.unique(np.array(fold.datasets), return_inverse=True)
        if len(names) > 1:
            yield _Grouping(
                group.astype(np.int64), tuple(names.tolist()), np.empty((0, 0), np.float32)
            )
        return
    assert isinstance(config, ClustersConfig)
    width = fold.dim - fold.numbers
    vectors = question_vectors(fold)[:, :width]
    # The queries are in the order of their digests: the first ones are as good as random ones.
    some = vectors[:MAX_CENTRE_QUERIES]
    distinct = len(np.unique(some, axis=0)) if width else 1
    clusters = 2
    while clusters <= min(config.clusters, distinct, len(fold) // config.questions):
        centres = _centres(some, clusters, seed)
        group = nearest_centre(vectors, centres)
        present, group = np.unique(group, return_inverse=True)
        yield _Grouping(group.astype(np.int64), (), centres[present])
        clusters *= 2


def _centres(vectors: Array, count: int, seed: int) -> Array:
    """float32[count, width]: centres of some vectors by k-means, in an order of their own."""
    # Imported here: only a fit needs scikit-learn.
    from sklearn.cluster import KMeans

    with threadpool_limits(1):  # another number of threads adds up in another order
        model = KMeans(count, n_init=CENTRE_STARTS, random_state=seed).fit(vectors)
    return np.asarray(model.cluster_centers_, np.float32)


class _Candidates:
    """Compares groupings on queries that are left out.

    Args:
        values: float64[n, r, 2], Q and C of each route on each query.
        alpha: reward lost per unit of cost.
        folds: into how many parts the queries are cut, for the choice without a query itself.
    """

    def __init__(self, values: Floats, alpha: float, folds: int) -> None:
        self._values = values
        self._alpha = alpha
        self._fold = np.arange(len(values)) % max(folds, 2)
        self._reward = net_reward(values[..., 0], values[..., 1], alpha)
        self._settings: list[tuple[int, float]] = []
        self._choices: list[Integers] = []  # of each candidate, int64[n]: each without its query

    def add(self, grouping: int, group: Integers, pooling: float) -> None:
        """Add a candidate.

        Args:
            grouping: its number.
            group: int64[n], the group of each query.
            pooling: see `POOLINGS`.
        """
        self._settings.append((grouping, pooling))
        self._choices.append(self._without_self(group, pooling))

    @property
    def best(self) -> tuple[int, float]:
        """The grouping and the pooling with the highest R; of equally good ones the first."""
        return self._settings[int(self._total(np.ones(len(self._fold), np.bool_)).argmax())]

    @property
    def without_self(self) -> Integers:
        """int64[n]: the choice on each query by the candidate that is best on other queries."""
        chosen = np.empty(len(self._fold), np.int64)
        for fold in np.unique(self._fold).tolist():
            others = self._fold != fold
            number = int(self._total(others).argmax()) if others.any() else 0
            chosen[~others] = self._choices[number][~others]
        return chosen

    def _total(self, rows: NDArray[np.bool_]) -> Floats:
        """float64[candidates]: the mean R of each on some queries."""
        number = np.flatnonzero(rows)
        reward = self._reward[number]
        means = [
            np.take_along_axis(reward, choice[number, None], 1).mean() for choice in self._choices
        ]
        rewards: Floats = np.array(means, np.float64)
        return rewards.round(RANK_DIGITS)

    def _without_self(self, group: Integers, pooling: float) -> Integers:
        """int64[n]: the best route of each query's group, by the other queries."""
        values = self._values
        others = max(len(values) - 1, 1)
        if len(values) == 1:  # nothing is left without it
            all_others = values
        else:
            all_others = (values.sum(axis=0) - values) / others
        sums, count = sums_by_group(values, group)
        own = count[group] - 1
        group_others = (sums[group] - values) / np.maximum(own, 1)[:, None, None]
        share = _share(own, pooling)[:, None, None]
        mean = all_others + share * (group_others - all_others)
        quality, cost = np.moveaxis(mean.round(RANK_DIGITS), -1, 0)
        return cheapest_best(np.round(net_reward(quality, cost, self._alpha), RANK_DIGITS), cost)


def _share(count: Integers, pooling: float) -> Floats:
    """float64[...]: the weight of a group's own mean, by its number of questions."""
    total = count.astype(np.float64) + pooling
    share: Floats = count / np.where(total > 0, total, 1.0)
    return share


def sums_by_group(values: Floats, group: Integers) -> tuple[Floats, Integers]:
    """Sum up the values of each group of queries.

    Args:
        values: float64[n, ...].
        group: int64[n], of each query, from 0; all of them occur.

    Returns:
        float64[G, ...], and int64[G], the number of queries.
    """
    count = np.bincount(group)
    order = np.argsort(group, kind="stable")
    starts = np.cumsum(count) - count
    return np.add.reduceat(values[order], starts, axis=0), count
