"""Routers for many alphas, on the same tree.

In: a tree. Out: the alphas worth looking at, and the folder of a sweep: for each seed one network
for every alpha (`conditioned`), or one router for each alpha of the grid. Not covered: the
frontier, see `hierrouter.evaluate.frontier`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hierrouter.evaluate.hulls import oracle_break_points
from hierrouter.learn.alpha_router import Policy, TrainedSweep
from hierrouter.learn.checkpoint import SUMMARY, load_checkpoint
from hierrouter.learn.config import PAPER_ALPHA
from hierrouter.learn.description import grid_of
from hierrouter.learn.objective import MAX_ALPHA
from hierrouter.learn.origin import Origin
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.atomic_files import write_atomically
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

DIGITS = 2  # significant digits of an automatic alpha
POINTS = 6  # of an automatic grid


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
        alphas: the grid, ascending.
        members: for each seed one network for every alpha, or one router for each of `alphas`.
    """

    alphas: tuple[float, ...]
    members: tuple[TrainedSweep | tuple[TrainedRouter, ...], ...]

    @property
    def origin(self) -> Origin:
        """Where it comes from; the seed is that of the first member."""
        return self._first.origin

    @property
    def allow_stop(self) -> bool:
        """Whether its routers may stop early."""
        return self._first.objective.allow_stop

    @property
    def _first(self) -> Policy:
        first = self.members[0]
        return first if isinstance(first, TrainedSweep) else first[0]

    def at(self, alpha: float) -> list[TrainedRouter]:
        """The router of each seed for one alpha; none where no network knows that alpha."""
        return list(self._each(alpha))

    def has(self, alpha: float) -> bool:
        """Whether there is a router for one alpha; makes none."""
        return alpha in self.alphas or any(isinstance(each, TrainedSweep) for each in self.members)

    def like(self, trained: TrainedRouter | None, alpha: float) -> TrainedRouter | None:
        """The first seed's router for one alpha that may do what `trained` may; None without one.

        Args:
            trained: None is anything.
        """
        return next(
            (
                router
                for router in self._each(alpha)
                if trained is None or replace(trained.objective, alpha=alpha) == router.objective
            ),
            None,
        )

    @property
    def routers(self) -> list[list[TrainedRouter]]:
        """For each alpha of the grid the router of each seed."""
        return [self.at(alpha) for alpha in self.alphas]

    def _each(self, alpha: float) -> Iterator[TrainedRouter]:
        """The same as `at`, each made when it is asked for."""
        for member in self.members:
            if isinstance(member, TrainedSweep):
                yield member.at(alpha)
            elif alpha in self.alphas:
                yield member[self.alphas.index(alpha)]


def alpha_grid(tree: RouteTree, count: int, allow_stop: bool = False) -> tuple[float, ...]:
    """Alphas spread over the range in which the best routes change.

    0 (quality alone), the paper's alpha, and quantiles of the exact break-points at which the
    tree oracle takes another route on some query of the train fold, rounded for reading.

    Args:
        tree: all folds; only "train" is looked at.
        count: number of alphas, at least 2; there are fewer where they coincide.
        allow_stop: whether the oracle may take routes of fewer than L calls.

    Returns:
        ascending.

    Raises:
        InputError: `count` is below 2 or the train fold is empty.
    """
    if count < 2:
        raise InputError(f"a grid needs at least 2 alphas, got {count}")
    train = tree.split("train")
    if not len(train):
        raise InputError(
            "no query to choose alphas on: the train fold is empty; collect more queries"
        )
    break_points = oracle_break_points(train, allow_stop)
    spread = (np.arange(count - 2) + 0.5) / max(count - 2, 1)
    quantiles = np.quantile(break_points, spread) if len(break_points) else np.empty(0)
    between: list[float] = np.minimum(quantiles, MAX_ALPHA).tolist()
    return tuple(sorted({0.0, PAPER_ALPHA, *map(_rounded, between)}))


def automatic_grid(tree: RouteTree, allow_stop: bool = False) -> tuple[float, ...]:
    """The grid that the data suggest; see `alpha_grid`."""
    return alpha_grid(tree, POINTS, allow_stop)


def member_folder(run: Path, seed: int, alpha: float | None = None) -> Path:
    """Where a checkpoint lies in the folder of a sweep: of a seed, or of a seed and an alpha."""
    folder = run / f"seed-{seed}"
    return folder if alpha is None else folder / f"alpha-{alpha!r}"


def finish_sweep(run: Path, sweep: Sweep, seeds: Sequence[int]) -> None:
    """Write the summary that makes the folder a finished sweep.

    Args:
        run: folder of the sweep; each checkpoint is in its `member_folder` already.
        seeds: one for each member.

    Raises:
        WorldError: the disk is full or failed.
    """
    described = {
        "alphas": list(sweep.alphas),
        "conditioned": isinstance(sweep.members[0], TrainedSweep),
        "encoder": sweep.origin.encoder,
        "fingerprint": sweep.origin.fingerprint,
        "seeds": list(seeds),
        "view": sweep.origin.view,
    }
    text = json.dumps(described, sort_keys=True, indent=2)
    write_atomically(run / SUMMARY, f"{text}\n".encode())


def load_sweep(run: Path) -> Sweep:
    """A finished sweep.

    Raises:
        InputError: there is no finished sweep in `run`, or a checkpoint is missing or damaged.
    """
    summary = run / SUMMARY
    try:
        found = json.loads(summary.read_text("utf-8"))
        alphas, conditioned = grid_of(found), bool(found["conditioned"])
        seeds = _seeds(found["seeds"])
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"no finished sweep: {run}; run `hierrouter sweep-alpha` first") from None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"sweep summary is damaged: {summary}; sweep again") from error
    if conditioned:
        return Sweep(alphas, tuple(_network(member_folder(run, seed)) for seed in seeds))
    return Sweep(
        alphas,
        tuple(
            tuple(_router(member_folder(run, seed, alpha)) for alpha in alphas) for seed in seeds
        ),
    )


def _seeds(found: Sequence[int]) -> list[int]:
    if not found:
        raise ValueError("no seeds")
    return [int(seed) for seed in found]


def _network(folder: Path) -> TrainedSweep:
    found = load_checkpoint(folder)
    if not isinstance(found, TrainedSweep):
        raise InputError(f"checkpoint is for one alpha, not for a sweep: {folder}; sweep again")
    return found


def _router(folder: Path) -> TrainedRouter:
    found = load_checkpoint(folder)
    if not isinstance(found, TrainedRouter):
        raise InputError(f"checkpoint is for every alpha, not for one: {folder}; sweep again")
    return found


def _rounded(alpha: float) -> float:
    """Two significant digits: a grid is read and typed by people."""
    return round(alpha, DIGITS - 1 - math.floor(math.log10(alpha)))
