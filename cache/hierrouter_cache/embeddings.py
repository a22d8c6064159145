"""Embedded contexts: derived data, beside the truth.

`<cache>/derived/<encoder digest>/emb-<seq>-r<rows>-<sha256[:16]>.npy` holds rows of
(context digest, float32 vector); it is memory-mapped, checked against its name, and can be deleted
and rebuilt at will. Not covered: computing vectors (`hierrouter.collect.encoders`).
"""

from __future__ import annotations

import io
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.errors import DamagedPart, IncompleteTree
from hierrouter_cache.fingerprint import DIGEST_LENGTH, digest
from hierrouter_cache.parts import sha16
from hierrouter_cache.writer import write_atomically

NAME = re.compile(r"emb-(?P<seq>\d{8})-[0-9a-f]{8}-r(?P<rows>\d+)-(?P<sha>[0-9a-f]{16})\.npy")


def verify_embeddings(root: Path) -> int:
    """Hash every embedding file of a cache; returns how many there are.

    Raises:
        DamagedPart: a file is not what its name promises.
    """
    files = [
        (path, match["sha"])
        for path in sorted(root.glob("derived/*/emb-*.npy"))
        if (match := NAME.fullmatch(path.name))
    ]
    for path, sha in files:
        _check(path, sha)
    return len(files)


class EmbeddingStore:
    """Vectors by context digest, for one encoder.

    Args:
        root: the cache's folder.
        encoder: the encoder's description; it decides the folder, so vectors of two encoders
            never meet.

    Raises:
        DamagedPart: a file is not what its name promises; delete the folder to rebuild it.
    """

    def __init__(self, root: Path, encoder: str) -> None:
        self.encoder = encoder
        self.folder = root / "derived" / digest(["encoder", encoder])
        self._files: list[NDArray[np.void]] = []
        self._place: dict[str, tuple[int, int]] = {}
        if self.folder.is_dir():
            for path in sorted(self.folder.iterdir()):
                if match := NAME.fullmatch(path.name):
                    self._open(path, match["sha"])

    def missing(self, contexts: Iterable[str]) -> list[str]:
        """Those of `contexts` that have no vector yet, in order, without repetition."""
        return [context for context in dict.fromkeys(contexts) if context not in self._place]

    def append(self, contexts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Store float32[len(contexts), dim] for good; in a read-only cache, for this process."""
        rows = np.empty(
            len(contexts),
            dtype=[("context", f"S{DIGEST_LENGTH}"), ("vector", "<f4", (vectors.shape[1],))],
        )
        rows["context"] = list(contexts)
        rows["vector"] = vectors
        buffer = io.BytesIO()
        np.save(buffer, rows, allow_pickle=False)
        data = buffer.getvalue()
        self._index(rows)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except PermissionError:
            return
        name = (
            f"emb-{len(self._files) - 1:08d}-{secrets.token_hex(4)}-r{len(rows)}-{sha16(data)}.npy"
        )
        if os.access(self.folder, os.W_OK):
            write_atomically(self.folder / name, data)

    def gather(self, contexts: NDArray[np.str_]) -> NDArray[np.float32]:
        """float32[*contexts.shape, dim]: the vector of each context.

        Raises:
            IncompleteTree: a context has no vector.
        """
        flat = contexts.ravel().tolist()
        absent = len(self.missing(flat))
        if absent:
            raise IncompleteTree(
                f"{absent} states have no embedding; run `hierrouter collect` again"
            )
        places = np.array([self._place[context] for context in flat])
        dim = self._files[0]["vector"].shape[1]
        out = np.empty((len(flat), dim), np.float32)
        for number, rows in enumerate(self._files):
            here = places[:, 0] == number
            out[here] = rows["vector"][places[here, 1]]
        return out.reshape(*contexts.shape, dim)

    def _open(self, path: Path, sha: str) -> None:
        _check(path, sha)
        self._index(np.load(path, mmap_mode="r", allow_pickle=False))

    def _index(self, rows: NDArray[np.void]) -> None:
        number = len(self._files)
        self._files.append(rows)
        for row, context in enumerate(rows["context"].astype(str).tolist()):
            self._place.setdefault(context, (number, row))


def _check(path: Path, sha: str) -> None:
    if sha16(path.read_bytes()) != sha:
        raise DamagedPart(
            f"damaged embedding file: {path.name}: checksum mismatch; "
            f"delete {path.parent} and run `hierrouter collect` again"
        )
