"""Our JSON lines: what each kind of line must be.

In: one object, its `kind` and the columns of that kind in `hierrouter_cache.schema`. Out: a row of
the cache, every key computed again from what it names. Not covered: files and their digest
(`jsonl`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierrouter.pool_file import stored_pool
from hierrouter_cache.checks import row_fault
from hierrouter_cache.errors import InputError
from hierrouter_cache.schema import KINDS

# A kind of line, and the kind of rows in a cache.
LINES = {
    "query": "queries",
    "call": "calls",
    "failure": "failures",
    "score": "scores",
    "plan": "plans",
}


def checked_row(line: Mapping[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    """(kind in the cache, row) of a line.

    Raises:
        InputError: an unknown kind, a column missing or of another type, a key that is not that of
            the content, or a pool that no pool file could hold.
    """
    kind = LINES.get(str(line.get("kind")))
    if kind is None:
        raise InputError(
            f"unknown kind {line.get('kind')!r:.40}: {where}; known: {', '.join(LINES)}"
        )
    for name in KINDS[kind].names:
        if name not in line:
            raise InputError(f"{name} is missing: {where}; it has {', '.join(line):.120}")
    row = {name: line[name] for name in KINDS[kind].names}
    if fault := row_fault(kind, row):
        raise InputError(f"{fault}: {where}; export again")
    if kind == "plans":
        stored_pool(row["pool"], where)
    return kind, row
