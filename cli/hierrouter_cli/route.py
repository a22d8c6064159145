"""`hierrouter route`: answer questions with the models themselves."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cli import console, options, report

if TYPE_CHECKING:
    from hierrouter.pools.pool import Pool
    from hierrouter.serving.messages import Question
    from hierrouter.serving.results import Hop, RouteResult
    from hierrouter.serving.router import RouteOptions, Router

    HandOver = Callable[[str, Router, Iterable[float | None]], None]
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
    encoder: options.LiveEncoder = None,
    alpha: options.ShownAlpha = None,
    sample: options.Sample = False,
    seed: options.Seed = options.DEFAULT_SEED,
    reroute: options.Reroute = False,
    defer_to: options.DeferTo = None,
    defer_share: options.DeferShare = None,
    cache: options.Cache = options.DEFAULT_CACHE,
    scorer: options.Scorer = options.DEFAULT_SCORER,
    dry_run: Annotated[
        bool, options.switch("--dry-run", "Show what the policy would call first; call nothing.")
    ] = False,
    format: options.ShortFormat = "text",
) -> None:
    """Route questions through the live models of the pool.

    One question: its answer as it grows, then route, tokens and cost. --file: one JSON line for
    each question, in their order. The router is that of the newest `train`, or of --checkpoint.
    --defer-to is calibrated on the questions of --cache, as in a report.
    """
    import anyio

    _check_asked(question, file, dry_run)
    share = options.parse_share(defer_share, defer_to)
    with console.bar("start"):  # what needs torch comes after all that can be refused without it
        import numpy as np

        from hierrouter.pools.files import load_pool
        from hierrouter.serving.router import RouteOptions, live_run

    run = checkpoint or live_run(alpha)
    given = load_pool(pool) if pool else None
    rng = np.random.default_rng(seed) if sample else None
    route_options = RouteOptions(alpha, rng, reroute)
    allowed = allow_endpoint or ()
    hand_over = handing_over(
        defer_to, cache, share=share, scorer=scorer, pool=pool, allow_endpoints=allowed
    )
    begin = partial(_router, run, given, allowed, alpha, hand_over, encoder)
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


def handing_over(name: str | None, cache: Path, **more: Any) -> HandOver | None:
    """What lets a router hand over, at some alphas, and says to whom; None where nobody is named.

    The arguments are those of `Router.defer_to`; `name`: None is nobody.
    """
    return None if name is None else partial(_handed_over, name=name, cache=cache, **more)


def _handed_over(
    command: str,
    router: Router,
    alphas: Iterable[float | None],
    name: str,
    cache: Path,
    **more: Any,
) -> None:
    router.defer_to(name, cache, alphas, **more)
    live = router.policy.deferral
    assert live
    end = live.model.endpoint
    shares = []
    chosen_on = ""
    for alpha, deferral in live.deferrals.items():
        chosen_on = deferral.chosen_on
        if deferral.point:
            shares.append(f"{deferral.point.share:.1%} at alpha {alpha:g}")
    where = f"{name} at {end.base_url}" if end else name
    console.say(
        f"{command}: hands over to {where} in doubt; of the {chosen_on} questions in "
        f"{cache} that is {', '.join(shares)}"
    )


def unloaded(run: Path, pool: Pool | None, allowed: Collection[str], encoder: str | None) -> Router:
    """The router of a run, its models not loaded; raises InputError: it reads another encoder."""
    from hierrouter.engines.encoders import load_encoder
    from hierrouter.serving.router import Router

    given = load_encoder(encoder).description if encoder else None
    router = Router(run, pool, load=False, allow_endpoints=allowed)
    if given not in (None, reads := router.policy.origin.encoder):
        raise InputError(f"the router reads {reads}, not {given}: --encoder; leave it out")
    return router


@asynccontextmanager
async def _router(
    run: Path,
    pool: Pool | None,
    allowed: Collection[str],
    alpha: float | None,
    hand_over: HandOver | None,
    encoder: str | None,
    calls: bool = True,
) -> AsyncIterator[Router]:
    """The router, and its models if it calls them."""
    with console.bar("load router"):
        router = unloaded(run, pool, allowed, encoder)
        router.policy.at(alpha)  # refused before anything is loaded
    if hand_over:
        hand_over("route", router, [alpha])
    if calls:
        with console.bar("load models"):
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
        told = {"first": names[decision.action], "chances": chances}
        console.put_json(
            told | ({"deferred_to": decision.deferred_to} if decision.deferred_to else {})
        )
        return
    if decision.deferred_to:
        console.put(f"in doubt  {decision.deferred_to}\n")
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
    response = hop.response
    console.say(
        f"route: {hop.model}{instead}, {response.tokens_in} + {response.tokens_out} tokens, "
        f"C {money(hop.cost)}, {hop.model_s:.2f} s"
    )


def _summary(result: RouteResult) -> str:
    from hierrouter.tables import money

    given = f", answer {result.returned.answer} of {len(result.hops)}" if result.returned else ""
    given += ", handed over in doubt" if result.deferred_to else ""
    return (
        f"route: {result.route}{given} at alpha {result.alpha:g}, "
        f"{result.tokens_in} + {result.tokens_out} tokens, C {money(result.cost)}"
    )
