"""Our JSON lines: what each kind of line must be.

In: one object, its `kind` and the columns of that kind in `hierrouter_cache.schema`. Out: a row of
the cache, every key computed again from what it names, so that a row that was edited or torn is
refused with its line. Not covered: files (`jsonl`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from hierrouter.pool import pool_from_json
from hierrouter.query import Query
from hierrouter_cache.errors import InputError
from hierrouter_cache.fingerprint import (
    call_key,
    digest,
    next_context,
    references_key,
    root_context,
)
from hierrouter_cache.schema import KINDS

# A kind of line, and the kind of rows in a cache.
LINES = {
    "query": "queries",
    "call": "calls",
    "failure": "failures",
    "score": "scores",
    "plan": "plans",
}
HEADER = "cache"
OPTIONAL = {"latency_s"}  # None where an import does not know it
INT32 = range(2**31)
SURROGATE = re.compile("[\ud800-\udfff]")  # half a character; neither hashed nor stored
Row = Mapping[str, Any]


def checked_row(line: Row, where: str) -> tuple[str, dict[str, Any]]:
    """(kind in the cache, row) of a line.

    Raises:
        InputError: an unknown kind, a column missing or of another type, or a key that is not that
            of the content.
    """
    kind = LINES.get(str(line.get("kind")))
    if kind is None:
        raise InputError(
            f"unknown kind {line.get('kind')!r:.40}: {where}; known: {', '.join(LINES)}"
        )
    row = {field.name: _value(line, field, where) for field in KINDS[kind]}
    broken = CHECKS[kind](row)
    if broken:
        raise InputError(
            f"{broken} is not that of the line's content: {where}; it was changed after the "
            "export, export again"
        )
    return kind, row


def _value(line: Row, field: pa.Field, where: str) -> Any:
    if field.name not in line:
        raise InputError(f"{field.name} is missing: {where}; it has {', '.join(line):.120}")
    value = line[field.name]
    if value is None and field.name in OPTIONAL:
        return None
    if not TYPES[field.type](value):
        raise InputError(f"{field.name} must be {field.type}, got {value!r:.40}: {where}")
    return value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not SURROGATE.search(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in INT32


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(_is_text(item) for item in value)


TYPES: Mapping[pa.DataType, Callable[[object], bool]] = {
    pa.string(): _is_text,
    pa.int32(): _is_count,
    pa.float64(): _is_number,
    pa.list_(pa.string()): _are_texts,
}


def _check_query(row: Row) -> str | None:
    query = Query(row["id"], row["dataset"], row["question"], tuple(row["answers"]), row["split"])
    return _first_difference(
        row,
        query=query.key,
        context=root_context(query.question),
        references=references_key(query.answers),
    )


def _check_call(row: Row) -> str | None:
    return _first_difference(
        row,
        key=call_key(row["step"], row["context"]),
        outcome=next_context(row["context"], row["response"]),
    )


def _check_failure(row: Row) -> str | None:
    return _first_difference(row, key=call_key(row["step"], row["context"]))


def _check_score(row: Row) -> str | None:
    return None if 0 <= row["value"] <= 1 else "value"


def _check_plan(row: Row) -> str | None:
    try:
        pool_from_json(row["pool"])
    except (ValueError, KeyError, TypeError):
        return "pool"
    return _first_difference(row, plan=digest(["plan", row["pool"], row["queries"]]))


def _first_difference(row: Row, **computed: str) -> str | None:
    return next((name for name, value in computed.items() if row[name] != value), None)


CHECKS: Mapping[str, Callable[[Row], str | None]] = {
    "queries": _check_query,
    "calls": _check_call,
    "failures": _check_failure,
    "scores": _check_score,
    "plans": _check_plan,
}
