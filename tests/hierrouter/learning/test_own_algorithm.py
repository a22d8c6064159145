"""Other algorithms of Tianshou, by a factory of the user: they learn, and no file names code."""

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tianshou.algorithm import A2C, DQN, DiscreteBCQ, DiscreteSAC, Reinforce
from tianshou.algorithm.modelfree.discrete_sac import DiscreteSACPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory

from hierrouter.evaluation.bounds import best_fixed_route, oracle
from hierrouter.learning.config import Objective, TianshouConfig, training_config
from hierrouter.learning.own_algorithm import own_algorithm, require_given
from hierrouter.learning.own_learner import AlgorithmParts, StateActor
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.training import train
from hierrouter.runs.checkpoint import load_checkpoint, read_tensors, save_checkpoint
from hierrouter.runs.folders import WEIGHTS
from hierrouter.runs.run import history_table
from hierrouter.runs.train import Train
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.trainings import ALPHA, OBJECTIVE, digest, small_tree
from tests.hierrouter.trees import planted_tree, showing_leaves

GLIMPSE = TianshouConfig(epochs=3, rollouts=64, minibatches=4, hidden=16)
Factory = Callable[[AlgorithmParts], Any]


def dqn(parts: AlgorithmParts) -> Any:
    policy = DiscreteQLearningPolicy(
        model=parts.actor, action_space=parts.action_space, eps_training=0.2
    )
    return DQN(policy=policy, optim=parts.optim, gamma=1.0, target_update_freq=100)


def actor_policy(parts: AlgorithmParts) -> DiscreteActorPolicy:
    return DiscreteActorPolicy(actor=parts.actor, action_space=parts.action_space)


def reinforce(parts: AlgorithmParts) -> Any:
    return Reinforce(policy=actor_policy(parts), gamma=1.0, optim=parts.optim)


def a2c(parts: AlgorithmParts) -> Any:
    return A2C(
        policy=actor_policy(parts),
        critic=parts.critic,
        optim=parts.optim,
        gamma=1.0,
        gae_lambda=1.0,
    )


def discrete_sac(parts: AlgorithmParts) -> Any:
    class ActionValues(StateActor):
        """The critic of discrete SAC returns no hidden state."""

        def forward(self, obs: Any) -> Any:
            return super().forward(obs)[0]

    first = parts.new_actor()
    second = parts.new_actor()
    policy = DiscreteSACPolicy(actor=parts.actor, action_space=parts.action_space)
    return DiscreteSAC(
        policy=policy,
        policy_optim=parts.optim,
        critic=ActionValues(first.router, first.states),
        critic_optim=AdamOptimizerFactory(lr=3e-3),
        critic2=ActionValues(second.router, second.states),
        critic2_optim=AdamOptimizerFactory(lr=3e-3),
        gamma=1.0,
        alpha=0.02,
    )


FACTORIES = {"dqn": dqn, "reinforce": reinforce, "a2c": a2c, "discrete sac": discrete_sac}


def trained_by(
    factory: Factory,
    tree: RouteTree,
    config: TianshouConfig = GLIMPSE,
    objective: Objective = OBJECTIVE,
    seed: int = 0,
) -> TrainedRouter:
    own = own_algorithm(factory)
    return train(tree, objective, own.applied_to(config), seed, own=own)


@pytest.mark.parametrize("name", FACTORIES)
def test_it_trains_our_network_reproducibly(name: str, tmp_path: Path) -> None:
    factory = FACTORIES[name]
    tree = small_tree()
    first = trained_by(factory, tree)
    assert digest(first, tmp_path / "first") == digest(
        trained_by(factory, tree), tmp_path / "again"
    )
    assert digest(trained_by(factory, tree, seed=1), tmp_path / "other") != digest(
        first, tmp_path / "first"
    )
    table = history_table(first)
    assert table.column("epoch").to_pylist() == [1, 2, 3]
    assert {"episode_reward", "episode_length"} < set(table.column_names)
    assert len(table.column_names) > 5  # the losses of the algorithm


@pytest.mark.parametrize("ending", ["allow_stop", "allow_return"])
def test_only_legal_actions_are_played(ending: str) -> None:
    tree = showing_leaves(small_tree())
    objective = Objective(ALPHA, **{ending: True})
    seen: list[Any] = []

    def watched(parts: AlgorithmParts) -> Any:
        algorithm = dqn(parts)
        update = algorithm._update_with_batch

        def keep(batch: Any) -> Any:
            seen.append((batch.obs.copy(), batch.act.copy()))
            return update(batch)

        algorithm._update_with_batch = keep
        return algorithm

    router = trained_by(watched, tree, objective=objective)
    legal = router.actions.legal()
    assert seen
    for obs, act in seen:
        assert legal[obs % router.actions.states, act].all()


def test_dqn_learns_what_ppo_learns() -> None:
    """More than half of what is above the best fixed route, on the validation fold."""
    tree = planted_tree()
    router = trained_by(dqn, tree, TianshouConfig(epochs=8, rollouts=512, patience=0))
    fold = tree.split("validation")
    reward = router.outcome(fold).reward(ALPHA).mean()
    fixed = best_fixed_route(fold, ALPHA, fold).reward(ALPHA).mean()
    best = oracle(fold, ALPHA).reward(ALPHA).mean()
    assert reward > fixed + 0.5 * (best - fixed)


def test_a_copy_of_the_network_shares_the_states() -> None:
    def copied(parts: AlgorithmParts) -> Any:
        twin: Any = copy.deepcopy(parts.actor)
        assert twin.states is parts.actor.states
        assert twin.router is not parts.actor.router
        return dqn(parts)

    trained_by(copied, small_tree())


def test_the_checkpoint_names_the_factory_and_needs_none(tmp_path: Path) -> None:
    tree = small_tree()
    trained = trained_by(dqn, tree)
    save_checkpoint(trained, tmp_path)
    described = json.loads(read_tensors(tmp_path / WEIGHTS)[1])
    path = f"{__name__}:dqn"
    assert (described["algo"], described["config"]["factory"]) == (path, path)
    # A module that would be imported is one that does not exist.
    strange = replace(trained.origin.config, factory="no.such.module:factory")
    save_checkpoint(replace(trained, origin=replace(trained.origin, config=strange)), tmp_path)
    before = set(sys.modules)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, TrainedRouter)
    assert loaded.origin.config.algo == "no.such.module:factory"
    np.testing.assert_array_equal(loaded.probabilities(tree), trained.probabilities(tree))
    assert {name for name in set(sys.modules) - before if name.startswith("no")} == set()
    with pytest.raises(InputError) as caught:
        require_given(loaded.origin.config, None)
    assert str(caught.value) == (
        "the router was trained with an algorithm of its user's own: no.such.module:factory; no "
        "file may name code to run, so give it again: `hierrouter train --algo "
        "no.such.module:factory`"
    )
    with pytest.raises(InputError, match="an algorithm of its user's own"):
        require_given(loaded.origin.config, own_algorithm(dqn))


@pytest.mark.parametrize("name", ["x:y\nz", "x", "x:" + "y" * 300, 7])
def test_a_checkpoint_with_another_name_is_damaged(name: Any, tmp_path: Path) -> None:
    from hierrouter.runs.checkpoint import write_tensors

    save_checkpoint(trained_by(dqn, small_tree()), tmp_path)
    tensors, text = read_tensors(tmp_path / WEIGHTS)
    described = json.loads(text)
    described["algo"] = name
    described["config"]["factory"] = name
    write_tensors(tmp_path / WEIGHTS, tensors, json.dumps(described))
    with pytest.raises(InputError, match="checkpoint is damaged"):
        load_checkpoint(tmp_path)


def test_another_source_is_another_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_of_a_test.py").write_text("def make(parts):\n    return None\n")
    first = own_algorithm("mine_of_a_test:make")
    (tmp_path / "mine_of_a_test.py").write_text("def make(parts):\n    return 1\n")
    second = own_algorithm("mine_of_a_test:make")
    assert (first.path, second.path) == ("mine_of_a_test:make",) * 2
    assert first.source != second.source


def nothing(parts: AlgorithmParts) -> None:
    return None


def offline(parts: AlgorithmParts) -> Any:
    return DiscreteBCQ.__new__(DiscreteBCQ)


def other_network(parts: AlgorithmParts) -> Any:
    return dqn(replace(parts, actor=parts.new_actor()))


def failing(parts: AlgorithmParts) -> Any:
    raise ValueError("no\nsuch thing")


def failing_later(parts: AlgorithmParts) -> Any:
    algorithm = dqn(parts)
    algorithm.update = lambda *_: 1 / 0
    return algorithm


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            nothing,
            "factory gave no algorithm that learns from rollouts: {path}: NoneType; return an",
        ),
        (offline, "factory gave no algorithm that learns from rollouts: {path}: DiscreteBCQ;"),
        (other_network, "the algorithm's policy does not use the router: {path}; make the policy"),
        (failing, "algorithm cannot be made: {path}: ValueError: no such thing; correct it, or"),
        (
            failing_later,
            "algorithm failed: {path}: ZeroDivisionError: division by zero; correct it",
        ),
    ],
)
def test_a_factory_that_is_wrong_is_named(factory: Factory, message: str) -> None:
    with pytest.raises(InputError) as caught:
        trained_by(factory, small_tree())
    path = f"{__name__}:{factory.__qualname__}"
    assert str(caught.value).startswith(message.format(path=path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factory", [dqn, reinforce], ids=["off-policy", "on-policy"])
def test_a_lost_network_is_neither_valued_nor_kept(factory: Factory) -> None:
    with pytest.raises(InputError, match=r"training diverged in epoch 1: .*; lower learning"):
        trained_by(factory, small_tree(), replace(GLIMPSE, learning_rate=1e38))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("mine.py:dqn", "a file is no import path: 'mine.py:dqn'; write mine:dqn"),
        ("mine:", "not an import path: 'mine:'; write --algo module:factory"),
        ("no_such_module:dqn", "algorithm cannot be imported: no_such_module:dqn: ModuleNotFound"),
        ("sys:no_such", "algorithm cannot be imported: sys:no_such: AttributeError: "),
        ("sys:path", "not a factory of an algorithm: sys:path, list; give a function that takes"),
        (print.__call__, "an algorithm without a name: algo="),
    ],
)
def test_what_is_no_factory_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        own_algorithm(given)
    assert str(caught.value).startswith(message)


def test_settings_and_refusals() -> None:
    job = Train(algo=dqn, epochs=5)
    config = job.config
    assert isinstance(config, TianshouConfig)
    assert (config.epochs, config.algo) == (5, f"{__name__}:dqn")
    assert Train(algo=f"{__name__}:dqn", epochs=5).config == config
    assert training_config("default", "a.b:c") == TianshouConfig(factory="a.b:c")
    for settings, message in (
        ({"preset": "paper"}, "unknown preset: paper; known for .*: default"),
        ({"budget": 1.0}, "a budget needs a router for every alpha"),
        ({"checkpoint_every": 2}, "checkpoint_every= with algo=.*: only the algorithm knows its"),
        ({"from_checkpoint": "x"}, "from_checkpoint= with algo=.*: only the algorithm knows its"),
    ):
        with pytest.raises(InputError, match=message):
            Train(algo=dqn, **settings).check()
