"""Add rows to a cache that may hold some of them already.

In: rows in the columns of `hierrouter_cache.schema`, checked. Out: parts with those that are new.
Content keys make merging safe: what is there stays, also where another response comes under the
same key, which is counted. Not covered: checking rows (`lines`), and plans, whose order matters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from hierrouter_cache.locks import collector_lock
from hierrouter_cache.reader import CacheReader, reader_of
from hierrouter_cache.schema import IDENTITY, KINDS
from hierrouter_cache.writer import PartWriter, sweep_drafts

ROWS_PER_PART = 8192
# Of rows with one identity, the column in which a second one may differ.
CONTENT = {"calls": "outcome", "scores": "value"}


@dataclass
class Merge:
    """Rows on their way into a cache; use `merging`.

    Attributes:
        writer: commits the parts.
        reader: what was there before, None where there was nothing.
        added: new rows, by kind.
        present: rows that were there already, or twice in the file.
        different: of those, the ones with another content; it was not taken.
        repeated: of those, the ones that the file itself brought before.
        another_plan: whether the cache has another latest plan than before.
    """

    writer: PartWriter
    reader: CacheReader | None
    added: Counter[str] = field(default_factory=Counter)
    present: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    another_plan: bool = False
    _known: dict[str, dict[tuple[Any, ...], Any]] = field(default_factory=dict)
    _taken: dict[str, set[tuple[Any, ...]]] = field(default_factory=dict)
    _waiting: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)

    def add(self, kind: str, row: Mapping[str, Any]) -> None:
        """Take one row; it is committed with others of its kind.

        Raises:
            WorldError: the disk is full or failed; what was committed stays.
        """
        known = self._known_of(kind)
        identity = tuple(row[name] for name in IDENTITY[kind])
        content = row[CONTENT[kind]] if kind in CONTENT else None
        taken = self._taken.setdefault(kind, set())
        if identity in known:
            self.present[kind] += 1
            self.different[kind] += known[identity] != content
            self.repeated[kind] += identity in taken
            return
        known[identity] = content
        taken.add(identity)
        self.added[kind] += 1
        waiting = self._waiting.setdefault(kind, [])
        waiting.append(row)
        if len(waiting) == ROWS_PER_PART:
            self._commit(kind)

    def flush(self) -> None:
        """Commit everything that waits.

        Raises:
            WorldError: the disk is full or failed; what was committed stays.
        """
        for kind in list(self._waiting):
            self._commit(kind)

    def _commit(self, kind: str) -> None:
        rows = self._waiting.pop(kind)
        self.writer.append(kind, pa.Table.from_pylist(rows, schema=KINDS[kind]))

    def _known_of(self, kind: str) -> dict[tuple[Any, ...], Any]:
        if kind not in self._known:
            self._known[kind] = self._stored(kind)
        return self._known[kind]

    def _stored(self, kind: str) -> dict[tuple[Any, ...], Any]:
        if self.reader is None:
            return {}
        names = ", ".join(f'"{name}"' for name in IDENTITY[kind])
        content = CONTENT.get(kind, "NULL")
        table = self.reader.sql(f"SELECT {names}, {content} AS content FROM {kind}_rows")  # noqa: S608 - our own names
        # Read backwards, so that the first part's row is the one that stays.
        *identity, values = (column.to_pylist()[::-1] for column in table.columns)
        return dict(zip(zip(*identity, strict=True), values, strict=True))


@contextmanager
def merging(root: Path) -> Iterator[Merge]:
    """A `Merge` into the cache at `root`, made where it does not exist; commits at the end.

    Raises:
        CacheLocked: a collector is at work there.
        CacheError: the cache is damaged or cannot be written.
    """
    writer = PartWriter(root)
    with collector_lock(root):
        sweep_drafts(root)
        merge = Merge(writer, reader_of(root))
        yield merge
        merge.flush()
