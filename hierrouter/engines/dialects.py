"""How servers with OpenAI's chat completions differ: what they accept, and how they reply.

The protocol has grown in many servers at once. So a server may refuse a field that others need, and
says the same thing under another name. All that is known about such differences is here:

    Dialect         which fields a server accepts; learned from its refusals
    Complaint       which fields of a request an error is about
    Finish          why a response ended, in the words of all servers
    read_content    the text and the thought of a message
    error_in        an error that is sent with status 200
    other_url       where else the server's routes may be

A dialect is kept in memory for the process, by deployment and model. Most refused fields change no
response: they only report something, or repeat what is a server's default anyway. Those that do
change it are named by `Dialect.left_out`, and are a part of the model's identity.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from hierrouter.pools.pool import NO_PENALTY, Endpoint, Generation, Identity
from hierrouter_cache.keys import sound_json

# Fields of a request.

# Two names of the longest response: newer hosted models accept the second one only.
MAX_TOKENS_FIELD = "max_tokens"
MAX_COMPLETION_TOKENS_FIELD = "max_completion_tokens"
LOGPROBS_FIELD = "logprobs"
STREAM_OPTIONS_FIELD = "stream_options"
SAMPLING_FIELDS = ("temperature", "top_p", "seed")
PENALTY_FIELDS = ("repetition_penalty", "repeat_penalty")  # two names of one setting
# Settings for which a server may have another default: vLLM and SGLang take that of the model's
# generation_config.json, llama.cpp that of its flags. These values change nothing. Servers that do
# not know a setting ignore it, or refuse it by name.
NEUTRAL_PENALTIES = {
    "repeat_penalty": NO_PENALTY,  # the name that llama.cpp has for `repetition_penalty`
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,  # `transformers serve` has no other name for a repetition penalty
}
NEUTRAL_DRAWS = {"top_k": -1, "min_p": 0.0}  # above temperature 0
# Fields that a request can do without, at least in part.
OPTIONAL_FIELDS = (
    MAX_TOKENS_FIELD,
    MAX_COMPLETION_TOKENS_FIELD,
    LOGPROBS_FIELD,
    STREAM_OPTIONS_FIELD,
    *SAMPLING_FIELDS,
    *PENALTY_FIELDS,
    "presence_penalty",
    "frequency_penalty",
    *NEUTRAL_DRAWS,
)
# A complaint about the value of one of these may be a mistake in the pool. They are left out only
# if the server accepts no value of them, or only its own.
CHOSEN_FIELDS = frozenset({*SAMPLING_FIELDS, MAX_TOKENS_FIELD, MAX_COMPLETION_TOKENS_FIELD})

# What an error is about.

MAX_COMPLAINT_LENGTH = 20_000  # characters of an error that are searched
# Names behind these words are of fields that the server accepts.
ACCEPTED_PATTERN = re.compile(
    r"expected one of|did you mean|\buse\b|\binstead\b"
    r"|(allowed|accepted|supported|valid|permitted|known)\s+(fields|parameters|arguments|keys|names)",
    re.IGNORECASE,
)
UNKNOWN_PATTERN = re.compile(
    r"unsupported|not (currently )?(support|permit|allow|recogni[sz]|implement|available|enabled)"
    r"|does(n't| not) (support|accept|have)|unrecogni[sz]ed|unknown|unexpected|\bextra\b"
    r"|extra_forbidden|only.{0,20}default|deprecated|no longer"
    r"|cannot (both )?be (set|specified|used)"
    r"|cannot find field|must be (set to |equal to )?1(\.0)?\b(?! or)(?!\.\d)|strictly positive",
    re.IGNORECASE | re.DOTALL,
)
FIELD_PATTERN = re.compile(
    r"(?<!\w)(?:" + "|".join(OPTIONAL_FIELDS) + r")(?!\w)|log.?prob", re.IGNORECASE
)


@dataclass(frozen=True)
class Complaint:
    """Which fields of a request an error is about.

    Attributes:
        fields: of `OPTIONAL_FIELDS`.
        is_unknown: whether the server accepts no value of these fields, or only its own.
    """

    fields: frozenset[str] = frozenset()
    is_unknown: bool = False

    @classmethod
    def of(cls, body: Any) -> Complaint:
        """Read the body of an error.

        An error may list the fields that the server accepts, or repeat the request. So names are
        taken from the fields that say what is wrong, where an error has them.

        Args:
            body: of an error, not validated: a JSON value or a text.

        Returns:
            The complaint; without fields if the error names none.
        """
        errors = list(_field_errors(body))
        if errors:
            fields = {name for name, _ in errors}
            text = " ".join(message for _, message in errors)
        else:
            text = error_text(body)[:MAX_COMPLAINT_LENGTH]
            about = ACCEPTED_PATTERN.split(text)[0]
            fields = set(FIELD_PATTERN.findall(about))
            parameter = _unwrapped(body)
            parameter = parameter.get("param") if isinstance(parameter, Mapping) else None
            if isinstance(parameter, str) and FIELD_PATTERN.match(parameter):
                fields = {parameter.partition(".")[0]}
        names = (name.lower() for name in fields)
        known = frozenset(LOGPROBS_FIELD if "prob" in name else name for name in names)
        is_unknown = UNKNOWN_PATTERN.search(text) is not None
        return cls(known & frozenset(OPTIONAL_FIELDS), is_unknown)


def _unwrapped(body: Any) -> Any:
    """Return what is inside of an error's envelopes, such as `{"error": ...}` and `[...]`."""
    while True:
        if isinstance(body, list) and len(body) == 1:
            body = body[0]
        elif isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
            body = body["error"]
        else:
            return body


def _field_errors(body: Any) -> Iterator[tuple[str, str]]:
    """Yield (field, message) of each error that FastAPI reports: vLLM, Mistral and others."""
    body = _unwrapped(body)
    if not isinstance(body, Mapping):
        return
    details = body.get("detail") or body.get("message")
    if isinstance(details, str) and details.startswith(("{", "[")):  # Mistral: JSON in a text
        with suppress(ValueError):
            details = sound_json(details[:MAX_COMPLAINT_LENGTH])
    if isinstance(details, Mapping):
        details = details.get("detail")
    for detail in details if isinstance(details, list) else ():
        location = detail.get("loc") if isinstance(detail, Mapping) else None
        names = [name for name in location or () if isinstance(name, str) and name != "body"]
        if names:
            yield names[0], f"{detail.get('type')} {detail.get('msg')}"


def error_text(body: Any) -> str:
    """Return the message of an error's body in one line, followed by its code; "" without one.

    Args:
        body: of an error, not validated: a JSON value or a text.
    """
    body = _unwrapped(body)
    if isinstance(body, Mapping):
        message = body.get("message") or body.get("detail") or body.get("error") or ""
        code = body.get("code") or body.get("type") or ""
        body = message if str(code).isdecimal() else f"{message} {code}"
    return " ".join(str(body or "").split())


class ReportedError(Exception):
    """An error that a server sends in a reply with status 200.

    Args:
        message: of the server.
        body: of the error.
    """

    def __init__(self, message: str, body: Any) -> None:
        super().__init__(f"an error: {message}")
        self.message = message
        self.body = body

    @property
    def status(self) -> int | None:
        """The HTTP status that the error names itself; None if it names none."""
        return status_in(self.body)


def status_in(body: Any) -> int | None:
    """Return the HTTP status of a failure that an error's body names; None if it names none."""
    body = _unwrapped(body)
    if not isinstance(body, Mapping):
        return None
    for name in ("code", "status", "status_code"):
        code = str(body.get(name))
        if code.isdecimal() and len(code) == 3 and code[0] in "45":
            return int(code)
    return None


def error_in(completion: Mapping[str, Any]) -> ReportedError | None:
    """Return an error that some servers send with status 200.

    Args:
        completion: the body of a reply, or a piece of a stream.

    Returns:
        The error; None if there is none.
    """
    choices = completion.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    error: Any = completion.get("error")
    if completion.get("object") == "error":
        error = completion
    elif not error and isinstance(choice, Mapping):
        error = choice.get("error")  # OpenRouter, if a provider fails while it answers
    elif not error and choice is None and isinstance(completion.get("detail"), str | list):
        error = completion
    text = error_text(error)
    return ReportedError(text, error) if text else None


# What a server accepts.


@dataclass(frozen=True)
class Dialect:
    """What a server accepts for one model; see the module.

    Attributes:
        max_tokens_field: the name of the field for the longest response.
        refused: fields of `OPTIONAL_FIELDS` that the server refuses.
        streams_usage: whether its streams have token counts.
    """

    max_tokens_field: str = MAX_TOKENS_FIELD
    refused: frozenset[str] = frozenset()
    streams_usage: bool = True

    def after(self, complaint: Complaint, sent: Mapping[str, Any]) -> Dialect:
        """Return the dialect after a refusal.

        Args:
            complaint: of the server.
            sent: the refused request.

        Returns:
            The dialect; it is equal to this one if the refusal teaches nothing.
        """
        fields = complaint.fields & sent.keys()
        # A complaint about too large a value names the field, too.
        is_other_name = complaint.is_unknown and MAX_TOKENS_FIELD in fields
        if MAX_COMPLETION_TOKENS_FIELD in complaint.fields - sent.keys():
            is_other_name = is_other_name or MAX_TOKENS_FIELD not in complaint.fields
        limit_field = MAX_COMPLETION_TOKENS_FIELD if is_other_name else self.max_tokens_field
        fields -= {MAX_TOKENS_FIELD, MAX_COMPLETION_TOKENS_FIELD}
        if not complaint.is_unknown:
            fields -= CHOSEN_FIELDS
        if {"temperature", "top_p"} <= fields:  # models of Anthropic take one of them only
            fields -= {"temperature"}
        return replace(self, max_tokens_field=limit_field, refused=self.refused | fields)

    def joined(self, other: Dialect) -> Dialect:
        """Return a dialect that knows what both know; calls at the same time learn apart."""
        is_standard = self.max_tokens_field == other.max_tokens_field == MAX_TOKENS_FIELD
        return Dialect(
            MAX_TOKENS_FIELD if is_standard else MAX_COMPLETION_TOKENS_FIELD,
            self.refused | other.refused,
            self.streams_usage and other.streams_usage,
        )

    def left_out(self, generation: Generation) -> tuple[str, ...]:
        """Return the settings of a pool that the server cannot be told, and that change responses.

        The seed is not one of them: without it, a response is another draw from the same model.

        Args:
            generation: the settings.
        """
        is_sampled = generation.temperature > 0
        matters = {
            "temperature": generation.temperature != 1 and "temperature" in self.refused,
            "top_p": is_sampled and generation.top_p != 1 and "top_p" in self.refused,
            "repetition_penalty": generation.repetition_penalty != NO_PENALTY
            and self.refused.issuperset(PENALTY_FIELDS),
        }
        return tuple(name for name, is_missing in matters.items() if is_missing)


STANDARD = Dialect()


@dataclass
class Memory:
    """What this process has learned about servers.

    Attributes:
        dialects: by the deployment of an endpoint and the name of a model.
        identified: likewise, as they were when the model was identified last.
        urls: by the base_url of a pool: where the server's routes are.
    """

    dialects: dict[tuple[str, str], Dialect] = field(default_factory=dict)
    identified: dict[tuple[str, str], Dialect] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def dialect(self, endpoint: Endpoint, model: str) -> Dialect:
        """Return what is known about a model at an endpoint."""
        return self.dialects.get(_subject(endpoint, model), STANDARD)

    def learn(self, endpoint: Endpoint, model: str, dialect: Dialect) -> bool:
        """Add what was learned about a model at an endpoint; return whether it is new."""
        return self._add(_subject(endpoint, model), dialect)

    def identify(self, endpoint: Endpoint, model: str) -> Dialect:
        """Return what is known about a model whose identity is stated now."""
        known = self.dialect(endpoint, model)
        self.identified[_subject(endpoint, model)] = known
        return known

    def identified_dialect(self, endpoint: Endpoint, model: str) -> Dialect:
        """Return what was known about a model when its identity was stated."""
        return self.identified.get(_subject(endpoint, model), self.dialect(endpoint, model))

    def recall(self, identities: Iterable[Identity]) -> None:
        """Learn what servers refused in an earlier process.

        Args:
            identities: that a plan or a run has stored.
        """
        for identity in identities:
            names = set(identity.get("left_out", "").split())
            if "repetition_penalty" in names:
                names.update(PENALTY_FIELDS)
            if names and {"deployment", "served"} <= identity.keys():
                known = names.intersection(OPTIONAL_FIELDS)
                subject = identity["deployment"], identity["served"]
                self._add(subject, Dialect(refused=frozenset(known)))

    def _add(self, subject: tuple[str, str], dialect: Dialect) -> bool:
        with self._lock:
            known = self.dialects.get(subject, STANDARD)
            joined = known.joined(dialect)
            self.dialects[subject] = joined
        return joined != known

    def url(self, base_url: str) -> str:
        """Return where the routes of a server are: its base_url, unless another was learned."""
        return self.urls.get(base_url, base_url)

    def clear(self) -> None:
        """Forget everything."""
        self.dialects.clear()
        self.identified.clear()
        self.urls.clear()


def _subject(endpoint: Endpoint, model: str) -> tuple[str, str]:
    """Return what a dialect is of, as the model's identity names it."""
    return endpoint.deployment or endpoint.base_url, model


MEMORY = Memory()


# Addresses and names.

VERSION_PATTERN = re.compile(r"/v\d+\w*(/|$)")
VERSION = "/v1"
ROUTES = ("/chat/completions", "/completions", "/models", "/embeddings")


def other_url(base_url: str) -> str | None:
    """Return where a server's routes may be, if they are not below its base_url.

    Args:
        base_url: as a pool states it.

    Returns:
        The address with the version that it lacks, or without a route at its end; None if there
        is nothing to correct.
    """
    trimmed = base_url.rstrip("/")
    for route in ROUTES:
        if trimmed.endswith(route):
            return trimmed.removesuffix(route)
    if VERSION_PATTERN.search(urlsplit(trimmed).path):
        return None
    return trimmed + VERSION


def is_listed(model: str, names: list[str]) -> bool:
    """Tell whether a server's list of models has a model.

    Args:
        model: as the pool names it.
        names: of the list. Ollama accepts a name without its tag, and Gemini lists names with
            their collection.
    """
    return any(name in (model, f"{model}:latest", f"models/{model}") for name in names)


# Why a response ended.


class Finish(NamedTuple):
    """Why a response ended.

    Attributes:
        reason: "stop" or "length".
        kind: what the response is if it is no answer, see `generator.RESPONSE_KINDS`; else "".
    """

    reason: str
    kind: str = ""


ENDED = Finish("stop")
CUT = Finish("length")
WITHHELD = Finish("stop", "filtered")
# By the word in lower case.
FINISHES = {
    # OpenAI, vLLM, SGLang, llama.cpp, Ollama; TGI; Anthropic; Cohere; proxies of these.
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence", "end_turn"), ENDED),
    **dict.fromkeys(("stop_token", "complete", "completed", "finished", "end"), ENDED),
    # A model that was given no tools, and calls one all the same, has ended by itself.
    **dict.fromkeys(("tool_calls", "function_call", "tool_call", "tool_use"), ENDED),
    # OpenAI; Mistral; Gemini and Cohere; Anthropic; llama.cpp's own route.
    **dict.fromkeys(("length", "model_length", "max_tokens", "max_output_tokens"), CUT),
    **dict.fromkeys(("max_length", "max_new_tokens", "limit", "token_limit"), CUT),
    **dict.fromkeys(("model_context_window_exceeded", "context_length"), CUT),
    # OpenAI and Azure; Gemini; Zhipu.
    **dict.fromkeys(("content_filter", "content_filtered", "safety", "recitation"), WITHHELD),
    **dict.fromkeys(("blocklist", "prohibited_content", "spii", "sensitive"), WITHHELD),
    **dict.fromkeys(("image_safety", "image_prohibited_content"), WITHHELD),
    "refusal": Finish("stop", "refusal"),
}


def read_finish(reason: Any, tokens_out: int | None, limit: int | None) -> Finish:
    """Read why a response ended.

    Args:
        reason: as the server sends it, not validated. Some proxies send none with a complete
            response.
        tokens_out: tokens of the response; None if the server does not count them. Without a
            reason and a count, nobody knows whether a response is complete.
        limit: the longest response that was asked for; None if unknown.

    Returns:
        The end.

    Raises:
        ValueError: the word is unknown, or says that the server failed.
    """
    word = reason.partition(":")[0].strip().lower() if isinstance(reason, str) else None
    if word in FINISHES:
        return FINISHES[word]
    if reason in (None, "") and tokens_out is not None:
        return CUT if limit is not None and tokens_out >= limit else ENDED
    raise ValueError(f"finish_reason {reason!r:.40}")


# What a message says.

# Fields of a message in which servers send thoughts: DeepSeek, vLLM, SGLang, llama.cpp; then
# OpenRouter, Ollama and newer versions of vLLM.
THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
THOUGHT_PARTS = ("thinking", "reasoning", "thought")  # types of the parts of a content


def read_content(content: Any) -> tuple[str, str]:
    """Return the text and the thought of a message's content, without outer white space.

    Args:
        content: as the server sends it, not validated.

    Raises:
        ValueError: as `content_parts`.
    """
    text, thought = content_parts(content)
    return text.strip(), thought.strip()


def content_parts(content: Any) -> tuple[str, str]:
    """Return the text and the thought of a content, which may be a list of parts.

    Args:
        content: of a message or of a piece of a stream, not validated.

    Raises:
        ValueError: it is neither a text, nor null, nor a list of parts.
    """
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        raise ValueError("content that is no text")
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            raise ValueError("content that is no text")
        is_thought = part.get("type") in THOUGHT_PARTS
        inner = part.get("thinking") if is_thought else part.get("text")
        if isinstance(inner, list):  # Mistral: a thought is a list of parts itself
            inner = read_content(inner)[0]
        inner = inner or part.get("text") or part.get("refusal")
        if isinstance(inner, str):
            (thoughts if is_thought else texts).append(inner)
    return "".join(texts), "".join(thoughts)


def tool_calls_of(message: Any) -> tuple[dict[str, Any], ...]:
    """Return the calls of tools in a message.

    Args:
        message: of a choice, not validated. Older servers call a function in a field of its own.

    Returns:
        The calls, in OpenAI's format.

    Raises:
        ValueError: they are malformed.
    """
    fields = message if isinstance(message, Mapping) else {}
    calls = fields.get("tool_calls")
    function = fields.get("function_call")
    if not calls and isinstance(function, Mapping):
        calls = [{"id": "call_0", "type": "function", "function": dict(function)}]
    if not calls:
        return ()
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ValueError("malformed tool_calls")
    return tuple(calls)


def json_object(body: str) -> dict[str, Any]:
    """Read a reply's body.

    Args:
        body: of the reply.

    Returns:
        The object.

    Raises:
        ValueError: it is no JSON object; with what it is instead.
    """
    try:
        value = sound_json(body)
    except (ValueError, RecursionError):
        if not body.strip():
            raise ValueError("an empty body") from None
        kind = "HTML" if body.lstrip()[:1] == "<" else "cut or broken JSON"
        raise ValueError(kind) from None
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        [value] = value  # Gemini's errors
    if not isinstance(value, dict):
        raise ValueError("JSON that is no object")
    return value
