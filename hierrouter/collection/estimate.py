"""What a collection will take before it is made, and consent to a large one.

The cache is walked as far as it knows the trees. Calls like those that are due tell the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from operator import add, mul
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from hierrouter.collection import plan
from hierrouter.engines import backend
from hierrouter.engines.generator import Engines
from hierrouter.pools.pool import MONEY, Identity, Pool
from hierrouter.questions.query import Query
from hierrouter.tables import Cell, Column, Line, Table, duration, short, size, whole
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.reader import CacheReader, reader_of
from hierrouter_cache.tree import Rate
from hierrouter_cache.walk import TreeSpec

# English questions and answers; text in LaTeX has 2.4, see docs/decisions.md.
BYTES_PER_TOKEN = 4
# A chat template adds some tokens to each prompt.
TEMPLATE_TOKENS = 64
# Keys and numbers of a stored row, before compression.
ROW_BYTES = 256
# Calls or contexts of one dataset; fewer tell less than all datasets together.
ENOUGH = 10
PILOT = (
    "what no call in the cache tells is unknown: collect a pilot with --limit 10 and look again; "
    "a larger --limit holds the smaller one, so none of its calls is wasted"
)
# A collection beyond either is not started without consent.
MOST_CALLS = 100_000
MOST_SECONDS = 24 * 3600.0
COLUMNS = ("model", "there", "calls", "tokens in", "tokens out", "time", "cost", "disk")
UNKNOWN = "unknown"
Show = Callable[[float], str]


@dataclass(frozen=True)
class Amount:
    """A number of which not everything is known.

    Attributes:
        expected: the best guess; None where there is none.
        most: an upper bound; None where there is none.
    """

    expected: float | None
    most: float | None

    @property
    def is_exact(self) -> bool:
        """Whether it is no guess."""
        return self.expected is not None and self.expected == self.most

    def __add__(self, other: Amount) -> Amount:
        """The sum, as far as both are known."""
        return Amount(_both(add, self.expected, other.expected), _both(add, self.most, other.most))

    def times(self, expected: float | None, most: float | None) -> Amount:
        """So many of what is one by one expected to be `expected` and is at most `most`."""
        if self.most == 0:
            return NOTHING
        return Amount(_both(mul, self.expected, expected), _both(mul, self.most, most))


def _both(
    operation: Callable[[float, float], float], one: float | None, other: float | None
) -> float | None:
    return None if one is None or other is None else operation(one, other)


def exactly(number: float) -> Amount:
    """A number that is known."""
    return Amount(number, number)


NOTHING = exactly(0)


@dataclass(frozen=True)
class StageEstimate:
    """One model at one level.

    Attributes:
        label: e.g. `hop 1 calc`; `all` for the sum.
        there: distinct calls of the plan that are answered, as far as prompts are known.
        calls: distinct calls to make.
        tokens_in, tokens_out: of those, by the model's own tokenizer.
        seconds: in the model, if it answers as fast as before.
        cost: tokens times the pool's rates.
        disk: bytes, without embeddings.
    """

    label: str
    there: int = 0
    calls: Amount = NOTHING
    tokens_in: Amount = NOTHING
    tokens_out: Amount = NOTHING
    seconds: Amount = NOTHING
    cost: Amount = NOTHING
    disk: Amount = NOTHING

    def __add__(self, other: StageEstimate) -> StageEstimate:
        """Both together, under the first label."""
        names = [item.name for item in fields(self) if item.name != "label"]
        return StageEstimate(
            self.label, *(getattr(self, name) + getattr(other, name) for name in names)
        )


@dataclass(frozen=True)
class Estimate:
    """What a collection will take.

    Attributes:
        queries: in the plan.
        nodes: of all their trees, whether their prompts are equal or not.
        direct: single-model calls, likewise.
        stages: in the order in which they are called.
        notes: what a person should know of these numbers.
        currency: of the costs.
    """

    queries: int
    nodes: int
    direct: int
    stages: tuple[StageEstimate, ...]
    notes: tuple[str, ...]
    currency: str = MONEY

    @property
    def total(self) -> StageEstimate:
        """All stages together."""
        return sum(self.stages, StageEstimate("all"))

    @property
    def models_due(self) -> frozenset[str]:
        """Names of the models that are, or may be, called."""
        due = (stage.label for stage in self.stages if stage.calls.most != 0)
        return frozenset(label.rpartition(" ")[2] for label in due)


def require_consent(
    pool: Pool, queries: Sequence[Query], root: Path, engines: Engines = backend
) -> None:
    """Refuse what takes very many calls or more than a day.

    Raises InputError: with the numbers; CacheError: the cache is damaged.

    `pool`: the models, hops and stage instructions; `queries`: what will be asked; `root`: the
    cache's folder, or where it will be; `engines`: the backend of a name.
    """
    calls = len(queries) * (pool.routes.calls + len(pool.everyone))
    if calls > MOST_CALLS or calls * _slowest(root) > MOST_SECONDS:
        refuse_large(estimate(pool, queries, root, engines))


def refuse_large(found: Estimate) -> None:
    """Refuse what is expected to be large, or could be where nothing is expected.

    Raises InputError: with the numbers.
    """
    calls, seconds = found.total.calls, found.total.seconds.expected or 0.0
    count = (calls.most if calls.expected is None else calls.expected) or 0
    if count <= MOST_CALLS and seconds <= MOST_SECONDS:
        return
    word = "at most" if calls.expected is None else "about"
    time = f" and {seconds / 3600:,.0f} hours" if seconds else ""
    raise InputError(
        f"{word} {count:,.0f} model calls{time} are due for {found.queries:,} queries; "
        "look at them with --dry-run, then add --yes"
    )


def _slowest(root: Path) -> float:
    """Seconds that a call of the slowest kind took on average; 0 where nothing is known."""
    reader = reader_of(root)
    if reader is None:
        return 0.0
    means = reader.sql("SELECT avg(latency_s) AS seconds FROM calls_rows GROUP BY step")
    return max((mean for mean in means["seconds"].to_pylist() if mean), default=0.0)


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
    for model in pool.everyone:
        try:
            identities[model.name] = engines(model.backend).identify(model)
        except WorldError:
            identities[model.name] = {"absent": model.model}
            absent.append(model.name)
    spec = pool.tree_spec(identities)
    found = survey(pool, spec, queries, reader_of(root))
    direct, levels = plan.stages_of(pool, spec)
    stages = {stage.label: StageEstimate(stage.label) for stage in sum(levels, direct)}
    for dataset in dict.fromkeys(query.dataset for query in queries):
        for part in _of_dataset(found, dataset):
            stages[part.label] += part
    notes = []
    if sum(stages.values(), StageEstimate("all")).seconds.expected is None:
        notes.append(PILOT)
    if absent:
        notes.append(f"not reached from here, so all calls count as new: {', '.join(absent)}")
    return Estimate(
        queries=len(queries),
        nodes=len(queries) * pool.routes.calls,
        direct=len(queries) * len(pool.everyone),
        stages=tuple(stages.values()),
        notes=tuple(notes),
        currency=pool.currency,
    )


def _of_dataset(found: Survey, dataset: str) -> Iterator[StageEstimate]:
    """Every stage, for the queries of one dataset."""
    # Contexts behind answers not yet given, and the tokens of all of them at most.
    hidden: Amount = NOTHING
    tokens: float = 0
    for stage in found.direct:
        yield _of_stage(stage, found, dataset, hidden, tokens)
    for level, stages in enumerate(found.levels):
        calls, longest = NOTHING, 0.0
        for stage in stages:
            yield _of_stage(stage, found, dataset, hidden, tokens)
            known = found.known_of(stage, dataset)
            here = exactly(known.open) + hidden
            answers = (here.most or 0) * stage.model.generation.max_new_tokens
            calls, longest = calls + here, longest + known.open_bytes + tokens + answers
        answered = found.answered_of(level, dataset)
        differing = answered[1] / answered[0] / len(stages) if answered else None
        hidden, tokens = calls.times(1 if len(stages) == 1 else differing, 1), longest


def _of_stage(
    stage: plan.Stage, found: Survey, dataset: str, hidden: Amount, hidden_tokens: float
) -> StageEstimate:
    known, seen = found.known_of(stage, dataset), found.seen_of(stage, dataset)
    calls = exactly(known.due) + hidden
    if calls.most == 0:
        return StageEstimate(stage.label, known.there)
    # Prompts that are known count by their length, hidden ones as those of before. A token has
    # at least one byte.
    per_byte = seen.tokens_in / seen.prompt_bytes if seen else 1 / BYTES_PER_TOKEN
    own = TEMPLATE_TOKENS + len(stage.instruction.encode())
    behind = hidden.times(seen.tokens_in / seen.calls if seen else None, own)
    tokens_in = behind + Amount(
        known.due_bytes * per_byte, known.due_bytes + known.due * TEMPLATE_TOKENS + hidden_tokens
    )
    limit = stage.model.generation.max_new_tokens
    tokens_out = calls.times(seen.tokens_out / seen.calls if seen else None, limit)
    rate = found.rates[stage.model.name]
    # On disk as the cache's other calls; at most as if nothing could be compressed.
    raw = calls.times(None, ROW_BYTES) + (tokens_in + tokens_out).times(None, BYTES_PER_TOKEN)
    return StageEstimate(
        label=stage.label,
        there=known.there,
        calls=calls,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        seconds=_seconds(calls, tokens_out, seen),
        cost=tokens_in.times(rate.tokens_in, rate.tokens_in)
        + tokens_out.times(rate.tokens_out, rate.tokens_out),
        disk=Amount(calls.times(found.bytes_per_call if seen else None, None).expected, raw.most),
    )


def _seconds(calls: Amount, tokens_out: Amount, seen: Sums | None) -> Amount:
    """As fast as before; at most as if no answer ended before its limit."""
    if seen is None or not seen.timed:
        return Amount(None, None)
    per_token = seen.seconds / seen.timed_tokens if seen.timed_tokens else None
    longest = tokens_out.times(None, per_token)
    return Amount(calls.times(seen.seconds / seen.timed, None).expected, longest.most)


@dataclass
class Known:
    """The calls of one stage whose prompts are known, for one dataset.

    Attributes:
        there: distinct calls that are answered; of equal calls the first stage counts.
        due: distinct calls that are not.
        due_bytes: of their prompts, in UTF-8.
        open: contexts whose answer is not known, be the call counted here or before.
        open_bytes: of the prompts of those.
    """

    there: int = 0
    due: int = 0
    due_bytes: int = 0
    open: int = 0
    open_bytes: int = 0


class Sums(NamedTuple):
    """Over answered calls of one kind; the timed ones say how long they took, in seconds."""

    calls: int
    prompt_bytes: int
    tokens_in: int
    tokens_out: int
    timed: int
    timed_tokens: int
    seconds: float


@dataclass
class Survey:
    """What a cache knows of some trees, by dataset; the dataset "" is all of them together.

    Attributes:
        direct, levels: the stages, see `stages_of`; of two names of one model, the first.
        responses: of all answered calls, by key.
        rates: cost of a token of each model, by name.
        known: by stage label and dataset, for the queries that are planned.
        answered: (how many, how many different answers) of the contexts that every model of a level
            has answered, by level and dataset; equal answers lead to one context below.
        seen: by stage label and dataset.
        bytes_per_call: on disk; None where there are no calls.
    """

    direct: list[plan.Stage]
    levels: list[list[plan.Stage]]
    responses: Mapping[str, str]
    rates: Mapping[str, Rate]
    known: dict[tuple[str, str], Known] = field(default_factory=dict)
    answered: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    seen: Mapping[tuple[str, str], Sums] = field(default_factory=dict)
    bytes_per_call: float | None = None
    _counted: set[str] = field(default_factory=set)
    _kinds: dict[str, list[str]] = field(
        default_factory=lambda: {"key": [], "label": [], "dataset": []}
    )

    def known_of(self, stage: plan.Stage, dataset: str) -> Known:
        """What is known of a stage's calls; nothing where another stage makes the same ones."""
        return self.known.get((stage.label, dataset), Known())

    def seen_of(self, stage: plan.Stage, dataset: str) -> Sums | None:
        """Calls like those of this stage, of the dataset where there are enough, else of all."""
        own = self.seen.get((stage.label, dataset))
        return own if own and own.calls >= ENOUGH else self.seen.get((stage.label, ""))

    def answered_of(self, level: int, dataset: str) -> tuple[int, int] | None:
        """Contexts of this level, of the dataset where there are enough, else of all."""
        own = self.answered.get((level, dataset))
        return own if own and own[0] >= ENOUGH else self.answered.get((level, ""))

    def walk(self, dataset: str, questions: Sequence[str], planned: bool) -> None:
        """Look at the trees of one dataset's questions, level by level."""
        contexts = plan.root_contexts(questions)
        for stage in self.direct:
            self._visit(stage, contexts, dataset, planned)
        for level, stages in enumerate(self.levels):
            for stage in stages:
                self._visit(stage, contexts, dataset, planned)
            answers = [plan.responses_to(stages, context, self.responses) for context in contexts]
            whole = [len(set(texts)) for texts in answers if len(texts) == len(stages)]
            for name in (dataset, "") if whole else ():
                count, different = self.answered.get((level, name), (0, 0))
                self.answered[level, name] = count + len(whole), different + sum(whole)
            contexts = plan.next_contexts(stages, contexts, self.responses)

    def _visit(
        self, stage: plan.Stage, contexts: plan.Contexts, dataset: str, planned: bool
    ) -> None:
        known = Known()
        for call in stage.calls(contexts):
            size = len(call.prompt.encode())
            is_new = call.key not in self._counted
            self._counted.add(call.key)
            if call.key not in self.responses:
                known.open += 1
                known.open_bytes += size
                known.due += is_new
                known.due_bytes += size * is_new
            elif is_new:
                known.there += 1
                for name, value in zip(self._kinds, (call.key, stage.label, dataset), strict=True):
                    self._kinds[name].append(value)
        if planned:
            self.known[stage.label, dataset] = known

    def measure(self, reader: CacheReader) -> None:
        """Add up what the answered calls took, by stage and dataset, and by stage alone."""
        kinds = {name: pa.array(texts, pa.string()) for name, texts in self._kinds.items()}
        rows = reader.sql(
            "SELECT label, coalesce(dataset, '') AS dataset, count(*) AS calls, "
            "sum(strlen(prompt))::BIGINT AS prompt_bytes, sum(tokens_in)::BIGINT AS tokens_in, "
            "sum(tokens_out)::BIGINT AS tokens_out, count(latency_s) AS timed, "
            "coalesce(sum(tokens_out) FILTER (latency_s IS NOT NULL), 0)::BIGINT AS timed_tokens, "
            "coalesce(sum(latency_s), 0) AS seconds FROM calls JOIN kinds USING (key) "
            "GROUP BY GROUPING SETS ((label, dataset), (label))",
            kinds=pa.table(kinds),
        ).to_pylist()
        self.seen = {(row.pop("label"), row.pop("dataset")): Sums(**row) for row in rows}
        parts = [part for part in reader.parts if part.kind == "calls"]
        if stored := sum(part.rows for part in parts):
            self.bytes_per_call = sum(part.path.stat().st_size for part in parts) / stored


def survey(
    pool: Pool, spec: TreeSpec, queries: Sequence[Query], reader: CacheReader | None
) -> Survey:
    """Walk what is known of the trees of `queries`, and of all other queries of the cache.

    `pool`: the models, hops and stage instructions; `spec`: the pool as content keys; `queries`:
    what will be asked; `reader`: the cache, or None where there is none yet.
    """
    direct, levels = plan.stages_of(pool, spec)
    for stages in levels:
        first = {stage.step: stage for stage in reversed(stages)}
        stages[:] = [stage for stage in stages if first[stage.step] is stage]
    found = Survey(direct, levels, reader.responses() if reader else {}, pool.rates())
    asked: dict[str, str] = {}  # by question: its dataset; equal questions belong to the first
    for query in queries:
        asked.setdefault(query.question, query.dataset)
    others: dict[str, str] = {}
    if reader:
        rows = reader.sql(
            "SELECT min(dataset) AS dataset, question FROM queries GROUP BY question ORDER BY ALL"
        ).to_pylist()
        others = {row["question"]: row["dataset"] for row in rows if row["question"] not in asked}
    for questions in (asked, others):
        for dataset in dict.fromkeys(questions.values()):
            own = [question for question, place in questions.items() if place == dataset]
            found.walk(dataset, own, planned=questions is asked)
    if reader:
        found.measure(reader)
    return found


def estimate_table(estimate: Estimate) -> Table:
    """A row a stage with something to tell, and two for all: as expected, and at most."""
    shown = [stage for stage in estimate.stages if stage.there or stage.calls.most]
    rows = [
        Line(level, (model, *_cells(stage, _expected)))
        for stage in shown
        for level, _, model in [stage.label.rpartition(" ")]
    ]
    total = estimate.total
    rows += [
        Line("all", ("expected", *_cells(total, _expected))),
        Line("all", ("at most", *_cells(total, _most))),
    ]
    return Table(
        title=f"{estimate.queries:,} queries: {estimate.nodes:,} nodes and {estimate.direct:,} "
        "direct calls, equal ones once",
        columns=tuple(Column(title) for title in COLUMNS),
        rows=tuple(rows),
        note="~ is expected from earlier calls, or 4 bytes a token; <= where nothing is; time is "
        f"that of earlier calls; cost is tokens times the pool's rates, in {estimate.currency}; "
        "embeddings come on top; at most holds where the models' tokenizers count alike",
    )


def estimate_object(estimate: Estimate) -> dict[str, Any]:
    """JSON values: counts, `stages` and `total`, each amount as {"expected", "most"}."""
    return {**asdict(estimate), "total": asdict(estimate.total)}


def _cells(stage: StageEstimate, show: Callable[[Amount, Show], str]) -> tuple[Cell, ...]:
    return (
        f"{stage.there:,}",
        show(stage.calls, whole),
        show(stage.tokens_in, short),
        show(stage.tokens_out, short),
        show(stage.seconds, duration),
        show(stage.cost, short),
        show(stage.disk, size),
    )


def _expected(amount: Amount, show: Show) -> str:
    if amount.is_exact:
        return show(amount.expected or 0)
    if amount.expected is not None:
        return f"~{show(amount.expected)}"
    return UNKNOWN if amount.most is None else f"<={show(amount.most)}"


def _most(amount: Amount, show: Show) -> str:
    return UNKNOWN if amount.most is None else show(amount.most)
