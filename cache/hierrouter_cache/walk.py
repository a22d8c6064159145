"""Which call is which node: the tree as a join, its scores, and its dense arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.errors import CacheError, IncompleteTree
from hierrouter_cache.keys import digest, text_digest
from hierrouter_cache.reader import IN_ORDER, CacheReader, first_match
from hierrouter_cache.tree import DirectCalls, Rate, Routes, RouteTree, StatePart, rate_table

MISSING = -1
# Any odd number: makes (call, references) and (references, call) different.
ODD = np.uint64(0x9E3779B97F4A7C15)


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
        seconds: float64[queries, columns], likewise; NaN where nobody measured them.
        pruned: bool[queries, columns], whether a call that is not there was left out on purpose, or
            one before it.
    """

    found: NDArray[np.bool_]
    key: NDArray[np.uint64]
    outcome: NDArray[np.uint64]
    tokens_in: NDArray[np.int64]
    tokens_out: NDArray[np.int64]
    seconds: NDArray[np.float64]
    pruned: NDArray[np.bool_]

    @property
    def complete(self) -> NDArray[np.bool_]:
        """bool[queries]: the queries that lack nothing."""
        return np.all(self.found, axis=1)

    def at(self, chosen: Any) -> Nodes:
        """The same for some queries and columns; `chosen` is an index of numpy for these two."""
        return Nodes(**{item.name: getattr(self, item.name)[chosen] for item in fields(self)})


@dataclass(frozen=True)
class Forest:
    """Trees and direct calls of some queries, in the order of `keys`.

    `decided`: bool[queries], whether it was decided of each call if it was to be made.
    """

    keys: tuple[str, ...]
    references: NDArray[np.uint64]
    tree: Nodes
    direct: Nodes
    decided: NDArray[np.bool_]

    @property
    def complete(self) -> NDArray[np.bool_]:
        """bool[queries]: every node and every direct call is there."""
        return self.tree.complete & self.direct.complete

    @property
    def pruned(self) -> NDArray[np.bool_]:
        """bool[queries]: which calls were to be made was decided, and these are there."""
        accounted = [(each.found | each.pruned).all(axis=1) for each in (self.tree, self.direct)]
        return self.decided & accounted[0] & accounted[1]

    @property
    def covered(self) -> Forest:
        """The same with the first call of each query in the place of those that are not there.

        With that of another query where it has none.
        So every node can be looked up; what is found at these nodes means nothing.
        """
        tree, rows = self.tree, np.arange(len(self.keys))
        first = 1 + tree.found[:, 1:].argmax(axis=1)
        has = tree.found[rows, first]
        rows = np.where(has, rows, has.argmax())
        first = first[rows]

        def cover(values: NDArray[Any]) -> NDArray[Any]:
            return np.where(tree.found, values, values[rows, first][:, None])

        return replace(
            self,
            tree=replace(
                tree,
                key=cover(tree.key),
                outcome=cover(tree.outcome),
                tokens_out=cover(tree.tokens_out),
            ),
        )

    def select(self, rows: NDArray[np.int64]) -> Forest:
        """The same for some of the queries."""
        if np.array_equal(rows, np.arange(len(self.keys))):
            return self
        return Forest(
            tuple(self.keys[row] for row in rows),
            self.references[rows],
            self.tree.at(rows),
            self.direct.at(rows),
            self.decided[rows],
        )


def walk(reader: CacheReader, spec: TreeSpec, keys: Sequence[str]) -> Forest:
    """Find every call of the trees of these queries.

    Raises CacheError: a query is not there, or a call has a negative number of tokens.
    """
    table = _Calls.of(reader, spec)
    rows = reader.queries(keys, ("context", '"references"'))
    roots, references = (
        reader.hashes(rows[name].combine_chunks()) for name in ("context", "references")
    )
    direct = table.take(np.stack([table.after(step, roots) for _, step in spec.direct], axis=1))
    left = [table.was_decided(step, roots, False) for _, step in spec.direct]
    direct = replace(direct, pruned=np.stack(left, axis=1) & ~direct.found)
    tree, decided = _tree(table, spec, roots), np.zeros(len(roots), np.bool_)
    for step in spec.steps[0]:
        decided |= table.was_decided(step, roots, True)
    return Forest(tuple(keys), references, tree, direct, decided)


@dataclass(frozen=True)
class _Calls:
    """The calls of some steps, in the order of the parts; the first of equal keys counts."""

    context: NDArray[np.uint64]
    outcome: NDArray[np.uint64]
    key: NDArray[np.uint64]
    tokens_in: NDArray[np.int32]
    tokens_out: NDArray[np.int32]
    latency_s: NDArray[np.float64]
    rows: dict[str, NDArray[np.int64]]  # of each step
    decided: dict[str, dict[bool, NDArray[np.uint64]]]  # contexts, of each step: was it to be made

    @classmethod
    def of(cls, reader: CacheReader, spec: TreeSpec) -> _Calls:
        steps = sorted(
            {*(step for level in spec.steps for step in level)} | {s for _, s in spec.direct}
        )
        marks, first = ", ".join("?" * len(steps)), ""
        if not spec.steps[1:]:  # where all hops are told the same, later calls have this step, too
            first = f"AND context IN (SELECT context FROM queries_rows) ORDER BY {IN_ORDER}"  # noqa: S608 - our own names
        columns = reader.columns(
            "SELECT hash(step) AS step, hash(context) AS context, hash(outcome) AS outcome, "  # noqa: S608 - our own names
            f"hash(key) AS key, tokens_in, tokens_out, latency_s "
            f"FROM calls_rows WHERE step IN ({marks}) {first}",
            steps,
        )
        for name in ("tokens_in", "tokens_out"):
            if (columns[name] < 0).any():
                raise CacheError(
                    f"a negative number of {name} in the cache: {reader.root}; not written by "
                    "this program, find the part with `hierrouter cache sql`"
                )
        decided = reader.columns(
            "SELECT hash(step) AS step, hash(context) AS context, made FROM decisions "  # noqa: S608 - our own names
            f"WHERE step IN ({marks})",
            steps,
        )
        step, numbers = columns.pop("step"), dict(zip(steps, reader.hashes(steps), strict=True))
        return cls(
            **columns,
            rows={name: np.flatnonzero(step == number) for name, number in numbers.items()},
            decided={
                name: {
                    made: decided["context"][(decided["step"] == at) & (decided["made"] == made)]
                    for made in (False, True)
                }
                for name, at in numbers.items()
            },
        )

    def after(self, step: str, context: NDArray[np.uint64]) -> NDArray[np.int64]:
        """int64[*context.shape]: row of the call of `step` on each context, or -1."""
        rows = self.rows[step]
        place = first_match(context, self.context[rows])
        return np.where(place == MISSING, MISSING, rows[place] if len(rows) else MISSING)

    def was_decided(self, step: str, context: NDArray[np.uint64], made: bool) -> NDArray[np.bool_]:
        """bool[*context.shape]: was the call of `step` on each context to be made, or not to be."""
        return np.isin(context, self.decided[step][made])

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
            seconds=column(self.latency_s, np.float64),
            pruned=np.zeros_like(found),
        )


def _tree(table: _Calls, spec: TreeSpec, roots: NDArray[np.uint64]) -> Nodes:
    routes = spec.routes
    call = np.full((len(roots), routes.nodes), MISSING, np.int64)
    pruned = np.zeros(call.shape, np.bool_)
    context = roots[:, None]
    for level, steps in enumerate(spec.steps):
        here, left = call[:, routes.level(level + 1)], pruned[:, routes.level(level + 1)]
        left |= np.repeat(pruned[:, routes.level(level)], routes.models, axis=1)
        for action, step in enumerate(steps):
            here[:, action :: routes.models] = table.after(step, context)
            left[:, action :: routes.models] |= table.was_decided(step, context, False)
        left &= here == MISSING
        reached = table.take(here)
        # A hash of 0 is no context of ours: below a hole there is nothing.
        context = reached.outcome
    nodes = table.take(call)
    nodes.found[:, 0] = True
    nodes.outcome[:, 0] = roots
    return replace(nodes, pruned=pruned)


@dataclass(frozen=True)
class State:
    """A state that a policy can see, in words.

    Attributes:
        context: digest of what follows.
    """

    context: str
    question: str
    responses: tuple[str, ...]


def states(
    reader: CacheReader,
    spec: TreeSpec,
    forest: Forest,
    contexts: NDArray[np.uint64],
    leaves: bool = False,
) -> list[State]:
    """The states with these context hashes, in this order.

    `reader`: the cache that the forest comes from; `spec`: the pool as content keys; `forest`:
    where the states are found; `contexts`: uint64[n], each the outcome of a node of the forest;
    `leaves`: whether what follows the last call is a state, too.
    """
    width = spec.routes.nodes if leaves else spec.routes.states
    place = first_match(contexts, forest.tree.outcome[:, :width].ravel())
    position, node = place // width, place % width
    routes = map(spec.routes.path, range(width))
    paths = [[spec.routes.node(path[: hop + 1]) for hop in range(len(path))] for path in routes]
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


def newest_answers(
    reader: CacheReader, spec: TreeSpec, forest: Forest, leaves: bool = False
) -> NDArray[np.uint64]:
    """uint64[queries, states]: hash of the digest of the newest answer's text at each state.

    Equal answers have equal hashes, whatever came before them. At the root it is the empty text.

    `leaves`: whether what follows the last call is a state, too.
    """
    calls = forest.tree.key[:, 1 : spec.routes.nodes if leaves else spec.routes.states]
    nothing = reader.hashes([text_digest("")])
    root = np.repeat(nothing[:, None], len(calls), axis=0)
    return np.concatenate([root, reader.answers(calls)], axis=1)


@dataclass(frozen=True)
class Scores:
    """Values of one scorer in [0, 1]; NaN where a call is not there or not scored.

    Attributes:
        tree: float64[queries, nodes]; the root's is 0.
        direct: float64[queries, K].
    """

    tree: NDArray[np.float64]
    direct: NDArray[np.float64]


def stored_scores(reader: CacheReader, forest: Forest, scorer: str) -> Scores:
    """What the cache holds of one scorer.

    Raises CacheError: a value is not in [0, 1].
    """
    columns = reader.columns(
        'SELECT hash(call) AS call, hash("references") AS refs, value FROM scores_rows '
        "WHERE scorer = ?",
        [scorer],
    )
    value = columns["value"].astype(np.float64)
    if not ((value >= 0) & (value <= 1)).all():
        raise CacheError(
            f"a score out of range [0, 1] or NaN: {scorer} in {reader.root}; not written by this "
            "program, find the part with `hierrouter cache sql`"
        )
    known = columns["call"] * ODD + columns["refs"]
    tree = _look_up(forest.tree, forest.references, known, value)
    tree[:, 0] = 0
    return Scores(tree, _look_up(forest.direct, forest.references, known, value))


def _look_up(
    nodes: Nodes,
    references: NDArray[np.uint64],
    known: NDArray[np.uint64],
    value: NDArray[np.float64],
) -> NDArray[np.float64]:
    place = first_match(nodes.key * ODD + references[:, None], known)
    padded = np.append(value, np.nan)  # the place of what is missing is -1: the last
    return np.where(nodes.found, padded[place], np.nan)


def load_tree(
    reader: CacheReader,
    spec: TreeSpec,
    forest: Forest,
    parts: tuple[StatePart, ...],
    encoder: str,
    prices: Mapping[str, Rate],
    score: Scores,
    accuracy: Scores,
    scorer: str,
    apart: NDArray[np.bool_] | None = None,
) -> RouteTree:
    """The dense arrays of a forest without holes; its order is the order of the tree's rows.

    Raises IncompleteTree: a node, a direct call or a score is missing.

    Args:
        encoder: description of the encoder; the content is named by it, whatever the parts.
        apart: bool[queries], those that may lack calls and stand apart; None is none.
    """
    whole = np.ones(len(forest.keys), np.bool_) if apart is None else ~apart
    if lack := holes(forest.select(np.flatnonzero(whole)), spec):
        raise IncompleteTree(f"the tree is incomplete: {reader.root}: {lack}; collect again")
    for values in (score, accuracy):
        for found, each in ((forest.tree, values.tree), (forest.direct, values.direct)):
            if count := np.count_nonzero(np.isnan(each) & found.found):
                raise IncompleteTree(
                    f"{count} calls are not scored: {reader.root}; score them first"
                )
    queries = reader.queries(forest.keys, ("id", "dataset", "split"))
    tree, direct = forest.tree, forest.direct
    alone = tuple(name for name, _ in spec.direct)
    measured = [score.tree, accuracy.tree, tree.tokens_in, tree.tokens_out]
    measured += [score.direct, accuracy.direct, direct.tokens_in, direct.tokens_out]
    tree_of_all = RouteTree(
        models=spec.models,
        hops=spec.routes.hops,
        query_ids=tuple(queries["id"].to_pylist()),
        datasets=tuple(queries["dataset"].to_pylist()),
        splits=tuple(queries["split"].to_pylist()),
        score=score.tree,
        accuracy=accuracy.tree,
        tokens_in=tree.tokens_in,
        tokens_out=tree.tokens_out,
        seconds=tree.seconds,
        rate=rate_table(spec.models, prices),
        parts=parts,
        direct=DirectCalls(
            models=alone,
            score=score.direct,
            accuracy=accuracy.direct,
            tokens_in=direct.tokens_in,
            tokens_out=direct.tokens_out,
            seconds=direct.seconds,
            rate=rate_table(alone, prices),
        ),
        scorer=scorer,
        content=_content(
            [spec.models, spec.steps, spec.direct, scorer, encoder, forest.keys], measured
        ),
    )
    if whole.all():
        return tree_of_all
    pruned = tree_of_all.select(np.flatnonzero(~whole))
    return replace(tree_of_all.select(np.flatnonzero(whole)), pruned=pruned)


def holes(forest: Forest, spec: TreeSpec) -> str | None:
    """How many queries lack how much, and whose answers, in words; None where nothing is."""
    routes = spec.routes
    lacking = int(np.count_nonzero(~forest.complete))
    if not lacking:
        return None
    nodes = int(np.count_nonzero(~forest.tree.found))
    direct = int(np.count_nonzero(~forest.direct.found))
    what = " and ".join(
        f"{count} {name}" for count, name in ((nodes, "nodes"), (direct, "direct calls")) if count
    )
    parents = [routes.parent(node) for node in range(1, routes.nodes)]
    below = np.count_nonzero(~forest.tree.found[:, 1:] & ~forest.tree.found[:, parents])
    if below:
        what += f" ({below} of them because their parent is missing)"
    queries = _lacking_by_model(forest, spec)
    most = sorted(queries.items(), key=lambda item: -item[1])[:MODELS_NAMED]
    named = ", ".join(f"of {name} in {count}" for name, count in most)
    more = f" and of {len(queries) - len(most)} more" if len(queries) > len(most) else ""
    return f"{lacking} of {len(forest.keys)} queries lack {what}: no answer {named}{more}"


MODELS_NAMED = 4


def _lacking_by_model(forest: Forest, spec: TreeSpec) -> dict[str, int]:
    """In how many queries an answer of each model is missing that could have been asked for."""
    routes = spec.routes
    parents = [routes.parent(node) for node in range(1, routes.nodes)]
    gone = ~forest.tree.found[:, 1:] & forest.tree.found[:, parents]
    called = np.array([routes.action(node) for node in range(1, routes.nodes)])
    lacking = {name: gone[:, called == at].any(axis=1) for at, name in enumerate(spec.models)}
    for column, (name, _) in enumerate(spec.direct):
        alone = ~forest.direct.found[:, column]
        lacking[name] = lacking.get(name, np.zeros_like(alone)) | alone
    counts = {name: int(np.count_nonzero(queries)) for name, queries in lacking.items()}
    return {name: count for name, count in counts.items() if count}


def _content(names: object, arrays: Sequence[NDArray[Any]]) -> str:
    total = hashlib.sha256(digest(names).encode())
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:32]
