"""What identifies a row, and whether a row is what its key says."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from hierrouter_cache.errors import reason_of
from hierrouter_cache.parts import CHOICES, KINDS, NULLABLE, Part, part_batches

Choices = Sequence[tuple[str, str]]  # (label, text) of each
Row = Mapping[str, Any]

DIGEST_LENGTH = 32
# Bump when the text of a prompt is laid out in another way: old answers then stop matching.
PROMPT_LAYOUT = 1
CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
INT32 = range(2**31)
EXACT = 2**53  # Arrow takes no greater whole number for a float


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


def row_fault(kind: str, row: Row) -> str | None:
    """What is wrong with a row of this kind, or None."""
    for field in KINDS[kind]:
        value = row[field.name]
        if value is None and field.name in NULLABLE:
            continue
        if not _TYPES[field.type](value):
            return f"{field.name} must be {field.type}, got {value!r:.40}"
    name = {"scores": "value", "decisions": "chance"}.get(kind)
    if name and not 0 <= row[name] <= 1:
        return f"{name} must be from 0 to 1, got {row[name]!r:.40}"
    if kind == "scores":
        return None
    broken = next((name for name, key in _keys(kind, row).items() if row[name] != key), None)
    return broken and f"{broken} is not that of the row's content"


def part_fault(
    part: Part,
    fault_of: Callable[[str, Row], str | None] = row_fault,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> str | None:
    """`row N: ...` for the first bad row of a part, or None; memory does not grow with its rows.

    Raises FileNotFoundError: a compaction has taken the part away.

    `part`: sound, as `parts.sound_parts` gives it; `fault_of`: what is wrong with a row of a kind;
    `on_rows`: told the number of rows after each batch of them.
    """
    done = 0
    try:
        for batch in part_batches(part):
            for number, row in enumerate(batch.to_pylist(), start=done + 1):
                if fault := fault_of(part.kind, row):
                    return f"row {number}: {fault}"
            done += batch.num_rows
            on_rows(batch.num_rows)
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        return f"not readable after row {done} ({reason_of(error, 80)})"
    return None


def _is_text(value: object) -> bool:
    """Half a character (a lone surrogate) can be neither hashed nor stored."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in INT32


def _is_number(value: object) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= EXACT
    return isinstance(value, float) and math.isfinite(value)


def _are_choices(value: object) -> bool:
    """One or more; none at all are null, so that a row can be written in one way only."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and item.keys() == {"label", "text"} for item in value)
        and all(_is_text(text) for item in value for text in item.values())
    )


_TYPES: Mapping[pa.DataType, Callable[[object], bool]] = {
    pa.string(): _is_text,
    pa.int32(): _is_count,
    pa.float64(): _is_number,
    pa.bool_(): lambda value: isinstance(value, bool),
    pa.list_(pa.string()): lambda value: isinstance(value, list) and all(map(_is_text, value)),
    pa.list_(pa.float64()): lambda value: isinstance(value, list) and all(map(_is_number, value)),
    CHOICES: _are_choices,
}


def _keys(kind: str, row: Row) -> dict[str, str]:
    """What the columns that are digests of other columns must hold."""
    if kind == "calls":
        return {
            "key": call_key(row["step"], row["context"]),
            "outcome": next_context(row["context"], row["response"]),
        }
    if kind in ("failures", "decisions"):
        return {"key": call_key(row["step"], row["context"])}
    if kind == "plans":
        return {"plan": plan_key(row["pool"], row["queries"])}
    choices = [(choice["label"], choice["text"]) for choice in row["choices"] or ()]
    return {
        "query": query_key(
            row["dataset"], row["id"], row["question"], row["answers"], row["split"], choices
        ),
        "context": root_context(row["question"]),
        "references": references_key(row["answers"], choices),
    }
