"""A real full disk: refused in one line, nothing lost, and it goes on when there is room."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SOURCES, environment

MOUNT = 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'
INSIDE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT)


def inside(disk: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a tmpfs of 1 MB at `disk`, in a mount namespace of its own."""
    return subprocess.run(
        [*INSIDE, str(disk), *command],
        cwd=SOURCES,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_full_disk_costs_nothing_that_was_committed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        possible = inside(disk, "true")
    except OSError as error:
        pytest.skip(f"no small tmpfs here: {error}")
    if possible.returncode:
        pytest.skip(f"no small tmpfs here: {possible.stderr.strip()}")
    done = inside(disk, sys.executable, "-m", "tests.cache.full_disk", str(disk))
    assert done.returncode == 0, done.stderr
    happened = json.loads(done.stdout)
    for message in happened["full"].values():
        assert "No space left on device" in message
        assert "\n" not in message
    committed = happened["done"]
    assert committed > 3
    assert (happened["tmp"], happened["parts"]) == (0, committed)
    assert "report.json" not in happened["names"]
    assert not any(name.endswith(".tmp") for name in happened["names"])
    # With room again it goes on; copies that found room before are not made again.
    assert happened["after"] == {"parts": 1, "rows": 4 * (committed + 1)}
    assert all(0 < copied <= 3 for copied in happened["copied"])
    assert happened["sound"] == [1 + 3, 3]
