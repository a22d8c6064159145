"""Baselines: routers from the literature, and users' own, on the same questions and folds."""
