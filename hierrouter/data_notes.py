"""What a reader must know of the data itself.

In: a tree, alpha. Out: sentences. Not covered: what is odd about routers (`remarks`).
"""

from __future__ import annotations

import numpy as np

from hierrouter_cache.tree import RouteTree

COUNTS = 1e-3  # of R: what prices must move it by to be worth a thought


def data_notes(tree: RouteTree) -> list[str]:
    """What a reader must know of the data."""
    notes = []
    if tree.context_free:
        notes.append(
            "Later hops are independent answers of the models, as imported: "
            "no model saw an earlier answer."
        )
    if tree.left_out:
        notes.append(f"{tree.left_out} queries are left out: their trees are incomplete.")
    return notes


def cost_notes(tree: RouteTree, alpha: float) -> list[str]:
    """Whether alpha is so small for these prices that cost decides nothing.

    Args:
        tree: the queries that a router learns from, or is shown on.
        alpha: of R = Q - alpha * C.
    """
    cost = tree.cost[:, tree.routes.leaves]
    spread = float(np.mean(cost.max(axis=1) - cost.min(axis=1)))
    if not alpha or not spread or alpha * spread >= COUNTS:
        return []
    return [
        f"At alpha {alpha:g} cost decides next to nothing: between the cheapest and the dearest "
        f"route of a query it moves R by {alpha * spread:.1g}. It moves R by 0.1 at alpha "
        f"{0.1 / spread:.1g}; `sweep-alpha` chooses alphas for these prices."
    ]
