"""What was trained, as reports.

In: the router to show, a tree under one price list or several. Out: a `Report` under each list, the
first one with the trees of the router's largest regrets. Not covered: which router is shown
(`shown`), what is compared (`comparison`), files and pages (`report`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from hierrouter.comparison import DeferTo, report_on
from hierrouter.evaluate.policies import OwnPolicy
from hierrouter.explain import explain_worst
from hierrouter.latest_runs import run_by_enumeration
from hierrouter.learn.checkpoint import router_at
from hierrouter.provenance import provenance
from hierrouter.report.results import Report
from hierrouter.shown import Shown
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Reported:
    """What a report is made of.

    Attributes:
        cache: the folder that the trees were opened from.
        lists: the tree under each price list, by the list's name; the first is the main one.
        shown: the router, on the first of them.
        split: the fold to evaluate on.
        defer: where the router hands over what it doubts.
        worst: how many of the router's largest regrets to show with their answers, at most.
        pool: that the trees were opened with, for these answers.
        policies: the user's own.
    """

    cache: Path
    lists: Mapping[str, RouteTree]
    shown: Shown
    split: str = "test"
    defer: DeferTo | None = None
    worst: int = 0
    pool: str | None = None
    policies: tuple[OwnPolicy, ...] = ()

    @property
    def tree(self) -> RouteTree:
        """The tree under the first price list."""
        return next(iter(self.lists.values()))

    @cached_property
    def exact_run(self) -> Path | None:
        """Of one that learned by enumeration what the router shown learned from episodes."""
        trained = self.shown.trained
        if trained is None or trained.origin.config.algo != "ppo":
            return None
        return run_by_enumeration(self.tree, trained)

    @property
    def runs(self) -> Sequence[Path | None]:
        """Every run whose routers are evaluated, that of the router shown first."""
        return self.shown.run, self.shown.sweep_run, self.exact_run


def make_report(reported: Reported) -> Report:
    """The report under the first price list, with the largest regrets.

    Raises:
        InputError: something does not fit together, or there is nothing to report on.
    """
    tree, shown = reported.tree, reported.shown
    result = _under(reported, tree)
    if shown.trained is None or not reported.worst:
        return result
    worst = explain_worst(
        reported.cache,
        tree,
        reported.split,
        shown.alpha,
        shown.trained,
        reported.worst,
        reported.pool,
    )
    return replace(result, worst=tuple(worst))


def other_reports(reported: Reported) -> dict[str, Report]:
    """The same under each price list but the first, by its name; without the largest regrets."""
    return {name: _under(reported, tree) for name, tree in list(reported.lists.items())[1:]}


def _under(reported: Reported, tree: RouteTree) -> Report:
    """The report of one of the trees."""
    shown, exact_run = reported.shown, reported.exact_run
    several = reported.lists if len(reported.lists) > 1 else {}
    source = provenance(tree, reported.cache, shown.run, shown.trained, shown.sweep_run, several)
    return report_on(
        tree,
        shown.alpha,
        shown.trained,
        shown.sweep,
        source,
        reported.split,
        price_lists=several,
        exact=router_at(exact_run, None) if exact_run else None,
        defer=reported.defer,
        policies=reported.policies,
    )
