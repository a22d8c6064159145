"""How far a collection is, and what it says at its end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from operator import add, sub
from pathlib import Path
from time import perf_counter
from typing import Any

from hierrouter.tables import Column, Line, Table, whole_number
from hierrouter_cache.errors import WorldError
from hierrouter_cache.reader import reader_of
from hierrouter_cache.tree import Rate

NAMED = 5  # changed queries; the others are counted
SECONDS_PER_LINE = 10.0
EARLY = 0.01  # share of a stage


@dataclass
class Progress:
    """What a collection reports while it runs; the default ignores it all.

    Attributes:
        on_level: told the label and the number of calls before each model at each level.
        on_calls: told the calls, tokens and cost of what was just answered.
        on_lost: told how many calls were just given up.
        on_changed: told, before the first call, which queries were collected earlier with another
            text or other reference answers, as `dataset/id`.
        summary: of what is under way, or was when it ended early; None before the first call.
    """

    on_level: Callable[[str, int], None] = lambda label, calls: None
    on_calls: Callable[[int, int, float], None] = lambda calls, tokens, cost: None
    on_lost: Callable[[int], None] = lambda calls: None
    on_changed: Callable[[Sequence[str]], None] = lambda names: None
    summary: Summary | None = None


@dataclass
class Meter:
    """Counts of the stage under way, and the cost of all.

    Attributes:
        clock: seconds since any moment.
        on_done: told, after they were counted, how many calls were just answered or given up.
        done, of: calls, those that were given up included.
        spent: cost of all calls so far, at the pool's rates.
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
        """Begin a stage of so many calls."""
        self.label, self.of = label, calls
        self.done = self.tokens = 0
        self.started = self.clock()

    def on_calls(self, calls: int, tokens: int, cost: float) -> None:
        """So many more are answered."""
        self.done += calls
        self.tokens += tokens
        self.spent += cost
        self.on_done(calls)

    def on_lost(self, calls: int) -> None:
        """So many more are given up."""
        self.done += calls
        self.failed += calls
        self.on_done(calls)

    def progress(self, say: Callable[[str], None]) -> Progress:
        """What tells a collection's progress to this meter; `say`: told of changed queries."""
        return Progress(
            self.on_level, self.on_calls, self.on_lost, lambda names: say(changed_line(names))
        )

    @property
    def seconds(self) -> float:
        """Since the stage began; above 0."""
        return max(self.clock() - self.started, 1e-9)

    @property
    def tokens_per_s(self) -> float:
        """Of this stage."""
        return self.tokens / self.seconds

    @property
    def eta_s(self) -> float | None:
        """Seconds to the end of this stage, if it goes on so; None until a hundredth is done.

        What came first took the time in which the model was loaded, too.
        """
        if not self.done or self.done < self.of * EARLY:
            return None
        return (self.of - self.done) * self.seconds / self.done


def progress_lines(
    put: Callable[[str], None],
    every_s: float = SECONDS_PER_LINE,
    clock: Callable[[], float] = perf_counter,
) -> Meter:
    """A meter that says how far it is, in lines of JSON.

    There is one every so often, and one at the end of each stage that took that long.

    `put`: takes a line; `every_s`: seconds between two lines, and before the first one; `clock`:
    seconds since any moment.
    """
    last = clock()

    def tell(calls: int) -> None:
        nonlocal last
        now, eta = clock(), meter.eta_s
        ended = meter.done >= meter.of and meter.seconds >= every_s
        if not ended and now - last < every_s:
            return
        last = now
        line = {
            "progress": meter.label,
            "done": meter.done,
            "of": meter.of,
            "failed": meter.failed,
            "tokens_per_s": round(meter.tokens_per_s),
            "eta_s": None if eta is None else round(eta),
            "spent": float(f"{meter.spent:.6g}"),
        }
        put(json.dumps(line))

    meter = Meter(clock, tell)
    return meter


@dataclass
class Spent:
    """What calls took: those that failed for good have no tokens, and cost nothing."""

    calls: int = 0
    failed: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Spent) -> Spent:
        return Spent(*map(sub, astuple(self), astuple(other)))


STORED = (
    "SELECT model, count(*) AS calls, sum(tokens_in)::BIGINT AS tokens_in, "
    "sum(tokens_out)::BIGINT AS tokens_out FROM calls GROUP BY model"
)


def spent_in(root: Path, rates: Mapping[str, Rate]) -> dict[str, Spent]:
    """What all calls in the cache at `root` took, each once, by model; of those with a rate."""
    reader, found = reader_of(root), dict[str, Spent]()
    for row in reader.sql(STORED).to_pylist() if reader else ():
        model = row.pop("model")
        if rate := rates.get(model):
            cost = rate.tokens_in * row["tokens_in"] + rate.tokens_out * row["tokens_out"]
            found[model] = Spent(**row, cost=cost)
    return found


@dataclass
class Summary:
    """What a collection did.

    Attributes:
        wanted: nodes and direct calls of all their trees.
        calls: model calls made now and answered.
        earlier: distinct calls that were in the cache before; the rest of `wanted` are nodes whose
            prompt is that of another node.
        failed: how many calls gave no answer after all attempts, by status.
        example: what the first of them said.
        missing: nodes and direct calls that are not there because of them.
        incomplete: queries that lack any.
        pruned: nodes and direct calls that were left out, because they hardly could be the best.
        spent: what the calls made now took, by model, at the pool's rates.
    """

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
    spent: dict[str, Spent] = field(default_factory=dict)

    def spend(self, model: str, more: Spent) -> None:
        """Count what a model was just asked for."""
        self.spent[model] = self.spent.get(model, Spent()) + more

    def __add__(self, other: Summary) -> Summary:
        """The summary of two shards of one plan; they ran side by side."""
        names = [item.name for item in fields(self) if item.name != "spent"]
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in names}
        sums["seconds"] = max(self.seconds, other.seconds)
        sums["example"] = self.example or other.example
        both = Summary(**sums, spent=dict(self.spent))
        for model, more in other.spent.items():
            both.spend(model, more)
        return both


def spent_table(spent: Mapping[str, Spent], currency: str) -> Table:
    """What was spent, a row a model and one for all."""
    rows = [*sorted(spent.items()), ("all", sum(spent.values(), Spent()))]
    names = ("calls", "failed", "tokens in", "tokens out")
    return Table(
        f"Spent now, in {currency}",
        (Column("model"), *map(Column, names), Column("cost", money=True)),
        tuple(Line("", (name, *map(whole_number, astuple(of)[:-1]), of.cost)) for name, of in rows),
    )


def require_answers(summary: Summary) -> None:
    """Refuse to call a collection whole in which a call gave no answer.

    Raises WorldError: with the number of failed calls of each status.
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
    """Which queries are not what they were when they were collected, in one line."""
    queries = "1 query" if len(names) == 1 else f"{len(names):,} queries"
    more = ", ..." if len(names) > NAMED else ""
    return (
        f"collect: {queries} changed: {', '.join(names[:NAMED])}{more}; "
        "asked anew, what was collected before stays"
    )
