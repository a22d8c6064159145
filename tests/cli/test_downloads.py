"""Downloads from the hub are shown by a command's bars, one bar at a time, or in lines."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hierrouter_cli import console
from tests.conftest import spawned
from tests.hub import COMMIT, Model, hub
from tests.terminal import program_on_terminal

REPOSITORY = "org/heavy"
WEIGHTS = bytes(range(256)) * 12_000  # 3 MB
# Downloads as a command does: beside its bars, alone, or with nobody to show them.
DOWNLOAD = f"""
import sys, time
from contextlib import nullcontext
from hierrouter.hub.repository import show_downloads
from hierrouter.hub.repository import Repository
from hierrouter_cli.console import bar, download_bar
how = sys.argv[1]
with nullcontext() if how == "library" else show_downloads(download_bar):
    with bar("embed states") if how == "beside" else nullcontext() as move:
        if move:
            move(1, 4)
        Repository({REPOSITORY!r}).fetch({COMMIT!r}, ["*"])
        if move:
            move(4, 4)
        time.sleep(0.3)  # bars are drawn ten times a second
print("fetched")
"""


@pytest.fixture
def online(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a program for which a hub has a model of 3 MB."""
    model = Model({COMMIT: {"config.json": b"{}", "model.safetensors": WEIGHTS}})
    with hub({}, {REPOSITORY: model}) as address:
        yield {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}


@pytest.mark.parametrize("how", ["beside", "alone"])
def test_a_terminal_shows_one_bar_of_ours(online: dict[str, str], tmp_path: Path, how: str) -> None:
    shown = program_on_terminal(
        sys.executable, "-c", DOWNLOAD, how, cwd=tmp_path, width=120, **online
    )
    assert "fetched" in shown
    assert f"MB of {REPOSITORY}" in shown
    assert "4/4" in shown if how == "beside" else "4/4" not in shown
    for words in ("Fetching", "Downloading", "Reconstructing", "B/s", "it/s"):
        assert words not in shown


def test_without_a_terminal_a_line_says_what_is_downloaded(
    online: dict[str, str], tmp_path: Path
) -> None:
    done = spawned(sys.executable, "-c", DOWNLOAD, "alone", cwd=tmp_path, **online)
    assert (done.returncode, done.stdout) == (0, "fetched\n"), done.stderr
    assert done.stderr == f"download: {REPOSITORY}\n"


def test_a_long_download_says_now_and_again_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "SECONDS_PER_DOWNLOAD_LINE", 0.0)
    with console.download_bar(REPOSITORY) as move:
        move(0, 2)
        move(1_200_000_000, 7_600_000_000)
    lines = [f"download: {REPOSITORY}", f"download: {REPOSITORY}, 1,200 of 7,600 MB"]
    assert capsys.readouterr().err.splitlines() == lines


def test_in_python_the_hub_shows_its_own_bars(online: dict[str, str], tmp_path: Path) -> None:
    """Nobody else does, and so the library leaves them alone."""
    shown = program_on_terminal(sys.executable, "-c", DOWNLOAD, "library", cwd=tmp_path, **online)
    assert "Fetching 2 files" in shown


def test_a_user_may_switch_bars_off(online: dict[str, str], tmp_path: Path) -> None:
    off = {**online, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = spawned(sys.executable, "-c", DOWNLOAD, "alone", cwd=tmp_path, **off)
    assert (done.stdout, done.stderr) == ("fetched\n", "")
