"""Routers for many alphas, and the one that meets a budget."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hierrouter.evaluation.budget import oracle_break_points, within
from hierrouter.learning.checkpoint import SUMMARY, grid_of, load_checkpoint
from hierrouter.learning.conditioned import Policy, TrainedSweep
from hierrouter.learning.config import MAX_ALPHA
from hierrouter.learning.loop import training_folds
from hierrouter.learning.trained import Origin, TrainedRouter
from hierrouter.paper import PAPER_ALPHA
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree
from hierrouter_cache.writer import write_atomically

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


CANDIDATES = 512  # alphas looked at; a router's cost changes in steps anyway
BEYOND = 2.0  # above the last alpha at which the oracle changes, a router may still change


def meet_budget(sweep: TrainedSweep, tree: RouteTree, budget: float) -> TrainedRouter:
    """The router at the smallest alpha whose mean cost on validation is within the budget.

    A greater alpha makes a good router cheaper, so the alpha is found by bisection; what is
    returned has been valued and is within the budget.

    Args:
        sweep: trained on `tree`.
        tree: all folds; the train fold gives the alphas to look at. Without a validation fold the
            train fold is valued.
        budget: greatest mean of C over the queries, in price * token.

    Raises:
        InputError: not even the router at the greatest alpha is within the budget.
    """
    learn_from, choose_on = training_folds(tree)
    break_points = oracle_break_points(learn_from, sweep.objective.allow_stop)
    knots = np.concatenate([[0.0], break_points, BEYOND * break_points[-1:]])
    candidates = np.quantile(knots, np.linspace(0, 1, CANDIDATES))
    alphas = np.unique(np.minimum(candidates, MAX_ALPHA))

    def cost(place: int) -> float:
        return float(sweep.at(alphas[place]).outcome(choose_on).cost.mean())

    def is_met(place: int) -> bool:
        return bool(within(np.array(cost(place)), budget))

    low, high = 0, len(alphas) - 1
    if not is_met(high):
        raise InputError(
            f"no router is that cheap: --budget {budget:g}; at the greatest alpha it costs "
            f"{cost(high):.4g} per query, allow at least that"
        )
    while low < high:
        middle = (low + high) // 2
        if is_met(middle):
            high = middle
        else:
            low = middle + 1
    return replace(sweep.at(float(alphas[high])), budget=budget)
