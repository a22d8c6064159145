"""`hierrouter route`, `serve`, `off-policy`, `learn-from`, `deploy`: live models and their logs."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter.serving.deploy import Deploy
from hierrouter.serving.evaluate_log import OffPolicy
from hierrouter.serving.learn_from import LearnFrom
from hierrouter.serving.open_router import OpenRouter
from hierrouter.serving.route import Route
from hierrouter.serving.serve import Serve
from hierrouter.tables import money, safe_text
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cli import console, declared
from hierrouter_cli.declared import with_flags

if TYPE_CHECKING:
    from hierrouter.serving.results import Hop, RouteResult
    from hierrouter.serving.route import FirstAction
    from hierrouter.serving.router import Router


@with_flags
def route(
    *,
    routing: Route,
    opening: OpenRouter,
    dry_run: Annotated[
        bool, declared.switch("--dry-run", "Show what the policy would call first; call nothing.")
    ] = False,
    format: declared.ShortFormat = "text",
) -> None:
    """Route questions through the live models of the pool.

    One question: its answer as it grows, then route, tokens and cost. --file: one JSON line for
    each question, in their order. The router is that of the newest `train`, or of --checkpoint.
    --defer-to is calibrated on the questions of --cache, as in a report.
    """
    if dry_run and routing.file is not None and routing.question is None:
        raise InputError("--dry-run is for one question; leave out --file")
    routing.check()
    say = partial(console.say_of, "route")
    router = opening.run(say, console.bar, load_models=not dry_run)
    if dry_run:
        _put_first_action(routing.preview(router), format)
    elif routing.file is not None:
        failed = routing.run_file(router, console.put_json)
        if failed:
            count = "1 question has" if failed == 1 else f"{failed} questions have"
            raise WorldError(f"{count} no answer; see error in the output")
    elif format == "json":
        console.put_json(routing.run(router).as_object())
    else:
        _put_growing_answer(routing, router)


def _put_growing_answer(routing: Route, router: Router) -> None:
    """Answer one question: the text as it grows on stdout, calls and costs on stderr."""
    has_text = False

    def on_text(text: str) -> None:
        nonlocal has_text
        has_text = True
        console.put(safe_text(text))

    def on_hop(hop: Hop) -> None:
        if has_text:  # this was the last call, whose text has no line end
            console.put("\n")
        console.say(_hop_line(hop))

    result = routing.run(router, on_text, on_hop)
    if not has_text:
        console.put("\n")
    console.say(_summary(result))


def _put_first_action(first: FirstAction, format: str) -> None:
    if format == "json":
        body: dict[str, object] = {"first": first.action, "chances": first.chances}
        if first.deferred_to:
            body["deferred_to"] = first.deferred_to
        console.put_json(body)
        return
    if first.deferred_to:
        console.put(f"in doubt  {first.deferred_to}\n")
    for name, chance in sorted(first.chances.items(), key=lambda item: -item[1]):
        console.put(f"{chance:8.4f}  {name}\n")


def _hop_line(hop: Hop) -> str:
    response = hop.response
    failed = "; ".join(f"{model}: {reason}" for model, reason in hop.instead_of)
    instead = f", instead of {failed}" if failed else ""
    return (
        f"route: {hop.model}{instead}, {response.tokens_in} + {response.tokens_out} tokens, "
        f"C {money(hop.cost)}, {hop.model_s:.2f} s"
    )


def _summary(result: RouteResult) -> str:
    ending = ""
    if result.returned:
        ending += f", answer {result.returned.answer} of {len(result.hops)}"
    if result.deferred_to:
        ending += ", handed over in doubt"
    if result.is_unknown_group:
        group = f"group {safe_text(result.group)} is unknown" if result.group else "no group"
        ending += f", {group}: the route of all questions"
    return (
        f"route: {result.route}{ending} at alpha {result.alpha:g}, "
        f"{result.tokens_in} + {result.tokens_out} tokens, C {money(result.cost)}"
    )


INTERRUPTED_CODE = 130


@with_flags
def serve(*, opening: OpenRouter, serving: Serve) -> None:
    """Answer OpenAI's chat completions with the live models of the pool.

    The router is that of --checkpoint, else the one that `deploy` put in service, else the newest
    of `train`; one of a sweep answers every alpha, as the model `hierrouter@0.02`. A model's server
    that is down at the start is reported; SIGHUP, or POST /admin/reload, takes the router that is
    deployed by then. --defer-to is calibrated on the questions of --cache, as in a report, at each
    listed alpha.
    """
    say = partial(console.say_of, "serve")
    try:
        serving.run(opening, say, console.log_to_stderr)
    except KeyboardInterrupt:  # the usual end of a server, not an error
        # Here already, because this exit skips the end of `app.main`, which does the same.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        say("ended")
        raise SystemExit(INTERRUPTED_CODE) from None


@with_flags
def deploy(*, deploying: Deploy, format: declared.ShortFormat = "text") -> None:
    """Set which router servers answer with: in service, or as a candidate beside it.

    Servers that were started without --checkpoint take it at their next reload (SIGHUP, or POST
    /admin/reload) and lose no request. Without arguments it shows what was set last.
    """
    service = deploying.run(partial(console.say_of, "deploy"))
    if format == "json":
        console.put_json(service.as_object())
        return
    console.put(f"in service: {service.run}\n")
    if service.candidate is not None:
        role = f"answers {service.share:.0%}" if service.share else "a shadow"
        console.put(f"candidate:  {service.candidate}, {role}\n")
    if service.before:
        console.put(f"before:     {', '.join(reversed(service.before))}\n")


@with_flags
def off_policy(
    *,
    estimating: OffPolicy,
    savings: Annotated[
        bool,
        declared.switch("--savings", "What the logged router cost, less each model by itself."),
    ] = False,
    format: declared.Format = "text",
) -> None:
    """Estimate what a trained router would earn, from episodes that another policy played.

    No model is called, and no cache is needed: the log has the texts. The router is that of the
    newest `train`, or of --checkpoint.
    """
    say = partial(console.say_of, "off-policy")
    if savings:
        rows, alpha = estimating.savings(say)
        _put_savings(rows, alpha, format)
        return
    result = estimating.run(say, console.bar)
    from hierrouter.serving.off_policy import as_json, long_table, result_tables

    console.put_as(format, result, as_json, long_table, result_tables)


def _put_savings(rows: Sequence[Mapping[str, Any]], alpha: float, format: str) -> None:
    from hierrouter.serving.estimators import INTERVAL_LEVEL
    from hierrouter.serving.off_policy import savings_table
    from hierrouter.tables import Column, Line, Table, json_text

    console.put_as(
        format,
        rows,
        lambda rows: json_text({"level": INTERVAL_LEVEL, "rows": rows}, "rows"),
        lambda rows: Table(
            "savings",
            tuple(map(Column, rows[0])),
            tuple(Line("", tuple(row.values())) for row in rows),
        ),
        lambda rows: [savings_table(rows, alpha)],
    )


@with_flags
def learn_from(*, learning: LearnFrom, format: declared.ShortFormat = "text") -> None:
    """Collect a sample of the questions of a log, learn from it, and compare with the old router.

    The new router and the one in service (see `deploy`) are compared on questions that neither of
    them learned from. One that is not shown to be better can only be deployed as a shadow.
    """
    from hierrouter_cli.collect import make_calls
    from hierrouter_cli.train import callbacks_with_bars

    say = partial(console.say_of, "learn-from")
    result = learning.run(make_calls, say, callbacks_with_bars())
    if format == "json":
        console.put_json(result.as_object())
        return
    console.put(f"{result.candidate}: {result.verdict}\n")
    if result.verdict.is_better:
        say(f"next, `hierrouter deploy {result.candidate} --shadow`")
