"""Models that answer one prompt at a time: the seam of live routing, and the local models."""

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
    AdjustableGenerator,
    Answer,
    CallOptions,
    Failure,
    Generator,
    Response,
)
from hierrouter.pools.pool import Ability, Generation
from hierrouter_cache.errors import WorldError, reason_of

# Prompts of one batch. Prompts that arrive later wait for the whole batch, so it stays small.
MAX_LIVE_BATCH = 64

# Receives the next piece of a response's text.
OnText = Callable[[str], None]


class LiveModel(Protocol):
    """A model that can be called now.

    Attributes:
        abilities: what it takes beside the prompt, see `hierrouter.pools.pool.Ability`.
        takes_settings: whether it decodes as a client asks it to.
        fault: why the model cannot be called now; "" if it can, as far as is known.
        has_changed: whether it answers otherwise than when its responses were collected.
    """

    abilities: frozenset[Ability]
    takes_settings: bool
    has_changed: bool

    @property
    def fault(self) -> str: ...

    async def answer(
        self, prompt: str, on_text: OnText | None = None, options: CallOptions = NO_OPTIONS
    ) -> Response:
        """Return the response to one prompt.

        Args:
            prompt: the user message.
            on_text: receives the text as it grows; the pieces make up the text of the response,
                except for white space at both ends.
            options: what a client wants beside the text; heeded as far as the model can.

        Raises:
            CallFailed: there is no response; perhaps after `on_text` has received a part of it.
        """
        ...

    async def check(self) -> None:
        """If the model has a fault, try whether it answers again, and update `fault`."""
        ...

    async def close(self) -> None:
        """Accept no more prompts, and free threads and connections."""
        ...


class CallFailed(WorldError):
    """A live call has no response, after all its attempts.

    Args:
        model: name of the model that was called.
        reason: why it gave none.
        status: one of `hierrouter.engines.generator.STATUSES`.

    Attributes:
        has_begun: whether a part of the response was streamed before.
        earlier: the failed calls that this one replaced, oldest first.
    """

    has_begun = False
    earlier: tuple[CallFailed, ...] = ()

    def __init__(self, model: str, reason: str, status: str = "error") -> None:
        super().__init__(f"{model} gave no answer: {reason}")
        self.model = model
        self.reason = reason
        self.status = status

    @property
    def is_too_long(self) -> bool:
        """Whether the prompt and its response do not fit the model's window."""
        return self.status == "too_long"


class BatchedModel:
    """One local model and its thread; prompts that wait are answered in one batch.

    It decodes as its pool says, whatever a client wants.

    Args:
        name: of the model, for messages.
        generator: the model.
    """

    abilities: frozenset[Ability] = frozenset()
    takes_settings = False
    fault = ""
    has_changed = False

    def __init__(self, name: str, generator: Generator) -> None:
        self._name = name
        self._generator = generator
        self._waiting: SimpleQueue[_Request | None] = SimpleQueue()  # None ends the thread
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=f"model {name}", daemon=True)
        self._thread.start()

    async def answer(
        self, prompt: str, on_text: OnText | None = None, options: CallOptions = NO_OPTIONS
    ) -> Response:
        """Return the response to one prompt; see `LiveModel.answer`.

        Raises:
            CallFailed: the prompt does not fit, the model failed, or it was closed.
        """
        if self._is_closed:
            raise CallFailed(self._name, "the router was closed")
        follow = _in_event_loop(on_text) if on_text else None
        request = _Request(prompt, Future(), follow, options.generation)
        self._waiting.put(request)
        try:
            answer = await asyncio.wrap_future(request.answer)
        except RuntimeError as error:
            raise CallFailed(self._name, reason_of(error, 200)) from error
        if isinstance(answer, Failure):
            raise CallFailed(self._name, answer.detail, answer.status)
        return answer

    async def check(self) -> None:
        """Do nothing: a local model cannot be unreachable."""

    async def close(self) -> None:
        """Answer the prompts that wait now, then end the thread."""
        if not self._is_closed:
            self._is_closed = True
            self._waiting.put(None)
            await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        """Answer batch after batch until the model is closed."""
        while request := self._waiting.get():
            # Leave out requests that were cancelled because their client has left.
            batch = [
                waiting
                for waiting in self._batch(request)
                if waiting.answer.set_running_or_notify_cancel()
            ]
            if batch:
                self._answer_batch(batch)

    def _answer_batch(self, batch: Sequence[_Request]) -> None:
        reason = "the engine gave no answer"
        try:
            for generation in dict.fromkeys(request.generation for request in batch):
                group = [request for request in batch if request.generation == generation]
                for position, answer in self._answers(group, self._generator_for(generation)):
                    group[position].answer.set_result(answer)
        except Exception as error:  # an engine may raise anything, and the thread must live on
            reason = str(error) or type(error).__name__
        for request in batch:
            if not request.answer.done():
                request.answer.set_exception(RuntimeError(reason))

    def _batch(self, first: _Request) -> Iterator[_Request]:
        """Yield a request, and those that wait behind it."""
        yield first
        for _ in range(MAX_LIVE_BATCH - 1):
            try:
                request = self._waiting.get_nowait()
            except Empty:
                return
            if request is None:
                self._waiting.put(None)  # end the thread after this batch
                return
            yield request

    def _generator_for(self, generation: Generation | None) -> Generator:
        """Return the model with the settings of an action."""
        if generation is None:
            return self._generator
        if not isinstance(self._generator, AdjustableGenerator):
            raise RuntimeError("its engine has one setting a model")
        return self._generator.with_generation(generation)

    def _answers(
        self, batch: Sequence[_Request], generator: Generator
    ) -> Iterator[tuple[int, Answer]]:
        """Yield (position in the batch, answer), and pass texts on to the callbacks."""
        prompts = [request.prompt for request in batch]
        callbacks = {
            position: request.on_text for position, request in enumerate(batch) if request.on_text
        }
        if isinstance(generator, StreamingGenerator):
            yield from generator.answer_now(prompts, callbacks)
            return
        for position, answer in generator.generate(prompts):
            if isinstance(answer, Response) and position in callbacks:
                callbacks[position](answer.text)
            yield position, answer


@runtime_checkable
class StreamingGenerator(Protocol):
    """A generator that passes texts on as they grow."""

    def answer_now(
        self, prompts: Sequence[str], follow: Mapping[int, OnText]
    ) -> Iterator[tuple[int, Answer]]:
        """Answer as `Generator.generate` does, and stream some of the texts.

        Args:
            prompts: of the batch.
            follow: by position in `prompts`, the callback that receives the growing text.
        """
        ...


@dataclass(frozen=True)
class _Request:
    """A prompt that waits, the future of its answer, and the callback for its text."""

    prompt: str
    answer: Future[Answer]
    on_text: OnText | None
    generation: Generation | None = None


def _in_event_loop(on_text: OnText) -> OnText:
    """Wrap a callback so that other threads can call it in the event loop that runs now."""
    loop = asyncio.get_running_loop()

    def call(text: str) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(on_text, text)

    return call
