"""TOML files that people write.

In: a path. Out: its text, or its tables. Not covered: what has to stand in them (`pool`,
`price_lists`).
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from hierrouter_cache.errors import InputError

AT = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
TWICE = re.compile(r"Cannot overwrite a value|Cannot declare .* twice")
NAME = re.compile(r"\s*(\[[^\]]*\]|[^=\s]+)")  # what a line names: a table or a key


def read_text(name: str, what: str) -> str:
    """The text of a file; `what` says in messages what the file is.

    Raises:
        InputError: there is none, it cannot be read, or it is not UTF-8.
    """
    try:
        return Path(name).read_text("utf-8")
    except FileNotFoundError:
        raise InputError(f"{what} not found: {name}; give the path of a .toml file") from None
    except IsADirectoryError:
        raise InputError(f"{what} is a directory: {name}; name a .toml file") from None
    except UnicodeDecodeError:
        raise InputError(f"{what} is not UTF-8: {name}; save it as UTF-8") from None
    except OSError as error:
        raise InputError(
            f"{what} cannot be read: {name}: {error.strerror}; give another one"
        ) from None


def parse_text(text: str, what: str, where: str) -> dict[str, Any]:
    """The tables in a text; `where` names it in messages.

    Raises:
        InputError: it is empty or no TOML.
    """
    if not text.strip():
        raise InputError(f"{what} is empty: {where}; give one with tables in it")
    try:
        tables = tomllib.loads(text)
        repr(tables)  # Python reads longer numbers in hexadecimal than it can show in a message
        return tables
    except tomllib.TOMLDecodeError as error:
        line, reason = _fault(text, str(error))
        raise InputError(f"{what} is not TOML: {where}:{line}: {reason}; mend that line") from None
    except ValueError:
        raise InputError(f"{what} has a number of too many digits: {where}; mend it") from None
    except RecursionError:
        raise InputError(f"{what} is nested too deeply: {where}; write it flat") from None


def _fault(text: str, said: str) -> tuple[int, str]:
    """The line that the parser stopped at, and why; what stands twice is named."""
    lines = text.splitlines()
    at = AT.search(said)
    number = int(at[1]) if at and at[1] else len(lines)
    reason = AT.sub("", said)
    name = NAME.match(lines[number - 1])
    twice = f"duplicate key {name[1]}" if name and TWICE.fullmatch(reason) else None
    return number, twice or reason
