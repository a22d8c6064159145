"""A collection that is ready to be run: models, queries, and what makes the calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hierrouter.collection.adaptive import (
    Adaptive,
    FurtherDraws,
    LeastDrawsMade,
    fill_adaptively,
    fill_with_further_draws,
    further_draws_line,
)
from hierrouter.collection.estimate import Estimate, estimate, estimate_object, require_consent
from hierrouter.collection.plan import Shard, commits_of_plan, shard_status, spending_of_pool
from hierrouter.collection.progress import Progress, Summary
from hierrouter.collection.scheduler import fill_cache
from hierrouter.declarations.declaration import OnNote, OnTask, ignore_note, ignore_task
from hierrouter.engines.encoders import require_encoder
from hierrouter.engines.generator import Stop, at_commit, never
from hierrouter.engines.preflight import Availability, weights_needed
from hierrouter.paper import PAPER_SCORER
from hierrouter.pools.pool import Pool
from hierrouter.questions.query import Query
from hierrouter.questions.scoring import REFERENCE_FORMS
from hierrouter.replay.inspection import fitting_scorer_note
from hierrouter.replay.open_tree import OpenTree
from hierrouter.tables import money
from hierrouter_cache.embeddings import stored_encoders
from hierrouter_cache.errors import InputError, Interrupted
from hierrouter_cache.mirror import part_copier, pull
from hierrouter_cache.stores import store_at
from hierrouter_cache.tree import RouteTree
from hierrouter_cache.writer import no_copy


@dataclass(frozen=True)
class PlanEstimate:
    """What a collection comes to.

    Attributes:
        calls: counts, tokens, time and cost of the calls that are due.
        weights: of each model that would be loaded here.
        max_spend: limit of what the calls in the cache may cost, in money; None is no limit.
        spent_before: what they have cost so far; None without a limit.
        remarks: on the plan, for people.
    """

    calls: Estimate
    weights: tuple[Availability, ...]
    max_spend: float | None
    spent_before: float | None
    remarks: tuple[str, ...] = ()

    @property
    def is_above_limit(self) -> bool | None:
        """Whether it comes to more than the limit; None if that is not known, or without one."""
        if self.max_spend is None or self.spent_before is None:
            return None
        if not self.is_bound_above_limit:
            return False
        cost = self.calls.total.cost
        return None if cost is None else self.spent_before + cost > self.max_spend

    @property
    def is_bound_above_limit(self) -> bool | None:
        """Whether it may come to more than the limit; None without one."""
        if self.max_spend is None or self.spent_before is None:
            return None
        return self.spent_before + self.calls.bound_total.cost > self.max_spend

    @property
    def notes(self) -> list[str]:
        """Remarks for people, a line each."""
        notes = [*self.calls.notes, *self.remarks]
        if self.max_spend is not None and self.spent_before is not None:
            cost = self.calls.total.cost
            due = "unknown" if cost is None else money(cost)
            most = money(self.calls.bound_total.cost)
            verdict = "within"
            if self.is_above_limit:
                verdict = "above"
            elif self.is_bound_above_limit:
                verdict = "perhaps above"
            notes.append(
                f"spent before {money(self.spent_before)}, due {due}, at most {most}: "
                f"{verdict} --max-spend {self.max_spend:g}"
            )
        return notes

    def as_object(self) -> dict[str, Any]:
        """Return the estimate as JSON values; null is unknown."""
        value = {
            **estimate_object(self.calls),
            "notes": self.notes,
            "weights": [asdict(weights) for weights in self.weights],
        }
        if self.max_spend is not None:
            value["max_spend"] = self.max_spend
            value["spent_before"] = self.spent_before
            value["above_max_spend"] = self.is_above_limit
            value["bound_above_max_spend"] = self.is_bound_above_limit
        return value


@dataclass(frozen=True)
class CollectionPlan:
    """What is to be collected, and what makes the calls; see `collect.Collect`.

    Attributes:
        pool: the models, as they are to be called.
        queries: of all shards.
        cache: the folder.
        shard: this share of the queries, beside others; None is all of them.
        on_ray: whether a Ray cluster makes the calls.
        workers: of the cluster, see `hierrouter.collection.cluster`.
        address: of the cluster.
        remote: URL of the cache's mirror.
        adaptive: the routers for which calls may matter; None makes every call.
        choices: what further draws are to help, if calls may differ in their number of draws.
        encoder: embeds the states; None is the pool's.
        run_code: whether to run the programs in answers, when all are there.
        max_spend: begin no call once the calls in the cache have cost so much, in the pool's
            currency and at its rates; None is no limit.
        datasets: commits of the hub's repositories that the queries were drawn from, by id.

    Raises:
        InputError: settings that contradict each other.
    """

    pool: Pool
    queries: Sequence[Query]
    cache: Path
    shard: Shard | None = None
    on_ray: bool = False
    workers: int | None = None
    address: str | None = None
    remote: str | None = None
    adaptive: Adaptive | None = None
    choices: FurtherDraws = field(default_factory=FurtherDraws)
    encoder: str | None = None
    run_code: bool = False
    max_spend: float | None = None
    datasets: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.adaptive and (self.shard or self.on_ray):
            raise InputError(
                "--adaptive decides by what was answered before: leave --shard and --engine ray out"
            )
        if self.pool.least_draws and (self.adaptive or self.shard or self.on_ray):
            raise InputError(
                f"--draws {self.pool.least_draws}..{self.pool.draws} decides by what was answered "
                "before: leave --adaptive, --shard and --engine ray out, or give one number"
            )

    @property
    def own_queries(self) -> Sequence[Query]:
        """The queries of this shard; all of them without shards."""
        return self.shard.own(self.queries) if self.shard else self.queries

    @property
    def max_calls(self) -> int:
        """Calls of all queries: nodes and direct calls, whether they are in the cache or not."""
        return len(self.queries) * self.pool.calls_per_query

    @property
    def spent(self) -> float:
        """Cost of all calls of the pool's models in the cache, in money.

        Raises:
            CacheError: the cache is damaged.
        """
        spending = spending_of_pool(self.cache, self.pool)
        return sum((model.cost for model in spending.values()), 0.0)

    def estimate(self, counts_start: bool = False) -> PlanEstimate:
        """Estimate calls, tokens, time, cost and disk; call and write nothing.

        Args:
            counts_start: whether the start of this program counts as well: a command that collects
                will take as long to start.

        Raises:
            InputError: a local folder holds no model, or a device does not exist.
            CacheError: the cache is damaged.
            WorldError: weights are damaged.
        """
        started = psutil.Process().create_time() if counts_start else None
        pool = self.pool.with_most_draws
        calls = estimate(pool, self.own_queries, self.cache, started=started)
        commits = commits_of_plan(self.cache)
        due = [
            at_commit(model, commits)
            for model in self.pool.all_models
            if model.name in calls.models_due
        ]
        weights = tuple(weights_needed(due))
        spent = None if self.max_spend is None else self.spent
        remarks = []
        if self.adaptive:
            remarks.append(
                "bound and estimate are those of whole trees; --adaptive leaves some out"
            )
        if self.pool.least_draws:
            remarks.append(further_draws_line(self.pool, self.queries))
        if self.on_ray:
            remarks.append("the time is that of one worker; with Ray several share the calls")
        return PlanEstimate(calls, weights, self.max_spend, spent, tuple(remarks))

    def check(self, allow_large: bool = False) -> None:
        """Refuse a collection before the first call is made.

        Args:
            allow_large: start even a very large one.

        Raises:
            InputError: it is very large, or the encoder is unknown.
            WorldError: the encoder cannot be had.
        """
        if not allow_large:
            require_consent(self.pool.with_most_draws, self.own_queries, self.cache)
        if self.encoder:
            require_encoder(self.encoder, stored_encoders(self.cache))

    def run(self, progress: Progress, on_note: OnNote, stop: Stop = never) -> Summary:
        """Make every missing call of the plan, or of the shard; see `scheduler.fill_cache`.

        Args:
            progress: callbacks for what is done.
            on_note: called with what the mirror, or the cluster, reports; may be empty.
            stop: asked whether to end before everything is done.

        Returns:
            What was done.

        Raises:
            Interrupted: `max_spend` is reached, or `stop` ended it, and calls are missing.
            CacheError: the cache is damaged, in use or cannot be written.
            WorldError: a model, a server or the disk failed; what was committed is safe.
        """
        if self.max_spend is None:
            return self._make_calls(progress, on_note, stop)
        limit = self.max_spend
        spent = self.spent
        on_calls = progress.on_calls

        def count_spending(calls: int, tokens: int, cost: float) -> None:
            nonlocal spent
            spent += cost
            on_calls(calls, tokens, cost)

        progress.on_calls = count_spending
        try:
            return self._make_calls(progress, on_note, lambda: stop() or spent >= limit)
        except Interrupted as error:
            if stop() or spent < limit:
                raise
            if isinstance(error, LeastDrawsMade):
                on_note(
                    f"the limit is reached: --max-spend {limit:g}, {money(spent)} "
                    f"{self.pool.currency} spent on this cache; every call has its least draws, "
                    "the same command with more goes on with further ones"
                )
                return error.summary
            raise Interrupted(
                f"the limit is reached: --max-spend {limit:g}, {money(spent)} {self.pool.currency} "
                "spent on this cache; all answers are kept, the same command with more goes on"
            ) from error

    def _make_calls(self, progress: Progress, on_note: OnNote, stop: Stop) -> Summary:
        if self.on_ray:
            # Ray is an extra, and slow to import.
            from hierrouter.collection.cluster import collect_on_ray

            return collect_on_ray(
                self.pool,
                self.queries,
                self.cache,
                workers=self.workers,
                address=self.address,
                remote=self.remote,
                progress=progress,
                stop=stop,
                on_note=on_note,
                datasets=self.datasets,
            )
        store = store_at(self.remote) if self.remote else None
        on_part = part_copier(store) if store else no_copy
        if self.adaptive:
            summary = fill_adaptively(
                self.pool,
                self.queries,
                self.cache,
                self.adaptive,
                progress,
                stop,
                encoder=self.encoder,
                on_note=on_note,
                on_part=on_part,
                datasets=self.datasets,
            )
        elif self.pool.least_draws:
            summary = fill_with_further_draws(
                self.pool,
                self.queries,
                self.cache,
                replace(self.choices, run_code=self.run_code),
                progress,
                stop,
                on_note=on_note,
                on_part=on_part,
                datasets=self.datasets,
            )
        else:
            summary = fill_cache(
                self.pool,
                self.queries,
                self.cache,
                progress,
                stop,
                shard=self.shard,
                on_part=on_part,
                datasets=self.datasets,
            )
        if store:
            on_note(pull(store, self.cache).note)  # what other shards have done meanwhile
        return summary

    def finish(self, on_derive: OnTask = ignore_task, on_note: OnNote = ignore_note) -> None:
        """Embed and score what was collected; of a shard only note how far all shards are.

        Args:
            on_derive: called with ("embed" or "score", done, total).
            on_note: called with each line that a person should know.

        Raises:
            CacheError: the cache is damaged, or incomplete for the plan.
        """
        if self.shard:
            for line in _shard_lines(self.cache, self.shard):
                on_note(line)
            return
        opening = OpenTree(cache=self.cache, encoder=self.encoder, run_code=self.run_code)
        notes: list[str] = []
        tree = opening.run(on_derive, notes.append)
        for note in notes:
            # In its place stands a line with figures.
            if not tree.is_fitting_scorer or fitting_scorer_note(tree.scorer) not in note:
                on_note(note)
        if tree.is_fitting_scorer:
            paper_opening = replace(opening, scorer=PAPER_SCORER)
            on_note(f"collect: {compared_scorers_line(tree, paper_opening.run(on_derive))}")
        if tree.unembedded:
            on_note(f"collect: nothing is embedded yet: {tree.unembedded}")


def compared_scorers_line(tree: RouteTree, paper_tree: RouteTree) -> str:
    """Say which scorer was chosen for own files, and what the paper's makes of the same answers.

    Args:
        tree: opened with the scorer that was chosen.
        paper_tree: the same, opened with that of the paper.
    """
    quality, paper_quality = (
        float(np.mean(np.hstack([opened.score[:, 1:], opened.direct.score])))
        for opened in (tree, paper_tree)
    )
    return (
        f"Q is {tree.scorer}, as the references are {REFERENCE_FORMS[tree.scorer]}: mean "
        f"{quality:.3f}; by the paper's {paper_tree.scorer} {paper_quality:.3f} "
        f"(--scorer {paper_tree.scorer})"
    )


def _shard_lines(cache: Path, shard: Shard) -> list[str]:
    """Return how far the shards of the plan are, and what to do when all of them are done."""
    status = shard_status(cache, shard.count)
    lines = [
        f"shard {shard} is complete: {len(status.complete)} of {shard.count} shards are, "
        f"{status.present:,} of {status.expected:,} nodes and direct calls of the whole "
        "plan are there"
    ]
    if len(status.complete) == shard.count:
        lines.append("all shards are complete: `hierrouter collect` without --shard embeds them")
    return lines
