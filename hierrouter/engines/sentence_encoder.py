"""Sentence-transformers models as encoders, from a folder or at a commit of the hub."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.engines.encoder_names import OFFLINE_HINT, EncoderName, NoEncoder
from hierrouter.engines.identity import (
    SETTINGS_PATTERNS,
    WEIGHTS_PATTERN,
    folder_digest,
    holds_model,
)
from hierrouter.hub.repository import HubError, quiet_loading, short
from hierrouter_cache.errors import InputError, reason_of

ENCODER_PATTERNS = (*SETTINGS_PATTERNS, WEIGHTS_PATTERN)


class SentenceEncoder:
    """A sentence-transformers model by hub name or local folder; it is loaded when it is needed.

    Args:
        name: of the model.
        stored: as for `find_encoder`.

    Attributes:
        description: the model's content, and how it is used.
        commit: of the hub; "" for a folder.

    Raises:
        InputError: no model can have this name, or the folder does not exist.
        NoEncoder: it is not known which commit of the hub is meant.
    """

    def __init__(self, name: EncoderName, stored: Iterable[str] = ()) -> None:
        self._name = name
        self._folder = name.folder
        self._model: Any = None
        self.commit = ""
        if self._folder:
            content = folder_digest(self._folder)
        else:
            self.commit = name.resolve(stored)
            content = f"{name.repository.id}@{self.commit}"
        self.description = content + name.suffix

    def load(self) -> None:
        """Load the model, unless it is loaded; files that are not on this machine are downloaded.

        Raises:
            InputError: it cannot read as many tokens.
            NoEncoder: it cannot be loaded.
        """
        if self._model is not None:
            return
        name = self._name
        if self._folder is None:
            self._fetch()
        from sentence_transformers import SentenceTransformer

        try:
            with quiet_loading():
                model: Any = SentenceTransformer(
                    str(self._folder or name.repository.id),
                    revision=self.commit or None,
                    # All files are here by now. The library would ask the hub once more, also for
                    # files that the repository does not have.
                    local_files_only=self._folder is None,
                    trust_remote_code=False,
                    model_kwargs={"use_safetensors": True},
                )
        except (OSError, ValueError) as error:
            reason = reason_of(error, 160)
            raise NoEncoder(f"cannot load encoder {name.text}: {reason}; {OFFLINE_HINT}") from error
        if name.tokens is not None:
            max_tokens = model[0].auto_model.config.max_position_embeddings
            if name.tokens > max_tokens:
                raise InputError(
                    f"encoder {name.text} reads at most {max_tokens} tokens: {name.tokens}; "
                    "give fewer"
                )
            model.max_seq_length = name.tokens
        self._model = model

    def _fetch(self) -> None:
        """Make sure that all files of a model of the hub are on this machine."""
        where = f"encoder {self._name.text}, commit {short(self.commit)},"
        try:
            folder = self._name.repository.fetch(self.commit, ENCODER_PATTERNS)
        except HubError as error:
            raise NoEncoder(
                f"{where} is not on this machine, or only in part: {error}; {OFFLINE_HINT}"
            ) from error
        if not holds_model(folder):
            raise NoEncoder(f"{where} is only in part on this machine; {OFFLINE_HINT}")

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts.

        Args:
            texts: the texts.

        Returns:
            float32[len(texts), dim], rows of unit length.

        Raises:
            InputError: as `load`.
            NoEncoder: as `load`.
        """
        self.load()
        windows: list[str] = []
        owners: list[int] = []  # the text of each window
        for row, text in enumerate(texts):
            text_windows = [text] if self._name.truncates else self._split(text)
            windows += text_windows
            owners += [row] * len(text_windows)
        vectors = self._model.encode(
            windows, convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False
        )
        total = np.zeros((len(texts), vectors.shape[1]), np.float32)
        np.add.at(total, np.array(owners, dtype=np.intp), vectors)
        return unit_rows(total)

    def _split(self, text: str) -> list[str]:
        """Cut a text into windows of at most the model's length, between tokens."""
        tokenizer = self._model.tokenizer
        room = self._model.max_seq_length - tokenizer.num_special_tokens_to_add()
        spans = tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        offsets = spans["offset_mapping"]
        if len(offsets) <= room:
            return [text]
        starts = [offsets[index][0] for index in range(0, len(offsets), room)]
        ends = [*starts[1:], None]
        return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def unit_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows of a matrix with length 1; rows of zeros stay."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(length, np.finfo(np.float32).tiny)
