"""Commands that are killed, or stopped for a while, and run again: nothing is lost or doubled."""

import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from hierrouter.learning.run_folders import file_digest
from hierrouter.replay.inspection import ask_cache, verify_cache
from tests.cli.conftest import Place
from tests.conftest import Start

ANSWERS = "SELECT query, route, call, response FROM nodes ORDER BY ALL"
CACHE, OTHER = Path("caches/default"), Path("caches/other")


def broken_part(place: Place) -> None:
    part = next((place.folder / CACHE / "parts").glob("scores-*"))
    part.write_bytes(part.read_bytes()[:-9])


def seen(place: Place, cache: Path) -> list[object]:
    found: list[object] = ask_cache(place.folder / cache, ANSWERS).to_pylist()
    return found


@pytest.mark.parametrize(
    ("words", "cache"),
    [
        ("cache import all.jsonl --cache caches/other", OTHER),
        ("cache compact", CACHE),
        ("cache repair", CACHE),
    ],
    ids=["import", "compact", "repair"],
)
def test_killed_at_any_moment_and_run_again(
    words: str, cache: Path, bare: Place, start: Start, tmp_path: Path
) -> None:
    moments = random.Random(words)
    whole = bare.copy(tmp_path / "whole")
    whole.does("cache export --out all.jsonl")
    whole.does("train --dry-run")  # which computes scores
    expected, killed, began = seen(whole, CACHE), 0, time.monotonic()
    whole.copy(tmp_path / "timed").does("cache verify")
    longest = time.monotonic() - began
    for turn in range(8):
        if killed == 3:
            break
        place = whole.copy(tmp_path / str(turn))
        if "repair" in words:
            broken_part(place)
        process = start(*words.split(), cwd=place.folder)
        time.sleep(moments.uniform(0.0, longest / 2))
        process.send_signal(signal.SIGKILL)
        if process.result().returncode == -signal.SIGKILL:
            killed += 1
        else:
            longest /= 2  # it was done before
        place.does(words)
        if "repair" in words:
            place.does("train --dry-run")  # which computes them again
        assert seen(place, cache) == expected
        verify_cache(place.folder / cache)
        shutil.rmtree(place.folder)
    assert killed


def test_stopped_for_a_while_a_training_ends_as_it_would(
    bare: Place, start: Start, tmp_path: Path
) -> None:
    words = "train --epochs 6 --out run"
    place = bare.copy(tmp_path / "stopped")
    process = start(*words.split(), cwd=place.folder)
    while not (place.folder / "run/training.safetensors").exists():
        assert process.poll() is None, process.said()
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    process.send_signal(signal.SIGCONT)
    assert process.result().returncode == 0
    bare.does("train --epochs 6 --out undisturbed")
    ends = (place / "run/policy.safetensors", bare / "undisturbed/policy.safetensors")
    assert len({file_digest(end) for end in ends}) == 1
