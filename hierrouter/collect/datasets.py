"""Where questions come from, and their folds.

In: names of testbed families, of the paper's six datasets, or local JSONL files. Out: `Query`
values with a fold each. A dataset of the paper is read from `<data>/<name>.jsonl`; a user's own
is any path that ends in .jsonl. Not covered: downloading from a hub.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hierrouter import testbed
from hierrouter.json_lines import json_lines
from hierrouter.pool import suggestion
from hierrouter.query import Query, storable
from hierrouter_cache.errors import InputError
from hierrouter_cache.fingerprint import digest

PAPER_DATASETS = ("gsm8k", "math", "mbpp", "mmlu", "arc-easy", "arc-challenge")
PAPER_LIMIT = 300  # examples a dataset, paper section 4
TEST_SHARE = 0.3  # paper section 4
VALIDATION_SHARE = 0.2  # of what is not test; ours, the paper names no validation fold
MAX_QUESTION = 1_000_000  # characters; more is a mistake in the file, not a question


def dataset_names() -> list[str]:
    """All names that `load_queries` knows besides file paths."""
    return ["testbed", *testbed.FAMILIES, *PAPER_DATASETS]


def load_queries(names: Sequence[str], limit: int | None, seed: int, data: Path) -> list[Query]:
    """The queries of several datasets, in order, with their folds.

    Args:
        names: known names or paths of .jsonl files; `testbed` stands for all its families.
        limit: at most so many queries a dataset, drawn with the seed; None is 300, or all of a
            file given by path.
        seed: of the draw and of the folds.
        data: folder of the paper's datasets as JSONL files.

    Raises:
        InputError: an unknown name, or a file with a bad line (named by its number).
    """
    queries: list[Query] = []
    for name in _expand(names):
        if name in testbed.FAMILIES:
            queries += testbed.questions(name, seed=seed, limit=limit or PAPER_LIMIT)
            continue
        own = name.endswith(".jsonl")
        found = read_jsonl(Path(name) if own else data / f"{name}.jsonl")
        # The paper's cap is for the paper's datasets; a file of one's own is taken whole.
        cap = limit or (len(found) if own else PAPER_LIMIT)
        queries += with_folds(_sample(found, cap, seed), seed)
    _refuse_twins(queries)
    refuse_leaks(queries)
    return queries


def read_jsonl(path: Path) -> list[Query]:
    """The queries of one local file; `split` is "" where the file does not say.

    One object a line: `id`, `question`, `answer` or `answers`, and optionally `choices` (label to
    text), `split` ("train" or "test") and `dataset`. Further keys are allowed and ignored.

    Raises:
        InputError: with the first bad line.
    """
    if path.is_dir():
        raise InputError(f"dataset is a directory: {path}; name a .jsonl file")
    if not path.exists():
        raise InputError(
            f"dataset file not found: {path}; put the questions there, one JSON object a line"
        )
    queries = []
    lines: dict[tuple[str, str], int] = {}
    for number, row in json_lines(path):
        query = _query(row, f"{path}:{number}", path.stem)
        first = lines.setdefault((query.dataset, query.id), number)
        if first != number:
            raise InputError(f"duplicate id {query.id}: {path}:{first} and {path}:{number}")
        queries.append(query)
    if not queries:
        raise InputError(f"dataset has no rows: {path}")
    return queries


def choice_lines(choices: Iterable[tuple[str, str]]) -> str:
    """(label, text) of each choice as the lines that stand below a question."""
    return "".join(f"\n{label}. {text}" for label, text in choices)


def _expand(names: Sequence[str]) -> list[str]:
    known = dataset_names()
    expanded: list[str] = []
    for name in names:
        if not name:
            raise InputError("empty dataset name: --datasets; separate names by one comma")
        if name not in known and not name.endswith(".jsonl"):
            raise InputError(
                f"unknown dataset: {name}; {suggestion(name, known)}or give a .jsonl file"
            )
        expanded += testbed.FAMILIES if name == "testbed" else [name]
    return list(dict.fromkeys(expanded))


def _query(row: Mapping[str, Any], where: str, dataset: str) -> Query:
    question = _text(row, "question", where)
    if len(question) > MAX_QUESTION:
        raise InputError(
            f"question too long: {where}: {len(question):,} characters, limit {MAX_QUESTION:,}"
        )
    split = row.get("split", "")
    if split not in ("", "train", "validation", "test"):
        raise InputError(f"unknown split {split!r}: {where}; use train or test")
    if choices := row.get("choices"):
        question += choice_lines(_choices(choices, where))
    return Query(
        id=_id(row, where),
        dataset=storable(_text(row, "dataset", where, dataset)),
        question=storable(question),
        answers=tuple(map(storable, _answers(row, where))),
        split=split,
    )


def _id(row: Mapping[str, Any], where: str) -> str:
    """The row's id; the line's number where it has none."""
    value = row.get("id", where.rsplit(":", 1)[1])
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"id must be a text or a number, got {value!r}: {where}")
    return storable(str(value))


def _text(row: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    if key not in row and default is not None:
        return default
    if key not in row:
        raise InputError(f"{key} is missing: {where}; it has {', '.join(sorted(row)) or 'nothing'}")
    value = row[key]
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{key} is empty or not a text: {where}")
    return value


def _answers(row: Mapping[str, Any], where: str) -> list[str]:
    if "answers" not in row:
        answer = row.get("answer")
        is_number = isinstance(answer, int | float) and not isinstance(answer, bool)
        if is_number and math.isfinite(answer):  # type: ignore[arg-type]
            return [str(answer)]
        return [_text(row, "answer", where)]
    answers = row["answers"]
    if not isinstance(answers, list) or not answers:
        raise InputError(f"answers is empty or not a list: {where}")
    if not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise InputError(f"answers holds something empty or not a text: {where}")
    return answers


def _choices(choices: Any, where: str) -> list[tuple[str, str]]:
    if not isinstance(choices, dict) or not all(isinstance(x, str) for x in choices.values()):
        raise InputError(f'choices must map labels to texts: {where}; e.g. {{"A": "..."}}')
    return list(choices.items())


def _sample(queries: list[Query], limit: int, seed: int) -> list[Query]:
    chosen = _draw((f"{query.dataset}/{query.id}" for query in queries), limit, "sample", seed)
    return [query for query in queries if f"{query.dataset}/{query.id}" in chosen]


def with_folds(queries: list[Query], seed: int) -> list[Query]:
    """Cut test where the file does not say, then validation out of train; by question text.

    Queries with the same text always fall into the same fold, or test would be seen in training.
    """
    texts = {query.question for query in queries if not query.split}
    test = _draw(texts, _share(len(texts), TEST_SHARE), "test", seed)
    queries = [
        query
        if query.split
        else replace(query, split="test" if query.question in test else "train")
        for query in queries
    ]
    if any(query.split == "validation" for query in queries):
        return queries
    texts = {query.question for query in queries if query.split == "train"}
    held = _draw(texts, _share(len(texts), VALIDATION_SHARE), "validation", seed)
    return [
        replace(query, split="validation")
        if query.split == "train" and query.question in held
        else query
        for query in queries
    ]


def _draw(names: Iterable[str], count: int, purpose: str, seed: int) -> set[str]:
    """So many of the names, the ones with the smallest digests.

    A larger draw holds the smaller one, and an edited name moves no other: what was collected for
    the old draw is used again, and what was tested on does not slip into training.
    """
    return set(sorted(names, key=lambda name: digest([purpose, seed, name]))[:count])


def _share(count: int, share: float) -> int:
    """So many of `count`, at least one where that leaves two for training."""
    return max(round(count * share), 1 if count > 2 else 0)


def _refuse_twins(queries: list[Query]) -> None:
    """Two files may hold the same rows; counted twice, they would pass for independent."""
    counts = Counter((query.dataset, query.id) for query in queries)
    (dataset, name), times = max(counts.items(), key=lambda item: item[1])
    if times > 1:
        raise InputError(
            f"duplicate id {name} in dataset {dataset}: it comes from {times} places; "
            "name each file once, or give rows of different files different datasets"
        )


def refuse_leaks(queries: list[Query]) -> None:
    """Refuse a question that stands in test and in another fold.

    Raises:
        InputError: with the question.
    """
    folds: dict[str, Counter[str]] = {}
    for query in queries:
        folds.setdefault(query.question, Counter())[query.split] += 1
    for question, splits in folds.items():
        if splits["test"] and len(splits) > 1:
            raise InputError(
                f"question in both train and test, they must not overlap: {question[:80]!r}; "
                "remove it from one of them"
            )
