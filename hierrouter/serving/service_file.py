"""The service of a folder of runs: which run servers are to answer with, kept in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter

from hierrouter.runs.folders import MAX_JSON
from hierrouter_cache.errors import InputError, read_small
from hierrouter_cache.writer import write_atomically

SERVICE_FILE = "service.json"  # in the folder of the runs
MAX_PREVIOUS_RUNS = 20


@dataclass(frozen=True)
class Service:
    """The runs that servers are to answer with, as set by `hierrouter deploy`.

    Attributes:
        run: folder of the run in service.
        candidate: folder of a run on trial; None without one.
        share: of the questions, by their digest, that the candidate answers. With 0 the candidate
            is a shadow: only its decisions are logged.
        before: runs that were in service, the newest last.
        refused: reasons why some runs must not come into service, by folder.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    run: str
    candidate: str | None = None
    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    before: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def put(self, run: str) -> Service:
        """Return the state with this run in service, and no candidate."""
        before = self.before if run == self.run else (*self.before, self.run)[-MAX_PREVIOUS_RUNS:]
        return replace(self, run=run, candidate=None, share=0.0, before=before)

    def try_out(self, run: str, share: float) -> Service:
        """Return the state with this run as the candidate."""
        return replace(self, candidate=run, share=share)

    def go_back(self) -> Service:
        """Return the state without the candidate; without one, with the previous run in service.

        Raises:
            InputError: there is neither a candidate nor a previous run.
        """
        if self.candidate is not None:
            return replace(self, candidate=None, share=0.0)
        if not self.before:
            raise InputError(f"no run was in service before {self.run}; name one")
        return replace(self, run=self.before[-1], before=self.before[:-1])

    def with_verdict(self, run: str, refusal: str) -> Service:
        """Return the state with the verdict on a run.

        Args:
            run: its folder.
            refusal: why the run must not come into service; "" if it may.
        """
        refused = {name: reason for name, reason in self.refused.items() if name != run}
        if refusal:
            refused[run] = refusal
        return replace(self, refused=refused)


def load_service(runs: Path) -> Service | None:
    """Read what `hierrouter deploy` set last.

    Args:
        runs: the folder of the runs.

    Returns:
        None if nothing was deployed.

    Raises:
        InputError: the file is damaged.
    """
    file = runs / SERVICE_FILE
    if not file.is_file():
        return None
    try:
        return TypeAdapter(Service).validate_json(read_small(file, MAX_JSON), strict=True)
    except (OSError, ValueError):
        remedy = "`hierrouter deploy RUN` writes it anew"
        raise InputError(f"{SERVICE_FILE} is damaged: {file}; {remedy}") from None


def save_service(service: Service, runs: Path) -> None:
    """Write it to the folder of the runs; servers read it when they reload.

    Raises:
        WorldError: the disk is full or failed.
    """
    runs.mkdir(parents=True, exist_ok=True)
    write_atomically(runs / SERVICE_FILE, json.dumps(asdict(service), indent=1).encode())
