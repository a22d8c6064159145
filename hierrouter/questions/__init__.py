"""Datasets of questions, and the scorers that compare responses with reference answers."""
