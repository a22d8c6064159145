"""A cache that others change all the while: the same rows, or one line that says so.

The others are real, they commit and merge. When they do it is what a test decides, by standing
between two steps of a reader.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from hierrouter_cache import chain, embeddings, mirror, parts, reader
from hierrouter_cache.chain import sound_parts
from hierrouter_cache.embeddings import (
    EmbeddingFile,
    EmbeddingStore,
    embedding_fault,
    merge_embeddings,
)
from hierrouter_cache.errors import CacheError
from hierrouter_cache.keys import digest
from hierrouter_cache.maintenance import compact
from hierrouter_cache.mirror import push
from hierrouter_cache.parts import list_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.stores import FolderStore
from hierrouter_cache.writer import PartWriter
from tests.cache import rows

ALWAYS = 1000
Between = Callable[..., None]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of two parts, which is not looked at a hundred times."""
    for module in (chain, mirror, embeddings):
        monkeypatch.setattr(module, "MAX_LISTINGS", 4)
    writer = PartWriter(tmp_path / "cache")
    for said in ("first", "second"):
        writer.append("calls", rows.calls(("m", said, said)))
    return writer.root


@pytest.fixture
def between(root: Path, monkeypatch: pytest.MonkeyPatch) -> Between:
    """After each of the first calls of a function of a module, others merge all parts."""

    def arrange(module: Any, name: str, times: int = ALWAYS) -> None:
        real, left = getattr(module, name), iter(range(times))

        def then_others(*arguments: Any) -> Any:
            result = real(*arguments)
            if next(left, None) is not None:
                with monkeypatch.context() as theirs:
                    theirs.setattr(module, name, real)
                    new = rows.calls(("m", os.urandom(4).hex(), "theirs"))
                    PartWriter(root).append("calls", new)
                    compact(root)
            return result

        monkeypatch.setattr(module, name, then_others)

    return arrange


def read(root: Path) -> dict[str, str]:
    return CacheReader(root).responses()


def test_parts_merged_while_they_are_opened_are_opened_again(root: Path, between: Between) -> None:
    between(reader, "sound_chain", times=1)
    assert set(read(root).values()) == {"first", "second", "theirs"}


@pytest.mark.parametrize(
    ("module", "step", "look", "message"),
    [
        (reader, "sound_chain", read, "changes all the time: {root}; try again later"),
        (reader, "create_views", read, "changes all the time: {root}; try again later"),
        (parts, "listing", sound_parts, "keeps changing: {root}; wait until"),
        (
            mirror,
            "list_parts",
            lambda root: push(root, FolderStore(root.with_name("mirror"))),
            "keeps changing: {root}; push again when it is at rest",
        ),
    ],
)
def test_a_cache_that_is_merged_at_every_look_is_named(
    root: Path, between: Between, module: Any, step: str, look: Callable[[Path], Any], message: str
) -> None:
    between(module, step)
    with pytest.raises(CacheError, match=message.format(root=root)):
        look(root)


def test_a_disk_that_fails_is_not_taken_for_a_compaction(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = CacheReader(root)
    with pytest.raises(CacheError, match=r"a part cannot be read: .*gone\.parquet"):
        opened.sql("SELECT * FROM read_parquet('gone.parquet')")

    def fail(*_: object) -> None:
        raise duckdb.IOException(os.strerror(errno.EIO))

    monkeypatch.setattr(reader, "create_views", fail)
    with pytest.raises(CacheError, match=r"a part cannot be read: .*Input/output error"):
        read(root)


def test_parts_merged_while_they_are_pushed_are_pushed_merged(root: Path, between: Between) -> None:
    store = FolderStore(root.with_name("mirror"))
    between(mirror, "list_parts", times=1)
    push(root, store)
    assert set(store.sizes()) >= {part.path.name for part in list_parts(root)}


def test_vectors_merged_while_they_are_mapped_are_mapped_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, contexts = CacheReader(root), [digest(1), digest(2)]
    store = EmbeddingStore(opened, "e")
    for number, context in enumerate(contexts):
        store.append([context], np.full((1, 2), number, np.float32))
    real = embeddings.embedding_files
    before = real(root)
    looks = iter([before])

    def late(root: Path) -> list[EmbeddingFile]:
        return next(looks, None) or real(root)

    merge_embeddings(root)
    monkeypatch.setattr(embeddings, "embedding_files", late)
    found = EmbeddingStore(opened, "e")
    assert found.vectors()[found.rows(opened.hashes(contexts))].tolist() == [[0, 0], [1, 1]]
    assert [embedding_fault(file) for file in before] == [None, None]  # merged, no fault

    monkeypatch.setattr(embeddings, "embedding_files", lambda root: before)
    with pytest.raises(CacheError, match=f"change all the time: {store.folder}; try again later"):
        EmbeddingStore(opened, "e")
