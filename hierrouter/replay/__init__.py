"""Replay: the cached tree as an environment.

Importing it makes `gymnasium.make("hierrouter/Replay-v0", tree=tree, alpha=0.005)` work, and
`gymnasium.make_vec` with the same name, which steps many episodes without an environment for each.
"""

from gymnasium.envs.registration import register

# Named, not imported: an environment is loaded when somebody makes one.
register(
    "hierrouter/Replay-v0",
    entry_point="hierrouter.replay.env:ReplayEnv",
    vector_entry_point="hierrouter.replay.vector:ReplayVectorEnv",
)
