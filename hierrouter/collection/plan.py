"""The plan of a collection: its calls, the stages that make them, and how shards divide them.

The plan itself is the pool and the queries, as the cache stores them. A context is what a model
sees at a call: the question and the responses so far.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from hierrouter.collection.progress import Spending, stored_spending
from hierrouter.engines.dialects import MEMORY
from hierrouter.engines.generator import (
    Call,
    Commits,
    Engines,
    prompt_text,
    recorded_commits,
    with_commits,
)
from hierrouter.pools.files import load_pool, stored_datasets, stored_pool, stored_scorer
from hierrouter.pools.pool import FittingScorer, Identity, ModelSpec, Pool
from hierrouter.questions.query import Query, stored_choices
from hierrouter.questions.scoring import fitting_scorer
from hierrouter.questions.sources import PAPER_DATASETS, canonical_dataset, is_dataset_file
from hierrouter_cache.errors import CacheError, InputError
from hierrouter_cache.keys import call_key, draw_step, next_context, plan_key, root_context
from hierrouter_cache.locks import shards_at_work
from hierrouter_cache.parts import PLANS_SCHEMA, QUERIES_SCHEMA
from hierrouter_cache.reader import CacheReader, StoredPlan, reader_of
from hierrouter_cache.walk import TreeSpec, walk
from hierrouter_cache.writer import PartWriter

# By the key of a context: its texts, that is the question and the responses so far.
Contexts = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Stage:
    """One action at one level: the calls that differ only in their context.

    Not the stage l_t of the paper, which is the number of calls made so far.

    Attributes:
        label: for people, e.g. `hop 1 calc`.
        model: the model, with the settings of the action.
        step: key of model, settings and instruction.
        instruction: follows the context in the prompt; empty for none.
        draw: which of the draws of these calls it makes.
        first_step: key of the step of the first draw, if this is a further one.
        action: number of the action; -1 for a direct call.
        caller: name of the action, or of the model of a direct call; it decides the price.
    """

    label: str
    model: ModelSpec
    step: str
    instruction: str
    draw: int = 0
    first_step: str = ""
    action: int = -1
    caller: str = ""

    def draws(self, count: int) -> list[Stage]:
        """The stages of the first draws of these calls, of which this is the very first."""
        further = [
            replace(
                self,
                label=f"{self.label}, draw {draw + 1}",
                step=draw_step(self.step, draw),
                draw=draw,
                first_step=self.step,
            )
            for draw in range(1, count)
        ]
        return [self, *further]

    def calls(self, contexts: Contexts) -> Iterator[Call]:
        """The stage's call at each context, in the order of the contexts."""
        for context, texts in contexts.items():
            yield self.call(context, texts)

    def call(self, context: str, texts: tuple[str, ...]) -> Call:
        """The stage's call at one context.

        Args:
            context: key of the context.
            texts: the question and the responses so far.

        Returns:
            The call.
        """
        question, *responses = texts
        return Call(
            key=call_key(self.step, context),
            step=self.step,
            context=context,
            prompt=prompt_text(question, responses, self.instruction),
        )


def stages_of(pool: Pool, spec: TreeSpec) -> tuple[list[Stage], list[list[Stage]]]:
    """The stages of a pool's calls.

    Args:
        pool: the models.
        spec: the keys of their steps.

    Returns:
        (direct calls of every model and reference model, the actions that are offered at each level
        of the tree); the draws of a call follow each other.
    """
    first_steps: dict[str, str] = {}
    for name, step in spec.direct:
        first_steps.setdefault(name, step)
    direct = [
        stage
        for model in pool.all_models
        for stage in Stage(
            f"direct {model.name}", model, first_steps[model.name], "", caller=model.name
        ).draws(pool.with_least_draws.draws_of(model))
    ]
    levels = []
    for level, steps in enumerate(spec.steps):
        stages: list[Stage] = []
        for number, (action, step) in enumerate(zip(pool.actions, steps, strict=True)):
            if step:  # offered somewhere at this level
                label = f"hop {level + 1} {action.name}"
                instruction = pool.instruction(level, action)
                first = Stage(
                    label, action.model, step, instruction, action=number, caller=action.name
                )
                stages += first.draws(pool.draws_of(action.model))
        levels.append(stages)
    return direct, levels


def root_contexts(questions: Iterable[str]) -> Contexts:
    """The contexts before the first hop; equal questions have one context."""
    return {root_context(question): (question,) for question in questions}


class OfferedStages:
    """Which stages call at a context: those that the pool offers after the actions that led there.

    Several actions may lead to one context, with equal responses. Then what is offered after any of
    them is called there.

    Args:
        pool: says what is offered.
        levels: the stages of each hop, see `stages_of`.

    Attributes:
        further: keys of the calls that are made beyond the least draws of the pool.
    """

    def __init__(self, pool: Pool, levels: Sequence[Sequence[Stage]]) -> None:
        self.further = set[str]()
        self._levels = levels
        self._least_draws = pool.least_draws or pool.draws
        self._is_free = not pool.roles and pool.least_draws is None
        self._offers = pool.offers
        # By context after a call: the numbers of the actions that led there.
        self._previous: dict[str, set[int]] = {}

    def at(self, level: int, context: str) -> Sequence[Stage]:
        """The stages that call at a context; all of the level in a pool without roles.

        Args:
            level: of the context, 0 before the first hop.
            context: key of the context.
        """
        stages = self._levels[level]
        if self._is_free:
            return stages
        previous = self._previous.get(context, {-1})
        return [
            stage
            for stage in stages
            if self._is_offered(level, previous, stage) and self._is_due(stage, context)
        ]

    def _is_due(self, stage: Stage, context: str) -> bool:
        """Whether a draw is one of the least, or was decided on."""
        return stage.draw < self._least_draws or call_key(stage.step, context) in self.further

    def calls_at(self, level: int, context: str, stage: Stage) -> bool:
        """Whether a stage of a level calls at a context; of stages with one step any of them.

        Args:
            level: of the context, 0 before the first hop.
            context: key of the context.
            stage: of the level.
        """
        if self._is_free:
            return True
        return any(other.step == stage.step for other in self.at(level, context))

    def after(self, level: int, actions: Collection[int]) -> Sequence[Stage]:
        """The stages that are offered after any of some actions, at the level after them.

        Args:
            level: of the stages.
            actions: numbers of the actions before.
        """
        if self._is_free:
            return self._levels[level]
        return [
            stage
            for stage in self._levels[level]
            if stage.draw < self._least_draws and self._is_offered(level, actions, stage)
        ]

    def siblings(self, level: int) -> dict[str, tuple[str, ...]]:
        """Return for each step of a level the steps that are offered with it.

        Args:
            level: of the calls. Where these differ by the action before, those after the first
                action count that offers the step.
        """
        siblings: dict[str, tuple[str, ...]] = {}
        for action in range(-1, len(self._offers[level]) - 1):
            steps = tuple(dict.fromkeys(stage.step for stage in self.after(level, {action})))
            for step in steps:
                siblings.setdefault(step, steps)
        return siblings

    def _is_offered(self, level: int, previous: Iterable[int], stage: Stage) -> bool:
        return any(stage.action in self._offers[level][action + 1] for action in previous)

    def follow(self, level: int, context: str, step: str, response: str) -> str:
        """Return the key of the context after a response, and note which actions lead there.

        Args:
            level: of the call.
            context: of the call.
            step: of the call; several actions may share it.
            response: what is visible of its response.
        """
        following = next_context(context, response)
        if not self._is_free:
            actions = {stage.action for stage in self.at(level, context) if stage.step == step}
            self._previous.setdefault(following, set()).update(actions)
        return following

    def next_contexts(
        self, level: int, contexts: Contexts, responses: Mapping[str, str]
    ) -> Contexts:
        """The contexts after one more hop, as far as its calls are answered.

        Args:
            level: of the contexts.
            contexts: before the hop.
            responses: what is visible of every answered call's response, by key.

        Returns:
            The contexts, in the order of those before and of the stages.
        """
        following = {}
        for context, texts in contexts.items():
            for stage in self.at(level, context):
                response = responses.get(call_key(stage.step, context))
                if response is not None:
                    key = self.follow(level, context, stage.step, response)
                    following[key] = (*texts, response)
        return following


def _queries_table(queries: Sequence[Query]) -> pa.Table:
    rows = [
        {
            "query": query.key,
            "context": query.context,
            "references": query.references,
            "id": query.id,
            "dataset": query.dataset,
            "split": query.split,
            "question": query.question,
            "answers": list(query.answers),
            "choices": [{"label": label, "text": text} for label, text in query.choices] or None,
            "tests": list(query.tests) or None,
            "answer_type": query.answer_type or None,
        }
        for query in queries
    ]
    return pa.Table.from_pylist(rows, schema=QUERIES_SCHEMA)


def scorer_for(
    root: Path,
    pool: Pool,
    names: Sequence[str],
    queries: Sequence[Query],
    group_by: str | None = None,
) -> FittingScorer | None:
    """The scorer of Q for a collection, unless the user names another one when it is opened.

    It is the one of the paper (None) for the paper's datasets and pool and for those that come with
    the package. For a user's own files it is the one that fits their references. What was decided
    when the cache was collected before for the same dataset is kept.

    Args:
        root: the cache's folder, which need not exist yet.
        pool: of the collection.
        names: datasets and files that were asked for; none if the last collection goes on.
        queries: of them.
        group_by: the field of a file's questions that took the place of their dataset; labels of
            the user's own may be called as a dataset of the paper.
    """
    reader = reader_of(root)
    latest = _latest_plan(reader)
    if reader and latest:
        stored = reader.queries(latest.queries, ("dataset",))["dataset"].to_pylist()
        if not {query.dataset for query in queries}.isdisjoint(stored):
            return stored_scorer(latest.pool)
    paper_models = {model.model for model in load_pool("paper").models}
    is_paper = paper_models == {model.model for model in pool.models}
    if group_by is None:
        is_paper |= any(canonical_dataset(query.dataset) in PAPER_DATASETS for query in queries)
    if is_paper or not names or not all(map(is_dataset_file, names)):
        return None
    return fitting_scorer(
        [query.answers for query in queries],
        [query.choices for query in queries],
        [query.answer_type for query in queries],
    )


QUERIES_A_PART = 131_072  # readers refuse a part that is too large


def store_plan(
    writer: PartWriter,
    reader: CacheReader | None,
    pool: Pool,
    identities: Mapping[str, Identity],
    queries: Sequence[Query],
    datasets: Mapping[str, str] | None = None,
    imported: Mapping[str, str] | None = None,
) -> bool:
    """Write the queries that are not in the cache, then the plan, unless the last plan is the same.

    Args:
        writer: into the cache.
        reader: of the cache; None if it does not exist yet.
        pool: of the plan.
        identities: of the pool's models and actions, see `identify_pool`.
        queries: of the plan.
        datasets: commits of the hub's repositories that the queries are from, by id; those that the
            last plan has and that are not among them are kept.
        imported: what was decided when the answers were imported, see `Pool.to_json`.

    Returns:
        Whether the cache has another latest plan now.

    Raises:
        CacheError: the cache cannot be written.
        WorldError: the disk is full or failed.
    """
    keys = [query.key for query in queries]
    text = pool.to_json(identities, {**_recorded_datasets(reader), **(datasets or {})}, imported)
    stored = reader.query_keys() if reader else set()
    missing = [query for query, key in zip(queries, keys, strict=True) if key not in stored]
    for start in range(0, len(missing), QUERIES_A_PART):
        writer.append("queries", _queries_table(missing[start : start + QUERIES_A_PART]))
    if is_latest(reader, StoredPlan(text, tuple(keys))):
        return False
    writer.append("plans", pa.table([[plan_key(text, keys)], [text], [keys]], schema=PLANS_SCHEMA))
    return True


def is_latest(reader: CacheReader | None, plan: StoredPlan) -> bool:
    """Whether this is the plan that the cache was collected for last."""
    try:
        return reader is not None and reader.latest_plan() == plan
    except CacheError:  # the cache has no plan, or the last one was moved aside
        return False


def engines_of_plan(root: Path, engines: Engines) -> Engines:
    """Return engines whose models are at the commits that the last plan of a cache has recorded.

    Args:
        root: the cache's folder, which need not exist yet.
        engines: identify and load the models.

    Raises:
        CacheError: the cache is damaged.
    """
    recall_dialects(root)
    return with_commits(engines, commits_of_plan(root))


def recall_dialects(root: Path) -> None:
    """Remember what the servers of the last plan's models refuse, see `engines.dialects`.

    Args:
        root: the cache's folder, which need not exist yet.

    Raises:
        CacheError: the cache is damaged.
    """
    MEMORY.recall(_last_pool(root)[1].values())


def commits_of_plan(root: Path) -> Commits:
    """Return the commits of the hub's models that the last plan of a cache has recorded.

    Args:
        root: the cache's folder, which need not exist yet.

    Raises:
        CacheError: the cache is damaged.
    """
    pool, identities = _last_pool(root)
    return recorded_commits(pool, identities) if pool else {}


def callers_of_plan(root: Path, pool: Pool) -> dict[str, str]:
    """Return the name of the action that makes a call, by the call's step key.

    Args:
        root: the cache's folder, which need not exist yet.
        pool: the models and their actions.

    Returns:
        The steps of the models as the last plan of the cache has recorded them. Calls of other
        models are not in the cache. It is empty where actions are the models.

    Raises:
        CacheError: the cache is damaged.
    """
    if not pool.roles:
        return {}
    unknown: Identity = {}
    recorded = _last_pool(root)[1]
    models = {model.name: recorded.get(model.name, unknown) for model in pool.all_models}
    return pool.tree_spec({**recorded, **models}).action_by_step


def spending_of_pool(root: Path, pool: Pool) -> dict[str, Spending]:
    """Sum up the calls of a pool's models in a cache, at the prices of its actions.

    Args:
        root: the cache's folder, which need not exist yet.
        pool: the models and their actions.

    Returns:
        The spending by model, see `stored_spending`.

    Raises:
        CacheError: the cache is damaged.
    """
    return stored_spending(root, pool.rates(), callers_of_plan(root, pool))


def _last_pool(root: Path) -> tuple[Pool | None, Mapping[str, Identity]]:
    """Return the pool of the last plan, and what its models resolved to; None if there is none."""
    latest = _latest_plan(reader_of(root))
    if latest is None:
        return None, {}
    try:
        return stored_pool(latest.pool, "the last plan")
    except (CacheError, InputError):  # the plan is of another version
        return None, {}


def recorded_datasets(root: Path) -> dict[str, str]:
    """Return the commits of the hub's datasets that the last plan of a cache has recorded, by id.

    Args:
        root: the cache's folder, which need not exist yet.

    Raises:
        CacheError: the cache is damaged.
    """
    return _recorded_datasets(reader_of(root))


def _recorded_datasets(reader: CacheReader | None) -> dict[str, str]:
    latest = _latest_plan(reader)
    return stored_datasets(latest.pool) if latest else {}


def _latest_plan(reader: CacheReader | None) -> StoredPlan | None:
    """Return the last plan of a cache; None if there is none, or it was moved aside."""
    if reader is None or not reader.has("plans"):
        return None
    try:
        return reader.latest_plan()
    except CacheError:
        return None


def last_plan(root: Path) -> tuple[Pool, tuple[Query, ...]] | None:
    """The pool and the queries that a cache was collected for last.

    Args:
        root: the cache's folder.

    Returns:
        (pool, queries); None if there is no cache.

    Raises:
        CacheError: the cache is damaged, or holds no plan.
        InputError: the plan was imported, so its models cannot be called.
    """
    reader = reader_of(root)
    if reader is None:
        return None
    stored = reader.latest_plan()
    pool = stored_pool(stored.pool, f"the last plan of {root}")[0]
    if pool.imported:
        raise InputError(
            f"what {root} holds was imported, and its models cannot be called; "
            "name --datasets and --pool to collect something else into it"
        )
    return pool, stored_queries(reader, stored.queries)


def stored_queries(reader: CacheReader, keys: Sequence[str]) -> tuple[Query, ...]:
    """The queries with these keys, in this order.

    Raises:
        CacheError: the cache does not hold all of them.
    """
    columns = (
        *("id", "dataset", "question", "answers", "split"),
        *("choices", "context", "tests", "answer_type"),
    )
    rows = reader.queries(keys, columns).to_pylist()
    for row in rows:
        has_own_calls = row.pop("context") != root_context(row["question"])
        row |= {
            "answers": tuple(row["answers"]),
            "choices": stored_choices(row["choices"]),
            "tests": tuple(row["tests"] or ()),
            "has_own_calls": has_own_calls,
            "answer_type": row["answer_type"] or "",
        }
    return tuple(Query(**row) for row in rows)


def changed_queries(reader: CacheReader, queries: Sequence[Query]) -> list[str]:
    """The queries that the cache holds only with another question or other reference answers.

    Args:
        reader: of the cache.
        queries: to look up.

    Returns:
        Their names, as `dataset/id`.
    """
    rows = reader.sql("SELECT dataset, id, question, answers FROM queries").to_pylist()
    stored: dict[tuple[str, str], set[tuple[str, tuple[str, ...]]]] = {}
    for row in rows:
        content = (row["question"], tuple(row["answers"]))
        stored.setdefault((row["dataset"], row["id"]), set()).add(content)
    changed = []
    for query in queries:
        contents = stored.get((query.dataset, query.id))
        if contents and (query.question, query.answers) not in contents:
            changed.append(f"{query.dataset}/{query.id}")
    return changed


@dataclass(frozen=True)
class Shard:
    """One of `count` equal shares of a plan's questions; `index` is 1 to `count`."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def own(self, queries: Sequence[Query]) -> list[Query]:
        """The queries of this shard, in order; equal questions belong to one shard."""
        contexts = [root_context(query.question) for query in queries]
        shards = _shards(contexts, self.count)
        return [
            query
            for query, context in zip(queries, contexts, strict=True)
            if shards[context] == self
        ]


def _shards(contexts: Sequence[str], count: int) -> dict[str, Shard]:
    """The shard of each distinct root context; they take turns in the order of the digests."""
    return {
        context: Shard(position % count + 1, count)
        for position, context in enumerate(sorted(set(contexts)))
    }


def parse_shard(text: str) -> Shard:
    """Read a shard from a text such as `2/8`.

    Raises:
        InputError: it is no such share.
    """
    index, _, count = text.partition("/")
    if not (
        index.isdecimal() and count.isdecimal() and len(count) < 6 and 1 <= int(index) <= int(count)
    ):
        raise InputError(
            f"not a shard: --shard {text:.40}; i/n with i from 1 to n below 100,000, e.g. 1/4"
        )
    return Shard(int(index), int(count))


def require_alike(reader: CacheReader | None, plan: StoredPlan, shard: Shard) -> None:
    """Refuse a shard whose answers would not belong to the same tree as those of the others.

    That is a shard with other queries or models, and one on a machine whose versions or kind of
    device give its models another identity. Settings that change no answer may differ, such as
    prices and timeouts.

    Args:
        reader: of the cache; None if it does not exist yet.
        plan: of the shard.
        shard: that is about to begin.

    Raises:
        InputError: other shards are at work, for another plan.
        CacheError: the cache is damaged.
    """
    if reader is None or not reader.has("plans"):
        return
    if not set(shards_at_work(reader.root)) - {(shard.index, shard.count)}:
        return
    latest = reader.latest_plan()
    same_models = _spec(latest) == _spec(plan)
    if not same_models or latest.queries != plan.queries:
        difference = "queries" if same_models else "models"
        raise InputError(
            f"shard {shard} has other {difference} than the shards at work: {reader.root}; use the "
            "same flags, versions and kind of device for all shards, or wait until they are done"
        )


def _spec(plan: StoredPlan) -> TreeSpec:
    """The keys of a plan's steps: with its questions they decide the keys of its calls."""
    pool, identities = stored_pool(plan.pool, "the last plan")
    return pool.tree_spec(identities)


@dataclass(frozen=True)
class ShardStatus:
    """How far the shards of the last plan are.

    Attributes:
        complete: the shards whose trees lack nothing.
        present: nodes and direct calls that are in the cache.
        expected: nodes and direct calls of all trees.
    """

    complete: tuple[Shard, ...]
    present: int
    expected: int


def shard_status(root: Path, count: int) -> ShardStatus:
    """How much of the last plan is in a cache.

    Args:
        root: the cache's folder.
        count: number of shards of the plan.

    Returns:
        The complete shards, and counts of nodes and direct calls.

    Raises:
        CacheError: there is no cache, or it is damaged.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    forest = walk(reader, _spec(plan), plan.queries)
    contexts = reader.queries(plan.queries, ("context",))["context"].to_pylist()
    shards = _shards(contexts, count)
    incomplete = {shards[contexts[row]] for row in np.flatnonzero(~forest.complete)}
    all_shards = (Shard(index, count) for index in range(1, count + 1))
    has_node = forest.tree.present[:, 1:]  # the root is the question, no call
    is_spare = forest.tree.spare[:, 1:]
    has_direct = forest.direct.present
    return ShardStatus(
        complete=tuple(shard for shard in all_shards if shard not in incomplete),
        present=int(np.count_nonzero(has_node) + np.count_nonzero(has_direct)),
        expected=int(np.count_nonzero(~is_spare)) + has_direct.size,
    )
