"""A page that lets a person play with a cache: what is on it, and how it is packed."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.budget import policy_break_points
from hierrouter.evaluation.outcome import Floats, Integers, called, single_calls
from hierrouter.evaluation.policies import OwnPolicy, kind_of, policy_endings, require_other_names
from hierrouter.learning.config import MAX_ALPHA
from hierrouter.learning.selection import SelectedRun, training_remarks
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.learning.training import TrainedRouter
from hierrouter.paper import PAPER_ALPHA
from hierrouter.replay.inspection import data_notes
from hierrouter.replay.tree import Texts, load_texts
from hierrouter.reports.explain import worst_queries
from hierrouter.reports.html import BASE_STYLES, render, template_texts
from hierrouter.reports.values import ALL, columns_of
from hierrouter.tables import safe_text
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import DirectCalls, RouteTree

if TYPE_CHECKING:
    from hierrouter.learning.baselines.arms import Baseline

BETWEEN = 100  # positions beside those that somebody has asked for
TAILS = 0.01  # share of the oracle's changes that lies below the range, and above it
ROOM = 2.0  # the range reaches so many times further
DIGITS = 3  # significant digits of a position
TYPES = ("<u1", "<u2", "<u4", "<f8")  # little-endian, as browsers read them
LONGEST_TEXT = 4_000  # characters of one answer
CUT = " […]"
SCRIPTS = (
    "data.js",
    "routes.js",
    "value.js",
    "scene.js",
    "dom.js",
    "frontier.js",
    "tables.js",
    "shares.js",
    "list.js",
    "tree.js",
    "controls.js",
    "files.js",
    "address.js",
    "keys.js",
    "main.js",
)
LOOKS = {  # what can be shown and hidden, in the order of the legend; what was brought is second
    "router": "HierRouter",
    "oracle": "oracle",
    "fixed": "best fixed route",
    "route": "fixed routes",
    "informed": "best route per dataset",
    "single": "direct calls",
    "reference": "larger models",
    "random": "random",
    "equal": "same R at this alpha",
}

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
    on_done: Callable[[], None] = lambda: None,
) -> Learned:
    """The sweep's router at each alpha.

    Raises InputError: a sweep of another tree.
    """

    def endings() -> Iterator[Integers]:
        for alpha in alphas:
            yield sweep.at(alpha).endings(fold).argmax(axis=1)
            on_done()

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


class _Noticed(Mapping[str, Any]):
    """An observation that notes what is read of it."""

    def __init__(self, seen: Mapping[str, Any], read: set[str]) -> None:
        self.seen, self.read = seen, read

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.seen[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.seen)

    def __len__(self) -> int:
        return len(self.seen)


def of_policy(
    policy: OwnPolicy, fold: RouteTree, alphas: Sequence[float], allow_stop: bool
) -> Learned | Drawn:
    """A policy of the user's own, asked at each alpha if it reads alpha, else once.

    Raises InputError: it fails, or gives what is neither an action nor probabilities.
    """
    read: set[str] = set()
    if kind_of(policy.made) == "act":
        act = getattr(policy.made, "act", policy.made)
        asked = replace(policy, made=lambda seen: act(_Noticed(seen, read)))
    else:
        asked = policy  # which is never told alpha
    ends: list[Integers] = []
    drawn: list[Expected] = []
    for alpha in alphas:
        endings = policy_endings(fold, asked, alpha, allow_stop)
        ends.append(endings.argmax(axis=1))
        if drawn or (endings.max(axis=1) < 1).any():
            known = [np.eye(fold.routes.nodes)[end] for end in ends[len(drawn) : -1]]
            drawn += [_expected(fold, one, called(fold.routes, one)) for one in (*known, endings)]
        if "alpha" not in read:
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
    alphas: Sequence[float],
    alpha: float,
    baselines: Sequence[Baseline],
    pool: str | None,
    on_done: Callable[[], None],
) -> list[Drawn]:
    """Baselines, fitted on train at one alpha, that choose a direct call (A) or a route (B).

    Raises InputError: nothing to fit them on, or one of the user's own fails; CacheError: the
    answers that they read are not in the cache.
    """
    from hierrouter.learning.baselines.answers import answers_for
    from hierrouter.learning.baselines.arms import SETS, usable_sets
    from hierrouter.learning.baselines.contest import fitted, folds_of, require_enough
    from hierrouter.paper import PAPER_SEED

    require_enough(tree, split)
    sets, fold = usable_sets(tree, tuple(SETS)), tree.split(split)
    answers = answers_for(cache, tree, baselines, sets, pool)
    nodes, direct = fold.routes.nodes, fold.direct.models
    asked = nodes + np.flatnonzero([model in fold.models for model in direct])
    columns = {  # of answers and of calls, among nodes and direct calls
        "A": (asked, asked),
        "B": (np.arange(nodes)[fold.routes.leaves], np.arange(1, nodes)),
    }
    note = f"fitted on train at alpha {alpha:g}, and the same at every alpha"
    note += "; (A) chooses a direct call, (B) a route"
    found = []
    for name in sets:
        folds = folds_of(tree, name, split, answers)
        for one in baselines:
            tuned, (*_, shown) = fitted(one, name, folds, alpha, PAPER_SEED)
            played = tuned.play(shown.seen)
            answer, made = np.zeros((2, len(fold), nodes + len(direct)))
            answer[:, columns[name][0]], made[:, columns[name][1]] = played.answer, played.called
            step = np.zeros(len(alphas), np.int64)
            found.append(
                _drawn(f"{one.name} ({name})", note, step, [_expected(fold, answer, made)])
            )
            on_done()
    return found


Expected = tuple[Integers, Floats, Floats, Floats]


def _expected(fold: RouteTree, answer: Floats, made: Floats) -> Expected:
    """End, quality, accuracy and tokens as in `Drawn`, at one alpha.

    `answer`, `made`: float64[queries, nodes + K], the probability that an answer is given, and that
    its call is made; K columns less where nobody is called directly.
    """
    direct, models, width = fold.direct, len(fold.models), answer.shape[1]
    score, right, tokens_in, tokens_out = (
        np.concatenate([getattr(fold, key), getattr(direct, key)], axis=1)[:, :width]
        for key in ("score", "accuracy", "tokens_in", "tokens_out")
    )
    callers = np.r_[np.arange(fold.routes.nodes) - 1, np.arange(len(direct.models))]
    callers[: fold.routes.nodes] %= models
    callers[fold.routes.nodes :] += models
    tokens = [
        [(made * spent)[:, callers[:width] == one].sum(axis=1) for spent in (tokens_in, tokens_out)]
        for one in range(models + len(direct.models))
    ]
    worth = ((answer * values).sum(axis=1) for values in (score, right))
    return (answer.argmax(axis=1), *worth, np.array(tokens))


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
        on_done: told (steps done, all), a step for an alpha of a sweep, a policy, a fit.
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
    total = len(alphas) * bool(shown.sweep) + len(policies) + 2 * len(baselines)
    done = itertools.count(1)

    def step() -> None:
        on_done(next(done), total)

    require_other_names(policies, [*LOOKS, *LOOKS.values()])
    learned = [of_sweep(shown.sweep, fold, alphas, step)] if shown.sweep else []
    learned += [of_run(trained, fold, len(alphas))] if trained else []
    stop, brought = any(router.allow_stop for router in learned), list[Learned | Drawn]()
    for one in policies:
        brought.append(of_policy(one, fold, alphas, stop))
        step()
    if baselines:
        asked = (alphas, shown.alpha, baselines, pool, step)
        brought += of_baselines(cache, tree, split, *asked)
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
    found: Integers = np.sort(np.searchsorted(of_fold, rows))
    return found


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
        "texts": {str(row): _texts(texts) for row, texts in explored.texts.items()},
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


def _texts(texts: Texts) -> dict[str, Any]:
    """Question and answers; of equal answers one, and for each node which it is."""
    distinct, which = np.unique([_cut(answer) for answer in texts.answers], return_inverse=True)
    return {
        "question": _cut(texts.question),
        "references": [_cut(reference) for reference in texts.references],
        "answers": distinct.tolist(),
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
        '(() => {\n"use strict";\n' + template_texts(*SCRIPTS, between="\n") + "\n})();\n",
        data=compressed(as_object(explored)),
        queries=len(fold),
        datasets=len(set(fold.datasets)),
        split=explored.split,
        scorer=fold.scorer,
        notes=explored.notes,
        looks=_looks(explored),
        brought={
            note: [one.name for one in explored.brought if one.note == note]
            for note in dict.fromkeys(one.note for one in explored.brought)
        },
        texts=len(explored.texts),
    )


def _looks(explored: Explored) -> list[tuple[str, str, str]]:
    """Look, key and label of all that can be shown or hidden."""
    kinds = {outcome.kind for outcome in single_calls(explored.fold)}
    absent = {"single", "reference"} - kinds
    absent |= set() if explored.learned else {"router"}
    absent |= set() if "train" in explored.tree.splits else {"informed"}
    known = [(look, look, label) for look, label in LOOKS.items() if look not in absent]
    names = [safe_text(one.name) for one in explored.brought]
    first = known[:1] if explored.learned else []
    return [*first, *(("brought", name, name) for name in names), *known[len(first) :]]


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
