"""The tree as a person holds it: `hierrouter_cache.tree` has the arrays, this texts and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter.replay.stored_pool import open_pool
from hierrouter_cache.errors import CacheError, IncompleteTree
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.sql import ask
from hierrouter_cache.tree import Rate, RouteTree, net_reward
from hierrouter_cache.walk import Forest, Nodes, TreeSpec, walk

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Texts:
    """What was asked and answered in one query's tree.

    Attributes:
        answers: the response at each node, by number; that of the root is empty.
    """

    question: str
    references: tuple[str, ...]
    answers: tuple[str, ...]


def load_texts(root: Path, tree: RouteTree, pool: str | None = None) -> list[Texts]:
    """The texts of each query of `tree`, in its order.

    Raises CacheError: nothing there, damaged, or not the cache of this tree.

    `root`: the cache that the tree was opened from; `tree`: the queries that are wanted, no more;
    `pool`: as in `hierrouter.replay.opening.Selection`.
    """
    reader, _, forest = calls_of(root, tree, pool)
    _require_whole(forest.tree, root)
    calls = forest.tree.key[:, 1:]
    found = reader.texts(calls.ravel())
    rows = reader.queries(forest.keys, ("question", "answers")).to_pylist()
    return [
        Texts(
            row["question"], tuple(row["answers"]), ("", *(found[call].response for call in mine))
        )
        for row, mine in zip(rows, calls.tolist(), strict=True)
    ]


def calls_of(
    root: Path, tree: RouteTree, pool: str | None = None, first_hop: bool = False
) -> tuple[CacheReader, TreeSpec, Forest]:
    """The cache, what makes up the tree there, and its calls in the order of the tree's queries.

    Args and errors are those of `load_texts`; `first_hop`: as if there were no further ones.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    names = (each.to_pylist() for each in reader.queries(plan.queries, ("dataset", "id")).columns)
    keys = dict(zip(zip(*names, strict=True), plan.queries, strict=True))
    found = [keys.get(name) for name in zip(tree.datasets, tree.query_ids, strict=True)]
    ours = [key for key in found if key is not None]
    if lacking := len(found) - len(ours):
        raise CacheError(
            f"{lacking} of {len(tree)} queries are not in the cache: {reader.root}; give the "
            "cache that the tree was opened from"
        )
    opened = open_pool(plan.pool, pool, tree.models, tree.hops)
    # References that were left out when the tree was opened are left out here.
    left = [one.name for one in opened.pool.references if one.name not in tree.direct.models]
    spec = replace(opened, pool=opened.pool.sub_pool(None, None, left)).spec
    if first_hop:
        spec = replace(spec, steps=spec.steps[:1])
    return reader, spec, walk(reader, spec, ours)


def first_call_confidence(tree: Tree) -> NDArray[np.float64]:
    """float64[queries, M]: how sure each model was of its answer when it was called first.

    The probability of the whole answer, NaN where it is not known; where that is so of all answers,
    minus their length in tokens. Raises CacheError: as `load_texts`.
    """
    reader, _, forest = calls_of(tree.root, tree, tree.pool, first_hop=True)
    _require_whole(forest.tree, tree.root)
    sure = reader.signals(forest.tree.key[:, 1:]).chance
    if np.isnan(sure).all():
        return -tree.tokens_out[:, tree.routes.level(1)].astype(np.float64)
    return sure


def _require_whole(found: Nodes | Forest, root: Path) -> None:
    if not found.complete.all():
        raise IncompleteTree(f"answers of the tree are not in the cache: {root}; open it again")


@dataclass(frozen=True, repr=False, kw_only=True)
class Tree(RouteTree):
    """Every route of every query, and where it was read.

    Attributes:
        root: the cache's folder.
        pool: name or TOML file of the pool it was opened with; None is the cache's own.
        capped: share of the answers of each model that ended at the most new tokens it may give.
        sure: share of the answers that a policy may look at of which it is known how sure the model
            was; None where the view shows no numbers.
        shift: how the queries that were left out differ from these, in words; "" where none was.
    """

    root: Path
    pool: str | None = None
    capped: Mapping[str, float] = field(default_factory=dict)
    sure: float | None = None
    shift: str = ""

    @cached_property
    def texts(self) -> list[Texts]:
        """Question, reference answers and the answer at each node, of each query.

        All of them are in memory from then on. Raises CacheError: the cache is gone, damaged, or
        not the one that was opened.
        """
        return load_texts(self.root, self, self.pool)

    def to_arrow(self, alpha: float | None = None) -> pa.Table:
        """One row for each node of each query, then one for each of its direct calls.

        Columns: query (its id), dataset, split, route, hop (0 for a direct call), model, response,
        tokens_in and tokens_out (of this call), cost (C, of all calls from the root to here),
        quality (Q, 0 to 1), accuracy (1 where the answer is right), direct; with `alpha` also
        reward, R = Q - alpha * C where an episode ends here. Raises CacheError: as for `texts`.
        """
        nodes = range(1, self.routes.nodes)
        routes = [self.routes.name(node, self.models) for node in nodes]
        hops = self.routes.depth()[1:].tolist()
        called = [self.models[self.routes.action(node)] for node in nodes]
        alone, width = self.direct.models, len(nodes) + len(self.direct.models)

        def each(values: tuple[str, ...]) -> pa.Array:
            """The value of its query in each row."""
            return pa.array(values, pa.string()).take(pa.array(np.arange(len(self)).repeat(width)))

        def every(names: list[str]) -> pa.Array:
            """The same texts again for every query."""
            return pa.array(names, pa.string()).take(pa.array(np.tile(range(width), len(self))))

        columns = {
            "query": each(self.query_ids),
            "dataset": each(self.datasets),
            "split": each(self.splits),
            "route": every([*routes, *alone]),
            "hop": np.tile([*hops, *(0 for _ in alone)], len(self)),
            "model": every([*called, *alone]),
            "response": self._responses(),
            "tokens_in": _beside(self.tokens_in, self.direct.tokens_in),
            "tokens_out": _beside(self.tokens_out, self.direct.tokens_out),
            "cost": _beside(self.cost, self.direct.cost),
            "quality": _beside(self.score, self.direct.score),
            "accuracy": _beside(self.accuracy, self.direct.accuracy),
            "direct": np.tile([*(False for _ in nodes), *(True for _ in alone)], len(self)),
        }
        if alpha is not None:
            columns["reward"] = net_reward(columns["quality"], columns["cost"], alpha)
        return pa.table(columns)

    def to_pandas(self, alpha: float | None = None) -> pandas.DataFrame:
        """`to_arrow` as a data frame; needs pandas."""
        return self.to_arrow(alpha).to_pandas()

    def sql(self, question: str) -> pa.Table:
        """The answer to one SELECT over the views nodes, queries, scores, routes and spend.

        They hold the queries, models, hops and prices of this tree; see `hierrouter_cache.sql` for
        their columns. Raises InputError: it is not one SELECT, names what is not there, or reaches
        outside; CacheError: as for `texts`.
        """
        reader, spec, forest = calls_of(self.root, self, self.pool)
        rates = zip(self.direct.models, self.direct.rate.tolist(), strict=True)
        prices = {name: Rate(*rate) for name, rate in rates}
        return ask(reader, spec, forest.keys, prices, question)

    def _responses(self) -> pa.Array:
        """The response of each row of `to_arrow`."""
        reader, _, forest = calls_of(self.root, self, self.pool)
        _require_whole(forest, self.root)
        calls = _beside(forest.tree.key, forest.direct.key)
        distinct, place = np.unique(calls, return_inverse=True)
        found = reader.texts(distinct)
        answers = pa.array([found[call].response for call in distinct.tolist()], pa.string())
        return answers.take(pa.array(place))


def _beside(nodes: NDArray[np.generic], direct: NDArray[np.generic]) -> NDArray[np.generic]:
    """[queries * (nodes + direct calls)]: query after query, without the root."""
    return np.concatenate([nodes[:, 1:], direct], axis=1).ravel()
