"""The analysis of a report: bounds, the value of a look, regret, and reliability."""

from itertools import pairwise

from hierrouter.evaluation import bounds, outcome
from hierrouter.evaluation.confidence_rules import apply_rules_per_dataset
from hierrouter.evaluation.intervals import share_interval
from hierrouter.learning.config import Objective
from hierrouter.learning.training import TrainedRouter
from hierrouter.replay.tree import Tree, first_call_confidence
from hierrouter.reports.estimates import Estimate, EstimateTable
from hierrouter.tables import finite_or_none
from hierrouter_cache.tree import RouteTree


def add_analysis(
    table: EstimateTable,
    tree: RouteTree,
    split: str,
    alpha: float,
    trained: TrainedRouter | None,
    endings: outcome.Floats | None,
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
        table.add_means("ladder", metrics, table.positions, rung=rung, policy=policy)
    if isinstance(tree, Tree) and len(train) and tree.hops > 1:
        _add_looks(table, tree, split, alpha, stop, ladder[bounds.BEST_ROUTE_PER_DATASET])
    if endings is not None:
        regret = bounds.split_regret(fold, alpha, endings, stop, objective.allow_return)
        add_regret(table, outcome.ROUTER, regret)
    # Probabilities of other learners are exploration, not confidence; those of one fixed route
    # are 0 and 1 whatever the query is.
    if trained and trained.holds_out and trained.alpha == alpha and not trained.constant:
        _add_reliability(table, fold, trained)


def _add_looks(
    table: EstimateTable, tree: Tree, split: str, alpha: float, stop: bool, blind: outcome.Outcome
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
    for dataset in table.positions:
        rule = rules.get(dataset)
        rule_name = rule.name(tree.models, tree.routes) if rule else None
        table.add_means("looks", gains, [dataset], policy=rule_name)


def _add_reliability(table: EstimateTable, fold: RouteTree, trained: TrainedRouter) -> None:
    """Add how often a value model's choices were the best, by the probability that it gave them."""
    probabilities = trained.probabilities(fold)
    query, confidence, is_best = bounds.greedy_decisions(
        fold, trained.actions, probabilities, trained.alpha
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
        )
        metrics = {
            "least": Estimate(least),
            "below": Estimate(finite_or_none(below)),
            "said": Estimate(float(confidence[in_bin].mean())),
            "best": Estimate(float(is_best[in_bin].mean()), *ends),
        }
        table.add_values("reliability", metrics, policy=outcome.ROUTER, n=int(in_bin.sum()))


def add_regret(table: EstimateTable, policy: str, regret: outcome.Floats) -> None:
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
    table.add_means("regret", parts, table.positions, policy=policy)
