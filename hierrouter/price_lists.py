"""Price lists: files and flags that replace the prices of a pool.

    [prices]
    calc = 0.002
    facts = { in = 0.001, out = 0.004 }

In: such files, and texts `model=rate` or `model=in:out`. Out: a `Price` for every model of a pool.
A flag wins over a file, a file over the pool. Not covered: repricing a tree (`hierrouter.trees`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hierrouter.pool import Pool, suggestion
from hierrouter.pricing import POOL, Price, rate_from
from hierrouter.toml_file import parse_text, read_text
from hierrouter_cache.errors import InputError
from hierrouter_cache.pricing import Rate

FLAG = "--price"
ARGUMENT = "prices="
WHAT = "price file"


@dataclass(frozen=True)
class PriceList:
    """Prices under one name; models that it does not name keep the pool's price."""

    name: str = POOL
    prices: Mapping[str, Price] = field(default_factory=dict)


def price_lists(files: Sequence[Path], items: Sequence[str]) -> list[PriceList]:
    """One list a file, the items on top of each; without a file one list of the items alone.

    Args:
        files: TOML files; a list is called like its file, without folder and ending.
        items: texts `model=rate` or `model=in:out`.

    Raises:
        InputError: a file or an item that cannot be used, or two files of one name.
    """
    flags = _from_items(items)
    names = [file.stem for file in files]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two price files are called {name}: --prices; rename one")
    if not files:
        return [PriceList(prices=flags)]
    return [PriceList(file.stem, {**_from_file(file), **flags}) for file in files]


def given_prices(given: str | Path | Mapping[str, Any] | None) -> dict[str, Price]:
    """Prices as Python code gives them: the path of a TOML file, or a rate for each model.

    Args:
        given: of a mapping each value is cost per token, or {"in": ..., "out": ...}.

    Raises:
        InputError: a file or a rate that cannot be used.
    """
    if given is None:
        return {}
    if isinstance(given, str | Path):
        return _from_file(Path(given))
    return _from_table(given, ARGUMENT, ARGUMENT)


def prices_of(pool: Pool, given: Mapping[str, Price], known: Iterable[str]) -> dict[str, Price]:
    """The price of every model of a pool, references included.

    Args:
        pool: its own prices hold where none is given.
        given: prices that replace them.
        known: names that `given` may hold besides those of the pool.

    Raises:
        InputError: a price for a model that nobody knows.
    """
    prices = pool.prices()
    names = dict.fromkeys([*prices, *known])
    for name, price in given.items():
        if name not in names:
            where = f"{name}: {price.source}"
            raise InputError(
                f"price for an unknown model: {where}; {suggestion(name, names)}".rstrip("; ")
            )
    return prices | {name: given[name] for name in prices if name in given}


def _from_file(file: Path) -> dict[str, Price]:
    where = str(file)
    raw = parse_text(read_text(where, WHAT), WHAT, where)
    for key in raw:
        if key != "prices":
            raise InputError(f"unknown key {key}: {where}; prices stand below [prices]")
    table = raw.get("prices")
    if not isinstance(table, dict) or not table:
        raise InputError(f"no prices: {where}; write lines like model = 0.003 below [prices]")
    return _from_table(table, where, f"{WHAT} {file.name}")


def _from_table(table: Mapping[str, Any], where: str, source: str) -> dict[str, Price]:
    return {name: Price(_from_value(value, name, where), source) for name, value in table.items()}


def _from_value(value: Any, name: str, where: str) -> Rate:
    """A rate, or a table of two."""
    if not isinstance(value, dict):
        return Rate.base(rate_from(value, f"price of {name}", where))
    if set(value) != {"in", "out"}:
        raise InputError(
            f"price of {name} must be a number or {{ in = 0.001, out = 0.004 }}: {where}; "
            "a name with a dot stands in quotes"
        )
    tokens_in, tokens_out = (
        rate_from(value[side], f"price of {name}, {side}", where) for side in ("in", "out")
    )
    return Rate(tokens_in, tokens_out)


def _from_items(items: Sequence[str]) -> dict[str, Price]:
    prices: dict[str, Price] = {}
    for item in items:
        name, equals, value = item.partition("=")
        name = name.strip()
        sides = value.split(":")
        if not name or not equals or len(sides) > 2:
            raise InputError(
                f"not a price: {FLAG} {item}; e.g. {FLAG} calc=0.003 or calc=0.001:0.004"
            )
        if name in prices:
            raise InputError(f"duplicate price for {name}: {FLAG} {item}; give one")
        rates = [rate_from(_number(side), f"price of {name}", f"{FLAG} {item}") for side in sides]
        prices[name] = Price(Rate(rates[0], rates[-1]), FLAG)
    return prices


def _number(text: str) -> float | str:
    """The number in a text; the text where there is none, for the message."""
    try:
        return float(text)
    except ValueError:
        return text
