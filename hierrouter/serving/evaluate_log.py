"""Estimates from logs: what can be asked for, `hr.off_policy` and `hr.savings`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter.declarations import flags
from hierrouter.declarations.checks import check_path
from hierrouter.declarations.declaration import (
    Flag,
    OnNote,
    declaration,
    function_of,
    ignore_note,
    shown_name,
)
from hierrouter.runs.folders import Checkpoint, find_run
from hierrouter.serving.open_router import OnStage, ignore_stage
from hierrouter_cache.errors import InputError

if TYPE_CHECKING:
    from hierrouter.learning.router import TrainedRouter
    from hierrouter.serving.logs import LogShape
    from hierrouter.serving.off_policy import Result


@declaration
class OffPolicy:
    """Estimate the value of a router from the log of another policy; see `off_policy`."""

    log: Annotated[
        Path | None,
        Flag("--log", "FILE", "Episodes as JSON lines, from a server, say.", check=check_path),
    ] = None
    checkpoint: Checkpoint = None
    alpha: flags.Alpha = None

    def run(self, on_note: OnNote = ignore_note, on_stage: OnStage = ignore_stage) -> Result:
        """Estimate it; see `off_policy` for the errors.

        Args:
            on_note: receives remarks on the router, and how many lines are left out.
            on_stage: called with the stage of estimating.
        """
        from hierrouter import __version__
        from hierrouter.engines.encoder_names import with_commit
        from hierrouter.engines.encoders import load_encoder
        from hierrouter.learning.router import training_remarks
        from hierrouter.runs.bundle import encoder_commit
        from hierrouter.serving.logs import read_log
        from hierrouter.serving.off_policy import value_from_log

        log = self._required_log()
        run, trained = self._router()
        alpha = trained.alpha if self.alpha is None else self.alpha
        for remark in training_remarks(trained, alpha):
            on_note(remark)
        on_note(f"{run} at alpha {alpha:g}")
        episodes = read_log(log, _shape(trained), on_note)
        provenance = {
            "version": __version__,
            "checkpoint": str(run),
            "seed": trained.origin.seed,
            "trained_on": trained.origin.fingerprint,
            "log": str(log),
        }
        with on_stage("estimate"):
            encoder = load_encoder(with_commit(trained.origin.encoder, encoder_commit(run)))
            return value_from_log(trained, episodes, alpha, provenance, encoder)

    def savings(self, on_note: OnNote = ignore_note) -> tuple[list[dict[str, Any]], float]:
        """Compare the spending of the router that logged with that of each model; see `savings`.

        Args:
            on_note: receives how many lines are left out.

        Returns:
            The rows, and the alpha by which the best model is named.
        """
        from hierrouter.serving.logs import read_spending
        from hierrouter.serving.off_policy import savings

        log = self._required_log()
        _, trained = self._router()
        alpha = trained.alpha if self.alpha is None else self.alpha
        shape = _shape(trained)
        spending = read_spending(log, shape, on_note)
        return savings(spending, shape.first_actions), alpha

    def _required_log(self) -> Path:
        if self.log is None:
            raise InputError(f"no log; give {shown_name(OffPolicy, 'log')} FILE")
        return self.log

    def _router(self) -> tuple[Path, TrainedRouter]:
        """Return the run, and its router for the alpha."""
        from hierrouter.runs.checkpoint import router_at
        from hierrouter.serving.router import live_run

        run = self.checkpoint or live_run(self.alpha)
        return run, router_at(run, self.alpha)


def _shape(trained: TrainedRouter) -> LogShape:
    from hierrouter.serving.logs import LogShape

    origin = trained.origin
    return LogShape(origin.models, origin.hops, origin.rate, origin.layout)


@function_of(OffPolicy)
def off_policy(
    log: str | os.PathLike[str],
    *,
    run: str | os.PathLike[str] | None = None,
    alpha: float | None = None,
    on_note: OnNote = ignore_note,
) -> Result:
    """Estimate what a trained router would earn, from a log that another policy made.

    No model is called and no cache is needed: the log has the texts. The router's greedy policy is
    evaluated.

    Args:
        log: JSON lines, one episode a line; docs/off_policy.md describes them.
        run: name or folder of a run, or a run of `train`; default: the newest run of `train` for
            this alpha, else the newest sweep.
        alpha: price of cost in R = Q - alpha * C; default: the one the router was trained for.
        on_note: called with remarks on the router, and how many lines are left out.

    Returns:
        The estimates, and how much of the log they rest on.

    Raises:
        InputError: no such run, a bad line in the log, only one question, or the log lacks what the
            router reads.
        WorldError: the router's encoder cannot be loaded.
    """
    job = OffPolicy(log=Path(log), checkpoint=None if run is None else find_run(run), alpha=alpha)
    return job.run(on_note)


@function_of(OffPolicy)
def savings(
    log: str | os.PathLike[str],
    *,
    run: str | os.PathLike[str] | None = None,
    alpha: float | None = None,
    on_note: OnNote = ignore_note,
) -> list[dict[str, Any]]:
    """Compare what a router spent, by its server's log, with what each model alone would have.

    Args:
        log: of `hierrouter serve --log`, best with `--sample`.
        run: the run that was in service, as in `off_policy`.
        alpha: as in `off_policy`.
        on_note: called with how many lines are left out.

    Returns:
        JSON values, one row for each model and measure: `hierrouter.serving.off_policy.savings`.

    Raises:
        InputError: no such run, a bad line in the log, or fewer than 2 questions.
    """
    job = OffPolicy(log=Path(log), checkpoint=None if run is None else find_run(run), alpha=alpha)
    rows, _ = job.savings(on_note)
    return rows
