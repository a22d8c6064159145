"""What a view of the state is worth at most.

In: a tree, and for each of its states the number of what a policy sees there. Out: the outcome of
the best of all policies that see no more than these numbers. Not covered: what can be learned from
few queries; the optimum is chosen on the queries that it is valued on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluate.bounds import cheapest_best
from hierrouter.evaluate.outcome import Outcome, at_nodes
from hierrouter_cache.routes import Routes
from hierrouter_cache.tree import RouteTree, StatePart


def measurable_optimum(
    tree: RouteTree,
    observation: NDArray[np.int64],
    alpha: float,
    allow_stop: bool = False,
) -> Outcome:
    """The highest mean reward of all policies that see only `observation`, exactly.

    The policies may remember all they saw and did. With a memory, states with equal histories
    form groups, the groups form a tree, and backward induction over them is exact (decision
    processes with perfect recall; no random choice does better). A policy without memory sees
    less, so this is an upper bound for it too. Ties in reward are broken by cost.

    It is meant for planted trees and for views with few distinct observations, where many queries
    share one. With all observations distinct at the root, as with the embeddings of real
    questions, every query is its own group and this is the tree oracle. The cost of a state tells
    queries apart as well. What a view of real data is worth for new queries takes a policy that
    is trained on some and valued on others.

    Args:
        observation: int64[queries, states]; what a policy sees, equal numbers look the same. See
            `observations`.
        allow_stop: whether an episode may end before L calls. Stopping is decided with the call,
            before its answer is seen (paper appendix A).

    Returns:
        An outcome of kind "oracle".
    """
    routes, queries = tree.routes, len(tree)
    history = _histories(routes, observation)
    end = np.tile(np.arange(routes.nodes)[routes.leaves], (queries, 1))
    for level in reversed(range(routes.hops)):
        choices = end.reshape(queries, -1, routes.models)
        if allow_stop:
            here = np.arange(routes.nodes)[routes.level(level + 1)].reshape(choices.shape[1:])
            # Stopping first: of equal choices the first is taken.
            choices = np.concatenate([np.broadcast_to(here, choices.shape), choices], axis=2)
        end = _best_endings(tree, alpha, choices, history[level])
    return at_nodes(tree, end[:, 0], "measurable optimum", "oracle")


def observations(tree: RouteTree) -> NDArray[np.int64]:
    """Numbers of the distinct states as the tree's view shows them: embedding, stage and cost.

    Costs are compared in float32 and embeddings bit by bit, as a router reads them.

    Returns:
        int64[queries, states], from 0.
    """
    states = tree.routes.states
    number = _distinct(tree.cost[:, :states].astype(np.float32))
    number = _pairs(number, np.broadcast_to(tree.routes.depth()[:states], number.shape))
    for part in tree.parts:
        number = _pairs(number, _distinct_vectors(part))
    return number


def _histories(routes: Routes, observation: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """For each level int64[queries, M^level]: equal where all that was seen and done is equal."""
    number = _distinct(observation)
    history = [number[:, routes.level(0)]]
    for level in range(1, routes.hops):
        path = np.arange(routes.models**level)
        before = _pairs(np.repeat(history[-1], routes.models, axis=1), path)
        history.append(_pairs(before, number[:, routes.level(level)]))
    return history


def _best_endings(
    tree: RouteTree, alpha: float, choices: NDArray[np.int64], group: NDArray[np.int64]
) -> NDArray[np.int64]:
    """int64[queries, nodes of a level]: where the choice that is best for its group ends.

    Args:
        choices: int64[queries, nodes of a level, choices], the node where each choice ends.
        group: int64[queries, nodes of a level], numbers of equal histories.
    """
    member = group.ravel()
    rows = np.arange(len(tree))[:, None, None]

    def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = np.zeros((member.max(initial=-1) + 1, choices.shape[2]))
        np.add.at(sums, member, values[rows, choices].reshape(len(member), -1))
        return sums

    best = cheapest_best(total(tree.node_reward(alpha)), total(tree.cost))
    return np.take_along_axis(choices, best[group][:, :, None], axis=2)[:, :, 0]


def _distinct(values: NDArray[np.generic]) -> NDArray[np.int64]:
    """int64[...]: the number of each value among the distinct ones."""
    inverse: NDArray[np.int64] = np.unique(values, return_inverse=True)[1]
    return inverse.reshape(values.shape)


def _pairs(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[...]: the number of each pair among the distinct ones; the arrays broadcast."""
    return _distinct(first * (second.max(initial=0) + 1) + second)


def _distinct_vectors(part: StatePart) -> NDArray[np.int64]:
    """int64[queries, states]: the number of each state's vector among the distinct ones."""
    rows, place = np.unique(part.row, return_inverse=True)
    vectors = np.ascontiguousarray(part.vectors[rows] + np.float32(0))  # -0 is 0
    number = _distinct(vectors.view(np.dtype((np.void, vectors.itemsize * part.width)))[:, 0])
    return number[place].reshape(part.row.shape)
