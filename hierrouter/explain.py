"""One query's whole tree, and what a router does in it.

In: a cache, a tree opened from it, perhaps a router. Out: `Explained` values: of some queries, or
of those on which the router loses most. Not covered: how they look (`report.explained`,
`report.worst`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import Actions
from hierrouter.evaluate.bounds import best_ending, best_nodes
from hierrouter.evaluate.exact import ending, greedy
from hierrouter.evaluate.regret import split_regret
from hierrouter.explained import Choice, Explained, Node, Routed
from hierrouter.tree_texts import Texts, load_texts
from hierrouter_cache.tree import RouteTree

if TYPE_CHECKING:
    from hierrouter.learn.trained import TrainedRouter  # torch, which a page needs not

NOTHING = 1e-9  # a regret below it is rounding


def explain(
    root: Path,
    tree: RouteTree,
    rows: Sequence[int],
    alpha: float,
    trained: TrainedRouter | None = None,
    pool: str | None = None,
) -> list[Explained]:
    """Some queries of a tree, each with its answers and routes.

    Where the router may stop early, the other routes may, too.

    Args:
        root: the cache that the tree was opened from.
        tree: all folds; the fixed route is chosen on "train".
        rows: positions of queries in `tree`.
        alpha: price of cost in R = Q - alpha * C.
        trained: the router, if any.
        pool: as in `hierrouter.trees.Selection`.

    Raises:
        CacheError: nothing there, damaged, or not the cache of this tree.
        InputError: a router made for another tree.
    """
    if not rows:  # a router may have no regret anywhere
        return []
    chosen = tree.select(np.array(rows, dtype=np.int64))
    stop = trained is not None and trained.objective.allow_stop
    train = tree.split("train")
    fixed = best_ending(train, alpha, stop) if len(train) else None
    best = best_nodes(chosen, alpha, stop).tolist()
    routed = _routed(chosen, alpha, trained) if trained else [None] * len(chosen)
    texts = load_texts(root, chosen, pool)
    return [
        Explained(
            id=chosen.query_ids[row],
            dataset=chosen.datasets[row],
            split=chosen.splits[row],
            question=texts[row].question,
            references=texts[row].references,
            scorer=chosen.scorer,
            alpha=alpha,
            hops=chosen.hops,
            nodes=_nodes(chosen, row, alpha, texts[row]),
            best=best[row],
            fixed=fixed,
            router=routed[row],
        )
        for row in range(len(chosen))
    ]


def worst_queries(
    tree: RouteTree, split: str, alpha: float, trained: TrainedRouter, count: int
) -> list[int]:
    """Positions in `tree` of the queries of a fold on which a router loses most to hindsight.

    Args:
        split: the fold to look at.
        count: at most so many; queries on which nothing is lost are left out.

    Returns:
        the largest regret first; of equal ones the first query.

    Raises:
        InputError: a router made for another tree.
    """
    rows = np.flatnonzero(np.array(tree.splits) == split)
    fold = tree.select(rows)
    stop = trained.objective.allow_stop
    # To the digits that are shown, so that rounding does not order what is equal.
    regret = split_regret(fold, alpha, trained.endings(fold), stop).total.round(9)
    worst = np.argsort(-regret, kind="stable")[:count]
    found: list[int] = rows[worst[regret[worst] > NOTHING]].tolist()
    return found


def explain_worst(
    root: Path,
    tree: RouteTree,
    split: str,
    alpha: float,
    trained: TrainedRouter,
    count: int,
    pool: str | None = None,
) -> list[Explained]:
    """The queries of `worst_queries`, explained; see `explain` for the rest.

    Raises:
        CacheError: nothing there, damaged, or not the cache of this tree.
        InputError: a router made for another tree.
    """
    rows = worst_queries(tree, split, alpha, trained, count)
    return explain(root, tree, rows, alpha, trained, pool)


def _nodes(tree: RouteTree, row: int, alpha: float, texts: Texts) -> tuple[Node, ...]:
    routes, reward = tree.routes, tree.node_reward(alpha)[row]
    return tuple(
        Node(
            number=number,
            parent=routes.parent(number),
            model=tree.models[routes.action(number)],
            route=routes.name(number, tree.models),
            answer=texts.answers[number],
            quality=float(tree.score[row, number]),
            accuracy=float(tree.accuracy[row, number]),
            tokens_in=int(tree.tokens_in[row, number]),
            tokens_out=int(tree.tokens_out[row, number]),
            cost=float(tree.cost[row, number]),
            reward=float(reward[number]),
        )
        for number in range(1, routes.nodes)
    )


def _routed(tree: RouteTree, alpha: float, trained: TrainedRouter) -> list[Routed | None]:
    """The greedy way of a router through each query's tree."""
    actions, probabilities = trained.actions, trained.probabilities(tree)
    one_hot = greedy(probabilities, tree.base_rate)
    lost = split_regret(tree, alpha, ending(actions, one_hot), actions.allow_stop).parts
    taken = one_hot.argmax(axis=2)
    return [
        _way(tree.models, actions, probabilities[row], taken[row].tolist(), lost[row].tolist())
        for row in range(len(tree))
    ]


def _way(
    models: tuple[str, ...],
    actions: Actions,
    probabilities: NDArray[np.float64],
    taken: Sequence[int],
    lost: Sequence[float],
) -> Routed:
    """From the question to where the router ends.

    Args:
        probabilities: float64[states, A].
        taken: the action at each state.
        lost: regret by hop.
    """
    names = actions.names(models)
    state, node, choices = 0, 0, []
    for regret in lost:
        action = taken[state]
        made = tuple(probabilities[state].tolist())
        choices.append(Choice(state, names, made, names[action], regret))
        node = actions.routes.child(state, action % len(models))
        if node >= actions.routes.states or action >= len(models):
            break
        state = node
    return Routed(node, tuple(choices))
