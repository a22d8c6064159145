"""What peers can take of a cache: each model's own answer to each question.

In: a cache, optionally fewer models, a scorer, an encoder. Out: `DirectTable`, dense arrays and
texts of the direct calls. No hop after the first is in it: no peer's format has a place for one.
Not covered: the columns of a format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hierrouter.collect.backends import IMPORTED
from hierrouter.collect.encoders import Encoder
from hierrouter.collect.plan import stored_queries
from hierrouter.opened_pool import planned_pool
from hierrouter.pool import ModelSpec
from hierrouter.query import Query
from hierrouter.rescore import score_forest
from hierrouter.scoring import Scorer
from hierrouter_cache.errors import IncompleteTree
from hierrouter_cache.pricing import cost_of, rate_table
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.walk import Forest, walk


@dataclass(frozen=True)
class DirectTable:
    """The direct calls of some queries by all models, references included.

    Attributes:
        models: K names; of an imported model, the one in the file that it came from.
        queries: n of them.
        responses: n rows of K texts.
        score: float64[n, K], in [0, 1].
        tokens_in, tokens_out: int64[n, K].
        cost: float64[n, K], at the pool's prices.
        scorer: name of the score.
        encoder: for the questions' embeddings.
        left_out: queries that lack a call and are not here.
    """

    models: tuple[str, ...]
    queries: tuple[Query, ...]
    responses: Sequence[Sequence[str]]
    score: NDArray[np.float64]
    tokens_in: NDArray[np.int64]
    tokens_out: NDArray[np.int64]
    cost: NDArray[np.float64]
    scorer: str
    encoder: Encoder
    left_out: int

    def vectors(self) -> NDArray[np.float32]:
        """float32[n, dim], the embedding of each question alone."""
        return self.encoder.encode([query.question for query in self.queries])


def direct_table(
    root: Path,
    scorer: Scorer,
    encoder: Encoder,
    models: Sequence[str] | None = None,
    allow_incomplete: bool = False,
) -> DirectTable:
    """The direct calls of the last collection.

    Args:
        root: the cache's folder.
        scorer: gives the scores; missing ones are computed.
        encoder: embeds the questions, when it is asked for.
        models: names of some of the pool's models, or None for all and the references.
        allow_incomplete: leave out queries that lack a direct call, instead of refusing.

    Raises:
        CacheError: nothing there, damaged, or a direct call is missing.
        InputError: an unknown model, or a scorer that cannot score this.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    stored, identities = planned_pool(plan.pool)
    pool = stored.sub_pool(models, 1)
    if models is not None:
        pool = replace(pool, references=())
    forest = walk(reader, pool.tree_spec(identities), plan.queries)
    whole = _whole(forest, allow_incomplete)
    direct = whole.direct
    rates = rate_table([model.name for model in pool.everyone], pool.rates())
    return DirectTable(
        models=tuple(_name_outside(model) for model in pool.everyone),
        queries=stored_queries(reader, whole.keys),
        responses=_responses(reader, whole),
        score=score_forest(reader, whole, scorer).direct,
        tokens_in=direct.tokens_in,
        tokens_out=direct.tokens_out,
        cost=cost_of(direct.tokens_in, direct.tokens_out, rates),
        scorer=scorer.name,
        encoder=encoder,
        left_out=len(forest.keys) - len(whole.keys),
    )


def _name_outside(model: ModelSpec) -> str:
    return model.model if model.backend == IMPORTED else model.name


def _whole(forest: Forest, allow_incomplete: bool) -> Forest:
    """The queries that lack no direct call.

    Raises:
        IncompleteTree: there are others and they may not be left out, or there is no whole one.
    """
    rows = np.flatnonzero(forest.direct.complete)
    lacking = len(forest.keys) - len(rows)
    if lacking and not (allow_incomplete and len(rows)):
        raise IncompleteTree(
            f"{lacking} of {len(forest.keys)} queries lack direct calls; collect or import them, "
            "take fewer --models, or leave these queries out with --allow-incomplete"
        )
    return forest.select(rows)


def _responses(reader: CacheReader, forest: Forest) -> list[list[str]]:
    calls = reader.texts(forest.direct.key.ravel())
    return [[calls[key].response for key in row] for row in forest.direct.key.tolist()]
