"""The formats of RouterBench and LLMRouter, read."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from hierrouter.collection.tables import MAX_TOKENS, Answer, Row, read_rows
from hierrouter.questions.query import Query, storable
from hierrouter.questions.sources import choice_lines
from hierrouter_cache.errors import InputError
from hierrouter_cache.keys import digest
from hierrouter_cache.tree import Rate

# RouterBench's columns.
PROMPT, RESPONSE, COST = "prompt", "|model_response", "|total_cost"
NANO = -9


def read_routerbench(path: Path) -> tuple[Iterator[Answer], Rate]:
    """The answers of a frame, row by row, and the rate that makes C the frame's cost.

    Raises InputError: no model's columns, or the first bad row; later ones when they are reached.
    """
    largest = 0.0
    plain: set[str] = set()
    texts: set[str] = set()
    for row in read_rows(path):
        for name, value in row.values.items():
            if name.endswith(COST):
                largest = max(largest, row.number(name) or 0)
            elif (name == PROMPT or name.endswith(RESPONSE)) and isinstance(value, str):
                texts.add(name)
                if _parts(value) is None:
                    plain.add(name)
    unit = cost_unit(largest)
    return _frame_answers(path, unit, texts - plain), Rate.base(unit)


def cost_unit(largest: float) -> float:
    """1e-9, or the power of ten that fits the largest cost, in dollars."""
    exponent = NANO
    while largest / float(f"1e{exponent}") > MAX_TOKENS:
        exponent += 1
    return float(f"1e{exponent}")


def _frame_answers(path: Path, unit: float, listed: set[str]) -> Iterator[Answer]:
    """The answers of every row.

    `unit`: what one unit of `tokens_out` costs, see `cost_unit`; `listed`: columns in which every
    text is written as a Python list of texts.
    """

    def text(row: Row, name: str) -> str:
        """The text of a column; the parts of a list stand one below the other."""
        plain = row.text(name)
        return storable("\n".join(_parts(plain) or ())) if name in listed else plain

    for row in read_rows(path):
        models = [name.removesuffix(RESPONSE) for name in row.values if name.endswith(RESPONSE)]
        if not models:
            raise InputError(
                f"no column ends in {RESPONSE}: {row.where}; it has {', '.join(row.values):.120}"
            )
        question = text(row, PROMPT)
        if not question.strip():
            raise InputError(f"{PROMPT} is blank: {row.where}; take the row out")
        query = Query(row.label("sample_id"), row.label("eval_name"), question, (), "")
        for model in models:
            score, cost = row.share(model), row.number(model + COST)
            if score is None or cost is None or cost < 0:
                raise InputError(f"{model} has no score or no cost >= 0: {row.where}; give both")
            yield Answer(
                where=row.where,
                query=query,
                path=(model,),
                prompt=question,
                response=text(row, model + RESPONSE),
                tokens_in=0,
                tokens_out=round(cost / unit),
                score=score,
            )


def _parts(text: str) -> list[str] | None:
    """The texts in a Python list of them, as the frame writes it; None where it is none."""
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
    """The answers of a file, or of a folder's train and test files.

    Raises InputError: a folder without such files, or the first bad row.
    """
    if not path.is_dir():
        yield from _rows_answers(path, "")
        return
    # Which of the folds a file's name begins a word with: "latest" is no test.
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
        # The rows have no name of their own for a query: it is what its content says.
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
    return tuple((storable(label), storable(text)) for label, text in pairs)
