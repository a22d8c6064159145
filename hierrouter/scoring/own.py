"""A scorer of the user's own: `module:function`.

In: the path of a function that can be imported. Out: a `Scorer` that lets nothing but numbers in
[0, 1] through. Its version is a digest of the source files of the module named and of the module
that defines the function. Not covered: where Python looks for modules, which is the caller's
business, and what that code imports from further files; a change there is not seen.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Sequence
from typing import Any

from hierrouter.import_path import import_path, own_code, source_digest, source_file
from hierrouter.scoring.scorer import ScoreFunction, Scorer
from hierrouter_cache.errors import InputError

EXCERPT = 40  # characters of a response in an error


def own_scorer(path: str) -> Scorer:
    """The function at an import path, checked at every call.

    Raises:
        InputError: the path is not `module:function`, the module cannot be imported, has no such
            function, or the function does not take (response, references).
    """
    module_name, attribute = import_path(path, "--scorer module:function")
    remedy = "the module must be importable from here or installed"
    with own_code(f"scorer cannot be imported: {path}", remedy):
        module = importlib.import_module(module_name)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InputError(
            f"no function {attribute} in module {module_name}: {source_file(module)}; "
            f"--scorer {path} needs one"
        )
    _require_two_arguments(function, path)
    return Scorer(path, source_digest(module, function), _checked(function, path))


def _require_two_arguments(function: Any, path: str) -> None:
    try:
        inspect.signature(function).bind("response", ("reference",))
    except TypeError:
        raise InputError(
            f"scorer takes other arguments: {path}; write def {path.partition(':')[2]}"
            "(response, references) -> float"
        ) from None
    except ValueError:  # written in C, it does not tell
        return


def _checked(function: Any, path: str) -> ScoreFunction:
    def score(response: str, references: Sequence[str], /) -> float:
        call = f"on the response {_short(response)!r}"
        with own_code(f"scorer failed: {path}", call):
            value = function(response, tuple(references))
        number = _number(value)
        if not 0 <= number <= 1:  # nor is NaN
            raise InputError(
                f"scorer gave {_short(repr(value))}: {path}; {call}; a score is from 0 to 1"
            )
        return number

    return score


def _number(value: Any) -> float:
    """The value as a float; NaN where it is no number."""
    if isinstance(value, str | bytes):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _short(text: str) -> str:
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}..."
