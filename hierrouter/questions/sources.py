"""Read questions from a user's own files and from the Hugging Face hub, in one form.

A row has a `question` and an `answer`, or several `answers`. It may have an `id`, `choices`, a
`split`, a `dataset`, a `final_answer` beside answers that do not state their result, and `tests` of
the program that it asks for. Rows of the paper's datasets may have the columns of any of their
published files.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hierrouter.hub.repository import DATASET, DEFAULT_BRANCH, OFFLINE, HubError, Repository, short
from hierrouter.questions.files import (
    decimal_or_float,
    json_lines,
    json_rows,
    number_text,
    parquet_rows,
    parquet_schema,
)
from hierrouter.questions.labels import labels_of_reference
from hierrouter.questions.programs import python_fault
from hierrouter.questions.query import MAX_GROUP_NAME, Query, group_name, is_blank
from hierrouter.questions.scoring import (
    TYPE_SCORERS,
    look_of,
    with_final_answer,
    without_annotations,
)
from hierrouter_cache.errors import InputError, WorldError, reason_of, suggestion
from hierrouter_cache.keys import sound_text

Row = Mapping[str, Any]
ChoicePairs = list[tuple[str, str]]  # (label, text)

PAPER_DATASETS = ("gsm8k", "math", "mbpp", "mmlu", "arc-easy", "arc-challenge")
LABEL_LOOK = "choice"  # values of `look_of`
TEXT_LOOK = "exact_match"
MAX_ROW_QUESTION_CHARACTERS = 1_000_000  # a longer one is a mistake in the file
CHOICE_LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ALLOWED_SPLITS = ("", "train", "validation", "test")
ROW_REMEDY = "mend the row or take it out"


def query_of(
    row: Row,
    where: str,
    dataset: str,
    number: int,
    first: int | None = None,
    group_by: str | None = None,
) -> Query:
    """Make a query of one row.

    Args:
        row: see the module; other keys are ignored.
        where: names the row in messages.
        dataset: of a row that names none.
        number: the id of a row that has none.
        first: the number of the first choice, 0 or 1, where answers are numbers of choices; None
            if they are labels or texts. One row does not tell it, see `first_choice_number`.
        group_by: the key whose value takes the place of the dataset, in rows that have it.

    Returns:
        the query; its `split` is "" if the row has none.

    Raises:
        InputError: a key is missing or has a value of another kind.
    """
    if "asked_for" in row:
        raise InputError(
            f"that is the log of a server, and its answers are nobody's references: {where}; "
            "`hierrouter learn-from LOG` collects its questions"
        )
    question = _text(row, "question", where)
    if len(question) > MAX_ROW_QUESTION_CHARACTERS:
        raise InputError(
            f"question too long: {where}: {len(question):,} characters, limit "
            f"{MAX_ROW_QUESTION_CHARACTERS:,}; {ROW_REMEDY}"
        )
    split = row.get("split", "")
    if split not in ALLOWED_SPLITS:
        raise InputError(f"unknown split {split!r:.40}: {where}; use train or test")
    choices, answers = _with_letters(_choices(row, where), _answers(row, where), where, first)
    return Query(
        id=_id(row, where, number),
        dataset=_group(row, where, dataset, group_by),
        question=sound_text(question + choice_lines(choices)),
        answers=tuple(sound_text(answer) for answer in answers),
        split=split,
        choices=tuple((label, sound_text(text)) for label, text in choices),
        tests=tests_of(row, where),
        answer_type=_answer_type(row, where),
    )


def choice_lines(choices: Iterable[tuple[str, str]]) -> str:
    """The lines below a question: one for each choice.

    Args:
        choices: (label, text) of each choice.
    """
    return "".join(f"\n{label}. {text}" for label, text in choices)


def _group(row: Row, where: str, dataset: str, group_by: str | None) -> str:
    """The group of a row: the value of a key, if it has that, else the dataset."""
    if group_by is None or group_by not in row:
        return canonical_dataset(sound_text(_text(row, "dataset", where, dataset)))
    group = group_name(row[group_by])
    if group is None:
        raise InputError(
            f"{group_by:.60} is no name of up to {MAX_GROUP_NAME} characters, nor a number: "
            f"{where}; name another field with --group-by, or mend the row"
        )
    return group


def canonical_dataset(name: str) -> str:
    """The usual spelling of a dataset of the paper: `arc_easy` is `arc-easy`."""
    spelling = name.replace("_", "-")
    return spelling if spelling in PAPER_DATASETS else name


def _id(row: Row, where: str, number: int) -> str:
    value = row.get("id", number)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column with gaps has floats
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"id must be a text or a number, got {value!r:.40}: {where}")
    if is_blank(str(value)):
        raise InputError(f"id is empty: {where}; {ROW_REMEDY}")
    return sound_text(str(value))


def _text(row: Row, key: str, where: str, default: str | None = None) -> str:
    if key not in row and default is not None:
        return default
    if key not in row:
        raise InputError(f"{key} is missing: {where}; it has {', '.join(sorted(row)) or 'nothing'}")
    value = row[key]
    if not isinstance(value, str) or is_blank(value):
        raise InputError(f"{key} is empty or not a text: {where}; {ROW_REMEDY}")
    return value


def _answer_type(row: Row, where: str) -> str:
    """The declared type of the answer; "" if the row declares none."""
    answer_type = row.get("answer_type") or ""
    if answer_type and answer_type not in TYPE_SCORERS:
        known = ", ".join(TYPE_SCORERS)
        raise InputError(f"unknown answer_type {answer_type!r:.40}: {where}; known: {known}")
    return str(answer_type)


def with_inferred_types(queries: Sequence[Query]) -> list[Query]:
    """The queries with a type where the look of an answer alone would tell it wrong.

    If fewer than half of a dataset's references look like labels, an "A" among them is a text, or
    an expression among formulas and numbers. Declared types, questions with choices and the paper's
    datasets stay as they are.
    """
    looks: dict[str, Counter[str]] = {}
    for query in queries:
        looks.setdefault(query.dataset, Counter())[look_of(query.answers)] += 1
    typed = []
    for query in queries:
        look = looks[query.dataset]
        is_label = look_of(query.answers) == LABEL_LOOK and not (query.choices or query.answer_type)
        if is_label and query.dataset not in PAPER_DATASETS and 2 * look[LABEL_LOOK] < look.total():
            others = look.total() - look[LABEL_LOOK]
            query = replace(
                query, answer_type="text" if 2 * look[TEXT_LOOK] >= others else "expression"
            )
        typed.append(query)
    return typed


def _answers(row: Row, where: str) -> list[str]:
    """The reference answers, with the final answer if no other states the result."""
    key = "answers" if "answers" in row else "answer"
    answers = _listed_answers(row, where)
    if not isinstance(answers, list) or not answers:
        raise InputError(f"{key} is empty or not a list: {where}; {ROW_REMEDY}")
    answers = [number_text(answer) if _is_finite_number(answer) else answer for answer in answers]
    if any(isinstance(answer, bool) for answer in answers):
        raise InputError(
            f"{key} is true or false, neither a text nor a number: {where}; write it as a text, "
            "such as yes or no"
        )
    if not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise InputError(f"{key} holds something empty or not a text: {where}; {ROW_REMEDY}")
    answers = [without_annotations(answer) for answer in answers]
    if "final_answer" in row:
        return list(with_final_answer(answers, _number_or_text(row, "final_answer", where)))
    return answers


def _listed_answers(row: Row, where: str) -> Any:
    """The value of `answers`, or of an `answer` that is a list, else a list of the one answer."""
    if "answers" in row:
        return row["answers"]
    if isinstance(row.get("answer"), list):
        return row["answer"]
    if isinstance(row.get("answer"), bool):
        return [row["answer"]]
    return [_number_or_text(row, "answer", where)]


def _number_or_text(row: Row, key: str, where: str) -> str:
    value = row.get(key)
    return number_text(row[key]) if _is_finite_number(value) else _text(row, key, where)


def _is_finite_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return False
    return isinstance(value, int) or math.isfinite(value)


# Names of the columns of tests. MBPP has its own, in its files within `meta`: the tests, and what
# runs between a program and its tests.
TESTS_KEYS = ("tests", "test_list")
TEST_SETUP_KEYS = ("test_setup_code", "test_imports")
META_KEY = "meta"


def tests_of(row: Row, where: str) -> tuple[str, ...]:
    """The statements that judge a program, in order; empty if the row has none.

    Args:
        row: of a file.
        where: names the row in messages.

    Raises:
        InputError: they are no Python.
    """
    meta = row.get(META_KEY)
    columns = {**meta, **row} if isinstance(meta, dict) else row
    key = next((key for key in TESTS_KEYS if columns.get(key)), None)
    if key is None:
        return ()
    tests = [
        *(test for name in TEST_SETUP_KEYS for test in _as_list(columns.get(name) or ())),
        *_as_list(columns[key]),
    ]
    if not all(isinstance(test, str) for test in tests):
        raise InputError(f"{key} must be a program, or a list of statements: {where}; {ROW_REMEDY}")
    tests = [test.replace("\r\n", "\n") for test in tests if test.strip()]
    for test in tests:
        fault = python_fault(test)
        if fault:
            raise InputError(f"{key} is no Python, {fault}: {where}; {ROW_REMEDY}")
    return tuple(tests)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


# Choices. Others write the right one as its label, its number from 0 or from 1, or its text.

# A label as an answer: `B`, `(B)`, `[B]`, `B.`, or with the text of its choice, `(B) sand`.
LABEL_ANSWER_PATTERN = re.compile(r"\s*[(\[]?\s*([A-Za-z])\s*[)\].:]?\s*")
LABEL_AND_TEXT_PATTERN = re.compile(r"\s*\(?\s*([A-Za-z])\s*[).:]\s*(\S.*)", re.S)
CHOICE_NUMBER_PATTERN = re.compile(r"\s*(\d{1,2})(?:\.0)?\s*")  # a column with gaps has floats
LABEL_KEY = "label"
TEXT_KEY = "text"


def _choices(row: Row, where: str) -> ChoicePairs:
    """(label, text) of each choice; a list of texts gets letters as labels."""
    choices = row.get("choices") or {}
    if not isinstance(choices, dict | list):
        raise InputError(f"choices must be an object or a list, got {choices!r:.40}: {where}")
    labels, texts = _labels_and_texts(choices)
    if not len(labels) == len(texts) == len(set(labels)):
        raise InputError(
            f"{len(set(labels))} different labels for {len(texts)} choices: {where}; {ROW_REMEDY}"
        )
    if len(texts) > len(CHOICE_LABELS):
        raise InputError(
            f"{len(texts)} choices, {len(CHOICE_LABELS)} at most: {where}; {ROW_REMEDY}"
        )
    if not all(isinstance(text, str) for text in texts):
        raise InputError(
            f'choices must map labels to texts: {where}; e.g. {{"A": "..."}}, or list the texts'
        )
    return list(zip(labels, texts, strict=True))


def _labels_and_texts(choices: dict[Any, Any] | list[Any]) -> tuple[list[str], list[Any]]:
    """The labels and the texts of choices in one of the forms in which they are written.

    Args:
        choices: a list of texts, texts by label, {"label": [...], "text": [...]} as ARC has it on
            the hub, or a list of {"label": ..., "text": ...}.
    """
    if isinstance(choices, dict):
        columns = [choices.get(LABEL_KEY), choices.get(TEXT_KEY)]
        if set(choices) == {LABEL_KEY, TEXT_KEY} and all(isinstance(c, list) for c in columns):
            return [_label_text(label) for label in choices[LABEL_KEY]], list(choices[TEXT_KEY])
        return [str(label) for label in choices], list(choices.values())
    if choices and all(isinstance(c, dict) and c.keys() >= {LABEL_KEY, TEXT_KEY} for c in choices):
        labels = [_label_text(pair[LABEL_KEY]) for pair in choices]
        return labels, [pair[TEXT_KEY] for pair in choices]
    letters = [
        CHOICE_LABELS[number] if number < len(CHOICE_LABELS) else str(number)
        for number in range(len(choices))
    ]
    return letters, list(choices)


def _label_text(label: Any) -> str:
    return number_text(label) if _is_finite_number(label) else str(label)


def _with_letters(
    choices: ChoicePairs, answers: list[str], where: str, first: int | None
) -> tuple[ChoicePairs, list[str]]:
    """Choices with letters as labels, and the letters of those that the answers name.

    Some questions of ARC have the labels 1 to 4. An answer that names no choice stays as it is, if
    another one names a choice.

    Args:
        choices: label and text of each choice.
        answers: of the row.
        where: names the row in messages.
        first: number of the first choice; None if answers are labels or texts.

    Raises:
        InputError: no answer names a choice.
    """
    if not choices:
        return choices, answers
    letters = {label: label for label, _ in choices}
    if not letters.keys() <= set(CHOICE_LABELS):
        letters = {label: CHOICE_LABELS[position] for position, (label, _) in enumerate(choices)}
    right_labels = [_label_named(choices, answer) for answer in answers]
    if not any(right_labels):
        right_labels = [_named_choice(choices, answer, first) for answer in answers]
    choices = [(letters[label], text) for label, text in choices]
    labels = [label for label, _ in choices]
    if not any(right_labels):
        if any(_are_labels(answer, labels) for answer in answers):
            return choices, answers  # "A, C": both are right together
        counted = "" if first is None else f", nor a number from {first}"
        raise InputError(
            f"answer {answers[0]!r:.40} is none of the labels {', '.join(labels)}{counted}: "
            f"{where}; {ROW_REMEDY}"
        )
    references = [
        answer if label is None else letters[label]
        for label, answer in zip(right_labels, answers, strict=True)
    ]
    return choices, list(dict.fromkeys(references))


def _are_labels(answer: str, labels: Sequence[str]) -> bool:
    right_labels = labels_of_reference(answer)
    return bool(right_labels) and right_labels <= {*labels}


def _named_choice(choices: ChoicePairs, answer: str, first: int | None) -> str | None:
    """The label of the choice that an answer names; None if it names none, or several.

    Args:
        choices: label and text of each choice.
        answer: a label, the number of a choice, or its text.
        first: number of the first choice; None if answers are no numbers of choices.
    """
    label = _label_named(choices, answer)
    if label is not None:
        return label
    number = _choice_number(answer)
    if first is not None and number is not None:
        position = number - first
        return choices[position][0] if 0 <= position < len(choices) else None
    return _label_with_text(choices, answer)


def _label_named(choices: ChoicePairs, answer: str) -> str | None:
    """The label that an answer is, perhaps in brackets, or followed by the text of its choice."""
    labels = [label for label, _ in choices]
    if answer.strip() in labels:
        return answer.strip()
    match = LABEL_ANSWER_PATTERN.fullmatch(answer)
    is_text = _label_with_text(choices, answer) is not None
    if match and not is_text:
        return next((label for label in (match[1], match[1].upper()) if label in labels), None)
    match = LABEL_AND_TEXT_PATTERN.fullmatch(answer)
    if match and not is_text:
        label = match[1].upper()
        return label if _label_with_text(choices, match[2]) == label else None
    return None


def _label_with_text(choices: ChoicePairs, answer: str) -> str | None:
    """The label of the only choice with this text; case and white space do not count."""
    folded = " ".join(answer.casefold().split())
    labels = [label for label, text in choices if " ".join(text.casefold().split()) == folded]
    return labels[0] if len(labels) == 1 else None


def _choice_number(answer: str) -> int | None:
    match = CHOICE_NUMBER_PATTERN.fullmatch(answer)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class NumberedAnswer:
    """An answer that is a number, to a question whose choices have no such label.

    Attributes:
        choices: label and text of each choice of the question.
        answer: the number as a text.
    """

    choices: ChoicePairs
    answer: str


def first_choice_number(
    answers: Sequence[NumberedAnswer], where: str, published: int | None = None
) -> int | None:
    """Tell from all answers of a dataset whether numbers count its choices from 0 or from 1.

    0 is possible if no answer is the number of choices, 1 if no answer is 0. A number can also be
    the text of a choice; that counts only if all answers are.

    Args:
        answers: all that are numbers; at least one.
        where: names the dataset in messages.
        published: the number of the first choice in the dataset's published files, which counts if
            several readings are possible; None if it has none.

    Returns:
        0 or 1; None if the numbers are texts, or fit nothing: their rows are refused then.

    Raises:
        InputError: several readings are possible, and they name different choices.
    """
    readings = {
        first: [_named_choice(numbered.choices, numbered.answer, first) for numbered in answers]
        for first in (0, 1, None)
    }
    possible = [first for first, labels in readings.items() if None not in labels]
    if not possible:
        # Most rows tell it; the others are right_labels as bad ones.
        return min(readings, key=lambda first: readings[first].count(None))
    different = {tuple(readings[first]) for first in possible}
    if len(different) > 1 and published is not None and published in possible:
        return published
    if len(different) > 1:
        meanings = {0: "numbers from 0", 1: "numbers from 1", None: "texts of choices"}
        listed = " or ".join(meanings[first] for first in possible)
        raise InputError(
            f"answers may be {listed}: {where}: {len(answers)} such as {answers[0].answer!r}, and "
            'none decides it; write letters, or choices with labels such as {"1": "ice", ...}'
        )
    return None if None in possible else possible[0]


# Files.

DATASET_SUFFIXES = (".jsonl", ".parquet", ".json")
MAX_LISTED_ROWS = 4  # bad rows that a message lists in brief, besides the first one


def is_dataset_file(name: str) -> bool:
    """Whether a name is the path of a user's own file."""
    return name.endswith(DATASET_SUFFIXES)


def read_file(
    path: Path, on_note: Callable[[str], None] = lambda line: None, group_by: str | None = None
) -> list[Query]:
    """Read the queries of one file.

    Args:
        path: of the file.
        on_note: called with a line for each dataset whose answers are numbers of choices.
        group_by: the key whose value takes the place of the dataset, in rows that have it.

    Returns:
        the queries; their `split` is "" if the file has none.

    Raises:
        InputError: there is no such file, it cannot be read, it has bad rows, no row has the key
            `group_by`, or its answers are numbers that may count choices from 0 or from 1.
    """
    if path.is_dir():
        raise InputError(f"dataset is a directory: {path}; name a .jsonl or .parquet file")
    if not path.exists():
        raise InputError(
            f"dataset file not found: {path}; put the questions there, see docs/datasets.md"
        )
    first_numbers: dict[str, int | None] | None = None
    queries = []
    first_rows: dict[tuple[str, str], str] = {}
    faults: list[tuple[int, str]] = []
    computed: list[float] = []
    names: set[str] = set()
    for number, where, row in _rows(path, group_by):
        names |= row.keys()
        if row.get("choices") and first_numbers is None:
            first_numbers = _first_choice_numbers(path, on_note)
        first_number = (first_numbers or {}).get(_part(row))
        try:
            query = query_of(row, where, path.stem, number, first_number, group_by)
            first = first_rows.setdefault((query.dataset, query.id), where)
            if first != where:
                raise InputError(
                    f"duplicate id {query.id:.40}: {first} and {where}; ids must differ"
                )
        except InputError as error:
            faults.append((number, str(error)))
        else:
            queries.append(query)
            computed += _computed_answers(row)
    if faults:
        raise InputError(_bad_rows_message(faults))
    if computed:
        on_note(
            f"{path}: {len(computed)} answers such as {computed[0]!r}, with digits that come from "
            f"computing, are read as {number_text(computed[0])}"
        )
    if not queries:
        raise InputError(f"dataset has no rows: {path}; put the questions there")
    if group_by is not None and group_by not in names:
        if path.suffix == ".parquet":
            names.update(parquet_schema(path).names)  # not all of its columns were read
        fields = sorted(names - {group_by})
        hint = suggestion(group_by, fields, f"fields are {', '.join(fields)}")
        message = f"no question has the field {group_by!r:.60}: {path}; {hint}"
        raise InputError(message.rstrip("; "))
    return with_inferred_types(queries)


def _part(row: Row) -> str:
    """The dataset that a row names; all rows without a name are one part of their file."""
    return str(row.get("dataset", ""))


def _computed_answers(row: Row) -> list[float]:
    """The floats among the answers of a row that are read as a number of fewer digits."""
    answers = [row.get("answer"), row.get("final_answer"), *_as_list(row.get("answers"))]
    return [
        answer
        for answer in answers
        if isinstance(answer, float)
        and math.isfinite(answer)
        and float(number_text(answer)) != answer
    ]


def _first_choice_numbers(path: Path, on_note: Callable[[str], None]) -> dict[str, int | None]:
    """The number of the first choice, by the dataset that rows name; see `first_choice_number`.

    Datasets without choices, or with labels or texts as answers, are left out.
    """
    numbered: dict[str, list[NumberedAnswer]] = {}
    published: dict[str, int | None] = {}
    letter_texts: dict[str, str] = {}  # an answer that is a label, and the text of another choice
    for _, where, row in _rows(path):
        if not row.get("choices"):
            continue
        with suppress(InputError):  # a bad row is named when it is read
            choices = _choices(row, where)
            for answer in _answers(row, where):
                label = _label_named(choices, answer)
                if label is None and _choice_number(answer) is not None:
                    numbered.setdefault(_part(row), []).append(NumberedAnswer(choices, answer))
                    is_mmlu = MMLU_SUBJECT in row or _dataset_of(row, path) == "mmlu"
                    published.setdefault(_part(row), MMLU_FIRST_NUMBER if is_mmlu else None)
                elif label is not None and _label_with_text(choices, answer) not in (None, label):
                    letter_texts.setdefault(_part(row), answer)
    first_numbers = {}
    for part, answers in numbered.items():
        where = _part_name(path, part)
        first_numbers[part] = first_choice_number(answers, where, published[part])
        if first_numbers[part] is not None:
            on_note(f"{where}: answers are numbers of choices, from {first_numbers[part]}")
    for part, answer in letter_texts.items():
        on_note(
            f"{_part_name(path, part)}: answers such as {answer!r} are read as labels, though "
            "another choice has that text"
        )
    return first_numbers


def _dataset_of(row: Row, path: Path) -> str:
    return canonical_dataset(str(row.get("dataset", path.stem)))


def _part_name(path: Path, part: str) -> str:
    return f"{path}: {part}" if part else str(path)


def _bad_rows_message(faults: list[tuple[int, str]]) -> str:
    """The full message of the first bad row, and a list of the next ones."""
    (_, first), *others = faults
    if not others:
        return first
    listed = ", ".join(
        f"{number} ({fault.partition(':')[0]})" for number, fault in others[:MAX_LISTED_ROWS]
    )
    unlisted_count = len(others) - MAX_LISTED_ROWS
    ending = f" and {unlisted_count} more" if unlisted_count > 0 else ""
    return f"{first}; bad too: {listed}{ending}"


def count_rows(path: Path) -> int:
    """The number of rows of a file, which are not checked.

    Raises:
        InputError: the file cannot be read.
    """
    return sum(1 for _ in _rows(path))


def _rows(path: Path, group_by: str | None = None) -> Iterator[tuple[int, str, Row]]:
    """(number, name in messages, row) of each row; of a Parquet file with the column `group_by`."""
    if path.suffix == ".parquet":
        for number, row in _typed_parquet_rows(path, group_by):
            yield number, f"{path}: row {number}", with_usual_columns(_without_nulls(row))
    elif path.suffix == ".json":
        for number, (where, row) in enumerate(json_rows(path, decimal_or_float), start=1):
            yield number, where, with_usual_columns(_without_optional_nulls(row))
    else:
        for number, row in json_lines(path, decimal_or_float):
            yield number, f"{path}:{number}", with_usual_columns(_without_optional_nulls(row))


def _without_optional_nulls(row: Row) -> dict[str, Any]:
    """The row without nulls, as a table has them; those of a question or an answer stay."""
    values = _without_nulls(row)
    if "question" in row:
        values.setdefault("question", None)
    if "answers" not in values and "answer" in row:
        values.setdefault("answer", None)
    if "answer" not in values and "answers" in row:
        values.setdefault("answers", None)
    return values


def _without_nulls(row: Row) -> dict[str, Any]:
    """The row without nulls: in Parquet, every row has a value for all columns of the file."""
    values = {key: value for key, value in row.items() if value is not None}
    choices = values.get("choices")
    if isinstance(choices, list) and all(
        isinstance(pair, tuple) and isinstance(pair[0], Hashable) for pair in choices
    ):
        choices = dict(choices)  # a column of the type "map"
    if isinstance(choices, dict):
        values["choices"] = {key: text for key, text in choices.items() if text is not None}
    return values


# The published files of the paper's datasets. Their columns have had several names, and their
# cells several types.


@dataclass(frozen=True)
class PublishedLayout:
    """The columns of published files of a dataset.

    Attributes:
        question: the column of the question.
        answer: the column of the answer.
        final_answer: the column of the result alone, which not all files have; "" for none.
        id: the column of the id, which not all files have; "" for the usual one.
        choices: the columns of the choices, whose names are the labels; empty for the usual one.
    """

    question: str
    answer: str
    final_answer: str = ""
    id: str = ""
    choices: tuple[str, ...] = ()

    @property
    def columns(self) -> set[str]:
        """The columns that all files have."""
        return {self.question, self.answer, *self.choices}


LETTERS = ("A", "B", "C", "D")
PUBLISHED_LAYOUTS = (
    PublishedLayout("problem", "solution", final_answer="answer", id="unique_id"),  # MATH
    PublishedLayout("problem", "answer", id="unique_id"),
    PublishedLayout("text", "code", id="task_id"),  # MBPP, full
    PublishedLayout("prompt", "code", id="task_id"),  # MBPP, sanitized
    PublishedLayout("question", "answerKey"),  # ARC
    PublishedLayout("input", "target", choices=LETTERS),  # MMLU, before it had one file
    PublishedLayout("Question", "Answer", choices=LETTERS),
)
ARC_STEM = "stem"  # of a question that is an object with its choices
MMLU_SUBJECT = "subject"
MMLU_FIRST_NUMBER = 0
MMLU_WRAPPER = "train"  # the only column of MMLU's further training questions
USUAL_COLUMNS = frozenset(
    {
        *("id", "question", "answer", "answers", "final_answer", "choices", "answer_type"),
        *("split", "dataset", "asked_for", META_KEY, *TESTS_KEYS, *TEST_SETUP_KEYS),
    }
)
PUBLISHED_COLUMNS = frozenset(
    {MMLU_SUBJECT, MMLU_WRAPPER}
    | {name for layout in PUBLISHED_LAYOUTS for name in (*layout.columns, layout.id)}
) - {""}


def with_usual_columns(row: Row) -> Row:
    """A row of a published file with the names of columns that `query_of` reads.

    Args:
        row: without nulls; one that has a question and an answer by their usual names is unchanged.
    """
    if row.keys() == {MMLU_WRAPPER} and isinstance(row[MMLU_WRAPPER], dict):
        row = _without_nulls(row[MMLU_WRAPPER])
    question = row.get("question")
    if isinstance(question, dict) and ARC_STEM in question:
        row = {**row, "question": question[ARC_STEM], "choices": question.get("choices")}
    if "question" in row and row.keys() & {"answer", "answers"}:
        return row
    layouts = (layout for layout in PUBLISHED_LAYOUTS if layout.columns <= row.keys())
    layout = next(layouts, None)
    if layout is None:
        return row
    usual = {**row, "question": row[layout.question], "answer": row[layout.answer]}
    if layout.final_answer in row:
        usual["final_answer"] = row[layout.final_answer]
    if layout.id in row:
        usual.setdefault("id", row[layout.id])
    if layout.choices:
        usual["choices"] = {label: row[label] for label in layout.choices}
    return usual


def _typed_parquet_rows(
    path: Path, group_by: str | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read rows of Parquet, with what the types of their columns tell.

    A number of 32 or 16 bits becomes the float with its digits: .1, not 0.10000000149011612. A
    number with a name, as the hub's library stores classes, becomes its name. Columns that
    questions do not have are not read: they may be large, or have values that Python has not.
    """
    schema = parquet_schema(path)
    names = set(schema.names)
    is_known = any(
        {layout.question, layout.answer} <= names
        for layout in (*PUBLISHED_LAYOUTS, PublishedLayout("question", "answer"))
    )
    columns = None
    if is_known or "answers" in names:
        columns = USUAL_COLUMNS | PUBLISHED_COLUMNS | ({group_by} if group_by else set())
    class_names = _class_names(schema)
    conversions = {
        field.name: convert
        for field in schema
        if (convert := _conversion(field.type, class_names.get(field.name))) is not None
    }
    for number, row in parquet_rows(path, columns):
        for name, convert in conversions.items():
            if name in row:
                row[name] = convert(row[name])
        yield number, row


Conversion = Callable[[Any], Any]


def _conversion(kind: pa.DataType, class_names: Sequence[str] | None) -> Conversion | None:
    """Return what turns a value of a column into what it stands for; None to leave it as it is."""
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    number_type = kind.value_type if is_list else kind
    if pa.types.is_integer(number_type) and class_names:
        return partial(_convert_cell, partial(_class_name, class_names))
    if pa.types.is_float32(number_type):
        return partial(_convert_cell, partial(_shortest_float, np.float32))
    if pa.types.is_float16(number_type):
        return partial(_convert_cell, partial(_shortest_float, np.float16))
    return None


def _convert_cell(convert: Conversion, value: Any) -> Any:
    if isinstance(value, list):
        return [_convert_cell(convert, element) for element in value]
    return None if value is None else convert(value)


def _class_name(names: Sequence[str], number: int) -> str | int | None:
    """The name of a class; None for a negative number, which stands for an unknown class."""
    if number < 0:
        return None
    return names[number] if number < len(names) else number


def _shortest_float(width: type[np.floating[Any]], value: float) -> float:
    """The number with the fewest digits that is this value in a float of that width."""
    return float(str(width(value)))


FEATURES_KEY = b"huggingface"  # of the metadata: the hub's library describes columns there
MAX_FEATURES_BYTES = 1 << 20


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """The names of the classes of each column of classes, as the hub's library describes them."""
    text = (schema.metadata or {}).get(FEATURES_KEY, b"")
    if not text or len(text) > MAX_FEATURES_BYTES:
        return {}
    try:
        features = json.loads(text)["info"]["features"]
        return {
            name: feature["names"]
            for name, feature in features.items()
            if isinstance(feature, dict)
            and feature.get("_type") == "ClassLabel"
            and isinstance(feature.get("names"), list)
            and all(isinstance(label, str) for label in feature["names"])
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # a note of another program; the numbers stay


# The Hugging Face hub.

HUB_SPLIT = "test"
CARD = "README.md"  # tells which files belong to a configuration and a split
# The name of one of several files that make up a split.
SHARD_PATTERN = re.compile(r"-\d{5}-of-(\d{5})\.parquet$")


@dataclass(frozen=True)
class HubRepository:
    """A dataset on the hub.

    Attributes:
        repository: owner and name.
        configurations: parts of the dataset, read one after the other.
        questions: how many there are.
        question: the column of the question.
        answer: the column of the answer.
    """

    repository: str
    configurations: tuple[str, ...]
    questions: int
    question: str = "question"
    answer: str = "answer"

    @property
    def description(self) -> str:
        """Repository, configuration if there is just one, and split, for people."""
        configuration = self.configurations if len(self.configurations) == 1 else ()
        return " ".join([self.repository, *configuration, HUB_SPLIT])

    def convert_row(self, row: Row, configuration: str, number: int) -> dict[str, Any]:
        """Convert a row to the form that `query_of` reads.

        Args:
            row: of the hub.
            configuration: the part of the dataset that it is from.
            number: its position in that part, from 0; used as an id if it has none.
        """
        id = row.get("id", row.get("task_id"))
        if id is None:
            default_part = configuration if len(self.configurations) > 1 else None
            part = row.get("subject", default_part)
            id = "-".join(filter(None, (HUB_SPLIT, part, str(number))))
        converted = {"id": id, "question": row[self.question], "answer": row[self.answer]}
        converted |= {key: row[key] for key in (*TESTS_KEYS, *TEST_SETUP_KEYS) if key in row}
        choices = row.get("choices")
        if isinstance(choices, dict):
            converted["choices"] = dict(zip(choices["label"], choices["text"], strict=True))
        elif choices is not None:  # MMLU: the answer is the position of a choice
            converted["choices"] = choices
            position = converted["answer"]
            if position < 0:
                raise InputError(f"answer {position} is no choice: {configuration}: {number}")
            converted["answer"] = CHOICE_LABELS[position]
        return converted


MATH_SUBJECTS = (
    *("algebra", "counting_and_probability", "geometry", "intermediate_algebra"),
    *("number_theory", "prealgebra", "precalculus"),
)
ARC_REPOSITORY = "allenai/ai2_arc"
HUB_REPOSITORIES: Mapping[str, HubRepository] = {
    "gsm8k": HubRepository("openai/gsm8k", ("main",), 1_319),
    "math": HubRepository("EleutherAI/hendrycks_math", MATH_SUBJECTS, 5_000, "problem", "solution"),
    "mbpp": HubRepository("google-research-datasets/mbpp", ("full",), 500, "text", "code"),
    "mmlu": HubRepository("cais/mmlu", ("all",), 14_042),
    "arc-easy": HubRepository(ARC_REPOSITORY, ("ARC-Easy",), 2_376, answer="answerKey"),
    "arc-challenge": HubRepository(ARC_REPOSITORY, ("ARC-Challenge",), 1_172, answer="answerKey"),
}


def hub_queries(name: str, file: str, revision: str | None = None) -> tuple[list[Query], str]:
    """Load a dataset of the paper from the hub, or from what was downloaded before.

    Args:
        name: one of `PAPER_DATASETS`.
        file: path of a file that could be read instead, for messages.
        revision: the commit to load; None is that on this machine, else the latest one.

    Returns:
        the queries, and the commit of the repository.

    Raises:
        InputError: the hub is switched off, and the dataset was not downloaded before.
        WorldError: the hub cannot be reached, several commits are on this machine and none is
            named, or the rows have another form.
    """
    source = HUB_REPOSITORIES[name]
    tables, commit = _tables(source, file, revision)
    queries = []
    try:
        for configuration, table in tables.items():
            for number, row in enumerate(table):
                where = f"{configuration}: row {number + 1}"
                converted = source.convert_row(row, configuration, number)
                queries.append(query_of(converted, where, name, number))
    except (InputError, KeyError, TypeError, IndexError) as error:
        raise _load_error(source, file, error) from error
    return queries, commit


def _tables(
    source: HubRepository, file: str, revision: str | None
) -> tuple[Mapping[str, Iterable[Row]], str]:
    """The rows of each configuration, and the commit of the repository."""
    library = _datasets_library()
    repository = Repository(source.repository, DATASET)
    try:
        commit = repository.resolve(revision, Path.is_dir)
        tables = _saved_tables(library, source, commit)
        if tables:
            return tables, commit
        # A short request: if there is no network, the library would try for half a minute.
        repository.ask_commit(commit)
    except HubError as error:
        return _prepared_tables(library, source, file, revision, error)
    try:
        return _downloaded_tables(library, source, commit)
    except Exception as error:
        raise _load_error(source, file, error) from error


def _downloaded_tables(
    library: Any, source: HubRepository, commit: str | None
) -> tuple[dict[str, Any], str]:
    """The rows of each configuration, downloaded and prepared by the library.

    Args:
        library: `datasets`.
        source: the dataset.
        commit: to download; None is what was prepared last, if the hub is switched off.

    Returns:
        The rows of each configuration, and their commit.
    """
    builders = {
        name: library.load_dataset_builder(source.repository, name, revision=commit)
        for name in source.configurations
    }
    for builder in builders.values():
        builder.download_and_prepare()
    tables = {name: builder.as_dataset(split=HUB_SPLIT) for name, builder in builders.items()}
    return tables, str(next(iter(builders.values())).hash)


def _prepared_tables(
    library: Any, source: HubRepository, file: str, revision: str | None, problem: HubError
) -> tuple[dict[str, Any], str]:
    """Tables that the library prepared before, of a dataset whose files cannot be had.

    Args:
        library: `datasets`.
        source: the dataset.
        file: path of a file that could be read instead.
        revision: the commit to load; None is any.
        problem: why the files cannot be had.

    Returns:
        The rows of each configuration, and their commit.

    Raises:
        InputError: the hub is switched off, and nothing was prepared.
        WorldError: the hub is not switched off.
    """
    if problem.commits:
        commits = ", ".join(short(commit) for commit in problem.commits)
        raise WorldError(
            f"which commit is {source.repository}@{DEFAULT_BRANCH}? {problem}; here are {commits}; "
            f"put the questions into {file}, or delete the other commits"
        ) from problem
    if str(problem) != OFFLINE:
        raise _load_error(source, file, problem) from problem
    try:
        tables, commit = _downloaded_tables(library, source, None)
        if revision in (None, commit):
            return tables, commit
    except Exception as error:  # of the library, or of the disk
        problem.__context__ = error
    raise InputError(
        f"dataset file not found: {file}; put the questions there, see docs/datasets.md; "
        f"{source.repository} was not downloaded before, and HF_HUB_OFFLINE is set"
    ) from problem


def _saved_tables(library: Any, source: HubRepository, commit: str) -> dict[str, list[Row]] | None:
    """The rows of each configuration, from the files in the cache of the hub's client.

    Args:
        library: `datasets`.
        source: the dataset.
        commit: whose files are read.

    Returns:
        The rows; None if a file is not on this machine, or cannot be read.
    """
    from huggingface_hub import DatasetCard

    repository = Repository(source.repository, DATASET)
    folder = repository.snapshot(commit)
    tables = {}
    try:
        card = DatasetCard.load(folder / CARD).data.to_dict()
        for name in source.configurations:
            patterns = _split_patterns(card, name)
            files = sorted(str(file) for pattern in patterns for file in folder.glob(pattern))
            if not _is_complete(files) or repository.missing(commit, patterns):
                return None
            builder = library.load_dataset_builder("parquet", data_files={HUB_SPLIT: files})
            tables[name] = list(builder.as_streaming_dataset(split=HUB_SPLIT))
    except Exception:  # no card, or a damaged file: the library has its own way and says why
        return None
    return tables


def _split_patterns(card: Mapping[str, Any], name: str) -> list[str]:
    """The patterns of the files of one configuration's split, as the card of a dataset has them."""
    patterns: list[str] = []
    for configuration in card.get("configs") or ():
        if configuration.get("config_name") != name:
            continue
        for entry in configuration.get("data_files") or ():
            if isinstance(entry, dict) and entry.get("split") == HUB_SPLIT:
                path = entry.get("path") or ()
                patterns += [path] if isinstance(path, str) else path
    # Files outside the folder are no part of the dataset.
    return [pattern for pattern in patterns if ".." not in Path(pattern).parts]


def _is_complete(files: Sequence[str]) -> bool:
    """Whether there are files, and of a split in several ones as many as their names tell."""
    counts = [int(match[1]) for match in map(SHARD_PATTERN.search, files) if match]
    return bool(files) and (not counts or len(files) == max(counts))


def _datasets_library() -> Any:
    """The library `datasets`, which must print nothing."""
    import datasets  # here, because it takes long to import

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    return datasets


def _load_error(source: HubRepository, file: str, error: Exception) -> WorldError:
    return WorldError(
        f"cannot load from the hub: {source.repository}: {reason_of(error, 100)}; put the "
        f"questions into {file}, one JSON object a line, see docs/datasets.md"
    )
