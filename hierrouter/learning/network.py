"""The paper's router as a torch module, which is trained, and the states it reads."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hierrouter.evaluation.outcome import Actions, ending_table
from hierrouter.learning.config import NetworkConfig, Objective
from hierrouter.learning.forward import CHUNK, NEVER, NUMBERS_GAIN, UNSEEN, Network, RouterShape
from hierrouter_cache.tree import Routes, RouteTree


class States(NamedTuple):
    """Some states, a row each (paper section 3.1: s_t = (c_t, l_t, C_t)).

    Attributes:
        embedding: float32[n, dim], the frozen encoder's vectors of what is seen of c_t.
        node: int64[n], number of the node: who was called, in order; its depth is l_t.
        cost: float32[n], C_t in money.
        legal: bool[n, A], what may be chosen; see `Actions.legal`.
    """

    embedding: Tensor
    node: Tensor
    cost: Tensor
    legal: Tensor


@dataclass(frozen=True)
class StateTable:
    """All states of a tree, in the order of state numbers: `query * states + node`.

    Attributes:
        vectors: for each part of the view float32[rows, width], those of the tree.
        row: for each part int64[queries * states], row of its vectors.
        node: int64[queries * states].
        cost: float32[queries * states].
        legal: bool[queries * states, A].
        per_query: S, the states of a query.
        numbers: how many of an embedding's numbers, the last ones, are no encoder's.
    """

    vectors: tuple[Tensor, ...]
    row: tuple[Tensor, ...]
    node: Tensor
    cost: Tensor
    legal: Tensor
    per_query: int
    numbers: int = 0

    def __len__(self) -> int:
        return len(self.node)

    def embedding(self, state: Tensor | slice) -> Tensor:
        """float32[n, dim]: the vectors of all parts, side by side."""
        parts = zip(self.vectors, self.row, strict=True)
        seen = [vectors[row[state]] for vectors, row in parts]
        if len(seen) == 1:
            return seen[0]
        return torch.cat([torch.empty(len(self.node[state]), 0), *seen], dim=1)

    def rows(self, state: Tensor | slice) -> States:
        """Some states by number."""
        return States(self.embedding(state), self.node[state], self.cost[state], self.legal[state])

    def trees(self, query: Tensor) -> States:
        """All states of some queries, int64[n], those of one query after those of another."""
        state = query[:, None] * self.per_query + torch.arange(self.per_query)
        return self.rows(state.ravel())


def state_table(tree: RouteTree, objective: Objective) -> StateTable:
    """The states of `tree`; its vectors are shared, so what is mapped stays mapped.

    Raises InputError: the leaves are states, and the tree does not show them.
    """
    actions = Actions(tree.routes, objective.allow_stop, objective.allow_return)
    states, queries = actions.states, len(tree)
    parts = tree.require_embedded(actions.allow_return)
    return StateTable(
        vectors=tuple(torch.from_numpy(part.vectors) for part in parts),
        row=tuple(torch.from_numpy(part.row[:, :states].ravel()) for part in parts),
        node=torch.arange(states).repeat(queries),
        cost=torch.from_numpy(tree.cost[:, :states].astype(np.float32).ravel()),
        legal=torch.from_numpy(actions.legal()).repeat(queries, 1),
        per_query=states,
        numbers=tree.numbers,
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
        seen = self._table.embedding(distinct)
        self._seen.append(noisy(seen, self._length, self._rng, self._table.numbers))
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
        return States(embedding, table.node[state], table.cost[state], table.legal[state])


def noisy(embedding: Tensor, length: float, rng: np.random.Generator, numbers: int = 0) -> Tensor:
    """float32[n, dim]: embeddings with a random vector of about this length added to each.

    `numbers`: how many of the last ones are no encoder's, and stay as they are.
    """
    n, dim = len(embedding), embedding.shape[1] - numbers
    if not length or not dim:
        return embedding
    noise = rng.standard_normal((n, dim), dtype=np.float32)
    noise *= np.float32(length / math.sqrt(dim))
    added = torch.from_numpy(noise)
    return embedding + (nn.functional.pad(added, (0, numbers)) if numbers else added)


def shape_for(tree: RouteTree, actions: Actions, config: NetworkConfig) -> RouterShape:
    """The router to train on `tree` with the settings `config`."""
    texts = tree.dim - tree.numbers
    return RouterShape(
        actions=actions.count,
        models=tree.routes.models,
        hops=actions.steps,
        dim=tree.dim,
        hidden=config.hidden,
        stage_dim=config.stage_dim,
        knows_route=config.knows_route,
        embedding_scale=math.sqrt(max(1, texts)) if config.scale_embedding else 1.0,
        cost_scale=cost_scale(tree, actions.states) if config.scale_cost else 1.0,
        plain_start=config.plain_start,
        numbers=tree.numbers,
    )


SAME = 1e-6  # a deviation of less is none


class Router(nn.Module):
    """Embedding, learned stage embedding and cost, concatenated; two layers, two heads.

    Where the router knows the route, each node has an embedding of its own instead of each stage.

    The first layer is written as the sum of one map of the embedding and one of the rest. It is
    the same function as one map of the concatenation, but no gradient is computed towards the
    frozen embedding. With a plain start it also starts as one map would, and the heads as torch
    makes them: where embeddings are not scaled, small heads and a loud stage would drown the text
    for many epochs.
    """

    depth: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(self, shape: RouterShape) -> None:
        super().__init__()
        self.shape = shape
        self.stage = nn.Embedding(shape.places, shape.stage_dim)
        if not shape.knows_route:
            depth = torch.from_numpy(Routes(shape.models, shape.hops).depth())
            self.register_buffer("depth", depth, persistent=False)
        # torch warns where there is nothing to initialise.
        make = nn.Linear if shape.dim else _empty
        self.context = make(shape.dim, shape.hidden, bias=False)
        self.progress = nn.Linear(shape.stage_dim + 1, shape.hidden)
        self.second = nn.Linear(shape.hidden, shape.hidden)
        plain = shape.plain_start
        self.policy = _head(shape.hidden, shape.actions, gain=None if plain else 0.01)
        self.value = _head(shape.hidden, 1, gain=None if plain else 1.0)
        if plain:
            # Both maps anew, as torch draws one map of the concatenation of their inputs.
            bound = 1 / math.sqrt(shape.dim + self.progress.in_features)
            for values in (self.context.weight, self.progress.weight, self.progress.bias):
                nn.init.uniform_(values, -bound, bound)
        if shape.numbers:
            self.register_buffer("centre", torch.zeros(shape.numbers))
            self.register_buffer("spread", torch.ones(shape.numbers))

    def standardise(self, table: StateTable) -> None:
        """Read numbers from now on by their mean and deviation where they are there: not 0.

        What has one value wherever it is there, such as a mark, is 1 there; what is nowhere stays
        unseen.
        """
        if not self.shape.numbers:
            return
        numbers = table.vectors[-1][table.row[-1]].double()  # the last part
        there = numbers != 0
        count = there.sum(dim=0).clamp(min=1)
        mean = numbers.sum(dim=0) / count
        spread = (((numbers - mean) * there).square().sum(dim=0) / count).sqrt()
        is_mark = spread < SAME
        self.centre.copy_(torch.where(is_mark, 0.0, mean))
        spread = torch.where(is_mark, mean, spread)
        self.spread.copy_(torch.where(there.any(dim=0), spread, UNSEEN))

    def trained(self) -> Network:
        """What it decides now, for good and without torch."""
        weights = {name: value.numpy().copy() for name, value in self.state_dict().items()}
        return Network(self.shape, weights)

    def _read(self, embedding: Tensor) -> Tensor:
        """float32[n, dim]: the encoder's vectors, scaled, and the numbers, standardised."""
        scaled = self.shape.embedding_scale * embedding
        numbers = embedding[:, -self.shape.numbers :]
        read = torch.where(numbers != 0, (numbers - self.centre) / self.spread, 0.0)
        return torch.cat([scaled[:, : -self.shape.numbers], NUMBERS_GAIN * read], dim=1)

    def first(self, states: States) -> Tensor:
        """float32[n, hidden]: the first layer, before its nonlinearity."""
        cost = states.cost[:, None] / self.shape.cost_scale
        place = states.node if self.shape.knows_route else self.depth[states.node]
        progress = torch.cat([self.stage(place), cost], dim=1)
        if self.shape.numbers:
            context = self.context(self._read(states.embedding))
        else:
            context = self.shape.embedding_scale * self.context(states.embedding)
        return context + self.progress(progress)

    def features(self, states: States) -> Tensor:
        """float32[n, hidden]: what both heads read."""
        return torch.tanh(self.second(torch.tanh(self.first(states))))

    def logits(self, features: Tensor, legal: Tensor) -> Tensor:
        """float32[n, A]; `NEVER` where an action is not legal, bool[n, A]."""
        return self.policy(features).masked_fill(~legal, NEVER)

    def forward(self, states: States) -> tuple[Tensor, Tensor]:
        """Logits float32[n, A] and values float32[n]."""
        features = self.features(states)
        return self.logits(features, states.legal), self.value(features)[:, 0]


def _empty(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        return nn.Linear(inputs, outputs, bias=bias)


def _head(inputs: int, outputs: int, gain: float | None) -> nn.Linear:
    """A linear layer that starts orthogonal, close to uniform with a small gain; None: as torch."""
    layer = nn.Linear(inputs, outputs)
    if gain is None:
        return layer
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def cost_scale(tree: RouteTree, states: int | None = None) -> float:
    """Root mean square of the costs at which decisions are due, the root's 0 left out.

    `states`: how many nodes are states; by default those before the last call.
    """
    cost = tree.cost[:, 1 : states or tree.routes.states]
    return float(np.sqrt(np.square(cost).mean())) if cost.any() else 1.0


def action_probabilities(
    router: Router, table: StateTable, state: Tensor | None = None
) -> NDArray[np.float64]:
    """float64[n, A]: the policy at some states of the table, int64[n], or at all of them."""
    logits = in_chunks(lambda states: router(states)[0], table, state)
    return torch.softmax(logits.double(), dim=1).numpy()


@torch.no_grad()
def in_chunks(
    network: Callable[[States], Tensor], table: StateTable, state: Tensor | None = None
) -> Tensor:
    """What a network makes of some states of the table, int64[n], or of all of them.

    `network`: gives a row for each state.
    """
    states = torch.arange(len(table)) if state is None else state
    parts = states.split(CHUNK)  # type: ignore[no-untyped-call]
    return torch.cat([network(table.rows(part)) for part in parts])


def action_values(actions: Actions, probabilities: Tensor, reward: Tensor) -> Tensor:
    """Q(s, a) of every action at every state: the expected reward after it, exactly.

    What is not legal is worth what it counts as, see `Actions.after`. Returns
    float32[queries, S, A].

    `actions`: what may be done; `probabilities`: float32[queries, S, A], the policy that is
    followed afterwards; `reward`: float32[queries, endings], paid where an episode ends.
    """
    routes, queries = actions.routes, len(reward)
    levels: list[Tensor] = []
    value = reward[:, routes.leaves]
    for level in reversed(range(actions.steps)):
        if level == routes.hops:
            values = value[:, :, None].repeat_interleave(actions.calls, dim=2)
        else:
            values = value.reshape(queries, -1, routes.models)
            if actions.allow_stop:
                stopping = reward[:, routes.level(level + 1)].reshape(values.shape)
                values = torch.cat([values, stopping], dim=2)
        if actions.allow_return:
            given = reward[:, ending_table(routes).number[routes.level(level)]]
            values = torch.cat([values, given], dim=2)
        levels.append(values)
        value = (probabilities[:, routes.level(level)] * values).sum(dim=2)
    return torch.cat(levels[::-1], dim=1)


def expected_return(actions: Actions, probabilities: Tensor, reward: Tensor) -> Tensor:
    """The value of a policy on each query, float32[queries]."""
    routes, queries = actions.routes, len(reward)
    reached, total = torch.ones(queries, 1), torch.zeros(queries)
    for level in range(actions.steps):
        decided = reached[:, :, None] * probabilities[:, routes.level(level)]
        if actions.allow_return:
            given = reward[:, ending_table(routes).number[routes.level(level)]]
            total = total + (decided[:, :, actions.calls :] * given).sum(dim=(1, 2))
        if level == routes.hops:
            return total
        reached = decided[:, :, : routes.models].reshape(queries, -1)
        if actions.allow_stop:
            stopped = decided[:, :, routes.models : actions.calls].reshape(queries, -1)
            total = total + (stopped * reward[:, routes.level(level + 1)]).sum(dim=1)
    return total + (reached * reward[:, routes.leaves]).sum(dim=1)
