"""Read what an OpenAI-compatible server sent.

In: the body of one chat completion, or its pieces. Out: a `Response`, a `Failure`, or an error that
says what is wrong with it. Nothing is taken on trust: a missing count would make a call look free.
Not covered: sending, retries, HTTP errors (`client`, `refusals`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from hierrouter.collect.backends.endpoint.refusals import SAID, refused_prompt
from hierrouter.collect.generator import Answer, Failure, Response

# What servers call the end of an answer: vLLM, llama.cpp, Ollama and hosted ones; then TGI.
STOPS = ("stop", "eos", "eos_token", "stop_sequence")
MOST_TOKENS = 2**31 - 1  # what the cache has room for
# (prompt, text, whether it ended by itself) -> tokens in and out
Count = Callable[[str, str, bool], tuple[int, int]]


class Unexpected(Exception):
    """The body is no chat completion; another attempt may bring one."""


class WrongModel(RuntimeError):
    """Another model answered."""


class NoUsage(RuntimeError):
    """The server does not say how many tokens a call took."""


@dataclass(frozen=True)
class Reader:
    """How the answers of one model are read.

    Attributes:
        model: what every answer must name.
        revision: may stand behind it after an @, as `transformers serve` has it.
        count: counts tokens where the server does not; None where no tokenizer is named.
    """

    model: str
    revision: str = "main"
    count: Count | None = None

    def read(self, prompt: str, body: str) -> Answer:
        """The answer to `prompt` that this body holds.

        An empty text is an answer where the model ended by itself, and where all the tokens that
        it may generate went elsewhere, as into thinking that the server does not show.

        Raises:
            Unexpected: it is no JSON, is an error, lacks choice, text, reason or model, or
                counts what cannot be.
            WrongModel, NoUsage: see there.
        """
        completion = _object(body)
        if said := _error(completion):
            return _refused(said)
        choice = _first_choice(completion)
        self._check_model(completion.get("model"))
        reason = choice.get("finish_reason")
        if reason == "content_filter":
            return Failure("filtered", "the server withheld the response")
        if reason not in (*STOPS, "length"):
            raise Unexpected(f"finish_reason {reason!r:.40}")
        text = _text(choice, cut=reason == "length")
        tokens_in, tokens_out = self._tokens(completion.get("usage"), prompt, text, reason)
        if tokens_out == 0 and reason == "length":
            return Failure("too_long", f"{tokens_in} tokens of prompt left no room for a response")
        finish = "length" if reason == "length" else "stop"
        return Response(text.strip(), tokens_in, tokens_out, finish)

    async def gather(self, pieces: AsyncIterator[Any], on_text: Callable[[str], None]) -> str:
        """The body of a completion that comes in pieces, as if it had come whole.

        Args:
            pieces: `openai.types.chat.ChatCompletionChunk`s, which nobody has checked.
            on_text: told what each piece adds to the text.

        Raises:
            Unexpected: a piece that is none.
            WrongModel: another model answers; nothing of that is told.
        """
        texts: list[str] = []
        body: dict[str, Any] = {}
        choice: dict[str, Any] = {}
        async for piece in pieces:
            found = _piece(piece)
            body |= {name: found[name] for name in ("model", "usage", "error") if found.get(name)}
            for first in found.get("choices") or ():
                if first.get("finish_reason"):
                    choice["finish_reason"] = first["finish_reason"]
                if text := (first.get("delta") or {}).get("content"):
                    self._check_model(body.get("model"))
                    texts.append(text)
                    on_text(text)
        if choice or texts:
            body["choices"] = [{**choice, "message": {"content": "".join(texts)}}]
        return json.dumps(body)

    def _check_model(self, named: Any) -> None:
        if named is None:
            raise Unexpected("no name of a model")
        if named not in (self.model, f"{self.model}@{self.revision}"):
            raise WrongModel(
                f"answers come from {named!r:.50}; if that is the same model, set answers_as"
            )

    def _tokens(self, usage: Any, prompt: str, text: str, reason: str) -> tuple[int, int]:
        """Of prompt and response; those of the server where it sends them."""
        counts = usage if isinstance(usage, dict) else {}
        tokens_in = _count(counts.get("prompt_tokens"))
        tokens_out = _count(counts.get("completion_tokens"))
        # 0 for a text that is there is a count that the server did not make.
        if tokens_in and tokens_out is not None and (tokens_out or not text):
            return tokens_in, tokens_out
        if self.count is None:
            raise NoUsage("answers come without usage (token counts); name a tokenizer")
        return self.count(prompt, text, reason != "length")


def _object(body: str) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        kind = "HTML" if body.lstrip()[:1] == "<" else "cut or broken JSON"
        raise Unexpected(kind if body.strip() else "an empty body") from None
    if not isinstance(parsed, dict):
        raise Unexpected("JSON that is no object")
    return parsed


def _piece(piece: Any) -> dict[str, Any]:
    """A chunk as plain values, as far as they are what they should be.

    Raises:
        Unexpected: they are not.
    """
    found = piece.model_dump(warnings=False) if isinstance(piece, BaseModel) else None
    choices = found.get("choices") or [] if isinstance(found, dict) else None
    if not isinstance(choices, list) or not all(map(_is_choice, choices)):
        raise Unexpected("a piece of a stream that is none")
    return found or {}


def _is_choice(choice: Any) -> bool:
    delta = choice.get("delta") or {} if isinstance(choice, dict) else None
    return isinstance(delta, dict) and isinstance(delta.get("content") or "", str)


def _error(completion: dict[str, Any]) -> str:
    """The words of an error that came with status 200, as some servers send it; else nothing."""
    error = completion if completion.get("object") == "error" else completion.get("error")
    said = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(said).split())[:SAID] if said else ""


def _refused(said: str) -> Failure:
    if failure := refused_prompt(said, said):
        return failure
    raise Unexpected(f"an error: {said}")


def _first_choice(completion: dict[str, Any]) -> dict[str, Any]:
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Unexpected("no choices")
    return choices[0]


def _text(choice: dict[str, Any], cut: bool) -> str:
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if content is None and cut and isinstance(message, dict):
        return ""
    if not isinstance(content, str):
        raise Unexpected("no content")
    return content


def _count(value: Any) -> int | None:
    """A number of tokens; None where none is sent."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise Unexpected(f"{value!r:.20} tokens")
    return value
