"""One training for every alpha against a training for each: time, frontier, gap closed.

    OMP_NUM_THREADS=1 python benchmarks/sweep.py --cache caches/default
        [--fold validation] [--alphas 16 | --at 0.005 1.6] [--seeds 5] [--questions 100]
        [--state VIEW] [--allow-stop] [--allow-return] [--algos ppo ppo-sweep value] [--out DIR]
    OMP_NUM_THREADS=1 python benchmarks/sweep.py --cache caches/default --one-training [--seeds 3]

`ppo` and `exact` train the default preset once for each alpha of the automatic grid and each seed;
`ppo-sweep` and `exact-sweep` are one training for all alphas, as `sweep-alpha` makes it; `value` is
one fit for all alphas, with nothing random in it. With `--questions` each seed learns from so many
of the train and validation queries, drawn by it. Prints CPU seconds of all trainings, also as a
multiple of one training for one alpha; the share of the gap between the best fixed route of the
fold and the oracle that is closed, at every alpha where the gap exceeds 0.02; and the area under
each frontier. With `--out` policies are kept and found again, so that it can be run in pieces and
another fold needs no training. The test fold is for one last look.

`--one-training` prints only how many times the CPU seconds of one training of PPO for one alpha a
sweep of PPO takes. One training is the mean of three, at alphas in the lower, middle and upper
third of the grid; they and the sweep take turns, a turn for each seed.

The area: for each seed mean cost and mean quality at every alpha, and the cheapest fixed route,
which anybody can take; the hull of these points, because mixtures of policies are policies; its
area above quality 0, from the cost of that route to the oracle's cost at alpha 0; then the mean
over seeds.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measuring import measure_cpu, versions
from numpy.typing import NDArray
from scipy.integrate import trapezoid

import hierrouter
from hierrouter.declarations.flags import DEFAULT_VIEW
from hierrouter.evaluation.bounds import best_fixed_route, oracle
from hierrouter.evaluation.budget import Hulls
from hierrouter.evaluation.outcome import Outcome, fixed_routes
from hierrouter.learning.config import Objective, TrainConfig, sweep_config, training_config
from hierrouter.learning.router import Origin, TrainedRouter
from hierrouter.learning.sweep import Policy, TrainedSweep, alpha_grid, train_sweep
from hierrouter.learning.training import train
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.opening import LEARNED_FROM, training_tree
from hierrouter.replay.states import STATE_VIEWS
from hierrouter.runs.checkpoint import load_checkpoint, member_folder, save_checkpoint
from hierrouter_cache.tree import RouteTree

SWEEPS = {"ppo-sweep": "ppo", "exact-sweep": "exact", "value": "value"}  # algorithm by name
ALGOS = ("ppo", "exact", *SWEEPS)
LABELS = {
    "ppo": "PPO, one training an alpha",
    "exact": "exact, one training an alpha",
    "ppo-sweep": "PPO, one training for all",
    "exact-sweep": "exact, one training for all",
    "value": "one value model for all",
}
SECONDS = "cpu-seconds.txt"
WORTH = 0.02  # gaps up to this are not looked at
GOAL = 0.9


@dataclass
class Found:
    """What an algorithm reached.

    Attributes:
        outcomes: for each seed one outcome for each alpha.
        seconds: CPU seconds of all trainings.
        trainings: their number.
    """

    outcomes: list[list[Outcome]] = field(default_factory=list)
    seconds: float = 0.0
    trainings: int = 0


def trained(folder: Path, origin: Origin, start: Callable[[], Policy]) -> tuple[Policy, float]:
    """A policy of this origin, from `folder` where it lies there, and the seconds it took."""
    if (folder / SECONDS).exists():
        policy = load_checkpoint(folder)
        if policy.origin == origin:
            return policy, float((folder / SECONDS).read_text("utf-8"))
    policy, seconds = measure_cpu(start)
    save_checkpoint(policy, folder)
    (folder / SECONDS).write_text(f"{seconds:.3f}\n", "utf-8")
    return policy, seconds


class Contest:
    """All algorithms on one tree.

    Args:
        tree: all folds.
        fold: the queries on which policies are valued.
        run: folder of the policies.
        may: what routers may do; its alpha is not looked at.
        epochs: shortens all trainings; None does not.
        questions: learned from so many, drawn by each seed; None is all.
    """

    def __init__(
        self,
        tree: RouteTree,
        fold: RouteTree,
        alphas: Sequence[float],
        run: Path,
        may: Objective,
        epochs: int | None = None,
        questions: int | None = None,
    ) -> None:
        self.tree, self.fold, self.alphas, self.run = tree, fold, tuple(alphas), run
        self.may, self.epochs, self.questions = may, epochs, questions

    def add(self, found: Found, algo: str, seed: int) -> None:
        """Train everything that one seed of an algorithm needs, and value it."""
        if algo in SWEEPS:
            policies = self._sweep(found, algo, seed).routers
        else:
            policies = [self._router(found, algo, seed, alpha) for alpha in self.alphas]
        found.outcomes.append([policy.outcome(self.fold) for policy in policies])

    def _sweep(self, found: Found, algo: str, seed: int) -> TrainedSweep:
        epochs = None if algo == "value" else self.epochs
        config = sweep_config("default", SWEEPS[algo], epochs)
        policy = self._trained(
            found,
            member_folder(self.run / algo / f"{len(self.alphas)}-alphas", seed),
            config,
            seed,
            lambda tree: train_sweep(tree, self.alphas, self.may, config, seed),
        )
        assert isinstance(policy, TrainedSweep)
        return policy

    def _router(self, found: Found, algo: str, seed: int, alpha: float) -> TrainedRouter:
        config = training_config("default", algo, self.epochs)
        policy = self._trained(
            found,
            member_folder(self.run / algo, seed) / f"alpha-{alpha!r}",
            config,
            seed,
            lambda tree: train(tree, replace(self.may, alpha=alpha), config, seed),
        )
        assert isinstance(policy, TrainedRouter)
        return policy

    def _trained(
        self,
        found: Found,
        folder: Path,
        config: TrainConfig,
        seed: int,
        start: Callable[[RouteTree], Policy],
    ) -> Policy:
        tree = self._drawn(seed)
        policy, seconds = trained(folder, Origin.of(tree, config, seed), lambda: start(tree))
        found.seconds += seconds
        found.trainings += 1
        return policy

    def _drawn(self, seed: int) -> RouteTree:
        """What one seed learns from."""
        rows = np.flatnonzero(np.isin(self.tree.splits, LEARNED_FROM))
        if self.questions is not None:
            rows = np.random.default_rng(seed).permutation(rows)[: self.questions]
        return self.tree.select(np.sort(rows))


def show_time(found: dict[str, Found]) -> None:
    """CPU seconds, and the ratio to separate trainings."""
    print("time:")
    for algo, result in found.items():
        line = f"{LABELS[algo]:32s}{result.trainings:4d} trainings{result.seconds:10.1f} CPU-s"
        for other in ("ppo", "exact"):
            if other in found and other != algo:
                one = found[other].seconds / found[other].trainings
                line += f"{result.seconds / found[other].seconds:8.3f} x {other}"
                line += f"{result.seconds / one:8.2f} x one training of it"
        print(line)


def show_gaps(
    fold: RouteTree, alphas: Sequence[float], found: dict[str, Found], may: Objective
) -> None:
    """Share of the gap closed by alpha: mean and worst of the seeds."""
    print("share of the gap closed, mean and worst seed:")
    print(f"{'alpha':>8s}{'gap':>8s}" + "".join(f"{algo:>20s}" for algo in found))
    shares: dict[str, list[NDArray[np.float64]]] = {algo: [] for algo in found}
    for number, alpha in enumerate(alphas):
        fixed = best_fixed_route(fold, alpha, fold, may.ends_early).reward(alpha).mean()
        gap = oracle(fold, alpha, may.ends_early).reward(alpha).mean() - fixed
        line = f"{alpha:8g}{gap:8.4f}"
        for algo, result in found.items():
            reached = np.array([seed[number].reward(alpha).mean() for seed in result.outcomes])
            closed = (reached - fixed) / gap if gap > 0 else np.full(len(reached), np.nan)
            line += f"{closed.mean():12.3f}{closed.min():8.3f}"
            if gap > WORTH:
                shares[algo].append(closed)
        print(line if gap > WORTH else f"{line}   not counted")
    for algo, kept in shares.items():
        if kept:
            print(f"{LABELS[algo]:32s}{_summary(np.array(kept))}")


def _summary(closed: NDArray[np.float64]) -> str:
    """Of float64[alphas, seeds]."""
    means = closed.mean(axis=1)
    reached = f"{(means >= GOAL).sum()} of {len(means)} alphas at {GOAL:g} or more"
    lowest = f"lowest mean {means.min():.3f}, lowest {closed.min():.3f}"
    return f"mean of all {closed.mean():.3f}, {lowest}, {reached}"


def area_under(
    cost: NDArray[np.float64], quality: NDArray[np.float64], low: float, high: float
) -> float:
    """The area under the hull of some points, above quality 0, between two costs.

    Below the cheapest point quality is 0. Over another range it is another area: compare over the
    same one only.

    `cost`: float64[points]; `quality`: float64[points]; `low` is below `high`.
    """
    steps = Hulls.of(cost[None], quality[None])
    hull = np.append(steps.start, steps.after)
    begin = max(low, float(cost[hull[0]]))
    if begin >= high:
        return 0.0
    inside = cost[hull][(cost[hull] > begin) & (cost[hull] < high)]
    at = np.concatenate([[begin], inside, [high]])
    return float(trapezoid(np.interp(at, cost[hull], quality[hull]), at))


def show_areas(
    fold: RouteTree, alphas: Sequence[float], found: dict[str, Found], may: Objective
) -> None:
    """Area under each frontier, beside those of the fixed routes and the oracle."""
    routes = fixed_routes(fold, may.ends_early)
    bounds = [oracle(fold, alpha, may.ends_early) for alpha in alphas]
    cheapest = min(routes, key=lambda route: route.cost.mean())
    low, high = cheapest.cost.mean(), bounds[0].cost.mean()

    def area(policies: Sequence[Outcome]) -> float:
        cost = np.array([policy.cost.mean() for policy in policies])
        quality = np.array([policy.quality.mean() for policy in policies])
        return area_under(cost, quality, low, high)

    under = {
        algo: np.array([area([*points, cheapest]) for points in result.outcomes])
        for algo, result in found.items()
    }
    plain, best = area(routes), area([*bounds, cheapest])
    print(f"area under the frontier, cost {low:.3f} to {high:.3f}:")
    print(f"{'fixed routes':32s}{plain:8.4f}")
    print(f"{'oracle':32s}{best:8.4f}")
    for algo, areas in under.items():
        mean, apart = areas.mean(), areas.std(ddof=1) if len(areas) > 1 else 0.0
        line = f"{LABELS[algo]:32s}{mean:8.4f} +- {apart:.4f}{mean / best:9.4f} x oracle"
        line += f"{(mean - plain) / (best - plain):8.3f} of what fixed routes leave"
        for other in ("ppo", "exact"):
            if other in found and other != algo:
                line += f"{mean / under[other].mean():9.4f} x {other}"
        print(line)


def contest(args: argparse.Namespace, run: Path) -> None:
    """Train, value, print."""
    may = Objective(0.0, args.allow_stop, allow_return=args.allow_return)
    tree = OpenTree(cache=args.cache, state=args.state, allow_return=args.allow_return).run()
    grid = args.at or alpha_grid(tree, args.alphas, allow_stop=may.ends_early)
    fold, alphas = tree.split(args.fold), sorted(grid)
    if args.one_training:
        show_one_training(tree, alphas, may, args.seeds)
        return
    print(f"{args.fold} fold: {len(fold)} of {len(tree)} queries, {len(alphas)} alphas")
    entered = Contest(tree, fold, alphas, run, may, args.epochs, args.questions)
    found = {algo: Found() for algo in args.algos}
    for seed in range(args.seeds):
        for algo, result in found.items():
            entered.add(result, algo, seed)
            print(f"seed {seed}, {algo}: {result.seconds:.1f} CPU-s so far", flush=True)
    show_time(found)
    show_gaps(fold, alphas, found, may)
    show_areas(fold, alphas, found, may)


def show_one_training(tree: RouteTree, alphas: Sequence[float], may: Objective, seeds: int) -> None:
    """Print the CPU seconds of a sweep of PPO as a multiple of those of one training of PPO."""
    config = training_config("default", "ppo")
    for_all = sweep_config("default", "ppo")
    learned_from = training_tree(tree)
    thirds = [alphas[int((part + 0.5) / 3 * len(alphas))] for part in range(3)]
    ratios = []
    for seed in range(seeds):
        singles = []
        for alpha in thirds:
            objective = replace(may, alpha=alpha)
            _, seconds = measure_cpu(partial(train, learned_from, objective, config, seed))
            singles.append(seconds)
        swept = partial(train_sweep, learned_from, alphas, may, for_all, seed)
        _, seconds = measure_cpu(swept)
        ratios.append(seconds / np.mean(singles))
        print(
            f"seed {seed}: one training {np.mean(singles):.1f} CPU-s, a sweep of {len(alphas)} "
            f"alphas {seconds:.1f}: {ratios[-1]:.2f} x; three seeds {3 * ratios[-1]:.1f} x",
            flush=True,
        )
    print(f"mean {np.mean(ratios):.2f} x one training")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path("caches/default"))
    parser.add_argument("--fold", choices=("validation", "test"), default="validation")
    parser.add_argument("--alphas", type=int, default=16, help="of the automatic grid")
    parser.add_argument("--at", type=float, nargs="+", help="these alphas instead")
    parser.add_argument("--questions", type=int, help="learned from, drawn by each seed")
    parser.add_argument("--state", choices=STATE_VIEWS, default=DEFAULT_VIEW)
    parser.add_argument("--allow-stop", action="store_true")
    parser.add_argument("--allow-return", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--algos", nargs="+", choices=ALGOS, default=ALGOS)
    parser.add_argument("--epochs", type=int, help="shorten all trainings, to try it out")
    parser.add_argument("--one-training", action="store_true", help="only the ratio of times")
    parser.add_argument("--out", type=Path, help="keep policies here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{versions(hierrouter, torch, np)}, one thread")
    with tempfile.TemporaryDirectory() as scratch:
        contest(args, args.out or Path(scratch))


if __name__ == "__main__":
    main()
