"""What the page holds, as plain values.

In: a cache, a tree opened from it, the routers to show. Out: `Explored`. Nothing is chosen on the
fold shown but which queries come with their texts. Not covered: how it is written (`payload`,
`page`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hierrouter.data_notes import data_notes
from hierrouter.evaluate.policies import OwnPolicy
from hierrouter.explain import worst_queries
from hierrouter.explore.grid import positions
from hierrouter.explore.learned import Brought, Learned, OnDone, of_policy, of_run, of_sweep
from hierrouter.learn.trained import TrainedRouter
from hierrouter.shown import Shown, differences_of
from hierrouter.tree_texts import Texts, load_texts
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Explored:
    """One fold of a tree, and what learned routers do on it.

    Attributes:
        tree: all folds; what is chosen from data is chosen on "train".
        split: the fold that is shown.
        alphas: positions of the slider, ascending.
        start: the position first shown.
        learned: routers, the one first shown first; none where nothing has been trained.
        texts: question, reference and answers, by position of the query in the fold.
        notes: sentences that a reader must not miss.
        brought: policies of the user's own.
    """

    tree: RouteTree
    split: str
    alphas: tuple[float, ...]
    start: int
    learned: tuple[Learned, ...]
    texts: Mapping[int, Texts]
    notes: tuple[str, ...]
    brought: tuple[Brought, ...] = ()

    @property
    def fold(self) -> RouteTree:
        """The queries that are shown."""
        return self.tree.split(self.split)


def explored(
    cache: Path,
    tree: RouteTree,
    split: str,
    shown: Shown,
    texts: int,
    pool: str | None = None,
    on_done: OnDone = lambda done, total: None,
    policies: Sequence[OwnPolicy] = (),
) -> Explored:
    """All that a page of one fold needs.

    Args:
        cache: the folder that the tree was opened from.
        tree: all folds.
        split: the fold to show.
        shown: the router and the sweep, see `hierrouter.shown`.
        texts: of how many queries to load the texts at most: those on which the first router loses
            most at the alpha first shown, then the first ones.
        pool: as in `hierrouter.trees.Selection`.
        on_done: told (alphas done, all) while a sweep is evaluated.
        policies: the user's own; where the router may stop early, they may, too.

    Raises:
        InputError: the fold is empty, a router was made for another tree, or a policy of the
            user's own fails.
        CacheError: the answers are not in the cache.
    """
    fold = tree.split(split)
    if not len(fold):
        raise InputError(f"the {split} fold is empty: nothing to explore; collect more queries")
    # A sweep's router that stands for a run is the sweep's anyway.
    trained = shown.trained if shown.run != shown.sweep_run else None
    alphas = positions(tree, split, shown.sweep, trained)
    learned = _learned(fold, alphas, trained, shown, on_done)
    swept = shown.sweep.like(None, shown.alpha) if shown.sweep else None
    stop = any(router.allow_stop for router in learned)
    brought = tuple(of_policy(one, fold, shown.alpha, stop) for one in policies)
    rows = _with_texts(tree, split, shown.alpha, swept or trained, texts)
    return Explored(
        tree=tree,
        split=split,
        alphas=alphas,
        start=int(np.abs(np.array(alphas) - shown.alpha).argmin()),
        learned=learned,
        texts=dict(zip(rows, _load(cache, fold, rows, pool), strict=True)),
        notes=(
            *data_notes(tree),
            *_differences(tree, trained, shown),
            *(one.note for one in brought),
        ),
        brought=brought,
    )


def _differences(tree: RouteTree, trained: TrainedRouter | None, shown: Shown) -> list[str]:
    """How routers are shown otherwise than they were trained, but for alpha."""
    swept = shown.sweep.like(None, shown.sweep.alphas[0]) if shown.sweep else None
    routers = [router for router in (trained, swept) if router]
    said = (line for router in routers for line in differences_of(router, router.alpha, tree))
    return [f"{line[:1].upper()}{line[1:]}." for line in dict.fromkeys(said)]


def _learned(
    fold: RouteTree,
    alphas: tuple[float, ...],
    trained: TrainedRouter | None,
    shown: Shown,
    on_done: OnDone,
) -> tuple[Learned, ...]:
    """The sweep's network first: it is the one that moves with alpha."""
    found = [of_sweep(shown.sweep, fold, alphas, on_done)] if shown.sweep else []
    return (*found, *([of_run(trained, fold, len(alphas))] if trained else []))


def _with_texts(
    tree: RouteTree, split: str, alpha: float, trained: TrainedRouter | None, count: int
) -> list[int]:
    """Positions in the fold of the queries that come with their texts."""
    of_fold = np.flatnonzero(np.array(tree.splits) == split)
    worst = worst_queries(tree, split, alpha, trained, count) if trained else []
    others = np.setdiff1d(of_fold, worst)[: count - len(worst)]
    rows = np.array([*worst, *others], dtype=np.int64)
    found: list[int] = np.sort(np.searchsorted(of_fold, rows)).tolist()
    return found


def _load(cache: Path, fold: RouteTree, rows: list[int], pool: str | None) -> list[Texts]:
    chosen = fold.select(np.array(rows, dtype=np.int64))
    return load_texts(cache, chosen, pool) if rows else []
