"""State views: which texts of a state a policy sees.

In: a view's name, a question, the responses so far. Out: the texts to embed, one for each part of
the state's embedding. Stage l_t and cost C_t are seen in every view (paper section 3.1). Not
covered: embedding them (`embed`).
"""

from __future__ import annotations

from collections.abc import Sequence

from hierrouter.collect.prompts import context_text
from hierrouter.pool import suggestion
from hierrouter_cache.errors import InputError

CONTEXT, QUESTION, ANSWER = "context", "question", "answer"  # kinds of text

VIEWS: dict[str, tuple[str, ...]] = {
    "context": (CONTEXT,),  # the paper's
    "query+answer": (QUESTION, ANSWER),
    "query": (QUESTION,),
    "stage": (),
}
DEFAULT_VIEW = "context"


def state_texts(view: str, question: str, responses: Sequence[str]) -> tuple[str, ...]:
    """The texts that a policy sees of a state, stored or live.

    A state's embedding is the encoder's vectors of these texts, one after the other.

    Args:
        view: one of `VIEWS`.
        question: text of the query.
        responses: the answers so far, oldest first.

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
    """What kind of text each part of a state's embedding is of.

    Raises:
        InputError: an unknown view.
    """
    if view not in VIEWS:
        raise InputError(f"unknown state view: {view}; {suggestion(view, VIEWS)}".rstrip("; "))
    return VIEWS[view]
