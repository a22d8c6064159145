"""Read the files of RouterBench and LLMRouter."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from hierrouter.collection.tables import Answer, Row, cost_unit, read_rows
from hierrouter.questions.query import Query
from hierrouter.questions.sources import choice_lines
from hierrouter_cache.errors import InputError
from hierrouter_cache.keys import digest, sound_text
from hierrouter_cache.tree import Rate

# RouterBench's columns.
PROMPT_COLUMN = "prompt"
RESPONSE_SUFFIX = "|model_response"
COST_SUFFIX = "|total_cost"


def read_routerbench(path: Path) -> tuple[Iterator[Answer], Rate]:
    """Read a frame of RouterBench.

    Args:
        path: the file.

    Returns:
        (answers, row by row; the rate at which the cost C is the frame's cost).

    Raises:
        InputError: no model has columns, or the first row is bad; other bad rows raise it when the
            iteration reaches them.
    """
    largest = 0.0
    text_columns: set[str] = set()
    plain_columns: set[str] = set()
    for row in read_rows(path):
        for name, value in row.values.items():
            is_text_column = name == PROMPT_COLUMN or name.endswith(RESPONSE_SUFFIX)
            if name.endswith(COST_SUFFIX):
                largest = max(largest, row.number(name) or 0)
            elif is_text_column and isinstance(value, str):
                text_columns.add(name)
                if _parts(value) is None:
                    plain_columns.add(name)
    unit = cost_unit(largest)
    return _frame_answers(path, unit, text_columns - plain_columns), Rate.base(unit)


def _frame_answers(path: Path, unit: float, list_columns: set[str]) -> Iterator[Answer]:
    """The answers of every row.

    Args:
        path: the file.
        unit: cost of one unit of `tokens_out`, in dollars, see `cost_unit`.
        list_columns: columns in which every text is written as a Python list of texts.
    """

    def text(row: Row, name: str) -> str:
        """The text of a column; the texts of a list become lines."""
        plain = row.text(name)
        if name not in list_columns:
            return plain
        return sound_text("\n".join(_parts(plain) or ()))

    for row in read_rows(path):
        models = [
            name.removesuffix(RESPONSE_SUFFIX)
            for name in row.values
            if name.endswith(RESPONSE_SUFFIX)
        ]
        if not models:
            raise InputError(
                f"no column ends in {RESPONSE_SUFFIX}: {row.where}; "
                f"it has {', '.join(row.values):.120}"
            )
        question = text(row, PROMPT_COLUMN)
        if not question.strip():
            raise InputError(f"{PROMPT_COLUMN} is blank: {row.where}; take the row out")
        query = Query(row.label("sample_id"), row.label("eval_name"), question, (), "")
        for model in models:
            score = row.share(model)
            cost = row.number(model + COST_SUFFIX)
            if score is None or cost is None or cost < 0:
                raise InputError(f"{model} has no score or no cost >= 0: {row.where}; give both")
            yield Answer(
                where=row.where,
                query=query,
                path=(model,),
                prompt=question,
                response=text(row, model + RESPONSE_SUFFIX),
                tokens_in=0,
                tokens_out=round(cost / unit),
                score=score,
            )


def _parts(text: str) -> list[str] | None:
    """The texts in a Python list, as the frame writes it; None if the text is no such list."""
    if not text.startswith("["):
        return None
    try:
        parts = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return None
    return parts


def read_llmrouter(path: Path) -> Iterator[Answer]:
    """Read a file of LLMRouter, or a folder's train and test files.

    Args:
        path: the file or the folder.

    Yields:
        An answer a row.

    Raises:
        InputError: the folder has no such files, or a row is bad.
    """
    if not path.is_dir():
        yield from _rows_answers(path, "")
        return
    # By file: the folds with which a word of its name begins; "latest" is no test.
    files = {
        file: [name for name in ("train", "test") if re.search(rf"(?<![a-z]){name}", file.stem)]
        for file in sorted(path.glob("*.jsonl"))
    }
    if not any(files.values()):
        raise InputError(f"no *train*.jsonl and no *test*.jsonl: {path}; give their folder")
    for file, splits in files.items():
        if len(splits) > 1:
            raise InputError(f"train or test, the name says both: {file}; rename it")
        for split in splits:
            yield from _rows_answers(file, split)


def _rows_answers(path: Path, split: str) -> Iterator[Answer]:
    for row in read_rows(path):
        choices = _choices(row)
        dataset = row.label("task_name")
        question = row.words("query") + choice_lines(choices)
        answers = (row.label("ground_truth"),)
        # Rows without a name of the query are named by its content.
        name = row.label("task_id", digest([question, answers])[:12])
        yield Answer(
            where=row.where,
            query=Query(name, dataset, question, answers, split, choices),
            path=(row.label("model_name"),),
            prompt=question,
            response=row.text("response"),
            tokens_in=row.count("input_tokens"),
            tokens_out=row.count("output_tokens"),
            latency_s=row.number("response_time"),
            score=row.share("performance"),
        )


def _choices(row: Row) -> tuple[tuple[str, str], ...]:
    """(label, text) of each choice."""
    choices = row.values.get("choices")
    if choices is None:
        return ()
    try:
        choices = choices if isinstance(choices, dict) else json.loads(row.text("choices"))
        pairs = tuple(zip(choices["labels"], choices["text"], strict=True))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(
            f'choices must be JSON with "labels" and "text" of one length: {row.where}'
        ) from None
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise InputError(f"choices must hold texts: {row.where}")
    return tuple((sound_text(label), sound_text(text)) for label, text in pairs)
