"""What is handed around is not changed by one who holds it."""

from dataclasses import FrozenInstanceError, fields

import pytest

from hierrouter.evaluation.budget import Hulls
from hierrouter.evaluation.outcome import Actions, Outcome
from hierrouter.pools.pool import Price
from hierrouter.questions.scoring import Scorer
from hierrouter.replay.env import Rollouts
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import DirectCalls, Rate, RouteTree, StatePart

VALUES = [
    Actions, DirectCalls, Hulls, Outcome, Price, Rate, Rollouts, Layout, RouteTree, Scorer,
    StatePart,
]  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
def test_no_field_can_be_set(kind: type) -> None:
    for field in fields(kind):
        with pytest.raises(FrozenInstanceError):
            setattr(object.__new__(kind), field.name, None)
