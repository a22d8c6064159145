"""Errors that are more than a row of `tests/acceptance/bad_inputs.toml`."""

import signal
from pathlib import Path

import pytest

from tests.conftest import Run, environment
from tests.hub import hub
from tests.warm import Warm


def test_debug_shows_the_trace(tmp_path: Path, hierrouter: Run) -> None:
    done = hierrouter("train", "--cache", "nowhere", "--debug", cwd=tmp_path)
    assert done.returncode == 3
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("there", [True, False], ids=["no-such-model", "no-hub"])
def test_an_encoder_is_wrong_only_where_the_hub_says_so(
    tmp_path: Path, hierrouter: Run, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    asked = ["collect", "--limit", "1", "--encoder", "nope"]
    with hub({}) as address:
        monkeypatch.setenv("HF_ENDPOINT", address if there else "http://127.0.0.1:9")
        done = hierrouter(*asked, cwd=tmp_path)
    assert done.returncode == (2 if there else 1)
    words = "no such encoder: nope; " if there else "encoder nope not found on this machine and"
    assert words in done.stderr
    assert not (tmp_path / "caches").exists()


def test_ctrl_c_after_the_last_word_leaves_no_trace(tmp_path: Path, warm: Warm) -> None:
    """While libraries clean up, the work is done and its exit code is not yet given."""
    code = (
        "import atexit, os, signal, sys\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['hierrouter', 'pools']\n"
        "from hierrouter_cli.app import main\nmain()\n"
    )
    done = warm.start("-c", code, cwd=tmp_path, env=environment()).result()
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert "testbed" in done.stdout
