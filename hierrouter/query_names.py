"""Which query is meant by a name.

In: a tree, what a person typed. Out: the position of one query. A name is the query's id, or
`dataset/id`, or the beginning of either where no other query begins like it. Not covered: what is
shown of the query, see `explain`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

SHOWN = 4  # of the names that a beginning could mean


def full_names(tree: RouteTree) -> list[str]:
    """`dataset/id` of each query, in the order of the tree."""
    return [f"{name}/{id}" for name, id in zip(tree.datasets, tree.query_ids, strict=True)]


def find_query(tree: RouteTree, name: str) -> int:
    """The position in `tree` of the query of this name.

    Raises:
        InputError: there is none, or there are several.
    """
    full = full_names(tree)
    whole, begun = _called(full, tree.query_ids, name), _beginning(full, tree.query_ids, name)
    found = whole or begun
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(_ambiguous(name, [full[row] for row in found]))
    raise InputError(_unknown(name, full, tree.query_ids))


def _called(full: Sequence[str], ids: Sequence[str], name: str) -> list[int]:
    return [row for row, id in enumerate(ids) if name in (id, full[row])]


def _beginning(full: Sequence[str], ids: Sequence[str], name: str) -> list[int]:
    return [row for row, id in enumerate(ids) if id.startswith(name) or full[row].startswith(name)]


def _ambiguous(name: str, found: Sequence[str]) -> str:
    some = ", ".join(found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
    return f"{len(found)} queries are meant by {name!r}: {some}; give more of the name"


def _unknown(name: str, full: Sequence[str], ids: Sequence[str]) -> str:
    known = full if "/" in name else list(ids)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"names look like {full[0]}" if full else ""
    return f"no such query in this tree: {name}; {hint}".rstrip("; ")
