"""`hierrouter collect`: run every route, once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter_cache.errors import InputError
from hierrouter_cli import collect_options, console, options, parsing
from hierrouter_cli.collecting import Machines, make_calls, meet_mirror, say_standing
from hierrouter_cli.dry_run import dry_run as show_estimate
from hierrouter_cli.selecting import Selected

if TYPE_CHECKING:
    from hierrouter.pool import Pool
    from hierrouter.query import Query

ENGINES = ("local", "ray")


def collect(
    datasets: options.DatasetsOfDraw = None,
    pool: options.AnyPool = None,
    cache: options.Cache = options.DEFAULT_CACHE,
    limit: options.LimitOfDraw = None,
    seed: options.SeedOfDraw = None,
    data: options.Data = Path("data"),
    encoder: options.Encoder = None,
    dry_run: collect_options.DryRun = False,
    format: options.ShortFormat = "text",
    yes: collect_options.Yes = False,
    backend: collect_options.Backend = None,
    base_url: collect_options.BaseUrl = None,
    api_key_env: collect_options.ApiKeyEnv = None,
    timeout: collect_options.Timeout = None,
    insecure: collect_options.Insecure = False,
    device: collect_options.Device = None,
    shard: collect_options.ShardOf = None,
    engine: collect_options.Engine = "local",
    workers: collect_options.Workers = None,
    ray_address: collect_options.RayAddress = None,
    remote: collect_options.Remote = None,
) -> None:
    """Run every model sequence for each query and store what came back.

    Only calls that are not in the cache are made, so the same command goes on after any
    interruption. Without --datasets, --limit and --seed it goes on with the queries that this cache
    was collected for last, and without --pool with their pool; a new cache gets the testbed.
    """
    from dataclasses import asdict

    from hierrouter.collect.consent import require_consent
    from hierrouter.collect.encoders import require_encoder
    from hierrouter.collect.overrides import overridden
    from hierrouter.collect.plan import refuse_stored_keys

    parsing.check_format(format, options.SHORT_FORMATS)
    machines = _machines(engine, shard, workers, ray_address, remote)
    if remote and dry_run:
        console.say("note: a dry run does not look at the mirror; `hierrouter cache pull` does")
    elif remote:
        meet_mirror(cache, remote)
    chosen, queries = _planned(datasets, pool, cache, limit, seed, data)
    if not (pool or datasets or api_key_env or base_url):
        refuse_stored_keys(chosen, cache)
    chosen = overridden(
        chosen,
        backend=backend,
        base_url=base_url,
        api_key_env=api_key_env,
        timeout_s=timeout,
        insecure=insecure or None,
        device=device,
    )
    own = machines.shard.own(queries) if machines.shard else queries
    if dry_run:
        show_estimate(cache, chosen, own, format)
        return
    if not yes:
        require_consent(chosen, own, cache)
    if encoder:
        require_encoder(encoder)
    summary = make_calls(cache, chosen, queries, machines)
    if machines.shard:
        say_standing(cache, machines.shard)
    else:
        Selected(cache=cache, encoder=encoder).open()
    if format == "json":
        console.put_json(asdict(summary), sort_keys=True)


def _planned(
    datasets: str | None,
    pool: str | None,
    cache: Path,
    limit: int | None,
    seed: int | None,
    data: Path,
) -> tuple[Pool, Sequence[Query]]:
    """What to collect: as the flags say, or what the cache was collected for last."""
    from hierrouter.collect.plan import planned
    from hierrouter.pool_file import load_pool

    last = planned(cache) if (datasets, limit, seed) == (None, None, None) else None
    if last:
        console.say(f"collect: going on with what {cache} was collected for last")
        return (load_pool(pool) if pool else last.pool), last.queries
    names = parsing.split_names(datasets) or ["testbed"]
    chosen = load_pool(pool or ("testbed" if _all_testbed(names) else "paper"))
    drawn = load_queries(names, limit, options.DEFAULT_SEED if seed is None else seed, data)
    return chosen, drawn


def _machines(
    engine: str, shard: str | None, workers: int | None, address: str | None, remote: str | None
) -> Machines:
    from hierrouter.collect.shards import parse_shard
    from hierrouter.pool import suggestion

    if engine not in ENGINES:
        raise InputError(f"unknown engine: {engine}; {suggestion(engine, ENGINES)}".rstrip("; "))
    on_ray = engine == "ray"
    if on_ray and shard:
        raise InputError("--shard and --engine ray: Ray makes shards itself; leave --shard out")
    if not on_ray and (workers or address):
        raise InputError("--workers and --ray-address are for Ray; add --engine ray")
    if address and address != "auto" and not address.startswith("ray://"):
        raise InputError(f"not a cluster: --ray-address {address}; use auto or ray://HOST:10001")
    return Machines(parse_shard(shard) if shard else None, on_ray, workers, address, remote)


def load_queries(names: list[str], limit: int | None, seed: int, data: Path) -> list[Query]:
    """The queries of these datasets; says how many hold text that had to be mended."""
    from hierrouter.collect.datasets import load_queries as load

    queries = load(names, limit, seed, data, console.say)
    if replaced := sum("\N{REPLACEMENT CHARACTER}" in query.question for query in queries):
        console.say(f"collect: U+FFFD in {replaced} questions: the file had invalid unicode there")
    return queries


def _all_testbed(names: list[str]) -> bool:
    from hierrouter.testbed import FAMILIES

    return all(name in ("testbed", *FAMILIES) for name in names)
