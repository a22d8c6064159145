"""Check values from pool and price files with pydantic, and describe faults in one line.

The classes of a pool declare what their fields may be. pydantic is imported when the first value is
checked, so that a program that only opens its own caches does not need it.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from hierrouter_cache.errors import InputError, suggestion

FORBID_EXTRA_KEYS = {"extra": "forbid"}  # `__pydantic_config__` of a class that knows all its keys
EXPECTED_BY_FAULT = {  # type of fault of pydantic, and what is expected then
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a table",
}
UNKNOWN_KEY_FAULT = "unexpected_keyword_argument"
WRITTEN_NAMES = {"roles": "actions"}  # keys of a pool file that are not the names of fields


@dataclass(frozen=True)
class FieldCheck:
    """Annotates a field with a validator of pydantic.

    Attributes:
        check: returns the value to keep; raises a `ValueError` whose text follows the key.
        before: called before pydantic checks the type, not after.
    """

    check: Callable[[Any], Any]
    before: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import AfterValidator, BeforeValidator

        validator = BeforeValidator if self.before else AfterValidator
        return validator(self.check).__get_pydantic_core_schema__(source, handler)


def must_be(expected: str, condition: Callable[[Any], bool]) -> FieldCheck:
    """A condition on a value.

    Args:
        expected: describes the condition in the message.
        condition: whether the value is allowed.
    """

    def check(value: Any) -> Any:
        if not condition(value):
            raise ValueError(f"must be {expected}, got {value}")
        return value

    return FieldCheck(check)


def validate(kind: Any, raw: object, where: str, key: str = "") -> Any:
    """Convert a value from TOML or JSON to a type, and check it.

    Args:
        kind: a type that pydantic can check.
        raw: the value.
        where: names the file in messages.
        key: the key of the value, if it is not a table.

    Raises:
        InputError: with the key, its position, and what is expected there.
    """
    from pydantic import ValidationError

    def refuse(value: object) -> None:  # TOML has dates, which JSON does not have
        raise InputError(
            f"{value!r:.40} is no value of a pool or a price: {where}; write a number, or a text "
            "in quotes"
        )

    # In strict mode, pydantic takes a list for a tuple and a table for a class only from JSON.
    text = json.dumps(raw, default=refuse)
    try:
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        # An unknown key may be a typing error, and the cause of the other faults.
        first = min(faults, key=lambda fault: fault["type"] != UNKNOWN_KEY_FAULT)
        raise InputError(_message(first, kind, raw, where, key)) from None


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _message(fault: Mapping[str, Any], kind: Any, raw: Any, where: str, key: str) -> str:
    """The message of one fault: key, problem, position, and what to do."""
    *path, name = fault["loc"] or (key,)
    is_list_entry = isinstance(name, int)
    if is_list_entry:
        name = path.pop()
    keys, where = _describe_path(path, kind, raw, where)
    if fault["type"] == UNKNOWN_KEY_FAULT:
        if name == "api_key":
            return f"api_key must not stand in a file: {where}; use api_key_env"
        return unknown_key(name, keys, where)
    if fault["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        value = str(fault["input"])[:40]
        return f"unknown {name} {value}: {where}; {suggestion(value, allowed)}".rstrip("; ")
    if fault["type"] == "missing":
        text = f"is missing; each [[{_table_name(fault['loc'])}]] entry needs one"
    elif fault["type"] == "value_error":
        text = str(fault["ctx"]["error"])
    elif is_list_entry and fault["type"] == "dataclass_type":
        text = f"must be tables; write [[{WRITTEN_NAMES.get(name, name)}]] above each entry"
    else:
        expected = EXPECTED_BY_FAULT.get(fault["type"], "shorter and flatter")
        if is_list_entry:
            expected = f"a list, each {expected}"
        text = f"must be {expected}, got {fault['input']!r:.40}"
    problem, _, remedy = text.partition("; ")
    return f"{name} {problem}: {where}; {remedy}".rstrip("; ")


def _table_name(path: Iterable[Any]) -> str:
    """The key of the list of tables that a fault is in, as people write it."""
    first = next(iter(path), "models")
    return WRITTEN_NAMES.get(first, str(first))


def _describe_path(path: list[Any], kind: Any, raw: Any, where: str) -> tuple[list[str], str]:
    """Follow the path of a fault into a value.

    Returns:
        the keys that the class at the end of the path has, and the path in words.
    """
    entry = "model"
    for step in path:
        raw = raw[step]
        if isinstance(step, int):
            where += f", {entry} {raw.get('name', '?')}"
            continue
        entry = "action" if step == "roles" else "model"
        hint = get_type_hints(kind)[step]
        # Of `X | None` or `tuple[X, ...]`, the class X.
        kind = next(part for part in (hint, *get_args(hint)) if is_dataclass(part))
        if isinstance(raw, dict):
            where += f" {step}"
    keys = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    return keys, where


def unknown_key(key: str, allowed: Iterable[str], where: str) -> str:
    """The message for a key that is not allowed."""
    return f"unknown key {key}: {where}; {suggestion(key, allowed)}".rstrip("; ")
