"""Commands that are killed, or stopped for a while, and run again: nothing is lost or doubled."""

import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from hierrouter.replay.inspection import ask_cache, verify_cache
from hierrouter.runs.folders import file_digest
from tests.cli.conftest import COMMAND, Place
from tests.conftest import Start, environment, run_cold, works
from tests.warm import Warm

ANSWERS = "SELECT query, route, call, response FROM nodes ORDER BY ALL"
CACHE, OTHER = Path("caches/default"), Path("caches/other")


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
    whole.copy(tmp_path / "timed").does("verify")
    longest = time.monotonic() - began
    for turn in range(8):
        if killed == 3:
            break
        place = whole.copy(tmp_path / str(turn))
        if "repair" in words:
            part = next((place.folder / CACHE / "parts").glob("scores-*"))
            part.write_bytes(part.read_bytes()[:-9])
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


def test_a_stopped_training_ends_as_it_would(bare: Place, start: Start, tmp_path: Path) -> None:
    words = "train --epochs 6 --out run"
    place = bare.copy(tmp_path / "stopped")
    process = start(*words.split(), cwd=place.folder)
    while not (place.folder / "run/live.json").exists():  # what comes before the training
        assert process.poll() is None, process.said()
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    process.send_signal(signal.SIGCONT)
    assert process.result().returncode == 0
    bare.does("train --epochs 6 --out undisturbed")
    ends = (place / "run/policy.safetensors", bare / "undisturbed/policy.safetensors")
    assert len({file_digest(end) for end in ends}) == 1


SLOW = pytest.mark.slow  # the same promise of the other trainings
COMMANDS = {
    "train": "train --epochs 11",
    "by enumeration": "train --alpha 0.5 --algo exact --epochs 33",
    "sweep": "sweep-alpha --alphas 0,0.5",
}
GOING_ON = {
    "train": COMMANDS["train"],
    "by enumeration": COMMANDS["by enumeration"],
    "sweep of PPO": "sweep-alpha --algo ppo --alphas 0,0.5 --epochs 11 --seed 42",
}
CTRL_C = 130
KEPT = ("policy.safetensors", "live.json")
# The state of a training is saved after each epoch, not every few seconds.
SAVE_OFTEN = """
from hierrouter.runs import saved_states
saved_states.SECONDS_BETWEEN_SAVES = 0.0
saved_states.MAX_SAVING_SHARE = float("inf")
"""


@pytest.fixture(scope="module")
def derived(bare: Place) -> Place:
    """A folder with a cache in which everything is derived already."""
    bare.does("train --dry-run")
    return bare


def kept(run: Path) -> dict[str, bytes]:
    """What a run leaves, by name."""
    files = (file for file in sorted(run.rglob("*")) if file.name in KEPT)
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


@pytest.mark.parametrize(
    "name", ["train", pytest.param("by enumeration", marks=SLOW), pytest.param("sweep", marks=SLOW)]
)
def test_the_same_bytes_after_any_number_of_kills(name: str, derived: Place, start: Start) -> None:
    """Too short to be saved, it is trained anew; another hash seed gives the same bytes, too."""
    words = COMMANDS[name]
    whole, run = derived / f"whole {name}", derived / name
    first = derived.run if name == "train" else run_cold
    works(first(*words.split(), "--out", whole, cwd=derived.folder))
    before: int | None = None
    for how, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, CTRL_C)):
        process = start(*words.split(), "--out", run, cwd=derived.folder)
        while (now := written(run / "live.json")) == before:  # what comes before the training
            assert process.poll() is None, process.said()
            time.sleep(0.005)
        before = now
        process.send_signal(how)
        done = process.result()
        assert done.returncode == code
        assert not list(run.rglob("policy.safetensors"))
    told = f"{words.split()[0]}: to go on, give the same command with --out {run}"
    assert told in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: interrupted")
    other = derived.refuses(f"{words} --seed 7 --out", run)
    assert f"another run was begun in {run}: seed" in other
    (run / ".policy.safetensors.0123abcd.tmp").write_bytes(b"as a kill in a save leaves it")
    assert "already there" not in derived.does(words, "--out", run).stderr
    assert kept(run) == kept(whole)
    assert not list(run.rglob("*.tmp"))
    assert "already there" in derived.does(words, "--out", run).stderr


@pytest.mark.parametrize(
    "name",
    ["train", pytest.param("by enumeration", marks=SLOW), pytest.param("sweep of PPO", marks=SLOW)],
)
def test_a_killed_training_goes_on_and_ends_with_the_same_bytes(
    name: str, derived: Place, warm: Warm
) -> None:
    words = GOING_ON[name]
    whole = derived / f"undisturbed {name}"
    run = derived / f"killed {name}"
    state = run / ("seed-42" if "sweep" in name else "") / "progress.safetensors"
    derived.does(words, "--out", whole)
    assert not list(whole.rglob("progress.safetensors"))
    command = ["-c", SAVE_OFTEN + COMMAND, *words.split(), "--out", str(run)]
    before: int | None = None
    epochs = []
    for how, code in (
        (signal.SIGKILL, -signal.SIGKILL),
        (signal.SIGINT, CTRL_C),
        (signal.SIGKILL, -signal.SIGKILL),
    ):
        process = warm.start(*command, cwd=derived.folder, env=environment())
        while (now := written(state)) == before:
            assert process.poll() is None, process.said()
            time.sleep(0.002)
        before = now
        process.send_signal(how)
        done = process.result()
        before = written(state)  # it may have saved once more
        assert done.returncode == code
        epochs += re.findall(r"goes on at epoch (\d+) of ", done.stderr)
    sound = state.read_bytes()
    state.write_bytes(sound[:-1])
    told = derived.refuses(words, "--out", run)
    assert f"the saved state of an interrupted training is damaged: {state}; remove" in told
    state.write_bytes(sound)
    epochs += re.findall(r"goes on at epoch (\d+) of ", derived.does(words, "--out", run).stderr)
    assert len(epochs) == 3
    assert 1 < int(epochs[0]) < int(epochs[1]) < int(epochs[2])
    assert kept(run) == kept(whole)
    assert (run / "run.json").read_bytes() == (whole / "run.json").read_bytes()
    assert {file.name for file in run.iterdir()} == {file.name for file in whole.iterdir()}


def written(file: Path) -> int | None:
    """When a file was written; None where there is none."""
    return file.stat().st_mtime_ns if file.exists() else None
