"""Serve a cache: parts checked, then read by DuckDB.

In: the cache's folder. Out: what was planned, which calls are there, and the dense arrays of
`RouteTree` for any pool whose calls are there. Every byte is hashed before it is handed on.
Readers take no lock and see whole parts only. Not covered: embeddings (`embeddings`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter_cache.errors import CacheError, IncompleteTree
from hierrouter_cache.parts import Part, sound_parts
from hierrouter_cache.routes import Routes
from hierrouter_cache.schema import IDENTITY, KINDS



@dataclass(frozen=True)
class TreeSpec:
    """Which calls make up a tree: the pool, reduced to content keys.

    Attributes:
        models: M names, in action order.
        base_rate: cost per token of each model.
        steps: `steps[level][action]` is the step key of calling a model at that level.
        direct: (name, step key, base rate) of each single-model call, pool models first.
    """

    models: tuple[str, ...]
    base_rate: tuple[float, ...]
    steps: tuple[tuple[str, ...], ...]
    direct: tuple[tuple[str, str, float], ...]

    @property
    def routes(self) -> Routes:
        """The shape of the tree."""
        return Routes(len(self.models), len(self.steps))


@dataclass(frozen=True)
class StoredPlan:
    """What one collection was asked for."""

    pool: str  # JSON, see `hierrouter.pool`
    queries: tuple[str, ...]


@dataclass(frozen=True)
class NodeTable:
    """All nodes found of a tree, one element a node, in no order.

    Attributes:
        position: int64, index of the query in the order asked for.
        node: int64, node number.
        tokens_in, tokens_out: int64.
        score: float64[scorers, rows]; NaN where a call is not scored, 0 at the root.
        outcome: the context after the node's response.
    """

    position: NDArray[np.int64]
    node: NDArray[np.int64]
    tokens_in: NDArray[np.int64]
    tokens_out: NDArray[np.int64]
    score: NDArray[np.float64]
    outcome: NDArray[np.str_]


class CacheReader:
    """An in-memory DuckDB connection with the views `calls`, `queries`, `scores`, `plans`.

    Raises:
        NoCache: nothing was collected at `root`.
        DamagedPart: a part is not what its name promises.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.parts: list[Part] = sound_parts(root)
        self._walked: tuple[TreeSpec, tuple[str, ...]] | None = None
        self.connection = duckdb.connect()
        self.connection.execute("SET enable_progress_bar = false")
        for kind in KINDS:
            self._create_view(kind)

    def _create_view(self, kind: str) -> None:
        files = [str(part.path) for part in self.parts if part.kind == kind]
        if not files:
            self.connection.register(kind, KINDS[kind].empty_table())
            return
        rows = self.connection.read_parquet(files, filename=True, union_by_name=True)
        rows.create_view(f"{kind}_rows")
        names = ", ".join(f'"{column}"' for column in IDENTITY[kind])
        self.connection.execute(
            f"CREATE VIEW {kind} AS SELECT * EXCLUDE (filename) FROM {kind}_rows "  # noqa: S608
            f"QUALIFY row_number() OVER (PARTITION BY {names} ORDER BY filename) = 1"
        )

    def sql(self, query: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """The whole answer to a query of ours, as an Arrow table."""
        return self.connection.sql(query, params=list(parameters)).to_arrow_table()

    def latest_plan(self) -> StoredPlan:
        """The collection that was asked for last.

        Raises:
            CacheError: the cache holds parts but no plan.
        """
        latest = max(
            (part for part in self.parts if part.kind == "plans"), key=_order, default=None
        )
        if latest is None:
            raise CacheError(f"no plan in the cache: {self.root}; run `hierrouter collect` again")
        row = self.connection.execute(
            "SELECT pool, queries FROM plans_rows WHERE filename = ?", [str(latest.path)]
        ).fetchall()[0]
        return StoredPlan(row[0], tuple(row[1]))

    def has(self, kind: str) -> bool:
        """Whether there is any part of this kind."""
        return any(part.kind == kind for part in self.parts)

    def query_keys(self) -> set[str]:
        """Keys of all stored queries."""
        return set(self.sql("SELECT query FROM queries")["query"].to_pylist())

    def responses(self) -> dict[str, str]:
        """Response of every committed call, by call key."""
        table = self.sql("SELECT key, response FROM calls")
        return dict(zip(table["key"].to_pylist(), table["response"].to_pylist(), strict=True))

    def scored(self) -> set[tuple[str, str, str]]:
        """(call, references, scorer) of every committed score."""
        table = self.sql('SELECT call, "references", scorer FROM scores')
        return set(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def queries(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of `queries` for these keys, in this order."""
        self._register_wanted(keys)
        rows: list[dict[str, Any]] = self.sql(
            "SELECT q.* FROM wanted JOIN queries q USING (query) ORDER BY position"
        ).to_pylist()
        if len(rows) != len(keys):
            raise CacheError(
                f"the plan names {len(keys) - len(rows)} queries that are gone: {self.root}; "
                "run `hierrouter collect` again"
            )
        return rows

    def nodes(self, spec: TreeSpec, keys: Sequence[str], scorers: Sequence[str]) -> NodeTable:
        """Every collected node of the trees of these queries, root excluded."""
        self._walk(spec, keys)
        return self._scored_nodes("reached", scorers)

    def direct(self, spec: TreeSpec, keys: Sequence[str], scorers: Sequence[str]) -> NodeTable:
        """The collected single-model calls; `node` is the index in `spec.direct`."""
        self._register_wanted(keys)
        steps = pa.table(
            {
                "node": pa.array(range(len(spec.direct)), pa.int64()),
                "step": pa.array([step for _, step, _ in spec.direct], pa.string()),
            }
        )
        self.connection.register("direct_steps", steps)
        self.connection.execute(
            "CREATE OR REPLACE TEMP TABLE direct_calls AS "
            "SELECT w.position, d.node, c.key, c.tokens_in, c.tokens_out, c.outcome, "
            'q."references" '
            "FROM wanted w JOIN queries q USING (query) CROSS JOIN direct_steps d "
            "JOIN calls c ON c.step = d.step AND c.context = q.context"
        )
        return self._scored_nodes("direct_calls", scorers)

    def states(self, spec: TreeSpec, keys: Sequence[str]) -> list[tuple[str, str, list[str]]]:
        """Distinct (context, question, responses so far) of every state a policy can see."""
        self._walk(spec, keys)
        table = self.sql(
            "SELECT r.outcome AS context, any_value(q.question) AS question, "
            "any_value(r.responses) AS responses "
            "FROM reached r JOIN wanted w USING (position) JOIN queries q USING (query) "
            "WHERE r.node < ? GROUP BY r.outcome ORDER BY min(r.node), min(r.position)",
            [spec.routes.states],
        )
        return list(
            zip(
                table["context"].to_pylist(),
                table["question"].to_pylist(),
                table["responses"].to_pylist(),
                strict=True,
            )
        )

    def _register_wanted(self, keys: Sequence[str]) -> None:
        wanted = pa.table(
            {
                "position": pa.array(range(len(keys)), pa.int64()),
                "query": pa.array(keys, pa.string()),
            }
        )
        self.connection.register("wanted", wanted)

    def _walk(self, spec: TreeSpec, keys: Sequence[str]) -> None:
        """Fill the table `reached`: follow outcomes from the roots, one join a level."""
        routes = spec.routes
        self._register_wanted(keys)
        # Opening a tree asks for its states, then for its nodes: the same walk.
        if self._walked == (spec, tuple(keys)):
            return
        self._walked = spec, tuple(keys)
        self.connection.execute(
            "CREATE OR REPLACE TEMP TABLE reached AS "
            "SELECT w.position, 0::BIGINT AS node, NULL::VARCHAR AS key, 0 AS tokens_in, "
            '0 AS tokens_out, q.context AS outcome, q."references", []::VARCHAR[] AS responses '
            "FROM wanted w JOIN queries q USING (query)"
        )
        for level, steps in enumerate(spec.steps):
            offered = pa.table(
                {
                    "action": pa.array(range(len(steps)), pa.int64()),
                    "step": pa.array(steps, pa.string()),
                }
            )
            self.connection.register("offered", offered)
            here = routes.level(level)
            self.connection.execute(
                "INSERT INTO reached "
                "SELECT r.position, r.node * ? + 1 + o.action, c.key, c.tokens_in, c.tokens_out, "
                'c.outcome, r."references", list_append(r.responses, c.response) '
                "FROM reached r CROSS JOIN offered o "
                "JOIN calls c ON c.step = o.step AND c.context = r.outcome "
                "WHERE r.node BETWEEN ? AND ?",
                [routes.models, here.start, here.stop - 1],
            )

    def _scored_nodes(self, table: str, scorers: Sequence[str]) -> NodeTable:
        values = ", ".join(
            f"CASE WHEN n.key IS NULL THEN 0 ELSE s{index}.value END AS score_{index}"
            for index in range(len(scorers))
        )
        joins = " ".join(
            f"LEFT JOIN scores s{index} ON s{index}.call = n.key AND s{index}.scorer = ? "
            f'AND s{index}."references" = n."references"'
            for index in range(len(scorers))
        )
        found = self.sql(
            "SELECT n.position, n.node, n.tokens_in, n.tokens_out, n.outcome, "  # noqa: S608
            f"{values} FROM {table} n {joins}",
            list(scorers),
        )
        return NodeTable(
            position=found["position"].to_numpy().astype(np.int64),
            node=found["node"].to_numpy().astype(np.int64),
            tokens_in=found["tokens_in"].to_numpy().astype(np.int64),
            tokens_out=found["tokens_out"].to_numpy().astype(np.int64),
            score=np.stack(
                [found[f"score_{index}"].to_numpy() for index in range(len(scorers))]
            ).astype(np.float64),
            outcome=np.array(found["outcome"].to_pylist(), dtype="U32"),
        )


def require_sane(found: NodeTable, what: str) -> None:
    """Refuse values that no collection writes.

    Raises:
        CacheError: a score outside [0, 1] or a negative number of tokens.
    """
    wrong = (found.score < 0) | (found.score > 1)
    if wrong.any() or (found.tokens_in < 0).any() or (found.tokens_out < 0).any():
        raise CacheError(
            f"a score out of range [0, 1] or a negative number of tokens in the {what}: "
            "not written by this program; find it with `hierrouter cache verify --rescore`"
        )


def require_complete(found: NodeTable, queries: int, per_query: int, what: str) -> None:
    """Refuse a tree with holes: dropping queries silently would bias every table.

    Raises:
        IncompleteTree: with the number of queries and nodes that are missing.
    """
    counts = np.bincount(found.position, minlength=queries)
    missing = per_query - counts
    if missing.any():
        raise IncompleteTree(
            f"the tree is incomplete: {np.count_nonzero(missing)} queries lack "
            f"{missing.sum()} {what}; run `hierrouter collect` again, it asks only for those"
        )
    require_sane(found, what)
    unscored = int(np.isnan(found.score).any(axis=0).sum())
    if unscored:
        raise IncompleteTree(
            f"the tree is incomplete: {unscored} {what} are not scored; "
            "run `hierrouter collect` again, no model is called for scores"
        )


def _order(part: Part) -> tuple[int, str]:
    return part.seq, part.path.name
