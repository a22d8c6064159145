"""`hierrouter route` and `hierrouter serve`: answer questions with the models themselves."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierrouter.serving import MAX_REQUESTS
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cli import console, options, report

if TYPE_CHECKING:
    from fastapi import FastAPI

    from hierrouter.pools.pool import Pool
    from hierrouter.serving.messages import Question
    from hierrouter.serving.router import Hop, RouteOptions, Router, RouteResult

    Begin = Callable[..., AbstractAsyncContextManager[Router]]  # the rest of `_router`

STDIN = "-"


def route(
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="The text; or give --file.")
    ] = None,
    file: Annotated[
        Path | None,
        options.value(
            "--file", "FILE|-", "Questions as JSON lines, question or messages in each; - is stdin."
        ),
    ] = None,
    checkpoint: options.Checkpoint = None,
    pool: options.AnyPool = None,
    allow_endpoint: options.AllowEndpoint = None,
    alpha: options.ShownAlpha = None,
    sample: options.Sample = False,
    seed: options.Seed = options.DEFAULT_SEED,
    reroute: options.Reroute = False,
    dry_run: Annotated[
        bool, options.switch("--dry-run", "Show what the policy would call first; call nothing.")
    ] = False,
    format: options.ShortFormat = "text",
) -> None:
    """Route questions through the live models of the pool.

    One question: its answer as it grows, then route, tokens and cost. --file: one JSON line for
    each question, in their order. The router is that of the newest `train`, or of --checkpoint.
    """
    import anyio

    _check_asked(question, file, dry_run)
    # What needs torch comes after all that can be refused without it.
    import numpy as np

    from hierrouter.pools.files import load_pool
    from hierrouter.serving.router import RouteOptions, live_run

    run = checkpoint or live_run(alpha)
    given = load_pool(pool) if pool else None
    rng = np.random.default_rng(seed) if sample else None
    route_options = RouteOptions(alpha, rng, reroute)
    begin = partial(_router, run, given, allow_endpoint or (), alpha)
    if file is not None:
        failed = anyio.run(_all, begin, file, route_options)
        if failed:
            what = "1 question has" if failed == 1 else f"{failed} questions have"
            raise WorldError(f"{what} no answer; see error in the output")
    elif question is not None:
        anyio.run(_first if dry_run else _one, begin, question, route_options, format)


def _check_asked(question: str | None, file: Path | None, dry_run: bool) -> None:
    """Refuse what contradicts itself before anything is loaded."""
    if (question is None) == (file is None):
        what = "no question" if question is None else "a question and --file contradict each other"
        raise InputError(f"{what}; give QUESTION or --file FILE")
    if file is not None and dry_run:
        raise InputError("--dry-run is for one question; leave out --file")
    if str(file) == STDIN and sys.stdin is None:  # its number is another file's by now
        raise InputError("stdin is closed: --file -; give JSON lines there, or a file")
    if file is not None and str(file) != STDIN and not file.is_file():
        raise InputError(f"no such file: {file}; give JSON lines, or - for stdin")


@asynccontextmanager
async def _router(
    run: Path, pool: Pool | None, allowed: Collection[str], alpha: float | None, calls: bool = True
) -> AsyncIterator[Router]:
    """The router, and its models if it calls them."""
    from hierrouter.serving.router import Router

    router = Router(run, pool, load=False, allow_endpoints=allowed)
    router.policy.at(alpha)  # refused before anything is loaded
    if calls:
        router.load_models()
    report.say_called("route", run, router.pool)
    try:
        yield router
    finally:
        await router.aclose()


async def _one(begin: Begin, question: str, route_options: RouteOptions, format: str) -> None:
    """Answer one question; the text as it grows, or everything as JSON."""
    from hierrouter.tables import safe_text

    async with begin() as router:
        if format == "json":
            console.put_json((await router.aroute(question, route_options)).as_object())
            return
        shown: list[str] = []

        def on_text(text: str) -> None:
            shown.append(text)
            console.put(safe_text(text))

        def on_hop(hop: Hop) -> None:
            if shown:
                console.put("\n")
            _say_hop(hop)

        told = replace(route_options, on_text=on_text, on_hop=on_hop)
        result = await router.aroute(question, told)
        if not shown:
            console.put("\n")
        console.say(_summary(result))


async def _first(begin: Begin, question: str, route_options: RouteOptions, format: str) -> None:
    async with begin(calls=False) as router:
        decision = await router.decide(question, options=route_options)
        policy = router.policy
        names = policy.at(None).actions.names(policy.origin.models)
    chances = dict(zip(names, decision.chances.tolist(), strict=True))
    if format == "json":
        console.put_json({"first": names[decision.action], "chances": chances})
        return
    for name, chance in sorted(chances.items(), key=lambda item: -item[1]):
        console.put(f"{chance:8.4f}  {name}\n")


async def _all(begin: Begin, file: Path, route_options: RouteOptions) -> int:
    """Answer every question of a file, a line each; how many have no answer.

    When nobody reads the lines any more, no more questions are asked.
    """
    from hierrouter.serving.models import CallFailed
    from hierrouter.serving.router import route_all

    ids: list[Any] = []
    stopped = Event()
    place = failed = 0
    async with begin() as router:
        try:
            questions = _questions(file, ids, stopped)
            async with aclosing(route_all(router, questions, route_options)) as results:
                async for found in results:
                    name = {} if ids[place] is None else {"id": ids[place]}
                    if isinstance(found, CallFailed):
                        told: dict[str, Any] = {"error": str(found), "status": found.status}
                    else:
                        told = found.as_object()
                    place, failed = place + 1, failed + ("error" in told)
                    if not console.put_json({**name, **told}):
                        break
        finally:
            stopped.set()
    if not place:
        raise InputError(f"no question: {file}; write one JSON object a line")
    return failed


def _questions(file: Path, ids: list[Any], stopped: Event) -> Iterator[Question]:
    """The question on each line; its id, or None, goes into `ids`.

    `stopped`: set to end a read from stdin that waits.
    """
    from hierrouter.questions.files import parse_object, raw_lines
    from hierrouter.serving.messages import piped_lines, question_in

    from_stdin = str(file) == STDIN
    source = "stdin" if from_stdin else str(file)
    for number, line in piped_lines(0, stopped, source) if from_stdin else raw_lines(file):
        if line.strip():
            where = f"{source}:{number}"
            row = parse_object(line, where)
            found = question_in(row, where)
            ids.append(row.get("id"))
            yield found


def _say_hop(hop: Hop) -> None:
    from hierrouter.tables import money

    failed = "; ".join(f"{model}: {reason}" for model, reason in hop.instead_of)
    instead = f", instead of {failed}" if failed else ""
    console.say(
        f"route: {hop.model}{instead}, {hop.tokens_in} + {hop.tokens_out} tokens, "
        f"C {money(hop.cost)}, {hop.model_s:.2f} s"
    )


def _summary(result: RouteResult) -> str:
    from hierrouter.tables import money

    given = f", answer {result.returned.answer} of {len(result.hops)}" if result.returned else ""
    return (
        f"route: {result.route}{given} at alpha {result.alpha:g}, "
        f"{result.tokens_in} + {result.tokens_out} tokens, C {money(result.cost)}"
    )


HOST, PORT = "127.0.0.1", 8100
INTERRUPTED = 130
LAST_SECONDS = 30  # for what is under way when the server is told to end


def serve(
    checkpoint: options.Checkpoint = None,
    pool: options.AnyPool = None,
    allow_endpoint: options.AllowEndpoint = None,
    alpha: options.ShownAlpha = None,
    host: Annotated[str, options.value("--host", "ADDRESS", "Where to listen.")] = HOST,
    port: Annotated[
        int, options.value("--port", "N", "0 takes a free one.", min=0, max=65_535)
    ] = PORT,
    api_key_env: Annotated[
        str | None,
        options.value(
            "--api-key-env", "VARIABLE", "Environment variable with the key that clients must send."
        ),
    ] = None,
    log: Annotated[
        Path | None, options.value("--log", "FILE", "Append a JSON line for each request.")
    ] = None,
    sample: options.Sample = False,
    seed: options.Seed = options.DEFAULT_SEED,
    reroute: options.Reroute = False,
    max_requests: Annotated[
        int, options.value("--max-requests", "N", "Under way at once; more are refused.", min=1)
    ] = MAX_REQUESTS,
) -> None:
    """Answer OpenAI's chat completions with the live models of the pool.

    The router is that of the newest `train`, or of --checkpoint; one of a sweep answers every
    alpha, as the model `hierrouter@0.02`. What is missing is an error at the start.
    """
    key = _key(api_key_env, host)
    _require_extra()
    with _bound(host, port) as listener:
        from hierrouter.pools.files import load_pool
        from hierrouter.serving.chat import ModelNames
        from hierrouter.serving.router import Router, live_run
        from hierrouter.serving.server import RequestLog, Settings, make_app

        lines = RequestLog(log)
        run = checkpoint or live_run(alpha)
        given = load_pool(pool) if pool else None
        router = Router(run, given, load=False, allow_endpoints=allow_endpoint or ())
        names = ModelNames.of(router.policy, alpha)  # refused before the models are loaded
        router.load_models()
        rng_seed = seed if sample else None
        settings = Settings(names, str(run), key, rng_seed, reroute, max_requests)
        app = make_app(router, settings, lines)
        report.say_called("serve", run, router.pool)
        host, port = listener.getsockname()[:2]
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        _run(app, listener, f"http://{place}/v1", list(names.alphas))


def _key(variable: str | None, host: str) -> str | None:
    """The key that clients must send; others than this machine may not connect without one."""
    from hierrouter.pools.pool import is_loopback, key_in

    if variable is not None:
        return key_in(variable, "--api-key-env")
    if not is_loopback(host):
        raise InputError(f"everybody could connect: --host {host}; give --api-key-env as well")
    return None


def _require_extra() -> None:
    """Refuse to begin without the packages of the server."""
    from importlib.util import find_spec

    for package in ("fastapi", "prometheus_client", "uvicorn"):
        if find_spec(package) is None:
            raise InputError(f"{package} is not installed: serve; pip install 'hierrouter[serve]'")


def _bound(host: str, port: int) -> socket.socket:
    """The address, taken before anything is loaded; nobody can connect before all is."""
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


def _run(app: FastAPI, listener: socket.socket, address: str, names: Sequence[str]) -> None:
    """Serve until the process is told to end; what is under way is finished first.

    `address`: where people reach it; said, with the names, once they do; `names`: of the models
    that they may ask for.
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
        app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=LAST_SECONDS
    )
    try:
        Telling(config).run(sockets=[listener])
    except KeyboardInterrupt:  # how a server is ended, and nothing is lost by it
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as `app.main`, which this passes by
        console.say("serve: ended")
        raise SystemExit(INTERRUPTED) from None
