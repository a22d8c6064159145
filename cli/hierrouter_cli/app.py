"""The `hierrouter` command: registers, runs, reports errors.

Exit codes: 0 done; 2 the user's input is wrong; 3 the cache cannot serve the request; 1 the world
failed; 130 Ctrl-C. Every error is one line on stderr.
"""

from __future__ import annotations

import os
import sys
import traceback

import typer

from hierrouter_cache.errors import CacheError, HierRouterError, InputError, Interrupted
from hierrouter_cli import (
    cache,
    collect,
    compare,
    datasets,
    explain,
    explore,
    off_policy,
    pools,
    quickstart,
    report,
    route,
    serve,
    sweep,
    testbed,
    train,
)
from hierrouter_cli.console import MAX_ERROR, say_error

DEBUG_FLAG = "--debug"
INTERRUPTED = 130

app = typer.Typer(
    name="hierrouter",
    help="Multi-hop routing of language models, learned on a cached tree of every route.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich costs half of the start-up
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("quickstart", short_help="The whole job on the testbed, in one command.")(
    quickstart.quickstart
)
app.command("collect", short_help="Run every route of every query, once.")(collect.collect)
app.command("train", short_help="Train a router on what was collected.")(train.train)
app.command("sweep-alpha", short_help="Train a router for each price of cost.")(sweep.sweep_alpha)
app.command("report", short_help="Evaluate on the test fold: tables, figures, page.")(report.report)
app.command("explain", short_help="One query's tree, route and regret.")(explain.explain)
app.command("explore", short_help="A page: drag alpha, walk a query's tree.")(explore.explore)
app.command("compare", short_help="The usual routers beside the learned one.")(compare.compare)
app.command("off-policy", short_help="A router's value from another policy's log.")(
    off_policy.off_policy
)
app.command("route", short_help="Answer questions with the models themselves.")(route.route)
app.command("serve", short_help="The same behind an OpenAI-compatible address.")(serve.serve)
app.add_typer(cache.app, name="cache", short_help="Look into a cache: info, verify, repair.")
app.command("pools", short_help="The pools that come with the package.")(pools.pools)
app.command("datasets", short_help="Known datasets, and samples of their questions.")(
    datasets.datasets
)
app.add_typer(testbed.app, name="testbed", short_help="The specialists of the testbed: train.")


def _version(show: bool) -> None:
    if show:
        from hierrouter import __version__

        typer.echo(f"hierrouter {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
    debug: bool = typer.Option(
        False, DEBUG_FLAG, help="Show the trace of an error; goes anywhere."
    ),
) -> None:
    """Multi-hop routing of language models, learned on a cached tree of every route."""


# Set before the libraries that read them are imported; what the user has set stays.
LIBRARY_SETTINGS = {
    "OMP_WAIT_POLICY": "PASSIVE",  # idle threads sleep, and leave the cores to who works
    "TOKENIZERS_PARALLELISM": "false",
}


def main() -> None:
    """Entry point of the installed command."""
    for name, value in LIBRARY_SETTINGS.items():
        os.environ.setdefault(name, value)
    arguments = sys.argv[1:]
    debug = DEBUG_FLAG in arguments
    arguments = [argument for argument in arguments if argument != DEBUG_FLAG] or ["--help"]
    sys.exit(_run(arguments, debug))


def _run(arguments: list[str], debug: bool) -> int:
    command = typer.main.get_command(app)
    try:
        result = command.main(arguments, prog_name="hierrouter", standalone_mode=False)
    except typer.TyperException as error:  # a wrong command line
        say_error(error.format_message())
        return 2
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    except HierRouterError as error:
        if debug:
            traceback.print_exc()
        say_error(str(error))
        return _exit_code(error)
    except Exception as error:
        if debug:
            traceback.print_exc()
        text = f"{type(error).__name__}: {error}".splitlines()[0][: MAX_ERROR - 60]
        say_error(f"unexpected: {text}; run again with --debug for the trace")
        return 1
    if result == INTERRUPTED:
        say_error("interrupted; what was committed or saved is safe")
    return result if isinstance(result, int) else 0


def _exit_code(error: HierRouterError) -> int:
    codes = {InputError: 2, CacheError: 3, Interrupted: INTERRUPTED}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), 1)
