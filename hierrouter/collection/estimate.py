"""What a collection will take, before it is made, and consent to large ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from hierrouter.collection.plan import (
    Known,
    Seen,
    Stage,
    Survey,
    direct_stages,
    distinct,
    hop_stages,
    survey,
)
from hierrouter.engines import backend
from hierrouter.engines.generator import Engines
from hierrouter.pools.pool import Identity, ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.reader import CacheReader, reader_of
from hierrouter_cache.walk import TreeSpec


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
        return Amount(_sum(self.expected, other.expected), _sum(self.most, other.most))

    def times(self, expected: float | None, most: float | None) -> Amount:
        """So many of what is one by one expected to be `expected` and is at most `most`."""
        if self.most == 0:
            return NOTHING
        return Amount(_product(self.expected, expected), _product(self.most, most))


def exactly(number: float) -> Amount:
    """A number that is known."""
    return Amount(number, number)


NOTHING = exactly(0)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _product(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other


# English questions and answers; text in LaTeX has 2.4, see docs/decisions.md.
BYTES_PER_TOKEN = 4
# A chat template adds some tokens to each prompt.
TEMPLATE_TOKENS = 64
# Keys and numbers of a stored row, before compression.
ROW_BYTES = 256
PILOT = (
    "what no call in the cache tells is unknown: collect a pilot with --limit 10 and look again; "
    "a larger --limit holds the smaller one, so none of its calls is wasted"
)


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
    """

    queries: int
    nodes: int
    direct: int
    stages: tuple[StageEstimate, ...]
    notes: tuple[str, ...]

    @property
    def total(self) -> StageEstimate:
        """All stages together."""
        return sum(self.stages, StageEstimate("all"))


def estimate(
    pool: Pool, queries: Sequence[Query], root: Path, engines: Engines = backend
) -> Estimate:
    """What collecting this into the cache at `root` will take.

    A model that cannot be reached from here is no error: all its calls count as new.

    Raises:
        InputError: a local folder that is no model, or a device that is not there.
        CacheError: the cache is damaged.
    """
    identities, absent = _identities(pool.everyone, engines)
    found = estimate_calls(pool, pool.tree_spec(identities), queries, reader_of(root))
    if not absent:
        return found
    note = f"not reached from here, so all calls count as new: {', '.join(absent)}"
    return replace(found, notes=(*found.notes, note))


def estimate_calls(
    pool: Pool, spec: TreeSpec, queries: Sequence[Query], reader: CacheReader | None
) -> Estimate:
    """`estimate` for models that are identified and a cache that is open, None where there is none.

    Args:
        pool: the models, hops and stage instructions.
        spec: the pool as content keys.
        queries: what will be asked.
        reader: the cache.
    """
    found = survey(pool, spec, queries, reader)
    hops = [stage for level in range(pool.hops) for stage in hop_stages(pool, spec, level)]
    stages = {stage.label: StageEstimate(stage.label) for stage in direct_stages(pool, spec) + hops}
    for dataset in dict.fromkeys(query.dataset for query in queries):
        for part in _of_dataset(pool, spec, found, dataset):
            stages[part.label] += part
    whole = Estimate(
        queries=len(queries),
        nodes=len(queries) * pool.routes.calls,
        direct=len(queries) * len(pool.everyone),
        stages=tuple(stages.values()),
        notes=(),
    )
    return whole if whole.total.seconds.expected is not None else replace(whole, notes=(PILOT,))


def _identities(
    models: Iterable[ModelSpec], engines: Engines
) -> tuple[dict[str, Identity], list[str]]:
    """What each model resolves to, and the names of those that cannot be found."""
    found: dict[str, Identity] = {}
    absent = []
    for model in models:
        try:
            found[model.name] = engines(model.backend).identify(model)
        except WorldError:
            found[model.name] = {"absent": model.model}
            absent.append(model.name)
    return found, absent


@dataclass(frozen=True)
class _Hidden:
    """Contexts behind answers not yet given: how many, and the tokens of all of them at most."""

    contexts: Amount = NOTHING
    tokens: float = 0


def _of_dataset(pool: Pool, spec: TreeSpec, found: Survey, dataset: str) -> Iterator[StageEstimate]:
    """Every stage, for the queries of one dataset."""
    hidden = _Hidden()
    for stage in direct_stages(pool, spec):
        yield _of_stage(stage, found, dataset, hidden)
    for level in range(pool.hops):
        stages = distinct(hop_stages(pool, spec, level))
        for stage in stages:
            yield _of_stage(stage, found, dataset, hidden)
        hidden = _below(level, stages, found, dataset, hidden)


def _below(
    level: int, stages: Sequence[Stage], found: Survey, dataset: str, hidden: _Hidden
) -> _Hidden:
    """The contexts that answers of this level will lead to."""
    calls, tokens = NOTHING, 0.0
    for stage in stages:
        known = found.known_of(stage, dataset)
        here = exactly(known.open) + hidden.contexts
        longest = (here.most or 0) * stage.model.generation.max_new_tokens
        calls, tokens = calls + here, tokens + known.open_bytes + hidden.tokens + longest
    answered = found.answered_of(level, dataset)
    differing = answered.outcomes / answered.contexts / len(stages) if answered else None
    return _Hidden(calls.times(1 if len(stages) == 1 else differing, 1), tokens)


def _of_stage(stage: Stage, found: Survey, dataset: str, hidden: _Hidden) -> StageEstimate:
    known, seen = found.known_of(stage, dataset), found.seen_of(stage, dataset)
    calls = exactly(known.due) + hidden.contexts
    if calls.most == 0:
        return StageEstimate(stage.label, known.there)
    tokens_in = _tokens_in(stage, known, hidden, seen)
    limit = stage.model.generation.max_new_tokens
    tokens_out = calls.times(seen.tokens_out / seen.calls if seen else None, limit)
    rate = stage.model.price().rate
    return StageEstimate(
        label=stage.label,
        there=known.there,
        calls=calls,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        seconds=_seconds(calls, tokens_out, seen),
        cost=tokens_in.times(rate.tokens_in, rate.tokens_in)
        + tokens_out.times(rate.tokens_out, rate.tokens_out),
        disk=_disk(calls, tokens_in + tokens_out, found.bytes_per_call if seen else None),
    )


def _tokens_in(stage: Stage, known: Known, hidden: _Hidden, seen: Seen | None) -> Amount:
    """Prompts: those that are known by their length, hidden ones by those of before.

    A token has at least one byte.
    """
    per_byte = seen.tokens_in / seen.prompt_bytes if seen else 1 / BYTES_PER_TOKEN
    own = TEMPLATE_TOKENS + len(stage.instruction.encode())
    behind = hidden.contexts.times(seen.tokens_in / seen.calls if seen else None, own)
    return behind + Amount(
        known.due_bytes * per_byte,
        known.due_bytes + known.due * TEMPLATE_TOKENS + hidden.tokens,
    )


def _seconds(calls: Amount, tokens_out: Amount, seen: Seen | None) -> Amount:
    """As fast as before; at most as if no answer ended before its limit."""
    if seen is None or not seen.timed:
        return Amount(None, None)
    per_token = seen.seconds / seen.timed_tokens if seen.timed_tokens else None
    longest = tokens_out.times(None, per_token)
    return Amount(calls.times(seen.seconds / seen.timed, None).expected, longest.most)


def _disk(calls: Amount, tokens: Amount, per_call: float | None) -> Amount:
    """As the cache's other calls; at most as if nothing could be compressed."""
    raw = calls.times(None, ROW_BYTES) + tokens.times(None, BYTES_PER_TOKEN)
    return Amount(calls.times(per_call, None).expected, raw.most)


# A collection beyond either is not started without consent.
MOST_CALLS = 100_000
MOST_SECONDS = 24 * 3600.0


def require_consent(
    pool: Pool, queries: Sequence[Query], root: Path, engines: Engines = backend
) -> None:
    """Refuse what takes very many calls or more than a day.

    Args:
        pool: the models, hops and stage instructions.
        queries: what will be asked.
        root: the cache's folder, or where it will be.
        engines: the backend of a name.

    Raises:
        InputError: with the numbers.
        CacheError: the cache is damaged.
    """
    calls = len(queries) * (pool.routes.calls + len(pool.everyone))
    if calls > MOST_CALLS or calls * _slowest(root) > MOST_SECONDS:
        refuse_large(estimate(pool, queries, root, engines))


def refuse_large(found: Estimate) -> None:
    """Refuse what is expected to be large, or could be where nothing is expected.

    Raises:
        InputError: with the numbers.
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
