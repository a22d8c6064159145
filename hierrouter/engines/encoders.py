"""Frozen text encoders: they turn a context into the vector that a policy reads.

To add an encoder, write a class with `description` and `encode`, and a line in `find_encoder`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from threading import Thread
from typing import TYPE_CHECKING, Protocol

import mmh3
import numpy as np
from numpy.typing import NDArray

from hierrouter.engines.encoder_names import (
    BUILT_IN_ENCODER,
    PAPER,
    PAPER_ENCODER,
    PAPER_TOKENS,
    EncoderName,
)
from hierrouter.engines.generator import PART_BREAK, Outage
from hierrouter.engines.identity import endpoint_of, served_identity
from hierrouter.engines.sentence_encoder import SentenceEncoder, unit_rows
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import OPENAI, Endpoint, ModelSpec, Pool
from hierrouter.questions.shipped import is_shipped
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.keys import sound_json

if TYPE_CHECKING:  # the client of servers takes long to import, and few encoders need it
    from hierrouter.engines.endpoint_client import Client
    from hierrouter.engines.health import Deployment, Patience

LIVE_PAUSES = 2  # while the server of an encoder is busy and a person waits
LIVE_BUDGET_S = 10.0  # for the embeddings that a decision needs
# Begins the description of an encoder on a server, without the address.
SERVED_PREFIX = "served:"


class Encoder(Protocol):
    """A frozen map from texts to vectors.

    Attributes:
        description: a name that changes whenever the vectors change; it is the name of their folder
            in the cache.
    """

    description: str

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts.

        Args:
            texts: the texts.

        Returns:
            float32[len(texts), dim], each row a function of its text alone.
        """
        ...


def default_encoder(pool: Pool) -> str:
    """Return the name of the encoder that a pool uses unless the user names another one.

    Args:
        pool: the pool.

    Returns:
        The encoder that the pool names. If it names none: hashed n-grams for the package's models,
        which were made for them, else the paper's model over windows, so that the newest response
        is always read.

    Raises:
        InputError: the pool names a server. Only a user may do that, because a pool may come from
            someone else.
    """
    if names_server(pool.encoder or ""):
        raise InputError(
            f"a pool may not name a server as its encoder: {pool.encoder}; give it by --encoder"
        )
    if pool.encoder:
        return pool.encoder
    is_package_pool = all(is_shipped(model.model) for model in pool.all_models)
    return BUILT_IN_ENCODER if is_package_pool else PAPER_ENCODER


def encoder_note(preset: str | None, encoder: str) -> str:
    """Return a note for training by the paper's settings with another encoder than the paper's.

    Args:
        preset: name of the training's settings.
        encoder: name of the encoder.

    Returns:
        The note; empty if there is nothing to note.
    """
    if preset != PAPER or encoder == PAPER:
        return ""
    return f"preset paper with encoder {encoder}, not the paper's ({PAPER_ENCODER}:{PAPER_TOKENS})"


def find_encoder(name: str, stored: Iterable[str] = ()) -> Encoder:
    """Find an encoder by name; its model is loaded when it embeds something first.

    Args:
        name: `hashed-ngrams` (built in), `paper` (all-mpnet-base-v2, cut at 512 tokens), or a
            sentence-transformers model: its hub id or folder, followed by `@COMMIT` for that commit
            of the hub, by `:N` to set its length to N tokens, and by `:truncate` to cut longer
            contexts. For an encoder on a server: `URL#MODEL`, or a pool file of one model. Runs and
            caches store the description of such an encoder (`served:...`): with this name, its
            server is called only if the user has given its address before.
        stored: descriptions of encoders whose vectors are stored, see `stored_encoders`. A model of
            the hub is at the commit of its stored vectors.

    Returns:
        The encoder.

    Raises:
        InputError: no model can have this name, or a folder does not exist.
        NoEncoder: it is not known which commit of the hub is meant.
    """
    if name == BUILT_IN_ENCODER:
        return HashedNgrams()
    if name.startswith(SERVED_PREFIX):
        return USER_ENCODERS.get(name) or EndpointEncoder(name)
    if names_server(name):
        encoder = EndpointEncoder.of(name)
        return USER_ENCODERS.setdefault(encoder.description, encoder)
    return SentenceEncoder(EncoderName.parse(name), stored)


def load_encoder(name: str, stored: Iterable[str] = ()) -> Encoder:
    """Load an encoder by name, see `find_encoder`.

    Raises:
        InputError: no model can have this name, or it cannot read as many tokens.
        NoEncoder: the model cannot be loaded.
    """
    encoder = find_encoder(name, stored)
    if isinstance(encoder, SentenceEncoder):
        encoder.load()
    return encoder


def require_encoder(name: str, stored: Iterable[str] = ()) -> None:
    """Check that an encoder exists, before anything is paid for; no model is loaded.

    Args:
        name: as for `find_encoder`.
        stored: as for `find_encoder`.

    Raises:
        InputError: a folder does not exist, the name looks mistyped, no model can have it, or the
            hub does not know it.
        WorldError: a hub model is neither cached nor can the hub be reached.
    """
    encoder = find_encoder(name, stored)
    if names_server(name):
        encoder.encode(["OK"])


WORD_PATTERN = re.compile(r"\w+|[^\w\s]")  # punctuation counts: it tells a sum from a word


class HashedNgrams:
    """Hashed words and pairs of words: no model, no download, no fitting.

    The first half of a vector describes the whole context. The second half describes its last
    paragraph alone: the end of the newest response, or of the question if there is no response yet.
    So a policy can tell the question from the newest response. All digits are treated alike,
    because which number occurs says little, while that a number occurs says much.

    Args:
        dim: length of a vector, even.
    """

    def __init__(self, dim: int = 512) -> None:
        self.description = f"{BUILT_IN_ENCODER}-v1-{dim}"
        self._half = dim // 2

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts.

        Args:
            texts: the texts.

        Returns:
            float32[len(texts), dim]; each half of a row has length 1 / sqrt(2), or 0 if it has no
            words.
        """
        contexts = self._hash(texts)
        paragraphs = self._hash([text.rsplit(PART_BREAK, 1)[-1] for text in texts])
        both: NDArray[np.float32] = np.concatenate([contexts, paragraphs], axis=1)
        both /= np.float32(np.sqrt(2))
        return both

    def _hash(self, texts: Sequence[str]) -> NDArray[np.float32]:
        counts = np.zeros((len(texts), self._half))
        for row, text in zip(counts, texts, strict=True):
            folded = "".join("0" if char.isdigit() else char for char in text)
            words = WORD_PATTERN.findall(folded.lower())
            pairs = map(" ".join, pairwise(words))
            # As bytes: the hash of a text with a lone surrogate ends the process, see `sound_text`.
            terms = [term.encode("utf-8", "replace") for term in (*words, *pairs)]
            hashes = np.array([mmh3.hash(term) for term in terms], dtype=np.int64)
            # A term counts with the sign of its hash, so that collisions tend to cancel out.
            np.add.at(row, np.abs(hashes) % self._half, np.where(hashes < 0, -1.0, 1.0))
        length = np.sqrt((counts**2).sum(axis=1, keepdims=True))
        return (counts / np.where(length, length, 1.0)).astype(np.float32)


def names_server(name: str) -> bool:
    """Tell whether the name of an encoder gives the address of a server."""
    return "://" in name or name.endswith(".toml")


@dataclass(frozen=True)
class _Session:
    """State of an encoder between its calls of a server.

    Attributes:
        loop: an event loop that runs in a thread.
        deployment: the connections.
        patience: retries.
        slots: limits the requests under way.
    """

    loop: asyncio.AbstractEventLoop
    deployment: Deployment
    patience: Patience
    slots: asyncio.Semaphore


class EndpointEncoder:
    """A model behind `/v1/embeddings`; keys, retries and limits are those of any endpoint.

    The vector of a text that is too long for the model is the mean direction of its halves.

    Args:
        description: decides the vectors: `served:MODEL@DEPLOYMENT`.
        spec: the model with its endpoint; None if the user has not given the server's address: then
            all texts must have been embedded before.
    """

    def __init__(self, description: str, spec: ModelSpec | None = None) -> None:
        self.description = description
        self._spec = spec
        self._session: _Session | None = None  # begun by the first call
        self._dim = 0  # known after the first call
        self._is_live = False

    @classmethod
    def of(cls, name: str) -> EndpointEncoder:
        """Make the encoder that a user names.

        Args:
            name: a pool file of one model with an endpoint, or `URL#MODEL`.

        Returns:
            The encoder; its server is not called yet.

        Raises:
            InputError: the name gives no model, the endpoint cannot be called, or its key is not
                set.
        """
        if name.endswith(".toml"):
            models = load_pool(name).models
            if len(models) != 1 or models[0].backend != OPENAI:
                raise InputError(
                    f"no encoder on a server: {name}; give one model with an endpoint there"
                )
            [spec] = models
        else:
            url, _, model = name.partition("#")
            if not model:
                raise InputError(f"which model of the server? --encoder {name}; give URL#MODEL")
            spec = ModelSpec(model, model, backend=OPENAI, endpoint=Endpoint(url))
        identity = served_identity(spec)
        endpoint_of(spec).key("--encoder")
        revision = f"@{spec.revision}" if spec.revision else ""
        description = f"{SERVED_PREFIX}{spec.model}@{identity['deployment']}{revision}"
        return cls(description, spec)

    def be_live(self) -> None:
        """From now on wait for the server as briefly as people do who wait for an answer.

        A collection waits for minutes. Here a call has `LIVE_BUDGET_S` seconds, and fails at once
        while the server rests after failures.
        """
        self._is_live = True
        if self._session is not None:
            self._limit_waits(self._session.patience)

    def _limit_waits(self, patience: Patience) -> None:
        patience.limit(LIVE_PAUSES, LIVE_BUDGET_S)

    @property
    def fault(self) -> str:
        """Why the server cannot be called; "" if it can, as far as is known."""
        return self._session.deployment.fault if self._session else ""

    def check(self) -> None:
        """If the server has a fault and its rest is over, make one test call."""
        if self._session and self.fault and not self._session.deployment.rest_s:
            with suppress(WorldError):
                self.encode(["OK"])

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts.

        Args:
            texts: the texts.

        Returns:
            float32[len(texts), dim], rows of unit length; zeros for blank texts.

        Raises:
            InputError: the user has not given the server's address.
            WorldError: the server returns no vectors, or those of another model.
        """
        if self._spec is None:
            alternatives = f" (given: {', '.join(USER_ENCODERS)})" if USER_ENCODERS else ""
            raise InputError(
                f"the encoder is on a server of unknown address: {self.description}{alternatives}; "
                "give it by --encoder"
            )
        if self._session is None:
            self._session = self._begin_session(self._spec)
        # Servers may refuse blank texts. If there are no others, "OK" tells the vectors' length.
        positions = [position for position, text in enumerate(texts) if text.strip()]
        requested = [texts[position] for position in positions] or ["OK"]
        deployment = self._session.deployment
        if self._is_live and deployment.fault and deployment.rest_s:
            raise Outage(f"no embeddings: {self.description}: {deployment.fault}")
        seconds = LIVE_BUDGET_S if self._is_live else None
        embedding = asyncio.wait_for(self._embed_all(self._session, requested), seconds)
        try:
            rows = asyncio.run_coroutine_threadsafe(embedding, self._session.loop).result()
        except TimeoutError:
            deployment.note_fault(f"no answer within {seconds:g} s")
            raise Outage(f"no embeddings: {self.description}: {deployment.fault}") from None
        vectors = np.zeros((len(texts), self._dim), np.float32)
        if positions:
            vectors[positions] = rows
        return vectors

    def _begin_session(self, spec: ModelSpec) -> _Session:
        from hierrouter.engines.health import Deployment, Patience

        # A new event loop in a thread: callers run in any thread, with and without a loop.
        loop = asyncio.new_event_loop()
        Thread(target=loop.run_forever, name="encoder", daemon=True).start()
        endpoint = endpoint_of(spec)
        deployment = Deployment(endpoint, endpoint.key("--encoder"), spec.model)
        width = endpoint.concurrency * len(endpoint.servers)
        probe = partial(self._request, ["OK"])
        patience = Patience(deployment, endpoint.attempts, width, probe)
        if self._is_live:
            self._limit_waits(patience)
        return _Session(loop, deployment, patience, asyncio.Semaphore(width))

    async def _embed_all(self, session: _Session, texts: list[str]) -> NDArray[np.float32]:
        starts = range(0, len(texts), TEXTS_PER_REQUEST)
        requests = [
            self._embed(session, texts[start : start + TEXTS_PER_REQUEST]) for start in starts
        ]
        return np.concatenate(await asyncio.gather(*requests))

    async def _embed(self, session: _Session, texts: list[str]) -> NDArray[np.float32]:
        """Embed the texts of one request, in halves if they are too long together."""
        from hierrouter.engines.endpoint_client import Refusal

        try:
            async with session.slots:
                rows: NDArray[np.float32] = await session.patience.call_with_retries(
                    partial(self._request, texts)
                )
            return rows
        except Refusal as refusal:
            if refusal.status != "too_long" or len(texts[0]) < 2:
                raise WorldError(f"no embeddings: {self.description}: {refusal}") from None
        middle = len(texts) // 2
        if middle:
            first = await self._embed(session, texts[:middle])
            second = await self._embed(session, texts[middle:])
            return np.concatenate([first, second])
        [text] = texts
        middle = len(text) // 2
        halves = await self._embed(session, [text[:middle], text[middle:]])
        return unit_rows(halves.sum(0, keepdims=True))

    async def _request(self, texts: list[str], client: Client) -> NDArray[np.float32]:
        """Send one request, and check that the reply has a vector of the same model for each text.

        Args:
            texts: at least one.
            client: the connection.

        Returns:
            float32[len(texts), dim], rows of unit length.

        Raises:
            TransientError: the reply is malformed.
            WorldError: the reply is from another model.
        """
        from hierrouter.engines.endpoint_client import TransientError

        assert self._spec and self._spec.endpoint
        request = {"model": self._spec.model, "input": texts, "encoding_format": "float"}
        body = await client.embed(request)
        try:
            reply = sound_json(body)
            entries = sorted(reply["data"], key=lambda entry: entry["index"])
            rows = np.array([entry["embedding"] for entry in entries], np.float32)
            if rows.ndim != 2 or len(rows) != len(texts) or not np.isfinite(rows).all():
                raise ValueError(rows.shape)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            message = f"no embeddings from {client.address}: {error!r:.80}"
            raise TransientError(message) from None
        self._dim = self._dim or rows.shape[1]
        expected_model = self._spec.endpoint.answers_as or self._spec.model
        if reply.get("model") != expected_model or rows.shape[1] != self._dim:
            raise WorldError(
                f"{client.address} embeds by {reply.get('model')!r:.50} with {rows.shape[1]} "
                f"numbers, not by {expected_model} with {self._dim}; set answers_as if that is "
                "its name"
            )
        return unit_rows(rows)


# Encoders whose server the user named in this process, by description.
USER_ENCODERS: dict[str, EndpointEncoder] = {}
TEXTS_PER_REQUEST = 32
