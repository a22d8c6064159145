"""Estimate calls, tokens, time, cost and disk of a collection, and ask consent to a large one.

The trees are walked as far as the cache knows them. `expected` has what the rest takes at most, and
with `speed` what it takes if it goes on as the calls in the cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hierrouter.collection.due import DueStage, due_levels
from hierrouter.collection.expected import (
    NOTHING,
    Bound,
    ExpectedStage,
    add,
    bound_notes,
    bound_stage,
    expected_stages,
)
from hierrouter.collection.measures import Measures, Range
from hierrouter.collection.plan import engines_of_plan
from hierrouter.collection.speed import STARTUP_S, Speed, bound_seconds
from hierrouter.engines import backend, identities_of_actions, served_by
from hierrouter.engines.generator import Engines
from hierrouter.engines.token_counts import TokenCounter, token_counter
from hierrouter.pools.pool import DEFAULT_CURRENCY, OPENAI, Identity, Pool
from hierrouter.questions.query import Query
from hierrouter.tables import Column, Line, Table, duration, money, short_number, size, whole_number
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.reader import CacheReader, reader_of
from hierrouter_cache.tree import Rate

PILOT_NOTE = (
    "what no call in the cache tells is unknown: collect a pilot with --limit 10 and look again; "
    "a larger --limit holds the smaller one, so none of its calls is wasted"
)
# A collection above one of these is not started without consent.
CONSENT_CALLS = 100_000
CONSENT_SECONDS = 24 * 3600.0
SLOWEST_STEP = (
    "SELECT max(s) FROM (SELECT avg(latency_s) AS s FROM calls_rows "
    "WHERE judge_template IS NULL GROUP BY step)"
)


@dataclass(frozen=True)
class StageEstimate:
    """The estimate of one model at one level; None is unknown.

    Attributes:
        label: e.g. `hop 1 calc`; `all` for the sum.
        there: distinct calls of the plan that are answered, as far as prompts are known.
        calls: expected number of distinct calls to make.
        most_calls: an upper bound of them.
        tokens_in: of the prompts of the expected calls, by the model's own tokenizer.
        tokens_out: of their responses.
        seconds: share in the time of its model; of all, by the clock.
        cost: tokens times the pool's rates.
        disk: bytes, without embeddings.
    """

    # A dry run prints these names as JSON.
    label: str
    there: int = 0
    calls: float | None = 0
    most_calls: int = 0
    tokens_in: float | None = 0
    tokens_out: float | None = 0
    seconds: float | None = 0
    cost: float | None = 0
    disk: float | None = 0

    def __add__(self, other: StageEstimate) -> StageEstimate:
        """The sum of both, under the first label; unknown if one is unknown."""
        names = [attribute.name for attribute in fields(self) if attribute.name != "label"]
        sums: Any = (_sum(getattr(self, name), getattr(other, name)) for name in names)
        return StageEstimate(self.label, *sums)


@dataclass(frozen=True)
class Expectation:
    """The expected calls, tokens, cost and time of one model, or of all; None is unknown.

    Attributes:
        calls: distinct calls to make.
        tokens_in: of their prompts.
        tokens_out: of their responses.
        cost: tokens times the pool's rates.
        seconds: by the clock; those of all models include what comes before and after the calls.
    """

    # A dry run prints these names as JSON.
    calls: Range | None = NOTHING
    tokens_in: Range | None = NOTHING
    tokens_out: Range | None = NOTHING
    cost: Range | None = NOTHING
    seconds: Range | None = NOTHING


@dataclass(frozen=True)
class Estimate:
    """The estimate of a collection.

    Attributes:
        queries: number of queries.
        nodes: of all their trees.
        direct: number of direct calls.
        stages: the estimate of each model at each level.
        notes: remarks on these numbers, for people.
        currency: of the costs.
        expected: what each model with calls to make is expected to take, by name.
        expected_total: what all of them are expected to take.
        bounds: what each of them takes at most, by name; empty if it was not asked for.
        bound_total: what all of them take at most.
    """

    queries: int
    nodes: int
    direct: int
    stages: tuple[StageEstimate, ...]
    notes: tuple[str, ...]
    currency: str = DEFAULT_CURRENCY
    expected: Mapping[str, Expectation] = field(default_factory=dict)
    expected_total: Expectation = field(default_factory=Expectation)
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    bound_total: Bound = field(default_factory=Bound)

    @property
    def total(self) -> StageEstimate:
        """The sum of all stages; its seconds are those of the clock."""
        total = sum(self.stages, StageEstimate("all"))
        if not self.expected:
            return total
        return replace(total, seconds=_likely(self.expected_total.seconds))

    @property
    def models_due(self) -> frozenset[str]:
        """Names of the models that are, or may be, called."""
        return frozenset(self.expected)


def require_consent(pool: Pool, queries: Sequence[Query], root: Path) -> None:
    """Refuse a collection of very many calls, or of more than a day.

    Args:
        pool: the models to call.
        queries: to collect.
        root: the cache's folder, which need not exist yet.

    Raises:
        InputError: the collection is large; with the numbers.
        CacheError: the cache is damaged.
    """
    calls = len(queries) * pool.calls_per_query
    reader = reader_of(root)
    slowest = reader.sql(SLOWEST_STEP)[0][0].as_py() if reader else None  # seconds of a call
    if calls > CONSENT_CALLS or calls * (slowest or 0) > CONSENT_SECONDS:
        refuse_large(estimate(pool, queries, root, with_bound=False))


def refuse_large(estimate: Estimate) -> None:
    """Refuse a collection that is expected to be large, or may be if nothing is known.

    Raises:
        InputError: with the numbers.
    """
    total = estimate.total
    if total.calls is None:
        qualifier = "at most"
        count: float = total.most_calls
    else:
        qualifier = "about"
        count = total.calls
    seconds = total.seconds or 0.0
    if count <= CONSENT_CALLS and seconds <= CONSENT_SECONDS:
        return
    time = f" and {seconds / 3600:,.0f} hours" if seconds else ""
    raise InputError(
        f"{qualifier} {count:,.0f} model calls{time} are due for {estimate.queries:,} queries; "
        "look at them with --dry-run, then add --yes"
    )


def estimate(
    pool: Pool,
    queries: Sequence[Query],
    root: Path,
    engines: Engines = backend,
    with_bound: bool = True,
    started: float | None = None,
) -> Estimate:
    """Estimate the collection of these queries into a cache.

    A model that cannot be reached from here is no error: all its calls count as new.

    Args:
        pool: the models to call.
        queries: to collect.
        root: the cache's folder, which need not exist yet.
        engines: identify the models.
        with_bound: whether to look for an upper bound, too, for which all prompts are counted.
        started: when this program was started, by `time.time`: a collection will take as long to
            come to its first call as the estimate to come to its end. None is as usual.

    Returns:
        The estimate.

    Raises:
        InputError: a local folder holds no model, a device does not exist, or a model has no price.
        CacheError: the cache is damaged.
    """
    engines = engines_of_plan(root, engines)
    identities: dict[str, Identity] = {}
    absent = []
    for model in pool.all_models:
        try:
            identities[model.name] = engines(model.backend).identify(model)
        except WorldError:
            identities[model.name] = {"absent": model.model}
            absent.append(model.name)
    identities |= identities_of_actions(pool, identities, served_by(engines))
    rates = pool.rates()
    reader = reader_of(root)
    responses = reader.responses() if reader else {}
    levels = list(due_levels(pool, pool.tree_spec(identities), queries, responses))
    measures = Measures(reader)
    if with_bound:
        counters = {model.name: token_counter(model) for model in pool.all_models}
    else:  # by bytes, which is quick
        counters = {model.name: TokenCounter(model) for model in pool.all_models}
    for level in levels:
        for due_stage in level.stages:
            counter = counters[due_stage.stage.model.name]
            for sample in measures.depths(due_stage.stage.step).values():
                # The shortest prompt so far has the whole template in it.
                shortest = int(sample.tokens_in.min())
                counter.template_tokens = min(counter.template_tokens, shortest)
    # Of equal questions in two datasets the first counts.
    datasets = {query.question: query.dataset for query in reversed(queries)}
    stages = list(expected_stages(levels, datasets, reader, measures, counters, rates))
    speed = Speed(pool, stages, measures, None if started is None else time.time() - started)
    due = [stage for stage in stages if stage.due.most_calls]
    expected = {}
    for name, seconds in speed.by_model.items():
        own = [stage for stage in due if stage.model.name == name]
        expected[name] = replace(_expectation(own), seconds=seconds)
    total = replace(_expectation(due), seconds=speed.total)
    bytes_per_call = _bytes_per_call(reader, len(responses))
    notes = [PILOT_NOTE] if total.seconds is None else []
    notes += _dataset_notes(due, datasets, measures)
    bounds: dict[str, Bound] = {}
    if with_bound:
        bounds = _bounds([stage.due for stage in due], counters, rates, measures)
        notes += bound_notes([counters[name] for name in bounds])
    if absent:
        notes.append(f"not reached from here, so all calls count as new: {', '.join(absent)}")
    return Estimate(
        queries=len(queries),
        nodes=len(queries) * pool.layout.calls,
        direct=len(queries) * pool.direct_calls,
        stages=tuple(_stage_estimate(stage, expected, bytes_per_call) for stage in stages),
        notes=tuple(notes),
        currency=pool.currency,
        expected=expected,
        expected_total=total,
        bounds=bounds,
        bound_total=_bound_of_all(pool, bounds),
    )


def _expectation(stages: Iterable[ExpectedStage]) -> Expectation:
    """Sum up stages; seconds are left to `Speed`."""
    names = ("calls", "tokens_in", "tokens_out", "cost")
    sums: dict[str, Range | None] = dict.fromkeys(names, NOTHING)
    for stage in stages:
        for name in names:
            sums[name] = add(sums[name], getattr(stage, name))
    return Expectation(**sums)


def _stage_estimate(
    stage: ExpectedStage, expected: Mapping[str, Expectation], bytes_per_call: float | None
) -> StageEstimate:
    """The likely values of a stage; it has the share of its tokens in the time of its model."""
    calls = _likely(stage.calls)
    tokens_out = _likely(stage.tokens_out)
    seconds: float | None = 0
    if stage.due.most_calls:
        model = expected[stage.model.name]
        model_tokens = _likely(model.tokens_out)
        share = tokens_out / model_tokens if tokens_out and model_tokens else 0
        seconds = _product(share, _likely(model.seconds))
        if tokens_out is None:
            seconds = None
    return StageEstimate(
        label=stage.due.stage.label,
        there=stage.due.there,
        calls=calls,
        most_calls=stage.due.most_calls,
        tokens_in=_likely(stage.tokens_in),
        tokens_out=tokens_out,
        seconds=seconds,
        cost=_likely(stage.cost),
        disk=_product(calls, bytes_per_call),
    )


def _bytes_per_call(reader: CacheReader | None, calls: int) -> float | None:
    """Bytes on disk of a call in the cache; None if there is none."""
    if reader is None or not calls:
        return None
    return sum(part.path.stat().st_size for part in reader.parts if part.kind == "calls") / calls


def _dataset_notes(
    stages: Iterable[ExpectedStage], datasets: Mapping[str, str], measures: Measures
) -> list[str]:
    """Name the datasets whose calls are expected to be like those of other datasets."""
    names: set[str] = set()
    for stage in stages:
        names |= {datasets[question] for question, *_ in stage.due.texts}
    missing = sorted(name for name in names if not measures.has(name))
    if not measures or not missing:
        return []
    return [
        f"no call of {', '.join(missing)} is in the cache, so theirs are expected to be like those "
        "of the other datasets; a pilot of all datasets tells more"
    ]


def _bounds(
    stages: Iterable[DueStage],
    counters: Mapping[str, TokenCounter],
    rates: Mapping[str, Rate],
    measures: Measures,
) -> dict[str, Bound]:
    """The bound of each model, by name."""
    bounds: dict[str, Bound] = {}
    steps: dict[str, set[str]] = {}
    for due in stages:
        name = due.stage.model.name
        tokens_in, tokens_out = bound_stage(due, counters)
        cost = rates[due.stage.caller].highest.cost(tokens_in, tokens_out, calls=due.most_calls)
        bounds[name] = bounds.get(name, Bound()) + Bound(
            due.most_calls, tokens_in, tokens_out, cost
        )
        steps.setdefault(name, set()).add(due.stage.step)
    return {
        name: replace(
            bound, seconds=bound_seconds(counters[name].spec, bound, steps[name], measures)
        )
        for name, bound in bounds.items()
    }


def _bound_of_all(pool: Pool, bounds: Mapping[str, Bound]) -> Bound:
    """The bound of all models: on this machine one after the other, servers side by side."""
    total = sum(bounds.values(), Bound())
    local = 0.0
    served = 0.0
    for model in pool.all_models:
        if model.name not in bounds:
            continue
        seconds = bounds[model.name].seconds
        if seconds is None:
            return replace(total, seconds=None)
        if model.backend == OPENAI:
            served = max(served, seconds)
        else:
            local += seconds
    return replace(total, seconds=local + served + (STARTUP_S.high if bounds else 0.0))


def _sum(first: float | None, second: float | None) -> float | None:
    """The sum of two numbers; None if one of them is unknown."""
    return None if first is None or second is None else first + second


def _product(count: float | None, value: float | None) -> float | None:
    """`count` times `value`; 0 if the count is 0, though the value is unknown, else None."""
    if count == 0:
        return 0
    return None if count is None or value is None else count * value


def _likely(value: Range | None) -> float | None:
    return None if value is None else value.likely


AMOUNT_COLUMNS = ("model", "calls", "tokens in", "tokens out", "cost", "time")
UNKNOWN = "unknown"


def estimate_tables(estimate: Estimate) -> list[Table]:
    """Tables of calls by stage, of the upper bound, and of what is expected if that is known."""
    tables = [_calls_table(estimate)]
    if estimate.bounds:
        tables.append(_bound_table(estimate))
    if estimate.expected and estimate.expected_total.tokens_out is not None:
        tables.append(_expected_table(estimate))
    return tables


def _calls_table(estimate: Estimate) -> Table:
    rows = []
    for stage in (*estimate.stages, estimate.total):
        if stage.there or stage.most_calls or stage.label == "all":
            group, _, model = stage.label.rpartition(" ")
            due = UNKNOWN if stage.calls is None else whole_number(stage.calls)
            disk = UNKNOWN if stage.disk is None else size(stage.disk)
            cells = (model, whole_number(stage.there), due, whole_number(stage.most_calls), disk)
            rows.append(Line(group or "all", cells))
    return Table(
        title=f"{estimate.queries:,} queries: {estimate.nodes:,} nodes and {estimate.direct:,} "
        "direct calls, equal ones once",
        columns=tuple(map(Column, ("model", "there", "due", "at most", "disk"))),
        rows=tuple(rows),
        note="what is due is expected from earlier calls, where its prompts are not known",
    )


def _bound_table(estimate: Estimate) -> Table:
    rows = [
        (
            name,
            whole_number(bound.calls),
            short_number(bound.tokens_in),
            short_number(bound.tokens_out),
            money(bound.cost),
            UNKNOWN if bound.seconds is None else duration(bound.seconds),
        )
        for name, bound in (*estimate.bounds.items(), ("all", estimate.bound_total))
    ]
    note = (
        "the tree of each query whole, and each response as long as its cap; cost in "
        f"{estimate.currency}; time at the speed of earlier calls"
    )
    return _amounts_table("At most", rows, note)


def _expected_table(estimate: Estimate) -> Table:
    rows = [
        (
            name,
            _interval(amounts.calls, whole_number),
            _interval(amounts.tokens_in, short_number),
            _interval(amounts.tokens_out, short_number),
            _interval(amounts.cost, money),
            _interval(amounts.seconds, duration),
        )
        for name, amounts in (*estimate.expected.items(), ("all", estimate.expected_total))
    ]
    note = (
        "if calls go on as those in the cache: the likely value, and in brackets a range; "
        f"cost in {estimate.currency}; time of all is by the clock, before embeddings and scores"
    )
    return _amounts_table("Expected", rows, note)


def _amounts_table(title: str, rows: Sequence[tuple[str, ...]], note: str) -> Table:
    """Return a table of calls, tokens, cost and time by model, one row each."""
    return Table(
        title=title,
        columns=tuple(map(Column, AMOUNT_COLUMNS)),
        rows=tuple(Line("", row) for row in rows),
        note=note,
    )


def _interval(amount: Range | None, show: Callable[[float], str]) -> str:
    """A range as text: the likely value, and both ends if they differ from it."""
    if amount is None:
        return UNKNOWN
    likely, low, high = map(show, (amount.likely, amount.low, amount.high))
    return likely if low == likely == high else f"{likely} ({low} to {high})"


def estimate_object(estimate: Estimate) -> dict[str, Any]:
    """The estimate as JSON values; null is unknown.

    Returns:
        Counts, `stages` and `total` with their likely values, `bound` and `estimate`, each of them
        with `models` and `total`.
    """
    return {
        "queries": estimate.queries,
        "nodes": estimate.nodes,
        "direct": estimate.direct,
        "notes": list(estimate.notes),
        "currency": estimate.currency,
        "stages": [asdict(stage) for stage in estimate.stages],
        "total": asdict(estimate.total),
        "bound": {
            "models": {name: asdict(bound) for name, bound in estimate.bounds.items()},
            "total": asdict(estimate.bound_total),
        },
        "estimate": {
            "models": {name: asdict(amounts) for name, amounts in estimate.expected.items()},
            "total": asdict(estimate.expected_total),
        },
    }
