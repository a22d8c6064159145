"""Tianshou's PPO learns on the replayed tree as it is."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tianshou
import torch
from tianshou.algorithm import PPO, algorithm_base
from torch import Tensor

from hierrouter.evaluation.outcome import Actions
from hierrouter.learning import loop
from hierrouter.learning.config import Objective, PPOConfig
from hierrouter.learning.loop import TrainingFold
from hierrouter.learning.network import Router, States, shape_for
from hierrouter.learning.ppo import PPOLearner
from hierrouter_cache.tree import Routes
from tests.hierrouter.trees import random_tree

PAYS = 0.05  # alpha on random trees


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with loop._reproducible(0):
        yield


def learner(actions: Actions) -> PPOLearner:
    config = PPOConfig(hidden=16, rollouts=20, minibatches=4, embedding_noise=0.0)
    tree = random_tree(actions.routes, 10, seed=0)
    fold = TrainingFold.of(tree, Objective(PAYS, actions.allow_stop))
    router = Router(shape_for(tree, actions, config))
    return PPOLearner(router, fold, PAYS, config, np.random.default_rng(0))


def test_the_algorithm_is_tianshous_and_nothing_is_compiled() -> None:
    loops = algorithm_base._gae, algorithm_base._nstep_return
    compiled = [loop.signatures for loop in loops]
    made = learner(Actions(Routes(3, 2)))
    assert type(made.algorithm) is PPO
    before = {name: value.clone() for name, value in made.router.state_dict().items()}
    made.epoch()
    assert not torch.equal(before["context.weight"], made.router.state_dict()["context.weight"])
    assert [loop.signatures for loop in loops] == compiled
    # What is bound in place of a method is that method's code, from Tianshou's file.
    bound = made.algorithm.compute_episodic_return
    assert bound.__code__ is PPO.compute_episodic_return.__code__
    assert Path(bound.__code__.co_filename).is_relative_to(Path(tianshou.__file__).parent)
    # All that it trains is the router's: nothing else need be kept to take a training up again.
    trained = {id(value) for value in made.algorithm.parameters()}
    assert trained == {id(value) for value in made.router.parameters()}


def test_the_critic_takes_what_the_actor_found_and_never_what_is_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[int] = []
    features = Router.features

    def counted(self: Router, states: States) -> Tensor:
        computed.append(len(states.node))
        return features(self, states)

    monkeypatch.setattr(Router, "features", counted)
    found = []
    for shares in (True, False):
        torch.manual_seed(0)
        np.random.seed(0)
        made = learner(Actions(Routes(3, 2)))
        trunk = made.algorithm.critic.trunk
        assert trunk is made.algorithm.policy.actor.trunk
        if not shares:
            trunk.hold = lambda *found: None
        computed.clear()
        for _ in range(3):
            made.epoch()
        found.append((dict(made.router.state_dict()), len(computed)))
    (once, fewer), (twice, more) = found
    for name, weight in twice.items():
        torch.testing.assert_close(once[name], weight, rtol=1e-4, atol=1e-6)
    assert more - fewer == 3 * made._gradients  # once a gradient step, and nowhere else
