"""The processes of a server: one, or several workers that share an address."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from hierrouter.serving.application import Application
from hierrouter.serving.monitoring import METRICS_FOLDER_VARIABLE
from hierrouter_cache.errors import HierRouterError, WorldError

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
