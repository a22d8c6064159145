"""The report as tables, before any markup."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from hierrouter.evaluation.bounds import SMALLEST_GAP
from hierrouter.evaluation.deferral import DeferralPoint
from hierrouter.evaluation.outcome import ROUTER
from hierrouter.reports.results import HandingOver, Report
from hierrouter.reports.sentences import (
    QUESTIONS,
    claims_sentence,
    deciding_sentence,
    fixed_choice,
    gap_headline,
    hops_sentence,
    in_time_sentence,
    rungs,
    savings_sentence,
)
from hierrouter.reports.values import ALL, GROUPS, Row, shown_name
from hierrouter.tables import Cell, Column, Line, Table, number_tables

GAP = "Gap"
SHARE_NOTE = f"The share is left out where the gap is below {SMALLEST_GAP:g}."
# The oracle knows the answers; it is shown, but not in the running for the best value.
OUT_OF_COMPETITION = "oracle"
ROUTES_SHOWN = 5


def report_tables(report: Report, routes: int | None = ROUTES_SHOWN) -> tuple[Table, ...]:
    """The tables of a report, with names and numbers, in the order of the page.

    `routes`: how many fixed routes to show, the best ones first; None for all.
    """
    return number_tables(named_tables(report, routes))


def named_tables(report: Report, routes: int | None = ROUTES_SHOWN) -> dict[str, Table]:
    """The same by name, without numbers."""
    tables = {"summary": summary_table(report, routes)}
    if report.depths:
        tables["depths"] = depth_table(report)
    if len(report.shown_datasets) > 1:
        tables["datasets"] = dataset_table(report)
    if report.ladder:
        tables["ladder"] = ladder_table(report)
    if report.looks:
        tables["looks"] = looks_table(report)
    tables["reward"] = reward_table(report, routes)
    if report.regret:
        tables["regret"] = regret_table(report)
    tables["quality"] = quality_table(report, routes)
    tables["accuracy"] = accuracy_table(report, routes)
    tables["cost"] = cost_table(report, routes)
    if report.latency:
        tables["latency"] = latency_table(report, routes)
    if report.price_lists:
        tables["prices"] = price_table(report, routes)
    if report.deferral:
        tables["deferral"] = deferral_table(report, report.deferral)
    if report.reliability:
        tables["reliability"] = reliability_table(report)
    return tables


PAPER_KINDS = ("reference", "single", "router")  # in the order of the paper's tables


def paper_tables(report: Report) -> tuple[Table, ...]:
    """The paper's tables 1 and 2: quality and cost by dataset, of single models and HierRouter.

    They have no column over all queries, as the paper's have none.
    """
    groups = [GROUPS[kind] for kind in PAPER_KINDS]
    width = len(report.datasets)  # the first column, and each dataset but the total

    def as_printed(table: Table) -> Table:
        rows = (replace(row, cells=row.cells[:width]) for row in table.rows if row.group in groups)
        return replace(table, columns=table.columns[:width], rows=tuple(rows), note="")

    tables = {"quality": quality_table(report, 0), "cost": cost_table(report, 0)}
    return number_tables({name: as_printed(table) for name, table in tables.items()})


def lacking_for_paper(report: Report) -> tuple[str, ...]:
    """A sentence for each group of rows that the paper's tables have and this report has not."""
    there = {row.kind for row in report.overall}
    return tuple(said for kind, said in _LACKING.items() if kind not in there)


_LACKING = {
    "reference": "no reference models, with which the paper's tables begin: the pool names none, "
    "or they are left out; see [[references]] in docs/pools.md",
    "single": "no direct calls of the pool's models: the cache has none",
    "router": "no router, with which the paper's tables end: train one",
}


def quality_table(report: Report, routes: int | None = ROUTES_SHOWN) -> Table:
    """Mean Q by dataset."""
    title = f"Quality Q ({report.scorer}), higher is better"
    return _by_dataset(report, title, lambda row: row.quality, routes)


def cost_table(report: Report, routes: int | None = ROUTES_SHOWN) -> Table:
    """Mean C by dataset."""
    title = f"Cost C ({report.cost_unit}), lower is better"
    table = _by_dataset(report, title, lambda row: row.cost, routes, best="lowest")
    said = [savings_sentence(report, saving) for saving in report.savings]
    notes = [*said, deciding_sentence(report), table.note]
    return replace(table, note=" ".join(note for note in notes if note))


def summary_table(report: Report, routes: int | None = ROUTES_SHOWN) -> Table:
    """Q, C and net reward over all queries, and the paired difference in R."""
    level = report.bootstrap.interval_title
    columns = (
        Column("Policy"),
        Column("Q", best="highest"),
        Column("C", best="lowest", money=True),
        Column("R", 4, best="highest"),
        Column(level, 4),
        Column("HierRouter - policy", 4, signed=True),
        Column(level, 4, signed=True),
        Column(f"cost of {QUESTIONS:,} questions", money=True),
    )
    figures = "policy quality cost reward [reward] difference [difference]"
    lines = tuple(
        _policy_line(row.kind, *row.cells(figures), row.cost * QUESTIONS)
        for (*_, row) in _in_order(report, routes)
    )
    title = (
        f"Net reward R = Q - {report.alpha:g} C over {report.overall[0].n} queries, "
        f"C in {report.cost_unit}"
    )
    notes = [*report.notes, claims_sentence(report), _routes_note(report, routes)]
    return Table(title, columns, lines, " ".join(note for note in notes if note))


def dataset_table(report: Report) -> Table:
    """A row a dataset: Q and C of the router and of the best fixed choice, Q of the oracle."""
    chosen = [row for row in (report.router, fixed_choice(report)) if row]
    columns = [Column("Dataset")]
    for row in chosen:
        columns += [Column(f"{shown_name(row.policy)}, Q"), Column("C", money=True)]
    oracle = report.best("oracle")
    columns += [Column("oracle, Q")] if oracle else []
    lines = []
    for at, dataset in enumerate(report.datasets):
        of = {id(rows[-1]): rows[at] for rows in report.by_policy}
        cells = [cell for row in chosen for cell in of[id(row)].cells("quality cost")]
        cells += [of[id(oracle)].quality] if oracle else []
        lines.append(Line("", (dataset, *cells)))
    return Table(f"By dataset: Q and C, in {report.cost_unit}", tuple(columns), tuple(lines))


def reward_table(report: Report, routes: int | None = ROUTES_SHOWN) -> Table:
    """Mean R by dataset; below it the gap that a router can close, and how much it did."""
    title = f"Net reward R = Q - {report.alpha:g} C by dataset, higher is better"
    table = _by_dataset(report, title, lambda row: row.reward, routes)
    if not report.gap_closed:
        return table
    datasets = report.shown_datasets
    gaps = [report.gap(dataset) for dataset in datasets]
    closed = [report.gap_closed.get(dataset) for dataset in datasets]
    lines = (
        Line(GAP, ("oracle - best fixed route", *gaps), ranked=False),
        Line(GAP, ("share closed by HierRouter", *closed), ranked=False),
    )
    gap = gap_headline(report)
    said = f"Over all: {' '.join(gap)}, from the best fixed route." if gap else ""
    note = f"{table.note} {SHARE_NOTE} {said}".strip()
    return Table(table.title, table.columns, (*table.rows, *lines), note)


def accuracy_table(report: Report, routes: int | None = ROUTES_SHOWN) -> Table:
    """Share of right answers by dataset; F1 alone hardly tracks it."""
    title = "Accuracy (share of right answers), higher is better"
    table = _by_dataset(report, title, lambda row: row.accuracy, routes)
    return replace(table, note=f"Right or wrong by the scorer accuracy. {table.note}".strip())


def latency_table(report: Report, routes: int | None = ROUTES_SHOWN) -> Table:
    """Seconds a query, as recorded; which policies keep to a limit, where there is one."""
    found, limit = {(row.policy, row.kind): row for row in report.latency}, report.p95_below
    columns = [Column("Policy"), Column("R", 4), Column("p50, s"), Column("p95, s", best="lowest")]
    columns += [] if limit is None else [Column(f"p95 within {limit:g} s")]
    shown = [rows[-1] for rows in _in_order(report, routes)]
    best, lines = report.best_in_time, []
    for row in shown if best in shown or best is None else [*shown, best]:
        if took := found.get((row.policy, row.kind)):
            within = [] if limit is None else ["yes" if took.p95 <= limit else "no"]
            cells = row.policy, row.reward, took.p50, took.p95, *within
            lines.append(_policy_line(row.kind, *cells))
    said = f"{in_time_sentence(report)} {_routes_note(report, routes)}".strip()
    return Table(
        "Latency: the recorded seconds of a query's calls", tuple(columns), tuple(lines), said
    )


def price_table(report: Report, routes: int | None = ROUTES_SHOWN) -> Table:
    """C and R over all queries under each price list, side by side."""
    columns, level = [Column("Policy")], report.bootstrap.interval_title
    for prices in report.price_lists:
        columns += [
            Column(f"C, {prices.name}", best="lowest", money=True),
            Column(f"R, {prices.name}", 4, "highest"),
            Column(level, 4),
        ]
    under = [{(row.kind, row.policy): row for row in prices.rows} for prices in report.price_lists]
    lines = []
    for row in _in_order_by_any_price(report, routes):
        priced = [rows[row.kind, row.policy] for rows in under]
        cells = [cell for one in priced for cell in one.cells("cost reward [reward]")]
        lines.append(_policy_line(row.kind, row.policy, *cells))
    note = _routes_note(report, routes)
    closed = [
        cell for prices in report.price_lists for cell in (None, prices.gap_closed.get(ALL), None)
    ]
    notes = [f"{note} The best one under each price list is among them."] if note else []
    if report.router:
        lines.append(Line(GAP, ("share closed by HierRouter", *closed), ranked=False))
        notes.append(SHARE_NOTE)
    title = f"C in {report.cost_unit} and R = Q - {report.alpha:g} C by price list"
    return Table(title, tuple(columns), tuple(lines), " ".join(notes))


ROW_COLUMNS: tuple[str, ...] = (  # of CSV
    "policy",
    "kind",
    "dataset",
    "n",
    "quality",
    "accuracy",
    "cost",
    *("reward", "reward_low", "reward_high"),
    *("difference", "difference_low", "difference_high"),
    *("quality_low", "quality_high"),
    *("accuracy_low", "accuracy_high"),
    *("cost_low", "cost_high"),
)


def long_table(report: Report) -> Table:
    """Every row and field of the report, one line each: for spreadsheets and data frames.

    Under several price lists a last column names the list; of the lists after the first there are
    costs and rewards over all queries.
    """
    names, rows = ROW_COLUMNS, [vars(row) for row in report.rows]
    if report.price_lists:
        first, *others = report.price_lists
        names, rows = (*names, "prices"), [{**row, "prices": first.name} for row in rows]
        rows += [{"dataset": ALL, **vars(row)} for prices in others for row in prices.rows]
    lines = tuple(Line(row["kind"], tuple(row.get(name) for name in names)) for row in rows)
    return Table("Rows", tuple(Column(name, digits=9) for name in names), lines)


def _by_dataset(
    report: Report,
    title: str,
    value: Callable[[Row], float],
    routes: int | None,
    *,
    best: Literal["highest", "lowest"] = "highest",
) -> Table:
    datasets = report.shown_datasets
    columns = tuple(Column(name, best=best, money=best == "lowest") for name in datasets)
    lines = tuple(
        _policy_line(rows[0].kind, rows[0].policy, *(value(row) for row in rows[: len(datasets)]))
        for rows in _in_order(report, routes)
    )
    return Table(title, (Column("Policy"), *columns), lines, _routes_note(report, routes))


def _in_order(report: Report, routes: int | None) -> list[tuple[Row, ...]]:
    """Policies by group, in the order they came in; fixed routes by reward, cut to `routes`."""
    ordered: list[tuple[Row, ...]] = []
    for kind in GROUPS:
        members = [rows for rows in report.by_policy if rows[0].kind == kind]
        if kind == "route":
            members.sort(key=lambda rows: (-rows[-1].reward, rows[-1].cost))
            members = members[:routes]
        ordered.extend(members)
    return ordered


def _in_order_by_any_price(report: Report, routes: int | None) -> list[Row]:
    """As `_in_order`, over all queries; the best fixed route under each price list is not cut."""
    shown = {rows[-1].policy for rows in _in_order(report, routes)}
    for prices in report.price_lists:
        fixed = [row for row in prices.rows if row.kind == "route"]
        shown |= {row.policy for row in sorted(fixed, key=lambda row: (-row.reward, row.cost))[:1]}
    return [rows[-1] for rows in _in_order(report, None) if rows[-1].policy in shown]


def _routes_note(report: Report, routes: int | None) -> str:
    total = sum(row.kind == "route" for row in report.overall)
    if routes is None or total <= routes:
        return ""
    return f"The best {routes} of {total} fixed routes by R over {ALL}; JSON and CSV hold them all."


def _policy_line(kind: str, *cells: Cell) -> Line:
    name, *figures = cells
    named = (shown_name(str(name)), *figures)
    return Line(GROUPS[kind], named, ranked=kind != OUT_OF_COMPETITION)


SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


def deferral_table(report: Report, handing: HandingOver) -> Table:
    """Share handed over, Q, C and R, and R of chance and of the oracle at the same share."""
    points, allowed = _nearest(handing), handing.share_allowed
    aim = "the highest R at the router's alpha"
    if allowed is not None:
        aim = f"the greatest share up to {allowed:.1%}"
    columns = (
        Column("HierRouter hands over"),
        Column("Share of queries"),
        Column("Q"),
        Column("C", money=True),
        Column("R", 4),
        Column("R of chance", 4),
        Column("R of the oracle", 4),
    )
    curve = [_deferral_line("Share nearest to", *point) for point in points.items()]
    chosen = _deferral_line(
        "Threshold chosen beforehand", f"by {handing.chosen_on}", handing.chosen
    )
    return Table(
        title=f"Deferral to {handing.stronger}, R = Q - {report.alpha:g} C, "
        f"C in {report.cost_unit}",
        columns=columns,
        rows=(*curve, chosen),
        note=f"The threshold is the one with {aim} on the {handing.chosen_on} fold.",
    )


def _nearest(handing: HandingOver) -> dict[str, DeferralPoint]:
    """The point of the curve nearest to each share, of several the best; each point once."""
    found: dict[float, tuple[str, DeferralPoint]] = {}
    for share in SHARES:
        point = min(handing.curve, key=lambda point: (abs(point.share - share), -point.reward))
        found.setdefault(point.share, (f"{share:.0%}", point))
    return dict(found.values())


def _deferral_line(group: str, label: str, point: DeferralPoint) -> Line:
    figures = (point.share, point.quality, point.cost, point.reward, point.chance, point.oracle)
    return Line(group, (label, *figures))


def depth_table(report: Report) -> Table:
    """Share of the queries, Q, C and R by number of calls."""
    level = report.bootstrap.interval_title
    columns = (
        Column("Calls"),
        Column("Share of queries"),
        Column("Q"),
        Column("C", money=True),
        Column("R", 4),
        Column(level, 4),
    )
    figures = "share quality cost reward [reward]"
    lines = tuple(Line("", (str(row.hop), *row.cells(figures))) for row in report.depths)
    return Table(
        title=f"Where HierRouter stops, C in {report.cost_unit}",
        columns=columns,
        rows=lines,
        note="Q, C and R are means over the queries that end there, so rows differ by their "
        "queries as well as by their calls.",
    )


def reliability_table(report: Report) -> Table:
    """How often the router's choices were the best, by how likely it said that was."""
    titles = "Said to be the best", "Decisions", "Mean said", "Were the best"
    return Table(
        title="How often HierRouter's choices were the best, by how likely it said that was",
        columns=tuple(map(Column, (*titles, report.bootstrap.interval_title))),
        rows=tuple(
            Line("", (f"{row.least:g} to {row.below or 1:g}", *row.cells("n said best [best]")))
            for row in report.reliability
        ),
        note="The best is what no other choice would have beaten on that very query, had "
        "HierRouter gone on after it. States with one choice do not count.",
    )


# The analysis: bounds, looks and regret.

RUNGS, LEARNED = "Bounds", GROUPS["router"]
NOT_A_STAIR = (
    "Each bound knows more than the one before, or may do more. Still R need not rise: what was "
    "chosen on the train fold can do worse here, and direct calls are no routes of the tree."
)


def ladder_table(report: Report) -> Table:
    """Q, C and R of each rung over all queries, and of the router."""
    router = report.router
    columns = (
        Column("Bound"),
        Column("Chosen on train"),
        Column("Q"),
        Column("C", money=True),
        Column("R", 4),
        Column(report.bootstrap.interval_title, 4),
    )

    figures, lines = "quality cost reward [reward]", []
    for row in rungs(report).values():
        chosen = row.policy if row.policy != row.rung else None
        lines.append(Line(RUNGS, (row.rung, chosen, *row.cells(figures))))
    if router:
        lines.append(Line(LEARNED, (shown_name(router.policy), None, *router.cells(figures))))
    return Table(
        title=f"Bound ladder, R = Q - {report.alpha:g} C, C in {report.cost_unit}",
        columns=columns,
        rows=tuple(lines),
        note=f"{hops_sentence(report)} {NOT_A_STAIR}".strip(),
    )


def looks_table(report: Report) -> Table:
    """What a look at the first answer is worth and costs, by dataset."""
    wanted = report.shown_datasets
    columns = (
        Column("Dataset"),
        Column("Rule, from the train fold"),
        Column("Q more", 4, signed=True),
        Column("alpha C more", 4, signed=True),
        Column("R more", 4, signed=True),
        Column(report.bootstrap.interval_title, 4, signed=True),
    )
    rows = [row for row in report.looks if row.dataset in wanted]
    lines = tuple(
        Line("", (row.dataset, row.policy, *row.cells("quality cost reward [reward]")))
        for row in rows
    )
    pays = [row.dataset for row in rows if row.dataset != ALL and (row.reward_low or 0) > 0]
    found = f"It pays in {', '.join(pays)}" if pays else "It pays nowhere here"
    return Table(
        title="What a look at the first answer adds to the best route of each dataset",
        columns=columns,
        rows=lines,
        note=f"{found}, with an interval above 0. A rule calls one model, and how sure that is of "
        "its answer, or how long the answer is where no engine told, decides how to go on.",
    )


def regret_table(report: Report) -> Table:
    """The router's regret by dataset, and its parts; policies of the user's own follow it."""
    columns = (
        Column("Dataset"),
        Column("Regret", 4),
        Column(report.bootstrap.interval_title, 4),
        Column("Plan", 4),
        Column("Later choices", 4),
    )
    wanted = report.shown_datasets
    own = any(row.policy != ROUTER for row in report.regret)
    return Table(
        title=f"Regret{'' if own else ' of HierRouter'} to the oracle, by the choice that "
        "caused it",
        columns=columns,
        rows=tuple(
            Line(shown_name(row.policy), row.cells("dataset whole [whole] plan adaptivity"))
            for row in report.regret
            if row.dataset in wanted
        ),
        note="Plan is lost by the first choice, before any answer is seen, the rest by the later "
        "ones; a poor plan leaves little for these to lose.",
    )
