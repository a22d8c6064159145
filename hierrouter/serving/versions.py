"""The routers of a server: the one in service, and a candidate beside it.

A file in the folder of runs, `service.json`, says which run is in service.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from anyio import to_thread
from pydantic import ConfigDict, Field, TypeAdapter

from hierrouter.runs.folders import MAX_JSON
from hierrouter.serving.chat import ModelNames
from hierrouter.serving.router import Router
from hierrouter_cache.errors import InputError, read_small
from hierrouter_cache.keys import text_digest
from hierrouter_cache.writer import write_atomically

T = TypeVar("T")


@dataclass
class Version:
    """A router of a server, and the model names that clients may ask it for.

    Attributes:
        name: of its run.
        router: decides, and calls the models.
        names: that clients may ask for.
    """

    name: str
    router: Router
    names: ModelNames
    _under_way: int = field(default=0, init=False)
    _is_retired: bool = field(default=False, init=False)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Count a question as under way while the block runs."""
        self._under_way += 1
        try:
            yield
        finally:
            self._finish()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work on a question in a task, and count it as under way from now on.

        The caller must not await between picking this version and this call. A task takes its first
        step only in a later turn of the event loop: if the count began there, a reload between
        would end the thread that the work is about to use.
        """
        task = asyncio.create_task(work)
        self._under_way += 1
        # A callback, because a task that is cancelled before its first step runs no `finally`.
        task.add_done_callback(lambda _: self._finish())
        return task

    def retire(self) -> None:
        """Take no more questions, and end the router's thread after the last one."""
        self._is_retired = True
        self._end_if_done()

    def _finish(self) -> None:
        self._under_way -= 1
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_retired and not self._under_way:
            self.router.stop_deciding()


@dataclass(frozen=True)
class Lineup:
    """The routers that a server answers with at a time.

    Attributes:
        current: the version in service.
        candidate: the version on trial; None without one.
        share: of the questions that the candidate answers; with 0 it is a shadow.
    """

    current: Version
    candidate: Version | None = None
    share: float = 0.0

    @property
    def versions(self) -> tuple[Version, ...]:
        """Both versions, or the current one alone."""
        return (self.current,) if self.candidate is None else (self.current, self.candidate)

    @property
    def shadow(self) -> Version | None:
        """The candidate if it answers no questions, so that only its decisions are logged."""
        return None if self.share else self.candidate

    def pick(self, question: str) -> Version:
        """Return the version that answers a question: always the same one for the same text."""
        position = int(text_digest(question)[:8], 16) / 16**8  # in [0, 1)
        if self.candidate and position < self.share:
            return self.candidate
        return self.current


class Versions:
    """The lineup of a server, which can be exchanged while it works.

    Args:
        lineup: to begin with.
        make_next: makes the next lineup from the current one, for `reload`; raises InputError or
            WorldError if there is none.

    Attributes:
        lineup: the current one.
    """

    def __init__(self, lineup: Lineup, make_next: Callable[[Lineup], Lineup]) -> None:
        self.lineup = lineup
        self._make_next = make_next
        self._lock = asyncio.Lock()

    async def reload(self) -> dict[str, Any]:
        """Exchange the lineup; questions under way are finished by the version that began them.

        Returns:
            `as_object` of the new lineup.

        Raises:
            InputError: the next lineup does not fit; the current one stays.
            WorldError: the next lineup cannot be loaded; the current one stays.
        """
        async with self._lock:
            before = self.lineup
            self.lineup = await to_thread.run_sync(self._make_next, before)
            for version in before.versions:
                if version not in self.lineup.versions:
                    version.retire()
        return self.as_object()

    def as_object(self) -> dict[str, Any]:
        """Return JSON values: the names of both versions, and the candidate's share."""
        candidate = self.lineup.candidate
        return {
            "in_service": self.lineup.current.name,
            "candidate": candidate.name if candidate else None,
            "share": self.lineup.share,
        }

    async def close(self) -> None:
        """Close all models."""
        # All versions call the models of the current router (`Router.sibling`), so closing that one
        # closes them for all. A candidate has only a thread besides.
        if self.lineup.candidate is not None:
            self.lineup.candidate.router.stop_deciding()
        await self.lineup.current.router.aclose()


# The file of a service.

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
