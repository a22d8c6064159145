"""Adaptive collection: a call is made only if it may be the best one.

Routers are evaluated on complete trees, so the validation and the test fold have complete trees,
and so do a few queries of the train fold. From those of train and validation, and from all calls
since, the value model learns what each call is worth. A further query of the train fold gets the
calls that are the best with some chance at one of the alphas.
Which calls are left out is stored as well: a tree knows its holes, and a killed collection can be
resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.collection import plan, scheduler
from hierrouter.collection.progress import Progress, Summary
from hierrouter.engines import backend, generator, identify_pool
from hierrouter.engines.encoders import default_encoder, load_encoder
from hierrouter.evaluation.intervals import interval
from hierrouter.learning.config import Objective, ValueConfig
from hierrouter.learning.value import training_queries
from hierrouter.pools.pool import Pool
from hierrouter.questions.query import Query
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.states import AGREEMENT, CONTEXT, SIGNALS
from hierrouter_cache.embeddings import stored_encoders
from hierrouter_cache.errors import InputError
from hierrouter_cache.keys import call_key, root_context
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.reader import reader_of
from hierrouter_cache.tree import RouteTree
from hierrouter_cache.writer import OnPart, PartWriter, no_copy

if TYPE_CHECKING:
    from hierrouter.learning.sweep import TrainedSweep

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

PILOT_QUERIES = 40  # train queries with complete trees; also the fewest queries of a round
ROUND_SHARE = 0.5  # queries of a round, as a share of those that are learned from
MIN_CHANCE = 0.15  # a call that is the best with a smaller chance is left out


@dataclass(frozen=True)
class Adaptive:
    """The routers that will be trained; calls that are the best for none of them are left out.

    Attributes:
        alphas: of the routers.
        allow_stop: whether routers may stop early, see `Objective`.
        allow_return: whether routers may return an earlier answer, see `Objective`.
        until: ask no further query once half of the queries would teach the same, within this
            reward R; None asks all queries.

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
            Objective(alpha)  # refuses a number that is no alpha

    @property
    def objective(self) -> Objective:
        """The objective of the first alpha."""
        return Objective(self.alphas[0], self.allow_stop, allow_return=self.allow_return)

    def learn(self, tree: RouteTree) -> TrainedSweep:
        """Train the value model on a tree.

        Raises:
            WorldError: the tree has no embeddings.
        """
        from hierrouter.learning.sweep import train_sweep  # torch: slow to import

        return train_sweep(tree, self.alphas, self.objective, ValueConfig(), 0)


def rounds(queries: Sequence[Query]) -> list[list[Query]]:
    """Divide the queries into rounds: the first has the complete trees, later ones grow.

    Queries of the train fold come in the order of their digests, so that the order in which they
    were given does not matter.

    Args:
        queries: of all folds.

    Returns:
        The queries of each round.
    """
    train = sorted(
        (query for query in queries if query.split == "train"),
        key=lambda query: (root_context(query.question), query.key),
    )
    evaluated = [query for query in queries if query.split != "train"]
    validation = sum(query.split == "validation" for query in evaluated)
    batches = [[*evaluated, *train[:PILOT_QUERIES]]]
    start = PILOT_QUERIES
    while start < len(train):
        size = max(PILOT_QUERIES, round(ROUND_SHARE * (validation + start)))
        batches.append(train[start : start + size])
        start += size
    return batches


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
    datasets: Mapping[str, str] | None = None,
) -> Summary:
    """Run the missing calls of the trees of `queries` that may matter, and commit them.

    Args:
        pool, queries, root, progress, stop, engines, on_part, datasets: as for
            `scheduler.fill_cache`.
        adaptive: the routers that will be trained.
        encoder: embeds questions; None is the pool's.
        on_note: called with a line after each round.

    Returns:
        Counts of what was done.

    Raises:
        InputError: the last plan at `root` is neither a part of this one nor does it contain it.
        WorldError: there is no encoder.
        HierRouterError: any error of `scheduler.fill_cache`.
    """
    # Refused before any call is made.
    load_encoder(encoder or default_encoder(pool), stored_encoders(root))
    engines = plan.engines_of_plan(root, engines)
    identities = identify_pool(pool, engines)
    _require_same_plan(pool, queries, root)
    pilot, *batches = rounds(queries)
    writer = PartWriter(root, on_part=on_part)
    made: Summary | None = None  # before a model got another identity
    while True:
        with collector_lock(root):
            collection = scheduler.begin(
                pool,
                queries,
                identities,
                writer,
                progress or Progress(),
                stop,
                engines,
                datasets=datasets,
            )
            if made:
                collection.summary.take_over(made)
            try:
                collection.run(pilot)
            except generator.IdentityChange:
                made = collection.summary
                identities = identify_pool(pool, engines)
                continue
            reader = reader_of(root)
            if reader:  # what an earlier collection has left out stays out
                left_out = reader.sql("SELECT key FROM decisions WHERE NOT made")
                collection.ledger.pruned.update(left_out["key"].to_pylist())
        break
    collected = list(pilot)
    growth = _Growth(collection, adaptive, root, encoder)
    for number, batch in enumerate(batches, 1):
        calls_before = collection.summary.calls
        if not growth.grow(collected, batch):
            on_note(
                f"adaptive: {len(queries) - len(collected):,} questions are not asked: from half "
                f"of the others a router learns the same, within {adaptive.until:g} of R"
            )
            with collector_lock(root):
                plan.store_plan(writer, reader_of(root), pool, identities, collected)
            break
        collected += batch
        on_note(
            f"adaptive: round {number} of {len(batches)}: "
            f"{collection.summary.calls - calls_before:,} calls made, "
            f"{len(batch) * collection.per_query:,} would be all"
        )
    collection.ledger.say_what_came()
    collection.queries = collected
    collection.summary.queries = len(collected)
    collection.summary.wanted = len(collected) * collection.per_query
    collection.count_missing()
    return collection.summary


def _require_same_plan(pool: Pool, queries: Sequence[Query], root: Path) -> None:
    """Require that the last plan of a cache is a part of this one, or contains it.

    Raises:
        InputError: the cache was collected for other models, hops or queries.
    """
    last = plan.last_plan(root)
    if last is None:
        return
    last_pool, last_queries = last
    last_actions = {action.name for action in last_pool.actions}
    actions = {action.name for action in pool.actions}
    last_keys = {query.key for query in last_queries}
    keys = {query.key for query in queries}
    difference = ""
    if not (last_keys <= keys or keys <= last_keys):
        difference = "questions"
    if last_pool.hops != pool.hops or not last_actions <= actions:
        difference = "models, actions or hops" if pool.roles else "models or hops"
    if difference:
        raise InputError(
            f"another plan: {root} was collected for other {difference}; name another --cache, or "
            "leave --adaptive out"
        )


@dataclass
class _Growth:
    """Trees that grow only by calls that may matter.

    Attributes:
        collection: makes the calls.
        adaptive: the routers that will be trained.
        root: the cache's folder.
        encoder: embeds questions; None is the pool's.
    """

    collection: scheduler.Collection
    adaptive: Adaptive
    root: Path
    encoder: str | None

    def grow(self, collected: Sequence[Query], batch: Sequence[Query]) -> bool:
        """Make the calls of a batch that may matter.

        Args:
            collected: queries of earlier batches, from which it is learned what may matter.
            batch: queries to collect.

        Returns:
            Whether the calls were made; false if more queries would hardly teach more.
        """
        collection = self.collection
        ledger = collection.ledger
        learned = None
        contexts = plan.root_contexts(query.question for query in batch)
        for level in range(len(collection.levels)):
            keys = (
                call_key(stage.step, context)
                for context in contexts
                for stage in collection.offered.at(level, context)
            )
            if any(key not in ledger.responses and key not in ledger.pruned for key in keys):
                tree = growing_tree(self.root, self.adaptive, self.encoder)
                learned = learned or self._learn(tree, collected)
                if learned is None:
                    return False
                decisions = self._decide(learned, tree, batch, level)
                with collector_lock(self.root):
                    ledger.decide(decisions)
            with collector_lock(self.root):
                contexts = collection.run_level(level, contexts)
            collection.require_models()
        return True

    def _learn(self, tree: RouteTree, collected: Sequence[Query]) -> TrainedSweep | None:
        """Learn from these queries; None if half of them teach the same."""
        names = {(query.dataset, query.id) for query in collected}

        def every_nth(step: int) -> RouteTree:
            complete = training_queries(tree)
            with_holes = tree.pruned or tree.select(np.arange(0))
            return replace(
                complete.select(_rows(complete, names)[::step]),
                pruned=with_holes.select(_rows(with_holes, names)[::step]),
            )

        fold = every_nth(1)
        learned = self.adaptive.learn(fold)
        until = self.adaptive.until
        if until is None:
            return learned
        learned_from_half = self.adaptive.learn(every_nth(2))
        rng = np.random.default_rng(0)
        for alpha in self.adaptive.alphas:
            reward = learned.at(alpha).outcome(fold).reward(alpha)
            half_reward = learned_from_half.at(alpha).outcome(fold).reward(alpha)
            _, largest_gain = interval(reward - half_reward, rng=rng)
            if largest_gain > until:
                return learned
        return None

    def _decide(
        self, learned: TrainedSweep, tree: RouteTree, batch: Sequence[Query], level: int
    ) -> list[dict[str, Any]]:
        """Decide which calls of a hop are made; before the first hop, decide on direct calls, too.

        Args:
            learned: gives the chance that a call is the best.
            tree: with the nodes above the hop.
            batch: queries to collect.
            level: of the hop.

        Returns:
            Rows of `decisions`.
        """
        collection = self.collection
        nodes = tree.with_pruned()
        row_of = {name: row for row, name in enumerate(_names(nodes))}
        rows = np.array([row_of[query.dataset, query.id] for query in batch])
        batch_chances = chances(learned, nodes.select(rows), level)
        # Several nodes may share a context: a call is made if one of them needs it.
        by_context: dict[str, tuple[Floats, Booleans]] = {}
        for query, query_chances in zip(batch, batch_chances, strict=True):
            contexts = collection.contexts_before(query.question, level)
            for node, context in enumerate(contexts):
                if context is None:
                    continue
                chance = query_chances[node]
                is_made = may_be_best(chance)
                if context in by_context:
                    other_chance, is_made_elsewhere = by_context[context]
                    chance = np.maximum(chance, other_chance)
                    is_made = is_made | is_made_elsewhere
                by_context[context] = (chance, is_made)
        decisions: list[tuple[plan.Stage, str, float, bool]] = []
        for context, (chance, is_made) in by_context.items():
            decisions += [
                (stage, context, float(chance[stage.action]), bool(is_made[stage.action]))
                for stage in collection.offered.at(level, context)
            ]
        if level == 0:  # direct calls are needed only in folds on which models are evaluated
            for context in by_context:
                decisions += [(stage, context, 0.0, False) for stage in collection.direct]
        # Two stages may make the same call. The later row counts, so calls to be made come last.
        decisions.sort(key=lambda decision: decision[3])
        row_by_key = {
            call_key(stage.step, context): {
                "step": stage.step,
                "context": context,
                "model": stage.model.name,
                "made": is_made,
                "chance": chance,
                "alphas": self.adaptive.alphas,
            }
            for stage, context, chance, is_made in decisions
        }
        return [{"key": key, **row} for key, row in row_by_key.items()]


def chances(learned: TrainedSweep, fold: RouteTree, level: int) -> Floats:
    """The chance that a call is the best one, at the alpha at which it is likeliest.

    It does not matter whether an episode ends with the call or goes on.

    Args:
        learned: the value model and its alphas.
        fold: the queries.
        level: of the states from which the calls are made.

    Returns:
        float64[queries, inner nodes of the level, M].
    """
    layout = fold.layout
    calls = learned.at(0.0).actions.calls
    inner = layout.levels[level].inner
    largest = np.zeros((len(fold), inner.stop - inner.start, layout.call_actions))
    for alpha in learned.alphas:
        actions = learned.at(alpha).probabilities(fold)[:, inner, :calls]
        by_model = actions.reshape(*largest.shape[:2], -1, layout.call_actions).sum(axis=2)
        largest = np.maximum(largest, by_model)
    return largest


def may_be_best(chance: Floats) -> Booleans:
    """Whether a call is to be made: it is the likeliest one, or likely enough.

    Args:
        chance: float64[..., M], from `chances`.

    Returns:
        bool[..., M].
    """
    return (chance >= MIN_CHANCE) | (chance == chance.max(axis=-1, keepdims=True))


def calls_line(pool: Pool, queries: Sequence[Query]) -> str:
    """One line: how many calls complete trees have, and how many calls only may be made."""
    pilot, *batches = rounds(queries)
    per_query = pool.calls_per_query
    line = f"adaptive: {per_query * len(pilot):,} calls of {len(pilot):,} whole trees are made"
    optional = per_query * sum(map(len, batches))
    if not optional:
        return line
    return f"{line}, and of the other {optional:,} those that may matter"


def growing_tree(root: Path, adaptive: Adaptive, encoder: str | None) -> RouteTree:
    """Open trees under way, with signals of how sure the models were.

    Args:
        root: the cache's folder.
        adaptive: the routers that will be trained.
        encoder: embeds questions; None is the pool's.

    Returns:
        The trees; they see whether answers agree if the models do not tell how sure they were.
    """
    setup = OpenTree(
        cache=root,
        encoder=encoder,
        allow_incomplete=True,
        allow_return=adaptive.allow_return,
        growing=True,
    )
    try:
        return replace(setup, state=f"{CONTEXT}+{SIGNALS}").run()
    except InputError:  # no model tells how sure it was
        return replace(setup, state=f"{CONTEXT}+{AGREEMENT}").run()


def _names(tree: RouteTree) -> Iterator[tuple[str, str]]:
    """(dataset, id) of each query."""
    return zip(tree.datasets, tree.query_ids, strict=True)


def _rows(tree: RouteTree, names: set[tuple[str, str]]) -> Integers:
    """int64[n]: rows of the queries with these names."""
    return np.array([row for row, name in enumerate(_names(tree)) if name in names], np.int64)
