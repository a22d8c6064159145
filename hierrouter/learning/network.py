"""What PPO and learning by enumeration share: the paper's network, its states, and the epochs.

From top to bottom: the states of a tree as tensors, the network that reads them, one fold of a
training with its reward and its exact value, the loop over epochs that keeps the best weights, the
state from which an interrupted training goes on, and the optimiser. How an epoch changes the
weights is in `ppo` and in `exact`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hierrouter.engines.devices import torch_threads
from hierrouter.evaluation.outcome import (
    Actions,
    LegalActions,
    ending_probabilities,
    ending_reward,
    greedy,
    has_holes,
    possible_ends,
    reach_probability,
)
from hierrouter.learning.config import (
    NetworkConfig,
    Objective,
    OnEpoch,
    OnEvaluation,
    evaluated_epochs,
    ignore_epoch,
    ignore_evaluation,
)
from hierrouter.learning.forward import (
    ILLEGAL_LOGIT,
    NUMBERS_GAIN,
    STATES_PER_PASS,
    UNSEEN_SPREAD,
    RouterShape,
    TrainedNetwork,
    forced_probabilities,
)
from hierrouter.learning.resumption import Array, Resumption, TrainingState, prefix, select
from hierrouter.replay.env import EndingRewards, walk
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

MIN_SPREAD = 1e-6  # a standard deviation below this is rounding: the values are all the same
ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch names them in the state of a parameter
MERSENNE_WORDS = 624  # in the state of numpy's global generator


class States(NamedTuple):
    """Some states, a row each (paper section 3.1: s_t = (c_t, l_t, C_t)).

    Attributes:
        embedding: float32[n, dim], what the view shows of c_t: the frozen encoder's vectors of its
            texts, and then numbers on its answers.
        node: int64[n], number of the node: the called models, in order; its depth is l_t.
        cost: float32[n], C_t in money.
        legal: bool[n, A], which actions may be chosen; see `Actions.legal`.
    """

    embedding: Tensor
    node: Tensor
    cost: Tensor
    legal: Tensor


@dataclass(frozen=True)
class StateTable:
    """All states of a tree, in the order of state numbers: `query * per_query + node`.

    Attributes:
        vectors: for each part of the view float32[rows, width], the tree's vectors.
        row: for each part int64[queries * S], the row of its vectors at each state.
        node: int64[queries * S].
        cost: float32[queries * S].
        legal: bool[queries * S, A].
        per_query: S, the number of states of a query.
        numbers: how many of an embedding's numbers, the last ones, come from no encoder.
        copies: how often all these states are there, one copy after the other, without taking more
            memory; from copy to copy the nodes count on by S.
    """

    vectors: tuple[Tensor, ...]
    row: tuple[Tensor, ...]
    node: Tensor
    cost: Tensor
    legal: Tensor
    per_query: int
    numbers: int = 0
    copies: int = 1

    def __len__(self) -> int:
        return self.copies * len(self.node)

    def embedding(self, state: Tensor | slice) -> Tensor:
        """float32[n, dim]: the vectors of all parts of the view, side by side."""
        _, state = self._copy_and_state(state)
        parts = [vectors[row[state]] for vectors, row in zip(self.vectors, self.row, strict=True)]
        if len(parts) == 1:
            return parts[0]
        # The empty column block gives a view without any part its n rows.
        return torch.cat([torch.empty(len(self.node[state]), 0), *parts], dim=1)

    def without_embedding(self, state: Tensor | slice) -> tuple[Tensor, Tensor, Tensor]:
        """Node int64[n], cost float32[n] and legality bool[n, A] of some states by number."""
        copy, state = self._copy_and_state(state)
        return self.node[state] + copy * self.per_query, self.cost[state], self.legal[state]

    def rows(self, state: Tensor | slice) -> States:
        """Some states by number, int64[n]."""
        return States(self.embedding(state), *self.without_embedding(state))

    def _copy_and_state(self, state: Tensor | slice) -> tuple[Tensor | int, Tensor | slice]:
        """The copy in which each of some states is, and its number there."""
        if self.copies == 1:
            return 0, state
        if isinstance(state, slice):
            state = torch.arange(len(self))[state]
        count = len(self.node)
        return state // count, state % count

    def trees(self, query: Tensor) -> States:
        """All states of some queries, int64[n], the S states of a query after each other."""
        state = query[:, None] * self.per_query + torch.arange(self.per_query)
        return self.rows(state.ravel())


def state_table(tree: RouteTree, objective: Objective) -> StateTable:
    """The states of a tree as tensors.

    Vectors are shared with the tree: if they are mapped from a file they stay so.

    Args:
        tree: the queries.
        objective: decides which actions are legal, and whether leaves are states.

    Raises:
        InputError: leaves are states, and the tree has no vectors of them.
    """
    tree = objective.view(tree)
    actions = objective.actions(tree.layout)
    states = actions.states
    queries = len(tree)
    parts = tree.require_embedded()
    return StateTable(
        vectors=tuple(torch.from_numpy(part.vectors) for part in parts),
        row=tuple(torch.from_numpy(part.row[:, :states].ravel()) for part in parts),
        node=torch.arange(states).repeat(queries),
        cost=torch.from_numpy(tree.cost[:, :states].astype(np.float32).ravel()),
        legal=_legal_rows(tree, actions),
        per_query=states,
        numbers=tree.numbers,
    )


def _legal_rows(tree: RouteTree, actions: Actions) -> Tensor:
    """bool[queries * S, A]: which actions may be chosen at each state."""
    table = torch.from_numpy(LegalActions.of(tree, actions).table)
    repeats = len(tree) // len(table) if len(table) else 1
    return table.reshape(-1, actions.count).repeat(repeats, 1)


def add_noise(
    embedding: Tensor, length: float, rng: np.random.Generator, numbers: int = 0
) -> Tensor:
    """Add a random vector to each embedding.

    Args:
        embedding: float32[n, dim].
        length: expected length of the random vectors; 0 adds none.
        rng: source of the noise.
        numbers: how many of the last columns come from no encoder; they stay as they are.

    Returns:
        float32[n, dim].
    """
    rows = len(embedding)
    dim = embedding.shape[1] - numbers
    if not length or not dim:
        return embedding
    noise = rng.standard_normal((rows, dim), dtype=np.float32)
    noise *= np.float32(length / math.sqrt(dim))
    added = torch.from_numpy(noise)
    if numbers:
        added = nn.functional.pad(added, (0, numbers))
    return embedding + added


def shape_for(tree: RouteTree, actions: Actions, config: NetworkConfig) -> RouterShape:
    """The shape of the network to train on `tree` with the settings `config`."""
    text_dim = tree.dim - tree.numbers
    return RouterShape(
        actions=actions.count,
        models=tree.layout.call_actions,
        hops=actions.steps,
        dim=tree.dim,
        hidden=config.hidden,
        stage_dim=config.stage_dim,
        knows_route=config.knows_route,
        embedding_scale=math.sqrt(max(1, text_dim)) if config.scale_embedding else 1.0,
        cost_scale=cost_scale(tree, actions.states) if config.scale_cost else 1.0,
        plain_start=config.plain_start,
        numbers=tree.numbers,
        layout=None if tree.layout.is_full else actions.layout,
    )


def cost_scale(tree: RouteTree, states: int | None = None) -> float:
    """Root mean square of the costs at which decisions are due, except the root's cost of 0.

    Args:
        tree: the queries.
        states: how many nodes are states; by default those before the last call.
    """
    cost = tree.cost[:, 1 : states or tree.layout.inner]
    return float(np.sqrt(np.square(cost).mean())) if cost.any() else 1.0


class RouterNetwork(nn.Module):
    """The paper's router: two layers and two heads on text, stage and cost.

    Its input is the embedding, a learned embedding of the stage, and the cost so far,
    concatenated. With `knows_route` each node has a learned embedding instead of each stage. On a
    layout that is not full the mean of a learned embedding of each action so far is added to it.

    The first layer is written as the sum of one map of the embedding and one of the rest. It is
    the same function as one map of the concatenation, but no gradient is computed towards the
    frozen embedding. With a plain start it also starts as one map would, and the heads as torch
    makes them: with unscaled embeddings, small heads and a large stage embedding would drown the
    text for many epochs.
    """

    stages: Tensor
    shares: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(self, shape: RouterShape) -> None:
        super().__init__()
        self.shape = shape
        self.stage = nn.Embedding(shape.stage_rows, shape.stage_dim)
        self.register_buffer("stages", torch.from_numpy(shape.stages.copy()), persistent=False)
        shares = shape.shares
        if shares is not None:
            self.called = nn.Embedding(shape.models, shape.stage_dim)
            self.register_buffer("shares", torch.from_numpy(shares), persistent=False)
        # torch warns if there is nothing to initialise.
        make_linear = nn.Linear if shape.dim else _linear_without_warning
        self.context = make_linear(shape.dim, shape.hidden, bias=False)
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
        """Set mean and deviation by which numbers are standardised; 0 means a number is absent.

        A number that has one value wherever it is present, such as a mark, is read as 1 there; one
        that is present at no state stays unseen.
        """
        if not self.shape.numbers:
            return
        numbers = table.vectors[-1][table.row[-1]].double()  # the last part of the view
        present = numbers != 0
        count = present.sum(dim=0).clamp(min=1)
        mean = numbers.sum(dim=0) / count
        spread = (((numbers - mean) * present).square().sum(dim=0) / count).sqrt()
        is_mark = spread < MIN_SPREAD
        self.centre.copy_(torch.where(is_mark, 0.0, mean))
        spread = torch.where(is_mark, mean, spread)
        self.spread.copy_(torch.where(present.any(dim=0), spread, UNSEEN_SPREAD))

    def export(self) -> TrainedNetwork:
        """A copy with the present weights that needs no torch."""
        weights = {name: value.numpy().copy() for name, value in self.state_dict().items()}
        return TrainedNetwork(self.shape, weights)

    def features(self, states: States) -> Tensor:
        """float32[n, hidden]: the input of both heads."""
        return torch.tanh(self.second(torch.tanh(self.first(states))))

    def first(self, states: States) -> Tensor:
        """float32[n, hidden]: the first layer, before its nonlinearity."""
        cost = states.cost[:, None] / self.shape.cost_scale
        stage = self.stage(self.stages[states.node])
        if self.shape.layout is not None:
            stage = stage + self.shares[states.node] @ self.called.weight
        progress = torch.cat([stage, cost], dim=1)
        if self.shape.numbers:
            context = self.context(self._scaled(states.embedding))
        else:
            context = self.shape.embedding_scale * self.context(states.embedding)
        return context + self.progress(progress)

    def _scaled(self, embedding: Tensor) -> Tensor:
        """float32[n, dim]: the encoder's vectors, scaled, and the numbers, standardised."""
        scaled = self.shape.embedding_scale * embedding
        numbers = embedding[:, -self.shape.numbers :]
        standardised = torch.where(numbers != 0, (numbers - self.centre) / self.spread, 0.0)
        return torch.cat([scaled[:, : -self.shape.numbers], NUMBERS_GAIN * standardised], dim=1)

    def logits(self, features: Tensor, legal: Tensor) -> Tensor:
        """float32[n, A]; `ILLEGAL_LOGIT` for an action that is not legal, bool[n, A]."""
        return self.policy(features).masked_fill(~legal, ILLEGAL_LOGIT)

    def forward(self, states: States) -> tuple[Tensor, Tensor]:
        """Logits float32[n, A] and values float32[n]."""
        features = self.features(states)
        return self.logits(features, states.legal), self.value(features)[:, 0]


def _linear_without_warning(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """A linear layer, which may have no inputs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        return nn.Linear(inputs, outputs, bias=bias)


def _head(inputs: int, outputs: int, gain: float | None) -> nn.Linear:
    """A linear layer with orthogonal weights, close to 0 with a small gain; None: as torch."""
    layer = nn.Linear(inputs, outputs)
    if gain is None:
        return layer
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def action_probabilities(
    router: RouterNetwork, table: StateTable, state: Tensor | None = None
) -> NDArray[np.float64]:
    """float64[n, A]: the policy at some states of the table, int64[n], or at all of them."""
    logits = evaluate_in_chunks(lambda states: router(states)[0], table, state)
    return torch.softmax(logits.double(), dim=1).numpy()


@torch.no_grad()
def evaluate_in_chunks(
    network: Callable[[States], Tensor], table: StateTable, state: Tensor | None = None
) -> Tensor:
    """Evaluate a network at many states, a chunk at a time, so that memory stays bounded.

    Args:
        network: function from n states to a tensor of n rows.
        table: the states.
        state: int64[n], numbers of the states to evaluate; None is all of them.

    Returns:
        The rows of all chunks.
    """
    states = torch.arange(len(table)) if state is None else state
    chunks = states.split(STATES_PER_PASS)  # type: ignore[no-untyped-call]
    return torch.cat([network(table.rows(chunk)) for chunk in chunks])


@dataclass(frozen=True, eq=False)
class Forest:
    """The trees of some queries as one tree, without the nodes that they lack.

    See `Layout.forest`. Its expected values are means over the queries.

    Attributes:
        actions: what may be chosen.
        query: int64[nodes], position in the fold of each node's query; 0 for the root.
        node: int64[nodes], its number in the layout of the fold; 0 for the root.
        state: int64[nodes], the number of each state, see `StateTable`; 0 for the root.
        legal: bool[states, A], which actions may be chosen.
        weight: float64[nodes], probability of each draw of a call.
        presence: float64[nodes], the probability of each node if its calls are made.
        ending: int64[endings], the number of each ending in the layout of the fold.
    """

    actions: Actions
    query: NDArray[np.int64]
    node: NDArray[np.int64]
    state: NDArray[np.int64]
    legal: NDArray[np.bool_]
    weight: NDArray[np.float64]
    presence: NDArray[np.float64]
    ending: NDArray[np.int64]

    @classmethod
    def of(cls, fold: TrainingFold, query: NDArray[np.int64]) -> Self:
        """Return the forest of some queries of a fold, int64[n]; they may repeat."""
        tree = fold.tree
        own = query % len(tree)
        reach = fold.presence[own]
        layout, position, node = fold.actions.layout.forest(reach > 0)
        actions = replace(fold.actions, layout=layout)
        states = actions.states
        legal = np.zeros((states, actions.count), np.bool_)
        legal[0, 0] = True  # the draw of a query
        row = own[position] * fold.actions.states + node
        legal[1:] = fold.table.legal.numpy()[row[: states - 1]]
        weight = np.ones(layout.nodes)
        if tree.weight is not None:
            weight[1:] = tree.weight[own[position], node]
        weight[1:][node == 0] = 1 / len(query)
        ending = np.append(0, node)
        if layout.endings > layout.nodes:
            ending = np.pad(ending, (0, layout.endings - layout.nodes))
            further = np.argwhere(layout.give_back >= layout.nodes)
            for state, column in further.tolist():
                number = layout.give_back[state, column]
                ending[number] = fold.actions.layout.give_back[ending[state], column]
        return cls(
            actions=actions,
            query=np.append(0, query[position]),
            node=np.append(0, node),
            state=np.append(0, query[position] * fold.actions.states + node),
            legal=legal,
            weight=weight,
            presence=np.append(0.0, reach[position, node]),
            ending=ending,
        )

    def rewards(self, reward: EndingRewards) -> NDArray[np.float64]:
        """float64[endings]: the reward of an episode with each ending.

        Args:
            reward: float64[queries, endings] of the fold.
        """
        query = self.query[self.actions.layout.ending_node]
        rewards = np.asarray(reward[query, self.ending], np.float64)
        rewards[0] = 0.0
        return rewards

    def means(
        self, probabilities: NDArray[np.float64], values: Sequence[EndingRewards]
    ) -> list[float]:
        """Compute exact means over the queries under a policy.

        Args:
            probabilities: float64[states, A], the policy.
            values: float64[queries, endings] each, such as Q and C of the fold.
        """
        endings = ending_probabilities(self.actions, probabilities[None], self.weight[None])[0]
        # Of unjudged answers the quality is unknown, and no episode ends with them.
        return [
            float(np.where(endings > 0, endings * self.rewards(value), 0.0).sum())
            for value in values
        ]


@dataclass(frozen=True)
class TrainingFold:
    """One fold of a tree, with its states as tensors."""

    tree: RouteTree
    actions: Actions
    table: StateTable

    @property
    def queries(self) -> int:
        """Number of queries on which an episode can be played."""
        return len(self.tree)

    @classmethod
    def of(cls, tree: RouteTree, objective: Objective) -> TrainingFold:
        """The fold `tree`, with the actions that the objective allows."""
        tree = objective.view(tree)
        return cls(tree, objective.actions(tree.layout), state_table(tree, objective))

    @cached_property
    def has_holes(self) -> bool:
        """Whether some query lacks a node, or some answer is not judged."""
        return has_holes(self.tree)

    @cached_property
    def presence(self) -> NDArray[np.float64]:
        """float64[queries, nodes]: the probability of each node if its calls are made."""
        return reach_probability(self.tree)

    def forest(self, query: NDArray[np.int64]) -> Forest:
        """Return the trees of some queries, int64[n], without the nodes that they lack."""
        return Forest.of(self, query)

    @cached_property
    def every_tree(self) -> Forest:
        """The trees of all queries, without the nodes that they lack."""
        return self.forest(np.arange(len(self.tree)))

    def episode_reward(self, alpha: float, standardise: bool) -> EndingRewards:
        """The reward of an episode with each ending.

        Args:
            alpha: reward lost per unit of cost.
            standardise: subtract from each reward the mean of its query over all possible endings,
                and divide by the standard deviation over all queries and endings of this fold.

        Returns:
            float64[queries, endings].
        """
        reward = ending_reward(self.tree, alpha)
        if not standardise:
            return reward
        mean, spread = self.reward_scale(alpha)
        return (reward - mean[:, None]) / spread

    def reward_scale(self, alpha: float) -> tuple[NDArray[np.float64], float]:
        """What standardised rewards are less, and divided by; see `episode_reward`.

        Returns:
            float64[queries], the mean of each query, and the standard deviation.
        """
        share = self._shares_of_endings()
        if share is None:
            reward = ending_reward(self.tree, alpha)[:, self.actions.endings]
            mean = reward.mean(axis=1)
            return mean, float((reward - mean[:, None]).std()) or 1.0
        reward = ending_reward(self.tree, alpha)
        reward = np.where(share > 0, reward, 0.0)
        mean = (share * reward).sum(axis=1) / share.sum(axis=1).clip(min=MIN_SPREAD)
        variance = (share * (reward - mean[:, None]) ** 2).sum() / max(share.sum(), MIN_SPREAD)
        return mean, float(np.sqrt(variance)) or 1.0

    def _shares_of_endings(self) -> NDArray[np.float64] | None:
        """How much each possible ending counts: those of several draws together as one.

        Returns:
            float64[queries, endings]; 0 if an episode on the query cannot end there. None if all
            possible endings count the same.
        """
        if self.tree.weight is None:
            return None
        reach = reach_probability(self.tree)
        layout = self.actions.layout
        ends = possible_ends(self.tree, self.actions.allow_stop)
        if self.actions.returns:
            # Any answer may be returned, wherever an episode may go on.
            ends[:, 1 : layout.inner] |= self.tree.can_end is None
            if self.tree.can_end is not None:
                ends[:, 1:] |= self.tree.can_end[:, 1:]
        share = reach[:, layout.ending_node] * ends[:, layout.answer_node]
        share[:, 0] = 0.0
        return share

    def value(self, router: RouterNetwork, alpha: float) -> float:
        """Exact mean R of the greedy policy.

        If each call has one draw, only states that the policy visits are evaluated.
        """
        if self.has_holes:
            [mean] = self.greedy_means_of_present(router, [ending_reward(self.tree, alpha)])
            return mean
        if self.tree.weight is not None:
            endings = self.greedy_endings(router)
            return float((endings * ending_reward(self.tree, alpha)).sum(axis=1).mean())

        def act(state: NDArray[np.int64]) -> NDArray[np.int64]:
            probabilities = action_probabilities(router, self.table, torch.from_numpy(state))
            choice = greedy(probabilities, self.tree.base_rate, self.actions.returns)
            return choice.argmax(axis=1)

        reward = ending_reward(self.tree, alpha)
        rollouts = walk(self.actions, reward, np.arange(len(self.tree)), act)
        return float(rollouts.reward.sum(axis=1).mean())

    def greedy_endings(self, router: RouterNetwork, copy: int = 0) -> NDArray[np.float64]:
        """The ending of each query under the greedy policy; all states are evaluated.

        Args:
            router: the network.
            copy: which copy of the states is evaluated, see `StateTable`.

        Returns:
            float64[queries, endings], the probability of each.
        """
        queries = len(self.tree)
        count = queries * self.actions.states
        state = copy * count + torch.arange(count)
        probabilities = action_probabilities(router, self.table, state)
        choice = greedy(probabilities, self.tree.base_rate, self.actions.returns)
        choice = choice.reshape(queries, self.actions.states, -1)
        return ending_probabilities(self.actions, choice, self.tree.weight)

    def greedy_means_of_present(
        self, router: RouterNetwork, values: Sequence[EndingRewards], copy: int = 0
    ) -> list[float]:
        """Exact means of the greedy policy where queries lack nodes.

        All states with a choice are evaluated.

        Args:
            router: the network.
            values: float64[queries, endings] each.
            copy: which copy of the states is evaluated, see `StateTable`.
        """
        forest = self.every_tree
        policy, chosen = forced_probabilities(forest.legal)
        state = copy * len(self.table.node) + forest.state[chosen]
        probabilities = action_probabilities(router, self.table, torch.from_numpy(state))
        policy[chosen] = greedy(probabilities, self.tree.base_rate, self.actions.returns)
        return forest.means(policy, values)


def fold_pair(
    trees: tuple[RouteTree, RouteTree], objective: Objective
) -> tuple[TrainingFold, TrainingFold]:
    """The folds of `router.training_folds` as tensors; one fold twice if one tree is both."""
    learn_from, choose_on = trees
    fold = TrainingFold.of(learn_from, objective)
    if choose_on is learn_from:
        return fold, fold
    return fold, TrainingFold.of(choose_on, objective)


Fold = TypeVar("Fold")
NetworkT = TypeVar("NetworkT", bound=nn.Module)
NetworkT_co = TypeVar("NetworkT_co", bound=nn.Module, covariant=True)


class LearnerState(NamedTuple):
    """Everything that the next epochs of a learner depend on, apart from the network's weights.

    Attributes:
        arrays: float32 or int64 arrays by name.
        values: the rest, as JSON values by name.
    """

    arrays: dict[str, Array]
    values: dict[str, Any]


class Learner(Protocol[NetworkT_co]):
    """Improves a network, one epoch after the other; can be saved between two epochs."""

    @property
    def router(self) -> NetworkT_co:
        """The network, which is trained in place."""
        ...

    def epoch(self) -> Mapping[str, float]:
        """Train for one epoch.

        Returns:
            Statistics of the epoch for the learning curve by name, such as the mean loss; the same
            names each time.

        Raises:
            FloatingPointError: the network's numbers are not finite any more.
        """
        ...

    def state(self) -> LearnerState:
        """Return a copy of the state between two epochs."""
        ...

    def restore(self, state: LearnerState) -> None:
        """Put back what `state` returned, so that the next epoch is the same one.

        Raises:
            KeyError, TypeError, ValueError: it is not a state of this learner.
        """


def mean_by_name(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number of some mappings with the same names."""
    names = parts[0] if parts else {}
    return {name: float(np.mean([part[name] for part in parts])) for name in names}


@dataclass
class BestIterate:
    """The best weights so far; before the first evaluation, those at the start.

    Attributes:
        weights: a copy of the weights by name.
        train: their value on the train fold.
        validation: their value on the validation fold.
        history: value on validation at each evaluation.
        statistics: for each evaluation the value on the train fold, as `train`, and what the
            learner returned of the epoch before it, by name.
        evaluations_without_gain: evaluations since the value on validation last rose by the least
            gain that counts.
        last_gain: that value.
    """

    weights: dict[str, Tensor]
    train: float = -math.inf
    validation: float = -math.inf
    history: list[float] = field(default_factory=list)
    statistics: dict[str, list[float]] = field(default_factory=dict)
    evaluations_without_gain: int = 0
    last_gain: float = -math.inf

    def offer(
        self,
        module: nn.Module,
        train: float,
        validation: float,
        min_gain: float = 0.0,
        statistics: Mapping[str, float] | None = None,
    ) -> None:
        """Keep the weights of a module if they are better, by however little.

        Args:
            module: the network as it is now.
            train: its value on the train fold, which decides between equals on validation.
            validation: its value on the validation fold.
            min_gain: least gain on validation that prolongs the training.
            statistics: of the epoch before, by name.
        """
        self.history.append(validation)
        numbers = {"train": train, **(statistics or {})}
        if not self.statistics:
            self.statistics = {name: [] for name in numbers}
        for name, column in self.statistics.items():
            column.append(float(numbers.get(name, math.nan)))
        self.evaluations_without_gain += 1
        if validation > self.last_gain + min_gain:
            self.last_gain = validation
            self.evaluations_without_gain = 0
        if (validation, train) > (self.validation, self.train):
            self.train = train
            self.validation = validation
            self.weights = _copy_weights(module)

    def row(self, number: int) -> dict[str, float]:
        """The values and statistics of an evaluation, by its number from 0."""
        columns = {name: column[number] for name, column in self.statistics.items()}
        values = {"train": columns.pop("train"), "validation": self.history[number]}
        return {**values, **dict(sorted(columns.items()))}

    def is_out_of(self, patience: int) -> bool:
        """Whether as many evaluations as that have brought no gain; a patience of 0 is endless."""
        return bool(patience) and self.evaluations_without_gain >= patience


def best_iterate(
    learner: Learner[NetworkT],
    value: Callable[[NetworkT, Fold], float],
    folds: tuple[Fold, Fold],
    config: NetworkConfig,
    on_epoch: OnEpoch = ignore_epoch,
    resumption: Resumption | None = None,
    on_evaluation: OnEvaluation = ignore_evaluation,
) -> BestIterate:
    """Train epoch after epoch; leave the network with the weights that are best on validation.

    Call it within `reproducible`, in which the network and its learner were made.

    Args:
        learner: trains its network; after this the network is frozen.
        value: exact value of a network on a fold.
        folds: to learn from, and to choose the iterate on. If they are the same fold it is valued
            once.
        config: number of epochs, patience, and how often to evaluate.
        on_epoch: called after each evaluation.
        resumption: the state to go on from, if any, and what may be saved; the result is the same.
        on_evaluation: called with the learning curve, row after row; of a training that goes on,
            first with the earlier rows.

    Returns:
        The record of the training.

    Raises:
        InputError: the training diverged, or the state to go on from is not one of this training.
    """
    learn_from, choose_on = folds
    resumption = resumption or Resumption()
    network = learner.router
    best = BestIterate(_copy_weights(network))
    epoch = 0
    statistics: Mapping[str, float] = {}
    if resumption.state:
        statistics = _restore_training(learner, best, resumption.state, config)
        epoch = resumption.state.epoch
        for number, evaluated in enumerate(evaluated_epochs(config, len(best.history))):
            on_evaluation(evaluated, best.row(number))

    def evaluate() -> None:
        train = value(network, learn_from)
        validation = train if choose_on is learn_from else value(network, choose_on)
        best.offer(network, train, validation, config.min_gain, statistics)
        on_epoch(epoch, config.epochs, train, validation)
        on_evaluation(epoch, best.row(-1))

    while epoch < config.epochs and not best.is_out_of(config.patience):
        epoch += 1
        statistics = run_epoch(learner, epoch)
        if epoch % config.evaluate_every == 0:
            evaluate()
        resumption.on_state(partial(_training_state, learner, best, epoch, statistics))
        if resumption.is_checkpoint(epoch):
            resumption.on_checkpoint(_training_state(learner, best, epoch, statistics))
    if epoch % config.evaluate_every:
        # The last epoch always counts. It is evaluated after its state was saved: a longer training
        # that goes on from there does not evaluate it.
        evaluate()
    network.load_state_dict(best.weights)
    network.requires_grad_(False).eval()
    return best


def run_epoch(learner: Learner[nn.Module], number: int) -> Mapping[str, float]:
    """Run one epoch; a network that has diverged is neither valued nor kept."""
    statistics: Mapping[str, float] = {}
    try:
        statistics = learner.epoch()
        weights = learner.router.state_dict().values()
        is_finite = all(bool(value.isfinite().all()) for value in weights)
    except FloatingPointError:
        is_finite = False
    if not is_finite:
        raise InputError(
            f"training diverged in epoch {number}: the network's numbers are not finite (NaN); "
            "lower learning_rate"
        )
    return statistics


def _copy_weights(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights by name."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def _training_state(
    learner: Learner[nn.Module], best: BestIterate, epoch: int, statistics: Mapping[str, float]
) -> TrainingState:
    """The state of a training after an epoch: network, learner, best iterate and generators."""
    arrays, values = present_state(learner)
    arrays |= {
        **prefix("best", as_arrays(best.weights)),
        **prefix("statistics", _as_columns(best.statistics)),
    }
    values |= {
        "best": {
            "train": best.train,
            "validation": best.validation,
            "history": list(best.history),
            "evaluations_without_gain": best.evaluations_without_gain,
            "last_gain": best.last_gain,
        },
        "statistics": dict(statistics),
    }
    return TrainingState(epoch, arrays, values)


def present_state(learner: Learner[nn.Module]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the network, the learner and the generators as arrays and values of a state."""
    learner_state = learner.state()
    generator_arrays, generator_values = global_generators()
    arrays = {
        **prefix("present", as_arrays(_copy_weights(learner.router))),
        **prefix("learner", learner_state.arrays),
        **prefix("generators", generator_arrays),
    }
    return arrays, {"learner": learner_state.values, "generators": generator_values}


def restore_present(learner: Learner[nn.Module], state: TrainingState) -> None:
    """Put back what `present_state` returned; any error means that it is of another training."""
    learner.router.load_state_dict(as_tensors(select(state.arrays, "present")))
    learner.restore(LearnerState(select(state.arrays, "learner"), dict(state.values["learner"])))
    restore_global_generators(select(state.arrays, "generators"), state.values["generators"])


def _restore_training(
    learner: Learner[nn.Module], best: BestIterate, state: TrainingState, config: NetworkConfig
) -> Mapping[str, float]:
    """Put back everything that `_training_state` returned.

    Returns:
        Statistics of the last epoch.

    Raises:
        InputError: it is not a state of this training.
    """
    try:
        if not 0 < state.epoch <= config.epochs:
            raise ValueError(f"epoch {state.epoch}")
        network = learner.router
        # The network checks names and shapes of the best weights, too.
        network.load_state_dict(as_tensors(select(state.arrays, "best")))
        best.weights = _copy_weights(network)
        values = state.values["best"]
        best.train = float(values["train"])
        best.validation = float(values["validation"])
        best.history = [float(value) for value in values["history"]]
        best.evaluations_without_gain = int(values["evaluations_without_gain"])
        best.last_gain = float(values["last_gain"])
        for name, column in select(state.arrays, "statistics").items():
            if column.shape != (len(best.history),):
                raise ValueError(f"statistics of {column.shape} evaluations")
            best.statistics[name] = column.tolist()
        restore_present(learner, state)
        statistics = state.values["statistics"].items()
        return {str(name): float(number) for name, number in statistics}
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:
        raise InputError(unfit_state(state)) from error


def unfit_state(state: TrainingState) -> str:
    """The message about a saved state that is not one of the training that goes on from it."""
    return f"the saved state does not fit the training: {state.file}; {state.remedy}"


def _as_columns(statistics: Mapping[str, Sequence[float]]) -> dict[str, Array]:
    return {name: np.array(numbers, np.float64) for name, numbers in statistics.items()}


def as_arrays(tensors: dict[str, Tensor]) -> dict[str, Array]:
    """Tensors as arrays, on the same memory."""
    return {name: value.numpy() for name, value in tensors.items()}


def as_tensors(arrays: dict[str, Array]) -> dict[str, Tensor]:
    """Arrays as tensors, on the same memory."""
    return {name: torch.from_numpy(value) for name, value in arrays.items()}


def global_generators() -> tuple[dict[str, Array], dict[str, Any]]:
    """The states of the global generators of torch and numpy, see `reproducible`."""
    numpy_state: dict[str, Any] = np.random.get_state(legacy=False)
    arrays = {
        "torch": torch.get_rng_state().numpy().astype(np.int64),
        "numpy": numpy_state["state"]["key"].astype(np.int64),
    }
    values = {
        "numpy_position": numpy_state["state"]["pos"],
        "numpy_has_gauss": numpy_state["has_gauss"],
        "numpy_gauss": numpy_state["gauss"],
    }
    return arrays, values


def restore_global_generators(arrays: dict[str, Array], values: dict[str, Any]) -> None:
    """Put back what `global_generators` returned."""
    words = arrays["numpy"].astype(np.uint32)
    position = int(values["numpy_position"])
    # Numpy would read beyond its words.
    if words.shape != (MERSENNE_WORDS,) or not 0 <= position <= MERSENNE_WORDS:
        raise ValueError("the state of another generator")
    np.random.set_state(
        {
            "bit_generator": "MT19937",
            "state": {"key": words, "pos": position},
            "has_gauss": int(values["numpy_has_gauss"]),
            "gauss": float(values["numpy_gauss"]),
        }
    )
    torch.set_rng_state(torch.from_numpy(arrays["torch"].astype(np.uint8)))


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Seed the global generators of torch and numpy, on one thread; restore both after.

    New layers draw from torch's, and so do Tianshou's policies; its mini-batches come from numpy's.
    One thread, because sums are added up in another order on another number of threads.
    """
    state_before = np.random.get_state()
    with torch.random.fork_rng(devices=[]), torch_threads(1):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(state_before)


def make_adam(
    parameters: Iterable[nn.Parameter], config: NetworkConfig, steps: int
) -> torch.optim.Adam:
    """Adam whose learning rate follows `config` over `steps` gradient steps."""
    adam = torch.optim.Adam(
        list(parameters), lr=config.learning_rate, eps=config.adam_eps, fused=True
    )

    def set_learning_rate(*_: object) -> None:
        step = steps_taken(adam)
        warm_up = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
        decay = 1 - step / steps if config.decay else 1.0
        factor = warm_up * max(decay, 0.0)
        for group in adam.param_groups:
            group["lr"] = config.learning_rate * factor

    # A hook, because Tianshou moves torch's schedulers once an update, not once a gradient step.
    adam.register_step_pre_hook(set_learning_rate)
    return adam


def steps_taken(adam: torch.optim.Adam) -> int:
    """Gradient steps so far, as Adam itself counts them."""
    first = adam.param_groups[0]["params"][0]
    return int(adam.state[first]["step"]) if first in adam.state else 0


def optimiser_state(adam: torch.optim.Adam, rng: np.random.Generator) -> LearnerState:
    """The state of a learner that has an optimiser and a generator; see `restore_optimiser`."""
    arrays = {}
    for number, parameter in enumerate(adam.param_groups[0]["params"]):
        # A parameter that no gradient has reached has no moments.
        for name, value in adam.state.get(parameter, {}).items():
            arrays[f"adam.{number}.{name}"] = value.numpy().copy()
    return LearnerState(arrays, {"generator": rng.bit_generator.state})


def restore_optimiser(
    adam: torch.optim.Adam, rng: np.random.Generator, state: LearnerState
) -> None:
    """Put back what `optimiser_state` returned.

    Raises:
        KeyError, TypeError, ValueError: it is not a state of this optimiser.
    """
    arrays = select(state.arrays, "adam")
    for number, parameter in enumerate(adam.param_groups[0]["params"]):
        if f"{number}.step" not in arrays:
            continue
        step = float(arrays[f"{number}.step"].item())
        moments = {name: arrays[f"{number}.{name}"] for name in ADAM_MOMENTS}
        for moment in moments.values():
            # Fused Adam does not check shapes itself, and would read beyond an array.
            if moment.shape != tuple(parameter.shape) or moment.dtype != np.float32:
                raise ValueError("moments of another parameter")
        if not 0 <= step < math.inf:
            raise ValueError(f"step {step}")
        adam.state[parameter] = {"step": torch.tensor(step)}
        for name, moment in moments.items():
            adam.state[parameter][name] = torch.from_numpy(moment.copy())
    rng.bit_generator.state = state.values["generator"]
