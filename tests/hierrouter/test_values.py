"""What is handed around is not changed by one who holds it."""

from dataclasses import FrozenInstanceError, fields

import pytest

from hierrouter.actions import Actions
from hierrouter.evaluate.hulls import Hulls
from hierrouter.evaluate.outcome import Outcome
from hierrouter.evaluate.regret import Regret
from hierrouter.pricing import Price
from hierrouter.replay.rollouts import Rollouts
from hierrouter.scoring.scorer import Scorer
from hierrouter_cache.pricing import Rate
from hierrouter_cache.routes import Routes
from hierrouter_cache.tree import DirectCalls, RouteTree, StatePart

VALUES = [
    Actions, DirectCalls, Hulls, Outcome, Price, Rate, Regret, Rollouts, Routes, RouteTree, Scorer,
    StatePart,
]  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
def test_no_field_can_be_set(kind: type) -> None:
    for field in fields(kind):
        with pytest.raises(FrozenInstanceError):
            setattr(object.__new__(kind), field.name, None)
