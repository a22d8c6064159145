"""Adaptive collection: a call is made only if it may be the best one.

Routers are evaluated on complete trees, so the validation and the test fold have complete trees,
and so do a few queries of the train fold. From those of train and validation, and from all calls
since, the value model learns what each call is worth. A further query of the train fold gets the
calls that are the best with some chance at one of the alphas.
Which calls are left out is stored as well: a tree knows its holes, and a killed collection can be
resumed.

Further draws are decided in the same way, in rounds, see `fill_with_further_draws`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hierrouter.collection import plan, scheduler
from hierrouter.collection.progress import Progress, Summary
from hierrouter.engines import backend, generator
from hierrouter.engines.encoders import default_encoder, load_encoder
from hierrouter.evaluation import bounds
from hierrouter.evaluation.intervals import reward_interval
from hierrouter.learning.config import Objective, ValueConfig
from hierrouter.learning.router import training_queries
from hierrouter.pools.pool import Pool
from hierrouter.questions.query import Query
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.states import AGREEMENT, CONTEXT, SIGNALS
from hierrouter_cache.embeddings import stored_encoders
from hierrouter_cache.errors import InputError, Interrupted
from hierrouter_cache.keys import call_key, next_context, root_context
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.reader import LAST_ROW_ORDER, reader_of
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

MIN_GAIN = 0.001  # a further draw is made if R of its question is expected to gain as much by it
FURTHER_SHARE = 0.25  # calls of a round of further draws, as a share of those that are there
MIN_FURTHER_CALLS = 32  # of a round
# The variance of a call's draws is that of its own and of this many draws like those of others.
PRIOR_DRAWS = 2.0
SMALLEST_DEVIATION = 1e-12  # below it, all draws of an action are worth the same


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
    _require_same_plan(pool, queries, root)
    pilot, *batches = rounds(queries)
    writer = PartWriter(root, on_part=on_part)
    progress = progress or Progress()
    collection, identities = scheduler.begin_with(
        pilot, pool, queries, writer, progress, stop, engines, datasets
    )
    reader = reader_of(root)
    if reader:  # what an earlier collection has left out stays out
        left_out = reader.sql("SELECT key FROM decisions WHERE NOT made")
        collection.ledger.pruned.update(left_out["key"].to_pylist())
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
        for alpha in self.adaptive.alphas:
            outcome = learned.at(alpha).outcome(fold)
            half_outcome = learned_from_half.at(alpha).outcome(fold)
            _, largest_gain = reward_interval(outcome, half_outcome, alpha, fold.datasets)
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


# Further draws: where the draws so far leave open which call is the best.


class LeastDrawsMade(Interrupted):
    """A collection was stopped once every call had its least draws, so that its trees open."""

    def __init__(self, message: str, summary: Summary) -> None:
        super().__init__(message)
        self.summary = summary


@dataclass(frozen=True)
class FurtherDraws:
    """The choices that further draws are to help.

    Attributes:
        alphas: cost penalties; a draw that helps at one of them counts.
        allow_stop: whether a route may stop early.
        run_code: whether programs in answers are run to score them.
    """

    alphas: tuple[float, ...] = ()
    allow_stop: bool = False
    run_code: bool = False

    def alphas_of(self, root: Path) -> tuple[float, ...]:
        """The alphas; by default those of the last decisions of a cache, and else 0."""
        reader = None if self.alphas else reader_of(root)
        if reader is None:
            return self.alphas or (0.0,)
        last = reader.sql(
            f"SELECT alphas FROM decisions_rows WHERE made ORDER BY {LAST_ROW_ORDER} LIMIT 1"  # noqa: S608 - our own names
        )
        return tuple(last["alphas"][0].as_py()) if last.num_rows else (0.0,)


def fill_with_further_draws(
    pool: Pool,
    queries: Sequence[Query],
    root: Path,
    choices: FurtherDraws,
    progress: Progress | None = None,
    stop: generator.Stop = generator.never,
    engines: generator.Engines = backend,
    *,
    on_note: Callable[[str], None] = lambda line: None,
    on_part: OnPart = no_copy,
    datasets: Mapping[str, str] | None = None,
) -> Summary:
    """Make the least draws of every call, then further ones in rounds, and commit them.

    A round has the draws that are expected to gain most a call, see `gains`. They are written to
    the cache before they are made, so a killed collection goes on with the same ones.

    Args:
        pool: with a number of least draws.
        queries, root, progress, stop, engines, on_part, datasets: as for `scheduler.fill_cache`.
        choices: what the draws are to help.
        on_note: called with a line after each round.

    Returns:
        Counts of what was done.

    Raises:
        LeastDrawsMade: `stop` returned true after the least draws.
        HierRouterError: any error of `scheduler.fill_cache`.
    """
    engines = plan.engines_of_plan(root, engines)
    alphas = choices.alphas_of(root)
    writer = PartWriter(root, on_part=on_part)
    progress = progress or Progress()
    # And the further draws of earlier decisions.
    collection, _ = scheduler.begin_with(
        queries, pool, queries, writer, progress, stop, engines, datasets
    )
    number = 0
    while True:
        rows = _further_rows(collection, choices, alphas, root)
        if not rows:
            break
        number += 1
        calls_before = collection.summary.calls
        with collector_lock(root):
            collection.ledger.decide(rows)
            collection.offered.further.update(row["key"] for row in rows)
            try:
                collection.run(queries)
            except Interrupted as error:
                raise LeastDrawsMade(str(error), collection.summary) from error
        on_note(
            f"draws: round {number}: {len(rows):,} further draws, "
            f"{collection.summary.calls - calls_before:,} calls made"
        )
    collection.ledger.say_what_came()
    if collection.summary.failed:
        collection.count_missing()
    return collection.summary


def gains(
    tree: RouteTree, alpha: float, allow_stop: bool = False, most_draws: int | None = None
) -> Floats:
    """Compute how much R of a question is expected to gain by one more draw of each call.

    Let m be the mean of a call's draws, v their variance, k their number, and d the distance of m
    to the mean of the best other call at the same node. One more draw moves m by a normal number of
    the deviation s = sqrt(v / (k (k + 1))). It gains what the better choice then earns: s f(-d / s)
    with f(z) = z Phi(z) + phi(z), times the chance that the node is reached: the weights of the
    draws on the way, and of each call on the way the chance that it is the best.

    Args:
        tree: the questions.
        alpha: cost penalty of R = Q - alpha * C.
        allow_stop: whether a route may stop early.
        most_draws: a call with so many draws gets no more; None is no limit.

    Returns:
        float64[queries, inner nodes, C]; 0 for calls that are not offered or not sampled.

    Source: the knowledge gradient, Frazier, Powell, Dayanik 2008; docs/decisions.md.
    """
    from scipy.special import ndtr

    layout = tree.layout
    weight = np.ones(tree.score.shape) if tree.weight is None else tree.weight
    reward = tree.node_reward(alpha)
    value = reward.copy()  # of having reached a node
    shape = (len(tree), layout.inner, layout.call_actions)
    gain = np.zeros(shape)
    chance = np.zeros(shape)  # that a call is the best of its node
    is_sampled = bounds.sampled_actions(tree)
    for level in reversed(layout.levels):
        if not level.calls:
            continue
        table = layout.draws_of_calls[level.inner]
        drawn = np.where(table < 0, 0.0, weight[:, np.where(table < 0, 0, table)])
        means = _means_of_draws(value, table, drawn)
        if allow_stop:
            stopped = _means_of_draws(reward, table, drawn)
            is_stop = stopped.mean > means.mean
            pairs = zip(stopped, means, strict=True)
            means = _Means(*(np.where(is_stop, first, second) for first, second in pairs))
        best = means.mean.max(axis=2, keepdims=True)
        is_best = means.mean == best
        others = np.where(is_best & (is_best.cumsum(axis=2) == 1), -np.inf, means.mean)
        second = others.max(axis=2, keepdims=True)
        next_best = np.where(others == -np.inf, second, best)  # of the first best call the second
        count = np.maximum(means.draws, 1)
        has_choice = (means.draws > 0) & np.isfinite(next_best)
        distance = np.abs(
            np.where(has_choice, next_best - np.where(has_choice, means.mean, 0.0), 0.0)
        )
        step = np.sqrt(means.variance / (count * (count + 1)))
        is_open = has_choice & is_sampled & (step > SMALLEST_DEVIATION)
        if most_draws is not None:
            is_open &= means.draws < most_draws
        ratio = -distance / np.where(is_open, step, 1.0)
        density = np.exp(-(ratio**2) / 2) / np.sqrt(2 * np.pi)
        gain[:, level.inner] = np.where(is_open, step * (ratio * ndtr(ratio) + density), 0.0)
        error = np.where(means.draws > 0, means.variance / count, 0.0)
        error_of_best = np.take_along_axis(error, means.mean.argmax(axis=2)[:, :, None], axis=2)
        deviation = np.sqrt(error + error_of_best)
        mean = np.where(means.draws > 0, means.mean, 0.0)
        behind = np.where(means.draws > 0, best - mean, np.inf)
        spread = np.maximum(deviation, SMALLEST_DEVIATION)
        chance[:, level.inner] = np.where(is_best, 1.0, ndtr(-behind / spread))
        value[:, level.inner] = np.where(np.isfinite(best[:, :, 0]), best[:, :, 0], 0.0)
    reach = np.ones(tree.score.shape)
    for node in range(1, layout.nodes):
        parent = layout.parent[node]
        of_call = chance[:, parent, layout.action[node]]
        reach[:, node] = reach[:, parent] * of_call * weight[:, node]
    gain *= reach[:, : layout.inner, None]
    return gain


class _Means(NamedTuple):
    """Of the draws of each call, float64[queries, states, C]; the mean of no draw is -inf."""

    mean: Floats
    variance: Floats
    draws: Floats


def _means_of_draws(value: Floats, table: Integers, drawn: Floats) -> _Means:
    """Compute the mean and the variance of the draws of each call of a level.

    Args:
        value: float64[queries, nodes], of having reached a node.
        table: int64[states, C, D], the draws of each call, below 0 where there is none.
        drawn: float64[queries, states, C, D], their weights, 0 where a query lacks one.
    """
    values = value[:, np.where(table < 0, 0, table)]
    is_there = drawn > 0
    count = is_there.sum(axis=3).astype(np.float64)
    mean = np.where(is_there, drawn * values, 0.0).sum(axis=3)
    squares = np.where(is_there, (values - mean[..., None]) ** 2, 0.0).sum(axis=3)
    further = np.maximum(count - 1, 0)
    # What the draws of other calls of the same action at this level differ by.
    pooled = squares.sum(axis=(0, 1)) / np.maximum(further.sum(axis=(0, 1)), 1)
    variance = (squares + PRIOR_DRAWS * pooled) / (further + PRIOR_DRAWS)
    return _Means(np.where(count > 0, mean, -np.inf), variance, count)


def _further_rows(
    collection: scheduler.Collection, choices: FurtherDraws, alphas: tuple[float, ...], root: Path
) -> list[dict[str, Any]]:
    """Choose the further draws of a round, as rows of `decisions`; none if no draw gains enough.

    Only of train queries: a mean over draws is biased if their number hangs on what came first.
    """
    setup = OpenTree(cache=root, state="stage", allow_incomplete=True, run_code=choices.run_code)
    tree = setup.run()
    pool = collection.pool
    layout = tree.layout
    table = np.max([gains(tree, alpha, choices.allow_stop, pool.draws) for alpha in alphas], axis=0)
    questions = {(query.dataset, query.id): query.question for query in collection.queries}
    depth = layout.depth()
    calls_of_draw = _calls_of_draws(pool)
    # By key: several nodes, and queries, may share a call.
    draws: dict[str, tuple[float, int, dict[str, Any]]] = {}
    for row, name in enumerate(_names(tree)):
        if tree.splits[row] != "train" or name not in questions or not (table[row] > 0).any():
            continue
        contexts = _contexts_of_nodes(collection, tree, row, questions[name])
        for node, action in np.argwhere(table[row] > 0).tolist():
            level = int(depth[node])
            draw = _next_draw(collection, level, action, contexts[node])
            if draw is None:
                continue
            key = call_key(draw.step, contexts[node])
            earlier = draws[key][0] if key in draws else 0.0
            decision = {
                "key": key,
                "step": draw.step,
                "context": contexts[node],
                "model": draw.model.name,
                "made": True,
                "alphas": alphas,
            }
            gain = earlier + float(table[row, node, action])
            draws[key] = (gain, calls_of_draw[level][action], decision)
    worthwhile = [draw for draw in draws.values() if draw[0] >= MIN_GAIN]
    worthwhile.sort(key=lambda draw: (-draw[0] / draw[1], draw[2]["key"]))
    calls_there = int((np.ones(1) if tree.weight is None else tree.weight[:, 1:] > 0).sum())
    left = max(FURTHER_SHARE * calls_there, MIN_FURTHER_CALLS)
    rows = []
    for gain, calls, decision in worthwhile:
        if left <= 0:
            break
        left -= calls
        rows.append({**decision, "chance": gain})
    return rows


def _contexts_of_nodes(
    collection: scheduler.Collection, tree: RouteTree, row: int, question: str
) -> list[str]:
    """The key of the context after each inner node of a tree; "" where the query lacks it."""
    layout = tree.layout
    weight = None if tree.weight is None else tree.weight[row]
    depth = layout.depth()
    steps = {
        (level, stage.action, stage.draw): stage.step
        for level, stages in enumerate(collection.levels)
        for stage in stages
    }
    contexts = [root_context(question)]
    for node in range(1, layout.inner):
        before = contexts[layout.parent[node]]
        kind = (int(depth[node]) - 1, int(layout.action[node]), int(layout.draw[node]))
        is_there = bool(before) and (weight is None or weight[node] > 0)
        response = None
        if is_there:
            response = collection.ledger.responses.get(call_key(steps[kind], before))
        contexts.append("" if response is None else next_context(before, response))
    return contexts


def _next_draw(
    collection: scheduler.Collection, level: int, action: int, context: str
) -> plan.Stage | None:
    """The first draw of a call that is neither there nor decided on; None if there is no more."""
    for stage in collection.levels[level]:
        if stage.action != action:
            continue
        key = call_key(stage.step, context)
        is_made = key in collection.ledger.responses or key in collection.offered.further
        if not is_made:
            return stage
    return None


def _calls_of_draws(pool: Pool) -> list[list[int]]:
    """Calls that one more draw makes, by level and action: itself, and the least that follow it."""
    least = pool.with_least_draws
    draws = [least.draws_of(action.model) for action in pool.actions]
    calls = [[1] * len(draws)]  # of the last level, and then of those before
    for offers in reversed(pool.offers[1:]):
        following = calls[0]
        calls.insert(
            0,
            [
                1 + sum(draws[after] * following[after] for after in offered)
                for offered in offers[1:]
            ],
        )
    return calls


def further_draws_line(pool: Pool, queries: Sequence[Query]) -> str:
    """One line: how many calls there are at least and at most, if calls differ in their draws."""
    train = sum(query.split == "train" for query in queries)
    least = len(queries) * pool.calls_per_query
    further = pool.with_most_draws.calls_per_query - pool.calls_per_query
    most = least + train * further
    return (
        f"draws: {least:,} calls with {pool.least_draws} draws of each, and at most {most:,} with "
        f"{pool.draws} for train queries: further ones are decided in rounds, where they may "
        "change a choice"
    )
