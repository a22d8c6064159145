"""Routers that other people would use, on the same questions, embeddings and folds."""
