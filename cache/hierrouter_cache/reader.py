"""Serve a cache: parts are checked, then read by DuckDB."""

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hierrouter_cache.chain import Hashed, sound_chain
from hierrouter_cache.errors import CacheError, NoCache, WorldError, reason_of
from hierrouter_cache.keys import DIGEST_LENGTH
from hierrouter_cache.parts import (
    ADDED,
    CHOICES,
    IDENTITY,
    KINDS,
    LAST_WINS,
    NULLABLE,
    Part,
    part_batches,
    parts_folder,
    trees_folder,
)

AGAIN = 0.05  # seconds between interrupts: one that comes before DuckDB has begun is lost
MEMORY = "2GB"  # for the identities; a million questions have 36 million rows
ROW_BITS = 32  # a row's place is its part's number, then its own in so many bits
# Of several rows with the same identity the first or the last one counts, see `parts.IDENTITY`.
IN_ORDER = "filename, file_row_number"
LATEST_FIRST = "filename DESC, file_row_number DESC"
SQL_TYPES = {
    pa.string(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.float64(): "DOUBLE",
    pa.list_(pa.string()): "VARCHAR[]",
    pa.bool_(): "BOOLEAN",
    pa.list_(pa.float64()): "DOUBLE[]",
    CHOICES: ADDED["queries"]["choices"],
}
REOPENINGS = 5  # times that a query starts again because a compaction took its parts away

Answer = TypeVar("Answer")
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
Winners = Mapping[Part, NDArray[np.int64]]


def interruptible(connection: duckdb.DuckDBPyConnection, query: Callable[[], Answer]) -> Answer:
    """The answer of `query`, which asks this connection; it raises what the query raises.

    Raises KeyboardInterrupt: the caller was interrupted; the query has ended, or never began. A
    second Ctrl-C does not wait for that.
    """
    # Its locks are not Python's: Ctrl-C cannot come between taking one and the block that frees it.
    answers: SimpleQueue[Answer | BaseException] = SimpleQueue()
    called_off = False

    def run() -> None:
        if not called_off:
            try:
                answers.put(query())
            except BaseException as error:
                answers.put(error)

    thread = Thread(target=run, name="query", daemon=True)
    try:
        thread.start()
        answer = answers.get()
    except KeyboardInterrupt:
        called_off = True  # from here on a thread that is not alive will not begin either
        while thread.is_alive():
            connection.interrupt()
            thread.join(AGAIN)
        raise
    if isinstance(answer, BaseException):
        try:
            raise answer
        finally:
            del answer  # else it would hold its traceback, and that this frame
    return answer


def winners_of(root: Path, parts: Sequence[Part]) -> list[Winners]:
    """Of each kind, for each part of it, the positions of its rows that are served, ascending.

    What does not fit into `MEMORY` waits in the cache's tmp/. Raises WorldError: there is no room
    for it; CacheError: rows cannot be read, or DuckDB names a file otherwise than it was given.
    """
    # Each thread would want memory of its own.
    room = {"memory_limit": MEMORY, "temp_directory": str(root / "tmp"), "threads": 1}
    try:
        with duckdb.connect(config=room) as connection:
            connection.execute("SET enable_progress_bar = false")
            of_kinds = ([part for part in parts if part.kind == kind] for kind in KINDS)
            return [_winners(root, connection, some) if some else {} for some in of_kinds]
    except duckdb.Error as error:
        raise _not_compared(root, error) from error


def _winners(root: Path, connection: duckdb.DuckDBPyConnection, parts: Sequence[Part]) -> Winners:
    kind = parts[0].kind
    best = "max" if kind in LAST_WINS else "min"
    names = ", ".join(f'"{column}"' for column in IDENTITY[kind])
    files = [str(part.path) for part in parts]
    query = (
        f"SELECT {best}((number << {ROW_BITS}) | file_row_number) AS place, "  # noqa: S608 - our own names
        "count(*) AS rivals "
        "FROM read_parquet($1, filename = true, file_row_number = true) "
        "JOIN (SELECT unnest($1) AS filename, unnest(range(len($1))) AS number) "
        f"USING (filename) GROUP BY {names}"
    )
    found = interruptible(connection, lambda: connection.execute(query, [files]).fetchnumpy())
    if found["rivals"].sum() != sum(part.rows for part in parts):  # a row unseen would be dropped
        raise CacheError(f"rows cannot be told apart by file: {root}; nothing was merged")
    places = np.sort(found["place"])
    cuts = np.searchsorted(places, np.arange(len(parts) + 1) << ROW_BITS)
    return {
        part: places[cuts[number] : cuts[number + 1]] - (number << ROW_BITS)
        for number, part in enumerate(parts)
    }


def _not_compared(root: Path, error: duckdb.Error) -> CacheError | WorldError:
    """No room, or a part that is gone, or whose bytes are as its name says and no rows of ours."""
    reason = reason_of(error, 80)
    of_a_part = str(parts_folder(root)) in str(error)
    if isinstance(error, duckdb.IOException | duckdb.OutOfMemoryException) and not of_a_part:
        return WorldError(f"no room to compare rows in {root}: {reason}; nothing was merged")
    return CacheError(
        f"a part cannot be read: {root}: {reason}; nothing was merged, "
        "find it with `hierrouter verify`"
    )


@dataclass(frozen=True)
class StoredPlan:
    """What one collection was asked for."""

    pool: str  # JSON, see `hierrouter.pools.pool`
    queries: tuple[str, ...]


@dataclass(frozen=True)
class StoredCall:
    """The texts of one call."""

    key: str
    response: str
    outcome: str
    prompt: str = ""
    model: str = ""


LOGPROBS = ("logprob_sum", "logprob_min", "logprob_tokens")
DIGITS = 3  # of a log-probability, wherever a decision rests on it


@dataclass(frozen=True)
class Signals:
    """What some answers show besides their texts; all of one shape.

    Attributes:
        total: float64, sum of the log-probabilities of an answer's tokens, in nats; NaN where the
            engine told nothing.
        tokens: float64, how many they are.
        cut: bool, whether the answer ended at the most new tokens it may have.
    """

    total: NDArray[np.float64]
    lowest: NDArray[np.float64]
    tokens: NDArray[np.float64]
    cut: NDArray[np.bool_]

    @property
    def rounded(self) -> "Signals":
        """With log-probabilities to 0.001: an engine's last bits depend on the batch."""
        total, lowest = np.round(self.total, DIGITS), np.round(self.lowest, DIGITS)
        return replace(self, total=total, lowest=lowest)

    @property
    def chance(self) -> NDArray[np.float64]:
        """float64: the probability of each whole answer, rounded; NaN where nothing was told."""
        return np.exp(self.rounded.total)


class CacheReader:
    """A DuckDB catalog in memory with two views a kind: `calls_rows` and so on hold every row
    in the order of the parts, `calls` and so on each row once, the one that counts.

    Args:
        root: the cache.
        anew: hash all parts, those too that were hashed and have not changed, see `chain.Hashed`.

    Raises:
        NoCache: nothing was collected at `root`.
        DamagedPart: a part is not what its name promises.
    """

    def __init__(self, root: Path, anew: bool = False) -> None:
        self.root = root
        self._anew = anew
        self._open()

    def _open(self) -> None:
        noted = None if self._anew else Hashed(self.root, trees_folder(self.root))
        self.chain = sound_chain(self.root, noted)
        self.parts: list[Part] = self.chain.sound(*KINDS)
        self._connection: duckdb.DuckDBPyConnection | None = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The catalog, made when it is asked first; raises duckdb.IOException: a part is gone."""
        if self._connection is None:
            connection = _own_catalog()
            interruptible(connection, lambda: create_views(connection, self.parts))
            self._connection = connection
        return self._connection

    def sql(self, query: str, parameters: Sequence[Any] = (), **tables: pa.Table) -> pa.Table:
        """The whole answer to a query of ours, which can name `tables`, as an Arrow table."""

        def answer() -> pa.Table:
            with _registered(connection, tables):
                return connection.sql(query, params=list(parameters)).to_arrow_table()

        for _ in range(REOPENINGS):
            try:
                connection = self.connection
                return interruptible(connection, answer)
            except duckdb.OutOfMemoryException:
                raise
            except duckdb.Error as error:
                if not self.lost_a_part():
                    raise self._unreadable(error) from error
                self._open()
        raise CacheError(f"the cache changes all the time: {self.root}; try again later")

    def _unreadable(self, error: Exception) -> CacheError:
        """For parts whose bytes are those of their names, and are no rows of ours."""
        return CacheError(
            f"a part cannot be read: {self.root}: {reason_of(error, 80)}; "
            "find it with `hierrouter verify`"
        )

    def number(self, query: str) -> int:
        """The one whole number that a query of ours gives."""
        return int(self.sql(query)[0][0].as_py())

    def lost_a_part(self) -> bool:
        """Whether a compaction has taken a part away since it was looked at."""
        return not all(part.path.exists() for part in self.parts)

    def columns(
        self, query: str, parameters: Sequence[Any] = (), **tables: pa.Table
    ) -> dict[str, NDArray[Any]]:
        """The answer to a query of numbers, as one array a column, rows in the parts' order."""
        table = self._whole(self.sql(query, parameters, **tables))
        return {name: as_numpy(table[name]) for name in table.column_names}

    def _whole(self, table: Rows) -> Rows:
        """The table, refused where something is missing in it that every row has."""
        for name in table.column_names:
            values = table[name]
            inner = pc.list_flatten(values) if pa.types.is_list(values.type) else values
            if name not in NULLABLE and (values.null_count or inner.null_count):
                raise CacheError(
                    f"{name} is missing in a row of the cache: {self.root}; not written by this "
                    "program, find the part with `hierrouter verify`"
                )
        return table

    def hashes(self, digests: Sequence[str] | pa.Array) -> NDArray[np.uint64]:
        """uint64[n]: what DuckDB's `hash()` makes of each text.

        Numbers of 64 bits join a million rows in a tenth of the time that the digests take.
        They have no meaning outside of this connection.
        """
        if isinstance(digests, pa.Array):
            texts = pa.table({"text": digests})
            return self.columns("SELECT hash(text) AS h FROM texts", texts=texts)["h"]
        return self.columns("SELECT hash(unnest($1::VARCHAR[])) AS h", [list(digests)])["h"]

    def latest_plan(self) -> StoredPlan:
        """The collection that was asked for last: the last row of the last part.

        Raises CacheError: the cache holds parts but no plan, or not the last one any more.
        """
        plans = [part for part in self.parts if part.kind == "plans"]
        if lost := self.chain.lost_plan:
            raise CacheError(
                f"the last plan was damaged or missing and given up: {lost}; collect with the same "
                "--datasets and --pool, or import, once more: all that is there is used again"
            )
        if not plans:
            raise CacheError(f"no plan in the cache: {self.root}; collect with --datasets again")
        latest = max(plans, key=lambda part: (part.seq, part.path.name))
        rows: list[dict[str, Any]] = []
        try:
            for batch in part_batches(latest):
                rows = self._whole(batch.slice(batch.num_rows - 1)).to_pylist()
        except FileNotFoundError:  # a compaction has taken it away
            self._open()
            return self.latest_plan()
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error
        if not rows or not rows[0]["queries"]:
            raise CacheError(f"the last plan asks for nothing: {latest.path.name}; collect again")
        return StoredPlan(rows[0]["pool"], tuple(rows[0]["queries"]))

    def has(self, kind: str) -> bool:
        """Whether there is any part of this kind."""
        return any(part.kind == kind for part in self.parts)

    def query_keys(self) -> set[str]:
        """Keys of all stored queries."""
        return set(self.sql("SELECT query FROM queries_rows")["query"].to_pylist())

    def responses(self) -> dict[str, str]:
        """Response of every committed call, by call key."""
        table = self.sql("SELECT key, response FROM calls_rows")
        # Read backwards, so that the first part's row is the one that stays.
        keys, texts = (table[name].to_pylist()[::-1] for name in ("key", "response"))
        return dict(zip(keys, texts, strict=True))

    def failures(self) -> dict[str, str]:
        """Last status of every call that has failed, by call key."""
        table = self.sql("SELECT key, status FROM failures")
        return dict(zip(table["key"].to_pylist(), table["status"].to_pylist(), strict=True))

    def queries(self, keys: Sequence[str], columns: Sequence[str] = ("*",)) -> pa.Table:
        """The rows of `queries` for these keys, in this order.

        Raises CacheError: some are not there.
        """
        rows = self.sql(f"SELECT hash(query) AS h, {', '.join(columns)} FROM queries_rows")  # noqa: S608 - our own names
        place = first_match(self.hashes(keys), as_numpy(rows["h"]))
        if (place < 0).any():
            raise CacheError(
                f"the last plan names {np.count_nonzero(place < 0)} queries that are not here: "
                f"{self.root}; is it a plan of another run? run `hierrouter collect` again"
            )
        return self._whole(rows.drop_columns(["h"]).take(as_arrow(place)))

    def texts(self, calls: NDArray[np.uint64], with_prompt: bool = False) -> dict[int, StoredCall]:
        """The texts of some calls, by the hash of their key.

        `calls`: hashes of the keys of committed calls; `with_prompt`: also what the model was
        shown, and its name.
        """
        wanted = pa.table({"h": as_arrow(np.unique(calls))})
        more = ", prompt, model" if with_prompt else ""
        found = self.sql(
            f"SELECT hash(key) AS h, key, response, outcome{more} FROM calls_rows "  # noqa: S608 - our own names
            f"WHERE hash(key) IN (SELECT h FROM wanted_calls) ORDER BY {IN_ORDER}",
            wanted_calls=wanted,
        )
        rows = self._whole(found).to_pylist()
        return {row.pop("h"): StoredCall(**row) for row in reversed(rows)}

    def answers(self, calls: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """uint64[*calls.shape]: hash of the digest of each call's response, see `text_digest`.

        `calls`: hashes of the keys of committed calls.
        """
        wanted = pa.table({"h": as_arrow(np.unique(calls))})
        rows = self.columns(
            "SELECT hash(key) AS call, "  # noqa: S608 - our own names
            f"hash(left(sha256(response), {DIGEST_LENGTH})) AS answer FROM calls_rows "
            f"WHERE hash(key) IN (SELECT h FROM wanted_calls) ORDER BY {IN_ORDER}",
            wanted_calls=wanted,
        )
        return rows["answer"][first_match(calls, rows["call"])]

    def signals(self, calls: NDArray[np.uint64]) -> Signals:
        """What the answers of some calls show besides their texts.

        `calls`: hashes of the keys of committed calls, any shape.
        """
        rows = self.columns(
            "SELECT hash(key) AS call, finish_reason = 'length' AS cut, "  # noqa: S608 - our own names
            f"{', '.join(LOGPROBS)} FROM calls_rows "
            f"WHERE hash(key) IN (SELECT h FROM wanted_calls) ORDER BY {IN_ORDER}",
            wanted_calls=pa.table({"h": as_arrow(np.unique(calls))}),
        )
        at = first_match(calls, rows["call"])
        total, lowest, tokens = (rows[name][at].astype(np.float64) for name in LOGPROBS)
        return Signals(total, lowest, tokens, rows["cut"][at])


def reader_of(root: Path) -> CacheReader | None:
    """The open cache, None where nothing was collected yet.

    Raises DamagedPart: a part is not what its name promises.
    """
    try:
        return CacheReader(root)
    except NoCache:
        return None


@cache
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """The database of this process: to make one takes longer than to read a small cache."""
    # What it reads it would keep as long as it lives itself.
    return duckdb.connect(config={"enable_external_file_cache": False})


_numbers = count()


def _own_catalog() -> duckdb.DuckDBPyConnection:
    """A connection to a new empty catalog in memory, which goes with the connection."""
    connection, name = _database(os.getpid()).cursor(), f"cache_{next(_numbers)}"
    attach = f"ATTACH ':memory:' AS {name}; USE {name}"
    interruptible(connection, lambda: connection.execute(attach))
    # At the end of Python all of it goes: a query that a second Ctrl-C left is not waited for.
    weakref.finalize(connection, _drop_catalog, name, os.getpid()).atexit = False
    return connection


def _drop_catalog(name: str, process: int) -> None:
    """What nobody reads any more; what was inherited by a fork is its parent's."""
    if os.getpid() == process:
        with _database(process).cursor() as another:
            another.execute(f"DETACH {name}")


def create_views(
    connection: duckdb.DuckDBPyConnection, parts: Sequence[Part], schema: str = "main"
) -> None:
    """Make the two views of each kind, in a schema of this name.

    Raises duckdb.IOException: a part is gone.
    """

    def create() -> None:
        connection.execute("SET enable_progress_bar = false")
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        for kind in KINDS:
            _create_two(connection, schema, kind, [part for part in parts if part.kind == kind])

    interruptible(connection, create)


def _create_two(
    connection: duckdb.DuckDBPyConnection, schema: str, kind: str, parts: Sequence[Part]
) -> None:
    view = f"{schema}.{kind}"
    names = ", ".join(f'"{column}"' for column in IDENTITY[kind])
    order = LATEST_FIRST if kind in LAST_WINS else IN_ORDER
    if parts:
        files = ", ".join("'" + str(part.path).replace("'", "''") + "'" for part in parts)
        connection.execute(
            f"CREATE VIEW {view}_rows AS SELECT * FROM read_parquet([{files}], "  # noqa: S608 - paths are quoted
            f"filename = true, file_row_number = true, union_by_name = true){_added(kind)}"
        )
    else:
        columns = [f'NULL::{SQL_TYPES[column.type]} AS "{column.name}"' for column in KINDS[kind]]
        columns += ["NULL::VARCHAR AS filename", "NULL::BIGINT AS file_row_number"]
        connection.execute(f"CREATE VIEW {view}_rows AS SELECT {', '.join(columns)} WHERE false")
    connection.execute(
        f"CREATE VIEW {view} AS SELECT * EXCLUDE (filename, file_row_number) "  # noqa: S608 - our own names
        f"FROM {view}_rows QUALIFY row_number() OVER (PARTITION BY {names} ORDER BY {order}) = 1"
    )


def _added(kind: str) -> str:
    """Adds no row but the columns of `ADDED`, which all parts may lack."""
    columns = [f"NULL::{type} AS {name}" for name, type in ADDED.get(kind, {}).items()]
    return f" UNION ALL BY NAME SELECT {', '.join(columns)} WHERE false" if columns else ""


@contextmanager
def _registered(
    connection: duckdb.DuckDBPyConnection, tables: Mapping[str, pa.Table]
) -> Iterator[None]:
    """Arrow tables that a query can name while the block lasts."""
    for name, table in tables.items():
        connection.register(name, table)
    try:
        yield
    finally:
        for name in tables:
            connection.unregister(name)


def as_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The column as one array, not to be written to; NaN where a number is missing.

    pyarrow's own ways, there and back, import pandas, which takes longer than to open a cache.
    """
    if not len(column):
        return np.empty(0, column.type.to_pandas_dtype())
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_boolean(values.type):
        return np.from_dlpack(values.cast(pa.uint8())).astype(np.bool_)
    if pa.types.is_string(values.type):
        return np.array(values.to_pylist(), dtype=object)
    if values.null_count:
        known = as_numpy(values.is_valid())
        # What lies where nothing is has no meaning, so it is not read.
        found = np.frombuffer(values.buffers()[1], values.type.to_pandas_dtype())
        return np.where(known, found[values.offset :][: len(values)], np.nan)
    return np.from_dlpack(values)


def as_arrow(values: NDArray[Any]) -> pa.Array:
    """Numbers as an Arrow array of the same memory; see `as_numpy`."""
    values = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def first_match(wanted: NDArray[np.uint64], among: NDArray[np.uint64]) -> NDArray[np.int64]:
    """int64[*wanted.shape]: where each number stands first in `among`, -1 where it does not."""
    found = as_numpy(pc.index_in(as_arrow(wanted.ravel()), as_arrow(among)))
    return np.nan_to_num(found, nan=-1).astype(np.int64).reshape(wanted.shape)
