"""The cache as a tree, and the tree as an environment."""

from __future__ import annotations

from gymnasium.envs.registration import register

# Named, not imported: an environment is loaded when somebody makes one.
register(
    "hierrouter/Replay-v0",
    entry_point="hierrouter.replay.env:ReplayEnv",
    vector_entry_point="hierrouter.replay.env:ReplayVectorEnv",
)
