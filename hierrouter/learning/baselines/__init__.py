"""The routers that other people would use, on the same questions and folds."""
