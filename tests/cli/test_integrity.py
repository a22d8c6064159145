"""What is damaged, gone, renamed, exchanged or set back is named, and nothing else is shown."""

import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.damaging import COMMANDS, OTHER_WORLDS, Bench, build, build_other, delete, files_of
from hierrouter.runs.folders import Record, read_record, seal, unseal
from hierrouter_cache.parts import PART_SCHEMAS
from tests.cli.conftest import Place
from tests.conftest import Run, Start

TRAIN, SWEEP = Path("runs/quickstart-train"), Path("runs/quickstart-sweep-alpha")
RIVAL = "train --algo exact --epochs 2 --out runs/rival"
# Of each kind of file a command that reads it; `verify` reads all.
READERS = {
    "calls part": "explain",
    "checkpoint": "report",
    "embeddings": "train",
    "kept tree": "report",
    "live file": "route",
    "plans part": "train",
    "queries part": "train",
    "record": "report",
    "scores part": "train",
    "service": "deploy",
    "training state": "resume",
}


@pytest.fixture(scope="module")
def bench(home: Place, brief: Run, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("worlds")
    build(folder / "world", brief, older=folder / "older")
    others = {"another quickstart": home.folder, "older": folder / "older"}
    return Bench(folder / "world", others, brief, folder)


def test_every_kind_of_file_is_there_and_known(bench: Bench) -> None:
    kinds = files_of(bench.world).keys()
    assert kinds >= {"head", "report", "contents"}
    assert kinds >= READERS.keys() | {f"{kind} part" for kind in PART_SCHEMAS}


@pytest.mark.parametrize("kind", READERS)
def test_no_damage_is_silent(kind: str, bench: Bench) -> None:
    """`benchmarks/damage.py` tries more, and every command."""
    files = files_of(bench.world)[kind]
    command = READERS[kind] if READERS[kind] in COMMANDS else "report"
    for name, damage in bench.damages(kind, files[:1], flips=1, cuts=1):
        for reader in ("verify",) if name == "cut" else ("verify", command):
            assert bench.verdict(damage, reader) != "SILENT", (name, reader)


@pytest.mark.parametrize("rows", OTHER_WORLDS)
def test_no_damage_of_draws_roles_and_logs_is_silent(rows: str, brief: Run, tmp_path: Path) -> None:
    build_other(rows, tmp_path / "world", brief)
    bench = Bench(tmp_path / "world", {}, brief, tmp_path, OTHER_WORLDS[rows])
    files = files_of(bench.world)
    for kind in ("calls part", "plans part"):
        for name, damage in bench.damages(kind, files[kind][:1], flips=1, cuts=0):
            assert bench.verdict(damage, "verify") == "refused", (kind, name)
            assert bench.verdict(damage, "report") != "SILENT", (kind, name)


@pytest.fixture(scope="module")
def two_runs(work: Place) -> Place:
    """Another run of the same alpha, finished before the quickstart's."""
    work.does(RIVAL)
    record = read_record(work / str(TRAIN))
    assert record
    replace(record, seq=9).write()
    assert str(TRAIN) in work.does("report").stderr
    return work


@pytest.fixture
def rivals(two_runs: Place, tmp_path: Path) -> Place:
    return two_runs.copy(tmp_path / "rivals")


@pytest.mark.parametrize(
    ("file", "command", "said"),
    [
        (TRAIN / "run.json", "report", f"run.json is gone: {TRAIN}"),
        (TRAIN / "policy.safetensors", "report", f"checkpoint not found: {TRAIN}"),
        (TRAIN / "live.json", "route x", f"damaged run: .*{TRAIN}/live.json is gone"),
        (SWEEP / "run.json", "report", f"run.json is gone: {SWEEP}"),
        (SWEEP / "seed-42/policy.safetensors", "report", "checkpoint not found"),
    ],
    ids=str,
)
def test_no_other_router_is_shown_for_one_that_is_gone(
    file: Path, command: str, said: str, rivals: Place
) -> None:
    (rivals / str(file)).rename(rivals / f"runs/{file.name}")
    assert re.search(said, rivals.refuses(command))
    done = rivals.asks("verify")
    assert done.returncode == 3 and f"damaged: {file}" in done.stderr


@pytest.mark.parametrize("name", ["live.json", "policy.safetensors", "seed-1/policy.safetensors"])
def test_the_same_training_again_certifies_no_damage(name: str, rivals: Place) -> None:
    rivals.does(RIVAL)
    file = rivals / f"runs/rival/{name}"
    if file.parent.name == "seed-1":  # of another run
        file.parent.mkdir()
        file.write_bytes((rivals / str(TRAIN / file.name)).read_bytes())
    else:
        file.unlink()
    sealed = (rivals / "runs/rival/run.json").read_bytes()
    assert f"damaged run: runs/rival/{name} is " in rivals.refuses(RIVAL)
    assert (rivals / "runs/rival/run.json").read_bytes() == sealed


def test_a_run_that_was_not_finished_is_passed_over(rivals: Place) -> None:
    found = read_record(rivals / str(TRAIN))
    assert found
    Record(found.folder, found.command, found.asked).write()  # as before it was finished
    told = rivals.does("report").stderr
    assert "checkpoint runs/rival" in told


def test_a_report_without_its_contents_is_damage(rivals: Place) -> None:
    (rivals / "runs/quickstart-report/contents.json").unlink()
    done = rivals.asks("verify")
    assert (done.returncode, done.stdout) == (3, "")
    assert "damaged: runs/quickstart-report/contents.json: is gone" in done.stderr


def test_a_run_of_another_version_is_named(rivals: Place) -> None:
    file = rivals / str(TRAIN / "run.json")
    found = unseal(file.read_bytes())
    file.write_bytes(seal({**found, "format": 1}))
    assert f"run.json is of another version: {TRAIN}/run.json; train again" in rivals.refuses(
        "report"
    )


def test_runs_whose_cache_is_not_there_do_not_pass(two_runs: Place) -> None:
    done = two_runs.asks("verify --cache caches/typo")
    assert done.returncode == 3
    assert "no cache: caches/typo; make one with" in done.stderr


def test_a_run_that_could_not_be_said_to_be_the_newest_is_not_begun(rivals: Place) -> None:
    delete(rivals.folder, SWEEP / "run.json")
    assert f"run.json is gone: {SWEEP}" in rivals.refuses("train --algo exact --out runs/newest")
    assert not (rivals / "runs/newest").exists()


def test_the_newest_run_is_the_one_that_was_finished_last_whatever_the_clock(rivals: Place) -> None:
    for file in rivals.folder.rglob("*"):
        os.utime(file, (1e9, 1e9 + ("rival" in str(file))))
    assert f"checkpoint {TRAIN}" in rivals.does("report").stderr
    rivals.does("train --algo exact --epochs 2 --out runs/newest")
    os.utime(rivals / "runs/newest/run.json", (1e8, 1e8))
    assert "checkpoint runs/newest" in rivals.does("report").stderr


def test_a_killed_report_is_made_again_by_the_same_command(own: Place, start: Start) -> None:
    whole = own.does("report --out whole").stdout
    process = start("report", "--out", "page", cwd=own.folder)
    while not (own / ".page.draft").exists():
        assert process.poll() is None, process.said()
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.result()
    assert not [*(own / "page").glob("*")]
    assert own.does("report --out page").stdout == whole.replace("whole/", "page/")
    assert {file.name for file in (own / "page").iterdir()} == {
        "contents.json",
        "report.html",
        "report.json",
    }
    assert not (own / ".page.draft").exists()
    assert "output exists" in own.refuses("report --out page")
