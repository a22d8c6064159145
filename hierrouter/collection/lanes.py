"""One lane for each model: the requests to it, and their answers on the way to the scheduler.

A model behind a server answers in a thread, as requests come. A model on this machine answers in
batches, in the thread of the scheduler. Both deliver through one queue of events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from queue import SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import Any

from hierrouter.engines.generator import (
    Answer,
    Call,
    Engines,
    Failure,
    Feed,
    Residency,
    Response,
    Stop,
    with_generation,
)
from hierrouter.pools.pool import Generation, ModelSpec
from hierrouter_cache.errors import WorldError, reason_of


@dataclass(frozen=True)
class Request:
    """A call that a model was asked to answer.

    Attributes:
        call: the call.
        level: of its context: 0 before the first hop; L for a direct call, which nothing follows.
        texts: of its context: the question and all responses so far.
        attempt: 1 for the first one.
        draw: which of the draws of the same call it is.
        generation: decoding settings of an action; None is those of the model.
    """

    call: Call
    level: int
    texts: tuple[str, ...]
    attempt: int = 1
    draw: int = 0
    generation: Generation | None = None


@dataclass(frozen=True)
class Delivery:
    """The answer to one request.

    Attributes:
        position: of the request in `lane.open`.
    """

    lane: Lane
    position: int
    answer: Answer


@dataclass(frozen=True)
class LaneEnd:
    """The end of a served lane, after all its deliveries.

    Attributes:
        error: why it ended; None if its feed was closed or the collection was stopped.
    """

    lane: Lane
    error: Exception | None


Event = Delivery | LaneEnd
OnResponse = Callable[[ModelSpec, str, Response], None]  # of a model and a step


class Lane:
    """The requests to one model. Use `ServedLane` or `LocalLane`.

    Attributes:
        open: requests without an answer, by their position.
        retries: requests that failed and may succeed when they are repeated.
        part: answered calls that are not committed yet.
        failures: requests that failed for good and are not committed yet.
        began: start of the part, by `perf_counter`.
    """

    def __init__(
        self, model: ModelSpec, events: SimpleQueue[Event], on_response: OnResponse
    ) -> None:
        """Make an empty lane.

        Args:
            model: the model.
            events: takes each delivery.
            on_response: called at once for each response, perhaps in another thread.
        """
        self.model = model
        self.open: dict[int, Request] = {}
        self.retries: list[Request] = []
        self.part: list[tuple[Call, Response]] = []
        self.failures: list[tuple[Request, Failure]] = []
        self.began = perf_counter()
        self._events = events
        self._on_response = on_response

    def ask(self, request: Request) -> None:
        """Add a request to those that the model is to answer."""
        raise NotImplementedError

    def ask_again(self) -> None:
        """Ask once more for everything in `retries`."""
        retries = self.retries
        self.retries = []
        for request in retries:
            self.ask(replace(request, attempt=request.attempt + 1))

    def end(self) -> None:
        """Cancel what is under way, and wait until the lane has ended."""

    def _step_of(self, position: int) -> str:
        """The step of the request at a position, which is still open."""
        return self.open[position].call.step

    def _deliver(self, position: int, answer: Answer) -> None:
        try:
            if isinstance(answer, Response):
                self._on_response(self.model, self._step_of(position), answer)
        finally:  # an answer is kept, even if nobody could be notified
            self._events.put(Delivery(self, position, answer))


class ServedLane(Lane):
    """A model behind a server: it is asked at once, from a thread of the lane.

    Attributes:
        has_ended: whether its `LaneEnd` was handled; it must not be asked any more.
    """

    def __init__(
        self,
        model: ModelSpec,
        engines: Engines,
        stop: Stop,
        events: SimpleQueue[Event],
        on_response: OnResponse,
    ) -> None:
        """Start the thread.

        Args:
            model: the model.
            engines: load it.
            stop: once it returns true, the server gets no further request.
            events: takes each delivery, and the end of the lane.
            on_response: called at once for each response, in the thread of the lane.
        """
        super().__init__(model, events, on_response)
        self.has_ended = False
        self._engines = engines
        self._stop = stop
        self._feed = Feed()
        # Steps by position, for the thread: the scheduler may forget open requests meanwhile.
        self._steps: dict[int, str] = {}
        self._adding = Lock()
        self._thread = Thread(target=self._run, name=f"lane of {model.name}", daemon=True)
        self._thread.start()

    def ask(self, request: Request) -> None:
        """Put a request into the feed of the thread."""
        with self._adding:  # the thread may answer before `put` has returned
            position = self._feed.put(request.call.prompt, request.draw, request.generation)
            self.open[position] = request
            self._steps[position] = request.call.step

    def end(self) -> None:
        """Cancel what is under way, and wait for the thread."""
        self._feed.cancel()
        self._thread.join()

    def _step_of(self, position: int) -> str:
        """The step of a request of this lane; runs in the thread, once for each answer."""
        with self._adding:
            return self._steps.pop(position)

    def _run(self) -> None:
        """Answer requests until the feed is closed; runs in the thread."""
        end = LaneEnd(self, None)
        try:
            # The generator takes a feed, too, if its model is behind a server.
            served: Any = self._engines(self.model.backend).load(self.model)
            self.began = perf_counter()  # loading is not the time of a call
            for position, answer in served.generate(self._feed, self._stop):
                self._deliver(position, answer)
        except Exception as error:  # whatever it is, the scheduler must know of it
            end = LaneEnd(self, error)
        self._events.put(end)


class LocalLane(Lane):
    """A model on this machine: it answers in batches, while `answers` is iterated over."""

    def __init__(
        self,
        model: ModelSpec,
        residency: Residency,
        stop: Stop,
        events: SimpleQueue[Event],
        on_response: OnResponse,
    ) -> None:
        """Make an empty lane; the model is loaded when it is needed.

        Args:
            model: the model.
            residency: loads it, and may release it between two batches.
            stop: once it returns true, no further request is begun.
            events: takes each delivery.
            on_response: called at once for each response.
        """
        super().__init__(model, events, on_response)
        self._residency = residency
        self._stop = stop
        self._positions = count()
        self._queue: list[int] = []

    def ask(self, request: Request) -> None:
        """Put a request into the next batch."""
        position = next(self._positions)
        self.open[position] = request
        self._queue.append(position)

    def answers(self) -> Iterator[None]:
        """Answer everything that was asked for, and what is asked for meanwhile.

        Yields after each delivery, so that the scheduler can handle it.

        Raises:
            WorldError: the model failed as a whole, or could not be loaded.
        """
        with blame_model(self.model):
            self._residency.generator(self.model)
        self.began = perf_counter()  # loading is not the time of a call
        while self._queue and not self._stop():
            positions = self._queue
            self._queue = []
            by_generation: dict[Generation | None, list[int]] = {}
            for position in positions:
                by_generation.setdefault(self.open[position].generation, []).append(position)
            for group in by_generation.values():
                requests = [self.open[position] for position in group]
                for index, answer in self._generate(requests):
                    self._deliver(group[index], answer)
                    yield
        self._queue = []

    def _generate(self, requests: Sequence[Request]) -> Iterator[tuple[int, Answer]]:
        """Answer requests that have the same settings."""
        prompts = [request.call.prompt for request in requests]
        draws = [request.draw for request in requests]
        generation = requests[0].generation or self.model.generation
        # Where all draws are the first, an engine need not know of draws.
        further = [draws] if any(draws) else []
        with blame_model(self.model):
            # No variable holds the generator, so that the residency can release the model.
            yield from with_generation(
                self._residency.generator(self.model), generation, self.model
            ).generate(prompts, self._stop, *further)


@contextmanager
def blame_model(model: ModelSpec) -> Iterator[None]:
    """Name the model in what its engine raises within the block.

    Raises:
        WorldError: instead of a RuntimeError or an OSError.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        reason = reason_of(error)
        raise WorldError(
            f"model {model.name} failed: {model.model}: {reason}; "
            "what was committed is safe, rerun the same command to resume"
        ) from error
