"""Read a cache: its parts are checked first, and DuckDB then serves their rows."""

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

from hierrouter_cache.chain import HashRecord, sound_chain
from hierrouter_cache.errors import CacheError, NoCache, WorldError, reason_of, require_free_files
from hierrouter_cache.keys import DIGEST_LENGTH
from hierrouter_cache.parts import (
    CHOICES_TYPE,
    IDENTITY_COLUMNS,
    LAST_WINS,
    LATER_COLUMNS,
    NULLABLE_COLUMNS,
    PARQUET_ERRORS,
    ROW_SCHEMAS,
    Part,
    part_batches,
    parts_folder,
    trees_folder,
)

INTERRUPT_INTERVAL_S = 0.05  # DuckDB ignores an interrupt that comes before its query has begun
WINNERS_MEMORY = "2GB"  # for the identities of rows; a million questions have 36 million rows
ROW_BITS = 32  # a row's position is the number of its part, then in these bits its own number
# Of several rows with the same identity the first or the last one counts, see
# `parts.IDENTITY_COLUMNS` and `parts.LAST_WINS`.
FIRST_ROW_ORDER = "filename, file_row_number"
LAST_ROW_ORDER = "filename DESC, file_row_number DESC"
SQL_TYPES = {
    pa.string(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.float64(): "DOUBLE",
    pa.list_(pa.string()): "VARCHAR[]",
    pa.bool_(): "BOOLEAN",
    pa.list_(pa.float64()): "DOUBLE[]",
    CHOICES_TYPE: LATER_COLUMNS["queries"]["choices"],
}
MAX_REOPENINGS = 5  # how often a query starts again because a compaction has removed its parts

Answer = TypeVar("Answer")
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
Winners = Mapping[Part, NDArray[np.int64]]


def run_interruptible(connection: duckdb.DuckDBPyConnection, query: Callable[[], Answer]) -> Answer:
    """Run a query so that Ctrl-C stops it.

    The query runs in another thread, because DuckDB does not return to Python before it ends.

    Args:
        connection: the connection that the query uses.
        query: runs the query.

    Returns:
        What `query` returns.

    Raises:
        KeyboardInterrupt: the caller was interrupted; the query has ended, or never began. A second
            Ctrl-C does not wait for that.
        BaseException: what `query` raises.
    """
    # The locks of this queue are not taken in Python code, so Ctrl-C cannot come between taking a
    # lock and the block that releases it.
    answers: SimpleQueue[Answer | BaseException] = SimpleQueue()
    is_cancelled = False

    def run() -> None:
        if not is_cancelled:
            try:
                answers.put(query())
            except BaseException as error:
                answers.put(error)

    thread = Thread(target=run, name="query", daemon=True)
    try:
        thread.start()
        answer = answers.get()
    except KeyboardInterrupt:
        # From here on, a thread that has not started yet will not run the query.
        is_cancelled = True
        while thread.is_alive():
            connection.interrupt()
            thread.join(INTERRUPT_INTERVAL_S)
        raise
    if isinstance(answer, BaseException):
        try:
            raise answer
        finally:
            del answer  # breaks the cycle of the error, its traceback and this frame
    return answer


def winners_of(root: Path, parts: Sequence[Part]) -> list[Winners]:
    """Find the rows of each part that are served.

    DuckDB swaps to the tmp/ of the cache if it needs more than `WINNERS_MEMORY`.

    Args:
        root: the cache's folder.
        parts: its parts, in name order.

    Returns:
        For each kind a mapping from its parts to int64[n], the positions of these rows in the part,
        ascending.

    Raises:
        WorldError: there is no room to compare the rows.
        CacheError: a part cannot be read, or DuckDB calls a file by another name than it was given.
    """
    # One thread only: each thread would need the memory.
    config = {"memory_limit": WINNERS_MEMORY, "temp_directory": str(root / "tmp"), "threads": 1}
    winners: list[Winners] = []
    try:
        with duckdb.connect(config=config) as connection:
            connection.execute("SET enable_progress_bar = false")
            for kind in ROW_SCHEMAS:
                parts_of_kind = [part for part in parts if part.kind == kind]
                if parts_of_kind:
                    winners.append(_winners_of_kind(root, connection, parts_of_kind))
                else:
                    winners.append({})
    except duckdb.Error as error:
        raise _comparison_error(root, error) from error
    return winners


def _winners_of_kind(
    root: Path, connection: duckdb.DuckDBPyConnection, parts: Sequence[Part]
) -> Winners:
    kind = parts[0].kind
    best = "max" if kind in LAST_WINS else "min"
    names = ", ".join(f'"{column}"' for column in IDENTITY_COLUMNS[kind])
    files = [str(part.path) for part in parts]
    query = (
        f"SELECT {best}((number << {ROW_BITS}) | file_row_number) AS place, "  # noqa: S608 - our own names
        "count(*) AS rivals "
        "FROM read_parquet($1, filename = true, file_row_number = true) "
        "JOIN (SELECT unnest($1) AS filename, unnest(range(len($1))) AS number) "
        f"USING (filename) GROUP BY {names}"
    )
    columns = run_interruptible(connection, lambda: connection.execute(query, [files]).fetchnumpy())
    # A row that the join loses would be dropped by the compaction.
    if columns["rivals"].sum() != sum(part.rows for part in parts):
        raise CacheError(f"rows cannot be told apart by file: {root}; nothing was merged")
    positions = np.sort(columns["place"])
    bounds = np.searchsorted(positions, np.arange(len(parts) + 1) << ROW_BITS)
    winners = {}
    for number, part in enumerate(parts):
        in_part = positions[bounds[number] : bounds[number + 1]]
        winners[part] = in_part - (number << ROW_BITS)
    return winners


def _comparison_error(root: Path, error: duckdb.Error) -> CacheError | WorldError:
    """Return the error to raise if DuckDB could not compare the rows of a cache.

    Either there is no room, or a part is gone or is no Parquet file.

    Raises:
        WorldError: too many files are open.
    """
    require_free_files(error)
    reason = reason_of(error, 80)
    concerns_part = str(parts_folder(root)) in str(error)
    is_out_of_room = isinstance(error, duckdb.IOException | duckdb.OutOfMemoryException)
    if is_out_of_room and not concerns_part:
        return WorldError(f"no room to compare rows in {root}: {reason}; nothing was merged")
    return CacheError(
        f"a part cannot be read: {root}: {reason}; nothing was merged, "
        "find it with `hierrouter verify`"
    )


@dataclass(frozen=True)
class StoredPlan:
    """The plan of a collection.

    Attributes:
        pool: JSON, see `hierrouter.pools.pool`.
        queries: keys of the queries.
    """

    pool: str
    queries: tuple[str, ...]


@dataclass(frozen=True)
class StoredCall:
    """The texts of one call.

    Attributes:
        key: key of the call.
        response: text of the response.
        visible: what the next call reads of it: without its thought if the pool drops thoughts.
        outcome: digest of the context after the response.
        prompt: the user message; empty unless requested.
        model: name of the model; empty unless requested.
    """

    key: str
    response: str
    visible: str
    outcome: str
    prompt: str = ""
    model: str = ""

    @property
    def visible_start(self) -> int:
        """Position in the response at which its visible part begins."""
        if self.response.endswith(self.visible):
            return len(self.response) - len(self.visible)
        return max(self.response.rfind(self.visible), 0)


VISIBLE_SQL = "coalesce(visible, response)"  # `StoredCall.visible`
LOGPROB_COLUMNS = ("logprob_sum", "logprob_min", "logprob_tokens")
LOGPROB_DECIMALS = 3  # of a log-probability, wherever a decision depends on it


@dataclass(frozen=True)
class Signals:
    """Confidence and truncation of some responses; all arrays have the same shape.

    Attributes:
        total: float64, sum of the log-probabilities of a response's tokens, in nats; NaN if the
            engine reported none.
        lowest: float64, the smallest of these log-probabilities.
        tokens: float64, the number of these tokens.
        cut: bool, whether the response ended at the limit of new tokens.
    """

    total: NDArray[np.float64]
    lowest: NDArray[np.float64]
    tokens: NDArray[np.float64]
    cut: NDArray[np.bool_]

    @property
    def rounded(self) -> "Signals":
        """The same with log-probabilities rounded to 0.001.

        The last bits of an engine's log-probabilities depend on the batch.
        """
        return replace(
            self,
            total=np.round(self.total, LOGPROB_DECIMALS),
            lowest=np.round(self.lowest, LOGPROB_DECIMALS),
        )

    @property
    def chance(self) -> NDArray[np.float64]:
        """float64: rounded probability of each complete response; NaN if none was reported."""
        return np.exp(self.rounded.total)


class CacheReader:
    """An open cache: its sound parts, and SQL over their rows.

    Its catalog in DuckDB's memory has two views for each kind of part. `calls_rows` and the like
    hold every row, in the order of the parts. `calls` and the like hold each row once: of several
    rows with the same identity, the one that counts.

    Args:
        root: the cache's folder.
        rehash: whether to hash all parts, also those that have not changed since they were hashed,
            see `chain.HashRecord`.

    Attributes:
        root: as passed.
        chain: the links between the parts.
        parts: the parts that hold rows, in name order.

    Raises:
        NoCache: nothing has been collected at `root`.
        DamagedPart: a part is damaged or missing.
        CacheError: a part was written by a newer version, or the folder keeps changing.
    """

    def __init__(self, root: Path, rehash: bool = False) -> None:
        self.root = root
        self._rehash = rehash
        self._open()

    def _open(self) -> None:
        record = None if self._rehash else HashRecord(self.root, trees_folder(self.root))
        self.chain = sound_chain(self.root, record)
        self.parts: list[Part] = self.chain.sound(*ROW_SCHEMAS)
        self._connection: duckdb.DuckDBPyConnection | None = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The catalog; it is created when it is first used.

        Raises:
            duckdb.IOException: a part was removed.
        """
        if self._connection is None:
            connection = _new_catalog()
            run_interruptible(connection, lambda: create_views(connection, self.parts))
            self._connection = connection
        return self._connection

    def sql(self, query: str, parameters: Sequence[Any] = (), **tables: pa.Table) -> pa.Table:
        """Run a query of this program.

        Args:
            query: the query.
            parameters: values for its placeholders.
            **tables: Arrow tables that it can name.

        Returns:
            All rows of the answer.

        Raises:
            CacheError: a part cannot be read, or the cache keeps changing.
            duckdb.OutOfMemoryException: the answer needs more memory than there is.
        """

        def run() -> pa.Table:
            with _registered_tables(connection, tables):
                return connection.sql(query, params=list(parameters)).to_arrow_table()

        for _ in range(MAX_REOPENINGS):
            try:
                connection = self.connection
                return run_interruptible(connection, run)
            except duckdb.OutOfMemoryException:
                raise
            except duckdb.Error as error:
                if not self.lost_a_part():
                    raise self._unreadable_part(error) from error
                self._open()
        raise CacheError(f"the cache changes all the time: {self.root}; try again later")

    def _unreadable_part(self, error: Exception) -> CacheError:
        """Return the error for a part whose bytes have the right hash, but are no rows.

        Raises:
            WorldError: too many files are open.
        """
        require_free_files(error)
        return CacheError(
            f"a part cannot be read: {self.root}: {reason_of(error, 80)}; "
            "find it with `hierrouter verify`"
        )

    def number(self, query: str) -> int:
        """Return the integer that a query of this program computes."""
        return int(self.sql(query)[0][0].as_py())

    def lost_a_part(self) -> bool:
        """Return whether a compaction has removed a part since the cache was opened."""
        return not all(part.path.exists() for part in self.parts)

    def columns(
        self, query: str, parameters: Sequence[Any] = (), **tables: pa.Table
    ) -> dict[str, NDArray[Any]]:
        """Run a query of numbers, see `sql`.

        Args:
            query: the query.
            parameters: values for its placeholders.
            **tables: Arrow tables that it can name.

        Returns:
            One array for each column, by name.

        Raises:
            CacheError: as `sql`; or a value is missing in a column that may not be null.
        """
        table = self._require_values(self.sql(query, parameters, **tables))
        return {name: as_numpy(table[name]) for name in table.column_names}

    def _require_values(self, table: Rows) -> Rows:
        """Return the table.

        Raises:
            CacheError: a value is missing in a column that may not be null.
        """
        for name in table.column_names:
            values = table[name]
            inner = pc.list_flatten(values) if pa.types.is_list(values.type) else values
            if name not in NULLABLE_COLUMNS and (values.null_count or inner.null_count):
                raise CacheError(
                    f"{name} is missing in a row of the cache: {self.root}; not written by this "
                    "program, find the part with `hierrouter verify`"
                )
        return table

    def hashes(self, digests: Sequence[str] | pa.Array) -> NDArray[np.uint64]:
        """Return DuckDB's `hash()` of each text.

        Numbers of 64 bits join a million rows in a tenth of the time that digests take. They have
        no meaning outside of this process.

        Args:
            digests: n texts.

        Returns:
            uint64[n].
        """
        if isinstance(digests, pa.Array):
            texts = pa.table({"text": digests})
            return self.columns("SELECT hash(text) AS h FROM texts", texts=texts)["h"]
        return self.columns("SELECT hash(unnest($1::VARCHAR[])) AS h", [list(digests)])["h"]

    def latest_plan(self) -> StoredPlan:
        """Return the plan that was requested last: the last row of the last part of plans.

        Raises:
            CacheError: there is no plan, it was given up, it is empty, or it cannot be read.
        """
        plans = [part for part in self.parts if part.kind == "plans"]
        lost_plan = self.chain.lost_plan
        if lost_plan:
            raise CacheError(
                f"the last plan was damaged or missing and given up: {lost_plan}; collect with the "
                "same --datasets and --pool, or import, once more: all that is there is used again"
            )
        if not plans:
            raise CacheError(f"no plan in the cache: {self.root}; collect with --datasets again")
        latest = max(plans, key=lambda part: (part.seq, part.path.name))
        rows: list[dict[str, Any]] = []
        try:
            for batch in part_batches(latest):
                rows = self._require_values(batch.slice(batch.num_rows - 1)).to_pylist()
        except FileNotFoundError:  # a compaction has removed it
            self._open()
            return self.latest_plan()
        except PARQUET_ERRORS as error:
            raise self._unreadable_part(error) from error
        if not rows or not rows[0]["queries"]:
            raise CacheError(f"the last plan asks for nothing: {latest.path.name}; collect again")
        return StoredPlan(rows[0]["pool"], tuple(rows[0]["queries"]))

    def plans(self) -> list[StoredPlan]:
        """Return all plans, the latest first.

        Raises:
            CacheError: a part cannot be read, or the cache keeps changing.
        """
        table = self.sql(
            f"SELECT pool, queries FROM plans_rows ORDER BY {LAST_ROW_ORDER}"  # noqa: S608 - our own names
        )
        rows = self._require_values(table).to_pylist()
        return [StoredPlan(row["pool"], tuple(row["queries"])) for row in rows]

    def has(self, kind: str) -> bool:
        """Return whether there is any part of this kind."""
        return any(part.kind == kind for part in self.parts)

    def query_keys(self) -> set[str]:
        """Return the keys of all stored queries."""
        return set(self.sql("SELECT query FROM queries_rows")["query"].to_pylist())

    def responses(self) -> dict[str, str]:
        """Return what the next call reads of the response of every call, by call key."""
        table = self.sql(f"SELECT key, {VISIBLE_SQL} AS visible FROM calls_rows")  # noqa: S608 - our own names
        # In reverse order, so that the row of the first part overwrites those of later parts.
        keys = table["key"].to_pylist()[::-1]
        responses = table["visible"].to_pylist()[::-1]
        return dict(zip(keys, responses, strict=True))

    def failures(self) -> dict[str, str]:
        """Return the last status of every call that has failed, by call key."""
        table = self.sql("SELECT key, status FROM failures")
        return dict(zip(table["key"].to_pylist(), table["status"].to_pylist(), strict=True))

    def queries(self, keys: Sequence[str], columns: Sequence[str] = ("*",)) -> pa.Table:
        """Return the rows of `queries` for these keys, in this order.

        Args:
            keys: keys of queries.
            columns: names of the columns, quoted where SQL needs it.

        Raises:
            CacheError: some queries are not in the cache.
        """
        rows = self.sql(f"SELECT hash(query) AS h, {', '.join(columns)} FROM queries_rows")  # noqa: S608 - our own names
        row_numbers = first_match(self.hashes(keys), as_numpy(rows["h"]))
        missing = np.count_nonzero(row_numbers < 0)
        if missing:
            raise CacheError(
                f"the last plan names {missing} queries that are not here: "
                f"{self.root}; is it a plan of another run? run `hierrouter collect` again"
            )
        return self._require_values(rows.drop_columns(["h"]).take(as_arrow(row_numbers)))

    def texts(self, calls: NDArray[np.uint64], with_prompt: bool = False) -> dict[int, StoredCall]:
        """Return the texts of some calls, by the hash of their key.

        Args:
            calls: uint64, any shape, hashes of the keys of committed calls.
            with_prompt: whether to return the prompt and the model's name, too.
        """
        further_columns = ", prompt, model" if with_prompt else ""
        table = self.sql(
            f"SELECT hash(key) AS h, key, response, {VISIBLE_SQL} AS visible, outcome"  # noqa: S608 - our own names
            f"{further_columns} FROM calls_rows "
            f"WHERE hash(key) IN (SELECT h FROM wanted_calls) ORDER BY {FIRST_ROW_ORDER}",
            wanted_calls=_hash_table(calls),
        )
        rows = self._require_values(table).to_pylist()
        # In reverse order, so that the first row of a call overwrites its later rows.
        return {row.pop("h"): StoredCall(**row) for row in reversed(rows)}

    def answers(self, calls: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the hash of the digest of what is visible of each call's response.

        See `keys.text_digest`, and `StoredCall.visible`.

        Args:
            calls: uint64, any shape, hashes of the keys of committed calls.

        Returns:
            uint64 of the same shape.
        """
        rows = self.columns(
            "SELECT hash(key) AS call, "  # noqa: S608 - our own names
            f"hash(left(sha256({VISIBLE_SQL}), {DIGEST_LENGTH})) AS answer FROM calls_rows "
            f"WHERE hash(key) IN (SELECT h FROM wanted_calls) ORDER BY {FIRST_ROW_ORDER}",
            wanted_calls=_hash_table(calls),
        )
        return rows["answer"][first_match(calls, rows["call"])]

    def signals(self, calls: NDArray[np.uint64]) -> Signals:
        """Return the confidence and truncation of some responses.

        Args:
            calls: uint64, any shape, hashes of the keys of committed calls.

        Returns:
            Arrays of the same shape.
        """
        rows = self.columns(
            "SELECT hash(key) AS call, finish_reason = 'length' AS cut, "  # noqa: S608 - our own names
            f"{', '.join(LOGPROB_COLUMNS)} FROM calls_rows "
            f"WHERE hash(key) IN (SELECT h FROM wanted_calls) ORDER BY {FIRST_ROW_ORDER}",
            wanted_calls=_hash_table(calls),
        )
        row_numbers = first_match(calls, rows["call"])
        return Signals(
            total=rows["logprob_sum"][row_numbers].astype(np.float64),
            lowest=rows["logprob_min"][row_numbers].astype(np.float64),
            tokens=rows["logprob_tokens"][row_numbers].astype(np.float64),
            cut=rows["cut"][row_numbers],
        )


def _hash_table(calls: NDArray[np.uint64]) -> pa.Table:
    """Return an Arrow table with the distinct hashes in a column h."""
    return pa.table({"h": as_arrow(np.unique(calls))})


def reader_of(root: Path) -> CacheReader | None:
    """Return the open cache; None if nothing has been collected yet.

    Raises:
        DamagedPart: a part is damaged or missing.
    """
    try:
        return CacheReader(root)
    except NoCache:
        return None


@cache
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """Return the database of this process; to create one takes longer than to read a small cache.

    Args:
        process: id of this process. A fork gets a database of its parent's under another id, and
            does not use it.
    """
    # This option would keep file contents in memory as long as the database exists.
    return duckdb.connect(config={"enable_external_file_cache": False})


_catalog_numbers = count()


def _new_catalog() -> duckdb.DuckDBPyConnection:
    """Return a connection to a new empty catalog in memory; both are closed together."""
    connection = _database(os.getpid()).cursor()
    name = f"cache_{next(_catalog_numbers)}"
    attach = f"ATTACH ':memory:' AS {name}; USE {name}"
    run_interruptible(connection, lambda: connection.execute(attach))
    # Nothing to do at the end of Python, when all memory is freed. To detach the catalog then would
    # wait for a query that a second Ctrl-C has left behind.
    weakref.finalize(connection, _drop_catalog, name, os.getpid()).atexit = False
    return connection


def _drop_catalog(name: str, process: int) -> None:
    """Detach the catalog of a closed connection; in a fork it belongs to the parent process."""
    if os.getpid() == process:
        with _database(process).cursor() as another:
            another.execute(f"DETACH {name}")


def create_views(
    connection: duckdb.DuckDBPyConnection, parts: Sequence[Part], schema: str = "main"
) -> None:
    """Create the two views of each kind.

    Args:
        connection: where to create them.
        parts: the parts to read.
        schema: name of their schema in SQL.

    Raises:
        duckdb.IOException: a part was removed.
    """

    def create() -> None:
        connection.execute("SET enable_progress_bar = false")
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        for kind in ROW_SCHEMAS:
            parts_of_kind = [part for part in parts if part.kind == kind]
            _create_views_of_kind(connection, schema, kind, parts_of_kind)

    run_interruptible(connection, create)


def _create_views_of_kind(
    connection: duckdb.DuckDBPyConnection, schema: str, kind: str, parts: Sequence[Part]
) -> None:
    view = f"{schema}.{kind}"
    names = ", ".join(f'"{column}"' for column in IDENTITY_COLUMNS[kind])
    order = LAST_ROW_ORDER if kind in LAST_WINS else FIRST_ROW_ORDER
    if parts:
        files = ", ".join("'" + str(part.path).replace("'", "''") + "'" for part in parts)
        connection.execute(
            f"CREATE VIEW {view}_rows AS SELECT * FROM read_parquet([{files}], "  # noqa: S608 - paths are quoted
            "filename = true, file_row_number = true, union_by_name = true)"
            f"{_union_with_later_columns(kind)}"
        )
    else:
        columns = [
            f'NULL::{SQL_TYPES[column.type]} AS "{column.name}"' for column in ROW_SCHEMAS[kind]
        ]
        columns += ["NULL::VARCHAR AS filename", "NULL::BIGINT AS file_row_number"]
        connection.execute(f"CREATE VIEW {view}_rows AS SELECT {', '.join(columns)} WHERE false")
    connection.execute(
        f"CREATE VIEW {view} AS SELECT * EXCLUDE (filename, file_row_number) "  # noqa: S608 - our own names
        f"FROM {view}_rows QUALIFY row_number() OVER (PARTITION BY {names} ORDER BY {order}) = 1"
    )


def _union_with_later_columns(kind: str) -> str:
    """Return SQL that adds the columns of `LATER_COLUMNS`, which all parts may lack, but no row."""
    columns = [
        f"NULL::{sql_type} AS {name}" for name, sql_type in LATER_COLUMNS.get(kind, {}).items()
    ]
    return f" UNION ALL BY NAME SELECT {', '.join(columns)} WHERE false" if columns else ""


@contextmanager
def _registered_tables(
    connection: duckdb.DuckDBPyConnection, tables: Mapping[str, pa.Table]
) -> Iterator[None]:
    """Let queries name these Arrow tables while the block lasts."""
    for name, table in tables.items():
        connection.register(name, table)
    try:
        yield
    finally:
        for name in tables:
            connection.unregister(name)


def as_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Return a column as a read-only array; NaN where a number is missing.

    pyarrow's own functions for this, both ways, import pandas, which takes longer than to open a
    cache.
    """
    if not len(column):
        return np.empty(0, column.type.to_pandas_dtype())
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_boolean(values.type):
        return np.from_dlpack(values.cast(pa.uint8())).astype(np.bool_)
    if pa.types.is_string(values.type):
        return np.array(values.to_pylist(), dtype=object)
    if values.null_count:
        is_valid = as_numpy(values.is_valid())
        # The buffer has arbitrary numbers at the positions of nulls; these are replaced.
        buffer = np.frombuffer(values.buffers()[1], values.type.to_pandas_dtype())
        return np.where(is_valid, buffer[values.offset :][: len(values)], np.nan)
    return np.from_dlpack(values)


def as_arrow(values: NDArray[Any]) -> pa.Array:
    """Return an array of numbers as an Arrow array of the same memory; see `as_numpy`."""
    values = np.ascontiguousarray(values)
    arrow_type = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(values)])


def first_match(numbers: NDArray[np.uint64], among: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Find the first position of each number in another array.

    Args:
        numbers: uint64, any shape.
        among: uint64[n].

    Returns:
        int64 of the shape of `numbers`; -1 for a number that is not in `among`.
    """
    positions = as_numpy(pc.index_in(as_arrow(numbers.ravel()), as_arrow(among)))
    return np.nan_to_num(positions, nan=-1).astype(np.int64).reshape(numbers.shape)
