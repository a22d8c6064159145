"""The comparison of the learned router with the usual baselines, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from hierrouter.evaluation.bounds import ANYTIME_ORACLE, TREE_ORACLE
from hierrouter.evaluation.intervals import DIFFERENCES, ValueRange, difference_range, reward_range
from hierrouter.evaluation.outcome import Floats
from hierrouter.evaluation.policies import OwnPolicy
from hierrouter.learning.baselines.answers import answers_for
from hierrouter.learning.baselines.arms import Baseline, usable_sets
from hierrouter.learning.baselines.contest import Contest, Entry, OnFitted, contest, look_details
from hierrouter.replay.opening import few_queries_note
from hierrouter.replay.tree import Tree
from hierrouter.reports.build import simultaneous_estimates
from hierrouter.reports.estimates import (
    ALL_DATASETS,
    ESTIMATE_SCHEMA,
    MIN_INTERVAL_QUERIES,
    Bootstrap,
    Estimate,
    EstimateLines,
    EstimateTable,
    Row,
    display_name,
    estimate_means,
    pivot,
)
from hierrouter.reports.report import LONG_TABLE, find_table
from hierrouter.reports.sentences import FEW_QUERIES_ROLE, SAME_CHOICES, log_looks, selection_notes
from hierrouter.runs.folders import draft_of, new_run
from hierrouter.runs.selection import SelectedRun, provenance, select_run
from hierrouter.tables import (
    Cell,
    Column,
    Line,
    Table,
    as_markdown,
    json_text,
    number_tables,
    one_line,
)
from hierrouter_cache.writer import write_atomically

if TYPE_CHECKING:
    from hierrouter.reports.jobs import Compare

# Some baselines take time with the square of a fold, and more queries hardly change an interval.
MAX_QUERIES_PER_FOLD = 10_000


def evaluate_comparison(
    job: Compare,
    tree: Tree,
    on_note: Callable[[str], None],
    show_progress: Callable[[], AbstractContextManager[OnFitted]],
) -> Standings:
    """Do the job of `Compare.evaluate`, which has the arguments and the errors."""
    selected = select_run(tree, job.alpha, job.checkpoint, job.sweep)
    few_queries = few_queries_note(tree, job.split, FEW_QUERIES_ROLE)
    if few_queries:
        on_note(few_queries)
    for note in selection_notes("compare", selected, job.split, with_alpha=True):
        on_note(note)
    with show_progress() as on_fitted:
        standings = compare_selected(
            tree,
            selected,
            job.loaded_baselines,
            tuple(job.sets),
            job.split,
            job.seed,
            on_fitted,
            job.own_policies,
        )
    for note in log_looks("compare", tree, job.split, [selected.run], standings.look):
        on_note(note)
    return standings


def compare_selected(
    tree: Tree,
    selected: SelectedRun,
    baselines: Sequence[Baseline],
    sets: Sequence[str],
    split: str,
    seed: int,
    on_fitted: OnFitted,
    policies: Sequence[OwnPolicy] = (),
) -> Standings:
    """Fit and evaluate everything, and compute the intervals.

    If a fold has more than `MAX_QUERIES_PER_FOLD` queries, this number of them take part, evenly
    spread.

    Args:
        tree: all folds.
        selected: the router to compare with; it may have none.
        baselines: what to compare it with.
        sets: names of the sets that baselines choose from, "A" and "B".
        split: the fold to compare on.
        seed: seed of the baselines' random draws.
        on_fitted: called with (done, total, name) after each fit.
        policies: the user's policies.

    Raises:
        InputError: something does not fit together, or there is nothing to compare on.
        CacheError: the cache that the tree was opened from is gone or damaged.
    """
    subset = select_evenly(tree)
    answers = answers_for(subset.root, subset, baselines, usable_sets(subset, sets), subset.pool)
    outcome = contest(
        subset,
        selected.alpha,
        baselines,
        sets,
        selected.trained,
        split,
        seed,
        answers,
        on_fitted,
        policies,
    )
    if len(subset) < len(tree):
        note = (
            f"Baselines learned from, and all are compared on, {len(subset):,} of {len(tree):,} "
            f"queries, evenly spread, at most {MAX_QUERIES_PER_FOLD:,} of a fold; HierRouter "
            "learned from its whole fold."
        )
        outcome = replace(outcome, notes=(*outcome.notes, note))
    return build_standings(
        outcome,
        tree.scorer,
        provenance(tree, tree.root, selected.run, selected.trained, None, {}),
        cost_unit=tree.cost_unit,
        look=look_details(outcome, baselines, policies),
    )


@dataclass(frozen=True, repr=False)
class Standings:
    """The result of a comparison.

    Attributes:
        contest: the policies that take part, with their outcomes on each query.
        queries: number of queries compared on.
        bootstrap: settings of the intervals.
        estimates: every mean with its interval, one line each; see `estimates.ESTIMATE_SCHEMA`.
        values: differences in mean R between two policies, see `_pairs`: `value` names the
            difference, baselines were `chosen_on` this fold, `first` and `second` are the policies,
            and `difference` is R(first) - R(second). Those with a missing side are left out.
        scorer: name of the scorer that Q comes from.
        cost_unit: unit of C.
        provenance: JSON values that say where data and router come from.
        look: what is compared, for the log of looks at the test fold; JSON values.
    """

    contest: Contest
    queries: int
    bootstrap: Bootstrap
    estimates: EstimateLines
    values: tuple[Row, ...]
    scorer: str
    cost_unit: str
    provenance: Mapping[str, Any]
    look: Mapping[str, Any]

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """accuracy, quality, cost and reward of each entry, over all queries of the fold.

        `difference` is R(HierRouter) - R(policy), None for the router itself and without a router.
        `simultaneous` is the same with intervals that hold for all baselines at once; it is None
        for oracles, too, and on a single query. `entry` is the contest's entry.
        """
        rows = pivot(self.estimates, "policies", "policy", "kind", "arms")
        for row, entry in zip(rows, self.contest.entries, strict=True):
            row.entry = entry
        return rows

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a reader must not miss."""
        return self.contest.notes

    @cached_property
    def tables(self) -> dict[str, Table]:
        """Every table by name; "rows" is the long one, a line for each router and set of arms."""
        return {**named_tables(self), LONG_TABLE: long_table(self)}

    def table(self, name: str = "reward") -> Table:
        """Return one of `tables`.

        Raises:
            InputError: there is no table of this name.
        """
        return find_table(name, self.tables)

    def to_arrow(self) -> pa.Table:
        """Return every figure with its interval, one line each; see `estimates.ESTIMATE_SCHEMA`."""
        return pa.Table.from_pylist(self.estimates, ESTIMATE_SCHEMA)

    def to_json(self) -> str:
        """Return the comparison as one JSON object; docs/reference/json.md has its keys."""
        return as_json(self)

    def write(self, folder: Path) -> Path:
        """Write the JSON, and the tables as Markdown, to a folder; return the JSON's file."""
        tables = "\n".join(as_markdown(table) for table in contest_tables(self))
        write_atomically(folder / "compare.md", tables.encode())
        json_file = folder / "compare.json"
        write_atomically(json_file, self.to_json().encode())
        return json_file

    def save(self, out: Path | None = None) -> Path:
        """Write the JSON, and the tables as Markdown, to a new folder, all at once.

        Args:
            out: the folder; None makes a new one below `runs`.

        Returns:
            The JSON's file.

        Raises:
            InputError: the folder is in use.
            WorldError: the disk is full or failed.
        """
        folder = new_run("compare", out)
        with draft_of(folder) as draft:
            name = self.write(draft).name
        return folder / name

    def __repr__(self) -> str:
        return repr(self.table())


def select_evenly(tree: Tree) -> Tree:
    """Select at most `MAX_QUERIES_PER_FOLD` queries of each fold, evenly spread, in their order."""
    folds = [tree.rows(fold) for fold in dict.fromkeys(tree.splits)]
    if max(map(len, folds), default=0) <= MAX_QUERIES_PER_FOLD:
        return tree
    rows = []
    for fold in folds:
        positions = np.linspace(0, len(fold) - 1, min(len(fold), MAX_QUERIES_PER_FOLD))
        rows.append(fold[positions.astype(int)])
    return tree.select(np.sort(np.concatenate(rows)))


def build_standings(
    contest: Contest,
    scorer: str,
    provenance: Mapping[str, Any],
    bootstrap: Bootstrap | None = None,
    cost_unit: str = "money per question",
    look: Mapping[str, Any] | None = None,
) -> Standings:
    """Compute means, paired intervals, and the values of a second hop and of adaptivity.

    Args:
        contest: the policies with their outcomes.
        scorer: name of the scorer that Q comes from.
        provenance: JSON values that say where data and router come from.
        bootstrap: settings of the intervals; default: 10,000 resamples at 95 %.
        cost_unit: unit of C.
        look: what is compared, for the log of looks at the test fold; JSON values.
    """
    table = EstimateTable(contest.datasets, bootstrap)
    reward = np.array([entry.outcome.reward(contest.alpha) for entry in contest.entries])
    _add_entries(table, contest, reward)
    return Standings(
        contest=contest,
        queries=len(contest.datasets),
        bootstrap=table.bootstrap,
        estimates=table.lines(),
        values=_values(table, contest, reward),
        scorer=scorer,
        cost_unit=cost_unit,
        provenance=provenance,
        look=look or {},
    )


def _add_entries(table: EstimateTable, contest: Contest, reward: Floats) -> None:
    """Add figures of each entry, and R(HierRouter) - R(entry).

    Args:
        table: the comparison's figures, which are added to.
        contest: the policies.
        reward: float64[entries, queries], R of each entry.
    """
    router = contest.router
    baselines = [
        number
        for number in _baselines(contest, reading=True)
        if not _is_same_choice(contest, router, number)
    ]
    simultaneous: dict[int, Estimate] = {}
    # Of one query an interval would hold all that is possible.
    if router is not None and baselines and reward.shape[1] > 1:
        differences = reward[router] - reward[baselines]
        ranges = [_range_of_difference(contest, router, number) for number in baselines]
        estimates = simultaneous_estimates(differences, table, ranges)
        simultaneous = dict(zip(baselines, estimates, strict=True))
    for number, entry in enumerate(contest.entries):
        outcome = entry.outcome
        difference = None
        within = {"reward": reward_range(contest.alpha, outcome.cost), "difference": DIFFERENCES}
        if router is not None and router != number:
            difference = reward[router] - reward[number]
            within["difference"] = _range_of_difference(contest, router, number)
        metrics = {
            "accuracy": outcome.accuracy,
            "quality": outcome.quality,
            "cost": outcome.cost,
            "reward": reward[number],
            "difference": difference,
        }
        further = {"simultaneous": simultaneous.get(number)}
        if _is_same_choice(contest, router, number):
            del metrics["difference"]
            further["difference"] = Estimate(0.0)
        columns = {"policy": outcome.name, "kind": outcome.kind, "arms": entry.arms}
        table.add_means("policies", metrics, within=within, **columns)
        table.add_values("policies", further, **columns)


def _values(table: EstimateTable, contest: Contest, reward: Floats) -> tuple[Row, ...]:
    """Estimate the differences of `_pairs`, with `reward` as in `_add_entries`."""
    pairs = list(_pairs(contest, reward))
    differences = np.array([reward[pair.first] - reward[pair.second] for pair in pairs])
    means = estimate_means(
        differences,
        table.bootstrap,
        table.overall_stream,
        [_range_of_difference(contest, pair.first, pair.second) for pair in pairs],
        table.strata(ALL_DATASETS),
    )
    means = [
        Estimate(0.0) if _is_same_choice(contest, pair.first, pair.second) else mean
        for pair, mean in zip(pairs, means, strict=True)
    ]
    return tuple(
        Row(
            value=pair.value,
            chosen_on=pair.chosen_on,
            first=label(contest.entries[pair.first]),
            second=label(contest.entries[pair.second]),
            difference=mean.value,
            difference_low=mean.low,
            difference_high=mean.high,
        )
        for pair, mean in zip(pairs, means, strict=True)
    )


def _is_same_choice(contest: Contest, first: int | None, second: int) -> bool:
    """Whether two entries are one arm for every query: their difference has no interval."""
    if first is None or first == second:
        return False
    return contest.entries[first].is_same_choice(contest.entries[second])


def _range_of_difference(contest: Contest, first: int, second: int) -> ValueRange:
    """Return the values that R of one entry less R of another may have on a query."""
    outcome = contest.entries[first].outcome
    other = contest.entries[second].outcome
    return difference_range(contest.alpha, outcome.cost, other.cost)


class Pair(NamedTuple):
    """Two entries whose difference in R has a name.

    Attributes:
        value: name of the difference, a key of `VALUE_TITLES`.
        chosen_on: the fold on which the best baselines were chosen.
        first: number of an entry.
        second: number of the entry that is subtracted.
    """

    value: str
    chosen_on: str
    first: int
    second: int


def _pairs(contest: Contest, reward: Floats) -> Iterator[Pair]:
    """Yield the pairs of entries to compare, with the best baselines chosen on either fold.

    "second hop" is the best baseline of set B - the best of A; "adaptivity" is HierRouter - the
    best of B; both among the baselines that read no answer. "lead" is HierRouter - the best
    baseline of all, and the only one in a tree of one hop. "regret" is the oracle - a policy of the
    user, on the fold that is compared on; the oracle may stop early if that policy may.

    Args:
        contest: the policies.
        reward: float64[entries, queries], R of each entry.
    """
    entries = contest.entries
    router = contest.router
    has_second_hop = contest.hops > 1
    blind = _baselines(contest, reading=False)
    for fold in dict.fromkeys((contest.split, "validation")):
        worth = _worth(contest, fold, reward)
        best_single = _best([number for number in blind if entries[number].arms == "A"], worth)
        best_route = _best([number for number in blind if entries[number].arms == "B"], worth)
        best = _best(_baselines(contest, reading=True), worth)
        if has_second_hop and best_route is not None and best_single is not None:
            yield Pair("second hop", fold, best_route, best_single)
        if has_second_hop and router is not None and best_route is not None:
            yield Pair("adaptivity", fold, router, best_route)
        if router is not None and best is not None:
            yield Pair("lead", fold, router, best)
    names = [entry.outcome.name for entry in entries]
    for number, entry in enumerate(entries):
        # The user's policies are the baselines without arms.
        if entry.outcome.kind == "baseline" and not entry.arms:
            may_end_early = entry.settings["allow_stop"] or entry.settings.get("allow_return")
            oracle = ANYTIME_ORACLE if may_end_early else TREE_ORACLE
            yield Pair("regret", contest.split, names.index(oracle), number)


def label(entry: Entry) -> str:
    """Return a name that says which arms are chosen from: "kNN on B"."""
    name = entry.outcome.name
    return f"{name} on {entry.arms}" if entry.arms else name


def _baselines(contest: Contest, reading: bool) -> list[int]:
    """Return the numbers of the baselines; with `reading` including those that read answers."""
    return [
        number
        for number, entry in enumerate(contest.entries)
        if entry.outcome.kind == "baseline" and (reading or not entry.reads_answers)
    ]


def _worth(contest: Contest, fold: str, reward: Floats) -> dict[int, tuple[float, float]]:
    """Return mean R of each entry on a fold, and its negative mean C, to choose the best by.

    Args:
        contest: the policies.
        fold: the fold that is compared on, or "validation".
        reward: float64[entries, queries], R on the fold that is compared on.

    Returns:
        By number of the entry; entries without figures on that fold are left out.
    """
    figures: list[tuple[float | None, float | None]]
    if fold == contest.split:
        costs = [float(entry.outcome.cost.mean()) for entry in contest.entries]
        figures = list(zip(reward.mean(axis=1).tolist(), costs, strict=True))
    else:
        figures = [(entry.validation, entry.validation_cost) for entry in contest.entries]
    return {
        number: (mean_reward, -mean_cost)
        for number, (mean_reward, mean_cost) in enumerate(figures)
        if mean_reward is not None and mean_cost is not None
    }


def _best(numbers: Sequence[int], worth: Mapping[int, tuple[float, float]]) -> int | None:
    """Return the entry with the highest mean R; on a tie the cheaper, then the first."""
    candidates = [number for number in numbers if number in worth]
    return max(candidates, key=worth.__getitem__, default=None)


COMPARISON_FORMAT = 1  # of the JSON; goes up if a key is renamed, removed or changes its meaning
INTERVAL_SUFFIXES = ("", "_low", "_high")


def long_table(standings: Standings) -> Table:
    """Every field of every row, one line each: for spreadsheets and data frames."""
    rows = [_flat(row) for row in standings.rows]
    columns = tuple(Column(name, digits=9) for name in rows[0])
    lines = tuple(Line("", tuple(row.values())) for row in rows)
    return Table("Rows", columns, lines)


def as_json(standings: Standings) -> str:
    """Return one object, keys sorted, floats to 12 significant digits.

    docs/reference/json.md has its keys.
    """
    contest = standings.contest
    comparison = {
        "format": COMPARISON_FORMAT,
        "alpha": contest.alpha,
        "split": contest.split,
        "queries": standings.queries,
        "sets": contest.sets,
        "seed": contest.seed,
        "scorer": standings.scorer,
        "cost_unit": standings.cost_unit,
        "bootstrap": {**asdict(standings.bootstrap), "cluster": "query"},
        "rows": [{**_flat(row), "settings": row.entry.settings} for row in standings.rows],
        "values": [vars(value) for value in standings.values],
        "notes": contest.notes,
        "provenance": standings.provenance,
    }
    return json_text(comparison, "comparison")


def _flat(row: Row) -> dict[str, Cell]:
    """The fields of a row, as columns of the CSV."""
    entry: Entry = row.entry
    metrics = ("accuracy", "quality", "cost", "reward", "difference", "simultaneous")
    return {
        "router": row.policy,
        "arms": row.arms,
        "kind": row.kind,
        "reads_answers": entry.reads_answers,
        **{
            metric + suffix: getattr(row, metric + suffix)
            for metric in metrics
            for suffix in INTERVAL_SUFFIXES
        },
        "validation_reward": entry.validation,
        "fit_cpu_seconds": entry.fit_seconds,
        "settings": settings_text(entry.settings),
        "source": entry.source,
    }


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings as text: `neighbours 10, weights distance`."""
    return ", ".join(f"{name} {_setting_text(value)}" for name, value in settings.items())


def _setting_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return settings_text(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return " ".join(map(_setting_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


ROUTER_GROUP = "Learned on the tree"
BOUNDS_GROUP = "Bounds: chosen knowing all answers"
OWN_GROUP = "Policies of your own"
SET_GROUPS = {"A": "Set A: one direct call", "B": "Set B: whole routes, chosen at once"}
VALUE_TITLES = {
    "second hop": "second hop: best of B - best of A",
    "adaptivity": "adaptivity: HierRouter - best of B",
    "lead": "HierRouter - best of all",
    "regret": "regret: oracle - policy",
}
ROUTER_COLUMNS = 3  # last columns of the first table, which compare with the learned router
MAX_SETTINGS_LENGTH = 48  # characters of settings in a table
BLIND_NOTE = (
    "For the second hop and for adaptivity only those baselines count that choose before they have "
    "seen any answer."
)
SIMULTANEOUS_NOTE = (
    "The intervals all at once hold for every baseline together. The best of many baselines on "
    "the fold shown looks better than it is, so the difference to it looks smaller."
)


def contest_tables(standings: Standings) -> tuple[Table, ...]:
    """Return all tables that have a row, numbered, the most important one first."""
    return number_tables(named_tables(standings))


def named_tables(standings: Standings) -> dict[str, Table]:
    """Return all tables that have a row by name, without numbers."""
    tables = {
        "reward": reward_table(standings),
        "quality": quality_table(standings),
        "values": value_table(standings),
        "settings": settings_table(standings),
    }
    return {name: table for name, table in tables.items() if table.rows}


def reward_table(standings: Standings) -> Table:
    """Q, C and R, and the paired difference to the learned router, if there is one."""
    contest = standings.contest
    level = standings.bootstrap.interval_title
    columns = [
        Column("Router"),
        Column("Q", best="highest"),
        Column("C", best="lowest", money=True),
        Column("R", 4, best="highest"),
        Column(level, 4),
        Column("HierRouter - router", 4, signed=True),
        Column(level, 4, signed=True),
        Column("all at once", 4, signed=True),
    ]
    figures = "quality cost reward [reward] difference [difference] [simultaneous]"
    lines = []
    for number, row in enumerate(standings.rows):
        cells = list(row.cells(figures))
        if _is_same_choice(contest, contest.router, number):
            cells[-2] = SAME_CHOICES
        lines.append(_line(row, *cells))
    title = (
        f"Net reward R = Q - {contest.alpha:g} C on {standings.queries} queries "
        f"({contest.split} fold), Q is {standings.scorer}, C in {standings.cost_unit}"
    )
    if contest.router is None:
        lines = [replace(line, cells=line.cells[:-ROUTER_COLUMNS]) for line in lines]
        columns = columns[:-ROUTER_COLUMNS]
        return Table(title, tuple(columns), tuple(lines), " ".join(contest.notes))
    note = " ".join((*contest.notes, SIMULTANEOUS_NOTE))
    return Table(title, tuple(columns), tuple(lines), note)


def quality_table(standings: Standings) -> Table:
    """Quality, right answers and cost, with intervals."""
    level = standings.bootstrap.interval_title
    columns = (
        Column("Router"),
        Column("Q", best="highest"),
        Column(level),
        Column("right", best="highest"),
        Column("C", best="lowest", money=True),
        Column(level, money=True),
    )
    figures = "quality [quality] accuracy cost [cost]"
    lines = [_line(row, *row.cells(figures)) for row in standings.rows]
    title = f"Quality, share of right answers, cost C in {standings.cost_unit}"
    return Table(title, columns, tuple(lines))


def value_table(standings: Standings) -> Table:
    """The value of the second hop and of adaptivity."""
    columns = (
        Column("Value in R"),
        Column("of"),
        Column("against"),
        Column("difference", 4, signed=True),
        Column(standings.bootstrap.interval_title, 4, signed=True),
    )
    lines = []
    for value in standings.values:
        is_regret = value.value == "regret"
        group = OWN_GROUP if is_regret else f"Best as the {value.chosen_on} fold has it"
        names = (display_name(value.first), display_name(value.second))
        figures = list(value.cells("difference [difference]"))
        # Of fewer queries there is no interval anyway.
        has_intervals = standings.queries >= MIN_INTERVAL_QUERIES
        if has_intervals and value.difference_low is None:
            figures[-1] = SAME_CHOICES
        lines.append(Line(group, (VALUE_TITLES[value.value], *names, *figures)))
    title = "What a second hop is worth, and what seeing its first answer adds"
    return Table(title, columns, tuple(lines), BLIND_NOTE)


def settings_table(standings: Standings) -> Table:
    """Settings chosen on the validation fold, and the time of fitting."""
    columns = (
        Column("Router"),
        Column("R on validation", 4),
        Column("CPU s", 2),
        Column("settings"),
    )
    lines = [
        _line(
            row,
            row.entry.validation,
            row.entry.fit_seconds,
            one_line(settings_text(row.entry.settings), MAX_SETTINGS_LENGTH),
        )
        for row in standings.rows
        if row.entry.outcome.kind != "oracle"
    ]
    note = (
        f"CPU seconds of fitting and tuning; seed {standings.contest.seed}. JSON and CSV have the "
        "settings in full, and whose idea each router is."
    )
    return Table("Settings chosen on the validation fold", columns, tuple(lines), note)


def _line(row: Row, *cells: Cell) -> Line:
    """Make the line of an entry, in the group of its kind."""
    outcome = row.entry.outcome
    if outcome.kind == "router":
        group = ROUTER_GROUP
    elif outcome.kind == "oracle":
        group = BOUNDS_GROUP
    else:
        group = SET_GROUPS.get(row.entry.arms, OWN_GROUP)
    return Line(group, (display_name(outcome.name), *cells), ranked=outcome.kind != "oracle")
