"""The image and the unit of the docs are sound, and start what there is."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.pages import DOCS
from tests.cli.test_help import context
from tests.conftest import spawned

DOCKERFILE, UNIT = DOCS / "deploy/Dockerfile", DOCS / "deploy/hierrouter.service"


def test_the_image_is_sound() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = spawned(hadolint, DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_unit_is_sound(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/hierrouter/bin/hierrouter", sys.executable))
    done = spawned(analyze, "verify", "--man=no", unit)
    mine = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert not mine, done.stderr


def test_both_start_a_server() -> None:
    [command] = re.findall(r"^CMD (.+)$", DOCKERFILE.read_text(), re.MULTILINE)
    [started] = re.findall(r"^ExecStart=\S+ (.+)$", UNIT.read_text(), re.MULTILINE)
    assert json.loads(command) == started.split()
    context("serve", started.split()[1:])
