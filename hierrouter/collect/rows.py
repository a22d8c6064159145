"""What is collected, as rows of the cache.

In: queries, calls with their answers or failures. Out: Arrow tables in the columns of
`hierrouter_cache.schema`. Not covered: writing them (`hierrouter_cache.writer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from hierrouter.collect.generator import Failure, Response
from hierrouter.query import Query
from hierrouter_cache.fingerprint import next_context, root_context
from hierrouter_cache.schema import CALLS, FAILURES, QUERIES


@dataclass(frozen=True)
class Call:
    """One distinct call that is due.

    Attributes:
        key: names the call, see `hierrouter_cache.fingerprint.call_key`.
        step: names model, settings and instruction.
        context: names the question and the responses before the call.
        prompt: what the model is shown.
    """

    key: str
    step: str
    context: str
    prompt: str


def calls_table(model: str, answered: Sequence[tuple[Call, Response]], seconds: float) -> pa.Table:
    """Rows of `calls`; `seconds` is what each of them took."""
    rows = [call_row(model, call, answer, seconds) for call, answer in answered]
    return pa.Table.from_pylist(rows, schema=CALLS)


def call_row(model: str, call: Call, answer: Response, seconds: float | None) -> dict[str, Any]:
    """One row of `calls`; `seconds` is what it took, None where nobody knows."""
    return {
        "key": call.key,
        "step": call.step,
        "context": call.context,
        "outcome": next_context(call.context, answer.text),
        "model": model,
        "prompt": call.prompt,
        "response": answer.text,
        "tokens_in": answer.tokens_in,
        "tokens_out": answer.tokens_out,
        "finish_reason": answer.finish_reason,
        "latency_s": seconds,
    }


def failures_table(model: str, failed: Sequence[tuple[Call, Failure]], attempts: int) -> pa.Table:
    """Rows of `failures`, after so many attempts at each."""
    rows = [
        {
            "key": call.key,
            "step": call.step,
            "context": call.context,
            "model": model,
            "status": failure.status,
            "detail": failure.detail,
            "attempts": attempts,
        }
        for call, failure in failed
    ]
    return pa.Table.from_pylist(rows, schema=FAILURES)


def queries_table(queries: Sequence[Query]) -> pa.Table:
    """Rows of `queries`."""
    rows = [
        {
            "query": query.key,
            "context": root_context(query.question),
            "references": query.references,
            "id": query.id,
            "dataset": query.dataset,
            "split": query.split,
            "question": query.question,
            "answers": list(query.answers),
            "choices": [{"label": label, "text": text} for label, text in query.choices] or None,
        }
        for query in queries
    ]
    return pa.Table.from_pylist(rows, schema=QUERIES)
