"""The flags of jobs that work on a run, as types of their fields."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

from hierrouter.declarations.declaration import Flag
from hierrouter.runs.folders import find_run


def check_run(value: str | os.PathLike[str], name: str) -> Path:
    """Return the folder of a run, given by its name, by its folder or as a run.

    Raises:
        InputError: there is no such run.
    """
    return find_run(value)


run_flag = partial(Flag, metavar="NAME|DIR", check=check_run)

Checkpoint = Annotated[Path | None, run_flag("--checkpoint", help="A run; default: the latest.")]
SweepRun = Annotated[Path | None, run_flag("--sweep", help="A sweep; default: the latest.")]
