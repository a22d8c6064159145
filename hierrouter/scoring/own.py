"""A scorer of the user's own: `module:function`.

In: the path of a function that can be imported. Out: a `Scorer` that lets nothing but numbers in
[0, 1] through. Its version is a digest of the source files of the module named and of the module
that defines the function. Not covered: where Python looks for modules, which is the caller's
business, and what that code imports from further files; a change there is not seen.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hierrouter.import_path import import_path
from hierrouter.scoring.scorer import ScoreFunction, Scorer
from hierrouter_cache.errors import InputError, named_reason

EXCERPT = 40  # characters of a response in an error


def own_scorer(path: str) -> Scorer:
    """The function at an import path, checked at every call.

    Raises:
        InputError: the path is not `module:function`, the module cannot be imported, has no such
            function, or the function does not take (response, references).
    """
    module_name, attribute = import_path(path, "--scorer module:function")
    module = _imported(module_name, path)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InputError(
            f"no function {attribute} in module {module_name}: {_file(module)}; "
            f"--scorer {path} needs one"
        )
    _require_two_arguments(function, path)
    return Scorer(path, _version(module, function), _checked(function, path))


def _imported(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"scorer cannot be imported: {path}: {named_reason(error)}; "
            "the module must be importable from here or installed"
        ) from error


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


def _version(module: ModuleType, function: Any) -> str:
    defining = sys.modules.get(getattr(function, "__module__", None) or module.__name__, module)
    total = hashlib.sha256()
    for file in dict.fromkeys((_file(module), _file(defining))):
        total.update(Path(file).read_bytes() if file else b"")
    return total.hexdigest()[:12]


def _file(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or ""


def _checked(function: Any, path: str) -> ScoreFunction:
    def score(response: str, references: Sequence[str], /) -> float:
        call = f"on the response {_short(response)!r}"
        try:
            value = function(response, tuple(references))
        except (Exception, SystemExit) as error:
            raise InputError(f"scorer failed: {path}: {named_reason(error)}; {call}") from error
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
