"""What a model costs, and who says so.

In: the numbers of a pool file or a price list, or a model's name. Out: `Price`, a rate per token
with its source; where nobody gives a rate, one by the number of parameters. Not covered: reading
price lists (`price_lists`), tokens times rates (`hierrouter_cache.pricing`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hierrouter_cache.errors import InputError
from hierrouter_cache.pricing import Rate
from hierrouter_cache.tree import RouteTree

POOL = "pool"
SIZE = "size"
# The paper's list (appendix B) for its models of 3, 8 and 14 billion parameters; its model of 1.5
# billion stands there with 0.002 instead of 0.0015.
RATE_PER_BILLION = 0.001
BILLION = 1e9
FEWEST_PARAMETERS = 1e3  # less is a count in billions, written as a plain number
UNITS = {"b": 1e9, "m": 1e6}
# A size in a name stands between delimiters: `-3B-`, `_7b`, `-8x7B`; not `v0.1b2`.
SIZE_IN_NAME = re.compile(
    r"(?<![A-Za-z0-9.])(?:(\d{1,9})x)?(\d{1,9}(?:\.\d+)?)([bm])(?![A-Za-z0-9])", re.IGNORECASE
)


@dataclass(frozen=True)
class Price:
    """The rate of one model.

    Attributes:
        rate: cost per token in and out.
        source: who says so: "pool", "price file NAME", "--price", or "size (3B)".
    """

    rate: Rate
    source: str


def size_in(name: str) -> float | None:
    """Parameters of a model by its name: `x-3B-Instruct` is 3e9, `8x7B` 56e9, `350M` 350e6.

    None where the name tells no size; of several sizes the first one counts.
    """
    found = SIZE_IN_NAME.search(name)
    if not found:
        return None
    experts, number, unit = found.groups()
    return int(experts or 1) * float(number) * UNITS[unit.lower()] or None


def price_by_size(parameters: float) -> Price:
    """The heuristic price of a model (paper section 3.1): 0.001 per token and billion parameters.

    Args:
        parameters: how many the model has.
    """
    rate = Rate.base(_rounded(RATE_PER_BILLION * parameters / BILLION))
    return Price(rate, f"{SIZE} ({_size_name(parameters)})")


def rate_from(value: Any, what: str, where: str) -> float:
    """A rate that a person wrote, per token.

    Raises:
        InputError: it is no number, negative, NaN or infinite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{what} must be a number, got {value!r:.40}: {where}")
    try:
        rate = float(value)
    except OverflowError:
        rate = math.inf
    if not math.isfinite(rate) or rate < 0:
        raise InputError(f"{what} must be finite and >= 0, got {rate}: {where}")
    return rate + 0.0  # not -0.0


def parameters_from(value: Any, where: str) -> float:
    """A number of parameters that a person wrote: 3.0e9 or "3B".

    Raises:
        InputError: it is neither.
    """
    if isinstance(value, str):
        found = SIZE_IN_NAME.fullmatch(value.strip()) and size_in(value)
        if not found:
            raise InputError(f'parameters must be like "3B" or 3.0e9, got {value!r:.40}: {where}')
        return found
    count = rate_from(value, "parameters", where)
    if count < FEWEST_PARAMETERS:
        raise InputError(f'parameters must be like "3B" or 3.0e9, got {count:g}: {where}')
    return count


def guesses(tree: RouteTree) -> str | None:
    """A sentence that names the models whose price is by their size alone, or None."""
    guessed = [
        f"price of {name} unknown: {rate:g} per token by its {source}"
        for name, rate in zip(tree.direct.models, tree.direct.rate[:, 0].tolist(), strict=True)
        if (source := tree.priced_by.get(name, "")).startswith(SIZE)
    ]
    return f"{', '.join(guessed)}; give base_rate or --price" if guessed else None


def price_table(tree: RouteTree) -> dict[str, dict[str, Any]]:
    """JSON values: the rates of every model of a tree, per token, and where they are from."""
    return {
        name: {"in": rate[0], "out": rate[1], "source": tree.priced_by.get(name, POOL)}
        for name, rate in zip(tree.direct.models, tree.direct.rate.tolist(), strict=True)
    }


def rates_of(prices: Mapping[str, Price]) -> dict[str, Rate]:
    """The rates alone, by model."""
    return {name: price.rate for name, price in prices.items()}


def _size_name(parameters: float) -> str:
    unit, scale = ("B", BILLION) if parameters >= BILLION else ("M", UNITS["m"])
    return f"{parameters / scale:.4g}{unit}"


def _rounded(rate: float) -> float:
    """Without the last bits of a product: 0.003 for 3 billion."""
    return float(f"{rate:.12g}")
