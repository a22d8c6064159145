"""Store answers that were given elsewhere as the trees of a cache."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from hierrouter.collection.plan import Call, call_row, store_plan
from hierrouter.collection.tables import Answer, Answers
from hierrouter.engines import IMPORTED
from hierrouter.engines.generator import Response
from hierrouter.pools.pool import MAX_HOPS, MAX_NODES, RESERVED, Identity, ModelSpec, Pool, size_in
from hierrouter.questions.folds import near_line, near_pairs
from hierrouter.questions.query import Query
from hierrouter.questions.scoring import GIVEN
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import call_key, digest, root_context
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.parts import IDENTITY, KINDS
from hierrouter_cache.reader import CacheReader, reader_of
from hierrouter_cache.tree import Rate
from hierrouter_cache.walk import TreeSpec
from hierrouter_cache.writer import PartWriter, sweep_drafts

MOST = 20_000  # questions; so many take ten seconds, and time grows faster than they do


def leak_line(root: Path) -> str:
    """What is to be said of the queries that a cache was opened for last; empty where nothing.

    Raises:
        CacheError: nothing there, or damaged.
    """
    reader = CacheReader(root)
    keys = reader.latest_plan().queries
    if len(keys) > MOST:
        return f"more than {MOST:,} questions: near-duplicates across folds were not looked for"
    rows = reader.queries(keys, ("id", "dataset", "question", "split")).to_pylist()
    pairs = near_pairs([Query(**row, answers=()) for row in rows])
    return near_line(pairs) if pairs else ""


ROWS_PER_PART = 8192
# Of rows with one identity, the column in which a second one may differ.
CONTENT = {"calls": "outcome", "scores": "value"}


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
    _known: dict[str, dict[tuple[Any, ...], Any]] = field(default_factory=dict)
    _taken: dict[str, set[tuple[Any, ...]]] = field(default_factory=dict)
    _waiting: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)

    def add(self, kind: str, row: Mapping[str, Any]) -> None:
        """Take one row; it is committed with others of its kind.

        Raises:
            WorldError: the disk is full or failed; what was committed stays.
        """
        known = self._known_of(kind)
        identity = tuple(row[name] for name in IDENTITY[kind])
        content = row[CONTENT[kind]] if kind in CONTENT else None
        taken = self._taken.setdefault(kind, set())
        if identity in known:
            self.present[kind] += 1
            self.different[kind] += known[identity] != content
            self.repeated[kind] += identity in taken
            return
        known[identity] = content
        taken.add(identity)
        self.added[kind] += 1
        waiting = self._waiting.setdefault(kind, [])
        waiting.append(row)
        if len(waiting) == ROWS_PER_PART:
            self._commit(kind)

    def flush(self) -> None:
        """Commit everything that waits.

        Raises:
            WorldError: the disk is full or failed; what was committed stays.
        """
        for kind in list(self._waiting):
            self._commit(kind)

    def _commit(self, kind: str) -> None:
        rows = self._waiting.pop(kind)
        self.writer.append(kind, pa.Table.from_pylist(rows, schema=KINDS[kind]))

    def _known_of(self, kind: str) -> dict[tuple[Any, ...], Any]:
        if kind not in self._known:
            self._known[kind] = self._stored(kind)
        return self._known[kind]

    def _stored(self, kind: str) -> dict[tuple[Any, ...], Any]:
        if self.reader is None:
            return {}
        names = ", ".join(f'"{name}"' for name in IDENTITY[kind])
        content = CONTENT.get(kind, "NULL")
        table = self.reader.sql(f"SELECT {names}, {content} AS content FROM {kind}_rows")  # noqa: S608 - our own names
        # Read backwards, so that the first part's row is the one that stays.
        *identity, values = (column.to_pylist()[::-1] for column in table.columns)
        return dict(zip(zip(*identity, strict=True), values, strict=True))


@contextmanager
def merging(root: Path) -> Iterator[Merge]:
    """A `Merge` into the cache at `root`, made where it does not exist; commits at the end.

    Raises:
        CacheLocked: a collector is at work there.
        CacheError: the cache is damaged or cannot be written.
    """
    writer = PartWriter(root)
    with collector_lock(root):
        sweep_drafts(root)
        merge = Merge(writer, reader_of(root))
        yield merge
        merge.flush()


CONTEXT_FREE_HOPS = 2
UNKNOWN = Rate.base(1.0)  # cost then counts tokens
OnQueries = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Imported:
    """What an import of answers did.

    Attributes:
        pool: the models by their names here, with prices.
        queries: how many there are.
        lacking: how many of them not every model has answered.
        has_references: whether every query has reference answers.
        unpriced: whether every token of every model costs 1, for want of a price.
        scored: how many answers of the file have a score.
        unscored: how many have none.
        merge: counts of new and known rows.
    """

    pool: Pool
    queries: int
    lacking: int
    has_references: bool
    unpriced: bool
    scored: int
    unscored: int
    merge: Merge


def pool_of(answers: Answers, hops: int | None) -> Pool:
    """The models of a file as a pool, without prices.

    Args:
        answers: what the file holds.
        hops: depth of the trees; None is 2 for independent answers, else the longest chain.

    Raises:
        InputError: more hops than the chains have, or trees that are too large.
    """
    context_free = answers.hops == 1
    depth = hops or (CONTEXT_FREE_HOPS if context_free else answers.hops)
    if not context_free and depth > answers.hops:
        raise InputError(f"the longest chain has {answers.hops} hops: --hops {hops}; ask for fewer")
    names = pool_names(answers.models)
    models = tuple(ModelSpec(name, model, backend=IMPORTED) for model, name in names.items())
    pool = Pool(models, depth, ("",), context_free=context_free)
    if depth > MAX_HOPS or pool.routes.calls > MAX_NODES:
        raise InputError(
            f"{len(models)} models at {depth} hops exceed {MAX_NODES:,} nodes per query or "
            f"{MAX_HOPS} hops; take fewer --hops"
        )
    return pool


def priced(pool: Pool, given: Mapping[str, Rate]) -> Pool:
    """The pool with these rates; the others by size, or all 1 per token where a name tells none.

    Raises:
        InputError: a rate for a model that is not there, or rates for only some where the others
            cannot be told.
    """
    names = [model.name for model in pool.models]
    for name in given:
        if name not in names:
            raise InputError(f"price for an unknown model: {name}; {suggestion(name, names)}")
    sizeless = [name for name in _sizeless(pool) if name not in given]
    if sizeless and given:
        raise InputError(
            f"no price for {', '.join(sizeless)}: no name tells a size; give --price for all"
        )
    rates = given or (dict.fromkeys(names, UNKNOWN) if sizeless else {})
    models = tuple(
        replace(model, rate_in=rates[model.name].tokens_in, rate_out=rates[model.name].tokens_out)
        if model.name in rates
        else model
        for model in pool.models
    )
    return replace(pool, models=models)


def _sizeless(pool: Pool) -> list[str]:
    return [model.name for model in pool.models if size_in(model.name) is None]


def pool_names(models: Sequence[str]) -> dict[str, str]:
    """A name that routes and tables can carry for each model, by the file's own name."""
    names: dict[str, str] = {}
    for model in models:
        plain = re.sub(r"[^A-Za-z0-9._:-]+", "-", model).strip("-._:") or "model"
        name, number = plain, 2
        while name in names.values() or name in RESERVED:
            name, number = f"{plain}-{number}", number + 1
        names[model] = name
    return names


def store_answers(
    answers: Answers,
    pool: Pool,
    rates: Mapping[str, Rate],
    root: Path,
    on_queries: OnQueries = lambda what, done, total: None,
) -> Imported:
    """Write the trees, the given scores and the plan into the cache at `root`.

    Args:
        answers: what the file holds.
        pool: its models, from `pool_of`.
        rates: cost of a token, by the model's name in the pool; see `priced`.
        root: the cache's folder, made where it does not exist.
        on_queries: told ("import", done, total) as queries are written.

    Raises:
        InputError: rates that do not fit the models; nothing was written.
        CacheError: the cache is damaged, in use by a collector, or cannot be written.
        WorldError: the disk is full or failed.
    """
    unpriced = not rates and bool(_sizeless(pool))
    pool = priced(pool, rates)
    identities = _identities(answers, pool)
    spec = pool.tree_spec(identities)
    with merging(root) as merge:
        for done, (query, found) in enumerate(zip(answers.queries, answers.at, strict=True), 1):
            for call, answer in _calls(query, found, pool, spec):
                merge.add("calls", call)
                if answer.score is not None:
                    merge.add("scores", _score(call["key"], query, answer.score))
            on_queries("import", done, len(answers.queries))
        merge.flush()
        merge.another_plan = store_plan(
            merge.writer, merge.reader, pool, identities, answers.queries
        )
    scored = [answer.score is not None for found in answers.at for answer in found.values()]
    return Imported(
        pool,
        len(answers.queries),
        answers.lacking,
        all(query.answers for query in answers.queries),
        unpriced,
        scored.count(True),
        scored.count(False),
        merge,
    )


def _identities(answers: Answers, pool: Pool) -> dict[str, Identity]:
    """What each model of the file is: its name and all that it answered there.

    A name says nothing of prompt, settings or version. So the answers of another file are those of
    another model, and a file that is imported again is known.
    """
    said: dict[str, list[str]] = {model.model: [] for model in pool.models}
    for found in answers.at:
        for path, answer in found.items():
            said[path[-1]].append(_answer_digest(answer))
    return {
        model.name: {
            "imported": model.model,
            "context_free": "yes" if pool.context_free else "no",
            "source": digest(sorted(said[model.model])),
        }
        for model in pool.models
    }


def _answer_digest(answer: Answer) -> str:
    """Of everything but where it stands, and what the query's references and fold are."""
    query = answer.query
    return digest(
        [
            [query.dataset, query.id, query.question],
            answer.path,
            [answer.prompt, answer.response, answer.tokens_in, answer.tokens_out],
            [answer.latency_s, answer.score],
        ]
    )


def _calls(
    query: Query, found: Mapping[tuple[str, ...], Answer], pool: Pool, spec: TreeSpec
) -> Iterator[tuple[dict[str, Any], Answer]]:
    """Every node of one query's tree that has an answer."""
    reached: dict[tuple[str, ...], str] = {(): root_context(query.question)}
    for steps in spec.steps:
        following = {}
        for path, context in reached.items():
            for model, step in zip(pool.models, steps, strict=True):
                there = (*path, model.model)
                answer = found.get((model.model,) if pool.context_free else there)
                if answer is not None:
                    call = _call(model.name, step, context, answer)
                    following[there] = call["outcome"]
                    yield call, answer
        reached = following


def _call(model: str, step: str, context: str, answer: Answer) -> dict[str, Any]:
    call = Call(call_key(step, context), step, context, answer.prompt)
    said = Response(answer.response, answer.tokens_in, answer.tokens_out, "unknown")
    return call_row(model, call, said, answer.latency_s)


def _score(call: str, query: Query, value: float) -> dict[str, Any]:
    return {"call": call, "references": query.references, "scorer": GIVEN.key, "value": value}
