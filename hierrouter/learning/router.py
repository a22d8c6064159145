"""What a trained router does, whichever kind of policy it has learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.outcome import Actions, Floats, Integers
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True, eq=False)
class StateBatch:
    """Some states of questions in service, at which a policy decides together.

    Attributes:
        embedding: float32[n, dim], the encoder's vectors of the view.
        node: int64[n], number of each state.
        cost: float64[n], C so far, in money.
        groups: data set or label of each question; "" is unknown.
        roots: float32[n, dim], the vectors of each question before any answer.
    """

    embedding: NDArray[np.float32]
    node: Integers
    cost: Floats
    groups: Sequence[str]
    roots: NDArray[np.float32]


class LearnedPolicy(Protocol):
    """A policy for one alpha, as a training leaves it.

    Letters of shapes: n states, S states of a query, A actions.

    Attributes:
        kind: what it is, with its article, for messages.
        holds_out: whether it decides on each query that it learned from as if it had not.
        can_defer: whether its features say when it is in doubt, see `deferral.calibrate`.
    """

    kind: ClassVar[str]
    holds_out: ClassVar[bool]
    can_defer: ClassVar[bool]

    @property
    def dim(self) -> int:
        """Length of the embeddings that it reads."""
        ...

    @property
    def reads_question(self) -> bool:
        """Whether it reads the embedding of the question itself after answers, too."""
        return False

    @property
    def groups(self) -> tuple[str, ...]:
        """The data sets or labels that it has routes for; empty if it does not read them."""
        return ()

    def as_object(self) -> dict[str, Any]:
        """The entries of a checkpoint's description that tell it, as JSON values by name."""
        ...

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays of a checkpoint, by name."""
        ...

    def has_learned(self, number: int) -> bool:
        """Whether one of the numbers of a state was present in training."""
        ...

    def in_words(self, models: Sequence[str]) -> str:
        """The policy in a sentence, with these names of the actions; empty if it is too long."""
        return ""

    def on(self, actions: Actions, calls: Integers, head: Integers) -> LearnedPolicy | None:
        """Return the same policy on other routes; None if it knows those of its training only.

        Args:
            actions: what may be chosen there.
            calls: int64[actions that call], the number of each in this policy.
            head: int64[A], the number of each action in this policy.
        """
        return None

    def probabilities(self, tree: RouteTree) -> Floats:
        """float64[queries, S, A]: the stochastic policy at every state of a tree."""
        ...

    def features(self, tree: RouteTree) -> Floats:
        """float64[queries, S, width]: of every state what other models can learn from."""
        ...

    def live_probabilities(self, states: StateBatch) -> Floats:
        """float64[n, A]: the stochastic policy at some states."""
        ...

    def live_features(self, states: StateBatch) -> Floats:
        """float64[n, width]: the features of some states."""
        ...

    def expected(self, states: StateBatch) -> Floats | None:
        """Q, and C from the state on, that it expects after each action at some states.

        Returns:
            float64[n, A, 2]; NaN for an action that is not legal. None if it predicts neither.
        """
        ...

    def choice_probability(self, tree: RouteTree, choice: Integers) -> Floats | None:
        """How probable it is that a choice is the best: that no other action leads to a higher R.

        Args:
            tree: the queries.
            choice: int64[queries, S], the action of the greedy policy at each state.

        Returns:
            float64[queries, S]; None if it does not predict that: probabilities of a network are
            for exploration. NaN if it was learned by a version that did not.
        """
        return None

    def live_choice_probability(self, states: StateBatch, choice: Integers) -> Floats | None:
        """float64[n]: the same of the actions int64[n] at some states."""
        return None

    def preferences(self, states: StateBatch) -> Floats | None:
        """float64[n, A]: the order of the actions that it does not choose, the best one highest.

        None if that is the order of their probabilities.
        """
        return None


class RewardPolicy(LearnedPolicy, Protocol):
    """A policy that predicts Q and C of each action; R, which follows, is its feature of it."""

    holds_out: ClassVar[bool] = True

    def rewards(self, tree: RouteTree) -> Floats:
        """Compute the expected R; of a query that it learned from as if it had not.

        Returns:
            float64[queries, S, A]; -inf for an action that is not legal.
        """
        ...

    def expected(self, states: StateBatch) -> Floats:
        """Q, and C from the state on, that it expects, see `LearnedPolicy.expected`."""
        ...

    def features(self, tree: RouteTree) -> Floats:
        """float64[queries, S, A]: the expected R; 0 for an action that is not legal."""
        return _finite(self.rewards(tree))

    def live_features(self, states: StateBatch) -> Floats:
        """float64[n, A]: the expected R; 0 for an action that is not legal."""
        return _finite(self._reward(self.expected(states)))

    def _reward(self, values: Floats) -> Floats:
        """float64[...]: R of Q and C, float64[..., 2]; not finite where they are NaN."""
        ...


class PolicyFamily(Protocol):
    """Learned policies for every alpha; `alphas` is always the grid that they were learned for."""

    def at(self, alpha: float, alphas: Sequence[float], actions: Actions) -> LearnedPolicy:
        """The policy for one alpha.

        Args:
            alpha: any one >= 0.
            alphas: the grid, ascending.
            actions: what may be chosen.
        """
        ...

    def as_object(self) -> dict[str, Any]:
        """The entries of a checkpoint's description that tell it, as JSON values by name."""
        ...

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays of a checkpoint, by name."""
        ...

    def history(self, alpha: float, alphas: Sequence[float]) -> tuple[float, ...]:
        """The learning curve of the policy for one alpha, see `TrainedRouter.history`."""
        return ()

    def learning_curve(self, alphas: Sequence[float]) -> list[dict[str, float]]:
        """The learning curve of all policies, a row for each evaluation, see `sweep_rows`."""
        return []

    def changes(self, alphas: Sequence[float]) -> list[float]:
        """The alphas between those of the grid at which another policy of it becomes better."""
        return []

    def remark(self, alpha: float, alphas: Sequence[float]) -> str:
        """What a user should know about the policy for an alpha, in words; mostly nothing."""
        return ""


def nearest_alpha(alpha: float, alphas: Sequence[float]) -> int:
    """The position in a grid of the alpha with the smallest ratio to this one."""
    grid = np.array(alphas)
    # 0 has no ratio to anything; it counts as a tenth of the least alpha above it.
    offset = grid[grid > 0].min(initial=1.0) / 10
    return int(np.abs(np.log((grid + offset) / (alpha + offset))).argmin())


def _finite(rewards: Floats) -> Floats:
    """The rewards, with 0 for an action that is not legal."""
    return np.where(np.isfinite(rewards), rewards, 0.0)
