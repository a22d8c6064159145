"""What is finished is not trained again, and folders of runs are nobody else's."""

import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

from hierrouter.learning.config import TrainConfig
from hierrouter.learning.training import Origin, TrainedRouter
from hierrouter.runs.checkpoint import load_finished, training_identity
from hierrouter.runs.folders import WEIGHTS, Record, make_newest, new_run, remove_drafts
from tests.conftest import SOURCES, environment
from tests.hierrouter.learning import trainings
from tests.hierrouter.learning.trainings import OBJECTIVE, digest, small_tree
from tests.warm import Warm

# Dies when the bytes are written, and before the file has its name.
KILLED_IN_A_SAVE = """
import os, signal, sys
from pathlib import Path
from hierrouter.runs.checkpoint import write_tensors
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
write_tensors(Path(sys.argv[1]), {}, "")
"""


def identity(
    config: TrainConfig = trainings.GLIMPSE, seed: int = 3, alphas: tuple[float, ...] = ()
) -> dict[str, Any]:
    return training_identity(Origin.of(small_tree(), config, seed), OBJECTIVE, alphas)


def test_a_finished_training_is_known_as_itself_only(tmp_path: Path) -> None:
    assert load_finished(tmp_path, identity()) is None
    digest(trainings.glimpse(small_tree(), 3), tmp_path)
    assert isinstance(load_finished(tmp_path, identity()), TrainedRouter)
    for other in (
        identity(seed=4),
        identity(replace(trainings.GLIMPSE, clip=0.3)),
        identity(alphas=trainings.GRID),
    ):
        assert load_finished(tmp_path, other) is None
    digest(trainings.sweep_glimpse(small_tree(), 3), tmp_path)
    assert load_finished(tmp_path, identity()) is None
    assert load_finished(tmp_path, identity(trainings.VALUE, alphas=trainings.GRID)) is not None
    assert load_finished(tmp_path, identity(trainings.VALUE, alphas=trainings.GRID[1:])) is None


def test_the_draft_of_a_killed_save_is_removed_and_nothing_else(tmp_path: Path, warm: Warm) -> None:
    member = tmp_path / "seed-0"
    digest(trainings.glimpse(small_tree()), member)
    whole = set(tmp_path.rglob("*"))
    command = ("-c", KILLED_IN_A_SAVE, str(member / WEIGHTS))
    killed = warm.start(*command, cwd=SOURCES, env=environment()).result()
    assert killed.returncode == -signal.SIGKILL
    [draft] = set(tmp_path.rglob("*")) - whole
    assert draft.name.startswith(f".{WEIGHTS}.")
    others = [tmp_path / name for name in (".mine.tmp", "mine.0123abcd.tmp")]
    for other in others:
        other.touch()
    remove_drafts(tmp_path)
    assert set(tmp_path.rglob("*")) == whole.union(others)


def test_runs_that_begin_in_one_second_have_folders_of_their_own(place: Path) -> None:
    found = [new_run("report", None) for _ in range(5)]
    assert len(set(found)) == 5
    assert all(run.is_dir() for run in found)


def test_of_runs_that_finish_at_once_one_is_the_newer(place: Path) -> None:
    records = [Record(new_run(name, None), "train", {}).write() for name in ("one", "other")]
    both = Barrier(2)
    with ThreadPoolExecutor() as threads:
        for _ in range(20):
            seqs = threads.map(lambda run: (both.wait(), make_newest(run).seq)[1], records)
            assert len({*seqs}) == 2
