"""Does this installation work, and what can it do here?

In: the folder of a cache. Out: `Finding`s, from the ground up: packages, machine, disk, cache, run.
Nothing is mended, and nothing stays behind. Not covered: every row of a cache, which `hierrouter
cache verify` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from hierrouter.doctor.finding import Finding
from hierrouter_cache.errors import HierRouterError, WorldError, reason_of

__all__ = ["Finding", "examine"]

Check = Callable[[], Iterator[Finding]]


def examine(cache: Path) -> Iterator[Finding]:
    """Look at everything, each thing when the one before was told.

    Args:
        cache: its folder, there or not.
    """
    from hierrouter.doctor import installed, machine, places, shipped

    checks: dict[str, Check] = {
        "packages": installed.packages,
        "extras": installed.extras,
        "devices": machine.devices,
        "testbed": shipped.shipped_models,
        "paper's encoder": shipped.paper_encoder,
        "hub": machine.hub,
        "disk": lambda: places.disk(cache),
        "cache": lambda: places.cache(cache),
        "router": places.router,
    }
    for subject, check in checks.items():
        yield from _found(subject, check)


def _found(subject: str, check: Check) -> Iterator[Finding]:
    """What a check finds; what it raises is found, too."""
    try:
        yield from check()
    except HierRouterError as error:
        yield Finding.of_error(subject, error)
    except ImportError as error:
        broken = WorldError(f"broken package: {reason_of(error, 160)}; install it again")
        yield Finding.of_error(subject, broken)
    except OSError as error:
        hidden = WorldError(
            f"cannot look: {reason_of(error, 160)}; check the disk and its permissions"
        )
        yield Finding.of_error(subject, hidden)
