"""Frozen text encoders: what a policy sees of a context.

Another encoder is a class with `description` and `encode`, and a line in `load_encoder`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import mmh3
import numpy as np
from numpy.typing import NDArray

from hierrouter.engines.generator import PART_BREAK, never
from hierrouter.engines.identity import endpoint_of, folder_digest, hub_commit, served_identity
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import OPENAI, Endpoint, ModelSpec, Pool
from hierrouter.questions.shipped import is_shipped
from hierrouter_cache.errors import InputError, WorldError, reason_of, suggestion

BUILT_IN_ENCODER = "hashed-ngrams"
PAPER = "paper"
PAPER_ENCODER = "sentence-transformers/all-mpnet-base-v2"
PAPER_TOKENS = 512  # section 4; the model's own setting is 384
NAMED = re.compile(r"(?P<model>.+?)(:(?P<tokens>[1-9]\d{0,5}))?(?P<truncate>:truncate)?")
SERVED = "served:"  # begins the name of an encoder on a server, which does not say where that is
OFFLINE = f"give a saved model's folder, or --encoder {BUILT_IN_ENCODER}, which works offline"


class Encoder(Protocol):
    """A frozen map from text to vectors.

    Attributes:
        description: decides the vectors; it names their folder in the cache.
    """

    description: str

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32[len(texts), dim], each row a function of its own text alone."""
        ...


def default_encoder(pool: Pool) -> str:
    """The encoder that a pool names.

    Where it names none: hashed n-grams for the package's models, which were made for them, and
    the paper's model for all others, over windows, so that the newest answer is seen. Raises
    InputError: it names a server, which only a user may do: a pool may come from others.
    """
    if names_server(pool.encoder or ""):
        raise InputError(f"a pool names a server that embeds: {pool.encoder}; give it by --encoder")
    ours = all(is_shipped(model.model) for model in pool.everyone)
    return pool.encoder or (BUILT_IN_ENCODER if ours else PAPER_ENCODER)


def encoder_note(preset: str | None, encoder: str) -> str:
    """What to say of a training by the paper's numbers that reads with another encoder."""
    if preset != PAPER or encoder == PAPER:
        return ""
    return f"preset paper with encoder {encoder}, not the paper's ({PAPER_ENCODER}:{PAPER_TOKENS})"


def load_encoder(name: str) -> Encoder:
    """An encoder by name.

    Raises InputError: there cannot be such a model, or it cannot read so many tokens; WorldError:
    the model cannot be loaded.

    Args:
        name: `hashed-ngrams` (built in), `paper` (all-mpnet-base-v2, cut at 512 tokens), or a
            sentence-transformers model. `:N` after it sets its length to N tokens, `:truncate`
            after that cuts longer contexts. Or a server: `URL#MODEL`, or a pool file of one model;
            by the name that runs and caches know it by it is asked only after it was given so.
    """
    if name == BUILT_IN_ENCODER:
        return HashedNgrams()
    if name.startswith(SERVED):
        return GIVEN.get(name) or EndpointEncoder(name)
    if names_server(name):
        encoder = EndpointEncoder.of(name)
        return GIVEN.setdefault(encoder.description, encoder)
    return SentenceEncoder(*_parsed(name))


def _parsed(name: str) -> tuple[str, bool, int | None]:
    """The model, whether long contexts are cut, and the number of tokens if it is given."""
    if name == PAPER:
        return PAPER_ENCODER, True, PAPER_TOKENS
    found = NAMED.fullmatch(name)
    if found is None:
        raise InputError(f"no such encoder: {name!r}; take {BUILT_IN_ENCODER}, {PAPER}, or a model")
    tokens = int(found["tokens"]) if found["tokens"] else None
    return found["model"], bool(found["truncate"]), tokens


def require_encoder(name: str) -> None:
    """Refuse an encoder that is not there, before anything is paid for; loads none.

    Raises InputError: a folder that is not there, a name that looks mistyped, that no model can
    have, or that the hub does not know; WorldError: a hub id that is neither cached nor reachable.
    """
    if name == BUILT_IN_ENCODER or name.startswith(SERVED):
        return
    if names_server(name):
        load_encoder(name).encode(["OK"])
    else:
        _resolved(_parsed(name)[0])


WORD = re.compile(r"\w+|[^\w\s]")  # punctuation counts: a sum and a word differ by their sign


class HashedNgrams:
    """Words and pairs of words, hashed; no model, no download, no fitting.

    The first half of a vector describes the whole context, the second half its last paragraph
    alone: the end of the newest response, or of the question where there is none yet. A policy can
    so tell what was asked from what was just said. Digits are folded, because which number it is
    says little and that there is one says much.

    Args:
        dim: length of a vector, even.
    """

    def __init__(self, dim: int = 512) -> None:
        self.description = f"{BUILT_IN_ENCODER}-v1-{dim}"
        self._half = dim // 2

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32[len(texts), dim]; each half has unit length / sqrt(2)."""
        whole = self._hash(texts)
        newest = self._hash([text.rsplit(PART_BREAK, 1)[-1] for text in texts])
        both: NDArray[np.float32] = np.concatenate([whole, newest], axis=1)
        both /= np.float32(np.sqrt(2))
        return both

    def _hash(self, texts: Sequence[str]) -> NDArray[np.float32]:
        counts = np.zeros((len(texts), self._half))
        for row, text in zip(counts, texts, strict=True):
            folded = "".join("0" if char.isdigit() else char for char in text)
            words = WORD.findall(folded.lower())
            pairs = map(" ".join, pairwise(words))
            hashed = np.array([mmh3.hash(one) for one in (*words, *pairs)], dtype=np.int64)
            # The sign of its hash is that of a word: those that share a place rather cancel out.
            np.add.at(row, np.abs(hashed) % self._half, np.where(hashed < 0, -1.0, 1.0))
        length = np.sqrt((counts**2).sum(axis=1, keepdims=True))
        return (counts / np.where(length, length, 1.0)).astype(np.float32)


class SentenceEncoder:
    """A sentence-transformers model by hub name or local folder.

    Args:
        name: hub id or folder.
        truncates: cut a long context, as the paper does at 512 tokens; else average over windows
            of the model's length, so that the newest response is seen.
        tokens: length of the model, instead of its own setting.

    Raises:
        InputError: there cannot be such a model, or it cannot read so many tokens.
        WorldError: the model cannot be loaded.
    """

    def __init__(self, name: str, truncates: bool = False, tokens: int | None = None) -> None:
        from sentence_transformers import SentenceTransformer

        content, source, commit = _resolved(name)
        try:
            self._model = SentenceTransformer(
                source,
                revision=commit,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True},
            )
        except (OSError, ValueError) as error:
            reason = reason_of(error, 160)
            raise WorldError(f"cannot load encoder {name}: {reason}; {OFFLINE}") from error
        if tokens is not None:
            most = self._model[0].auto_model.config.max_position_embeddings
            if tokens > most:
                raise InputError(
                    f"encoder {name} reads at most {most} tokens: {tokens}; give fewer"
                )
            self._model.max_seq_length = tokens
        length = "" if tokens is None else f"-{tokens}"
        self.description = f"{content}{length}-{'truncate' if truncates else 'windows'}"
        self._truncates = truncates

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32[len(texts), dim], rows of unit length."""
        pieces = [[text] if self._truncates else self._split(text) for text in texts]
        owner = np.repeat(np.arange(len(texts)), [len(windows) for windows in pieces])
        vectors = self._model.encode(
            [window for windows in pieces for window in windows],
            convert_to_numpy=True,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        total = np.zeros((len(texts), vectors.shape[1]), np.float32)
        np.add.at(total, owner, vectors)
        return _unit(total)

    def _split(self, text: str) -> list[str]:
        """The text cut into windows of at most the model's length, at token borders."""
        tokenizer = self._model.tokenizer
        room = self._model.max_seq_length - tokenizer.num_special_tokens_to_add()
        spans = tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        offsets = spans["offset_mapping"]
        if len(offsets) <= room:
            return [text]
        starts = [offsets[index][0] for index in range(0, len(offsets), room)]
        return [text[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def names_server(name: str) -> bool:
    """Whether a name of an encoder says where a server is."""
    return "://" in name or name.endswith(".toml")


class EndpointEncoder:
    """A model behind `/v1/embeddings`; keys, retries and limits are those of any endpoint.

    A text that is too long for it counts as the mean direction of its halves.

    Args:
        description: what decides its vectors: `served:MODEL@DEPLOYMENT`.
        spec: the model with its endpoint; None where nobody said where it is: then all texts must
            have been embedded before.
    """

    def __init__(self, description: str, spec: ModelSpec | None = None) -> None:
        self.description = description
        self._spec = spec
        self._ask: Any = None  # once it was asked
        self._dim = 0

    @classmethod
    def of(cls, name: str) -> EndpointEncoder:
        """The one that a file or `URL#MODEL` names; raises InputError: it names none, or no key."""
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
        return cls(f"{SERVED}{spec.model}@{identity['deployment']}{revision}", spec)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32[len(texts), dim], rows of unit length, of blank texts zeros.

        Raises InputError: nobody said where the server is; WorldError: it gives no vectors, or
        others than it gave before.
        """
        if self._spec is None:
            known = f", not {', '.join(GIVEN)}" if GIVEN else ""
            raise InputError(
                f"a server embeds: {self.description}{known}; say where it is by --encoder"
            )
        from hierrouter.engines.endpoint_client import Deployment, Patience

        if self._ask is None:
            # A loop of its own: this is called with and without one, from any thread.
            loop, endpoint = asyncio.new_event_loop(), endpoint_of(self._spec)
            Thread(target=loop.run_forever, name="encoder", daemon=True).start()
            client = Deployment(endpoint, endpoint.key("--encoder"))
            width = endpoint.concurrency * len(endpoint.servers)
            probe = partial(self._attempt, client, ["OK"])
            patience = Patience(endpoint.attempts, width, probe, never)
            self._ask = loop, client, patience, asyncio.Semaphore(width)
        said = [text for text in texts if text.strip()] or ["OK"]
        rows = asyncio.run_coroutine_threadsafe(self._all(said), self._ask[0]).result()
        vectors = np.zeros((len(texts), self._dim), np.float32)
        vectors[[at for at, text in enumerate(texts) if text.strip()]] = rows[: len(texts)]
        return vectors

    async def _all(self, texts: list[str]) -> NDArray[np.float32]:
        _, client, patience, places = self._ask
        from hierrouter.engines.endpoint_client import Refusal

        async def embedded(some: list[str]) -> NDArray[np.float32]:
            try:
                async with places:
                    found: NDArray[np.float32] = await patience.call_with_retries(
                        partial(self._attempt, client, some)
                    )
                return found
            except Refusal as refused:
                if refused.status != "too_long" or len(some[0]) < 2:
                    raise WorldError(f"no embeddings: {self.description}: {refused}") from None
            half = len(some) // 2
            if half:
                both = await embedded(some[:half]), await embedded(some[half:])
                return np.concatenate(both)
            half = len(some[0]) // 2
            return _unit((await embedded([some[0][:half], some[0][half:]])).sum(0, keepdims=True))

        pieces = (texts[at : at + TEXTS_AT_ONCE] for at in range(0, len(texts), TEXTS_AT_ONCE))
        return np.concatenate(await asyncio.gather(*map(embedded, pieces)))

    async def _attempt(self, client: Any, texts: list[str]) -> NDArray[np.float32]:
        from hierrouter.engines.endpoint_client import TransientError

        assert self._spec and self._spec.endpoint
        request = {"model": self._spec.model, "input": texts, "encoding_format": "float"}
        body = await client.embed(request)
        try:
            found = json.loads(body)
            data = sorted(found["data"], key=lambda one: one["index"])
            rows = np.array([one["embedding"] for one in data], np.float32)
            if rows.ndim != 2 or len(rows) != len(texts) or not np.isfinite(rows).all():
                raise ValueError(rows.shape)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise TransientError(f"no embeddings from {client.address}: {error!r:.80}") from None
        self._dim = self._dim or rows.shape[1]
        named = self._spec.endpoint.answers_as or self._spec.model
        if found.get("model") != named or rows.shape[1] != self._dim:
            raise WorldError(
                f"{client.address} embeds by {found.get('model')!r:.50} with {rows.shape[1]} "
                f"numbers, not by {named} with {self._dim}; set answers_as if that is its name"
            )
        return _unit(rows)


GIVEN: dict[str, EndpointEncoder] = {}  # by description, those that the user said where they are
TEXTS_AT_ONCE = 32  # in a request


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(length, np.finfo(np.float32).tiny)


def _resolved(name: str) -> tuple[str, str, str | None]:
    """What a name stands for: its content in words, where to load it, and the commit there."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder_digest(folder), str(folder), None
    if folder.is_absolute() or name.startswith(("./", "../", "~")):
        raise InputError(f"encoder folder not found: {folder}; give the folder of a saved encoder")
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    # Names without an owner are those of the library's own models.
    model = name if "/" in name else f"sentence-transformers/{name}"
    try:
        commit = hub_commit(model, None)
    except WorldError as error:
        # Its fault, and not that of the network, which nobody knows offline.
        if isinstance(error.__cause__, HFValidationError | RepositoryNotFoundError):
            known = (
                f"take {BUILT_IN_ENCODER}, {PAPER}, the folder of a saved model, "
                "or a model of the hub"
            )
            raise InputError(f"no such encoder: {name}; {_meant(name) or known}") from error
        if meant := _meant(name):
            raise InputError(f"no such encoder: {name}; {meant}") from error
        raise WorldError(
            f"encoder {name} is not on this machine, and the hub cannot be reached or does not "
            f"have it; {OFFLINE}"
        ) from error
    return f"{model}@{commit}", model, commit


def _meant(name: str) -> str:
    """A name of ours that this one looks like, as a question; empty where there is none."""
    return suggestion(name, (BUILT_IN_ENCODER, PAPER), "").rstrip()
