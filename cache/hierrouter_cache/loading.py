"""From what was found in a cache to dense arrays.

In: a `Forest`, its scores, what is seen of its states, prices. Out: `RouteTree`. Prices are joined
here, at the very end, so that repricing needs no new call. Not covered: finding (`walk`), scoring.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.errors import IncompleteTree
from hierrouter_cache.fingerprint import digest
from hierrouter_cache.pricing import Rate, rate_table
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.routes import Routes
from hierrouter_cache.scores import Scores
from hierrouter_cache.tree import DirectCalls, RouteTree, StatePart
from hierrouter_cache.walk import Forest, TreeSpec


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
) -> RouteTree:
    """The dense arrays of a forest without holes; its order is the order of the tree's rows.

    Args:
        reader: the cache that the forest comes from.
        spec: the pool as content keys.
        forest: what was found.
        parts: what a policy sees of each state's texts.
        encoder: description of the encoder; the content is named by it, whatever the parts.
        prices: rate of every model of `spec`, direct ones included.
        score: the values of Q.
        accuracy: the values that tell right from wrong.
        scorer: name of Q.

    Raises:
        IncompleteTree: a node, a direct call or a score is missing.
    """
    if lack := holes(forest, spec.routes):
        raise IncompleteTree(f"the tree is incomplete: {reader.root}: {lack}; collect again")
    for values in (score.tree, score.direct, accuracy.tree, accuracy.direct):
        if np.isnan(values).any():
            raise IncompleteTree(
                f"{np.isnan(values).sum()} calls are not scored: {reader.root}; score them first"
            )
    routes = spec.routes
    queries = reader.queries(forest.keys, ("id", "dataset", "split"))
    tree, direct = forest.tree, forest.direct
    rate = rate_table(spec.models, prices)
    direct_rate = rate_table([name for name, _ in spec.direct], prices)
    measured = [score.tree, accuracy.tree, tree.tokens_in, tree.tokens_out]
    measured += [score.direct, accuracy.direct, direct.tokens_in, direct.tokens_out]
    return RouteTree(
        models=spec.models,
        hops=routes.hops,
        query_ids=tuple(queries["id"].to_pylist()),
        datasets=tuple(queries["dataset"].to_pylist()),
        splits=tuple(queries["split"].to_pylist()),
        score=score.tree,
        accuracy=accuracy.tree,
        tokens_in=tree.tokens_in,
        tokens_out=tree.tokens_out,
        rate=rate,
        parts=parts,
        direct=DirectCalls(
            models=tuple(name for name, _ in spec.direct),
            score=score.direct,
            accuracy=accuracy.direct,
            tokens_in=direct.tokens_in,
            tokens_out=direct.tokens_out,
            rate=direct_rate,
        ),
        scorer=scorer,
        content=_content(
            [spec.models, spec.steps, spec.direct, scorer, encoder, forest.keys],
            *measured,
        ),
    )


def holes(forest: Forest, routes: Routes) -> str | None:
    """How many queries lack how much, in words; None where nothing is missing."""
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
    return f"{lacking} of {len(forest.keys)} queries lack {what}"


def _content(names: object, *arrays: NDArray[np.generic]) -> str:
    total = hashlib.sha256(digest(names).encode())
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:32]
