"""Train LLMRouter's routers on a table; `peers.py` runs this script in LLMRouter's environment.

    python benchmarks/llmrouter_side.py FOLDER... --seeds 5

Each FOLDER holds `routing_train_data.jsonl`, `query_embeddings.pt` (a dictionary from an
`embedding_id` to its vector) and `asked.json`, a list of {"query", "embedding_id"}. Each router is
trained by LLMRouter's trainer and called by LLMRouter's `route_single`, with the hyperparameters of
LLMRouter's training configurations. Only the function that embeds a question is replaced, by a
look-up in the table. The script writes `choices.json`: {router: [[a model for each question] for
each seed]}, with one seed for routers that draw no random numbers. It imports nothing of this
project.
"""

import argparse
import contextlib
import importlib
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

MATRIX_FACTORISATION: dict[str, Any] = {
    "latent_dim": 128,
    "lr": 0.001,
    "epochs": 5,
    "noise_alpha": 0.0,
}
# Module, router, trainer, hyperparameters; LLMRouter's defaults hold for all others.
ROUTERS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "kNN": ("knnrouter", "KNNRouter", "KNNRouterTrainer", {"n_neighbors": 5}),
    "MLP": (
        "mlprouter",
        "MLPRouter",
        "MLPTrainer",
        {
            "hidden_layer_sizes": [128, 64],
            "activation": "relu",
            "lr": 0.001,
            "epochs": 100,
            "batch_size": 32,
            "alpha": 0.0001,
        },
    ),
    "MF": ("mfrouter", "MFRouter", "MFRouterTrainer", MATRIX_FACTORISATION),
    "MF, 20 epochs": (
        "mfrouter",
        "MFRouter",
        "MFRouterTrainer",
        {**MATRIX_FACTORISATION, "epochs": 20},
    ),
    "SVM": (
        "svmrouter",
        "SVMRouter",
        "SVMRouterTrainer",
        {"kernel": "rbf", "C": 1.0, "gamma": "scale"},
    ),
}
DETERMINISTIC = ("kNN", "SVM")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # importing it fetches prices otherwise
    for folder in args.folders:
        choices: dict[str, list[list[str]]] = {}
        for name in ROUTERS:
            seeds = 1 if name in DETERMINISTIC else args.seeds
            choices[name] = [choose(folder, name, seed) for seed in range(seeds)]
        (folder / "choices.json").write_text(json.dumps(choices))


def choose(folder: Path, name: str, seed: int) -> list[str]:
    """Train a router, and return its model for each question."""
    questions = json.loads((folder / "asked.json").read_text())
    vectors = torch.load(folder / "query_embeddings.pt")
    embedding = {row["query"]: vectors[row["embedding_id"]] for row in questions}
    module, router_class, trainer_class, hyperparameters = ROUTERS[name]
    package = importlib.import_module(f"llmrouter.models.{module}")
    router_module = importlib.import_module(f"llmrouter.models.{module}.router")
    vars(router_module)["get_longformer_embedding"] = embedding.__getitem__
    dim = len(next(iter(embedding.values())))
    config = configuration(folder, name, {**hyperparameters, **text_dim(name, dim)})
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    with contextlib.redirect_stdout(sys.stderr):
        router = getattr(package, router_class)(yaml_path=str(config))
        getattr(package, trainer_class)(router=router, device="cpu").train()
        return [str(router.route_single(dict(row))["model_name"]) for row in questions]


def text_dim(name: str, dim: int) -> dict[str, int]:
    """Return the length of an embedding, which only matrix factorisation needs."""
    return {"text_dim": dim} if name.startswith("MF") else {}


def configuration(folder: Path, name: str, hyperparameters: dict[str, Any]) -> Path:
    """Write the YAML file that a router is made from, and return its path."""
    model = str((folder / f"{name}.pkl").absolute())
    config = {
        "data_path": {
            "routing_data_train": str((folder / "routing_train_data.jsonl").absolute()),
            "query_embedding_data": str((folder / "query_embeddings.pt").absolute()),
        },
        "model_path": {"ini_model_path": "", "save_model_path": model, "load_model_path": model},
        "metric": {"weights": {"performance": 1, "cost": 0, "llm_judge": 0}},
        "hparam": hyperparameters,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


if __name__ == "__main__":
    main()
