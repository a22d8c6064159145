"""JSON lines that others wrote.

In: a file. Out: its lines, or the objects in them, one after the other, each with its number, so
that every complaint can name it. Memory holds one line. Not covered: what the objects mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hierrouter_cache.errors import InputError

MAX_LINE = 1 << 26  # bytes


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of the line, object) of each line that is not blank.

    Raises:
        InputError: a line that is too long, not UTF-8, not JSON, or no object.
    """
    for number, line in raw_lines(path):
        if line.strip():
            yield number, parse_object(line, f"{path}:{number}")


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes) of each line; a byte order mark is dropped.

    Raises:
        InputError: the file cannot be read, or a line is too long.
    """
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise InputError(
                        f"line longer than {MAX_LINE:,} bytes: {path}:{number}; "
                        "write one JSON object per line"
                    )
                yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    except OSError as error:
        raise InputError(
            f"cannot be read: {path}: {error.strerror}; give a file of JSON lines"
        ) from None


def parse_object(line: bytes, where: str) -> dict[str, Any]:
    """The object on one line; `where` names it in messages.

    Raises:
        InputError: not UTF-8, not JSON, or no object.
    """
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"not UTF-8: {where}; save it as text, not compressed or binary") from None
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise InputError(f"not JSON: {where}: {reason}; write one JSON object per line") from None
    if not isinstance(row, dict):
        raise InputError(f"not a JSON object: {where}; write one JSON object per line, no array")
    return row
