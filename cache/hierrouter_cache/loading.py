"""From the reader's rows to dense arrays.

In: a `CacheReader`, a `TreeSpec`, query keys, an `EmbeddingStore`. Out: `RouteTree`. Prices are
joined here, at the very end, so that repricing needs no new call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.embeddings import EmbeddingStore
from hierrouter_cache.fingerprint import digest
from hierrouter_cache.reader import CacheReader, NodeTable, TreeSpec, require_complete
from hierrouter_cache.tree import DirectCalls, RouteTree

Number = TypeVar("Number", np.float64, np.int64)


def load_tree(
    reader: CacheReader,
    spec: TreeSpec,
    keys: Sequence[str],
    embeddings: EmbeddingStore,
    scorer: str = "token_f1",
    accuracy: str = "exact_match",
) -> RouteTree:
    """The dense arrays of the trees of these queries.

    Args:
        reader: an open cache.
        spec: the pool as content keys.
        keys: query keys; their order is the order of the tree's rows.
        embeddings: vectors of the encoder to use.
        scorer: name of the scorer that gives Q.
        accuracy: name of the scorer that tells right from wrong.

    Raises:
        IncompleteTree: a node, a direct call, a score or an embedding is missing.
    """
    routes = spec.routes
    queries = reader.queries(keys)
    found = reader.nodes(spec, keys, [scorer, accuracy])
    require_complete(found, len(keys), routes.nodes, "nodes")
    shape = (len(keys), routes.nodes)
    score, accurate = (_dense(found, values, shape) for values in found.score)
    contexts = np.empty(shape, dtype=found.outcome.dtype)
    contexts[found.position, found.node] = found.outcome
    tokens_in = _dense(found, found.tokens_in, shape)
    tokens_out = _dense(found, found.tokens_out, shape)
    direct = _load_direct(reader, spec, keys, [scorer, accuracy])
    return RouteTree(
        models=spec.models,
        hops=routes.hops,
        query_ids=tuple(query["id"] for query in queries),
        datasets=tuple(query["dataset"] for query in queries),
        splits=tuple(query["split"] for query in queries),
        score=score,
        accuracy=accurate,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        base_rate=np.array(spec.base_rate),
        embedding=embeddings.gather(contexts[:, : routes.states]),
        direct=direct,
        scorer=scorer,
        fingerprint=_fingerprint(
            [spec.models, spec.base_rate, spec.steps, spec.direct, list(keys)],
            [scorer, accuracy, embeddings.encoder],
            score,
            accurate,
            tokens_in,
            tokens_out,
            direct.score,
            direct.tokens,
        ),
    )


def _load_direct(
    reader: CacheReader, spec: TreeSpec, keys: Sequence[str], scorers: list[str]
) -> DirectCalls:
    found = reader.direct(spec, keys, scorers)
    require_complete(found, len(keys), len(spec.direct), "direct calls")
    shape = (len(keys), len(spec.direct))
    score, accurate = (_dense(found, values, shape) for values in found.score)
    return DirectCalls(
        models=tuple(name for name, _, _ in spec.direct),
        score=score,
        accuracy=accurate,
        tokens=_dense(found, found.tokens_in + found.tokens_out, shape),
        base_rate=np.array([rate for _, _, rate in spec.direct]),
    )


def _dense(found: NodeTable, values: NDArray[Number], shape: tuple[int, int]) -> NDArray[Number]:
    out = np.zeros(shape, dtype=values.dtype)
    out[found.position, found.node] = values
    return out


def _fingerprint(pool: object, measured: object, *arrays: NDArray[np.generic]) -> str:
    total = hashlib.sha256(digest([pool, measured]).encode())
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:32]
