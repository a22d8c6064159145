"""Which learned router a command shows, and why.

In: a tree, an alpha, what the user named. Out: `Shown`: the router, where it lies, the sweep beside
it, and sentences on what a reader would not expect of it. Not covered: which runs there are
(`latest_runs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hierrouter.latest_runs import latest_run, overlooked_run
from hierrouter.learn.checkpoint import router_at
from hierrouter.learn.config import PAPER_ALPHA
from hierrouter.learn.sweep import Sweep, load_sweep
from hierrouter.learn.trained import TrainedRouter
from hierrouter.runs import RUNS
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Shown:
    """The router that a command shows.

    Attributes:
        run: where it lies; the sweep's folder for a sweep's router. None where there is none.
        trained: the router; None where nothing has learned from the tree.
        alpha: cost penalty it is shown at.
        sweep_run: folder of the sweep that was read; None where none was, or there is none.
        sweep: that sweep.
        remarks: sentences, without a full stop, on what a reader would not expect.
    """

    run: Path | None
    trained: TrainedRouter | None
    alpha: float
    sweep_run: Path | None = None
    sweep: Sweep | None = None
    remarks: tuple[str, ...] = ()

    def required(self) -> tuple[Path, TrainedRouter]:
        """Where the router lies, and the router.

        Raises:
            InputError: there is none.
        """
        if self.run is None or self.trained is None:
            raise InputError(
                f"no router was trained on this tree: none in {RUNS}; run `hierrouter train`, or "
                "give --checkpoint"
            )
        return self.run, self.trained


def shown_router(
    tree: RouteTree,
    alpha: float | None,
    checkpoint: Path | None = None,
    sweep_run: Path | None = None,
    with_sweep: bool = False,
) -> Shown:
    """The newest router that learned from the tree; a sweep's, where no other is for this alpha.

    Args:
        tree: all folds.
        alpha: None is the alpha that the router was trained for.
        checkpoint: the user's choice; no other router is shown for it.
        sweep_run: the user's choice, instead of the latest sweep.
        with_sweep: read the sweep even where its router is not shown.

    Raises:
        InputError: a checkpoint or a sweep that cannot be read, or is for another tree.
    """
    run = checkpoint or latest_run(tree, "train", alpha)
    trained = router_at(run, alpha) if run else None
    value = trained.alpha if trained and alpha is None else alpha
    value = PAPER_ALPHA if value is None else value
    remarks = [] if checkpoint else overlooked(tree, "train", alpha)
    is_lacking = checkpoint is None and (trained is None or trained.alpha != value)
    sweep = None
    if is_lacking or with_sweep:
        remarks += [] if sweep_run else overlooked(tree, "sweep-alpha")
        sweep_run = sweep_run or latest_run(tree, "sweep-alpha")
        sweep = load_sweep(sweep_run) if sweep_run else None
    if is_lacking and sweep and (found := sweep.like(trained, value)):
        run, trained = sweep_run, found
        remarks.append(
            f"no run of `train` for alpha {value:g} on this tree; the sweep's network is shown, "
            f"seed {found.origin.seed}"
        )
    if trained:
        trained.origin.check_matches(tree, trained.router.shape.dim)
        remarks += differences_of(trained, value, tree)
    else:
        remarks.append("no router trained on this tree; baselines only (`hierrouter train`)")
    return Shown(run, trained, value, sweep_run, sweep, tuple(remarks))


def overlooked(tree: RouteTree, command: str, alpha: float | None = None) -> list[str]:
    """Names the run that would be shown if the tree were seen in another way; see `latest_runs`.

    Args:
        command: "train" or "sweep-alpha".
    """
    other = overlooked_run(tree, command, alpha)
    if other is None:
        return []
    flags = [f"--state {other.view}"] if other.view != tree.view else []
    flags += [f"--encoder {other.encoder}"] if other.encoder != tree.encoder else []
    which = "it learned" if other.same_tree else "if it learned"
    return [
        f"{other.folder} is not shown: {which} from this tree, seen in another way; "
        f"add {' '.join(flags)} to see it"
    ]


def differences_of(
    trained: TrainedRouter, alpha: float, tree: RouteTree | None = None
) -> tuple[str, ...]:
    """How a router is shown otherwise than it was trained.

    Args:
        alpha: that it is shown at.
        tree: that it is shown on; None where there is none.
    """
    said = []
    fingerprint = trained.origin.fingerprint
    if tree is not None and fingerprint != tree.fingerprint:
        what = "under other prices" if tree.same_content(fingerprint) else "on other data or scores"
        said.append(f"the router was trained {what} than shown here")
    if trained.alpha != alpha:
        said.append(f"the router was trained at alpha {trained.alpha:g}, shown at {alpha:g}")
    return tuple(said)
