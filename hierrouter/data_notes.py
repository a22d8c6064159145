"""What a reader must know of the data itself.

In: a tree. Out: sentences. Not covered: what is odd about routers (`remarks`).
"""

from __future__ import annotations

from hierrouter_cache.tree import RouteTree


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
