"""Parts, embeddings and locks of the collected cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter.replay.inspection import ask_cache
from hierrouter_cache.parts import METADATA_KEY, sha16
from hierrouter_cache.writer import PartWriter
from tests.acceptance.place import COLLECT, Place
from tests.holes import drop_calls, drop_five_leaves_of_three_queries


def truncated(place: Place) -> None:
    path = place.part()
    os.truncate(path, path.stat().st_size // 2)


def flipped(place: Place) -> None:
    """One bit of one part; the checks are told which."""
    path = place.part()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    place.noted["damaged"] = path.name


def emptied(place: Place) -> None:
    place.part().write_bytes(b"")


def repaired(place: Place) -> None:
    place.does("cache", "repair")


def strays(place: Place) -> None:
    """Files of others in the folder of the parts."""
    for name in (".DS_Store", "README.txt", "x.tmp", "y.csv", "calls-1-x.parquet"):
        (place.parts / name).write_text("stray")


def forged(place: Place, kind: str, table: pa.Table, header: str = '{"format": 1}') -> None:
    """A part whose name is right and whose content is not what we write."""
    sink = pa.BufferOutputStream()
    metadata = {METADATA_KEY: header.encode()}
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    data = sink.getvalue().to_pybytes()
    name = f"{kind}-00000099-ffffffff-r{table.num_rows}-{sha16(data)}.parquet"
    (place.parts / name).write_bytes(data)


def rewritten(place: Place, kind: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """The first part of a kind, replaced by a changed one with a right name."""
    old = place.part(kind)
    table = change(pq.read_table(old))
    old.unlink()
    forged(place, kind, table)


def set_column(place: Place, kind: str, name: str, value: float | str) -> None:
    """Every row gets this value; a text in a column of numbers makes it one of texts."""

    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        kind = pa.string() if isinstance(value, str) else table.schema.field(name).type
        return table.set_column(at, name, pa.array([value] * table.num_rows, kind))

    rewritten(place, kind, change)


def drop_column(place: Place, kind: str, name: str) -> None:
    rewritten(place, kind, lambda table: table.drop_columns([name]))


def five_nodes_missing_in_three_queries(place: Place) -> None:
    drop_five_leaves_of_three_queries(place.cache)


def parent_missing(place: Place) -> None:
    first = "SELECT call FROM nodes WHERE hop = 1 ORDER BY call LIMIT 1"
    drop_calls(place.cache, set(ask_cache(place.cache, first)["call"].to_pylist()))


def every_row_twice(place: Place) -> None:
    """As after two collectors."""
    writer = PartWriter(place.cache)
    for path in list(place.parts.glob("*.parquet")):
        writer.append(path.name.split("-")[0], pq.read_table(path))


def newer(place: Place) -> None:
    forged(place, "calls", pq.read_table(place.part()), '{"format": 99}')


def foreign_parts(place: Place) -> None:
    """Calls, questions and scores of another collection."""
    for kind in ("calls", "queries", "scores"):
        shutil.copy(_other(place).part(kind), place.parts)


def foreign_plan(place: Place) -> None:
    plan = pq.read_table(place.part("plans"))
    strange = plan.set_column(2, "queries", pa.array([["0" * 32, "1" * 32]]))
    forged(place, "plans", strange)


def _other(place: Place) -> Place:
    """Another place, where other questions were collected."""
    other = place.home.parent / "elsewhere"
    if not other.exists():
        shutil.copytree(place.home, other, ignore=shutil.ignore_patterns("caches"))
        file = other / "data" / "math.jsonl"
        file.write_text(file.read_text().replace("math", "other"))
        Place(other, place.run, place.server).does(*COLLECT)
    return Place(other, place.run, place.server)


def held(place: Place) -> None:
    """Another collector is at work."""
    file = (place.cache / "collect.lock").open("a+")
    fcntl.flock(file, fcntl.LOCK_EX)
    file.truncate(0)
    file.write("pid 4711")
    file.flush()
    place.noted["held"] = file  # let go with the row


def left_by_a_dead_collector(place: Place) -> None:
    """Its lock file, and not yet its last part."""
    (place.cache / "collect.lock").write_text("pid 999999999")
    place.part().unlink()


def clock_set_back(place: Place) -> None:
    """Half of the files get a date a year back."""
    for number, path in enumerate(sorted(place.cache.rglob("*"))):
        past = time.time() - 365 * 24 * 3600 * (number % 2)
        os.utime(path, (past, past))


def link(place: Place) -> None:
    """A link to a file outside, under the name of a part."""
    name = f"calls-00000098-00000000-r1-{'0' * 16}.parquet"
    (place.parts / name).symlink_to("/etc/passwd")


def bomb(place: Place) -> None:
    """A few kilobytes that decode to 20 million rows and 20 GB of text."""
    rows = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1_000_000, np.int8)), ["x" * 1000])
    table = pa.table({"key": rows})
    path = place.parts / "bomb"
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(20):
            writer.write_table(table)
    sha = sha16(path.read_bytes())
    path.rename(path.with_name(f"calls-00000098-00000000-r20000000-{sha}.parquet"))


def embedding_file(place: Place) -> Path:
    return next((place.cache / "derived").glob("*/emb-*"))


def embeddings_truncated(place: Place) -> None:
    path = embedding_file(place)
    os.truncate(path, path.stat().st_size - 1000)


def embeddings(place: Place, rows: np.ndarray, beside: bool = False) -> None:
    """These instead of those that are there, or beside them."""
    old = embedding_file(place)
    file = place.home / "new.npy"
    np.save(file, rows)
    sha = sha16(file.read_bytes())
    if not beside:
        old.unlink()
    shutil.move(file, old.with_name(f"emb-00000000-00000000-r{len(rows)}-{sha}.npy"))


def embeddings_of_another_width(place: Place) -> None:
    narrow = np.zeros(1, [("context", "S32"), ("vector", "<f4", (3,))])
    embeddings(place, narrow, beside=True)


def embeddings_not_finite(place: Place) -> None:
    rows = np.load(embedding_file(place))
    rows["vector"][0] = np.nan
    embeddings(place, rows)


def embeddings_of_something_else(place: Place) -> None:
    embeddings(place, np.full((5, 4), np.nan, np.float32))


def collected(place: Place, name: str) -> None:
    """Another cache, of what data/math.jsonl holds now."""
    place.does("collect", "--pool", "pool.toml", "--datasets", "math", "--cache", name)
