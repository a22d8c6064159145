"""`hierrouter collect`: run every route, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter_cache.errors import InputError
from hierrouter_cli import collect_options, console, options, parsing
from hierrouter_cli.collecting import make_calls, say_note, say_standing
from hierrouter_cli.dry_run import dry_run as show_estimate
from hierrouter_cli.selecting import Selected

if TYPE_CHECKING:
    from hierrouter.collect.collecting import Machines

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

    from hierrouter.collect.collecting import meet_mirror, planned
    from hierrouter.collect.consent import require_consent
    from hierrouter.collect.encoders import require_encoder

    parsing.check_format(format, options.SHORT_FORMATS)
    machines = _machines(engine, shard, workers, ray_address, remote)
    if remote and dry_run:
        console.say("note: a dry run does not look at the mirror; `hierrouter cache pull` does")
    elif remote:
        say_note(meet_mirror(cache, remote))
    called = {
        "backend": backend,
        "base_url": base_url,
        "api_key_env": api_key_env,
        "timeout_s": timeout,
        "insecure": insecure or None,
        "device": device,
    }
    names = parsing.split_names(datasets)
    found = planned(names, pool, cache, limit, seed, data, machines, called, console.say)
    if dry_run:
        show_estimate(cache, found.pool, found.own, format)
        return
    if not yes:
        require_consent(found.pool, found.own, cache)
    if encoder:
        require_encoder(encoder)
    summary = make_calls(found)
    if machines.shard:
        say_standing(cache, machines.shard)
    else:
        Selected(cache=cache, encoder=encoder).open()
    if format == "json":
        console.put_json(asdict(summary), sort_keys=True)


def _machines(
    engine: str, shard: str | None, workers: int | None, address: str | None, remote: str | None
) -> Machines:
    from hierrouter.collect.collecting import Machines
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
