"""What the graded pool is good for: what signals tell, what is open, what is closed.

    python benchmarks/graded.py --cache caches/graded [--parts auc,gap] [--seeds 5]

`auc`: of `nano`'s first answers, family by family, how well their log-probability tells right from
wrong on the test fold, and how well n-grams of the question do, learned on the train fold. `gap`:
best fixed choice and oracle at a quarter of the middle alpha, there, and at four times it. `board`:
the tables of `leaderboard.py`, and which baselines are above the best learner there.
`few`: everybody from 150 train questions, `--seeds` draws of them. `return`: what giving an earlier
answer adds. `views`: validation R of each view, for the choice of a default.
"""

import argparse
import functools
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from leaderboard import AROUND, BASELINES, LEARNED, leaderboard, leaderboard_tables, middle_alpha
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import hierrouter as hr
from hierrouter.evaluation.bounds import ANYTIME_ORACLE, best_direct_call, best_fixed_route, oracle
from hierrouter.learning.baselines.registry import baselines
from hierrouter.learning.config import Objective, training_config
from hierrouter.learning.training import train
from hierrouter.replay.inspection import ask_cache
from hierrouter.replay.opening import training_tree
from hierrouter.replay.states import STATE_VIEWS
from hierrouter.replay.tree import Tree
from hierrouter.reports.estimates import Bootstrap, estimate_means
from hierrouter.tables import as_markdown
from hierrouter_cache.tree import RouteTree

FEW = 150
SURE = "SELECT id, model, logprob_sum, logprob_tokens FROM nodes WHERE hop = 1"
BETWEEN = (0.2, 0.95)  # shares right of the families that are looked at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path("caches/graded"))
    parser.add_argument("--parts", default="auc,gap,board,few,return,views")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    tree = hr.open(args.cache, state="query")
    middle = middle_alpha(tree)
    alphas = [middle * part for part in AROUND]
    print(f"{tree!r}, middle alpha {middle:g}")
    parts = {"auc": auc, "gap": gap, "board": board, "few": few, "return": returns, "views": views}
    for part in args.parts.split(","):
        parts[part](args.cache, tree, alphas, args.seeds)


def auc(cache: Path, tree: RouteTree, alphas: list[float], seeds: int) -> None:
    rows = ask_cache(cache, SURE).to_pylist()
    for model in ("nano", *tree.models[1:]):
        node = tree.routes.node((tree.models.index(model),))
        sure = {row["id"]: row["logprob_sum"] for row in rows if row["model"] == model}
        train, test = tree.split("train"), tree.split("test")
        found = []
        for family in dict.fromkeys(tree.datasets):
            here = [np.flatnonzero(np.array(fold.datasets) == family) for fold in (train, test)]
            right = [
                fold.accuracy[at, node] > 0 for fold, at in zip((train, test), here, strict=True)
            ]
            share = right[1].mean()
            if not BETWEEN[0] <= share <= BETWEEN[1] or len(set(right[0].tolist())) < 2:
                continue
            signals = roc_auc_score(right[1], [sure[test.query_ids[at]] for at in here[1]])
            asked = [fold.embedding[at, 0] for fold, at in zip((train, test), here, strict=True)]
            guess = LogisticRegression(C=100, max_iter=1000).fit(asked[0], right[0])
            grams = roc_auc_score(right[1], guess.predict_proba(asked[1])[:, 1])
            found.append((len(here[1]), share, signals, grams))
            print(
                f"{model:8} {family:12} n {len(here[1]):4} right {share:.2f} "
                f"AUC signals {signals:.3f}, n-grams of the question {grams:.3f}"
            )
        if found:
            weights, _, *both = np.array(found).T
            means = [np.average(one, weights=weights) for one in both]
            print(f"{model:8} mean within families: signals {means[0]:.3f}, n-grams {means[1]:.3f}")


def gap(cache: Path, tree: RouteTree, alphas: list[float], seeds: int) -> None:
    train, test = tree.split("train"), tree.split("test")
    for alpha in alphas:
        fixed = best_fixed_route(train, alpha, test, True)
        direct = best_direct_call(train, alpha, test)
        if direct and direct.reward(alpha).mean() > fixed.reward(alpha).mean():
            fixed = direct
        best = oracle(test, alpha, True).reward(alpha)
        open_ = best - fixed.reward(alpha)
        [found] = estimate_means(open_[None], Bootstrap(), 0)
        print(
            f"alpha {alpha:g}: best fixed {fixed.name} {fixed.reward(alpha).mean():.4f}, oracle "
            f"{best.mean():.4f}, gap {found.value:.4f} [{found.low:.4f}, {found.high:.4f}]"
        )


def board(cache: Path, tree: RouteTree, alphas: list[float], seeds: int) -> None:
    """The leaderboard, and which baselines are above the best learner that sees answers."""

    def on_placed(done: int, total: int, name: str) -> None:
        print(f"{done} of {total}: {name}", file=sys.stderr, flush=True)

    opens = functools.partial(opened, cache)
    found = leaderboard(opens, baselines(), ("A", "B"), seeds=seeds, on_placed=on_placed)
    for table in leaderboard_tables(found):
        print(as_markdown(table))
    for at, alpha in enumerate(found.alphas):
        best = found.chosen(at, False, [LEARNED])
        rivals = [n for n, one in enumerate(found.places) if one.group == BASELINES]
        against = {found.places[n].name: found.difference(at, n, best) for n in rivals}
        above = [name for name, one in against.items() if one.low is not None and one.low > 0]
        nearest = max(against, key=lambda name: against[name].value or -np.inf)
        close = against[nearest]
        print(
            f"alpha {alpha:g}: {found.places[best].name}; significantly above it: "
            f"{', '.join(above) or 'no baseline'}; the nearest, {nearest}: "
            f"{close.value:+.4f} [{close.low:+.4f}, {close.high:+.4f}]"
        )


def few(cache: Path, tree: RouteTree, alphas: list[float], seeds: int) -> None:
    """The learner that sees answers and is best on validation, against the best in hindsight of all
    that see the question alone: 37 validation questions choose nobody well.
    """
    middle = alphas[1]

    def drawn(seed: int, view: str, may: bool) -> Tree:
        whole, rng = opened(cache, view, may), np.random.default_rng(seed)
        rows = [whole.rows("test")]
        for fold, count in (("train", FEW), ("validation", FEW // 4)):
            rows.append(rng.permutation(whole.rows(fold))[:count])
        return whole.select(np.sort(np.concatenate(rows)))

    found = [
        leaderboard(
            functools.partial(drawn, seed), baselines(), ("A", "B"), alphas=[middle], seeds=1
        )
        for seed in range(seeds)
    ]
    first = found[0]
    reward = np.mean([one.reward for one in found], axis=0)
    places = tuple(
        replace(place, validation=(float(np.mean([one.places[at].validation for one in found])),))
        for at, place in enumerate(first.places)
    )
    mean = replace(first, reward=reward, places=places)
    seeing, means = mean.chosen(0, False, [LEARNED]), reward[0].mean(axis=1)
    blind = max(mean.among(is_blind=True), key=lambda at: means[at])
    more = mean.difference(0, seeing, blind)
    left = float(np.mean(reward[0, mean.find(ANYTIME_ORACLE)] - reward[0, blind]))
    assert more.value is not None
    print(f"{FEW} train questions, {seeds} draws of them, alpha {middle:g}:")
    print(f"  sees the question: {places[blind].name} {reward[0, blind].mean():.4f}")
    print(f"  sees answers: {places[seeing].name} {reward[0, seeing].mean():.4f}")
    print(
        f"  more: {more.value:.4f} [{more.low:.4f}, {more.high:.4f}], "
        f"{more.value / left:.3f} of the {left:.4f} that was open"
    )
    for at in np.argsort(-reward[0].mean(axis=1)):
        print(f"  {reward[0, at].mean():.4f} {places[at].name}")


def returns(cache: Path, tree: RouteTree, alphas: list[float], seeds: int) -> None:
    """What an earlier answer adds to a router that stops anyway."""
    for alpha in alphas:
        without, with_it = (
            learned_reward(opened(cache, "query+signals", may), alpha, may, seeds, "test")
            for may in (False, True)
        )
        [more] = estimate_means((with_it - without)[None], Bootstrap(), 0)
        print(f"alpha {alpha:g}: return adds {more.value:.4f} [{more.low:.4f}, {more.high:.4f}]")


def views(cache: Path, tree: RouteTree, alphas: list[float], seeds: int) -> None:
    for view in STATE_VIEWS:
        may = view.endswith(("signals", "agreement"))
        whole = opened(cache, view, may)
        found = (learned_reward(whole, alpha, may, seeds, "validation").mean() for alpha in alphas)
        print(f"validation R of {view:24}", *(f"{value:.4f}" for value in found))


@functools.cache
def opened(cache: Path, view: str, may: bool) -> Tree:
    return hr.open(cache, state=view, allow_return=may)


def learned_reward(
    whole: Tree, alpha: float, may: bool, seeds: int, fold: str
) -> NDArray[np.float64]:
    """float64[queries]: R of `exact` on a fold, the mean over its seeds."""
    objective = Objective(alpha, allow_stop=True, allow_return=may)
    config, shown = training_config("default", "exact"), whole.split(fold)
    learned = (train(training_tree(whole), objective, config, seed) for seed in range(seeds))
    reward: NDArray[np.float64] = np.mean(
        [one.outcome(shown).reward(alpha) for one in learned], axis=0
    )
    return reward


if __name__ == "__main__":
    main()
