"""Estimate calls, tokens, time, cost and disk of a collection, and ask consent to a large one.

The trees are walked as far as the cache knows them. The rest is extrapolated from calls of the same
steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

from hierrouter.collection import plan
from hierrouter.engines import backend
from hierrouter.engines.generator import Engines
from hierrouter.pools.pool import DEFAULT_CURRENCY, Identity, Pool
from hierrouter.questions.query import Query
from hierrouter.tables import Column, Line, Table, duration, short_number, size, whole_number
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.reader import CacheReader, reader_of
from hierrouter_cache.walk import TreeSpec

# English questions and answers; text in LaTeX has 2.4, see docs/decisions.md.
BYTES_PER_TOKEN = 4
PILOT_NOTE = (
    "what no call in the cache tells is unknown: collect a pilot with --limit 10 and look again; "
    "a larger --limit holds the smaller one, so none of its calls is wasted"
)
# A collection above one of these is not started without consent.
CONSENT_CALLS = 100_000
CONSENT_SECONDS = 24 * 3600.0


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
        seconds: in the model, if it answers as fast as before.
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

    def __add__(self, other: "StageEstimate") -> "StageEstimate":
        """The sum of both, under the first label; unknown if one is unknown."""
        names = [attribute.name for attribute in fields(self) if attribute.name != "label"]
        sums: Any = (_sum(getattr(self, name), getattr(other, name)) for name in names)
        return StageEstimate(self.label, *sums)


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
    """

    queries: int
    nodes: int
    direct: int
    stages: tuple[StageEstimate, ...]
    notes: tuple[str, ...]
    currency: str = DEFAULT_CURRENCY

    @property
    def total(self) -> StageEstimate:
        """The sum of all stages."""
        return sum(self.stages, StageEstimate("all"))

    @property
    def models_due(self) -> frozenset[str]:
        """Names of the models that are, or may be, called."""
        due = (stage.label for stage in self.stages if stage.most_calls)
        return frozenset(label.rpartition(" ")[2] for label in due)


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
    calls = len(queries) * (pool.routes.calls + len(pool.all_models))
    reader = reader_of(root)
    slowest = reader.sql(SLOWEST_STEP)[0][0].as_py() if reader else None  # seconds of a call
    if calls > CONSENT_CALLS or calls * (slowest or 0) > CONSENT_SECONDS:
        refuse_large(estimate(pool, queries, root))


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
    pool: Pool, queries: Sequence[Query], root: Path, engines: Engines = backend
) -> Estimate:
    """Estimate the collection of these queries into a cache.

    A model that cannot be reached from here is no error: all its calls count as new.

    Args:
        pool: the models to call.
        queries: to collect.
        root: the cache's folder, which need not exist yet.
        engines: identify the models.

    Returns:
        The estimate.

    Raises:
        InputError: a local folder holds no model, or a device does not exist.
        CacheError: the cache is damaged.
    """
    identities: dict[str, Identity] = {}
    absent = []
    for model in pool.all_models:
        try:
            identities[model.name] = engines(model.backend).identify(model)
        except WorldError:
            identities[model.name] = {"absent": model.model}
            absent.append(model.name)
    stages = tuple(_stages(pool, pool.tree_spec(identities), queries, reader_of(root)))
    notes = [PILOT_NOTE] if sum(stages, StageEstimate("all")).seconds is None else []
    if absent:
        notes.append(f"not reached from here, so all calls count as new: {', '.join(absent)}")
    return Estimate(
        queries=len(queries),
        nodes=len(queries) * pool.routes.calls,
        direct=len(queries) * len(pool.all_models),
        stages=stages,
        notes=tuple(notes),
        currency=pool.currency,
    )


# The first hop has shorter prompts than the same model with the same instruction has later.
IS_FIRST = "context IN (SELECT context FROM queries_rows)"
SLOWEST_STEP = "SELECT max(s) FROM (SELECT avg(latency_s) AS s FROM calls_rows GROUP BY step)"
# Tokens for a byte of a prompt, then tokens in, tokens out and seconds of a call.
STEP_MEANS = (
    f"SELECT step, {IS_FIRST} AS is_first, sum(tokens_in) / sum(strlen(prompt)), avg(tokens_in), "  # noqa: S608 - our own names
    "avg(tokens_out), avg(latency_s) FROM calls_rows GROUP BY ALL"
)
# Share of the steps' responses that differ, at contexts at which all these steps have answered.
# Equal responses lead to one context below.
DIFFERING_SHARE = (
    "SELECT avg(share) FROM (SELECT count(DISTINCT outcome) / count(DISTINCT step) AS share "  # noqa: S608 - our own names
    f"FROM calls_rows WHERE list_contains($1, step) AND ({IS_FIRST}) = $2 "
    "GROUP BY context HAVING count(DISTINCT step) = len($1))"
)


def _stages(
    pool: Pool, spec: TreeSpec, queries: Sequence[Query], reader: CacheReader | None
) -> Iterator[StageEstimate]:
    """Every stage in the order of the calls; of equal calls the first stage counts."""
    direct, levels = plan.stages_of(pool, spec)
    responses = reader.responses() if reader else {}
    means: dict[tuple[str, bool], list[float | None]] = {}
    bytes_per_call = None  # on disk
    if reader and responses:
        columns = [column.to_pylist() for column in reader.sql(STEP_MEANS).columns]
        for step, is_first, *step_means in zip(*columns, strict=True):
            means[step, is_first] = step_means
        sizes = [part.path.stat().st_size for part in reader.parts if part.kind == "calls"]
        bytes_per_call = sum(sizes) / len(responses)
    contexts = plan.root_contexts(query.question for query in queries)
    rates = pool.rates()
    counted = set[str]()
    # Hidden contexts are those behind responses that are not there yet: the expected number of
    # them, and an upper bound.
    hidden: float | None = 0
    max_hidden = 0
    for level, level_stages in enumerate([direct, *levels]):
        # If one model has two names, the first stage counts.
        first_stages: dict[str, plan.Stage] = {}
        for stage in level_stages:
            first_stages.setdefault(stage.step, stage)
        stages = list(first_stages.values())
        unanswered = 0
        for stage in stages:
            calls = list(stage.calls(contexts))
            unanswered += sum(call.key not in responses for call in calls)
            new = [call for call in calls if call.key not in counted]
            counted.update(call.key for call in new)
            due = [call for call in new if call.key not in responses]
            # Known prompts count by their length, hidden ones by the mean of earlier calls.
            prompt_bytes = sum(len(call.prompt.encode()) for call in due)
            step_means = means.get((stage.step, level < 2)) or [None] * 4
            tokens_per_byte, mean_in, mean_out, mean_seconds = step_means
            rate = rates[stage.model.name]
            expected = _sum(len(due), hidden)
            due_tokens_in = prompt_bytes * (tokens_per_byte or 1 / BYTES_PER_TOKEN)
            tokens_in = _sum(due_tokens_in, _product(hidden, mean_in))
            tokens_out = _product(expected, mean_out)
            yield StageEstimate(
                label=stage.label,
                there=len(new) - len(due),
                calls=expected,
                most_calls=len(due) + max_hidden,
                tokens_in=tokens_in,
                tokens_out=tokens_out,
                seconds=_product(expected, mean_seconds),
                cost=_sum(
                    _product(tokens_in, rate.tokens_in), _product(tokens_out, rate.tokens_out)
                ),
                disk=_product(expected, bytes_per_call),
            )
        if level > 0:  # nothing follows a direct call
            max_hidden = unanswered + len(stages) * max_hidden
            new_responses = _sum(unanswered, _product(len(stages), hidden))
            differing_share = None if len(stages) > 1 else 1
            if reader and len(stages) > 1:
                steps = [stage.step for stage in stages]
                differing_share = reader.sql(DIFFERING_SHARE, [steps, level == 1])[0][0].as_py()
            hidden = _product(new_responses, differing_share)
            contexts = plan.next_contexts(stages, contexts, responses)


def _sum(first: float | None, second: float | None) -> float | None:
    """The sum of two numbers; None if one of them is unknown."""
    return None if first is None or second is None else first + second


def _product(count: float | None, value: float | None) -> float | None:
    """`count` times `value`; 0 if the count is 0, though the value is unknown, else None."""
    if count == 0:
        return 0
    return None if count is None or value is None else count * value


ESTIMATE_COLUMNS = (
    "model",
    "there",
    "due",
    "at most",
    "tokens in",
    "tokens out",
    "time",
    "cost",
    "disk",
)
# Of each column but the first.
COLUMN_FORMATS = (
    whole_number,
    whole_number,
    whole_number,
    short_number,
    short_number,
    duration,
    short_number,
    size,
)


def estimate_table(estimate: Estimate) -> Table:
    """A table with a row for each stage that has calls, and one for all."""
    rows = []
    for stage in estimate.stages:
        if stage.there or stage.most_calls:
            group, _, model = stage.label.rpartition(" ")
            rows.append(_line(group, model, stage))
    return Table(
        title=f"{estimate.queries:,} queries: {estimate.nodes:,} nodes and {estimate.direct:,} "
        "direct calls, equal ones once",
        columns=tuple(Column(title) for title in ESTIMATE_COLUMNS),
        rows=(*rows, _line("all", "all", estimate.total)),
        note="what is due is expected from earlier calls, where its prompts are not known; time is "
        "that of earlier calls; cost is tokens times the pool's rates, in "
        f"{estimate.currency}; embeddings come on top",
    )


def _line(group: str, name: str, stage: StageEstimate) -> Line:
    _, *numbers = astuple(stage)
    cells = [
        "unknown" if number is None else text_of(number)
        for number, text_of in zip(numbers, COLUMN_FORMATS, strict=True)
    ]
    return Line(group, (name, *cells))


def estimate_object(estimate: Estimate) -> dict[str, Any]:
    """The estimate as JSON values: counts, `stages` and `total`; null is unknown."""
    return {**asdict(estimate), "total": asdict(estimate.total)}
