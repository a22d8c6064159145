"""The help pages of the commands: their layout, and an example for each command."""

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

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
