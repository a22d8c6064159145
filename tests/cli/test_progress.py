"""What a collection says while it runs, where there is no terminal and where there is one."""

import json
import os
import pty
import re
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.conftest import Start, environment, spawned
from tests.models import save_random_encoder
from tests.terminal import on_terminal
from tests.warm import Warm

# The command's own progress with a shorter interval.
SHORT = """
from pathlib import Path
from hierrouter.questions.datasets import load_queries
from hierrouter.collection.scheduler import fill_cache
from hierrouter.pools.files import load_pool
from hierrouter_cli.collect import progress_display
with progress_display(0, every_s=0.05) as report:
    fill_cache(load_pool("testbed"), load_queries(["story"], 60, 42, Path()), Path("cache"), report)
"""
KEYS = ["progress", "done", "of", "failed", "tokens_per_s", "eta_s", "spent"]


def test_a_line_of_json_now_and_then(tmp_path: Path, warm: Warm) -> None:
    done = warm.start("-c", SHORT, cwd=tmp_path, env=environment()).result()
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines
    assert all(list(line) == KEYS for line in lines)
    assert {line["progress"] for line in lines} <= {
        f"{level} {model}" for level in ("direct", "hop 2") for model in ("calc", "text", "facts")
    }
    assert all(0 < line["done"] <= line["of"] for line in lines)
    spent = [line["spent"] for line in lines]
    assert spent == sorted(spent)
    assert spent[-1] > 0
    assert any(line["tokens_per_s"] > 0 for line in lines)


def test_a_short_collection_is_quiet(place: Place) -> None:
    done = place.does("collect --datasets story --limit 3")
    assert "progress" not in done.stdout + done.stderr


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals here")
def test_a_terminal_gets_a_bar(tmp_path: Path, start: Start) -> None:
    master, slave = pty.openpty()
    shown = b""
    env = {**environment(), "TERM": "xterm", "COLUMNS": "120"}
    command = "collect --datasets story --limit 40"
    process = start(*command.split(), cwd=tmp_path, env=env, stderr=slave)
    os.close(slave)
    while True:
        try:
            shown += os.read(master, 65536)
        except OSError:  # the other side is closed
            break
    os.close(master)
    assert process.result().returncode == 0
    text = shown.decode()
    assert "direct calc" in text
    assert "tokens/s, spent" in text
    assert '"progress"' not in text


BAR = """
from hierrouter_cli import console
with console.bar("train 2", 48) as show:
    show(10, 48, "-1.361 train, -1.373 validation, and much more than there is room for")
"""


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_narrow_terminal_cuts_the_note_and_no_number(columns: int) -> None:
    terminal = {"COLUMNS": str(columns), "FORCE_COLOR": "1", "TERM": "xterm"}
    done = spawned(sys.executable, "-c", BAR, **terminal)
    line = max(re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stderr)), key=len)
    assert re.match(r"train 2 +\S+ +10/48 +0:00:0\d +\S+ ", line)
    assert len(line.rstrip()) <= columns
    assert ("room for" in line) == (columns == 200)


def test_a_terminal_shows_the_bars_of_the_command_alone(bare: Place, tmp_path: Path) -> None:
    """An encoder is loaded while they are there, and so are the models of a router."""
    folder = save_random_encoder(tmp_path / "encoder")
    train = ("train", "--algo", "exact", "--encoder", folder, "--name", "mine", "--keep-anyway")
    place = bare.copy(tmp_path / "place")
    shown = on_terminal(*train, cwd=place.folder)
    shown += on_terminal("route", "--checkpoint", "mine", "compute 1+2", cwd=place.folder)
    assert "embed states" in shown
    for words in ("Loading", "Fetching", "it/s", "B/s", "Batches"):
        assert words not in shown
