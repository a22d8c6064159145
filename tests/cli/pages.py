"""The pages of the documentation, and doing what one of them shows.

A page is followed as a reader would: a block that begins with a comment that names a file is that
file, and each line of a `bash` block is a command. Blocks without a language, and `sh`, are shown
only: they install, need a network, a GPU or a cluster, or go on for ever.
"""

import io
import json
import re
import shlex
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from typing import Any

from tests.cli.conftest import Place
from tests.conftest import SOURCES, environment

README = SOURCES / "README.md"
DOCS = SOURCES / "docs"
NOTEBOOK = DOCS / "tutorials/first_hour.ipynb"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
FILE = re.compile(r"# (\w+\.\w+)\b")
SYNOPSIS = re.compile(r"[\[…]|\b[A-Z]{4,}\b(?<!SLURM_ARRAY_TASK_ID)")
INSTALL = "pip install"  # .ci/run does what these blocks of the README say


def blocks(language: str, page: Path) -> list[str]:
    """The text of each block of a language."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.S | re.M)
    return [block for name, block in fences if name == language]


def files(page: Path) -> dict[str, str]:
    """Name and text of each block that is a file."""
    found = [block for name in ("toml", "python", "json") for block in blocks(name, page)]
    return {named[1]: block for block in found if (named := FILE.match(block))}


def commands(page: Path) -> list[list[str]]:
    """The commands of a page, each as its words."""
    shown = [block for block in blocks("bash", page) if INSTALL not in block]
    return [shlex.split(line, comments=True) for line in "".join(shown).splitlines()]


def only_shown(page: Path) -> list[list[str]]:
    """The commands of a page that are not run, each as its words; no synopses."""
    fenced = [block for name in ("", "sh") for block in blocks(name, page)]
    indented = re.findall(r"^    hierrouter .*$", page.read_text(), re.M)
    lines = [line.strip() for line in "\n".join([*fenced, *indented]).splitlines()]
    typed = [line for line in lines if line.startswith("hierrouter ") and not SYNOPSIS.search(line)]
    return [shlex.split(line.partition(" > ")[0], comments=True) for line in typed]


def follow(page: Path, place: Place, **instead: str) -> list[CompletedProcess[str]]:
    """Write the files of a page, then run its commands; returns what each `hierrouter` did.

    `instead`: what files say in place of an address, by the port that the page shows.
    """
    finished = []
    for name, text in files(page).items():
        for port, address in instead.items():
            text = text.replace(f"http://127.0.0.1:{port.lstrip('_')}/v1", address)
        (place / name).write_text(text)
    for command, *arguments in commands(page):
        if command == "python":
            script = [sys.executable, *arguments]
            subprocess.run(script, cwd=place.folder, env=environment(), check=True)
            continue
        assert command == "hierrouter"
        finished.append(place.does("", *arguments))
    return finished


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """What Jupyter stores after it ran all cells; they run in this process and folder."""
    names: dict[str, Any] = {}
    cells = [dict(cell) for cell in notebook["cells"]]
    for number, cell in enumerate((cell for cell in cells if cell["cell_type"] == "code"), 1):
        with redirect_stdout(io.StringIO()) as told:
            exec("".join(cell["source"]), names)
        output = {"name": "stdout", "output_type": "stream"}
        output |= {"text": told.getvalue().splitlines(keepends=True)}
        cell |= {"execution_count": number, "outputs": [output]}
    return {**notebook, "cells": cells}


if __name__ == "__main__":
    with TemporaryDirectory() as folder, chdir(folder):
        made = executed(json.loads(NOTEBOOK.read_text()))
    NOTEBOOK.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
