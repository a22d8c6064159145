"""Analyses of a fold that stand beside a report."""
