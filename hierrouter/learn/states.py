"""All states of a tree as tensors: what a router reads.

In: a `RouteTree`. Out: `StateTable`, from which the rows of any states are gathered by number, so
that buffers hold 8 bytes a state; `NoisyTable`, the same with noise; `live_states`, for states
that are in no tree. Not covered: networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hierrouter.actions import Actions
from hierrouter.evaluate.ceilings import Ceilings, affordable
from hierrouter.learn.objective import Objective
from hierrouter_cache.tree import RouteTree


class States(NamedTuple):
    """Some states, a row each (paper section 3.1: s_t = (c_t, l_t, C_t)).

    Attributes:
        embedding: float32[n, dim], the frozen encoder's vectors of what is seen of c_t.
        stage: int64[n], l_t.
        cost: float32[n], C_t in price * token.
        legal: bool[n, A], what may be chosen; see `Actions.legal`.
    """

    embedding: Tensor
    stage: Tensor
    cost: Tensor
    legal: Tensor


@dataclass(frozen=True)
class StateTable:
    """All states of a tree, in the order of state numbers: `query * states + node`.

    Attributes:
        vectors: for each part of the view float32[rows, width], those of the tree.
        row: for each part int64[queries * states], row of its vectors.
        stage: int64[queries * states].
        cost: float32[queries * states].
        legal: bool[queries * states, A].
        per_query: S, the states of a query.
    """

    vectors: tuple[Tensor, ...]
    row: tuple[Tensor, ...]
    stage: Tensor
    cost: Tensor
    legal: Tensor
    per_query: int

    def __len__(self) -> int:
        return len(self.stage)

    def embedding(self, state: Tensor | slice) -> Tensor:
        """float32[n, dim]: the vectors of all parts, side by side."""
        parts = zip(self.vectors, self.row, strict=True)
        seen = [vectors[row[state]] for vectors, row in parts]
        if len(seen) == 1:
            return seen[0]
        return torch.cat([torch.empty(len(self.stage[state]), 0), *seen], dim=1)

    def rows(self, state: Tensor | slice) -> States:
        """Some states by number."""
        return States(self.embedding(state), self.stage[state], self.cost[state], self.legal[state])

    def trees(self, query: Tensor) -> States:
        """All states of some queries, int64[n], those of one query after those of another."""
        state = query[:, None] * self.per_query + torch.arange(self.per_query)
        return self.rows(state.ravel())


def state_table(
    tree: RouteTree, objective: Objective, ceilings: Ceilings | None = None
) -> StateTable:
    """The states of `tree`; its vectors are shared, so what is mapped stays mapped.

    Args:
        objective: what may be done.
        ceilings: what calls may cost at most, needed where the objective limits the cost of a
            query.

    Raises:
        ValueError: ceilings are needed, and are not given.
    """
    states, queries = tree.routes.states, len(tree)
    actions = Actions(tree.routes, objective.allow_stop)
    if objective.max_cost is not None and ceilings is None:
        raise ValueError(
            "a limit on the cost of a query needs `ceilings`, the most a call may cost"
        )
    if objective.max_cost is None or ceilings is None:
        legal = np.broadcast_to(actions.legal(), (queries, states, actions.count))
    else:
        legal = affordable(ceilings, tree, objective.max_cost, actions)
    return StateTable(
        vectors=tuple(torch.from_numpy(part.vectors) for part in tree.parts),
        row=tuple(torch.from_numpy(part.row.ravel()) for part in tree.parts),
        stage=torch.from_numpy(np.tile(tree.routes.depth()[:states], queries)),
        cost=torch.from_numpy(tree.cost[:, :states].astype(np.float32).ravel()),
        legal=torch.from_numpy(np.array(legal).reshape(-1, actions.count)),
        per_query=states,
    )


def live_states(
    embedding: NDArray[np.float32],
    stage: Sequence[int],
    cost: Sequence[float],
    legal: NDArray[np.bool_],
) -> States:
    """Some states that are being decided on now, a row each.

    Args:
        embedding: float32[n, dim], the encoder's vectors of the view.
        stage: n numbers of calls made so far.
        cost: n costs so far, in price * token.
        legal: bool[n, A].
    """
    return States(
        embedding=torch.from_numpy(np.asarray(embedding, dtype=np.float32)),
        stage=torch.tensor(stage),
        cost=torch.tensor(cost, dtype=torch.float32),
        legal=torch.from_numpy(legal),
    )


class NoisyTable:
    """A table as a router in training sees it: with noise on the embeddings of visited states.

    Noise is drawn when a state is visited, and stays so until it is visited again: rollouts and
    the updates on them read the same numbers, as PPO's ratio demands.

    Args:
        table: the states without noise.
        length: expected length of the noise vector; 0 is none.
        rng: source of the noise.
    """

    def __init__(self, table: StateTable, length: float, rng: np.random.Generator) -> None:
        self._table = table
        self._length = length
        self._rng = rng
        self._place = torch.zeros(len(table), dtype=torch.int64)
        self._seen: list[Tensor] = []

    def begin(self) -> None:
        """Forget what was visited: a new iteration begins."""
        self._seen = []

    def visit(self, state: Tensor) -> States:
        """The rows of some states, int64[n], with new noise."""
        if not self._length:
            return self._table.rows(state)
        visited, distinct = sum(len(rows) for rows in self._seen), torch.unique(state)
        self._seen.append(noisy(self._table.embedding(distinct), self._length, self._rng))
        self._place[distinct] = torch.arange(visited, visited + len(distinct))
        return self.rows(state)

    def rows(self, state: Tensor) -> States:
        """The rows of states that have been visited, with the noise they were seen with."""
        table = self._table
        if not self._length:
            return table.rows(state)
        if len(self._seen) > 1:
            self._seen = [torch.cat(self._seen)]
        embedding = self._seen[0][self._place[state]]
        return States(embedding, table.stage[state], table.cost[state], table.legal[state])


def noisy(embedding: Tensor, length: float, rng: np.random.Generator) -> Tensor:
    """float32[n, dim]: embeddings with a random vector of about this length added to each."""
    n, dim = embedding.shape
    if not length or not dim:
        return embedding
    noise = rng.standard_normal((n, dim), dtype=np.float32)
    noise *= np.float32(length / math.sqrt(dim))
    return embedding + torch.from_numpy(noise)
