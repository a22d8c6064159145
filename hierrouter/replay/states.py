"""A policy's view of a state: texts as an encoder's vectors, and numbers on the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.declarations.flags import DEFAULT_VIEW
from hierrouter.engines.encoders import Encoder
from hierrouter.engines.generator import Response, context_text
from hierrouter.questions.answers import agreement_key
from hierrouter_cache import walk
from hierrouter_cache.embeddings import ANSWERS, CONTEXTS, EmbeddingStore
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import text_digest
from hierrouter_cache.reader import CacheReader, Signals, first_match
from hierrouter_cache.tree import StatePart
from hierrouter_cache.walk import Forest, State, TreeSpec

# Kinds of texts.
CONTEXT = "context"
QUESTION = "question"
ANSWER = "answer"
# Kinds of numbers. Agreement: how long each answer is, whether it was cut off, and whether it
# agrees with an earlier one. Signals: these, and how confident the model was.
AGREEMENT = "agreement"
SIGNALS = "signals"

VIEW_TEXTS = {
    "context": (CONTEXT,),  # the paper's
    "query+answer": (QUESTION, ANSWER),
    "query": (QUESTION,),
    "stage": (),
}


def _state_views() -> dict[str, tuple[str, ...]]:
    """Combine each choice of texts with each choice of numbers: the kinds that each view shows."""
    views: dict[str, tuple[str, ...]] = dict(VIEW_TEXTS)
    for numbers in (SIGNALS, AGREEMENT):
        for name, texts in VIEW_TEXTS.items():
            views[f"{name}+{numbers}"] = (*texts, numbers)
    return views


STATE_VIEWS = _state_views()

TEXTS_PER_FILE = 16_384  # texts whose vectors go into one embedding file
FILES_PER_READ = 16  # files whose texts are in memory at once; each read goes through all parts
MIN_KNOWN_PROBABILITY = 1e-6  # 0 means unknown, so a known probability is never below this

OnTexts = Callable[[int, int], None]


def state_texts(view: str, question: str, responses: Sequence[str]) -> tuple[str, ...]:
    """Select the texts that a policy reads of a state, stored or live.

    A state's embedding is the encoder's vectors of these texts, one after the other, and then its
    numbers, see `state_numbers`.

    Args:
        view: one of `STATE_VIEWS`.
        question: text of the query.
        responses: what is visible of those of the route so far.

    Raises:
        InputError: an unknown view.
    """
    texts = {
        CONTEXT: context_text(question, responses),
        QUESTION: question,
        ANSWER: responses[-1] if responses else "",
    }
    return tuple(texts[kind] for kind in text_kinds(view))


def text_kinds(view: str) -> tuple[str, ...]:
    """The kind of text of each part of a state's embedding: `CONTEXT`, `QUESTION` or `ANSWER`.

    Raises:
        InputError: an unknown view.
    """
    kinds = _kinds(view)
    return kinds[:-1] if numbers_kind(view) else kinds


def numbers_kind(view: str) -> str | None:
    """The kind of numbers that a view shows: `SIGNALS`, `AGREEMENT` or None.

    Raises:
        InputError: an unknown view.
    """
    kinds = _kinds(view)
    return kinds[-1] if kinds and kinds[-1] in (SIGNALS, AGREEMENT) else None


def _kinds(view: str) -> tuple[str, ...]:
    """The kinds of texts and numbers that a view shows.

    Raises:
        InputError: an unknown view.
    """
    if view not in STATE_VIEWS:
        hint = suggestion(view, STATE_VIEWS)
        raise InputError(f"unknown state view: {view}; {hint}".rstrip("; "))
    return STATE_VIEWS[view]


@dataclass(frozen=True)
class AnswerFeatures:
    """Features of the answers on the routes to some states; one column per call of the route.

    Attributes:
        model: int64[n, calls], number of the model that was called; -1 if the call was not made:
            then the other arrays, of the same shape, mean nothing.
        length: int64, number of generated tokens.
        same: bool, whether the answer agrees with an earlier one of the route, see
            `hierrouter.questions.answers.agreement_key`.
        signals: how confident the model was, and whether the answer was cut off.
    """

    model: NDArray[np.int64]
    length: NDArray[np.int64]
    same: NDArray[np.bool_]
    signals: Signals

    @classmethod
    def live(
        cls, paths: Sequence[Sequence[int]], responses: Sequence[Sequence[Response]], calls: int
    ) -> AnswerFeatures:
        """Collect the features of responses on live routes.

        Args:
            paths: of each route, the numbers of the models called so far.
            responses: of each route, what these models returned.
            calls: how many responses of each route count, from the first on.
        """
        shape = (len(paths), calls)
        model = np.full(shape, -1)
        length = np.zeros(shape, np.int64)
        same = np.zeros(shape, np.bool_)
        signals = Signals(
            total=np.full(shape, np.nan),
            lowest=np.full(shape, np.nan),
            tokens=np.full(shape, np.nan),
            cut=np.zeros(shape, np.bool_),
        )
        for row, (path, route) in enumerate(zip(paths, responses, strict=True)):
            model[row, : len(path)] = path[:calls]
            earlier_keys = set[str]()
            for call, response in enumerate(route[:calls]):
                # A single answer has no earlier one to agree with, so its key is not needed.
                key = agreement_key(response.text) if calls > 1 else ""
                length[row, call] = response.tokens_out
                same[row, call] = key in earlier_keys
                signals.cut[row, call] = response.finish_reason == "length"
                earlier_keys.add(key)
                confidence = response.confidence
                if confidence:
                    signals.total[row, call] = confidence.total
                    signals.lowest[row, call] = confidence.lowest
                    signals.tokens[row, call] = confidence.tokens
        return cls(model, length, same, signals)


def state_numbers(kind: str, models: int, features: AnswerFeatures) -> NDArray[np.float32]:
    """Compute the numbers that a policy reads of some states, call after call.

    For each call there are M numbers, 1 in the column of the model that was called; the logarithm
    of the answer's length; 1 if it was cut off; and 1 if it agrees with an earlier answer. With
    `SIGNALS` there are four times M more, each in the column of the model: 1 if its confidence is
    known, the probability of the whole answer, the (geometric) mean probability of its tokens and
    the least. 0 means unknown or not called. Log-probabilities are rounded to 0.001 before, so that
    an engine whose last bits depend on the batch shows the same state again.

    Args:
        kind: `SIGNALS` or `AGREEMENT`.
        models: M.
        features: of the states.

    Returns:
        float32[n, width].
    """
    signals = features.signals.rounded
    rows, calls = features.model.shape
    is_called = features.model[:, :, None] == np.arange(models)
    is_made = features.model >= 0
    width = models + 3 + (4 * models if kind == SIGNALS else 0)
    numbers = np.zeros((rows, calls, width), dtype=np.float32)
    numbers[:, :, :models] = is_called
    numbers[:, :, models] = np.log1p(features.length) * is_made
    numbers[:, :, models + 1] = signals.cut * is_made
    numbers[:, :, models + 2] = features.same * is_made
    if kind == SIGNALS:
        tokens = np.where(signals.tokens >= 1, signals.tokens, np.nan)
        mean = signals.total / tokens
        is_reported = np.isfinite(signals.total) & np.isfinite(signals.lowest) & np.isfinite(tokens)
        is_known = is_called & is_reported[:, :, None]
        numbers[:, :, models + 3 : 2 * models + 3] = is_known
        for block, logprob in enumerate((signals.total, mean, signals.lowest), 1):
            start = models + 3 + block * models
            # Rounding may have brought a sum slightly above 0.
            probability = np.exp(np.where(is_reported, np.minimum(logprob, 0), 0))
            probability = probability.clip(MIN_KNOWN_PROBABILITY)
            numbers[:, :, start : start + models] = probability[:, :, None] * is_known
    return numbers.reshape(rows, calls * width)


def confidence_flag_column(models: int, model: int) -> int:
    """The column of `state_numbers` that says whether a model's confidence at call 1 is known.

    Args:
        models: M.
        model: number of the model.
    """
    return models + 3 + model


def read_numbers(
    reader: CacheReader, spec: TreeSpec, forest: Forest, kind: str, leaves: bool = False
) -> tuple[StatePart, float | None]:
    """Read the numbers of every state.

    Args:
        reader: an open cache.
        spec: the pool as content keys.
        forest: the trees, without holes.
        kind: `SIGNALS` or `AGREEMENT`.
        leaves: whether the leaves are states, too, which show the last answer.

    Returns:
        The numbers, and the share of answers whose confidence is known; None if states show no
        answers.

    Raises:
        InputError: `SIGNALS` are requested, and no answer's confidence is known.
    """
    layout = spec.layout
    queries = len(forest.keys)
    calls = layout.hops if leaves else layout.hops - 1
    states = layout.nodes if leaves else layout.inner
    # The node of each call on the route to each state; the root if the call was not made.
    node_of_call = np.zeros((states, calls), np.int64)
    for state in range(states):
        nodes_to_state = layout.nodes_to(state)
        node_of_call[state, : len(nodes_to_state)] = nodes_to_state
    nodes = np.arange(1, states)  # those with a call whose answer is shown
    key = forest.tree.key[:, nodes]
    answer_signals = reader.signals(key)
    share = None
    if calls and answer_signals.total.size:
        share = float(np.mean(~np.isnan(answer_signals.total)))
    if kind == SIGNALS and share == 0:
        raise InputError(
            "no answer in this cache says how sure its model was; collect anew, or leave it out: "
            f"--state query+answer+{AGREEMENT}"
        )
    same = np.zeros((queries, layout.nodes), np.bool_)
    if calls > 1:
        same[:, nodes] = _agreements(reader, spec, key)

    def along_routes(values: NDArray[Any], at_root: Any) -> NDArray[Any]:
        """Look up [queries * states, calls] of each call on a route in [queries, nodes - 1]."""
        with_root = np.concatenate([np.full((queries, 1), at_root), values], axis=1)
        return with_root[:, node_of_call].reshape(queries * states, calls)

    model_of_node = np.array([-1, *(layout.action[node] for node in nodes.tolist())])
    features = AnswerFeatures(
        model=np.tile(model_of_node[node_of_call], (queries, 1)),
        length=along_routes(forest.tree.tokens_out[:, nodes], 0),
        same=same[:, node_of_call].reshape(queries * states, calls),
        signals=Signals(
            total=along_routes(answer_signals.total, np.nan),
            lowest=along_routes(answer_signals.lowest, np.nan),
            tokens=along_routes(answer_signals.tokens, np.nan),
            cut=along_routes(answer_signals.cut, False),
        ),
    )
    numbers = state_numbers(kind, layout.call_actions, features)
    rows = np.arange(len(numbers)).reshape(queries, states)
    return StatePart(numbers, rows, is_text=False), share


def _agreements(reader: CacheReader, spec: TreeSpec, key: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Compute whether each answer agrees with an earlier one of its route.

    Args:
        reader: an open cache.
        spec: the pool as content keys.
        key: uint64[queries, states - 1], the call of each node except the root.

    Returns:
        bool[queries, states - 1].
    """
    layout = spec.layout
    # Equal texts are normalized only once.
    distinct, text_of_call = np.unique(reader.answers(key), return_inverse=True)
    first_call = np.unique(text_of_call, return_index=True)[1]
    group_of_digest: dict[str, int] = {}
    group_of_text = np.empty(len(distinct), np.int64)
    for start in range(0, len(distinct), TEXTS_PER_FILE):
        calls = key.ravel()[first_call[start : start + TEXTS_PER_FILE]]
        stored_calls = reader.texts(calls)
        for text, call in enumerate(calls.tolist(), start):
            # A digest takes less memory than the text.
            answer = text_digest(agreement_key(stored_calls[call].visible))
            group_of_text[text] = group_of_digest.setdefault(answer, len(group_of_digest))
    group = group_of_text[text_of_call.reshape(key.shape)]
    same = np.zeros(key.shape, np.bool_)
    for node in range(1, key.shape[1] + 1):
        ancestor = layout.parent[node]
        while ancestor:
            same[:, node - 1] |= group[:, node - 1] == group[:, ancestor - 1]
            ancestor = layout.parent[ancestor]
    return same


def stores_of(reader: CacheReader, encoder: Encoder, view: str) -> list[EmbeddingStore]:
    """The store of the vectors of each kind of text that a view shows.

    Raises:
        InputError: an unknown view.
    """
    stores = [ANSWERS if kind == ANSWER else CONTEXTS for kind in text_kinds(view)]
    return [EmbeddingStore(reader, encoder.description, store) for store in stores]


def embed_states(
    reader: CacheReader,
    spec: TreeSpec,
    forest: Forest,
    encoder: Encoder,
    view: str = DEFAULT_VIEW,
    on_texts: OnTexts = lambda done, total: None,
    leaves: bool = False,
) -> tuple[StatePart, ...]:
    """Embed the texts that a view shows of every state of some trees.

    Args:
        reader: an open cache.
        spec: the pool as content keys.
        forest: the trees, without holes.
        encoder: makes the vectors that are not stored yet.
        view: one of `STATE_VIEWS`.
        on_texts: progress callback, called with (done, total) after each file; it starts again for
            each kind of text.
        leaves: whether the leaves are states, too.

    Returns:
        The vectors of each kind of text.

    Raises:
        InputError: an unknown view.
    """
    parts = []
    stores = stores_of(reader, encoder, view)
    for number, (kind, store) in enumerate(zip(text_kinds(view), stores, strict=True)):
        # Hashes of the digests that identify the text of each state: uint64[queries, states].
        names = forest.tree.outcome
        if not leaves:
            names = names[:, : spec.layout.inner]
        if kind == ANSWER:
            names = walk.newest_answers(reader, spec, forest, leaves)
        elif kind == QUESTION:
            names = np.broadcast_to(names[:, :1], names.shape)
        missing = store.missing(names.T)
        done = 0
        for states in _batches(reader, spec, forest, names, missing):
            texts = [state_texts(view, state.question, state.responses)[number] for state in states]
            # The store names an answer by its own text, and other texts by the context's digest.
            if kind == ANSWER:
                digests = [text_digest(text) for text in texts]
            else:
                digests = [state.context for state in states]
            store.append(digests, encoder.encode(texts))
            done += len(states)
            on_texts(done, len(missing))
        parts.append(StatePart(store.vectors(), store.rows(names)))
    return tuple(parts)


def _batches(
    reader: CacheReader,
    spec: TreeSpec,
    forest: Forest,
    names: NDArray[np.uint64],
    missing: NDArray[np.uint64],
) -> Iterator[list[State]]:
    """Yield one state for each of the missing names, in batches of the size of one file.

    Args:
        reader: an open cache.
        spec: the pool as content keys.
        forest: the trees, without holes.
        names: uint64[queries, states], the name of the text of each state.
        missing: uint64[n], names whose vectors are not stored.
    """
    size = FILES_PER_READ * TEXTS_PER_FILE
    leaves = names.shape[1] == spec.layout.nodes
    for start in range(0, len(missing), size):
        position = first_match(missing[start : start + size], names.ravel())
        contexts = forest.tree.outcome[:, : names.shape[1]].ravel()[position]
        states = walk.states(reader, spec, forest, contexts, leaves)
        for first in range(0, len(states), TEXTS_PER_FILE):
            yield states[first : first + TEXTS_PER_FILE]
