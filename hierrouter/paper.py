"""The paper's settings, in one place."""

from typing import Any

PAPER_SCORER = "token_f1"  # Q, appendix C

PAPER_ALPHA = 0.005

PAPER_SEED = 42

# The datasets as the paper's tables name and order them.
PAPER_TITLES = {
    "mmlu": "MMLU",
    "gsm8k": "GSM8K",
    "mbpp": "MBPP",
    "math": "MATH",
    "arc-easy": "ARC-Easy",
    "arc-challenge": "ARC-Challenge",
}

PAPER_CHECKPOINT_EVERY = 5  # epochs, appendix B; it changes nothing of what is learned

# Appendix B, by name of a field of `hierrouter.learning.config.PPOConfig`. "8 iterations, 128
# rollouts per iteration" and "200 epochs" are both the paper's; we read an epoch as 8 iterations.
# Its "batch size of 96" contradicts 16 mini-batches of 128 two-hop episodes (16 transitions each);
# the mini-batches are what PPO is configured by.
PAPER_PPO: dict[str, Any] = {
    "epochs": 200,
    "iterations": 8,
    "rollouts": 128,
    "minibatches": 16,
    "update_epochs": 4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "value_coefficient": 0.5,
    "entropy_coefficient": 0.01,
    "entropy_end": 0.01,
    "max_grad_norm": 0.3,
    "learning_rate": 1e-4,
    "adam_eps": 1e-4,
    "warmup_steps": 100,
    "decay": False,
    "evaluate_every": 3,
    "hidden": 256,
    "knows_route": False,
    "scale_embedding": False,
    "scale_cost": False,
    "plain_start": True,
    "embedding_noise": 0.0,
    "standardise_reward": False,
    "keep_anyway": True,
}
