"""An interactive page on one fold: alpha, prices and models can be changed, query by query.

This module computes the contents of the page and packs them; the scripts beside the templates
compute everything that depends on alpha and prices.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hierrouter.declarations.checks import MAX_ALPHA
from hierrouter.declarations.declaration import OnCount, OnNote, ignore_count
from hierrouter.evaluation.bounds import random_endings, rank_routes
from hierrouter.evaluation.budget import policy_break_points
from hierrouter.evaluation.outcome import (
    Booleans,
    Floats,
    Integers,
    RouteMeans,
    call_probability,
    is_plain,
    possible_ends,
    route_endings,
    single_calls,
)
from hierrouter.evaluation.policies import OwnPolicy, policy_endings
from hierrouter.learning.router import TrainedRouter, training_remarks
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.paper import PAPER_ALPHA
from hierrouter.replay.inspection import data_notes
from hierrouter.replay.tree import Texts, Tree, load_texts
from hierrouter.reports.estimates import ALL_DATASETS, positions_by_dataset
from hierrouter.reports.explain import worst_queries
from hierrouter.reports.page import BASE_STYLES, render, template_texts
from hierrouter.reports.sentences import (
    describe_policies,
    log_looks,
    selection_notes,
    warn_of_test_fold,
)
from hierrouter.runs.folders import draft_of, make_folder_of, new_run
from hierrouter.runs.selection import SelectedRun, select_run
from hierrouter.tables import safe_text
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import DirectCalls, RouteTree, net_reward
from hierrouter_cache.writer import write_atomically

if TYPE_CHECKING:
    from hierrouter.learning.baselines.arms import Baseline
    from hierrouter.reports.jobs import Explore

GRID_ALPHAS = 100  # positions of the slider beside those that a router was trained for
# The grid covers the alphas at which best routes change: it leaves out this share of the changes
# at either end, and reaches this many times further.
GRID_TAIL = 0.01
GRID_MARGIN = 2.0
SLIDER_ALPHA_DIGITS = 3  # significant digits of a position on the grid
MAX_TEXT_LENGTH = 4_000  # characters of one answer
TRUNCATION_MARK = " […]"
# Larger trees come with the answers on the routes of some policy only.
MAX_NODES_WITH_TEXTS = 200
PACKED_TYPES = ("<u1", "<u2", "<u4", "<f8")  # little-endian, as browsers read them
# In the order in which they are evaluated.
PAGE_SCRIPTS = (
    *("data", "routes", "value", "scene", "dom", "frontier", "tables", "shares", "list", "tree"),
    *("controls", "files", "address", "keys", "main"),
)


def slider_alphas(
    tree: RouteTree, split: str, sweep: TrainedSweep | None, trained: TrainedRouter | None
) -> tuple[float, ...]:
    """Choose the positions of the slider.

    They are 0, the paper's alpha, those of sweep and router, and a grid over the range in which
    best routes change.

    Args:
        tree: all folds; the range is that of the train fold, or of `split` if that is empty.
        split: the fold of the page.
        sweep: routers for many alphas; None without them.
        trained: the router of a single run; None without one.

    Returns:
        The alphas, ascending.
    """
    alphas = {0.0, PAPER_ALPHA, *_alpha_grid(tree, split, trained)}
    if trained:
        alphas.add(trained.alpha)
    if sweep:
        alphas.update(sweep.alphas)
    return tuple(sorted(alphas))


def _alpha_grid(tree: RouteTree, split: str, trained: TrainedRouter | None) -> set[float]:
    """Return a geometric grid over the range in which best routes change; empty if none does."""
    stop = trained is not None and trained.objective.ends_early
    train = tree.split("train")
    changes = policy_break_points(train if len(train) else tree.split(split), stop)
    if not len(changes):
        return set()
    low, high = np.quantile(changes, (GRID_TAIL, 1 - GRID_TAIL))
    grid = np.geomspace(low / GRID_MARGIN, min(high * GRID_MARGIN, MAX_ALPHA), GRID_ALPHAS)
    return {float(f"{alpha:.{SLIDER_ALPHA_DIGITS}g}") for alpha in grid}


class Series(Protocol):
    """A policy of the page, alpha by alpha.

    Attributes:
        name: its name on the page.
        note: in words, what it was trained for, or at which alphas it was evaluated or fitted.
        allow_stop: whether it may stop early.
    """

    @property
    def name(self) -> str: ...

    @property
    def note(self) -> str: ...

    @property
    def allow_stop(self) -> bool: ...

    def ends(self, rows: Integers) -> Integers:
        """int64[n, rows]: where it ends on some queries; once while that is the same."""
        ...

    def as_object(self, has_calls: bool) -> dict[str, Any]:
        """The series as JSON values, which the scripts of the page read.

        Args:
            has_calls: whether they need numbers of calls.
        """
        ...


@dataclass(frozen=True)
class EndingSeries:
    """The node where a deterministic policy ends on each query of a fold, alpha by alpha.

    Attributes:
        name: see `Series`.
        note: see `Series`.
        allow_stop: see `Series`.
        start: int64[queries], the node at which it ends at the first alpha.
        changed: for each alpha the queries that end elsewhere than at the alpha before, int64[n];
            empty at the first.
        node: for each alpha the node where these queries end, int64[n].
    """

    name: str
    note: str
    allow_stop: bool
    start: Integers
    changed: tuple[Integers, ...]
    node: tuple[Integers, ...]

    def ends(self, rows: Integers) -> Integers:
        """int64[alphas, rows]: the node where it ends on some queries."""
        ends = self.start.copy()
        at_alphas = []
        for queries, nodes in zip(self.changed, self.node, strict=True):
            ends[queries] = nodes
            at_alphas.append(ends[rows])
        return np.stack(at_alphas)

    def as_object(self, has_calls: bool) -> dict[str, Any]:
        """The series as JSON values; numbers of calls follow from the nodes."""
        return {
            "name": safe_text(self.name),
            "note": self.note,
            "stop": self.allow_stop,
            "start": whole_numbers(self.start),
            "counts": whole_numbers(np.array([len(queries) for queries in self.changed])),
            "query": whole_numbers(np.concatenate(self.changed)),
            "node": whole_numbers(np.concatenate(self.node)),
        }


@dataclass(frozen=True)
class ExpectationSeries:
    """A policy in expectation, alpha by alpha.

    It is for policies that draw, and for those that make other calls than those on the route to
    their answer.

    Attributes:
        name: see `Series`.
        note: see `Series`.
        step: int64[alphas], which of the n rows below holds at each alpha.
        end: int64[n, queries], the likeliest answer: a node, or nodes + k of the k-th direct call.
        quality: float64[n, queries].
        accuracy: float64[n, queries].
        tokens: float64[M + K, 2, n, queries], in and out, of calls of the M models in the tree and
            of the K direct ones.
        calls: float64[M + K, n, queries], numbers of these calls.
        allow_stop: see `Series`; False of what is no router.
    """

    name: str
    note: str
    step: Integers
    end: Integers
    quality: Floats
    accuracy: Floats
    tokens: Floats
    calls: Floats
    allow_stop: bool = False

    def ends(self, rows: Integers) -> Integers:
        """int64[n, rows]: the likeliest answer to some queries."""
        return self.end[:, rows]

    def as_object(self, has_calls: bool) -> dict[str, Any]:
        """The series as JSON values."""
        values = {
            "name": safe_text(self.name),
            "quality": numbers(self.quality),
            "accuracy": numbers(self.accuracy),
            "tokens": numbers(self.tokens),
            "step": whole_numbers(self.step),
            "end": whole_numbers(self.end),
        }
        return {**values, "calls": numbers(self.calls)} if has_calls else values


def sweep_series(
    sweep: TrainedSweep,
    fold: RouteTree,
    alphas: Sequence[float],
    on_progress: OnCount = ignore_count,
    name: str = "HierRouter, sweep",
) -> Series:
    """Evaluate the sweep's router at each alpha.

    Args:
        sweep: routers for many alphas.
        fold: the queries.
        alphas: positions of the slider.
        on_progress: called with (alphas done, all alphas) after each.
        name: of the series on the page.

    Raises:
        InputError: the sweep was made for another tree.
    """

    def endings() -> Iterator[Floats]:
        previous: TrainedRouter | None = None
        ends = np.empty((0, 0))
        for done, alpha in enumerate(alphas, start=1):
            trained = sweep.at(alpha)
            # A network of the grid is the same one at many alphas.
            if previous is None or not decides_like(trained, previous):
                ends = trained.endings(fold)
            previous = trained
            yield ends
            on_progress(done, len(alphas))

    low = sweep.alphas[0]
    high = sweep.alphas[-1]
    origin = sweep.origin
    note = (
        f"trained for alphas from {low:g} to {high:g} "
        f"(sweep-alpha, {origin.config.algo}, seed {origin.seed})"
    )
    return _router_series(name, note, sweep.objective.allow_stop, fold, endings())


def _router_series(
    name: str, note: str, allow_stop: bool, fold: RouteTree, endings: Iterator[Floats]
) -> Series:
    """Make the series of a deterministic router.

    Args:
        name: name of the router on the page.
        note: see `Series`.
        allow_stop: whether it may stop early.
        fold: the queries.
        endings: for each alpha float64[queries, endings], their probabilities; one object as long
            as the router is the same.
    """
    if is_plain(fold):
        return _ending_series(name, note, allow_stop, (ends.argmax(axis=1) for ends in endings))
    # The draws of its calls decide where it ends.
    steps: list[int] = []
    expectations: list[Expectation] = []
    previous: Floats | None = None
    for ends in endings:
        if ends is not previous:
            expectations.append(_expectation_of_endings(fold, ends))
        previous = ends
        steps.append(len(expectations) - 1)
    return _expectation_series(name, note, np.array(steps), expectations, allow_stop)


def decides_like(router: TrainedRouter, other: TrainedRouter) -> bool:
    """Whether two routers of a sweep are one network, or one constant choice."""
    return router.router == other.router and router.constant == other.constant


def run_series(trained: TrainedRouter, fold: RouteTree, count: int) -> Series:
    """Evaluate one router, which is the same at each of `count` alphas.

    Raises:
        InputError: the router was made for another tree.
    """
    endings = trained.endings(fold)
    note = f"trained at alpha {trained.alpha:g}, and the same router at every alpha"
    repeated = itertools.repeat(endings, count)
    may_stop = trained.objective.allow_stop
    return _router_series("HierRouter, one alpha", note, may_stop, fold, repeated)


def reference_series(
    tree: RouteTree, split: str, alpha: float, steps: int, allow_stop: bool
) -> Iterator[ExpectationSeries]:
    """Evaluate chance and the best fixed route, where draws or missing calls need Python for it.

    Args:
        tree: all folds; the route is chosen on "train".
        split: the fold of the page.
        alpha: the route is the best one at this alpha.
        steps: number of positions of the slider.
        allow_stop: whether episodes may end before L calls.

    Yields:
        The series; on a tree where the page's scripts work both out, none.
    """
    fold = tree.split(split)
    if is_plain(fold):
        return
    step = np.zeros(steps, np.int64)
    chance = random_endings(fold, allow_stop)
    note = "takes every route with the same probability"
    expectations = [_expectation_of_endings(fold, chance)]
    yield _expectation_series("random", note, step, expectations)
    train = tree.split("train")
    if len(train):
        ranking = rank_routes(train, alpha, allow_stop)
        endings = route_endings(fold, ranking, allow_stop)
        name = f"best fixed route (train), {fold.layout.name(ranking[0], fold.models)}"
        note = (
            f"chosen on train at alpha {alpha:g}; where a question does not offer it, the next "
            "best one is taken"
        )
        expectations = [_expectation_of_endings(fold, endings)]
        yield _expectation_series(name, note, step, expectations)


def _ending_series(
    name: str, note: str, allow_stop: bool, endings: Iterator[Integers]
) -> EndingSeries:
    """Keep what changes from alpha to alpha.

    Args:
        name: name of the policy on the page.
        note: see `Series`.
        allow_stop: whether the policy may stop early.
        endings: int64[queries] for each alpha, the node where each query ends.
    """
    start = next(endings)
    previous = start
    no_query = start[:0]
    changed = [no_query]
    nodes = [no_query]
    for current in endings:
        queries = np.flatnonzero(current != previous)
        changed.append(queries)
        nodes.append(current[queries])
        previous = current
    return EndingSeries(name, note, allow_stop, start, tuple(changed), tuple(nodes))


def policy_series(
    policy: OwnPolicy, fold: RouteTree, alphas: Sequence[float], allow_stop: bool
) -> Series:
    """Evaluate a policy of the user: at each alpha if it reads alpha, else once.

    Args:
        policy: the policy.
        fold: the queries.
        alphas: positions of the slider.
        allow_stop: whether it may stop early.

    Raises:
        InputError: the policy fails, or returns neither an action nor probabilities.
    """
    ends: list[Integers] = []
    expectations: list[Expectation] = []  # empty as long as the policy does not draw
    for alpha in alphas:
        endings = policy_endings(fold, policy, alpha, allow_stop)
        draws = bool((endings.max(axis=1) < 1).any())
        if draws and not expectations:
            # At the alphas before it was certain of its endings.
            one_hot = np.eye(fold.layout.nodes)
            expectations = [_expectation_of_endings(fold, one_hot[end]) for end in ends]
        if draws or expectations:
            expectations.append(_expectation_of_endings(fold, endings))
        ends.append(endings.argmax(axis=1))
        if "alpha" not in policy.keys_read:
            break
    reads_alpha = len(ends) == len(alphas)
    note = "asked at every alpha" if reads_alpha else "does the same at every alpha"
    if expectations:
        step = np.arange(len(alphas)) if reads_alpha else np.zeros(len(alphas), np.int64)
        note = f"{note}; it draws, so its means are shown"
        return _expectation_series(policy.name, note, step, expectations)
    repeated = ends if reads_alpha else ends * len(alphas)
    return _ending_series(policy.name, note, allow_stop, iter(repeated))


def baseline_series(
    cache: Path,
    tree: RouteTree,
    split: str,
    alpha: float,
    baselines: Sequence[Baseline],
    steps: int,
    pool: str | None,
) -> list[ExpectationSeries]:
    """Fit baselines at one alpha, and evaluate them; they are the same at every alpha.

    Each baseline is fitted for each set of arms: it chooses a direct call (A) or a route (B).

    Args:
        cache: folder of the cache that the tree was opened from.
        tree: all folds.
        split: the fold of the page.
        alpha: weight of cost in R.
        baselines: the baselines.
        steps: number of positions of the slider.
        pool: name of the pool, if the cache has several.

    Raises:
        InputError: as in `contest`.
        CacheError: the answers that the baselines read are not in the cache.
    """
    # Baselines need scikit-learn, which a page without them does not.
    from hierrouter.learning.baselines.answers import answers_for
    from hierrouter.learning.baselines.arms import ARM_SETS, Play, usable_sets
    from hierrouter.learning.baselines.contest import contest

    sets = usable_sets(tree, tuple(ARM_SETS))
    fold = tree.split(split)
    nodes = np.arange(fold.layout.nodes)
    direct_models = fold.direct.models
    width = len(nodes) + len(direct_models)
    direct_arms = len(nodes) + np.flatnonzero([model in fold.callers for model in direct_models])
    # Of each set the columns of its answers, and of its calls, among nodes and direct calls.
    answer_columns = {"A": direct_arms, "B": nodes[fold.layout.leaves]}
    call_columns = {"A": direct_arms, "B": nodes[1:]}
    note = f"fitted at alpha {alpha:g}, and the same at every alpha; (A) chooses a direct call"
    series: list[ExpectationSeries] = []

    def on_played(name: str, arms: str, played: Play) -> None:
        answers = np.zeros((len(fold), width))
        answers[:, answer_columns[arms]] = played.answer
        calls = np.zeros((len(fold), width))
        calls[:, call_columns[arms]] = played.called
        step = np.zeros(steps, np.int64)
        expectation = _expectation(fold, answers, calls)
        series.append(
            _expectation_series(f"{name} ({arms})", f"{note}, (B) a route", step, [expectation])
        )

    answers = answers_for(cache, tree, baselines, sets, pool)
    contest(tree, alpha, baselines, sets, None, split, answers=answers, on_played=on_played)
    return series


class Expectation(NamedTuple):
    """A policy in expectation at one alpha, as in `ExpectationSeries`.

    Attributes:
        end: int64[queries].
        quality: float64[queries].
        accuracy: float64[queries].
        tokens: float64[M + K, 2, queries].
        calls: float64[M + K, queries].
    """

    end: Integers
    quality: Floats
    accuracy: Floats
    tokens: Floats
    calls: Floats


def _expectation_of_endings(fold: RouteTree, endings: Floats) -> Expectation:
    """Take the expectation over endings: float64[queries, nodes], their probabilities."""
    return _expectation(fold, endings, call_probability(fold.layout, endings))


def _expectation(fold: RouteTree, answers: Floats, calls: Floats) -> Expectation:
    """Take the expectation over answers and calls.

    Args:
        fold: the queries.
        answers: float64[queries, nodes + K], the probability that the answer of a node, or of a
            direct call, is returned; or float64[queries, nodes], without direct calls.
        calls: the probability that its call is made, likewise.
    """
    direct = fold.direct
    nodes = fold.layout.nodes
    models = len(fold.models)
    direct_models = len(direct.models)

    def padded(probabilities: Floats) -> Floats:
        missing = nodes + direct_models - probabilities.shape[1]
        return np.pad(probabilities, ((0, 0), (0, missing)))

    def values(name: str) -> Floats:
        """Values of the nodes, then of the direct calls: float64[queries, nodes + K]."""
        return np.concatenate([getattr(fold, name), getattr(direct, name)], axis=1)

    answers = padded(answers)
    calls = padded(calls)
    calls[:, 0] = 0.0  # the root is no call
    # The action of each call; direct calls count on their own, because their prices may differ.
    callers = np.concatenate([fold.layout.action % models, models + np.arange(direct_models)])
    by_caller = np.eye(models + direct_models)[callers]
    tokens = np.array([(calls * values(name)) @ by_caller for name in ("tokens_in", "tokens_out")])
    return Expectation(
        end=answers.argmax(axis=1),
        quality=(answers * values("score")).sum(axis=1),
        accuracy=(answers * values("accuracy")).sum(axis=1),
        tokens=tokens.transpose(2, 0, 1),
        calls=(calls @ by_caller).T,
    )


def _expectation_series(
    name: str,
    note: str,
    step: Integers,
    expectations: Sequence[Expectation],
    allow_stop: bool = False,
) -> ExpectationSeries:
    return ExpectationSeries(
        name=name,
        note=note,
        step=step,
        end=np.stack([expectation.end for expectation in expectations]),
        quality=np.stack([expectation.quality for expectation in expectations]),
        accuracy=np.stack([expectation.accuracy for expectation in expectations]),
        tokens=np.stack([expectation.tokens for expectation in expectations], axis=2),
        calls=np.stack([expectation.calls for expectation in expectations], axis=1),
        allow_stop=allow_stop,
    )


@dataclass(frozen=True)
class Exploration:
    """One fold of a tree, and what policies do on it at each alpha.

    Attributes:
        tree: all folds; whatever is chosen from data is chosen on "train".
        split: the fold of the page.
        alphas: positions of the slider, ascending.
        start: number of the position that is shown first.
        routers: the sweep's router first, then that of a run.
        others: sweeps of other algorithms, the user's policies, then baselines; where there are
            draws or holes, chance and the best fixed route.
        texts: question, reference answers and answers, by position of the query in the fold.
        notes: sentences that a reader must not miss.
    """

    tree: RouteTree
    split: str
    alphas: tuple[float, ...]
    start: int
    routers: tuple[Series, ...]
    others: tuple[Series, ...]
    texts: Mapping[int, Texts]
    notes: tuple[str, ...]

    @property
    def fold(self) -> RouteTree:
        """The queries of the page."""
        return self.tree.split(self.split)


def explore_fold(
    cache: Path,
    tree: RouteTree,
    split: str,
    selected: SelectedRun,
    texts: int,
    pool: str | None = None,
    on_progress: OnCount = ignore_count,
    policies: Sequence[OwnPolicy] = (),
    baselines: Sequence[Baseline] = (),
) -> Exploration:
    """Compute all contents of the page of one fold.

    Args:
        cache: folder of the cache that the tree was opened from.
        tree: all folds.
        split: the fold of the page.
        selected: the router and the sweep to show, and the alpha to show first.
        texts: most queries whose texts are loaded: those with the largest regret of the first
            router at the alpha shown first, then the first ones of the fold.
        pool: name of the pool, if the cache has several.
        on_progress: called with (alphas done, all alphas) while a sweep is evaluated.
        policies: the user's policies; if a router may stop early, they may, too.
        baselines: baselines, fitted at the alpha shown first.

    Raises:
        InputError: the fold is empty.
        InputError: a router was made for another tree, or may return earlier answers.
        InputError: a policy or a baseline cannot be shown.
        CacheError: the answers are not in the cache.
    """
    fold = tree.split(split)
    sweep = selected.sweep
    if not len(fold):
        raise InputError(f"the {split} fold is empty: nothing to explore; add queries")
    if any(router and router.objective.allow_return for router in (selected.trained, sweep)):
        raise InputError("no page for a router with --allow-return; see `hierrouter explain`")
    # A router that was taken from the sweep is shown with the sweep anyway.
    trained = selected.trained if selected.run != selected.sweep_run else None
    alphas = slider_alphas(tree, split, sweep, trained)
    # The sweep's router comes first, because it changes with alpha.
    routers = []
    if sweep:
        routers.append(sweep_series(sweep, fold, alphas, on_progress))
    if trained:
        routers.append(run_series(trained, fold, len(alphas)))
    stop = any(router.allow_stop for router in routers)
    others: list[Series] = [
        sweep_series(beside.sweep, fold, alphas, name=f"HierRouter, {beside.name}")
        for beside in selected.beside
        if not beside.is_other_seed
    ]
    others += [policy_series(policy, fold, alphas, stop) for policy in policies]
    others += reference_series(tree, split, selected.alpha, len(alphas), stop)
    if baselines and not _is_paper_tree(tree):
        raise InputError(
            "baselines on a tree with several draws of a call, or with other routes for some "
            "questions: they are compared by `hierrouter compare`; leave --baselines out"
        )
    if baselines:
        others += baseline_series(cache, tree, split, selected.alpha, baselines, len(alphas), pool)
    first_router = sweep.at(selected.alpha) if sweep else trained
    rows = _rows_with_texts(tree, split, selected.alpha, first_router, texts)
    loaded_texts = load_texts(cache, fold.select(rows), pool) if len(rows) else []
    return Exploration(
        tree=tree,
        split=split,
        alphas=alphas,
        start=int(np.abs(np.array(alphas) - selected.alpha).argmin()),
        routers=tuple(routers),
        others=tuple(others),
        texts=dict(zip(rows.tolist(), loaded_texts, strict=True)),
        notes=(*data_notes(tree), *_price_notes(tree), *_training_notes(tree, trained, sweep)),
    )


def _price_notes(tree: RouteTree) -> list[str]:
    """Say what the costs of the page leave out."""
    if tree.rate.shape[1] == 2 or (tree.rate[:, 2:4] == tree.rate[:, :2]).all():
        return []
    return [
        "C counts all tokens at the prices of tokens in and out here: those of cached tokens and "
        "thoughts are in reports only."
    ]


def _training_notes(
    tree: RouteTree, trained: TrainedRouter | None, sweep: TrainedSweep | None
) -> list[str]:
    """Say how routers are shown under other conditions than they were trained under, bar alpha."""
    routers = []
    if trained:
        routers.append(trained)
    if sweep:
        routers.append(sweep.at(sweep.alphas[0]))
    remarks = [
        remark for router in routers for remark in training_remarks(router, router.alpha, tree)
    ]
    return [f"{remark[:1].upper()}{remark[1:]}." for remark in dict.fromkeys(remarks)]


def _rows_with_texts(
    tree: RouteTree, split: str, alpha: float, trained: TrainedRouter | None, count: int
) -> Integers:
    """Choose the queries that come with their texts.

    Returns:
        int64[n], ascending: their positions in the fold.
    """
    fold_rows = tree.rows(split)
    worst = worst_queries(tree, split, alpha, trained, count) if trained else []
    others = np.setdiff1d(fold_rows, worst)[: count - len(worst)]
    rows = np.array([*worst, *others], dtype=np.int64)
    return np.sort(np.searchsorted(fold_rows, rows))


def as_object(exploration: Exploration) -> dict[str, Any]:
    """Return the contents of the page as JSON values, which its scripts read."""
    fold = exploration.fold
    datasets = list(dict.fromkeys(fold.datasets))
    train = exploration.tree.split("train")
    direct = {
        **_calls(fold.direct),
        "models": [safe_text(name) for name in fold.direct.models],
        "inPool": [name in fold.callers for name in fold.direct.models],
    }
    texts_on_routes = zip(exploration.texts.items(), _nodes_on_routes(exploration), strict=True)
    # Numbers of calls matter where a call has a price of its own.
    has_calls = any(calls.rate.shape[1] > 2 for calls in (fold, fold.direct))
    optional: dict[str, Any] = {}
    if not _is_paper_tree(fold):
        optional["layout"] = _layout(fold)
    return {
        "split": exploration.split,
        "scorer": safe_text(fold.scorer),
        "unit": fold.cost_unit,
        "models": [safe_text(name) for name in fold.models],
        "hops": fold.hops,
        "datasets": [safe_text(name) for name in datasets],
        "queries": {
            "id": [safe_text(name) for name in fold.query_ids],
            "dataset": whole_numbers(np.array([datasets.index(name) for name in fold.datasets])),
        },
        "nodes": _calls(fold),
        "direct": direct,
        # With draws or missing calls, what is chosen on train is among those that are brought.
        "train": _train(train, datasets) if len(train) and is_plain(fold) else None,
        "alphas": list(exploration.alphas),
        "start": exploration.start,
        "routers": [
            {**router.as_object(has_calls), "note": router.note, "stop": router.allow_stop}
            for router in exploration.routers
        ],
        "brought": [other.as_object(has_calls) for other in exploration.others],
        "texts": {str(row): _texts(texts, on_route) for (row, texts), on_route in texts_on_routes},
        "notes": [safe_text(note) for note in exploration.notes],
        **optional,
    }


def _is_paper_tree(tree: RouteTree) -> bool:
    """Whether every query has each model at each hop, with one draw: M and L say which nodes."""
    return tree.layout.is_full and is_plain(tree)


def _layout(fold: RouteTree) -> dict[str, Any]:
    """The nodes of a tree of another shape; arrays over queries have a row for each node.

    Where queries differ in their calls, or calls have several draws: also which nodes a query has,
    where an episode may end, and the fixed routes that all queries offer. Of `ends` and `routes`
    the first is of policies that make all their calls, the second of those that may stop early.
    """
    layout = fold.layout
    nodes: dict[str, Any] = {
        "parent": whole_numbers(np.maximum(layout.parent, 0)),
        "action": whole_numbers(np.maximum(layout.action, 0)),
        "draw": whole_numbers(layout.draw),
        "route": whole_numbers(layout.route),
        "inner": layout.inner,
    }
    if is_plain(fold):
        return nodes
    shape = fold.score.shape
    weight = np.ones(shape) if fold.weight is None else fold.weight
    judged = np.ones(shape, np.bool_) if fold.can_end is None else fold.can_end
    ends = [possible_ends(fold, stop) for stop in (False, True)]
    means = [RouteMeans(fold, stop) for stop in (False, True)]
    return {
        **nodes,
        "weight": numbers(weight.T),
        "judged": whole_numbers(judged.T.astype(np.int64)),
        "ends": [whole_numbers(may_end.T.astype(np.int64)) for may_end in ends],
        "routes": [whole_numbers(routes.node[routes.everywhere]) for routes in means],
    }


def _calls(calls: RouteTree | DirectCalls) -> dict[str, Any]:
    """Scores and tokens of calls, a row for each node or model."""
    return {
        "score": numbers(calls.score.T),
        "accuracy": numbers(calls.accuracy.T),
        "tokensIn": whole_numbers(calls.tokens_in.T),
        "tokensOut": whole_numbers(calls.tokens_out.T),
        "rate": calls.rate.tolist(),
    }


def _train(train: RouteTree, datasets: list[str]) -> dict[str, Any]:
    """Means of each node on the train fold, by dataset, at last over all queries.

    They suffice to choose a fixed route at any alpha and price. A dataset without queries in the
    train fold has null.
    """
    positions = positions_by_dataset(train.datasets)
    values = {"score": train.score, "tokensIn": train.tokens_in, "tokensOut": train.tokens_out}
    columns: list[dict[str, Any] | None] = []
    for name in (*datasets, ALL_DATASETS):
        if name not in positions:
            columns.append(None)
            continue
        rows = positions[name]
        columns.append({key: array[rows].mean(axis=0).tolist() for key, array in values.items()})
    return {"columns": columns}


def _nodes_on_routes(exploration: Exploration) -> Booleans:
    """Mark the nodes on a route of the oracle, of a best fixed route, or of a policy.

    Returns:
        bool[texts, nodes]: for the queries with texts; all nodes of a small tree.
    """
    rows = np.array(list(exploration.texts), dtype=np.int64)
    fold = exploration.fold.select(rows)
    layout = fold.layout
    is_on_route = np.full((len(rows), layout.nodes), layout.nodes <= MAX_NODES_WITH_TEXTS)
    if fold.weight is not None:
        # Of a query that lacks most nodes, all texts.
        present = fold.weight > 0
        is_on_route |= present & (present.sum(axis=1) <= MAX_NODES_WITH_TEXTS)[:, None]
    if is_on_route.all():
        return is_on_route
    every_series = (*exploration.routers, *exploration.others)
    if not is_plain(fold):
        ends = np.concatenate([series.ends(rows) for series in every_series])
        for row, reached in enumerate(ends.T):
            for node in np.unique(reached[reached < layout.nodes]).tolist():
                is_on_route[row, list(layout.nodes_to(node))] = True
        return is_on_route
    queries = np.arange(len(rows))
    train = exploration.tree.split("train")
    train_score = train.score.mean(axis=0)
    train_cost = train.cost.mean(axis=0)
    # The ends of routes, with and without early stops: full routes end at the leaves, which are
    # the last nodes.
    for alpha, first in itertools.product(exploration.alphas, (1, layout.inner)):
        best = net_reward(fold.score, fold.cost, alpha)[:, first:].argmax(axis=1)
        is_on_route[queries, first + best] = True
        best_on_train = net_reward(train_score, train_cost, alpha)[first:].argmax()
        is_on_route[:, first + best_on_train] = True
    for series in every_series:
        # Ends from the number of nodes on are direct calls, which have no texts here.
        is_on_route[queries, np.minimum(series.ends(rows), layout.nodes - 1)] = True
    # From the leaves up: a node is on a route if a node below it is.
    for node in range(layout.nodes - 1, 0, -1):
        is_on_route[:, layout.parent[node]] |= is_on_route[:, node]
    return is_on_route


def _texts(texts: Texts, is_on_route: Booleans) -> dict[str, Any]:
    """Return question and answers; equal answers once, and for each node the number of its answer.

    Args:
        texts: texts of a query.
        is_on_route: bool[nodes], whether the page has the answer of a node; the number of the
            others is the number of answers.
    """
    answers = [answer for answer, keep in zip(texts.answers, is_on_route, strict=True) if keep]
    numbers_by_answer = {answer: number for number, answer in enumerate(dict.fromkeys(answers))}
    absent = len(numbers_by_answer)
    answer_of_node = [numbers_by_answer.get(answer, absent) for answer in texts.answers]
    return {
        "question": _truncated(texts.question),
        "references": [_truncated(reference) for reference in texts.references],
        "answers": [_truncated(answer) for answer in numbers_by_answer],
        "which": whole_numbers(np.array(answer_of_node)),
    }


def _truncated(text: str) -> str:
    safe = safe_text(text)
    return safe if len(safe) <= MAX_TEXT_LENGTH else safe[:MAX_TEXT_LENGTH] + TRUNCATION_MARK


def as_html(exploration: Exploration) -> str:
    """Return the page: the same bytes for the same values."""
    fold = exploration.fold
    names_by_note: dict[str, list[str]] = {}
    for other in exploration.others:
        names_by_note.setdefault(other.note, []).append(other.name)
    scripts = template_texts(*(f"{name}.js" for name in PAGE_SCRIPTS), between="\n")
    return render(
        "explore.html.j2",
        template_texts(*BASE_STYLES, "explore.css"),
        # All scripts in one function, so that nothing in them is a global name.
        f'(() => {{\n"use strict";\n{scripts}\n}})();\n',
        data=compressed(as_object(exploration)),
        queries=len(fold),
        datasets=len(set(fold.datasets)),
        split=exploration.split,
        scorer=fold.scorer,
        notes=exploration.notes,
        absent=_absent_kinds(exploration),
        others=names_by_note,
        texts=len(exploration.texts),
        has_all_texts=fold.layout.nodes <= MAX_NODES_WITH_TEXTS,
        is_full=_is_paper_tree(fold),
        has_draws=not is_plain(fold),
    )


def write_page(
    job: Explore,
    tree: Tree,
    on_note: OnNote,
    show_progress: Callable[[], AbstractContextManager[OnCount]],
) -> Path:
    """Do the job of `Explore.run`, which has the arguments and the errors."""
    # A sweep that was not asked for is not shown beside a run that was.
    with_sweep = job.checkpoint is None or job.sweep is not None
    selected = select_run(tree, None, job.checkpoint, job.sweep, with_sweep=with_sweep)
    if tree.second:
        raise InputError("the page has prices of tokens only: leave --price-of-second out")
    notes = selection_notes("explore", selected, job.split, with_sweep=True)
    for note in (*notes, *warn_of_test_fold("explore", job.split)):
        on_note(note)
    with show_progress() as on_progress:
        exploration = explore_fold(
            tree.root,
            tree,
            job.split,
            selected,
            job.texts,
            tree.pool,
            on_progress,
            job.own_policies,
            job.loaded_baselines,
        )
    look: dict[str, Any] = {"texts": len(exploration.texts), **describe_policies(job.own_policies)}
    if job.loaded_baselines:
        look["baselines"] = [baseline.name for baseline in job.loaded_baselines]
    for note in log_looks("explore", tree, job.split, selected.runs, look):
        on_note(note)
    html = as_html(exploration).encode()
    if job.out:
        make_folder_of(job.out)
        write_atomically(job.out, html)
        return job.out
    page = new_run("explore", None) / job.page_name
    with draft_of(page.parent) as draft:
        write_atomically(draft / page.name, html)
    return page


def _absent_kinds(exploration: Exploration) -> set[str]:
    """Return the kinds of policies that the legend leaves out."""
    kinds = {outcome.kind for outcome in single_calls(exploration.fold)}
    absent: set[str] = {"single", "reference"} - kinds
    if not exploration.routers:
        absent.add("router")
    if "train" not in exploration.tree.splits:
        absent.add("informed")
    if not is_plain(exploration.fold):
        absent |= {"informed", "random"}
    return absent


def whole_numbers(values: Integers) -> dict[str, str]:
    """Pack numbers >= 0 in the smallest type that holds them.

    Numbers from 2**32 on are packed as float64, which is exact up to 2**53.

    Args:
        values: int64, of any shape.

    Returns:
        `type` and `data`, the values in C order.
    """
    largest = int(values.max(initial=0))
    limits = (2**8, 2**16, 2**32)
    dtype = PACKED_TYPES[sum(largest >= limit for limit in limits)]
    return _packed(values, dtype)


def numbers(values: Floats) -> dict[str, Any]:
    """Pack floats without loss: the distinct values, and for each value its number among them.

    Args:
        values: float64, of any shape.

    Returns:
        `values` and `code`, both packed.
    """
    distinct, code = np.unique(values, return_inverse=True)
    return {"values": _packed(distinct, "<f8"), "code": whole_numbers(code.reshape(values.shape))}


def _packed(values: NDArray[Any], dtype: str) -> dict[str, str]:
    data = np.ascontiguousarray(values, dtype=dtype).tobytes()
    return {"type": dtype, "data": base64.b64encode(data).decode("ascii")}


def compressed(value: Any) -> str:
    """Return JSON as gzip in base64, which is inert in a script element whatever it contains."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")
