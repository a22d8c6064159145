"""Embed what a policy can see of every state.

In: a cache, its forest, an encoder, a view. Out: one `StatePart` for each text that the view shows,
its vectors in the cache's derived data, computed once for each distinct text. Leaves are not
embedded: no decision is taken there. Not covered: which texts these are (`views`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from hierrouter.collect.encoders import Encoder
from hierrouter.collect.views import ANSWER, DEFAULT_VIEW, QUESTION, state_texts, text_kinds
from hierrouter_cache.embeddings import ANSWERS, CONTEXTS, EmbeddingStore
from hierrouter_cache.fingerprint import text_digest
from hierrouter_cache.reader import CacheReader, first_match
from hierrouter_cache.tree import StatePart
from hierrouter_cache.walk import Forest, State, TreeSpec, newest_answers, states

TEXTS_PER_FILE = 16_384
FILES_HELD = 16  # whose texts are held at once; each time all parts are read for them

OnTexts = Callable[[int, int], None]


def embed_states(
    reader: CacheReader,
    spec: TreeSpec,
    forest: Forest,
    encoder: Encoder,
    view: str = DEFAULT_VIEW,
    on_texts: OnTexts = lambda done, total: None,
) -> tuple[StatePart, ...]:
    """What the view shows of every state of these trees, as vectors.

    Args:
        reader: an open cache.
        spec: the pool as content keys.
        forest: what was found, without holes.
        encoder: computes what is missing.
        view: one of `views.VIEWS`.
        on_texts: told (done, total) after each file, for each part anew.

    Raises:
        InputError: an unknown view.
    """
    kinds = text_kinds(view)
    return tuple(
        _part(reader, spec, forest, encoder, view, number, on_texts) for number in range(len(kinds))
    )


def _part(
    reader: CacheReader,
    spec: TreeSpec,
    forest: Forest,
    encoder: Encoder,
    view: str,
    number: int,
    on_texts: OnTexts,
) -> StatePart:
    """The text of every state that stands at place `number` among those that the view shows."""
    kind = text_kinds(view)[number]
    alone = kind == ANSWER
    names = _names(reader, spec, forest, kind)
    store = EmbeddingStore(reader, encoder.description, ANSWERS if alone else CONTEXTS)
    missing = store.missing(names.T)
    done = 0
    for found in _files(reader, spec, forest, names, missing):
        texts = [state_texts(view, state.question, state.responses)[number] for state in found]
        contexts_of = [state.context for state in found]
        digests = [text_digest(text) for text in texts] if alone else contexts_of
        store.append(digests, encoder.encode(texts))
        done += len(found)
        on_texts(done, len(missing))
    return StatePart(store.vectors(), store.rows(names))


def _files(
    reader: CacheReader,
    spec: TreeSpec,
    forest: Forest,
    names: NDArray[np.uint64],
    missing: NDArray[np.uint64],
) -> Iterator[list[State]]:
    """A state for each of the missing names, as many at a time as go into one file."""
    size = FILES_HELD * TEXTS_PER_FILE
    for start in range(0, len(missing), size):
        where = first_match(missing[start : start + size], names.ravel())
        contexts = forest.tree.outcome[:, : spec.routes.states].ravel()[where]
        held = states(reader, spec, forest, contexts)
        for at in range(0, len(held), TEXTS_PER_FILE):
            yield held[at : at + TEXTS_PER_FILE]


def _names(reader: CacheReader, spec: TreeSpec, forest: Forest, kind: str) -> NDArray[np.uint64]:
    """uint64[queries, states]: hash of the digest that stands for the text of each state."""
    contexts = forest.tree.outcome[:, : spec.routes.states]
    if kind == ANSWER:
        return newest_answers(reader, spec, forest)
    return np.broadcast_to(contexts[:, :1], contexts.shape) if kind == QUESTION else contexts
