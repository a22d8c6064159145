"""Every baseline beside the learned router, on one fold.

In: a tree with its folds, baselines, perhaps a trained router. Out: `Contest`: what each of them,
and the oracles, do on every query of a fold, exactly. A baseline is fitted on "train" and tuned on
"validation" for each set of arms on its own: A, one direct call of a model; B, each of the M^L
routes, chosen before any answer is seen. Not covered: intervals and tables
(`hierrouter.report.contests`).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from hierrouter.baselines.arms import Answers, Arms, Seen, macro_arms, single_models
from hierrouter.baselines.baseline import Baseline, value_of
from hierrouter.baselines.notes import answer_notes, fold_notes, router_notes
from hierrouter.evaluate.bounds import direct_oracle, oracle
from hierrouter.evaluate.outcome import Outcome
from hierrouter.learn.config import PAPER_SEED
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

SETS: Mapping[str, Callable[[RouteTree, Answers | None], Arms]] = {
    "A": single_models,
    "B": macro_arms,
}
TREE, ANYTIME = "tree oracle", "anytime oracle"

OnFitted = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Entry:
    """One policy on the fold.

    Attributes:
        outcome: what it does on each query; has its name and its kind.
        arms: "A" or "B", what it chooses from; "" for what sees answers on the way.
        source: whose idea it is.
        reads_answers: it sees answers before it settles, as the learned router does.
        settings: what the validation fold chose, or what the router was trained for.
        validation: mean R on the validation fold; None for oracles and where that fold is empty.
        fit_seconds: CPU time of fitting and tuning; None where there was none.
    """

    outcome: Outcome
    arms: str = ""
    source: str = ""
    reads_answers: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    validation: float | None = None
    fit_seconds: float | None = None


@dataclass(frozen=True)
class Contest:
    """Everybody on one fold.

    Attributes:
        alpha: cost penalty of R = Q - alpha * C.
        split: the fold that the outcomes are of.
        sets: names of the sets of arms.
        seed: of everything that baselines draw.
        entries: baselines of each set in the order given, the router, the oracles.
        notes: sentences that a reader must not miss.
    """

    alpha: float
    split: str
    sets: tuple[str, ...]
    seed: int
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]

    @property
    def router(self) -> int | None:
        """Which entry is the learned router, if there is one."""
        kinds = [entry.outcome.kind for entry in self.entries]
        return kinds.index("router") if "router" in kinds else None


def contest(
    tree: RouteTree,
    alpha: float,
    baselines: Sequence[Baseline],
    sets: Sequence[str] = tuple(SETS),
    trained: TrainedRouter | None = None,
    split: str = "test",
    seed: int = PAPER_SEED,
    answers: Mapping[str, Answers] | None = None,
    on_fitted: OnFitted = lambda done, total, name: None,
) -> Contest:
    """Fit every baseline for every set of arms, and evaluate everybody on one fold.

    Args:
        tree: all folds; nothing is fitted on, or chosen by, scores of `split` unless it is "train"
            or "validation".
        sets: names in `SETS`.
        trained: the learned router, or None where nothing has been trained.
        seed: a baseline draws the same whatever others take part.
        answers: what can be read off answers, by set, for the queries of `tree`; without it
            baselines that read answers are left out.
        on_fitted: told (done, total, name) after each fit.

    Raises:
        InputError: no train query, none in `split`, no arms, no embeddings, or a router made for
            another tree.
    """
    _require_enough(tree, split)
    usable = _usable(tree, sets)
    taking_part = [one for one in baselines if answers is not None or not one.reads_answers]
    learned = [_learned(trained, tree, split, alpha)] if trained else []  # refused before any work
    entries: list[Entry] = []
    for name in usable:
        folds = _folds(tree, name, split, answers)
        for one in taking_part:
            entries.append(_fitted(one, name, folds, alpha, seed))
            on_fitted(len(entries), len(usable) * len(taking_part), f"{one.name} on {name}")
    return Contest(
        alpha=alpha,
        split=split,
        sets=usable,
        seed=seed,
        entries=(*entries, *learned, *_oracles(tree.split(split), alpha, usable)),
        notes=(
            *fold_notes(tree, split),
            *answer_notes([one.name for one in baselines if one not in taking_part]),
            *router_notes(trained, alpha),
        ),
    )


def require_sets(names: Sequence[str]) -> tuple[str, ...]:
    """Names of sets of arms, checked before any work.

    Raises:
        InputError: an unknown one, or one that stands twice.
    """
    for name in names:
        if name not in SETS:
            raise InputError(f"unknown set of arms: {name!r}: --sets; known: {', '.join(SETS)}")
        if names.count(name) > 1:
            raise InputError(f"set of arms given twice: {name}: --sets; names must differ")
    return tuple(names)


@dataclass(frozen=True)
class _Folds:
    """What the arms of one set give on each fold."""

    train: Arms
    validation: Arms
    shown: Arms


def _folds(tree: RouteTree, name: str, split: str, answers: Mapping[str, Answers] | None) -> _Folds:
    def arms(fold: str) -> Arms:
        rows = np.flatnonzero(np.array(tree.splits) == fold)
        return SETS[name](tree.select(rows), answers[name].select(rows) if answers else None)

    return _Folds(arms("train"), arms("validation"), arms(split))


def _fitted(one: Baseline, name: str, folds: _Folds, alpha: float, seed: int) -> Entry:
    """A baseline on one set of arms; its draws depend on nothing but seed, name and set."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{one.name} {name}".encode())])
    started = time.process_time()
    with threadpool_limits(1):  # matrices are small: several threads wait for each other
        tuned = one.fit(folds.train, folds.validation, alpha, rng)
    seconds = time.process_time() - started
    tried = folds.validation
    return Entry(
        outcome=tuned.play(_visible(folds.shown.seen, one)).outcome(folds.shown, one.name),
        arms=name,
        source=one.source,
        reads_answers=one.reads_answers,
        settings=tuned.settings,
        validation=value_of(tuned.play, tried, alpha) if len(tried) else None,
        fit_seconds=seconds,
    )


def _visible(seen: Seen, one: Baseline) -> Seen:
    """Who reads no answer has made no call when it chooses, and knows no cost."""
    if one.reads_answers:
        return seen
    return replace(seen, call_cost=np.full_like(seen.call_cost, np.nan), answers=None)


def _learned(trained: TrainedRouter, tree: RouteTree, split: str, alpha: float) -> Entry:
    tried, objective = tree.split("validation"), trained.objective
    return Entry(
        outcome=trained.outcome(tree.split(split)),
        source=f"{trained.origin.config.algo}, preset {trained.origin.config.preset}",
        reads_answers=True,
        settings={"alpha": objective.alpha, "allow_stop": objective.allow_stop},
        validation=float(trained.outcome(tried).reward(alpha).mean()) if len(tried) else None,
    )


def _oracles(fold: RouteTree, alpha: float, sets: Sequence[str]) -> list[Entry]:
    """What nobody can beat who chooses one call, a whole route, or where to stop on it."""
    whole = replace(oracle(fold, alpha), name=TREE)
    anytime = replace(oracle(fold, alpha, allow_stop=True), name=ANYTIME)
    one_hop = direct_oracle(fold, alpha) if "A" in sets else None
    return [*([Entry(one_hop, "A")] if one_hop else []), Entry(whole), Entry(anytime)]


def _require_enough(tree: RouteTree, split: str) -> None:
    """Refuse what nothing can be fitted on, or shown of.

    Raises:
        InputError: with the reason.
    """
    for fold, role in (("train", "to fit baselines on"), (split, "to compare them on")):
        if fold not in tree.splits:
            raise InputError(f"no query {role}: the {fold} fold is empty; collect more queries")
    if not tree.dim:
        raise InputError(
            f"baselines read the question, and this view shows no text: --state {tree.view}; "
            "take another one"
        )


def _usable(tree: RouteTree, sets: Sequence[str]) -> tuple[str, ...]:
    """The sets that have an arm.

    Raises:
        InputError: none has.
    """
    direct = set(tree.direct.models) & set(tree.models)
    usable = tuple(name for name in sets if name != "A" or direct)
    if not usable:
        raise InputError("no model of the pool was asked directly: set A is empty; take set B")
    return usable
