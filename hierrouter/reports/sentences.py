"""A report in words: its message, its headline figures, and the sentences below its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hierrouter.declarations.flags import TEST_FOLD
from hierrouter.evaluation.bounds import ANYTIME_ORACLE, ONE_HOP_ORACLE, TREE_ORACLE
from hierrouter.evaluation.outcome import ROUTER
from hierrouter.evaluation.policies import OwnPolicy
from hierrouter.learning.config import PAPER_TRAINING
from hierrouter.questions.scoring import ACCURACY_SCORERS
from hierrouter.reports.estimates import ALL_DATASETS, Row, display_name
from hierrouter.reports.results import ReportData, Saving
from hierrouter.runs.look_log import record_looks
from hierrouter.runs.selection import SelectedRun
from hierrouter.tables import money, one_line
from hierrouter_cache.tree import RouteTree

Verdict = Literal["untrained", "unembedded", "constant", "fixed", "better", "worse", "open"]
# Scorers that say right or wrong, so that their mean is a share of the questions.
BINARY_SCORERS = ("accuracy", *(scorer.name for scorer in ACCURACY_SCORERS))
PRICED_QUESTIONS = 1_000  # questions whose cost is stated: the cost of one is hard to picture


def fixed_choice(report: ReportData) -> Row | None:
    """Return the best policy that never reads a query: a single model or a fixed route.

    It has the highest R over all queries; on a tie it is the cheaper one, and a model before a
    route. It is chosen on the very queries that it is evaluated on, which flatters it.
    """
    candidates = [report.best("single"), report.best("route")]
    rows = [row for row in candidates if row]
    return max(rows, key=lambda row: (row.reward, -row.cost), default=None)


def verdict(report: ReportData) -> Verdict:
    """Judge the router against the best fixed choice by the interval of the difference in R."""
    if report.router is None:
        return "unembedded" if report.unembedded else "untrained"
    if report.constant:
        return "constant"
    if report.fixed_route:
        return "fixed"
    fixed = fixed_choice(report)
    if fixed is None:
        return "open"
    if fixed.difference_low is not None and fixed.difference_low > 0:
        return "better"
    if fixed.difference_high is not None and fixed.difference_high < 0:
        return "worse"
    return "open"


def message(report: ReportData) -> str:
    """Summarise the report in one sentence: how good the router is, and how good one could be."""
    judgement = verdict(report)
    router = report.router
    fixed = fixed_choice(report)
    oracle = bounds_over_all(report).get(ANYTIME_ORACLE) or report.best("oracle")
    parts: list[str] = []
    if router is None:
        if fixed:
            reason = "No router is trained here"
            if report.unembedded:
                reason = "No router can be shown here, because its encoder could not be loaded"
            parts.append(f"{reason}: {_name(fixed)} {_full_facts(report, fixed)}")
    elif judgement == "constant":
        constant = f"No router is better than always calling {report.constant} here"
        parts.append(f"{constant}: that {_full_facts(report, router)}")
    elif judgement == "fixed":
        constant = f"HierRouter takes {report.fixed_route} for every question here"
        parts.append(f"{constant}: it {_full_facts(report, router)}")
        if fixed and fixed.reward > router.reward:
            parts.append(f"{_name(fixed)} {_short_facts(report, fixed, 'in ')}")
    elif judgement == "better":
        parts.append(f"HierRouter {_full_facts(report, router)}")
        if fixed:
            parts.append(f"{_name(fixed)} {_short_facts(report, fixed, 'in ')}")
    else:
        comparison = "is worse" if judgement == "worse" else "is not shown to be better"
        alternative = f"always calling {fixed.policy}" if fixed else "any fixed choice"
        facts = _full_facts(report, router)
        parts.append(f"HierRouter {comparison} than {alternative} here: it {facts}")
        if fixed:
            parts.append(f"{fixed.policy} {_short_facts(report, fixed, 'in ')}")
    if oracle and judgement == "constant":
        parts.append(f"knowing all answers, {_short_facts(report, oracle)} is possible")
    elif oracle:
        parts.append(f"no router could do better than {_short_facts(report, oracle)}")
    return one_line("; ".join(parts)) + "."


def router_title(report: ReportData) -> str:
    """Name the router for a reader who knows the paper: only the paper's has the bare name."""
    name = display_name(ROUTER)
    if report.fixed_route:
        return f"{name} (one fixed route)"
    if report.training in ("", PAPER_TRAINING):
        return name
    return f"{name} ({report.training})"


def router_sentence(report: ReportData) -> str:
    """Say what the router is, for the caption of a paper; empty if it is the paper's."""
    if report.router is None:
        return ""
    if report.fixed_route:
        return f"HierRouter is one fixed route here: {report.fixed_route} for every question."
    if report.training in ("", PAPER_TRAINING):
        return ""
    return f"HierRouter here: {report.training}, not {PAPER_TRAINING}."


def _full_facts(report: ReportData, row: Row) -> str:
    """`answers right in 61.0% of the questions at a cost of 0.0012 USD per question`."""
    cost = f"at a cost of {money(row.cost)} {report.cost_unit.removeprefix('money ')}"
    if report.scorer in BINARY_SCORERS:
        return f"answers right in {row.quality:.1%} of the questions {cost}"
    return f"has Q {row.quality:.3f} {cost}"


def _short_facts(report: ReportData, row: Row, preposition: str = "") -> str:
    """`in 61.0% at 0.0012`, or `0.610 at 0.0012`: the preposition belongs to shares only."""
    if report.scorer in BINARY_SCORERS:
        return f"{preposition}{row.quality:.1%} at {money(row.cost)}"
    return f"{row.quality:.3f} at {money(row.cost)}"


def _name(row: Row) -> str:
    kind = "single model" if row.kind == "single" else "fixed route"
    return f"the best {kind}, {row.policy},"


def bounds_over_all(report: ReportData) -> dict[str, Row]:
    """Return the rungs of the ladder over all queries, by name; empty if they are not computed."""
    return {row.rung: row for row in report.ladder if row.dataset == ALL_DATASETS}


class Headline(NamedTuple):
    """One figure at the top of a report.

    Attributes:
        label: what the figure is.
        value: the figure as text.
        detail: its interval, or what it is compared with.
    """

    label: str
    value: str
    detail: str


def headlines(report: ReportData) -> list[Headline]:
    """Return the report's figures to begin with, at most three."""
    router = report.router
    if router is None:
        labels = {"single": "best single model", "route": "best fixed route", "oracle": "oracle"}
        return [
            Headline(f"R of the {label}", f"{row.reward:.3f}", row.policy)
            for kind, label in labels.items()
            if (row := report.best(kind))
        ]
    figures = []
    fixed = fixed_choice(report)
    if fixed and fixed.difference is not None:
        ends = f"[{fixed.difference_low:+.3f}, {fixed.difference_high:+.3f}]"
        figures.append(
            Headline(
                "R over the best fixed choice",
                f"{fixed.difference:+.3f}",
                f"{ends} over {fixed.policy}",
            )
        )
    gap = gap_headline(report)
    if gap:
        figures.append(gap)
    comparison = f"{money(PRICED_QUESTIONS * fixed.cost)} for {fixed.policy}" if fixed else ""
    figures.append(
        Headline(
            f"cost of {PRICED_QUESTIONS:,} questions",
            money(PRICED_QUESTIONS * router.cost),
            comparison,
        )
    )
    return figures


def gap_headline(report: ReportData) -> Headline | None:
    """Return the share of the gap closed over all queries; None if there is none."""
    share = report.gap_closed.get(ALL_DATASETS)
    if share is None:
        return None
    interval = report.gap_closed_intervals.get(ALL_DATASETS)
    ends = "without bounds"
    if interval:
        low, high = interval
        ends = f"[{_share_text(low)}, {_share_text(high)}]"
    return Headline(
        "gap to the oracle closed",
        _share_text(share),
        f"{ends} of {report.gap(ALL_DATASETS):.3f} in R",
    )


def _share_text(share: float) -> str:
    """A share in percent; a share just below 1 is not rounded to 100%."""
    return "> 99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"


def in_time_sentence(report: ReportData) -> str:
    """Name the best fixed choice within the limit of seconds; empty without a limit."""
    if report.p95_below is None:
        return ""
    best = report.best_in_time
    predicate = f"is {best.policy}, with R {best.reward:.4f}" if best else "does not exist"
    return (
        f"The best fixed route or direct call with p95 within {report.p95_below:g} s {predicate}."
    )


def hops_sentence(report: ReportData) -> str:
    """Say what further calls are worth in hindsight; empty if bounds are not computed."""
    bounds = bounds_over_all(report)
    one_hop = bounds.get(ONE_HOP_ORACLE)
    any_hops = bounds.get(TREE_ORACLE)
    if one_hop is None or any_hops is None:
        return ""
    return (
        f"In hindsight the best route of each query earns R {any_hops.reward:.3f}, the best direct "
        f"call {one_hop.reward:.3f}: further hops are worth "
        f"{any_hops.reward - one_hop.reward:+.3f} then."
    )


def deciding_sentence(report: ReportData) -> str:
    """Say between which alphas cost decides anything; empty if it never does."""
    if report.deciding_alphas is None:
        return ""
    low, high = report.deciding_alphas
    return (
        f"Cost decides which route is best, of one query or of many taken together, at alphas from "
        f"{low:.3g} to {high:.3g}: below, quality alone does, above, the cheapest is the best of "
        "every one."
    )


def savings_sentence(report: ReportData, saving: Saving) -> str:
    """Say what the router saves against one model, if it is as good."""
    level = report.bootstrap.interval_title
    quality = f"Q {saving.quality:+.3f} [{saving.quality_low:+.3f}, {saving.quality_high:+.3f}]"
    model = f"{saving.policy}, the {saving.which} single model"
    if saving.quality < 0:
        return f"Against {model}, nothing is saved at equal quality: {quality}."
    if saving.share < 0:
        ends = f"[{-saving.high:.1%}, {-saving.low:.1%}]"
        loss = f"HierRouter costs {-saving.share:.1%} more than {model} ({level} {ends})"
        return f"{loss}, with {quality}."
    ends = f"[{saving.low:.1%}, {saving.high:.1%}]"
    gain = f"HierRouter saves {saving.share:.1%} of the cost of {model} ({level} {ends})"
    return f"{gain}, with {quality}."


MAX_LISTED_POLICIES = 5  # policies that a sentence names


def claims_sentence(report: ReportData) -> str:
    """Count the policies that the router beats, one by one and all at once; empty without any."""
    if not report.comparisons:
        return ""
    total = len(report.comparisons)
    singly = sum((row.difference_low or 0) > 0 for row in report.overall if row.kind != "oracle")
    unbeaten = [row.policy for row in report.comparisons if row.difference_low <= 0]
    claim = (
        f"HierRouter beats {singly} of {total} policies one at a time and {total - len(unbeaten)} "
        f"when all {total} comparisons are to hold at once ({report.bootstrap.level:.0%}, max-t)"
    )
    # With nothing or everything beaten, the numbers say it all.
    if not 0 < len(unbeaten) < total:
        return f"{claim}."
    names = ", ".join(unbeaten[:MAX_LISTED_POLICIES])
    unlisted = len(unbeaten) - MAX_LISTED_POLICIES
    rest = f" and {unlisted} more" if unlisted > 0 else ""
    return f"{claim}: all but {names}{rest}."


# Notes below a report.

FEW_QUERIES_ROLE = "every figure rests on them"  # of a small fold, see `few_queries_note`


def selection_notes(
    command: str,
    selected: SelectedRun,
    split: str | None = None,
    *,
    with_alpha: bool = False,
    with_sweep: bool = False,
) -> list[str]:
    """Return lines on which router is evaluated, and what is remarkable about it.

    Args:
        command: name of the command, with which the lines begin.
        selected: the router.
        split: the fold it is evaluated on; None leaves it out.
        with_alpha: name the price of cost.
        with_sweep: name the sweep, too.
    """
    router = f"checkpoint {selected.run or 'none'}"
    if selected.run and selected.why:
        router += f" ({selected.why})"
    if with_sweep:
        router += f", sweep {selected.sweep_run or 'none'}"
        for other in selected.beside:
            if not other.is_other_seed:
                router += f", beside it {other.name} of {other.run}"
    alpha = f" at alpha {selected.alpha:g}" if with_alpha else ""
    summary = f"{split} fold{alpha}; {router}" if split else f"{router}{alpha}"
    return [f"{command}: {line}" for line in (*selected.remarks, summary)]


def warn_of_test_fold(command: str, split: str) -> list[str]:
    """Return a warning that the test fold is for a last look; nothing on other folds."""
    if split != TEST_FOLD:
        return []
    return [f"{command}: the test fold; what is changed after a look at it is tuned on it"]


def describe_policies(policies: Iterable[OwnPolicy]) -> dict[str, Any]:
    """Return the user's policies as part of a look; an edit of their module makes another look."""
    versions = {policy.path: policy.version for policy in policies}
    return {"policies": versions} if versions else {}


def log_looks(
    command: str, tree: RouteTree, split: str, runs: Iterable[Path | None], look: Mapping[str, Any]
) -> list[str]:
    """Log a look at the test fold; return lines that begin with the command's name.

    See `record_looks` for the arguments.
    """
    return [f"{command}: {note}" for note in record_looks(command, tree, split, runs, look)]
