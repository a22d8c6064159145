"""One server: a connection pool, and what one request brings.

In: an endpoint and its key. Out: the body of an answer as text, or an error by its meaning. The
`openai` client sends, reads and closes; it makes no second attempt, because its own ones honour a
Retry-After of two minutes at most and each call waits for itself. Redirects are not followed, so a
key never reaches another host. Of the environment only the key's variable counts
(`hierrouter.endpoint`), not OPENAI_API_KEY and its like. Not covered: attempts (`patience`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from httpx2 import TransportError
from openai import APIError, AsyncOpenAI, DefaultAsyncHttpxClient, Timeout

from hierrouter.collect.backends.endpoint.refusals import Again, meaning, timed_out
from hierrouter.collect.generator import Failure
from hierrouter.endpoint import Endpoint, is_loopback

CONNECT_S = 10.0
HIDDEN = "***"
SHORTEST_SECRET = 8
T = TypeVar("T")
# The body of what comes in pieces; the text is told on the way.
Gather = Callable[[AsyncIterator[Any], Callable[[str], None]], Awaitable[str]]


class Client:
    """A server with a connection pool; made and closed by `session`.

    Args:
        endpoint: where it is.
        key: sent as bearer token where there is one; hidden in all that the server says.
    """

    def __init__(self, endpoint: Endpoint, key: str | None) -> None:
        self.address = endpoint.address
        self._timeout_s = endpoint.timeout_s
        # A word such as "none", for servers that want any key, is no secret and may be an answer.
        self._secret = key if key and len(key) >= SHORTEST_SECRET and not key.isalpha() else None
        self._openai = _client(endpoint, key or "none")

    async def complete(self, request: dict[str, Any]) -> str | Failure:
        """The body of one chat completion, or why this prompt has none.

        Raises:
            Again, Busy, OtherLimit, Outage: see `refusals`.
        """
        create = self._openai.chat.completions.with_raw_response.create
        return await self._body(lambda: create(**request), self._timeout_s)

    async def stream(
        self, request: dict[str, Any], gather: Gather, on_text: Callable[[str], None]
    ) -> str | Failure:
        """As `complete`, the text handed on as it comes.

        Args:
            gather: puts the body together from all pieces.
            on_text: told what comes next of the answer.

        Raises:
            Again, Busy, OtherLimit, Outage: as `complete`; perhaps after a part of the answer.
        """
        create = self._openai.chat.completions.create
        whole = {**request, "stream": True, "stream_options": {"include_usage": True}}

        async def send() -> str:
            async with await create(**whole) as pieces:
                return await gather(pieces, lambda text: on_text(self._hidden(text)))

        body = await self._sent(send, self._timeout_s)
        return body if isinstance(body, Failure) else self._hidden(body)

    async def list_models(self, longest_s: float) -> str | Failure:
        """The body of the list of models; the errors are those of `complete`."""
        return await self._body(
            self._openai.models.with_raw_response.list, min(self._timeout_s, longest_s)
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._openai.close()

    async def _body(self, send: Callable[[], Awaitable[Any]], timeout_s: float) -> str | Failure:
        raw = await self._sent(send, timeout_s)
        if isinstance(raw, Failure):
            return raw
        return self._hidden(raw.content.decode("utf-8-sig", "replace"))

    async def _sent(self, send: Callable[[], Awaitable[T]], timeout_s: float) -> T | Failure:
        try:
            with anyio.fail_after(timeout_s):
                return await send()
        except TimeoutError:
            raise timed_out(self.address, timeout_s) from None
        except APIError as error:
            found = meaning(error, self.address, self._hidden)
            if isinstance(found, Failure):
                return found
            raise found from None
        except TransportError as error:  # in the middle of an answer
            raise Again(f"{self.address}: {type(error).__name__}: {error}") from None
        except ValueError:  # a piece of a stream
            raise Again(f"unexpected answer from {self.address}: broken JSON") from None

    def _hidden(self, text: str) -> str:
        return text.replace(self._secret, HIDDEN) if self._secret else text


@contextmanager
def session(endpoint: Endpoint, key: str | None) -> Iterator[tuple[BlockingPortal, Client]]:
    """A client and an event loop in a thread of its own to run it in; both gone afterwards."""
    client = Client(endpoint, key)
    with start_blocking_portal("asyncio", name=f"endpoint {client.address}") as portal:
        try:
            yield portal, client
        finally:
            portal.call(client.close)


def _client(endpoint: Endpoint, key: str) -> AsyncOpenAI:
    timeout = Timeout(None, connect=min(CONNECT_S, endpoint.timeout_s))
    client = AsyncOpenAI(
        api_key=key,
        admin_api_key="",
        base_url=endpoint.base_url,
        max_retries=0,
        timeout=timeout,
        default_headers={"Authorization": f"Bearer {key}"},
        http_client=DefaultAsyncHttpxClient(
            follow_redirects=False,
            timeout=timeout,
            # No proxy leads back to this machine.
            trust_env=not is_loopback(urlsplit(endpoint.base_url).hostname or ""),
        ),
    )
    client.organization = client.project = None  # else from the environment
    return client
