"""A report in words: its message, its headline figures, and the sentences below its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hierrouter.declarations.flags import TEST_FOLD
from hierrouter.evaluation.bounds import ONE_HOP_ORACLE, REWARD_ROUNDING, SPLIT_ORACLE, TREE_ORACLE
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
SMALL_DIFFERENCE = 0.0005  # in R: below it, three digits after the point show next to nothing
SAME_CHOICES = "same choices"  # in place of an interval of a difference that is always 0
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
    """Summarise the report in a few sentences: its verdict, what is ahead, what is possible.

    Policies are compared by R, and each is named with its Q, C and R. A sentence names one oracle
    at most, the one that may do what the router may, and bounds R only: the oracle has the highest
    R, and other policies can have a higher Q.
    """
    sentences = (
        _verdict_sentence(report),
        _ahead_sentence(report),
        _bound_sentence(report),
        _luck_sentence(report),
        report.luck_unknown,
    )
    return one_line(" ".join(filter(None, sentences)))


def _verdict_sentence(report: ReportData) -> str:
    """Compare the router with the fixed choices; without one, name the best of these."""
    router = report.router
    if router is None:
        return _sentence_without_router(report)
    facts = f"it {_full_facts(report, router)}"
    route = report.constant or report.fixed_route
    if route:
        reason = ""
        if report.constant:
            reason = ", because no router showed a gain over it in training"
        return f"HierRouter takes {route} for every question{reason}: {facts}."
    judged = judge_router(report)
    if judged is None:
        return f"There is no fixed choice to compare HierRouter with: {facts}."
    judgement, other = judged
    other_facts = _short_facts(report, other)
    if judgement == "better":
        return (
            f"HierRouter is better than every fixed choice of one model or route: {facts}; the "
            f"best of these, {_always(other)}, {other_facts}."
        )
    relation = "is not shown to be better" if judgement == "open" else f"is {judgement}"
    difference = ""
    if judgement in ("barely better", "barely worse"):
        difference = f", by {_signed(other.difference)} in R"
    return (
        f"HierRouter {relation} than {_always(other)}{difference}: {facts}; {other.policy} "
        f"{other_facts}."
    )


def _sentence_without_router(report: ReportData) -> str:
    fixed = fixed_choice(report)
    if fixed is None:
        return ""
    reason = "No router is trained here"
    if report.too_few:
        reason = report.too_few
    elif report.unembedded:
        reason = "No router can be shown here, because its encoder could not be loaded"
    elif report.unfit:
        reason = "No router that was trained fits what is opened here"
    return f"{reason}: {_name(fixed)}, {_full_facts(report, fixed)}."


def _ahead_sentence(report: ReportData) -> str:
    """Name the policy with the highest R, if the verdict names none that is as good.

    It is judged by the interval that holds for all policies at once, because it was chosen among
    them for its R.
    """
    rows = [row for row in report.overall if row.kind != "oracle"]
    best = max(rows, key=lambda row: (row.reward, -row.cost), default=None)
    router = report.router
    named = [router] if router else [fixed_choice(report)]
    judged = judge_router(report)
    if judged and not (report.constant or report.fixed_route):
        named.append(judged[1])
    rewards = [row.reward for row in named if row]
    if best is None or not rewards or best.reward <= max(rewards) + REWARD_ROUNDING:
        return ""
    subject = f"The policy {display_name(best.policy)}"
    if best.kind in FIXED_TITLES:
        subject = _name(best)[:1].upper() + _name(best)[1:] + ","
    facts = _short_facts(report, best)
    if router is None:
        return f"{subject} has a higher R: it {facts}."
    at_once = next(
        (row for row in report.comparisons if (row.policy, row.kind) == (best.policy, best.kind)),
        None,
    )
    low = at_once.difference_low if at_once else None
    high = at_once.difference_high if at_once else None
    relations: dict[Judgement, str] = {"worse": "is better", "barely worse": "is barely better"}
    judgement = judge_of(report).judge(best.difference, low, high)
    relation = relations.get(judgement, "is ahead, and not shown to be better")
    ends = "" if low is None or high is None else f" [{_signed(-high)}, {_signed(-low)}]"
    return f"{subject} {relation}: it {facts}, {_signed(-best.difference)}{ends} over HierRouter."


def _bound_sentence(report: ReportData) -> str:
    """State the highest R of a router with these actions: that of the oracle with the same ones."""
    oracle = report.best("oracle")
    if oracle is None:
        return ""
    clairvoyant = ""
    if SPLIT_ORACLE in bounds_over_all(report):
        clairvoyant = ", which knows what each call draws"
    return (
        f"No router that {report.ability} can have more than R {_reward_text(oracle.reward)} here, "
        f"that of the oracle{clairvoyant}."
    )


def _luck_sentence(report: ReportData) -> str:
    """State the R of the split oracle, which knows no draw; empty if no call has several draws.

    It is an estimate, from halves of the draws. If it exceeds the oracle's R, by chance, it says
    nothing that the bound does not.
    """
    split = bounds_over_all(report).get(SPLIT_ORACLE)
    oracle = report.best("oracle")
    if split is None or (oracle and split.reward > oracle.reward + REWARD_ROUNDING):
        return ""
    return f"Without luck R {_reward_text(split.reward)} is possible, that of the split oracle."


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
    """`has Q 0.610 at a cost C of 0.0012 USD per question, net reward R = Q - 5 C = 0.604`."""
    cost = f"a cost C of {money(row.cost)} {report.cost_unit.removeprefix('money ')}"
    reward = f"net reward R = Q - {report.alpha:g} C = {_reward_text(row.reward)}"
    if report.scorer in BINARY_SCORERS:
        return f"answers right in {row.quality:.1%} of the questions (Q) at {cost}, {reward}"
    return f"has Q {row.quality:.3f} at {cost}, {reward}"


def _short_facts(report: ReportData, row: Row) -> str:
    """`has Q 0.610 at 0.0012, R 0.604`."""
    figures = f"at {money(row.cost)}, R {_reward_text(row.reward)}"
    if report.scorer in BINARY_SCORERS:
        return f"answers right in {row.quality:.1%} {figures}"
    return f"has Q {row.quality:.3f} {figures}"


def _reward_text(reward: float) -> str:
    """R with three digits, without a negative zero."""
    return f"{round(reward, 3) + 0.0:,.3f}"


def _signed(difference: float) -> str:
    """A difference in R with its sign; a small one with two significant digits."""
    digits = ".2g" if 0 < abs(difference) < SMALL_DIFFERENCE else ".3f"
    return f"{difference + 0.0:+{digits}}"


def _name(row: Row) -> str:
    return f"the best {FIXED_TITLES[row.kind]}, {row.policy}"


def _always(row: Row) -> str:
    """`always calling text`, or of a route `always taking calc>text`."""
    return f"always {'taking' if row.kind == 'route' else 'calling'} {row.policy}"


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
        detail = f"without an interval over {fixed.policy}"
        if report.is_router(fixed):
            detail = f"{SAME_CHOICES} as {fixed.policy} on all questions"
        elif fixed.difference_low is not None:
            ends = f"[{fixed.difference_low:+.3f}, {fixed.difference_high:+.3f}]"
            detail = f"{ends} over {fixed.policy}"
        figures.append(Headline("R over the best fixed choice", f"{fixed.difference:+.3f}", detail))
    gap = gap_headline(report)
    if gap:
        figures.append(gap)
    if report.split_gap:
        figures.append(split_gap_headline(report, report.split_gap))
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
    ends = report.gap_closed_intervals.get(ALL_DATASETS)
    gap = report.gap(ALL_DATASETS) or 0.0
    detail = _gap_detail(report, gap, share, ends)
    return Headline("gap to the oracle closed", _share_text(share), detail)


def split_gap_headline(report: ReportData, split_gap: SplitGap) -> Headline:
    """Return the share of the gap closed to the split oracle, a bound without luck."""
    detail = _gap_detail(report, split_gap.gap, split_gap.share, split_gap.ends, ", without luck")
    return Headline("gap to the split oracle closed", _share_text(split_gap.share), detail)


def _gap_detail(
    report: ReportData,
    gap: float,
    share: float | None,
    ends: tuple[float, float] | None,
    remark: str = "",
) -> str:
    """Give the interval of a share, the gap in R, and the fixed route that it begins at."""
    route = report.best("route")
    start = f" above {route.policy}{remark}" if route else remark
    if share is None:
        rounded = gap if abs(gap) > REWARD_ROUNDING else 0.0
        return f"of {rounded:.2g} in R{start}: too small"
    interval = "without bounds"
    if ends:
        interval = f"[{_share_text(ends[0])}, {_share_text(ends[1])}]"
    return f"{interval} of {gap:.3f} in R{start}"


def _share_text(share: float | None) -> str:
    """A share in percent; one just below 1 is not rounded to 100%, a great loss not spelled out."""
    if share is None:
        return "-"
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
    """Say what the oracles of one call and of complete routes have; empty if they are unknown.

    Their difference is not called the worth of further hops, because prompts differ, too.
    """
    bounds = bounds_over_all(report)
    one_hop = bounds.get(ONE_HOP_ORACLE)
    complete = bounds.get(TREE_ORACLE)
    if one_hop is None or complete is None:
        return ""
    return (
        f"In hindsight the best direct call of each query has R {_reward_text(one_hop.reward)}. "
        f"In hindsight the best complete route of each query has R "
        f"{_reward_text(complete.reward)}."
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
    titles = {"best": "the model with the highest Q", "dearest": "the dearest model"}
    model = f"{saving.policy}, {titles[saving.which]}"
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
