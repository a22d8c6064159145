"""The example of a policy for pools that change runs and does what it is for."""

import numpy as np

from benchmarks.featured import train_featured
from hierrouter.evaluation.bounds import best_route_per_dataset, oracle
from hierrouter.learning.config import ExactConfig
from tests.hierrouter.learning.runs import ALPHA, OBJECTIVE
from tests.hierrouter.trees import planted_tree, sub_pool


def test_a_model_that_joins_after_the_training_is_routed_to_and_known_by_its_answers() -> None:
    whole = planted_tree(models=5, families=8, per_family=(30, 10, 15))
    before = sub_pool(whole, whole.models[1:])
    policy = train_featured(before, OBJECTIVE, ExactConfig(epochs=4, queries=8))
    test, known = whole.split("test"), whole.split("train")
    reached = policy.outcome(test, known).reward(ALPHA).mean()
    assert reached > oracle(before.split("test"), ALPHA).reward(ALPHA).mean() + 0.1
    assert reached > best_route_per_dataset(known, ALPHA, test).reward(ALPHA).mean() + 0.05
    turned = sub_pool(whole, whole.models[::-1])
    first = policy.probabilities(test, known)[:, 0]
    other = policy.probabilities(turned.split("test"), turned.split("train"))[:, 0]
    np.testing.assert_allclose(other, first[:, ::-1], atol=1e-5)
