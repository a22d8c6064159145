"""`hierrouter serve` and `hierrouter deploy`: a server that routes, and which router it has."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierrouter.runs.folders import find_run
from hierrouter.serving import DEFAULT_MAX_REQUESTS, ServerSettings
from hierrouter_cache.errors import HierRouterError, InputError, WorldError, suggestion
from hierrouter_cli import console, options, report
from hierrouter_cli.route import handing_over, unloaded

if TYPE_CHECKING:
    from fastapi import FastAPI

    from hierrouter.serving.router import Router
    from hierrouter.serving.versions import Lineup, Service, Version
    from hierrouter_cli.route import HandOver

CANARY_MINUTES = 60
HOST, PORT = "127.0.0.1", 8100
INTERRUPTED = 130
LAST_SECONDS = 30  # for what is under way when the server is told to end
LONGEST_START_S = 600  # of a worker, which loads its models
NO_START = 3  # exit code of a worker that could not
SERVED: dict[str, Any] = {
    "log_config": None,
    "access_log": False,
    "ws": "none",
    "timeout_graceful_shutdown": LAST_SECONDS,
}


def serve(
    checkpoint: options.Checkpoint = None,
    pool: options.AnyPool = None,
    allow_endpoint: options.AllowEndpoint = None,
    encoder: options.LiveEncoder = None,
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
    ] = DEFAULT_MAX_REQUESTS,
    otherwise: Annotated[
        str | None,
        options.value("--otherwise", "MODEL", "Answers what cannot be routed; on a server."),
    ] = None,
    workers: Annotated[
        int, options.value("--workers", "N", "Processes, each with models of its own.", min=1)
    ] = 1,
    canaries: Annotated[
        int,
        options.value(
            "--canaries",
            "N",
            "Minutes from one look at whether served models have changed to the next; 0: never.",
            min=0,
        ),
    ] = CANARY_MINUTES,
    defer_to: options.DeferTo = None,
    defer_share: options.DeferShare = None,
    cache: options.Cache = options.DEFAULT_CACHE,
    scorer: options.Scorer = options.DEFAULT_SCORER,
) -> None:
    """Answer OpenAI's chat completions with the live models of the pool.

    The router is that of --checkpoint, else the one that `deploy` put in service, else the newest
    of `train`; one of a sweep answers every alpha, as the model `hierrouter@0.02`. A server that
    is down at the start is said; SIGHUP, or POST /admin/reload, looks again which router it is.
    --defer-to is calibrated on the questions of --cache, as in a report, at each listed alpha.
    """
    key = _key(api_key_env, host)
    _require_extra()
    share, allowed = options.parse_share(defer_share, defer_to), tuple(allow_endpoint or ())
    hand_over = handing_over(
        defer_to, cache, share=share, scorer=scorer, pool=pool, allow_endpoints=allowed
    )
    drawn = seed if sample else None
    settings = ServerSettings(key, drawn, reroute, max_requests, otherwise, canaries, workers > 1)
    start = Start(checkpoint, alpha, pool, allowed, hand_over, encoder, log, settings)
    with _bound(host, port) as listener:
        host, port = listener.getsockname()[:2]
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if workers > 1:
            _run_many(start, listener, f"http://{place}/v1", workers)
        else:
            _run_one(start, listener, f"http://{place}/v1")


@dataclass(frozen=True)
class Start:
    """What a server is started with; see the flags of `serve`."""

    checkpoint: Path | None
    alpha: float | None
    pool: str | None
    allowed: tuple[str, ...]
    hand_over: HandOver | None
    encoder: str | None
    log: Path | None
    settings: ServerSettings


def _application(start: Start) -> tuple[FastAPI, list[str]]:
    """The application, and the names that clients may ask for."""
    from hierrouter.serving.server import make_app
    from hierrouter.serving.versions import Versions
    from hierrouter.serving.watching import RequestLog

    lines = RequestLog(start.log)
    lineup = _lineup(start, None)
    settings = start.settings
    if settings.otherwise is not None:
        _require_served(lineup, settings.otherwise)
    if settings.canary_minutes:
        _say_canaries(lineup.current.router, settings.canary_minutes)
    app = make_app(Versions(lineup, partial(_lineup, start)), settings, lines)
    return app, list(lineup.current.names.alphas)


def _lineup(start: Start, now: Lineup | None) -> Lineup:
    """Who is to answer, as things are now; with the models of the lineup before, if there is one.

    Raises InputError, WorldError: it cannot be.
    """
    from hierrouter.runs.folders import RUNS
    from hierrouter.serving.router import live_run
    from hierrouter.serving.versions import Lineup, Service, load_service

    service = None if start.checkpoint or start.alpha is not None else load_service(RUNS)
    service = service or Service(str(start.checkpoint or live_run(start.alpha)))
    current = _version(start, service.run, now.current if now else None)
    if service.candidate is None:
        return Lineup(current)
    return Lineup(current, _version(start, service.candidate, current), service.share)


def _version(start: Start, run: str, beside: Version | None) -> Version:
    from hierrouter.pools.files import load_pool
    from hierrouter.serving.chat import ModelNames
    from hierrouter.serving.versions import Version

    if beside is not None:
        router = beside.router.sibling(run)
        names = ModelNames.of(router.policy, start.alpha)
        if start.hand_over:
            start.hand_over("serve", router, names.alphas.values())
        return Version(run, router, names)
    given = load_pool(start.pool) if start.pool else None
    router = unloaded(Path(run), given, start.allowed, start.encoder)
    names = ModelNames.of(router.policy, start.alpha)  # refused before the models are loaded
    known, otherwise = [model.name for model in router.pool.all_models], start.settings.otherwise
    if otherwise is not None and otherwise not in known:
        hint = suggestion(otherwise, known)
        raise InputError(f"no model of the pool: --otherwise {otherwise:.60}; {hint}".rstrip("; "))
    if start.hand_over:
        start.hand_over("serve", router, names.alphas.values())
    router.load_models(lambda said: console.say(f"serve: {said}"), otherwise)
    report.say_called("serve", Path(run), router.pool)
    return Version(run, router, names)


def _say_canaries(router: Router, minutes: float) -> None:
    """Which models are asked again, what that costs, and of which nobody can tell."""
    from hierrouter.pools.pool import OPENAI
    from hierrouter.tables import money

    rates = dict(zip(router.policy.origin.models, router.policy.origin.rate, strict=True))
    calls = [(rates[name], call) for name, found in router.canaries.items() for call in found]
    names = [name for name, found in router.canaries.items() if found]
    cost = sum(call.tokens_in * rate[0] + call.tokens_out * rate[1] for rate, call in calls)
    if names:
        console.say(
            f"serve: {len(calls)} collected questions go to {', '.join(names)} again, now and "
            f"every {minutes:g} minutes, to see whether they have changed; C of a day: "
            f"{money(cost * 1440 / minutes)}; --canaries 0 asks none"
        )
    for model in router.pool.models:
        if model.backend == OPENAI and model.name not in names:
            why = "it draws its answers" if model.generation.temperature else "its run has none"
            console.say(f"serve: nothing will tell whether {model.name} has changed: {why}")


def _require_served(lineup: Lineup, name: str) -> None:
    from hierrouter.serving.served import ServedModel

    if not isinstance(lineup.current.router.models[name], ServedModel):
        raise InputError(
            f"--otherwise {name} is loaded here, and takes no more than the others; name a model "
            "that a server answers for"
        )


def _key(variable: str | None, host: str) -> str | None:
    """The key that clients must send; others than this machine may not connect without one."""
    from hierrouter.pools.pool import is_loopback, read_api_key

    if variable is not None:
        return read_api_key(variable, "--api-key-env")
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
    # With its protocol named: asyncio sends small pieces at once on such sockets alone, and an
    # answer else waits 40 ms for the client's acknowledgement.
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


def _run_one(start: Start, listener: socket.socket, address: str) -> None:
    """Serve until the process is told to end; what is under way is finished first.

    `address`: where people reach it; said, with the names, once they do.
    """
    import uvicorn

    app, names = _application(start)

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
    try:
        Telling(uvicorn.Config(app, **SERVED)).run(sockets=[listener])
    except KeyboardInterrupt:  # how a server is ended, and nothing is lost by it
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as `app.main`, which this passes by
        console.say("serve: ended")
        raise SystemExit(INTERRUPTED) from None


def _run_many(start: Start, listener: socket.socket, address: str, workers: int) -> None:
    """As `_run_one`, in several processes that share the address.

    One that dies is replaced; SIGHUP replaces all, each when its successor answers.
    """
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    from hierrouter.serving.watching import METRICS_FOLDER_VARIABLE

    console.log_to_stderr()
    with tempfile.TemporaryDirectory(prefix="hierrouter-metrics-") as figures:
        os.environ[METRICS_FOLDER_VARIABLE] = figures
        config = uvicorn.Config(
            partial(_worker, start),
            factory=True,
            workers=workers,
            timeout_worker_healthcheck=LONGEST_START_S,
            **SERVED,
        )
        listener.listen()

        class Parent(Multiprocess):
            def init_processes(self) -> None:
                super().init_processes()
                for process in self.processes:  # else nobody hears that one has died at its start
                    process.child_conn.close()

        parent = Parent(config, [listener])
        console.say(f"serve: {address} by {workers} workers")
        parent.run()
        if any(process.exitcode == NO_START for process in parent.processes):
            raise WorldError("a worker could not start, see above; correct that and start again")


def _worker(start: Start) -> FastAPI:
    """The application of one of several processes; an error is said here, and ends them all."""
    console.log_to_stderr()
    try:
        return _application(start)[0]
    except HierRouterError as error:
        console.say(f"serve: {error}")
        sys.exit(NO_START)


def deploy(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Name or folder of a run.", parser=find_run)
    ] = None,
    shadow: Annotated[
        bool, options.switch("--shadow", "Only let it say in the log what it would do.")
    ] = False,
    share: Annotated[
        float | None,
        options.value("--share", "X", "Let it answer this share of the questions.", min=0, max=1),
    ] = None,
    back: Annotated[
        bool, options.switch("--back", "Drop the candidate; without one, take the run before.")
    ] = False,
    anyway: Annotated[
        bool, options.switch("--anyway", "Though `learn-from` found it no better.")
    ] = False,
    format: options.ShortFormat = "text",
) -> None:
    """Say which router servers are to have: in service, or as a candidate beside it.

    Servers that were started without --checkpoint hear it at their next reload (SIGHUP, or POST
    /admin/reload) and lose no request over it. Without flags it shows what was said last.
    """
    from hierrouter.runs.folders import RUNS
    from hierrouter.serving.versions import load_service, save_service

    if shadow + (share is not None) + back > 1 or (run is None and (shadow or share is not None)):
        raise InputError(
            "that is not clear; give RUN, or RUN with --shadow or --share X, or --back"
        )
    if run is not None and back:
        raise InputError(f"--back takes no run: {run}; leave one of them out")
    service = load_service(RUNS)
    if run is not None:
        why = service.refused.get(str(run)) if service else None
        if why and not (shadow or anyway):
            raise InputError(f"{run} is {why}; keep it as a --shadow, or say --anyway")
        service = _deployed(service, run, 0.0 if shadow else share)
    elif back and service is not None:
        service = service.go_back()
    if service is None:
        raise InputError("nothing was deployed; name a run")
    if run is not None or back:
        save_service(service, RUNS)
    if format == "json":
        console.put_json(asdict(service))
        return
    console.put(f"in service: {service.run}\n")
    if service.candidate is not None:
        how = f"answers {service.share:.0%}" if service.share else "a shadow"
        console.put(f"candidate:  {service.candidate}, {how}\n")
    if service.before:
        console.put(f"before:     {', '.join(reversed(service.before))}\n")


def _deployed(service: Service | None, run: Path, share: float | None) -> Service:
    """What is in service, with this run as its candidate, or in its place if it has no share.

    Raises InputError: a server could not answer with it.
    """
    from hierrouter.serving.router import Router, live_run
    from hierrouter.serving.versions import Service

    Router(run, load=False)
    if share is None:
        return service.put(str(run)) if service else Service(str(run))
    return (service or Service(str(live_run()))).try_out(str(run), share)
