"""What a training computes stays what it was.

A refactor that changes a trace changes what is learned: it must say so, and write the trace anew
(`traces`). Values are compared to 1e-6 and lengths of weights to 1e-4, not to the bit: processors
with other vector units, and other releases of torch, add up float32 in another order. With three
instruction sets of one machine the weights differed by 2e-6 at most, and no value did. Bits are
compared between runs on one machine, in `test_training`.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hierrouter.learning.config import PPOConfig
from tests.hierrouter.learning.traces import CONFIGS, GOLDEN, trace


@pytest.mark.parametrize("name", CONFIGS)
def test_a_training_takes_the_course_it_took(name: str) -> None:
    kept = json.loads((GOLDEN / f"{name}_trace.json").read_text())
    found = trace(CONFIGS[name])
    assert found["train"] == pytest.approx(kept["train"], rel=1e-6)
    assert found["validation"] == pytest.approx(kept["validation"], rel=1e-6)
    assert found["weights"] == pytest.approx(kept["weights"], rel=1e-4, abs=1e-9)
    assert kept["train"][-1] > kept["train"][0] + 0.2  # something was learned on the way


def test_a_small_change_shows() -> None:
    config = CONFIGS["ppo"]
    assert isinstance(config, PPOConfig)
    kept = json.loads((GOLDEN / "ppo_trace.json").read_text())
    found = trace(replace(config, gae_lambda=0.94))
    assert found["weights"] != pytest.approx(kept["weights"], rel=1e-4, abs=1e-9)
