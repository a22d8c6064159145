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
from hierrouter_cache.schema import ADDED, KINDS

# A kind of line, and the kind of rows in a cache.
LINES = {
    "query": "queries",
    "call": "calls",
    "failure": "failures",
    "score": "scores",
    "plan": "plans",
}


def line_of(kind: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The object on the line of a row; a column that came later is left out where it is null.

    So what a cache held before there was such a column is the same line as then.
    """
    added = ADDED.get(LINES[kind], {})
    kept = {name: value for name, value in row.items() if value is not None or name not in added}
    return {"kind": kind, **kept}


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
        if name not in line and name not in ADDED.get(kind, {}):
            raise InputError(f"{name} is missing: {where}; it has {', '.join(line):.120}")
    row: dict[str, Any] = {name: line.get(name) for name in KINDS[kind].names}
    if fault := row_fault(kind, row):
        raise InputError(f"{fault}: {where}; export again")
    if kind == "plans":
        stored_pool(row["pool"], where)
    return kind, row
