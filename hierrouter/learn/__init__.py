"""Learning: PPO on the cached tree."""
