"""A real full disk: refused in one line, nothing lost, and it goes on when there is room."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import SOURCES, environment

MOUNT = 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'


@pytest.fixture(scope="module")
def happened(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `full_disk` saw on a tmpfs of 1 MB, in a mount namespace of its own."""
    disk = tmp_path_factory.mktemp("disk")
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, str(disk)]
    try:
        possible = subprocess.run([*inside, "true"], capture_output=True, text=True, timeout=60)
    except OSError as error:
        pytest.skip(f"no small tmpfs here: {error}")
    if possible.returncode:
        pytest.skip(f"no small tmpfs here: {possible.stderr.strip()}")
    done = subprocess.run(
        [*inside, sys.executable, "-m", "tests.cache.full_disk", str(disk)],
        cwd=SOURCES,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("step", ["append", "compact", "file", "pull", "push"])
def test_a_full_disk_is_said_in_one_line(happened: Any, step: str) -> None:
    message = happened["full"][step]
    assert "No space left on device" in message
    assert "\n" not in message


def test_what_was_committed_stays_and_no_draft(happened: Any) -> None:
    assert happened["done"] > 3
    assert happened["state"] == {"tmp": 0, "parts": happened["done"]}
    assert "report.json" not in happened["names"]
    assert not any(name.endswith(".tmp") for name in happened["names"])


def test_with_room_again_it_goes_on(happened: Any) -> None:
    assert happened["after"] == {"parts": 1, "rows": 4 * (happened["done"] + 1)}


def test_with_room_again_copies_are_made(happened: Any) -> None:
    """Those that found room before the disk was full are not made again."""
    pulled, pushed = happened["mirrored"]["copied"]
    assert 0 < pulled <= 3
    assert 0 < pushed <= 3
    assert happened["mirrored"]["sound"] == (1 + 3) + 3
