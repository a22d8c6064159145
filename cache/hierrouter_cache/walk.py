"""Which call is which node: the tree as a join.

In: a `CacheReader`, a `TreeSpec`, query keys. Out: `Nodes`, dense arrays with -1 where a call has
not been collected. The children of a node are the calls whose context is the node's outcome, so
one lookup a model and level finds them all. Not covered: scores, prices, embeddings (`loading`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.errors import CacheError
from hierrouter_cache.fingerprint import text_digest
from hierrouter_cache.reader import CacheReader, first_match
from hierrouter_cache.routes import Routes

MISSING = -1


@dataclass(frozen=True)
class TreeSpec:
    """Which calls make up a tree: the pool, reduced to content keys.

    Attributes:
        models: M names, in action order.
        steps: `steps[level][action]` is the step key of calling a model at that level.
        direct: (name, step key) of each single-model call, pool models first.
    """

    models: tuple[str, ...]
    steps: tuple[tuple[str, ...], ...]
    direct: tuple[tuple[str, str], ...]

    @property
    def routes(self) -> Routes:
        """The shape of the tree."""
        return Routes(len(self.models), len(self.steps))


@dataclass(frozen=True)
class Nodes:
    """What was found of the trees and direct calls of some queries.

    Columns are node numbers for a tree, places in `TreeSpec.direct` for direct calls; a column 0
    of a tree is the root, which is no call. Hashes are those of `CacheReader.hashes`.

    Attributes:
        found: bool[queries, columns].
        key: uint64[queries, columns], hash of the call's key; 0 where there is none.
        outcome: uint64[queries, columns], hash of the context after the response.
        tokens_in, tokens_out: int64[queries, columns], 0 where there is no call.
    """

    found: NDArray[np.bool_]
    key: NDArray[np.uint64]
    outcome: NDArray[np.uint64]
    tokens_in: NDArray[np.int64]
    tokens_out: NDArray[np.int64]

    @property
    def complete(self) -> NDArray[np.bool_]:
        """bool[queries]: the queries that lack nothing."""
        whole: NDArray[np.bool_] = np.all(self.found, axis=1)
        return whole

    def select(self, rows: NDArray[np.int64]) -> Nodes:
        """The same for some of the queries."""
        return Nodes(**{item.name: getattr(self, item.name)[rows] for item in fields(self)})

    def columns(self, chosen: slice) -> Nodes:
        """The same for some of the columns."""
        return Nodes(**{item.name: getattr(self, item.name)[:, chosen] for item in fields(self)})


@dataclass(frozen=True)
class Forest:
    """Trees and direct calls of some queries, in the order of `keys`."""

    keys: tuple[str, ...]
    references: NDArray[np.uint64]
    tree: Nodes
    direct: Nodes

    @property
    def complete(self) -> NDArray[np.bool_]:
        """bool[queries]: every node and every direct call is there."""
        return self.tree.complete & self.direct.complete

    def select(self, rows: NDArray[np.int64]) -> Forest:
        """The same for some of the queries."""
        return Forest(
            tuple(self.keys[row] for row in rows),
            self.references[rows],
            self.tree.select(rows),
            self.direct.select(rows),
        )


def walk(reader: CacheReader, spec: TreeSpec, keys: Sequence[str]) -> Forest:
    """Find every call of the trees of these queries.

    Raises:
        CacheError: a query is not there, or a call has a negative number of tokens.
    """
    table = _Calls.of(reader, spec)
    roots, references = _query_hashes(reader, keys)
    return Forest(tuple(keys), references, _tree(table, spec, roots), _direct(table, spec, roots))


@dataclass(frozen=True)
class _Calls:
    """The calls of some steps, in the order of the parts; the first of equal keys counts."""

    context: NDArray[np.uint64]
    outcome: NDArray[np.uint64]
    key: NDArray[np.uint64]
    tokens_in: NDArray[np.int32]
    tokens_out: NDArray[np.int32]
    rows: dict[str, NDArray[np.int64]]  # of each step

    @classmethod
    def of(cls, reader: CacheReader, spec: TreeSpec) -> _Calls:
        steps = sorted(
            {*(step for level in spec.steps for step in level)} | {s for _, s in spec.direct}
        )
        marks = ", ".join("?" * len(steps))
        columns = reader.columns(
            "SELECT hash(step) AS step, hash(context) AS context, hash(outcome) AS outcome, "  # noqa: S608 - our own names
            f"hash(key) AS key, tokens_in, tokens_out FROM calls_rows WHERE step IN ({marks})",
            steps,
        )
        for name in ("tokens_in", "tokens_out"):
            if (columns[name] < 0).any():
                raise CacheError(
                    f"a negative number of {name} in the cache: {reader.root}; not written by "
                    "this program, find the part with `hierrouter cache sql`"
                )
        step = columns.pop("step")
        rows = {
            name: np.flatnonzero(step == number)
            for name, number in zip(steps, reader.hashes(steps), strict=True)
        }
        return cls(**columns, rows=rows)

    def after(self, step: str, context: NDArray[np.uint64]) -> NDArray[np.int64]:
        """int64[*context.shape]: row of the call of `step` on each context, or -1."""
        rows = self.rows[step]
        place = first_match(context, self.context[rows])
        return np.where(place == MISSING, MISSING, rows[place] if len(rows) else MISSING)

    def take(self, call: NDArray[np.int64]) -> Nodes:
        """The columns of these rows; zeros where a row is -1."""
        found = call != MISSING

        def column(values: NDArray[Any], kind: type) -> NDArray[Any]:
            taken = values[call] if len(values) else np.zeros(call.shape, values.dtype)
            return np.where(found, taken, 0).astype(kind)

        return Nodes(
            found=found,
            key=column(self.key, np.uint64),
            outcome=column(self.outcome, np.uint64),
            tokens_in=column(self.tokens_in, np.int64),
            tokens_out=column(self.tokens_out, np.int64),
        )


def _query_hashes(
    reader: CacheReader, keys: Sequence[str]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """uint64[queries] twice: root contexts and references."""
    rows = reader.queries(keys, ("context", '"references"'))
    return reader.hashes(rows["context"].combine_chunks()), reader.hashes(
        rows["references"].combine_chunks()
    )


def _tree(table: _Calls, spec: TreeSpec, roots: NDArray[np.uint64]) -> Nodes:
    routes = spec.routes
    call = np.full((len(roots), routes.nodes), MISSING, np.int64)
    context = roots[:, None]
    for level, steps in enumerate(spec.steps):
        here = call[:, routes.level(level + 1)]
        for action, step in enumerate(steps):
            here[:, action :: routes.models] = table.after(step, context)
        reached = table.take(here)
        # A hash of 0 is no context of ours: below a hole there is nothing.
        context = reached.outcome
    nodes = table.take(call)
    nodes.found[:, 0] = True
    nodes.outcome[:, 0] = roots
    return nodes


def _direct(table: _Calls, spec: TreeSpec, roots: NDArray[np.uint64]) -> Nodes:
    columns = [table.after(step, roots) for _, step in spec.direct]
    return table.take(np.stack(columns, axis=1))


@dataclass(frozen=True)
class State:
    """A state that a policy can see, in words.

    Attributes:
        context: digest of what follows.
        question: text of the query.
        responses: the answers so far, in order.
    """

    context: str
    question: str
    responses: tuple[str, ...]


def states(
    reader: CacheReader, spec: TreeSpec, forest: Forest, contexts: NDArray[np.uint64]
) -> list[State]:
    """The states with these context hashes, in this order.

    Args:
        reader: the cache that the forest comes from.
        spec: the pool as content keys.
        forest: where the states are found.
        contexts: uint64[n], each the outcome of a node of the forest.
    """
    width = spec.routes.states
    place = first_match(contexts, forest.tree.outcome[:, :width].ravel())
    position, node = place // width, place % width
    paths = [_ancestors(spec.routes, number) for number in range(width)]
    keys = [forest.tree.key[row, paths[column]] for row, column in zip(position, node, strict=True)]
    calls = reader.texts(np.concatenate([*keys, np.empty(0, np.uint64)]))
    queries = reader.queries([forest.keys[row] for row in position], ("context", "question"))
    return [
        State(
            calls[path[-1]].outcome if path else query["context"],
            query["question"],
            tuple(calls[key].response for key in path),
        )
        for path, query in zip((key.tolist() for key in keys), queries.to_pylist(), strict=True)
    ]


def newest_answers(reader: CacheReader, spec: TreeSpec, forest: Forest) -> NDArray[np.uint64]:
    """uint64[queries, states]: hash of the digest of the newest answer's text at each state.

    Equal answers have equal hashes, whatever came before them. At the root it is the empty text.
    """
    calls = forest.tree.key[:, 1 : spec.routes.states]
    nothing = reader.hashes([text_digest("")])
    root = np.repeat(nothing[:, None], len(calls), axis=0)
    return np.concatenate([root, reader.answers(calls)], axis=1)


def _ancestors(routes: Routes, node: int) -> list[int]:
    """Node numbers from the first hop down to `node`; none for the root."""
    path = routes.path(node)
    return [routes.node(path[: length + 1]) for length in range(len(path))]
