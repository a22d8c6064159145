"""A user's own code, named by an import path `module:attribute`: a scorer, a baseline, a policy."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from hierrouter_cache.errors import InputError, typed_reason


def import_path(path: str, usage: str) -> tuple[str, str]:
    """Split an import path.

    Args:
        path: `module:attribute`.
        usage: how to write the path, for the error.

    Returns:
        the name of the module, and that of the attribute.

    Raises:
        InputError: one of them is missing, or the module is given as a file.
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
    """Run a user's own code; turn any error in it into an `InputError` of one line.

    Args:
        failure: what went wrong and where, for the message.
        remedy: what to do about it.
        passing: types of errors that are raised unchanged.

    Raises:
        InputError: the code raised an error, or called `sys.exit`.
    """
    try:
        yield
    except passing:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{failure}: {typed_reason(error)}; {remedy}") from error


DIGEST_CHARACTERS = 12
# The digest of code without a source file, such as a module written in C.
NO_SOURCE = hashlib.sha256().hexdigest()[:DIGEST_CHARACTERS]


def source_digest(module: ModuleType, attribute: Any) -> str:
    """Digest of the sources of a module and of the module that defines its attribute.

    Files that this code imports are not included.

    Returns:
        12 hexadecimal characters.
    """
    defining_name = getattr(attribute, "__module__", None) or module.__name__
    defining_module = sys.modules.get(defining_name, module)
    content = hashlib.sha256()
    for file in dict.fromkeys((source_file(module), source_file(defining_module))):
        content.update(Path(file).read_bytes() if file else b"")
    return content.hexdigest()[:DIGEST_CHARACTERS]


def source_file(module: ModuleType) -> str:
    """Path of a module's source; empty for a module without a file."""
    return getattr(module, "__file__", None) or ""
