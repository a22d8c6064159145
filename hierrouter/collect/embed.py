"""Embed every context that a policy can see.

In: a cache, a tree, an encoder. Out: vectors in the cache's derived data, computed once for each
distinct context. Leaves are not embedded: no decision is taken there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hierrouter.collect.encoders import Encoder
from hierrouter.collect.prompts import context_text
from hierrouter_cache.embeddings import EmbeddingStore
from hierrouter_cache.reader import CacheReader, TreeSpec

TEXTS_PER_FILE = 16_384


def embed_states(
    reader: CacheReader,
    spec: TreeSpec,
    keys: Sequence[str],
    encoder: Encoder,
    on_texts: Callable[[int, int], None] = lambda done, total: None,
) -> EmbeddingStore:
    """The encoder's store, after every state of these trees has a vector in it.

    Args:
        reader: an open cache.
        spec: the pool as content keys.
        keys: query keys.
        encoder: computes what is missing.
        on_texts: told (done, total) after each file.
    """
    store = EmbeddingStore(reader.root, encoder.description)
    states = {context: (asked, said) for context, asked, said in reader.states(spec, keys)}
    missing = store.missing(states)
    for start in range(0, len(missing), TEXTS_PER_FILE):
        contexts = missing[start : start + TEXTS_PER_FILE]
        texts = [context_text(*states[context]) for context in contexts]
        store.append(contexts, encoder.encode(texts))
        on_texts(start + len(contexts), len(missing))
    return store
