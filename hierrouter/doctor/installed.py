"""Are all packages installed, and recent enough?

In: what this package says that it needs. Out: a finding for each thing that people ask for first,
one for what is missing or too old, one for each extra. Nothing is imported. Not covered: whether
they work together, which the tests find out.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from hierrouter import __version__
from hierrouter.doctor.finding import Finding
from hierrouter_cache.errors import WorldError

NAME = "hierrouter"
SHOWN = ("torch", "transformers", "tianshou", "sentence-transformers", "duckdb", "pyarrow")
EXTRAS = {
    "hub": "the paper's datasets from the hub",
    "ray": "collect --engine ray",
    "serve": "hierrouter serve",
    "vllm": "collect --backend vllm",
}


def packages() -> Iterator[Finding]:
    """Versions of this package, of Python and of the larger libraries; what is missing."""
    yield Finding(NAME, "ok", f"{__version__}, Python {platform.python_version()}")
    unmet = list(_unmet(requirements()))
    if unmet:
        raise WorldError(f"{', '.join(unmet)}; pip install --upgrade {NAME}")
    shown = ", ".join(f"{name} {version(name)}" for name in SHOWN)
    yield Finding("packages", "ok", shown)


def extras() -> Iterator[Finding]:
    """Each extra that a user can install, and what it is for."""
    for extra, use in EXTRAS.items():
        wanted = requirements(extra)
        unmet = list(_unmet(wanted)) if wanted else ["unknown to what was installed"]
        if unmet:
            remedy = f"pip install '{NAME}[{extra}]' for {use}"
            yield Finding(f"extra {extra}", "note", f"{', '.join(unmet)}; {remedy}")
        else:
            yield Finding(f"extra {extra}", "ok", f"installed: {use}")


def requirements(extra: str = "") -> list[Requirement]:
    """What this package needs; of an extra, what it needs besides.

    Raises:
        WorldError: the package is not installed, its files merely lie there.
    """
    try:
        listed = [Requirement(line) for line in requires(NAME) or []]
    except PackageNotFoundError:
        raise WorldError(f"{NAME} is not installed; pip install it from its folder") from None
    return [
        each
        for each in listed
        if (each.marker is None and not extra)
        or (each.marker is not None and each.marker.evaluate({"extra": extra}))
    ]


def _unmet(wanted: Iterable[Requirement]) -> Iterator[str]:
    """What is wrong with each requirement that is not met."""
    for each in wanted:
        try:
            found = version(each.name)
        except PackageNotFoundError:
            yield f"{each.name} is not installed"
            continue
        if not each.specifier.contains(found, prereleases=True):
            yield f"{each.name} {found} is installed, {each.specifier} is needed"
