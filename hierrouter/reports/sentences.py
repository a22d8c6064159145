"""A report in words: its message, its headline figures, and the sentences below its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hierrouter.declarations.flags import TEST_FOLD
from hierrouter.evaluation.bounds import (
    ANYTIME_ORACLE,
    ONE_HOP_ORACLE,
    REWARD_ROUNDING,
    SPLIT_ORACLE,
    TREE_ORACLE,
)
from hierrouter.evaluation.intervals import JUDGEMENTS, Judge, Judgement
from hierrouter.evaluation.outcome import ROUTER
from hierrouter.evaluation.policies import OwnPolicy
from hierrouter.learning.config import PAPER_TRAINING
from hierrouter.questions.scoring import ACCURACY_SCORERS
from hierrouter.reports.estimates import ALL_DATASETS, Row, display_name
from hierrouter.reports.results import ReportData, Saving, SplitGap
from hierrouter.runs.look_log import record_looks
from hierrouter.runs.selection import SelectedRun
from hierrouter.tables import money, one_line
from hierrouter_cache.tree import RouteTree

Verdict = Literal["few", "untrained", "unembedded", "constant", "fixed"] | Judgement
# The kinds of policies that never read a query, and what the best one of each is called.
FIXED_TITLES = {"single": "single model", "route": "fixed route", "reference": "reference model"}
# Scorers that say right or wrong, so that their mean is a share of the questions.
BINARY_SCORERS = ("accuracy", *(scorer.name for scorer in ACCURACY_SCORERS))
PRICED_QUESTIONS = 1_000  # questions whose cost is stated: the cost of one is hard to picture


def fixed_choice(report: ReportData) -> Row | None:
    """Return the best policy that never reads a query: a direct call or a fixed route.

    Direct calls of models beyond the pool count as well. The best has the highest R over all
    queries; on a tie it is the cheaper one, and a model of the pool before a route. It is chosen on
    the very queries that it is evaluated on, which flatters it.
    """
    candidates = [report.best(kind) for kind in FIXED_TITLES]
    rows = [row for row in candidates if row]
    return max(rows, key=lambda row: (row.reward, -row.cost), default=None)


def judge_of(report: ReportData) -> Judge:
    """Return the judge of the differences of a report."""
    oracle = report.best("oracle")
    fixed = fixed_choice(report)
    gap = oracle.reward - fixed.reward if oracle and fixed else 0.0
    return Judge(report.queries, max(gap, 0.0), report.bootstrap.level)


def judge_router(report: ReportData) -> tuple[Judgement, Row] | None:
    """Judge the router against every fixed choice.

    Returns:
        The least favourable judgement, and the fixed choice with the highest R that it is about;
        None without a router or a fixed choice.
    """
    if report.router is None:
        return None
    judge = judge_of(report)
    judged: list[tuple[Judgement, Row]] = [
        (judge.judge(row.difference, row.difference_low, row.difference_high), row)
        for kind in FIXED_TITLES
        for row in report.overall
        if row.kind == kind
    ]
    if not judged:
        return None
    return max(judged, key=lambda pair: (JUDGEMENTS.index(pair[0]), pair[1].reward, -pair[1].cost))


def verdict(report: ReportData) -> Verdict:
    """Judge the router by the intervals of the differences in R to every fixed choice."""
    if report.router is None:
        if report.too_few:
            return "few"
        return "unembedded" if report.unembedded else "untrained"
    if report.constant:
        return "constant"
    if report.fixed_route:
        return "fixed"
    judged = judge_router(report)
    return judged[0] if judged else "open"


def message(report: ReportData) -> str:
    """Summarise the report: how good the router is, and how good one could be.

    It is one sentence. A second one says so if luck cannot be told from skill.
    """
    router = report.router
    best = _best_but_oracles(report)
    oracle = bounds_over_all(report).get(ANYTIME_ORACLE) or report.best("oracle")
    parts = _message_without_router(report) if router is None else _message_on(report, router)
    if oracle and best:
        bound = _short_facts(report, oracle)
        if oracle.reward < best.reward - REWARD_ROUNDING:
            # A direct call is no route of the tree, so it may earn more than the best routes.
            parts.append(f"no route of the tree could do better than {bound}")
        elif verdict(report) == "constant" and best is router:
            parts.append(f"knowing all answers, {bound} is possible")
        else:
            parts.append(f"no router could do better than {bound}")
        split = bounds_over_all(report).get(SPLIT_ORACLE)
        if split:
            parts.append(f"without luck, {_short_facts(report, split)} is possible")
    return one_line(" ".join(filter(None, [one_line("; ".join(parts)) + ".", report.luck_unknown])))


def _best_but_oracles(report: ReportData) -> Row | None:
    """Return the policy with the highest R that does not know the answers; on a tie the router."""
    rows = [row for row in report.overall if row.kind != "oracle"]
    router = report.router
    best = max(rows, key=lambda row: row.reward, default=None)
    if router and best and best.reward - router.reward <= REWARD_ROUNDING:
        return router
    return best


def _message_without_router(report: ReportData) -> list[str]:
    fixed = fixed_choice(report)
    if fixed is None:
        return []
    reason = "No router is trained here"
    if report.too_few:
        reason = report.too_few
    elif report.unembedded:
        reason = "No router can be shown here, because its encoder could not be loaded"
    elif report.unfit:
        reason = "No router that was trained fits what is opened here"
    return [f"{reason}: {_name(fixed)} {_full_facts(report, fixed)}"]


def _message_on(report: ReportData, router: Row) -> list[str]:
    """The parts of the message that are on the router and its strongest fixed choice."""
    fixed = fixed_choice(report)
    best = _best_but_oracles(report)
    judged = judge_router(report)
    facts = _full_facts(report, router)
    if report.constant:
        if best is None or best is router:
            return [f"No router is better than always calling {report.constant} here: that {facts}"]
        subject = f"HierRouter always calls {report.constant} here"
        reason = "because no router showed a gain over that in training"
        return [f"{subject}, {reason}: it {facts}", _ahead(report, best)]
    if report.fixed_route:
        parts = [f"HierRouter takes {report.fixed_route} for every question here: it {facts}"]
        if fixed and fixed.reward > router.reward + REWARD_ROUNDING:
            parts.append(f"{_name(fixed)} {_short_facts(report, fixed, 'in ')}")
        return parts
    if judged is None:
        return [f"HierRouter is not shown to be better than any fixed choice here: it {facts}"]
    judgement, other = judged
    other_facts = _short_facts(report, other, "in ")
    if judgement == "better":
        return [f"HierRouter {facts}", f"{_name(other)} {other_facts}"]
    relation = "is not shown to be better" if judgement == "open" else f"is {judgement}"
    alternative = f"always calling {other.policy} here"
    if judgement in ("barely better", "barely worse"):
        alternative += f", R {other.difference:+.2g}"
    return [
        f"HierRouter {relation} than {alternative}: it {facts}",
        f"{other.policy} {other_facts}",
    ]


def _ahead(report: ReportData, row: Row) -> str:
    """Say how a policy with a higher R than the router's compares with it."""
    judgement = judge_of(report).judge(row.difference, row.difference_low, row.difference_high)
    relations: dict[Judgement, str] = {"worse": "is better", "barely worse": "is barely better"}
    relation = relations.get(judgement, "is ahead, not shown to be better")
    name = _name(row) if row.kind in FIXED_TITLES else f"{display_name(row.policy)},"
    return f"{name} {relation}, {_short_facts(report, row, 'with ')}"


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
    return f"the best {FIXED_TITLES[row.kind]}, {row.policy},"


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
    """Return the report's figures to begin with, at most four."""
    router = report.router
    fixed = fixed_choice(report)
    if router is None:
        labels = {kind: f"best {title}" for kind, title in FIXED_TITLES.items()}
        if fixed and fixed.kind != "reference":
            del labels["reference"]
        return [
            Headline(f"R of the {label}", f"{row.reward:.3f}", row.policy)
            for kind, label in {**labels, "oracle": "oracle"}.items()
            if (row := report.best(kind))
        ]
    figures = []
    if fixed and fixed.difference is not None:
        ends = "without an interval"
        if fixed.difference_low is not None:
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
    if report.split_gap:
        figures.append(split_gap_headline(report.split_gap))
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
    """Return the share of the gap closed over all queries; None without a router or an oracle."""
    if ALL_DATASETS not in report.gap_closed:
        return None
    share = report.gap_closed[ALL_DATASETS]
    gap = report.gap(ALL_DATASETS)
    if share is None:
        return Headline("gap to the oracle closed", "-", f"of {gap:.2g} in R: too small")
    interval = report.gap_closed_intervals.get(ALL_DATASETS)
    ends = "without bounds"
    if interval:
        low, high = interval
        ends = f"[{_share_text(low)}, {_share_text(high)}]"
    return Headline("gap to the oracle closed", _share_text(share), f"{ends} of {gap:.3f} in R")


def split_gap_headline(split_gap: SplitGap) -> Headline:
    """Return the share of the gap closed to the split oracle, a bound without luck."""
    label = "gap to the split oracle closed"
    if split_gap.share is None:
        return Headline(label, "-", f"of {split_gap.gap:.2g} in R, without luck: too small")
    ends = "without bounds"
    if split_gap.ends:
        low, high = split_gap.ends
        ends = f"[{_share_text(low)}, {_share_text(high)}]"
    return Headline(
        label, _share_text(split_gap.share), f"{ends} of {split_gap.gap:.3f} in R, without luck"
    )


def _share_text(share: float) -> str:
    """A share in percent; one just below 1 is not rounded to 100%, a great loss not spelled out."""
    if share < -1:
        return "< -100%"
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
    judge = judge_of(report)

    def is_beaten(row: Row) -> bool:
        judgement = judge.judge(row.difference, row.difference_low, row.difference_high)
        return judgement == "better"

    others = [row for row in report.overall if row.kind not in ("oracle", "router")]
    singly = sum(map(is_beaten, others))
    unbeaten = [row.policy for row in report.comparisons if not is_beaten(row)]
    claim = (
        f"HierRouter beats {singly} of {total} policies one at a time and {total - len(unbeaten)} "
        f"when all {total} comparisons are to hold at once ({report.bootstrap.level:.0%}, min-p)"
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
