"""The routers of a server: the one in service, and a candidate beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anyio import to_thread

from hierrouter.serving.chat import ModelNames
from hierrouter.serving.router import Router
from hierrouter_cache.keys import text_digest

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
