"""The analyses of a report as tables."""

from __future__ import annotations

from collections.abc import Sequence

from hierrouter.evaluation.outcome import ROUTER
from hierrouter.reports.results import CostRange, Report
from hierrouter.reports.values import Row
from hierrouter.tables import Column, Line, Table, digits_for

RUNGS, LEARNED = "Bounds", "HierRouter"
NOT_A_STAIR = (
    "Each bound knows more than the one before, or may do more. Still R need not rise: what was "
    "chosen on the train fold can do worse here, and direct calls are no routes of the tree."
)


def ladder_table(report: Report) -> Table:
    """Q, C and R of each rung over all queries, and of the router."""
    rungs, router = [rows[-1] for rows in _by_rung(report)], report.router
    rows = [*rungs, *([router] if router else [])]
    columns = (
        Column("Bound"),
        Column("Chosen on train"),
        Column("Q"),
        Column("C", digits_for(row.cost for row in rows)),
        Column("R", 4),
        Column(report.bootstrap.interval_title, 4),
    )

    figures, lines = "quality cost reward [reward]", []
    for row in rungs:
        chosen = row.policy if row.policy != row.rung else None
        lines.append(Line(RUNGS, (row.rung, chosen, *row.cells(figures))))
    if router:
        lines.append(Line(LEARNED, (router.policy, None, *router.cells(figures))))
    return Table(
        title=f"Bound ladder, R = Q - {report.alpha:g} C, C in {report.cost_unit}",
        columns=columns,
        rows=tuple(lines),
        note=f"{NOT_A_STAIR} {_measurable_sentence(report.measurable)}",
    )


def ladder_by_dataset_table(report: Report) -> Table:
    """Mean R of each rung by dataset."""
    shown = report.shown_datasets
    named = [(RUNGS, rows[0].rung, rows) for rows in _by_rung(report)]
    learned = [rows for rows in report.by_policy if rows[0].kind == "router"]
    named += [(LEARNED, rows[0].policy, rows) for rows in learned]
    lines = tuple(
        Line(group, (name, *(row.reward for row in rows[: len(shown)])))
        for group, name, rows in named
    )
    columns = (Column("Bound"), *(Column(dataset, 4) for dataset in shown))
    note = "The best single call and the best fixed route are the same ones for every dataset."
    return Table("Bound ladder by dataset, R", columns, lines, note)


def _by_rung(report: Report) -> list[Sequence[Row]]:
    """The rows of each rung, one for each dataset of the report."""
    width = len(report.datasets)
    return [report.ladder[at : at + width] for at in range(0, len(report.ladder), width)]


def _measurable_sentence(found: Row) -> str:
    said = (
        f"With hindsight R is at most {found.reward:.4f} [{found.reward_low:.4f}, "
        f"{found.reward_high:.4f}] for who sees no more than the state view {found.policy} shows"
    )
    if found.looks == found.n:
        return f"{said}: every query looks different to it, so that bounds nothing."
    return f"{said}: {found.looks:,.0f} of {found.n:,} queries look different to it at the start."


PAIRS_SHOWN = 12
NEVER = "never"
LEFT_OUT = (
    "What each model adds is left out: the sub-pools of this pool hold too many routes. Open fewer "
    "models or hops."
)


def analysis_tables(report: Report) -> dict[str, Table]:
    """The tables of the analysis by name, but the ladder over all queries; none without one."""
    if not report.ladder:
        return {}
    tables = {}
    if len(report.shown_datasets) > 1:
        tables["ladder by dataset"] = ladder_by_dataset_table(report)
    if report.regret:
        tables["regret"] = regret_table(report)
    tables["calls"] = calls_table(report)
    if report.cost_range:
        tables["frontier"] = frontier_table(report, report.cost_range)
    if report.repair:
        tables["repair"] = repair_table(report)
    tables["models"] = models_table(report)
    return tables


def regret_table(report: Report) -> Table:
    """The router's regret by dataset, its parts, and how much more it is than on train.

    Policies of the user's own follow it.
    """
    level = report.bootstrap.interval_title
    columns = (
        Column("Dataset"),
        Column("Regret", 4),
        Column(level, 4),
        Column("Plan", 4),
        Column("Later choices", 4),
        Column("Regret - on train", 4, signed=True),
        Column(level, 4, signed=True),
    )
    wanted = report.shown_datasets
    own = any(row.policy != ROUTER for row in report.regret)
    return Table(
        title=f"Regret{'' if own else ' of HierRouter'} to the oracle, by the choice that "
        "caused it",
        columns=columns,
        rows=tuple(_regret_line(row) for row in report.regret if row.dataset in wanted),
        note="Plan is lost by the first choice, before any answer is seen, the rest by the later "
        "ones; a poor plan leaves little for these to lose. The last column compares "
        "different queries: a harder fold looks like over-fitting.",
    )


def _regret_line(row: Row) -> Line:
    figures = "dataset whole [whole] plan adaptivity more_whole [more_whole]"
    return Line(LEARNED if row.policy == ROUTER else row.policy, row.cells(figures))


def calls_table(report: Report) -> Table:
    """Expected calls of each model at each hop, a column a policy and hop."""
    rows = report.calls
    places = list(dict.fromkeys((row.hop, row.policy) for row in rows))
    calls = {(row.hop, row.policy, row.model): row.calls for row in rows}
    models = dict.fromkeys(row.model for row in rows)
    return Table(
        title="Call mix: expected calls of each model, a query",
        columns=(Column("Model"), *(Column(f"hop {hop}, {policy}") for hop, policy in places)),
        rows=tuple(
            Line("Pool", (model, *(calls[(*place, model)] for place in places))) for model in models
        ),
        note="A hop sums to less than 1 where a policy stops before it. Calls are not cost: half "
        "of the calls can be nearly all of the cost.",
    )


def frontier_table(report: Report, found: CostRange) -> Table:
    """Mean quality over the budgets, CostSave, PerfGain and ParetoDist of each hull."""
    level = report.bootstrap.interval_title
    columns = (
        Column("Policies"),
        Column("Points"),
        Column("Mean Q of the hull"),
        Column(level),
        Column("CostSave", signed=True),
        Column(level, signed=True),
        Column("PerfGain", signed=True),
        Column(level, signed=True),
        Column("ParetoDist"),
    )
    return Table(
        title=f"Frontiers between C {found.low:.4g} and {found.high:.4g}, beside the best static "
        f"arm {found.static}",
        columns=columns,
        rows=tuple(_hull_line(row) for row in report.hulls),
        note="The range reaches from the cheapest static arm to the one with the highest Q on the "
        f"train fold, which here has Q {found.static_quality:.3f} at C {found.static_cost:.4g}; "
        "below its cheapest point a hull counts as 0, and one point is no hull. Direct calls are "
        "static arms, but no routes of the tree: the oracle's hull may begin later than theirs. "
        "Hulls are of this very fold: the best of many points looks better than it is. Intervals "
        f"are of {found.resamples:,} resamples with "
        "this arm and range.",
    )


def _hull_line(row: Row) -> Line:
    figures = "mean_quality [mean_quality] cost_save [cost_save] perf_gain [perf_gain]"
    group = "Knowing all answers" if row.kind == "oracle" else "Policies"
    return Line(group, row.cells(f"policy n {figures} pareto_distance"))


def repair_table(report: Report) -> Table:
    """What each later call does to the answer before it; of many pairs those that change most."""
    rows, level = report.repair, report.bootstrap.interval_title
    columns = (
        Column("Before"),
        Column("Called"),
        Column("Right before"),
        Column("Repair"),
        Column("Damage"),
        Column("Change in Q", signed=True),
        Column(level, signed=True),
        Column("C of the call", digits_for(row.cost for row in rows)),
    )
    figures = "before model right repair damage quality [quality] cost"
    most = sorted(rows, key=lambda row: -abs(row.quality))[:PAIRS_SHOWN]
    shown = [row for row in rows if row in most]
    cut = ""
    if len(rows) > len(shown):
        cut = f" The {len(shown)} of {len(rows)} pairs whose Q changes most; JSON holds them all."
    return Table(
        title="When a further call helps: repair and damage by model before and model called",
        columns=columns,
        rows=tuple(Line(f"Hop {row.hop}", row.cells(figures)) for row in shown),
        note="Repair is the share of all queries whose wrong answer became right, damage that of "
        "right ones that became wrong. Every route counts alike, so this describes the models, "
        f"not a router.{cut}",
    )


def models_table(report: Report) -> Table:
    """What each model adds to the oracle's R and frontier, and the prices that it bears."""
    level = report.bootstrap.interval_title
    columns = (
        Column("Model"),
        Column("R lost without it", 4),
        Column(level, 4),
        Column("Shapley, R", 4),
        Column(level, 4),
        Column("Hull lost without it", 4),
        Column("Shapley, hull", 4),
        Column("Share of calls"),
        Column("Below 5 % at price"),
        Column("Leaves at price"),
    )
    return Table(
        title=f"What each model is worth to the oracle at alpha {report.alpha:g}",
        columns=columns,
        rows=tuple(_model_line(row) for row in report.models),
        note=f"{_worth_sentence(report.models)} Prices are factors of the present one, above 1 of "
        "a model in the mix; the last one hangs on a single query. All is of an oracle that knows "
        "when to call a model.",
    )


def _model_line(row: Row) -> Line:
    reward = "reward_lost [reward_lost] reward_shapley [reward_shapley]"
    worth = row.cells(f"model {reward} area_lost area_shapley share")
    return Line("Pool", (*worth, _factor(row.below_5_percent), _factor(row.leaves)))


def _factor(factor: float | None) -> str:
    return NEVER if factor is None else f"x{factor:.3g}"


def _worth_sentence(rows: Sequence[Row]) -> str:
    error = max((row.reward_error for row in rows if row.reward_error is not None), default=None)
    if error is None:
        return LEFT_OUT
    said = (
        "Lost without it: of the oracle's R, and of the mean Q of its hull, see the frontiers; of "
        "two models that are alike neither is missed. Shapley values share what models bring, and "
        "sum to the worth of the pool."
    )
    if not error:
        return said
    return f"{said} They are of orders drawn at random, standard error up to {error:.2g} in R."
