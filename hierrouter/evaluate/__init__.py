"""Evaluation: exact values, bounds, intervals."""
