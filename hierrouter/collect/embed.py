"""Embed every context that a policy can see.

In: a cache, its forest, an encoder. Out: vectors in the cache's derived data, computed once for
each distinct context. Leaves are not embedded: no decision is taken there.
"""

from __future__ import annotations

from collections.abc import Callable

from hierrouter.collect.encoders import Encoder
from hierrouter.collect.prompts import context_text
from hierrouter_cache.embeddings import EmbeddingStore
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.walk import Forest, TreeSpec, states

TEXTS_PER_FILE = 16_384


def embed_states(
    reader: CacheReader,
    spec: TreeSpec,
    forest: Forest,
    encoder: Encoder,
    on_texts: Callable[[int, int], None] = lambda done, total: None,
) -> EmbeddingStore:
    """The encoder's store, after every state of these trees has a vector in it.

    Args:
        reader: an open cache.
        spec: the pool as content keys.
        forest: what was found, without holes.
        encoder: computes what is missing.
        on_texts: told (done, total) after each file.
    """
    store = EmbeddingStore(reader, encoder.description)
    missing = store.missing(forest.tree.outcome[:, : spec.routes.states].T)
    for start in range(0, len(missing), TEXTS_PER_FILE):
        found = states(reader, spec, forest, missing[start : start + TEXTS_PER_FILE])
        texts = [context_text(state.question, state.responses) for state in found]
        store.append([state.context for state in found], encoder.encode(texts))
        on_texts(start + len(found), len(missing))
    return store
