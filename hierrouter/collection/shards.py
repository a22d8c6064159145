"""One collection, shared by many processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hierrouter.pools.files import stored_pool
from hierrouter.questions.query import Query
from hierrouter_cache.errors import InputError
from hierrouter_cache.keys import root_context
from hierrouter_cache.locks import collector_lock, shard_lock, shards_at_work, start_lock
from hierrouter_cache.reader import CacheReader, StoredPlan
from hierrouter_cache.walk import TreeSpec, walk


@dataclass(frozen=True)
class Shard:
    """One of `count` equal shares of a plan's questions; `index` is 1 to `count`."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def own(self, queries: Sequence[Query]) -> list[Query]:
        """The queries of this shard, in order; equal questions are in the same one."""
        contexts = [root_context(query.question) for query in queries]
        mine = {
            context for context, shard in shard_of(contexts, self.count).items() if shard == self
        }
        return [query for query, context in zip(queries, contexts, strict=True) if context in mine]


def shard_of(contexts: Sequence[str], count: int) -> dict[str, Shard]:
    """The shard of each distinct root context: dealt out in the order of the digests."""
    return {
        context: Shard(place % count + 1, count)
        for place, context in enumerate(sorted(set(contexts)))
    }


def parse_shard(text: str) -> Shard:
    """`i/n` as a shard.

    Raises:
        InputError: it is not a share like 2/8.
    """
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise InputError(f"not a shard: --shard {text}; i/n with i from 1 to n, e.g. --shard 1/4")
    return Shard(int(index), int(count))


@contextmanager
def held(root: Path, shard: Shard | None) -> Iterator[None]:
    """The cache's lock for a shard, or for a whole collection.

    Raises:
        CacheLocked: the same shard, a whole collection or shards of another number are at work.
        CacheError, WorldError: as `hierrouter_cache.locks.collector_lock`.
    """
    lock = shard_lock(root, shard.index, shard.count) if shard else collector_lock(root)
    with lock:
        yield


@contextmanager
def starting(root: Path, shard: Shard | None) -> Iterator[None]:
    """One shard after the other looks at the cache and writes the plan.

    So the second finds the plan of the first: see `require_alike`.
    """
    if shard is None:
        yield
        return
    with start_lock(root):
        yield


def require_alike(reader: CacheReader | None, plan: StoredPlan, shard: Shard | None) -> None:
    """Refuse a shard whose answers would not stand in the same tree as those of the others.

    That is a shard with other queries or models, and one on a machine whose versions or kind of
    device give its models another identity. What changes no answer may differ, such as prices
    and timeouts.

    Raises:
        InputError: other shards are at work, for another plan than `plan`.
    """
    if reader is None or shard is None or not reader.has("plans"):
        return
    others = set(shards_at_work(reader.root)) - {(shard.index, shard.count)}
    if not others:
        return
    latest = reader.latest_plan()
    same_models = _steps(latest) == _steps(plan)
    if not same_models or latest.queries != plan.queries:
        what = "queries" if same_models else "models"
        raise InputError(
            f"shard {shard} has other {what} than the shards at work: {reader.root}; use the same "
            "flags, versions and kind of device for all shards, or wait until they are done"
        )


def _steps(plan: StoredPlan) -> TreeSpec:
    """What decides the keys of a plan's calls, besides its questions."""
    pool, identities = stored_pool(plan.pool, "the last plan")
    return pool.tree_spec(identities)


@dataclass(frozen=True)
class Standing:
    """How far the shards of the last plan are.

    Attributes:
        complete: the shards whose trees lack nothing.
        found: nodes and direct calls that are there.
        wanted: nodes and direct calls of all trees.
    """

    complete: tuple[Shard, ...]
    found: int
    wanted: int


def standing(root: Path, count: int) -> Standing:
    """What `count` shards have done of the plan that was collected for last.

    Raises:
        CacheError: nothing there, or damaged.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    forest = walk(reader, _steps(plan), plan.queries)
    contexts = reader.queries(plan.queries, ("context",))["context"].to_pylist()
    shards = shard_of(contexts, count)
    lacking = {shards[contexts[row]] for row in np.flatnonzero(~forest.complete)}
    found = np.count_nonzero(forest.tree.found[:, 1:]) + np.count_nonzero(forest.direct.found)
    return Standing(
        complete=tuple(
            shard for index in range(1, count + 1) if (shard := Shard(index, count)) not in lacking
        ),
        found=int(found),
        wanted=forest.tree.found[:, 1:].size + forest.direct.found.size,
    )
