"""Many questions, some under way at a time.

In: a router, numbered questions. Out: what became of each, in their order. Not covered: how each
is routed (`router`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from anyio import to_thread

from hierrouter.live.conversation import Message, question_of
from hierrouter.live.models import CallFailed
from hierrouter.live.routed import Routed
from hierrouter.live.router import Asked, Router
from hierrouter_cache.errors import InputError

WIDTH = 16  # questions under way

Question = str | list[Message]


def question_in(row: dict[str, Any], where: str) -> Question:
    """The question of one line of JSON.

    Args:
        where: file and line, for messages.

    Raises:
        InputError: neither question nor messages, or both, or nothing that can be asked.
    """
    given = [name for name in ("question", "messages") if row.get(name) is not None]
    if len(given) != 1:
        raise InputError(
            f"{'both' if given else 'neither'} of question and messages: {where}; give one of them"
        )
    found = row[given[0]]
    if not isinstance(found, str if given[0] == "question" else list):
        kind = "a text" if given[0] == "question" else "a list of messages"
        raise InputError(f"{given[0]} is not {kind}: {where}; give one")
    try:
        question_of(found)
    except InputError as error:
        said, _, remedy = str(error).partition("; ")
        raise InputError(f"{said}: {where}; {remedy}") from None
    return found


async def route_all(
    router: Router, questions: Iterable[Question], asked: Asked, width: int = WIDTH
) -> AsyncGenerator[Routed | CallFailed]:
    """What each question came to, in their order; one that fails stops no other.

    Who ends early closes it, and takes along what is under way.

    Args:
        questions: read as they are needed, in a thread that is waited for: who calls this off has
            to end a read that waits for somebody, see `piped`.
        width: how many are under way.

    Raises:
        InputError: a question that cannot be asked, after those before it.
    """
    under_way: deque[asyncio.Task[Routed | CallFailed]] = deque()
    coming = iter(questions)
    reading: asyncio.Task[Question | None] | None = None
    broken: InputError | None = None
    is_over = False
    try:
        while not is_over or under_way:
            if reading is None and not is_over and len(under_way) < width:
                # In a thread: a pipe may be waited for.
                reading = asyncio.create_task(to_thread.run_sync(next, coming, None))
            waited_for = {task for task in (reading, *list(under_way)[:1]) if task}
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if reading is not None and reading.done():
                try:
                    question = reading.result()
                except InputError as error:  # those before it are answered all the same
                    question, broken = None, error
                reading, is_over = None, question is None
                if question is not None:
                    under_way.append(asyncio.create_task(_routed(router, question, asked)))
            while under_way and under_way[0].done():
                yield under_way.popleft().result()
    finally:
        if reading is not None:  # nobody waits for it; what it says at its end is nobody's error
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    if broken:
        raise broken


async def _routed(router: Router, question: Question, asked: Asked) -> Routed | CallFailed:
    try:
        return await router.aroute(question, asked)
    except CallFailed as error:
        return error
