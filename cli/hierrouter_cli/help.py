"""How the help of a command is laid out, and what a person could type."""

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

GROUPED_FROM = 15  # flags; fewer are found without headings
ARGUMENTS, OPTIONS = "Arguments", "Options"
PAGE_WIDTH = 100  # columns at most; typer alone stops at 80


def add(
    app: typer.Typer, path: str, short_help: str | None = None, group: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command with its example.

    Args:
        path: what a user types after `hierrouter`.
        short_help: the command in a list of commands; its docstring's first line where None.
        group: heading that it stands below there.
    """
    return app.command(
        path.split()[-1],
        cls=CommandPage,
        short_help=short_help,
        epilog=EXAMPLES[path],
        rich_help_panel=group,
    )


class CommandPage(TyperCommand):
    """The page of one command."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then the flags: the command's own, and those of each group."""
        records = [(each, each.get_help_record(ctx)) for each in self.get_params(ctx)]
        shown = [(each, record) for each, record in records if record]
        lists: dict[str, list[Any]] = {ARGUMENTS: [], OPTIONS: []}
        for each, record in shown:
            heading = _group(each) if len(shown) >= GROUPED_FROM else ""
            if each.param_type_name == "argument":
                heading = ARGUMENTS
            lists.setdefault(heading or OPTIONS, []).append(record)
        _write_lists(formatter, lists)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The example, on a line of its own, so that it can be copied."""
        _write_lines(formatter, "Example", self.epilog)


class GroupPage(TyperGroup):
    """The page of a group of commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands below the headings that they name."""
        names = self.list_commands(ctx)
        widest = max(map(len, names))
        room = formatter.width - 6 - widest
        lists: dict[str, list[Any]] = {}
        for name in names:
            row = name.ljust(widest), self.commands[name].get_short_help_str(room)
            lists.setdefault(_group(self.commands[name]) or "Commands", []).append(row)
        _write_lists(formatter, lists)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """What all its commands share."""
        _write_lines(formatter, "Exit codes", self.epilog)


def _group(of: Any) -> str:
    return getattr(of, "rich_help_panel", None) or ""


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
