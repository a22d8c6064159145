"""Killed at any moment and started again, a training ends with the very same checkpoint."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run, Start, refused, works
from tests.warm import Running

# Each takes seconds on one core and offers several moments to go on from.
TRAIN = ["train", "--epochs", "16"]
COMMANDS = {
    "train": TRAIN,
    "every alpha": ["sweep-alpha", "--alphas", "0,0.01,0.5", "--epochs", "16"],
    "one for each alpha": ["sweep-alpha", "--alphas", "0,0.5", "--algo", "ppo", "--epochs", "7"],
}
CTRL_C = 130
KEPT = ("policy.json", "policy.safetensors", "sweep.json")


@pytest.fixture(scope="module")
def place(bare: Path, hierrouter: Run) -> Path:
    """A folder with a cache in which everything is derived already."""
    assert hierrouter("train", "--dry-run", cwd=bare).returncode == 0
    return bare


def kept(run: Path) -> dict[str, bytes]:
    """What a run leaves, by name."""
    files = (file for file in sorted(run.rglob("*")) if file.name in KEPT)
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def moments(run: Path) -> set[tuple[Path, int]]:
    """The moments to go on from that are there now, and what is finished."""
    found = set()
    for file in [*run.rglob("training.safetensors"), *run.rglob("policy.safetensors")]:
        try:
            found.add((file, file.stat().st_mtime_ns))
        except FileNotFoundError:
            continue
    return found


def begun(run: Path) -> Callable[[], bool]:
    return lambda: (run / "run.json").exists()


def advanced(run: Path) -> Callable[[], bool]:
    before = moments(run)
    return lambda: moments(run) != before


def interrupt(
    process: Running, ready: Callable[[], bool], how: signal.Signals, later: float = 0.0
) -> tuple[int, str]:
    """End the command `later` seconds after `ready`; its exit code and what it said."""
    while not ready() and process.poll() is None:
        time.sleep(0.002)
    time.sleep(later)
    process.send_signal(how)
    done = process.result()
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_the_same_bytes_after_any_number_of_kills(
    place: Path, tmp_path: Path, hierrouter: Run, cold: Run, start: Start, command: list[str]
) -> None:
    """The undisturbed training is cold: another hash seed gives the same bytes too."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert cold(*command, "--out", whole, cwd=place).returncode == 0
    arguments = [*command, "--out", str(run)]
    moment = random.Random(0)
    ends = []
    for ready, how in [
        (begun, signal.SIGKILL),
        (advanced, signal.SIGKILL),
        (advanced, signal.SIGINT),
    ]:
        is_there = ready(run)
        process = start(*arguments, cwd=place)
        ends.append(interrupt(process, is_there, how, moment.uniform(0, 0.1))[0])
    # A machine that is quick may be done before the last signal comes.
    assert ends[:2] == [-signal.SIGKILL, -signal.SIGKILL] and ends[2] in (CTRL_C, 0)
    (run / ".policy.safetensors.0123abcd.tmp").write_bytes(b"as a kill in a save leaves it")
    done = works(hierrouter(*arguments, cwd=place))
    assert "goes on after epoch" in done.stderr or "already there" in done.stderr
    assert kept(run) == kept(whole)
    assert not [*run.rglob("training.safetensors"), *run.rglob("*.tmp")]


def test_ctrl_c_says_how_to_go_on(place: Path, tmp_path: Path, start: Start) -> None:
    run = tmp_path / "run"
    process = start(*TRAIN, "--out", run, cwd=place)
    code, said = interrupt(process, advanced(run), signal.SIGINT)
    assert code == CTRL_C
    assert f"train: to go on, give the same command with --out {run}" in said
    assert said.splitlines()[-1].startswith("error: interrupted")
    assert begun(run)()


@pytest.fixture(scope="module")
def unfinished(place: Path, start: Start) -> Path:
    """A run of `train` that was killed after its first moment to go on from."""
    run = place / "unfinished"
    process = start(*TRAIN, "--out", run, cwd=place)
    code, _ = interrupt(process, advanced(run), signal.SIGKILL)
    assert code == -signal.SIGKILL
    return run


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seed", "7"], "seed differ"),
        (["--alpha", "0.1", "--allow-stop"], "allow_stop, alpha differ"),
        (["--state", "query"], "view differ"),
    ],
    ids=lambda flags: " ".join(flags) if isinstance(flags, list) else None,
)
def test_other_flags_are_refused_with_what_differs(
    place: Path, unfinished: Path, hierrouter: Run, flags: list[str], words: str
) -> None:
    before = (unfinished / "training.safetensors").read_bytes()
    line = refused(hierrouter(*TRAIN, *flags, "--out", unfinished, cwd=place))
    assert f"another run was begun in {unfinished}: {words}" in line
    assert (unfinished / "training.safetensors").read_bytes() == before


def test_a_truncated_moment_is_named(place: Path, unfinished: Path, hierrouter: Run) -> None:
    run = Path(shutil.copytree(unfinished, place / "truncated"))
    file = run / "training.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    line = refused(hierrouter(*TRAIN, "--out", run, cwd=place))
    assert f"interrupted training is truncated or damaged: {file}; remove it" in line
    file.unlink()
    assert hierrouter(*TRAIN, "--out", run, cwd=place).returncode == 0
