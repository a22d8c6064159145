"""Merge rows into a cache: rows that it has already stay as they are, and are counted.

`store_answers` makes trees of answers that were imported from a file.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from hierrouter.collection.plan import store_plan
from hierrouter.collection.tables import Answer, Answers, Route
from hierrouter.declarations.declaration import OnTask, ignore_task
from hierrouter.engines.generator import Call, CallTime, Response, call_row
from hierrouter.pools.pool import (
    IMPORTED,
    MAX_HOPS,
    MAX_POOL_NODES,
    RESERVED_NAMES,
    Identity,
    ModelSpec,
    Pool,
    size_in_name,
)
from hierrouter.questions.query import Query
from hierrouter.questions.scoring import GIVEN_SCORER, RUNS_SCORER
from hierrouter_cache.chain import seal_loose
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import call_key, digest, draw_step, next_context
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.parts import IDENTITY_COLUMNS, ROW_SCHEMAS
from hierrouter_cache.reader import CacheReader, reader_of
from hierrouter_cache.tree import Rate
from hierrouter_cache.walk import TreeSpec
from hierrouter_cache.writer import PartWriter, sweep_drafts

MERGED_ROWS_PER_PART = 8192
# By kind: the column in which rows with one identity may differ.
CONTENT_COLUMNS = {"calls": "outcome", "scores": "value"}
CONTEXT_FREE_HOPS = 2
TOKEN_RATE = Rate.base(1.0)  # if prices are unknown; cost then counts tokens
CALL_RATE = Rate(0.0, 0.0, call=1.0)  # if tokens are unknown, too; cost then counts calls


@dataclass
class Merge:
    """Rows that are being added to a cache; use `open_merge`.

    Attributes:
        writer: commits the parts.
        reader: of the cache as it was before; None if it did not exist.
        added: number of new rows, by kind.
        present: number of rows that were there already, or are twice in the file, by kind.
        different: number of those with another content, which was not taken over.
        repeated: number of those that the file itself had before.
        another_plan: whether the cache has another latest plan than before.
    """

    writer: PartWriter
    reader: CacheReader | None
    added: Counter[str] = field(default_factory=Counter)
    present: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    another_plan: bool = False
    # By kind: (content, whether it is new) of each row, by identity.
    _contents: dict[str, dict[tuple[Any, ...], tuple[Any, bool]]] = field(default_factory=dict)
    # By kind: rows that are not written yet.
    _pending: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)

    def add(self, kind: str, row: Mapping[str, Any]) -> None:
        """Add one row; it is committed together with others of its kind.

        Args:
            kind: of the row.
            row: value of each column.

        Raises:
            WorldError: the disk is full or failed; what was committed stays.
        """
        if kind not in self._contents:
            self._contents[kind] = self._stored_contents(kind)
        contents = self._contents[kind]
        identity = tuple(row[name] for name in IDENTITY_COLUMNS[kind])
        content = row[CONTENT_COLUMNS[kind]] if kind in CONTENT_COLUMNS else None
        if identity in contents:
            first_content, is_new = contents[identity]
            self.present[kind] += 1
            self.different[kind] += first_content != content
            self.repeated[kind] += is_new
            return
        contents[identity] = (content, True)
        self.added[kind] += 1
        pending = self._pending.setdefault(kind, [])
        pending.append(row)
        if len(pending) == MERGED_ROWS_PER_PART:
            self._commit(kind)

    def flush(self) -> None:
        """Commit all pending rows.

        Raises:
            WorldError: the disk is full or failed; what was committed stays.
        """
        for kind in list(self._pending):
            self._commit(kind)

    def _commit(self, kind: str) -> None:
        rows = self._pending.pop(kind)
        self.writer.append(kind, pa.Table.from_pylist(rows, schema=ROW_SCHEMAS[kind]))

    def _stored_contents(self, kind: str) -> dict[tuple[Any, ...], tuple[Any, bool]]:
        if self.reader is None:
            return {}
        names = ", ".join(f'"{name}"' for name in IDENTITY_COLUMNS[kind])
        content = CONTENT_COLUMNS.get(kind, "NULL")
        table = self.reader.sql(f"SELECT {names}, {content} AS content FROM {kind}_rows")  # noqa: S608 - our own names
        # Of rows with one identity the first one counts, so they are entered backwards.
        *identities, contents = (column.to_pylist()[::-1] for column in table.columns)
        stored = ((content, False) for content in contents)
        return dict(zip(zip(*identities, strict=True), stored, strict=True))


@contextmanager
def open_merge(root: Path) -> Iterator[Merge]:
    """Add rows to a cache while a block lasts; they are committed at its end at the latest.

    Args:
        root: the cache's folder, made if it does not exist.

    Yields:
        Takes the rows.

    Raises:
        CacheLocked: a collector is at work there.
        CacheError: the cache is damaged or cannot be written.
    """
    writer = PartWriter(root)
    with collector_lock(root):
        sweep_drafts(root)
        seal_loose(root)
        merge = Merge(writer, reader_of(root))
        yield merge
        merge.flush()


def store_answers(
    answers: Answers,
    pool: Pool,
    root: Path,
    on_progress: OnTask = ignore_task,
    decided: Mapping[str, str] | None = None,
) -> Merge:
    """Write the trees, the scores and the plan of a file into a cache.

    Args:
        answers: of the file.
        pool: its models, from `pool_of`, with prices.
        root: the cache's folder, made if it does not exist.
        on_progress: called with ("import", done, total) as queries are written.
        decided: what was decided for this import, for the plan; see `pools.files.stored_import`.

    Returns:
        Counts of new and known rows.

    Raises:
        CacheError: the cache is damaged, in use by a collector, or cannot be written.
        WorldError: the disk is full or failed.
    """
    identities = _identities(answers, pool)
    spec = pool.tree_spec(identities)
    with open_merge(root) as merge:
        queries = zip(answers.queries, answers.by_path, strict=True)
        for done, (query, by_path) in enumerate(queries, 1):
            for call, score in _calls(query, by_path, pool, spec):
                merge.add("calls", call)
                if score is not None:
                    row = {"call": call["key"], "references": query.references}
                    merge.add("scores", {**row, "scorer": GIVEN_SCORER.key, "value": score})
            on_progress("import", done, len(answers.queries))
        merge.flush()
        merge.another_plan = store_plan(
            merge.writer, merge.reader, pool, identities, answers.queries, imported=decided
        )
    return merge


def store_log(
    answers: Answers,
    pool: Pool,
    root: Path,
    on_progress: OnTask = ignore_task,
    decided: Mapping[str, str] | None = None,
) -> Merge:
    """Write the calls, the scores and the plan of a log into a cache.

    Arguments, result and errors are those of `store_answers`.
    """
    assert answers.runs is not None
    identities = _identities(answers, pool)
    spec = pool.tree_spec(identities)
    steps = dict(zip((model.model for model in pool.models), spec.steps[0], strict=True))
    names = {model.model: model.name for model in pool.models}
    with open_merge(root) as merge:
        queries = zip(answers.queries, answers.by_path, answers.runs, strict=True)
        for done, (query, by_path, runs) in enumerate(queries, 1):
            contexts: dict[Route, str] = {(): query.context}
            runs_of_call: Counter[tuple[Route, str]] = Counter()
            draws_of_call: Counter[tuple[Route, str]] = Counter()
            for path, answer in by_path.items():
                runs_of_call[path[:-1], answer.path[-1]] += runs[path]
                draws_of_call[path[:-1], answer.path[-1]] += 1
            for path, answer in by_path.items():
                step = draw_step(steps[answer.path[-1]], int(answer.draw or 0))
                row = _call_row(step, contexts[path[:-1]], answer, names[answer.path[-1]])
                # Equal responses to different actions are different states of a log.
                row["outcome"] = next_context(row["context"], answer.response, step)
                contexts[path] = row["outcome"]
                merge.add("calls", row)
                score = {"call": row["key"], "references": query.references}
                call = (path[:-1], answer.path[-1])
                if answer.score is not None:
                    merge.add(
                        "scores", {**score, "scorer": GIVEN_SCORER.key, "value": answer.score}
                    )
                if draws_of_call[call] > 1:
                    share = runs[path] / runs_of_call[call]
                    merge.add("scores", {**score, "scorer": RUNS_SCORER.key, "value": share})
            on_progress("import", done, len(answers.queries))
        merge.flush()
        merge.another_plan = store_plan(
            merge.writer, merge.reader, pool, identities, answers.queries, imported=decided
        )
    return merge


def _call_row(step: str, context: str, answer: Answer, model: str) -> dict[str, Any]:
    """The row of `calls` of one response of a file.

    Args:
        step: of the call.
        context: of the call.
        answer: the response.
        model: name of the model in the pool.
    """
    call = Call(call_key(step, context), step, context, answer.prompt)
    time = None if answer.latency_s is None else CallTime(answer.latency_s)
    response = Response(
        answer.response,
        answer.tokens_in,
        answer.tokens_out,
        finish_reason="unknown",
        bill=answer.bill,
        time=time,
    )
    return call_row(model, call, response, answer.latency_s)


def pool_of(answers: Answers, hops: int | None) -> Pool:
    """The models of a file as a pool, without prices.

    Args:
        answers: of the file.
        hops: depth of the trees; None is 2 for independent answers, else that of the longest chain.

    Returns:
        The pool.

    Raises:
        InputError: more hops than the chains have, or trees that are too large.
    """
    is_log = answers.runs is not None
    context_free = answers.hops == 1 and not is_log
    depth = hops or (CONTEXT_FREE_HOPS if context_free else answers.hops)
    if not context_free and depth > answers.hops:
        raise InputError(f"the longest chain has {answers.hops} hops: --hops {hops}; ask for fewer")
    names = pool_names(answers.models)
    models = tuple(ModelSpec(name, model, backend=IMPORTED) for model, name in names.items())
    pool = Pool(models, depth, ("",), context_free=context_free, as_stored=is_log)
    if is_log:
        return pool
    if depth > MAX_HOPS or pool.calls > MAX_POOL_NODES:
        raise InputError(
            f"{len(models)} models at {depth} hops exceed {MAX_POOL_NODES:,} nodes per query or "
            f"{MAX_HOPS} hops; take fewer --hops"
        )
    return pool


def pool_names(models: Sequence[str]) -> dict[str, str]:
    """A name for each model that may be used in routes and tables, by the file's own name."""
    names: dict[str, str] = {}
    for model in models:
        plain = re.sub(r"[^A-Za-z0-9._:-]+", "-", model).strip("-._:") or "model"
        name = plain
        number = 2
        while name in names.values() or name in RESERVED_NAMES:
            name = f"{plain}-{number}"
            number += 1
        names[model] = name
    return names


def with_prices(pool: Pool, prices: Mapping[str, Rate]) -> Pool:
    """The pool with these prices.

    Without a price, a model is priced by the size in its name. If some names have no size, and no
    price is given at all, every token costs 1.

    Args:
        pool: from `pool_of`.
        prices: by name of a model.

    Returns:
        The pool with prices.

    Raises:
        InputError: a price for a model that is not in the pool, or prices for only some of the
            models while a name without a price has no size.
    """
    names = [model.name for model in pool.models]
    for name in prices:
        if name not in names:
            raise InputError(f"price for an unknown model: {name}; {suggestion(name, names)}")
    unknown = [name for name in names_without_size(pool) if name not in prices]
    if unknown and prices:
        raise InputError(
            f"no price for {', '.join(unknown)}: no name tells a size; give --price for all"
        )
    rates = dict.fromkeys(names, TOKEN_RATE) if unknown else prices
    models = tuple(
        model.with_rate(rates[model.name]) if model.name in rates else model
        for model in pool.models
    )
    return replace(pool, models=models)


def names_without_size(pool: Pool) -> list[str]:
    """The models whose names have no size, from which a price could be derived."""
    return [model.name for model in pool.models if size_in_name(model.name) is None]


def _identities(answers: Answers, pool: Pool) -> dict[str, Identity]:
    """The identity of each model of the file: its name and all its answers there.

    A name does not determine prompt, settings or version. So the answers of another file are those
    of another model, and a file that is imported again is recognised. The row of an answer in the
    file does not matter, nor do the reference answers and the fold of its query.
    """
    digests: dict[str, list[str]] = {model.model: [] for model in pool.models}
    for by_path in answers.by_path:
        for path, answer in by_path.items():
            query = answer.query
            content = [
                [query.dataset, query.id, query.question],
                path,
                [answer.prompt, answer.response, answer.tokens_in, answer.tokens_out],
                [answer.latency_s, answer.score],
                *(["ended"] if answer.ended else []),
            ]
            digests[answer.path[-1]].append(digest(content))
    return {
        model.name: {
            "imported": model.model,
            "context_free": "yes" if pool.context_free else "no",
            "source": digest(sorted(digests[model.model])),
        }
        for model in pool.models
    }


def _calls(
    query: Query, by_path: Mapping[Route, Answer], pool: Pool, spec: TreeSpec
) -> Iterator[tuple[dict[str, Any], float | None]]:
    """(row of `calls`, score of the file) of every node of one query's tree that has an answer."""
    # Of each path with an answer: its context, and the answer that ended the chain, if one did.
    # After that one, every further call gives the same answer again.
    reached: dict[Route, tuple[str, Answer | None]] = {(): (query.context, None)}
    diverging = frozenset() if pool.context_free else _diverging_paths(by_path)
    for steps in spec.steps:
        following = {}
        for path, (context, final_answer) in reached.items():
            for model, step in zip(pool.models, steps, strict=True):
                next_path = (*path, model.model)
                source_path = (model.model,) if pool.context_free else next_path
                answer = final_answer or by_path.get(source_path)
                if answer is None:
                    continue
                row = _call_row(step, context, answer, model.name)
                if next_path in diverging:
                    row["outcome"] = next_context(context, answer.response, step)
                following[next_path] = (row["outcome"], answer.repeated() if answer.ended else None)
                yield row, answer.score
        reached = following


def _diverging_paths(by_path: Mapping[Route, Answer]) -> frozenset[Route]:
    """The paths with the responses of another path, after which the file goes on differently.

    The key of a context has the responses alone, which is right if equal contexts get equal
    answers. Imported answers need not be equal, because they may have been drawn.
    """
    paths_by_responses: dict[tuple[str, ...], list[Route]] = {}
    for path in by_path:
        responses = tuple(by_path[path[:hop]].response for hop in range(1, len(path) + 1))
        paths_by_responses.setdefault(responses, []).append(path)
    diverging: set[Route] = set()
    for paths in paths_by_responses.values():
        if len(paths) == 1:
            continue  # nothing to compare it with, and each continuation is a walk of the tree
        continuations = [_continuation(path, by_path) for path in paths]
        if any(continuation != continuations[0] for continuation in continuations[1:]):
            diverging.update(paths)
    return frozenset(diverging)


def _continuation(path: Route, by_path: Mapping[Route, Answer]) -> dict[Route, Any]:
    """What a file has after a path: the content of each answer, by the rest of its path."""
    hops = len(path)
    continuation: dict[Route, Any] = {
        other[hops:]: answer.content
        for other, answer in by_path.items()
        if len(other) > hops and other[:hops] == path
    }
    return {**continuation, (): by_path[path].ended}
