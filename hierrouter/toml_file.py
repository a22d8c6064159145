"""TOML files that people write.

In: a path. Out: its text, or its tables. Not covered: what has to stand in them (`pool`,
`price_lists`).
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hierrouter_cache.errors import InputError


def read_text(name: str, what: str) -> str:
    """The text of a file; `what` says in messages what the file is.

    Raises:
        InputError: there is none, it cannot be read, or it is not UTF-8.
    """
    try:
        return Path(name).read_text("utf-8")
    except FileNotFoundError:
        raise InputError(f"{what} not found: {name}") from None
    except IsADirectoryError:
        raise InputError(f"{what} is a directory: {name}; name a .toml file") from None
    except UnicodeDecodeError:
        raise InputError(f"{what} is not UTF-8: {name}") from None
    except OSError as error:
        raise InputError(f"{what} cannot be read: {name}: {error.strerror}") from None


def parse_text(text: str, what: str, where: str) -> dict[str, Any]:
    """The tables in a text; `where` names it in messages.

    Raises:
        InputError: it is empty or no TOML.
    """
    if not text.strip():
        raise InputError(f"{what} is empty: {where}")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{what} is not TOML: {where}: {error}") from None
