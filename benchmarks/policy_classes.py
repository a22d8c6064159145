"""Compare policy classes, and what do no harm ships of them, on tables of real answers.

    python benchmarks/policy_classes.py DATA [--pools zeroeval mmlu-pro ...] [--folds 5]
        [--alphas 8] [--algos "per data set" clusters best ...] [--questions N]

DATA is a folder of Parquet tables, one answer of one model a row; see POOLS for the tables, their
models, and the prices in USD per 1,000,000 tokens in and out. Each fold of the questions is held
out once; classes and constants learn from the others, or from N questions of them. Alphas are 0 and
quantiles of the values at which a policy may change. Rows of the first table: R of a class less R
of the best constant (one model for all questions, chosen on the folds that are learned from), in
the mean over all alphas, with its interval over questions, and at each alpha. "per data set" is the
constant of each data set. A class is shown whatever would be shipped, but `best` as it is shipped
by a sweep. The seconds are of a fit, all alphas together divided by their number.

The second table is R of `best` less that of the constant and of each other row, at each alpha, with
intervals that hold for all of them at once; then what `best` gains in the mean, as a share of what
the best of the other rows gains.
"""

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measuring import versions
from no_harm import alphas_of, held_out, mean_text

import hierrouter
import hierrouter as hr
from hierrouter.evaluation.bounds import best_fixed_route, best_route_per_dataset
from hierrouter.evaluation.intervals import difference_range, simultaneous_intervals
from hierrouter.evaluation.outcome import Outcome
from hierrouter.learning.baselines.registry import one_thread
from hierrouter.learning.config import (
    BestConfig,
    NetworkConfig,
    Objective,
    sweep_config,
    training_config,
)
from hierrouter.learning.cross_fit import OutOfFold, sweep_best
from hierrouter.learning.sweep import train_sweep
from hierrouter.learning.training import train
from hierrouter_cache.tree import RouteTree

# Prices in USD per 1,000,000 tokens in and out.
ZEROEVAL_PRICES = {
    "gemma-2-2b-it": (0.055, 0.166),
    "Qwen2-7B-Instruct": (0.10, 0.20),
    "Meta-Llama-3.1-8B-Instruct": (0.06, 0.12),
    "claude-3-haiku-20240307": (0.25, 1.25),
    "gpt-4o-mini-2024-07-18": (0.15, 0.60),
    "gpt-4o-2024-05-13": (5.0, 15.0),
}
MMLU_PRO_PRICES = {
    "Meta-Llama-3_1-70B-Instruct": (0.88, 0.88),
    "gemini-1.5-flash-002": (0.075, 0.30),
    "Meta-Llama-3_1-8B-Instruct": (0.18, 0.18),
    "Mistral-7B-Instruct-v0.2": (0.20, 0.20),
}
# Of these no price is known: by size.
GSM8K_PRICES = {
    "openai/6b_finetuning": (0.4, 0.4),
    "openai/6b_verification": (0.8, 0.8),
    "openai/175b_finetuning": (10.0, 10.0),
    "openai/175b_verification": (20.0, 20.0),
}
MBPP_PRICES = {
    "ChatGPT-MapCoder-3-5": (0.5, 1.5),
    "GPT4-Turbo-CoT": (10.0, 30.0),
    "QwenCoder480b-Direct": (0.3, 1.2),
}
MINT_PRICES = {
    "Mistral-7B-Instruct-v0.2": (0.2, 0.2),
    "Mixtral-8x7B-Instruct-v0.1": (0.6, 0.6),
    "Meta-Llama-3-8B-Instruct": (0.2, 0.2),
    "Meta-Llama-3-70B-Instruct": (0.9, 0.9),
    "gpt-3.5-turbo-0613": (1.5, 2.0),
    "claude-2": (8.0, 24.0),
}
MINT_TURNS = 5
# A turn counts as 1,000 tokens of these.
INTERCODE_PRICES = {
    "starchat": (0.0, 0.2),
    "vicuna": (0.0, 0.3),
    "chat-bison-001": (0.0, 0.5),
    "gpt-3.5": (0.0, 2.0),
    "gpt-4": (0.0, 30.0),
}
TURN_TOKENS = 1_000
CONSTANT = "constant"
PER_DATASET = "per data set"
PER_MILLION = 1_000_000
PER_TOKENS = 1_000


@dataclass(frozen=True)
class AnswerTable:
    """Columns of a table of single answers, one row an answer of a model to a question.

    Attributes:
        columns: by name; `query_id`, `dataset`, `question`, `model`, `tokens_in`, `tokens_out` and
            `score`, the verdict of the source.
        prices: of the models, see above.
    """

    columns: Mapping[str, pa.Array]
    prices: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Judged:
    """What a learner does on questions that it has not learned from.

    Attributes:
        policies: Q and C on every question, at each alpha.
        seconds: of CPU time of a fit, by alpha.
    """

    policies: OutOfFold
    seconds: float


def read_answers(
    folder: Path, names: Sequence[str], prices: Mapping[str, tuple[float, float]], score: str
) -> AnswerTable:
    """Read the answers of some models in one or more tables.

    Args:
        folder: of the tables.
        names: of the tables, without their ending.
        prices: of the models that are read.
        score: name of the column of the verdict.
    """
    columns = ["query_id", "dataset", "question", "model", "tokens_in", "tokens_out"]
    parts = [
        pq.read_table(
            folder / f"{name}.parquet",
            columns=[*columns, score],
            filters=[("model", "in", list(prices))],
        ).cast(_schema(score))
        for name in names
    ]
    table = pa.concat_tables(parts).rename_columns([*columns, "score"])
    return AnswerTable(dict(zip(table.column_names, table.columns, strict=True)), prices)


def _schema(score: str) -> pa.Schema:
    texts = [(name, pa.string()) for name in ("query_id", "dataset", "question", "model")]
    counts = [("tokens_in", pa.int64()), ("tokens_out", pa.int64())]
    return pa.schema([*texts, *counts, (score, pa.float64())])


def mint(folder: Path) -> AnswerTable:
    """Runs of actors with up to `MINT_TURNS` calls and without feedback, each as one answer."""
    filters = [
        ("model", "in", list(MINT_PRICES)),
        ("feedback", "==", "None"),
        ("k", "==", MINT_TURNS),
    ]
    table = pq.read_table(folder / "mint_runs_half.parquet", filters=filters)
    rows = [
        {
            "query_id": "",
            "dataset": row["dataset"],
            "question": row["question"],
            "model": row["model"],
            "tokens_in": row["prompt_tokens"] or 0,
            "tokens_out": row["completion_tokens"] or 0,
            "score": float(row["success"]),
        }
        for row in table.to_pylist()
    ]
    return _of_rows(rows, MINT_PRICES)


def intercode(folder: Path) -> AnswerTable:
    """Runs of models on SQL tasks, each as one answer: the best reward of its turns.

    The data sets are the degrees of difficulty that the source gives.
    """
    table = pq.read_table(folder / "intercode_sql_turns.parquet")
    runs: dict[tuple[str, str], dict[str, object]] = {}
    for row in table.to_pylist():
        expected_run = f"ic_sql_multiturn_{row['model']}_10_turns"
        if row["model"] not in INTERCODE_PRICES or row["run"] != expected_run:
            continue
        key = (row["task_id"], row["model"])
        run = runs.setdefault(
            key,
            {
                "query_id": row["task_id"],
                "dataset": row["hardness"],
                "question": row["question"],
                "model": row["model"],
                "tokens_in": 0,
                "tokens_out": 0,
                "score": 0.0,
            },
        )
        run["tokens_out"] = max(int(str(run["tokens_out"])), TURN_TOKENS * row["turn"])
        run["score"] = max(float(str(run["score"])), row["reward"])
    return _of_rows(list(runs.values()), INTERCODE_PRICES)


def _of_rows(
    rows: Sequence[Mapping[str, object]], prices: Mapping[str, tuple[float, float]]
) -> AnswerTable:
    table = pa.Table.from_pylist([dict(row) for row in rows])
    return AnswerTable(dict(zip(table.column_names, table.columns, strict=True)), prices)


def zeroeval(folder: Path) -> AnswerTable:
    """Three sets of questions and six models."""
    names = ("zeroeval_gsm", "zeroeval_math_l5", "zeroeval_crux")
    return read_answers(folder, names, ZEROEVAL_PRICES, "score")


def mmlu_pro(folder: Path) -> AnswerTable:
    """56 subjects and four models."""
    return read_answers(folder, ["depth1_mmlu_pro_1500x4"], MMLU_PRO_PRICES, "right")


def gsm8k(folder: Path) -> AnswerTable:
    """200 questions and four models."""
    return read_answers(folder, ["depth1_gsm8k_openai4_200"], GSM8K_PRICES, "score")


def mbpp(folder: Path) -> AnswerTable:
    """397 tasks and three systems."""
    return read_answers(folder, ["mapcoder_mbpp"], MBPP_PRICES, "score")


POOLS: dict[str, Callable[[Path], AnswerTable]] = {
    "zeroeval": zeroeval,
    "mmlu-pro": mmlu_pro,
    "gsm8k": gsm8k,
    "mbpp": mbpp,
    "mint": mint,
    "intercode": intercode,
}


def tree_of(answers: AnswerTable) -> RouteTree:
    """Import single answers into a cache, and open it.

    Questions that not all models answered are left out, and so are repeated rows. A name with a
    slash is that of a folder to an import, so it gets a dash.
    """
    rows: dict[tuple[str, str], dict[str, dict[str, object]]] = {}
    names = list(answers.columns)
    columns = [answers.columns[name].to_pylist() for name in names]
    for values in zip(*columns, strict=True):
        row = dict(zip(names, values, strict=True))
        # Ids are not the same in all runs, or name several questions: the text is the key.
        row["query_id"] = hashlib.sha256(row["question"].encode()).hexdigest()[:16]
        of_query = rows.setdefault((row["dataset"], row["query_id"]), {})
        of_query.setdefault(row["model"], row)
    complete = [
        {
            **row,
            "model": str(row["model"]).replace("/", "-"),
            "response": f"{row['model']} answers",
            "answer": "as judged",
        }
        for of_query in rows.values()
        if len(of_query) == len(answers.prices)
        for row in of_query.values()
    ]
    scale = PER_MILLION // PER_TOKENS
    prices = {
        name.replace("/", "-"): {"in": into / scale, "out": out / scale}
        for name, (into, out) in answers.prices.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answers.parquet"
        pq.write_table(pa.Table.from_pylist(complete), file)
        cache = Path(folder) / "cache"
        hr.import_(file, cache, hops=1, prices=prices)
        tree = hr.open(cache, scorer="given", encoder="hashed-ngrams", prices=prices)
        return tree.select(np.arange(len(tree)))


def outcomes(
    algo: str, learned: RouteTree, tested: RouteTree, alphas: Sequence[float]
) -> list[Outcome]:
    """What a learner does on held-out questions at each alpha."""
    if algo == CONSTANT:
        return [best_fixed_route(learned, alpha, tested) for alpha in alphas]
    if algo == PER_DATASET:
        both = replace(learned, splits=("train",) * len(learned))
        return [best_route_per_dataset(both, alpha, tested) for alpha in alphas]
    config = sweep_config("default", algo, keep_anyway=algo != BestConfig.learner)
    if isinstance(config, BestConfig):
        sweep = sweep_best(learned, alphas, Objective(0.0), config, 0)
        routers = [sweep.at(alpha) for alpha in alphas]
        kept = [alpha for alpha in alphas if sweep.at(alpha).constant is None]
        print(f"{algo}: {sweep.origin.config.algo}, shipped at {len(kept)} alphas", flush=True)
    elif isinstance(config, NetworkConfig):
        config = replace(training_config("default", algo), keep_anyway=True)
        routers = [train(learned, Objective(alpha), config, 0) for alpha in alphas]
    else:
        sweep = train_sweep(learned, alphas, Objective(0.0), config, 0)
        routers = [sweep.at(alpha) for alpha in alphas]
    return [router.outcome(tested) for router in routers]


def judge(tree: RouteTree, alphas: Sequence[float], algo: str, args: argparse.Namespace) -> Judged:
    """Let a learner decide on every question without having learned from it."""
    shape = (len(alphas), len(tree))
    quality = np.empty(shape)
    cost = np.empty(shape)
    seconds = 0.0
    for is_tested, learned, tested in held_out(tree, args.folds, args.questions):
        started = time.process_time()
        with one_thread():
            each = outcomes(algo, learned, tested, alphas)
        seconds += time.process_time() - started
        quality[:, is_tested] = [outcome.quality for outcome in each]
        cost[:, is_tested] = [outcome.cost for outcome in each]
    return Judged(OutOfFold(tuple(alphas), quality, cost), seconds / args.folds / len(alphas))


def print_shipped(tree: RouteTree, alphas: Sequence[float], judged: Mapping[str, Judged]) -> None:
    """Print R of what is shipped less that of everything else, with simultaneous intervals."""
    best = judged[BestConfig.learner].policies
    others = {name: each.policies for name, each in judged.items() if each.policies is not best}
    differences = np.concatenate([best.reward - other.reward for other in others.values()])
    ranges = [
        difference_range(alpha, cost, other_cost)
        for other in others.values()
        for alpha, cost, other_cost in zip(alphas, best.cost, other.cost, strict=True)
    ]
    low, high = simultaneous_intervals(
        differences, 10_000, 0.95, np.random.default_rng(0), ranges, tree.datasets
    )
    means = differences.mean(axis=1)
    print("best, as shipped, less")
    for row, name in enumerate(others):
        part = slice(row * len(alphas), (row + 1) * len(alphas))
        ends = zip(means[part], low[part], high[part], strict=True)
        intervals = "".join(f"{mean:9.4f} [{down:7.4f}, {up:7.4f}]" for mean, down, up in ends)
        print(f"{name:>24s}{intervals}")
    constant = judged[CONSTANT].policies.reward
    gains = {name: float((other.reward - constant).mean()) for name, other in others.items()}
    name, most = max(gains.items(), key=lambda entry: entry[1])
    gain = float((best.reward - constant).mean())
    print(
        f"below at {(high < 0).sum()} of {len(means)}, above at {(low > 0).sum()}; "
        f"mean gain {gain:.4f}, of {name} {most:.4f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--pools", nargs="+", choices=list(POOLS), default=list(POOLS))
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--alphas", type=int, default=8)
    parser.add_argument("--algos", nargs="+", default=[PER_DATASET, "clusters", "best"])
    parser.add_argument("--questions", type=int, help="learned from in each fold")
    args = parser.parse_args()
    print(versions(hierrouter, np))
    for pool in args.pools:
        tree = tree_of(POOLS[pool](args.data))
        alphas = alphas_of(tree, args.alphas)
        models = len(tree.models)
        sets = len(set(tree.datasets))
        print(f"\n{pool}: {len(tree):,} questions of {sets} data sets, {models} models")
        judged = {CONSTANT: judge(tree, alphas, CONSTANT, args)}
        header = f"{'less the best constant':>24s}{'mean over alphas':>28s}  fit s"
        print(header + "".join(f"{alpha:>9.4g}" for alpha in alphas))
        for algo in args.algos:
            judged[algo] = judge(tree, alphas, algo, args)
            gains = judged[algo].policies.reward - judged[CONSTANT].policies.reward
            each = "".join(f"{value:9.4f}" for value in gains.mean(axis=1))
            text = mean_text(gains.mean(axis=0))
            print(f"{algo:>24s}{text:>28s}{judged[algo].seconds:7.2f}{each}", flush=True)
        if BestConfig.learner in judged:
            print_shipped(tree, alphas, judged)


if __name__ == "__main__":
    main()
