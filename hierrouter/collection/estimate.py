"""What a collection will take before it is made, and consent to a large one.

The trees are walked as far as the cache knows them. Calls like those that are due tell the rest.
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
PILOT = (
    "what no call in the cache tells is unknown: collect a pilot with --limit 10 and look again; "
    "a larger --limit holds the smaller one, so none of its calls is wasted"
)
# A collection beyond either is not started without consent.
MOST_CALLS = 100_000
MOST_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class StageEstimate:
    """One model at one level; None is what nothing tells.

    Attributes:
        label: e.g. `hop 1 calc`; `all` for the sum.
        there: distinct calls of the plan that are answered, as far as prompts are known.
        calls: distinct calls to make, as expected.
        most_calls: an upper bound of them.
        tokens_in, tokens_out: of those expected, by the model's own tokenizer.
        seconds: in the model, if it answers as fast as before.
        cost: tokens times the pool's rates.
        disk: bytes, without embeddings.
    """

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
        """Both together, as far as both are known, under the first label."""
        names = [item.name for item in fields(self) if item.name != "label"]
        sums: Any = (_sum(getattr(self, name), getattr(other, name)) for name in names)
        return StageEstimate(self.label, *sums)


@dataclass(frozen=True)
class Estimate:
    """What a collection will take.

    Attributes:
        notes: what a person should know of these numbers.
    """

    queries: int
    nodes: int
    direct: int
    stages: tuple[StageEstimate, ...]
    notes: tuple[str, ...]
    currency: str = DEFAULT_CURRENCY

    @property
    def total(self) -> StageEstimate:
        """All stages together."""
        return sum(self.stages, StageEstimate("all"))

    @property
    def models_due(self) -> frozenset[str]:
        """Names of the models that are, or may be, called."""
        due = (stage.label for stage in self.stages if stage.most_calls)
        return frozenset(label.rpartition(" ")[2] for label in due)


def require_consent(pool: Pool, queries: Sequence[Query], root: Path) -> None:
    """Refuse what takes very many calls or more than a day.

    Raises InputError: with the numbers; CacheError: the cache is damaged. `root`: the cache's
    folder, or where it will be.
    """
    calls, reader = len(queries) * (pool.routes.calls + len(pool.all_models)), reader_of(root)
    slowest = reader and reader.sql(SLOWEST)[0][0].as_py()
    if calls > MOST_CALLS or calls * (slowest or 0) > MOST_SECONDS:
        refuse_large(estimate(pool, queries, root))


def refuse_large(found: Estimate) -> None:
    """Refuse what is expected to be large, or could be where nothing is expected.

    Raises InputError: with the numbers.
    """
    total = found.total
    word, count = ("at most", total.most_calls) if total.calls is None else ("about", total.calls)
    seconds = total.seconds or 0.0
    if count <= MOST_CALLS and seconds <= MOST_SECONDS:
        return
    time = f" and {seconds / 3600:,.0f} hours" if seconds else ""
    raise InputError(
        f"{word} {count:,.0f} model calls{time} are due for {found.queries:,} queries; "
        "look at them with --dry-run, then add --yes"
    )


def estimate(
    pool: Pool, queries: Sequence[Query], root: Path, engines: Engines = backend
) -> Estimate:
    """What collecting this into the cache at `root` will take.

    A model that cannot be reached from here is no error: all its calls count as new. Raises
    InputError: a local folder that is no model, or a device that is not there; CacheError: the
    cache is damaged.
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
    notes = [PILOT] if sum(stages, StageEstimate("all")).seconds is None else []
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
SLOWEST = "SELECT max(s) FROM (SELECT avg(latency_s) AS s FROM calls_rows GROUP BY step)"
# Tokens for a byte of a prompt, then for a call tokens in, tokens out and seconds.
MEANS = (
    f"SELECT step, {IS_FIRST} AS is_first, sum(tokens_in) / sum(strlen(prompt)), avg(tokens_in), "  # noqa: S608 - our own names
    "avg(tokens_out), avg(latency_s) FROM calls_rows GROUP BY ALL"
)
# Where all these steps have answered; equal answers lead to one context below.
DIFFERING = (
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
    per_call = None  # bytes on disk
    if reader and responses:
        rows = zip(*(column.to_pylist() for column in reader.sql(MEANS).columns), strict=True)
        means = {(step, is_first): told for step, is_first, *told in rows}
        sizes = [part.path.stat().st_size for part in reader.parts if part.kind == "calls"]
        per_call = sum(sizes) / len(responses)
    contexts = plan.root_contexts(query.question for query in queries)
    rates, counted = pool.rates(), set[str]()
    # Contexts behind answers not yet given: how many are expected, and at most.
    hidden: float | None = 0
    most = 0
    for level, named in enumerate([direct, *levels]):
        # Of two names of one model the first counts.
        stages = list({stage.step: stage for stage in reversed(named)}.values())[::-1]
        unanswered = 0
        for stage in stages:
            calls = list(stage.calls(contexts))
            unanswered += sum(call.key not in responses for call in calls)
            new = [call for call in calls if call.key not in counted]
            counted.update(call.key for call in new)
            due = [call for call in new if call.key not in responses]
            # Prompts that are known count by their length, hidden ones as those of before.
            known = sum(len(call.prompt.encode()) for call in due)
            told, rate = means.get((stage.step, level < 2)), rates[stage.model.name]
            per_byte, each_in, each_out, seconds = told or [None] * 4
            expected = _sum(len(due), hidden)
            known_in = known * (per_byte or 1 / BYTES_PER_TOKEN)
            tokens_in = _sum(known_in, _times(hidden, each_in))
            tokens_out = _times(expected, each_out)
            yield StageEstimate(
                label=stage.label,
                there=len(new) - len(due),
                calls=expected,
                most_calls=len(due) + most,
                tokens_in=tokens_in,
                tokens_out=tokens_out,
                seconds=_times(expected, seconds),
                cost=_sum(_times(tokens_in, rate.tokens_in), _times(tokens_out, rate.tokens_out)),
                disk=_times(expected, per_call),
            )
        if level > 0:  # nothing follows a direct call
            most = unanswered + len(stages) * most
            answers = _sum(unanswered, _times(len(stages), hidden))
            differing = None if len(stages) > 1 else 1
            if reader and len(stages) > 1:
                steps = [stage.step for stage in stages]
                differing = reader.sql(DIFFERING, [steps, level == 1])[0][0].as_py()
            hidden = _times(answers, differing)
            contexts = plan.next_contexts(stages, contexts, responses)


def _sum(one: float | None, other: float | None) -> float | None:
    """None where one is not known."""
    return None if one is None or other is None else one + other


def _times(count: float | None, each: float | None) -> float | None:
    """So many of what is one by one `each`; of none nothing needs to be known."""
    if count == 0:
        return 0
    return None if count is None or each is None else count * each


COLUMNS = ("model", "there", "due", "at most", "tokens in", "tokens out", "time", "cost", "disk")
SHOW = (
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
    """A row a stage with something to tell, and one for all."""
    shown = [stage for stage in estimate.stages if stage.there or stage.most_calls]
    rows = []
    for stage in shown:
        group, _, name = stage.label.rpartition(" ")
        rows.append(_line(group, name, stage))
    return Table(
        title=f"{estimate.queries:,} queries: {estimate.nodes:,} nodes and {estimate.direct:,} "
        "direct calls, equal ones once",
        columns=tuple(Column(title) for title in COLUMNS),
        rows=(*rows, _line("all", "all", estimate.total)),
        note="what is due is expected from earlier calls, where its prompts are not known; time is "
        "that of earlier calls; cost is tokens times the pool's rates, in "
        f"{estimate.currency}; embeddings come on top",
    )


def _line(group: str, name: str, stage: StageEstimate) -> Line:
    numbers = zip(astuple(stage)[1:], SHOW, strict=True)
    return Line(group, (name, *("unknown" if n is None else show(n) for n, show in numbers)))


def estimate_object(estimate: Estimate) -> dict[str, Any]:
    """JSON values: counts, `stages` and `total`; null is what nothing tells."""
    return {**asdict(estimate), "total": asdict(estimate.total)}
