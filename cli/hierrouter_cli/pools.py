"""`hierrouter pools`: the pools that come with the package."""

from __future__ import annotations

import json

from hierrouter_cli import console, options


def pools(format: options.ShortFormat = "text") -> None:
    """List the pools that come with the package, with models and base rates."""
    from dataclasses import asdict

    from hierrouter.pool import load_pool, pool_names

    options.check_format(format, ("text", "json"))
    known = {name: load_pool(name) for name in pool_names()}
    if format == "json":
        console.put(json.dumps({name: asdict(pool) for name, pool in known.items()}) + "\n")
        return
    for name, pool in known.items():
        console.put(f"{name}: {len(pool.models)} models, {pool.hops} hops\n")
        for model in pool.everyone:
            role = "model" if model in pool.models else "reference"
            console.put(f"  {role:<10}{model.name:<26}{model.base_rate:<8g}{model.model}\n")
