"""Find the call of each node: the tree as a join, its scores, and its dense arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.errors import CacheError, IncompleteTree
from hierrouter_cache.keys import digest, draw_step, text_digest
from hierrouter_cache.layout import MAX_NODES, NEWEST, NOT_OFFERED, Layout, size_fault
from hierrouter_cache.reader import FIRST_ROW_ORDER, CacheReader, first_match
from hierrouter_cache.tree import DirectCalls, Rate, RouteTree, StatePart, rate_table

NO_ROW = -1  # row number of a call that is not in the cache
# Any odd number. It makes (call, references) and (references, call) different.
HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
MAX_MODELS_IN_MESSAGE = 4
UNJUDGED = "ended without a verdict"  # a reason why calls of a log are left out
# The scorer under whose name the share of a draw in the runs of its call is stored: no quality.
RUNS_SCORER_NAME = "share_of_runs"
RUNS_SCORER_VERSION = "1"
RUNS_SCORER_KEY = f"{RUNS_SCORER_NAME}@{RUNS_SCORER_VERSION}"
FEW_STEPS = 64  # a search for each of so many is faster than sorting all calls
# Of a call: its own seconds, else its share of those of the calls that were stored with it; whether
# it is the latter; and the tokens that may have prices of their own.
MEASURE_COLUMNS = (
    "coalesce(calls_rows.seconds, latency_s) AS seconds, "
    "calls_rows.seconds IS NULL AND latency_s IS NOT NULL AS shared, "
    "coalesce(tokens_cached, 0) AS tokens_cached, coalesce(tokens_thoughts, 0) AS tokens_thoughts"
)


@dataclass(frozen=True)
class TreeSpec:
    """The calls that make up a tree: the pool, reduced to digests.

    Attributes:
        models: names of the M actions that call a model, in their order; in the paper's tree these
            are the names of the models.
        steps: `steps[level][action]` is the step key of an action at that level, of its first draw;
            "" if it is offered nowhere at that level.
        direct: (name, step key) of each direct call; models of the pool come first. The draws of
            a call follow each other, under the same name.
        layout: which of these calls there are, and how many draws of each; by default every model
            at every level, with one draw.
        callers: name of the model that each action calls; by default that of the action.
        least_draws: draws from this number on are there for some calls only; 0 if every call has
            all draws of the layout.
    """

    models: tuple[str, ...]
    steps: tuple[tuple[str, ...], ...]
    direct: tuple[tuple[str, str], ...]
    layout: Layout = field(default=None)  # type: ignore[assignment]
    callers: tuple[str, ...] = ()
    least_draws: int = 0

    def __post_init__(self) -> None:
        if self.layout is None:
            layout = Layout.full(len(self.models), len(self.steps))
            object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "callers", self.callers or self.models)

    def as_object(self) -> dict[str, Any]:
        """The spec as JSON values, to identify what was made of it."""
        values: dict[str, Any] = {"models": self.models, "steps": self.steps, "direct": self.direct}
        if not self.layout.is_full:
            values["layout"] = self.layout.digest
        if self.callers != self.models:
            values["callers"] = self.callers
        if self.least_draws:
            values["least_draws"] = self.least_draws
        return values

    @property
    def first_hop(self) -> TreeSpec:
        """The same without the calls after the first hop."""
        return replace(self, steps=self.steps[:1], layout=self.layout.cut(1))

    @property
    def first_direct(self) -> NDArray[np.int64]:
        """int64[K]: the position of the first draw of each direct call in `direct`."""
        names = [name for name, _ in self.direct]
        return np.array([names.index(name) for name in dict.fromkeys(names)], np.int64)

    @property
    def action_by_step(self) -> dict[str, str]:
        """Name of the action that makes a call, by the call's step key, of every draw."""
        draws = 1 + int(self.layout.draw.max())
        return {
            draw_step(step, draw): name
            for steps in self.steps
            for name, step in zip(self.models, steps, strict=True)
            if step
            for draw in range(draws)
        }

    def step(self, node: int) -> str:
        """The step key of the call that leads to a node, which must not be the root."""
        level = int(self.layout.depth()[node]) - 1
        step = self.steps[level][self.layout.action[node]]
        return draw_step(step, int(self.layout.draw[node]))


@dataclass(frozen=True)
class Nodes:
    """The calls of some queries that are in the cache: those of their trees, or direct calls.

    The columns are node numbers for trees, and positions in `TreeSpec.direct` for direct calls.
    Column 0 of a tree is the root, which is no call. Hashes are those of `CacheReader.hashes`.

    Attributes:
        present: bool[queries, columns], whether the call is in the cache; true for the root.
        key: uint64[queries, columns], hash of the call's key; 0 if the call is absent.
        outcome: uint64[queries, columns], hash of the context after the response; 0 if the call is
            absent.
        tokens_in: int64[queries, columns], prompt tokens; 0 if the call is absent.
        tokens_out: int64[queries, columns], generated tokens; 0 if the call is absent.
        seconds: float64[queries, columns], 0 if the call is absent; NaN if it was not measured.
        shared: bool[queries, columns], whether the seconds are a share of a commit's time, as
            earlier versions recorded it, and not the call's own.
        tokens_cached: int64[queries, columns], cached prompt tokens; 0 if none are reported.
        tokens_thoughts: int64[queries, columns], tokens of a thought; 0 if none are reported.
        pruned: bool[queries, columns], whether an absent call was left out on purpose, or a call
            before it was.
        spare: bool[queries, columns], whether an absent call is not needed: it is a further draw,
            see `TreeSpec.least_draws`, or follows one.
    """

    present: NDArray[np.bool_]
    key: NDArray[np.uint64]
    outcome: NDArray[np.uint64]
    tokens_in: NDArray[np.int64]
    tokens_out: NDArray[np.int64]
    seconds: NDArray[np.float64]
    shared: NDArray[np.bool_]
    tokens_cached: NDArray[np.int64]
    tokens_thoughts: NDArray[np.int64]
    pruned: NDArray[np.bool_]
    spare: NDArray[np.bool_]

    @property
    def complete(self) -> NDArray[np.bool_]:
        """bool[queries]: whether all calls of the query that are needed are present."""
        return np.all(self.present | self.spare, axis=1)

    def select(self, index: Any) -> Nodes:
        """Return the same for some queries and columns.

        Args:
            index: an index of numpy for arrays of shape [queries, columns].
        """
        return Nodes(**{item.name: getattr(self, item.name)[index] for item in fields(self)})


@dataclass(frozen=True)
class Forest:
    """Trees and direct calls of some queries.

    Attributes:
        keys: keys of the queries; they set the order of all arrays.
        references: uint64[queries], hash of the digest of each query's reference answers.
        tree: the calls of the trees.
        direct: the direct calls.
        decided: bool[queries], whether an adaptive collection decided which calls to make.
    """

    keys: tuple[str, ...]
    references: NDArray[np.uint64]
    tree: Nodes
    direct: Nodes
    decided: NDArray[np.bool_]

    @property
    def complete(self) -> NDArray[np.bool_]:
        """bool[queries]: whether all nodes and direct calls of the query are present."""
        return self.tree.complete & self.direct.complete

    @property
    def pruned(self) -> NDArray[np.bool_]:
        """bool[queries]: whether it was decided which calls to make, and all these are present."""
        tree_settled = (self.tree.present | self.tree.pruned | self.tree.spare).all(axis=1)
        direct_settled = (self.direct.present | self.direct.pruned).all(axis=1)
        return self.decided & tree_settled & direct_settled

    @property
    def covered(self) -> Forest:
        """The same with a present call of the query in place of each absent one.

        If a query has no call at all, a call of another query is used. So every node can be looked
        up; the values of nodes that were absent have no meaning.
        """
        tree = self.tree
        rows = np.arange(len(self.keys))
        first_call = 1 + tree.present[:, 1:].argmax(axis=1)
        has_call = tree.present[rows, first_call]
        source_rows = np.where(has_call, rows, has_call.argmax())
        source_columns = first_call[source_rows]

        def cover(values: NDArray[Any]) -> NDArray[Any]:
            return np.where(tree.present, values, values[source_rows, source_columns][:, None])

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
        """Return the same for some of the queries.

        Args:
            rows: int64[n], their positions, in the order of the result.
        """
        if np.array_equal(rows, np.arange(len(self.keys))):
            return self
        return Forest(
            tuple(self.keys[row] for row in rows),
            self.references[rows],
            self.tree.select(rows),
            self.direct.select(rows),
            self.decided[rows],
        )


def walk(reader: CacheReader, spec: TreeSpec, keys: Sequence[str]) -> Forest:
    """Find all calls of the trees of some queries.

    Args:
        reader: the open cache.
        spec: the pool as digests.
        keys: keys of the queries.

    Raises:
        CacheError: a query is not in the cache, or a call has a negative number of tokens.
    """
    table = _CallTable.read(reader, spec)
    rows = reader.queries(keys, ("context", '"references"'))
    roots = reader.hashes(rows["context"].combine_chunks())
    references = reader.hashes(rows["references"].combine_chunks())
    direct_steps = [step for _, step in spec.direct]
    direct_rows = np.empty((len(roots), len(direct_steps)), np.int64)
    skipped = np.empty(direct_rows.shape, np.bool_)
    for column, step in enumerate(direct_steps):
        direct_rows[:, column] = table.rows_of(step, roots)
        skipped[:, column] = table.has_decision(step, roots, False)
    direct = table.take(direct_rows)
    direct = replace(direct, pruned=skipped & ~direct.present)
    tree = _find_tree(table, spec, roots)
    decided = np.zeros(len(roots), np.bool_)
    # A query was decided on if at least one call of its first hop was to be made.
    for step in filter(None, spec.steps[0]):
        decided |= table.has_decision(step, roots, True)
    return Forest(tuple(keys), references, tree, direct, decided)


@dataclass(frozen=True)
class _CallTable:
    """The calls of some steps, in the order of the parts; the first of equal keys counts.

    Attributes:
        context: uint64[calls], hash of the context of each call.
        outcome: uint64[calls], hash of the context after its response.
        key: uint64[calls], hash of its key.
        tokens_in: int32[calls], prompt tokens.
        tokens_out: int32[calls], generated tokens.
        seconds: float64[calls], recorded seconds; NaN if it was not measured.
        shared: bool[calls], whether they are a share of a commit's time.
        tokens_cached: int32[calls], cached prompt tokens; 0 if none are reported.
        tokens_thoughts: int32[calls], tokens of a thought; 0 if none are reported.
        rows: int64[n], positions of the calls of each step.
        decided: uint64[n], hashes of the contexts at which the call of a step was to be made (True)
            or not to be made (False), by step and decision.
    """

    # Apart from the last two, the names of these fields are columns of the query in `read`.
    context: NDArray[np.uint64]
    outcome: NDArray[np.uint64]
    key: NDArray[np.uint64]
    tokens_in: NDArray[np.int32]
    tokens_out: NDArray[np.int32]
    seconds: NDArray[np.float64]
    shared: NDArray[np.bool_]
    tokens_cached: NDArray[np.int32]
    tokens_thoughts: NDArray[np.int32]
    rows: dict[str, NDArray[np.int64]]
    decided: dict[str, dict[bool, NDArray[np.uint64]]]

    @classmethod
    def read(cls, reader: CacheReader, spec: TreeSpec) -> _CallTable:
        """Read all calls of the steps of a pool.

        Raises:
            CacheError: a call has a negative number of tokens.
        """
        distinct_steps = {spec.step(node) for node in range(1, spec.layout.nodes)}
        distinct_steps |= {step for _, step in spec.direct}
        distinct_steps |= set(spec.steps[0])
        steps = sorted(distinct_steps)
        placeholders = ", ".join("?" * len(steps))
        restriction = ""
        if len(spec.steps) == 1:
            # If all hops of a larger pool have the same instruction, its later calls have the same
            # steps, too. Only calls on the question alone belong to a tree of one hop.
            restriction = (
                "AND context IN (SELECT context FROM queries_rows) "  # noqa: S608 - our own names
                f"ORDER BY {FIRST_ROW_ORDER}"
            )
        columns = reader.columns(
            "SELECT hash(step) AS step, hash(context) AS context, hash(outcome) AS outcome, "  # noqa: S608 - our own names
            f"hash(key) AS key, tokens_in, tokens_out, {MEASURE_COLUMNS} "
            f"FROM calls_rows WHERE step IN ({placeholders}) {restriction}",
            steps,
        )
        for name in ("tokens_in", "tokens_out", "tokens_cached", "tokens_thoughts"):
            if (columns[name] < 0).any():
                raise CacheError(
                    f"a negative number of {name} in the cache: {reader.root}; not written by "
                    "this program, find the part with `hierrouter cache sql`"
                )
        decisions = reader.columns(
            "SELECT hash(step) AS step, hash(context) AS context, made FROM decisions "  # noqa: S608 - our own names
            f"WHERE step IN ({placeholders})",
            steps,
        )
        hashes = reader.hashes(steps)
        rows = _positions(columns.pop("step"), hashes)
        decided = []
        for positions in _positions(decisions["step"], hashes):
            context = decisions["context"][positions]
            made = decisions["made"][positions]
            decided.append({is_made: context[made == is_made] for is_made in (False, True)})
        return cls(
            **columns,
            rows=dict(zip(steps, rows, strict=True)),
            decided=dict(zip(steps, decided, strict=True)),
        )

    def rows_of(self, step: str, context: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the row of the call of a step on each context.

        Args:
            step: the step key.
            context: uint64, any shape, hashes of contexts.

        Returns:
            int64 of the same shape; `NO_ROW` if there is no such call.
        """
        rows = self.rows[step]
        if not len(rows):
            return np.full(context.shape, NO_ROW, np.int64)
        position = first_match(context, self.context[rows])
        return np.where(position < 0, NO_ROW, rows[position])

    def has_decision(
        self, step: str, context: NDArray[np.uint64], to_be_made: bool
    ) -> NDArray[np.bool_]:
        """Return whether it was decided to make the call of a step on each context, or not to.

        Args:
            step: the step key.
            context: uint64, any shape, hashes of contexts.
            to_be_made: the decision.

        Returns:
            bool of the same shape.
        """
        return np.isin(context, self.decided[step][to_be_made])

    def outcomes(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the hash of the context after the call at each row; 0 for `NO_ROW`."""
        if not len(self.outcome):
            return np.zeros(rows.shape, np.uint64)
        return np.where(rows == NO_ROW, np.uint64(0), self.outcome[rows])

    def take(self, rows: NDArray[np.int64]) -> Nodes:
        """Return the calls at these rows; zeros for `NO_ROW`.

        Args:
            rows: int64[queries, columns].
        """
        present = rows != NO_ROW

        def column(values: NDArray[Any], dtype: type) -> NDArray[Any]:
            taken = values[rows] if len(values) else np.zeros(rows.shape, values.dtype)
            return np.where(present, taken, 0).astype(dtype)

        return Nodes(
            present=present,
            key=column(self.key, np.uint64),
            outcome=column(self.outcome, np.uint64),
            tokens_in=column(self.tokens_in, np.int64),
            tokens_out=column(self.tokens_out, np.int64),
            seconds=column(self.seconds, np.float64),
            shared=column(self.shared, np.bool_),
            tokens_cached=column(self.tokens_cached, np.int64),
            tokens_thoughts=column(self.tokens_thoughts, np.int64),
            pruned=np.zeros_like(present),
            spare=np.zeros_like(present),
        )


def _positions(values: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> list[NDArray[np.int64]]:
    """Return for each wanted value the positions at which it stands, in rising order."""
    if len(wanted) <= FEW_STEPS:
        return [np.flatnonzero(values == value) for value in wanted]
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.searchsorted(ordered, wanted, side="left")
    ends = np.searchsorted(ordered, wanted, side="right")
    return [order[start:end] for start, end in zip(starts, ends, strict=True)]


def _find_tree(table: _CallTable, spec: TreeSpec, roots: NDArray[np.uint64]) -> Nodes:
    """Find the calls of the trees, level by level.

    Args:
        table: all calls of the pool's steps.
        spec: the pool as digests.
        roots: uint64[queries], hash of each query's root context.
    """
    layout = spec.layout
    rows = np.full((len(roots), layout.nodes), NO_ROW, np.int64)
    pruned = np.zeros(rows.shape, np.bool_)
    context = np.zeros(rows.shape, np.uint64)
    context[:, 0] = roots
    for level in layout.levels:
        for calls in level.calls:
            numbers = np.arange(calls.nodes.start, calls.nodes.stop)
            kinds = np.stack([layout.action[calls.nodes], layout.draw[calls.nodes]], axis=1)
            for kind in np.unique(kinds, axis=0):
                # Nodes that differ in their parent only.
                nodes = numbers[(kinds == kind).all(axis=1)]
                step = spec.step(int(nodes[0]))
                parents = layout.parent[nodes]
                parent_context = context[:, parents]
                rows[:, nodes] = table.rows_of(step, parent_context)
                is_skipped = table.has_decision(step, parent_context, False)
                pruned[:, nodes] = pruned[:, parents] | is_skipped
            pruned[:, calls.nodes] &= rows[:, calls.nodes] == NO_ROW
            # An absent call has the outcome 0, which is no hash of a context: it has no children.
            context[:, calls.nodes] = table.outcomes(rows[:, calls.nodes])
    spare = _spare_nodes(spec, rows != NO_ROW)
    rows[spare] = NO_ROW
    nodes = table.take(rows)
    nodes.present[:, 0] = True
    nodes.outcome[:, 0] = roots
    return replace(nodes, pruned=pruned, spare=spare)


def _spare_nodes(spec: TreeSpec, present: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find the further draws that a query does without, and the nodes below them.

    A further draw counts only once all needed calls after it are there, so that a collection can be
    interrupted anywhere and its tree still opens.

    Args:
        spec: with the layout.
        present: bool[queries, nodes], whether the call of the node is in the cache.

    Returns:
        bool[queries, nodes].
    """
    layout = spec.layout
    spare = np.zeros(present.shape, np.bool_)
    if not spec.least_draws:
        return spare
    is_further = layout.draw >= spec.least_draws
    lacks_calls = np.zeros(present.shape, np.bool_)  # of those that are needed below the node
    # Numbers of inner nodes are below those of their inner children, and of all leaves.
    for node in range(layout.nodes - 1, 0, -1):
        is_unfinished = ~present[:, node] | lacks_calls[:, node]
        if is_further[node]:
            spare[:, node] = is_unfinished
        else:
            lacks_calls[:, layout.parent[node]] |= is_unfinished
    for node in range(1, layout.nodes):
        spare[:, node] |= spare[:, layout.parent[node]]
    return spare


def without_unused_draws(spec: TreeSpec, forest: Forest) -> tuple[TreeSpec, Forest]:
    """Leave out the nodes of further draws that no query has.

    Args:
        spec: with the layout.
        forest: the calls of some queries.

    Returns:
        The spec with the smaller layout, and the forest with its nodes.
    """
    is_used: NDArray[np.bool_] = ~np.all(forest.tree.spare, axis=0)
    if is_used.all():
        return spec, forest
    smaller, nodes = spec.layout.of_nodes(is_used)
    tree = forest.tree.select(np.s_[:, nodes])
    return replace(spec, layout=smaller), replace(forest, tree=tree)


def stored_layout(reader: CacheReader, spec: TreeSpec, keys: Sequence[str]) -> TreeSpec:
    """Return the spec with the routes that some query has in the cache.

    They are followed from the queries' roots, so that what is looked at are stored calls only, and
    not every sequence of actions.

    Args:
        reader: the open cache.
        spec: the pool as digests; its layout is not looked at.
        keys: keys of the queries.

    Raises:
        IncompleteTree: the queries have no call.
        CacheError: the layout is too large, as none is that an import has written.
    """
    calls_after = _stored_calls(reader, spec)
    contexts = reader.queries(keys, ("context",))["context"].to_pylist()
    parent = [-1]
    actions = [-1]
    draws = [0]
    level = {0: contexts}  # by node: the contexts of the queries that have it
    for hop in range(len(spec.steps)):
        following: dict[tuple[int, int, int], list[str]] = {}
        for node, node_contexts in level.items():
            for context in node_contexts:
                for action, draw, outcome in calls_after[hop].get(context, ()):
                    following.setdefault((node, action, draw), []).append(outcome)
        if len(parent) + len(following) > MAX_NODES:
            raise _too_large(reader, f"more than {MAX_NODES:,} nodes")
        level = {}
        for (node, action, draw), outcomes in following.items():
            level[len(parent)] = outcomes
            parent.append(node)
            actions.append(action)
            draws.append(draw)
    if len(parent) == 1:
        raise IncompleteTree(f"no call of these models is there: {reader.root}; import the log")
    inner = len(set(parent)) - 1
    fault = size_fault(len(keys), len(parent), inner, len(spec.models), max(draws) + 1)
    if fault:
        raise _too_large(reader, fault)
    layout, _ = Layout.sorted(
        len(spec.models),
        np.array(parent, np.int64),
        np.array(actions, np.int64),
        np.array(draws, np.int64),
    )
    return replace(spec, layout=layout)


def _too_large(reader: CacheReader, fault: str) -> CacheError:
    return CacheError(
        f"the routes in the cache are too many: {reader.root}: {fault}; open fewer queries "
        "(--limit, --datasets), or import the log again"
    )


def _stored_calls(
    reader: CacheReader, spec: TreeSpec
) -> list[dict[str, list[tuple[int, int, str]]]]:
    """For each level and context, (action, draw, outcome) of the calls that are in the cache."""
    stored_steps = set(reader.sql("SELECT DISTINCT step FROM calls_rows")["step"].to_pylist())
    by_steps: dict[tuple[str, ...], dict[str, list[tuple[int, int, str]]]] = {}
    for steps in spec.steps:
        if steps in by_steps:
            continue
        action_and_draw: dict[str, tuple[int, int]] = {}
        for action, step in enumerate(steps):
            draw = 0
            # The draws of a call are numbered without gaps.
            while draw_step(step, draw) in stored_steps:
                action_and_draw[draw_step(step, draw)] = (action, draw)
                draw += 1
        rows = reader.sql(
            "SELECT step, context, first(outcome ORDER BY " + FIRST_ROW_ORDER + ") AS outcome "
            "FROM calls_rows WHERE step IN (SELECT unnest($1::VARCHAR[])) GROUP BY step, context",
            [list(action_and_draw)],
        ).to_pydict()
        calls: dict[str, list[tuple[int, int, str]]] = {}
        columns = zip(rows["step"], rows["context"], rows["outcome"], strict=True)
        for step, context, outcome in columns:
            calls.setdefault(context, []).append((*action_and_draw[step], outcome))
        by_steps[steps] = calls
    return [by_steps[steps] for steps in spec.steps]


@dataclass(frozen=True)
class JudgedRoutes:
    """The routes of each query of a log that end with a judged response.

    Attributes:
        layout: the routes that some query has; the stop `NEWEST` is offered if a response is judged
            after which others go on.
        rows: int64[n], positions of the queries that have such routes.
        nodes: int64[nodes of `layout`], their numbers in the layout of before.
        weight: float64[n, nodes], see `RouteTree`.
        can_end: bool[n, nodes], see `RouteTree`.
        holes: number of calls that were left out, by reason; and those of `log_holes`.
    """

    layout: Layout
    rows: NDArray[np.int64]
    nodes: NDArray[np.int64]
    weight: NDArray[np.float64]
    can_end: NDArray[np.bool_]
    holes: dict[str, int]


def judged_routes(
    spec: TreeSpec, forest: Forest, score: NDArray[np.float64], shares: NDArray[np.float64]
) -> JudgedRoutes:
    """Leave out the calls after which no response is judged, and weigh the draws of the others.

    Args:
        spec: with the layout of `stored_layout`.
        forest: the calls of the queries.
        score: float64[queries, nodes], NaN for responses without a verdict.
        shares: float64[queries, nodes], the share of the runs of a call that a draw has; NaN if the
            draws of a call are equally frequent.
    """
    layout = spec.layout
    present = forest.tree.present.copy()
    can_end = present & ~np.isnan(score)
    can_end[:, 0] = False
    kept = can_end.copy()
    for node in range(layout.nodes - 1, 0, -1):
        # Numbers of inner nodes are below those of their inner children, and of all leaves.
        kept[:, layout.parent[node]] |= kept[:, node]
    left_out = int(np.count_nonzero(present[:, 1:] & ~kept[:, 1:]))
    rows = np.flatnonzero(kept[:, 0])
    kept = kept[rows]
    if not len(rows):
        return JudgedRoutes(layout, rows, rows, np.empty((0, 0)), kept, {})
    is_used: NDArray[np.bool_] = np.any(kept, axis=0)
    smaller, nodes = layout.of_nodes(is_used)
    kept = kept[:, nodes]
    can_end = can_end[np.ix_(rows, nodes)]
    weight = node_weights(smaller, kept, shares[np.ix_(rows, nodes)])
    if can_end[:, 1 : smaller.inner].any():
        smaller = smaller.with_give_backs((NEWEST,))
    holes = {UNJUDGED: left_out} if left_out else {}
    holes |= log_holes(smaller, weight > 0)
    return JudgedRoutes(smaller, rows, nodes, weight, can_end, holes)


def node_weights(
    layout: Layout, present: NDArray[np.bool_], shares: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return float64[queries, nodes], the probability of each node once its call is made.

    Args:
        layout: which nodes there are.
        present: bool[queries, nodes], which of them a query has.
        shares: float64[queries, nodes], as in `judged_routes`; None if all draws count equally.
    """
    weight = present.astype(np.float64)
    if shares is not None:
        weight *= np.nan_to_num(shares, nan=1.0)
    for draws in layout.draws_of_calls.reshape(-1, layout.draws):
        draws = draws[draws >= 0]
        if len(draws):
            total = weight[:, draws].sum(axis=1, keepdims=True)
            weight[:, draws] /= np.where(total > 0, total, 1.0)
    weight[:, 0] = 1.0
    return weight


def log_holes(layout: Layout, present: NDArray[np.bool_]) -> dict[str, int]:
    """Count the calls of a log that some queries have, and others have not at the same state.

    Args:
        layout: the routes that some query has.
        present: bool[queries, nodes], the nodes that each query has.

    Returns:
        By reason: "ended" where the query's runs made no further call, "not offered" where they
        made other calls; a call of several draws counts once. Reasons without calls are absent.
    """
    goes_on = np.zeros(present.shape, np.bool_)
    for node in range(1, layout.nodes):
        goes_on[:, layout.parent[node]] |= present[:, node]
    calls = layout.children[layout.children != NOT_OFFERED]
    parents = layout.parent[calls]
    is_made = np.zeros((len(present), len(calls)), np.bool_)
    position = np.zeros(layout.nodes, np.int64)
    position[calls] = np.arange(len(calls))
    for node in range(1, layout.nodes):
        first_draw = layout.children[layout.parent[node], layout.action[node]]
        is_made[:, position[first_draw]] |= present[:, node]
    absent = present[:, parents] & ~is_made
    counts = {
        "not offered": int(np.count_nonzero(absent & goes_on[:, parents])),
        "ended": int(np.count_nonzero(absent & ~goes_on[:, parents])),
    }
    return {reason: count for reason, count in counts.items() if count}


def path_weights(layout: Layout, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[queries, nodes], the probability of the draws of a route once it is taken.

    Args:
        layout: which nodes there are.
        weight: float64[queries, nodes], see `node_weights`.
    """
    result = np.ones(weight.shape)
    for node in range(1, layout.nodes):  # the number of a parent is smaller
        result[:, node] = result[:, layout.parent[node]] * weight[:, node]
    return result


@dataclass(frozen=True)
class State:
    """A state that a policy can read, in words.

    Attributes:
        context: digest of question and responses.
        question: text of the question.
        responses: what is visible of the responses so far, see `StoredCall.visible`.
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
    """Return the states of some contexts.

    Args:
        reader: the cache that the forest comes from.
        spec: the pool as digests.
        forest: the trees that have the states.
        contexts: uint64[n], hashes of contexts; each is the outcome of a node of the forest.
        leaves: whether a leaf is a state, too.

    Returns:
        n states, in the order of `contexts`.
    """
    width = spec.layout.nodes if leaves else spec.layout.inner
    positions = first_match(contexts, forest.tree.outcome[:, :width].ravel())
    query_rows = positions // width
    nodes = positions % width
    # For each node the nodes on the way to it: one for each call, the node itself last.
    routes_to_nodes = []
    for node in range(width):
        routes_to_nodes.append(list(spec.layout.nodes_to(node)))
    call_keys = [
        forest.tree.key[row, routes_to_nodes[node]]
        for row, node in zip(query_rows, nodes, strict=True)
    ]
    calls = reader.texts(np.concatenate([*call_keys, np.empty(0, np.uint64)]))
    queries = reader.queries([forest.keys[row] for row in query_rows], ("context", "question"))
    result = []
    for keys, query in zip(call_keys, queries.to_pylist(), strict=True):
        stored_calls = [calls[key] for key in keys.tolist()]
        context = stored_calls[-1].outcome if stored_calls else query["context"]
        responses = tuple(call.visible for call in stored_calls)
        result.append(State(context, query["question"], responses))
    return result


def newest_answers(
    reader: CacheReader, spec: TreeSpec, forest: Forest, leaves: bool = False
) -> NDArray[np.uint64]:
    """Return the hash of the digest of the newest response's text at each state.

    Equal responses have equal hashes, whatever came before them. At the root the text is empty.

    Args:
        reader: the cache that the forest comes from.
        spec: the pool as digests.
        forest: the trees.
        leaves: whether a leaf is a state, too.

    Returns:
        uint64[queries, states].
    """
    width = spec.layout.nodes if leaves else spec.layout.inner
    calls = forest.tree.key[:, 1:width]
    empty_text = reader.hashes([text_digest("")])
    root = np.repeat(empty_text[:, None], len(calls), axis=0)
    return np.concatenate([root, reader.answers(calls)], axis=1)


@dataclass(frozen=True)
class Scores:
    """Values of one scorer in [0, 1]; NaN for calls that are absent or not scored.

    Attributes:
        tree: float64[queries, nodes]; 0 for the root.
        direct: float64[queries, K].
    """

    tree: NDArray[np.float64]
    direct: NDArray[np.float64]


def stored_scores(reader: CacheReader, forest: Forest, scorer: str) -> Scores:
    """Return the values of one scorer that are in the cache.

    Args:
        reader: the cache that the forest comes from.
        forest: the calls.
        scorer: name and version of the scorer.

    Raises:
        CacheError: a value is not in [0, 1].
    """
    columns = reader.columns(
        'SELECT hash(call) AS call, hash("references") AS refs, value FROM scores_rows '
        "WHERE scorer = ?",
        [scorer],
    )
    values = columns["value"].astype(np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise CacheError(
            f"a score out of range [0, 1] or NaN: {scorer} in {reader.root}; not written by this "
            "program, find the part with `hierrouter cache sql`"
        )
    stored = columns["call"] * HASH_MULTIPLIER + columns["refs"]
    tree = _look_up_scores(forest.tree, forest.references, stored, values)
    tree[:, 0] = 0
    return Scores(tree, _look_up_scores(forest.direct, forest.references, stored, values))


def _look_up_scores(
    nodes: Nodes,
    references: NDArray[np.uint64],
    stored: NDArray[np.uint64],
    values: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return float64[queries, columns], the score of each call; NaN if there is none.

    Args:
        nodes: the calls.
        references: uint64[queries], hash of the digest of each query's reference answers.
        stored: uint64[n], hashes of the calls and references that have a score.
        values: float64[n], their scores.
    """
    positions = first_match(nodes.key * HASH_MULTIPLIER + references[:, None], stored)
    padded = np.append(values, np.nan)  # position -1 is the NaN at the end
    return np.where(nodes.present, padded[positions], np.nan)


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
    is_pruned: NDArray[np.bool_] | None = None,
    weight: NDArray[np.float64] | None = None,
    can_end: NDArray[np.bool_] | None = None,
) -> RouteTree:
    """Build the dense arrays of a forest.

    Args:
        reader: the cache that the forest comes from.
        spec: the pool as digests.
        forest: the calls; the queries of the tree have its order.
        parts: what a policy reads of each state.
        encoder: description of the encoder; it is a part of the content's digest, whatever `parts`
            are.
        prices: rate of every model, direct ones included.
        score: quality of each call.
        accuracy: accuracy of each call; NaN for all calls of a query whose answers nothing judges.
        scorer: name of the scorer of `score`.
        is_pruned: bool[queries], the queries that may lack calls and become the tree's `pruned`;
            None for no query.
        weight: float64[queries, nodes], see `RouteTree`; None if queries have all nodes, once.
        can_end: bool[queries, nodes], see `RouteTree`; with `weight` only: other responses need no
            score.

    Raises:
        IncompleteTree: a node or a direct call is absent, or a call is not scored.
    """
    if is_pruned is None:
        is_pruned = np.zeros(len(forest.keys), np.bool_)
    if weight is None or can_end is None:
        _require_complete(reader, spec, forest, score, accuracy, is_pruned)
    else:
        score, accuracy = _scores_of_endings(score, accuracy, can_end)
        forest = replace(forest, tree=_without_absent(forest.tree))
    queries = reader.queries(forest.keys, ("id", "dataset", "split"))
    tree = forest.tree
    direct = forest.direct
    if tree.spare.any():
        score = replace(score, tree=np.where(tree.spare, 0.0, score.tree))
        is_judged: NDArray[np.bool_] = np.any(tree.present & ~np.isnan(accuracy.tree), axis=1)
        no_call = tree.spare & is_judged[:, None]
        accuracy = replace(accuracy, tree=np.where(no_call, 0.0, accuracy.tree))
    names: list[Any] = [spec.models, spec.steps, spec.direct, scorer, encoder, forest.keys]
    if not spec.layout.is_full:
        names.append(spec.layout.digest)
    measures = [score.tree, accuracy.tree, tree.tokens_in, tree.tokens_out]
    measures += [score.direct, accuracy.direct, direct.tokens_in, direct.tokens_out]
    # Trees without such tokens have the digest that they had before these were counted.
    for calls in (tree, direct):
        further = (calls.tokens_cached, calls.tokens_thoughts)
        measures += [tokens for tokens in further if tokens.any()]
    if weight is not None and can_end is not None:
        names.append(spec.layout.digest)
        measures += [weight, can_end.astype(np.float64)]
    if weight is None and spec.layout.draws > 1:
        weight = node_weights(spec.layout, tree.present)
    shared_calls = int(tree.shared.sum() + direct.shared.sum())
    calls_of_all = int(tree.present[:, 1:].sum() + direct.present.sum())
    route_tree = RouteTree(
        models=spec.models,
        callers=spec.callers,
        layout=spec.layout,
        query_ids=tuple(queries["id"].to_pylist()),
        datasets=tuple(queries["dataset"].to_pylist()),
        splits=tuple(queries["split"].to_pylist()),
        score=score.tree,
        accuracy=accuracy.tree,
        tokens_in=tree.tokens_in,
        tokens_out=tree.tokens_out,
        seconds=tree.seconds,
        tokens_cached=tree.tokens_cached,
        tokens_thoughts=tree.tokens_thoughts,
        shared_time=shared_calls / max(calls_of_all, 1),
        rate=rate_table(spec.models, prices),
        parts=parts,
        direct=_direct_calls(spec, forest, score, accuracy, prices),
        scorer=scorer,
        content=_content_digest(names, measures),
        weight=weight,
        same_call=_same_calls(tree.key) if spec.layout.draws > 1 else None,
        can_end=can_end,
    )
    if not is_pruned.any():
        return route_tree
    pruned = route_tree.select(np.flatnonzero(is_pruned))
    return replace(route_tree.select(np.flatnonzero(~is_pruned)), pruned=pruned)


def _direct_calls(
    spec: TreeSpec, forest: Forest, score: Scores, accuracy: Scores, prices: Mapping[str, Rate]
) -> DirectCalls:
    """Return the direct calls of a forest; of several draws their mean.

    Args:
        spec: the pool as digests.
        forest: the calls.
        score: quality of each call.
        accuracy: accuracy of each call.
        prices: rate of every model.
    """
    names = [name for name, _ in spec.direct]
    models = tuple(dict.fromkeys(names))
    first = spec.first_direct
    draws = np.diff(np.append(first, len(names)))
    direct = forest.direct

    def mean(values: NDArray[Any]) -> NDArray[Any]:
        return values if len(models) == len(names) else np.add.reduceat(values, first, 1) / draws

    return DirectCalls(
        models=models,
        score=mean(score.direct),
        accuracy=mean(accuracy.direct),
        tokens_in=mean(direct.tokens_in),
        tokens_out=mean(direct.tokens_out),
        seconds=mean(direct.seconds),
        tokens_cached=mean(direct.tokens_cached),
        tokens_thoughts=mean(direct.tokens_thoughts),
        rate=rate_table(models, prices),
    )


def _same_calls(key: NDArray[np.uint64]) -> NDArray[np.int64] | None:
    """Find the first node of each query that has the same call.

    Args:
        key: uint64[queries, nodes], hash of each call's key; 0 for the root and absent calls.

    Returns:
        int64[queries, nodes]; None if no call is at two nodes.
    """
    order = np.argsort(key, axis=1, kind="stable")
    ordered = np.take_along_axis(key, order, axis=1)
    is_first = np.ones(key.shape, np.bool_)
    is_first[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]) | (ordered[:, 1:] == 0)
    if is_first.all():
        return None
    position = np.where(is_first, np.arange(key.shape[1]), 0)
    first = np.take_along_axis(order, np.maximum.accumulate(position, axis=1), axis=1)
    same = np.empty_like(order)
    np.put_along_axis(same, order, first, axis=1)
    return same


def _require_complete(
    reader: CacheReader,
    spec: TreeSpec,
    forest: Forest,
    score: Scores,
    accuracy: Scores,
    is_pruned: NDArray[np.bool_],
) -> None:
    """Require that all calls of queries that are not pruned are present and scored.

    Raises:
        IncompleteTree: a node or a direct call is absent, or a call is not scored.
    """
    absent = describe_holes(forest.select(np.flatnonzero(~is_pruned)), spec)
    if absent:
        raise IncompleteTree(f"the tree is incomplete: {reader.root}: {absent}; collect again")
    _require_scored(reader, forest.tree, score.tree)
    _require_scored(reader, forest.direct, score.direct)
    is_judged = ~np.isnan(accuracy.direct).all(axis=1) | ~np.isnan(accuracy.tree).all(axis=1)
    judged = forest.select(np.flatnonzero(is_judged))
    _require_scored(reader, judged.tree, accuracy.tree[is_judged])
    _require_scored(reader, judged.direct, accuracy.direct[is_judged])


def _scores_of_endings(
    score: Scores, accuracy: Scores, can_end: NDArray[np.bool_]
) -> tuple[Scores, Scores]:
    """Return the scores with 0 at nodes where no episode may end.

    A query whose responses nothing judges right or wrong keeps NaN.
    """
    known = can_end & ~np.isnan(accuracy.tree)
    right = np.where(known, accuracy.tree, 0.0)
    right[(known != can_end).any(axis=1)] = np.nan
    return (replace(score, tree=np.where(can_end, score.tree, 0.0)), replace(accuracy, tree=right))


def _without_absent(nodes: Nodes) -> Nodes:
    """Return calls that measure 0 where they are absent."""
    measures = ("tokens_in", "tokens_out", "seconds", "tokens_cached", "tokens_thoughts")
    values = {name: np.where(nodes.present, getattr(nodes, name), 0) for name in measures}
    return replace(nodes, **values)


def _require_scored(reader: CacheReader, nodes: Nodes, values: NDArray[np.float64]) -> None:
    """Require that all present calls have a score.

    Raises:
        IncompleteTree: a call is not scored.
    """
    unscored = np.count_nonzero(np.isnan(values) & nodes.present)
    if unscored:
        raise IncompleteTree(f"{unscored} calls are not scored: {reader.root}; score them first")


def describe_holes(forest: Forest, spec: TreeSpec) -> str | None:
    """Say how many queries lack how many calls, and of which models; None if nothing is absent."""
    layout = spec.layout
    incomplete = int(np.count_nonzero(~forest.complete))
    if not incomplete:
        return None
    is_absent_node = ~(forest.tree.present | forest.tree.spare)
    absent_nodes = int(np.count_nonzero(is_absent_node))
    absent_direct = int(np.count_nonzero(~forest.direct.present))
    counts = ((absent_nodes, "nodes"), (absent_direct, "direct calls"))
    absent = " and ".join(f"{count} {name}" for count, name in counts if count)
    parents = [layout.parent[node] for node in range(1, layout.nodes)]
    below = np.count_nonzero(is_absent_node[:, 1:] & ~forest.tree.present[:, parents])
    if below:
        absent += f" ({below} of them because their parent is missing)"
    queries_of_model = _count_by_model(forest, spec)
    by_count = sorted(queries_of_model.items(), key=lambda item: -item[1])
    models = ", ".join(f"of {name} in {count}" for name, count in by_count[:MAX_MODELS_IN_MESSAGE])
    if len(by_count) > MAX_MODELS_IN_MESSAGE:
        models += f" and of {len(by_count) - MAX_MODELS_IN_MESSAGE} more"
    return f"{incomplete} of {len(forest.keys)} queries lack {absent}: no answer {models}"


def _count_by_model(forest: Forest, spec: TreeSpec) -> dict[str, int]:
    """Count for each model the queries that lack a call of it although its parent is present."""
    layout = spec.layout
    nodes = range(1, layout.nodes)
    parents = [layout.parent[node] for node in nodes]
    actions = np.array([layout.action[node] for node in nodes])
    is_absent_node = ~(forest.tree.present | forest.tree.spare)
    is_due = is_absent_node[:, 1:] & forest.tree.present[:, parents]
    lacking: dict[str, NDArray[np.bool_]] = {}  # bool[queries] for each model
    for action, name in enumerate(spec.models):
        lacking[name] = np.any(is_due[:, actions == action], axis=1)
    for column, (name, _) in enumerate(spec.direct):
        is_absent = ~forest.direct.present[:, column]
        if name in lacking:
            lacking[name] |= is_absent
        else:
            lacking[name] = is_absent
    counts = {name: int(np.count_nonzero(queries)) for name, queries in lacking.items()}
    return {name: count for name, count in counts.items() if count}


def _content_digest(names: object, arrays: Sequence[NDArray[Any]]) -> str:
    """Return the digest of names, as JSON, and arrays."""
    total = hashlib.sha256(digest(names).encode())
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:32]
