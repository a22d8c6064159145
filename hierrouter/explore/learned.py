"""Where a learned router ends, at every alpha of a grid.

In: a fold, the routers of a sweep or the one of a run. Out: `Learned`, the node at which each
query ends at the first alpha, and what changes from each alpha to the next: few queries. Not
covered: what an ending is worth; the page works that out under any prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluate.policies import OwnPolicy, policy_endings
from hierrouter.learn.sweep import Sweep
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.tree import RouteTree

Integers = NDArray[np.int64]
OnDone = Callable[[int, int], None]


@dataclass(frozen=True)
class Learned:
    """A router on one fold, along a grid of alphas.

    Attributes:
        name: what the page calls it.
        note: what it was trained for, in words.
        allow_stop: whether it may end before L calls.
        start: int64[queries], the node where it ends at the first alpha.
        changed: for each alpha the queries that end elsewhere than at the alpha before, int64[n];
            none at the first.
        node: for each alpha where these end, int64[n].
    """

    name: str
    note: str
    allow_stop: bool
    start: Integers
    changed: tuple[Integers, ...]
    node: tuple[Integers, ...]

    def at(self, position: int) -> Integers:
        """int64[queries]: the node where each query ends at one alpha of the grid."""
        found = self.start.copy()
        for changed, node in zip(
            self.changed[: position + 1], self.node[: position + 1], strict=True
        ):
            found[changed] = node
        return found


@dataclass(frozen=True)
class Brought:
    """A policy of the user's own on one fold; it was asked at one alpha.

    Attributes:
        name: what the page calls it.
        note: what a reader must know of it, in words.
        node: int64[queries], the node where it ends, the likeliest one if it draws.
    """

    name: str
    note: str
    node: Integers


def of_policy(policy: OwnPolicy, fold: RouteTree, alpha: float, allow_stop: bool) -> Brought:
    """Where a policy of the user's own ends.

    Raises:
        InputError: it fails, or gives what is neither an action nor probabilities.
    """
    endings = policy_endings(fold, policy, alpha, allow_stop)
    draws = bool((endings.max(axis=1) < 1).any())
    note = f"{policy.name} was asked at alpha {alpha:g}, and does the same at every alpha here"
    likeliest = ", where it draws, its likeliest route is shown" if draws else ""
    return Brought(policy.name, f"{note}{likeliest}.", endings.argmax(axis=1))


def of_sweep(
    sweep: Sweep,
    fold: RouteTree,
    alphas: Sequence[float],
    on_done: OnDone = lambda done, total: None,
) -> Learned:
    """The first seed's router at each alpha.

    Args:
        alphas: those that the sweep has a router for.
        on_done: told (done, total) after each alpha.

    Raises:
        InputError: a sweep of another tree.
    """

    def endings() -> Iterator[Integers]:
        for done, alpha in enumerate(alphas, start=1):
            yield _endings(sweep.at(alpha)[0], fold)
            on_done(done, len(alphas))

    low, high = sweep.alphas[0], sweep.alphas[-1]
    note = f"trained for alphas from {low:g} to {high:g} (sweep-alpha, seed {sweep.origin.seed})"
    return _along("HierRouter, sweep", note, sweep.allow_stop, endings())


def of_run(trained: TrainedRouter, fold: RouteTree, count: int) -> Learned:
    """One router, the same at each of `count` alphas.

    Raises:
        InputError: a router of another tree.
    """
    endings = _endings(trained, fold)
    note = f"trained at alpha {trained.alpha:g}, and the same router at every alpha"
    stop = trained.objective.allow_stop
    return _along("HierRouter, one alpha", note, stop, (endings for _ in range(count)))


def _endings(router: TrainedRouter, fold: RouteTree) -> Integers:
    found: Integers = router.endings(fold).argmax(axis=1)
    return found


def _along(name: str, note: str, allow_stop: bool, endings: Iterator[Integers]) -> Learned:
    before = start = next(endings)
    changed, nodes = [start[:0]], [start[:0]]
    for now in endings:
        changed.append(np.flatnonzero(now != before))
        nodes.append(now[changed[-1]])
        before = now
    return Learned(name, note, allow_stop, start, tuple(changed), tuple(nodes))
