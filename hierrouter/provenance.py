"""Where every number of a report comes from.

In: a tree, a trained router, the folders they were read from. Out: JSON values that name cache,
prices, checkpoint, settings, version and looks at the test fold. Not covered: saying it in words
(`report.trained`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hierrouter import __version__
from hierrouter.learn.trained import TrainedRouter
from hierrouter.looks import count_looks
from hierrouter.pricing import price_table
from hierrouter_cache.tree import RouteTree


def provenance(
    tree: RouteTree,
    cache: Path,
    trained_in: Path | None,
    trained: TrainedRouter | None,
    swept_in: Path | None,
    price_lists: Mapping[str, RouteTree],
) -> dict[str, object]:
    """What was read, and how the router was made.

    Args:
        cache: the folder that the tree was opened from.
        trained_in: the folder of the router; None where there is none.
        swept_in: that of the sweep.
        price_lists: the same tree under several price lists, by name.
    """
    return {
        "version": __version__,
        "cache": str(cache),
        "tree": tree.fingerprint,
        "prices": price_table(tree),
        "price_lists": {name: price_table(priced) for name, priced in price_lists.items()},
        "left_out": tree.left_out,
        "context_free": tree.context_free,
        "checkpoint": str(trained_in) if trained_in else None,
        "sweep": str(swept_in) if swept_in else None,
        "seed": trained.origin.seed if trained else None,
        "algo": trained.origin.config.algo if trained else None,
        "preset": trained.origin.config.preset if trained else None,
        "encoder": tree.encoder,
        "view": tree.view,
        "trained_alpha": trained.alpha if trained else None,
        "allow_stop": trained.objective.allow_stop if trained else None,
        "max_cost": trained.objective.max_cost if trained else None,
        "budget": trained.budget if trained else None,
        "trained_on": trained.origin.fingerprint if trained else None,
        "test_looks": count_looks(tree, trained_in),
    }
