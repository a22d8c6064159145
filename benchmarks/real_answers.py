"""Route questions of three public data sets among six models, by their published answers.

    python benchmarks/real_answers.py [--data FOLDER] [--algos best] [--folds 10] [--alphas 12]
        [--keep-anyway]

The answers are those that ZeroEval has published of GSM8K, MATH (level 5) and CRUXEval. They are
read from `zeroeval_*.parquet` in --data; without it the published files of one commit are fetched
once, and kept in the folder of downloads. Q is `accuracy`, C is in USD. The pool was fixed before
any of its answers was looked at: one model of each of six makers, from cheap to dear, of which all
three sets have answers. Prices are list prices of 2024, tokens are those of GPT-2.

A route is one answer, or two models one after the other, each asked the question alone: the router
reads the first answer and may ask another model then. Each of --folds parts of the questions is
routed by routers that have learned from the others, one for each alpha; with --keep-anyway also
where they have not shown a gain over the best constant choice. The table compares each
with the mixture of models at the same cost: a coin that knows nothing of the question but is biased
for the best, chosen with the answers known. Its Q is that of the upper hull of the models. The
difference is taken question by question, with what costs differ valued at the slope of the hull;
its intervals hold for all alphas at once.
"""

import argparse
import json
import platform
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measuring import versions
from no_harm import held_out
from numpy.typing import NDArray

import hierrouter as hr
from hierrouter.evaluation.budget import Hulls
from hierrouter.evaluation.intervals import difference_range, simultaneous_intervals
from hierrouter.evaluation.outcome import single_calls
from hierrouter.learning.config import BestConfig, Objective, TrainConfig, training_config
from hierrouter.learning.cross_fit import sweep_best, sweep_with_fallback
from hierrouter.learning.sweep import TrainedSweep, train_sweep
from hierrouter.replay.tree import Tree
from hierrouter_cache.tree import RouteTree

Floats = NDArray[np.float64]

# USD for a million tokens, in and out.
POOL = {
    "gemini-1.5-flash": (0.075, 0.30),
    "deepseek-v2.5-0908": (0.14, 0.28),
    "gpt-3.5-turbo-0125": (0.50, 1.50),
    "Meta-Llama-3.1-70B-Instruct": (0.88, 0.88),
    "Mistral-Large-2": (2.00, 6.00),
    "claude-3-5-sonnet-20240620": (3.00, 15.00),
}
COMMIT = "8c1485edf12c6efb5f69135a562927c5ad484059"
ANSWERS = "https://raw.githubusercontent.com/WildEval/ZeroEval/{commit}/result_dirs/{name}.json"
TOKENIZER = "openai-community/gpt2"
# By data set: the file in --data, and the folder of the published files.
SETS = {
    "gsm8k": ("zeroeval_gsm.parquet", "gsm"),
    "math": ("zeroeval_math_l5.parquet", "math-l5"),
    "crux": ("zeroeval_crux.parquet", "crux"),
}
COLUMNS = (
    *("query_id", "dataset", "question", "answer", "model"),
    *("response", "tokens_in", "tokens_out"),
)


def rows_of_tables(folder: Path, pool: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the answers of a pool in a folder's tables."""
    for dataset, (file, _) in SETS.items():
        table = pq.read_table(folder / file, filters=[("model", "in", list(pool))])
        for row in table.to_pylist():
            answered = {**row, "answer": row["final_answer"], "dataset": dataset}
            yield {name: answered[name] for name in COLUMNS}


def rows_of_published_files(folder: Path, pool: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the answers of a pool in the published files, which are fetched into a folder."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)

    def length(text: str) -> int:
        return len(tokenizer(text)["input_ids"])

    for dataset, (_, published) in SETS.items():
        for model in pool:
            file = folder / f"{published}-{model}.json"
            if not file.is_file():
                name = f"{published}/{model}"
                with urlopen(ANSWERS.format(commit=COMMIT, name=name)) as reply:
                    file.write_bytes(reply.read())
            for row in json.loads(file.read_bytes()):
                [response] = row["output"]
                yield {
                    "query_id": str(row["id"]),
                    "dataset": dataset,
                    "question": row.get("question") or row["problem"],
                    "answer": row["answer"].removeprefix("# "),
                    "model": model,
                    "response": response,
                    "tokens_in": length(row["chat_history"][0]),
                    "tokens_out": length(response),
                }


def tree_of(rows: Iterator[dict[str, Any]], pool: dict[str, tuple[float, float]]) -> Tree:
    """Make a cache of answers, and open it."""
    with tempfile.TemporaryDirectory(prefix="real-answers-") as folder:
        file = Path(folder) / "answers.parquet"
        pq.write_table(pa.Table.from_pylist(list(rows)), file)
        prices = {
            model: {"in": rate_in / 1e6, "out": rate_out / 1e6}
            for model, (rate_in, rate_out) in pool.items()
        }
        cache = Path(folder) / "cache"
        imported = hr.import_(file, cache, hops=2, prices=prices)
        for note in imported.notes:
            print(f"note: {note}")
        return hr.open(cache, scorer="accuracy", encoder="hashed-ngrams", prices=prices)


def hull_of(tree: RouteTree) -> Hulls:
    """The upper hull of the models, each at its mean cost and Q."""
    calls = single_calls(tree)
    costs = np.array([[call.cost.mean() for call in calls]])
    return Hulls.of(costs, np.array([[call.quality.mean() for call in calls]]))


def grid_of(tree: RouteTree, count: int) -> list[float]:
    """Alphas, evenly on a log scale, around those at which another model becomes the best."""
    slopes = hull_of(tree).slope
    grid: list[float] = np.geomspace(slopes.min() / 4, slopes.max() * 4, count).tolist()
    return grid


def swept(tree: RouteTree, alphas: Sequence[float], config: TrainConfig) -> TrainedSweep:
    """Train routers for all alphas, each shipped as do no harm decides."""
    objective = Objective(0.0, allow_stop=True)
    if isinstance(config, BestConfig):
        return sweep_best(tree, alphas, objective, config.for_sweep, 0)
    return sweep_with_fallback(train_sweep(tree, alphas, objective, config, 0), tree)


@dataclass(frozen=True)
class Routed:
    """What became of each question at each alpha, cross-fitted: float64[alphas, questions].

    Attributes:
        quality: Q.
        cost: C in USD.
        calls: number of calls.
    """

    quality: Floats
    cost: Floats
    calls: Floats


def route_all(tree: RouteTree, alphas: Sequence[float], config: TrainConfig, parts: int) -> Routed:
    """Route each part of the questions by routers that have learned from the others."""
    shape = (len(alphas), len(tree))
    routed = Routed(np.empty(shape), np.empty(shape), np.empty(shape))
    depth = tree.layout.depth()
    for part, (is_tested, learned, fold) in enumerate(held_out(tree, parts), 1):
        sweep = swept(learned, alphas, config)
        for number, router in enumerate(map(sweep.at, alphas)):
            outcome = router.outcome(fold)
            routed.quality[number, is_tested] = outcome.quality
            routed.cost[number, is_tested] = outcome.cost
            endings = router.endings(fold)[:, : len(depth)]
            routed.calls[number, is_tested] = endings @ depth
        constants = sum(constant is not None for constant in sweep.constants)
        print(
            f"part {part} of {parts}: {sweep.origin.config.algo}, "
            f"a constant at {constants} of {len(alphas)} alphas",
            flush=True,
        )
    return routed


@dataclass(frozen=True)
class Mixture:
    """The mixture of models that has the highest Q at a mean cost.

    Attributes:
        quality: float64[questions], Q expected of it.
        cost: float64[questions], C expected of it.
        slope: what Q rises by per USD there.
    """

    quality: Floats
    cost: Floats
    slope: float

    @classmethod
    def of(cls, tree: RouteTree, cost: float) -> "Mixture":
        """Find the mixture at a cost; below the cheapest model it is that model."""
        calls = single_calls(tree)
        means = np.array([[call.cost.mean(), call.quality.mean()] for call in calls])
        hulls = hull_of(tree)
        points = [*hulls.start.tolist(), *hulls.after.tolist()]
        costs = means[points, 0]
        above = int(np.clip(np.searchsorted(costs, cost), 1, len(points) - 1))
        low, high = points[above - 1], points[above]
        share = float(np.clip((cost - means[low, 0]) / (means[high, 0] - means[low, 0]), 0, 1))
        rise = (means[high, 1] - means[low, 1]) / (means[high, 0] - means[low, 0])
        return cls(
            quality=(1 - share) * calls[low].quality + share * calls[high].quality,
            cost=(1 - share) * calls[low].cost + share * calls[high].cost,
            slope=float(rise),
        )


def print_models(tree: RouteTree) -> None:
    """Print Q and C of each model."""
    print(f"\n{'model':30s}{'Q':>8s}{'USD per 1,000':>15s}")
    for call in single_calls(tree):
        print(f"{call.name:30s}{call.quality.mean():8.4f}{1000 * call.cost.mean():15.3f}")


def print_table(tree: RouteTree, alphas: Sequence[float], algo: str, routed: Routed) -> None:
    """Print a row for each alpha."""
    mixtures = [Mixture.of(tree, float(cost.mean())) for cost in routed.cost]
    differences = np.array(
        [
            quality - mixture.quality - mixture.slope * (cost - mixture.cost)
            for quality, cost, mixture in zip(routed.quality, routed.cost, mixtures, strict=True)
        ]
    )
    ranges = [
        difference_range(mixture.slope, cost, mixture.cost)
        for cost, mixture in zip(routed.cost, mixtures, strict=True)
    ]
    low, high = simultaneous_intervals(
        differences, 10_000, 0.95, np.random.default_rng(0), ranges, tree.datasets
    )
    print(
        f"\n{algo}\n{'USD a right answer':>20s}{'Q':>8s}{'USD per 1,000':>15s}{'calls':>7s}"
        f"{'mixture':>9s}{'difference at equal cost':>34s}"
    )
    for row, alpha in enumerate(alphas):
        price = f"{1 / alpha:.3g}" if alpha else "any"
        interval = f"{differences[row].mean():+.4f} [{low[row]:+.4f}, {high[row]:+.4f}]"
        print(
            f"{price:>20s}{routed.quality[row].mean():8.4f}{1000 * routed.cost[row].mean():15.3f}"
            f"{routed.calls[row].mean():7.2f}{mixtures[row].quality.mean():9.4f}{interval:>34s}"
        )
    better = int((low > 0).sum())
    worse = int((high < 0).sum())
    print(f"\nbetter than the mixture at {better} of {len(alphas)} alphas, worse at {worse}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--downloads", type=Path, default=Path("downloads"))
    parser.add_argument("--algos", nargs="+", default=["best"])
    parser.add_argument("--keep-anyway", action="store_true")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--alphas", type=int, default=12)
    args = parser.parse_args()
    print(versions(hr, np), platform.machine())
    if args.data:
        rows = rows_of_tables(args.data, list(POOL))
    else:
        args.downloads.mkdir(exist_ok=True)
        rows = rows_of_published_files(args.downloads, list(POOL))
    tree = tree_of(rows, POOL)
    alphas = grid_of(tree, args.alphas)
    print_models(tree)
    for algo in args.algos:
        config = replace(training_config("default", algo), keep_anyway=args.keep_anyway)
        print_table(tree, alphas, algo, route_all(tree, alphas, config, args.folds))


if __name__ == "__main__":
    main()
