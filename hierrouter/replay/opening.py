"""Opening a cache as a tree, with everything that is derived from its texts.

`open_tree.OpenTree` says what can be asked for; `open_trees` reads it. Trees are saved between
openings (`hierrouter_cache.saved_trees`), and a saved one is returned only while nothing that it
was built from has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hierrouter import __version__
from hierrouter.declarations.declaration import OnTask
from hierrouter.engines.encoder_names import NoEncoder, without_commit
from hierrouter.engines.encoders import Encoder, EndpointEncoder, default_encoder, find_encoder
from hierrouter.engines.judge import judge_scorer
from hierrouter.engines.sentence_encoder import SentenceEncoder
from hierrouter.paper import PAPER_SCORER, PAPER_SEED
from hierrouter.pools.files import currency_of, load_pool, prices_of, stored_import, stored_scorer
from hierrouter.pools.pool import KEEP_THOUGHTS, Pool, Price, guessed_prices_note, rates_of
from hierrouter.questions.datasets import drawn_ids
from hierrouter.questions.final import THOUGHT_REGEX
from hierrouter.questions.own_code import NO_SOURCE
from hierrouter.questions.scoring import (
    ACCURACY,
    GIVEN_SCORER,
    REFERENCE_FORMS,
    RUNS_SCORER,
    TEST_SCORER,
    Scorer,
)
from hierrouter.questions.scoring import scorer as scorer_named
from hierrouter.questions.shipped import DATASET_GROUPS
from hierrouter.questions.sources import canonical_dataset, is_dataset_file
from hierrouter.replay.inspection import (
    HOLES_REASON,
    fitting_scorer_note,
    given_by_default_note,
    holes_note,
    left_out_note,
    merged_note,
    population_shift,
    pruned_note,
)
from hierrouter.replay.states import embed_states, numbers_kind, read_numbers, stores_of, text_kinds
from hierrouter.replay.stored_pool import (
    OpenedPool,
    measure_forest,
    open_pool,
    quality_of_forest,
    rescored_note,
)
from hierrouter.replay.tree import Tree
from hierrouter.tables import money
from hierrouter_cache import saved_trees, walk
from hierrouter_cache.embeddings import EmbeddingStore, stored_encoders
from hierrouter_cache.errors import IncompleteTree, InputError, suggestion
from hierrouter_cache.keys import digest
from hierrouter_cache.parts import Part, list_parts
from hierrouter_cache.reader import CacheReader, StoredPlan, as_numpy
from hierrouter_cache.tree import AnyTree, Rate, RouteTree, StatePart, reprice
from hierrouter_cache.walk import Forest, Scores, TreeSpec, stored_scores

if TYPE_CHECKING:
    from hierrouter.replay.open_tree import OpenTree

COUNTED_CALLS = (
    "SELECT step, count(*) AS calls, count(*) FILTER (finish_reason = 'length') AS cut, "
    "count(*) FILTER (regexp_matches(response, $1)) AS thinking, "
    "sum(cost_given)::DOUBLE AS given, count(cost_given)::DOUBLE AS given_calls, "
    "(sum(tokens_in) FILTER (cost_given IS NOT NULL))::DOUBLE AS given_in, "
    "(sum(tokens_out) FILTER (cost_given IS NOT NULL))::DOUBLE AS given_out, "
    "coalesce(sum(tokens_cached) FILTER (cost_given IS NOT NULL), 0)::DOUBLE AS given_cached, "
    "coalesce(sum(tokens_thoughts) FILTER (cost_given IS NOT NULL), 0)::DOUBLE AS given_thoughts "
    "FROM calls_rows GROUP BY step ORDER BY step"
)
GIVEN_COST_SUMS = (
    "given",
    "given_calls",
    "given_in",
    "given_out",
    "given_cached",
    "given_thoughts",
)
FEW_QUERIES = 30  # in a fold; intervals of means are wide and unreliable below
LEARNED_FROM = ("train", "validation")  # folds that a training may read


@dataclass(frozen=True)
class Derivation:
    """What is computed from the texts of a cache.

    Attributes:
        scorer: gives each response its quality Q.
        accuracy: tells right responses from wrong ones.
        encoder: makes vectors of states; None if it cannot be had. Its model is loaded only if a
            vector is missing.
        encoder_name: describes the encoder, whether it can be had or not.
        unembedded: why there are no vectors; empty if there are, or if the view needs none.
    """

    scorer: Scorer
    accuracy: Scorer
    encoder: Encoder | None
    encoder_name: str
    unembedded: str


def open_trees(
    opening: OpenTree, price_lists: Sequence[Mapping[str, Price]], on_derive: OnTask
) -> list[Tree]:
    """Open the same tree under each of several price lists; the cache is read once.

    Args:
        opening: which part of which cache; its own prices are not looked at.
        price_lists: at least one; each has the prices of some models, the pool has the others.
        on_derive: called with ("embed" or "score", done, total) while something is derived.

    Returns:
        A tree for each price list.

    Raises:
        CacheError: nothing there, damaged, or incomplete for this pool.
        InputError: a dataset that was not collected, or an unknown pool, model, encoder, scorer or
            view.
    """
    text_kinds(opening.view)  # refuses an unknown view before anything is read
    # An unknown scorer is refused before anything is read.
    scorers = load_scorers(opening.scorer) if opening.scorer is not None else None
    reader = CacheReader(opening.cache)
    plan = reader.latest_plan()
    # A scorer that is not named is a part of what identifies a saved tree, too.
    is_default_scorer = opening.scorer is None
    if scorers is None:
        name = default_scorer(plan.pool)
        scorers = load_scorers(name)
        opening = replace(opening, scorer=name)
    scorer, accuracy = scorers
    opened = open_pool(
        plan.pool, opening.pool, opening.models, opening.hops, opening.without, opening.draws
    )
    pool = opened.pool
    if pool.thoughts == KEEP_THOUGHTS:  # else there are no thoughts left to read
        scorer = scorer.for_models(pool.thought_tags)
        accuracy = accuracy.for_models(pool.thought_tags)
    registered = [model.name for model in opened.stored.all_models]
    registered += [action.name for action in opened.stored.actions]
    tables = [prices_of(pool, prices, registered) for prices in price_lists]
    currency = currency_of(pool, tables)
    encoder_asked_for = opening.encoder
    if encoder_asked_for is None:  # an empty name is refused below, not replaced
        encoder_asked_for = default_encoder(pool)
    encoder, unembedded = _encoder(opening, encoder_asked_for)
    encoder_name = encoder.description if encoder else encoder_asked_for
    derivation = Derivation(scorer, accuracy, encoder, encoder_name, unembedded)
    read = partial(_load_or_read, reader, plan.queries, opened, opening, on_derive=on_derive)
    try:
        loaded, facts = read(derivation)
    except NoEncoder as error:  # vectors are missing, and its model cannot be loaded
        if opening.encoder:
            raise
        derivation = Derivation(scorer, accuracy, None, encoder_asked_for, str(error))
        loaded, facts = read(derivation)
    encoder = derivation.encoder
    live_facts = {
        "context_free": pool.context_free,
        # The address of an embedding server is not kept: it may change while its vectors stay.
        "encoder": encoder.description
        if isinstance(encoder, EndpointEncoder)
        else without_commit(encoder_asked_for),
        "encoder_commit": encoder.commit if isinstance(encoder, SentenceEncoder) else "",
        "unembedded": derivation.unembedded,
        "view": opening.view,
        "currency": currency,
        "thoughts": pool.thoughts,
        "thought_tags": pool.thought_tags,
        "given_by_default": is_default_scorer and scorer is GIVEN_SCORER,
        # Imports of earlier versions have no other column for seconds that are a call's own.
        "shared_time": 0.0 if pool.imported else loaded.shared_time,
        "sampled": _sampled_actions(pool),
        "collected_draws": opened.stored.draws,
        "is_fitting_scorer": is_default_scorer and scorer.name in REFERENCE_FORMS,
    }
    arrays = {field.name: getattr(loaded, field.name) for field in fields(loaded)}
    tree = Tree(**{**arrays, **facts, **live_facts}, root=opening.cache, pool=opening.pool)
    return [
        replace(
            reprice(tree, rates_of(table), opening.price_of_second or 0.0),
            priced_by={name: table[name].source for name in (*tree.models, *tree.direct.models)},
        )
        for table in tables
    ]


def opening_notes(trees: Sequence[Tree], pool: str | None) -> Iterator[str]:
    """Yield what a reader of figures on these trees should know, a line each.

    Args:
        trees: the same tree under one or several price lists.
        pool: name or file of the pool, if one was asked for.
    """
    if pool:
        unit_note = load_pool(pool).unit_note()
        if unit_note:
            yield unit_note
    if trees[0].judged_now:
        yield f"note: {trees[0].judged_now}"
    if trees[0].left_out:
        yield f"note: {left_out_note(trees[0])}"
    if trees[0].holes:
        yield f"note: {holes_note(trees[0])}"
    if trees[0].pruned:
        yield f"note: {pruned_note(trees[0])}"
    if trees[0].merged:
        yield f"note: {trees[0].merged}"
    if trees[0].rescored:
        yield f"note: {trees[0].rescored}"
    if trees[0].given_by_default:
        yield f"note: {given_by_default_note(trees[0])}"
    if trees[0].is_fitting_scorer:
        yield f"note: {fitting_scorer_note(trees[0].scorer)}"
    for guess in dict.fromkeys(guessed_prices_note(tree) for tree in trees):
        if guess:
            yield guess


def default_scorer(pool: str) -> str:
    """Return the name of the scorer that Q comes from if the user names none.

    Args:
        pool: the pool of a plan as it is stored. Others may have written it, so that no other
            scorer than the given scores, and those that fit, can be named there.
    """
    is_given = stored_import(pool).get("scorer") == GIVEN_SCORER.name
    return GIVEN_SCORER.name if is_given else stored_scorer(pool) or PAPER_SCORER


def load_scorers(name: str) -> tuple[Scorer, Scorer]:
    """Return the scorer of this name or file, and the one that tells right from wrong.

    Args:
        name: of a scorer, "module:function", or a file that names a judge.

    Raises:
        InputError: no scorer has this name, or the file names no judge.
    """
    if name.endswith(".toml"):
        judge = judge_scorer(name)
        return judge, judge
    scorer = scorer_named(name)
    # Where the source of an import has said what Q is, it has also said what is right.
    return scorer, scorer if scorer is GIVEN_SCORER else scorer_named(ACCURACY)


def _sampled_actions(pool: Pool) -> tuple[bool, ...] | None:
    """Say which actions draw their responses; None of an import, whose settings are unknown."""
    if pool.imported:
        return None
    return tuple(action.model.generation.temperature > 0 for action in pool.actions)


def _encoder(opening: OpenTree, name: str) -> tuple[Encoder | None, str]:
    """Return the encoder of this name, or None with the reason why it is not known which it is.

    Its model is not loaded. The reason is empty if the view reads no texts and so needs no vectors.

    Raises:
        NoEncoder: the user named the encoder.
    """
    try:
        return find_encoder(name, stored_encoders(opening.cache)), ""
    except NoEncoder as error:
        if opening.encoder:
            raise
        return None, str(error) if text_kinds(opening.view) else ""


def _load_or_read(
    reader: CacheReader,
    queries: Sequence[str],
    opened: OpenedPool,
    opening: OpenTree,
    derivation: Derivation,
    on_derive: OnTask,
) -> tuple[RouteTree, dict[str, Any]]:
    """Return the tree that an earlier opening kept, else read it from the parts and keep it.

    Returns:
        The tree without prices, and what else is known of it.
    """
    stores: list[EmbeddingStore] = []
    if derivation.encoder:
        stores = stores_of(reader, derivation.encoder, opening.view)

    def identity_of(parts: Sequence[Part]) -> tuple[str, str]:
        """Return digests of what was asked for, and of the names of the parts it is made of."""
        request = _request(opened, opening, derivation)
        return (
            digest([request, [store.files for store in stores]]),
            digest([part.path.name for part in parts]),
        )

    identity = identity_of(reader.parts)
    root = opening.cache
    tree = saved_trees.load_tree(root, *identity, lambda number: stores[number].vectors())
    if tree is not None:
        return tree[0], dict(tree[1])
    tree = _read_tree(reader, queries, opened, opening, derivation, on_derive)
    # Not kept if meanwhile something came to the cache, or was scored or embedded for this.
    is_unchanged = identity == identity_of(reader.parts) == identity_of(list_parts(root))
    # Nor if a judge may give more verdicts when it is asked again.
    is_final = tree[1].pop("is_final")
    if is_unchanged and is_final and derivation.scorer.version != NO_SOURCE:
        saved_trees.save_tree(root, *identity, *tree)
    return tree


def _request(opened: OpenedPool, opening: OpenTree, derivation: Derivation) -> list[Any]:
    """Return everything that decides what a tree holds before it has prices."""
    # Pool and encoder are named by what they came to, not by what the user typed; prices are
    # applied later.
    settings = replace(
        opening,
        cache=Path(),
        pool=None,
        encoder=None,
        prices=(),
        price=(),
        price_of_second=None,
        draws=None,
    )
    return [
        __version__,
        saved_trees.TREE_FORMAT,
        derivation.scorer.key,
        derivation.accuracy.key,
        TEST_SCORER.key,
        derivation.encoder_name,
        opened.spec.as_object(),
        bool(derivation.unembedded),
        *(str(getattr(settings, field.name)) for field in fields(settings)),
    ]


def _read_tree(
    reader: CacheReader,
    queries: Sequence[str],
    opened: OpenedPool,
    opening: OpenTree,
    derivation: Derivation,
    on_derive: OnTask,
) -> tuple[RouteTree, dict[str, Any]]:
    """Read the tree from the parts; see `open_trees`.

    Returns:
        The tree without prices, and what else is known of it.
    """
    if opened.pool.as_stored:
        return _read_log(reader, queries, opened, opening, derivation, on_derive)
    spec = opened.spec
    scorer = derivation.scorer
    keys = _selected_queries(reader, queries, opening.datasets, opening.limit)
    forest = walk.walk(reader, spec, keys)
    spec, forest = walk.without_unused_draws(spec, forest)
    complete, is_apart = _complete_queries(reader, spec, forest, opened, opening)
    reasons = [HOLES_REASON] if len(complete.keys) < len(forest.keys) else []
    on_score = partial(on_derive, "score")
    rescored = rescored_note(reader, (scorer, derivation.accuracy))
    run_code = opening.run_code
    measured = quality_of_forest(
        reader, complete, scorer, run_code, on_score, opening.allow_incomplete, opening.max_spend
    )
    complete = measured.forest
    reasons.append(measured.unjudged)
    is_apart = is_apart[measured.rows]
    if is_apart.all():
        raise IncompleteTree(f"no query is complete: {measured.unjudged}; judge more answers")
    quality = measured.scores
    accuracy = quality
    if derivation.accuracy.key != scorer.key:
        accuracy = measure_forest(reader, complete, derivation.accuracy, run_code, on_score)

    parts, certainty = _read_states(reader, spec, complete, opening, derivation, on_derive)
    no_prices = dict.fromkeys([*spec.models, *(name for name, _ in spec.direct)], Rate.base(0))
    tree = walk.load_tree(
        reader,
        spec,
        complete,
        parts,
        derivation.encoder_name,
        no_prices,
        quality,
        accuracy,
        scorer.name,
        is_apart,
    )
    is_left_out = ~np.isin(forest.keys, complete.keys)
    shift = ""
    if is_left_out.any():
        left_out = forest.select(np.flatnonzero(is_left_out))
        rows = np.flatnonzero(complete.complete)
        kept_scores = Scores(quality.tree[rows], quality.direct[rows])
        # What is left out is not judged for a remark on it: that would be paid for.
        left_out_scores = (
            stored_scores(reader, left_out, scorer.key)
            if scorer.judge
            else measure_forest(reader, left_out, scorer, run_code)
        )
        scores = left_out_scores, kept_scores
        shift = population_shift(reader, left_out, complete.select(rows), scores)
    return tree, {
        "left_out": int(np.count_nonzero(is_left_out)),
        "shift": shift,
        "rescored": rescored,
        "merged": merged_note(reader, queries) if opened.pool.imported else "",
        "left_out_reason": " or ".join(filter(None, reasons)),
        "judged_now": _judged_note(scorer),
        "is_final": measured.is_final,
        **_shares_of_models(reader, spec),
        "sure": certainty,
    }


def _read_states(
    reader: CacheReader,
    spec: TreeSpec,
    forest: Forest,
    opening: OpenTree,
    derivation: Derivation,
    on_derive: OnTask,
) -> tuple[tuple[StatePart, ...], float | None]:
    """Read what a policy sees of each state, and the share of answers whose confidence is known."""
    parts: tuple[StatePart, ...] = ()
    certainty = None
    leaves = opening.allow_return
    covered = forest.covered
    if derivation.encoder:
        on_embed = partial(on_derive, "embed")
        parts = embed_states(
            reader, spec, covered, derivation.encoder, opening.view, on_embed, leaves
        )
    numbers = numbers_kind(opening.view)
    if numbers and not derivation.unembedded:
        part, certainty = read_numbers(reader, spec, covered, numbers, leaves)
        parts = (*parts, part)
    return parts, certainty


def _read_log(
    reader: CacheReader,
    queries: Sequence[str],
    opened: OpenedPool,
    opening: OpenTree,
    derivation: Derivation,
    on_derive: OnTask,
) -> tuple[RouteTree, dict[str, Any]]:
    """Read the tree of an imported log, whose routes are those that the cache has.

    A route that ends with a response without a verdict is left out of the query's tree.

    Returns:
        As `_read_tree`.

    Raises:
        IncompleteTree: no query has a route that ends with a verdict.
        InputError: a number of draws is asked for.
    """
    if opening.draws is not None:
        raise InputError(
            f"the draws of a log are those of its runs: --draws {opening.draws}; leave it out"
        )
    scorer = derivation.scorer
    keys = _selected_queries(reader, queries, opening.datasets, opening.limit)
    spec = walk.stored_layout(reader, opened.spec, keys)
    forest = walk.walk(reader, spec, keys)
    on_score = partial(on_derive, "score")
    if scorer is GIVEN_SCORER:  # what the source has not judged, nothing can judge
        quality = stored_scores(reader, forest, scorer.key)
    else:
        quality = measure_forest(reader, forest, scorer, opening.run_code, on_score)
    accuracy = quality
    if derivation.accuracy.key != scorer.key:
        accuracy = measure_forest(reader, forest, derivation.accuracy, opening.run_code, on_score)
    shares = stored_scores(reader, forest, RUNS_SCORER.key).tree
    routes = walk.judged_routes(spec, forest, quality.tree, shares)
    if not len(routes.rows):
        raise IncompleteTree(
            f"no route ends with a verdict of {scorer.name}: {reader.root}; import a table with "
            "scores, or take another --scorer"
        )
    spec = replace(spec, layout=routes.layout)
    kept = np.ix_(routes.rows, routes.nodes)
    judged = replace(forest.select(routes.rows), tree=forest.tree.select(kept))
    judged.tree.present[:] = routes.weight > 0
    parts, certainty = _read_states(reader, spec, judged, opening, derivation, on_derive)
    no_prices = dict.fromkeys(spec.models, Rate.base(0))
    tree = walk.load_tree(
        reader,
        spec,
        judged,
        parts,
        derivation.encoder_name,
        no_prices,
        Scores(quality.tree[kept], quality.direct[routes.rows]),
        Scores(accuracy.tree[kept], accuracy.direct[routes.rows]),
        scorer.name,
        weight=routes.weight,
        can_end=routes.can_end,
    )
    left_out = len(keys) - len(routes.rows)
    return tree, {
        "left_out": left_out,
        "shift": "",
        "rescored": rescored_note(reader, (scorer, derivation.accuracy)),
        "merged": merged_note(reader, queries),
        "left_out_reason": "no route of them ends with a verdict" if left_out else "",
        "judged_now": _judged_note(scorer),
        "is_final": True,
        "holes": routes.holes,
        **_shares_of_models(reader, spec),
        "sure": certainty,
    }


def _judged_note(scorer: Scorer) -> str:
    """Say how many verdicts were asked for, and what they have cost; "" if none was."""
    judge = scorer.judge
    if judge is None or not judge.paid_calls:
        return ""
    cost = f"{money(judge.paid)} {judge.currency}"
    return f"{judge.paid_calls:,} verdicts of {judge.name} were asked for, at a cost of {cost}"


def _complete_queries(
    reader: CacheReader, spec: TreeSpec, forest: Forest, opened: OpenedPool, opening: OpenTree
) -> tuple[Forest, NDArray[np.bool_]]:
    """Return the queries whose trees have no holes, and those of the train fold meant to have some.

    Returns:
        The forest of these queries, and bool[queries], which of them stand apart: all of which
        calls were chosen, if any of them has holes, because those that happen to be complete among
        them are no fair sample.

    Raises:
        IncompleteTree: there are others that may not be left out, or none is complete.
    """
    root = reader.root
    is_apart = forest.pruned
    if opening.growing:
        is_apart |= ~forest.complete
    if is_apart.any():
        folds = as_numpy(reader.queries(forest.keys, ("split",))["split"])
        is_apart &= folds == "train"
        is_apart &= bool((is_apart & ~forest.complete).any())
    is_complete = forest.complete & ~is_apart
    holes = walk.describe_holes(forest.select(np.flatnonzero(~is_apart)), spec)
    if is_complete.any() and (not holes or opening.allow_incomplete):
        rows = np.flatnonzero(is_complete | is_apart)
        return forest.select(rows), is_apart[rows]

    pool_flag = f" --pool {opening.pool}" if opening.pool else ""
    collect = f"`hierrouter collect --cache {root}{pool_flag}`"
    if opened.stored.imported:
        raise IncompleteTree(
            f"the table that was imported is incomplete: {holes}; import one that has them, leave "
            "models out (--without), or these queries (--allow-incomplete)"
        )
    if opened.changed:
        raise IncompleteTree(
            f"not collected with this configuration: {root}: {opened.changed}; run {collect}"
        )
    if not is_complete.any():
        raise IncompleteTree(
            f"no query is complete: {holes}; open fewer models or hops (--models, --hops), "
            f"or {collect}"
        )
    limit = _complete_limit(reader, opened, opening)
    smaller = f"--limit {limit} opens the smaller collection, " if limit else ""
    raise IncompleteTree(
        f"the tree is incomplete: {holes}; {collect} asks only for those, {smaller}"
        "--allow-incomplete leaves these queries out"
    )


def _shares_of_models(reader: CacheReader, spec: TreeSpec) -> dict[str, dict[str, Any]]:
    """Return shares of each model's responses.

    Returns:
        `capped`, that ended at the cap of new tokens, and `thinking`, with a thought; by model. And
        `given_costs`, see `Tree`.
    """
    model_of_step = {step: name for name, step in spec.direct}
    for node in range(1, spec.layout.nodes):
        model_of_step[spec.step(node)] = spec.models[spec.layout.action[node]]
    calls: Counter[str] = Counter()
    capped: Counter[str] = Counter()
    thinking: Counter[str] = Counter()
    given: dict[str, list[float]] = {}
    for row in reader.sql(COUNTED_CALLS, [THOUGHT_REGEX]).to_pylist():
        model = model_of_step.get(row["step"])
        if model:
            calls[model] += row["calls"]
            capped[model] += row["cut"]
            thinking[model] += row["thinking"]
            if row["given_calls"]:
                sums = [row[name] for name in GIVEN_COST_SUMS]
                earlier = given.get(model, [0.0] * len(sums))
                given[model] = [first + second for first, second in zip(earlier, sums, strict=True)]
    return {
        "capped": {model: capped[model] / count for model, count in calls.items()},
        "thinking": {model: thinking[model] / count for model, count in calls.items()},
        "given_costs": given,
    }


def training_tree(tree: AnyTree) -> AnyTree:
    """Return what a training may read: the folds to learn from and to choose the checkpoint on.

    Nothing of the test fold is in it, neither scores nor costs. Its fingerprint is still that of
    the whole tree, so that a report finds what was learned from it.

    Raises:
        InputError: no query to train on, or none to choose the checkpoint on.
        WorldError: it has no embeddings, because its encoder cannot be had.
    """
    tree.require_embedded()
    train, validation = (tree.splits.count(name) for name in LEARNED_FROM)
    if not train or not validation:
        raise InputError(
            f"too few queries to train on: {train} train, {validation} validation; at least 1 of "
            "each is needed, add queries"
        )
    return tree.select(np.flatnonzero(np.isin(tree.splits, LEARNED_FROM)))


def few_queries_note(tree: RouteTree, fold: str, role: str) -> str | None:
    """Return a warning that a fold is too small to trust what is read off it, or None.

    Args:
        tree: of several folds.
        fold: name of the fold.
        role: what rests on its queries, as a clause: "they choose the weights".
    """
    count = len(tree.rows(fold))
    if count >= FEW_QUERIES:
        return None
    return f"note: only {count} {fold} queries, and {role}; add queries to trust it"


def _selected_queries(
    reader: CacheReader, keys: Sequence[str], datasets: Sequence[str] | None, limit: int | None
) -> list[str]:
    """Return the keys of the queries of some datasets, at most so many of each.

    With a limit they are those that `collect` draws with the same limit. If a collection with just
    this limit was begun before, its queries are taken, with its folds. Else the folds are those of
    the latest plan, and the seed of the draw is the default one: plans do not store it.

    Args:
        reader: the open cache.
        keys: keys of the queries of the latest plan.
        datasets: names as the user gave them; None is all.
        limit: the largest number of queries of a dataset; None is no limit.

    Raises:
        InputError: a dataset was not collected.
    """
    if datasets is None and limit is None:
        return list(keys)
    rows = reader.queries(keys, ("dataset", "id", "context")).to_pylist()
    by_dataset: dict[str, dict[tuple[str, str], str]] = {}
    for key, row in zip(keys, rows, strict=True):
        by_dataset.setdefault(row["dataset"], {})[row["id"], row["context"]] = key
    selected = set(by_dataset)
    if datasets is not None:
        selected = _collected_datasets(datasets, sorted(selected))
    larger = [name for name in selected if limit is not None and len(by_dataset[name]) > limit]
    if limit is not None and larger:
        plans = reader.plans()
        for dataset in larger:
            by_dataset[dataset] = _drawn_keys(reader, plans, dataset, by_dataset[dataset], limit)
    selected_keys = []
    for row in rows:
        selected_key = by_dataset[row["dataset"]].get((row["id"], row["context"]))
        if row["dataset"] in selected and selected_key is not None:
            selected_keys.append(selected_key)
    return selected_keys


def _drawn_keys(
    reader: CacheReader,
    plans: Sequence[StoredPlan],
    dataset: str,
    keys: Mapping[tuple[str, str], str],
    limit: int,
) -> dict[tuple[str, str], str]:
    """Return the queries that `collect` draws of a dataset with a smaller limit.

    Args:
        reader: the open cache.
        plans: all of its plans, the latest first.
        dataset: name of the dataset.
        keys: keys of its queries in the latest plan, by id and context.
        limit: the largest number of queries.

    Returns:
        Their keys, by id and context.
    """
    stored = reader.sql(
        "SELECT query, id, context FROM queries WHERE dataset = $1", [dataset]
    ).to_pylist()
    names = {row["query"]: (row["id"], row["context"]) for row in stored}
    for plan in plans:
        planned = {names[key]: key for key in plan.queries if key in names}
        # A smaller draw is a part of the larger one.
        if len(planned) == limit and keys.keys() >= planned.keys():
            return planned
    ids = drawn_ids(dataset, [id for id, _ in keys], limit, PAPER_SEED)
    return {name: key for name, key in keys.items() if name[0] in ids}


def _complete_limit(reader: CacheReader, opened: OpenedPool, opening: OpenTree) -> int | None:
    """Return the largest --limit that opens an earlier, smaller collection without holes.

    Returns:
        The limit; None if there is no such collection.
    """
    latest = reader.latest_plan().queries
    datasets = opening.datasets
    limits = set()
    for plan in reader.plans():
        rows = reader.sql(
            "SELECT count(*) AS queries FROM queries WHERE query IN (SELECT unnest($1::VARCHAR[])) "
            "GROUP BY dataset",
            [list(plan.queries)],
        )
        limits.add(max(rows["queries"].to_pylist(), default=0))
    largest = opening.limit or len(latest)
    for limit in sorted(limits, reverse=True):
        if not 0 < limit < largest:
            continue
        keys = _selected_queries(reader, latest, datasets, limit)
        if len(keys) < len(latest) and walk.walk(reader, opened.spec, keys).complete.all():
            return limit
    return None


def _collected_datasets(names: Sequence[str], collected: Sequence[str]) -> set[str]:
    """Return the collected datasets that names stand for: one, that of a file, or a group.

    Args:
        names: as the user gave them.
        collected: datasets in the cache.

    Raises:
        InputError: a name stands for none of them.
    """
    datasets: set[str] = set()
    for name in names:
        if not name:
            raise InputError("empty dataset name: --datasets; separate names by one comma")
        if name in DATASET_GROUPS:
            candidates = set(DATASET_GROUPS[name].families)
        else:
            stem = Path(name).stem if is_dataset_file(name) else name
            candidates = {name, canonical_dataset(stem)}
        members = candidates & set(collected)
        if not members:
            raise InputError(
                f"dataset not in the cache: {name}; {suggestion(name, collected)}"
                f"or run `hierrouter collect --datasets {name}`"
            )
        datasets |= members
    return datasets
