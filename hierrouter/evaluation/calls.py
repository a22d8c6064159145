"""What a further call brings: depth, repair, what a view of the state is worth."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.bounds import cheapest_best
from hierrouter.evaluation.outcome import Floats, Integers, Outcome, at_nodes, ended_at, worth
from hierrouter_cache.tree import Routes, RouteTree


@dataclass(frozen=True)
class Depth:
    """What a policy answers after a given number of calls.

    Attributes:
        calls: 1 to L.
        share: expected share of the queries that are answered here.
        quality: mean Q of these, in [0, 1]; None where there are none.
        cost: mean C of these, in money; None where there are none.
    """

    calls: int
    share: float
    quality: float | None
    cost: float | None


@dataclass(frozen=True)
class DepthPoint:
    """One policy on the curve of a sweep.

    Attributes:
        alpha: reward lost per unit of cost, for which the policy is meant.
        beyond_first: expected share of the queries that get more than one call.
        calls: mean number of calls of a query.
        quality: mean Q over all queries, in [0, 1].
        cost: mean C over all queries, in money.
    """

    alpha: float
    beyond_first: float
    calls: float
    quality: float
    cost: float


def by_depth(tree: RouteTree, endings: Floats) -> list[Depth]:
    """One entry for each number of calls from 1 to L; the shares sum to 1.

    Quality and cost of a depth are means over the queries that the policy stops there, so depths
    differ by the queries they are given as well as by their calls.

    `endings`: float64[queries, endings], rows sum to 1.
    """
    (score, _, cost), found = worth(tree, endings.shape[1]), []
    ended, *parts = (ended_at(tree.routes, endings * one) for one in (1, score, cost))
    for calls in range(1, tree.hops + 1):
        level = tree.routes.level(calls)
        total = float(ended[:, level].sum())
        if total == 0:
            found.append(Depth(calls, 0.0, None, None))
            continue
        quality, spent = (float(part[:, level].copy().sum() / total) for part in parts)
        found.append(Depth(calls, total / len(tree), quality, spent))
    return found


def depth_curve(tree: RouteTree, endings: Mapping[float, Floats]) -> list[DepthPoint]:
    """One point for each policy of a sweep, by rising share of queries with more than one call.

    `endings`: float64[queries, nodes] for each alpha, rows sum to 1.
    """
    depth = tree.routes.depth()
    points = [
        DepthPoint(
            alpha=alpha,
            beyond_first=float(ends[:, depth > 1].sum(axis=1).mean()),
            calls=float((ends @ depth).mean()),
            quality=float((ends * tree.score).sum(axis=1).mean()),
            cost=float((ends * tree.cost).sum(axis=1).mean()),
        )
        for alpha, ends in endings.items()
    ]
    return sorted(points, key=lambda point: (point.beyond_first, point.calls, point.alpha))


@dataclass(frozen=True)
class Repair:
    """What the calls at one hop do to the answers before them.

    Row i, column j of a query: model j is called after model i; a mean over all routes whose last
    call but one is i's, M^(hop - 2) of them. Repair less damage is the change in accuracy.

    Attributes:
        hop: 2 to L.
        right: float64[queries, M], probability that the answer of model i before was right.
        repair: float64[queries, M, M], probability that wrong became right.
        damage: float64[queries, M, M], probability that right became wrong.
        quality: float64[queries, M, M], change in Q.
        cost: float64[queries, M, M], cost of the call of j, in money.
    """

    hop: int
    right: Floats
    repair: Floats
    damage: Floats
    quality: Floats
    cost: Floats


def repair_matrices(tree: RouteTree) -> list[Repair]:
    """One entry for each hop from the second on; none where L is 1.

    Where accuracies are 0 or 1, a call repairs, damages or does neither. Where they are fractions,
    say the means of several verdicts, both answers are taken to be right with these probabilities,
    independently of each other: repair is (1 - before) * after, damage before * (1 - after).
    """
    routes, shape = tree.routes, (len(tree), -1, tree.routes.models)

    def around(values: Floats, hop: int) -> tuple[Floats, Floats]:
        """Before and after the call: [queries, routes, M, 1] and [queries, routes, M, M]."""
        before = values[:, routes.level(hop - 1)].reshape(*shape, 1)
        return before, values[:, routes.level(hop)].reshape(*shape, routes.models)

    found = []
    for hop in range(2, tree.hops + 1):
        before, after = around(tree.accuracy, hop)
        (worth, new_worth), (spent, new_spent) = around(tree.score, hop), around(tree.cost, hop)
        found.append(
            Repair(
                hop=hop,
                right=before.mean(axis=1)[..., 0],
                repair=((1 - before) * after).mean(axis=1),
                damage=(before * (1 - after)).mean(axis=1),
                quality=(new_worth - worth).mean(axis=1),
                cost=(new_spent - spent).mean(axis=1),
            )
        )
    return found


def measurable_optimum(
    tree: RouteTree, observation: Integers, alpha: float, allow_stop: bool = False
) -> Outcome:
    """The highest mean reward of all policies that see only `observation`, exactly.

    The policies may remember all they saw and did. With a memory, states with equal histories
    form groups, the groups form a tree, and backward induction over them is exact (decision
    processes with perfect recall; no random choice does better). A policy without memory sees
    less, so this is an upper bound for it too. Ties in reward are broken by cost.

    It is meant for planted trees and for views with few distinct observations, where many queries
    share one. With all observations distinct at the root, as with the embeddings of real questions,
    every query is its own group and this is the tree oracle. The cost of a state tells queries
    apart as well. What a view of real data is worth for new queries takes a policy that is trained
    on some and valued on others. Returns an outcome of kind "oracle".

    Args:
        observation: int64[queries, states]; what a policy sees, equal numbers look the same. See
            `observations`.
        allow_stop: whether an episode may end before L calls. Stopping is decided with the call,
            before its answer is seen (paper appendix A).
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


def observations(tree: RouteTree) -> Integers:
    """Numbers of the distinct states as the tree's view shows them: embedding, stage and cost.

    Costs are compared in float32 and embeddings bit by bit, as a router reads them. Returns
    int64[queries, states], from 0.
    """
    states = tree.routes.states
    number = _distinct(tree.cost[:, :states].astype(np.float32))
    number = _pairs(number, np.broadcast_to(tree.routes.depth()[:states], number.shape))
    for part in tree.require_embedded():
        row = part.row[:, :states]
        rows, place = np.unique(row, return_inverse=True)
        vectors = np.ascontiguousarray(part.vectors[rows] + np.float32(0))  # -0 is 0
        kinds = _distinct(vectors.view(np.dtype((np.void, vectors.itemsize * part.width)))[:, 0])
        number = _pairs(number, kinds[place].reshape(row.shape))
    return number


def _histories(routes: Routes, observation: Integers) -> list[Integers]:
    """For each level int64[queries, M^level]: equal where all that was seen and done is equal."""
    number = _distinct(observation)
    history = [number[:, routes.level(0)]]
    for level in range(1, routes.hops):
        path = np.arange(routes.models**level)
        before = _pairs(np.repeat(history[-1], routes.models, axis=1), path)
        history.append(_pairs(before, number[:, routes.level(level)]))
    return history


def _best_endings(tree: RouteTree, alpha: float, choices: Integers, group: Integers) -> Integers:
    """int64[queries, nodes of a level]: where the choice that is best for its group ends.

    `choices`: int64[queries, nodes of a level, choices], the node where each choice ends; `group`:
    int64[queries, nodes of a level], numbers of equal histories.
    """
    member = group.ravel()
    rows = np.arange(len(tree))[:, None, None]

    def total(values: Floats) -> Floats:
        sums = np.zeros((member.max(initial=-1) + 1, choices.shape[2]))
        np.add.at(sums, member, values[rows, choices].reshape(len(member), -1))
        return sums

    best = cheapest_best(total(tree.node_reward(alpha)), total(tree.cost))
    return np.take_along_axis(choices, best[group][:, :, None], axis=2)[:, :, 0]


def _distinct(values: NDArray[np.generic]) -> Integers:
    """int64[...]: the number of each value among the distinct ones."""
    inverse: Integers = np.unique(values, return_inverse=True)[1]
    return inverse.reshape(values.shape)


def _pairs(first: Integers, second: Integers) -> Integers:
    """int64[...]: the number of each pair among the distinct ones; the arrays broadcast."""
    return _distinct(first * (second.max(initial=0) + 1) + second)
