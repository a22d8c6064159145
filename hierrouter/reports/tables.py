"""The report as tables, before any markup."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from hierrouter.evaluation.bounds import SMALLEST_GAP, SPLIT_ORACLE
from hierrouter.evaluation.deferral import DeferralPoint
from hierrouter.evaluation.outcome import ROUTER
from hierrouter.paper import PAPER_TITLES
from hierrouter.questions.audit import KINDS, Audit
from hierrouter.reports.estimates import ALL_DATASETS, POLICY_GROUPS, Row, display_name
from hierrouter.reports.results import DeferralSummary, ReportData
from hierrouter.reports.sentences import (
    PRICED_QUESTIONS,
    SAME_CHOICES,
    bounds_over_all,
    claims_sentence,
    deciding_sentence,
    fixed_choice,
    gap_headline,
    hops_sentence,
    in_time_sentence,
    router_sentence,
    router_title,
    savings_sentence,
)
from hierrouter.tables import Cell, Column, Line, Table, number_tables, one_line

GAP_GROUP = "Gap"
GAP_SHARE_NOTE = f"The share is left out where the gap is below {SMALLEST_GAP:g}."
# The oracle knows the answers: it is in the tables, but not in the running for the best value.
UNRANKED_KIND = "oracle"
MAX_LISTED_ROUTES = 5
MAX_CELL_CHARACTERS = 60  # of a reference, and of what was read
MAX_RESPONSE_CHARACTERS = 160


def report_tables(report: ReportData, routes: int | None = MAX_LISTED_ROUTES) -> tuple[Table, ...]:
    """Return the tables of a report, with names and numbers, in the order of the page.

    Args:
        report: the report.
        routes: how many fixed routes to list, the best ones first; None for all.
    """
    return number_tables(named_tables(report, routes))


def named_tables(report: ReportData, routes: int | None = MAX_LISTED_ROUTES) -> dict[str, Table]:
    """Return the tables of a report by name, without numbers; see `report_tables`."""
    tables = {"summary": summary_table(report, routes)}
    if report.depths:
        tables["depths"] = depth_table(report)
    if len(report.shown_datasets) > 1:
        tables["datasets"] = dataset_table(report)
    if report.ladder:
        tables["ladder"] = ladder_table(report)
    if report.looks:
        tables["looks"] = looks_table(report)
    if report.variance:
        tables["variance"] = variance_table(report)
    tables["reward"] = reward_table(report, routes)
    if report.regret:
        tables["regret"] = regret_table(report)
    if report.luck:
        tables["luck"] = luck_table(report)
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
    if report.audit:
        tables |= _audit_tables(report.audit)
    return tables


def _audit_tables(audit: Audit) -> dict[str, Table]:
    """Return the tables of an audit by name; without verdicts there is only that of responses."""
    tables = {"responses": responses_table(audit)}
    if audit.agreements:
        tables["agreement"] = agreement_table(audit)
    if audit.disagreements:
        tables["disagreements"] = disagreements_table(audit)
    return tables


def responses_table(audit: Audit) -> Table:
    """Shares of each model's direct calls that cannot be judged as answers, by kind."""
    columns = [Column("Model"), Column("n"), *(Column(kind.capitalize()) for kind in KINDS)]
    lines = [
        Line("", (model.model, model.n, *(model.share(kind) for kind in KINDS)))
        for model in audit.models
    ]
    title = "Responses that cannot be judged: shares of each model's direct calls"
    return Table(title, tuple(columns), tuple(lines), _drawn_note(audit))


def agreement_table(audit: Audit) -> Table:
    """How often `accuracy` agrees with the given scores, by dataset and model."""
    columns = (Column("Dataset"), Column("Model"), Column("n"), Column("Agreement"))
    rows = sorted((*audit.agreements, *audit.by_dataset), key=lambda row: (row.dataset, row.model))
    lines = [Line("", (row.dataset, row.model or "all", row.n, row.share)) for row in rows]
    excluded = "Datasets whose given scores are not 0 and 1 alone are left out."
    title = "Agreement of accuracy with the given scores"
    return Table(title, columns, tuple(lines), _joined(excluded, _drawn_note(audit)))


def disagreements_table(audit: Audit) -> Table:
    """Some responses that `accuracy` and the given scores value differently."""
    columns = (
        *(Column("Query"), Column("Model"), Column("Reference"), Column("Read")),
        *(Column("Accuracy", 0), Column("Given", 0), Column("End of the response")),
    )
    lines = []
    for row in audit.disagreements:
        reference = one_line(row.reference, MAX_CELL_CHARACTERS)
        read = one_line(row.read, MAX_CELL_CHARACTERS)
        response = one_line(row.response[-MAX_RESPONSE_CHARACTERS:])
        cells = (row.query, row.model, reference, read, row.accuracy, row.verdict, response)
        lines.append(Line("", cells))
    title = "Disagreements of accuracy with the given scores"
    return Table(title, columns, tuple(lines), "Look at them before you trust either.")


def _drawn_note(audit: Audit) -> str:
    if audit.n == audit.total:
        return ""
    return f"{audit.n:,} of {audit.total:,} direct calls of all folds were drawn."


# The kinds of the paper's results, in its order, and how their rows are headed.
PAPER_GROUPS = {
    "reference": POLICY_GROUPS["reference"],
    "single": POLICY_GROUPS["single"],
    "router": "Router",  # which need not have learned anything: it may be one fixed route
}


def paper_tables(report: ReportData) -> tuple[Table, ...]:
    """Return the paper's results by dataset: quality (table 1), cost (table 2) and net reward.

    They have the rows of reference models, pool models and the router, and no column over all
    queries, because the paper's have none. The net reward is a figure in the paper; the table has
    its numbers. The router is called HierRouter alone only if it is the paper's, see
    `sentences.router_title`.
    """
    return number_tables(
        {
            "quality": _paper_table(report, f"Quality Q ({report.scorer})", "quality"),
            "cost": _paper_table(report, f"Cost C ({report.cost_unit})", "cost"),
            "reward": _paper_table(report, f"Net reward R = Q - {report.alpha:g} C", "reward"),
        }
    )


def _paper_table(report: ReportData, subject: str, metric: str) -> Table:
    """Return one of the paper's tables.

    Args:
        report: the report.
        subject: what it shows, with which its title begins.
        metric: name of the mean in a row.
    """
    is_cost = metric == "cost"
    digits = 4 if metric == "reward" else 3  # as in the other tables
    datasets = paper_datasets(report)
    columns = tuple(
        Column(title, digits, best="lowest" if is_cost else "highest", money=is_cost)
        for title in datasets.values()
    )
    lines = []
    for rows in paper_rows(report):
        kind = rows[0].kind
        name = router_title(report) if kind == "router" else rows[0].policy
        values = {row.dataset: getattr(row, metric) for row in rows}
        cells = (name, *(values[dataset] for dataset in datasets))
        lines.append(Line(PAPER_GROUPS[kind], cells))
    direction = "lower" if is_cost else "higher"
    fold = f"{report.overall[0].n:,} {report.split} questions"
    sentences = (f"{subject} on {fold}, {direction} is better", router_sentence(report))
    title = ". ".join(sentence for sentence in sentences if sentence).removesuffix(".")
    return Table(title, (Column("Policy"), *columns), tuple(lines))


def paper_rows(report: ReportData) -> list[tuple[Row, ...]]:
    """Return the rows of each policy of the paper's results, in its order."""
    return [rows for kind in PAPER_GROUPS for rows in report.by_policy if rows[0].kind == kind]


def paper_datasets(report: ReportData) -> dict[str, str]:
    """Return the datasets and their titles as the paper orders and spells them; others follow."""
    datasets = report.datasets[:-1]  # without the total
    titles = {name: title for name, title in PAPER_TITLES.items() if name in datasets}
    return titles | {name: name for name in datasets if name not in titles}


def lacking_for_paper(report: ReportData) -> tuple[str, ...]:
    """Return a sentence for each group of rows of the paper's tables that this report lacks.

    One more names the paper's datasets that it lacks, if it has some of them.
    """
    kinds = {row.kind for row in report.overall}
    sentences = [sentence for kind, sentence in _LACKING.items() if kind not in kinds]
    absent = [title for name, title in PAPER_TITLES.items() if name not in report.datasets]
    if 0 < len(absent) < len(PAPER_TITLES):
        sentences.append(f"no questions of {', '.join(absent)}, which the paper's tables have")
    return tuple(sentences)


_LACKING = {
    "reference": "no reference models, with which the paper's tables begin: the pool names none, "
    "or they are left out; see [[references]] in docs/pools.md",
    "single": "no direct calls of the pool's models: the cache has none",
    "router": "no router, with which the paper's tables end: train one",
}


def quality_table(report: ReportData, routes: int | None = MAX_LISTED_ROUTES) -> Table:
    """Mean Q by dataset."""
    title = f"Quality Q ({report.scorer}), higher is better"
    return _by_dataset(report, title, lambda row: row.quality, routes)


def cost_table(report: ReportData, routes: int | None = MAX_LISTED_ROUTES) -> Table:
    """Mean C by dataset."""
    title = f"Cost C ({report.cost_unit}), lower is better"
    table = _by_dataset(report, title, lambda row: row.cost, routes, best="lowest")
    savings = [savings_sentence(report, saving) for saving in report.savings]
    return replace(table, note=_joined(*savings, deciding_sentence(report), table.note))


def summary_table(report: ReportData, routes: int | None = MAX_LISTED_ROUTES) -> Table:
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
        Column(f"cost of {PRICED_QUESTIONS:,} questions", money=True),
    )
    figures = "policy quality cost reward [reward] difference [difference]"
    rows = [policy_rows[-1] for policy_rows in _in_order(report, routes)]
    lines = []
    for row in rows:
        cells = list(row.cells(figures))
        if report.is_router(row):
            cells[-1] = SAME_CHOICES
        lines.append(_policy_line(row.kind, *cells, row.cost * PRICED_QUESTIONS))
    title = (
        f"Net reward R = Q - {report.alpha:g} C over {report.overall[0].n} queries, "
        f"C in {report.cost_unit}"
    )
    note = _joined(*report.notes, claims_sentence(report), _routes_note(report, routes))
    return Table(title, columns, tuple(lines), note)


def dataset_table(report: ReportData) -> Table:
    """A row a dataset: Q and C of the router and of the best fixed choice.

    The oracle is left out: it has the highest R, and its Q bounds nothing.
    """
    choices = [row for row in (report.router, fixed_choice(report)) if row]
    columns = [Column("Dataset")]
    for choice in choices:
        columns += [Column(f"{display_name(choice.policy)}, Q"), Column("C", money=True)]
    lines = []
    for number, dataset in enumerate(report.datasets):
        # A policy's row on this dataset, by its row over all queries. Names need not be unique.
        on_dataset = {id(rows[-1]): rows[number] for rows in report.by_policy}
        cells = [cell for row in choices for cell in on_dataset[id(row)].cells("quality cost")]
        lines.append(Line("", (dataset, *cells)))
    return Table(f"By dataset: Q and C, in {report.cost_unit}", tuple(columns), tuple(lines))


def reward_table(report: ReportData, routes: int | None = MAX_LISTED_ROUTES) -> Table:
    """Mean R by dataset; below it the gap that a router can close, and the share that it closed."""
    title = f"Net reward R = Q - {report.alpha:g} C by dataset, higher is better"
    table = _by_dataset(report, title, lambda row: row.reward, routes)
    if not report.gap_closed:
        return table
    datasets = report.shown_datasets
    gaps = [report.gap(dataset) for dataset in datasets]
    shares = [report.gap_closed.get(dataset) for dataset in datasets]
    lines = (
        Line(GAP_GROUP, ("oracle - best fixed route", *gaps), ranked=False),
        Line(GAP_GROUP, ("share closed by HierRouter", *shares), ranked=False),
    )
    gap = gap_headline(report)
    over_all = f"Over all: {' '.join(gap)}." if gap else ""
    note = _joined(table.note, GAP_SHARE_NOTE, over_all)
    return Table(table.title, table.columns, (*table.rows, *lines), note)


def accuracy_table(report: ReportData, routes: int | None = MAX_LISTED_ROUTES) -> Table:
    """Share of right answers by dataset; F1 alone hardly tracks it."""
    title = "Accuracy (share of right answers), higher is better"
    table = _by_dataset(report, title, lambda row: row.accuracy, routes)
    return replace(table, note=_joined("Right or wrong by the scorer accuracy.", table.note))


def latency_table(report: ReportData, routes: int | None = MAX_LISTED_ROUTES) -> Table:
    """Recorded seconds a query; with a limit, which policies are within it."""
    limit = report.p95_below
    columns = [Column("Policy"), Column("R", 4), Column("p50, s"), Column("p95, s", best="lowest")]
    if limit is not None:
        columns.append(Column(f"p95 within {limit:g} s"))
    rows = [policy_rows[-1] for policy_rows in _in_order(report, routes)]
    best = report.best_in_time
    if best is not None and best not in rows:
        rows.append(best)
    latencies = {(row.policy, row.kind): row for row in report.latency}
    lines = []
    for row in rows:
        latency = latencies.get((row.policy, row.kind))
        if latency is None:
            continue
        cells: list[Cell] = [row.policy, row.reward, latency.p50, latency.p95]
        if limit is not None:
            cells.append("yes" if latency.p95 <= limit else "no")
        lines.append(_policy_line(row.kind, *cells))
    title = "Latency: the recorded seconds of a query's calls"
    note = _joined(in_time_sentence(report), _routes_note(report, routes))
    return Table(title, tuple(columns), tuple(lines), note)


def price_table(report: ReportData, routes: int | None = MAX_LISTED_ROUTES) -> Table:
    """C and R over all queries under each price list, side by side."""
    columns = [Column("Policy")]
    for prices in report.price_lists:
        columns += [
            Column(f"C, {prices.name}", best="lowest", money=True),
            Column(f"R, {prices.name}", 4, "highest"),
            Column(report.bootstrap.interval_title, 4),
        ]
    rows_by_list = [
        {(row.kind, row.policy): row for row in prices.rows} for prices in report.price_lists
    ]
    lines = []
    for row in _in_order_by_any_price(report, routes):
        cells: list[Cell] = []
        for rows in rows_by_list:
            cells += rows[row.kind, row.policy].cells("cost reward [reward]")
        lines.append(_policy_line(row.kind, row.policy, *cells))
    routes_note = _routes_note(report, routes)
    notes = []
    if routes_note:
        notes.append(f"{routes_note} The best one under each price list is among them.")
    if report.router:
        shares: list[Cell] = []
        for prices in report.price_lists:
            shares += [None, prices.gap_closed.get(ALL_DATASETS), None]
        lines.append(Line(GAP_GROUP, ("share closed by HierRouter", *shares), ranked=False))
        notes.append(GAP_SHARE_NOTE)
    title = f"C in {report.cost_unit} and R = Q - {report.alpha:g} C by price list"
    return Table(title, tuple(columns), tuple(lines), " ".join(notes))


# Columns of the CSV.
ROW_COLUMNS: tuple[str, ...] = (
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


def long_table(report: ReportData) -> Table:
    """Every row and field of the report, one line each: for spreadsheets and data frames.

    Under several price lists a last column names the list; the lists after the first have costs
    and rewards over all queries only.
    """
    names = ROW_COLUMNS
    rows = [vars(row) for row in report.rows]
    if report.price_lists:
        first, *others = report.price_lists
        names = (*names, "prices")
        rows = [{**row, "prices": first.name} for row in rows]
        for prices in others:
            rows += [{"dataset": ALL_DATASETS, **vars(row)} for row in prices.rows]
    lines = tuple(Line(row["kind"], tuple(row.get(name) for name in names)) for row in rows)
    return Table("Rows", tuple(Column(name, digits=9) for name in names), lines)


def _by_dataset(
    report: ReportData,
    title: str,
    value: Callable[[Row], float],
    routes: int | None,
    *,
    best: Literal["highest", "lowest"] = "highest",
) -> Table:
    """A table of one metric: a line a policy, a column a dataset.

    Args:
        report: the report.
        title: title of the table.
        value: returns the metric of a row.
        routes: how many fixed routes to list, the best ones first; None for all.
        best: whether the highest or the lowest value is the best; if the lowest, the values are
            amounts of money.
    """
    datasets = report.shown_datasets
    columns = tuple(Column(name, best=best, money=best == "lowest") for name in datasets)
    lines = []
    for rows in _in_order(report, routes):
        values = [value(row) for row in rows[: len(datasets)]]
        lines.append(_policy_line(rows[0].kind, rows[0].policy, *values))
    return Table(title, (Column("Policy"), *columns), tuple(lines), _routes_note(report, routes))


def _in_order(report: ReportData, routes: int | None) -> list[tuple[Row, ...]]:
    """Return the rows of each policy by group; fixed routes by reward, at most `routes` of them."""
    ordered: list[tuple[Row, ...]] = []
    for kind in POLICY_GROUPS:
        members = [rows for rows in report.by_policy if rows[0].kind == kind]
        if kind == "route":
            members.sort(key=lambda rows: (-rows[-1].reward, rows[-1].cost))
            members = members[:routes]
        ordered.extend(members)
    return ordered


def _in_order_by_any_price(report: ReportData, routes: int | None) -> list[Row]:
    """As `_in_order`, over all queries; the best fixed route under each price list is included."""
    policies = {rows[-1].policy for rows in _in_order(report, routes)}
    for prices in report.price_lists:
        fixed = [row for row in prices.rows if row.kind == "route"]
        if fixed:
            policies.add(min(fixed, key=lambda row: (-row.reward, row.cost)).policy)
    return [rows[-1] for rows in _in_order(report, None) if rows[-1].policy in policies]


def _routes_note(report: ReportData, routes: int | None) -> str:
    """Say how many fixed routes there are, if the table does not list them all."""
    total = sum(row.kind == "route" for row in report.overall)
    if routes is None or total <= routes:
        return ""
    return (
        f"The best {routes} of {total} fixed routes by R over {ALL_DATASETS}; JSON and CSV hold "
        "them all."
    )


def _policy_line(kind: str, *cells: Cell) -> Line:
    """Make the line of a policy; the first cell is its name."""
    name, *figures = cells
    ranked = kind != UNRANKED_KIND
    return Line(POLICY_GROUPS[kind], (display_name(str(name)), *figures), ranked)


def _joined(*sentences: str) -> str:
    """Join the sentences that are not empty."""
    return " ".join(sentence for sentence in sentences if sentence)


DEFERRED_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)  # rows of the table of deferral


def deferral_table(report: ReportData, deferral: DeferralSummary) -> Table:
    """Share deferred, Q, C and R, and R of chance and of the oracle at the same share."""
    aim = "the highest R at the router's alpha"
    if deferral.share_allowed is not None:
        aim = f"the greatest share up to {deferral.share_allowed:.1%}"
    columns = (
        Column("HierRouter hands over"),
        Column("Share of queries"),
        Column("Q"),
        Column("C", money=True),
        Column("R", 4),
        Column("R of chance", 4),
        Column("R of the oracle", 4),
    )
    curve = [
        _deferral_line("Share nearest to", label, point)
        for label, point in _nearest_points(deferral).items()
    ]
    at_threshold = _deferral_line(
        "Threshold chosen beforehand", f"by {deferral.chosen_on}", deferral.chosen
    )
    return Table(
        title=f"Deferral to {deferral.stronger}, R = Q - {report.alpha:g} C, "
        f"C in {report.cost_unit}",
        columns=columns,
        rows=(*curve, at_threshold),
        note=f"The threshold is the one with {aim} on the {deferral.chosen_on} fold.",
    )


def _nearest_points(deferral: DeferralSummary) -> dict[str, DeferralPoint]:
    """Return the point of the curve nearest to each of `DEFERRED_SHARES`, by the share as text.

    Of several points as near it is the one with the highest R. A point that is nearest to several
    shares is returned once.
    """
    nearest: dict[float, tuple[str, DeferralPoint]] = {}
    for share in DEFERRED_SHARES:
        point = min(deferral.curve, key=lambda point: (abs(point.share - share), -point.reward))
        nearest.setdefault(point.share, (f"{share:.0%}", point))
    return dict(nearest.values())


def _deferral_line(group: str, label: str, point: DeferralPoint) -> Line:
    figures = (point.share, point.quality, point.cost, point.reward, point.chance, point.oracle)
    return Line(group, (label, *figures))


def depth_table(report: ReportData) -> Table:
    """Share of the queries, Q, C and R by number of calls."""
    columns = (
        Column("Calls"),
        Column("Share of queries"),
        Column("Q"),
        Column("C", money=True),
        Column("R", 4),
        Column(report.bootstrap.interval_title, 4),
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


def reliability_table(report: ReportData) -> Table:
    """How often the router's choices were the best, by the probability that it gave them."""
    titles = ("Said to be the best", "Decisions", "Mean said", "Were the best")
    columns = tuple(Column(title) for title in (*titles, report.bootstrap.interval_title))
    lines = []
    for row in report.reliability:
        # The last bin has no upper end.
        label = f"{row.least:g} to {row.below or 1:g}"
        lines.append(Line("", (label, *row.cells("n said best [best]"))))
    return Table(
        title="How often HierRouter's choices were the best, by how likely it said that was",
        columns=columns,
        rows=tuple(lines),
        note="The best is what no other choice would have beaten on that very query, had "
        "HierRouter gone on after it. States with one choice do not count.",
    )


# The analysis: bounds, looks and regret.

LADDER_NOTE = (
    "Each bound knows more than the one before, or may do more. Still R need not rise: what was "
    "chosen on the train fold can do worse here, and direct calls are no routes of the tree."
)


SPLIT_NOTE = "The split oracle, the last one, knows less again: it knows no draw."


def ladder_table(report: ReportData) -> Table:
    """Q, C and R of each rung over all queries, and of the router."""
    columns = (
        Column("Bound"),
        Column("Chosen on train"),
        Column("Q"),
        Column("C", money=True),
        Column("R", 4),
        Column(report.bootstrap.interval_title, 4),
    )
    figures = "quality cost reward [reward]"
    lines = []
    for row in bounds_over_all(report).values():
        # A rung that chooses no model or route has its own name as its policy.
        choice = row.policy if row.policy != row.rung else None
        lines.append(Line("Bounds", (row.rung, choice, *row.cells(figures))))
    router = report.router
    if router:
        name = display_name(router.policy)
        lines.append(Line(POLICY_GROUPS["router"], (name, None, *router.cells(figures))))
    return Table(
        title=f"Bound ladder, R = Q - {report.alpha:g} C, C in {report.cost_unit}",
        columns=columns,
        rows=tuple(lines),
        note=_joined(
            hops_sentence(report),
            LADDER_NOTE,
            SPLIT_NOTE if SPLIT_ORACLE in bounds_over_all(report) else "",
        ),
    )


def looks_table(report: ReportData) -> Table:
    """Gain and cost of a look at the first answer, by dataset."""
    columns = (
        Column("Dataset"),
        Column("Rule, from the train fold"),
        Column("Q more", 4, signed=True),
        Column("alpha C more", 4, signed=True),
        Column("R more", 4, signed=True),
        Column(report.bootstrap.interval_title, 4, signed=True),
    )
    rows = [row for row in report.looks if row.dataset in report.shown_datasets]
    figures = "quality cost reward [reward]"
    lines = tuple(Line("", (row.dataset, row.policy, *row.cells(figures))) for row in rows)
    gaining = [
        row.dataset for row in rows if row.dataset != ALL_DATASETS and (row.reward_low or 0) > 0
    ]
    result = "Nowhere is the interval of R above 0"
    if gaining:
        result = f"The interval of R is above 0 in {', '.join(gaining)}"
    return Table(
        title="What a look at the first answer adds to the best route of each dataset",
        columns=columns,
        rows=lines,
        note=f"{result}. A rule calls one model, and how sure that is of "
        "its answer, or how long the answer is where no engine told, decides how to go on.",
    )


def regret_table(report: ReportData) -> Table:
    """The router's regret by dataset, and its parts; then that of the user's policies."""
    columns = (
        Column("Dataset"),
        Column("Regret", 4),
        Column(report.bootstrap.interval_title, 4),
        Column("Plan", 4),
        Column("Later choices", 4),
    )
    figures = "dataset whole [whole] plan adaptivity"
    lines = tuple(
        Line(display_name(row.policy), row.cells(figures))
        for row in report.regret
        if row.dataset in report.shown_datasets
    )
    has_own_policies = any(row.policy != ROUTER for row in report.regret)
    subject = "" if has_own_policies else " of HierRouter"
    return Table(
        title=f"Regret{subject} to the oracle, by the choice that caused it",
        columns=columns,
        rows=lines,
        note="Plan is lost by the first choice, before any answer is seen, the rest by the later "
        "ones; a poor plan leaves little for these to lose.",
    )


def variance_table(report: ReportData) -> Table:
    """Which hop decides: shares of the variance of Q over all fixed routes, by dataset."""
    hops = range(1, 1 + len(report.variance[0].hops))
    columns = (
        Column("Dataset"),
        *(Column(f"Hop {hop}") for hop in hops),
        Column("Interaction"),
        Column("Deviation of Q"),
    )
    lines = tuple(
        Line("", (row.dataset, *row.hops, row.interaction, row.deviation))
        for row in report.variance
        if row.dataset in report.shown_datasets
    )
    return Table(
        title="Which hop decides: shares of the variance of Q over all fixed routes",
        columns=columns,
        rows=lines,
        note="The share of a hop is what its model explains alone. Interaction is the rest: which "
        "models fit together, and chance, if the questions are few.",
    )


def luck_table(report: ReportData) -> Table:
    """The router's regret to the clairvoyant oracle by dataset: luck, and three losses."""
    interval = report.bootstrap.interval_title
    terms = ("luck", "adaptivity", "plan", "generalisation")
    columns = [
        Column("Dataset"),
        Column("Regret", 4, signed=True),
        Column(interval, 4, signed=True),
    ]
    for term in terms:
        columns += [Column(term.capitalize(), 4, signed=True), Column(interval, 4, signed=True)]
    figures = "dataset whole [whole] " + " ".join(f"{term} [{term}]" for term in terms)
    lines = tuple(
        Line(display_name(row.policy), row.cells(figures))
        for row in report.luck
        if row.dataset in report.shown_datasets
    )
    return Table(
        title="Regret of HierRouter to the oracle that knows which draw comes",
        columns=tuple(columns),
        rows=lines,
        note="Luck is what only knowing the draws brings. Adaptivity is what choosing after each "
        "answer brings, plan what a route for each question brings. Generalisation is what "
        "HierRouter lacks of the best fixed route; below 0 it is ahead.",
    )
