"""The columns of every kind of part.

Five kinds: `calls` (one row a distinct model call), `queries`, `scores` (quality of a call against
reference answers), `plans` (what a collection was asked for) and `failures` (calls that gave no
answer). Columns are only ever added: one of `ADDED` is null in the rows of a part that was written
before. A part with another column missing, or one of another type, is refused with its name.
"""

from __future__ import annotations

import pyarrow as pa

FORMAT = 1

CHOICES = pa.list_(pa.struct([("label", pa.string()), ("text", pa.string())]))

CALLS = pa.schema(
    [
        ("key", pa.string()),  # call_key(step, context)
        ("step", pa.string()),  # step_key: model, generation settings, instruction
        ("context", pa.string()),  # what the model saw: question and earlier responses
        ("outcome", pa.string()),  # the context after this response
        ("model", pa.string()),  # the model's name in the pool, for people
        ("prompt", pa.string()),  # the user message: the evidence for the key
        ("response", pa.string()),
        ("tokens_in", pa.int32()),  # by the model's own tokenizer, chat template included
        ("tokens_out", pa.int32()),  # generated tokens, the end token included
        ("finish_reason", pa.string()),  # "stop", "length", or "unknown" after an import
        ("latency_s", pa.float64()),  # of the batch, shared equally by its rows; null if imported
    ]
)
QUERIES = pa.schema(
    [
        ("query", pa.string()),  # digest of everything below
        ("context", pa.string()),  # root context, the digest of the question
        ("references", pa.string()),  # digest of the answers and choices
        ("id", pa.string()),
        ("dataset", pa.string()),
        ("split", pa.string()),  # train, validation or test
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("choices", CHOICES),  # what the question offers, in its order; null where nothing
    ]
)
# Columns that parts of earlier versions lack, by kind, with their types in SQL.
ADDED = {"queries": {"choices": "STRUCT(label VARCHAR, text VARCHAR)[]"}}
SCORES = pa.schema(
    [
        ("call", pa.string()),
        ("references", pa.string()),
        ("scorer", pa.string()),
        ("value", pa.float64()),  # in [0, 1]
    ]
)
PLANS = pa.schema(
    [
        ("plan", pa.string()),  # digest of the two columns below
        ("pool", pa.string()),  # JSON: models with identities and rates, hops, instructions
        ("queries", pa.list_(pa.string())),
    ]
)
FAILURES = pa.schema(
    [
        ("key", pa.string()),  # of the call that was wanted
        ("step", pa.string()),
        ("context", pa.string()),
        ("model", pa.string()),
        ("status", pa.string()),  # a word, such as "too_long" or "filtered"
        ("detail", pa.string()),
        ("attempts", pa.int32()),
    ]
)
KINDS = {
    "calls": CALLS,
    "queries": QUERIES,
    "scores": SCORES,
    "plans": PLANS,
    "failures": FAILURES,
}
# Columns that may be null: where an import does not know it, or there are none.
NULLABLE = ("latency_s", "choices")
# The columns that name a row: of several rows with the same ones, the first is served.
IDENTITY = {
    "calls": ("key",),
    "queries": ("query",),
    "scores": ("call", "references", "scorer"),
    "plans": ("plan",),
    "failures": ("key",),
}
# Kinds of which the last row is served: what was asked for, and what went wrong, most recently.
LAST_WINS = ("plans", "failures")


def mismatch(found: pa.Schema, kind: str) -> str | None:
    """What is wrong with the columns of a part of this kind, or None. Further ones are allowed."""
    for field in KINDS[kind]:
        index = found.get_field_index(field.name)
        if index < 0:
            if field.name in ADDED.get(kind, {}):
                continue
            return f"column {field.name} is missing"
        if found.field(index).type != field.type:
            return f"column {field.name} has type {found.field(index).type}, not {field.type}"
    return None
