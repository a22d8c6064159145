"""Merge the files of vectors of each encoder.

In: a cache. Out: the same cache with one file an encoder, so that it is mapped and not copied. A
merged file is committed like any other one; only then are its sources unlinked. Not covered:
parts (`compact`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.embedding_files import (
    EmbeddingFile,
    embedding_files,
    mapped,
    require_one_width,
    require_sound,
    write_rows,
)
from hierrouter_cache.errors import WorldError
from hierrouter_cache.locks import collector_lock


def merge_embeddings(root: Path) -> int:
    """Merge the files of each encoder into one, so that it is mapped and not copied.

    Returns how many files there are fewer.

    Raises:
        DamagedPart: a file is not what its name promises; nothing of that encoder is touched.
        CacheLocked: a collector or a compaction is at work.
    """
    with collector_lock(root):
        folders: dict[Path, list[EmbeddingFile]] = {}
        for file in embedding_files(root):
            folders.setdefault(file.path.parent, []).append(file)
        return sum(_merge(folder, files) for folder, files in folders.items())


def _merge(folder: Path, files: Sequence[EmbeddingFile]) -> int:
    if len(files) < 2:
        return 0
    for file in files:
        require_sound(file)
    arrays = [mapped(file) for file in files]
    require_one_width(arrays, folder)
    write_rows(folder, len(files), _first_of_each(arrays))
    try:
        for file in reversed(files):
            file.path.unlink()
    except OSError as error:
        raise WorldError(
            f"cannot remove a merged file: {error}; run `cache compact` again"
        ) from error
    return len(files) - 1


def _first_of_each(arrays: Sequence[NDArray[np.void]]) -> list[NDArray[np.void]]:
    """The rows but for those whose digest stood before; copied only where there is one."""
    contexts = np.concatenate([rows["context"] for rows in arrays])
    first = np.zeros(len(contexts), bool)
    first[np.unique(contexts, return_index=True)[1]] = True
    kept = np.split(first, np.cumsum([len(rows) for rows in arrays])[:-1])
    return [rows if here.all() else rows[here] for rows, here in zip(arrays, kept, strict=True)]
