"""The seam of all engines: a `Backend` loads a model, and its `Generator` answers prompts.

Below the Protocols is the code that engines share: the prompt of a call, its tokens, and which
models stay loaded.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from hierrouter.engines.bills import NO_BILL, Bill
from hierrouter.pools.pool import KEEP_THOUGHTS, OPENAI, Generation, Identity, ModelSpec, Pool
from hierrouter.questions.final import without_thoughts
from hierrouter_cache.errors import InputError, WorldError, typed_reason
from hierrouter_cache.keys import digest, next_context, sound_text
from hierrouter_cache.parts import FAILURES_SCHEMA
from hierrouter_cache.tree import Rate

# Why a call has no answer, and whether the same call may succeed later.
STATUSES = {
    "too_long": False,  # prompt and response do not fit the model's window
    "filtered": False,  # the engine refused the prompt or withheld the response
    "error": True,  # this one call failed: a timeout, a malformed reply
}


@dataclass(frozen=True)
class Confidence:
    """How sure a model was of its response, before temperature or top_p change what is drawn.

    Attributes:
        total: sum of the log-probabilities of the generated tokens, in nats.
        lowest: the lowest of these log-probabilities, in nats.
        tokens: number of log-probabilities: one for each generated token, the end token included
            if the engine reports it.
    """

    total: float
    lowest: float
    tokens: int

    @classmethod
    def of(cls, logprobs: Sequence[Any], tokens_out: int, has_end: bool) -> Confidence | None:
        """Summarise log-probabilities as an engine reports them.

        Some servers send fewer of them than there are tokens, NaN, or -9999 for unknown ones.

        Args:
            logprobs: log-probability of each token in nats, not validated.
            tokens_out: number of generated tokens.
            has_end: whether an end token is one of them.

        Returns:
            The confidence; None if the log-probabilities cannot be right.
        """
        if not logprobs or len(logprobs) not in (tokens_out, tokens_out - has_end):
            return None
        for logprob in logprobs:
            # Rounding may leave slightly more than 0. A comparison with NaN is false.
            if not isinstance(logprob, int | float) or not MIN_LOGPROB < logprob < 1e-3:
                return None
        total = math.fsum(logprobs)
        lowest = float(min(logprobs))
        return cls(min(total, 0.0), min(lowest, 0.0), len(logprobs))


MIN_LOGPROB = -1000.0  # no token with a lower log-probability is ever chosen

# What a response is, if it is no answer. The model has given it all the same: it is paid for, kept,
# scored as the data set says, and not asked for again.
RESPONSE_KINDS = {
    "refusal": "refusals",  # the model declines, in a field of its own or by its reason of the end
    "filtered": "withheld by a filter of the server",
    "empty": "empty",  # no text, perhaps beside a thought
}


@dataclass(frozen=True)
class CallTime:
    """How long one call took, in seconds.

    Attributes:
        seconds: of a server, from the request that was answered to the last byte of its reply,
            without attempts that failed and without waiting for limits. Of a model on this machine,
            from the admission of the call's row to a batch to its last token; the row has the steps
            of its companions, and the pauses between two batches.
        first_token_s: from the same moment to the first token of the response; None if the
            response came in one piece.
    """

    seconds: float
    first_token_s: float | None = None


@dataclass(frozen=True)
class Response:
    """The text that a model returned for one call.

    Attributes:
        text: the generated text without special tokens and outer white space, and without a thought
            that a server sends in another field. Characters that no file can store are replaced
            here, so that no paid response is lost when it is stored.
        tokens_in: tokens of the prompt as the model saw it, chat template included.
        tokens_out: generated tokens, the end token included.
        finish_reason: "stop", or "length" if the response was cut.
        confidence: None if the engine does not report it. It is ignored by comparisons, because
            its last digits depend on the batch.
        tool_calls: calls of tools, in OpenAI's format, of a model that was given tools.
        kind: one of `RESPONSE_KINDS` if it is no answer; else "". It follows from the other fields
            and, like the bill and the time, does not count in comparisons.
        thought: text of a thought that a server sends in another field, see `complete_text`.
        bill: what a server says that the call is billed for.
        time: how long the call took; None if that was not measured.

    Raises:
        ValueError: the kind is unknown.
    """

    text: str
    tokens_in: int
    tokens_out: int
    finish_reason: str
    confidence: Confidence | None = field(default=None, compare=False)
    tool_calls: tuple[dict[str, Any], ...] = ()
    kind: str = field(default="", compare=False)
    thought: str = ""
    bill: Bill = field(default=NO_BILL, compare=False)
    time: CallTime | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", sound_text(self.text))
        object.__setattr__(self, "thought", sound_text(self.thought))
        if not (self.text or self.tool_calls or self.kind):
            object.__setattr__(self, "kind", "empty")
        if self.kind and self.kind not in RESPONSE_KINDS:
            raise ValueError(f"unknown kind {self.kind!r}; known: {', '.join(RESPONSE_KINDS)}")

    @property
    def complete_text(self) -> str:
        """The thought and the text, as the model writes them where no server takes them apart.

        This is stored, so that a response is the same whichever server it comes from. Whether the
        next call reads the thought is a setting of the pool.
        """
        if not self.thought:
            return self.text
        return f"<think>\n{self.thought}\n</think>\n\n{self.text}".rstrip()

    def cost(self, rate: Rate) -> float:
        """Compute what the call costs at a rate, in money."""
        return self.bill.cost_at(rate, self.tokens_in, self.tokens_out)


@dataclass(frozen=True)
class CallOptions:
    """Options of one call besides the text of its prompt, as OpenAI's clients send them.

    Attributes:
        settings: parameters of chat completions, by name; they override those of the pool.
        images: image parts of the message.
        draw: which of the draws of the same call this is; each has a seed of its own.
        generation: decoding settings of an action; None is those of the model.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    images: tuple[Mapping[str, Any], ...] = ()
    draw: int = 0
    generation: Generation | None = None

    @property
    def needs(self) -> frozenset[str]:
        """The abilities that the call needs, see `hierrouter.pools.pool.Ability`."""
        needs = set(self.settings.keys() & {"tools", "response_format"})
        if self.images:
            needs.add("images")
        return frozenset(needs)


NO_OPTIONS = CallOptions()


@dataclass(frozen=True)
class Failure:
    """The reason why one call has no response; it is never scored and never read as an answer.

    Attributes:
        status: one of `STATUSES`.
        detail: an explanation for people.
        is_refused: whether the server refuses the request as it is, and would again.

    Raises:
        ValueError: the status is unknown.
    """

    status: str
    detail: str
    is_refused: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", " ".join(sound_text(self.detail).split()))
        if self.status not in STATUSES:
            raise ValueError(f"unknown status {self.status!r}; known: {', '.join(STATUSES)}")

    @property
    def is_retryable(self) -> bool:
        """Whether the same call may succeed when it is made again."""
        return STATUSES[self.status] and not self.is_refused


Answer = Response | Failure


@dataclass(frozen=True)
class Call:
    """One distinct call that is due.

    Attributes:
        key: of the call, see `hierrouter_cache.keys.call_key`.
        step: key of model, settings and instruction.
        context: key of the question and the responses before the call.
        prompt: text that the model gets.
    """

    key: str
    step: str
    context: str
    prompt: str


def call_row(
    model: str, call: Call, response: Response, seconds: float | None, visible: str | None = None
) -> dict[str, Any]:
    """One row of `calls`.

    Args:
        model: name of the model in the pool.
        call: the call.
        response: its response, with the call's own time if that was measured.
        seconds: its share of the time of all calls that are stored with it; None if that is
            unknown.
        visible: what the next call reads of the response; None is all of it.

    Returns:
        The row.
    """
    if visible is None:
        visible = response.complete_text
    confidence = response.confidence
    bill = response.bill
    time = response.time
    return {
        **vars(call),
        "outcome": next_context(call.context, visible),
        "model": model,
        "response": response.complete_text,
        "tokens_in": response.tokens_in,
        "tokens_out": response.tokens_out,
        "finish_reason": response.finish_reason,
        "latency_s": seconds,
        "logprob_sum": confidence.total if confidence else None,
        "logprob_min": confidence.lowest if confidence else None,
        "logprob_tokens": confidence.tokens if confidence else None,
        "visible": None if visible == response.complete_text else visible,
        "seconds": time.seconds if time else None,
        "first_token_s": time.first_token_s if time else None,
        "usage": bill.usage or None,
        "tokens_cached": bill.cached,
        "tokens_thoughts": bill.thoughts,
        "cost_given": bill.cost,
        "kind": response.kind or None,
    }


def failures_table(
    model: str,
    failures: Sequence[tuple[Call, Failure]],
    attempts: int,
    judge_template: str | None = None,
) -> pa.Table:
    """Rows of `failures`.

    Args:
        model: name of the model in the pool.
        failures: each call with the failure of its last attempt.
        attempts: of each of these calls.
        judge_template: prompt of the judge that was called; None for the calls of a pool.

    Returns:
        The table.
    """
    rows = [
        {
            **vars(call),
            "model": model,
            **vars(failure),
            "attempts": attempts,
            "judge_template": judge_template,
        }
        for call, failure in failures
    ]
    return pa.Table.from_pylist(rows, schema=FAILURES_SCHEMA)


Stop = Callable[[], bool]


def never() -> bool:
    """Return False: the `Stop` of work that runs to its end."""
    return False


class Outage(WorldError):
    """One model's engine cannot be reached; the other models may go on."""


class IdentityChange(Outage):
    """A server refuses a setting without which its model answers otherwise.

    Answers without the setting belong to another identity of the model, which its engine states
    from now on. So the collection must be planned anew.

    Args:
        model: the model's name in the pool.
        address: of the server.
        left_out: the settings that are not sent from now on.
    """

    def __init__(self, model: str, address: str, left_out: Sequence[str]) -> None:
        names = " and ".join(left_out)
        super().__init__(f"{address} accepts no {names}: model {model}; run the command again")


class Feed:
    """A queue of prompts between two threads: one adds prompts until it closes the feed.

    Args:
        prompts: the first prompts.
        draws: which of the draws of the same call each prompt is for; empty if all are the first.

    Attributes:
        closed: whether no further prompts will be added.
        cancelled: whether the answers are no longer needed.
        changed: set whenever there may be more to do.
    """

    def __init__(self, prompts: Sequence[str] = (), draws: Sequence[int] = ()) -> None:
        self._waiting = deque[tuple[int, str, int, Generation | None]]()
        self._count = 0
        self.closed = False
        self.cancelled = False
        self.changed = Event()
        for prompt, draw in zip(prompts, draws or [0] * len(prompts), strict=True):
            self.put(prompt, draw)

    def put(self, prompt: str, draw: int = 0, generation: Generation | None = None) -> int:
        """Add a prompt and return its position.

        Args:
            prompt: the prompt.
            draw: which of the draws of the same call it is for.
            generation: decoding settings of an action; None is those of the model.
        """
        position = self._count
        self._count += 1
        self._waiting.append((position, prompt, draw, generation))
        self.changed.set()
        return position

    def close(self) -> None:
        """Declare that no further prompts will be added."""
        self.closed = True
        self.changed.set()

    def cancel(self) -> None:
        """Declare that the answers are no longer needed."""
        self.cancelled = True
        self.close()

    def take(self) -> tuple[int, str, int, Generation | None] | None:
        """Remove and return the next (position, prompt, draw, settings), if one is waiting."""
        return self._waiting.popleft() if self._waiting else None


class Generator(Protocol):
    """A loaded model."""

    def generate(
        self, prompts: Sequence[str], stop: Stop = never, draws: Sequence[int] = ()
    ) -> Iterator[tuple[int, Answer]]:
        """Answer prompts; the same draw of the same prompt always gets the same response.

        Args:
            prompts: the prompts.
            stop: once it returns true, no further prompt is begun; those under way are finished.
            draws: which of the draws of the same call each prompt is for, which decides the seed of
                its random numbers; empty if all are the first.

        Yields:
            (position in `prompts`, answer) as the answers are finished.

        Raises:
            Outage: the model's server cannot be reached.
            RuntimeError: the model as a whole failed, e.g. for lack of memory; answers yielded
                before remain valid.
            OSError: likewise.
        """
        ...


@runtime_checkable
class AdjustableGenerator(Protocol):
    """A loaded model that several actions may share, each with decoding settings of its own."""

    def with_generation(self, generation: Generation) -> Generator:
        """Return the same loaded model with other decoding settings.

        Args:
            generation: the settings.
        """
        ...


def with_generation(loaded: Generator, generation: Generation, spec: ModelSpec) -> Generator:
    """Return a loaded model with the decoding settings of an action.

    Args:
        loaded: the model.
        generation: the settings.
        spec: that it was loaded with.

    Raises:
        InputError: the engine cannot take them.
    """
    if generation == spec.generation:
        return loaded
    if isinstance(loaded, AdjustableGenerator):
        return loaded.with_generation(generation)
    raise InputError(
        f"the engine {spec.backend} has one setting a model: {spec.name}; give its actions no "
        "generation of their own"
    )


class Backend(Protocol):
    """An engine: identifies a model, then loads it."""

    def identify(self, spec: ModelSpec) -> Identity:
        """Return what decides the model's responses: weights, tokenizer, template, dtype, engine.

        Args:
            spec: the model.

        Returns:
            Names and texts; they enter the key of each response in a cache.
        """
        ...

    def weight_bytes(self, spec: ModelSpec) -> int:
        """Return the memory of this machine that the loaded model takes.

        Args:
            spec: the model.

        Returns:
            Bytes; 0 for a model on a server.
        """
        ...

    def load(self, spec: ModelSpec) -> Generator:
        """Load the model.

        Args:
            spec: the model.

        Returns:
            The model, ready to answer.
        """
        ...


# Returns the engine with a name; tests pass other functions.
Engines = Callable[[str], Backend]


PART_BREAK = "\n\n"


def visible_text(pool: Pool, model: str, response: str) -> str:
    """Return r_t: what the next call, `token_f1` and routers read of a response.

    Args:
        pool: says whether thoughts are kept or dropped.
        model: name of the model that gave the response.
        response: its complete text.

    Returns:
        The response, or what follows its thought.
    """
    if pool.thoughts == KEEP_THOUGHTS:
        return response
    return without_thoughts(response, pool.thought_tags.get(model, ()))


def context_text(question: str, responses: Sequence[str]) -> str:
    """Return the context c_t: the question and all responses so far, the newest one last."""
    return PART_BREAK.join([question, *responses])


def prompt_text(question: str, responses: Sequence[str], instruction: str) -> str:
    """Return the user message of one call: the context, then the stage instruction if any."""
    context = context_text(question, responses)
    return PART_BREAK.join([context, instruction]) if instruction else context


def draw_digest(model: str, seed: int, prompt: str, draw: int = 0) -> str:
    """Return the digest from which an engine takes the seed of a draw.

    No two draws share a seed, also not those of one model under two names with neighbouring seeds.

    Args:
        model: name of the model, or of the content of its weights.
        seed: of the decoding settings.
        prompt: the prompt's text.
        draw: which of the draws of the same call it is; the first one has the seed that a call had
            before there were draws.
    """
    return digest(["draw", model, seed, prompt, *([draw] if draw else [])])


def message_of(prompt: str) -> list[dict[str, str]]:
    """Return the conversation whose only message is a prompt."""
    return [{"role": "user", "content": prompt}]


def tokenize_prompt(tokenizer: Any, prompt: str) -> list[int]:
    """Return the tokens of one prompt, as `tokenize_prompts`."""
    return tokenize_prompts(tokenizer, [prompt])[0]


def tokenize_prompts(tokenizer: Any, prompts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of prompts as the model sees them, chat template included.

    Args:
        tokenizer: a tokenizer with a chat template.
        prompts: the prompts.

    Returns:
        The tokens of each prompt.

    Raises:
        RuntimeError: the chat template fails.
    """
    if not prompts:
        return []
    try:
        encoded = tokenizer.apply_chat_template(
            [message_of(prompt) for prompt in prompts],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )
    except Exception as error:  # the template is third-party code, run in a sandbox
        raise RuntimeError(f"its chat template fails: {typed_reason(error)}") from error
    return [list(tokens) for tokens in encoded["input_ids"]]


def split_by_window(
    tokenizer: Any, prompts: Sequence[str], new_tokens: int, window: int | None
) -> tuple[dict[int, list[int]], dict[int, Failure]]:
    """Split prompts into those that fit a model's window and those that are too long.

    Args:
        tokenizer: the model's tokenizer.
        prompts: the prompts.
        new_tokens: the most tokens that a response may have.
        window: tokens of prompt and response together; None if unknown.

    Returns:
        By position in `prompts`: the tokens of each prompt that leaves room for its response, and
        the failure of each other prompt.

    Raises:
        RuntimeError: the chat template fails.
    """
    fitting: dict[int, list[int]] = {}
    failures: dict[int, Failure] = {}
    for position, tokens in enumerate(tokenize_prompts(tokenizer, prompts)):
        if window is None or len(tokens) + new_tokens <= window:
            fitting[position] = tokens
        else:
            failures[position] = Failure(
                "too_long",
                f"{len(tokens)} tokens of prompt and {new_tokens} new ones exceed the window of "
                f"{window}",
            )
    return fitting, failures


# Bytes that weights may take at this moment, on the devices of a model.
MemoryRoom = Callable[[ModelSpec], int]
# Share of a device's memory that stays free for the keys and values of batches.
BATCHES_SHARE = 0.25


def room_for_weights(spec: ModelSpec) -> int:
    """Return the bytes that weights may take at this moment, on the devices of a model."""
    from hierrouter.engines.devices import candidates, memory

    free, total = memory(candidates(spec))
    return int(free - BATCHES_SHARE * total)


class Residency:
    """The loaded models; the least recently called ones are released when memory runs short.

    Args:
        engines: returns the engine of a backend's name.
        room: returns the bytes that weights may take at this moment, on the devices of a model.
    """

    def __init__(self, engines: Engines, room: MemoryRoom = room_for_weights) -> None:
        self.engines = engines
        self._room = room
        self._loaded: dict[str, Generator] = {}  # the least recently called one first
        self._bytes: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        """Tell whether a model of this name is loaded: call such models first at each level."""
        return name in self._loaded

    def generator(self, spec: ModelSpec) -> Generator:
        """Return a model, loading it if necessary.

        Do not keep the generator: its memory is not freed while anything refers to it.

        Args:
            spec: the model.

        Returns:
            The loaded model.

        Raises:
            InputError: it cannot be loaded, see its backend.
            WorldError: likewise.
        """
        if spec.name in self._loaded:
            self._loaded[spec.name] = self._loaded.pop(spec.name)  # now the most recently called
            return self._loaded[spec.name]
        engine = self.engines(spec.backend)
        self._bytes[spec.name] = engine.weight_bytes(spec)
        self._make_room(spec)
        self._loaded[spec.name] = engine.load(spec)
        return self._loaded[spec.name]

    def release(self, name: str) -> None:
        """Release a model that will not be called again; a model that is not loaded is ignored."""
        if self._loaded.pop(name, None) and self._bytes[name]:
            from hierrouter.engines.devices import give_back_memory

            give_back_memory()

    def _make_room(self, spec: ModelSpec) -> None:
        """Release models until this one fits.

        If it is too large even for an empty device, loading is tried all the same: the sizes are
        estimates.
        """
        needed = self._bytes[spec.name]
        if not needed:
            return
        local_names = [name for name in self._loaded if self._bytes[name]]
        for name in local_names:
            if needed <= self._room(spec):
                return
            self.release(name)


# Models of the hub at the commits that a plan or a run has recorded. A pool names a model by hub id
# and perhaps by branch; which commit that was is a part of the model's identity. A collection or
# training with one commit goes on with that commit if the branch moves.

# The commit of each model by its hub id and the revision that the pool names.
Commits = Mapping[tuple[str, str | None], str]


def recorded_commits(pool: Pool, identities: Mapping[str, Identity]) -> Commits:
    """Return the commits of the hub's models in a pool.

    Args:
        pool: as it was stored.
        identities: of its models, by name.
    """
    commits = {}
    for model in pool.all_models:
        hub_id, _, commit = identities.get(model.name, {}).get("weights", "").rpartition("@")
        if model.backend != OPENAI and hub_id == model.model:
            commits[model.model, model.revision] = commit
    return commits


def at_commit(spec: ModelSpec, commits: Commits) -> ModelSpec:
    """Return a model with the commit that is recorded for it, if there is one."""
    commit = commits.get((spec.model, spec.revision))
    if commit is None or spec.backend == OPENAI:
        return spec
    return replace(spec, revision=commit)


def with_commits(engines: Engines, commits: Commits) -> Engines:
    """Return engines that identify and load each model at its recorded commit."""
    return CommitEngines(engines, commits) if commits else engines


@dataclass(frozen=True)
class CommitEngines:
    """Engines whose models are at recorded commits; workers of a cluster get them pickled.

    Attributes:
        engines: identify and load the models.
        commits: that are recorded.
    """

    engines: Engines
    commits: Commits

    def __call__(self, name: str) -> Backend:
        """Return the engine of this name."""
        return CommitBackend(self.engines(name), self.commits)


@dataclass(frozen=True)
class CommitBackend:
    """An engine whose models are at recorded commits; see `Backend` for its methods.

    Attributes:
        backend: identifies and loads the models.
        commits: that are recorded.
    """

    backend: Backend
    commits: Commits

    def identify(self, spec: ModelSpec) -> Identity:
        """Identify a model at its commit."""
        return self.backend.identify(at_commit(spec, self.commits))

    def weight_bytes(self, spec: ModelSpec) -> int:
        """Return the size of a model at its commit, in bytes."""
        return self.backend.weight_bytes(at_commit(spec, self.commits))

    def load(self, spec: ModelSpec) -> Generator:
        """Load a model at its commit."""
        return self.backend.load(at_commit(spec, self.commits))
