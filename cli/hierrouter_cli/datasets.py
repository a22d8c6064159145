"""`hierrouter datasets`: what can be collected, with samples."""

from __future__ import annotations

from pathlib import Path

from hierrouter_cli import console, options


def datasets(
    names: options.Datasets = None,
    limit: options.Limit = 2,
    seed: options.Seed = options.DEFAULT_SEED,
    data: options.Data = Path("data"),
) -> None:
    """List the known datasets; with --datasets show questions of these."""
    from hierrouter.collect.datasets import dataset_names, load_queries
    from hierrouter.report.text import safe_text

    chosen = options.split_names(names)
    if chosen is None:
        console.put("\n".join(dataset_names()) + "\n")
        return
    for query in load_queries(chosen, limit or 2, seed, data):
        answers = " | ".join(query.answers)
        line = f"{query.dataset}/{query.id} [{query.split}] {query.question!r} -> {answers!r}"
        console.put(safe_text(line) + "\n")
