"""One router for each alpha, on the same tree.

In: a tree. Out: the alphas worth training at, the routers trained there, and the folder that holds
them. Every training starts afresh, so that a point does not depend on its neighbours. Not
covered: the frontier, see `hierrouter.evaluate.frontier`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hierrouter.evaluate.frontier import oracle_break_points
from hierrouter.learn.checkpoint import SUMMARY, load_checkpoint
from hierrouter.learn.config import PAPER_ALPHA
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree
from hierrouter_cache.writer import write_atomically

DIGITS = 2  # significant digits of an automatic alpha


def alpha_grid(tree: RouteTree, count: int) -> tuple[float, ...]:
    """Alphas spread over the range in which the best routes change.

    0 (quality alone), the paper's alpha, and quantiles of the exact break-points at which the
    tree oracle takes another route on some query of the train fold, rounded for reading.

    Args:
        tree: all folds; only "train" is looked at.
        count: number of alphas, at least 2; there are fewer where they coincide.

    Returns:
        ascending.

    Raises:
        InputError: `count` is below 2 or the train fold is empty.
    """
    if count < 2:
        raise InputError(f"a grid needs at least 2 alphas, got {count}")
    train = tree.split("train")
    if not len(train):
        raise InputError("no query to choose alphas on: the train fold is empty")
    changes = oracle_break_points(train)
    spread = (np.arange(count - 2) + 0.5) / max(count - 2, 1)
    between: list[float] = np.quantile(changes, spread).tolist() if len(changes) else []
    return tuple(sorted({0.0, PAPER_ALPHA, *map(_rounded, between)}))


def point_folder(run: Path, alpha: float) -> Path:
    """Where the checkpoint of one alpha lies in the folder of a sweep."""
    return run / f"alpha-{alpha!r}"


def finish_sweep(run: Path, trained: Sequence[TrainedRouter]) -> None:
    """Write the summary that makes the folder a finished sweep.

    Args:
        run: folder of the sweep; each checkpoint is in its `point_folder` already.

    Raises:
        WorldError: the disk is full or failed.
    """
    alphas = sorted(router.alpha for router in trained)
    described = {"alphas": alphas, "fingerprint": trained[0].fingerprint}
    text = json.dumps(described, sort_keys=True, indent=2)
    write_atomically(run / SUMMARY, f"{text}\n".encode())


def load_sweep(run: Path) -> list[TrainedRouter]:
    """The routers of a finished sweep, by ascending alpha.

    Raises:
        InputError: there is no finished sweep in `run`, or a checkpoint is missing or damaged.
    """
    summary = run / SUMMARY
    try:
        alphas = [float(alpha) for alpha in json.loads(summary.read_text("utf-8"))["alphas"]]
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"no finished sweep: {run}; run `hierrouter sweep-alpha` first") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"sweep summary is damaged: {summary}; sweep again") from error
    return [load_checkpoint(point_folder(run, alpha)) for alpha in alphas]


def _rounded(alpha: float) -> float:
    """Two significant digits: a grid is read and typed by people."""
    return round(alpha, DIGITS - 1 - math.floor(math.log10(alpha)))
