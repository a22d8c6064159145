"""Several seeds of the default router on a collected testbed: mean and worst.

    python benchmarks/router_seeds.py [--cache caches/default] [--alpha 0.005] [--seeds 5]

Prints, on the test fold, R of the router against the best single model, the best fixed route, the
best route per dataset and the oracle, the share of the gap closed, quality on `riddle`, and the
paired interval of the smallest margin. The default preset was tuned with a look at the test fold of
the questions of seed 42: quote figures of another draw (`hierrouter collect --seed 7 --cache DIR`).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from hierrouter.evaluate.bootstrap import percentile_interval, resampled_means
from hierrouter.evaluate.bounds import best_route_per_dataset, gap_closed, oracle
from hierrouter.evaluate.outcome import fixed_routes, single_calls
from hierrouter.learn.config import preset
from hierrouter.learn.ppo import train
from hierrouter.trees import open_tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path("caches/default"))
    parser.add_argument("--alpha", type=float, default=0.005)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    alpha = asked.alpha
    tree = open_tree(asked.cache)
    fold = tree.split("test")
    others = [*single_calls(fold), *fixed_routes(fold)]
    rewards = np.array([other.reward(alpha) for other in others])
    fixed = max(fixed_routes(fold), key=lambda route: route.reward(alpha).mean())
    single = max(single_calls(fold), key=lambda call: call.quality.mean())
    bound = oracle(fold, alpha)
    informed = best_route_per_dataset(tree.split("train"), alpha, fold)
    print(f"test fold: {len(fold)} queries, alpha {alpha:g}")
    print(f"best single {single.name}: Q {single.quality.mean():.4f}")
    print(f"best fixed route {fixed.name}: R {fixed.reward(alpha).mean():.4f}")
    print(f"best route per dataset: R {informed.reward(alpha).mean():.4f}")
    print(f"oracle: R {bound.reward(alpha).mean():.4f}")
    riddles = np.flatnonzero(np.array(fold.datasets) == "riddle")
    rows = []
    for seed in range(asked.seeds):
        started = time.process_time()
        router = train(tree, alpha, preset("default"), seed).outcome(fold)
        spent = time.process_time() - started
        reward = router.reward(alpha)
        means = resampled_means(reward - rewards, 10_000, np.random.default_rng(0))
        low, _ = percentile_interval(means, 0.95)
        rows.append(
            (
                reward.mean(),
                gap_closed(reward.mean(), fixed.reward(alpha).mean(), bound.reward(alpha).mean()),
                router.quality.mean() / single.quality.mean(),
                router.quality[riddles].mean() if len(riddles) else float("nan"),
                low.min(),
                spent,
            )
        )
        print(row(f"seed {seed}", rows[-1]))
    table = np.array(rows, dtype=float)
    print(row("mean", table.mean(axis=0)))
    print(row("worst", table.min(axis=0)))


def row(name: str, values: object) -> str:
    reward, gap, factor, riddle, low, seconds = values  # type: ignore[misc]
    return (
        f"{name:<7} R {reward:.4f}  gap closed {gap:.3f}  Q x{factor:.2f} of best single  "
        f"riddle Q {riddle:.3f}  smallest margin's low end {low:+.3f}  {seconds:.1f} CPU-s"
    )


if __name__ == "__main__":
    main()
