"""Short trainings on the planted tree, as numbers to keep.

`python -m tests.hierrouter.learning.traces` writes them anew into tests/golden: only where a change
of what is learned is meant, and said in the commit.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hierrouter.learning.config import ExactConfig, PPOConfig, TrainConfig
from hierrouter.learning.loop import Watch
from hierrouter.learning.training import train
from tests.conftest import SOURCES
from tests.hierrouter.learning.runs import OBJECTIVE
from tests.hierrouter.trees import planted_tree

GOLDEN = SOURCES / "tests" / "golden"
CONFIGS: dict[str, TrainConfig] = {
    "ppo": PPOConfig(epochs=8, rollouts=512, update_epochs=4, hidden=32, warmup_steps=8),
    "exact": ExactConfig(epochs=8, queries=8, hidden=32),
}


def trace(config: TrainConfig) -> dict[str, Any]:
    """Exact values on both folds at each evaluation, and the length of each weight at the end."""
    values: list[tuple[float, float]] = []
    watch = Watch(on_epoch=lambda done, total, *both: values.append(both))
    tree = replace(planted_tree(per_family=(30, 15, 5), dim=32), encoder="planted")
    router = train(tree, OBJECTIVE, config, 0, watch).router
    return {
        "train": [train for train, _ in values],
        "validation": [validation for _, validation in values],
        "weights": {name: value.norm().item() for name, value in router.state_dict().items()},
    }


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, config in CONFIGS.items():
        text = json.dumps(trace(config), sort_keys=True, indent=2)
        (GOLDEN / f"{name}_trace.json").write_text(f"{text}\n")
