"""What a collection is asked for, and what the cache knows of it already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from hierrouter.engines import IMPORTED
from hierrouter.engines.generator import Failure, Response, prompt_text
from hierrouter.pools.files import stored_pool
from hierrouter.pools.pool import Identity, ModelSpec, Pool, keys_sent
from hierrouter.questions.query import Query, stored_choices
from hierrouter_cache.errors import CacheError, InputError
from hierrouter_cache.keys import call_key, next_context, plan_key, root_context
from hierrouter_cache.parts import CALLS, FAILURES, PLANS, QUERIES
from hierrouter_cache.reader import CacheReader, StoredPlan, reader_of
from hierrouter_cache.walk import TreeSpec
from hierrouter_cache.writer import PartWriter


@dataclass(frozen=True)
class Call:
    """One distinct call that is due.

    Attributes:
        key: names the call, see `hierrouter_cache.keys.call_key`.
        step: names model, settings and instruction.
        context: names the question and the responses before the call.
        prompt: what the model is shown.
    """

    key: str
    step: str
    context: str
    prompt: str


def calls_table(model: str, answered: Sequence[tuple[Call, Response]], seconds: float) -> pa.Table:
    """Rows of `calls`; `seconds` is what each of them took."""
    rows = [call_row(model, call, answer, seconds) for call, answer in answered]
    return pa.Table.from_pylist(rows, schema=CALLS)


def call_row(model: str, call: Call, answer: Response, seconds: float | None) -> dict[str, Any]:
    """One row of `calls`; `seconds` is what it took, None where nobody knows."""
    return {
        "key": call.key,
        "step": call.step,
        "context": call.context,
        "outcome": next_context(call.context, answer.text),
        "model": model,
        "prompt": call.prompt,
        "response": answer.text,
        "tokens_in": answer.tokens_in,
        "tokens_out": answer.tokens_out,
        "finish_reason": answer.finish_reason,
        "latency_s": seconds,
    }


def failures_table(model: str, failed: Sequence[tuple[Call, Failure]], attempts: int) -> pa.Table:
    """Rows of `failures`, after so many attempts at each."""
    rows = [
        {
            "key": call.key,
            "step": call.step,
            "context": call.context,
            "model": model,
            "status": failure.status,
            "detail": failure.detail,
            "attempts": attempts,
        }
        for call, failure in failed
    ]
    return pa.Table.from_pylist(rows, schema=FAILURES)


def queries_table(queries: Sequence[Query]) -> pa.Table:
    """Rows of `queries`."""
    rows = [
        {
            "query": query.key,
            "context": root_context(query.question),
            "references": query.references,
            "id": query.id,
            "dataset": query.dataset,
            "split": query.split,
            "question": query.question,
            "answers": list(query.answers),
            "choices": [{"label": label, "text": text} for label, text in query.choices] or None,
        }
        for query in queries
    ]
    return pa.Table.from_pylist(rows, schema=QUERIES)


# The question and the responses so far, by the key of the context.
Contexts = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Stage:
    """One model at one level.

    Attributes:
        label: how people call it, e.g. `hop 1 calc`.
        model: who is called.
        step: names model, settings and instruction.
        instruction: what stands below the context in the prompt.
    """

    label: str
    model: ModelSpec
    step: str
    instruction: str


def direct_stages(pool: Pool, spec: TreeSpec) -> list[Stage]:
    """The question alone, to every model and reference."""
    return [
        Stage(f"direct {model.name}", model, step, "")
        for model, (_, step) in zip(pool.everyone, spec.direct, strict=True)
    ]


def hop_stages(pool: Pool, spec: TreeSpec, level: int) -> list[Stage]:
    """Every model of the pool at one level of the tree, counted from 0."""
    return [
        Stage(f"hop {level + 1} {model.name}", model, step, pool.instruction(level))
        for model, step in zip(pool.models, spec.steps[level], strict=True)
    ]


def distinct(stages: Iterable[Stage]) -> list[Stage]:
    """Without those that make the very calls of one before: two names of one model."""
    first: dict[str, Stage] = {}
    for stage in stages:
        first.setdefault(stage.step, stage)
    return list(first.values())


def root_contexts(questions: Iterable[str]) -> Contexts:
    """The contexts before the first hop; equal questions are one."""
    return {root_context(question): (question,) for question in questions}


def calls_of(stage: Stage, contexts: Contexts) -> Iterator[Call]:
    """The stage's call at each context, in the order of the contexts."""
    for context, (question, *said) in contexts.items():
        yield Call(
            key=call_key(stage.step, context),
            step=stage.step,
            context=context,
            prompt=prompt_text(question, said, stage.instruction),
        )


def next_contexts(
    stages: Sequence[Stage], contexts: Contexts, responses: Mapping[str, str]
) -> Contexts:
    """The contexts after one more hop, as far as these calls are answered.

    Args:
        stages: those of the level.
        contexts: before the hop.
        responses: of every answered call, by its key.
    """
    following = {}
    for context, said in contexts.items():
        for response in responses_to(stages, context, responses):
            following[next_context(context, response)] = (*said, response)
    return following


def responses_to(stages: Sequence[Stage], context: str, responses: Mapping[str, str]) -> list[str]:
    """What the stages answered to a context, as far as they have."""
    keys = [call_key(stage.step, context) for stage in stages]
    return [responses[key] for key in keys if key in responses]


QUERIES_A_PART = 131_072  # a part that is too large is refused


@dataclass(frozen=True)
class Plan:
    """The pool and the queries of one collection."""

    pool: Pool
    queries: tuple[Query, ...]


def planned(root: Path) -> Plan | None:
    """What the cache at `root` was collected for last, or None where there is no cache.

    Raises:
        CacheError: the cache is damaged, or holds no plan.
        InputError: the plan was imported: nobody can call its models.
    """
    reader = reader_of(root)
    if reader is None:
        return None
    stored = reader.latest_plan()
    pool = stored_pool(stored.pool, f"the last plan of {root}")[0]
    if any(model.backend == IMPORTED for model in pool.everyone):
        raise InputError(
            f"what {root} holds was imported, and its models cannot be called; "
            "name --datasets and --pool to collect something else into it"
        )
    return Plan(pool, stored_queries(reader, stored.queries))


def refuse_stored_keys(pool: Pool, root: Path) -> None:
    """A plan may come from others, see `keys_sent`.

    Raises:
        InputError: a model of the pool wants a key from the environment.
    """
    for name, address in keys_sent(pool.everyone):
        raise InputError(
            f"the stored plan would send {name} to {address}: {root}; "
            f"name --pool, or say --api-key-env {name}"
        )


def stored_queries(reader: CacheReader, keys: Sequence[str]) -> tuple[Query, ...]:
    """The queries with these keys, in this order.

    Raises:
        CacheError: some are not there.
    """
    columns = ("id", "dataset", "question", "answers", "split", "choices")
    return tuple(_stored_query(row) for row in reader.queries(keys, columns).to_pylist())


def _stored_query(row: dict[str, Any]) -> Query:
    return Query(
        id=row["id"],
        dataset=row["dataset"],
        question=row["question"],
        answers=tuple(row["answers"]),
        split=row["split"],
        choices=stored_choices(row["choices"]),
    )


def store_plan(
    writer: PartWriter,
    reader: CacheReader | None,
    pool: Pool,
    identities: Mapping[str, Identity],
    queries: Sequence[Query],
) -> bool:
    """Write the queries that are not there, then the plan, unless the last plan is the same.

    Returns:
        Whether there is now another latest plan.
    """
    keys = [query.key for query in queries]
    text = pool.to_json(identities)
    stored = reader.query_keys() if reader else set()
    missing = [query for query, key in zip(queries, keys, strict=True) if key not in stored]
    for start in range(0, len(missing), QUERIES_A_PART):
        writer.append("queries", queries_table(missing[start : start + QUERIES_A_PART]))
    if reader and is_latest(reader, StoredPlan(text, tuple(keys))):
        return False
    writer.append("plans", pa.table([[plan_key(text, keys)], [text], [keys]], schema=PLANS))
    return True


def is_latest(reader: CacheReader, plan: StoredPlan) -> bool:
    """Whether this is what the cache was asked for last."""
    try:
        return reader.latest_plan() == plan
    except CacheError:  # there is none, or the last one was moved aside
        return False


def changed_queries(reader: CacheReader, queries: Sequence[Query]) -> list[str]:
    """The queries that are in the cache, but never with this text and these answers."""
    rows = reader.sql("SELECT dataset, id, context, answers FROM queries").to_pylist()
    stored: dict[tuple[str, str], set[tuple[str, tuple[str, ...]]]] = {}
    for row in rows:
        content = row["context"], tuple(row["answers"])
        stored.setdefault((row["dataset"], row["id"]), set()).add(content)
    return [
        f"{query.dataset}/{query.id}"
        for query in queries
        if (found := stored.get((query.dataset, query.id)))
        and (root_context(query.question), query.answers) not in found
    ]


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
