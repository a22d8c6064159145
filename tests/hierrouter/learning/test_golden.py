"""What a training computes stays what it was.

`python -m tests.hierrouter.learning.test_golden` writes the traces anew into tests/golden: only
where a change of what is learned is meant, and said in the commit. Values are compared to 1e-6 and
lengths of weights to 1e-4, not to the bit: processors with other vector units, and other releases
of torch, add up float32 in another order. With three instruction sets of one machine the weights
differed by 2e-6 at most, and no value did. Bits are compared on one machine, in `test_training`.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hierrouter.learning.config import ExactConfig, PPOConfig, TrainConfig
from hierrouter.learning.forward import NetworkRouter
from hierrouter.learning.training import train
from tests.conftest import SOURCES
from tests.hierrouter.learning.trainings import OBJECTIVE
from tests.hierrouter.trees import planted_tree

GOLDEN = SOURCES / "tests" / "golden"
SAMPLED = PPOConfig(
    epochs=8, rollouts=512, update_epochs=4, hidden=32, warmup_steps=8, entropy_coefficient=0.1
)
CONFIGS = {"ppo": SAMPLED, "exact": ExactConfig(epochs=8, queries=8, hidden=32)}


def trace(config: TrainConfig) -> dict[str, Any]:
    """Exact values on both folds at each evaluation, and the length of each weight at the end."""
    values: list[tuple[float, float]] = []
    tree = replace(planted_tree(per_family=(30, 15, 5), dim=32), encoder="planted")
    router = train(
        tree, OBJECTIVE, config, 0, lambda done, total, *both: values.append(both)
    ).router
    assert isinstance(router, NetworkRouter)
    return {
        "train": [train for train, _ in values],
        "validation": [validation for _, validation in values],
        "weights": {
            name: float(np.linalg.norm(value)) for name, value in router.network.weights.items()
        },
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_a_training_takes_the_course_it_took(name: str) -> None:
    kept = json.loads((GOLDEN / f"{name}_trace.json").read_text())
    found = trace(CONFIGS[name])
    assert found["train"] == pytest.approx(kept["train"], rel=1e-6)
    assert found["validation"] == pytest.approx(kept["validation"], rel=1e-6)
    assert found["weights"] == pytest.approx(kept["weights"], rel=1e-4, abs=1e-9)
    assert kept["train"][-1] > kept["train"][0] + 0.15  # something was learned on the way


def test_a_small_change_shows() -> None:
    kept = json.loads((GOLDEN / "ppo_trace.json").read_text())
    found = trace(replace(SAMPLED, gae_lambda=0.94))
    assert found["weights"] != pytest.approx(kept["weights"], rel=1e-4, abs=1e-9)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, config in CONFIGS.items():
        text = json.dumps(trace(config), sort_keys=True, indent=2)
        (GOLDEN / f"{name}_trace.json").write_text(f"{text}\n")
