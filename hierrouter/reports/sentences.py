"""A report in words: its message, three figures, and the sentences below its tables."""

from typing import Literal

from hierrouter.evaluation.bounds import ANYTIME_ORACLE, ONE_HOP_ORACLE, TREE_ORACLE
from hierrouter.questions.scoring import ACCURACY_SCORERS
from hierrouter.reports.results import Report, Saving
from hierrouter.reports.values import ALL, Row
from hierrouter.tables import money, one_line

Verdict = Literal["untrained", "constant", "better", "worse", "open"]
# Scorers whose mean is a share.
RIGHT_OR_WRONG = ("accuracy", *(scorer.name for scorer in ACCURACY_SCORERS))
QUESTIONS = 1_000  # whose cost is what a person can picture


def fixed_choice(report: Report) -> Row | None:
    """The best of what asks nobody: a single model or a fixed route, by R over all queries.

    It is chosen on the queries shown, which flatters it; a model goes before a route as good.
    """
    rows = [row for kind in ("single", "route") if (row := report.best(kind))]
    return max(rows, key=lambda row: (row.reward, -row.cost), default=None)


def verdict(report: Report) -> Verdict:
    """Whether the router beats the best fixed choice, by the interval of the difference in R."""
    fixed = fixed_choice(report)
    if report.router is None:
        return "untrained"
    if report.constant:
        return "constant"
    low, high = (fixed.difference_low, fixed.difference_high) if fixed else (None, None)
    if low is not None and low > 0:
        return "better"
    return "worse" if high is not None and high < 0 else "open"


def message(report: Report) -> str:
    """What the report says, in one sentence: is the router any good, and how good could one be?"""
    found, router, fixed = verdict(report), report.router, fixed_choice(report)
    oracle = rungs(report).get(ANYTIME_ORACLE) or report.best("oracle")
    parts = [f"No router is trained here: {_named(fixed)} {_full(report, fixed)}"] if fixed else []
    if router and found == "constant":
        always = f"No router is better than always calling {report.constant} here"
        parts = [f"{always}: that {_full(report, router)}"]
    elif router and found == "better":
        parts = [f"HierRouter {_full(report, router)}"]
        parts += [f"{_named(fixed)} {_short(report, fixed, 'in ')}"] if fixed else []
    elif router:
        worse = "is worse" if found == "worse" else "is not shown to be better"
        always = f"always calling {fixed.policy}" if fixed else "any fixed choice"
        parts = [f"HierRouter {worse} than {always} here: it {_full(report, router)}"]
        parts += [f"{fixed.policy} {_short(report, fixed, 'in ')}"] if fixed else []
    if oracle and found == "constant":
        parts.append(f"knowing all answers, {_short(report, oracle)} is possible")
    elif oracle:
        parts.append(f"no router could do better than {_short(report, oracle)}")
    return one_line("; ".join(parts)) + "."


def _full(report: Report, row: Row) -> str:
    paid = f"at a cost of {money(row.cost)} {report.cost_unit.removeprefix('money ')}"
    if report.scorer in RIGHT_OR_WRONG:
        return f"answers right in {row.quality:.1%} of the questions {paid}"
    return f"has Q {row.quality:.3f} {paid}"


def _short(report: Report, row: Row, word: str = "") -> str:
    """`word` stands before a share."""
    share = report.scorer in RIGHT_OR_WRONG
    return f"{f'{word}{row.quality:.1%}' if share else f'{row.quality:.3f}'} at {money(row.cost)}"


def _named(row: Row) -> str:
    what = "single model" if row.kind == "single" else "fixed route"
    return f"the best {what}, {row.policy},"


def rungs(report: Report) -> dict[str, Row]:
    """The bounds over all queries, by name; none where they are not known."""
    return {row.rung: row for row in report.ladder if row.dataset == ALL}


def headlines(report: Report) -> list[tuple[str, str, str]]:
    """At most three figures: what it is, the number, and how sure or compared with what."""
    router, fixed = report.router, fixed_choice(report)
    if router is None:
        kinds = {"single": "best single model", "route": "best fixed route", "oracle": "oracle"}
        bounds = [(f"R of the {label}", report.best(kind)) for kind, label in kinds.items()]
        return [(label, f"{row.reward:.3f}", row.policy) for label, row in bounds if row]
    found = [gap] if (gap := gap_headline(report)) else []
    if fixed and fixed.difference is not None:
        ends = f"[{fixed.difference_low:+.3f}, {fixed.difference_high:+.3f}]"
        lead = f"{fixed.difference:+.3f}", f"{ends} over {fixed.policy}"
        found.insert(0, ("R over the best fixed choice", *lead))
    beside = f"{money(QUESTIONS * fixed.cost)} for {fixed.policy}" if fixed else ""
    return [*found, (f"cost of {QUESTIONS:,} questions", money(QUESTIONS * router.cost), beside)]


def gap_headline(report: Report) -> tuple[str, str, str] | None:
    """The share of the gap over all queries, with its interval; None where there is none."""
    share, sure = report.gap_closed.get(ALL), report.gap_closed_intervals.get(ALL)
    if share is None:
        return None
    ends = f"[{_share(sure[0])}, {_share(sure[1])}]" if sure else "without bounds"
    return "gap to the oracle closed", _share(share), f"{ends} of {report.gap(ALL):.3f} in R"


def _share(share: float) -> str:
    """In percent; what is not quite all of it is not called so."""
    return "> 99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"


def in_time_sentence(report: Report) -> str:
    """The best fixed choice that keeps to the limit of seconds; empty where there is none."""
    if report.p95_below is None:
        return ""
    best = report.best_in_time
    which = f"is {best.policy}, with R {best.reward:.4f}" if best else "does not exist"
    return f"The best fixed route or direct call with p95 within {report.p95_below:g} s {which}."


def hops_sentence(report: Report) -> str:
    """What more than one call is worth in hindsight; empty where nobody worked it out."""
    one, more = (rungs(report).get(name) for name in (ONE_HOP_ORACLE, TREE_ORACLE))
    if one is None or more is None:
        return ""
    return (
        f"In hindsight the best route of each query earns R {more.reward:.3f}, the best direct "
        f"call {one.reward:.3f}: further hops are worth {more.reward - one.reward:+.3f} then."
    )


def deciding_sentence(report: Report) -> str:
    """Between which alphas cost decides anything; empty where nobody worked it out."""
    if report.deciding_alphas is None:
        return ""
    low, high = (f"{alpha:.3g}" for alpha in report.deciding_alphas)
    return (
        f"Cost decides which route is best, of one query or of many taken together, at alphas from "
        f"{low} to {high}: below, quality alone does, above, the cheapest is the best of every one."
    )


def savings_sentence(report: Report, saving: Saving) -> str:
    """What the router saves against one model, where it is as good."""
    level = report.bootstrap.interval_title
    quality = f"Q {saving.quality:+.3f} [{saving.quality_low:+.3f}, {saving.quality_high:+.3f}]"
    against = f"{saving.policy}, the {saving.which} single model"
    if saving.quality < 0:
        return f"Against {against}, nothing is saved at equal quality: {quality}."
    if saving.share < 0:
        ends = f"[{-saving.high:.1%}, {-saving.low:.1%}]"
        more = f"HierRouter costs {-saving.share:.1%} more than {against} ({level} {ends})"
        return f"{more}, with {quality}."
    ends = f"[{saving.low:.1%}, {saving.high:.1%}]"
    less = f"HierRouter saves {saving.share:.1%} of the cost of {against} ({level} {ends})"
    return f"{less}, with {quality}."


NAMED = 5  # policies named in a sentence at most


def claims_sentence(report: Report) -> str:
    """Who is beaten when all comparisons are to hold at once; empty where there are none."""
    if not report.comparisons:
        return ""
    alone = sum((row.difference_low or 0) > 0 for row in report.overall if row.kind != "oracle")
    total = len(report.comparisons)
    left = [one.policy for one in report.comparisons if one.difference_low <= 0]
    said = (
        f"HierRouter beats {alone} of {total} policies one at a time and {total - len(left)} when "
        f"all {total} comparisons are to hold at once ({report.bootstrap.level:.0%}, max-t)"
    )
    more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
    but = f": all but {', '.join(left[:NAMED])}{more}" if 0 < len(left) < total else ""
    return f"{said}{but}."
