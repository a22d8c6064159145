"""No very large collection by mistake.

In: a plan, and whether someone said yes to it. Out: nothing, or an error with the numbers. A plan
that cannot be large costs one look at the clock of earlier calls; only others are estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hierrouter.collect.backends import backend
from hierrouter.collect.estimate import Estimate, estimate
from hierrouter.collect.generator import Engines
from hierrouter.pool import Pool
from hierrouter.query import Query
from hierrouter_cache.errors import InputError
from hierrouter_cache.reader import reader_of

# A collection beyond either is not started without consent.
MOST_CALLS = 100_000
MOST_SECONDS = 24 * 3600.0


def require_consent(
    pool: Pool, queries: Sequence[Query], root: Path, engines: Engines = backend
) -> None:
    """Refuse what takes very many calls or more than a day.

    Args:
        pool: the models, hops and stage instructions.
        queries: what will be asked.
        root: the cache's folder, or where it will be.
        engines: the backend of a name.

    Raises:
        InputError: with the numbers.
        CacheError: the cache is damaged.
    """
    calls = len(queries) * (pool.routes.calls + len(pool.everyone))
    if calls > MOST_CALLS or calls * _slowest(root) > MOST_SECONDS:
        refuse_large(estimate(pool, queries, root, engines))


def refuse_large(found: Estimate) -> None:
    """Refuse what is expected to be large, or could be where nothing is expected.

    Raises:
        InputError: with the numbers.
    """
    calls, seconds = found.total.calls, found.total.seconds.expected or 0.0
    count = (calls.most if calls.expected is None else calls.expected) or 0
    if count <= MOST_CALLS and seconds <= MOST_SECONDS:
        return
    word = "at most" if calls.expected is None else "about"
    time = f" and {seconds / 3600:,.0f} hours" if seconds else ""
    raise InputError(
        f"{word} {count:,.0f} model calls{time} are due for {found.queries:,} queries; "
        "look at them with --dry-run, then add --yes"
    )


def _slowest(root: Path) -> float:
    """Seconds that a call of the slowest kind took on average; 0 where nothing is known."""
    reader = reader_of(root)
    if reader is None:
        return 0.0
    means = reader.sql("SELECT avg(latency_s) AS seconds FROM calls_rows GROUP BY step")
    return max((mean for mean in means["seconds"].to_pylist() if mean), default=0.0)
