"""Code of the user's own, by its import path `module:attribute`.

In: what a user typed. Out: its two parts. Not covered: what is looked for in the module
(`scoring.own`, `baselines.own`).
"""

from __future__ import annotations

from hierrouter_cache.errors import InputError


def import_path(path: str, usage: str) -> tuple[str, str]:
    """Module and attribute.

    Args:
        usage: how to write it, for the error.

    Raises:
        InputError: one of them is missing.
    """
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise InputError(f"not an import path: {path!r}; write {usage}")
    return module, attribute
