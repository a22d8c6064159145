"""Questions from files of one's own and from the hub, all in one shape.

A row has a `question` and an `answer`, or several `answers`. It may have an `id`, `choices`, a
`split`, a `dataset`, and a `final_answer` beside answers that do not state their result.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hierrouter.questions.files import json_lines, parquet_rows
from hierrouter.questions.query import Query, storable
from hierrouter.questions.scoring import with_final_answer, without_annotations
from hierrouter_cache.errors import InputError, WorldError, reason_of

Row = Mapping[str, Any]
Pairs = list[tuple[str, str]]

PAPER_DATASETS = ("gsm8k", "math", "mbpp", "mmlu", "arc-easy", "arc-challenge")
MAX_QUESTION = 1_000_000  # characters; more is a mistake in the file, not a question
LETTERS = "ABCDEFGHIJ"
SPLITS = ("", "train", "validation", "test")
REMEDY = "mend the row or take it out"


def query_of(row: Row, where: str, dataset: str, number: int) -> Query:
    """The question of one row; `split` is "" where the row does not say.

    Raises InputError: a key is missing or holds something else.

    `row`: see above; other keys are left alone; `where`: names the row in messages; `dataset`: of
    rows that name none; `number`: the id of rows that have none.
    """
    if "asked_for" in row:
        raise InputError(
            f"that is the log of a server, and its answers are nobody's references: {where}; "
            "`hierrouter learn-from LOG` collects its questions"
        )
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
    if _is_blank(str(value)):
        raise InputError(f"id is empty: {where}; {REMEDY}")
    return storable(str(value))


def _is_blank(text: str) -> bool:
    """Whether nothing of a text can be seen: white space, and characters of no width."""
    return not any(letter.isprintable() and not letter.isspace() for letter in text)


def _text(row: Row, key: str, where: str, default: str | None = None) -> str:
    if key not in row and default is not None:
        return default
    if key not in row:
        raise InputError(f"{key} is missing: {where}; it has {', '.join(sorted(row)) or 'nothing'}")
    value = row[key]
    if not isinstance(value, str) or _is_blank(value):
        raise InputError(f"{key} is empty or not a text: {where}; {REMEDY}")
    return value


def _answers(row: Row, where: str) -> list[str]:
    """The reference answers, with the final one where no other states its result."""
    answers = row["answers"] if "answers" in row else [_number_or_text(row, "answer", where)]
    if not isinstance(answers, list) or not answers:
        raise InputError(f"answers is empty or not a list: {where}; {REMEDY}")
    if not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise InputError(f"answers holds something empty or not a text: {where}; {REMEDY}")
    answers = [without_annotations(answer) for answer in answers]
    if "final_answer" in row:
        return list(with_final_answer(answers, _number_or_text(row, "final_answer", where)))
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
    """Choices and answers with letters as labels, whatever they were (ARC has 1 to 4 too)."""
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


SUFFIXES = (".jsonl", ".parquet")
NAMED = 4  # bad rows in a line, besides the first


def is_file(name: str) -> bool:
    """Whether a name means a file of one's own."""
    return name.endswith(SUFFIXES)


def read_file(path: Path) -> list[Query]:
    """The queries of one file; `split` is "" where the file does not say.

    Raises InputError: no such file, it cannot be read, or its bad rows.
    """
    if path.is_dir():
        raise InputError(f"dataset is a directory: {path}; name a .jsonl or .parquet file")
    if not path.exists():
        raise InputError(
            f"dataset file not found: {path}; put the questions there, see docs/datasets.md"
        )
    queries = []
    places: dict[tuple[str, str], str] = {}
    faults: list[tuple[int, str]] = []
    for number, where, row in _rows(path):
        try:
            query = query_of(row, where, path.stem, number)
            first = places.setdefault((query.dataset, query.id), where)
            if first != where:
                raise InputError(
                    f"duplicate id {query.id:.40}: {first} and {where}; ids must differ"
                )
        except InputError as error:
            faults.append((number, str(error)))
        else:
            queries.append(query)
    if faults:
        raise InputError(_bad_rows(faults))
    if not queries:
        raise InputError(f"dataset has no rows: {path}; put the questions there")
    return queries


def _bad_rows(faults: list[tuple[int, str]]) -> str:
    """What is wrong with the first row in full, with others in brief."""
    (_, first), *others = faults
    if not others:
        return first
    brief = ", ".join(f"{number} ({fault.partition(':')[0]})" for number, fault in others[:NAMED])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return f"{first}; bad too: {brief}{more}"


def count_rows(path: Path) -> int:
    """How many questions a file has, without looking at them.

    Raises InputError: it cannot be read.
    """
    return sum(1 for _ in _rows(path))


def _rows(path: Path) -> Iterator[tuple[int, str, Row]]:
    """(number, place for messages, row) of each row."""
    if path.suffix == ".parquet":
        for number, row in parquet_rows(path):
            yield number, f"{path}: row {number}", _without_nulls(row)
    else:
        for number, row in json_lines(path):
            yield number, f"{path}:{number}", row


def _without_nulls(row: Row) -> dict[str, Any]:
    """The row without what other rows have: in Parquet every row has the keys of all."""
    kept = {key: value for key, value in row.items() if value is not None}
    choices = kept.get("choices")
    if isinstance(choices, list) and all(
        isinstance(pair, tuple) and isinstance(pair[0], Hashable) for pair in choices
    ):
        choices = dict(choices)  # of the type "map"
    if isinstance(choices, dict):
        kept["choices"] = {key: text for key, text in choices.items() if text is not None}
    return kept


SPLIT = "test"
TIMEOUT_S = 10.0  # to learn whether the hub can be reached; the library alone tries for 23
SHORT = 12  # characters of a commit that people are shown


@dataclass(frozen=True)
class Source:
    """Where a dataset lies on the hub.

    Attributes:
        configurations: parts of it, read one after the other.
        question, answer: the columns that hold them.
    """

    repository: str
    configurations: tuple[str, ...]
    questions: int
    question: str = "question"
    answer: str = "answer"

    @property
    def place(self) -> str:
        """Repository, configuration where there is one, and split, for people."""
        one = self.configurations if len(self.configurations) == 1 else ()
        return " ".join([self.repository, *one, SPLIT])

    def row(self, row: Row, configuration: str, number: int) -> dict[str, Any]:
        """A row in our shape; one without a name of its own gets its place for one."""
        name = row.get("id", row.get("task_id"))
        if name is None:
            part = row.get("subject", configuration if len(self.configurations) > 1 else None)
            name = "-".join(filter(None, (SPLIT, part, str(number))))
        found = {"id": name, "question": row[self.question], "answer": row[self.answer]}
        choices = row.get("choices")
        if isinstance(choices, dict):
            found["choices"] = dict(zip(choices["label"], choices["text"], strict=True))
        elif choices is not None:  # the answer is the number of one
            found |= {"choices": choices, "answer": LETTERS[found["answer"]]}
        return found


SUBJECTS = (
    *("algebra", "counting_and_probability", "geometry", "intermediate_algebra"),
    *("number_theory", "prealgebra", "precalculus"),
)
ARC = "allenai/ai2_arc"
HUB: Mapping[str, Source] = {
    "gsm8k": Source("openai/gsm8k", ("main",), 1_319),
    "math": Source("EleutherAI/hendrycks_math", SUBJECTS, 5_000, "problem", "solution"),
    "mbpp": Source("google-research-datasets/mbpp", ("full",), 500, "text", "code"),
    "mmlu": Source("cais/mmlu", ("all",), 14_042),
    "arc-easy": Source(ARC, ("ARC-Easy",), 2_376, answer="answerKey"),
    "arc-challenge": Source(ARC, ("ARC-Challenge",), 1_172, answer="answerKey"),
}


def hub_installed() -> bool:
    """Whether the extra `hub` is there."""
    return find_spec("datasets") is not None


def hub_queries(name: str, file: str) -> tuple[list[Query], str]:
    """The questions of one of the six, and where they come from: repository@commit, split.

    Raises InputError: the extra is not installed, or the hub is switched off and the dataset was
    not downloaded before; WorldError: the hub cannot be reached, or holds something else than
    expected.
    """
    source = HUB[name]
    tables, commit = _tables(source, file)
    try:
        queries = [
            query_of(
                source.row(row, configuration, number),
                f"{configuration}: row {number + 1}",
                name,
                number,
            )
            for configuration, table in tables.items()
            for number, row in enumerate(table)
        ]
    except (InputError, KeyError, TypeError, IndexError) as error:
        raise _not_loaded(source, file, error) from error
    return queries, f"{source.repository}@{commit[:SHORT]}, {SPLIT}"


def _tables(source: Source, file: str) -> tuple[dict[str, Any], str]:
    """The rows of each configuration, and the commit of the repository."""
    library = _library(file)
    commit = _commit(source, file)
    try:
        builders = {
            name: library.load_dataset_builder(source.repository, name, revision=commit)
            for name in source.configurations
        }
        for builder in builders.values():
            builder.download_and_prepare()
        tables = {name: builder.as_dataset(split=SPLIT) for name, builder in builders.items()}
    except Exception as error:
        if commit is not None:
            raise _not_loaded(source, file, error) from error
        raise InputError(
            f"dataset file not found: {file}; put the questions there, see docs/datasets.md; "
            f"{source.repository} was not downloaded before, and HF_HUB_OFFLINE is set"
        ) from None
    return tables, next(iter(builders.values())).hash


def _library(file: str) -> Any:
    """The library `datasets`, which then says nothing itself."""
    try:
        import datasets
    except ImportError:
        raise InputError(
            f"dataset file not found: {file}; put the questions there, see docs/datasets.md, or "
            'take them from the hub: pip install "hierrouter[hub]"'
        ) from None
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    return datasets


def _commit(source: Source, file: str) -> str | None:
    """The latest commit of the repository; None where the hub is switched off."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        return HfApi().dataset_info(source.repository, timeout=TIMEOUT_S).sha
    except OfflineModeIsEnabled:
        return None
    except Exception as error:  # its HTTP client's too, which is not the same in all versions
        raise _not_loaded(source, file, error) from error


def _not_loaded(source: Source, file: str, error: Exception) -> WorldError:
    return WorldError(
        f"cannot load from the hub: {source.repository}: {reason_of(error, 100)}; put the "
        f"questions into {file}, one JSON object a line, see docs/datasets.md"
    )
