"""What a policy sees of a state: texts as an encoder's vectors, and numbers that answers have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.engines.encoders import Encoder
from hierrouter.engines.generator import Confidence, context_text
from hierrouter.questions.answers import agreement_key
from hierrouter_cache import walk
from hierrouter_cache.embeddings import ANSWERS, CONTEXTS, EmbeddingStore
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import text_digest
from hierrouter_cache.reader import CacheReader, Signals, first_match
from hierrouter_cache.tree import StatePart
from hierrouter_cache.walk import Forest, State, TreeSpec

CONTEXT, QUESTION, ANSWER = "context", "question", "answer"  # kinds of text
# Kinds of numbers: how long each answer is, why it ended, and whether it says what an earlier one
# has said; the other one has these, and how sure the model was.
AGREEMENT, SIGNALS = "agreement", "signals"

TEXTS = {
    "context": (CONTEXT,),  # the paper's
    "query+answer": (QUESTION, ANSWER),
    "query": (QUESTION,),
    "stage": (),
}
STATE_VIEWS: dict[str, tuple[str, ...]] = {
    f"{name}+{numbers}".strip("+"): (*texts, numbers) if numbers else texts
    for numbers in ("", SIGNALS, AGREEMENT)
    for name, texts in TEXTS.items()
}
DEFAULT_VIEW = "context"
TEXTS_PER_FILE = 16_384
FILES_HELD = 16  # whose texts are held at once; each time all parts are read for them

OnTexts = Callable[[int, int], None]


def state_texts(view: str, question: str, responses: Sequence[str]) -> tuple[str, ...]:
    """The texts that a policy sees of a state, stored or live.

    A state's embedding is the encoder's vectors of these texts, one after the other, and then its
    numbers, see `state_numbers`. Raises InputError: an unknown view.
    """
    texts = {
        CONTEXT: context_text(question, responses),
        QUESTION: question,
        ANSWER: responses[-1] if responses else "",
    }
    return tuple(texts[kind] for kind in text_kinds(view))


def text_kinds(view: str) -> tuple[str, ...]:
    """What kind of text each part of a state's embedding is of; raises as `numbers_kind`."""
    kinds = _kinds(view)
    return kinds[:-1] if numbers_kind(view) else kinds


def numbers_kind(view: str) -> str | None:
    """Which numbers the view shows: `SIGNALS`, `AGREEMENT` or none.

    Raises InputError: an unknown view.
    """
    kinds = _kinds(view)
    return kinds[-1] if kinds and kinds[-1] in (SIGNALS, AGREEMENT) else None


def _kinds(view: str) -> tuple[str, ...]:
    if view not in STATE_VIEWS:
        raise InputError(
            f"unknown state view: {view}; {suggestion(view, STATE_VIEWS)}".rstrip("; ")
        )
    return STATE_VIEWS[view]


@dataclass(frozen=True)
class AnswerFeatures:
    """What can be read off the answers on the way to some states; a column each call of the route.

    Attributes:
        model: int64[n, calls], number of who answered; -1 where no call was made yet. Elsewhere
            the other arrays, of the same shape, mean nothing.
        length: int64, generated tokens.
        same: bool, whether it says what an earlier answer of the route says, see `agreement_key`.
        signals: how sure the model was, and whether the answer was cut.
    """

    model: NDArray[np.int64]
    length: NDArray[np.int64]
    same: NDArray[np.bool_]
    signals: Signals

    @classmethod
    def live(cls, routes: Sequence[Sequence[LiveAnswer]], calls: int) -> AnswerFeatures:
        """Of the answers on some live routes, at most so many each."""
        shape = (len(routes), calls)
        blank = np.full(shape, np.nan)
        signals = Signals(blank, blank.copy(), blank.copy(), np.zeros(shape, np.bool_))
        looks = cls(np.full(shape, -1), np.zeros(shape, np.int64), signals.cut.copy(), signals)
        for row, route in enumerate(routes):
            said = set[str]()
            for at in ((row, call) for call in range(min(len(route), calls))):
                answer = route[at[1]]
                key = agreement_key(answer.text) if calls > 1 else ""
                looks.model[at], looks.length[at] = answer.model, answer.tokens_out
                looks.same[at], signals.cut[at] = key in said, answer.cut
                said.add(key)
                if sure := answer.confidence:
                    signals.total[at], signals.lowest[at] = sure.total, sure.lowest
                    signals.tokens[at] = sure.tokens
        return looks


@dataclass(frozen=True)
class LiveAnswer:
    """One answer of a live route: who gave it, its text, and what the engine says of it."""

    model: int
    text: str
    tokens_out: int
    cut: bool
    confidence: Confidence | None


def state_numbers(kind: str, models: int, looks: AnswerFeatures) -> NDArray[np.float32]:
    """float32[n, width]: the numbers that a policy sees of some states, call after call.

    Of each call: who answered, 1 in the place of its model; the logarithm of its length; 1 where it
    was cut, and where it says what an earlier one says. With `SIGNALS` also, each in the place of
    its model: 1 where it is known how sure it was, the probability of the whole answer, the mean of
    its tokens' (geometric) and the least. 0 stands for what is not there. Log-probabilities are
    rounded to 0.001 before, so that an engine whose last bits depend on the batch shows the same
    state again.

    `kind`: `SIGNALS` or `AGREEMENT`; `models`: M; `looks`: of the states.
    """
    signals, (rows, calls) = looks.signals.rounded, looks.model.shape
    called = looks.model[:, :, None] == np.arange(models)
    was_made = looks.model >= 0
    width = models + 3 + (4 * models if kind == SIGNALS else 0)
    found = np.zeros((rows, calls, width), dtype=np.float32)
    found[:, :, :models] = called
    for at, values in enumerate((np.log1p(looks.length), signals.cut, looks.same), models):
        found[:, :, at] = values * was_made
    if kind == SIGNALS:
        total, lowest = signals.total, signals.lowest
        tokens = np.where(signals.tokens >= 1, signals.tokens, np.nan)
        told = np.isfinite(total) & np.isfinite(lowest) & np.isfinite(tokens)
        known = called & told[:, :, None]
        found[:, :, models + 3 : 2 * models + 3] = known
        for at, logprob in enumerate((total, total / tokens, lowest), 2):
            chance = np.exp(np.where(told, np.minimum(logprob, 0), 0)).clip(LEAST_CHANCE)
            found[:, :, at * models + 3 : (at + 1) * models + 3] = chance[:, :, None] * known
    return found.reshape(rows, calls * width)


def confidence_flag_column(models: int, model: int) -> int:
    """The place among the numbers that tells whether it is known how sure a model was first."""
    return models + 3 + model


LEAST_CHANCE = 1e-6  # a probability that is known is never 0


def read_numbers(
    reader: CacheReader, spec: TreeSpec, forest: Forest, kind: str, leaves: bool = False
) -> tuple[StatePart, float | None]:
    """The numbers of every state, and the share of answers of which it is known how sure they were.

    None where no answer is seen.

    Raises InputError: `SIGNALS` are wanted, and nothing is known of any answer.

    `reader`: an open cache; `spec`: the pool as content keys; `forest`: without holes; `leaves`:
    whether what follows the last call is a state, too, and that answer seen.
    """
    routes, queries = spec.routes, len(forest.keys)
    calls, states = routes.hops - 1 + leaves, routes.nodes if leaves else routes.states
    paths = [routes.path(state) for state in range(states)]
    # The node of each call on the way to each state; the root where none was made.
    nodes = np.zeros((states, calls), np.int64)
    for state, path in enumerate(paths):
        nodes[state, : len(path)] = [routes.node(path[: at + 1]) for at in range(len(path))]
    made = np.arange(1, states)
    key = forest.tree.key[:, made]
    each = reader.signals(key)
    share = float(np.mean(~np.isnan(each.total))) if calls and each.total.size else None
    if kind == SIGNALS and share == 0:
        raise InputError(
            "no answer in this cache says how sure its model was; collect anew, or leave it out: "
            f"--state query+answer+{AGREEMENT}"
        )
    same = np.zeros((queries, routes.nodes), np.bool_)
    if calls > 1:
        same[:, made] = _repeated(reader, spec, key)

    def along(values: NDArray[Any], blank: Any) -> NDArray[Any]:
        """[queries * states, calls]: of each call on the way, from values of all but the root."""
        whole = np.concatenate([np.full((queries, 1), blank), values], axis=1)
        return whole[:, nodes].reshape(queries * states, calls)

    actions = np.array([-1, *(routes.action(node) for node in made.tolist())])
    total, lowest, tokens = (along(one, np.nan) for one in (each.total, each.lowest, each.tokens))
    signals = Signals(total, lowest, tokens, along(each.cut, False))
    looks = AnswerFeatures(
        np.tile(actions[nodes], (queries, 1)),
        along(forest.tree.tokens_out[:, made], 0),
        same[:, nodes].reshape(queries * states, calls),
        signals,
    )
    numbers = state_numbers(kind, routes.models, looks)
    rows = np.arange(len(numbers)).reshape(queries, states)
    return StatePart(numbers, rows, is_text=False), share


def _repeated(reader: CacheReader, spec: TreeSpec, key: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """bool[queries, states - 1]: whether each answer says what an earlier one of its route says."""
    routes = spec.routes
    distinct, place = np.unique(reader.answers(key), return_inverse=True)
    first = np.unique(place, return_index=True)[1]
    groups: dict[str, int] = {}
    group = np.empty(len(distinct), np.int64)
    for start in range(0, len(distinct), TEXTS_PER_FILE):
        calls = key.ravel()[first[start : start + TEXTS_PER_FILE]]
        found = reader.texts(calls)
        for at, call in enumerate(calls.tolist(), start):
            answer = text_digest(agreement_key(found[call].response))
            group[at] = groups.setdefault(answer, len(groups))
    said = group[place.reshape(key.shape)]
    same = np.zeros(key.shape, np.bool_)
    for state in range(1, key.shape[1] + 1):
        above = routes.parent(state)
        while above:
            same[:, state - 1] |= said[:, state - 1] == said[:, above - 1]
            above = routes.parent(above)
    return same


def stores_of(reader: CacheReader, encoder: Encoder, view: str) -> list[EmbeddingStore]:
    """Where the vectors of each kind of text lie that the view shows; raises as `text_kinds`."""
    texts = [ANSWERS if kind == ANSWER else CONTEXTS for kind in text_kinds(view)]
    return [EmbeddingStore(reader, encoder.description, kind) for kind in texts]


def embed_states(
    reader: CacheReader,
    spec: TreeSpec,
    forest: Forest,
    encoder: Encoder,
    view: str = DEFAULT_VIEW,
    on_texts: OnTexts = lambda done, total: None,
    leaves: bool = False,
) -> tuple[StatePart, ...]:
    """What the view shows of the texts of every state of these trees, as vectors.

    Raises InputError: an unknown view.

    Args:
        view: one of `STATE_VIEWS`.
        on_texts: told (done, total) after each file, for each part anew.
        leaves: whether what follows the last call is a state, too.
    """
    parts = []
    stores = stores_of(reader, encoder, view)
    for number, (kind, store) in enumerate(zip(text_kinds(view), stores, strict=True)):
        # Hashes of the digests that stand for the text of each state: uint64[queries, states].
        alone, names = kind == ANSWER, forest.tree.outcome
        if not leaves:
            names = names[:, : spec.routes.states]
        if kind == ANSWER:
            names = walk.newest_answers(reader, spec, forest, leaves)
        elif kind == QUESTION:
            names = np.broadcast_to(names[:, :1], names.shape)
        missing = store.missing(names.T)
        done = 0
        for found in _files(reader, spec, forest, names, missing):
            texts = [state_texts(view, state.question, state.responses)[number] for state in found]
            contexts = [state.context for state in found]
            digests = [text_digest(text) for text in texts] if alone else contexts
            store.append(digests, encoder.encode(texts))
            done += len(found)
            on_texts(done, len(missing))
        parts.append(StatePart(store.vectors(), store.rows(names)))
    return tuple(parts)


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
        contexts = forest.tree.outcome[:, : names.shape[1]].ravel()[where]
        leaves = names.shape[1] == spec.routes.nodes
        held = walk.states(reader, spec, forest, contexts, leaves)
        for at in range(0, len(held), TEXTS_PER_FILE):
            yield held[at : at + TEXTS_PER_FILE]
