"""`hierrouter serve`: the router behind an OpenAI-compatible address."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter.serve import MAX_REQUESTS
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cli import console, options, parsing, routers

if TYPE_CHECKING:
    from fastapi import FastAPI

HOST, PORT = "127.0.0.1", 8100
INTERRUPTED = 130
LAST_SECONDS = 30  # for what is under way when the server is told to end


def serve(
    checkpoint: options.Checkpoint = None,
    pool: options.AnyPool = None,
    alpha: options.ShownAlpha = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="NAME=ALPHA",
            help="Also answer as hierrouter:NAME, at this alpha; repeatable.",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = HOST,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65_535, help="0 takes a free one.")
    ] = PORT,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            "--api-key-env",
            metavar="VARIABLE",
            help="Environment variable with the key that clients must send.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="Append a JSON line for each request."),
    ] = None,
    sample: options.Sample = False,
    seed: options.Seed = options.DEFAULT_SEED,
    reroute: options.Reroute = False,
    max_requests: Annotated[
        int,
        typer.Option(
            "--max-requests", metavar="N", min=1, help="Under way at once; more are refused."
        ),
    ] = MAX_REQUESTS,
) -> None:
    """Answer OpenAI's chat completions with the live models of the pool.

    The router is that of the newest `train`, or of --checkpoint; one of a sweep answers every
    alpha, as the model `hierrouter@0.02`. What is missing is an error at the start.
    """
    key = _key(api_key_env, host)
    value = parsing.parse_alpha(alpha)
    named = _named(name or [])
    _require_extra()
    with _bound(host, port) as listener:
        from hierrouter.live.deployment import Deployment
        from hierrouter.live.router import Router
        from hierrouter.live.runs import live_run
        from hierrouter.pool_file import load_pool
        from hierrouter.serve.app import Settings, make_app
        from hierrouter.serve.names import Names
        from hierrouter.serve.request_log import RequestLog

        lines = RequestLog(log)
        run = checkpoint or live_run(value)
        given = load_pool(pool) if pool else None
        found = Deployment.from_run(run, given)
        names = Names.of(found.policy, value, named)  # refused before the models are loaded
        router = Router.of(found.policy, found.pool, found.load_models())
        rng_seed = seed if sample else None
        settings = Settings(names, str(run), key, rng_seed, reroute, max_requests)
        app = make_app(router, settings, lines)
        routers.say_called("serve", run, found.pool)
        _run(app, listener, f"http://{_address(listener)}/v1", list(names.alphas))


def _key(variable: str | None, host: str) -> str | None:
    """The key that clients must send.

    Raises:
        InputError: there is no key there, or others than this machine could connect without one.
    """
    from hierrouter.endpoint import is_loopback, key_in

    if variable is not None:
        return key_in(variable, "--api-key-env")
    if not is_loopback(host):
        raise InputError(f"everybody could connect: --host {host}; give --api-key-env as well")
    return None


def _named(given: Sequence[str]) -> dict[str, float]:
    """Alphas by name.

    Raises:
        InputError: not NAME=ALPHA.
    """
    named = {}
    for item in given:
        name, equals, alpha = item.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"not NAME=ALPHA: --name {item:.60}; e.g. --name cheap=0.5")
        if name in named:
            raise InputError(f"name given twice: --name {item:.60}; names must differ")
        named[name] = parsing.parse_alpha(alpha, f"--name {name}")
    return named


def _require_extra() -> None:
    """Refuse to begin without the packages of the server.

    Raises:
        InputError: they are not installed.
    """
    from importlib.util import find_spec

    for package in ("fastapi", "prometheus_client", "uvicorn"):
        if find_spec(package) is None:
            raise InputError(f"{package} is not installed: serve; pip install 'hierrouter[serve]'")


def _bound(host: str, port: int) -> socket.socket:
    """The address, taken before anything is loaded; nobody can connect before all is.

    Raises:
        WorldError: it cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise WorldError(
            f"cannot listen on {host}:{port}: {error.strerror}; give another --host or --port"
        ) from error
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _run(app: FastAPI, listener: socket.socket, address: str, names: Sequence[str]) -> None:
    """Serve until the process is told to end; what is under way is finished first.

    Args:
        address: where people reach it; said, with the names, once they do.
        names: of the models that they may ask for.

    Raises:
        WorldError: nobody can listen there any more.
    """
    import uvicorn

    class Telling(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            try:
                await super().startup(sockets)
            except OSError as error:  # somebody else was quicker to listen
                raise WorldError(
                    f"cannot listen: {address}: {error.strerror}; give another --port"
                ) from error
            console.say(f"serve: {address} as {', '.join(names)}")

    console.log_to_stderr()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    try:
        Telling(config).run(sockets=[listener])
    except KeyboardInterrupt:  # how a server is ended, and nothing is lost by it
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as `app.main`, which this passes by
        console.say("serve: ended")
        raise SystemExit(INTERRUPTED) from None
