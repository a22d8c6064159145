"""What was given with a flag, as a value, or why not."""

from __future__ import annotations

import math
from typing import overload

from hierrouter_cache.errors import InputError
from hierrouter_cli.options import FORMATS


def split_names(text: str | None) -> list[str] | None:
    """`a,b` as a list; None stays None; empty items are kept for the check further down."""
    return None if text is None else [name.strip() for name in text.split(",")]


@overload
def parse_alpha(text: str, flag: str = ...) -> float: ...
@overload
def parse_alpha(text: None, flag: str = ...) -> None: ...
def parse_alpha(text: str | None, flag: str = "--alpha") -> float | None:
    """A finite number >= 0; None stays None.

    Raises:
        InputError: anything else.
    """
    if text is None:
        return None
    value = _number(text, f"alpha must be a number: {flag} {text}; such as 0.005")
    if not math.isfinite(value):
        raise InputError(f"alpha must be finite: {flag} {text}")
    if value < 0:
        raise InputError(f"alpha must be >= 0, not negative: {flag} {text}")
    return value


def _number(text: str, refusal: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(refusal) from None


def parse_alphas(text: str) -> tuple[float, ...] | None:
    """Ascending distinct alphas, or None for `auto`.

    Raises:
        InputError: no number, or something that is none.
    """
    if text.strip() == "auto":
        return None
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise InputError(f"empty item in alphas: --alphas {text!r}; e.g. --alphas 0,0.005,0.02")
    return tuple(sorted({parse_alpha(item, "--alphas") for item in items}))


def parse_cost(text: str | None, flag: str) -> float | None:
    """A finite number above 0; None stays None.

    Raises:
        InputError: anything else.
    """
    if text is None:
        return None
    value = _number(text, f"a cost must be a number: {flag} {text}; e.g. {flag} 0.8")
    if not math.isfinite(value) or value <= 0:
        raise InputError(f"a cost must be finite and above 0: {flag} {text}")
    return value


def parse_share(text: str | None, defer_to: str | None) -> float | None:
    """A number from 0 to 1; None stays None.

    Args:
        defer_to: the model that the share is for.

    Raises:
        InputError: anything else, or no model to hand over to.
    """
    if text is None:
        return None
    if defer_to is None:
        raise InputError(f"no model to hand over to: --defer-share {text}; give --defer-to MODEL")
    value = _number(text, f"a share must be a number: --defer-share {text}; e.g. --defer-share 0.1")
    if not 0 <= value <= 1:
        raise InputError(f"a share must be from 0 to 1: --defer-share {text}; e.g. 0.1 for a tenth")
    return value


def check_split(name: str) -> None:
    """Refuse an unknown fold before anything is loaded.

    Raises:
        InputError: it is not one of the three.
    """
    from hierrouter_cache.errors import suggestion
    from hierrouter_cache.tree import SPLITS

    if name not in SPLITS:
        raise InputError(f"unknown split: {name}; {suggestion(name, SPLITS)}".rstrip("; "))


def check_format(name: str, known: tuple[str, ...] = FORMATS) -> str:
    """The format's name.

    Raises:
        InputError: it is not one of `known`.
    """
    from hierrouter_cache.errors import suggestion

    if name not in known:
        raise InputError(f"unknown format: {name}; {suggestion(name, known)}".rstrip("; "))
    return name
