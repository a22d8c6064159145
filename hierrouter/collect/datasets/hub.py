"""The paper's six datasets from the Hugging Face hub.

In: a name. Out: the questions of the dataset's test split and the commit that they come from,
through the library `datasets` (extra `hub`), which keeps what it has downloaded. Where the hub is
switched off (HF_HUB_OFFLINE), what was downloaded before is used. Not covered: choosing among the
questions (`folds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from hierrouter.collect.datasets.shape import LETTERS, query_of
from hierrouter.query import Query
from hierrouter_cache.errors import InputError, WorldError, reason_of

Row = Mapping[str, Any]

SPLIT = "test"
TIMEOUT_S = 10.0  # to learn whether the hub can be reached; the library alone tries for 23
SHORT = 12  # characters of a commit that people are shown


@dataclass(frozen=True)
class Source:
    """Where a dataset lies on the hub.

    Attributes:
        repository: its name there.
        configurations: parts of it, read one after the other.
        questions: how many there are.
        convert: gives our shape to a row, from it, its configuration and its number.
    """

    repository: str
    configurations: tuple[str, ...]
    questions: int
    convert: Callable[[Row, str, int], dict[str, Any]]

    @property
    def place(self) -> str:
        """Repository, configuration where there is one, and split, for people."""
        one = self.configurations if len(self.configurations) == 1 else ()
        return " ".join([self.repository, *one, SPLIT])


def _gsm8k(row: Row, configuration: str, number: int) -> dict[str, Any]:
    return {"id": f"{SPLIT}-{number}", "question": row["question"], "answer": row["answer"]}


def _math(row: Row, configuration: str, number: int) -> dict[str, Any]:
    name = f"{SPLIT}-{configuration}-{number}"
    return {"id": name, "question": row["problem"], "answer": row["solution"]}


def _mbpp(row: Row, configuration: str, number: int) -> dict[str, Any]:
    return {"id": row["task_id"], "question": row["text"], "answer": row["code"]}


def _mmlu(row: Row, configuration: str, number: int) -> dict[str, Any]:
    return {
        "id": f"{SPLIT}-{row['subject']}-{number}",
        "question": row["question"],
        "choices": row["choices"],
        "answer": LETTERS[row["answer"]],
    }


def _arc(row: Row, configuration: str, number: int) -> dict[str, Any]:
    choices = row["choices"]
    return {
        "id": row["id"],
        "question": row["question"],
        "choices": dict(zip(choices["label"], choices["text"], strict=True)),
        "answer": row["answerKey"],
    }


SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
HUB: Mapping[str, Source] = {
    "gsm8k": Source("openai/gsm8k", ("main",), 1_319, _gsm8k),
    "math": Source("EleutherAI/hendrycks_math", SUBJECTS, 5_000, _math),
    "mbpp": Source("google-research-datasets/mbpp", ("full",), 500, _mbpp),
    "mmlu": Source("cais/mmlu", ("all",), 14_042, _mmlu),
    "arc-easy": Source("allenai/ai2_arc", ("ARC-Easy",), 2_376, _arc),
    "arc-challenge": Source("allenai/ai2_arc", ("ARC-Challenge",), 1_172, _arc),
}


def hub_installed() -> bool:
    """Whether the extra `hub` is there."""
    return find_spec("datasets") is not None


def hub_queries(name: str, file: str) -> tuple[list[Query], str]:
    """The questions of one of the six, and where they come from: repository@commit, split.

    Args:
        name: a key of `HUB`.
        file: the local file that would be read instead, for messages.

    Raises:
        InputError: the extra is not installed, or the hub is switched off and the dataset was not
            downloaded before.
        WorldError: the hub cannot be reached, or holds something else than expected.
    """
    source = HUB[name]
    tables, commit = _tables(source, file)
    try:
        queries = [
            query_of(
                source.convert(row, configuration, number),
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
