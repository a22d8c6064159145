"""Route live questions through the models of a pool."""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from types import TracebackType
from typing import Any

import anyio
from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from hierrouter.engines import backend
from hierrouter.engines.encoders import load_encoder
from hierrouter.engines.generator import PART_BREAK, Engines
from hierrouter.learning.bundle import (
    FILE,
    Bundle,
    load_bundle,
    refuse_stored_keys,
    require_pool,
    require_same_weights,
)
from hierrouter.learning.checkpoint import DESCRIPTION, description_of, load_checkpoint
from hierrouter.learning.runs import finished_runs
from hierrouter.pools.pool import OPENAI, ModelSpec, Pool
from hierrouter.questions.files import MAX_LINE
from hierrouter.questions.query import storable
from hierrouter.serving.models import CallFailed, LiveModel
from hierrouter.serving.route import Asked, Decision, Follow, LivePolicy, Routed, Together, Way
from hierrouter_cache.errors import InputError

# What stands before a turn in a transcript; who says it in a message.
SPEAKERS = {"user": "User: ", "assistant": "Assistant: "}
INSTRUCTING = ("system", "developer")
MOST_CHARACTERS = 2_000_000

Message = Mapping[str, Any]


def question_of(messages: str | Sequence[Message]) -> str:
    """The question that these messages ask.

    Args:
        messages: the question itself; or objects with `role` and `content`, the last of them the
            user's. What the system or developer says comes first.

    Raises:
        InputError: no message, an unknown role, no text, or somebody else has the last word.
    """
    if isinstance(messages, str):
        return _checked(messages)
    if not messages:
        raise InputError("no message: messages; give at least one of role user")
    turns = [_turn(message, f"messages[{place}]") for place, message in enumerate(messages)]
    if turns[-1][0] != "user":
        raise InputError(f"the last message is of role {turns[-1][0]}: messages; it must be user's")
    orders = [text for role, text in turns if role in INSTRUCTING]
    said = [(role, text) for role, text in turns if role in SPEAKERS]
    if len(said) > 1:
        said = [(role, SPEAKERS[role] + text) for role, text in said]
    return _checked(PART_BREAK.join([*orders, *(text for _, text in said)]))


def _turn(message: Any, where: str) -> tuple[str, str]:
    """Role and text of one message."""
    if not isinstance(message, Mapping):
        raise InputError(f"a message is no object: {where}; give role and content")
    role = message.get("role")
    if role not in (*SPEAKERS, *INSTRUCTING):
        known = ", ".join((*SPEAKERS, *INSTRUCTING))
        raise InputError(f"unknown role {role!r:.40}: {where}; known: {known}")
    text = _text(message.get("content"), where)
    if not text.strip() and role == "user":
        raise InputError(f"an empty message: {where}; give a text")
    return role, text


def _text(content: Any, where: str) -> str:
    """The text of a message, given whole or in parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InputError(f"content is no text: {where}; give a text, or parts of type text")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            raise InputError(f"content of type {kind!r:.40}: {where}; only text can be routed")
        texts.append(text)
    return "".join(texts)


def _checked(question: str) -> str:
    if not question.strip():
        raise InputError("an empty question; give a text")
    if len(question) > MOST_CHARACTERS:
        raise InputError(
            f"a question of {len(question):,} characters; at most {MOST_CHARACTERS:,} are taken"
        )
    return storable(question)


def live_run(alpha: float | None = None) -> Path:
    """The newest run of `train` for this alpha; else a network of the newest sweep.

    Args:
        alpha: None takes the newest run of `train`, whatever its alpha.

    Raises:
        InputError: there is none that can answer live questions.
    """
    for run in finished_runs("train"):
        its_alpha = description_of(run).get("objective", {}).get("alpha")
        if (run / FILE).is_file() and alpha in (None, its_alpha):
            return run
    for sweep in finished_runs("sweep-alpha"):
        if not (sweep / FILE).is_file():
            continue
        for network in sorted(file.parent for file in sweep.glob(f"*/{DESCRIPTION}")):
            if "alphas" in description_of(network):  # for every alpha
                return network
    wanted = "" if alpha is None else f" for alpha {alpha:g}, and no sweep"
    remedy = "`hierrouter train`" if alpha is None else "`hierrouter sweep-alpha`, or --checkpoint"
    raise InputError(f"no trained router{wanted}: runs; {remedy}")


def load_models(pool: Pool, engines: Engines) -> dict[str, LiveModel]:
    """Every model of the pool, by name, in the order of its actions; references are not called.

    Raises:
        InputError, WorldError: one cannot be loaded or reached; see its backend.
    """
    return {spec.name: _live(spec, engines) for spec in pool.models}


def _live(spec: ModelSpec, engines: Engines) -> LiveModel:
    generator = engines(spec.backend).load(spec)  # a served model is asked for here, too
    if spec.backend == OPENAI:
        from hierrouter.engines.endpoint import EndpointGenerator
        from hierrouter.serving.served import ServedModel

        assert isinstance(generator, EndpointGenerator)
        return ServedModel(spec, generator.caller)
    from hierrouter.serving.models import BatchedModel

    return BatchedModel(spec.name, generator)


@dataclass(frozen=True)
class Deployment:
    """What a run left for live questions.

    Attributes:
        policy: decides.
        pool: the models that it learned with, in the order of its actions.
        bundle: what stands beside the policy; None where nothing does.
    """

    policy: LivePolicy
    pool: Pool
    bundle: Bundle | None

    @classmethod
    def from_run(cls, run: str | Path, pool: Pool | None = None) -> Deployment:
        """The policy of a run, its encoder loaded.

        Args:
            run: folder of the run, or of one seed of a sweep.
            pool: call these models instead of those in the run's `live.json`; same names and order.

        Raises:
            InputError: there is no policy, or no pool, or they do not fit together; or the run
                wants a key from the environment.
            WorldError: the encoder cannot be loaded.
        """
        folder = Path(run)
        checkpoint = load_checkpoint(folder)
        bundle = load_bundle(folder if folder.is_dir() else folder.parent)
        if bundle and pool is None:
            refuse_stored_keys(bundle, folder)
            pool = bundle.pool
        if pool is None:
            raise InputError(f"no live.json, so no pool: {folder}; give the pool it learned with")
        require_pool(checkpoint.origin, pool)
        encoder = load_encoder(checkpoint.origin.encoder)
        policy = LivePolicy(checkpoint, encoder, bundle.ceilings if bundle else None)
        return cls(policy, pool, bundle)

    def load_models(self, engines: Engines = backend) -> dict[str, LiveModel]:
        """All models of the pool, by name.

        Args:
            engines: the backend of a name.

        Raises:
            InputError: a model has other weights than the one that the policy learned with.
            WorldError: a model cannot be loaded, or a server does not answer.
        """
        if self.bundle:
            require_same_weights(self.pool, self.bundle, engines)
        return load_models(self.pool, engines)


LOOK_S = 0.2  # between two looks whether it has been stopped
CHUNK = 1 << 16


def piped_lines(pipe: int, stopped: Event, where: str) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes) of each line; once `stopped` is set, no more.

    Args:
        pipe: read past Python's own buffers; whoever reads there as well takes lines away.
        where: its name, for messages.

    Raises:
        InputError: it cannot be read, or a line is too long.
    """
    number, begun = 0, bytearray()
    while chunk := _next(pipe, stopped, where):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            number += 1
            yield number, bytes(begun) + line
            begun.clear()
        begun += rest
        if len(begun) > MAX_LINE:
            raise InputError(
                f"line longer than {MAX_LINE:,} bytes: {where}:{number + 1}; "
                "write one JSON object per line"
            )
    if begun and not stopped.is_set():
        yield number + 1, bytes(begun)


def _next(pipe: int, stopped: Event, where: str) -> bytes:
    """What comes next; nothing at the end, or when it was stopped."""
    try:
        while not stopped.is_set():
            if select.select([pipe], [], [], LOOK_S)[0]:
                return os.read(pipe, CHUNK)
    except OSError as error:
        raise InputError(f"cannot be read: {where}: {error.strerror}; give JSON lines") from None
    return b""


class Router:
    """A trained policy with its models at hand.

    Use it in one event loop by `aroute`, or without one by `route`. Close it, or use it in a
    `with` block.

    Args:
        run: of `train`, or the folder of a run of `train` or `sweep-alpha`, or of one seed of a
            sweep.
        pool: call these models instead of those in the run's `live.json`; same names and order.
        engines: the backend of a name.

    Raises:
        InputError: there is no policy, or no pool, or they do not fit together; or a model has
            other weights than the one that the policy learned with.
        WorldError: a model or the encoder cannot be loaded, or a server does not answer.
    """

    policy: LivePolicy
    pool: Pool

    def __init__(
        self,
        run: str | os.PathLike[str],
        pool: Pool | None = None,
        engines: Engines = backend,
    ) -> None:
        found = Deployment.from_run(Path(run), pool)
        self._take(found.policy, found.pool, found.load_models(engines))

    @classmethod
    def of(cls, policy: LivePolicy, pool: Pool, models: Mapping[str, LiveModel]) -> Router:
        """One of parts that are there already.

        Args:
            policy: decides.
            pool: the models that it learned with, in the order of its actions.
            models: the same, ready to be asked, by name; without them it can only tell what it
                would do first.

        Raises:
            InputError: the pool is not the policy's.
        """
        router = cls.__new__(cls)
        router._take(policy, pool, models)
        return router

    def _take(self, policy: LivePolicy, pool: Pool, models: Mapping[str, LiveModel]) -> None:
        require_pool(policy.origin, pool)
        self.policy = policy
        self.pool = pool
        self._models = models
        self._deciding = Together(policy)
        self._lock = Lock()
        self._loop = ExitStack()
        self._portal: BlockingPortal | None = None

    async def aroute(
        self,
        messages: str | Sequence[Message],
        asked: Asked | None = None,
        follow: Follow | None = None,
    ) -> Routed:
        """Answer a question.

        Args:
            messages: the question, or messages as OpenAI's chat completions have them.
            asked: how it is to be routed.
            follow: told what happens on the way.

        Raises:
            InputError: no question, or an alpha or limit that the policy cannot be asked for.
            CallFailed: a model gave no answer.
        """
        return await self._way(messages, asked, follow).to_its_end()

    def route(
        self,
        messages: str | Sequence[Message],
        asked: Asked | None = None,
        follow: Follow | None = None,
    ) -> Routed:
        """As `aroute`, from a thread without an event loop; any number of threads may call it."""
        with self._lock:
            if self._portal is None:
                self._portal = self._loop.enter_context(
                    start_blocking_portal("asyncio", name="router")
                )
        return self._portal.call(self.aroute, messages, asked, follow)

    async def first(
        self, messages: str | Sequence[Message], asked: Asked | None = None
    ) -> Decision:
        """What the policy would do first; no model is called."""
        return (await self._way(messages, asked, None).decide())[0]

    async def aclose(self) -> None:
        """Let go of all models; one that fails at it keeps none of the others."""
        async with AsyncExitStack() as held:
            held.callback(self._deciding.close)
            for model in self._models.values():
                held.push_async_callback(model.close)

    def close(self) -> None:
        """As `aclose`, for who used `route`."""
        with self._lock:
            portal, self._portal = self._portal, None
            with self._loop:
                if portal is None:
                    anyio.run(self.aclose)
                else:
                    portal.call(self.aclose)

    def __enter__(self) -> Router:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _way(
        self, messages: str | Sequence[Message], asked: Asked | None, follow: Follow | None
    ) -> Way:
        asked = asked or Asked()
        return Way(
            question_of(messages),
            self.policy.at(asked.alpha, asked.max_cost),
            asked,
            follow or Follow(),
            self.pool,
            self._models,
            self._deciding,
        )


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
