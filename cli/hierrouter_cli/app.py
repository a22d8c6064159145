"""The `hierrouter` command: registers, runs, reports errors."""

import errno
import functools
import os
import signal
import sys
import traceback

import typer
import typer.core

from hierrouter.declarations.declaration import messages_name_flags
from hierrouter_cache.errors import CacheError, HierRouterError, InputError, Interrupted
from hierrouter_cli import (
    cache,
    catalogue,
    collect,
    compare,
    explain,
    off_policy,
    quickstart,
    report,
    route,
    serve,
    train,
)
from hierrouter_cli.console import MAX_ERROR, say, say_error
from hierrouter_cli.help import PAGE_WIDTH, GroupPage, add

DEBUG_FLAG = "--debug"
INTERRUPTED = 130
# What the system says of a path that is merely looked at, where no file can be.
NO_PATH = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP)
NO_OUTPUT = (errno.ENOSPC, errno.EBADF, errno.EIO)  # of stdout: a full disk, closed

EXIT_CODES = """\
0    done
1    the world failed: disk, server, model, memory
2    the input is wrong: flag, file, dataset, checkpoint
3    the cache cannot serve it: missing, incomplete, damaged, locked, newer
130  Ctrl-C; what was committed or saved is safe"""
JOB, LOOK, LIVE, AROUND = "The job", "Look closer", "With live models", "What is there"

app = typer.Typer(
    name="hierrouter",
    cls=GroupPage,
    epilog=EXIT_CODES,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich costs half of the start-up
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": PAGE_WIDTH},
)
for path, command, short_help, group in (
    ("quickstart", quickstart.quickstart, "The whole job on the testbed, in one command.", JOB),
    ("collect", collect.collect, "Run every route of every query, once.", JOB),
    ("train", train.train, "Train a router on what was collected.", JOB),
    ("sweep-alpha", train.sweep_alpha, "Train a router for each price of cost.", JOB),
    ("report", report.report, "Evaluate on the test fold: tables, figures, page.", JOB),
    ("explain", explain.explain, "One query's tree, route and regret.", LOOK),
    ("explore", explain.explore, "A page: drag alpha, walk a query's tree.", LOOK),
    ("compare", compare.compare, "The usual routers beside the learned one.", LOOK),
    ("off-policy", off_policy.off_policy, "A router's value from another policy's log.", LOOK),
    ("route", route.route, "Answer questions with the models themselves.", LIVE),
    ("serve", serve.serve, "The same behind an OpenAI-compatible address.", LIVE),
    ("learn-from", off_policy.learn_from, "A better router from a log of traffic.", LIVE),
    ("deploy", serve.deploy, "Which router servers are to have.", LIVE),
    ("pools", catalogue.pools, "The pools that come with the package.", AROUND),
    ("datasets", catalogue.datasets, "Known datasets, and samples of their questions.", AROUND),
    ("runs", catalogue.runs, "The runs that were trained here, and which still fit.", AROUND),
    ("verify", catalogue.verify, "Whether all that figures rest on is as written.", AROUND),
):
    add(app, path, short_help, group)(command)
app.add_typer(
    cache.app,
    name="cache",
    short_help="Look into a cache: info, sql, repair.",
    rich_help_panel=AROUND,
)


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
    "OPENBLAS_NUM_THREADS": "1",  # numpy's products are small here: no sooner with two, and dearer
    "TOKENIZERS_PARALLELISM": "false",
}


@functools.cache
def root_command() -> typer.core.TyperGroup:
    """The command with all that is below it."""
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    return command


def main() -> None:
    """Entry point of the installed command."""
    for name, value in LIBRARY_SETTINGS.items():
        os.environ.setdefault(name, value)
    if sys.stdout is None:  # closed: else the next file that is opened had its number
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    arguments = sys.argv[1:]
    debug = DEBUG_FLAG in arguments
    arguments = [argument for argument in arguments if argument != DEBUG_FLAG] or ["--help"]
    with messages_name_flags():
        code = _run(arguments, debug)
    try:
        sys.stdout.flush()
    except OSError:  # told already, or whoever read has gone
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  until the end
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # all is said: no trace out of what cleans up
    sys.exit(code)


def _run(arguments: list[str], debug: bool) -> int:
    try:
        result = root_command().main(arguments, prog_name="hierrouter", standalone_mode=False)
    except typer.TyperException as error:  # a wrong command line
        say_error(error.format_message())
        return 2
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    except HierRouterError as error:
        if debug:
            say(traceback.format_exc())
        say_error(str(error))
        return _exit_code(error)
    except Exception as error:
        if debug:
            say(traceback.format_exc())
        if isinstance(error, OSError) and error.errno in NO_PATH:
            say_error(f"{error.strerror}: {error.filename!s:.60}; give another path")
            return 2
        if isinstance(error, OSError) and error.errno in NO_OUTPUT and error.filename is None:
            say_error(f"cannot print: {error.strerror}; the result has no other place to go")
            return 1
        text = f"{type(error).__name__}: {error}".splitlines()[0][: MAX_ERROR - 60]
        say_error(f"unexpected: {text}; run again with --debug for the trace")
        return 1
    if result == INTERRUPTED:
        say_error("interrupted; what was committed or saved is safe")
    return result if isinstance(result, int) else 0


def _exit_code(error: HierRouterError) -> int:
    codes = {InputError: 2, CacheError: 3, Interrupted: INTERRUPTED}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), 1)
