"""`hierrouter pools`: the pools that come with the package, or one of yours."""

from __future__ import annotations

from dataclasses import asdict

from hierrouter_cli import console, options, parsing


def pools(pool: options.AnyPool = None, format: options.ShortFormat = "text") -> None:
    """List the pools that come with the package; with --pool check and show that one.

    Tells of each model its size, price per token, window, and whether its weights are on this
    machine. No network is asked.
    """
    from hierrouter.pool_file import load_pool, pool_names
    from hierrouter.pool_listing import listed
    from hierrouter.report.pools import pool_table

    parsing.check_format(format, options.SHORT_FORMATS)
    known = {name: load_pool(name) for name in ([pool] if pool else pool_names())}
    if format == "json":
        found = {
            name: {**asdict(each), "listing": [asdict(model) for model in listed(each)]}
            for name, each in known.items()
        }
        console.put_json(found)
        return
    console.put_tables(
        [pool_table(name, each, listed(each), bool(pool)) for name, each in known.items()]
    )
