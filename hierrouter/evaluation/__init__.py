"""Exact values, bounds and intervals."""
