"""Which pool a cache is opened with, and the scores of its responses."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter.engines import identify
from hierrouter.engines.identity import named_folder, saved_identity, served_identity
from hierrouter.pools.files import load_pool, stored_pool
from hierrouter.pools.pool import OPENAI, Endpoint, Identity, ModelSpec, Pool
from hierrouter.questions.query import stored_choices
from hierrouter.questions.scoring import Scorer, ScorerInput, score_all
from hierrouter_cache.errors import CacheError, CacheLocked, InputError
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.parts import SCORES
from hierrouter_cache.reader import CacheReader, StoredCall
from hierrouter_cache.walk import Forest, Scores, TreeSpec, stored_scores
from hierrouter_cache.writer import PartWriter, writable

# Fields of a model that say which one it is, and what else can differ in its identity.
SOURCE = ("model", "revision", "dtype", "backend")
RESOLVED = ("weights", "deployment", "answers_as", "tokenizer")
# How many calls are scored before their values are stored, at first and at most.
FIRST_PART = 256
LARGEST_PART = 131_072
SECONDS_PER_PART = 5.0
HELD = 1 << 20  # texts held at once; each time all parts are read for them

OnScored = Callable[[int, int], None]
Scored = tuple[StoredCall, Mapping[str, Any]]  # a call, and the row of its query


@dataclass(frozen=True)
class OpenedPool:
    """The pool to open.

    Attributes:
        identities: what each model resolves to, by name.
        stored: the pool of the plan.
        changed: which models are not called as they were collected; empty where all are.
    """

    pool: Pool
    identities: Mapping[str, Identity]
    stored: Pool
    changed: str

    @property
    def spec(self) -> TreeSpec:
        """The pool as content keys."""
        return self.pool.tree_spec(self.identities)


def open_pool(
    plan: str,
    name: str | None = None,
    models: Sequence[str] | None = None,
    hops: int | None = None,
    without: Sequence[str] = (),
) -> OpenedPool:
    """The plan's pool, or the one of this name or file, or a part of either.

    Raises InputError: an unknown pool, model or number of hops, or a folder that is no model;
    WorldError: a model that the plan does not know and that cannot be found.

    Args:
        plan: the pool of a plan, as JSON.
        name: a pool's name or TOML file; None is the plan's.
        models: names of some models, in action order; None is all of them.
        hops: at most the pool's; None is all of them.
        without: names of models and references to leave out.
    """
    stored, known = load_planned_pool(plan)
    part = (stored if name is None else load_pool(name)).sub_pool(models, hops, without)
    identities = known if name is None else _identities(part, stored, known)
    opened = [identities[model.name] for model in part.models]
    context_free = any(identity.get("context_free") == "yes" for identity in opened)
    changed = _what_changed(stored, known, part, identities)
    return OpenedPool(replace(part, context_free=context_free), identities, stored, changed)


def load_planned_pool(plan: str) -> tuple[Pool, dict[str, Identity]]:
    """The pool of a cache's plan, and what its models resolved to.

    Raises CacheError: the plan holds no such thing.
    """
    try:
        return stored_pool(plan, "the last plan")
    except InputError as error:
        raise CacheError(
            f"the last plan holds no pool that this version reads: {error}; find the part with "
            "`hierrouter verify`, and collect again"
        ) from error


def _identities(pool: Pool, stored: Pool, known: Mapping[str, Identity]) -> dict[str, Identity]:
    """What the models of `pool` resolve to; asks for the engine only where a model is new."""
    before = {model.name: model for model in stored.everyone}
    found = {
        model.name: _without_engine(model, before.get(model.name), known) for model in pool.everyone
    }
    new = identify(model for model in pool.everyone if found[model.name] is None)
    return {name: identity or new[name] for name, identity in found.items()}


def _without_engine(
    model: ModelSpec, before: ModelSpec | None, known: Mapping[str, Identity]
) -> Identity | None:
    """What a model resolves to; None where only its engine can say."""
    if model.backend == OPENAI:
        endpoint = model.endpoint or Endpoint()
        # Where a pool names no server, collecting was told one on the command line.
        if not endpoint.base_url and before and before.endpoint:
            endpoint = replace(endpoint, base_url=before.endpoint.base_url)
        return served_identity(replace(model, endpoint=endpoint))
    if before and _is_unseen(model, before):
        return known[model.name]
    content = saved_identity(model)
    return next((item for item in known.values() if _content(item) == content), None)


def _is_unseen(model: ModelSpec, before: ModelSpec) -> bool:
    """Whether it is the stored model but for its price, and not a folder that is here.

    Such a one needs to be neither here nor reachable. The files of a folder may have changed.
    """
    if any(getattr(model, name) != getattr(before, name) for name in SOURCE):
        return False
    folder = named_folder(model)
    return folder is None or not folder.is_dir()


def _content(identity: Identity) -> Identity:
    """What is left of it by an upgrade of the engine, or on another kind of device."""
    return {name: text for name, text in identity.items() if name not in ("engine", "device")}


def _what_changed(
    stored: Pool, known: Mapping[str, Identity], pool: Pool, identities: Mapping[str, Identity]
) -> str:
    """Which models of `pool` are not called as they were when the cache was collected."""
    before = {model.name: model for model in stored.everyone}
    notes = []
    for model in pool.everyone:
        name = model.name
        if name not in before:
            notes.append(f"{name} is new")
            continue
        old, now = asdict(before[name].generation), model.generation.settings
        changes = [
            *(setting for setting in now if old[setting] != now[setting]),
            *(part for part in SOURCE if getattr(before[name], part) != getattr(model, part)),
            *(part for part in RESOLVED if identities[name].get(part) != known[name].get(part)),
        ]
        if changes:
            notes.append(f"{name}: {', '.join(changes)} changed")
    levels = range(min(pool.hops, stored.hops))
    if any(pool.instruction(level) != stored.instruction(level) for level in levels):
        notes.append("stage_prompts changed")
    if pool.hops > stored.hops:
        notes.append(f"{pool.hops} hops, collected were {stored.hops}")
    return "; ".join(notes)


def score_forest(
    reader: CacheReader,
    forest: Forest,
    scorer: Scorer,
    on_scored: OnScored = lambda done, total: None,
) -> Scores:
    """The value of every call of a forest; NaN only where a call is missing.

    Raises InputError: a user's scorer fails or gives something that is no number in [0, 1].
    """
    stored = stored_scores(reader, forest, scorer.key)
    in_tree = forest.tree.found & np.isnan(stored.tree)
    in_direct = forest.direct.found & np.isnan(stored.direct)
    if not (in_tree.any() or in_direct.any()):
        return stored
    keys = np.concatenate([forest.tree.key[in_tree], forest.direct.key[in_direct]])
    position = np.concatenate([np.nonzero(in_tree)[0], np.nonzero(in_direct)[0]])
    values = _compute(reader, forest, keys, position, scorer, on_scored)
    tree, direct = stored.tree.copy(), stored.direct.copy()
    tree[in_tree], direct[in_direct] = np.split(values, [np.count_nonzero(in_tree)])
    return Scores(tree, direct)


def _compute(
    reader: CacheReader,
    forest: Forest,
    keys: NDArray[np.uint64],
    position: NDArray[np.int64],
    scorer: Scorer,
    on_scored: OnScored,
) -> NDArray[np.float64]:
    """float64[n]: the values of these calls against the answers of these queries; stores them."""
    # A call that several nodes share is scored once for each set of references.
    pairs = np.stack([keys, forest.references[position]], axis=1)
    distinct, first, where = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    values: list[float] = []
    size = FIRST_PART
    with_prompt = not {"context", "model"}.isdisjoint(scorer.reads)
    columns = ("answers", "choices", "question", '"references"')
    for start in range(0, len(distinct), HELD):
        held = slice(start, start + HELD)
        calls, said = distinct[held, 0], reader.texts(distinct[held, 0], with_prompt)
        queries = [forest.keys[row] for row in position[first[held]]]
        rows = reader.queries(queries, columns).to_pylist()
        found = [(said[number], row) for number, row in zip(calls, rows, strict=True)]
        while len(values) < start + len(found):
            at = len(values) - start
            part = found[at : at + size]
            started = perf_counter()
            values += _score_part(reader.root, scorer, part)
            on_scored(len(values), len(distinct))
            # A slow scorer's work is kept every few seconds, a quick one's in large parts.
            rate = len(part) / max(perf_counter() - started, 1e-3)
            size = min(LARGEST_PART, max(1, round(rate * SECONDS_PER_PART)))
    return np.array(values)[where.ravel()]


def _score_part(root: Path, scorer: Scorer, part: Sequence[Scored]) -> list[float]:
    """The values of some calls, each with the row of its query, kept where that is possible.

    It is not beside a collector, nor in a cache that cannot be written to.
    """
    values = score_all(
        scorer,
        [
            ScorerInput(
                response=call.response,
                references=tuple(row["answers"]),
                question=row["question"],
                context=call.prompt,
                choices=stored_choices(row["choices"]),
                model=call.model,
            )
            for call, row in part
        ],
    )
    if writable(root):
        columns = [
            [call.key for call, _ in part],
            [query["references"] for _, query in part],
            [scorer.key] * len(part),
            values,
        ]
        with contextlib.suppress(CacheLocked), collector_lock(root):
            PartWriter(root).append("scores", pa.table(columns, schema=SCORES))
    return values
