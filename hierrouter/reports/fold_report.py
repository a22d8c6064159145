"""The report on one fold: evaluate every policy that is compared, and write the notes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from hierrouter.evaluation import bounds
from hierrouter.evaluation.budget import optimum_at_mean_cost, policy_break_points
from hierrouter.evaluation.confidence_rules import apply_rules_per_dataset
from hierrouter.evaluation.intervals import (
    DIFFERENCES,
    SHARES,
    ValueRange,
    difference_range,
    gap_closed_interval,
    largest_amount,
    reward_range,
    share_interval,
)
from hierrouter.evaluation.outcome import (
    ROUTER,
    Floats,
    Outcome,
    RouteMeans,
    ending_name,
    fixed_routes,
    from_endings,
    greedy,
    is_plain,
    single_calls,
    variance_shares,
)
from hierrouter.evaluation.policies import OwnPolicy, policy_endings, require_distinct_names
from hierrouter.learning.config import Objective, training_title
from hierrouter.learning.deferral import Deferral, calibrate, direct_call
from hierrouter.learning.router import Origin, TrainedRouter
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.replay.inspection import cost_notes, data_notes
from hierrouter.replay.tree import Tree, first_call_confidence
from hierrouter.reports.build import add_depths, build_report
from hierrouter.reports.estimates import (
    ALL_DATASETS,
    MIN_INTERVAL_QUERIES,
    Bootstrap,
    Estimate,
    EstimateTable,
)
from hierrouter.reports.results import DeferralSummary, ReportData, SplitGap
from hierrouter.runs.run import history_table
from hierrouter.runs.selection import SweepBeside
from hierrouter.tables import finite_or_none, money
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import ALL_FOLDS, RouteTree

DEFERRAL_CURVE_POINTS = 101  # at most: shares about a hundredth apart


@dataclass(frozen=True)
class DeferralTarget:
    """A stronger model that takes the queries that the router doubts.

    Attributes:
        stronger: name of the model.
        share: greatest share of the queries that it takes, from 0 to 1; None: the share that
            gives the highest R.
    """

    stronger: str
    share: float | None = None


def report_on_fold(
    tree: RouteTree,
    alpha: float,
    trained: TrainedRouter | None,
    sweep: TrainedSweep | None,
    provenance: Mapping[str, Any],
    split: str = "test",
    bootstrap: Bootstrap | None = None,
    price_lists: Mapping[str, RouteTree] | None = None,
    defer: DeferralTarget | None = None,
    policies: Sequence[OwnPolicy] = (),
    p95_below: float | None = None,
    beside: Sequence[SweepBeside] = (),
) -> ReportData:
    """Evaluate every policy on one fold at one alpha.

    Args:
        tree: all folds. Policies chosen from data are chosen on "train", except the best fixed
            route of the gap, which is that of the fold that is evaluated.
        alpha: weight of cost in R.
        trained: the router; None without one.
        sweep: routers for many alphas, for the frontier; None without them.
        provenance: JSON values that say where data and router come from.
        split: the fold to evaluate.
        bootstrap: settings of the intervals; default: 10,000 resamples at 95 %.
        price_lists: the same tree under several price lists, by the list's name, `tree` among
            them; one list alone gets no table. A policy that is chosen under prices is chosen
            under each list anew; the router is the same one and sees the costs of each.
        defer: model that takes what `trained` doubts, as one more baseline, see
            `require_deferrable`. The threshold is chosen on the validation fold, or on "train" if
            there is none.
        policies: the user's policies; they may do what the router may.
        p95_below: name the best fixed route whose 95th percentile has at most this many seconds.
        beside: further sweeps for the frontier, by name.

    Raises:
        InputError: the fold is unknown or empty.
        InputError: a dataset is called "all".
        InputError: the router was made for another tree.
        InputError: the model to defer to is unknown.
        InputError: alpha is not a valid price of cost.
        InputError: a policy of the user fails.
    """
    untrained = Objective(alpha)  # rejects an invalid alpha, with a router, too
    objective = trained.objective if trained else untrained
    trees = dict(price_lists or {"": tree})
    several_lists = trees if len(trees) > 1 else {}
    fold = _fold(tree, split)
    table = EstimateTable(fold.datasets, bootstrap)
    outcomes_by_list = {
        name: evaluate_policies(priced, alpha, trained, split, policies)
        for name, priced in trees.items()
    }
    outcomes = next(outcomes_by_list[name] for name, priced in trees.items() if priced is tree)
    learned = swept_outcomes(sweep, fold) if sweep else []
    learned_beside = {other.name: swept_outcomes(other.sweep, fold) for other in beside}
    break_points = policy_break_points(fold, objective.ends_early)
    deferral = None
    if trained and defer:
        deferral = calibrate(trained, tree, defer.stronger, defer.share)
    if objective.ends_early and outcomes.endings is not None:
        add_depths(table, outcomes.fold, outcomes.endings, alpha)
    add_analysis(table, tree, split, alpha, trained, outcomes.endings)
    for name, endings in outcomes.own.items():
        regret = bounds.split_regret(objective.view(fold), alpha, endings, objective.ends_early)
        add_regret(table, name, regret)
    sweep_may_stop = sweep is not None and sweep.objective.ends_early
    oracles = [
        (swept_alpha, bounds.oracle(fold, swept_alpha, sweep_may_stop))
        for swept_alpha, _ in learned
    ]
    _add_variance(table, fold)
    split_gap = None
    if outcomes.router:
        split_gap = _add_luck(table, outcomes, tree.split("train"), alpha, objective.ends_early)
    notes = (
        *(ALL_FOLDS_NOTES if split == ALL_FOLDS else ()),
        *data_notes(tree),
        *cost_notes(fold, alpha),
        *_route_notes(outcomes.fold, objective.ends_early),
        *_constant_notes(trained, outcomes.single_route),
        *_table_notes(trained, outcomes.single_route),
        *_direct_notes(tree, fold, alpha, trained, outcomes.router),
        *_price_notes(trained, sweep, several_lists, tree),
        *_stop_notes(trained, sweep),
        *_seed_notes(learned, learned_beside, beside),
        *_budget_notes(fold, trained, outcomes.router),
    )
    report = build_report(
        table,
        outcomes.all(deferral),
        alpha=alpha,
        split=split,
        scorer=tree.scorer,
        provenance=provenance,
        frontier=[*learned, *oracles, *_named_outcomes(learned_beside)],
        price_lists={name: outcomes_by_list[name].all(deferral) for name in several_lists},
        cost_unit=tree.cost_unit,
        constant=trained.constant_route if trained else "",
        fixed_route=(trained.constant_route if trained else "") or outcomes.single_route,
        training=training_title(trained.origin.config) if trained else "",
        p95_below=p95_below,
        split_gap=split_gap,
        history=_history(trained),
        deciding_alphas=(
            (float(break_points[0]), float(break_points[-1])) if len(break_points) else None
        ),
        notes=notes,
        allow_stop=objective.allow_stop,
        allow_return=objective.allow_return,
        deferral=_deferral_summary(fold, alpha, deferral, defer.share if defer else None),
    )
    return replace(
        report,
        unembedded=tree.unembedded,
        too_few=_too_few(tree),
        luck_unknown=_luck_sentence(tree, fold),
    )


def _too_few(tree: RouteTree) -> str:
    """Say that a router cannot be learned from so few queries, if so; see `ReportData`."""
    count = len(tree)
    if count >= MIN_INTERVAL_QUERIES:
        return ""
    questions = "1 question is" if count == 1 else f"{count} questions are"
    return f"{questions} too few for a router, and for intervals"


CURVE_COLUMNS = ("epoch", "train", "validation")


def _history(trained: TrainedRouter | None) -> dict[str, list[float | None]]:
    """Return the learning curve of a router; empty if it has none."""
    if trained is None or not trained.history:
        return {}
    columns: dict[str, list[float | None]]
    columns = history_table(trained).select(CURVE_COLUMNS).to_pydict()
    return columns


def swept_outcomes(sweep: TrainedSweep, fold: RouteTree) -> list[tuple[float, Outcome]]:
    """Return each alpha of a sweep's grid with the outcome of its router on a fold."""
    return [(router.alpha, router.outcome(fold)) for router in sweep.routers]


def _named_outcomes(
    learned: Mapping[str, Sequence[tuple[float, Outcome]]],
) -> Iterator[tuple[float, Outcome]]:
    """Yield outcomes of several sweeps, each under the router's name and that of its sweep."""
    for name, outcomes in learned.items():
        for alpha, outcome in outcomes:
            yield alpha, replace(outcome, name=f"{ROUTER}, {name}")


ALL_FOLDS_NOTES = (
    "These are the queries of all folds: whatever learned has seen most of them, so this is no "
    "test.",
)


def _fold(tree: RouteTree, split: str) -> RouteTree:
    """Return a fold that a report can be made on; see `report_on_fold` for the errors."""
    fold = tree.split(split)
    if not len(fold):
        raise InputError(f"the {split} fold is empty: nothing to report on; add queries")
    if ALL_DATASETS in fold.datasets:
        raise InputError(
            f"a dataset is called {ALL_DATASETS!r}: report; rename it, {ALL_DATASETS!r} is the "
            "total"
        )
    return fold


def require_deferrable(
    tree: RouteTree, trained: TrainedRouter | None, defer: DeferralTarget
) -> None:
    """Reject a deferral that is impossible, before anything is evaluated.

    Raises:
        InputError: there is no router.
        InputError: there is no direct call of this model.
        WorldError: no router can be shown, because the states have no vectors.
    """
    direct_call(tree, defer.stronger)
    if trained is None:
        tree.require_embedded()
        raise InputError(
            f"no router that could hand over to {defer.stronger}: none was trained on this tree; "
            "run `hierrouter train` first"
        )


@dataclass(frozen=True)
class PolicyOutcomes:
    """Every policy on a fold under one price list, except a router with deferral.

    Attributes:
        fold: the queries, under these prices.
        bounds: direct calls, fixed routes, chance, and the best that could be done.
        own: float64[queries, endings] by name: the endings of the user's policies.
        endings: float64[queries, endings], those of the router; None without one.
    """

    fold: RouteTree
    bounds: tuple[Outcome, ...]
    own: Mapping[str, Floats]
    endings: Floats | None

    @cached_property
    def router(self) -> Outcome | None:
        """Outcome of the router; None without one."""
        if self.endings is None:
            return None
        return from_endings(self.fold, self.endings, ROUTER, "router")

    @property
    def single_route(self) -> str:
        """The route that the router takes for every query; "" if it takes several.

        Also "" of fewer than two queries, which say nothing about what a policy does always.
        """
        if self.endings is None or len(self.endings) < 2:
            return ""
        numbers = self.endings.argmax(axis=1)  # each row is one-hot
        if (numbers != numbers[0]).any():
            return ""
        return ending_name(self.fold, int(numbers[0]))

    def all(self, deferral: Deferral | None) -> list[Outcome]:
        """Return the outcomes of all policies in the order of a report.

        Args:
            deferral: the router with deferral, which is added as a baseline; None without one.
        """
        outcomes = list(self.bounds)
        if deferral:
            with_deferral = deferral.outcome(self.fold)
            name = f"{with_deferral.name}, else {deferral.stronger}"
            outcomes.append(replace(with_deferral, name=name, kind="baseline"))
        for name, endings in self.own.items():
            outcomes.append(from_endings(self.fold, endings, name, "baseline"))
        if self.router:
            outcomes.append(self.router)
        return outcomes


def evaluate_policies(
    tree: RouteTree,
    alpha: float,
    trained: TrainedRouter | None,
    split: str,
    policies: Sequence[OwnPolicy],
) -> PolicyOutcomes:
    """Evaluate every policy on a fold under the prices of `tree`.

    If the router may end early, fixed routes and bounds may, too; the user's policies may do all
    that the router may. See `report_on_fold` for arguments and errors.
    """
    objective = trained.objective if trained else Objective(alpha)
    fold = objective.view(_fold(tree, split))
    train = tree.split("train")
    stop = objective.ends_early
    ranking = bounds.rank_routes(train, alpha, stop) if len(train) else ()
    reference_outcomes = [
        *single_calls(fold),
        *fixed_routes(fold, stop, ranking),
        bounds.random_policy(fold, stop),
    ]
    if len(train):
        reference_outcomes.append(bounds.best_route_per_dataset(train, alpha, fold, stop))
    reference_outcomes.append(bounds.oracle(fold, alpha, stop))
    require_distinct_names(policies, [ROUTER, *(outcome.name for outcome in reference_outcomes)])
    own = {
        policy.name: policy_endings(objective.view(fold), policy, alpha, objective.allow_stop)
        for policy in policies
    }
    endings = trained.endings(fold) if trained else None
    return PolicyOutcomes(fold, tuple(reference_outcomes), own, endings)


def _deferral_summary(
    fold: RouteTree, alpha: float, deferral: Deferral | None, share_allowed: float | None
) -> DeferralSummary | None:
    """Summarise a router with deferral on a fold, at its own threshold and at any other."""
    if deferral is None:
        return None
    on_fold = deferral.on_fold(fold)
    return DeferralSummary(
        stronger=deferral.stronger,
        chosen_on=deferral.chosen_on,
        share_allowed=share_allowed,
        chosen=on_fold.point(deferral.threshold, alpha),
        curve=tuple(on_fold.curve(alpha, DEFERRAL_CURVE_POINTS)),
    )


def _route_notes(fold: RouteTree, allow_stop: bool) -> list[str]:
    """Say how many fixed routes are not offered for all queries."""
    if is_plain(fold):
        return []
    means = RouteMeans(fold, allow_stop)
    routes = len(means.node)
    lacking = routes - len(means.everywhere)
    if not lacking:
        return []
    return [
        f"{lacking:,} of {routes:,} fixed routes are not offered for all of these questions; where "
        "one is not, the next best one is taken."
    ]


CONSTANT_NOTE = "HierRouter is one fixed route here"
NEGLIGIBLE_REWARD = 5e-4  # a difference in R up to this is printed as 0.000


def _table_notes(trained: TrainedRouter | None, single_route: str) -> list[str]:
    """Say which route each group takes, if the router is a table and takes several."""
    if trained is None or single_route or not trained.table_in_words:
        return []
    return [f"HierRouter is a table of routes: {trained.table_in_words}."]


def _constant_notes(trained: TrainedRouter | None, single_route: str) -> list[str]:
    """Explain why the router is one fixed route, if it is.

    Args:
        trained: the router.
        single_route: the route that it takes for every query, if it does.
    """
    if trained is not None and trained.constant:
        return [f"{CONSTANT_NOTE}: {trained.why_constant}."]
    if single_route:
        return [f"{CONSTANT_NOTE}: its policy takes {single_route} for every question."]
    return []


def _direct_notes(
    tree: RouteTree,
    fold: RouteTree,
    alpha: float,
    trained: TrainedRouter | None,
    router: Outcome | None,
) -> list[str]:
    """Warn if one direct call, with its model chosen on train, earns more than the router."""
    train = tree.split("train")
    if trained is None or router is None or not len(train):
        return []
    direct = bounds.best_direct_call(train, alpha, fold)
    if direct is None:
        return []
    lead = (direct.reward(alpha) - router.reward(alpha)).mean()
    if lead <= NEGLIGIBLE_REWARD:
        return []
    note = f"One direct call of {direct.name} earns {lead:+.3f} R more than HierRouter here"
    if trained.objective.ends_early:
        return [f"{note}."]
    return [f"{note}, which makes all its hops: --allow-stop trains one that need not."]


def _price_notes(
    trained: TrainedRouter | None,
    sweep: TrainedSweep | None,
    several_lists: Mapping[str, RouteTree],
    tree: RouteTree,
) -> list[str]:
    """Warn if a router was trained under other prices than the report shows."""
    notes = []
    if trained:
        trees = several_lists or {"these": tree}
        other_lists = [
            name for name, priced in trees.items() if _has_other_prices(trained.origin, priced)
        ]
        if other_lists:
            notes.append(
                f"HierRouter was trained under other prices than {', '.join(other_lists)}."
            )
    if sweep and _has_other_prices(sweep.origin, tree):
        notes.append("The sweep was trained under other prices than its frontier shows.")
    return notes


def _has_other_prices(origin: Origin, tree: RouteTree) -> bool:
    return origin.fingerprint != tree.fingerprint and tree.same_content(origin.fingerprint)


def _stop_notes(trained: TrainedRouter | None, sweep: TrainedSweep | None) -> list[str]:
    """Warn if the routers of the frontier may stop early and that of the tables not, or reverse."""
    if not trained or not sweep or trained.objective.ends_early == sweep.objective.ends_early:
        return []
    if trained.objective.ends_early:
        return ["The router of the tables may stop early, those of the frontier may not."]
    return ["The routers of the frontier may stop early, the one of the tables may not."]


def _seed_notes(
    learned: Sequence[tuple[float, Outcome]],
    learned_beside: Mapping[str, Sequence[tuple[float, Outcome]]],
    beside: Sequence[SweepBeside],
) -> list[str]:
    """Say how much R differs between the seeds of a sweep; nothing of a single seed."""
    other_seeds = [learned_beside[other.name] for other in beside if other.is_other_seed]
    if not other_seeds:
        return []
    spreads = []
    for swept in zip(learned, *other_seeds, strict=True):
        rewards = [outcome.reward(alpha).mean() for alpha, outcome in swept]
        spreads.append((float(np.std(rewards, ddof=1)), swept[0][0]))
    spread, alpha = max(spreads)
    mean = float(np.mean([value for value, _ in spreads]))
    return [
        f"Over the {1 + len(other_seeds)} seeds of the sweep, of which the one that is best on "
        f"validation is shown, the standard deviation of R is {mean:.4f} in the mean of all alphas "
        f"and {spread:.4f} at most, at alpha {alpha:g}."
    ]


def _budget_notes(
    fold: RouteTree, trained: TrainedRouter | None, router: Outcome | None
) -> list[str]:
    """Compare a router that was chosen for a mean cost with the highest Q at its cost here.

    Its cost on this fold may be above the one that it was chosen for, and its Q above what is
    possible at that one.
    """
    if trained is None or router is None or trained.budget is None:
        return []
    cost = float(router.cost.mean())
    best = optimum_at_mean_cost(fold, cost, trained.objective.ends_early)
    return [
        f"HierRouter was trained for a mean cost of {trained.budget:g} a query; on this fold it "
        f"costs {money(cost)}, with Q {router.quality.mean():.4f}. In hindsight Q is at most "
        f"{best.quality.mean():.4f} at a mean cost of {money(cost)}."
    ]


# The analysis of a router: bounds, the value of a look, regret and reliability.


def add_analysis(
    table: EstimateTable,
    tree: RouteTree,
    split: str,
    alpha: float,
    trained: TrainedRouter | None,
    endings: Floats | None,
) -> None:
    """Add the ladder of bounds, the value of a look, the router's regret and its reliability.

    Args:
        table: the report's figures, which are added to.
        tree: all folds.
        split: the fold to analyse, not empty.
        alpha: weight of cost in R.
        trained: the router; if it may stop early, chance, fixed routes and bounds may stop, too.
        endings: float64[queries, endings], how that router's episodes end on the fold; None
            without a router.

    Raises:
        InputError: the router was made for another tree.
    """
    fold = tree.split(split)
    train = tree.split("train")
    objective = trained.objective if trained else Objective(alpha)
    stop = objective.ends_early
    ladder = bounds.ladder(train, alpha, fold, stop)
    for rung, bound in ladder.items():
        # Oracles, chance and classifiers do not choose one model or route for all queries.
        policy = bound.name if bound.kind in ("single", "route") else rung
        metrics = {"quality": bound.quality, "cost": bound.cost, "reward": bound.reward(alpha)}
        within = {"reward": reward_range(alpha, bound.cost)}
        table.add_means("ladder", metrics, table.positions, within, rung=rung, policy=policy)
    # A rule reads how confident one response is; another draw of its call has another confidence.
    if isinstance(tree, Tree) and len(train) and tree.hops > 1 and is_plain(tree):
        _add_looks(table, tree, split, alpha, stop, ladder[bounds.BEST_ROUTE_PER_DATASET])
    if endings is not None:
        regret = bounds.split_regret(objective.view(fold), alpha, endings, stop)
        add_regret(table, ROUTER, regret)
    if trained and trained.alpha == alpha:
        _add_reliability(table, fold, trained)


def _add_looks(
    table: EstimateTable, tree: Tree, split: str, alpha: float, stop: bool, blind: Outcome
) -> None:
    """Add what a look at the first answer gains over `blind`, the best route of each dataset."""
    sureness = first_call_confidence(tree)
    train = tree.split("train"), sureness[tree.rows("train")]
    fold = tree.split(split), sureness[tree.rows(split)]
    rules, with_look = apply_rules_per_dataset(train, fold, alpha, stop)
    gains = {
        "quality": with_look.quality - blind.quality,
        "cost": alpha * (with_look.cost - blind.cost),
        "reward": with_look.reward(alpha) - blind.reward(alpha),
    }
    within = {
        "quality": DIFFERENCES,
        "cost": ValueRange(
            -alpha * largest_amount(blind.cost), alpha * largest_amount(with_look.cost)
        ),
        "reward": difference_range(alpha, with_look.cost, blind.cost),
    }
    for dataset in table.positions:
        rule = rules.get(dataset)
        rule_name = rule.name(tree.models, tree.layout) if rule else None
        table.add_means("looks", gains, [dataset], within, policy=rule_name)


def _add_reliability(table: EstimateTable, fold: RouteTree, trained: TrainedRouter) -> None:
    """Add how often the router's choices were the best, by the probability that it gave them."""
    policy = trained.probabilities(fold)
    choice = greedy(policy, fold.base_rate, trained.actions.returns).argmax(axis=2)
    probability = trained.choice_probability(fold, choice)
    if probability is None:
        return
    query, confidence, is_best, weight = bounds.greedy_decisions(
        fold, trained.actions, choice, probability, trained.alpha
    )
    bootstrap = table.bootstrap
    for least, below in pairwise(bounds.RELIABILITY_EDGES):
        in_bin = (confidence >= least) & (confidence < below)
        if not in_bin.any():
            continue
        ends = share_interval(
            query[in_bin],
            is_best[in_bin],
            bootstrap.n,
            bootstrap.level,
            bootstrap.draws(table.overall_stream),
            weight[in_bin],
        )
        metrics = {
            "least": Estimate(least),
            "below": Estimate(finite_or_none(below)),
            "said": Estimate(float(np.average(confidence[in_bin], weights=weight[in_bin]))),
            "best": Estimate(float(np.average(is_best[in_bin], weights=weight[in_bin])), *ends),
        }
        table.add_values("reliability", metrics, policy=ROUTER, n=int(in_bin.sum()))


def _add_variance(table: EstimateTable, fold: RouteTree) -> None:
    """Add which hop decides Q of a fixed route, by dataset, where the routes are a full product."""
    if fold.hops < 2:
        return
    means = RouteMeans(fold)
    for dataset, queries in table.positions.items():
        shares = variance_shares(means, queries)
        if shares is None:
            continue
        columns = {"dataset": dataset, "n": len(queries)}
        for hop, share in enumerate(shares.hops.tolist(), start=1):
            table.add_values("variance", {"share": share}, hop=hop, **columns)
        rest = {"interaction": shares.interaction, "deviation": shares.deviation}
        table.add_values("variance", rest, **columns)


def _luck_sentence(tree: RouteTree, fold: RouteTree) -> str:
    """Say that luck cannot be told, and what would tell it; "" unless one draw of each call came.

    Args:
        tree: all folds, perhaps of a cache, which the command names.
        fold: the queries that are reported on.
    """
    if not any(fold.sampled or ()) or bounds.has_several_draws(fold):
        return ""
    sentence = (
        "Luck cannot be told from skill with one draw of each call at a temperature above 0, so "
        "part of the gap to the oracle is luck"
    )
    if not isinstance(tree, Tree):
        return f"{sentence}."
    if tree.collected_draws > 1:
        return f"{sentence}: leave --draws 1 out to open all {tree.collected_draws}."
    command = ["hierrouter", "collect", "--cache", str(tree.root), "--draws", "2"]
    if tree.pool:
        command += ["--pool", tree.pool]
    return f"{sentence}: `{shlex.join(command)}` tells them apart."


def _add_luck(
    table: EstimateTable, outcomes: PolicyOutcomes, train: RouteTree, alpha: float, stop: bool
) -> SplitGap | None:
    """Add the router's regret by luck, adaptivity, plan and generalisation, by dataset.

    Returns:
        The share of the gap to the split oracle that the router closes. None, and nothing is
        added, if no call has several draws.
    """
    router = outcomes.router
    split = bounds.split_oracle(outcomes.fold, alpha, stop)
    if split is None or router is None:
        return None
    fixed = None
    ranking: tuple[int, ...] = ()
    if len(train):
        ranking = bounds.rank_routes(train, alpha, stop)
        fixed = bounds.best_fixed_route(train, alpha, outcomes.fold, stop)
    terms = bounds.luck_of_regret(outcomes.fold, alpha, router, fixed, stop, ranking)
    if terms is not None:
        within = dict.fromkeys(terms, DIFFERENCES)
        table.add_means("luck", terms, table.positions, within, policy=ROUTER)
    routes = [route for route in outcomes.bounds if route.kind == "route"]
    if not routes:
        return None
    best = max(routes, key=lambda route: float(route.reward(alpha).mean()))
    router_reward, fixed_reward, split_reward = (
        policy.reward(alpha) for policy in (router, best, split)
    )
    share = bounds.gap_closed(
        float(router_reward.mean()), float(fixed_reward.mean()), float(split_reward.mean())
    )
    ends = None
    if share is not None:
        bootstrap = table.bootstrap
        ends = gap_closed_interval(
            router_reward,
            fixed_reward,
            split_reward,
            bootstrap.n,
            bootstrap.level,
            bootstrap.draws(table.overall_stream),
            table.strata(ALL_DATASETS),
        )
    return SplitGap(float((split_reward - fixed_reward).mean()), share, ends)


def add_regret(table: EstimateTable, policy: str, regret: Floats) -> None:
    """Add a policy's regret by dataset, and its parts.

    Args:
        table: the report's figures, which are added to.
        policy: name of the policy.
        regret: float64[queries, decisions], see `bounds.split_regret`.
    """
    parts = {
        "whole": regret.sum(axis=1),
        "plan": regret[:, 0],
        "adaptivity": regret[:, 1:].sum(axis=1),
    }
    # No part is below 0; where cost decides much, it may be above 1.
    within = dict.fromkeys(parts, SHARES)
    table.add_means("regret", parts, table.positions, within, policy=policy)
