"""Lines of a pipe that may fall silent.

In: a file descriptor. Out: its lines as they come, until it ends or somebody says stop. A read
that waits cannot be called off, and Python ends only after the thread that it waits in; so it is
looked first whether there is anything. Not covered: what stands in the lines (`asking`).
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from threading import Event

from hierrouter.json_lines import MAX_LINE
from hierrouter_cache.errors import InputError

LOOK_S = 0.2  # between two looks whether it has been stopped
CHUNK = 1 << 16


def piped_lines(pipe: int, stopped: Event, where: str) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes) of each line; once `stopped` is set, no more.

    Args:
        pipe: read past Python's own buffers; whoever reads there as well takes lines away.
        where: its name, for messages.

    Raises:
        InputError: it cannot be read, or a line is too long.
    """
    number, begun = 0, bytearray()
    while chunk := _next(pipe, stopped, where):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            number += 1
            yield number, bytes(begun) + line
            begun.clear()
        begun += rest
        if len(begun) > MAX_LINE:
            raise InputError(
                f"line longer than {MAX_LINE:,} bytes: {where}:{number + 1}; "
                "write one JSON object per line"
            )
    if begun and not stopped.is_set():
        yield number + 1, bytes(begun)


def _next(pipe: int, stopped: Event, where: str) -> bytes:
    """What comes next; nothing at the end, or when it was stopped."""
    try:
        while not stopped.is_set():
            if select.select([pipe], [], [], LOOK_S)[0]:
                return os.read(pipe, CHUNK)
    except OSError as error:
        raise InputError(f"cannot be read: {where}: {error.strerror}; give JSON lines") from None
    return b""
