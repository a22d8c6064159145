"""The flags that are about printing; all others belong to declarations of the library."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from hierrouter_cache.errors import InputError, suggestion

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
