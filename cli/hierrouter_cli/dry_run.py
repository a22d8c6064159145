"""`hierrouter collect --dry-run`: what it will take, before it is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter_cli import console, options, parsing

if TYPE_CHECKING:
    from hierrouter.pool import Pool
    from hierrouter.query import Query


def dry_run(cache: Path, pool: Pool, queries: Sequence[Query], format: str) -> None:
    """Print calls, tokens, time, cost and disk of a collection; calls and writes nothing."""
    from hierrouter.collect.estimate import estimate
    from hierrouter.report.estimate import estimate_object, estimate_table

    parsing.check_format(format, options.SHORT_FORMATS)
    found = estimate(pool, queries, cache)
    if format == "json":
        console.put_json(estimate_object(found), sort_keys=True)
        return
    console.put_tables([estimate_table(found)])
    for note in found.notes:
        console.say(f"note: {note}")
