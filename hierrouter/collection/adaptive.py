"""Collecting only what may matter: a call is made where it may be the best one.

Routers are judged on whole trees: the validation and the test fold have them, and a few questions
of the train fold. From those of train and validation, and from what came since, the value model
learns what each call is worth. A further question of the train fold gets the calls that are the
best with some chance at one of the alphas.
What is left out is stored as well: a tree knows its holes, and a killed collection goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.collection import plan, scheduler
from hierrouter.collection.progress import Progress, Summary
from hierrouter.engines import backend, generator, identify
from hierrouter.engines.encoders import default_encoder, load_encoder
from hierrouter.evaluation.intervals import interval
from hierrouter.learning.config import Objective, ValueConfig
from hierrouter.learning.value import learned_from
from hierrouter.pools.pool import Pool
from hierrouter.questions.query import Query
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.states import AGREEMENT, CONTEXT, SIGNALS
from hierrouter_cache.errors import InputError
from hierrouter_cache.keys import call_key, root_context
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.reader import reader_of
from hierrouter_cache.tree import RouteTree
from hierrouter_cache.writer import OnPart, PartWriter, no_copy

if TYPE_CHECKING:
    from hierrouter.learning.sweep import TrainedSweep

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

PILOT = 40  # train questions whose trees are whole; questions of a round, at least
GROWTH = 0.5  # questions of a round, of those that are learned from
LEAST = 0.15  # a call that is the best with a smaller chance is left out


@dataclass(frozen=True)
class Adaptive:
    """What routers will be trained for; what may be best for none of them is left out.

    Attributes:
        allow_stop, allow_return: what routers may do, see `Objective`.
        until: no further question is asked when half of those asked would do as well, in R; None
            asks all.

    Raises:
        InputError: no alpha, or a number out of range.
    """

    alphas: tuple[float, ...]
    allow_stop: bool = False
    allow_return: bool = False
    until: float | None = None

    def __post_init__(self) -> None:
        if not self.alphas:
            raise InputError(
                "--adaptive needs the alphas that routers will be trained for, e.g. --alphas 0,0.01"
            )
        if self.until is not None and not 0 < self.until <= 1:
            raise InputError(f"out of range: --until {self.until:g}; give R, above 0 and up to 1")
        for alpha in self.alphas:
            Objective(alpha)  # which refuses what is none

    @property
    def objective(self) -> Objective:
        """For the first alpha."""
        return Objective(self.alphas[0], self.allow_stop, allow_return=self.allow_return)

    def learn(self, tree: RouteTree) -> TrainedSweep:
        """What is known of these queries; raises WorldError: the tree has no embeddings."""
        from hierrouter.learning.sweep import train_sweep  # torch: slow to import

        return train_sweep(tree, self.alphas, self.objective, ValueConfig(), 0)


def rounds(queries: Sequence[Query]) -> list[list[Query]]:
    """Who is asked together: first those whose trees are whole, then ever more at a time.

    Questions of the train fold come in the order of their digests, whatever that of the others is.
    """
    train = sorted(
        (query for query in queries if query.split == "train"),
        key=lambda query: (root_context(query.question), query.key),
    )
    judged = [query for query in queries if query.split != "train"]
    learned = sum(query.split == "validation" for query in judged)
    taken, found = PILOT, [[*judged, *train[:PILOT]]]
    while taken < len(train):
        size = max(PILOT, round(GROWTH * (learned + taken)))
        found.append(train[taken : taken + size])
        taken += size
    return found


def fill_adaptively(
    pool: Pool,
    queries: Sequence[Query],
    root: Path,
    adaptive: Adaptive,
    progress: Progress | None = None,
    stop: generator.Stop = generator.never,
    engines: generator.Engines = backend,
    *,
    encoder: str | None = None,
    on_note: Callable[[str], None] = lambda line: None,
    on_part: OnPart = no_copy,
) -> Summary:
    """Run the missing calls of the trees of `queries` that may matter, and commit them.

    Raises InputError: what was collected at `root` last is neither a part of this nor the whole of
    it; WorldError: there is no encoder to see questions with; and as `scheduler.fill_cache`.

    Args:
        adaptive: what may matter.

    The others are those of `scheduler.fill_cache`.
    """
    load_encoder(encoder or default_encoder(pool))  # refused before anything is asked
    identities = identify(pool.all_models, engines)
    _require_same(pool, queries, root)
    (pilot, *others), writer = rounds(queries), PartWriter(root, on_part=on_part)
    with collector_lock(root):
        collection = scheduler.begin(
            pool, queries, identities, writer, progress or Progress(), stop, engines
        )
        collection.run(pilot)
        if reader := reader_of(root):  # what was left out before
            left = reader.sql("SELECT key FROM decisions WHERE NOT made")
            collection.pruned.update(left["key"].to_pylist())
    asked, tree = list(pilot), _Growing(collection, adaptive, root, encoder)
    for number, batch in enumerate(others, 1):
        before = collection.summary.calls
        if not tree.grow(asked, batch):
            on_note(
                f"adaptive: {len(queries) - len(asked):,} questions are not asked: from half of "
                f"the others a router learns the same, within {adaptive.until:g} of R"
            )
            with collector_lock(root):
                plan.store_plan(collection.writer, reader_of(root), pool, identities, asked)
            break
        asked += batch
        on_note(
            f"adaptive: round {number} of {len(others)}: {collection.summary.calls - before:,} "
            f"calls made, {len(batch) * collection.per_query:,} would be all"
        )
    collection.queries = asked
    collection.summary.queries = len(asked)
    collection.summary.wanted = len(asked) * collection.per_query
    collection.count_missing()
    return collection.summary


def _require_same(pool: Pool, queries: Sequence[Query], root: Path) -> None:
    """Raises InputError: the cache was collected for something else."""
    last = plan.last_plan(root)
    if last is None:
        return
    before, now = ({model.name for model in each.models} for each in (last[0], pool))
    were, are = ({query.key for query in each} for each in (last[1], queries))
    differs = "questions" if not (were <= are or are <= were) else ""
    if last[0].hops != pool.hops or not before <= now:
        differs = "models or hops"
    if differs:
        raise InputError(
            f"another plan: {root} was collected for other {differs}; name another --cache, or "
            "leave --adaptive out"
        )


@dataclass
class _Growing:
    """Trees that grow where it may matter."""

    collection: scheduler.Collection
    adaptive: Adaptive
    root: Path
    encoder: str | None

    def grow(self, asked: Sequence[Query], batch: Sequence[Query]) -> bool:
        """Make the calls of a batch that may matter, by what those asked before have taught.

        Returns whether they were made: they are not where more would hardly be learned.
        """
        made, learned = self.collection, None
        contexts = plan.root_contexts(query.question for query in batch)
        for level, stages in enumerate(made.levels):
            calls = (call.key for stage in stages for call in stage.calls(contexts))
            if any(key not in made.responses and key not in made.pruned for key in calls):
                tree = grown(self.root, self.adaptive, self.encoder)
                learned = learned or self._learn(tree, asked)
                if learned is None:
                    return False
                decided = self._decide(learned, tree, batch, level)
                with collector_lock(self.root):
                    made.decide(decided)
            with collector_lock(self.root):
                contexts = made.go_on(level, contexts)
            made.require_models()
        return True

    def _learn(self, tree: RouteTree, asked: Sequence[Query]) -> TrainedSweep | None:
        """What these queries teach; None where half of them taught it."""
        names = {(query.dataset, query.id) for query in asked}

        def every(step: int) -> RouteTree:
            folds = [learned_from(tree), tree.pruned or tree.select(np.arange(0))]
            rows = [[row for row, name in _named(fold) if name in names][::step] for fold in folds]
            whole, holes = (
                fold.select(np.array(known, np.int64))
                for fold, known in zip(folds, rows, strict=True)
            )
            return replace(whole, pruned=holes)

        fold = every(1)
        learned, until = self.adaptive.learn(fold), self.adaptive.until
        if until is None:
            return learned
        half, rng = self.adaptive.learn(every(2)), np.random.default_rng(0)
        for alpha in self.adaptive.alphas:
            rewards = [each.at(alpha).outcome(fold).reward(alpha) for each in (learned, half)]
            if interval(rewards[0] - rewards[1], rng=rng)[1] > until:
                return learned
        return None

    def _decide(
        self, learned: TrainedSweep, tree: RouteTree, batch: Sequence[Query], level: int
    ) -> list[dict[str, Any]]:
        """Rows of `decisions`, for all calls of a hop; before the first for direct calls, too."""
        made, whole = self.collection, tree.with_pruned()
        place = {name: row for row, name in _named(whole)}
        rows = np.array([place[query.dataset, query.id] for query in batch])
        chance = chances(learned, whole.select(rows), level)
        likely: dict[str, tuple[Floats, Booleans]] = {}
        for query, each, make in zip(batch, chance, wanted(chance), strict=True):
            for node, context in enumerate(made.contexts(query.question, level)):
                if context:  # which several nodes may share
                    most, any_of = likely.get(context, (each[node], make[node]))
                    likely[context] = np.maximum(most, each[node]), any_of | make[node]
        found = [
            (stage, context, *decision)
            for context, both in likely.items()
            for stage, *decision in zip(
                made.levels[level], *(x.tolist() for x in both), strict=True
            )
        ]
        if level == 0:  # direct calls are for folds on which models are judged
            found += [(stage, context, 0.0, False) for context in likely for stage in made.direct]
        decided = {
            call_key(stage.step, context): {
                "step": stage.step,
                "context": context,
                "model": stage.model.name,
                "made": make,
                "chance": chance,
                "alphas": self.adaptive.alphas,
            }
            # Two stages may make the same call: the one that wants it counts.
            for stage, context, chance, make in sorted(found, key=lambda each: each[3])
        }
        return [{"key": key, **row} for key, row in decided.items()]


def chances(learned: TrainedSweep, fold: RouteTree, level: int) -> Floats:
    """float64[queries, M^level, M]: that a call is the best one, at the likeliest of the alphas.

    Whether an episode ends with the call or goes on. `learned`: names the alphas; `level`: of the
    states from which the calls are made.
    """
    routes, calls = fold.routes, learned.at(0.0).actions.calls
    found = np.zeros((len(fold), routes.models**level, routes.models))
    for alpha in learned.alphas:
        each = learned.at(alpha).probabilities(fold)[:, routes.level(level), :calls]
        found = np.maximum(found, each.reshape(*found.shape[:2], -1, routes.models).sum(axis=2))
    return found


def wanted(chance: Floats) -> Booleans:
    """bool[..., M]: which calls are to be made: the likeliest one, and all that are likely."""
    return (chance >= LEAST) | (chance == chance.max(axis=-1, keepdims=True))


def at_most(pool: Pool, queries: Sequence[Query]) -> str:
    """How many calls whole trees and all others have, in words; of these only some are made."""
    whole, *others = rounds(queries)
    per_query = pool.routes.calls + len(pool.all_models)
    line = f"adaptive: {per_query * len(whole):,} calls of {len(whole):,} whole trees are made"
    more = per_query * sum(map(len, others))
    return f"{line}, and of the other {more:,} those that may matter" if more else line


def grown(root: Path, adaptive: Adaptive, encoder: str | None) -> RouteTree:
    """What is there of trees under way, and what is known of how sure the models were."""
    selection = OpenTree(
        encoder=encoder, allow_incomplete=True, allow_return=adaptive.allow_return, growing=True
    )
    try:
        return replace(selection, cache=root, state=f"{CONTEXT}+{SIGNALS}").run()
    except InputError:  # no model says how sure it was
        return replace(selection, cache=root, state=f"{CONTEXT}+{AGREEMENT}").run()


def _named(tree: RouteTree) -> Iterator[tuple[int, tuple[str, str]]]:
    """(row, (dataset, id)) of each query."""
    return enumerate(zip(tree.datasets, tree.query_ids, strict=True))
