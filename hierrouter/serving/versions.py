"""The routers of a server: one in service, one that is tried out beside it, and those before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from anyio import to_thread
from pydantic import ConfigDict, Field, TypeAdapter

from hierrouter.runs.folders import MAX_JSON
from hierrouter.serving.chat import ModelNames
from hierrouter.serving.router import Router
from hierrouter_cache.errors import InputError, read_small
from hierrouter_cache.keys import text_digest
from hierrouter_cache.writer import write_atomically

FILE = "service.json"  # beside the runs
KEPT = 20  # of those before


@dataclass(frozen=True)
class Service:
    """Which run is to answer, as `hierrouter deploy` says.

    Attributes:
        run: folder of the run in service.
        candidate: folder of a run that is tried out; None where there is none.
        share: of the questions, by their digest, that the candidate answers; with 0 it only says
            what it would do (a shadow).
        before: runs that were in service, the newest last.
        refused: why some runs are not to come into service, by folder.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    run: str
    candidate: str | None = None
    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    before: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def put(self, run: str) -> Service:
        """This run in service, and no candidate."""
        before = self.before if run == self.run else (*self.before, self.run)[-KEPT:]
        return replace(self, run=run, candidate=None, share=0.0, before=before)

    def tried(self, run: str, share: float) -> Service:
        """This run as the candidate."""
        return replace(self, candidate=run, share=share)

    def back(self) -> Service:
        """Without the candidate; where there is none, with the run that was in service before.

        Raises InputError: there is none.
        """
        if self.candidate is not None:
            return replace(self, candidate=None, share=0.0)
        if not self.before:
            raise InputError(f"no run was in service before {self.run}; name one")
        return replace(self, run=self.before[-1], before=self.before[:-1])

    def judged(self, run: str, refused: str) -> Service:
        """With the verdict on a run: why it is refused, or nothing."""
        others = {name: why for name, why in self.refused.items() if name != run}
        return replace(self, refused=others | ({run: refused} if refused else {}))


def load_service(runs: Path) -> Service | None:
    """What was said last; None where nothing was.

    Raises InputError: it is damaged.

    `runs`: the folder of the runs.
    """
    file = runs / FILE
    if not file.is_file():
        return None
    try:
        return TypeAdapter(Service).validate_json(read_small(file, MAX_JSON), strict=True)
    except (OSError, ValueError):
        remedy = "`hierrouter deploy RUN` writes it anew"
        raise InputError(f"{FILE} is damaged: {file}; {remedy}") from None


def save_service(service: Service, runs: Path) -> None:
    """Say it; servers hear it when they reload. Raises WorldError: the disk is full or failed."""
    runs.mkdir(parents=True, exist_ok=True)
    write_atomically(runs / FILE, json.dumps(asdict(service), indent=1).encode())


@dataclass
class Version:
    """A router and what clients may ask it for.

    Attributes:
        name: of its run.
        router: decides, and calls.
        names: of the models that clients may ask for.
    """

    name: str
    router: Router
    names: ModelNames
    _under_way: int = field(default=0, init=False)
    _is_retired: bool = field(default=False, init=False)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While a question is answered by it."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._end_if_done()

    def retire(self) -> None:
        """Take no more questions; let go of its thread after the last one."""
        self._is_retired = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_retired and not self._under_way:
            self.router.stop_deciding()


@dataclass(frozen=True)
class Lineup:
    """Who answers.

    Attributes:
        current: in service.
        candidate: tried out; None where there is none.
        share: of the questions that the candidate answers; 0 is a shadow.
    """

    current: Version
    candidate: Version | None = None
    share: float = 0.0

    @property
    def versions(self) -> tuple[Version, ...]:
        """All of them."""
        return (self.current, *([self.candidate] if self.candidate else []))

    @property
    def shadow(self) -> Version | None:
        """Who only says what it would do."""
        return None if self.share else self.candidate

    def pick(self, question: str) -> Version:
        """Who answers a question: always the same one."""
        place = int(text_digest(question)[:8], 16) / 16**8
        return self.candidate if self.candidate and place < self.share else self.current


class Versions:
    """The lineup of a server, which can be exchanged while it works.

    Args:
        lineup: to begin with.
        again: makes the next one from the one there is; raises InputError, WorldError: it cannot.

    Attributes:
        lineup: who answers now.
    """

    def __init__(self, lineup: Lineup, again: Callable[[Lineup], Lineup] = lambda now: now) -> None:
        self.lineup = lineup
        self._again = again
        self._one_at_a_time = asyncio.Lock()

    async def reload(self) -> dict[str, Any]:
        """Exchange the lineup; questions under way are answered by those who began.

        Raises InputError, WorldError: it cannot be done; the one there is stays.
        """
        async with self._one_at_a_time:
            before = self.lineup
            self.lineup = await to_thread.run_sync(self._again, before)
            for version in before.versions:
                if version not in self.lineup.versions:
                    version.retire()
        return self.as_object()

    def as_object(self) -> dict[str, Any]:
        """JSON values: who is in service, who is tried out, and on which share."""
        now = self.lineup
        candidate = now.candidate and now.candidate.name
        return {"in_service": now.current.name, "candidate": candidate, "share": now.share}

    async def close(self) -> None:
        """Let go of all models."""
        for version in self.lineup.versions[1:]:
            version.router.stop_deciding()
        await self.lineup.current.router.aclose()
