"""Digests that identify rows, and checks that a row is what its key says."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from hierrouter_cache.errors import reason_of
from hierrouter_cache.parts import (
    CHOICES_TYPE,
    NULLABLE_COLUMNS,
    PARQUET_ERRORS,
    ROW_SCHEMAS,
    Part,
    part_batches,
)

Choices = Sequence[tuple[str, str]]  # (label, text) of each choice
Row = Mapping[str, Any]

DIGEST_LENGTH = 32
# Increase this when the text of a prompt is laid out in another way: stored responses to the old
# layout then no longer match.
PROMPT_LAYOUT = 1
CANONICAL_JSON = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
INT32_RANGE = range(2**31)
MAX_EXACT_INTEGER = 2**53  # Arrow takes no greater integer for a float
UNSOUND_PATTERN = re.compile("[\0\ud800-\udfff]")
MAX_JSON_DEPTH = 100
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def sound_text(text: str) -> str:
    r"""Return the text with U+FFFD for each character that cannot go further.

    Every door through which text of others enters calls this, or `sound_json`, once: request
    bodies, logs, data files of every format, answers of model servers, judges and encoders. Behind
    the doors all text is sound.

    * A lone surrogate (`"\ud800"` in JSON, a byte that is no UTF-8 in a file's name or a variable
      of the environment) has no UTF-8, so it cannot be hashed, stored or sent: Arrow, DuckDB,
      tokenizers and httpx raise an error of their own each, and `mmh3.hash`, which the encoder
      `hashed-ngrams` calls, ends the process with signal 11.
    * NUL ends a text for every library in C that takes one without its length, so that parts of a
      program would see different texts. CommonMark and HTML replace it, too.

    All other characters stay as they are: what a model answered is stored and scored as it came.
    Control characters, C1 and bidi overrides included, become visible where a text is printed, see
    `hierrouter.tables.safe_text`.

    Args:
        text: any text.

    Returns:
        The text itself if it is sound.
    """
    if text.isascii() and "\0" not in text:  # a hundred times as fast as the pattern
        return text
    return UNSOUND_PATTERN.sub(REPLACEMENT, text)


def sound_json(data: str | bytes | bytearray, loads: Callable[[str], Any] = json.loads) -> Any:
    """Parse JSON of others; every text in it, names included, is made sound.

    Args:
        data: JSON; bytes in UTF-8, UTF-16 or UTF-32, as JSON allows.
        loads: parses it.

    Raises:
        ValueError: it is no JSON, or nested too deeply, or the bytes are no text: overlong forms
            and encoded surrogates are none.
    """
    text = data if isinstance(data, str) else data.decode(json.detect_encoding(data))
    try:
        value = loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    # Only an escape can have brought what `sound_text` replaces into decoded bytes.
    is_suspect = "\\u" in text or UNSOUND_PATTERN.search(text)
    return sound_values(value) if is_suspect else value


def sound_values(value: Any, depth: int = 0) -> Any:
    """Return a JSON value with every text in it made sound, see `sound_text`.

    Args:
        value: a text, number, truth value or null, or lists and objects of them.
        depth: of the value in the value that contains it.

    Raises:
        ValueError: it is nested too deeply: whoever writes or compares it again would fail.
    """
    if isinstance(value, str):
        return sound_text(value)
    if isinstance(value, list | dict) and depth == MAX_JSON_DEPTH:
        raise ValueError(f"nested more than {MAX_JSON_DEPTH} deep")
    if isinstance(value, list):
        return [sound_values(element, depth + 1) for element in value]
    if isinstance(value, dict):
        return {
            sound_text(name): sound_values(element, depth + 1) for name, element in value.items()
        }
    return value


def digest(value: Any) -> str:
    """Return the digest of a JSON value in canonical form; floats must be finite."""
    return text_digest(CANONICAL_JSON.encode(value))


def text_digest(text: str) -> str:
    """Return the digest of a text; in DuckDB's SQL it is `left(sha256(text), 32)`."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def step_key(model: Mapping[str, Any], generation: Mapping[str, Any], instruction: str) -> str:
    """Return the digest of a step, which is one way to call a model.

    Args:
        model: identity of the model, as JSON.
        generation: settings of the generation, as JSON.
        instruction: the instruction of the stage.
    """
    return digest(["step", PROMPT_LAYOUT, model, generation, instruction])


@lru_cache(maxsize=4096)  # asked for at each node of a tree, and there are few of them
def draw_step(step: str, draw: int) -> str:
    """Return the digest of a step whose response is a further draw of the same call.

    So each draw of a call has a key of its own. The first one has that of a call without draws.

    Args:
        step: digest of the step, see `step_key`.
        draw: number of the draw, from 0.
    """
    return digest(["draw", step, draw]) if draw else step


def root_context(question: str, owner: Sequence[str] = ()) -> str:
    """Return the digest of a query's context before any call.

    Args:
        question: its text.
        owner: (dataset, id) of the only query whose calls these are. Empty if every query with this
            text has the same calls, as all queries of a collection do.
    """
    return digest(["context", question, *([list(owner)] if owner else [])])


def next_context(context: str, response: str, step: str = "") -> str:
    """Return the digest of a context with a response appended.

    Source: c_{t+1} = c_t || r_t, paper section 3.1.

    Args:
        context: digest of the context.
        response: what the next call reads of the response, without its thought if the pool drops
            thoughts.
        step: key of the call that gave the response, if what follows depends on it; empty if the
            text alone decides, as in every collection.
    """
    return digest(["context", context, response, *([step] if step else [])])


def judged_context(question: str, response: str, references: str | None = None) -> str:
    """Return the digest of what a judge reads of one answer; it is made of digests, for SQL.

    Args:
        question: its text.
        response: what is judged: the response as the next call would read it.
        references: the reference answers, each on a line; None if the judge does not read them.
    """
    texts = [question, response, *([] if references is None else [references])]
    return digest(["judged", *map(text_digest, texts)])


def call_key(step: str, context: str, sample: int = 0) -> str:
    """Return the digest that names one call.

    Args:
        step: digest of the step, see `step_key`.
        context: digest of the context, see `next_context`.
        sample: number of the draw, where generation is not greedy and a call is repeated.
    """
    return digest(["call", step, context, sample])


def references_key(
    answers: Sequence[str],
    choices: Choices = (),
    tests: Sequence[str] = (),
    answer_type: str | None = None,
) -> str:
    """Return the digest of what a score depends on besides the response.

    Args:
        answers: the query's reference answers.
        choices: the query's choices, if it has any.
        tests: statements that judge a program, if the query has any.
        answer_type: type of the answer, if it is not told by the look of the answers.
    """
    return digest(
        [
            *("references", list(answers)),
            *_choices_for_digest(choices),
            *_tests_for_digest(tests),
            *_type_for_digest(answer_type),
        ]
    )


def query_key(
    dataset: str,
    name: str,
    question: str,
    answers: Sequence[str],
    split: str,
    choices: Choices = (),
    has_own_calls: bool = False,
    tests: Sequence[str] = (),
    answer_type: str | None = None,
) -> str:
    """Return the digest of a query; a change of any argument makes it another query.

    Args:
        dataset: name of its dataset.
        name: its id in the dataset.
        question: its text.
        answers: its reference answers.
        split: "train", "validation" or "test".
        choices: its choices, if it has any.
        has_own_calls: whether it shares no calls with another query of this text.
        tests: statements that judge a program, if it has any.
        answer_type: type of the answer, if it is not told by the look of the answers.
    """
    own_calls = ["own calls"] if has_own_calls else []
    return digest(
        [
            *("query", dataset, name, question, list(answers), split),
            *_choices_for_digest(choices),
            *own_calls,
            *_tests_for_digest(tests),
            *_type_for_digest(answer_type),
        ]
    )


def _choices_for_digest(choices: Choices) -> list[list[list[str]]]:
    """Return the list items that choices add to a digest; none if there are no choices.

    So queries without choices keep the keys that they had before choices were introduced.
    """
    if not choices:
        return []
    return [[[label, text] for label, text in choices]]


def _tests_for_digest(tests: Sequence[str]) -> list[dict[str, list[str]]]:
    """Return the list items that tests add to a digest; none if there are no tests."""
    return [{"tests": list(tests)}] if tests else []


def _type_for_digest(answer_type: str | None) -> list[dict[str, str]]:
    """Return the list items that a type adds to a digest; none if there is no type."""
    return [{"answer_type": answer_type}] if answer_type else []


def plan_key(pool: str, queries: Sequence[str]) -> str:
    """Return the digest of a plan.

    Args:
        pool: the pool as JSON.
        queries: keys of the plan's queries.
    """
    return digest(["plan", pool, list(queries)])


def row_fault(kind: str, row: Row) -> str | None:
    """Return what is wrong with a row of this kind, or None if it is sound."""
    for field in ROW_SCHEMAS[kind]:
        value = row[field.name]
        if value is None and field.name in NULLABLE_COLUMNS:
            continue
        if not _TYPE_CHECKS[field.type](value):
            return f"{field.name} must be {field.type}, got {value!r:.40}"
        if field.name == "tests" and not value:  # no tests are stored as null
            return "tests must not be empty"
    unit_interval_column = {"scores": "value", "decisions": "chance"}.get(kind)
    if unit_interval_column and not 0 <= row[unit_interval_column] <= 1:
        value = row[unit_interval_column]
        return f"{unit_interval_column} must be from 0 to 1, got {value!r:.40}"
    if kind == "scores":  # has no column that is a digest of its others
        return None
    for column, key in _digest_columns(kind, row).items():
        if row[column] != key:
            return f"{column} is not that of the row's content"
    return None


def part_fault(
    part: Part,
    fault_of: Callable[[str, Row], str | None] = row_fault,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> str | None:
    """Return `row N: ...` for the first bad row of a part, or None if all are sound.

    The memory used does not grow with the number of rows.

    Args:
        part: a sound part, as `chain.sound_parts` returns it.
        fault_of: returns what is wrong with a row of a kind, or None.
        on_rows: called after each batch with its number of rows.

    Raises:
        FileNotFoundError: a compaction has removed the part.
    """
    rows_checked = 0
    try:
        for batch in part_batches(part):
            for number, row in enumerate(batch.to_pylist(), start=rows_checked + 1):
                fault = fault_of(part.kind, row)
                if fault:
                    return f"row {number}: {fault}"
            rows_checked += batch.num_rows
            on_rows(batch.num_rows)
    except FileNotFoundError:
        raise
    except PARQUET_ERRORS as error:
        return f"not readable after row {rows_checked} ({reason_of(error, 80)})"
    return None


def _is_text(value: object) -> bool:
    """Return whether it is text that can be stored.

    Half a character (a lone surrogate) can be neither hashed nor stored.
    """
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in INT32_RANGE


def _is_number(value: object) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= MAX_EXACT_INTEGER
    return isinstance(value, float) and math.isfinite(value)


def _are_choices(value: object) -> bool:
    """Return whether it is a list of one or more choices.

    An empty list is refused: no choices are stored as null, so that a query has only one form.
    """
    if not isinstance(value, list) or not value:
        return False
    for choice in value:
        if not isinstance(choice, dict) or choice.keys() != {"label", "text"}:
            return False
        if not all(_is_text(text) for text in choice.values()):
            return False
    return True


_TYPE_CHECKS: Mapping[pa.DataType, Callable[[object], bool]] = {
    pa.string(): _is_text,
    pa.int32(): _is_count,
    pa.float64(): _is_number,
    pa.bool_(): lambda value: isinstance(value, bool),
    pa.list_(pa.string()): lambda value: isinstance(value, list) and all(map(_is_text, value)),
    pa.list_(pa.float64()): lambda value: isinstance(value, list) and all(map(_is_number, value)),
    CHOICES_TYPE: _are_choices,
}


def _digest_columns(kind: str, row: Row) -> dict[str, str]:
    """Return what the columns that are digests of other columns must contain, by column."""
    if kind == "calls":
        visible = row["response"] if row["visible"] is None else row["visible"]
        outcome = next_context(row["context"], visible)
        # Imported chains of several models may go on differently after equal responses.
        if row["outcome"] != outcome:
            outcome = next_context(row["context"], visible, row["step"])
        return {"key": call_key(row["step"], row["context"]), "outcome": outcome}
    if kind in ("failures", "decisions"):
        return {"key": call_key(row["step"], row["context"])}
    if kind == "plans":
        return {"plan": plan_key(row["pool"], row["queries"])}
    choices = [(choice["label"], choice["text"]) for choice in row["choices"] or ()]
    tests = row["tests"] or ()
    own_context = root_context(row["question"], (row["dataset"], row["id"]))
    has_own_calls = row["context"] == own_context
    return {
        "query": query_key(
            row["dataset"],
            row["id"],
            row["question"],
            row["answers"],
            row["split"],
            choices,
            has_own_calls,
            tests,
            row["answer_type"],
        ),
        "context": own_context if has_own_calls else root_context(row["question"]),
        "references": references_key(row["answers"], choices, tests, row["answer_type"]),
    }
