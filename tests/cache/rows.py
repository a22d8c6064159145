"""Rows of every kind, small and made up, for tests of the cache alone."""

import pyarrow as pa

from hierrouter_cache.keys import call_key, next_context, references_key, root_context
from hierrouter_cache.parts import CALLS, PLANS, QUERIES, SCORES
from hierrouter_cache.walk import TreeSpec


def calls(*rows: tuple[str, str, str]) -> pa.Table:
    """(step, context, response) as rows of `calls`."""
    return pa.Table.from_pylist(
        [
            {
                "key": call_key(step, context),
                "step": step,
                "context": context,
                "outcome": next_context(context, response),
                "model": step,
                "prompt": "p",
                "response": response,
                "tokens_in": 3,
                "tokens_out": 2,
                "finish_reason": "stop",
                "latency_s": 0.1,
            }
            for step, context, response in rows
        ],
        schema=CALLS,
    )


def queries(*questions: str, answer: str = "yes") -> pa.Table:
    """One row of `queries` a question; its key is `q-<question>`."""
    return pa.Table.from_pylist(
        [
            {
                "query": f"q-{question}",
                "context": root_context(question),
                "references": references_key([answer]),
                "id": question,
                "dataset": "d",
                "split": "test",
                "question": question,
                "answers": [answer],
            }
            for question in questions
        ],
        schema=QUERIES,
    )


def scores(table: pa.Table, answer: str = "yes") -> pa.Table:
    """A score of each scorer for each of these calls: 1 where the response is the answer."""
    return pa.Table.from_pylist(
        [
            {
                "call": row["key"],
                "references": references_key([answer]),
                "scorer": scorer,
                "value": float(row["response"] == answer),
            }
            for row in table.to_pylist()
            for scorer in ("token_f1", "exact_match")
        ],
        schema=SCORES,
    )


def plan(*keys: str) -> pa.Table:
    return pa.table([["plan"], ["{}"], [list(keys)]], schema=PLANS)


def plans(*names: str) -> pa.Table:
    """One plan a name, for a pool and a query of that name."""
    return pa.table([names, names, [[name] for name in names]], schema=PLANS)


def spec(models: str, hops: int) -> TreeSpec:
    """One-letter models whose step keys are their names."""
    return TreeSpec(
        models=tuple(models),
        steps=tuple(tuple(models) for _ in range(hops)),
        direct=tuple((name, name) for name in models),
    )


def tree_calls(models: str, hops: int, question: str) -> list[tuple[str, str, str]]:
    """(step, context, response) of a whole tree; a response tells its route."""
    rows = []
    level = [(root_context(question), "")]
    for _ in range(hops):
        following = []
        for context, said in level:
            for model in models:
                response = said + model
                rows.append((model, context, response))
                following.append((next_context(context, response), response))
        level = following
    return rows
