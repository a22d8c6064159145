"""Errors that are more than a row of `tests/acceptance/bad_inputs.toml`."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.conftest import environment
from tests.hub import hub
from tests.warm import Warm


def test_debug_shows_the_trace(place: Place) -> None:
    done = place.asks("train --cache nowhere --debug")
    assert (done.returncode, "Traceback" in done.stderr) == (3, True)


@pytest.mark.parametrize("there", [True, False], ids=["no-such-model", "no-hub"])
def test_an_encoder_is_wrong_only_where_the_hub_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(place / "home"))
    with hub({}) as address:
        monkeypatch.setenv("HF_ENDPOINT", address if there else "http://127.0.0.1:9")
        line = place.refuses("collect --limit 1 --encoder nope", code=2 if there else 1)
    words = "no such encoder: nope; " if there else "encoder nope is not on this machine, and"
    assert words in line
    assert not (place / "caches").exists()


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


def test_a_stdout_that_takes_nothing_is_one_line(home: Place) -> None:
    """Cold: the streams are looked at while Python starts."""
    command = f"{sys.executable} -m hierrouter_cli cache info"
    for stream, said in (("> /dev/full", "No space left"), (">&-", "Bad file descriptor")):
        shell = ["sh", "-c", f"{command} {stream}"]
        done = subprocess.run(
            shell, cwd=home.folder, env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        [line] = done.stderr.splitlines()
        assert line.startswith(f"error: cannot print: {said}")
