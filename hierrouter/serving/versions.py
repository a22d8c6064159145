"""The routers of a server: the one in service, and a candidate beside it.

A file in the folder of runs, `service.json`, says which run is in service. It has its checksum, and
is changed under a lock.
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

from hierrouter.runs.folders import SERVICE, damaged_service, read_service, run_digest, seal
from hierrouter.serving.chat import ModelNames
from hierrouter.serving.router import Router
from hierrouter_cache.errors import CacheError, CacheLocked, InputError, WorldError
from hierrouter_cache.keys import text_digest
from hierrouter_cache.locks import folder_lock
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
        is_deployed: whether `service.json` says so; else it is the run that the user chose, or the
            newest one.
    """

    current: Version
    candidate: Version | None = None
    share: float = 0.0
    is_deployed: bool = False

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
        digests: `run_digest` of the runs above when they were set or refused, by folder. A run is
            recognised by it under every name. Files of earlier versions have none.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    run: str
    candidate: str | None = None
    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    before: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict, compare=False)

    def put(self, run: str) -> Service:
        """Return the state with this run in service, and no candidate."""
        before = self.before
        if run != self.run and not self.is_run(self.run, run):
            before = (*self.before, self.run)[-MAX_PREVIOUS_RUNS:]
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
        refused = {
            name: reason for name, reason in self.refused.items() if not self.is_run(name, run)
        }
        if refusal:
            refused[run] = refusal
        return replace(self, refused=refused)

    def refusal(self, run: str) -> str:
        """Return why a run must not come into service; "" if it may.

        Args:
            run: its folder, under any name.
        """
        reasons = (reason for name, reason in self.refused.items() if self.is_run(name, run))
        return next(reasons, "")

    def is_run(self, name: str, run: str) -> bool:
        """Return whether a folder is the run that the state has under a name, as it was then.

        Args:
            name: of a run in the state.
            run: the folder.
        """
        digest = self.digests.get(name) or _digest(name)
        present = _digest(run)
        if digest and present:
            return digest == present
        return Path(name).resolve() == Path(run).resolve()

    def require_unchanged(self, run: str) -> None:
        """Refuse a run in the state whose folder holds another one by now.

        Raises:
            InputError: it does.
        """
        expected = self.digests.get(run)
        if expected and run_digest(Path(run)) != expected:
            raise InputError(
                f"{run} is not the run that was deployed: its weights are others; "
                f"`hierrouter deploy {run}` takes it as it is now"
            )

    def with_digests(self, *runs: str) -> Service:
        """Return the state with the digests of all its runs.

        Args:
            runs: take the digests of these folders anew.
        """
        names = [self.run, *self.before, *self.refused]
        if self.candidate is not None:
            names.append(self.candidate)
        digests = {}
        for name in names:
            digest = _digest(name) if name in runs else self.digests.get(name) or _digest(name)
            if digest:
                digests[name] = digest
        return replace(self, digests=digests)

    def as_object(self) -> dict[str, Any]:
        """Return JSON values, without the digests."""
        values = asdict(self)
        del values["digests"]
        return values


def _digest(run: str) -> str:
    """Return `run_digest`; "" for a folder that has no run by now."""
    try:
        return run_digest(Path(run))
    except InputError:
        return ""


def load_service(runs: Path) -> Service | None:
    """Read what `hierrouter deploy` set last.

    Args:
        runs: the folder of the runs.

    Returns:
        None if nothing was deployed.

    Raises:
        InputError: the file is damaged, or cannot be read.
    """
    values = read_service(runs)
    if values is None:
        return None
    try:
        return TypeAdapter(Service).validate_json(json.dumps(values), strict=True)
    except ValueError:
        raise damaged_service(runs) from None


def save_service(service: Service, runs: Path) -> None:
    """Write it to the folder of the runs, with its checksum; servers read it when they reload.

    Raises:
        WorldError: the disk is full or failed.
    """
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(runs, error) from error
    write_atomically(runs / SERVICE, seal(asdict(service)))


def change_service(
    change: Callable[[Service | None], Service], runs: Path, *chosen: str, anew: bool = False
) -> tuple[Service, Path | None]:
    """Read the state, change it and write it, while no other process can do so.

    Args:
        change: returns the new state from the present one, which is None if nothing was deployed.
        runs: the folder of the runs.
        chosen: folders of runs that are taken as they are now.
        anew: whether to begin a new state if the present one is damaged. The damaged file is kept.

    Returns:
        The new state, and where a damaged file is now; None without one.

    Raises:
        InputError: the file is damaged, unless `anew`; or as `change`.
        WorldError: the disk is full, failed, or cannot be written.
    """
    damaged = None
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with folder_lock(runs, "another deploy", wait=True):
            try:
                present = load_service(runs)
            except InputError:
                if not anew:
                    raise
                present = None
                damaged = runs / f"{SERVICE}.damaged"
            service = change(present).with_digests(*chosen)
            if damaged:
                _keep(runs / SERVICE, damaged)
            save_service(service, runs)
    except CacheLocked:
        raise
    except CacheError as error:  # the lock speaks of caches
        raise _not_written(runs, error.__cause__ or error) from error
    except OSError as error:
        raise _not_written(runs, error) from error
    return service, damaged


def _keep(file: Path, copy: Path) -> None:
    """Keep what a file holds under another name; the file stays until it is replaced."""
    copy.unlink(missing_ok=True)
    try:
        copy.hardlink_to(file)
    except OSError:  # a folder, or a disk without hard links
        file.replace(copy)


def _not_written(runs: Path, error: BaseException) -> WorldError:
    reason = getattr(error, "strerror", None) or error
    return WorldError(f"cannot write: {runs / SERVICE}: {reason}; ask the owner of the folder")
