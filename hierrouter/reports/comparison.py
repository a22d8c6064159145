"""The usual routers beside the learned one: who is better and why, as tables and as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hierrouter.evaluation.bounds import ANYTIME_ORACLE, TREE_ORACLE
from hierrouter.evaluation.policies import OwnPolicy, own_policies
from hierrouter.learning.baselines.answers import answers_for
from hierrouter.learning.baselines.arms import Baseline, require_sets, usable_sets
from hierrouter.learning.baselines.contest import Contest, Entry, OnFitted, contest, look_details
from hierrouter.learning.baselines.registry import baselines as baselines_named
from hierrouter.paper import PAPER_SEED
from hierrouter.replay.opening import listed
from hierrouter.replay.tree import Tree
from hierrouter.reports.build import at_once
from hierrouter.reports.report import ROWS, run_or_sweep, table_named
from hierrouter.reports.values import (
    SCHEMA,
    Bootstrap,
    Estimate,
    Estimates,
    Lines,
    Row,
    Values,
    estimates,
    pivot,
    shown_name,
)
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

# Of a fold: some baselines take time with its square, and more would hardly move an interval.
MOST_QUESTIONS = 10_000


def compare(
    tree: Tree,
    run: str | os.PathLike[str] | None = None,
    *,
    alpha: float | None = None,
    split: str = "test",
    baselines: str | Sequence[str] | None = None,
    sets: str | Sequence[str] = ("A", "B"),
    policies: Sequence[Any] = (),
    seed: int = PAPER_SEED,
    progress: OnFitted | None = None,
) -> Standings:
    """Fit the baselines on the train fold, and compare them with the learned router.

    At most `MOST_QUESTIONS` of each fold take part. Looks at the test fold are logged by the
    command line only.

    Args:
        tree: all folds.
        run: of `train` or `sweep`, or its folder; default: the newest that learned from the tree.
        alpha: price of cost; default: the one that the router was trained for.
        split: the fold to compare on.
        baselines: names, or `module:Class`, as a list or as "a,b"; None is all of ours.
        sets: what they choose from: "A" one direct call, "B" whole routes.
        policies: of your own, to be valued beside them; see `hierrouter.evaluation.policies`.
        seed: of what baselines draw.
        progress: told (done, total, name) after each fit.

    Raises:
        InputError: something does not fit together, or there is nothing to compare on.
        CacheError: the cache that the tree was opened from is gone or damaged.
    """
    chosen, wanted = baselines_named(listed(baselines)), require_sets(listed(sets) or [])
    own = own_policies(policies)
    shown = select_run(tree, alpha, *run_or_sweep(run))
    return compared(tree, shown, chosen, wanted, split, seed, progress, own)


def compared(
    tree: Tree,
    shown: SelectedRun,
    chosen: Sequence[Baseline],
    sets: Sequence[str],
    split: str,
    seed: int,
    on_fitted: OnFitted | None = None,
    policies: Sequence[OwnPolicy] = (),
) -> Standings:
    """Hold the contest, and work out its intervals; see `compare` for the errors.

    Of more than `MOST_QUESTIONS` in a fold so many take part, evenly spread.
    """
    told = on_fitted or (lambda done, total, name: None)
    trained, alpha = shown.trained, shown.alpha
    some = evenly_spread(tree)
    answers = answers_for(some.root, some, chosen, usable_sets(some, sets), some.pool)
    held = contest(some, alpha, chosen, sets, trained, split, seed, answers, told, policies)
    if len(some) < len(tree):
        note = (
            f"Baselines learned from, and all are compared on, {len(some):,} of {len(tree):,} "
            f"queries, evenly spread, at most {MOST_QUESTIONS:,} of a fold; HierRouter learned "
            "from its whole fold."
        )
        held = replace(held, notes=(*held.notes, note))
    source = provenance(tree, tree.root, shown.run, shown.trained, None, {})
    look = look_details(held, chosen, policies)
    return standings(held, tree.scorer, source, cost_unit=tree.cost_unit, look=look)


@dataclass(frozen=True, repr=False)
class Standings:
    """What a comparison found.

    Attributes:
        estimates: every mean with its interval, one line each; see `values.SCHEMA`.
        values: differences in mean R between two policies, see `_pairs`: which `value` it is, the
            fold on which baselines were `chosen_on`, the names of `first` and `second`, and
            `difference`. Those with a missing side are left out.
        look: what was looked at, for the log of looks at the test fold; JSON values.
    """

    contest: Contest
    queries: int
    bootstrap: Bootstrap
    estimates: Lines
    values: tuple[Row, ...]
    scorer: str
    cost_unit: str
    provenance: Mapping[str, Any]
    look: Mapping[str, Any]

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """accuracy, quality, cost and reward of each entry, over all queries of the fold.

        `difference` is R(HierRouter) - R(policy), None for the router itself and without a router;
        `simultaneous` the same with intervals that hold for all baselines at once, None for
        oracles, too, and where there is one query. `entry` says who it is.
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
        return {**named_tables(self), ROWS: long_table(self)}

    def table(self, name: str = "reward") -> Table:
        """One of `tables`; raises InputError: there is none of this name."""
        return table_named(name, self.tables)

    def to_arrow(self) -> pa.Table:
        """Every figure with its interval, one line each; see `hierrouter.reports.values.SCHEMA`."""
        return pa.Table.from_pylist(self.estimates, SCHEMA)

    def to_json(self) -> str:
        """The comparison as one JSON object; docs/reference/json.md has its keys, a contract."""
        return as_json(self)

    def write(self, folder: Path) -> Path:
        """The JSON and the tables as Markdown in `folder`; returns the JSON."""
        tables = "\n".join(as_markdown(table) for table in contest_tables(self))
        write_atomically(folder / "compare.md", tables.encode())
        page = folder / "compare.json"
        write_atomically(page, self.to_json().encode())
        return page

    def __repr__(self) -> str:
        return repr(self.table())


def evenly_spread(tree: Tree) -> Tree:
    """At most `MOST_QUESTIONS` of each fold, in their order."""
    folds = [tree.rows(fold) for fold in dict.fromkeys(tree.splits)]
    if max(map(len, folds), default=0) <= MOST_QUESTIONS:
        return tree
    places = (np.linspace(0, len(rows) - 1, min(len(rows), MOST_QUESTIONS)) for rows in folds)
    kept = [rows[at.astype(int)] for rows, at in zip(folds, places, strict=True)]
    return tree.select(np.sort(np.concatenate(kept)))


def standings(
    contest: Contest,
    scorer: str,
    provenance: Mapping[str, Any],
    bootstrap: Bootstrap | None = None,
    cost_unit: str = "money per question",
    look: Mapping[str, Any] | None = None,
) -> Standings:
    """Means, paired intervals, and the values of a second hop and of adaptivity."""
    found = Estimates(contest.datasets, bootstrap)
    reward = np.array([entry.outcome.reward(contest.alpha) for entry in contest.entries])
    _add_entries(found, contest, reward)
    return Standings(
        contest=contest,
        queries=len(contest.datasets),
        bootstrap=found.bootstrap,
        estimates=found.lines(),
        values=_values(found, contest, reward),
        scorer=scorer,
        cost_unit=cost_unit,
        provenance=provenance,
        look=look or {},
    )


def _add_entries(found: Estimates, contest: Contest, reward: Values) -> None:
    """Figures of each entry, and R(HierRouter) - R(baseline), all intervals at once."""
    router, members = contest.router, _baselines(contest, reading=True)
    together: dict[int, Estimate] = {}
    if router is not None and members and reward.shape[1] > 1:
        differences = reward[router] - reward[members]
        together = dict(zip(members, at_once(differences, found), strict=True))
    for at, entry in enumerate(contest.entries):
        one = entry.outcome
        metrics = {
            "accuracy": one.accuracy,
            "quality": one.quality,
            "cost": one.cost,
            "reward": reward[at],
            "difference": None if router in (None, at) else reward[router] - reward[at],
        }
        of = {"policy": one.name, "kind": one.kind, "arms": entry.arms}
        found.add("policies", metrics, **of)
        found.state("policies", {"simultaneous": together.get(at)}, **of)


def _values(found: Estimates, contest: Contest, reward: Values) -> tuple[Row, ...]:
    """Differences between two entries, with the best baselines as either fold has them."""
    pairs = list(_pairs(contest, reward))
    differences = np.array([reward[first] - reward[second] for *_, first, second in pairs])
    means = estimates(differences, found.bootstrap, found.every)
    return tuple(
        Row(
            value=value,
            chosen_on=fold,
            first=label(contest.entries[first]),
            second=label(contest.entries[second]),
            difference=mean.value,
            difference_low=mean.low,
            difference_high=mean.high,
        )
        for (value, fold, first, second), mean in zip(pairs, means, strict=True)
    )


def _pairs(contest: Contest, reward: Values) -> Iterator[tuple[str, str, int, int]]:
    """Which value it is, the fold that chose, and the two entries to be compared.

    "second hop" is the best baseline of set B - the best of A, "adaptivity" is HierRouter - the
    best of B, both among those that read no answer; "lead" is HierRouter - the best baseline of
    all, the only one where there is one hop; "regret" is the oracle - a policy of the user's own,
    on the fold shown; the oracle may stop where that policy may.
    """
    entries, router = contest.entries, contest.router
    for fold in dict.fromkeys((contest.split, "validation")):
        worth = _worth(contest, fold, reward)
        blind = _baselines(contest, reading=False)
        single, route = (
            _best([at for at in blind if entries[at].arms == arms], worth) for arms in ("A", "B")
        )
        best = _best(_baselines(contest, reading=True), worth)
        several = contest.hops > 1
        if several and route is not None and single is not None:
            yield "second hop", fold, route, single
        if several and router is not None and route is not None:
            yield "adaptivity", fold, router, route
        if router is not None and best is not None:
            yield "lead", fold, router, best
    names = [entry.outcome.name for entry in entries]
    for at, entry in enumerate(entries):
        if entry.outcome.kind == "baseline" and not entry.arms:
            early = entry.settings["allow_stop"] or entry.settings.get("allow_return")
            oracle = ANYTIME_ORACLE if early else TREE_ORACLE
            yield "regret", contest.split, names.index(oracle), at


def label(entry: Entry) -> str:
    """A name that says which arms are chosen from: "kNN on B"."""
    name = entry.outcome.name
    return f"{name} on {entry.arms}" if entry.arms else name


def _baselines(contest: Contest, reading: bool) -> list[int]:
    """Numbers of the baselines; with `reading` those that read answers, too."""
    return [
        at
        for at, entry in enumerate(contest.entries)
        if entry.outcome.kind == "baseline" and (reading or not entry.reads_answers)
    ]


def _worth(contest: Contest, fold: str, shown: Values) -> dict[int, tuple[float, float]]:
    """Mean R of each entry on a fold, and what it costs less; those unknown there are left out.

    `shown`: float64[entries, queries], R on the fold shown.
    """
    figures = [(one.validation, one.validation_cost) for one in contest.entries]
    if fold == contest.split:
        costs = [float(one.outcome.cost.mean()) for one in contest.entries]
        figures = list(zip(shown.mean(axis=1).tolist(), costs, strict=True))
    return {
        at: (reward, -cost)
        for at, (reward, cost) in enumerate(figures)
        if reward is not None and cost is not None
    }


def _best(members: Sequence[int], worth: Mapping[int, tuple[float, float]]) -> int | None:
    """The entry with the highest mean R; ties: lower cost, then the first."""
    known = [at for at in members if at in worth]
    return max(known, key=worth.__getitem__, default=None)


FORMAT = 1  # of the JSON; a higher number where a key is renamed, dropped or means another thing
ENDS = ("", "_low", "_high")


def long_table(standings: Standings) -> Table:
    """Every field of every row, one line each: for spreadsheets and data frames."""
    rows = [_flat(row) for row in standings.rows]
    columns = tuple(Column(name, digits=9) for name in rows[0])
    lines = tuple(Line("", tuple(row.values())) for row in rows)
    return Table("Rows", columns, lines)


def as_json(standings: Standings) -> str:
    """One object, keys sorted, floats to 12 significant digits; see docs/reference/json.md."""
    contest = standings.contest
    found = {
        "format": FORMAT,
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
    return json_text(found, "comparison")


def _flat(row: Row) -> dict[str, Cell]:
    entry: Entry = row.entry
    metrics = ("accuracy", "quality", "cost", "reward", "difference", "simultaneous")
    return {
        "router": row.policy,
        "arms": row.arms,
        "kind": row.kind,
        "reads_answers": entry.reads_answers,
        **{name + end: getattr(row, name + end) for name in metrics for end in ENDS},
        "validation_reward": entry.validation,
        "fit_cpu_seconds": entry.fit_seconds,
        "settings": settings_text(entry.settings),
        "source": entry.source,
    }


def settings_text(settings: Mapping[str, Any]) -> str:
    """`neighbours 10, weights distance`."""
    return ", ".join(f"{name} {_shown(value)}" for name, value in settings.items())


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return settings_text(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return " ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


LEARNED, BOUNDS = "Learned on the tree", "Bounds: chosen knowing all answers"
BROUGHT = "Policies of your own"
SETS = {"A": "Set A: one direct call", "B": "Set B: whole routes, chosen at once"}
VALUES = {
    "second hop": "second hop: best of B - best of A",
    "adaptivity": "adaptivity: HierRouter - best of B",
    "lead": "HierRouter - best of all",
    "regret": "regret: oracle - policy",
}
VERSUS = 3  # columns of the first table that compare with the learned router
SHORT = 48  # characters of settings in a table
BLIND = (
    "For the second hop and for adaptivity only those baselines count that choose before they have "
    "seen any answer."
)
TOGETHER = (
    "The intervals all at once hold for every baseline together. The best of many baselines on "
    "the fold shown looks better than it is, so the difference to it looks smaller."
)


def contest_tables(standings: Standings) -> tuple[Table, ...]:
    """All tables that have a row, numbered by their places, the one to read first first."""
    return number_tables(named_tables(standings))


def named_tables(standings: Standings) -> dict[str, Table]:
    """The same by name, without numbers."""
    tables = {
        "reward": reward_table(standings),
        "quality": quality_table(standings),
        "values": value_table(standings),
        "settings": settings_table(standings),
    }
    return {name: table for name, table in tables.items() if table.rows}


def reward_table(standings: Standings) -> Table:
    """Q, C and R, and the paired difference to the learned router, if there is one."""
    contest, level = standings.contest, standings.bootstrap.interval_title
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
    lines = [_line(row, *row.cells(figures)) for row in standings.rows]
    title = (
        f"Net reward R = Q - {contest.alpha:g} C on {standings.queries} queries "
        f"({contest.split} fold), Q is {standings.scorer}, C in {standings.cost_unit}"
    )
    if contest.router is None:
        alone = [replace(line, cells=line.cells[:-VERSUS]) for line in lines]
        return Table(title, tuple(columns[:-VERSUS]), tuple(alone), " ".join(contest.notes))
    return Table(title, tuple(columns), tuple(lines), " ".join((*contest.notes, TOGETHER)))


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
    lines = [
        Line(
            BROUGHT if value.value == "regret" else f"Best as the {value.chosen_on} fold has it",
            (
                VALUES[value.value],
                *map(shown_name, (value.first, value.second)),
                *value.cells("difference [difference]"),
            ),
        )
        for value in standings.values
    ]
    title = "What a second hop is worth, and what seeing its first answer adds"
    return Table(title, columns, tuple(lines), BLIND)


def settings_table(standings: Standings) -> Table:
    """What the validation fold chose, and what fitting took."""
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
            one_line(settings_text(row.entry.settings), SHORT),
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
    outcome = row.entry.outcome
    group = {"router": LEARNED, "oracle": BOUNDS}.get(
        outcome.kind, SETS.get(row.entry.arms, BROUGHT)
    )
    return Line(group, (shown_name(outcome.name), *cells), ranked=outcome.kind != "oracle")
