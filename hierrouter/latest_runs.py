"""Which finished runs belong to a tree.

In: a tree, and what the runs under `runs` say they learned from. Out: the folder of the run to
show, and of one that would be shown were the tree seen in another way. Not covered: how a run
comes about, see `runs`; what is in its folder, see `hierrouter.learn.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hierrouter.learn.checkpoint import description_of
from hierrouter.learn.trained import TrainedRouter
from hierrouter.runs import finished_runs
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class LearnedRun:
    """A finished run, as far as it says where it comes from.

    Attributes:
        folder: of the run.
        view: of the state, see `hierrouter.collect.views`.
        encoder: name of the encoder.
        same_tree: whether it learned from the tree in question. Fingerprints hold the encoder, so
            nobody can tell of a run that read another one.
    """

    folder: Path
    view: str
    encoder: str
    same_tree: bool

    def sees(self, tree: RouteTree) -> bool:
        """Whether it reads the states as they are opened."""
        return (self.view, self.encoder) == (tree.view, tree.encoder)


def latest_run(tree: RouteTree, command: str, alpha: float | None = None) -> Path | None:
    """The newest finished run that learned from this very tree, seen in this way.

    Where there is none, the newest one that learned from it under other prices.

    Args:
        command: "train" or "sweep-alpha".
        alpha: runs for this alpha come before newer ones for another.
    """
    fits = (run for run in _runs(tree, command, alpha) if run.same_tree and run.sees(tree))
    return next((run.folder for run in fits), None)


def overlooked_run(tree: RouteTree, command: str, alpha: float | None = None) -> LearnedRun | None:
    """The run that `latest_run` would return if it looked at neither view nor encoder.

    Returns:
        None where that is the very run it returns, or there is none. Where no run is known to have
        learned from this tree, the newest one that read another encoder.
    """
    runs = _runs(tree, command, alpha)
    certain = [run for run in runs if run.same_tree]
    candidates = certain or [run for run in runs if run.encoder != tree.encoder]
    first = next(iter(candidates), None)
    return None if first is None or first.sees(tree) else first


def run_by_enumeration(tree: RouteTree, trained: TrainedRouter) -> Path | None:
    """The newest finished run of `train --algo exact` that is otherwise as `trained` is.

    Args:
        tree: its view and encoder are those wanted.
    """
    wanted = {
        "algo": "exact",
        "fingerprint": trained.origin.fingerprint,
        "objective": asdict(trained.objective),
        "view": tree.view,
        "encoder": tree.encoder,
    }
    for run in finished_runs("train"):
        said = description_of(run)
        if all(said.get(name) == value for name, value in wanted.items()):
            return run
    return None


def _runs(tree: RouteTree, command: str, alpha: float | None) -> list[LearnedRun]:
    """All finished ones; same prices first, then the same alpha, then the newest."""

    def unfit(item: tuple[Path, Mapping[str, Any]]) -> tuple[bool, bool]:
        said = item[1]
        other_alpha = said.get("objective", {}).get("alpha") != alpha
        return said["fingerprint"] != tree.fingerprint, alpha is not None and other_alpha

    described = ((run, description_of(run)) for run in finished_runs(command))
    found = sorted((item for item in described if item[1]), key=unfit)  # stable: newest first
    return [
        LearnedRun(
            run,
            str(said["view"]),
            str(said["encoder"]),
            tree.same_content(str(said["fingerprint"])),
        )
        for run, said in found
    ]
