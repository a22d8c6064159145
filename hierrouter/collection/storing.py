"""Rows on their way into a cache: what is there already stays, and is counted.

`store_answers` makes trees of answers that were given elsewhere.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from hierrouter.collection.plan import Call, call_row, store_plan
from hierrouter.collection.tables import Answer, Answers, Route
from hierrouter.engines.generator import Response
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
from hierrouter.questions.scoring import GIVEN_SCORER
from hierrouter_cache.chain import seal_loose
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import call_key, digest, root_context
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.parts import IDENTITY_COLUMNS, ROW_SCHEMAS
from hierrouter_cache.reader import CacheReader, reader_of
from hierrouter_cache.tree import Rate
from hierrouter_cache.walk import TreeSpec
from hierrouter_cache.writer import PartWriter, sweep_drafts

OnProgress = Callable[[str, int, int], None]  # told (what is being done, done, total)
ROWS_PER_PART = 8192
# Of rows with one identity, the column in which a second one may differ.
CONTENT = {"calls": "outcome", "scores": "value"}
CONTEXT_FREE_HOPS = 2
UNKNOWN = Rate.base(1.0)  # cost then counts tokens


def ignored(_: str, done: int, total: int) -> None:
    """The `OnProgress` of a caller that shows none."""


@dataclass
class Merge:
    """Rows on their way into a cache; use `merging`.

    Attributes:
        writer: commits the parts.
        reader: what was there before, None where there was nothing.
        added: new rows, by kind.
        present: rows that were there already, or twice in the file.
        different: of those, the ones with another content; it was not taken.
        repeated: of those, the ones that the file itself brought before.
        another_plan: whether the cache has another latest plan than before.
    """

    writer: PartWriter
    reader: CacheReader | None
    added: Counter[str] = field(default_factory=Counter)
    present: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    another_plan: bool = False
    # By kind: (content, whether it is new) of every row by its identity, and rows not yet written.
    _known: dict[str, dict[tuple[Any, ...], tuple[Any, bool]]] = field(default_factory=dict)
    _waiting: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)

    def add(self, kind: str, row: Mapping[str, Any]) -> None:
        """Take one row; it is committed with others of its kind.

        Raises WorldError: the disk is full or failed; what was committed stays.
        """
        if kind not in self._known:
            self._known[kind] = self._stored(kind)
        known = self._known[kind]
        identity = tuple(row[name] for name in IDENTITY_COLUMNS[kind])
        content = row[CONTENT[kind]] if kind in CONTENT else None
        if identity in known:
            first, is_new = known[identity]
            self.present[kind] += 1
            self.different[kind] += first != content
            self.repeated[kind] += is_new
            return
        known[identity] = content, True
        self.added[kind] += 1
        waiting = self._waiting.setdefault(kind, [])
        waiting.append(row)
        if len(waiting) == ROWS_PER_PART:
            self._commit(kind)

    def flush(self) -> None:
        """Commit everything that waits.

        Raises WorldError: the disk is full or failed; what was committed stays.
        """
        for kind in list(self._waiting):
            self._commit(kind)

    def _commit(self, kind: str) -> None:
        rows = self._waiting.pop(kind)
        self.writer.append(kind, pa.Table.from_pylist(rows, schema=ROW_SCHEMAS[kind]))

    def _stored(self, kind: str) -> dict[tuple[Any, ...], tuple[Any, bool]]:
        if self.reader is None:
            return {}
        names = ", ".join(f'"{name}"' for name in IDENTITY_COLUMNS[kind])
        content = CONTENT.get(kind, "NULL")
        table = self.reader.sql(f"SELECT {names}, {content} AS content FROM {kind}_rows")  # noqa: S608 - our own names
        # Read backwards, so that the first part's row is the one that stays.
        *identity, values = (column.to_pylist()[::-1] for column in table.columns)
        stored = ((value, False) for value in values)
        return dict(zip(zip(*identity, strict=True), stored, strict=True))


@contextmanager
def merging(root: Path) -> Iterator[Merge]:
    """A `Merge` into the cache at `root`, made where it does not exist; commits at the end.

    Raises CacheLocked: a collector is at work there; CacheError: the cache is damaged or cannot be
    written.
    """
    writer = PartWriter(root)
    with collector_lock(root):
        sweep_drafts(root)
        seal_loose(root)
        merge = Merge(writer, reader_of(root))
        yield merge
        merge.flush()


def store_answers(
    answers: Answers, pool: Pool, root: Path, on_progress: OnProgress = ignored
) -> Merge:
    """Write the trees, the given scores and the plan into the cache at `root`.

    Raises CacheError: the cache is damaged, in use by a collector, or cannot be written;
    WorldError: the disk is full or failed.

    Args:
        answers: what the file holds.
        pool: its models, from `pool_of`, with prices.
        root: the cache's folder, made where it does not exist.
        on_progress: told ("import", done, total) as queries are written.
    """
    identities = _identities(answers, pool)
    spec = pool.tree_spec(identities)
    with merging(root) as merge:
        for done, (query, found) in enumerate(zip(answers.queries, answers.at, strict=True), 1):
            for call, score in _calls(query, found, pool, spec):
                merge.add("calls", call)
                if score is not None:
                    row = {"call": call["key"], "references": query.references}
                    merge.add("scores", {**row, "scorer": GIVEN_SCORER.key, "value": score})
            on_progress("import", done, len(answers.queries))
        merge.flush()
        merge.another_plan = store_plan(
            merge.writer, merge.reader, pool, identities, answers.queries
        )
    return merge


def pool_of(answers: Answers, hops: int | None) -> Pool:
    """The models of a file as a pool, without prices.

    Raises InputError: more hops than the chains have, or trees that are too large.

    `answers`: what the file holds; `hops`: depth of the trees; None is 2 for independent answers,
    else the longest chain.
    """
    context_free = answers.hops == 1
    depth = hops or (CONTEXT_FREE_HOPS if context_free else answers.hops)
    if not context_free and depth > answers.hops:
        raise InputError(f"the longest chain has {answers.hops} hops: --hops {hops}; ask for fewer")
    names = pool_names(answers.models)
    models = tuple(ModelSpec(name, model, backend=IMPORTED) for model, name in names.items())
    pool = Pool(models, depth, ("",), context_free=context_free)
    if depth > MAX_HOPS or pool.routes.calls > MAX_POOL_NODES:
        raise InputError(
            f"{len(models)} models at {depth} hops exceed {MAX_POOL_NODES:,} nodes per query or "
            f"{MAX_HOPS} hops; take fewer --hops"
        )
    return pool


def pool_names(models: Sequence[str]) -> dict[str, str]:
    """A name that routes and tables can carry for each model, by the file's own name."""
    names: dict[str, str] = {}
    for model in models:
        plain = re.sub(r"[^A-Za-z0-9._:-]+", "-", model).strip("-._:") or "model"
        name, number = plain, 2
        while name in names.values() or name in RESERVED_NAMES:
            name, number = f"{plain}-{number}", number + 1
        names[model] = name
    return names


def priced(pool: Pool, given: Mapping[str, Rate]) -> Pool:
    """The pool with these rates; the others by size, or all 1 per token where a name tells none.

    Raises InputError: a rate for a model that is not there, or rates for only some where the others
    cannot be told.
    """
    names = [model.name for model in pool.models]
    for name in given:
        if name not in names:
            raise InputError(f"price for an unknown model: {name}; {suggestion(name, names)}")
    unknown = [name for name in sizeless(pool) if name not in given]
    if unknown and given:
        raise InputError(
            f"no price for {', '.join(unknown)}: no name tells a size; give --price for all"
        )
    rates = given or (dict.fromkeys(names, UNKNOWN) if unknown else {})
    models = tuple(
        replace(model, rate_in=rates[model.name].tokens_in, rate_out=rates[model.name].tokens_out)
        if model.name in rates
        else model
        for model in pool.models
    )
    return replace(pool, models=models)


def sizeless(pool: Pool) -> list[str]:
    """The models whose price no name tells."""
    return [model.name for model in pool.models if size_in_name(model.name) is None]


def _identities(answers: Answers, pool: Pool) -> dict[str, Identity]:
    """What each model of the file is: its name and all that it answered there.

    A name says nothing of prompt, settings or version. So the answers of another file are those of
    another model, and a file that is imported again is known. Where an answer stands does not
    count, nor do the references and the fold of its query.
    """
    digests: dict[str, list[str]] = {model.model: [] for model in pool.models}
    for found in answers.at:
        for path, answer in found.items():
            query = answer.query
            content = [
                [query.dataset, query.id, query.question],
                path,
                [answer.prompt, answer.response, answer.tokens_in, answer.tokens_out],
                [answer.latency_s, answer.score],
                *(["ended"] if answer.ended else []),
            ]
            digests[path[-1]].append(digest(content))
    return {
        model.name: {
            "imported": model.model,
            "context_free": "yes" if pool.context_free else "no",
            "source": digest(sorted(digests[model.model])),
        }
        for model in pool.models
    }


def _calls(
    query: Query, found: Mapping[Route, Answer], pool: Pool, spec: TreeSpec
) -> Iterator[tuple[dict[str, Any], float | None]]:
    """(row of `calls`, given score) of every node of one query's tree that has an answer."""
    # After an answer that ended its chain it is there again, whoever is called.
    reached: dict[Route, tuple[str, Answer | None]] = {(): (root_context(query.question), None)}
    for steps in spec.steps:
        following = {}
        for path, (context, ended) in reached.items():
            for model, step in zip(pool.models, steps, strict=True):
                there = (*path, model.model)
                answer = ended or found.get((model.model,) if pool.context_free else there)
                if answer is None:
                    continue
                call = Call(call_key(step, context), step, context, answer.prompt)
                tokens = answer.tokens_in, answer.tokens_out
                response = Response(answer.response, *tokens, finish_reason="unknown")
                row = call_row(model.name, call, response, answer.latency_s)
                following[there] = row["outcome"], answer.again if answer.ended else None
                yield row, answer.score
        reached = following
