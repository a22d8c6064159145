"""Decide for all who wait at once.

In: states of many questions, one by one, in one event loop. Out: the decision of each, and the
seconds that encoder and network took for it and those worked out together with it. While threads
work out some, others gather, and are worked out together next: encoder and network take hardly
longer for thirty states than for one. Not covered: the decisions (`policy`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import ParamSpec, TypeVar

from anyio import to_thread

from hierrouter.live.policy import Decision, LivePolicy, LiveState
from hierrouter.threads import lone_thread

Decided = tuple[Decision, float]
P = ParamSpec("P")
T = TypeVar("T")


class Together:
    """Gathers states for a policy.

    The encoder takes the threads it gets; the network is small, and has one to itself.

    Args:
        policy: decides.
    """

    def __init__(self, policy: LivePolicy) -> None:
        self._policy = policy
        self._thread = lone_thread("router")
        self._waiting: list[tuple[LiveState, asyncio.Future[Decided]]] = []
        self._work: asyncio.Task[None] | None = None

    async def decision(self, state: LiveState) -> Decided:
        """What to do at one state, and the seconds that it took to work it out.

        Raises:
            Exception: whatever the policy raises.
        """
        future: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
        self._waiting.append((state, future))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._all())
        return await future

    def close(self) -> None:
        """Let go of the thread."""
        self._thread.shutdown(wait=False)

    async def _all(self) -> None:
        """Until nobody waits."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                found = await self._decided([state for state, _ in batch])
            except Exception as error:
                await self._one_by_one(batch, error)
                continue
            for (_, future), decision in zip(batch, found, strict=True):
                if not future.done():
                    future.set_result(decision)

    async def _one_by_one(
        self, batch: Sequence[tuple[LiveState, asyncio.Future[Decided]]], error: Exception
    ) -> None:
        """Find out whose the error is; the others have their decisions."""
        for state, future in batch:
            try:
                alone = await self._decided([state]) if len(batch) > 1 else None
            except Exception as its_own:
                error, alone = its_own, None
            if future.done():
                continue
            if alone:
                future.set_result(alone[0])
            else:
                future.set_exception(error)

    async def _decided(self, states: Sequence[LiveState]) -> list[Decided]:
        embedded, encoder_s = await to_thread.run_sync(lambda: _timed(self._policy.embed, states))
        loop = asyncio.get_running_loop()
        decisions, network_s = await loop.run_in_executor(
            self._thread, lambda: _timed(self._policy.decide, states, embedded)
        )
        return [(decision, encoder_s + network_s) for decision in decisions]


def _timed(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    """What it gives, and the seconds it took."""
    started = perf_counter()
    found = work(*args, **kwargs)
    return found, perf_counter() - started
