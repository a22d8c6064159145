"""`hierrouter route`: answer questions with the models themselves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from hierrouter.serving.open_router import OpenRouter
from hierrouter.serving.route import Route
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
    return (
        f"route: {result.route}{ending} at alpha {result.alpha:g}, "
        f"{result.tokens_in} + {result.tokens_out} tokens, C {money(result.cost)}"
    )
