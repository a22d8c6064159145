"""What a report says beside its policies: bounds, looks, regret and reliability."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation import bounds, outcome, reliability
from hierrouter.evaluation.intervals import percentile_interval, resampled_means
from hierrouter.evaluation.looks import looks_per_dataset
from hierrouter.learning.config import Objective
from hierrouter.learning.training import TrainedRouter
from hierrouter.replay.tree import Tree, first_sureness
from hierrouter.reports.values import Bootstrap, Estimate, Estimates, Values, columns_of, each
from hierrouter.tables import finite
from hierrouter_cache.tree import RouteTree


def add_analysis(
    found: Estimates,
    tree: RouteTree,
    split: str,
    alpha: float,
    trained: TrainedRouter | None,
    endings: NDArray[np.float64] | None,
) -> None:
    """The ladder, what a look is worth, the router's regret and reliability.

    Raises InputError: a router made for another tree.

    Args:
        tree: all folds.
        split: the fold to analyse, not empty.
        trained: the router; where it may stop early, chance, fixed routes and bounds may, too.
        endings: float64[queries, endings], how that router's episodes end on the fold; None
            without one.
    """
    fold, train = tree.split(split), tree.split("train")
    may = trained.objective if trained else Objective(alpha)
    stop, returns = may.ends_early, may.allow_return
    ladder = bounds.ladder(train, alpha, fold, stop)
    for rung, one in ladder.items():
        # Oracles, chance and classifiers choose none.
        chosen = one.name if one.kind in ("single", "route") else rung
        worth = {"quality": one.quality, "cost": one.cost, "reward": one.reward(alpha)}
        found.add("ladder", worth, found.columns, rung=rung, policy=chosen)
    if isinstance(tree, Tree) and len(train) and tree.hops > 1:
        _add_looks(found, tree, split, alpha, stop, ladder[bounds.PER_DATASET])
    if endings is not None:
        lost = None
        if trained is not None and split != "train" and len(train):
            ends = trained.endings(train)
            lost = train.datasets, bounds.split_regret(train, alpha, ends, stop, returns)
        regret = bounds.split_regret(fold, alpha, endings, stop, returns)
        add_regret(found, outcome.ROUTER, regret, lost)
    # Other learners' probabilities are exploration, and those of one fixed route say nothing.
    if trained and trained.holds_out and trained.alpha == alpha and not trained.constant:
        _add_reliability(found, fold, trained)


def _add_looks(
    found: Estimates, tree: Tree, split: str, alpha: float, stop: bool, blind: outcome.Outcome
) -> None:
    """What a look at the first answer adds to `blind`, the best route of each dataset."""
    sure = first_sureness(tree)
    train, fold = ((tree.split(name), sure[tree.rows(name)]) for name in ("train", split))
    rules, looked = looks_per_dataset(train, fold, alpha, stop)
    more = {
        "quality": looked.quality - blind.quality,
        "cost": alpha * (looked.cost - blind.cost),
        "reward": looked.reward(alpha) - blind.reward(alpha),
    }
    for dataset in found.columns:
        rule = rules.get(dataset)
        said = rule.name(tree.models, tree.routes) if rule else None
        found.add("looks", more, [dataset], policy=said)


def _add_reliability(found: Estimates, fold: RouteTree, trained: TrainedRouter) -> None:
    """How often a value model's choices were the best, by how likely it said that was."""
    table, how = trained.probabilities(fold), found.bootstrap
    query, said, lost = reliability.decisions(fold, trained.actions, table, trained.alpha)
    for least, below in reliability.GROUPS:
        here = (said >= least) & (said < below)
        if not here.any():
            continue
        best, draws = lost[here] == 0, how.draws(found.every)
        ends = reliability.share_interval(query[here], best, how.n, how.level, draws)
        figures = {
            "least": Estimate(least),
            "below": Estimate(finite(below)),
            "said": Estimate(float(said[here].mean())),
            "best": Estimate(float(best.mean()), *ends),
            "lost": Estimate(None if best.all() else float(lost[here][~best].mean())),
        }
        found.state("reliability", figures, policy=outcome.ROUTER, n=len(best))


PARTS = ("whole", "plan", "adaptivity")  # of a regret


def add_regret(
    found: Estimates,
    policy: str,
    regret: outcome.Floats,
    train: tuple[Sequence[str], outcome.Floats] | None = None,
) -> None:
    """A policy's regret by dataset, and how much more it is than on the train fold.

    Args:
        regret: on that fold, float64[queries, choices], see `split_regret`.
        train: datasets of the queries of the train fold and the regret there; None where it is the
            fold shown, or empty.
    """
    shown = _parts(regret)
    trained = columns_of(train[0]) if train else {}
    for stream, (dataset, queries) in enumerate(found.columns.items()):
        found.add("regret", dict(zip(PARTS, shown, strict=True)), [dataset], policy=policy)
        more: list[Estimate | None] = [None] * len(PARTS)
        if train and dataset in trained:
            lost = _parts(train[1])
            # Streams of their own: the draws of both folds are independent.
            streams = stream, len(found.columns) + stream
            more = [*_more(shown[:, queries], lost[:, trained[dataset]], found.bootstrap, streams)]
        beyond = {f"more_{part}": one for part, one in zip(PARTS, more, strict=True)}
        found.state("regret", beyond, policy=policy, dataset=dataset, n=len(queries))


def _parts(regret: outcome.Floats) -> outcome.Floats:
    """float64[3, queries], see `PARTS`."""
    return np.stack([regret.sum(axis=1), regret[:, 0], regret[:, 1:].sum(axis=1)])


def _more(
    shown: Values, train: Values, bootstrap: Bootstrap, streams: tuple[int, int]
) -> list[Estimate]:
    """Mean of each row on the fold shown less that on train; the smaller fold widens the ends."""
    means = [
        resampled_means(values, bootstrap.n, bootstrap.draws(stream))
        for values, stream in zip((shown, train), streams, strict=True)
    ]
    queries = min(shown.shape[1], train.shape[1])
    low, high = percentile_interval(means[0] - means[1], queries, bootstrap.level)
    return each(shown.mean(axis=1) - train.mean(axis=1), low, high)
