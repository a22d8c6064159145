"""Run the command on a terminal, as a person does."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

from tests.conftest import COMMAND, environment

LINES = 50


def on_terminal(*arguments: str | Path, cwd: Path, width: int = 100, **settings: str) -> str:
    """Run the command on a terminal, see `program_on_terminal`."""
    return program_on_terminal(*COMMAND, *arguments, cwd=cwd, width=width, **settings)


def program_on_terminal(*command: str | Path, cwd: Path, width: int = 100, **settings: str) -> str:
    """Run a program with a terminal as stdin, stdout and stderr.

    Args:
        *command: the program and its arguments.
        cwd: the folder to run it in.
        width: of the terminal, in columns.
        **settings: more of its environment.

    Returns:
        All that it wrote, with carriage returns and escape sequences. It must not fail.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, width, 0, 0))
    variables = environment()
    for name in ("COLUMNS", "LINES"):  # tests run side by side have them; the terminal knows better
        variables.pop(name, None)
    process = subprocess.Popen(
        [*map(str, command)],
        cwd=cwd,
        env={**variables, "TERM": "xterm", **settings},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    written = b""
    try:
        while piece := os.read(ours, 65536):
            written += piece
    except OSError:  # Linux: nobody has the other end open any more
        pass
    finally:
        os.close(ours)
    text = written.decode("utf-8", "replace")
    assert process.wait(timeout=60) == 0, text
    return text
