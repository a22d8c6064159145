"""Write the direct calls of a cache as files of LLMRouter and RouterBench.

Both formats hold one call of each model to each question, so later hops have no place in them;
`flags.LOSSES` lists what else is lost. The formats are those that the projects publish:
LLMRouter's `llmrouter/data/README.md`, and RouterBench's frames on the Hugging Face hub.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hierrouter.collection.files import json_line
from hierrouter.collection.peers import COST_SUFFIX, PROMPT_COLUMN, RESPONSE_SUFFIX
from hierrouter.collection.plan import stored_queries
from hierrouter.declarations.declaration import OnTask, ignore_task
from hierrouter.engines.encoders import default_encoder, load_encoder
from hierrouter.pools.pool import IMPORTED, ModelSpec, Pool, size_in_name
from hierrouter.questions.query import Query
from hierrouter.questions.sources import choice_lines
from hierrouter.replay.opening import load_scorers
from hierrouter.replay.stored_pool import load_planned_pool, quality_of_forest
from hierrouter.runs.folders import draft_of
from hierrouter.tables import csv_text, significant
from hierrouter_cache.errors import IncompleteTree, InputError
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import cost_of, rate_table
from hierrouter_cache.walk import walk
from hierrouter_cache.writer import atomic_file

# The files of LLMRouter's folder.
TRAIN_FILE = "routing_train_data.jsonl"
TEST_FILE = "routing_test_data.jsonl"
EMBEDDINGS_FILE = "query_embeddings.pt"
MODELS_FILE = "llm_data.json"
TOKENS_PER_PRICE = 1_000_000  # LLMRouter's prices are those of a million tokens
# RouterBench's column for the cheapest of the best models, and its word for none.
ORACLE_COLUMN = "oracle_model_to_route_to"
NO_MODEL = "no_model_correct"
TEXTS_PER_REPORT = 64  # embedded between two calls of `on_progress`


@dataclass(frozen=True)
class DirectCalls:
    """The direct calls of all models to some queries.

    Attributes:
        models: K models, references included.
        names: how the formats call them: an imported model by its name in the file it came from.
        queries: n of them.
        responses: n rows of K texts.
        score: float64[n, K], in [0, 1].
        tokens_in: int64[n, K], prompt tokens.
        tokens_out: int64[n, K], generated tokens.
        seconds: float64[n, K]; NaN if it was not measured.
        cost: float64[n, K], in the pool's currency.
        scorer: name of the score.
        pool: of the models.
        left_out: number of queries that lack a call and are not here.
    """

    models: tuple[ModelSpec, ...]
    names: tuple[str, ...]
    queries: tuple[Query, ...]
    responses: Sequence[Sequence[str]]
    score: NDArray[np.float64]
    tokens_in: NDArray[np.int64]
    tokens_out: NDArray[np.int64]
    seconds: NDArray[np.float64]
    cost: NDArray[np.float64]
    scorer: str
    pool: Pool
    left_out: int


def read_direct_calls(
    root: Path,
    scorer: str,
    models: Sequence[str] | None = None,
    without: Sequence[str] = (),
    allow_incomplete: bool = False,
    run_code: bool = False,
    on_progress: OnTask = ignore_task,
) -> DirectCalls:
    """Read the direct calls of the last collection, and score them.

    Args:
        root: the cache's folder.
        scorer: name of the score; values that are not stored yet are computed.
        models: names of some of the pool's models; None is all of them, and the references.
        without: names of models and references to leave out.
        allow_incomplete: leave out queries that lack a direct call, instead of refusing.
        run_code: whether to run the programs in responses, for `accuracy`.
        on_progress: called with ("score", done, total).

    Raises:
        CacheError: nothing there, or it is damaged.
        IncompleteTree: a direct call is missing.
        InputError: an unknown model or scorer, or a scorer that cannot score these; a log, whose
            calls are steps of routes.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    complete_pool, identities = load_planned_pool(plan.pool)
    if complete_pool.as_stored:
        raise InputError(
            f"a log has no direct calls, and other tools know no routes: {root}; --format jsonl "
            "exports all of it"
        )
    pool = complete_pool.direct_pool(models, without)
    forest = walk(reader, pool.tree_spec(identities), plan.queries)
    rows = np.flatnonzero(forest.direct.complete)
    left_out = len(forest.keys) - len(rows)
    if left_out and not (allow_incomplete and len(rows)):
        raise IncompleteTree(
            f"{left_out} of {len(forest.keys)} queries lack direct calls: {root}; collect or "
            "import them, name fewer --models, or leave these queries out with --allow-incomplete"
        )
    complete = forest.select(rows)
    # Only direct calls are scored: those of the tree may be missing, and have no place here.
    tree = complete.tree
    without_tree = replace(complete, tree=replace(tree, present=np.zeros_like(tree.present)))
    quality_scorer, _ = load_scorers(scorer)
    on_score = partial(on_progress, "score")
    quality = quality_of_forest(
        reader, without_tree, quality_scorer, run_code, on_score, allow_incomplete
    )
    complete = quality.forest
    left_out = len(forest.keys) - len(complete.keys)
    direct = complete.direct
    texts = reader.texts(direct.key)
    rates = rate_table([model.name for model in pool.all_models], pool.rates())
    return DirectCalls(
        models=pool.all_models,
        names=tuple(
            model.model if model.backend == IMPORTED else model.name for model in pool.all_models
        ),
        queries=stored_queries(reader, complete.keys),
        responses=[[texts[key].response for key in row] for row in direct.key.tolist()],
        score=quality.scores.direct,
        tokens_in=direct.tokens_in,
        tokens_out=direct.tokens_out,
        seconds=direct.seconds,
        cost=cost_of(
            direct.tokens_in, direct.tokens_out, rates, direct.tokens_cached, direct.tokens_thoughts
        ),
        scorer=quality_scorer.name,
        pool=pool,
        left_out=left_out,
    )


def export_llmrouter(
    calls: DirectCalls, out: Path, encoder: str | None, on_progress: OnTask = ignore_task
) -> None:
    """Write a folder with LLMRouter's routing rows, the questions' embeddings, and the models.

    A fold without queries gets no file.

    Args:
        calls: what to write.
        out: the folder to make.
        encoder: embeds the questions; None is the pool's.
        on_progress: called with ("embed", done, total) and ("export", done, total).

    Raises:
        InputError: no encoder has this name.
        WorldError: the encoder cannot be had, or the disk is full or failed.
    """
    import torch

    questions = [_question_and_choices(query)[0] for query in calls.queries]
    vectors = _embed(questions, encoder or default_encoder(calls.pool), on_progress)
    rows: dict[str, list[bytes]] = {TRAIN_FILE: [], TEST_FILE: []}
    for number, query in enumerate(calls.queries):
        file = TEST_FILE if query.split == "test" else TRAIN_FILE
        rows[file] += map(json_line, _llmrouter_rows(calls, number))
        on_progress("export", number + 1, len(calls.queries))
    with draft_of(out) as folder:
        for name, lines in rows.items():
            if lines:
                with atomic_file(folder / name) as target:
                    target.writelines(lines)
        with atomic_file(folder / EMBEDDINGS_FILE) as target:
            torch.save(
                {number: torch.from_numpy(row) for number, row in enumerate(vectors)}, target
            )
        with atomic_file(folder / MODELS_FILE) as target:
            models = json.dumps(_llmrouter_models(calls), ensure_ascii=False, indent=2)
            target.write(models.encode() + b"\n")


def _embed(texts: Sequence[str], encoder: str, on_progress: OnTask) -> NDArray[np.float32]:
    """Return float32[len(texts), dim], the embedding of each text."""
    loaded = load_encoder(encoder)
    parts = []
    for start in range(0, len(texts), TEXTS_PER_REPORT):
        parts.append(loaded.encode(texts[start : start + TEXTS_PER_REPORT]))
        on_progress("embed", min(start + TEXTS_PER_REPORT, len(texts)), len(texts))
    return np.concatenate(parts)


def _question_and_choices(query: Query) -> tuple[str, str | None]:
    """Return the question without its choices, and the choices as LLMRouter writes them.

    If the question does not end with its choices, it stays as it is, and the choices are None.
    """
    question = query.question.removesuffix(choice_lines(query.choices))
    if not query.choices or question == query.question or not question.strip():
        return query.question, None
    labels = [label for label, _ in query.choices]
    texts = [text for _, text in query.choices]
    return question, json.dumps({"text": texts, "labels": labels}, ensure_ascii=False)


def _llmrouter_rows(calls: DirectCalls, number: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of one query, the cheapest call first.

    LLMRouter's trainers label a query with the first of its best rows. So a tie goes to the
    cheapest model.
    """
    for model in map(int, np.argsort(calls.cost[number], kind="stable")):
        seconds = float(calls.seconds[number, model])
        yield llmrouter_row(
            calls.queries[number],
            calls.names[model],
            calls.responses[number][model],
            tokens_in=int(calls.tokens_in[number, model]),
            tokens_out=int(calls.tokens_out[number, model]),
            seconds=None if math.isnan(seconds) else seconds,
            score=float(calls.score[number, model]),
            scorer=calls.scorer,
            embedding=number,
        )


def llmrouter_row(
    query: Query,
    model: str,
    response: str,
    *,
    tokens_in: int,
    tokens_out: int,
    seconds: float | None,
    score: float,
    scorer: str,
    embedding: int,
) -> dict[str, Any]:
    """Return one call as LLMRouter's routing data has it.

    Args:
        query: that was answered.
        model: name of the model.
        response: its text.
        tokens_in: prompt tokens.
        tokens_out: generated tokens.
        seconds: of the call; None if it was not measured.
        score: in [0, 1].
        scorer: name of the score.
        embedding: id of the question's embedding.
    """
    question, choices = _question_and_choices(query)
    return {
        "task_name": query.dataset,
        "query": question,
        "ground_truth": query.answers[0] if query.answers else "",
        "metric": scorer,
        "choices": choices,
        "task_id": query.id,
        "model_name": model,
        "response": response,
        "token_num": tokens_in + tokens_out,
        "input_tokens": tokens_in,
        "output_tokens": tokens_out,
        "response_time": seconds,
        "api_key_used": "",
        "performance": score,
        "embedding_id": embedding,
        "user_id": None,
        "fig_id": None,
    }


def _llmrouter_models(calls: DirectCalls) -> dict[str, dict[str, Any]]:
    """Return each model as LLMRouter's list of candidates has it, with prices of a million tokens.

    The cache knows no description of a model, so its id is given instead.
    """
    rates = calls.pool.rates()
    models = {}
    for name, model in zip(calls.names, calls.models, strict=True):
        parameters = size_in_name(model.model) or size_in_name(model.name)
        rate = rates[model.name]
        models[name] = {
            "size": f"{parameters / 1e9:g}B" if parameters else "",
            "feature": model.model,
            "input_price": significant(rate.tokens_in * TOKENS_PER_PRICE),
            "output_price": significant(rate.tokens_out * TOKENS_PER_PRICE),
            "model": model.model,
            "service": "",
            "api_endpoint": model.endpoint.base_url if model.endpoint else "",
        }
    return models


def export_routerbench(
    calls: DirectCalls, out: Path, encoder: str | None = None, on_progress: OnTask = ignore_task
) -> None:
    """Write the frame of RouterBench, as .parquet or .csv by the end of the name.

    Args:
        calls: what to write.
        out: the file to make.
        encoder: is not needed: the frame has no embeddings.
        on_progress: called with ("export", done, total).

    Raises:
        InputError: two columns would have the same name.
        WorldError: the disk is full or failed.
    """
    columns: list[tuple[str, Sequence[object]]] = [
        ("sample_id", [query.id for query in calls.queries]),
        (PROMPT_COLUMN, [str([query.question]) for query in calls.queries]),
        ("eval_name", [query.dataset for query in calls.queries]),
    ]
    for model, name in enumerate(calls.names):
        columns.append((name, calls.score[:, model].tolist()))
    for model, name in enumerate(calls.names):
        responses = [str([row[model]]) for row in calls.responses]
        columns.append((name + RESPONSE_SUFFIX, responses))
    for model, name in enumerate(calls.names):
        columns.append((name + COST_SUFFIX, calls.cost[:, model].tolist()))
    columns.append((ORACLE_COLUMN, _cheapest_best(calls)))
    counts = Counter(name for name, _ in columns)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise InputError(
            f"two columns of the frame would be called {repeated[0]!r:.80}: routerbench; leave the "
            "model of this name out with --without"
        )
    arrays = {name: pa.array(values) for name, values in columns}
    _write_frame(pa.table(arrays), out)
    on_progress("export", len(calls.queries), len(calls.queries))


def _cheapest_best(calls: DirectCalls) -> list[str]:
    """Return the cheapest of the best models of each query; `NO_MODEL` if all scores are 0."""
    best = calls.score.max(axis=1, keepdims=True)
    cheapest = np.where(calls.score == best, calls.cost, np.inf).argmin(axis=1)
    return [
        calls.names[model] if score > 0 else NO_MODEL
        for model, score in zip(cheapest.tolist(), best[:, 0].tolist(), strict=True)
    ]


def _write_frame(table: pa.Table, out: Path) -> None:
    """Write a frame; no cell of a CSV file is a formula for a spreadsheet."""
    with atomic_file(out) as target:
        if out.suffix == ".parquet":
            pq.write_table(table, target)
            return
        columns = [
            pa.array(map(csv_text, column.to_pylist()))
            if pa.types.is_string(column.type)
            else column
            for column in table.columns
        ]
        names = [csv_text(name) for name in table.column_names]
        pa.csv.write_csv(pa.table(columns, names=names), target)


# Writes direct calls to a path; the third argument is the name of an encoder.
Writer = Callable[[DirectCalls, Path, str | None, OnTask], None]
WRITERS: Mapping[str, Writer] = {"llmrouter": export_llmrouter, "routerbench": export_routerbench}
