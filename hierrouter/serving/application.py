"""The application of a server: which routers it answers with, now and after a reload.

Its HTTP paths are in `hierrouter.serving.http_app`. One process answers, or several workers that
share an address.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from hierrouter.declarations.declaration import OnNote
from hierrouter.pools.pool import OPENAI
from hierrouter.runs.folders import RUNS
from hierrouter.serving import ServerSettings
from hierrouter.serving.chat import ModelNames
from hierrouter.serving.http_app import make_app
from hierrouter.serving.monitoring import METRICS_FOLDER_VARIABLE, RequestLog
from hierrouter.serving.open_router import OpenRouter, called_models_note
from hierrouter.serving.remote_model import ServedModel
from hierrouter.serving.router import Router
from hierrouter.serving.versions import Lineup, Service, Version, Versions, load_service
from hierrouter.tables import money
from hierrouter_cache.errors import HierRouterError, InputError, WorldError, suggestion

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
    rates = router.policy.origin.rates
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


# Processes of a server.

SHUTDOWN_TIMEOUT_S = 30  # for requests under way while the server shuts down
WORKER_START_TIMEOUT_S = 600  # of a worker, which loads its models
FAILED_START_CODE = 3  # exit code of a worker that could not start
UVICORN_SETTINGS: dict[str, Any] = {
    "log_config": None,
    "access_log": False,
    "ws": "none",
    "timeout_graceful_shutdown": SHUTDOWN_TIMEOUT_S,
}


def bind(host: str, port: int) -> socket.socket:
    """Take the address before anything is loaded; clients cannot connect until all is.

    Raises:
        WorldError: the address is in use, or is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sends small pieces at once (TCP_NODELAY) only on such
    # sockets. Otherwise an answer waits 40 ms for the client's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise WorldError(
            f"cannot listen on {host}:{port}: {error.strerror}; give another --host or --port"
        ) from error
    return listener


def run_one(application: Application, listener: socket.socket, url: str) -> None:
    """Serve in this process until a signal ends it; requests under way are finished first.

    Args:
        application: answers.
        listener: from `bind`.
        url: of the server; noted, with the model names, once clients can connect.

    Raises:
        InputError: see `Application.build`.
        WorldError: see `Application.build`; or another process listens on the address.
        KeyboardInterrupt: the server was ended by SIGINT.
    """
    app, names = application.build()

    class NotingServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            try:
                await super().startup(sockets)
            except OSError as error:  # another process was quicker to listen
                raise WorldError(
                    f"cannot listen: {url}: {error.strerror}; give another --port"
                ) from error
            application.on_note(f"{url} as {', '.join(names)}")

    application.set_up_process()
    NotingServer(uvicorn.Config(app, **UVICORN_SETTINGS)).run(sockets=[listener])


def run_workers(application: Application, listener: socket.socket, url: str, workers: int) -> None:
    """Serve in several processes that share the address, until a signal ends this process.

    A worker that dies is replaced. SIGHUP replaces all, each when its successor answers.

    Args:
        application: answers; each worker builds it for itself.
        listener: from `bind`.
        url: of the server.
        workers: number of processes.

    Raises:
        WorldError: a worker could not start; it has noted why.
    """
    application.set_up_process()
    with tempfile.TemporaryDirectory(prefix="hierrouter-metrics-") as metrics_folder:
        os.environ[METRICS_FOLDER_VARIABLE] = metrics_folder
        config = uvicorn.Config(
            partial(_worker, application),
            factory=True,
            workers=workers,
            timeout_worker_healthcheck=WORKER_START_TIMEOUT_S,
            **UVICORN_SETTINGS,
        )
        listener.listen()

        class Parent(Multiprocess):
            def init_processes(self) -> None:
                super().init_processes()
                for process in self.processes:
                    # The parent's copy of the child's end would keep the pipe open, so that nobody
                    # would notice a worker that died at its start.
                    process.child_conn.close()

        parent = Parent(config, [listener])
        application.on_note(f"{url} by {workers} workers")
        parent.run()
        if any(process.exitcode == FAILED_START_CODE for process in parent.processes):
            raise WorldError("a worker could not start, see above; correct that and start again")


def _worker(application: Application) -> FastAPI:
    """Build the application in a worker; an error is noted and ends all of them."""
    application.set_up_process()
    try:
        app, _ = application.build()
    except HierRouterError as error:
        application.on_note(str(error))
        sys.exit(FAILED_START_CODE)
    return app
