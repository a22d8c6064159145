"""Open a cache as a tree, with everything that is derived from its texts."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter import __version__
from hierrouter.engines.encoders import Encoder, EndpointEncoder, default_encoder, load_encoder
from hierrouter.engines.judge import judge_scorer
from hierrouter.paper import PAPER_SCORER
from hierrouter.pools.files import currency_of, given_prices, prices_of
from hierrouter.pools.pool import Price, rates_of
from hierrouter.questions.own_code import NO_SOURCE
from hierrouter.questions.scoring import GIVEN_SCORER, Scorer
from hierrouter.questions.scoring import scorer as scorer_named
from hierrouter.questions.shipped import GROUPS
from hierrouter.questions.sources import dataset_called, is_file
from hierrouter.replay.inspection import population_shift
from hierrouter.replay.states import (
    DEFAULT_VIEW,
    embed_states,
    numbers_kind,
    read_numbers,
    stores_of,
    text_kinds,
)
from hierrouter.replay.stored_pool import OpenedPool, open_pool, score_forest
from hierrouter.replay.tree import Tree
from hierrouter_cache import kept, walk
from hierrouter_cache.errors import IncompleteTree, InputError, WorldError, suggestion
from hierrouter_cache.keys import digest
from hierrouter_cache.parts import Part, list_parts
from hierrouter_cache.reader import CacheReader, as_numpy
from hierrouter_cache.tree import AnyTree, Rate, RouteTree, StatePart, repriced
from hierrouter_cache.walk import Forest, Scores, TreeSpec

CAPPED = (
    "SELECT step, count(*) AS calls, count(*) FILTER (finish_reason = 'length') AS cut "
    "FROM calls_rows GROUP BY step ORDER BY step"
)
ACCURACY = "accuracy"  # tells right from wrong beside any Q
LEARNED_FROM = ("train", "validation")  # folds that a training may read

OnDone = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Selection:
    """Which part of a cache to open, and how, see `open`; the defaults are what was collected last.

    Attributes:
        view: what a policy sees of a state, one of `hierrouter.replay.states.STATE_VIEWS`.
        allow_return: show what follows the last call, too, for routers that may give any answer.
        growing: take queries of the train fold apart whatever their holes, because more calls come.
    """

    pool: str | None = None
    models: Sequence[str] | None = None
    without: Sequence[str] = ()
    hops: int | None = None
    datasets: Sequence[str] | None = None
    limit: int | None = None
    encoder: str | None = None
    view: str = DEFAULT_VIEW
    scorer: str = PAPER_SCORER
    prices: Mapping[str, Price] = field(default_factory=dict)
    price_of_second: float = 0.0
    allow_incomplete: bool = False
    allow_return: bool = False
    growing: bool = False


def open(
    cache: str | os.PathLike[str],
    *,
    prices: str | Path | Mapping[str, Any] | None = None,
    models: str | Sequence[str] | None = None,
    without: str | Sequence[str] = (),
    hops: int | None = None,
    datasets: str | Sequence[str] | None = None,
    limit: int | None = None,
    price_of_second: float = 0.0,
    scorer: str = PAPER_SCORER,
    encoder: str | None = None,
    state: str = DEFAULT_VIEW,
    pool: str | Path | None = None,
    allow_incomplete: bool = False,
    allow_return: bool = False,
    progress: OnDone | None = None,
) -> Tree:
    """What was collected last in a cache, or a part of it.

    Args:
        cache: its folder.
        prices: a TOML file, or by model a rate in the pool's unit, one or {"in": ..., "out": ...};
            models that are not named keep the pool's price.
        price_of_second: of a call's recorded seconds; joins C.
        models, datasets: some of them, as a list or as "a,b"; None is all.
        without: models and references to leave out, given likewise.
        hops: the first so many; None is all.
        limit: at most so many queries of each dataset.
        scorer: name of Q, or `module:function`.
        encoder: "hashed-ngrams", "paper", or a sentence-transformers model; None is the pool's,
            and where that is not on this machine and cannot be fetched the tree has no embeddings:
            all that is exact can be asked of it, but no router trained or valued.
        state: what a policy sees: "context", "query+answer", "query" or "stage"; with "+signals"
            how sure models were of their answers, with "+agreement" only their length and whether
            they say the same.
        pool: name or TOML file; None is the pool of the last collection.
        allow_incomplete: leave out queries whose trees have holes, instead of refusing.
        allow_return: embed what follows the last call, too: routers that may give any answer of
            their route see it before they choose one.
        progress: told ("embed" or "score", done, total) while something is derived.

    Raises:
        CacheError: nothing there, damaged, or incomplete for this pool.
        InputError: a name that is not known, or a number that does not fit.
    """
    # So that `gymnasium.make` knows the environment; commands open without it, faster.
    import_module("hierrouter.replay.env")
    selection = Selection(
        pool=None if pool is None else str(pool),
        models=listed(models),
        without=listed(without) or (),
        hops=hops,
        datasets=listed(datasets),
        limit=limit,
        encoder=encoder,
        view=state,
        scorer=scorer,
        prices=given_prices(prices),
        price_of_second=price_of_second,
        allow_incomplete=allow_incomplete,
        allow_return=allow_return,
    )
    return open_tree(Path(cache), selection, progress or _nobody)


def listed(names: str | Sequence[str] | None) -> list[str] | None:
    """Names as a list: `a,b` or a sequence; None stays None."""
    if isinstance(names, str):
        return [name.strip() for name in names.split(",")]
    return None if names is None else list(names)


def _nobody(what: str, done: int, total: int) -> None:
    """Whoever is not told."""


def open_tree(root: Path, selection: Selection | None = None, on_done: OnDone = _nobody) -> Tree:
    """A selection at its own prices; see `open_trees`."""
    selection = selection or Selection()
    return open_trees(root, selection, [selection.prices], on_done)[0]


def open_trees(
    root: Path,
    selection: Selection,
    price_lists: Sequence[Mapping[str, Price]],
    on_done: OnDone = _nobody,
) -> list[Tree]:
    """The same tree under each of several price lists; the cache is read once.

    Raises CacheError: nothing there, damaged, or incomplete for this pool; InputError: a dataset
    that was not collected, or an unknown pool, model, encoder, scorer or view.

    Args:
        price_lists: at least one; they stand for `selection.prices`.
        on_done: told ("embed" or "score", done, total) while something is derived.
    """
    text_kinds(selection.view)  # refused before anything is read
    is_judge = selection.scorer.endswith(".toml")
    scorer = judge_scorer(selection.scorer) if is_judge else scorer_named(selection.scorer)
    # Where Q is what the source of an import said, right and wrong are too.
    accuracy = scorer if scorer is GIVEN_SCORER or is_judge else scorer_named(ACCURACY)
    reader = CacheReader(root)
    plan = reader.latest_plan()
    opened = open_pool(
        plan.pool, selection.pool, selection.models, selection.hops, selection.without
    )
    pool, spec = opened.pool, opened.spec
    known = [model.name for model in opened.stored.everyone]
    prices = [prices_of(pool, given, known) for given in price_lists]
    currency = currency_of(pool, prices)
    named, encoder, unembedded = selection.encoder, None, ""
    if named is None:
        named = default_encoder(pool)
    try:
        encoder = load_encoder(named)
    except WorldError as error:
        if selection.encoder:
            raise
        # A view without texts wants no vectors.
        unembedded = str(error) if text_kinds(selection.view) else ""
    described = encoder.description if encoder else named
    # Prices come later; what pool and encoder are is told by what they came to.
    asked = replace(selection, pool=None, prices={}, encoder=None, price_of_second=0.0)
    how: list[Any] = [__version__, kept.FORMAT, scorer.key, accuracy.key, described, asdict(spec)]
    how += [bool(unembedded), *(str(getattr(asked, item.name)) for item in fields(asked))]
    stores = stores_of(reader, encoder, selection.view) if encoder else []

    def identified(parts: Sequence[Part]) -> tuple[str, str]:
        """What was asked for, and the parts it is made of: their names identify them."""
        names = [part.path.name for part in parts]
        return digest([how, [store.files for store in stores]]), digest(names)

    identity = identified(reader.parts)
    found = kept.load_kept(root, *identity, lambda number: stores[number].vectors())
    if found is None:
        ways = scorer, accuracy, encoder, described, unembedded
        found = _read_tree(reader, plan.queries, opened, selection, ways, on_done)
        # Not if something came to the cache meanwhile, or was scored or embedded for this.
        same = identity == identified(reader.parts) == identified(list_parts(root))
        if same and scorer.version != NO_SOURCE:
            kept.keep_tree(root, *identity, *found)
    loaded, facts = found
    live = {
        "context_free": pool.context_free,
        # Where a server is, is nothing to remember.
        "encoder": encoder.description if isinstance(encoder, EndpointEncoder) else named,
        "unembedded": unembedded,
        "view": selection.view,
        "currency": currency,
    }
    arrays = {item.name: getattr(loaded, item.name) for item in fields(loaded)}
    tree = Tree(**{**arrays, **facts, **live}, root=root, pool=selection.pool)
    return [
        replace(
            repriced(tree, rates_of(table), selection.price_of_second),
            priced_by={name: table[name].source for name in tree.direct.models},
        )
        for table in prices
    ]


Ways = tuple[Scorer, Scorer, Encoder | None, str, str]


def _read_tree(
    reader: CacheReader,
    queries: Sequence[str],
    opened: OpenedPool,
    selection: Selection,
    ways: Ways,
    on_done: OnDone,
) -> tuple[RouteTree, dict[str, Any]]:
    """The tree from the parts, without prices, and what else is known of it; see `open_trees`.

    `ways`: Q, what tells right from wrong, the encoder, its description, why there is none.
    """
    (scorer, accuracy, encoder, described, unembedded), spec = ways, opened.spec
    forest = walk.walk(reader, spec, _chosen(reader, queries, selection))
    whole, apart = _whole(reader, forest, opened, selection)
    quality = score_forest(reader, whole, scorer, partial(on_done, "score"))
    right = quality
    if accuracy.key != scorer.key:
        right = score_forest(reader, whole, accuracy, partial(on_done, "score"))
    parts: tuple[StatePart, ...] = ()
    sure, leaves, seen = None, selection.allow_return, whole.covered
    if encoder:
        told = partial(on_done, "embed")
        parts = embed_states(reader, spec, seen, encoder, selection.view, told, leaves)
    if (numbers := numbers_kind(selection.view)) and not unembedded:
        part, sure = read_numbers(reader, spec, seen, numbers, leaves)
        parts = (*parts, part)
    free = dict.fromkeys((name for name, _ in spec.direct), Rate.base(0))
    loaded = walk.load_tree(
        reader, spec, whole, parts, described, free, quality, right, scorer.name, apart
    )
    lost, shift = ~np.isin(forest.keys, whole.keys), ""
    if lost.any():
        gone, there = forest.select(np.flatnonzero(lost)), np.flatnonzero(whole.complete)
        same = Scores(quality.tree[there], quality.direct[there])
        scores = score_forest(reader, gone, scorer), same
        shift = population_shift(reader, gone, whole.select(there), scores)
    return loaded, {
        "left_out": int(np.count_nonzero(lost)),
        "shift": shift,
        "capped": _capped(reader, spec),
        "sure": sure,
    }


def _whole(
    reader: CacheReader, forest: Forest, opened: OpenedPool, selection: Selection
) -> tuple[Forest, NDArray[np.bool_]]:
    """The queries whose trees have no holes, and those of the train fold that were to have some.

    Which of them stand apart, bool[queries]: if there are holes, all of which calls were chosen,
    for what happens to be whole among them is no fair sample.

    Raises IncompleteTree: there are others and they may not be left out, or there is no whole one.
    """
    root, apart = reader.root, forest.pruned
    if selection.growing:
        apart |= ~forest.complete
    if apart.any():
        folds = as_numpy(reader.queries(forest.keys, ("split",))["split"])
        apart &= folds == "train"
        apart &= bool((apart & ~forest.complete).any())
    whole = forest.complete & ~apart
    lack = walk.holes(forest.select(np.flatnonzero(~apart)), opened.spec)
    if whole.any() and (not lack or selection.allow_incomplete):
        rows = np.flatnonzero(whole | apart)
        return forest.select(rows), apart[rows]
    again = f"`hierrouter collect --cache {root}" + (
        f" --pool {selection.pool}`" if selection.pool else "`"
    )
    if opened.stored.imported:
        raise IncompleteTree(
            f"the table that was imported is incomplete: {lack}; import one that has them, leave "
            "models out (--without), or these queries (--allow-incomplete)"
        )
    if opened.changed:
        raise IncompleteTree(
            f"not collected with this configuration: {root}: {opened.changed}; run {again}"
        )
    if not whole.any():
        raise IncompleteTree(
            f"no query is complete: {lack}; open fewer models or hops (--models, --hops), "
            f"or {again}"
        )
    raise IncompleteTree(
        f"the tree is incomplete: {lack}; {again} asks only for those, --allow-incomplete leaves "
        "these queries out"
    )


def _capped(reader: CacheReader, spec: TreeSpec) -> dict[str, float]:
    """Of each model the share of its answers in the cache that ended at its cap of new tokens."""
    models = {
        step: name for steps in spec.steps for name, step in zip(spec.models, steps, strict=True)
    }
    models.update((step, name) for name, step in spec.direct)
    calls: Counter[str] = Counter()
    cut: Counter[str] = Counter()
    for row in reader.sql(CAPPED).to_pylist():
        if name := models.get(row["step"]):
            calls[name] += row["calls"]
            cut[name] += row["cut"]
    return {name: cut[name] / count for name, count in calls.items()}


def training_tree(tree: AnyTree) -> AnyTree:
    """What a training may read: the queries to learn from and those that choose the checkpoint.

    Nothing of the test fold is in it, neither scores nor costs. Its fingerprint is still that of
    the whole tree, so that a report finds what was learned from it. Raises InputError: no query to
    train on, or none to choose the checkpoint on; WorldError: it has no embeddings, because its
    encoder cannot be had.
    """
    tree.require_embedded()
    train, validation = (tree.splits.count(name) for name in LEARNED_FROM)
    if not train or not validation:
        raise InputError(
            f"too few queries to train on: {train} train, {validation} validation; at least 1 of "
            "each is needed, add queries"
        )
    return tree.select(np.flatnonzero(np.isin(tree.splits, LEARNED_FROM)))


def _chosen(reader: CacheReader, keys: Sequence[str], selection: Selection) -> list[str]:
    if selection.datasets is None and selection.limit is None:
        return list(keys)
    datasets = reader.queries(keys, ("dataset",))["dataset"].to_pylist()
    names = selection.datasets
    wanted = set(datasets) if names is None else _expand(names, sorted(set(datasets)))
    taken: Counter[str] = Counter()
    chosen = []
    for key, dataset in zip(keys, datasets, strict=True):
        if dataset in wanted and taken[dataset] < (selection.limit or len(keys)):
            taken[dataset] += 1
            chosen.append(key)
    return chosen


def _expand(names: Sequence[str], collected: Sequence[str]) -> set[str]:
    """The collected datasets that are meant: each itself, that of a file, or the group."""
    wanted: set[str] = set()
    for name in names:
        if not name:
            raise InputError("empty dataset name: --datasets; separate names by one comma")
        own = {name, dataset_called(Path(name).stem if is_file(name) else name)}
        members = (set(GROUPS[name].TASKS) if name in GROUPS else own) & set(collected)
        if not members:
            raise InputError(
                f"dataset not in the cache: {name}; {suggestion(name, collected)}"
                f"or run `hierrouter collect --datasets {name}`"
            )
        wanted |= members
    return wanted
