"""The formats of RouteLLM, RouterBench and LLMRouter, read and written."""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter.collection.files import whole_folder, write_frame, write_json_lines
from hierrouter.collection.plan import stored_queries
from hierrouter.collection.tables import MAX_TOKENS, Answer, Row, read_rows
from hierrouter.engines.encoders import default_encoder, load_encoder
from hierrouter.pools.pool import IMPORTED
from hierrouter.questions.query import Query, storable
from hierrouter.questions.scoring import Scorer
from hierrouter.questions.sources import choice_lines
from hierrouter.replay.stored_pool import planned_pool, score_forest
from hierrouter_cache.errors import IncompleteTree, InputError
from hierrouter_cache.keys import digest
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import Rate, cost_of, rate_table
from hierrouter_cache.walk import walk
from hierrouter_cache.writer import atomic_file

# LLMRouter's files, of a folder.
TRAIN, TEST = "routing_train_data.jsonl", "routing_test_data.jsonl"
EMBEDDINGS = "query_embeddings.pt"
# RouterBench's columns.
PROMPT, RESPONSE, COST = "prompt", "|model_response", "|total_cost"
NANO = -9
NOBODY = "no_model_correct"  # the frame's word for a query that no model answers


@dataclass(frozen=True)
class DirectTable:
    """The direct calls of some queries by all models, references included.

    Attributes:
        models: K names; of an imported model, the one in the file that it came from.
        queries: n of them.
        responses: n rows of K texts.
        score: float64[n, K], in [0, 1].
        tokens_in, tokens_out: int64[n, K].
        cost: float64[n, K], at the pool's prices.
        scorer: name of the score.
        encoder: for the questions' embeddings.
        left_out: queries that lack a call and are not here.
    """

    models: tuple[str, ...]
    queries: tuple[Query, ...]
    responses: Sequence[Sequence[str]]
    score: NDArray[np.float64]
    tokens_in: NDArray[np.int64]
    tokens_out: NDArray[np.int64]
    cost: NDArray[np.float64]
    scorer: str
    encoder: str
    left_out: int

    def vectors(self) -> NDArray[np.float32]:
        """float32[n, dim], the embedding of each question alone; see `load_encoder`."""
        return load_encoder(self.encoder).encode([query.question for query in self.queries])


def direct_table(
    root: Path,
    scorer: Scorer,
    encoder: str | None,
    models: Sequence[str] | None = None,
    allow_incomplete: bool = False,
) -> DirectTable:
    """The direct calls of the last collection.

    Raises CacheError: nothing there, damaged, or a direct call is missing; InputError: an unknown
    model, or a scorer that cannot score this.

    Args:
        root: the cache's folder.
        scorer: gives the scores; missing ones are computed.
        encoder: embeds the questions, when it is asked for; None is the pool's.
        models: names of some of the pool's models, or None for all and the references.
        allow_incomplete: leave out queries that lack a direct call, instead of refusing.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    stored, identities = planned_pool(plan.pool)
    pool = stored.sub_pool(models, 1)
    if models is not None:
        pool = replace(pool, references=())
    forest = walk(reader, pool.tree_spec(identities), plan.queries)
    rows = np.flatnonzero(forest.direct.complete)
    left_out = len(forest.keys) - len(rows)
    if left_out and not (allow_incomplete and len(rows)):
        raise IncompleteTree(
            f"{left_out} of {len(forest.keys)} queries lack direct calls; collect or import them, "
            "take fewer --models, or leave these queries out with --allow-incomplete"
        )
    whole = forest.select(rows)
    direct = whole.direct
    texts = reader.texts(direct.key.ravel())
    rates = rate_table([model.name for model in pool.everyone], pool.rates())
    return DirectTable(
        models=tuple(
            model.model if model.backend == IMPORTED else model.name for model in pool.everyone
        ),
        queries=stored_queries(reader, whole.keys),
        responses=[[texts[key].response for key in row] for row in direct.key.tolist()],
        score=score_forest(reader, whole, scorer).direct,
        tokens_in=direct.tokens_in,
        tokens_out=direct.tokens_out,
        cost=cost_of(direct.tokens_in, direct.tokens_out, rates),
        scorer=scorer.name,
        encoder=encoder or default_encoder(pool),
        left_out=left_out,
    )


def write_routellm(table: DirectTable, out: Path) -> None:
    """The direct calls as battles of every pair of models.

    Raises WorldError: the disk is full or failed.
    """
    vectors = table.vectors()
    with whole_folder(out) as folder:
        for name in ("train", "test"):
            battles: list[dict[str, Any]] = []
            rows: list[int] = []
            for number, query in enumerate(table.queries):
                if (query.split == "test") == (name == "test"):
                    for battle in _battles(table, number):
                        battles.append({"idx": len(rows), **battle})
                        rows.append(number)
            with atomic_file(folder / f"{name}.json") as file:
                file.write(json.dumps(battles, ensure_ascii=False, indent=1).encode())
            with atomic_file(folder / f"{name}.npy") as file:
                np.save(file, vectors[np.array(rows, dtype=np.int64)])


def _battles(table: DirectTable, number: int) -> Iterator[dict[str, Any]]:
    """Every pair of models on one query."""
    query, responses, scores = table.queries[number], table.responses[number], table.score[number]
    for a, b in combinations(range(len(table.models)), 2):
        # In the words of the arena; its training code leaves both kinds of ties out.
        winner = "model_a" if scores[a] > scores[b] else "model_b"
        if scores[a] == scores[b]:
            winner = "tie" if scores[a] > 0 else "tie (bothbad)"
        yield {
            "question_id": query.id,
            "prompt": query.question,
            "model_a": table.models[a],
            "model_b": table.models[b],
            "winner": winner,
            "response_a": responses[a],
            "response_b": responses[b],
        }


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


def write_routerbench(table: DirectTable, out: Path) -> None:
    """The direct calls as a frame, .parquet or .csv by the end of the name.

    Raises InputError: another kind of file; WorldError: the disk is full or failed.
    """
    queries, models = table.queries, table.models
    columns: dict[str, Sequence[object]] = {
        "sample_id": [query.id for query in queries],
        "prompt": [str([query.question]) for query in queries],
        "eval_name": [query.dataset for query in queries],
    }
    columns |= {name: table.score[:, place].tolist() for place, name in enumerate(models)}
    for place, name in enumerate(models):
        columns[name + RESPONSE] = [str([row[place]]) for row in table.responses]
    columns |= {name + COST: table.cost[:, place].tolist() for place, name in enumerate(models)}
    # The cheapest of the best models of each query, where any scores above 0.
    best = table.score.max(axis=1, keepdims=True)
    cheapest = np.where(table.score == best, table.cost, np.inf).argmin(axis=1)
    columns["oracle_model_to_route_to"] = [
        models[place] if top > 0 else NOBODY
        for place, top in zip(cheapest.tolist(), best[:, 0].tolist(), strict=True)
    ]
    write_frame(pa.table({name: pa.array(column) for name, column in columns.items()}), out)


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


def write_llmrouter(table: DirectTable, out: Path) -> None:
    """The direct calls as a folder of routing rows and embeddings; no file for an empty fold.

    Raises WorldError: the disk is full or failed.
    """
    import torch

    vectors = {number: torch.from_numpy(row) for number, row in enumerate(table.vectors())}
    with whole_folder(out) as folder:
        for name in (TRAIN, TEST):
            fold = [
                row
                for number, query in enumerate(table.queries)
                if (query.split == "test") == (name == TEST)
                for row in _rows(table, number)
            ]
            if fold:
                write_json_lines(fold, folder / name)
        with atomic_file(folder / EMBEDDINGS) as file:
            torch.save(vectors, file)


def _rows(table: DirectTable, number: int) -> Iterator[dict[str, Any]]:
    """The direct calls of one query, the cheapest first.

    Its trainers label a query with the first of its best rows: a tie is so the cheapest model's.
    """
    query = table.queries[number]
    for place in np.argsort(table.cost[number], kind="stable").tolist():
        tokens_in = int(table.tokens_in[number, place])
        tokens_out = int(table.tokens_out[number, place])
        yield {
            "task_name": query.dataset,
            "query": query.question,
            "ground_truth": query.answers[0] if query.answers else "",
            "metric": table.scorer,
            "choices": None,
            "task_id": query.id,
            "model_name": table.models[place],
            "response": table.responses[number][place],
            "token_num": tokens_in + tokens_out,
            "input_tokens": tokens_in,
            "output_tokens": tokens_out,
            "response_time": None,
            "api_key_used": "",
            "performance": float(table.score[number, place]),
            "embedding_id": number,
            "user_id": None,
            "fig_id": None,
        }
