"""A page that lets a person play with a cache: what is on it, and how it is packed."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from hierrouter.evaluation.budget import policy_break_points
from hierrouter.evaluation.outcome import Floats, Integers, single_calls
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
    "main.js",
)
# What ends a script element or starts a comment in it, as JSON says it otherwise.
INERT = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}

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
    """A router on one fold, along a grid of alphas.

    Attributes:
        name: what the page calls it.
        note: what it was trained for, in words.
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
) -> Explored:
    """All that a page of one fold needs.

    Raises InputError: the fold is empty, or a router was made for another tree or may return
    earlier answers; CacheError: the answers are not in the cache.

    Args:
        texts: of how many queries to load the texts at most: those on which the first router loses
            most at the alpha first shown, then the first ones.
        on_done: told (alphas done, all) while a sweep is evaluated.
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
    swept = shown.sweep.at(shown.alpha) if shown.sweep else None
    rows = _with_texts(tree, split, shown.alpha, swept or trained, texts)
    loaded = load_texts(cache, fold.select(rows), pool) if len(rows) else []
    return Explored(
        tree=tree,
        split=split,
        alphas=alphas,
        start=int(np.abs(np.array(alphas) - shown.alpha).argmin()),
        learned=tuple(learned),
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
        "texts": {
            str(row): {
                "question": _cut(texts.question),
                "references": [_cut(reference) for reference in texts.references],
                "answers": [_cut(answer) for answer in texts.answers],
            }
            for row, texts in explored.texts.items()
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
        "name": learned.name,
        "note": learned.note,
        "stop": learned.allow_stop,
        "start": whole_numbers(learned.start),
        "counts": whole_numbers(np.array([len(changed) for changed in learned.changed])),
        "query": whole_numbers(np.concatenate(learned.changed)),
        "node": whole_numbers(np.concatenate(learned.node)),
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
        data=Markup(inert_json(as_object(explored))),  # noqa: S704 - escaped there
        queries=len(fold),
        datasets=len(set(fold.datasets)),
        split=explored.split,
        scorer=fold.scorer,
        notes=explored.notes,
        absent=_absent(explored),
        texts=len(explored.texts),
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


def inert_json(value: Any) -> str:
    """JSON in ASCII that can stand inside a script element whatever it says."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(INERT)
