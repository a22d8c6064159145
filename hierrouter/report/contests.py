"""Intervals for a contest: who is better, and why.

In: a `Contest`, see `hierrouter.baselines.contest`. Out: `Standings`: means and intervals of every
policy, the difference to the learned router, the value of the second hop and of adaptivity. All
come from the same resamples of the queries, so that every difference is paired. Not covered: how
it is shown (`contest_tables`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hierrouter.baselines.contest import Contest, Entry
from hierrouter.evaluate.bootstrap import percentile_interval, resampled_means
from hierrouter.evaluate.simultaneous import simultaneous_intervals
from hierrouter.report.certainty import Estimate
from hierrouter.report.results import COST_UNIT, Bootstrap

What = Literal["second hop", "adaptivity", "lead"]


@dataclass(frozen=True)
class Standing:
    """One policy over all queries of the fold.

    Attributes:
        entry: who it is.
        accuracy: share of right answers.
        quality, cost, reward: means of Q, C and R = Q - alpha * C.
        difference: R(HierRouter) - R(policy); None for the router itself and without a router.
        together: the same with intervals that hold for all baselines at once, see
            `hierrouter.evaluate.simultaneous`; None for oracles, too, and where there is one query.
    """

    entry: Entry
    accuracy: float
    quality: Estimate
    cost: Estimate
    reward: Estimate
    difference: Estimate | None
    together: Estimate | None


@dataclass(frozen=True)
class Value:
    """A difference in mean R between two policies.

    Attributes:
        what: "second hop" is the best baseline of set B - the best of A, "adaptivity" is HierRouter
            - the best of B, both among those that read no answer; "lead" is HierRouter - the best
            baseline of all.
        chosen_on: the fold on which a baseline is the best one.
        first, second: names, a baseline's with its set: "kNN on B".
        difference: R(first) - R(second) on the fold shown.
    """

    what: What
    chosen_on: str
    first: str
    second: str
    difference: Estimate


@dataclass(frozen=True)
class Standings:
    """Everything there is to show of a contest.

    Attributes:
        contest: where it comes from.
        queries: how many the fold has.
        bootstrap: how the intervals were made.
        rows: one for each entry, in their order.
        values: those with a missing side are left out.
        scorer: name of Q.
        cost_unit: what C is counted in.
        provenance: where data and router come from; JSON values.
    """

    contest: Contest
    queries: int
    bootstrap: Bootstrap
    rows: tuple[Standing, ...]
    values: tuple[Value, ...]
    scorer: str
    cost_unit: str
    provenance: Mapping[str, Any]


def standings(
    contest: Contest,
    scorer: str,
    provenance: Mapping[str, Any],
    bootstrap: Bootstrap | None = None,
    cost_unit: str = COST_UNIT,
) -> Standings:
    """Means, paired intervals, and the two values.

    Args:
        contest: at least one query.
        bootstrap: number of resamples, level and seed; defaults to 10,000 at 95 %.
    """
    bootstrap = bootstrap or Bootstrap()
    resampled, together = _Resampled.of(contest, bootstrap), _together(contest, bootstrap)
    return Standings(
        contest=contest,
        queries=resampled.queries,
        bootstrap=bootstrap,
        rows=tuple(
            _standing(contest, at, resampled, together.get(at))
            for at in range(len(contest.entries))
        ),
        values=tuple(_values(contest, resampled)),
        scorer=scorer,
        cost_unit=cost_unit,
        provenance=provenance,
    )


def label(entry: Entry) -> str:
    """A name that says which arms are chosen from: "kNN on B"."""
    name = entry.outcome.name
    return f"{name} on {entry.arms}" if entry.arms else name


@dataclass(frozen=True)
class _Resampled:
    """Mean Q, C and R of every entry: of the sample in column 0, then of each resample.

    Attributes:
        quality, cost, reward: float64[entries, 1 + resamples].
        level: of the intervals.
        queries: size of the sample.
    """

    quality: NDArray[np.float64]
    cost: NDArray[np.float64]
    reward: NDArray[np.float64]
    level: float
    queries: int

    @classmethod
    def of(cls, contest: Contest, bootstrap: Bootstrap) -> _Resampled:
        outcomes = [entry.outcome for entry in contest.entries]
        values = np.array([one.quality for one in outcomes] + [one.cost for one in outcomes])
        rng = np.random.default_rng(bootstrap.seed)
        resamples = resampled_means(values, bootstrap.n, rng)
        means = np.concatenate([values.mean(axis=1, keepdims=True), resamples], axis=1)
        quality, cost = np.split(means, 2)
        reward = quality - contest.alpha * cost
        return cls(quality, cost, reward, bootstrap.level, values.shape[1])

    def estimate(self, means: NDArray[np.float64]) -> Estimate:
        """Of one row of means, or of a difference of two."""
        low, high = percentile_interval(means[1:], self.queries, self.level)
        return Estimate(float(means[0]), float(low), float(high))

    def difference(self, first: int, second: int) -> Estimate:
        """R(first) - R(second), by the numbers of two entries."""
        return self.estimate(self.reward[first] - self.reward[second])


def _together(contest: Contest, bootstrap: Bootstrap) -> dict[int, Estimate]:
    """R(HierRouter) - R(baseline) by the number of the entry, all intervals at once."""
    members = _baselines(contest, reading=True)
    reward = np.array([entry.outcome.reward(contest.alpha) for entry in contest.entries])
    if contest.router is None or not members or reward.shape[1] < 2:
        return {}
    differences = reward[contest.router] - reward[members]
    rng = np.random.default_rng(bootstrap.seed)
    low, high = simultaneous_intervals(differences, bootstrap.n, bootstrap.level, rng)
    bounds = zip(differences.mean(axis=1).tolist(), low.tolist(), high.tolist(), strict=True)
    return dict(zip(members, (Estimate(*numbers) for numbers in bounds), strict=True))


def _standing(
    contest: Contest, at: int, resampled: _Resampled, together: Estimate | None
) -> Standing:
    entry, router = contest.entries[at], contest.router
    return Standing(
        entry=entry,
        accuracy=float(entry.outcome.accuracy.mean()),
        quality=resampled.estimate(resampled.quality[at]),
        cost=resampled.estimate(resampled.cost[at]),
        reward=resampled.estimate(resampled.reward[at]),
        difference=None if router in (None, at) else resampled.difference(router, at),
        together=together,
    )


def _values(contest: Contest, resampled: _Resampled) -> list[Value]:
    """With the best baselines as the fold shown has them, and as validation has them."""
    blind, everybody = (_baselines(contest, reading) for reading in (False, True))
    found = []
    for fold in dict.fromkeys((contest.split, "validation")):
        worth = _worth(contest, fold, resampled)
        single, route = (
            _best([at for at in blind if contest.entries[at].arms == arms], worth)
            for arms in ("A", "B")
        )
        pairs: list[tuple[What, int | None, int | None]] = [
            ("second hop", route, single),
            ("adaptivity", contest.router, route),
            ("lead", contest.router, _best(everybody, worth)),
        ]
        for what, first, second in pairs:
            if first is not None and second is not None:
                names = label(contest.entries[first]), label(contest.entries[second])
                found.append(Value(what, fold, *names, resampled.difference(first, second)))
    return found


def _baselines(contest: Contest, reading: bool) -> list[int]:
    """Numbers of the baselines; with `reading` those that read answers, too."""
    return [
        at
        for at, entry in enumerate(contest.entries)
        if entry.outcome.kind == "baseline" and (reading or not entry.reads_answers)
    ]


def _worth(contest: Contest, fold: str, resampled: _Resampled) -> dict[int, tuple[float, float]]:
    """Mean R of each entry on a fold, and what it costs less; those unknown there are left out."""
    shown = resampled.reward[:, 0].tolist()
    on_fold = shown if fold == contest.split else [one.validation for one in contest.entries]
    return {
        at: (reward, -float(resampled.cost[at, 0]))
        for at, reward in enumerate(on_fold)
        if reward is not None
    }


def _best(members: Sequence[int], worth: Mapping[int, tuple[float, float]]) -> int | None:
    """The entry with the highest mean R; ties: lower cost, then the first."""
    known = [at for at in members if at in worth]
    return max(known, key=worth.__getitem__, default=None)
