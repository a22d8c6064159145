"""A whole collection: from names of datasets to a cache that can be opened.

`collect` does all of it; the command line goes the same three steps: `planned`, then
`require_consent`, then `make_calls`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from hierrouter.collection.adaptive import Adaptive, fill_adaptively
from hierrouter.collection.estimate import require_consent
from hierrouter.collection.plan import Shard, last_plan
from hierrouter.collection.progress import (
    Meter,
    Progress,
    Summary,
    require_answers,
    stored_spending,
)
from hierrouter.collection.scheduler import fill_cache
from hierrouter.declarations.checks import split_names
from hierrouter.engines.encoders import require_encoder
from hierrouter.engines.generator import Stop, never
from hierrouter.paper import PAPER_SEED
from hierrouter.pools.files import load_pool, override_pool
from hierrouter.pools.pool import Pool, refuse_stored_keys, restrict_hosts
from hierrouter.questions.datasets import load_queries
from hierrouter.questions.query import Query
from hierrouter.questions.shipped import group_of
from hierrouter.replay.open_tree import OpenTree
from hierrouter.tables import money
from hierrouter_cache import CACHE
from hierrouter_cache.errors import InputError, Interrupted
from hierrouter_cache.mirror import part_copier, pull
from hierrouter_cache.stores import store_at
from hierrouter_cache.writer import no_copy

TESTBED, PAPER = "testbed", "paper"
DATA = Path("data")  # of <dataset>.jsonl or .parquet files
Note = Callable[[str], None]


@dataclass(frozen=True)
class Planned:
    """What is to be collected, and who makes the calls.

    Attributes:
        pool: the models, as they are to be called.
        queries: of all shards.
        cache: the folder.
        shard: this share of the queries, beside others; None is all of them.
        on_ray: whether a Ray cluster makes them.
        workers, address: of the cluster, see `hierrouter.collection.cluster`.
        remote: URL of the cache's mirror.
        adaptive: what may matter, where only that is to be called; None is everything.
        max_spend: begin no call once the calls in the cache have cost so much, in the pool's
            currency and at its rates; None is no limit.
        encoder: sees the questions of an adaptive collection; None is the pool's.
    """

    pool: Pool
    queries: Sequence[Query]
    cache: Path
    shard: Shard | None = None
    on_ray: bool = False
    workers: int | None = None
    address: str | None = None
    remote: str | None = None
    adaptive: Adaptive | None = None
    encoder: str | None = None
    max_spend: float | None = None

    def __post_init__(self) -> None:
        if self.max_spend is not None and not 0 < self.max_spend < inf:
            raise InputError(f"a limit must be above 0 and finite: --max-spend {self.max_spend:g}")
        if self.adaptive and (self.shard or self.on_ray):
            raise InputError(
                "--adaptive decides by what was answered before: leave --shard and --engine ray out"
            )

    @property
    def own(self) -> Sequence[Query]:
        """The queries of this shard; all of them without shards."""
        return self.shard.own(self.queries) if self.shard else self.queries

    @property
    def spent(self) -> float:
        """Cost of all calls of the pool's models in the cache; raises CacheError: it is damaged."""
        return sum((of.cost for of in stored_spending(self.cache, self.pool.rates()).values()), 0.0)


def collect(
    datasets: str | Sequence[str] | None = None,
    *,
    pool: str | Path | None = None,
    cache: str | Path = CACHE,
    limit: int | None = None,
    seed: int | None = None,
    data: str | Path = DATA,
    encoder: str | None = None,
    backend: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    timeout: float | None = None,
    insecure: bool = False,
    allow_endpoints: Collection[str] = (),
    device: str | None = None,
    allow_large: bool = False,
    adaptive: Adaptive | None = None,
    max_spend: float | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    on_note: Note | None = None,
) -> Path:
    """Run every model sequence for each query and store what came back.

    Only calls that are not in the cache are made, so the same call goes on after any interruption.
    Without datasets, limit and seed it goes on with what the cache was collected for last.

    Args:
        datasets: names, or .jsonl or .parquet files, as a list or as "a,b".
        pool: name or TOML file; default: that of the questions' group, else "paper".
        cache: its folder; made where there is none.
        limit: at most so many queries of each dataset; default 300, of a file all.
        seed: of the draw and of the folds; default 42.
        data: folder of files that stand for the paper's datasets.
        encoder: embeds the states, so that the tree opens at once; None is the pool's, and where
            that cannot be had embedding waits for the training.
        backend, base_url, api_key_env, timeout, insecure, device: for all models, instead of what
            the pool says; see `hierrouter.pools.files`.
        allow_endpoints: hosts on this machine or a private network that a stored pool may call.
        allow_large: more than 100,000 calls, or than a day of them.
        adaptive: make only calls that may be the best ones for these routers, see `Adaptive`;
            validation and test get whole trees.
        max_spend: begin no call once those in the cache have cost so much, in the pool's currency.
        progress: told (label of a model's level, calls done, calls of that level).
        on_note: told in a line what a person should know of the questions.

    Returns:
        the cache's folder, for `open`.

    Raises:
        InputError: a name, a file or a number that does not fit.
        CacheError: the cache is damaged, in use or cannot be written.
        WorldError: a model, a server or the disk failed; what was committed is safe.
        Interrupted: `max_spend` is reached, and calls are missing.
    """
    note: Note = on_note or (lambda line: None)
    found = planned(
        split_names(datasets),
        None if pool is None else str(pool),
        Path(cache),
        limit,
        seed,
        Path(data),
        {
            "backend": backend,
            "base_url": base_url,
            "api_key_env": api_key_env,
            "timeout_s": timeout,
            "insecure": insecure or None,
            "device": device,
        },
        note,
        allow_endpoints,
    )
    found = replace(found, adaptive=adaptive, encoder=encoder, max_spend=max_spend)
    if not allow_large:
        require_consent(found.pool, found.own, found.cache)
    if encoder:
        require_encoder(encoder)
    meter = Meter()

    def on_level(label: str, calls: int) -> None:
        meter.on_level(label, calls)
        tell(0)

    def tell(calls: int) -> None:
        if progress:
            progress(meter.label, meter.done, meter.of)

    meter.on_done = tell
    require_answers(make_calls(found, replace(meter.progress(note), on_level=on_level), note))
    tree = OpenTree(cache=found.cache, encoder=encoder).run()  # embeds and scores
    if tree.unembedded:
        note(f"collect: nothing is embedded yet: {tree.unembedded}")
    return found.cache


def planned(
    datasets: list[str] | None,
    pool: str | None,
    cache: Path,
    limit: int | None,
    seed: int | None,
    data: Path,
    called: dict[str, Any],
    on_note: Note,
    allow_endpoints: Collection[str] = (),
) -> Planned:
    """What to collect: as it is said, or what the cache was collected for last.

    Args:
        called: how every model is called, see `override_pool`.

    The other arguments and the errors are those of `collect`.
    """
    last = last_plan(cache) if (datasets, limit, seed) == (None, None, None) else None
    if last:
        on_note(f"collect: going on with what {cache} was collected for last")
        chosen, queries = (load_pool(pool) if pool else last[0]), last[1]
    else:
        names = datasets or [TESTBED]
        chosen = load_pool(pool or group_of(names) or PAPER)
        drawn = noted_queries(names, limit, PAPER_SEED if seed is None else seed, data, on_note)
        queries = tuple(drawn)
    if pool and (note := chosen.unit_note()):
        on_note(f"collect: {note}")
    if last and not pool:
        if not (called.get("api_key_env") or called.get("base_url")):
            refuse_stored_keys(chosen.all_models, "the stored plan", cache, collects=True)
        allowed = None if called.get("base_url") else allow_endpoints
        chosen = restrict_hosts(chosen, allowed, f"the stored plan of {cache}")
    return Planned(override_pool(chosen, **called), queries, cache)


def noted_queries(
    names: list[str], limit: int | None, seed: int, data: Path, on_note: Note
) -> list[Query]:
    """The queries of these datasets; notes how many hold text that had to be mended."""
    queries = load_queries(names, limit, seed, data, on_note)
    if replaced := sum("\N{REPLACEMENT CHARACTER}" in query.question for query in queries):
        on_note(f"collect: U+FFFD in {replaced} questions: the file had invalid unicode there")
    return queries


def make_calls(found: Planned, progress: Progress, on_note: Note, stop: Stop = never) -> Summary:
    """Make every missing call of the plan, or of the shard; see `scheduler.fill_cache`.

    `on_note`: told what the mirror, or the cluster, has to say.
    """
    if found.max_spend is None:
        return _make_calls(found, progress, on_note, stop)
    limit, spent, on_calls = found.max_spend, found.spent, progress.on_calls

    def counted(calls: int, tokens: int, cost: float) -> None:
        nonlocal spent
        spent += cost
        on_calls(calls, tokens, cost)

    progress.on_calls = counted
    try:
        return _make_calls(found, progress, on_note, lambda: stop() or spent >= limit)
    except Interrupted as error:
        if stop() or spent < limit:
            raise
        raise Interrupted(
            f"the limit is reached: --max-spend {limit:g}, {money(spent)} {found.pool.currency} "
            "spent on this cache; all answers are kept, the same command with more goes on"
        ) from error


def _make_calls(found: Planned, progress: Progress, on_note: Note, stop: Stop) -> Summary:
    if found.on_ray:
        # Ray is an extra, and slow to import.
        from hierrouter.collection.cluster import collect_on_ray

        return collect_on_ray(
            found.pool,
            found.queries,
            found.cache,
            workers=found.workers,
            address=found.address,
            remote=found.remote,
            progress=progress,
            stop=stop,
            on_note=on_note,
        )
    store = store_at(found.remote) if found.remote else None
    on_part = part_copier(store) if store else no_copy
    asked = found.pool, found.queries, found.cache
    if may := found.adaptive:
        more: dict[str, Any] = {"encoder": found.encoder, "on_note": on_note, "on_part": on_part}
        summary = fill_adaptively(*asked, may, progress, stop, **more)
    else:
        summary = fill_cache(*asked, progress, stop, shard=found.shard, on_part=on_part)
    if store:
        on_note(pull(store, found.cache).note)  # what other shards have done meanwhile
    return summary
