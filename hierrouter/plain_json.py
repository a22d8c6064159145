"""JSON that is the same bytes each time.

In: dictionaries, lists, texts, numbers. Out: text with sorted keys, floats cut to 12 significant
digits so that the last bits of a sum do not show. Not covered: which keys there are, and reading
(`json_lines`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hierrouter_cache.errors import InputError

DIGITS = 12


def json_text(found: Mapping[str, Any], what: str) -> str:
    """An object, indented, ASCII only, with a newline at its end.

    Args:
        what: it is, for the error.

    Raises:
        InputError: it holds what JSON cannot say.
    """
    try:
        text = json.dumps(_plain(found), sort_keys=True, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"not JSON: {what}: {error}; give texts and finite numbers") from None
    return f"{text}\n"


def significant(value: float) -> float:
    """`value` to 12 significant digits, without a negative zero."""
    return float(f"{value:.{DIGITS}g}") + 0.0


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
