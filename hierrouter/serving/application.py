"""The application of a server: which routers it answers with, now and after a reload.

Its HTTP paths are in `hierrouter.serving.http_app`. One process answers, or several workers that
share an address.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from hierrouter.declarations.declaration import OnNote
from hierrouter.pools.pool import OPENAI
from hierrouter.runs.folders import RUNS, SERVICE
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
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Application:
    """A server's application, which each of its processes builds for itself.

    Attributes:
        opening: opens its routers.
        settings: of the server.
        log: file of its request log; None logs nothing.
        on_note: receives what the server calls, and servers that are down.
        set_up_process: called in a worker process before it builds the application.
        service: of all workers, as their parent has read it; None reads it where it is needed.
    """

    opening: OpenRouter
    settings: ServerSettings
    log: Path | None
    on_note: OnNote
    set_up_process: Callable[[], None]
    service: Service | None = None

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
        service = self.service or self.deployed(must_be=current is not None and current.is_deployed)
        is_deployed = service is not None
        if service is None:
            service = Service(str(self.opening.run_folder))
        service.require_unchanged(service.run)
        version = self._version(service.run, current.current if current else None)
        if service.candidate is None:
            return Lineup(version, is_deployed=is_deployed)
        service.require_unchanged(service.candidate)
        candidate = self._version(service.candidate, version)
        return Lineup(version, candidate, service.share, is_deployed)

    def deployed(self, must_be: bool = False) -> Service | None:
        """Return what was deployed; None if nothing was, or the user has chosen a run.

        Args:
            must_be: whether something was deployed before: then the newest run is no substitute.

        Raises:
            InputError: `service.json` is damaged or gone.
        """
        if self.opening.checkpoint is not None or self.opening.alpha is not None:
            return None
        service = load_service(RUNS)
        if service is None and must_be:
            file = RUNS / SERVICE
            raise InputError(f"{SERVICE} is gone: {file}; `hierrouter deploy RUN` writes it anew")
        return service

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
PARENT_CHECK_S = 0.5  # between two looks of a worker at who its parent is
METRICS_FILES = ("counter", "histogram", "gauge_livemin", "gauge_livemax")  # of each worker
METRICS_BYTES = 1 << 20  # of such a file; it grows only with thousands of labels
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
    with metrics_folder(workers) as folder:
        os.environ[METRICS_FOLDER_VARIABLE] = str(folder)
        config = uvicorn.Config(
            partial(_worker, replace(application, service=application.deployed())),
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

            def handle_hup(self) -> None:
                # Read once for all workers, so that no two answer with different routers, and one
                # that is started in the place of another answers as that one did.
                try:
                    service = application.deployed(must_be=application.service is not None)
                except HierRouterError as error:
                    LOG.error("not reloaded, the router in service stays: %s", error)
                    return
                self.config.app = partial(_worker, replace(application, service=service))
                super().handle_hup()

        parent = Parent(config, [listener])
        application.on_note(f"{url} by {workers} workers")
        parent.run()
        if any(process.exitcode == FAILED_START_CODE for process in parent.processes):
            raise WorldError("a worker could not start, see above; correct that and start again")


def _worker(application: Application) -> FastAPI:
    """Build the application in a worker; an error is noted and ends all of them."""
    application.set_up_process()
    parent = application.settings.parent
    assert parent is not None
    threading.excepthook = partial(_report_of_thread, threading.excepthook)
    threading.Thread(target=_end_with, args=(parent, application.on_note), daemon=True).start()
    try:
        reserve_metrics(Path(os.environ[METRICS_FOLDER_VARIABLE]))
        app, _ = application.build()
    except HierRouterError as error:
        application.on_note(str(error))
        sys.exit(FAILED_START_CODE)
    return app


def _end_with(parent: int, on_note: OnNote) -> None:
    """End this worker when the process that started it has ended, however that came.

    Else it would keep the address, and would answer with the router of then for ever.
    """
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    on_note("the process that started this worker has ended; so does this one")
    os.kill(os.getpid(), signal.SIGTERM)  # requests under way are finished
    time.sleep(SHUTDOWN_TIMEOUT_S + PARENT_CHECK_S)
    os._exit(1)


def _report_of_thread(
    report: Callable[[threading.ExceptHookArgs], object], failure: threading.ExceptHookArgs
) -> None:
    """Report a failed thread, but not the one that waits for the parent when that has ended."""
    if failure.exc_type is not EOFError:
        report(failure)


@contextmanager
def metrics_folder(workers: int) -> Iterator[Path]:
    """Give a folder in which workers put their metrics together.

    Raises:
        WorldError: there is no folder for temporary files, or no room in it.
    """
    try:
        temporary = tempfile.TemporaryDirectory(prefix="hierrouter-metrics-")
    except OSError as error:
        raise WorldError(
            f"no folder for temporary files: {error.strerror}; make room, or set TMPDIR"
        ) from error
    with temporary as name:
        folder = Path(name)
        needed = workers * METRICS_BYTES * len(METRICS_FILES)
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise WorldError(
                f"no room for the metrics of {workers} workers: {folder.parent}: "
                f"{free / 1e6:.1f} MB of {needed / 1e6:.1f}; make room, or set TMPDIR"
            )
        yield folder


def reserve_metrics(folder: Path) -> None:
    """Reserve the disk space of this process's metrics.

    Their files are mapped into memory with holes in them: on a full disk a write into a hole would
    end the process without a word.

    Args:
        folder: of the metrics.

    Raises:
        WorldError: the disk is full or failed.
    """
    for kind in METRICS_FILES:
        file = folder / f"{kind}_{os.getpid()}.db"
        try:
            with file.open("ab") as opened:
                os.posix_fallocate(opened.fileno(), 0, METRICS_BYTES)
        except OSError as error:
            raise WorldError(
                f"no room for metrics: {folder.parent}: {error.strerror}; make room, or set TMPDIR"
            ) from error
