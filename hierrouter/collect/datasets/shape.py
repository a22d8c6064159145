"""One question in the shape that every source has.

In: a row: `question`, `answer` or `answers`, and perhaps `id`, `final_answer`, `choices`, `split`
and `dataset`; further keys are ignored. Out: a `Query`. Choices stand below the question, with the
letters A to J. Not covered: where rows come from (`local`, `hub`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from hierrouter.query import Query, storable
from hierrouter.scoring.accuracy import with_final
from hierrouter_cache.errors import InputError

Row = Mapping[str, Any]
Pairs = list[tuple[str, str]]

PAPER_DATASETS = ("gsm8k", "math", "mbpp", "mmlu", "arc-easy", "arc-challenge")
MAX_QUESTION = 1_000_000  # characters; more is a mistake in the file, not a question
LETTERS = "ABCDEFGHIJ"
SPLITS = ("", "train", "validation", "test")
REMEDY = "mend the row or take it out"


def query_of(row: Row, where: str, dataset: str, number: int) -> Query:
    """The question of one row; `split` is "" where the row does not say.

    Args:
        row: keys as above.
        where: names the row in messages.
        dataset: of rows that name none.
        number: the id of rows that have none.

    Raises:
        InputError: a key is missing or holds something else.
    """
    question = _text(row, "question", where)
    if len(question) > MAX_QUESTION:
        raise InputError(
            f"question too long: {where}: {len(question):,} characters, limit {MAX_QUESTION:,}; "
            f"{REMEDY}"
        )
    split = row.get("split", "")
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r:.40}: {where}; use train or test")
    choices, answers = _lettered(_choices(row, where), _answers(row, where), where)
    return Query(
        id=_id(row, where, number),
        dataset=dataset_called(storable(_text(row, "dataset", where, dataset))),
        question=storable(question + choice_lines(choices)),
        answers=tuple(map(storable, answers)),
        split=split,
        choices=tuple((label, storable(text)) for label, text in choices),
    )


def choice_lines(choices: Iterable[tuple[str, str]]) -> str:
    """(label, text) of each choice as the lines that stand below a question."""
    return "".join(f"\n{label}. {text}" for label, text in choices)


def dataset_called(name: str) -> str:
    """One spelling of the paper's datasets: rows that say arc_easy are those of arc-easy."""
    spelt = name.replace("_", "-")
    return spelt if spelt in PAPER_DATASETS else name


def _id(row: Row, where: str, number: int) -> str:
    value = row.get("id", number)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"id must be a text or a number, got {value!r:.40}: {where}")
    return storable(str(value))


def _text(row: Row, key: str, where: str, default: str | None = None) -> str:
    if key not in row and default is not None:
        return default
    if key not in row:
        raise InputError(f"{key} is missing: {where}; it has {', '.join(sorted(row)) or 'nothing'}")
    value = row[key]
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{key} is empty or not a text: {where}; {REMEDY}")
    return value


def _answers(row: Row, where: str) -> list[str]:
    """The reference answers, with the final one where no other states its result."""
    answers = _given(row, where)
    if "final_answer" not in row:
        return answers
    return list(with_final(answers, _number_or_text(row, "final_answer", where)))


def _given(row: Row, where: str) -> list[str]:
    if "answers" not in row:
        return [_number_or_text(row, "answer", where)]
    answers = row["answers"]
    if not isinstance(answers, list) or not answers:
        raise InputError(f"answers is empty or not a list: {where}; {REMEDY}")
    if not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise InputError(f"answers holds something empty or not a text: {where}; {REMEDY}")
    return answers


def _number_or_text(row: Row, key: str, where: str) -> str:
    value = row.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    return _text(row, key, where)


def _choices(row: Row, where: str) -> Pairs:
    """(label, text) of each choice; a list of texts has the letters as labels."""
    given = row.get("choices") or {}
    if not isinstance(given, dict | list):
        raise InputError(f"choices must be an object or a list, got {given!r:.40}: {where}")
    if len(given) > len(LETTERS):
        raise InputError(f"{len(given)} choices, {len(LETTERS)} at most: {where}; {REMEDY}")
    texts = list(given.values() if isinstance(given, dict) else given)
    if not all(isinstance(text, str) for text in texts):
        raise InputError(
            f'choices must map labels to texts: {where}; e.g. {{"A": "..."}}, or list the texts'
        )
    return list(zip(given if isinstance(given, dict) else LETTERS, texts, strict=False))


def _lettered(choices: Pairs, answers: list[str], where: str) -> tuple[Pairs, list[str]]:
    """Choices and answers with letters as labels, whatever they were (ARC has 1 to 4 too).

    Raises:
        InputError: no answer is a label.
    """
    if not choices:
        return choices, answers
    if not {label for label, _ in choices} <= set(LETTERS):
        letter = {label: LETTERS[place] for place, (label, _) in enumerate(choices)}
        choices = [(letter[label], text) for label, text in choices]
        answers = [letter.get(answer, answer) for answer in answers]
    labels = [label for label, _ in choices]
    if not any(answer in labels for answer in answers):
        raise InputError(
            f"answer {answers[0]!r:.40} is none of the labels {', '.join(labels)}: {where}; "
            f"{REMEDY}"
        )
    return choices, answers
