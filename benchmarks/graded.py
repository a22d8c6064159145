"""Results on the graded pool: what signals tell, and how much of the gap routers close.

    python benchmarks/graded.py --cache caches/graded [--parts auc,gap] [--seeds 5]

`auc`: for the direct calls of each model, family by family, how well log-probabilities tell right
from wrong responses on the test fold, and how well n-grams of the question do, learned on the train
fold. `gap`: the best fixed choice and the oracle at a quarter of the middle alpha, at the middle
alpha, and at four times it. `board`: the tables of `leaderboard.py`, and the baselines that are
above the best learner there. `ppo`: PPO with signals beside `exact` and every baseline. `few`: all
policies trained on 150 questions, drawn `--seeds` times. `return`: the gain from returning an
earlier answer. `views`: validation R of each view, for the choice of a default.
"""

import argparse
import functools
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from leaderboard import (
    AROUND,
    BASELINES,
    LEARNED,
    LEARNERS,
    leaderboard,
    leaderboard_tables,
    middle_alpha,
)
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

FEW_QUESTIONS = 150
LOGPROB_QUERY = "SELECT id, model, logprob_sum, logprob_tokens FROM nodes WHERE hop = 1"
# Families with a smaller or larger share of right responses say little.
MIN_SHARE_RIGHT = 0.2
MAX_SHARE_RIGHT = 0.95


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
    parts = {
        "auc": auc,
        "gap": gap,
        "board": board,
        "ppo": ppo,
        "few": few,
        "return": returns,
        "views": views,
    }
    for part in args.parts.split(","):
        parts[part](args.cache, tree, alphas, args.seeds)


def auc(cache: Path, tree: RouteTree, alphas: list[float], seeds: int) -> None:
    """Print how well signals and n-grams tell right from wrong responses, by model and family."""
    rows = ask_cache(cache, LOGPROB_QUERY).to_pylist()
    for model in ("nano", *tree.models[1:]):
        node = tree.layout.node((tree.models.index(model),))
        logprobs = {row["id"]: row["logprob_sum"] for row in rows if row["model"] == model}
        train = tree.split("train")
        test = tree.split("test")
        results = []
        for family in dict.fromkeys(tree.datasets):
            train_rows = np.flatnonzero(np.array(train.datasets) == family)
            test_rows = np.flatnonzero(np.array(test.datasets) == family)
            train_right = train.accuracy[train_rows, node] > 0
            test_right = test.accuracy[test_rows, node] > 0
            share = test_right.mean()
            if (
                not MIN_SHARE_RIGHT <= share <= MAX_SHARE_RIGHT
                or len(set(train_right.tolist())) < 2
            ):
                continue
            signals = roc_auc_score(
                test_right, [logprobs[test.query_ids[row]] for row in test_rows]
            )
            classifier = LogisticRegression(C=100, max_iter=1000)
            classifier.fit(train.embedding[train_rows, 0], train_right)
            chances = classifier.predict_proba(test.embedding[test_rows, 0])[:, 1]
            grams = roc_auc_score(test_right, chances)
            results.append((len(test_rows), share, signals, grams))
            print(
                f"{model:8} {family:12} n {len(test_rows):4} right {share:.2f} "
                f"AUC signals {signals:.3f}, n-grams of the question {grams:.3f}"
            )
        if results:
            weights, _, signals, grams = np.array(results).T
            mean_signals = np.average(signals, weights=weights)
            mean_grams = np.average(grams, weights=weights)
            print(
                f"{model:8} mean within families: signals {mean_signals:.3f}, "
                f"n-grams {mean_grams:.3f}"
            )


def gap(cache: Path, tree: RouteTree, alphas: list[float], seeds: int) -> None:
    """Print the gap between the best fixed choice and the oracle at each alpha."""
    train = tree.split("train")
    test = tree.split("test")
    for alpha in alphas:
        fixed = best_fixed_route(train, alpha, test, True)
        direct = best_direct_call(train, alpha, test)
        if direct and direct.reward(alpha).mean() > fixed.reward(alpha).mean():
            fixed = direct
        best = oracle(test, alpha, True).reward(alpha)
        gaps = best - fixed.reward(alpha)
        [estimate] = estimate_means(gaps[None], Bootstrap(), 0)
        print(
            f"alpha {alpha:g}: best fixed {fixed.name} {fixed.reward(alpha).mean():.4f}, oracle "
            f"{best.mean():.4f}, gap {estimate.value:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]"
        )


def board(cache: Path, tree: RouteTree, alphas: list[float], seeds: int) -> None:
    """Print the leaderboard, and the baselines above the best learner that reads responses."""

    def on_placed(done: int, total: int, name: str) -> None:
        print(f"{done} of {total}: {name}", file=sys.stderr, flush=True)

    open_view = functools.partial(open_cached, cache)
    standings = leaderboard(open_view, baselines(), ("A", "B"), seeds=seeds, on_placed=on_placed)
    for table in leaderboard_tables(standings):
        print(as_markdown(table))
    for position, alpha in enumerate(standings.alphas):
        best = standings.chosen(position, False, [LEARNED])
        # Baseline minus best learner, by the baseline's name.
        differences = {}
        for number, policy in enumerate(standings.places):
            if policy.group == BASELINES:
                differences[policy.name] = standings.difference(position, number, best)
        above = []
        for name, difference in differences.items():
            if difference.low is not None and difference.low > 0:
                above.append(name)
        nearest = max(differences, key=lambda name: differences[name].value or -np.inf)
        margin = differences[nearest]
        print(
            f"alpha {alpha:g}: {standings.places[best].name}; significantly above it: "
            f"{', '.join(above) or 'no baseline'}; the nearest, {nearest}: "
            f"{margin.value:+.4f} [{margin.low:+.4f}, {margin.high:+.4f}]"
        )


def ppo(cache: Path, tree: RouteTree, alphas: list[float], seeds: int) -> None:
    """Print how far PPO with signals is above every baseline, and from `exact`."""
    compared = {
        learner.algo: learner
        for learner in LEARNERS
        if learner.view == "query+signals" and learner.allow_return and learner.algo != "value"
    }
    standings = leaderboard(
        functools.partial(open_cached, cache),
        baselines(),
        ("A", "B"),
        seeds=seeds,
        learners=tuple(compared.values()),
    )
    print(as_markdown(leaderboard_tables(standings)[0]))
    router = standings.find(compared["ppo"].name)
    enumerated = standings.find(compared["exact"].name)
    for position, alpha in enumerate(standings.alphas):
        rivals = {
            policy.name: standings.difference(position, router, number)
            for number, policy in enumerate(standings.places)
            if policy.group == BASELINES
        }
        below = [name for name, gain in rivals.items() if gain.low is not None and gain.low >= 0]
        nearest = min(rivals, key=lambda name: rivals[name].value or np.inf)
        texts = []
        for name, gain in (
            ("exact", standings.difference(position, router, enumerated)),
            (f"the nearest baseline, {nearest}", rivals[nearest]),
        ):
            texts.append(f"less {name}: {gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]")
        reward = standings.reward[position, router].mean()
        print(
            f"alpha {alpha:g}: PPO {reward:.4f}; {'; '.join(texts)}; "
            f"above {len(below)} of {len(rivals)} baselines"
        )


def few(cache: Path, tree: RouteTree, alphas: list[float], seeds: int) -> None:
    """Compare policies trained on few questions, averaged over several draws of the questions.

    The learner that reads responses is chosen on validation. The policy that reads the question
    alone is the best one in hindsight, because 37 validation questions are too few to choose it.
    """
    middle = alphas[1]

    def draw_tree(seed: int, view: str, allow_return: bool) -> Tree:
        tree = open_cached(cache, view, allow_return)
        rng = np.random.default_rng(seed)
        rows = [tree.rows("test")]
        for fold, count in (("train", FEW_QUESTIONS), ("validation", FEW_QUESTIONS // 4)):
            rows.append(rng.permutation(tree.rows(fold))[:count])
        return tree.select(np.sort(np.concatenate(rows)))

    draws = [
        leaderboard(
            functools.partial(draw_tree, seed), baselines(), ("A", "B"), alphas=[middle], seeds=1
        )
        for seed in range(seeds)
    ]
    first = draws[0]
    reward = np.mean([draw.reward for draw in draws], axis=0)
    places = []
    for number, policy in enumerate(first.places):
        validation = float(np.mean([draw.places[number].validation for draw in draws]))
        places.append(replace(policy, validation=(validation,)))
    mean = replace(first, reward=reward, places=tuple(places))
    means = reward[0].mean(axis=1)
    seeing = mean.chosen(0, False, [LEARNED])
    blind = max(mean.among(is_blind=True), key=lambda number: means[number])
    gain = mean.difference(0, seeing, blind)
    oracle_gap = float(np.mean(reward[0, mean.find(ANYTIME_ORACLE)] - reward[0, blind]))
    assert gain.value is not None
    print(f"{FEW_QUESTIONS} train questions, {seeds} draws of them, alpha {middle:g}:")
    print(f"  sees the question: {mean.places[blind].name} {reward[0, blind].mean():.4f}")
    print(f"  sees answers: {mean.places[seeing].name} {reward[0, seeing].mean():.4f}")
    print(
        f"  more: {gain.value:.4f} [{gain.low:.4f}, {gain.high:.4f}], "
        f"{gain.value / oracle_gap:.3f} of the {oracle_gap:.4f} that was open"
    )
    for number in np.argsort(-means):
        print(f"  {means[number]:.4f} {mean.places[number].name}")


def returns(cache: Path, tree: RouteTree, alphas: list[float], seeds: int) -> None:
    """Print how much returning an earlier answer adds to a router that may stop."""
    for alpha in alphas:
        rewards = {}
        for allow_return in (False, True):
            tree_with_signals = open_cached(cache, "query+signals", allow_return)
            rewards[allow_return] = learned_reward(
                tree_with_signals, alpha, allow_return, seeds, "test"
            )
        [gain] = estimate_means((rewards[True] - rewards[False])[None], Bootstrap(), 0)
        print(f"alpha {alpha:g}: return adds {gain.value:.4f} [{gain.low:.4f}, {gain.high:.4f}]")


def views(cache: Path, tree: RouteTree, alphas: list[float], seeds: int) -> None:
    """Print R of `exact` on the validation fold for each view."""
    for view in STATE_VIEWS:
        allow_return = view.endswith(("signals", "agreement"))
        view_tree = open_cached(cache, view, allow_return)
        texts = []
        for alpha in alphas:
            reward = learned_reward(view_tree, alpha, allow_return, seeds, "validation")
            texts.append(f"{reward.mean():.4f}")
        print(f"validation R of {view:24}", *texts)


@functools.cache
def open_cached(cache: Path, view: str, allow_return: bool) -> Tree:
    """Open the cache with a view, once per process."""
    return hr.open(cache, state=view, allow_return=allow_return)


def learned_reward(
    tree: Tree, alpha: float, allow_return: bool, seeds: int, fold: str
) -> NDArray[np.float64]:
    """Train `exact` with several seeds, and return float64[queries], the mean R on a fold."""
    objective = Objective(alpha, allow_stop=True, allow_return=allow_return)
    config = training_config("default", "exact")
    evaluated = tree.split(fold)
    rewards = []
    for seed in range(seeds):
        router = train(training_tree(tree), objective, config, seed)
        rewards.append(router.outcome(evaluated).reward(alpha))
    mean: NDArray[np.float64] = np.mean(rewards, axis=0)
    return mean


if __name__ == "__main__":
    main()
