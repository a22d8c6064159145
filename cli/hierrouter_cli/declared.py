"""Commands from declarations of jobs: their flags, running them with a bar, their help pages."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from hierrouter.declarations.declaration import Flag, OnTask, Parameter, parameters_of
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cli import console

if TYPE_CHECKING:
    from hierrouter.replay.tree import Tree
    from hierrouter.reports.jobs import Compare, Explore, Report

DERIVATION_LABELS = {"embed": "embed states", "score": "score responses"}


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of the declarations among its arguments.

    An argument whose type is a declaration is replaced by all flags of that declaration. Flags that
    two declarations share are one flag, whose value goes to both. Every other argument is a flag,
    too.

    Args:
        command: takes all its arguments by name.

    Returns:
        A function with a flag for each argument, which makes the declarations and calls `command`.
    """
    jobs = declaration_arguments(command)
    flags: dict[str, inspect.Parameter] = {}
    own_names = []
    signature = inspect.signature(command, eval_str=True)
    for argument in signature.parameters.values():
        if argument.name in jobs:
            for parameter in parameters_of(jobs[argument.name]):
                flags.setdefault(parameter.name, _flag_argument(parameter))
        else:
            own_names.append(argument.name)
            flags[argument.name] = argument.replace(kind=inspect.Parameter.KEYWORD_ONLY)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        arguments: dict[str, Any] = {name: values[name] for name in own_names}
        for name, declared in jobs.items():
            arguments[name] = _job(declared, values)
        command(**arguments)

    positional = [flag for flag in flags.values() if _is_positional(flag)]
    others = [flag for flag in flags.values() if not _is_positional(flag)]
    run.__signature__ = signature.replace(parameters=[*positional, *others])  # type: ignore[attr-defined]
    return run


def declaration_arguments(command: Callable[..., None]) -> dict[str, type]:
    """Return the declarations among the arguments of a command, by the argument's name."""
    arguments = inspect.signature(command, eval_str=True).parameters.values()
    return {
        argument.name: argument.annotation
        for argument in arguments
        if getattr(argument.annotation, "__dataclass_fields__", None)
    }


def _job(declared: type, values: dict[str, Any]) -> Any:
    """Make a declaration from the values of its flags; a missing value means the default."""
    settings = {}
    for parameter in parameters_of(declared):
        value = values[parameter.name]
        if value is not None and value != []:
            settings[parameter.name] = value
    return declared(**settings)


def _is_positional(argument: inspect.Parameter) -> bool:
    extras = get_args(argument.annotation)[1:]
    return any(isinstance(extra, typer.models.ArgumentInfo) for extra in extras)


def _flag_argument(parameter: Parameter) -> inspect.Parameter:
    """Return the argument from which typer makes the flag of a declaration's field."""
    flag = parameter.flag
    flag_type, is_repeatable = _type_of_flag(parameter)
    default = parameter.default
    if default is inspect.Parameter.empty:
        flag_type = _without_none(flag_type)  # typer demands a value that may not be None
    elif is_repeatable or default == ():  # the help shows no empty default
        default = None
    elif flag.check and default is not None:
        # Typer shows a default in the help, and parses it like the text of a user.
        default = ",".join(default) if isinstance(default, tuple) else str(default)
    settings: dict[str, Any] = {"help": flag.help, "rich_help_panel": flag.group}
    if flag.metavar:
        settings["metavar"] = flag.metavar
    if flag.minimum is not None:
        settings["min"] = flag.minimum
    if flag.maximum is not None:
        settings["max"] = flag.maximum
    if flag.completions:
        settings["autocompletion"] = _completion(flag)
    declared = typer.Option(flag.name, **settings) if flag.name else typer.Argument(**settings)
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[flag_type, declared],
    )


def _without_none(flag_type: Any) -> Any:
    """Return `str` for `str | None`."""
    return next(option for option in get_args(flag_type) if option is not type(None))


def _type_of_flag(parameter: Parameter) -> tuple[Any, bool]:
    """Return the type that typer converts a flag's text to, and whether the flag is repeatable.

    The text of a flag with a check is not converted, because the messages of the check are better
    than those of typer.
    """
    options = [parameter.type]
    if get_origin(parameter.type) in (Union, UnionType):
        options = [option for option in get_args(parameter.type) if option is not type(None)]
    origins = [get_origin(option) or option for option in options]
    is_switch = not parameter.flag.metavar
    if is_switch:
        return bool, False
    is_sequence = Sequence in origins or tuple in origins
    takes_commas = parameter.flag.is_list or parameter.flag.metavar.startswith("A,B")
    if is_sequence and not takes_commas:
        return list[str] | None, True
    if parameter.flag.check or takes_commas:
        return str | None, False
    return options[0] | None, False


def _completion(flag: Flag) -> Callable[[str], list[str]]:
    """Return a function that completes a word, or the last word of a list with commas."""

    def offer(incomplete: str) -> list[str]:
        if not flag.is_list:
            return [word for word in flag.completions if word.startswith(incomplete)]
        *complete, last = incomplete.split(",")
        words = [word for word in flag.completions if word not in complete]
        return [",".join([*complete, word]) for word in words if word.startswith(last)]

    return offer


# Flags of printing.

FORMATS = ("text", "json", "md", "latex", "csv")


def switch(flag: str, help: str) -> Any:
    """Return a flag without a value, off by default."""
    return typer.Option(flag, help=help)


def choice(flag: str, words: Sequence[str], help: str, subject: str) -> Any:
    """Return a flag with one of a few words, which the shell offers.

    Args:
        flag: its name.
        words: the values that there are.
        help: one line.
        subject: what the words are, for the message that refuses others: "style".
    """
    return typer.Option(
        flag,
        metavar="|".join(words),
        help=help,
        parser=_parser_of(subject, words),
        autocompletion=lambda incomplete: [word for word in words if word.startswith(incomplete)],
    )


def _parser_of(subject: str, words: Sequence[str]) -> Callable[[str], str]:
    """Return a parser that refuses all words but these; its InputError has the nearest one."""

    def parse(word: str) -> str:
        if word not in words:
            hint = suggestion(word, words)
            raise InputError(f"unknown {subject}: {word}; {hint}".rstrip("; "))
        return word

    return parse


def format_flag(*names: str) -> Any:
    """Return `--format`; commands differ in the formats that they can print."""
    return choice("--format", names, "Format of what is printed.", subject="format")


Format = Annotated[str, format_flag(*FORMATS)]
ShortFormat = Annotated[str, format_flag("text", "json")]
CheckOnly = Annotated[bool, switch("--dry-run", "Check everything, then stop.")]
DryRun = Annotated[
    bool, switch("--dry-run", "Print calls, tokens, time, cost and disk; call nothing.")
]


def make_importable(*names: str | None) -> None:
    """Let `module:name` on the command line find modules in this folder, after installed ones.

    Args:
        names: given by the user; others than `module:name` need no modules.
    """
    folder = str(Path.cwd())
    if any(":" in (name or "") for name in names) and folder not in sys.path:
        sys.path.append(folder)


def check_job(job: Report | Compare | Explore) -> None:
    """Check a job before a cache is read; this imports policies and baselines of the user."""
    make_importable(*job.policies, *(getattr(job, "baselines", None) or ()))
    with console.foreign_output_on_stderr():
        job.check()


@contextmanager
def quiet_bar(label: str) -> Iterator[Callable[..., None]]:
    """Show a bar, and send to stderr whatever is printed meanwhile."""
    with console.bar(label) as on_progress, console.foreign_output_on_stderr():
        yield on_progress


def open_trees(opening: OpenTree) -> dict[str, Tree]:
    """Open a tree under each price list, with a bar; print the notes for readers of its figures."""
    with _opening_bar(opening) as on_derive:
        return opening.run_each(on_derive, console.say)


def open_tree(opening: OpenTree) -> Tree:
    """Open a tree, with a bar; print the notes for readers of its figures."""
    with _opening_bar(opening) as on_derive:
        return opening.run(on_derive, console.say)


def _opening_bar(opening: OpenTree) -> AbstractContextManager[OnTask]:
    """Return the bar of an opening; let a scorer of the user's be imported."""
    make_importable(opening.scorer)
    return labelled_bar("open", DERIVATION_LABELS)


@contextmanager
def labelled_bar(label: str, labels: Mapping[str, str]) -> Iterator[OnTask]:
    """Show a bar whose label tells which task of a job is under way.

    Args:
        label: before the first task.
        labels: by the names that the library calls the tasks.

    Returns:
        A context whose value is called with the name of a task, how much is done, and how much
        there is in all.
    """
    with console.bar(label) as move:
        yield lambda task, done, total: move(done, total, label=labels[task])


# Help pages: their layout, and an example for each command.

EXAMPLES: Mapping[str, str] = {
    "quickstart": "hierrouter quickstart --limit 60 --out first",
    "verify": "hierrouter verify --rescore",
    "collect": "hierrouter collect --datasets gsm8k,math --dry-run",
    "train": "hierrouter train --alpha 0.02 --algo exact",
    "sweep-alpha": "hierrouter sweep-alpha --alphas 1,2,3 --allow-stop",
    "report": "hierrouter report --split validation --format md",
    "explain": "hierrouter explain --worst 10",
    "explore": "hierrouter explore --split validation --out tree.html",
    "compare": "hierrouter compare --split validation --baselines knn,cascade --sets A",
    "off-policy": "hierrouter off-policy --log requests.jsonl --alpha 0.02",
    "route": 'hierrouter route "compute 12+30"',
    "serve": "hierrouter serve --port 8100 --log requests.jsonl",
    "learn-from": "hierrouter learn-from requests.jsonl --judge references.jsonl",
    "deploy": "hierrouter deploy runs/new --share 0.1",
    "runs": "hierrouter runs --format json",
    "cache info": "hierrouter cache info --incomplete --format json",
    "cache repair": "hierrouter cache repair --cache caches/my",
    "cache compact": "hierrouter cache compact",
    "cache sql": 'hierrouter cache sql "select dataset, count(*) from queries group by dataset"',
    "cache import": "hierrouter cache import answers.csv --format table --cache caches/answers",
    "cache export": "hierrouter cache export --out backup.jsonl",
    "cache push": "hierrouter cache push s3://bucket/cache",
    "cache pull": "hierrouter cache pull s3://bucket/cache --cache caches/shared",
    "pools": "hierrouter pools --pool my.toml",
    "datasets": "hierrouter datasets --datasets riddle --show 3",
}

MIN_GROUPED_FLAGS = 15  # fewer flags are easily found without headings
ARGUMENTS_HEADING = "Arguments"
OPTIONS_HEADING = "Options"
PAGE_WIDTH = 100  # maximum, in columns; typer alone stops at 80


def add(
    app: typer.Typer, path: str, short_help: str | None = None, group: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command with its example.

    Args:
        app: the command or group that it belongs to.
        path: what a user types after `hierrouter`.
        short_help: describes the command in a list of commands; None is its docstring's first line.
        group: the heading above the command in that list.

    Returns:
        A decorator of the command's function.
    """
    return app.command(
        path.split()[-1],
        cls=CommandPage,
        short_help=short_help,
        epilog=EXAMPLES[path],
        rich_help_panel=group,
    )


class CommandPage(TyperCommand):
    """The help page of one command."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the command's own flags, and those of each group."""
        records = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record:  # a hidden flag has none
                records.append((parameter, record))
        is_grouped = len(records) >= MIN_GROUPED_FLAGS
        lists: dict[str, list[Any]] = {ARGUMENTS_HEADING: [], OPTIONS_HEADING: []}
        for parameter, record in records:
            heading = _group(parameter) if is_grouped else ""
            if parameter.param_type_name == "argument":
                heading = ARGUMENTS_HEADING
            lists.setdefault(heading or OPTIONS_HEADING, []).append(record)
        _write_lists(formatter, lists)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the example on a separate line, so that it can be copied."""
        _write_lines(formatter, "Example", self.epilog)


class GroupPage(TyperGroup):
    """The help page of a group of commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands below the headings of their groups."""
        names = self.list_commands(ctx)
        name_width = max(map(len, names))
        help_width = formatter.width - 6 - name_width  # 6: indentation and the space between
        lists: dict[str, list[Any]] = {}
        for name in names:
            command = self.commands[name]
            row = (name.ljust(name_width), command.get_short_help_str(help_width))
            lists.setdefault(_group(command) or "Commands", []).append(row)
        _write_lists(formatter, lists)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the exit codes, which all commands share."""
        _write_lines(formatter, "Exit codes", self.epilog)


def _group(documented: Any) -> str:
    """Return the heading of a command, a flag or an argument; "" if it has none."""
    return getattr(documented, "rich_help_panel", None) or ""


def _write_lists(formatter: Any, lists: Mapping[str, list[Any]]) -> None:
    for heading, rows in lists.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


def _write_lines(formatter: Any, heading: str, lines: str | None) -> None:
    if lines:
        with formatter.section(heading):
            for line in lines.splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
