"""Content keys: what an answer depends on, hashed.

A call is named by the *step* (which model, generation settings and stage instruction) and the
*context* (the question and every response before it, in order). Contexts form a Merkle chain, so
a child can never be matched with another parent's answer. Pool, number of hops, alpha, prices and
scorers are in no key: changing them re-uses every answer. Digests are the first 128 bits of a
SHA-256, in hexadecimal.

Not covered: what makes up a model's identity; see `hierrouter.pool`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

Choices = Sequence[tuple[str, str]]  # (label, text) of each

DIGEST_LENGTH = 32
# Bump when the text of a prompt is laid out in another way: old answers then stop matching.
PROMPT_LAYOUT = 1
CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


def digest(value: Any) -> str:
    """Digest of a JSON value in canonical form; floats must be finite."""
    return text_digest(CANONICAL.encode(value))


def text_digest(text: str) -> str:
    """Digest of a text alone; in DuckDB's SQL it is `left(sha256(text), 32)`."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def step_key(model: Mapping[str, Any], generation: Mapping[str, Any], instruction: str) -> str:
    """Digest of one way of calling: model identity, generation settings, stage instruction."""
    return digest(["step", PROMPT_LAYOUT, model, generation, instruction])


def root_context(question: str) -> str:
    """Context of a query before any call."""
    return digest(["context", question])


def next_context(context: str, response: str) -> str:
    """Context after `response` has been appended (c_{t+1} = c_t || r_t, paper section 3.1)."""
    return digest(["context", context, response])


def call_key(step: str, context: str, sample: int = 0) -> str:
    """Name of one call; `sample` counts repeated draws where generation is not greedy."""
    return digest(["call", step, context, sample])


def references_key(answers: Sequence[str], choices: Choices = ()) -> str:
    """Digest of what a score depends on besides the response: answers, and choices if any."""
    return digest(["references", list(answers), *_choices(choices)])


def query_key(
    dataset: str,
    name: str,
    question: str,
    answers: Sequence[str],
    split: str,
    choices: Choices = (),
) -> str:
    """Digest of a query: one whose text, answers, choices or fold changed is another query."""
    return digest(["query", dataset, name, question, list(answers), split, *_choices(choices)])


def _choices(choices: Choices) -> list[list[list[str]]]:
    """Nothing where there are none: such keys are those of caches from before choices."""
    return [[[label, text] for label, text in choices]] if choices else []


def plan_key(pool: str, queries: Sequence[str]) -> str:
    """Digest of what a collection is asked for: the pool as JSON, and the keys of its queries."""
    return digest(["plan", pool, list(queries)])
