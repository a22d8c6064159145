"""Models that answer one prompt at a time: the seam of live routing, and the local ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol, runtime_checkable

from hierrouter.engines.generator import (
    NO_OPTIONS,
    Answer,
    CallOptions,
    Failure,
    Generator,
    Response,
)
from hierrouter.pools.pool import Ability
from hierrouter_cache.errors import WorldError, reason_of

MOST_AT_ONCE = 64  # prompts of one batch: those who come later would wait for all of it

# Told what comes next of an answer.
OnText = Callable[[str], None]


class LiveModel(Protocol):
    """A model that can be asked now.

    Attributes:
        takes: what it heeds beside the prompt, see `hierrouter.pools.pool.Ability`.
        takes_settings: whether it heeds how a client wants it to decode.
        fault: why it gave nothing when it was last asked; "" where it did.
        changed: whether it answers otherwise than when its answers were collected.
    """

    takes: frozenset[Ability]
    takes_settings: bool
    fault: str
    changed: bool

    async def answer(
        self, prompt: str, on_text: OnText | None = None, wanted: CallOptions = NO_OPTIONS
    ) -> Response:
        """The answer to one prompt.

        Raises CallFailed: there is none; perhaps after a part of it was told.

        `on_text`: told the text as it grows; all that it is told is the answer's text, but for
        white space at both ends; `wanted`: by a client, as far as the model takes it.
        """
        ...

    async def look(self) -> None:
        """Find out whether it can be asked, where it could not be; `fault` says what was found."""
        ...

    async def close(self) -> None:
        """Take no more prompts, and let go of threads and connections."""
        ...


class CallFailed(WorldError):
    """A live call has no answer, after as many attempts as it takes.

    Args:
        model: who was called.
        reason: why.
        status: of `hierrouter.engines.generator.STATUSES`.

    Attributes:
        was_begun: whether a part of the answer was told before.
        earlier: the failed calls in whose place this one was made, oldest first.
    """

    was_begun = False
    earlier: tuple[CallFailed, ...] = ()

    def __init__(self, model: str, reason: str, status: str = "error") -> None:
        super().__init__(f"{model} gave no answer: {reason}")
        self.model = model
        self.reason = reason
        self.status = status


class BatchedModel:
    """One local model and the thread that it answers in; what waits is answered in one batch.

    It decodes as its pool says, whatever a client wants.

    Args:
        name: of the model, for messages.
        generator: the model.
    """

    takes: frozenset[Ability] = frozenset()
    takes_settings = False
    fault = ""
    changed = False

    def __init__(self, name: str, generator: Generator) -> None:
        self._name = name
        self._generator = generator
        self._waiting: SimpleQueue[_Request | None] = SimpleQueue()  # None is the end
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"model {name}", daemon=True)
        self._thread.start()

    async def answer(
        self, prompt: str, on_text: OnText | None = None, wanted: CallOptions = NO_OPTIONS
    ) -> Response:
        """The answer to one prompt; see `LiveModel`.

        Raises CallFailed: the prompt does not fit, the model failed, or it was closed.
        """
        if self._closed:
            raise CallFailed(self._name, "the router was closed")
        request = _Request(prompt, Future(), _in_loop(on_text) if on_text else None)
        self._waiting.put(request)
        try:
            found = await asyncio.wrap_future(request.answer)
        except RuntimeError as error:
            raise CallFailed(self._name, reason_of(error, 200)) from error
        if isinstance(found, Failure):
            raise CallFailed(self._name, found.detail, found.status)
        return found

    async def look(self) -> None:
        """It is on this machine."""

    async def close(self) -> None:
        """Answer what waits now, and nothing more."""
        if not self._closed:
            self._closed = True
            self._waiting.put(None)
            await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while request := self._waiting.get():
            # Who has gone is not answered.
            batch = [
                one for one in self._batch(request) if one.answer.set_running_or_notify_cancel()
            ]
            reason = "the engine gave no answer"
            try:
                for place, answer in self._answers(batch) if batch else ():
                    batch[place].answer.set_result(answer)
            except Exception as error:  # an engine may raise anything, and the thread must live on
                reason = str(error) or type(error).__name__
            for one in batch:
                if not one.answer.done():
                    one.answer.set_exception(RuntimeError(reason))

    def _batch(self, first: _Request) -> Iterator[_Request]:
        yield first
        for _ in range(MOST_AT_ONCE - 1):
            try:
                request = self._waiting.get_nowait()
            except Empty:
                return
            if request is None:
                self._waiting.put(None)  # the end, after this batch
                return
            yield request

    def _answers(self, batch: Sequence[_Request]) -> Iterator[tuple[int, Answer]]:
        """What the generator gives, each text told to who follows it."""
        prompts = [one.prompt for one in batch]
        follow = {place: one.on_text for place, one in enumerate(batch) if one.on_text}
        if isinstance(self._generator, AnswersNow):
            yield from self._generator.answer_now(prompts, follow)
            return
        for place, answer in self._generator.generate(prompts):
            if isinstance(answer, Response) and place in follow:
                follow[place](answer.text)
            yield place, answer


@runtime_checkable
class AnswersNow(Protocol):
    """A generator for people who wait: it hands texts on as they grow."""

    def answer_now(
        self, prompts: Sequence[str], follow: Mapping[int, OnText]
    ) -> Iterator[tuple[int, Answer]]:
        """As `Generator.generate`; the texts at these places are told as they grow."""
        ...


@dataclass(frozen=True)
class _Request:
    """One prompt that waits, where its answer goes, and who follows it."""

    prompt: str
    answer: Future[Answer]
    on_text: OnText | None


def _in_loop(on_text: OnText) -> OnText:
    """The same, called from another thread in the loop that runs now."""
    loop = asyncio.get_running_loop()

    def call(text: str) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(on_text, text)

    return call
