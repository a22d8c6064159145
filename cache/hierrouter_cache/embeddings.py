"""Embedded texts: derived data, beside the truth.

In: an open cache and an encoder's description. Out: vectors by digest of a text, of contexts or of
answers alone. The bytes of a file are checked against its name before vectors are handed on. All
can be deleted and rebuilt at will. Not covered: computing vectors (`hierrouter.collect.encoders`),
and the files that hold them (`embedding_files`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter_cache.embedding_files import (
    embedding_files,
    mapped,
    require_one_width,
    require_sound,
    write_rows,
)
from hierrouter_cache.errors import CacheError, IncompleteTree, WorldError
from hierrouter_cache.fingerprint import DIGEST_LENGTH, digest
from hierrouter_cache.parts import TRIES
from hierrouter_cache.reader import CacheReader, first_match

# What the texts of a folder are, and what their digests are of.
CONTEXTS = "contexts"  # a question and all answers so far; `next_context`
ANSWERS = "answers"  # one answer alone; `text_digest`


class EmbeddingStore:
    """Vectors by digest of a text, for one encoder and one kind of text.

    Args:
        reader: the open cache; digests are looked up by its hashes.
        encoder: the encoder's description; with `texts` it decides the folder, so vectors of two
            encoders never meet.
        texts: `CONTEXTS` or `ANSWERS`.

    Raises:
        DamagedPart: a file is not what its name promises.
    """

    def __init__(self, reader: CacheReader, encoder: str, texts: str = CONTEXTS) -> None:
        self.encoder = encoder
        named = ["encoder", encoder, *([] if texts == CONTEXTS else [texts])]
        self.folder = reader.root / "derived" / digest(named)
        self._reader = reader
        self._unwritten: list[NDArray[np.void]] = []
        self._map()

    def _map(self) -> None:
        """Map every file; look again where one was merged away between two looks."""
        for _ in range(TRIES):
            self._arrays: list[NDArray[np.void]] = []
            self._known = np.empty(0, np.uint64)
            files = embedding_files(self._reader.root)
            self._unchecked = [file for file in files if file.path.parent == self.folder]
            try:
                for rows in (*map(mapped, self._unchecked), *self._unwritten):
                    self._index(rows)
                return
            except FileNotFoundError:
                continue
        raise CacheError(f"the embeddings change all the time: {self.folder}; try again later")

    def missing(self, contexts: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """uint64[n]: those of `contexts` that have no vector yet, once each, in order."""
        flat = contexts.ravel()
        absent = flat[first_match(flat, self._known) < 0]
        distinct, first = np.unique(absent, return_index=True)
        return distinct[np.argsort(first)]

    def append(self, contexts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Store float32[len(contexts), dim] for good; in a read-only cache, for this process.

        Args:
            contexts: digests.
            vectors: one row a context.

        Raises:
            WorldError: a vector is not finite, or the disk is full or failed.
        """
        if not np.isfinite(vectors).all():
            raise WorldError(
                f"the encoder gives vectors that are not finite: {self.encoder}; take another"
            )
        rows = np.empty(
            len(contexts),
            dtype=[("context", f"S{DIGEST_LENGTH}"), ("vector", "<f4", (vectors.shape[1],))],
        )
        rows["context"] = list(contexts)
        rows["vector"] = vectors
        written = write_rows(self.folder, len(self._arrays), [rows])
        if written is None:
            self._unwritten.append(rows)
        # What is on the disk need not be held: all files together may be larger than the memory.
        with contextlib.suppress(FileNotFoundError):  # merged into another one already
            rows = mapped(written) if written else rows
        self._index(rows)

    def rows(self, contexts: NDArray[np.uint64]) -> NDArray[np.int64]:
        """int64[*contexts.shape]: row of `vectors()` of each context.

        Raises:
            IncompleteTree: a context has no vector.
            DamagedPart: a file is not what its name promises.
        """
        self._check()
        place = first_match(contexts, self._known)
        if (place < 0).any():
            raise IncompleteTree(
                f"{np.count_nonzero(place < 0)} states have no embedding: {self.folder}; "
                "run `hierrouter collect` again"
            )
        return place

    def vectors(self) -> NDArray[np.float32]:
        """float32[rows, dim]: all vectors; mapped where one file holds them, else a copy.

        Raises:
            DamagedPart: a file is not what its name promises; nothing of it is handed on.
        """
        self._check()
        require_one_width(self._arrays, self.folder)
        vectors = [rows["vector"] for rows in self._arrays]
        return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)

    def _check(self) -> None:
        """Hash every file once, before anything of it is handed on."""
        if not all(file.path.exists() for file in self._unchecked):
            self._map()  # merged meanwhile; the vectors are the same
        for file in self._unchecked:
            require_sound(file)
        self._unchecked = []

    def _index(self, rows: NDArray[np.void]) -> None:
        self._arrays.append(rows)
        known = self._reader.hashes(_as_arrow(rows["context"]))
        self._known = np.concatenate([self._known, known])


def _as_arrow(contexts: NDArray[np.bytes_]) -> pa.Array:
    """The digests as Arrow text, one copy."""
    packed = np.ascontiguousarray(contexts)
    offsets = np.arange(len(packed) + 1, dtype=np.int64) * DIGEST_LENGTH
    return pa.Array.from_buffers(
        pa.large_string(), len(packed), [None, pa.py_buffer(offsets), pa.py_buffer(packed)]
    )
