"""Code of the user's own, by its import path `module:attribute`: a scorer, a baseline, a policy."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from hierrouter_cache.errors import InputError, typed_reason


def import_path(path: str, usage: str) -> tuple[str, str]:
    """Module and attribute.

    Raises InputError: one of them is missing, or the module is given as a file.

    `usage`: how to write it, for the error.
    """
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise InputError(f"not an import path: {path!r}; write {usage}")
    if module.endswith(".py"):
        name = module.removesuffix(".py").strip("./").replace("/", ".")
        raise InputError(f"a file is no import path: {path!r}; write {name}:{attribute}")
    return module, attribute


@contextmanager
def own_code(
    failure: str, remedy: str, passing: tuple[type[BaseException], ...] = ()
) -> Iterator[None]:
    """Run code of the user's own: what it raises is an `InputError` of one line.

    Raises InputError: the code failed, or ended the program.

    `failure`: what went wrong, and where; `remedy`: what to do about it; `passing`: errors that are
    left as they are.
    """
    try:
        yield
    except passing:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{failure}: {typed_reason(error)}; {remedy}") from error


NO_SOURCE = hashlib.sha256().hexdigest()[:12]  # the digest of code whose source is not there


def source_digest(module: ModuleType, attribute: Any) -> str:
    """Of the source of a module and of the one that defines its attribute: 12 characters.

    What that code imports from further files is not seen.
    """
    defining = sys.modules.get(getattr(attribute, "__module__", None) or module.__name__, module)
    total = hashlib.sha256()
    for file in dict.fromkeys((source_file(module), source_file(defining))):
        total.update(Path(file).read_bytes() if file else b"")
    return total.hexdigest()[:12]


def source_file(module: ModuleType) -> str:
    """Where a module's source is; empty for one that has none."""
    return getattr(module, "__file__", None) or ""
