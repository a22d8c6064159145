"""All baselines beside the learned router and the oracles, on one fold."""

from __future__ import annotations

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
from hierrouter.evaluation.outcome import ROUTER, Outcome, from_endings, is_plain
from hierrouter.evaluation.policies import OwnPolicy, policy_endings, require_distinct_names
from hierrouter.learning.baselines.arms import (
    ARM_SETS,
    REWARD_DIGITS,
    Answers,
    Arms,
    Baseline,
    LogRoutes,
    Play,
    unusable_sets,
    usable_sets,
)
from hierrouter.learning.baselines.registry import OwnBaseline, one_thread
from hierrouter.learning.config import Objective
from hierrouter.learning.router import TrainedRouter, training_remarks
from hierrouter.paper import PAPER_SEED
from hierrouter.replay.inspection import data_notes
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

# Called after each fit with fits done, fits in all, and the baseline and set in words.
OnFitted = Callable[[int, int, str], None]
# Called with a baseline's name, the name of the set, and its decisions on the fold.
OnPlayed = Callable[[str, str, Play], None]


@dataclass(frozen=True)
class Entry:
    """One policy on the fold.

    Attributes:
        outcome: its outcome on each query; has its name and its kind.
        arms: "A" or "B", the set it chooses from; "" for a policy that reads answers on the way.
        source: origin of the idea.
        reads_answers: whether it reads answers before it decides, as the learned router does.
        settings: chosen on the validation fold, or what the router was trained for.
        validation: mean R on the validation fold; None for oracles, and if that fold is empty.
        fit_seconds: CPU time of fitting and tuning; None if nothing was fitted.
        validation_cost: mean C on the validation fold; None as for `validation`.
    """

    outcome: Outcome
    arms: str = ""
    source: str = ""
    reads_answers: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    validation: float | None = None
    fit_seconds: float | None = None
    validation_cost: float | None = None

    def is_same_choice(self, other: Entry) -> bool:
        """Whether both are one and the same arm for every question."""
        return (
            "arm" in self.settings
            and self.settings["arm"] == other.settings.get("arm")
            and np.array_equal(self.outcome.quality, other.outcome.quality)
            and np.array_equal(self.outcome.cost, other.outcome.cost)
        )


@dataclass(frozen=True)
class Contest:
    """All policies on one fold.

    Attributes:
        alpha: of R = Q - alpha * C.
        split: the fold that the outcomes are of.
        datasets: dataset of each query of the fold.
        hops: calls of a route.
        sets: names of the sets of arms.
        seed: of all random numbers.
        entries: baselines of each set in the order given, users' policies, the router, the oracles.
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
        """Position of the learned router among the entries, if there is one."""
        kinds = [entry.outcome.kind for entry in self.entries]
        return kinds.index("router") if "router" in kinds else None


@dataclass(frozen=True)
class _Folds:
    """The three folds of a contest, as arms of one set.

    Attributes:
        name: name of the set.
        train: the fold to learn from.
        validation: the fold to choose settings on; it may be empty.
        evaluation: the fold that the outcomes are of.
    """

    name: str
    train: Arms
    validation: Arms
    evaluation: Arms

    def without_answers(self) -> _Folds:
        """The same for a baseline that makes no call before it chooses."""
        return replace(
            self,
            train=self.train.without_answers(),
            validation=self.validation.without_answers(),
            evaluation=self.evaluation.without_answers(),
        )


def contest(
    tree: RouteTree,
    alpha: float,
    baselines: Sequence[Baseline],
    sets: Sequence[str] = tuple(ARM_SETS),
    trained: TrainedRouter | None = None,
    split: str = "test",
    seed: int = PAPER_SEED,
    answers: Mapping[str, Answers] | None = None,
    on_fitted: OnFitted = lambda done, total, name: None,
    policies: Sequence[OwnPolicy] = (),
    on_played: OnPlayed = lambda name, arms, play: None,
) -> Contest:
    """Fit every baseline for every set of arms, and evaluate all policies on one fold.

    Args:
        tree: all folds; nothing is fitted on, or chosen by, scores of `split` unless it is "train"
            or "validation".
        alpha: of R = Q - alpha * C.
        baselines: to fit.
        sets: names in `ARM_SETS`; those that the tree has no arms for are left out with a note.
        trained: the learned router, if it takes part.
        split: the fold to evaluate on.
        seed: a baseline draws the same random numbers whatever others take part.
        answers: features of answers, by set, for the queries of `tree`; without them, baselines
            that read answers are left out.
        on_fitted: called after each fit.
        policies: the user's own; they may take the actions that the router may take.
        on_played: called for each baseline.

    Raises:
        InputError: no train query, none in `split`, no arms, no embeddings, a router of another
            tree, or a policy of the user's own that fails.
    """
    _require_comparable(tree, split)
    other_names = [baseline.name for baseline in baselines]
    require_distinct_names(
        policies, [*other_names, ROUTER, ONE_HOP_ORACLE, TREE_ORACLE, ANYTIME_ORACLE]
    )
    usable = usable_sets(tree, sets)
    fold = tree.split(split)
    left_out = [baseline for baseline in baselines if answers is None and baseline.reads_answers]
    participants = [baseline for baseline in baselines if baseline not in left_out]
    # Before the fits, so that a router or a policy that fails is refused before any work.
    router_entries = [_router_entry(trained, tree, split, alpha)] if trained else []
    endings_allowed = _early_endings(trained.objective if trained else Objective(alpha))
    policy_entries = [
        _policy_entry(policy, tree, split, alpha, endings_allowed) for policy in policies
    ]

    routes = LogRoutes.of(tree, alpha) if "B" in usable else None

    def arms_of(name: str, fold_name: str) -> Arms:
        rows = np.flatnonzero(np.array(tree.splits) == fold_name)
        fold_answers = answers[name].select(rows) if answers else None
        return ARM_SETS[name](tree.select(rows), fold_answers, routes)

    baseline_entries: list[Entry] = []
    total = len(usable) * len(participants)
    for name in usable:
        folds = _Folds(
            name, arms_of(name, "train"), arms_of(name, "validation"), arms_of(name, split)
        )
        for baseline in participants:
            baseline_entries.append(_fit_entry(baseline, folds, alpha, seed, on_played))
            on_fitted(len(baseline_entries), total, f"{baseline.name} on {name}")
    return Contest(
        alpha=alpha,
        split=split,
        datasets=fold.datasets,
        hops=tree.hops,
        sets=usable,
        seed=seed,
        entries=(
            *baseline_entries,
            *policy_entries,
            *router_entries,
            *_oracle_entries(fold, alpha, usable),
        ),
        notes=(
            *data_notes(tree),
            *_notes_on_folds_and_sets(tree, split, sets),
            *_notes_on_left_out(left_out, tree),
            *_notes_on_routes(routes),
            *_notes_on_router(trained, tree, alpha),
        ),
    )


def _require_comparable(tree: RouteTree, split: str) -> None:
    """Check that baselines can be fitted and compared.

    Raises:
        InputError: a fold is empty, or the view has no text.
    """
    for fold, role in (("train", "to fit baselines on"), (split, "to compare them on")):
        if fold not in tree.splits:
            raise InputError(f"no query {role}: the {fold} fold is empty; collect more queries")
    if not tree.dim:
        raise InputError(
            f"baselines read the question, and this view shows no text: --state {tree.view}; "
            "take another one"
        )


def _fit_entry(
    baseline: Baseline, folds: _Folds, alpha: float, seed: int, on_played: OnPlayed
) -> Entry:
    """Fit a baseline on one set of arms, and evaluate it.

    Its random numbers depend on nothing but the seed, its name and the set.
    """
    rng = np.random.default_rng([seed, zlib.crc32(f"{baseline.name} {folds.name}".encode())])
    if not baseline.reads_answers:
        folds = folds.without_answers()
    started = time.process_time()
    with one_thread():
        result = baseline.fit(folds.train, folds.validation, alpha, rng)
        seconds = time.process_time() - started
        play = result.play(folds.evaluation.seen)
        on_played(baseline.name, folds.name, play)
        validation = None
        if len(folds.validation):
            on_validation = result.play(folds.validation.seen)
            validation = on_validation.outcome(folds.validation, baseline.name)
        return _entry(
            play.outcome(folds.evaluation, baseline.name),
            validation,
            alpha,
            arms=folds.name,
            source=baseline.source,
            reads_answers=baseline.reads_answers,
            settings=result.settings,
            fit_seconds=seconds,
        )


def _router_entry(trained: TrainedRouter, tree: RouteTree, split: str, alpha: float) -> Entry:
    """The learned router on the fold."""
    validation = tree.split("validation")
    config = trained.origin.config
    return _entry(
        trained.outcome(tree.split(split)),
        trained.outcome(validation) if len(validation) else None,
        alpha,
        source=f"{config.algo}, preset {config.preset}",
        reads_answers=True,
        settings={
            "alpha": trained.alpha,
            **_early_endings(trained.objective),
            **({"arm": trained.constant_route} if trained.constant else {}),
        },
    )


def _early_endings(objective: Objective) -> dict[str, bool]:
    """How an episode may end early, as settings; `allow_return` only if it is true."""
    settings = {"allow_stop": objective.allow_stop}
    if objective.allow_return:
        settings["allow_return"] = True
    return settings


def _policy_entry(
    policy: OwnPolicy,
    tree: RouteTree,
    split: str,
    alpha: float,
    endings_allowed: Mapping[str, bool],
) -> Entry:
    """A policy of the user's own, evaluated once on each fold; nothing is fitted."""
    outcomes = {}
    for name in dict.fromkeys((split, "validation")):
        fold = tree.split(name)
        if endings_allowed.get("allow_return"):
            fold = fold.with_returns
        if len(fold):
            endings = policy_endings(fold, policy, alpha, endings_allowed["allow_stop"])
            outcomes[name] = from_endings(fold, endings, policy.name, "baseline")
    return _entry(
        outcomes[split],
        outcomes.get("validation"),
        alpha,
        source=policy.path,
        reads_answers=True,
        settings=endings_allowed,
    )


def _entry(outcome: Outcome, validation: Outcome | None, alpha: float, **fields: Any) -> Entry:
    """An entry with the means of its outcome on the validation fold; None is an empty fold."""
    if validation is None:
        return Entry(outcome, **fields)
    return Entry(
        outcome,
        validation=float(validation.reward(alpha).mean()),
        validation_cost=float(validation.cost.mean()),
        **fields,
    )


def _oracle_entries(fold: RouteTree, alpha: float, sets: Sequence[str]) -> list[Entry]:
    """The bounds for a choice of one call (set A only), of a route, and of where to stop on it."""
    tree_oracle = replace(oracle(fold, alpha), name=TREE_ORACLE)
    anytime_oracle = replace(oracle(fold, alpha, allow_stop=True), name=ANYTIME_ORACLE)
    one_hop = direct_oracle(fold, alpha) if "A" in sets else None
    entries = [Entry(tree_oracle), Entry(anytime_oracle)]
    if one_hop:
        entries.insert(0, Entry(one_hop, "A"))
    return entries


def _notes_on_folds_and_sets(tree: RouteTree, split: str, sets: Sequence[str]) -> list[str]:
    """Notes on what the fold was used for before, and on sets of arms that take no part."""
    notes = []
    if "validation" not in tree.splits:
        notes.append("No validation fold: baselines take the first of their settings.")
    if split == "train":
        notes.append(
            "Shown on the train fold, to which all policies were fitted: "
            "expect lower figures on other queries."
        )
    if split == "validation":
        notes.append("Shown on the fold that chose the settings: tuned policies look better.")
    for name, reason in unusable_sets(tree, sets).items():
        notes.append(f"Set {name} is left out: {reason}.")
    return notes


def _notes_on_left_out(baselines: Sequence[Baseline], tree: RouteTree) -> list[str]:
    """A note on the baselines that take no part; none if all do."""
    if not baselines:
        return []
    names = ", ".join(baseline.name for baseline in baselines)
    if is_plain(tree):
        return [f"Left out, because the texts of answers are not loaded: {names}."]
    return [
        f"Left out, because they read one answer of each route, and here a call has several draws "
        f"or a question lacks routes: {names}."
    ]


def _notes_on_routes(routes: LogRoutes | None) -> list[str]:
    """A note on what the arms of set B are where queries lack routes."""
    if routes is None:
        return []
    return [
        f"Set B has the {len(routes.node):,} routes that are offered most often in the train fold. "
        "Where a question does not offer the next step of one, the best route of the train fold "
        "that is offered there takes its place."
    ]


def _notes_on_router(trained: TrainedRouter | None, tree: RouteTree, alpha: float) -> list[str]:
    """Notes on differences between the router and the baselines in training and in actions."""
    if trained is None:
        return ["No learned router: the baselines are compared among themselves."]
    remarks = training_remarks(trained, alpha, tree)
    notes = [f"{remark[:1].upper()}{remark[1:]}." for remark in remarks]
    if trained.objective.ends_early:
        ability = "return earlier answers" if trained.objective.allow_return else "stop early"
        notes.append(
            f"HierRouter may {ability} and the routes of set B may not: what stopping saves "
            "counts as adaptivity here."
        )
    return notes


def look_details(
    result: Contest, baselines: Sequence[Baseline], policies: Sequence[OwnPolicy] = ()
) -> dict[str, Any]:
    """The details by which the log of looks at the test fold tells contests apart.

    Args:
        result: the contest.
        baselines: that were given to it.
        policies: that were given to it.

    Returns:
        Alpha, sets, seed and names of the baselines; `own`, a digest of the figures of each of the
        user's own ones, only if there is one.
    """
    names = [entry.outcome.name for entry in result.entries if entry.outcome.kind == "baseline"]
    own_names = [baseline.name for baseline in baselines if isinstance(baseline, OwnBaseline)]
    own_names += [policy.name for policy in policies]
    own = {name: _reward_digest(result, name) for name in own_names if name in names}
    details: dict[str, Any] = {
        "alpha": result.alpha,
        "baselines": list(dict.fromkeys(names)),
        "sets": list(result.sets),
        "seed": result.seed,
    }
    if own:
        details["own"] = own
    return details


def _reward_digest(result: Contest, name: str) -> str:
    """Digest of a baseline's R on each query, on all its sets."""
    rewards = [
        entry.outcome.reward(result.alpha) for entry in result.entries if entry.outcome.name == name
    ]
    # Adding 0 takes the sign from zeros, so that -0.0 and 0.0 have one digest.
    values = np.round(np.array(rewards, dtype="<f8"), REWARD_DIGITS) + 0.0
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]
