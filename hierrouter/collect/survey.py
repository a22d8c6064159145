"""What a cache knows of a tree that is to be collected.

In: a pool and its content keys, queries, a cache. Out: for each stage and dataset, which calls are
answered and which are due as far as prompts are known, and what calls of that kind took before;
for each level, how many of the answers to a context differ. Queries of the cache that are not
asked for now are looked at too: they tell what to expect. Not covered: conclusions (`estimate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from hierrouter.collect.levels import (
    Contexts,
    Stage,
    calls_of,
    direct_stages,
    distinct,
    hop_stages,
    next_contexts,
    responses_to,
    root_contexts,
)
from hierrouter.pool import Pool
from hierrouter.query import Query
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.walk import TreeSpec

# Fewer of one dataset tell less than all datasets together.
ENOUGH = 10
SUMS = ("calls", "prompt_bytes", "tokens_in", "tokens_out", "timed", "timed_tokens", "seconds")


@dataclass
class Known:
    """The calls of one stage whose prompts are known, for one dataset.

    Attributes:
        there: distinct calls that are answered; of equal calls the first stage counts.
        due: distinct calls that are not.
        due_bytes: of their prompts, in UTF-8.
        open: contexts whose answer is not known, be the call counted here or before.
        open_bytes: of the prompts of those.
    """

    there: int = 0
    due: int = 0
    due_bytes: int = 0
    open: int = 0
    open_bytes: int = 0


@dataclass(frozen=True)
class Seen:
    """Sums over answered calls of one kind.

    Attributes:
        calls: how many.
        prompt_bytes: of their prompts, in UTF-8.
        tokens_in, tokens_out: of them.
        timed, timed_tokens: how many of them say how long they took, and the tokens these gave.
        seconds: that those took.
    """

    calls: int
    prompt_bytes: int
    tokens_in: int
    tokens_out: int
    timed: int
    timed_tokens: int
    seconds: float


@dataclass(frozen=True)
class Answered:
    """Contexts of one level that every model has answered: how many, and how many answers differ.

    Equal answers to a context lead to one context below it.
    """

    contexts: int
    outcomes: int


@dataclass
class Survey:
    """What was found, by dataset; the dataset "" is all of them together.

    Attributes:
        known: by stage label and dataset, for the queries that are planned.
        answered: by level and dataset.
        seen: by stage label and dataset.
        bytes_per_call: on disk; None where there are no calls.
    """

    known: dict[tuple[str, str], Known] = field(default_factory=dict)
    answered: dict[tuple[int, str], Answered] = field(default_factory=dict)
    seen: Mapping[tuple[str, str], Seen] = field(default_factory=dict)
    bytes_per_call: float | None = None

    def known_of(self, stage: Stage, dataset: str) -> Known:
        """What is known of a stage's calls; nothing where another stage makes the same ones."""
        return self.known.get((stage.label, dataset), Known())

    def seen_of(self, stage: Stage, dataset: str) -> Seen | None:
        """Calls like those of this stage, of the dataset where there are enough, else of all."""
        own, everything = (self.seen.get((stage.label, name)) for name in (dataset, ""))
        return own if own and own.calls >= ENOUGH else everything

    def answered_of(self, level: int, dataset: str) -> Answered | None:
        """Contexts of this level, of the dataset where there are enough, else of all."""
        own, everything = (self.answered.get((level, name)) for name in (dataset, ""))
        return own if own and own.contexts >= ENOUGH else everything


def survey(
    pool: Pool, spec: TreeSpec, queries: Sequence[Query], reader: CacheReader | None
) -> Survey:
    """Walk what is known of the trees of `queries`, and of all other queries of the cache.

    Args:
        pool: the models, hops and stage instructions.
        spec: the pool as content keys.
        queries: what will be asked.
        reader: the cache, or None where there is none yet.
    """
    look = _Look(pool, spec, reader.responses() if reader else {})
    planned = by_dataset((query.dataset, query.question) for query in queries)
    for dataset, questions in planned.items():
        look.walk(dataset, questions, planned=True)
    if reader:
        for dataset, questions in _others(reader, planned).items():
            look.walk(dataset, questions, planned=False)
        look.found.seen = _seen(reader, look.keys)
        look.found.bytes_per_call = _bytes_per_call(reader)
    return look.found


def by_dataset(questions: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The questions of each dataset, from (dataset, question); equal ones belong to the first."""
    first: dict[str, str] = {}
    for dataset, question in questions:
        first.setdefault(question, dataset)
    groups: dict[str, list[str]] = {}
    for question, dataset in first.items():
        groups.setdefault(dataset, []).append(question)
    return groups


def _others(reader: CacheReader, planned: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The questions of the cache that are not planned."""
    rows = reader.sql("SELECT DISTINCT dataset, question FROM queries ORDER BY ALL").to_pylist()
    asked = {question for questions in planned.values() for question in questions}
    return by_dataset(
        (row["dataset"], row["question"]) for row in rows if row["question"] not in asked
    )


@dataclass
class _Look:
    """A walk under way."""

    pool: Pool
    spec: TreeSpec
    responses: Mapping[str, str]
    counted: set[str] = field(default_factory=set)
    keys: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    found: Survey = field(default_factory=Survey)

    def walk(self, dataset: str, questions: Sequence[str], planned: bool) -> None:
        """Level by level, for the questions of one dataset."""
        contexts = root_contexts(questions)
        for stage in direct_stages(self.pool, self.spec):
            self._visit(stage, contexts, dataset, planned)
        for level in range(self.pool.hops):
            stages = distinct(hop_stages(self.pool, self.spec, level))
            for stage in stages:
                self._visit(stage, contexts, dataset, planned)
            for name in (dataset, ""):
                self._count_answered(level, name, stages, contexts)
            contexts = next_contexts(stages, contexts, self.responses)

    def _visit(self, stage: Stage, contexts: Contexts, dataset: str, planned: bool) -> None:
        known = Known()
        answered = self.keys.setdefault((stage.label, dataset), [])
        for call in calls_of(stage, contexts):
            size = len(call.prompt.encode())
            is_new = call.key not in self.counted
            self.counted.add(call.key)
            if call.key not in self.responses:
                known.open += 1
                known.open_bytes += size
                known.due += is_new
                known.due_bytes += size * is_new
            elif is_new:
                known.there += 1
                answered.append(call.key)
        if planned:
            self.found.known[stage.label, dataset] = known

    def _count_answered(
        self, level: int, dataset: str, stages: Sequence[Stage], contexts: Contexts
    ) -> None:
        before = self.found.answered.get((level, dataset), Answered(0, 0))
        answers = [responses_to(stages, context, self.responses) for context in contexts]
        whole = [len(set(texts)) for texts in answers if len(texts) == len(stages)]
        if whole:
            self.found.answered[level, dataset] = Answered(
                before.contexts + len(whole), before.outcomes + sum(whole)
            )


def _seen(
    reader: CacheReader, keys: Mapping[tuple[str, str], Sequence[str]]
) -> dict[tuple[str, str], Seen]:
    """Sums over the calls with these keys, by stage and dataset, and by stage alone."""
    rows = [(key, *kind) for kind, found in keys.items() for key in found]
    if not rows:
        return {}
    names, labels, datasets = (pa.array(column) for column in zip(*rows, strict=True))
    kinds = pa.table({"key": names, "label": labels, "dataset": datasets})
    measured = reader.sql(
        "SELECT key, 1 AS calls, strlen(prompt) AS prompt_bytes, tokens_in, tokens_out, "
        "(latency_s IS NOT NULL)::INT AS timed, timed * tokens_out AS timed_tokens, "
        "coalesce(latency_s, 0) AS seconds FROM calls"
    )
    joined = kinds.join(measured, "key", join_type="inner")
    return _sums(joined, ["label", "dataset"]) | _sums(joined, ["label"])


def _sums(calls: pa.Table, by: list[str]) -> dict[tuple[str, str], Seen]:
    sums = calls.group_by(by).aggregate([(name, "sum") for name in SUMS]).to_pylist()
    return {
        (row["label"], row.get("dataset", "")): Seen(*(row[f"{name}_sum"] for name in SUMS))
        for row in sums
    }


def _bytes_per_call(reader: CacheReader) -> float | None:
    parts = [part for part in reader.parts if part.kind == "calls"]
    rows = sum(part.rows for part in parts)
    return sum(part.path.stat().st_size for part in parts) / rows if rows else None
