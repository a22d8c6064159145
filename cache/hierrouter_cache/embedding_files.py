"""Files of vectors: their names, their bytes and proof of them.

`<cache>/derived/<encoder digest>/emb-<seq>-<writer>-r<rows>-<sha256[:16]>.npy` holds rows of
(digest, float32 vector), as `np.save` writes them, and is memory-mapped: opening costs nothing at
any size. Not covered: which vector is whose (`embeddings`), and merging (`embedding_merge`).
"""

from __future__ import annotations

import hashlib
import io
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.errors import DamagedPart, WorldError, reason_of
from hierrouter_cache.fingerprint import DIGEST_LENGTH
from hierrouter_cache.parts import file_sha16
from hierrouter_cache.writer import writable, write_derived

NAME = re.compile(
    r"emb-(?P<seq>\d{8})-(?P<writer>[0-9a-f]{8})-r(?P<rows>\d+)-(?P<sha>[0-9a-f]{16})\.npy"
)
CHUNK = 16_384  # rows looked at or written together


@dataclass(frozen=True)
class EmbeddingFile:
    """One file of vectors, as its name describes it."""

    path: Path
    rows: int
    sha: str


def embedding_files(root: Path) -> list[EmbeddingFile]:
    """All embedding files of a cache, of every encoder, in name order."""
    return [
        EmbeddingFile(path, int(match["rows"]), match["sha"])
        for path in sorted(root.glob("derived/*/emb-*.npy"))
        if (match := NAME.fullmatch(path.name))
    ]


def embedding_fault(file: EmbeddingFile) -> str | None:
    """What is wrong with an embedding file, or None; reads every byte, holds none of them.

    A file that is gone was merged into another one: nothing is wrong with it.
    """
    try:
        found = _look(file)
        if isinstance(found, str):
            return found
        if file_sha16(file.path) != file.sha:
            return f"checksum mismatch, expected {file.rows} rows as written"
    except FileNotFoundError:
        return None
    if not all(
        np.isfinite(found["vector"][at : at + CHUNK]).all() for at in range(0, len(found), CHUNK)
    ):
        return f"NaN or infinity, expected {file.rows} rows of finite numbers"
    return None


def require_sound(file: EmbeddingFile) -> None:
    """Refuse a damaged embedding file.

    Raises:
        DamagedPart: it is not what its name promises.
    """
    if why := embedding_fault(file):
        raise _damaged(file, why)


def _look(file: EmbeddingFile) -> NDArray[np.void] | str:
    """The rows, mapped; or why these are none."""
    try:
        if not stat.S_ISREG(file.path.lstat().st_mode):
            return "not a regular file"
        # "c": nobody writes, and torch takes it without a copy; a write would not reach the file.
        rows: NDArray[np.void] = np.load(file.path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged header takes numpy's parser of Python anywhere
        return f"not readable ({reason_of(error, 60)}), expected {file.rows} rows"
    if not _is_ours(rows.dtype) or rows.shape != (file.rows,):
        return f"expected {file.rows} rows of context and vector, found {rows.shape}"
    return rows


def _is_ours(found: np.dtype[Any]) -> bool:
    """Whether a row is a digest and a vector: of others Arrow would read beyond the end."""
    if found.names != ("context", "vector"):
        return False
    context, vector = found["context"], found["vector"]
    return context == f"S{DIGEST_LENGTH}" and vector.base == "<f4" and vector.ndim == 1


def mapped(file: EmbeddingFile) -> NDArray[np.void]:
    """The rows, mapped.

    Raises:
        FileNotFoundError: they were merged into another file.
        DamagedPart: they are not what the file's name promises.
    """
    found = _look(file)
    if isinstance(found, str):
        raise _damaged(file, found)
    return found


def _damaged(file: EmbeddingFile, why: str) -> DamagedPart:
    return DamagedPart(
        f"damaged embedding file: {file.path.name}: {why}; move it aside with "
        f"`hierrouter cache repair --cache {file.path.parents[2]}`, it is then made again"
    )


def require_one_width(arrays: Sequence[NDArray[np.void]], folder: Path) -> None:
    """Refuse vectors of two widths.

    Raises:
        DamagedPart: there are some.
    """
    if len({rows.dtype for rows in arrays}) > 1:
        raise DamagedPart(
            f"embedding files of different dim: {folder}; delete the folder and run "
            "`hierrouter collect` again"
        )


def write_rows(folder: Path, seq: int, arrays: Sequence[NDArray[np.void]]) -> EmbeddingFile | None:
    """Commit all rows as one file; None where the cache cannot be written to, and is left as it is.

    Mapped rows are read twice, for the name and for the file, and never held together.

    Raises:
        WorldError: the disk is full or failed.
    """
    if not writable(folder.parents[1]):
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorldError(
            f"cannot write embeddings: {folder}: {error.strerror}; make room or mend the disk"
        ) from error
    rows, total = sum(len(array) for array in arrays), hashlib.sha256()
    for piece in _pieces(arrays):
        total.update(piece)
    sha = total.hexdigest()[:16]
    name = f"emb-{seq:08d}-{secrets.token_hex(4)}-r{rows}-{sha}.npy"
    write_derived(folder.parents[1], folder / name, _pieces(arrays))
    return EmbeddingFile(folder / name, rows, sha)


def _pieces(arrays: Sequence[NDArray[np.void]]) -> Iterator[bytes]:
    """The bytes that `np.save` makes of all rows together, a few rows at a time."""
    header = io.BytesIO()
    description = np.lib.format.dtype_to_descr(arrays[0].dtype)
    rows = sum(len(array) for array in arrays)
    np.lib.format.write_array_header_1_0(
        header, {"descr": description, "fortran_order": False, "shape": (rows,)}
    )
    yield header.getvalue()
    for array in arrays:
        for at in range(0, len(array), CHUNK):
            yield array[at : at + CHUNK].tobytes()
