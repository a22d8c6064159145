"""Deploying runs: what can be asked for, and `hr.deploy`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hierrouter.declarations.declaration import Flag, declaration, function_of, shown_name
from hierrouter.runs.folders import RUNS, check_run, find_run
from hierrouter_cache.errors import InputError

if TYPE_CHECKING:
    from hierrouter.serving.versions import Service


@declaration
class Deploy:
    """Set which run servers answer with; see `deploy` for the attributes."""

    checkpoint: Annotated[
        Path | None, Flag("", "RUN", "Name or folder of a run.", check=check_run)
    ] = None
    shadow: Annotated[
        bool, Flag("--shadow", help="Only let it say in the log what it would do.")
    ] = False
    share: Annotated[
        float | None,
        Flag("--share", "X", "Let it answer this share of the questions.", minimum=0, maximum=1),
    ] = None
    back: Annotated[
        bool, Flag("--back", help="Drop the candidate; without one, take the run before.")
    ] = False
    anyway: Annotated[bool, Flag("--anyway", help="Though `learn-from` found it no better.")] = (
        False
    )

    def check(self) -> None:
        """Refuse whatever can be refused before a run is read.

        Raises:
            InputError: settings that contradict each other.
        """
        shadow, share, back = (shown_name(Deploy, name) for name in ("shadow", "share", "back"))
        # The function calls it `run`; a field cannot have that name, because of the method.
        run = shown_name(Deploy, "checkpoint").replace("checkpoint", "run")
        modes = self.shadow + (self.share is not None) + self.back
        needs_run = self.shadow or self.share is not None
        if modes > 1 or (self.checkpoint is None and needs_run):
            raise InputError(
                f"that is not clear; give {run}, or {run} with {shadow} or {share} X, or {back}"
            )
        if self.checkpoint is not None and self.back:
            raise InputError(f"{back} takes no run: {self.checkpoint}; leave one of them out")

    def run(self) -> Service:
        """Set it, or only look if there is nothing to set; see `deploy`."""
        from hierrouter.serving.versions import load_service, save_service

        self.check()
        service = load_service(RUNS)
        if self.checkpoint is not None:
            service = self._with_run(service, self.checkpoint)
        elif self.back and service is not None:
            service = service.go_back()
        if service is None:
            raise InputError("nothing was deployed; name a run")
        if self.checkpoint is not None or self.back:
            save_service(service, RUNS)
        return service

    def _with_run(self, service: Service | None, run: Path) -> Service:
        """Return the service with this run as its candidate, or in service if it has no share."""
        from hierrouter.serving.router import Router, live_run
        from hierrouter.serving.versions import Service

        refusal = service.refused.get(str(run)) if service else None
        if refusal and not (self.shadow or self.anyway):
            shadow, anyway = (shown_name(Deploy, name) for name in ("shadow", "anyway"))
            raise InputError(f"{run} is {refusal}; keep it as a {shadow}, or say {anyway}")
        Router(run, load=False)  # raises if a server could not answer with it
        share = 0.0 if self.shadow else self.share
        if share is None:
            return service.put(str(run)) if service else Service(str(run))
        return (service or Service(str(live_run()))).try_out(str(run), share)


@function_of(Deploy)
def deploy(
    run: str | os.PathLike[str] | None = None,
    *,
    shadow: bool = False,
    share: float | None = None,
    back: bool = False,
    anyway: bool = False,
) -> Service:
    """Set which run servers answer with: in service, or as a candidate beside the one in service.

    Servers that were started without a run take it when they reload (SIGHUP, or POST
    /admin/reload). Without arguments it returns what was set last.

    Args:
        run: name or folder of a run, or a run of `train`.
        shadow: make it a candidate that answers no questions; its decisions are logged.
        share: make it a candidate that answers this share of the questions, 0 to 1.
        back: drop the candidate; without one, put the previous run back in service.
        anyway: even if `learn_from` did not find it better.

    Returns:
        The runs that are in service, on trial and refused now.

    Raises:
        InputError: settings that contradict each other, a run that cannot answer live questions or
            is refused, or nothing was deployed.
        WorldError: the disk is full or failed.
    """
    return Deploy(
        checkpoint=None if run is None else find_run(run),
        shadow=shadow,
        share=share,
        back=back,
        anyway=anyway,
    ).run()
