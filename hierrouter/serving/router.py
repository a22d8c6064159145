"""Route live questions through the models of a pool, one or many."""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
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
from hierrouter.learning import bundle
from hierrouter.learning.checkpoint import DESCRIPTION, description_of, load_checkpoint
from hierrouter.learning.run_folders import finished_runs
from hierrouter.pools.pool import OPENAI, ModelSpec, Pool
from hierrouter.questions.files import MAX_LINE
from hierrouter.questions.query import storable
from hierrouter.serving.models import BatchedModel, CallFailed, LiveModel
from hierrouter.serving.route import (
    Decision,
    DecisionBatcher,
    LivePolicy,
    RouteOptions,
    RouteResult,
    Routing,
)
from hierrouter_cache.errors import InputError

# What stands before a turn in a transcript; who says it in a message.
SPEAKERS = {"user": "User: ", "assistant": "Assistant: "}
INSTRUCTING = ("system", "developer")
MOST_CHARACTERS = 2_000_000
WIDTH = 16  # questions of many that are under way
LOOK_S = 0.2  # between two looks whether a read has been stopped
CHUNK = 1 << 16

Message = Mapping[str, Any]
Question = str | Sequence[Message]


class Router:
    """A trained policy with its models at hand.

    Use it in one event loop by `aroute`, or without one by `route`. Close it, or use it in a
    `with` block.

    Args:
        run: of `train`, or the folder of a run of `train` or `sweep-alpha`, or of one seed of a
            sweep.
        pool: call these models instead of those in the run's `live.json`; same names and order.
        engines: the backend of a name.
        load: whether to load the models now; until `load_models` it can only tell what it would do
            first.

    Attributes:
        policy: decides.
        pool: the models that it learned with, in the order of its actions.
        models: the same, ready to be asked, by name.

    Raises:
        InputError: there is no policy, or no pool, or they do not fit together; or the run wants a
            key from the environment; or a model has other weights than the one that the policy
            learned with.
        WorldError: a model or the encoder cannot be loaded, or a server does not answer.
    """

    policy: LivePolicy
    pool: Pool
    models: Mapping[str, LiveModel]

    def __init__(
        self,
        run: str | os.PathLike[str],
        pool: Pool | None = None,
        engines: Engines = backend,
        *,
        load: bool = True,
    ) -> None:
        folder = Path(run)
        checkpoint = load_checkpoint(folder)
        self._bundle = bundle.load_bundle(folder if folder.is_dir() else folder.parent)
        if self._bundle and pool is None:
            bundle.refuse_stored_keys(self._bundle, folder)
            pool = self._bundle.pool
        if pool is None:
            raise InputError(f"no live.json, so no pool: {folder}; give the pool it learned with")
        bundle.require_pool(checkpoint.origin, pool)
        encoder = load_encoder(checkpoint.origin.encoder)
        ceilings = self._bundle.ceilings if self._bundle else None
        self.policy = LivePolicy(checkpoint, encoder, ceilings)
        self.pool = pool
        self.models = {}
        self._engines = engines
        self._batcher = DecisionBatcher(self.policy)
        self._lock = Lock()
        self._loop = ExitStack()
        self._portal: BlockingPortal | None = None
        if load:
            self.load_models()

    def load_models(self) -> None:
        """Load every model of the pool; references are not called.

        Raises:
            InputError: a model has other weights than the one that the policy learned with.
            WorldError: a model cannot be loaded, or a server does not answer.
        """
        if self._bundle:
            bundle.require_same_weights(self.pool, self._bundle, self._engines)
        self.models = {spec.name: _live_model(spec, self._engines) for spec in self.pool.models}

    async def aroute(self, question: Question, options: RouteOptions | None = None) -> RouteResult:
        """Answer a question.

        Args:
            question: its text, or messages as OpenAI's chat completions have them.
            options: how it is to be routed, and who is told on the way.

        Raises:
            InputError: no question, or an alpha or limit that the policy cannot be asked for.
            CallFailed: a model gave no answer.
        """
        return await self._routing(question, options).run()

    def route(self, question: Question, options: RouteOptions | None = None) -> RouteResult:
        """As `aroute`, from a thread without an event loop; any number of threads may call it."""
        with self._lock:
            if self._portal is None:
                self._portal = self._loop.enter_context(
                    start_blocking_portal("asyncio", name="router")
                )
        return self._portal.call(self.aroute, question, options)

    async def first(self, question: Question, options: RouteOptions | None = None) -> Decision:
        """What the policy would do first; no model is called."""
        return (await self._routing(question, options).decide())[0]

    async def aclose(self) -> None:
        """Let go of all models; one that fails at it keeps none of the others."""
        async with AsyncExitStack() as held:
            held.callback(self._batcher.close)
            for model in self.models.values():
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

    def _routing(self, question: Question, options: RouteOptions | None) -> Routing:
        options = options or RouteOptions()
        return Routing(
            question=question_of(question),
            trained=self.policy.at(options.alpha, options.max_cost),
            options=options,
            pool=self.pool,
            models=self.models,
            batcher=self._batcher,
        )


def _live_model(spec: ModelSpec, engines: Engines) -> LiveModel:
    generator = engines(spec.backend).load(spec)  # a served model is asked for here, too
    if spec.backend != OPENAI:
        return BatchedModel(spec.name, generator)
    from hierrouter.engines.endpoint import EndpointGenerator
    from hierrouter.serving.served import ServedModel

    assert isinstance(generator, EndpointGenerator)
    return ServedModel(spec, generator.caller)


def live_run(alpha: float | None = None) -> Path:
    """The newest run of `train` for this alpha; else a network of the newest sweep.

    Args:
        alpha: None takes the newest run of `train`, whatever its alpha.

    Raises:
        InputError: there is none that can answer live questions.
    """
    for run in finished_runs("train"):
        its_alpha = description_of(run).get("objective", {}).get("alpha")
        if (run / bundle.FILE).is_file() and alpha in (None, its_alpha):
            return run
    for sweep in finished_runs("sweep-alpha"):
        if not (sweep / bundle.FILE).is_file():
            continue
        for network in sorted(file.parent for file in sweep.glob(f"*/{DESCRIPTION}")):
            if "alphas" in description_of(network):  # for every alpha
                return network
    wanted = "" if alpha is None else f" for alpha {alpha:g}, and no sweep"
    remedy = "`hierrouter train`" if alpha is None else "`hierrouter sweep-alpha`, or --checkpoint"
    raise InputError(f"no trained router{wanted}: runs; {remedy}")


def question_of(question: Question) -> str:
    """The text that models see.

    Args:
        question: the text itself; or objects with `role` and `content`, the last of them the
            user's. What the system or developer says comes first.

    Raises:
        InputError: no message, an unknown role, no text, or somebody else has the last word.
    """
    text = question if isinstance(question, str) else _transcript(question)
    if not text.strip():
        raise InputError("an empty question; give a text")
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"a question of {len(text):,} characters; at most {MOST_CHARACTERS:,} are taken"
        )
    return storable(text)


def _transcript(messages: Sequence[Message]) -> str:
    """Several turns as one text; a single one is its own text."""
    if not messages:
        raise InputError("no message: messages; give at least one of role user")
    turns = [_turn(message, f"messages[{place}]") for place, message in enumerate(messages)]
    if turns[-1][0] != "user":
        raise InputError(f"the last message is of role {turns[-1][0]}: messages; it must be user's")
    instructions = [text for role, text in turns if role in INSTRUCTING]
    spoken = [(SPEAKERS[role], text) for role, text in turns if role in SPEAKERS]
    if len(spoken) == 1:
        return PART_BREAK.join([*instructions, spoken[0][1]])
    return PART_BREAK.join([*instructions, *(speaker + text for speaker, text in spoken)])


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
        given = part if isinstance(part, Mapping) else {}
        if given.get("type") != "text" or not isinstance(given.get("text"), str):
            kind = f"{given.get('type')!r:.40}"
            raise InputError(f"content of type {kind}: {where}; only text can be routed")
        texts.append(given["text"])
    return "".join(texts)


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
    [name] = given
    question: Question = row[name]
    wanted, kind = (str, "a text") if name == "question" else (list, "a list of messages")
    if not isinstance(question, wanted):
        raise InputError(f"{name} is not {kind}: {where}; give one")
    try:
        question_of(question)
    except InputError as error:
        fault, _, remedy = str(error).partition("; ")
        raise InputError(f"{fault}: {where}; {remedy}") from None
    return question


def piped_lines(pipe: int, stopped: Event, where: str) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes) of each line; once `stopped` is set, no more.

    Args:
        pipe: read past Python's own buffers; whoever reads there as well takes lines away.
        where: its name, for messages.

    Raises:
        InputError: it cannot be read, or a line is too long.
    """
    number, begun = 0, bytearray()
    while chunk := _next_bytes(pipe, stopped, where):
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


def _next_bytes(pipe: int, stopped: Event, where: str) -> bytes:
    """What comes next; nothing at the end, or when it was stopped."""
    try:
        while not stopped.is_set():
            if select.select([pipe], [], [], LOOK_S)[0]:
                return os.read(pipe, CHUNK)
    except OSError as error:
        raise InputError(f"cannot be read: {where}: {error.strerror}; give JSON lines") from None
    return b""


async def route_all(
    router: Router, questions: Iterable[Question], options: RouteOptions, width: int = WIDTH
) -> AsyncGenerator[RouteResult | CallFailed]:
    """What each question came to, in their order; one that fails stops no other.

    Who ends early closes it, and takes along what is under way.

    Args:
        questions: read as they are needed, in a thread that is waited for: who calls this off has
            to end a read that waits for somebody, see `piped_lines`.
        width: how many are under way.

    Raises:
        InputError: a question that cannot be asked, after those before it.
    """
    under_way: deque[asyncio.Task[RouteResult | CallFailed]] = deque()
    coming = iter(questions)
    reading: asyncio.Task[Question | None] | None = None
    bad_question: InputError | None = None
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
                    question, bad_question = None, error
                reading, is_over = None, question is None
                if question is not None:
                    under_way.append(asyncio.create_task(_route_one(router, question, options)))
            while under_way and under_way[0].done():
                yield under_way.popleft().result()
    finally:
        if reading is not None:  # nobody waits for it; what it says at its end is nobody's error
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    if bad_question:
        raise bad_question


async def _route_one(
    router: Router, question: Question, options: RouteOptions
) -> RouteResult | CallFailed:
    try:
        return await router.aroute(question, options)
    except CallFailed as error:
        return error
