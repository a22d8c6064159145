"""How far a collection is, what it costs, and the summary at its end."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from time import perf_counter
from typing import Any

from hierrouter.tables import Column, Line, Table, whole_number
from hierrouter_cache.errors import WorldError
from hierrouter_cache.reader import reader_of
from hierrouter_cache.tree import Rate

MAX_NAMED_QUERIES = 5  # changed queries in a message; the others are only counted
SECONDS_PER_LINE = 10.0
MIN_SHARE_FOR_ETA = 0.01  # of a stage: what is done before says little about its speed


@dataclass
class Progress:
    """Callbacks of a collection while it runs; the default ones ignore everything.

    Attributes:
        on_level: called with the label and the number of calls before each model at each level.
        on_calls: called with the calls, tokens and cost of what was just answered.
        on_lost: called with the number of calls that were just given up.
        on_changed: called, before the first call, with the queries that were collected earlier with
            another question or other reference answers, as `dataset/id`.
        summary: of the collection under way, or of one that ended early; None before the first
            call.
    """

    on_level: Callable[[str, int], None] = lambda label, calls: None
    on_calls: Callable[[int, int, float], None] = lambda calls, tokens, cost: None
    on_lost: Callable[[int], None] = lambda calls: None
    on_changed: Callable[[Sequence[str]], None] = lambda names: None
    summary: Summary | None = None


@dataclass
class Meter:
    """Counts of the stage under way, and the cost of all stages.

    Attributes:
        clock: returns seconds since a fixed moment.
        on_done: called with the number of calls that were just counted as answered or given up.
        label: of the stage.
        done: calls of the stage that were answered or given up.
        of: calls of the stage.
        failed: calls that were given up, of all stages.
        tokens: of the stage, in and out.
        spent: cost of all calls so far, at the pool's rates.
        started: when the stage began, by the clock.
    """

    clock: Callable[[], float] = perf_counter
    on_done: Callable[[int], None] = lambda calls: None
    label: str = ""
    done: int = 0
    of: int = 0
    failed: int = 0
    tokens: int = 0
    spent: float = 0.0
    started: float = 0.0

    def on_level(self, label: str, calls: int) -> None:
        """Begin a stage with this number of calls."""
        self.label = label
        self.of = calls
        self.done = 0
        self.tokens = 0
        self.started = self.clock()

    def on_calls(self, calls: int, tokens: int, cost: float) -> None:
        """Count calls that were answered."""
        self.done += calls
        self.tokens += tokens
        self.spent += cost
        self.on_done(calls)

    def on_lost(self, calls: int) -> None:
        """Count calls that were given up."""
        self.done += calls
        self.failed += calls
        self.on_done(calls)

    def progress(self, on_note: Callable[[str], None]) -> Progress:
        """Callbacks that count a collection's progress with this meter.

        Args:
            on_note: called with a line about changed queries, if there are any.
        """
        return Progress(
            self.on_level, self.on_calls, self.on_lost, lambda names: on_note(changed_line(names))
        )

    @property
    def seconds(self) -> float:
        """Seconds since the stage began; above 0."""
        return max(self.clock() - self.started, 1e-9)

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of the stage."""
        return self.tokens / self.seconds

    @property
    def eta_s(self) -> float | None:
        """Seconds to the end of the stage at its present speed; None until a hundredth is done.

        The first calls include the time in which the model was loaded.
        """
        if not self.done or self.done < self.of * MIN_SHARE_FOR_ETA:
            return None
        return (self.of - self.done) * self.seconds / self.done


def progress_lines(
    put_line: Callable[[str], None],
    every_s: float = SECONDS_PER_LINE,
    clock: Callable[[], float] = perf_counter,
) -> Meter:
    """A meter that reports how far it is, in lines of JSON.

    There is a line every `every_s` seconds, and one at the end of each stage that took that long.

    Args:
        put_line: takes a line.
        every_s: seconds between two lines, and before the first one.
        clock: returns seconds since a fixed moment.

    Returns:
        The meter.
    """
    last_line = clock()

    def report(calls: int) -> None:
        nonlocal last_line
        now = clock()
        eta = meter.eta_s
        has_ended = meter.done >= meter.of and meter.seconds >= every_s
        if not has_ended and now - last_line < every_s:
            return
        last_line = now
        line = {
            "progress": meter.label,
            "done": meter.done,
            "of": meter.of,
            "failed": meter.failed,
            "tokens_per_s": round(meter.tokens_per_s),
            "eta_s": None if eta is None else round(eta),
            "spent": float(f"{meter.spent:.6g}"),
        }
        put_line(json.dumps(line))

    meter = Meter(clock, report)
    return meter


@dataclass
class Spending:
    """Calls, tokens and cost; calls that failed for good have no tokens, and cost nothing.

    Attributes:
        calls: that were answered.
        failed: calls that failed for good.
        tokens_in: tokens of the prompts.
        tokens_out: tokens of the responses.
        cost: in the pool's currency.
    """

    calls: int = 0
    failed: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0

    # Written out, because it is done for each call.
    def __add__(self, other: Spending) -> Spending:
        return Spending(
            calls=self.calls + other.calls,
            failed=self.failed + other.failed,
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            cost=self.cost + other.cost,
        )

    def __sub__(self, other: Spending) -> Spending:
        return Spending(
            calls=self.calls - other.calls,
            failed=self.failed - other.failed,
            tokens_in=self.tokens_in - other.tokens_in,
            tokens_out=self.tokens_out - other.tokens_out,
            cost=self.cost - other.cost,
        )


STORED_SPENDING = (
    "SELECT model, step, count(*) AS calls, sum(tokens_in)::BIGINT AS tokens_in, "
    "sum(tokens_out)::BIGINT AS tokens_out, "
    "coalesce(sum(tokens_cached), 0)::BIGINT AS cached, "
    "coalesce(sum(tokens_thoughts), 0)::BIGINT AS thoughts FROM calls "
    "WHERE judge_template IS NULL GROUP BY model, step ORDER BY model, step"
)


def stored_spending(
    root: Path, rates: Mapping[str, Rate], callers: Mapping[str, str] | None = None
) -> dict[str, Spending]:
    """Sum up all calls in a cache, each once, for each model that has a rate.

    Args:
        root: the cache's folder.
        rates: cost of a token, by model and action.
        callers: by step, the name of the action whose price its calls have; those of other steps
            have the price of their model.

    Returns:
        The spending by model; empty if there is no cache.

    Raises:
        CacheError: the cache is damaged.
    """
    reader = reader_of(root)
    if reader is None:
        return {}
    spending: dict[str, Spending] = {}
    tokens: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in reader.sql(STORED_SPENDING).to_pylist():
        model = str(row.pop("model"))
        caller = (callers or {}).get(row.pop("step"), model)
        tokens[model, caller].update(row)
    for (model, caller), count in tokens.items():
        rate = rates.get(caller)
        if rate:
            cached = count.pop("cached")
            thoughts = count.pop("thoughts")
            cost = rate.cost(
                count["tokens_in"], count["tokens_out"], cached, thoughts, count["calls"]
            )
            spending[model] = spending.get(model, Spending()) + Spending(**count, cost=cost)
    return spending


@dataclass
class Summary:
    """The result of a collection, in counts.

    Attributes:
        queries: whose trees were to be filled.
        wanted: nodes and direct calls of all their trees.
        calls: model calls made now and answered.
        earlier: distinct calls that were in the cache before; the rest of `wanted` are nodes whose
            prompt is that of another node.
        tokens_in: tokens of the prompts of the calls made now.
        tokens_out: tokens of their responses.
        seconds: in the models; of servers, which work side by side, by the clock.
        failed: calls without an answer after all attempts, by status.
        example: detail of the first of them.
        missing: nodes and direct calls that are absent because of them.
        incomplete: queries that lack any.
        pruned: nodes and direct calls that were left out, because they could hardly be the best.
        spent: spending of the calls made now, by model, at the pool's rates.
    """

    # The command line prints these names as JSON.

    queries: int
    wanted: int
    calls: int = 0
    earlier: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    failed: Counter[str] = field(default_factory=Counter)
    example: str = ""
    missing: int = 0
    incomplete: int = 0
    pruned: int = 0
    spent: dict[str, Spending] = field(default_factory=dict)

    def spend(self, model: str, spending: Spending) -> None:
        """Add to the spending of a model."""
        self.spent[model] = self.spent.get(model, Spending()) + spending

    def take_over(self, before: Summary) -> None:
        """Count what the same command did before it had to begin again.

        Args:
            before: its summary up to then. Its calls are found in the cache now.
        """
        self.calls += before.calls
        self.earlier -= before.calls
        self.tokens_in += before.tokens_in
        self.tokens_out += before.tokens_out
        self.seconds += before.seconds
        for model, spending in before.spent.items():
            self.spend(model, spending)

    def __add__(self, other: Summary) -> Summary:
        """The summary of two shards of one plan that ran side by side."""
        names = [attribute.name for attribute in fields(self) if attribute.name != "spent"]
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in names}
        sums["seconds"] = max(self.seconds, other.seconds)
        sums["example"] = self.example or other.example
        both = Summary(**sums, spent=dict(self.spent))
        for model, spending in other.spent.items():
            both.spend(model, spending)
        return both


def spending_table(spending: Mapping[str, Spending], currency: str) -> Table:
    """A table of what was spent: a row for each model and one for all.

    Args:
        spending: by model.
        currency: of the costs.
    """
    rows = [*sorted(spending.items()), ("all", sum(spending.values(), Spending()))]
    lines = []
    for name, total in rows:
        *counts, cost = astuple(total)
        lines.append(Line("", (name, *map(whole_number, counts), cost)))
    titles = ("calls", "failed", "tokens in", "tokens out")
    return Table(
        f"Spent now, in {currency}",
        (Column("model"), *map(Column, titles), Column("cost", money=True)),
        tuple(lines),
    )


def require_answers(summary: Summary) -> None:
    """Require that every call of a collection was answered.

    Raises:
        WorldError: calls failed; with their number by status.
    """
    if not summary.failed:
        return
    counts = ", ".join(f"{count} {status}" for status, count in summary.failed.most_common())
    remedy = "everything else is safe, rerun the same command to ask again for just those"
    if set(summary.failed) == {"too_long"}:
        remedy = "give the model a smaller max_new_tokens, or shorter questions"
    elif not summary.calls + summary.earlier:
        remedy = "nothing was answered: look at the model's name and settings"
    raise WorldError(
        f"{summary.failed.total()} calls failed ({counts}), {summary.incomplete} of "
        f"{summary.queries} queries are incomplete: {summary.example[:110]}; {remedy}"
    )


def changed_line(names: Sequence[str]) -> str:
    """One line about queries that changed since they were collected.

    Args:
        names: of the queries, as `dataset/id`.
    """
    queries = "1 query" if len(names) == 1 else f"{len(names):,} queries"
    examples = ", ".join(names[:MAX_NAMED_QUERIES])
    if len(names) > MAX_NAMED_QUERIES:
        examples += ", ..."
    return f"collect: {queries} changed: {examples}; asked anew, what was collected before stays"
