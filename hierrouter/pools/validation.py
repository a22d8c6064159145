"""Values that people wrote, checked by pydantic; what is wrong with them is said in one line.

The classes of a pool state what their fields may hold. pydantic is imported when the first value
is checked: to open a cache of one's own, it is not needed.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from hierrouter_cache.errors import InputError, suggestion

NO_MORE = {"extra": "forbid"}  # `__pydantic_config__` of a class that knows all its keys
TYPES = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a table",
}
UNKNOWN = "unexpected_keyword_argument"


@dataclass(frozen=True)
class Checked:
    """Annotates a field with one of pydantic's validators.

    Attributes:
        check: gives the value to keep; raises `ValueError` with a text that follows the key.
        before: asked before the type is looked at, not after.
    """

    check: Callable[[Any], Any]
    before: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import AfterValidator, BeforeValidator

        kind = BeforeValidator if self.before else AfterValidator
        return kind(self.check).__get_pydantic_core_schema__(source, handler)


def must_be(expected: str, holds: Callable[[Any], bool]) -> Checked:
    """A condition on a value; `expected` says it in the message."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(f"must be {expected}, got {value}")
        return value

    return Checked(check)


def validated(kind: Any, raw: object, where: str, key: str = "") -> Any:
    """A value from TOML or JSON as one of this type.

    Raises InputError: with the key, its place, and what is expected there.
    """
    from pydantic import ValidationError

    def refuse(value: object) -> None:  # a date, which TOML has and JSON has not
        raise InputError(
            f"{value!r:.40} is no value of a pool or a price: {where}; write a number, or a text "
            "in quotes"
        )

    try:
        # Only from JSON does pydantic take a list for a tuple, and a table for a class.
        return _adapter(kind).validate_json(json.dumps(raw, default=refuse), strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        first = min(faults, key=lambda fault: fault["type"] != UNKNOWN)  # a typing error first
        raise InputError(_line(first, kind, raw, where, key)) from None


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _line(fault: Mapping[str, Any], kind: Any, raw: Any, where: str, key: str) -> str:
    *path, name = fault["loc"] or (key,)
    item = isinstance(name, int)  # of a list
    if item:
        name = path.pop()
    keys, place = _at(path, kind, raw, where)
    if fault["type"] == UNKNOWN:
        if name == "api_key":
            return f"api_key must not stand in a file: {place}; use api_key_env"
        return unknown_key(name, keys, place)
    if fault["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        given = str(fault["input"])[:40]
        return f"unknown {name} {given}: {place}; {suggestion(given, known)}".rstrip("; ")
    if fault["type"] == "missing":
        text = "is missing; each [[models]] entry needs one"
    elif fault["type"] == "value_error":
        text = str(fault["ctx"]["error"])
    elif item and fault["type"] == "dataclass_type":
        text = f"must be tables; write [[{name}]] above each entry"
    else:
        expected = TYPES.get(fault["type"], "shorter and flatter")
        text = f"must be {'a list, each ' if item else ''}{expected}, got {fault['input']!r:.40}"
    what, _, remedy = text.partition("; ")
    return f"{name} {what}: {place}; {remedy}".rstrip("; ")


def _at(path: list[Any], kind: Any, raw: Any, where: str) -> tuple[list[str], str]:
    """The keys of the class at a path within `kind`, and the path for people."""
    for step in path:
        raw = raw[step]
        if isinstance(step, int):
            where += f", model {raw.get('name', '?')}"
            continue
        hint = get_type_hints(kind)[step]
        kind = next(part for part in (hint, *get_args(hint)) if is_dataclass(part))
        if isinstance(raw, dict):
            where += f" {step}"
    return [item.name for item in fields(kind)] if is_dataclass(kind) else [], where


def unknown_key(key: str, known: Iterable[str], where: str) -> str:
    """What to say of a key that is none of these."""
    return f"unknown key {key}: {where}; {suggestion(key, known)}".rstrip("; ")
