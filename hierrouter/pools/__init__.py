"""Pools of models: which models may be called, on which server, and at what price."""
