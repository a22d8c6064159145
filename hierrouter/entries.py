"""Typed values out of a parsed table.

In: a table of a TOML file, a key. Out: the value, or one line that says what is expected there.
Not covered: reading the file (`hierrouter.toml_file`), what the values mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hierrouter.pool import suggestion
from hierrouter_cache.errors import InputError

KINDS = {dict: "a table", list: "a list", str: "a text", bool: "true or false"}


def of(kind: type, raw: Mapping[str, Any], key: str, where: str, default: Any) -> Any:
    """A value of this type, or the default where the key is missing.

    Raises:
        InputError: it is of another type.
    """
    value = raw.get(key, default)
    if key in raw and not isinstance(value, kind):
        raise InputError(f"{key} must be {KINDS[kind]}, got {value!r:.40}: {where}")
    return value


def one_of(
    known: tuple[str, ...], raw: Mapping[str, Any], key: str, where: str, default: str
) -> str:
    """One of these words.

    Raises:
        InputError: it is none of them.
    """
    value: str = of(str, raw, key, where, default)
    if value not in known:
        raise InputError(f"unknown {key} {value}: {where}; known: {', '.join(known)}")
    return value


def number(
    raw: Mapping[str, Any], key: str, kind: type, where: str, default: float | None = None
) -> Any:
    """An int or a float, as `kind` says; without a default it must be there.

    Raises:
        InputError: it is not there, no number, or one that no float holds.
    """
    value = raw.get(key, default)
    if value is None:
        raise InputError(f"{key} is missing: {where}; write one")
    accepted = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, accepted):
        name = "an integer" if kind is int else "a number"
        raise InputError(f"{key} must be {name}, got {value!r}: {where}")
    try:
        return kind(value)
    except OverflowError:
        raise InputError(f"{key} is too great: {where}; give a smaller one") from None


def require_known(raw: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    """Refuse a key that is not among `keys`.

    Raises:
        InputError: with the key that was meant, where one is close.
    """
    known = list(keys)
    for key in raw:
        if key not in known:
            raise InputError(f"unknown key {key}: {where}; {suggestion(key, known)}".rstrip("; "))
