"""The numbers of a training run.

Out: `PPOConfig` and its presets. Not covered: alpha and the seed, which belong to one run.
"""

from __future__ import annotations

from dataclasses import dataclass

from hierrouter_cache.errors import InputError

PAPER_ALPHA = 0.005
PAPER_SEED = 42
PAPER_SCORER = "token_f1"  # Q, appendix C


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO and of the router it trains (paper appendix B).

    An iteration collects `rollouts` episodes and updates on them; an epoch is `iterations` of
    these. A learning-rate step is one mini-batch.

    Attributes:
        preset: name of the preset these numbers come from.
        epochs: length of the training.
        iterations: iterations an epoch.
        rollouts: episodes an iteration.
        minibatches: parts into which an iteration's `rollouts * L` transitions are cut.
        update_epochs: passes over an iteration's transitions.
        gamma: discount a hop.
        gae_lambda: lambda of generalised advantage estimation.
        clip: the probability ratio is clipped to 1 +- `clip`.
        value_coefficient: weight of the value loss.
        entropy_coefficient: weight of the entropy bonus.
        max_grad_norm: gradients are cut to this length.
        learning_rate: Adam's, after the warm-up.
        adam_eps: Adam's epsilon.
        warmup_steps: gradient steps over which the learning rate rises from 0.
        decay: let the learning rate fall to 0 at the end, in a straight line.
        evaluate_every: epochs between exact evaluations, of which the best is kept.
        checkpoint_every: epochs between calls of `on_checkpoint`.
        hidden: width of both layers of the router.
        stage_dim: length of the learned stage embedding.
        scale_embedding: multiply embeddings, which have length 1, by sqrt(dim), so that their
            components weigh as much as those of the other inputs.
        embedding_noise: length of the random vector added to the embedding of each state visited,
            drawn anew in each iteration of the training; keeps a router from learning single
            questions by heart.
        standardise_reward: take from each reward the mean over all routes of its query, and
            divide by the standard deviation of the train fold. The best policy stays the best;
            what the queries differ in and routes do not is no noise any more.
    """

    preset: str = "default"
    epochs: int = 24
    iterations: int = 1
    rollouts: int = 1024
    minibatches: int = 8
    update_epochs: int = 2
    gamma: float = 1.0
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_coefficient: float = 0.1
    entropy_coefficient: float = 0.1
    max_grad_norm: float = 0.5
    learning_rate: float = 3e-3
    adam_eps: float = 1e-5
    warmup_steps: int = 0
    decay: bool = True
    evaluate_every: int = 1
    checkpoint_every: int = 5
    hidden: int = 128
    stage_dim: int = 16
    scale_embedding: bool = True
    embedding_noise: float = 1.0
    standardise_reward: bool = True

    @property
    def total_iterations(self) -> int:
        """Iterations of the whole training."""
        return self.epochs * self.iterations

    @property
    def gradient_steps(self) -> int:
        """Mini-batches of the whole training."""
        return self.total_iterations * self.update_epochs * self.minibatches


PRESETS = {
    "default": PPOConfig(),
    # "8 iterations, 128 rollouts per iteration" and "200 epochs" are both the paper's; we read
    # an epoch as 8 iterations. Its "batch size of 96" contradicts 16 mini-batches of 128 two-hop
    # episodes (16 transitions each); the mini-batches are what PPO is configured by.
    "paper": PPOConfig(
        preset="paper",
        epochs=200,
        iterations=8,
        rollouts=128,
        minibatches=16,
        update_epochs=4,
        gamma=0.99,
        value_coefficient=0.5,
        entropy_coefficient=0.01,
        max_grad_norm=0.3,
        learning_rate=1e-4,
        adam_eps=1e-4,
        warmup_steps=100,
        decay=False,
        evaluate_every=3,
        hidden=256,
        scale_embedding=False,
        embedding_noise=0.0,
        standardise_reward=False,
    ),
}


def preset(name: str) -> PPOConfig:
    """The preset of this name.

    Raises:
        InputError: there is no such preset.
    """
    if name not in PRESETS:
        raise InputError(f"unknown preset: {name}; known: {', '.join(sorted(PRESETS))}")
    return PRESETS[name]
