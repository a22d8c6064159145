"""What a one-shot router chooses from.

In: a tree. Out: `Arms`: set A, the direct call of each model, or set B, each route as one
macro-arm; what every arm gives on every query, which calls it makes, and what they cost. `Seen` is
the part of it that a router may look at before it chooses: a router that has been fitted gets
nothing else. One that reads no answer gets it `blind`, on every fold. Not covered: who chooses
(`baseline`), and the texts of answers (`answers`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluate.outcome import Kind, Outcome, fixed_routes, single_calls
from hierrouter_cache.routes import Routes
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Answers:
    """What can be read off the last answer of each arm, once its calls were made.

    Attributes:
        vectors: float32[texts, width], of each distinct text; shared by all folds and arms.
        row: int64[queries, arms], row of `vectors`.
        group: int64[queries, arms], equal where answers say the same; compared within a query.
        tokens: int64[queries, arms], length of the answer.
    """

    vectors: NDArray[np.float32]
    row: NDArray[np.int64]
    group: NDArray[np.int64]
    tokens: NDArray[np.int64]

    def select(self, rows: NDArray[np.int64]) -> Answers:
        """The same for the queries at positions `rows` only."""
        return Answers(self.vectors, self.row[rows], self.group[rows], self.tokens[rows])


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
    calls: NDArray[np.bool_]
    answers: Answers | None

    def __len__(self) -> int:
        return len(self.question)

    @property
    def arms(self) -> int:
        """How many there are to choose from."""
        return len(self.calls)

    def blind(self) -> Seen:
        """What is known before any call was made."""
        return replace(self, answers=None)

    def made(self, read: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """bool[n, calls]: the calls it takes to read the answers of bool[n, arms]."""
        # As numbers: numpy multiplies truth values some hundred times slower.
        counts: NDArray[np.float32] = read.astype(np.float32) @ self.calls.astype(np.float32)
        return counts > 0

    def select(self, rows: NDArray[np.int64]) -> Seen:
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
        names: of the arms.
        seen: what a router may look at.
        call_cost: float64[queries, calls], what each call costs.
        rate: float64[arms], mean cost of a token of the models that an arm calls.
        quality: float64[queries, arms], Q of the last answer, in [0, 1].
        accuracy: float64[queries, arms], 1 where it is right.
    """

    names: tuple[str, ...]
    seen: Seen
    call_cost: NDArray[np.float64]
    rate: NDArray[np.float64]
    quality: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    @cached_property
    def cost(self) -> NDArray[np.float64]:
        """float64[queries, arms]: of all calls of an arm."""
        total: NDArray[np.float64] = self.call_cost @ self.seen.calls.T
        return total

    def reward(self, alpha: float) -> NDArray[np.float64]:
        """float64[queries, arms]: R = Q - alpha * C."""
        return self.quality - alpha * self.cost

    def __len__(self) -> int:
        return len(self.quality)

    def select(self, rows: NDArray[np.int64]) -> Arms:
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
        return replace(self, seen=self.seen.blind())


@dataclass(frozen=True)
class Play:
    """What a router does on each query.

    Attributes:
        answer: float64[queries, arms], probability that the arm's answer is the one given; rows
            sum to 1. A vote among equal answers gives one of them.
        called: float64[queries, calls], probability that the call is made; calls that lead to no
            answer are paid, too.
    """

    answer: NDArray[np.float64]
    called: NDArray[np.float64]

    @classmethod
    def of(cls, seen: Seen, arm: NDArray[np.int64]) -> Play:
        """One arm a query, int64[queries], and no call beside its own."""
        return cls.mixed(seen, np.eye(seen.arms)[arm])

    @classmethod
    def mixed(cls, seen: Seen, probability: NDArray[np.float64]) -> Play:
        """Arms drawn with float64[queries, arms], and no call beside those of the arm drawn."""
        return cls(probability, probability @ seen.calls)

    @classmethod
    def after(cls, seen: Seen, arm: NDArray[np.int64], read: NDArray[np.bool_]) -> Play:
        """One arm a query, chosen after the answers of bool[queries, arms] were read.

        All calls of those are paid, one that several share once.
        """
        return cls(np.eye(seen.arms)[arm], seen.made(read).astype(np.float64))

    def outcome(self, arms: Arms, name: str, kind: Kind = "baseline") -> Outcome:
        """What comes of it, in expectation."""
        return Outcome(
            name=name,
            kind=kind,
            quality=(self.answer * arms.quality).sum(axis=1),
            accuracy=(self.answer * arms.accuracy).sum(axis=1),
            cost=(self.called * arms.call_cost).sum(axis=1),
        )


def single_models(tree: RouteTree, answers: Answers | None = None) -> Arms:
    """Set A: one direct call of a model of the pool; reference models are no arms."""
    calls = [call for call in single_calls(tree) if call.kind == "single"]
    rate = dict(zip(tree.models, tree.base_rate, strict=True))
    return Arms(
        names=tuple(call.name for call in calls),
        seen=Seen(
            question=questions(tree),
            datasets=tree.datasets,
            calls=np.eye(len(calls), dtype=np.bool_),
            answers=answers,
        ),
        call_cost=np.stack([call.cost for call in calls], axis=1),
        rate=np.array([rate[call.name] for call in calls]),
        quality=np.stack([call.quality for call in calls], axis=1),
        accuracy=np.stack([call.accuracy for call in calls], axis=1),
    )


def macro_arms(tree: RouteTree, answers: Answers | None = None) -> Arms:
    """Set B: each of the M^L routes as one arm, chosen before any answer is seen."""
    routes = tree.routes
    calls = _calls(routes)
    spent = np.zeros_like(tree.cost)
    for node in range(1, routes.nodes):
        spent[:, node] = tree.cost[:, node] - tree.cost[:, routes.parent(node)]
    made = np.array([routes.action(node) for node in range(1, routes.nodes)])
    return Arms(
        names=tuple(route.name for route in fixed_routes(tree)),
        seen=Seen(questions(tree), tree.datasets, calls, answers),
        call_cost=spent[:, 1:],
        rate=(calls * tree.base_rate[made]).sum(axis=1) / routes.hops,
        quality=tree.score[:, routes.leaves],
        accuracy=tree.accuracy[:, routes.leaves],
    )


def questions(tree: RouteTree) -> NDArray[np.float32]:
    """float32[queries, dim]: what a policy sees at the root, where nothing was answered yet."""
    rows = np.arange(len(tree))
    return tree.embedding_at(rows, np.zeros_like(rows))


def _calls(routes: Routes) -> NDArray[np.bool_]:
    """bool[leaves, nodes but the root]: the calls on the way to each leaf."""
    leaves = range(routes.nodes)[routes.leaves]
    calls = np.zeros((len(leaves), routes.calls), dtype=np.bool_)
    for row, node in enumerate(leaves):
        while node:
            calls[row, node - 1] = True
            node = routes.parent(node)
    return calls
