"""Serving a router over HTTP: what can be asked for, and how a server is started."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from hierrouter.declarations import flags
from hierrouter.declarations.checks import check_path
from hierrouter.declarations.declaration import (
    Flag,
    OnNote,
    declaration,
    ignore_note,
    shown_name,
    shown_value,
)
from hierrouter.paper import PAPER_SEED
from hierrouter.serving import DEFAULT_MAX_REQUESTS, ServerSettings
from hierrouter.serving.open_router import OpenRouter
from hierrouter_cache.errors import InputError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8100
DEFAULT_CANARY_MINUTES = 60
SERVER_PACKAGES = ("fastapi", "prometheus_client", "uvicorn")


def do_nothing() -> None:
    """Do nothing: the set-up of a process that needs none."""


@declaration
class Serve:
    """Answer OpenAI's chat completions over HTTP.

    Attributes:
        host: address to listen on.
        port: 0 takes a free one.
        api_key_env: environment variable with the key that clients must send; None admits clients
            on this machine only.
        log: file that receives a JSON line for each request; None logs nothing.
        sample: draw each action from the policy, so that logs can be used for other policies.
        seed: of the draws.
        reroute: if a model fails, take the next likeliest action.
        max_requests: how many may be under way at once.
        otherwise: name of the model for requests that cannot be routed; None refuses these.
        workers: number of processes, each with its own models.
        canaries: minutes between two checks of whether served models have changed; 0 never checks.
    """

    host: Annotated[str, Flag("--host", "ADDRESS", "Where to listen.")] = DEFAULT_HOST
    port: Annotated[int, Flag("--port", "N", "0 takes a free one.", minimum=0, maximum=65_535)] = (
        DEFAULT_PORT
    )
    api_key_env: Annotated[
        str | None,
        Flag(
            "--api-key-env", "VARIABLE", "Environment variable with the key that clients must send."
        ),
    ] = None
    log: Annotated[
        Path | None, Flag("--log", "FILE", "Append a JSON line for each request.", check=check_path)
    ] = None
    sample: flags.Sample = False
    seed: flags.Seed = PAPER_SEED
    reroute: flags.Reroute = False
    max_requests: Annotated[
        int, Flag("--max-requests", "N", "Under way at once; more are refused.", minimum=1)
    ] = DEFAULT_MAX_REQUESTS
    otherwise: Annotated[
        str | None, Flag("--otherwise", "MODEL", "Answers what cannot be routed; on a server.")
    ] = None
    workers: Annotated[
        int, Flag("--workers", "N", "Processes, each with models of its own.", minimum=1)
    ] = 1
    canaries: Annotated[
        int,
        Flag(
            "--canaries",
            "N",
            "Minutes from one look at whether served models have changed to the next; 0: never.",
            minimum=0,
        ),
    ] = DEFAULT_CANARY_MINUTES

    def check(self) -> None:
        """Refuse whatever can be refused before anything is loaded.

        Raises:
            InputError: other machines could connect without a key, the key is not set, or a package
                of the server is not installed.
        """
        self._key()
        for package in SERVER_PACKAGES:
            if find_spec(package) is None:
                raise InputError(
                    f"{package} is not installed: serve; pip install 'hierrouter[serve]'"
                )

    def run(
        self,
        opening: OpenRouter,
        on_note: OnNote = ignore_note,
        set_up_process: Callable[[], None] = do_nothing,
    ) -> None:
        """Serve until a signal ends the process; requests under way are finished first.

        Args:
            opening: the router. Without `checkpoint` and `alpha` it is the one that was deployed,
                and a reload looks again which one that is.
            on_note: receives what the server calls, its address, and servers that are down. With
                several workers it is called in their processes, so it has to be picklable.
            set_up_process: called in each process before it loads anything; picklable, too.

        Raises:
            InputError: see `check` and `OpenRouter.run`.
            WorldError: the address is in use, or a model cannot be loaded.
        """
        self.check()
        opening.check()
        from hierrouter.serving.application import Application, bind, run_one, run_workers

        application = Application(opening, self.settings(), self.log, on_note, set_up_process)
        with bind(self.host, self.port) as listener:
            host, port = listener.getsockname()[:2]
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            url = f"http://{address}/v1"
            if self.workers > 1:
                run_workers(application, listener, url, self.workers)
            else:
                run_one(application, listener, url)

    def settings(self) -> ServerSettings:
        """Return the settings of the application.

        Raises:
            InputError: other machines could connect without a key, or the key is not set.
        """
        return ServerSettings(
            key=self._key(),
            seed=self.seed if self.sample else None,
            reroute=self.reroute,
            max_requests=self.max_requests,
            otherwise=self.otherwise,
            canary_minutes=self.canaries,
            parent=os.getpid() if self.workers > 1 else None,
        )

    def _key(self) -> str | None:
        """Return the key that clients must send."""
        from hierrouter.pools.pool import is_loopback, read_api_key

        name = shown_name(Serve, "api_key_env")
        if self.api_key_env is not None:
            return read_api_key(self.api_key_env, name)
        if not is_loopback(self.host):
            host = shown_value(shown_name(Serve, "host"), self.host)
            raise InputError(f"everybody could connect: {host}; give {name} as well")
        return None
