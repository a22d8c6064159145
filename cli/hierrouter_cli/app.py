"""The `hierrouter` command: registers the commands, runs one, and reports its errors."""

import errno
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence

import typer
import typer.core

from hierrouter.declarations.declaration import messages_name_flags
from hierrouter.hub.repository import show_downloads
from hierrouter_cache.errors import (
    CacheError,
    HierRouterError,
    InputError,
    Interrupted,
    WorldError,
    require_free_files,
)
from hierrouter_cli import cache, catalogue, collect, quickstart, report, serve, train
from hierrouter_cli.console import MAX_ERROR_LENGTH, download_bar, say, say_error
from hierrouter_cli.declared import PAGE_WIDTH, GroupPage, add

DEBUG_FLAG = "--debug"
EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2
EXIT_BAD_CACHE = 3
EXIT_INTERRUPTED = 130  # as a shell reports SIGINT
# Errors of the system for a path at which no file can be: the user has to give another path.
UNUSABLE_PATH_ERRORS = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP)
# Errors of writing to stdout: its disk is full, it is closed, or its device failed.
STDOUT_ERRORS = (errno.ENOSPC, errno.EBADF, errno.EIO)

EXIT_CODES = """\
0    done
1    the world failed: disk, server, model, memory
2    the input is wrong: flag, file, dataset, checkpoint
3    the cache cannot serve it: missing, incomplete, damaged, locked, newer
130  Ctrl-C; what was committed or saved is safe"""

app = typer.Typer(
    name="hierrouter",
    cls=GroupPage,
    epilog=EXIT_CODES,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich takes half of the start-up time
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": PAGE_WIDTH},
)
REFERENCE_HEADING = "What is there"
# By the heading in the list of commands: name, function and description of each command.
COMMANDS: Mapping[str, Sequence[tuple[str, Callable[..., None], str]]] = {
    "The job": (
        ("quickstart", quickstart.quickstart, "The whole job on the testbed, in one command."),
        ("collect", collect.collect, "Run every route of every query, once."),
        ("train", train.train, "Train a router on what was collected."),
        ("sweep-alpha", train.sweep_alpha, "Train a router for each price of cost."),
        ("report", report.report, "Evaluate on the test fold: tables, figures, page."),
    ),
    "Look closer": (
        ("explain", report.explain, "One query's tree, route and regret."),
        ("explore", report.explore, "A page: drag alpha, walk a query's tree."),
        ("compare", report.compare, "The usual routers beside the learned one."),
        ("off-policy", serve.off_policy, "A router's value from another policy's log."),
    ),
    "With live models": (
        ("route", serve.route, "Answer questions with the models themselves."),
        ("serve", serve.serve, "The same behind an OpenAI-compatible address."),
        ("learn-from", serve.learn_from, "A better router from a log of traffic."),
        ("deploy", serve.deploy, "Which router servers are to have."),
    ),
    REFERENCE_HEADING: (
        ("pools", catalogue.pools, "The pools that come with the package."),
        ("datasets", catalogue.datasets, "Known datasets, and samples of their questions."),
        ("runs", catalogue.runs, "The runs that were trained here, and which still fit."),
        ("verify", catalogue.verify, "Whether all that figures rest on is as written."),
    ),
}
for heading, commands in COMMANDS.items():
    for name, command, short_help in commands:
        add(app, name, short_help, heading)(command)
app.add_typer(
    cache.app,
    name="cache",
    short_help="Look into a cache: info, sql, repair.",
    rich_help_panel=REFERENCE_HEADING,
)


def _print_version(is_requested: bool) -> None:
    """Print the version and end, if `--version` was given."""
    if is_requested:
        from hierrouter import __version__

        typer.echo(f"hierrouter {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
    debug: bool = typer.Option(
        False, DEBUG_FLAG, help="Show the trace of an error; goes anywhere."
    ),
) -> None:
    """Multi-hop routing of language models, learned on a cached tree of every route."""


# Environment variables, set before the libraries that read them are imported. A value that the
# user has set is kept.
LIBRARY_SETTINGS = {
    "OMP_WAIT_POLICY": "PASSIVE",  # idle threads sleep, so that the cores are free for others
    "OPENBLAS_NUM_THREADS": "1",  # numpy's products are small here: more threads only take cores
    "TOKENIZERS_PARALLELISM": "false",
}


@functools.cache
def root_command() -> typer.core.TyperGroup:
    """Return the whole command as typer builds it, with all its subcommands."""
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    return command


def main() -> None:
    """Run the command line; the entry point of the installed command.

    Raises:
        SystemExit: always, with one of `EXIT_CODES`.
    """
    for name, value in LIBRARY_SETTINGS.items():
        os.environ.setdefault(name, value)
    arguments = sys.argv[1:]
    debug = DEBUG_FLAG in arguments
    arguments = [argument for argument in arguments if argument != DEBUG_FLAG] or ["--help"]
    with messages_name_flags(), show_downloads(download_bar):
        code = _run(arguments, debug)
    try:
        sys.stdout.flush()
    except OSError:  # was reported already, or the reader of the pipe has gone
        # Python flushes stdout once more when it ends, which must not fail again.
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    # The result is printed: Ctrl-C while Python cleans up needs no trace.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _run(arguments: list[str], debug: bool) -> int:
    """Run a command; print its error in one line, and return the exit code."""
    try:
        result = root_command().main(arguments, prog_name="hierrouter", standalone_mode=False)
    except typer.TyperException as error:  # a wrong command line
        say_error(error.format_message())
        return EXIT_WRONG_INPUT
    except (KeyboardInterrupt, typer.Abort):
        result = EXIT_INTERRUPTED
    except HierRouterError as error:
        if debug:
            say(traceback.format_exc())
        say_error(str(error))
        return _exit_code(error)
    except Exception as error:
        if debug:
            say(traceback.format_exc())
        try:
            require_free_files(error)
        except WorldError as limit:
            say_error(str(limit))
            return EXIT_FAILED
        if isinstance(error, OSError) and error.errno in UNUSABLE_PATH_ERRORS:
            say_error(f"{error.strerror}: {error.filename!s:.60}; give another path")
            return EXIT_WRONG_INPUT
        if isinstance(error, OSError) and error.errno in STDOUT_ERRORS and error.filename is None:
            say_error(f"cannot print: {error.strerror}; the result has no other place to go")
            return EXIT_FAILED
        text = f"{type(error).__name__}: {error}".splitlines()[0][: MAX_ERROR_LENGTH - 60]
        say_error(f"unexpected: {text}; run again with --debug for the trace")
        return EXIT_FAILED
    if result == EXIT_INTERRUPTED:
        say_error("interrupted; what was committed or saved is safe")
    return result if isinstance(result, int) else 0


def _exit_code(error: HierRouterError) -> int:
    if isinstance(error, InputError):
        return EXIT_WRONG_INPUT
    if isinstance(error, CacheError):
        return EXIT_BAD_CACHE
    if isinstance(error, Interrupted):
        return EXIT_INTERRUPTED
    return EXIT_FAILED
