"""Intervals for a contest: who is better, and why.

In: a `Contest`, see `hierrouter.baselines.contest`. Out: `Standings`: means and intervals of every
policy, the difference to the learned router, the value of the second hop and of adaptivity. All
come from the same resamples of the queries, so that every difference is paired; they are those of
a report on the same fold, so that its figures are met again digit for digit. Not covered: how it is
shown (`contest_tables`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hierrouter.baselines.contest import ANYTIME, TREE, Contest, Entry
from hierrouter.evaluate.simultaneous import simultaneous_intervals
from hierrouter.report.certainty import Estimate
from hierrouter.report.intervals import draws, estimates, stream_of_all
from hierrouter.report.results import COST_UNIT, Bootstrap

What = Literal["second hop", "adaptivity", "lead", "regret"]


@dataclass(frozen=True)
class Standing:
    """One policy over all queries of the fold.

    Attributes:
        entry: who it is.
        accuracy: share of right answers.
        quality, cost, reward: means of Q, C and R = Q - alpha * C.
        difference: R(HierRouter) - R(policy); None for the router itself and without a router.
        simultaneous: the same with intervals that hold for all baselines at once, see
            `hierrouter.evaluate.simultaneous`; None for oracles, too, and where there is one query.
    """

    entry: Entry
    accuracy: Estimate
    quality: Estimate
    cost: Estimate
    reward: Estimate
    difference: Estimate | None
    simultaneous: Estimate | None


@dataclass(frozen=True)
class Value:
    """A difference in mean R between two policies; with one hop "lead" is the only one.

    Attributes:
        what: "second hop" is the best baseline of set B - the best of A, "adaptivity" is HierRouter
            - the best of B, both among those that read no answer; "lead" is HierRouter - the best
            baseline of all; "regret" is the oracle - a policy of the user's own.
        chosen_on: the fold on which a baseline is the best one; of a regret, the fold shown.
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
    return Standings(
        contest=contest,
        queries=len(contest.datasets),
        bootstrap=bootstrap,
        rows=_rows(contest, bootstrap),
        values=_values(contest, bootstrap),
        scorer=scorer,
        cost_unit=cost_unit,
        provenance=provenance,
    )


def label(entry: Entry) -> str:
    """A name that says which arms are chosen from: "kNN on B"."""
    name = entry.outcome.name
    return f"{name} on {entry.arms}" if entry.arms else name


def _rows(contest: Contest, bootstrap: Bootstrap) -> tuple[Standing, ...]:
    outcomes, router = [entry.outcome for entry in contest.entries], contest.router
    reward = _rewards(contest)
    figures = [
        np.array([one.accuracy for one in outcomes]),
        np.array([one.quality for one in outcomes]),
        np.array([one.cost for one in outcomes]),
        reward,
        reward[router or 0] - reward,
    ]
    found = estimates(np.concatenate(figures), bootstrap, stream_of_all(contest.datasets))
    simultaneous = _simultaneous(contest, bootstrap)
    rows = []
    for at, entry in enumerate(contest.entries):
        accuracy, quality, cost, net, lead = found[at :: len(outcomes)]
        difference = None if router in (None, at) else lead
        rows.append(Standing(entry, accuracy, quality, cost, net, difference, simultaneous.get(at)))
    return tuple(rows)


def _rewards(contest: Contest) -> NDArray[np.float64]:
    """float64[entries, queries]: R."""
    return np.array([entry.outcome.reward(contest.alpha) for entry in contest.entries])


def _simultaneous(contest: Contest, bootstrap: Bootstrap) -> dict[int, Estimate]:
    """R(HierRouter) - R(baseline) by the number of the entry, all intervals at once."""
    members, reward = _baselines(contest, reading=True), _rewards(contest)
    if contest.router is None or not members or reward.shape[1] < 2:
        return {}
    differences = reward[contest.router] - reward[members]
    rng = draws(bootstrap, stream_of_all(contest.datasets))
    low, high = simultaneous_intervals(differences, bootstrap.n, bootstrap.level, rng)
    bounds = zip(differences.mean(axis=1).tolist(), low.tolist(), high.tolist(), strict=True)
    return dict(zip(members, (Estimate(*numbers) for numbers in bounds), strict=True))


def _values(contest: Contest, bootstrap: Bootstrap) -> tuple[Value, ...]:
    """With the best baselines as the fold shown has them, and as validation has them."""
    pairs: list[tuple[What, str, int, int]] = [
        (what, fold, first, second)
        for fold in dict.fromkeys((contest.split, "validation"))
        for what, first, second in _compared(contest, fold)
    ]
    pairs += [("regret", contest.split, *pair) for pair in _lost(contest)]
    if not pairs:
        return ()
    reward = _rewards(contest)
    differences = np.array([reward[first] - reward[second] for _, _, first, second in pairs])
    found = estimates(differences, bootstrap, stream_of_all(contest.datasets))
    return tuple(
        Value(what, fold, label(contest.entries[first]), label(contest.entries[second]), difference)
        for (what, fold, first, second), difference in zip(pairs, found, strict=True)
    )


def _compared(contest: Contest, fold: str) -> Iterator[tuple[What, int, int]]:
    """The two entries of each value, with the best baselines as this fold has them."""
    worth = _worth(contest, fold)
    blind, everybody = (_baselines(contest, reading) for reading in (False, True))
    single, route = (
        _best([at for at in blind if contest.entries[at].arms == arms], worth)
        for arms in ("A", "B")
    )
    best = _best(everybody, worth)
    several = contest.hops > 1
    if several and route is not None and single is not None:
        yield "second hop", route, single
    if several and contest.router is not None and route is not None:
        yield "adaptivity", contest.router, route
    if contest.router is not None and best is not None:
        yield "lead", contest.router, best


def _lost(contest: Contest) -> Iterator[tuple[int, int]]:
    """The oracle and each policy of the user's own; it may stop where that policy may."""
    names = [entry.outcome.name for entry in contest.entries]
    for at, entry in enumerate(contest.entries):
        if entry.outcome.kind == "baseline" and not entry.arms:
            yield names.index(ANYTIME if entry.settings["allow_stop"] else TREE), at


def _baselines(contest: Contest, reading: bool) -> list[int]:
    """Numbers of the baselines; with `reading` those that read answers, too."""
    return [
        at
        for at, entry in enumerate(contest.entries)
        if entry.outcome.kind == "baseline" and (reading or not entry.reads_answers)
    ]


def _worth(contest: Contest, fold: str) -> dict[int, tuple[float, float]]:
    """Mean R of each entry on a fold, and what it costs less; those unknown there are left out."""
    figures = [(one.validation, one.validation_cost) for one in contest.entries]
    if fold == contest.split:
        rewards = _rewards(contest).mean(axis=1).tolist()
        costs = [float(one.outcome.cost.mean()) for one in contest.entries]
        figures = list(zip(rewards, costs, strict=True))
    return {
        at: (reward, -cost)
        for at, (reward, cost) in enumerate(figures)
        if reward is not None and cost is not None
    }


def _best(members: Sequence[int], worth: Mapping[int, tuple[float, float]]) -> int | None:
    """The entry with the highest mean R; ties: lower cost, then the first."""
    known = [at for at in members if at in worth]
    return max(known, key=worth.__getitem__, default=None)
