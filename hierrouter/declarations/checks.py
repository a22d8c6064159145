"""The rules for single values that a user gives, each in one place.

A check takes what the user gave, text from the command line or a value from Python, and the name
of the argument. It returns the value, or raises an InputError that names flag or argument.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hierrouter.declarations.declaration import Check, shown_value
from hierrouter_cache import MAX_DRAWS
from hierrouter_cache.errors import InputError, suggestion

MAX_ALPHA = 1e9  # far beyond any use; float32 overflows near 1e38
AUTOMATIC = "auto"


def _number(value: Any, name: str, subject: str, example: str) -> float:
    """Return a number that was given as such or as text; it may be infinite or NaN.

    Raises:
        InputError: it is no number.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(
            f"{subject} must be a number: {shown_value(name, value)}; "
            f"e.g. {name}{'' if name.endswith('=') else ' '}{example}"
        ) from None


def check_alpha(value: Any, name: str = "alpha=") -> float:
    """Return alpha, the price of cost in R = Q - alpha * C (paper section 3.1).

    Raises:
        InputError: it is no finite number from 0 to `MAX_ALPHA`.
    """
    alpha = _number(value, name, "alpha", "0.005")
    if not math.isfinite(alpha):
        raise InputError(f"alpha must be finite: {shown_value(name, value)}")
    if alpha < 0:
        raise InputError(f"alpha must be >= 0, not negative: {shown_value(name, value)}")
    if alpha > MAX_ALPHA:
        raise InputError(f"alpha must be at most {MAX_ALPHA:g}: {shown_value(name, value)}")
    return alpha


def check_alphas(value: Any, name: str = "alphas=") -> tuple[float, ...] | str:
    """Return ascending distinct alphas, or "auto".

    Args:
        value: numbers, or text such as "0,0.005", or "auto".

    Raises:
        InputError: there is no number, or something that is not an alpha.
    """
    if isinstance(value, str):
        if value.strip() == AUTOMATIC:
            return AUTOMATIC
        items: Sequence[Any] = [item.strip() for item in value.split(",")]
        if not all(items):
            raise InputError(
                f"empty item in alphas: {shown_value(name, repr(value))}; "
                f"e.g. {shown_value(name, '0,0.005,0.02')}"
            )
    else:
        items = list(value)
    if not items:
        raise InputError(f"no alphas: {name}; give at least one, or {AUTOMATIC}")
    return tuple(sorted({check_alpha(item, name) for item in items}))


def check_draws(value: Any, name: str) -> int | str:
    """Return a number of draws of each call, or the least and the most, such as "2..8".

    Raises:
        InputError: it is something else.
    """
    text = str(value).strip()
    numbers = text.split("..")
    is_whole = all(number.isascii() and number.isdecimal() for number in numbers)
    if is_whole and len(numbers) == 1 and 1 <= int(text) <= MAX_DRAWS:
        return int(text)
    if is_whole and len(numbers) == 2 and 2 <= int(numbers[0]) < int(numbers[1]) <= MAX_DRAWS:
        return text
    raise InputError(
        f"not a number of draws: {shown_value(name, text[:40])}; 1 to {MAX_DRAWS}, or the least, 2 "
        "or more, and the most, such as 2..8"
    )


def check_cost(value: Any, name: str) -> float:
    """Return a finite cost above 0, in money.

    Raises:
        InputError: it is something else.
    """
    return _above_zero(value, name, "a cost")


def check_seconds(value: Any, name: str) -> float:
    """Return a finite time above 0, in seconds.

    Raises:
        InputError: it is something else.
    """
    return _above_zero(value, name, "a time")


def check_price(value: Any, name: str) -> float:
    """Return a finite price, which may be 0.

    Raises:
        InputError: it is something else.
    """
    price = _number(value, name, "a price", "0.8")
    if not 0 <= price < math.inf:
        raise InputError(f"a price must be finite and >= 0: {shown_value(name, value)}")
    return price


def _above_zero(value: Any, name: str, subject: str) -> float:
    number = _number(value, name, subject, "0.8")
    if not 0 < number < math.inf:
        raise InputError(f"{subject} must be finite and above 0: {shown_value(name, value)}")
    return number


def check_share(value: Any, name: str) -> float:
    """Return a share from 0 to 1.

    Raises:
        InputError: it is something else.
    """
    share = _number(value, name, "a share", "0.1")
    if not 0 <= share <= 1:
        raise InputError(
            f"a share must be from 0 to 1: {shown_value(name, value)}; e.g. 0.1 for a tenth"
        )
    return share


def split_names(value: str | Sequence[str] | None) -> list[str] | None:
    """Return names as a list, given as such or as "a,b"; None stays None.

    Empty items are kept: whoever looks the names up refuses them, with the names there are.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return [name.strip() for name in value.split(",")]
    return list(value)


def check_names(value: str | Sequence[str], name: str) -> tuple[str, ...]:
    """Return names given as a list or as "a,b"."""
    return tuple(split_names(value) or ())


def check_path(value: str | os.PathLike[str], name: str) -> Path:
    """Return a path; whether something lies there is looked up later."""
    return Path(value)


def check_text(value: Any, name: str) -> str:
    """Return a text or a path as text."""
    return os.fspath(value)


def check_prices(value: Any, name: str) -> Mapping[str, Any] | tuple[Path, ...]:
    """Return prices: a mapping as it is, or TOML files, of which one may be given alone."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, str | os.PathLike):
        value = [value]
    return tuple(Path(file) for file in value)


def check_algorithm(names: Sequence[str]) -> Check:
    """Return a check of an algorithm: one of these, an import path, or a function from Python.

    Whether there is something at the path is looked up later.
    """
    check_name = one_of("algorithm", names)

    def check(value: Any, name: str) -> Any:
        is_own = callable(value) or (isinstance(value, str) and ":" in value)
        return value if is_own else check_name(value, name)

    return check


def one_of(subject: str, names: Sequence[str]) -> Check:
    """Return a check that refuses all words but these.

    Args:
        subject: what the words are, for the message: "algorithm".
        names: the words.
    """

    def check(value: Any, name: str) -> str:
        if value not in names:
            hint = suggestion(str(value), names).rstrip("; ")
            raise InputError(f"unknown {subject}: {value}; {hint}")
        return str(value)

    return check


def each_of(subject: str, words: Sequence[str]) -> Check:
    """Return a check of names given as a list or as "a,b", which refuses all words but these.

    Args:
        subject: what the words are, for the message: "log target".
        words: the words.
    """
    check_word = one_of(subject, words)

    def check_words(value: Any, name: str) -> tuple[str, ...]:
        return tuple(check_word(word, name) for word in dict.fromkeys(check_names(value, name)))

    return check_words


def each(check: Callable[[Any, str], Any]) -> Check:
    """Return a check for a flag that may be repeated: one value, or several."""

    def check_all(values: Any, name: str) -> tuple[Any, ...]:
        if isinstance(values, str | os.PathLike):
            values = [values]
        return tuple(check(value, name) for value in values)

    return check_all
