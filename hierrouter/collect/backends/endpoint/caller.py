"""One call of one served model.

In: a client, a prompt. Out: what one attempt gives, whole or as it grows. Greedy is temperature 0;
whether a server would answer the same twice is its own affair, the cache asks once. Not covered:
other attempts (`patience`), and what the server says (`completion`, `refusals`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from hierrouter.collect.backends.endpoint.client import Client
from hierrouter.collect.backends.endpoint.completion import Count, Reader, Unexpected
from hierrouter.collect.backends.endpoint.refusals import OTHER_LIMIT, Again, OtherLimit
from hierrouter.collect.generator import Answer, Failure
from hierrouter.endpoint import Endpoint
from hierrouter.pool import ModelSpec
from hierrouter_cache.fingerprint import digest

PROBE = "Say OK."  # what tells a server that is out from prompts that never work
LIMIT = "max_tokens"

# A request to the body of its completion, or why there is none.
Send = Callable[[dict[str, Any]], Awaitable[str | Failure]]


class Caller:
    """How one model of one server is asked.

    Args:
        spec: its served name and decoding settings.
        endpoint: the server.

    Raises:
        WorldError: the tokenizer that is to count cannot be loaded.
    """

    def __init__(self, spec: ModelSpec, endpoint: Endpoint) -> None:
        self._model = spec.model
        self._generation = spec.generation
        self._limit = LIMIT
        answers_as = endpoint.answers_as or spec.model
        self._reader = Reader(answers_as, spec.revision or "main", _counter(spec, endpoint))

    async def complete(self, client: Client, prompt: str) -> Answer:
        """What one attempt gives.

        Raises:
            Again, Busy, Refused, Outage: see `refusals`.
            RuntimeError: another model answers, or answers come without token counts.
        """
        return await self._asked(prompt, client, client.complete)

    async def stream(self, client: Client, prompt: str, on_text: Callable[[str], None]) -> Answer:
        """What one attempt gives, handed on as it comes.

        Args:
            on_text: told what comes next of the answer.

        Raises:
            Again, Busy, Refused, Outage: see `refusals`; perhaps after a part of the answer.
            RuntimeError: as `complete`.
        """

        async def send(request: dict[str, Any]) -> str | Failure:
            return await client.stream(request, self._reader.gather, on_text)

        return await self._asked(prompt, client, send)

    def count(self, prompt: str) -> int | None:
        """Tokens of a prompt, where a tokenizer is named."""
        return self._reader.count(prompt, "", True)[0] if self._reader.count else None

    async def probe(self, client: Client) -> None:
        """One attempt at a prompt that no server can mind."""
        answer = await self.complete(client, PROBE)
        if isinstance(answer, Failure):
            raise Again(answer.detail)

    async def _asked(self, prompt: str, client: Client, send: Send) -> Answer:
        """The answer in the body that `send` brings."""
        limit = self._limit
        try:
            body = await send(self._request(prompt, limit))
        except OtherLimit:
            if limit == OTHER_LIMIT:
                raise
            self._limit = OTHER_LIMIT
            return await self._asked(prompt, client, send)
        except Unexpected as error:
            raise _again(client, error) from None
        if isinstance(body, Failure):
            return body
        try:
            return self._reader.read(prompt, body)
        except Unexpected as error:
            raise _again(client, error) from None

    def _request(self, prompt: str, limit: str) -> dict[str, Any]:
        generation = self._generation
        request: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": generation.temperature,
            limit: generation.max_new_tokens,
        }
        if generation.temperature:
            # A seed of its own for each model and prompt: see docs/decisions.md on draws.
            seed = digest(["draw", self._model, generation.seed, prompt])
            request |= {"top_p": generation.top_p, "seed": int(seed[:7], 16)}
        return request


def _again(client: Client, error: Unexpected) -> Again:
    return Again(f"unexpected answer from {client.address}: {error}")


def _counter(spec: ModelSpec, endpoint: Endpoint) -> Count | None:
    if endpoint.tokenizer is None:
        return None
    from hierrouter.collect.backends.endpoint.token_counts import counter

    return counter(endpoint.tokenizer, f"model {spec.name}")
