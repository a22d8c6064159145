"""`hierrouter doctor` on places that work, and on broken ones."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import Run, works


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Path:
    """A folder with a small cache and a router."""
    folder = tmp_path_factory.mktemp("sound")
    for command in ("collect --datasets arith --limit 10", "train --algo exact --epochs 1"):
        works(hierrouter(*command.split(), cwd=folder))
    return folder


@pytest.fixture
def place(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "place"))


def states(printed: str) -> dict[str, str]:
    """State by subject; of two disks the last one."""
    return {each["subject"]: each["state"] for each in json.loads(printed)["findings"]}


def test_a_place_that_works(hierrouter: Run, place: Path) -> None:
    before = sorted(place.rglob("*"))
    done = hierrouter("doctor", "--format", "json", cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    found = states(done.stdout)
    assert json.loads(done.stdout)["works"]
    for subject in ("hierrouter", "packages", "cpu", "testbed", "disk", "cache", "router"):
        assert found[subject] == "ok", done.stdout
    assert sorted(place.rglob("*")) == before, "nothing stays behind"


def test_a_new_place_says_how_to_begin(hierrouter: Run, tmp_path: Path) -> None:
    done = works(hierrouter("doctor", cwd=tmp_path))
    lines = {line[9:25].strip(): line for line in done.stdout.splitlines()}
    assert lines["cache"].startswith("note") and "hierrouter quickstart" in lines["cache"]
    assert lines["router"].startswith("note") and "hierrouter train" in lines["router"]


def test_missing_calls_are_a_note(hierrouter: Run, place: Path) -> None:
    for part in (place / "caches/default/parts").glob("calls-*"):
        part.unlink()
    done = hierrouter("doctor", cwd=place)
    assert done.returncode == 0
    assert "0 of 10 queries complete" in done.stdout
    assert "150 calls missing; `hierrouter collect --cache caches/default`" in done.stdout


def test_a_damaged_part_is_a_problem_of_the_cache(hierrouter: Run, place: Path) -> None:
    part = next((place / "caches/default/parts").glob("calls-*"))
    part.write_bytes(part.read_bytes()[:-1])
    done = hierrouter("doctor", "--format", "json", cwd=place)
    assert done.returncode == 3
    assert states(done.stdout)["cache"] == "problem"
    assert done.stderr.startswith(f"error: damaged part: {part.name}: checksum mismatch; move it")


def test_a_damaged_router_is_a_problem_of_the_input(hierrouter: Run, place: Path) -> None:
    (weights,) = place.glob("runs/*/policy.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    done = hierrouter("doctor", cwd=place)
    assert done.returncode == 2
    assert "problem  router" in done.stdout


def test_a_folder_that_cannot_be_written_is_a_problem(hierrouter: Run, tmp_path: Path) -> None:
    done = hierrouter("doctor", "--cache", "/sys/kernel/cache", cwd=tmp_path)  # root cannot either
    assert done.returncode == 3
    assert done.stderr.startswith("error: the cache is not writable: /sys/kernel: ")


def test_a_broken_package_is_a_problem_of_the_world(cold: Run, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: cannot open')")
    done = cold("doctor", cwd=tmp_path)
    assert done.returncode == 1
    assert "problem  devices         broken package: libtorch.so: cannot open; inst" in done.stdout
    assert "ok       testbed" in done.stdout


def test_runs_that_cannot_be_written_are_a_problem_of_the_world(
    hierrouter: Run, place: Path
) -> None:
    shutil.rmtree(place / "runs")
    (place / "runs").write_text("a file")
    done = hierrouter("doctor", cwd=place)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: runs cannot be written: {place / 'runs'}; work in")


def test_the_first_of_several_problems_gives_the_code(hierrouter: Run, place: Path) -> None:
    next((place / "caches/default/parts").glob("calls-*")).write_bytes(b"")
    next(place.glob("runs/*/policy.safetensors")).write_bytes(b"")
    done = hierrouter("doctor", cwd=place)
    assert done.returncode == 3
    assert done.stderr.startswith("error: 2 problems, the first: damaged part: calls-")
