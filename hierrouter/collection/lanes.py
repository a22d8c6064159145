"""Models behind servers, asked side by side: each has a thread of its own, and a feed of calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any

from hierrouter.collection.plan import Call
from hierrouter.engines.generator import Answer, Engines, Failure, Feed, Response, Stop
from hierrouter.pools.pool import ModelSpec


@dataclass(frozen=True)
class Asked:
    """A call that a server is to answer.

    Attributes:
        call: what it is asked.
        level: of the context, 0 before the first hop; L for a direct call, which leads nowhere.
        texts: of the context: the question, and every answer so far.
        attempt: 1 for the first one.
    """

    call: Call
    level: int
    texts: tuple[str, ...]
    attempt: int = 1


# The place of what was asked, and the answer; the last that a lane tells is instead why it has
# ended, None where the feed was closed or stopped, with any number.
News = tuple["Lane", int, Answer | Exception | None]


@dataclass(eq=False)
class Lane:
    """One model behind a server; only its generator runs in the lane's thread.

    Attributes:
        news: told of each answer, and of the end.
        count: told of each answer at once, in the lane's thread.
        open: what was asked and is not answered, by its place.
        again: what has failed, and may be asked again.
        part: what is answered and not committed.
        lost: what has failed for good and is not written down.
        began: when the part was begun.
    """

    model: ModelSpec
    engines: Engines
    stop: Stop
    news: SimpleQueue[News]
    count: Callable[[ModelSpec, Response], None]
    open: dict[int, Asked] = field(default_factory=dict)
    again: list[Asked] = field(default_factory=list)
    part: list[tuple[Call, Response]] = field(default_factory=list)
    lost: list[tuple[Asked, Failure]] = field(default_factory=list)
    began: float = field(default_factory=perf_counter)

    def __post_init__(self) -> None:
        self.feed = Feed()
        self._thread = Thread(target=self._answer, name=f"asks {self.model.name}", daemon=True)
        self._thread.start()

    def ask(self, asked: Asked) -> None:
        """Put a call to the others."""
        self.open[self.feed.put(asked.call.prompt)] = asked

    def ask_again(self) -> None:
        """Put what has failed to the others, once more."""
        for asked in self.again:
            self.ask(Asked(asked.call, asked.level, asked.texts, asked.attempt + 1))
        self.again = []

    def end(self) -> None:
        """Let go of what is under way, and wait for the thread."""
        self.feed.cancel()
        self._thread.join()

    def _answer(self) -> None:
        ended: Exception | None = None
        try:
            served: Any = self.engines(self.model.backend).load(self.model)
            self.began = perf_counter()  # loading is not the time of a call
            for place, answer in served.generate(self.feed, self.stop):
                if isinstance(answer, Response):
                    self.count(self.model, answer)
                self.news.put((self, place, answer))
        except Exception as error:  # whatever it is, the collection has to know
            ended = error
        self.news.put((self, 0, ended))
