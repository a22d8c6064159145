"""A page that lets a person play with a cache: what is on it, and how it is packed."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.budget import policy_break_points
from hierrouter.evaluation.outcome import Booleans, Floats, Integers, call_probability, single_calls
from hierrouter.evaluation.policies import OwnPolicy, policy_endings
from hierrouter.learning.config import MAX_ALPHA
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.learning.training import TrainedRouter, training_remarks
from hierrouter.paper import PAPER_ALPHA
from hierrouter.replay.inspection import data_notes
from hierrouter.replay.tree import Texts, load_texts
from hierrouter.reports.explain import worst_queries
from hierrouter.reports.html import BASE_STYLES, render, template_texts
from hierrouter.reports.values import ALL, columns_of
from hierrouter.runs.selection import SelectedRun
from hierrouter.tables import safe_text
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import DirectCalls, RouteTree, net_reward

if TYPE_CHECKING:
    from hierrouter.learning.baselines.arms import Baseline

BETWEEN = 100  # positions beside those that somebody has asked for
TAILS = 0.01  # share of the oracle's changes that lies below the range, and above it
ROOM = 2.0  # the range reaches so many times further
DIGITS = 3  # significant digits of a position
TYPES = ("<u1", "<u2", "<u4", "<f8")  # little-endian, as browsers read them
LONGEST_TEXT = 4_000  # characters of one answer
WHOLE = 200  # nodes; of larger trees only the answers on somebody's way are on the page
CUT = " […]"
SCRIPTS = (
    *("data", "routes", "value", "scene", "dom", "frontier", "tables", "shares", "list", "tree"),
    *("controls", "files", "address", "keys", "main"),
)

OnDone = Callable[[int, int], None]


def positions(
    tree: RouteTree, split: str, sweep: TrainedSweep | None, trained: TrainedRouter | None
) -> tuple[float, ...]:
    """0, the paper's alpha, those of sweep and router, and the range in which best routes change.

    Returns ascending.

    Args:
        tree: all folds; the range is that of the train fold, of the fold shown where it is empty.
        trained: the router of a single run.
    """
    asked = {0.0, PAPER_ALPHA} | ({trained.alpha} if trained else set())
    return tuple(sorted(asked.union(sweep.alphas if sweep else (), _between(tree, split, trained))))


def _between(tree: RouteTree, split: str, trained: TrainedRouter | None) -> set[float]:
    """Spread evenly over the logarithm of the range; none where no route ever changes."""
    stop = trained is not None and trained.objective.ends_early
    train = tree.split("train")
    changes = policy_break_points(train if len(train) else tree.split(split), stop)
    if not len(changes):
        return set()
    low, high = np.quantile(changes, (TAILS, 1 - TAILS))
    spread = np.geomspace(low / ROOM, min(high * ROOM, MAX_ALPHA), BETWEEN)
    return {float(f"{alpha:.{DIGITS}g}") for alpha in spread}


@dataclass(frozen=True)
class Learned:
    """A router, or a policy of the user's own, on one fold, along a grid of alphas.

    Attributes:
        name: what the page calls it.
        note: what it was trained for, or asked at, in words.
        start: int64[queries], the node where it ends at the first alpha.
        changed: for each alpha the queries that end elsewhere than at the alpha before, int64[n];
            none at the first.
        node: for each alpha where these end, int64[n].
    """

    name: str
    note: str
    allow_stop: bool
    start: Integers
    changed: tuple[Integers, ...]
    node: tuple[Integers, ...]


@dataclass(frozen=True)
class Drawn:
    """A policy in expectation: it draws, or it makes calls beside those of the answer it gives.

    Attributes:
        step: int64[alphas], which of the n rows below holds at each alpha.
        end: int64[n, queries], the likeliest answer: a node, or nodes + k of the k-th direct call.
        quality, accuracy: float64[n, queries].
        tokens: float64[M + K, 2, n, queries], in and out, of calls of the M models in the tree and
            of the K direct ones.
    """

    name: str
    note: str
    step: Integers
    end: Integers
    quality: Floats
    accuracy: Floats
    tokens: Floats


def of_sweep(
    sweep: TrainedSweep,
    fold: RouteTree,
    alphas: Sequence[float],
    on_done: OnDone = lambda done, total: None,
) -> Learned:
    """The sweep's router at each alpha.

    Raises InputError: a sweep of another tree.
    """

    def endings() -> Iterator[Integers]:
        for done, alpha in enumerate(alphas, start=1):
            yield sweep.at(alpha).endings(fold).argmax(axis=1)
            on_done(done, len(alphas))

    low, high = sweep.alphas[0], sweep.alphas[-1]
    note = f"trained for alphas from {low:g} to {high:g} (sweep-alpha, seed {sweep.origin.seed})"
    return _along("HierRouter, sweep", note, sweep.objective.allow_stop, endings())


def of_run(trained: TrainedRouter, fold: RouteTree, count: int) -> Learned:
    """One router, the same at each of `count` alphas.

    Raises InputError: a router of another tree.
    """
    endings = trained.endings(fold).argmax(axis=1)
    note = f"trained at alpha {trained.alpha:g}, and the same router at every alpha"
    stop = trained.objective.allow_stop
    return _along("HierRouter, one alpha", note, stop, (endings for _ in range(count)))


def _along(name: str, note: str, allow_stop: bool, endings: Iterator[Integers]) -> Learned:
    before = start = next(endings)
    changed, nodes = [start[:0]], [start[:0]]
    for now in endings:
        changed.append(np.flatnonzero(now != before))
        nodes.append(now[changed[-1]])
        before = now
    return Learned(name, note, allow_stop, start, tuple(changed), tuple(nodes))


def of_policy(
    policy: OwnPolicy, fold: RouteTree, alphas: Sequence[float], allow_stop: bool
) -> Learned | Drawn:
    """A policy of the user's own, asked at each alpha if it reads alpha, else once.

    Raises InputError: it fails, or gives what is neither an action nor probabilities.
    """
    ends: list[Integers] = []
    drawn: list[Expected] = []
    for alpha in alphas:
        endings = policy_endings(fold, policy, alpha, allow_stop)
        ends.append(endings.argmax(axis=1))
        if drawn or (endings.max(axis=1) < 1).any():
            known = [np.eye(fold.routes.nodes)[end] for end in ends[len(drawn) : -1]]
            drawn += [
                _expected(fold, one, call_probability(fold.routes, one))
                for one in (*known, endings)
            ]
        if "alpha" not in policy.keys_read:
            break
    every = len(ends) == len(alphas)
    note = "asked at every alpha" if every else "does the same at every alpha"
    if not drawn:
        along = ends if every else ends * len(alphas)
        return _along(policy.name, note, allow_stop, iter(along))
    step = np.arange(len(alphas)) if every else np.zeros(len(alphas), np.int64)
    return _drawn(policy.name, f"{note}; it draws, so its means are shown", step, drawn)


def of_baselines(
    cache: Path,
    tree: RouteTree,
    split: str,
    alpha: float,
    baselines: Sequence[Baseline],
    steps: int,
    pool: str | None,
) -> list[Drawn]:
    """Baselines, fitted at one alpha, that choose a direct call (A) or a route (B).

    Raises InputError: as `contest`; CacheError: the answers that they read are not in the cache.
    """
    from hierrouter.learning.baselines.answers import answers_for
    from hierrouter.learning.baselines.arms import SETS, Play, usable_sets
    from hierrouter.learning.baselines.contest import contest

    sets, fold = usable_sets(tree, tuple(SETS)), tree.split(split)
    nodes, direct = np.arange(fold.routes.nodes), fold.direct.models
    asked = len(nodes) + np.flatnonzero([model in fold.models for model in direct])
    columns = {"A": (asked, asked), "B": (nodes[fold.routes.leaves], nodes[1:])}
    note = f"fitted at alpha {alpha:g}, and the same at every alpha; (A) chooses a direct call"
    found: list[Drawn] = []

    def on_played(name: str, arms: str, played: Play) -> None:
        answer, made = np.zeros((2, len(fold), len(nodes) + len(direct)))
        answer[:, columns[arms][0]], made[:, columns[arms][1]] = played.answer, played.called
        step, expected = np.zeros(steps, np.int64), _expected(fold, answer, made)
        found.append(_drawn(f"{name} ({arms})", f"{note}, (B) a route", step, [expected]))

    answers = answers_for(cache, tree, baselines, sets, pool)
    contest(tree, alpha, baselines, sets, None, split, answers=answers, on_played=on_played)
    return found


Expected = tuple[Integers, Floats, Floats, Floats]


def _expected(fold: RouteTree, answer: Floats, made: Floats) -> Expected:
    """End, quality, accuracy and tokens as in `Drawn`, at one alpha.

    `answer`, `made`: float64[queries, nodes + K], the probability that an answer is given, and that
    its call is made; or of nodes alone.
    """
    direct, nodes, models = fold.direct, fold.routes.nodes, len(fold.models)
    answer, made = (
        np.pad(one, ((0, 0), (0, nodes + len(direct.models) - one.shape[1])))
        for one in (answer, made)
    )
    callers = [*((np.arange(nodes) - 1) % models), *(models + np.arange(len(direct.models)))]
    by_caller = np.eye(models + len(direct.models))[callers]

    def every(key: str) -> Floats:
        return np.concatenate([getattr(fold, key), getattr(direct, key)], axis=1)

    worth = ((answer * every(key)).sum(axis=1) for key in ("score", "accuracy"))
    tokens = [(made * every(key)) @ by_caller for key in ("tokens_in", "tokens_out")]
    return (answer.argmax(axis=1), *worth, np.array(tokens).transpose(2, 0, 1))


def _drawn(name: str, note: str, step: Integers, rows: Sequence[Expected]) -> Drawn:
    end, quality, accuracy, tokens = zip(*rows, strict=True)
    worth = np.stack(quality), np.stack(accuracy), np.stack(tokens, axis=2)
    return Drawn(name, note, step, np.stack(end), *worth)


@dataclass(frozen=True)
class Explored:
    """One fold of a tree, and what learned routers do on it.

    Attributes:
        tree: all folds; what is chosen from data is chosen on "train".
        alphas: positions of the slider, ascending.
        texts: question, reference and answers, by position of the query in the fold.
    """

    tree: RouteTree
    split: str
    alphas: tuple[float, ...]
    start: int
    learned: tuple[Learned, ...]
    brought: tuple[Learned | Drawn, ...]
    texts: Mapping[int, Texts]
    notes: tuple[str, ...]

    @property
    def fold(self) -> RouteTree:
        """The queries that are shown."""
        return self.tree.split(self.split)


def explored(
    cache: Path,
    tree: RouteTree,
    split: str,
    shown: SelectedRun,
    texts: int,
    pool: str | None = None,
    on_done: OnDone = lambda done, total: None,
    policies: Sequence[OwnPolicy] = (),
    baselines: Sequence[Baseline] = (),
) -> Explored:
    """All that a page of one fold needs.

    Raises InputError: the fold is empty, a router was made for another tree or may return earlier
    answers, or a policy or baseline cannot be shown; CacheError: the answers are not in the cache.

    Args:
        texts: of how many queries to load the texts at most: those on which the first router loses
            most at the alpha first shown, then the first ones.
        on_done: told (alphas done, all) while a sweep is evaluated.
        policies: the user's own; where a router may stop early, they may, too.
        baselines: fitted at the alpha first shown.
    """
    fold = tree.split(split)
    if not len(fold):
        raise InputError(f"the {split} fold is empty: nothing to explore; add queries")
    if any(one and one.objective.allow_return for one in (shown.trained, shown.sweep)):
        raise InputError("no page for a router with --allow-return; see `hierrouter explain`")
    # A sweep's router that stands for a run is the sweep's anyway.
    trained = shown.trained if shown.run != shown.sweep_run else None
    alphas = positions(tree, split, shown.sweep, trained)
    # The sweep's router first: it is the one that moves with alpha.
    learned = [of_sweep(shown.sweep, fold, alphas, on_done)] if shown.sweep else []
    learned += [of_run(trained, fold, len(alphas))] if trained else []
    stop = any(router.allow_stop for router in learned)
    brought: list[Learned | Drawn] = [of_policy(one, fold, alphas, stop) for one in policies]
    if baselines:
        brought += of_baselines(cache, tree, split, shown.alpha, baselines, len(alphas), pool)
    swept = shown.sweep.at(shown.alpha) if shown.sweep else None
    rows = _with_texts(tree, split, shown.alpha, swept or trained, texts)
    loaded = load_texts(cache, fold.select(rows), pool) if len(rows) else []
    return Explored(
        tree=tree,
        split=split,
        alphas=alphas,
        start=int(np.abs(np.array(alphas) - shown.alpha).argmin()),
        learned=tuple(learned),
        brought=tuple(brought),
        texts=dict(zip(rows.tolist(), loaded, strict=True)),
        notes=(*data_notes(tree), *_differences(tree, trained, shown)),
    )


def _differences(tree: RouteTree, trained: TrainedRouter | None, shown: SelectedRun) -> list[str]:
    """How routers are shown otherwise than they were trained, but for alpha."""
    swept = shown.sweep.at(shown.sweep.alphas[0]) if shown.sweep else None
    routers = [router for router in (trained, swept) if router]
    said = (line for router in routers for line in training_remarks(router, router.alpha, tree))
    return [f"{line[:1].upper()}{line[1:]}." for line in dict.fromkeys(said)]


def _with_texts(
    tree: RouteTree, split: str, alpha: float, trained: TrainedRouter | None, count: int
) -> Integers:
    """int64[n], ascending: positions in the fold of the queries that come with their texts."""
    of_fold = tree.rows(split)
    worst = worst_queries(tree, split, alpha, trained, count) if trained else []
    others = np.setdiff1d(of_fold, worst)[: count - len(worst)]
    rows = np.array([*worst, *others], dtype=np.int64)
    return np.sort(np.searchsorted(of_fold, rows))


def as_object(explored: Explored) -> dict[str, Any]:
    """The whole of it."""
    fold = explored.fold
    datasets = list(dict.fromkeys(fold.datasets))
    train = explored.tree.split("train")
    return {
        "split": explored.split,
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
        "direct": _calls(fold.direct)
        | {
            "models": [safe_text(name) for name in fold.direct.models],
            "inPool": [name in fold.models for name in fold.direct.models],
        },
        "train": _train(train, datasets) if len(train) else None,
        "alphas": list(explored.alphas),
        "start": explored.start,
        "routers": [_router(learned) for learned in explored.learned],
        "brought": [
            _router(one) if isinstance(one, Learned) else _of_drawn(one) for one in explored.brought
        ],
        "texts": {
            str(row): _texts(texts, kept)
            for (row, texts), kept in zip(explored.texts.items(), _passed(explored), strict=True)
        },
        "notes": [safe_text(note) for note in explored.notes],
    }


def _calls(of: RouteTree | DirectCalls) -> dict[str, Any]:
    """What calls are worth and took, a row for each node or model."""
    return {
        "score": numbers(of.score.T),
        "accuracy": numbers(of.accuracy.T),
        "tokensIn": whole_numbers(of.tokens_in.T),
        "tokensOut": whole_numbers(of.tokens_out.T),
        "rate": of.rate.tolist(),
    }


def _train(train: RouteTree, datasets: list[str]) -> dict[str, Any]:
    """What each node is worth on the train fold, by dataset; all queries last.

    Enough to choose a fixed route at any alpha and price. A dataset without queries has null.
    """
    rows = columns_of(train.datasets)
    parts = {"score": train.score, "tokensIn": train.tokens_in, "tokensOut": train.tokens_out}
    columns = [
        {key: values[rows[name]].mean(axis=0).tolist() for key, values in parts.items()}
        if name in rows
        else None
        for name in (*datasets, ALL)
    ]
    return {"columns": columns}


def _router(learned: Learned) -> dict[str, Any]:
    return {
        "name": safe_text(learned.name),
        "note": learned.note,
        "stop": learned.allow_stop,
        "start": whole_numbers(learned.start),
        "counts": whole_numbers(np.array([len(changed) for changed in learned.changed])),
        "query": whole_numbers(np.concatenate(learned.changed)),
        "node": whole_numbers(np.concatenate(learned.node)),
    }


def _of_drawn(drawn: Drawn) -> dict[str, Any]:
    worth = {key: numbers(getattr(drawn, key)) for key in ("quality", "accuracy", "tokens")}
    ends = {key: whole_numbers(getattr(drawn, key)) for key in ("step", "end")}
    return {"name": safe_text(drawn.name), **worth, **ends}


def _passed(explored: Explored) -> Booleans:
    """bool[texts, nodes]: what the oracle, a fixed route that is best, or a router passes."""
    rows = np.array(list(explored.texts), dtype=np.int64)
    tree, fold, routes = explored.tree, explored.fold.select(rows), explored.fold.routes
    found = np.full((len(rows), routes.nodes), routes.nodes <= WHOLE)
    if found.all():
        return found
    queries = np.arange(len(rows))
    train = tree.split("train")
    score, cost = train.score.mean(axis=0), train.cost.mean(axis=0)
    for alpha, first in itertools.product(explored.alphas, (1, routes.states)):
        best = net_reward(fold.score, fold.cost, alpha)[:, first:].argmax(axis=1)
        found[queries, first + best] = True
        found[:, first + net_reward(score, cost, alpha)[first:].argmax()] = True
    for one in (*explored.learned, *explored.brought):
        if isinstance(one, Learned):
            ends = one.start.copy()
            for changed, node in zip(one.changed, one.node, strict=True):
                ends[changed] = node
                found[queries, ends[rows]] = True
        else:
            found[queries, np.minimum(one.end, routes.nodes - 1)[:, rows]] = True
    for end in range(routes.nodes - 1, 0, -1):
        found[:, routes.parent(end)] |= found[:, end]
    return found


def _texts(texts: Texts, kept: Booleans) -> dict[str, Any]:
    """Question and answers; of equal answers one, and for each node which it is, if any."""
    said = [answer for answer, keep in zip(texts.answers, kept, strict=True) if keep]
    number = {answer: at for at, answer in enumerate(dict.fromkeys(said))}
    which = np.array([number.get(answer, len(number)) for answer in texts.answers])
    return {
        "question": _cut(texts.question),
        "references": [_cut(reference) for reference in texts.references],
        "answers": [_cut(answer) for answer in number],
        "which": whole_numbers(which),
    }


def _cut(text: str) -> str:
    safe = safe_text(text)
    return safe if len(safe) <= LONGEST_TEXT else safe[:LONGEST_TEXT] + CUT


def as_html(explored: Explored) -> str:
    """The page, the same bytes for the same values."""
    fold = explored.fold
    return render(
        "explore.html.j2",
        template_texts(*BASE_STYLES, "explore.css"),
        # All files in one function, so that nothing of it can be reached by name.
        '(() => {\n"use strict";\n'
        + template_texts(*(f"{name}.js" for name in SCRIPTS), between="\n")
        + "\n})();\n",
        data=compressed(as_object(explored)),
        queries=len(fold),
        datasets=len(set(fold.datasets)),
        split=explored.split,
        scorer=fold.scorer,
        notes=explored.notes,
        absent=_absent(explored),
        brought={
            note: [one.name for one in explored.brought if one.note == note]
            for note in dict.fromkeys(one.note for one in explored.brought)
        },
        texts=len(explored.texts),
        whole=fold.routes.nodes <= WHOLE,
    )


def _absent(explored: Explored) -> set[str]:
    """What the legend need not name."""
    kinds = {outcome.kind for outcome in single_calls(explored.fold)}
    found = {"single", "reference"} - kinds
    found |= set() if explored.learned else {"router"}
    return found if "train" in explored.tree.splits else found | {"informed"}


def whole_numbers(values: Integers) -> dict[str, str]:
    """Numbers >= 0 in the smallest type; those of 2**32 and more as float64, exact up to 2**53.

    Returns `type` and `data`, the values in C order.
    """
    largest = int(values.max(initial=0))
    kind = TYPES[sum(largest >= limit for limit in (2**8, 2**16, 2**32))]
    return _packed(values, kind)


def numbers(values: Floats) -> dict[str, Any]:
    """Floats, each to the last bit: the distinct ones, and for each value which of them it is.

    Returns `values` and `code`, both packed.
    """
    distinct, code = np.unique(values, return_inverse=True)
    return {"values": _packed(distinct, "<f8"), "code": whole_numbers(code.reshape(values.shape))}


def _packed(values: NDArray[Any], kind: str) -> dict[str, str]:
    data = np.ascontiguousarray(values, dtype=kind).tobytes()
    return {"type": kind, "data": base64.b64encode(data).decode("ascii")}


def compressed(value: Any) -> str:
    """JSON as gzip in base64, which can stand inside a script element whatever it says."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")
