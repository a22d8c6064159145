"""A training with the paper's preset, beside the numbers of the paper's appendix B.

They are read from the training itself and not from the settings: from Tianshou's algorithm, its
optimiser, its batches, and the loop around it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tianshou.algorithm import PPO

from hierrouter.engines.generator import prompt_text
from hierrouter.learning.config import Objective, PPOConfig
from hierrouter.learning.training import train
from hierrouter.pools.files import load_pool
from hierrouter.replay.env import QueryStream
from hierrouter.runs.saved_states import epoch_folders
from hierrouter.runs.train import Train
from hierrouter.runs.training import RunCallbacks, Training, load_or_train
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.ppo_by_hand import (
    ByHand,
    EnoughUpdates,
    GradientStep,
    Update,
    adam,
    length,
    record,
)
from tests.hierrouter.trees import planted_tree

JOB = Train(preset="paper")


@dataclass(frozen=True)
class PaperTraining:
    """The beginning of a training with the paper's preset.

    Attributes:
        fold: the queries it learns from.
        updates: the first ones.
    """

    fold: RouteTree
    updates: list[Update]

    @property
    def algorithm(self) -> PPO:
        return self.updates[0].algorithm

    @property
    def steps(self) -> list[GradientStep]:
        return [step for update in self.updates for step in update.steps]


@pytest.fixture(scope="module")
def tree() -> RouteTree:
    """Two hops, as in the paper; fewer queries to learn from than an iteration has episodes."""
    return planted_tree(families=4, per_family=(25, 5, 5), dim=8)


@pytest.fixture(scope="module")
def training(tree: RouteTree) -> PaperTraining:
    """Two updates, of more gradient steps than the warm-up has."""
    with record(at_most=2) as updates, pytest.raises(EnoughUpdates):
        train(tree, JOB.objective, JOB.config, JOB.seed)
    return PaperTraining(tree.split("train"), updates)


def only(values: set) -> object:
    [value] = values
    return value


def optimiser_setting(training: PaperTraining, name: str) -> object:
    return only({group[name] for group in training.algorithm.optim._optim.param_groups})


def episodes_per_update(training: PaperTraining) -> object:
    return only({len(update.episodes) for update in training.updates})


def transitions_per_minibatch(training: PaperTraining) -> object:
    return only({len(step.state) for step in training.steps})


def minibatches(training: PaperTraining) -> object:
    return only({len(update.state) for update in training.updates}) / transitions_per_minibatch(
        training
    )


def passes(training: PaperTraining) -> object:
    return only(
        {
            sum(len(step.state) for step in update.steps) / len(update.state)
            for update in training.updates
        }
    )


def steps_to_full_rate(training: PaperTraining) -> int:
    rates = [step.rate for step in training.steps]
    return 1 + int(np.argmax(rates))


def alpha(training: PaperTraining) -> float:
    """The reward that an episode loses for each unit of its cost."""
    fold = training.fold
    update = training.updates[0]
    query, node = np.divmod(update.state[update.terminated], fold.layout.inner)
    leaf = fold.layout.child(node, update.action[update.terminated])
    lost = fold.score[query, leaf] - update.reward[update.terminated]
    return float(np.median(lost / fold.cost[query, leaf]))


def seed(training: PaperTraining) -> object:
    """That of the generator which puts the queries in this order."""
    fold = training.fold
    update = training.updates[0]
    first = [update.state[episode][0] // fold.layout.inner for episode in update.episodes]

    def order(candidate: int) -> list[int]:
        return QueryStream(len(fold), np.random.default_rng(candidate)).draw(len(first)).tolist()

    return only({candidate for candidate in range(100) if order(candidate) == first})


def decisions(training: PaperTraining) -> object:
    return only(
        {episode.stop - episode.start for update in training.updates for episode in update.episodes}
    )


# Appendix B, in its words and in its order; alpha is from section 4.
APPENDIX: dict[str, tuple[float, Callable[[PaperTraining], object]]] = {
    "128 rollouts per iteration": (128, episodes_per_update),
    "16 mini-batches": (16, minibatches),
    "4 training epochs per iteration": (4, passes),
    "gamma": (0.99, lambda training: training.algorithm.gamma),
    "GAE-lambda": (0.95, lambda training: training.algorithm.gae_lambda),
    "clipping parameter": (0.2, lambda training: training.algorithm.eps_clip),
    "value loss coefficient": (0.5, lambda training: training.algorithm.vf_coef),
    "entropy coefficient": (0.01, lambda training: training.algorithm.ent_coef),
    "maximum gradient norm": (0.3, lambda training: training.algorithm.optim._max_grad_norm),
    "learning rate": (1e-4, lambda training: training.steps[-1].rate),
    "Adam with epsilon": (1e-4, lambda training: optimiser_setting(training, "eps")),
    "two decision layers": (2, decisions),
    "a warm-up phase of 100 steps": (100, steps_to_full_rate),
    "a fixed seed of 42": (42, seed),
    "cost penalty alpha": (0.005, alpha),
}


@pytest.mark.parametrize("words", APPENDIX)
def test_the_training_has_the_number_of_the_appendix(training: PaperTraining, words: str) -> None:
    number, read = APPENDIX[words]
    assert read(training) == pytest.approx(number, rel=1e-9)


def test_it_is_evaluated_every_3_and_kept_every_5_of_200_epochs_of_8_iterations(
    tree: RouteTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the loop alone: all updates but the first are left out, and the second evaluation ends it.

    Its folder has the checkpoints.
    """
    update = PPO.update
    updates: list[object] = []
    evaluations: list[tuple[int, int, int]] = []

    def count(algorithm: PPO, *buffer_and_sizes: object) -> object:
        updates.append(updates[0] if updates else update(algorithm, *buffer_and_sizes))
        return updates[0]

    def on_epoch(label: str, done: int, total: int, *values: float) -> None:
        evaluations.append((done, total, len(updates)))
        if len(evaluations) == 2:
            raise EnoughUpdates

    monkeypatch.setattr(PPO, "update", count)
    training = Training(JOB.objective, JOB.config, JOB.seed)
    with pytest.raises(EnoughUpdates):
        load_or_train(training, tree, tmp_path, RunCallbacks.of(on_epoch), JOB.byproducts)
    assert evaluations == [(3, 200, 3 * 8), (6, 200, 6 * 8)]
    assert list(epoch_folders(tmp_path)) == [5]


# Our reading of points that the appendix leaves open: the router reads context, stage and cost so
# far as they are, the reward is R as it is, layers start as torch makes them, and the learning rate
# stays after the warm-up. A batch size of 96, which it also names, does not fit 16 mini-batches of
# 128 episodes of two calls.
READING = PPOConfig(
    epochs=200,
    iterations=8,
    rollouts=128,
    minibatches=16,
    update_epochs=4,
    gamma=0.99,
    gae_lambda=0.95,
    clip=0.2,
    value_coefficient=0.5,
    entropy_coefficient=0.01,
    entropy_end=0.01,
    max_grad_norm=0.3,
    learning_rate=1e-4,
    adam_eps=1e-4,
    warmup_steps=100,
    decay=False,
    knows_route=False,
    scale_embedding=False,
    scale_cost=False,
    plain_start=True,
    embedding_noise=0.0,
    standardise_reward=False,
)


@pytest.fixture(scope="module")
def by_hand(training: PaperTraining) -> ByHand:
    return ByHand(training.fold, Objective(0.005), READING)


def test_its_router_knows_the_stage_and_not_the_route(training: PaperTraining) -> None:
    """The stage has a learned embedding."""
    stages = [step.after["stage.weight"] for step in training.steps]
    assert len(stages[0]) == training.fold.hops
    assert (stages[0] != stages[-1]).any(dim=1).all()


def test_its_router_reads_text_and_cost_as_they_are(
    training: PaperTraining, by_hand: ByHand
) -> None:
    fold = training.fold
    for update in training.updates:
        plain = fold.embedding_at(*np.divmod(update.state, fold.layout.inner))
        logs, value = by_hand.router(update.weights, update.state, plain)
        expected = logs.detach().numpy()[np.arange(len(update.action)), update.action]
        assert update.old_log == pytest.approx(expected, abs=1e-5)
        assert update.value == pytest.approx(value.detach().numpy(), abs=1e-5)


def test_its_router_starts_as_torch_makes_layers(training: PaperTraining) -> None:
    weights = training.updates[0].weights
    hidden = len(weights["second.bias"])
    for head in ("policy", "value"):
        bound = 1 / np.sqrt(hidden)
        assert 0.9 * bound < float(weights[f"{head}.weight"].abs().max()) <= bound
        assert weights[f"{head}.bias"].all()


def test_an_episode_is_paid_its_reward_at_the_end_and_nothing_before(
    training: PaperTraining,
) -> None:
    fold = training.fold
    for update in training.updates:
        query, node = np.divmod(update.state[update.terminated], fold.layout.inner)
        leaf = fold.layout.child(node, update.action[update.terminated])
        expected = fold.score[query, leaf] - 0.005 * fold.cost[query, leaf]
        assert update.reward[update.terminated] == pytest.approx(expected)
        assert not update.reward[~update.terminated].any()


def test_advantages_losses_and_steps_are_those_of_the_papers_numbers(
    training: PaperTraining, by_hand: ByHand
) -> None:
    rates = []
    for update in training.updates:
        expected = by_hand.advantages(update, update.value)
        assert update.advantage == pytest.approx(expected, abs=1e-5)
        for step in update.steps:
            policy, value, entropy = by_hand.terms(step, update.embeddings, step.before)
            loss = policy + 0.5 * value - 0.01 * entropy
            assert step.loss == pytest.approx(float(loss), abs=2e-5)
            factor = min(1.0, 0.3 / length(step.gradient))
            for name, gradient in step.gradient.items():
                assert torch.allclose(step.clipped[name], factor * gradient, rtol=1e-4, atol=1e-8)
            rates.append(step.rate)
    assert rates == [1e-4 * min(1.0, (number + 1) / 100) for number in range(len(rates))]
    for step, weights in zip(training.steps, adam(training.steps, 1e-4), strict=True):
        for name, expected in weights.items():
            assert torch.allclose(step.after[name].double(), expected, rtol=0, atol=5e-7), name


# --- the pool of the appendix

COSTS = {
    "Qwen/Qwen2.5-Coder-3B-Instruct": 0.003,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 0.002,
    "microsoft/Phi-3.5-mini-instruct": 0.003,
    "meta-llama/Llama-3.1-8B-Instruct": 0.008,
    "Qwen/Qwen2.5-14B-Instruct": 0.014,
}
LAYERS = (
    "Describe the problem in detail, then plan how you would solve it. Analyze the problem step by "
    "step, identifying key constraints and requirements.",
    "Using the previous analysis and plan, verify if the approach is correct and solve the problem "
    "methodically. Ensure completeness and correctness in your solution.",
)


def test_a_thousand_tokens_have_the_costs_of_the_appendix() -> None:
    """The first three may be called; see docs/decisions.md for the unit."""
    pool = load_pool("paper")
    prices = pool.prices()
    cost = {model.model: prices[model.name].rate.cost(600, 400) for model in pool.all_models}
    assert cost == pytest.approx(COSTS)
    assert [model.model for model in pool.models] == list(COSTS)[:3]


def test_each_layer_is_prompted_with_its_instruction() -> None:
    """After the question and what was answered so far."""
    pool = load_pool("paper")
    assert pool.hops == len(LAYERS)
    for level, instruction in enumerate(LAYERS):
        context = ["What is 2 + 2?", "A plan."][: level + 1]
        prompt = prompt_text(context[0], context[1:], pool.instruction(level))
        assert prompt == "\n\n".join([*context, instruction])
