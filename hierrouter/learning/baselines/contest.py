"""Every baseline beside the learned router, on one fold."""

import hashlib
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hierrouter.evaluation.bounds import (
    ANYTIME_ORACLE,
    ONE_HOP_ORACLE,
    TREE_ORACLE,
    direct_oracle,
    oracle,
)
from hierrouter.evaluation.outcome import ROUTER, Outcome, from_endings
from hierrouter.evaluation.policies import OwnPolicy, policy_endings, require_distinct_names
from hierrouter.learning.baselines import arms
from hierrouter.learning.baselines.arms import SETS, Answers, Arms, Baseline
from hierrouter.learning.baselines.registry import OwnBaseline, one_thread
from hierrouter.learning.config import Objective
from hierrouter.learning.training import TrainedRouter, training_remarks
from hierrouter.paper import PAPER_SEED
from hierrouter.replay.inspection import data_notes
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

UNREAD = "Left out, because nobody loaded the texts of answers"

OnFitted = Callable[[int, int, str], None]
OnPlayed = Callable[[str, str, arms.Play], None]
Folds = tuple[Arms, Arms, Arms]  # train, validation, and the one that is shown


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
        validation_cost: mean C on the validation fold, as `validation`.
    """

    outcome: Outcome
    arms: str = ""
    source: str = ""
    reads_answers: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    validation: float | None = None
    fit_seconds: float | None = None
    validation_cost: float | None = None


@dataclass(frozen=True)
class Contest:
    """Everybody on one fold.

    Attributes:
        split: the fold that the outcomes are of.
        hops: calls of a route.
        entries: baselines of each set in the order given, the router, the oracles.
        notes: sentences that a reader must not miss.
    """

    alpha: float
    split: str
    datasets: tuple[str, ...]
    hops: int
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
    policies: Sequence[OwnPolicy] = (),
    on_played: OnPlayed = lambda name, arms, played: None,
) -> Contest:
    """Fit every baseline for every set of arms, and evaluate everybody on one fold.

    Raises InputError: no train query, none in `split`, no arms, no embeddings, a router made for
    another tree, or a policy of the user's own that fails.

    Args:
        tree: all folds; nothing is fitted on, or chosen by, scores of `split` unless it is "train"
            or "validation".
        sets: names in `SETS`; those that the tree has no arms for are left out with a note.
        seed: a baseline draws the same whatever others take part.
        answers: what can be read off answers, by set, for the queries of `tree`; without it
            baselines that read answers are left out.
        on_fitted: told (done, total, name) after each fit.
        policies: the user's own; what the router may do, they may, too.
        on_played: told (name, set, what it does on the fold) of each baseline.
    """
    _require_enough(tree, split)
    taken = [*(one.name for one in baselines), ROUTER, ONE_HOP_ORACLE, TREE_ORACLE, ANYTIME_ORACLE]
    require_distinct_names(policies, taken)
    usable, fold = arms.usable_sets(tree, sets), tree.split(split)
    unread = [one for one in baselines if answers is None and one.reads_answers]
    taking_part = [one for one in baselines if one not in unread]
    learned = [_learned(trained, tree, split, alpha)] if trained else []  # refused before any work
    may = _may(trained.objective if trained else Objective(alpha))
    brought = [_brought(one, tree, split, alpha, may) for one in policies]

    def arms_of(name: str, fold: str) -> Arms:
        rows = np.flatnonzero(np.array(tree.splits) == fold)
        return SETS[name](tree.select(rows), answers[name].select(rows) if answers else None)

    entries: list[Entry] = []
    for name in usable:
        folds = (arms_of(name, "train"), arms_of(name, "validation"), arms_of(name, split))
        for one in taking_part:
            entries.append(_fitted(one, name, folds, alpha, seed, on_played))
            on_fitted(len(entries), len(usable) * len(taking_part), f"{one.name} on {name}")
    return Contest(
        alpha=alpha,
        split=split,
        datasets=fold.datasets,
        hops=tree.hops,
        sets=usable,
        seed=seed,
        entries=(*entries, *brought, *learned, *_oracles(fold, alpha, usable)),
        notes=(
            *data_notes(tree),
            *_notes_on_sides(tree, split, sets),
            *([f"{UNREAD}: {', '.join(one.name for one in unread)}."] if unread else []),
            *_notes_on_router(trained, tree, alpha),
        ),
    )


def _fitted(
    one: Baseline, name: str, folds: Folds, alpha: float, seed: int, on_played: OnPlayed
) -> Entry:
    """A baseline on one set of arms; its draws depend on nothing but seed, name and set."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{one.name} {name}".encode())])
    train, tried, shown = folds if one.reads_answers else (fold.blind() for fold in folds)
    started = time.process_time()
    with one_thread():
        tuned = one.fit(train, tried, alpha, rng)
        seconds = time.process_time() - started
        played = tuned.play(shown.seen)
        on_played(one.name, name, played)
        return _entry(
            played.outcome(shown, one.name),
            tuned.play(tried.seen).outcome(tried, one.name) if len(tried) else None,
            alpha,
            arms=name,
            source=one.source,
            reads_answers=one.reads_answers,
            settings=tuned.settings,
            fit_seconds=seconds,
        )


def _learned(trained: TrainedRouter, tree: RouteTree, split: str, alpha: float) -> Entry:
    tried, config = tree.split("validation"), trained.origin.config
    return _entry(
        trained.outcome(tree.split(split)),
        trained.outcome(tried) if len(tried) else None,
        alpha,
        source=f"{config.algo}, preset {config.preset}",
        reads_answers=True,
        settings={"alpha": trained.alpha, **_may(trained.objective)},
    )


def _may(objective: Objective) -> dict[str, bool]:
    """What it allows, as settings; `allow_return` only where it does."""
    may = {"allow_stop": objective.allow_stop}
    return {**may, "allow_return": True} if objective.allow_return else may


def _brought(
    policy: OwnPolicy, tree: RouteTree, split: str, alpha: float, may: Mapping[str, bool]
) -> Entry:
    """A policy of the user's own, asked once on each fold; nothing is fitted."""
    outcomes = {}
    for name in dict.fromkeys((split, "validation")):
        if len(fold := tree.split(name)):
            endings = policy_endings(fold, policy, alpha, **may)
            outcomes[name] = from_endings(fold, endings, policy.name, "baseline")
    return _entry(
        outcomes[split],
        outcomes.get("validation"),
        alpha,
        source=policy.path,
        reads_answers=True,
        settings=may,
    )


def _entry(outcome: Outcome, tried: Outcome | None, alpha: float, **known: Any) -> Entry:
    """With the means of what it does on the validation fold; None where that fold is empty."""
    reward = None if tried is None else float(tried.reward(alpha).mean())
    cost = None if tried is None else float(tried.cost.mean())
    return Entry(outcome, validation=reward, validation_cost=cost, **known)


def _oracles(fold: RouteTree, alpha: float, sets: Sequence[str]) -> list[Entry]:
    """What nobody can beat who chooses one call, a whole route, or where to stop on it."""
    whole = replace(oracle(fold, alpha), name=TREE_ORACLE)
    anytime = replace(oracle(fold, alpha, allow_stop=True), name=ANYTIME_ORACLE)
    one_hop = direct_oracle(fold, alpha) if "A" in sets else None
    return [*([Entry(one_hop, "A")] if one_hop else []), Entry(whole), Entry(anytime)]


def _require_enough(tree: RouteTree, split: str) -> None:
    """Refuse what nothing can be fitted on, or shown of; raises InputError: with the reason."""
    for fold, role in (("train", "to fit baselines on"), (split, "to compare them on")):
        if fold not in tree.splits:
            raise InputError(f"no query {role}: the {fold} fold is empty; collect more queries")
    if not tree.dim:
        raise InputError(
            f"baselines read the question, and this view shows no text: --state {tree.view}; "
            "take another one"
        )


def _notes_on_sides(tree: RouteTree, split: str, sets: Sequence[str]) -> list[str]:
    """What the fold that is shown was used for, and which sets of arms take no part."""
    notes = []
    if "validation" not in tree.splits:
        notes.append("No validation fold: baselines take the first of their settings.")
    if split == "train":
        notes.append("Shown on the fold that everybody was fitted on: this is memory, not skill.")
    if split == "validation":
        notes.append("Shown on the fold that chose the settings: all that is tuned looks better.")
    lacking = arms.left_out(tree, sets)
    return [*notes, *(f"Set {name} is left out: {why}." for name, why in lacking.items())]


def _notes_on_router(trained: TrainedRouter | None, tree: RouteTree, alpha: float) -> list[str]:
    """What the learned router learned, or may do, and the baselines not, or the other way round."""
    if trained is None:
        return ["No learned router: the baselines are compared among themselves."]
    found = training_remarks(trained, alpha, tree)
    notes = [f"{sentence[:1].upper()}{sentence[1:]}." for sentence in found]
    if trained.objective.ends_early:
        what = "return earlier answers" if trained.objective.allow_return else "stop early"
        notes.append(
            f"HierRouter may {what} and the routes of set B may not: what stopping saves "
            "counts as adaptivity here."
        )
    return notes


def look_details(
    held: Contest, baselines: Sequence[Baseline], policies: Sequence[OwnPolicy] = ()
) -> dict[str, Any]:
    """Alpha, sets, seed and baselines of a contest; `own` only where one is the user's."""
    took_part = [one.outcome.name for one in held.entries if one.outcome.kind == "baseline"]
    users = [one.name for one in baselines if isinstance(one, OwnBaseline)]
    users += [one.name for one in policies]
    own = {name: _digest(held, name) for name in users if name in took_part}
    return {
        "alpha": held.alpha,
        "baselines": list(dict.fromkeys(took_part)),
        "sets": list(held.sets),
        "seed": held.seed,
        **({"own": own} if own else {}),
    }


def _digest(held: Contest, name: str) -> str:
    """Of a baseline's R on each query, on all its sets."""
    rewards = [one.outcome.reward(held.alpha) for one in held.entries if one.outcome.name == name]
    values = np.round(np.array(rewards, dtype="<f8"), arms.DIGITS) + 0.0  # no sign on zeros
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]
