"""Deploying runs: what can be asked for, and `hr.deploy`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hierrouter.declarations import flags
from hierrouter.declarations.checks import check_text, each
from hierrouter.declarations.declaration import (
    Flag,
    OnNote,
    declaration,
    function_of,
    ignore_note,
    shown_name,
)
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
    pool: flags.LivePool = None
    allow_endpoints: flags.AllowEndpoints = ()
    encoder: flags.LiveEncoder = None

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

    def run(self, on_note: OnNote = ignore_note) -> Service:
        """Set it, or only look if there is nothing to set; see `deploy`.

        Args:
            on_note: receives what servers have to be told, and where a damaged state is kept.
        """
        from hierrouter.serving.versions import change_service, load_service

        self.check()
        if self.checkpoint is None and not self.back:
            service = load_service(RUNS)
            if service is None:
                raise InputError("nothing was deployed; name a run")
            for run in filter(None, (service.run, service.candidate)):
                try:
                    service.require_unchanged(run)
                except InputError as error:
                    on_note(str(error))
            return service
        if self.checkpoint is None:
            self._gone_back(load_service(RUNS))  # nothing is made where there is nothing
            return change_service(self._gone_back, RUNS)[0]
        self._require_live(self.checkpoint, on_note)
        is_candidate = self.shadow or self.share is not None
        service, damaged = change_service(
            self._with_run, RUNS, str(self.checkpoint), anew=not is_candidate
        )
        if damaged:
            on_note(
                f"what was set before was damaged, and is now {damaged}; which runs `learn-from` "
                "had refused is not known any more"
            )
        return service

    def _require_live(self, run: Path, on_note: OnNote) -> None:
        """Refuse a run that servers could not answer with; no server is called.

        Which addresses and keys may be used is decided where servers are started, so that a run
        that needs more than its own `live.json` is remarked on, and not refused.

        Raises:
            InputError: there is no policy, no pool, or they do not fit together, or its encoder is
                another one.
        """
        from hierrouter.engines.encoders import SERVED_PREFIX
        from hierrouter.pools.files import load_pool
        from hierrouter.runs.bundle import callable_pool, load_bundle
        from hierrouter.serving.open_router import live_encoder
        from hierrouter.serving.router import require_live_run

        expected = require_live_run(run, load_pool(self.pool) if self.pool else None)
        if self.encoder is not None:
            live_encoder(self.encoder, expected)
        elif expected.startswith(SERVED_PREFIX):
            name = shown_name(Deploy, "encoder")
            on_note(f"servers have to be told who embeds for {run}: {expected}; with {name}")
        stored = load_bundle(run if run.is_dir() else run.parent)
        if self.pool is None and stored is not None:
            try:
                callable_pool(stored, run, self.allow_endpoints)
            except InputError as error:
                on_note(f"servers have to be told: {error}")

    def _with_run(self, service: Service | None) -> Service:
        """Return the service with the run as its candidate, or in service if it has no share."""
        from hierrouter.serving.router import live_run
        from hierrouter.serving.versions import Service

        run = str(self.checkpoint)
        refusal = service.refusal(run) if service else ""
        if refusal and not (self.shadow or self.anyway):
            shadow, anyway = (shown_name(Deploy, name) for name in ("shadow", "anyway"))
            raise InputError(f"{run} is {refusal}; keep it as a {shadow}, or say {anyway}")
        share = 0.0 if self.shadow else self.share
        if share is None:
            return service.put(run) if service else Service(run)
        return (service or Service(str(live_run()))).try_out(run, share)

    def _gone_back(self, service: Service | None) -> Service:
        """Return the service as it was before, if the run is still there.

        Raises:
            InputError: there is nothing to go back to, or another run is in its folder by now.
        """
        from hierrouter.pools.files import load_pool
        from hierrouter.serving.router import require_live_run

        if service is None:
            raise InputError("nothing was deployed; name a run")
        earlier = service.go_back()
        if earlier.run != service.run:
            require_live_run(Path(earlier.run), load_pool(self.pool) if self.pool else None)
            earlier.require_unchanged(earlier.run)
        return earlier


@function_of(Deploy)
def deploy(
    run: str | os.PathLike[str] | None = None,
    *,
    shadow: bool = False,
    share: float | None = None,
    back: bool = False,
    anyway: bool = False,
    pool: str | Path | None = None,
    allow_endpoints: str | Sequence[str] = (),
    encoder: str | None = None,
    on_note: OnNote = ignore_note,
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
        pool: name or TOML file that servers are given; default: the pool in the run's `live.json`.
        allow_endpoints: hosts on this machine or a private network that servers may call.
        encoder: the server that embeds, if the run reads a server's embeddings.
        on_note: called with what servers have to be told, and with where a damaged state is kept.

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
        pool=None if pool is None else str(pool),
        allow_endpoints=each(check_text)(allow_endpoints, "allow_endpoints="),
        encoder=encoder,
    ).run(on_note)
