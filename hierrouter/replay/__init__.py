"""Replay: the cached tree as an environment."""
