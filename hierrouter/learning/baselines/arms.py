"""The interface of a baseline, and the arms that a one-shot router chooses from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.bounds import cheapest_best, rank_routes
from hierrouter.evaluation.outcome import (
    Booleans,
    FixedRoutes,
    Floats,
    Integers,
    Outcome,
    RouteMeans,
    is_plain,
    reach_probability,
)
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree, net_reward

REWARD_DIGITS = 9  # two values of R that are equal after rounding to these are a tie
MAX_ROUTE_ARMS = 1_000  # arms of set B: more take hours, and have too few queries each


@dataclass(frozen=True)
class Answers:
    """Features of the last answer of each arm, to be read once the arm's calls are made.

    Attributes:
        vectors: float32[texts, width], of each distinct text; shared by all folds and arms.
        row: int64[queries, arms], row of `vectors`.
        group: int64[queries, arms], equal for equal answers; compared within a query.
        tokens: int64[queries, arms], length of the answer.
        sure: float64[queries, arms], probability of the answer by its model, rounded as in
            `hierrouter.replay.states`; NaN if the engine gives none.
    """

    vectors: NDArray[np.float32]
    row: Integers
    group: Integers
    tokens: Integers
    sure: Floats

    def select(self, rows: Integers) -> Answers:
        """The same for the queries at positions `rows` only."""
        by_query = {name: values[rows] for name, values in vars(self).items() if name != "vectors"}
        return replace(self, **by_query)


@dataclass(frozen=True)
class RouterInputs:
    """The inputs that a router may read, for some queries.

    They have no scores and no costs; only `Arms` have these. The cost of a call that was made is
    sunk, so a router that maximises R has no use for it.

    Attributes:
        question: float32[queries, dim], the embedding of each question.
        datasets: dataset of each query, for baselines that assume it is known.
        calls: bool[arms, calls], which calls an arm makes; two arms may share one.
        answers: of every arm, to be read only of arms whose calls are made; None for a router that
            makes no call before it chooses, and if the texts are not loaded.
    """

    question: NDArray[np.float32]
    datasets: tuple[str, ...]
    calls: Booleans
    answers: Answers | None

    def __len__(self) -> int:
        return len(self.question)

    @property
    def arms(self) -> int:
        """Number of arms to choose from."""
        return len(self.calls)

    def calls_to_read(self, read: Booleans) -> Booleans:
        """bool[n, calls]: the calls that are made to read the answers of arms, bool[n, arms]."""
        # As numbers: numpy multiplies booleans some hundred times slower.
        counts: NDArray[np.float32] = read.astype(np.float32) @ self.calls.astype(np.float32)
        return counts > 0

    def select(self, rows: Integers) -> RouterInputs:
        """The same for the queries at positions `rows` only, in that order."""
        return replace(
            self,
            question=self.question[rows],
            datasets=tuple(self.datasets[row] for row in rows),
            answers=self.answers.select(rows) if self.answers else None,
        )


@dataclass(frozen=True)
class Arms:
    """The result of each arm on each query of a fold.

    Attributes:
        names: name of each arm.
        seen: the inputs that a router may read; own baselines use this name.
        call_cost: float64[queries, calls], cost of each call.
        quality: float64[queries, arms], Q of the last answer, in [0, 1].
        accuracy: float64[queries, arms], 1 if it is right, else 0.
    """

    names: tuple[str, ...]
    seen: RouterInputs
    call_cost: Floats
    quality: Floats
    accuracy: Floats

    @cached_property
    def cost(self) -> Floats:
        """float64[queries, arms]: cost of all calls of an arm."""
        return self.call_cost @ self.seen.calls.T

    def reward(self, alpha: float) -> Floats:
        """float64[queries, arms]: R = Q - alpha * C."""
        return net_reward(self.quality, self.cost, alpha)

    def __len__(self) -> int:
        return len(self.quality)

    def select(self, rows: Integers) -> Arms:
        """The same for the queries at positions `rows` only, in that order."""
        return replace(
            self,
            seen=self.seen.select(rows),
            call_cost=self.call_cost[rows],
            quality=self.quality[rows],
            accuracy=self.accuracy[rows],
        )

    def without_answers(self) -> Arms:
        """The same for a router that makes no call before it chooses; labels stay."""
        return replace(self, seen=replace(self.seen, answers=None))


@dataclass(frozen=True)
class Play:
    """The decisions of a router on each query.

    Attributes:
        answer: float64[queries, arms], probability that the arm's answer is the one returned; rows
            sum to 1. A vote among equal answers returns one of them.
        called: float64[queries, calls], probability that the call is made; a call that leads to no
            answer is paid, too.
    """

    answer: Floats
    called: Floats

    @classmethod
    def of(cls, inputs: RouterInputs, arm: Integers) -> Play:
        """Take one arm per query, int64[queries]; its calls are the only ones."""
        return cls.mixed(inputs, np.eye(inputs.arms)[arm])

    @classmethod
    def mixed(cls, inputs: RouterInputs, probability: Floats) -> Play:
        """Draw the arm with float64[queries, arms]; its calls are the only ones."""
        return cls(probability, probability @ inputs.calls)

    @classmethod
    def after(cls, inputs: RouterInputs, arm: Integers, read: Booleans) -> Play:
        """Take one arm per query after reading the answers of several.

        All calls of these are paid; one that several arms share is paid once.

        Args:
            inputs: the queries.
            arm: int64[queries], the arm that is taken.
            read: bool[queries, arms], the arms whose answers are read.
        """
        return cls(np.eye(inputs.arms)[arm], inputs.calls_to_read(read).astype(np.float64))

    def outcome(self, arms: Arms, name: str) -> Outcome:
        """The expected outcome on a fold, under this name."""
        return Outcome(
            name=name,
            kind="baseline",
            quality=(self.answer * arms.quality).sum(axis=1),
            accuracy=(self.answer * arms.accuracy).sum(axis=1),
            cost=(self.called * arms.call_cost).sum(axis=1),
        )


def single_models(
    tree: RouteTree, answers: Answers | None = None, routes: LogRoutes | None = None
) -> Arms:
    """Set A: one direct call of a model of the pool; reference models are no arms.

    Args:
        tree: the queries.
        answers: of every arm; None if they are not loaded.
        routes: not used.
    """
    direct = tree.direct
    columns = [column for column, model in enumerate(direct.models) if model in tree.callers]
    own_calls = np.eye(len(columns), dtype=np.bool_)
    return Arms(
        names=tuple(direct.models[column] for column in columns),
        seen=RouterInputs(question_vectors(tree), tree.datasets, own_calls, answers),
        call_cost=direct.cost[:, columns],
        quality=direct.score[:, columns],
        accuracy=direct.accuracy[:, columns],
    )


@dataclass(frozen=True)
class LogRoutes:
    """The routes that are arms of set B where not all queries offer all routes.

    They are chosen on the train fold. Each is a policy for all queries, see `FixedRoutes`.

    Attributes:
        node: where the routes end, in ascending order.
        ranking: which routes are taken where a query does not offer one, the best first.
    """

    node: tuple[int, ...]
    ranking: tuple[int, ...]

    @classmethod
    def of(cls, tree: RouteTree, alpha: float) -> Self | None:
        """Choose the routes on the train fold of a tree; None if all queries offer all routes."""
        if FixedRoutes(tree).is_complete:
            return None
        train = tree.split("train")
        means = FixedRoutes(train)
        return cls(tuple(means.node[means.listed].tolist()), rank_routes(train, alpha))


def macro_arms(
    tree: RouteTree, answers: Answers | None = None, routes: LogRoutes | None = None
) -> Arms:
    """Set B: each route as one arm, chosen before any answer is read.

    On the paper's tree these are the M^L routes. If a call has several draws, quality and costs are
    the means over them.

    Args:
        tree: the queries.
        answers: of every arm; None if they are not loaded.
        routes: the routes, if not all queries offer all. None are those that all queries offer.
    """
    if routes is not None:
        return _log_arms(tree, routes)
    layout = tree.layout
    means = RouteMeans(tree)
    columns = means.everywhere
    call_cost = np.zeros_like(tree.cost)
    calls = np.zeros((len(columns), layout.nodes), np.bool_)
    expected = reach_probability(tree)
    for node in range(1, layout.nodes):
        own_cost = tree.cost[:, node] - tree.cost[:, layout.parent[node]]
        call_cost[:, layout.route[node]] += expected[:, node] * own_cost
    ends = means.node[columns].tolist()
    for arm, end in enumerate(ends):
        calls[arm, layout.route[list(layout.nodes_to(end))]] = True
    return Arms(
        names=tuple(layout.name(end, tree.models) for end in ends),
        # The root, node 0, is no call.
        seen=RouterInputs(question_vectors(tree), tree.datasets, calls[:, 1:], answers),
        call_cost=call_cost[:, 1:],
        quality=means.quality[:, columns],
        accuracy=means.accuracy[:, columns],
    )


def _log_arms(tree: RouteTree, routes: LogRoutes) -> Arms:
    """Set B where not all queries offer all routes; an arm stands for all of its calls."""
    means = FixedRoutes(tree, ranking=routes.ranking)
    columns = np.searchsorted(means.node, routes.node)
    own_calls = np.eye(len(columns), dtype=np.bool_)
    return Arms(
        names=tuple(tree.layout.name(end, tree.models) for end in routes.node),
        seen=RouterInputs(question_vectors(tree), tree.datasets, own_calls, None),
        call_cost=means.cost[:, columns],
        quality=means.quality[:, columns],
        accuracy=means.accuracy[:, columns],
    )


def question_vectors(tree: RouteTree) -> NDArray[np.float32]:
    """float32[queries, dim]: the embedding at the root, before any answer."""
    rows = np.arange(len(tree))
    return tree.embedding_at(rows, np.zeros_like(rows))


FittedRouter = Callable[[RouterInputs], Play]


class Baseline(Protocol):
    """A router that is fitted on one fold and tuned on another.

    Attributes:
        name: its name in tables; on the command line in small letters, with dashes for spaces.
        source: origin of the idea, with where to read about it.
        reads_answers: whether it needs `RouterInputs.answers`.
    """

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def reads_answers(self) -> bool: ...

    def fit(
        self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator
    ) -> FitResult:
        """Learn from `train`; choose settings by mean R on `validation`.

        Args:
            train: the fold to learn from.
            validation: the fold to choose settings on; it may be empty.
            alpha: of R = Q - alpha * C, which the router maximises.
            rng: the only source of randomness.
        """
        ...


@dataclass(frozen=True)
class FitResult:
    """A fitted router, and the settings that the validation fold chose.

    Attributes:
        play: from inputs to decisions.
        settings: chosen settings by name, as JSON values; empty if there are none to choose.
    """

    play: FittedRouter
    settings: dict[str, Any]


Tuned = FitResult  # its former name, which users' own baselines may import

# Settings as JSON values, each with the router they give.
Candidates = Iterable[tuple[dict[str, Any], FittedRouter]]


class GridSearch(ABC):
    """A baseline that fits a router for each of its settings and keeps the best one.

    If that is worse than the best static choice on the validation fold, it is this choice.
    """

    reads_answers: ClassVar[bool] = False

    def fit(
        self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator
    ) -> FitResult:
        """Fit every candidate on `train`; keep the best by mean R on `validation`.

        The best static choice on `train` takes its place where it is better on `validation`.
        """
        best = best_of(self.candidates(train, alpha, rng), validation, alpha)
        return or_static(best, train, validation, alpha)

    @abstractmethod
    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """The candidates, at least one; of equals the first one is kept."""


def best_of(candidates: Candidates, validation: Arms, alpha: float) -> FitResult:
    """The candidate with the highest mean R on the validation fold; of equals the first.

    Args:
        candidates: settings and routers, at least one.
        validation: the fold to choose on; if it is empty the first candidate is taken.
        alpha: of R = Q - alpha * C.
    """
    routers = list(candidates)
    best = 0
    if len(validation):
        rewards = [mean_reward(play, validation, alpha) for _, play in routers]
        best = int(np.round(rewards, REWARD_DIGITS).argmax())
    settings, play = routers[best]
    return FitResult(play, settings)


def or_static(result: FitResult, train: Arms, validation: Arms, alpha: float) -> FitResult:
    """A fitted router, or the best static choice where that is better on the validation fold.

    Args:
        result: of a fit.
        train: the fold that chooses the arm.
        validation: the fold that compares; if it is empty the router stays.
        alpha: of R = Q - alpha * C.
    """
    if not len(validation):
        return result
    static = best_static(train, alpha)
    lead = mean_reward(static.play, validation, alpha) - mean_reward(result.play, validation, alpha)
    return static if np.round(lead, REWARD_DIGITS) > 0 else result


def mean_reward(play: FittedRouter, arms: Arms, alpha: float) -> float:
    """Mean R of a router on a fold."""
    return float(play(arms.seen).outcome(arms, "").reward(alpha).mean())


def best_static(train: Arms, alpha: float) -> FitResult:
    """Always the arm with the highest mean R on `train`; also what other baselines fall back to."""
    return always(train, best_arm(train.reward(alpha), train.cost))


def always(train: Arms, arm: int) -> FitResult:
    """The same arm for every question."""
    return FitResult(
        lambda inputs: Play.of(inputs, np.full(len(inputs), arm, dtype=np.int64)),
        {"arm": train.names[arm]},
    )


def best_arm(value: NDArray[np.float64], cost: NDArray[np.float64]) -> int:
    """The arm with the highest mean value; ties: lower mean cost.

    Args:
        value: float64[rows, arms].
        cost: float64[rows, arms].
    """
    mean_value = value.mean(axis=0, keepdims=True)
    mean_cost = cost.mean(axis=0, keepdims=True)
    return int(cheapest_best(mean_value, mean_cost)[0])


ARM_SETS: Mapping[str, Callable[[RouteTree, Answers | None, LogRoutes | None], Arms]] = {
    "A": single_models,
    "B": macro_arms,
}


def require_sets(names: Sequence[str]) -> tuple[str, ...]:
    """Check names of sets of arms before any work, and return them.

    Raises:
        InputError: an unknown name, or one that is given twice.
    """
    for name in names:
        if name not in ARM_SETS:
            raise InputError(f"unknown set of arms: {name!r}: --sets; known: {', '.join(ARM_SETS)}")
        if names.count(name) > 1:
            raise InputError(f"set of arms given twice: {name}: --sets; names must differ")
    return tuple(names)


def usable_sets(tree: RouteTree, names: Sequence[str]) -> tuple[str, ...]:
    """The sets of these that a tree has arms for.

    Raises:
        InputError: there is none; the message has the reason.
    """
    reasons = unusable_sets(tree, names)
    usable = tuple(name for name in names if name not in reasons)
    if not usable:
        why = "; ".join(f"set {name}: {reason}" for name, reason in reasons.items())
        raise InputError(f"no arms to compare: --sets {','.join(names)}; {why or 'name one'}")
    return usable


def unusable_sets(tree: RouteTree, names: Sequence[str]) -> dict[str, str]:
    """The reason why a set cannot be used, by its name; empty if all can."""
    routes = _count_routes(tree)
    reasons = {}
    if "A" in names and not set(tree.direct.models) & set(tree.callers):
        reasons["A"] = "no model of the pool was asked directly"
    if "B" in names and routes > MAX_ROUTE_ARMS:
        reasons["B"] = (
            f"{routes:,} routes, more than {MAX_ROUTE_ARMS:,}; take fewer --models or --hops"
        )
    elif "B" in names and not routes:
        reasons["B"] = "no route is offered for all queries"
    elif "B" in names and "A" in names and _are_direct_calls(tree):
        reasons["B"] = "its routes are the direct calls of set A"
    return reasons


def _count_routes(tree: RouteTree) -> int:
    """How many arms set B has."""
    means = FixedRoutes(tree)
    if means.is_complete or "train" not in tree.splits:
        return len(means.everywhere)
    return len(FixedRoutes(tree.split("train")).listed)


def _are_direct_calls(tree: RouteTree) -> bool:
    """Whether each route is just a direct call, as in an imported table of one hop."""
    if tree.hops != 1 or not is_plain(tree) or not set(tree.models) <= set(tree.direct.models):
        return False
    direct = tree.direct
    leaves = tree.layout.leaves
    columns = [direct.models.index(model) for model in tree.models]
    same_score = np.array_equal(tree.score[:, leaves], direct.score[:, columns])
    return same_score and np.array_equal(tree.cost[:, leaves], direct.cost[:, columns])
