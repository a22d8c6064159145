"""Open a cache as a tree.

In: the cache's folder, optionally another pool, fewer datasets, another encoder. Out: a
`RouteTree`, with the contexts embedded first where the encoder has not seen them. No language
model is called. Not covered: collecting what is missing (`hierrouter.collect.scheduler`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hierrouter.collect.embed import embed_states
from hierrouter.collect.encoders import BUILT_IN, load_encoder
from hierrouter.collect.scheduler import identify
from hierrouter.pool import load_pool, pool_from_json, suggestion
from hierrouter.testbed import FAMILIES
from hierrouter_cache.errors import IncompleteTree, InputError
from hierrouter_cache.loading import load_tree
from hierrouter_cache.reader import CacheReader, TreeSpec
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Selection:
    """Which part of a cache to open; the defaults are what was collected last.

    Attributes:
        pool: a pool's name or TOML file; None is the pool of the last collection.
        datasets: names among those collected; None is all of them.
        limit: at most so many queries a dataset, the first ones.
        encoder: name of the encoder.
    """

    pool: str | None = None
    datasets: Sequence[str] | None = None
    limit: int | None = None
    encoder: str = BUILT_IN


def open_tree(
    root: Path,
    selection: Selection | None = None,
    on_texts: Callable[[int, int], None] = lambda done, total: None,
) -> RouteTree:
    """The dense arrays of what was collected last, or of a part of it.

    Args:
        root: the cache's folder.
        selection: what to open.
        on_texts: told (done, total) while contexts are embedded.

    Raises:
        CacheError: nothing there, damaged, or incomplete for this pool.
        InputError: a dataset that was not collected, or an unknown pool or encoder.
    """
    selection = selection or Selection()
    reader = CacheReader(root)
    plan = reader.latest_plan()
    spec = _spec(plan.pool, selection.pool)
    keys = _chosen(reader, plan.queries, selection)
    encoder = load_encoder(selection.encoder)
    store = embed_states(reader, spec, keys, encoder, on_texts)
    try:
        return load_tree(reader, spec, keys, store)
    except IncompleteTree as error:
        if selection.pool is None:
            raise
        raise IncompleteTree(
            f"{error}; a model, a setting or an instruction of this pool is not the collected one: "
            f"`hierrouter collect --pool {selection.pool}`"
        ) from None


def _spec(stored: str, wanted: str | None) -> TreeSpec:
    pool, identities = pool_from_json(stored)
    if wanted is not None:
        pool = load_pool(wanted)
        # A model that is the stored one but for its price or place needs no look at its files.
        known = {model.name: model for model in pool_from_json(stored)[0].everyone}
        same = all(
            model.name in known
            and (model.model, model.revision, model.dtype, model.backend)
            == (
                known[model.name].model,
                known[model.name].revision,
                known[model.name].dtype,
                known[model.name].backend,
            )
            for model in pool.everyone
        )
        identities = identities if same else identify(pool)
    return pool.tree_spec(identities)


def _chosen(reader: CacheReader, keys: Sequence[str], selection: Selection) -> list[str]:
    rows = reader.queries(keys)
    collected = sorted({row["dataset"] for row in rows})
    wanted = collected if selection.datasets is None else _expand(selection.datasets, collected)
    taken: Counter[str] = Counter()
    chosen = []
    for row in rows:
        if row["dataset"] in wanted and taken[row["dataset"]] < (selection.limit or len(rows)):
            taken[row["dataset"]] += 1
            chosen.append(row["query"])
    return chosen


def _expand(names: Sequence[str], collected: Sequence[str]) -> set[str]:
    wanted: set[str] = set()
    for name in names:
        if not name:
            raise InputError("empty dataset name: --datasets; separate names by one comma")
        members = _members(name, collected)
        if not members:
            raise InputError(
                f"dataset not in the cache: {name}; {suggestion(name, collected)}"
                f"or run `hierrouter collect --datasets {name}`"
            )
        wanted |= members
    return wanted


def _members(name: str, collected: Sequence[str]) -> set[str]:
    """The collected datasets that a name stands for: itself, a file's stem, or the group."""
    if name == "testbed":
        return set(FAMILIES) & set(collected)
    return {name, name.removesuffix(".jsonl"), Path(name).name.removesuffix(".jsonl")} & set(
        collected
    )
