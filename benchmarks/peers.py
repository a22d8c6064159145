"""Our kNN, MLP, factorisation and SVM against LLMRouter's, on one table.

    OMP_NUM_THREADS=1 python benchmarks/peers.py [--cache caches/default] [--venv DIR]
        [--alpha 0 0.005 1.8] [--seeds 5]

Writes the direct calls as LLMRouter's routing rows and trains its routers in an environment of
their own, see `llmrouter_side.py`. Both sides learn from the train
fold and are compared on the validation fold; the test fold is not read. LLMRouter's label is the
model with the highest "performance", so that column is R at the alpha asked; 0 is Q as
it is. Ours have one setting each, near LLMRouter's, and nothing is tuned. Where models tie,
LLMRouter is asked again with its rows turned round. Without --venv the environment (2 GB) is made
in a temporary folder and removed again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from measuring import versions
from numpy.typing import NDArray

import hierrouter
from hierrouter.evaluation.intervals import interval
from hierrouter.learning.baselines.arms import Arms, Baseline, single_models
from hierrouter.learning.baselines.classifiers import Factorisation, Mlp, NearestNeighbours, Svm
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Tree

TORCH, LLMROUTER = "torch==2.13.0", "llmrouter-lib==0.4.0"
SIDE = Path(__file__).with_name("llmrouter_side.py")
FACTORISATION = Factorisation(("best",), (150,), rank=128, weighed=False)
OURS: dict[str, Baseline] = {
    "kNN": NearestNeighbours(neighbours=(5,), weights=("uniform",)),
    # Its inputs have unit variance, LLMRouter's unit length: weights are smaller, so the penalty
    # is larger.
    "MLP": Mlp(steps=(800,), penalties=(10.0,)),
    "MF": FACTORISATION,
    "MF, 20 epochs": FACTORISATION,
    "SVM": Svm(kernels=("rbf",), slack=(1.0,)),
}

Choices = dict[str, NDArray[np.int64]]  # int64[seeds, queries] of each router


@dataclass(frozen=True)
class Table:
    """LLMRouter's rows, and what each arm gives.

    Attributes:
        rows: of every direct call.
        vectors: float32[queries, dim], of the questions.
        arm: place of a model among the arms, by its name.
        query_ids: of both folds.
    """

    rows: Sequence[dict[str, Any]]
    vectors: NDArray[np.float32]
    arm: dict[str, int]
    train: Arms
    validation: Arms
    query_ids: dict[str, list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path("caches/default"))
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.0, 0.005, 1.8])
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        table = table_of(OpenTree(cache=args.cache).run())
        print(f"{versions(hierrouter, sklearn, torch)}, {LLMROUTER}")
        print(f"{len(table.train)} train, {len(table.validation)} validation queries")
        places = {
            (alpha, turned): Path(folder) / f"{number}-{turned}"
            for number, alpha in enumerate(args.alpha)
            for turned in ((False, True) if ties(table, alpha) else (False,))
        }
        for (alpha, turned), place in places.items():
            prepare(table, alpha, turned, place)
        python = environment(args.venv or Path(folder) / "venv")
        run(python, SIDE, *places.values(), "--seeds", args.seeds)
        for (alpha, turned), place in places.items():
            theirs = chosen_by_them(table, place)
            lines = in_turned_rows if turned else beside_ours
            print("", *lines(table, alpha, args.seeds, theirs), sep="\n")


def table_of(tree: Tree) -> Table:
    """The direct calls of a tree."""
    arms, splits = single_models(tree), np.array(tree.splits)
    fold = {name: np.flatnonzero(splits == name) for name in ("train", "validation")}
    return Table(
        rows=[row for row in routing_rows(tree) if row["model_name"] in arms.names],
        vectors=arms.seen.question,
        arm={name: place for place, name in enumerate(arms.names)},
        train=arms.select(fold["train"]),
        validation=arms.select(fold["validation"]),
        query_ids={name: [tree.query_ids[row] for row in found] for name, found in fold.items()},
    )


def routing_rows(tree: Tree) -> Iterator[dict[str, Any]]:
    """The direct calls as LLMRouter's rows, query after query, the cheapest call first.

    Its trainers label a query with the first of its best rows: a tie is so the cheapest model's.
    """
    number = {name: place for place, name in enumerate(tree.query_ids)}
    calls = [call for call in tree.to_arrow().to_pylist() if call["direct"]]
    for call in sorted(calls, key=lambda call: (number[call["query"]], call["cost"])):
        place = number[call["query"]]
        texts = tree.texts[place]
        yield {
            "task_name": call["dataset"],
            "query": texts.question,
            "ground_truth": texts.references[0] if texts.references else "",
            "metric": tree.scorer,
            "choices": None,
            "task_id": call["query"],
            "model_name": call["model"],
            "response": call["response"],
            "token_num": call["tokens_in"] + call["tokens_out"],
            "input_tokens": call["tokens_in"],
            "output_tokens": call["tokens_out"],
            "response_time": None,
            "api_key_used": "",
            "performance": call["quality"],
            "embedding_id": place,
            "user_id": None,
            "fig_id": None,
        }


def ties(table: Table, alpha: float) -> float:
    """Share of the train queries on which several models have the highest R."""
    reward = table.train.reward(alpha)
    return float(((reward == reward.max(axis=1, keepdims=True)).sum(axis=1) > 1).mean())


def prepare(table: Table, alpha: float, turned: bool, folder: Path) -> None:
    """Write what `llmrouter_side.py` reads; `turned` puts the dearest model's row first."""
    folder.mkdir()
    vectors = {number: torch.from_numpy(row) for number, row in enumerate(table.vectors)}
    torch.save(vectors, folder / "query_embeddings.pt")
    reward = dict(zip(table.query_ids["train"], table.train.reward(alpha), strict=True))
    train = [
        {**row, "performance": reward[row["task_id"]][table.arm[row["model_name"]]]}
        for row in table.rows
        if row["task_id"] in reward
    ]
    lines = [json.dumps(row) + "\n" for row in (reversed(train) if turned else train)]
    (folder / "routing_train_data.jsonl").write_text("".join(lines))
    rows = {row["task_id"]: row for row in table.rows}
    asked = [
        {key: rows[name][key] for key in ("query", "embedding_id")}
        for name in table.query_ids["validation"]
    ]
    (folder / "asked.json").write_text(json.dumps(asked))


def environment(folder: Path) -> Path:
    """The Python of a virtual environment that has LLMRouter; made where it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        run(python, "-m", "pip", "install", "--quiet", TORCH)
        run(python, "-m", "pip", "install", "--quiet", TORCH, LLMROUTER)
    return python


def chosen_by_them(table: Table, folder: Path) -> Choices:
    """What LLMRouter's routers took."""
    choices = json.loads((folder / "choices.json").read_text())
    return {
        name: np.array([[table.arm[model] for model in seed] for seed in seeds])
        for name, seeds in choices.items()
    }


def chosen_by_us(table: Table, alpha: float, seeds: int, baseline: Baseline) -> NDArray[np.int64]:
    """int64[seeds, queries]: what ours takes."""
    nothing = table.train.select(np.zeros(0, np.int64))
    fitted = [
        baseline.fit(table.train, nothing, alpha, np.random.default_rng(seed))
        for seed in range(seeds)
    ]
    return np.stack([one.play(table.validation.seen).answer.argmax(axis=1) for one in fitted])


def beside_ours(table: Table, alpha: float, seeds: int, choices: Choices) -> Iterator[str]:
    """Mean R on the validation fold of both sides, and the paired difference."""
    yield f"alpha {alpha:g}: R on the validation fold, mean ± deviation of {seeds} seeds"
    yield (
        f"{'':<14} {'LLMRouter':<16} {'ours':<16} {'ours - LLMRouter':<27} same model"
        "  C: LLMRouter  ours"
    )
    for name, baseline in OURS.items():
        chosen = chosen_by_us(table, alpha, seeds, baseline)
        theirs, ours = (
            taken(table.validation.reward(alpha), one) for one in (choices[name], chosen)
        )
        first, second = ours.mean(axis=0), theirs.mean(axis=0)
        low, high = interval(first - second, rng=np.random.default_rng(0))
        difference = f"{(first - second).mean():+.4f} [{low:+.4f}, {high:+.4f}]"
        same = (choices[name][:, None] == chosen[None]).mean()
        cost = [taken(table.validation.cost, one).mean() for one in (choices[name], chosen)]
        yield (
            f"{name:<14} {spread(theirs):<16} {spread(ours):<16} {difference:<27} {same:<10.3f}"
            f"  {cost[0]:<12.4f}  {cost[1]:.4f}"
        )


def in_turned_rows(table: Table, alpha: float, seeds: int, choices: Choices) -> Iterator[str]:
    """R and C of LLMRouter's routers where another model's row comes first."""
    share = ties(table, alpha)
    yield f"alpha {alpha:g}, LLMRouter with its rows turned round (ties on {share:.3f} of train)"
    for name, chosen in choices.items():
        reward, cost = (
            taken(values, chosen)
            for values in (table.validation.reward(alpha), table.validation.cost)
        )
        yield f"{name:<14} R {spread(reward):<16} C {spread(cost)}"


def taken(values: NDArray[np.float64], chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64[seeds, queries]: float64[queries, arms] at the arms taken."""
    return values[np.arange(len(values)), chosen]


def spread(values: NDArray[np.float64]) -> str:
    """Mean over all, and standard deviation of the seeds' means."""
    of_seed = values.mean(axis=1)
    deviation = of_seed.std(ddof=1) if len(of_seed) > 1 else 0.0
    return f"{of_seed.mean():.4f} ± {deviation:.4f}"


def run(*command: object) -> None:
    """Run a command; what it printed is shown only where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words[:4])} ...\n{done.stdout[-3000:]}")


if __name__ == "__main__":
    main()
