"""The application of a server: which routers it answers with, now and after a reload.

Its HTTP paths are in `hierrouter.serving.http_app`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from hierrouter.declarations.callbacks import OnNote
from hierrouter.pools.pool import OPENAI
from hierrouter.runs.folders import RUNS
from hierrouter.serving import ServerSettings
from hierrouter.serving.chat import ModelNames
from hierrouter.serving.http_app import make_app
from hierrouter.serving.monitoring import RequestLog
from hierrouter.serving.open_router import OpenRouter, called_models_note
from hierrouter.serving.remote_model import ServedModel
from hierrouter.serving.router import Router
from hierrouter.serving.service_file import Service, load_service
from hierrouter.serving.versions import Lineup, Version, Versions
from hierrouter.tables import money
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.tree import Rate

MINUTES_PER_DAY = 1440


@dataclass(frozen=True)
class Application:
    """A server's application, which each of its processes builds for itself.

    Attributes:
        opening: opens its routers.
        settings: of the server.
        log: file of its request log; None logs nothing.
        on_note: receives what the server calls, and servers that are down.
        set_up_process: called in a worker process before it builds the application.
    """

    opening: OpenRouter
    settings: ServerSettings
    log: Path | None
    on_note: OnNote
    set_up_process: Callable[[], None]

    def build(self) -> tuple[FastAPI, list[str]]:
        """Load the models and return the application, and the names that clients may ask for.

        Raises:
            InputError: see `lineup`; or the model for unroutable requests is not on a server.
            WorldError: see `lineup`; or the log cannot be opened.
        """
        log = RequestLog(self.log)
        lineup = self.lineup(None)
        if self.settings.otherwise is not None:
            _require_served(lineup, self.settings.otherwise)
        if self.settings.canary_minutes:
            for note in _canary_notes(lineup.current.router, self.settings.canary_minutes):
                self.on_note(note)
        app = make_app(Versions(lineup, self.lineup), self.settings, log)
        return app, list(lineup.current.names.alphas)

    def lineup(self, current: Lineup | None) -> Lineup:
        """Return the routers to answer with now; they use the models of the current lineup.

        Args:
            current: the lineup before; None loads the models.

        Raises:
            InputError: there is no run, or it does not fit the loaded models.
            WorldError: a model or an encoder cannot be loaded.
        """
        opening = self.opening
        service = None
        if opening.checkpoint is None and opening.alpha is None:
            service = load_service(RUNS)
        if service is None:
            service = Service(str(opening.run_folder))
        version = self._version(service.run, current.current if current else None)
        if service.candidate is None:
            return Lineup(version)
        return Lineup(version, self._version(service.candidate, version), service.share)

    def _version(self, run: str, loaded: Version | None) -> Version:
        """Open the router of a run.

        Args:
            run: its folder.
            loaded: a version whose models it calls; None loads them.
        """
        opening = self.opening
        if loaded is not None:
            router = loaded.router.sibling(run)
            names = ModelNames.of(router.policy, opening.alpha)
            opening.defer(router, names.alphas.values(), self.on_note)
            return Version(run, router, names)
        router = opening.unloaded(Path(run))
        names = ModelNames.of(router.policy, opening.alpha)  # refused before the models are loaded
        otherwise = self.settings.otherwise
        models = [spec.name for spec in router.pool.all_models]
        if otherwise is not None and otherwise not in models:
            hint = suggestion(otherwise, models)
            raise InputError(
                f"no model of the pool: --otherwise {otherwise:.60}; {hint}".rstrip("; ")
            )
        opening.defer(router, names.alphas.values(), self.on_note)
        router.load_models(self.on_note, otherwise)
        self.on_note(called_models_note(Path(run), router))
        return Version(run, router, names)


def _require_served(lineup: Lineup, name: str) -> None:
    """Refuse a model for unroutable requests that is loaded in this process.

    Raises:
        InputError: it is, and so it takes no more than a route does.
    """
    if not isinstance(lineup.current.router.models[name], ServedModel):
        raise InputError(
            f"--otherwise {name} is loaded here, and takes no more than the others; name a model "
            "that a server answers for"
        )


def _canary_notes(router: Router, minutes: float) -> Iterator[str]:
    """Describe which models are checked for changes, what that costs, and which cannot be."""
    origin = router.policy.origin
    rates = {name: Rate(*rate) for name, rate in zip(origin.models, origin.rate, strict=True)}
    names = []
    calls = 0
    cost = 0.0
    for name, canaries in router.canaries.items():
        if canaries:
            names.append(name)
        calls += len(canaries)
        for canary in canaries:
            cost += rates[name].cost(canary.tokens_in, canary.tokens_out)
    if names:
        yield (
            f"{calls} collected questions go to {', '.join(names)} again, now and every "
            f"{minutes:g} minutes, to see whether they have changed; C of a day: "
            f"{money(cost * MINUTES_PER_DAY / minutes)}; --canaries 0 asks none"
        )
    for spec in router.pool.models:
        if spec.backend == OPENAI and spec.name not in names:
            reason = "its run has none"
            if spec.generation.temperature:
                reason = "it draws its answers"
            yield f"nothing will tell whether {spec.name} has changed: {reason}"
