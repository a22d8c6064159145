"""The flags of jobs that work on a run, as types of their fields."""

from __future__ import annotations

import os
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


Checkpoint = Annotated[
    Path | None, Flag("--checkpoint", "NAME|DIR", "A run; default: the latest.", check=check_run)
]
