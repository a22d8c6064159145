"""What a baseline is, and what a one-shot router chooses from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.outcome import Booleans, Floats, Integers, Outcome
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree, net_reward


@dataclass(frozen=True)
class Answers:
    """What can be read off the last answer of each arm, once its calls were made.

    Attributes:
        vectors: float32[texts, width], of each distinct text; shared by all folds and arms.
        row: int64[queries, arms], row of `vectors`.
        group: int64[queries, arms], equal where answers say the same; compared within a query.
        tokens: int64[queries, arms], length of the answer.
        sure: float64[queries, arms], probability of the answer as its model saw it, rounded as in
            `hierrouter.replay.states`; NaN where the engine did not tell.
    """

    vectors: NDArray[np.float32]
    row: Integers
    group: Integers
    tokens: Integers
    sure: Floats

    def select(self, rows: Integers) -> Answers:
        """The same for the queries at positions `rows` only."""
        by_query = {name: kept[rows] for name, kept in vars(self).items() if name != "vectors"}
        return replace(self, **by_query)


@dataclass(frozen=True)
class Seen:
    """What a router may look at: no score and no cost, which are for `Arms` to know.

    What a call has cost is sunk, so who wants R to be high need not know it.

    Attributes:
        question: float32[queries, dim], the embedding of each question.
        datasets: dataset of each query, for those that claim to know it.
        calls: bool[arms, calls], which calls an arm makes; two arms may share one.
        answers: of every arm, to be read only of arms whose calls were made; None for who makes no
            call before it chooses, and where nobody loaded the texts.
    """

    question: NDArray[np.float32]
    datasets: tuple[str, ...]
    calls: Booleans
    answers: Answers | None

    def __len__(self) -> int:
        return len(self.question)

    @property
    def arms(self) -> int:
        """How many there are to choose from."""
        return len(self.calls)

    def made(self, read: Booleans) -> Booleans:
        """bool[n, calls]: the calls it takes to read the answers of bool[n, arms]."""
        # As numbers: numpy multiplies truth values some hundred times slower.
        counts: NDArray[np.float32] = read.astype(np.float32) @ self.calls.astype(np.float32)
        return counts > 0

    def select(self, rows: Integers) -> Seen:
        """The same for the queries at positions `rows` only, in that order."""
        return replace(
            self,
            question=self.question[rows],
            datasets=tuple(self.datasets[row] for row in rows),
            answers=self.answers.select(rows) if self.answers else None,
        )


@dataclass(frozen=True)
class Arms:
    """What each arm gives on each query of a fold.

    Attributes:
        call_cost: float64[queries, calls], what each call costs.
        quality: float64[queries, arms], Q of the last answer, in [0, 1].
        accuracy: float64[queries, arms], 1 where it is right.
    """

    names: tuple[str, ...]
    seen: Seen
    call_cost: Floats
    quality: Floats
    accuracy: Floats

    @cached_property
    def cost(self) -> Floats:
        """float64[queries, arms]: of all calls of an arm."""
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

    def blind(self) -> Arms:
        """The same for a router that makes no call before it chooses; labels stay."""
        return replace(self, seen=replace(self.seen, answers=None))


@dataclass(frozen=True)
class Play:
    """What a router does on each query.

    Attributes:
        answer: float64[queries, arms], probability that the arm's answer is the one given; rows
            sum to 1. A vote among equal answers gives one of them.
        called: float64[queries, calls], probability that the call is made; calls that lead to no
            answer are paid, too.
    """

    answer: Floats
    called: Floats

    @classmethod
    def of(cls, seen: Seen, arm: Integers) -> Play:
        """One arm a query, int64[queries], and no call beside its own."""
        return cls.mixed(seen, np.eye(seen.arms)[arm])

    @classmethod
    def mixed(cls, seen: Seen, probability: Floats) -> Play:
        """Arms drawn with float64[queries, arms], and no call beside those of the arm drawn."""
        return cls(probability, probability @ seen.calls)

    @classmethod
    def after(cls, seen: Seen, arm: Integers, read: Booleans) -> Play:
        """One arm a query, chosen after the answers of bool[queries, arms] were read.

        All calls of those are paid, one that several share once.
        """
        return cls(np.eye(seen.arms)[arm], seen.made(read).astype(np.float64))

    def outcome(self, arms: Arms, name: str) -> Outcome:
        """What comes of it, in expectation."""
        return Outcome(
            name=name,
            kind="baseline",
            quality=(self.answer * arms.quality).sum(axis=1),
            accuracy=(self.answer * arms.accuracy).sum(axis=1),
            cost=(self.called * arms.call_cost).sum(axis=1),
        )


def single_models(tree: RouteTree, answers: Answers | None = None) -> Arms:
    """Set A: one direct call of a model of the pool; reference models are no arms."""
    direct = tree.direct
    ours = [column for column, model in enumerate(direct.models) if model in tree.models]
    return Arms(
        names=tuple(direct.models[column] for column in ours),
        seen=Seen(questions(tree), tree.datasets, np.eye(len(ours), dtype=np.bool_), answers),
        call_cost=direct.cost[:, ours],
        quality=direct.score[:, ours],
        accuracy=direct.accuracy[:, ours],
    )


def macro_arms(tree: RouteTree, answers: Answers | None = None) -> Arms:
    """Set B: each of the M^L routes as one arm, chosen before any answer is seen."""
    routes = tree.routes
    spent, calls = np.zeros_like(tree.cost), np.eye(routes.nodes, dtype=np.bool_)
    for node in range(1, routes.nodes):
        parent = routes.parent(node)
        spent[:, node] = tree.cost[:, node] - tree.cost[:, parent]
        calls[node, 1:] |= calls[parent, 1:]
    leaves = range(routes.nodes)[routes.leaves]
    return Arms(
        names=tuple(routes.name(leaf, tree.models) for leaf in leaves),
        seen=Seen(questions(tree), tree.datasets, calls[routes.leaves, 1:], answers),
        call_cost=spent[:, 1:],
        quality=tree.score[:, routes.leaves],
        accuracy=tree.accuracy[:, routes.leaves],
    )


def questions(tree: RouteTree) -> NDArray[np.float32]:
    """float32[queries, dim]: what a policy sees at the root, where nothing was answered yet."""
    rows = np.arange(len(tree))
    return tree.embedding_at(rows, np.zeros_like(rows))


Fitted = Callable[[Seen], Play]
DIGITS = 9  # two values of R that differ by less are a tie


class Baseline(Protocol):
    """A router that is fitted on one fold and tuned on another.

    Attributes:
        name: how tables call it; on the command line small letters, and dashes for spaces.
        source: whose idea it is, with where to read about it.
        reads_answers: it needs `Seen.answers`.
    """

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def reads_answers(self) -> bool: ...

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """Learn from `train`; choose settings by mean R on `validation`.

        `alpha`: of R = Q - alpha * C, which the router is to make as high as it can; `rng`: the
        only source of chance.
        """
        ...


@dataclass(frozen=True)
class Tuned:
    """A fitted router, and what the validation fold chose.

    Attributes:
        settings: chosen settings by name, as JSON values; empty where there is nothing to choose.
    """

    play: Fitted
    settings: dict[str, Any]


# Settings as JSON values, each with the router they give.
Candidates = Iterable[tuple[dict[str, Any], Fitted]]


class GridSearch(ABC):
    """A baseline that fits a router for each of its settings and keeps the best one."""

    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """Fit every candidate on `train`; keep the best by mean R on `validation`."""
        return best_of(self.candidates(train, alpha, rng), validation, alpha)

    @abstractmethod
    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """At least one; of equals the first one is kept."""


def best_of(candidates: Candidates, validation: Arms, alpha: float) -> Tuned:
    """The candidate with the highest mean R on the validation fold; of equals the first."""
    fitted, best = list(candidates), 0
    if len(validation):
        rewards = [value_of(play, validation, alpha) for _, play in fitted]
        best = int(np.round(rewards, DIGITS).argmax())
    settings, play = fitted[best]
    return Tuned(play, settings)


def value_of(play: Fitted, arms: Arms, alpha: float) -> float:
    """Mean R of a router on a fold."""
    return float(play(arms.seen).outcome(arms, "").reward(alpha).mean())


SETS: Mapping[str, Callable[[RouteTree, Answers | None], Arms]] = {
    "A": single_models,
    "B": macro_arms,
}
MOST_ROUTES = 1_000  # arms of set B: more take hours, and have too few queries each


def require_sets(names: Sequence[str]) -> tuple[str, ...]:
    """Names of sets of arms, checked before any work.

    Raises InputError: an unknown one, or one that stands twice.
    """
    for name in names:
        if name not in SETS:
            raise InputError(f"unknown set of arms: {name!r}: --sets; known: {', '.join(SETS)}")
        if names.count(name) > 1:
            raise InputError(f"set of arms given twice: {name}: --sets; names must differ")
    return tuple(names)


def usable_sets(tree: RouteTree, names: Sequence[str]) -> tuple[str, ...]:
    """The sets of these that a tree has arms for; raises InputError: none, with the reason."""
    lacking = left_out(tree, names)
    usable = tuple(name for name in names if name not in lacking)
    if not usable:
        why = "; ".join(f"set {name}: {reason}" for name, reason in lacking.items())
        raise InputError(f"no arms to compare: --sets {','.join(names)}; {why or 'name one'}")
    return usable


def left_out(tree: RouteTree, names: Sequence[str]) -> dict[str, str]:
    """Why a set takes no part, by its name; empty where all do."""
    routes = tree.routes.models**tree.hops
    found = {}
    if "A" in names and not set(tree.direct.models) & set(tree.models):
        found["A"] = "no model of the pool was asked directly"
    if "B" in names and routes > MOST_ROUTES:
        found["B"] = f"{routes:,} routes, more than {MOST_ROUTES:,}; take fewer --models or --hops"
    elif "B" in names and "A" in names and _are_direct_calls(tree):
        found["B"] = "its routes are the direct calls of set A"
    return found


def _are_direct_calls(tree: RouteTree) -> bool:
    """Whether a route is a direct call and no more, as in an imported table of one hop."""
    if tree.hops != 1 or not set(tree.models) <= set(tree.direct.models):
        return False
    direct, leaves = tree.direct, tree.routes.leaves
    same = [direct.models.index(model) for model in tree.models]
    return np.array_equal(tree.score[:, leaves], direct.score[:, same]) and np.array_equal(
        tree.cost[:, leaves], direct.cost[:, same]
    )
