"""The tree with its texts and tables; `hierrouter_cache.tree` has the arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter.engines.bills import given_cost_notes
from hierrouter.pools.pool import DROP_THOUGHTS, KEEP_THOUGHTS
from hierrouter.questions.query import stored_choices
from hierrouter.replay.stored_pool import open_pool
from hierrouter_cache.errors import CacheError, IncompleteTree
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.sql import ask
from hierrouter_cache.tree import Rate, RouteTree, net_reward
from hierrouter_cache.walk import Forest, Nodes, TreeSpec, path_weights, walk

if TYPE_CHECKING:
    import pandas

NOTABLE_THINKING_SHARE = 0.05  # of a model's answers, with a thought
ScalarT = TypeVar("ScalarT", bound=np.generic)


@dataclass(frozen=True)
class Texts:
    """The texts of one query's tree.

    Attributes:
        question: text of the query.
        references: its reference answers.
        answers: the response at each node, by number; that of the root is empty.
        visible: what the next call reads of each response, see `StoredCall.visible`; by default
            all of it.
        choices: label and text of each choice of the query.
        answer_type: as in `hierrouter.questions.query.Query`.
    """

    question: str
    references: tuple[str, ...]
    answers: tuple[str, ...]
    visible: tuple[str, ...] = ()
    choices: tuple[tuple[str, str], ...] = ()
    answer_type: str = ""

    def __post_init__(self) -> None:
        if not self.visible:
            object.__setattr__(self, "visible", self.answers)


def load_texts(root: Path, tree: RouteTree, pool: str | None = None) -> list[Texts]:
    """Read the texts of each query of a tree.

    Args:
        root: the cache that the tree was opened from.
        tree: the queries to read, and no others.
        pool: as in `hierrouter.replay.open_tree.OpenTree`.

    Returns:
        The texts, in the order of the tree's queries.

    Raises:
        CacheError: there is no cache, it is damaged, or it is not the cache of this tree.
    """
    reader, _, forest = calls_of(root, tree, pool)
    if tree.weight is None:
        _require_complete(forest.tree, root)
    calls = forest.tree.key[:, 1:]  # the root, column 0, is no call
    stored_calls = reader.texts(calls[calls != 0])
    rows = reader.queries(
        forest.keys, ("question", "answers", "choices", "answer_type")
    ).to_pylist()
    texts = []
    for row, query_calls in zip(rows, calls.tolist(), strict=True):
        # A query of a log may lack calls, whose key is 0.
        responses = (stored_calls[call].response if call else "" for call in query_calls)
        visible = (stored_calls[call].visible if call else "" for call in query_calls)
        references = tuple(row["answers"])
        texts.append(
            Texts(
                question=row["question"],
                references=references,
                answers=("", *responses),
                visible=("", *visible),
                choices=stored_choices(row["choices"]),
                answer_type=row["answer_type"] or "",
            )
        )
    return texts


def calls_of(
    root: Path, tree: RouteTree, pool: str | None = None, first_hop: bool = False
) -> tuple[CacheReader, TreeSpec, Forest]:
    """Find the calls of a tree in its cache.

    Args:
        root: the cache that the tree was opened from.
        tree: the queries to find, and no others.
        pool: as in `hierrouter.replay.open_tree.OpenTree`.
        first_hop: whether to find only the calls of the first hop.

    Returns:
        The open cache, the pool as content keys, and the calls in the order of the tree's queries.

    Raises:
        CacheError: there is no cache, it is damaged, or it is not the cache of this tree.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    rows = reader.queries(plan.queries, ("dataset", "id")).to_pylist()
    keys = {}
    for row, key in zip(rows, plan.queries, strict=True):
        keys[row["dataset"], row["id"]] = key
    names = zip(tree.datasets, tree.query_ids, strict=True)
    tree_keys = [keys[name] for name in names if name in keys]
    missing = len(tree) - len(tree_keys)
    if missing:
        raise CacheError(
            f"{missing} of {len(tree)} queries are not in the cache: {reader.root}; give the "
            "cache that the tree was opened from"
        )
    resolved = open_pool(plan.pool, pool, tree.models, tree.hops, draws=tree.layout.draws)
    # Leave out the reference models that were left out when the tree was opened.
    left_out = [
        model.name for model in resolved.pool.references if model.name not in tree.direct.models
    ]
    spec = replace(resolved, pool=resolved.pool.sub_pool(None, None, left_out)).spec
    if resolved.pool.as_stored or spec.least_draws:
        spec = replace(spec, layout=tree.layout)
    if first_hop:
        spec = spec.first_hop
    return reader, spec, walk(reader, spec, tree_keys)


def first_call_confidence(tree: Tree) -> NDArray[np.float64]:
    """Read how confident each model was of its answer when it was called first.

    Returns:
        float64[queries, M]: the probability of the whole answer, NaN if it is unknown, or if the
        action is not offered first. If no answer's probability is known: minus the answer's number
        of tokens, see `hierrouter.evaluation.confidence_rules`.

    Raises:
        CacheError: as `load_texts`.
    """
    reader, spec, forest = calls_of(tree.root, tree, tree.pool, first_hop=True)
    _require_complete(forest.tree, tree.root)
    confidence = np.full((len(tree), len(tree.models)), np.nan)
    first_actions = spec.layout.action[1:]
    confidence[:, first_actions] = reader.signals(forest.tree.key[:, 1:]).chance
    if np.isnan(confidence).all():
        nodes = [tree.layout.node((action,)) for action in first_actions.tolist()]
        confidence[:, first_actions] = -tree.tokens_out[:, nodes]
    return confidence


def _require_complete(calls: Nodes | Forest, root: Path) -> None:
    """Check that the cache has all calls.

    Raises:
        IncompleteTree: a call is missing.
    """
    if not calls.complete.all():
        raise IncompleteTree(f"answers of the tree are not in the cache: {root}; open it again")


@dataclass(frozen=True, repr=False, kw_only=True)
class Tree(RouteTree):
    """Every route of every query, and the cache that it was read from.

    Attributes:
        root: the cache's folder.
        pool: name or TOML file of the pool that it was opened with; None is the cache's own.
        capped: for each model, the share of its answers that were cut off at the most new tokens
            it may generate.
        thinking: for each model, the share of its answers that have a thought.
        thoughts: "keep" or "drop": whether Q, the next call and a router read them.
        thought_tags: tags of the thoughts of each model that has some of its own, by name.
        sure: share of the answers that a policy reads for which the model's confidence is known;
            None if the view shows no numbers.
        shift: how the queries that were left out differ from these, in words; "" if none was.
        rescored: which scores were computed anew at this opening, because those in the cache are
            of another version of their scorer, in words; "" if none was.
        judged_now: how many verdicts a judge was asked for at this opening, and their cost, in
            words; "" if none was.
        left_out_reason: why queries were left out, in words; "" if none was.
        merged: which queries were given the answers of others with the same text by an import of an
            earlier version, in words; "" if none was.
        is_fitting_scorer: whether Q is by the scorer that was chosen at collection, as it fits the
            references of a user's own files, because the user named none.
        given_by_default: whether Q is the given scores because the user named no scorer.
        holes: number of calls of an imported log that the tree leaves out, or that a query lacks
            and others have, by reason; see `hierrouter_cache.walk.log_holes`.
        collected_draws: the most draws of a call in the cache, of which this tree may have fewer.
        given_costs: of the calls whose cost a server or an imported file states, by model: the sum
            of these costs, the number of the calls, and their tokens in, tokens out, cached tokens
            in, and tokens of thoughts.
    """

    root: Path
    pool: str | None = None
    capped: Mapping[str, float] = field(default_factory=dict)
    thinking: Mapping[str, float] = field(default_factory=dict)
    thoughts: str = KEEP_THOUGHTS
    thought_tags: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    sure: float | None = None
    shift: str = ""
    rescored: str = ""
    judged_now: str = ""
    left_out_reason: str = ""
    holes: Mapping[str, int] = field(default_factory=dict)
    merged: str = ""
    given_by_default: bool = False
    is_fitting_scorer: bool = False
    given_costs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    collected_draws: int = 1

    @property
    def rates(self) -> dict[str, Rate]:
        """The prices of a token, by model that is called directly, and by action."""
        rows = zip(self.models, self.rate.tolist(), strict=True)
        return {**self.direct.rates, **{name: Rate(*row) for name, row in rows}}

    def given_cost_notes(self) -> Iterator[str]:
        """Yield notes on costs that differ from those that servers or an imported file state."""
        costs = {}
        for name, rate in self.rates.items():
            if name in self.given_costs:
                given, calls, tokens_in, tokens_out, cached, thoughts = self.given_costs[name]
                own = rate.cost(tokens_in, tokens_out, cached, thoughts, calls)
                costs[name] = (given, own, int(calls))
        yield from given_cost_notes(costs, self.currency)

    @property
    def thoughts_note(self) -> str | None:
        """A note on who reads the thoughts in answers; None if no model thinks and none is asked.

        A model thinks if at least 5 % of its answers have a thought.
        """
        if self.thoughts == DROP_THOUGHTS:
            return (
                "Thoughts are dropped: token_f1, routers and the next call read what follows them "
                "(the pool's thoughts); all tokens are paid."
            )
        thinking = [
            f"{share:.0%} of {name}"
            for name, share in self.thinking.items()
            if share >= NOTABLE_THINKING_SHARE
        ]
        if not thinking:
            return None
        return (
            f"Answers with a thought: {', '.join(thinking)}. They are kept as in the paper: "
            "token_f1, routers and the next call read them; scorers of answers do not "
            '(thoughts = "drop" in a new pool leaves them out).'
        )

    @cached_property
    def texts(self) -> list[Texts]:
        """Question, reference answers and the response at each node, of each query.

        All of them stay in memory after the first access.

        Raises:
            CacheError: the cache is gone, damaged, or not the one that was opened.
        """
        return load_texts(self.root, self, self.pool)

    def to_arrow(self, alpha: float | None = None) -> pa.Table:
        """Make a table with a row for each node of each query, then for each of its direct calls.

        Columns: query (its id), dataset, split, route (its actions), hop (0 for a direct call),
        model (that the last action calls), response, tokens_in and tokens_out (of this call), cost
        (C, of all calls of the route), quality (Q, 0 to 1), accuracy (1 if the answer is right,
        null if nothing judges it), direct, draw (of the call, from 0).

        If calls have several draws, or queries lack nodes, also node (its number, null for a
        direct call) and weight, the probability of the draws that lead there once the route is
        taken. What a query lacks has no row. Where nothing judges the response, so that no episode
        may end there, quality, accuracy and reward are null. A direct call of several draws is one
        row of their means, whose response and draw are null.

        With `alpha` also reward, the R = Q - alpha * C of an episode that ends with this call.

        Args:
            alpha: cost penalty; None leaves the reward out.

        Raises:
            CacheError: as for `texts`.
        """
        nodes = range(1, self.layout.nodes)  # the root is no call
        routes = [self.layout.name(node, self.models) for node in nodes]
        route_models = [self.callers[self.layout.action[node]] for node in nodes]
        hops = self.layout.depth()[1:].tolist()
        direct_models = self.direct.models
        width = len(nodes) + len(direct_models)  # rows of one query

        def of_query(values: tuple[str, ...]) -> pa.Array:
            """Repeat the value of each query in all its rows."""
            return pa.array(values, pa.string()).take(pa.array(np.arange(len(self)).repeat(width)))

        def of_call(values: list[str]) -> pa.Array:
            """Repeat the values of one query's rows for every query."""
            return pa.array(values, pa.string()).take(pa.array(np.tile(range(width), len(self))))

        accuracy = _in_rows(self.accuracy, self.direct.accuracy)
        quality = _in_rows(self.score, self.direct.score)
        cost = _in_rows(self.cost, self.direct.cost)
        can_end = np.ones(self.score.shape, np.bool_) if self.can_end is None else self.can_end
        unjudged = ~_in_rows(can_end, np.ones(self.direct.score.shape, np.bool_))
        hop = [*hops, *[0] * len(direct_models)]
        is_direct = [*[False] * len(nodes), *[True] * len(direct_models)]
        responses, has_draws = self._responses()
        draws = pa.array([*self.layout.draw[1:].tolist(), *(None if m else 0 for m in has_draws)])
        columns = {
            "query": of_query(self.query_ids),
            "dataset": of_query(self.datasets),
            "split": of_query(self.splits),
            "route": of_call([*routes, *direct_models]),
            "hop": np.tile(hop, len(self)),
            "model": of_call([*route_models, *direct_models]),
            "response": responses,
            "tokens_in": _in_rows(self.tokens_in, self.direct.tokens_in),
            "tokens_out": _in_rows(self.tokens_out, self.direct.tokens_out),
            "cost": cost,
            "quality": pa.array(quality, mask=unjudged),
            "accuracy": pa.array(accuracy, mask=np.isnan(accuracy) | unjudged),
            "direct": np.tile(is_direct, len(self)),
            "draw": draws.take(pa.array(np.tile(range(width), len(self)))),
        }
        if self.weight is not None:
            numbers = pa.array([*nodes, *[None] * len(direct_models)], pa.int64())
            columns["node"] = numbers.take(pa.array(np.tile(range(width), len(self))))
            ones = np.ones(self.direct.score.shape)
            columns["weight"] = _in_rows(path_weights(self.layout, self.weight), ones)
        if alpha is not None:
            columns["reward"] = pa.array(net_reward(quality, cost, alpha), mask=unjudged)
        table = pa.table(columns)
        if self.weight is not None and not self.weight.all():
            table = table.filter(pa.array(columns["weight"] > 0))
        return table

    def to_pandas(self, alpha: float | None = None) -> pandas.DataFrame:
        """Make `to_arrow` as a data frame; needs pandas."""
        return self.to_arrow(alpha).to_pandas()

    def sql(self, question: str) -> pa.Table:
        """Answer one SELECT over the views nodes, queries, scores, routes and spend.

        They have the queries, models, hops and prices of this tree; see `hierrouter_cache.sql` for
        their columns.

        Args:
            question: the SELECT.

        Raises:
            InputError: it is not one SELECT, names an unknown table or column, or reads files.
            CacheError: as for `texts`.
        """
        reader, spec, forest = calls_of(self.root, self, self.pool)
        return ask(reader, spec, forest.keys, self.rates, question)

    def _responses(self) -> tuple[pa.Array, list[bool]]:
        """Read the response of each row of `to_arrow`, before absent nodes are left out.

        Returns:
            The responses, null for absent nodes and for direct calls of several draws; and which of
            the direct calls have these.
        """
        reader, spec, forest = calls_of(self.root, self, self.pool)
        if self.weight is not None:  # a query of a log may lack calls
            forest.tree.present[:] |= self.weight == 0
        _require_complete(forest, self.root)
        names = [name for name, _ in spec.direct]
        first = spec.first_direct
        has_draws = [names.count(names[column]) > 1 for column in first.tolist()]
        direct = np.where(has_draws, np.uint64(0), forest.direct.key[:, first])
        calls = _in_rows(forest.tree.key, direct)
        # Many nodes share a call: each is read once.
        distinct, position = np.unique(calls, return_inverse=True)
        stored_calls = reader.texts(distinct[distinct != 0])
        responses = [stored_calls[call].response if call else None for call in distinct.tolist()]
        return pa.array(responses, pa.string()).take(pa.array(position)), has_draws


def _in_rows(nodes: NDArray[ScalarT], direct: NDArray[ScalarT]) -> NDArray[ScalarT]:
    """Arrange values in the rows of `to_arrow`: query after query, without the root.

    Args:
        nodes: [queries, nodes].
        direct: [queries, direct calls].

    Returns:
        [queries * (nodes - 1 + direct calls)].
    """
    return np.concatenate([nodes[:, 1:], direct], axis=1).ravel()
