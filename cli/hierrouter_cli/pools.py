"""`hierrouter pools`: the pools that come with the package."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hierrouter_cli import console, options

if TYPE_CHECKING:
    from hierrouter.pricing import Price


def pools(format: options.ShortFormat = "text") -> None:
    """List the pools that come with the package, with models and prices per token."""
    from dataclasses import asdict

    from hierrouter.pool_file import load_pool, pool_names

    options.check_format(format, ("text", "json"))
    known = {name: load_pool(name) for name in pool_names()}
    if format == "json":
        console.put(json.dumps({name: asdict(pool) for name, pool in known.items()}) + "\n")
        return
    for name, pool in known.items():
        console.put(f"{name}: {len(pool.models)} models, {pool.hops} hops\n")
        for model in pool.everyone:
            role = "model" if model in pool.models else "reference"
            console.put(f"  {role:<10}{model.name:<26}{_shown(model.price()):<16}{model.model}\n")


def _shown(price: Price) -> str:
    """One rate, or those in and out."""
    rates = (price.rate.tokens_in, price.rate.tokens_out)
    return "/".join(f"{rate:g}" for rate in dict.fromkeys(rates))
