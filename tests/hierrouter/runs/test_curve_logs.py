"""Learning curves reach other programs whole, by their own clients, and no log ends a training."""

import csv
import errno
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from hierrouter.declarations import flags
from hierrouter.learning.router import TrainedRouter
from hierrouter.runs import curve_logs, saved_states
from hierrouter.runs.checkpoint import load_checkpoint
from hierrouter.runs.curve_logs import OPENERS, flatten, open_logs, require_installed
from hierrouter.runs.folders import WEIGHTS, file_digest
from hierrouter.runs.run import history_table
from hierrouter.runs.training import Byproducts, RunCallbacks, Training, load_or_train
from hierrouter_cache.errors import InputError, WorldError
from tests.conftest import SOURCES, spawned, works
from tests.hierrouter.learning import trainings
from tests.hierrouter.learning.trainings import OBJECTIVE, digest_of_shipped, small_tree

PPO = replace(trainings.GLIMPSE, epochs=5, evaluate_every=2)
TRAINING = Training(OBJECTIVE, PPO, 3)
SETTINGS = {"algo": "ppo", "config": {"epochs": 5}}
Curve = list[tuple[int, dict[str, float]]]


def logged(
    folder: Path, *targets: str, callbacks: RunCallbacks | None = None
) -> tuple[Curve, list[str]]:
    """The curve of a training whose log goes to these targets, and the notes on the way."""
    notes: list[str] = []
    callbacks = replace(callbacks or RunCallbacks(), on_note=notes.append)
    trained = load_or_train(TRAINING, small_tree(), folder, callbacks, Byproducts(log_to=targets))
    assert isinstance(trained, TrainedRouter)
    rows = history_table(trained).to_pylist()
    return [(row.pop("epoch"), row) for row in rows], notes


def read_csv(folder: Path) -> Curve:
    with (folder / "history.csv").open(newline="") as stream:
        rows = [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(stream)]
    return [(int(row.pop("epoch")), row) for row in rows]


def read_tensorboard(folder: Path) -> Curve:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    curve: dict[int, dict[str, float]] = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            curve.setdefault(event.step, {})[name] = event.value
    return sorted(curve.items())


@contextmanager
def interrupted(folder: Path, *targets: str) -> Iterator[None]:
    """A folder in which the training was interrupted at its fourth epoch."""

    class Interruption(Exception):
        pass

    def stop(label: str, done: int, *_: float) -> None:
        if done == 4:
            raise Interruption

    with pytest.raises(Interruption):
        logged(folder, *targets, callbacks=RunCallbacks.of(stop))
    yield


def test_csv_has_the_curve_with_every_digit(tmp_path: Path) -> None:
    curve, notes = logged(tmp_path, "csv")
    assert read_csv(tmp_path) == curve
    assert [epoch for epoch, _ in curve] == [2, 4, 5]
    assert notes == [f"log to csv: {tmp_path / 'history.csv'}"]


def test_tensorboard_has_the_curve(tmp_path: Path) -> None:
    curve, notes = logged(tmp_path, "tensorboard")
    assert read_tensorboard(tmp_path) == [
        (epoch, pytest.approx(row, rel=1e-6)) for epoch, row in curve
    ]
    assert notes == [f"log to tensorboard: tensorboard --logdir {tmp_path / 'tensorboard'}"]


def test_a_log_changes_no_byte_of_the_policy(tmp_path: Path) -> None:
    expected = digest_of_shipped(TRAINING, tmp_path / "without")
    logged(tmp_path / "with", "csv", "tensorboard")
    assert file_digest(tmp_path / "with" / WEIGHTS) == expected


@pytest.mark.parametrize("is_saved", [True, False], ids=["goes on", "begins again"])
def test_a_training_that_goes_on_has_one_whole_curve(
    is_saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_saved:
        monkeypatch.setattr(saved_states, "SECONDS_BETWEEN_SAVES", 0.0)
        monkeypatch.setattr(saved_states, "MAX_SAVING_SHARE", float("inf"))
    whole, _ = logged(tmp_path / "whole")
    folder = tmp_path / "run"
    with interrupted(folder, "csv", "tensorboard"):
        assert [epoch for epoch, _ in read_csv(folder)] == [2]
    curve, notes = logged(folder, "csv", "tensorboard")
    assert ("train 0.005: goes on at epoch 4 of 5" in notes) == is_saved
    assert read_csv(folder) == curve == whole
    events = read_tensorboard(folder)
    assert [epoch for epoch, _ in events] == [2, 4, 5]
    assert len([*(folder / "tensorboard").iterdir()]) == 2  # nothing was removed


def test_the_curve_of_a_finished_training_can_be_logged_later(tmp_path: Path) -> None:
    curve, _ = logged(tmp_path)
    assert not (tmp_path / "history.csv").exists()
    again, notes = logged(tmp_path, "csv")
    assert read_csv(tmp_path) == again == curve
    assert notes[0] == f"train 0.005: already there, {tmp_path}"


def test_a_log_that_fails_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def failing(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
        def write(epoch: int, row: Mapping[str, float]) -> None:
            if epoch == 4:
                raise ConnectionError("the server\nis gone\x1b[31m")

        yield write, "somewhere"
        raise RuntimeError("cannot close")

    monkeypatch.setattr(curve_logs, "OPENERS", {**OPENERS, "mlflow": failing})
    expected = digest_of_shipped(TRAINING, tmp_path / "without")
    curve, notes = logged(tmp_path / "run", "mlflow", "csv")
    assert read_csv(tmp_path / "run") == curve
    assert file_digest(tmp_path / "run" / WEIGHTS) == expected
    assert notes[2:] == [
        r"log to mlflow failed at epoch 4, the training goes on without it: "
        r"the server is gone\x1b[31m",
        "log to mlflow was not closed: cannot close",
    ]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            ValueError("no API key\nconfigured"),
            InputError,
            "cannot log to wandb: no API key configured; set it up as its own documentation says, "
            "or log to csv",
        ),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            WorldError,
            "cannot log to wandb: {folder}: [Errno 28] No space left on device; see the disk",
        ),
    ],
)
def test_a_log_that_cannot_be_opened_is_said_before_anything_is_trained(
    error: Exception,
    kind: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def refusing(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
        raise error
        yield

    monkeypatch.setattr(curve_logs, "OPENERS", {"wandb": refusing})
    epochs: list[object] = []
    with pytest.raises(kind) as caught:
        logged(tmp_path, "wandb", callbacks=RunCallbacks.of(lambda *values: epochs.append(values)))
    assert str(caught.value) == message.format(folder=tmp_path)
    assert epochs == []


@pytest.mark.parametrize(
    ("spec", "target", "message"),
    [
        (
            None,
            "wandb",
            "wandb is not installed: --log-to wandb; pip install 'hierrouter[wandb]', or log to "
            "csv",
        ),
        # A folder with logs of an earlier training, which Python takes for a package.
        (
            ModuleSpec("mlflow", None, is_package=True),
            "mlflow",
            "mlflow is not installed: --log-to mlflow; pip install 'hierrouter[mlflow]', or log to "
            "csv",
        ),
    ],
)
def test_a_client_that_is_not_installed_is_named_with_the_remedy(
    spec: ModuleSpec | None, target: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curve_logs, "find_spec", lambda package: spec)
    with pytest.raises(InputError) as caught:
        require_installed([target], "--log-to")
    assert str(caught.value) == message


def test_what_comes_with_the_package_is_installed() -> None:
    require_installed(["csv", "tensorboard"], "log_to=")
    assert sorted(OPENERS) == sorted(flags.LOG_TARGETS)


def test_settings_are_flat_for_clients_that_know_no_nesting() -> None:
    assert flatten({"a": 1, "b": {"c": {"d": [2]}, "e": None}}) == {
        "a": 1,
        "b.c.d": [2],
        "b.e": None,
    }


def write_curve(target: str, folder: Path, curve: Curve, notes: list[str]) -> None:
    with open_logs([target], folder, SETTINGS, notes.append) as on_evaluation:
        for epoch, row in curve:
            on_evaluation(epoch, row)


CURVE: Curve = [
    (2, {"train": 0.25, "validation": 0.5, "loss": float("nan")}),
    (4, {"train": 0.5, "validation": 0.75, "loss": 1.5}),
]


def test_mlflow_has_the_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    notes: list[str] = []
    write_curve("mlflow", tmp_path / "mine", CURVE, notes)
    with (
        pytest.raises(KeyboardInterrupt),
        open_logs(["mlflow"], tmp_path / "broken", SETTINGS, notes.append),
    ):
        raise KeyboardInterrupt
    runs = mlflow.search_runs(output_format="list", search_all_experiments=True)
    by_name = {run.info.run_name: run for run in runs}
    assert {name: run.info.status for name, run in by_name.items()} == {
        "mine": "FINISHED",
        "broken": "FAILED",
    }
    run = by_name["mine"]
    assert run.data.params == {"algo": "ppo", "config.epochs": "5"}
    client = mlflow.MlflowClient()
    found = {
        name: [
            (point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)
        ]
        for name in run.data.metrics
    }
    assert found == {
        "train": [(2, 0.25), (4, 0.5)],
        "validation": [(2, 0.5), (4, 0.75)],
        "loss": [(4, 1.5)],
    }
    assert notes[0] == f"log to mlflow: run {run.info.run_id} at sqlite:///{tmp_path / 'mlflow.db'}"


def test_mlflow_puts_the_training_below_the_run_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    with mlflow.start_run() as parent:
        write_curve("mlflow", tmp_path / "mine", CURVE, [])
        assert mlflow.active_run().info.run_id == parent.info.run_id
    [child] = [
        run
        for run in mlflow.search_runs(output_format="list", search_all_experiments=True)
        if run.info.run_name == "mine"
    ]
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id


def wandb_records(file: Path) -> Iterator[bytes]:
    """The records of an offline run, which are in the format of LevelDB's logs."""
    header = struct.Struct("<IHB")  # checksum, length, and which part of a record it is
    data = file.read_bytes()
    position = 7  # behind the file's own header
    record = b""
    while position + header.size <= len(data):
        left = 32_768 - position % 32_768  # of the block; a rest that fits no header is empty
        if left < header.size:
            position += left
            continue
        _, length, part = header.unpack_from(data, position)
        position += header.size
        record += data[position : position + length]
        position += length
        if part in (1, 4):  # the whole of it, or its end
            yield record
            record = b""


WITH_WANDB = """
import sys
from pathlib import Path
from hierrouter_cache.errors import InputError
from tests.hierrouter.runs.test_curve_logs import CURVE, write_curve
try:
    write_curve("wandb", Path(sys.argv[1]), CURVE, notes := [])
    print(*notes, sep="\\n")
except InputError as error:
    print("error:", error)
"""


def logged_to_wandb(folder: Path, **settings: str) -> str:
    """What a process of its own says, because the client reads its settings once in a process."""
    pytest.importorskip("wandb")
    # Without the settings and the login of the person who runs the tests.
    names = {"WANDB_MODE": "", "WANDB_API_KEY": "", "WANDB_PROJECT": "", "HOME": str(folder.parent)}
    done = spawned(sys.executable, "-c", WITH_WANDB, folder, cwd=SOURCES, **{**names, **settings})
    return works(done).stdout


@pytest.mark.parametrize("project", ["", "mine"])
def test_wandb_has_the_curve_without_a_network(project: str, tmp_path: Path) -> None:
    said = logged_to_wandb(tmp_path / "mine", WANDB_MODE="offline", WANDB_PROJECT=project)
    from wandb.proto.wandb_internal_pb2 import Record

    [file] = (tmp_path / "mine").rglob("*.wandb")
    assert said == f"log to wandb: {file.parent}\n"
    runs: list[tuple[str, str]] = []
    rows: list[dict[str, str]] = []
    for data in wandb_records(file):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "run":
            runs.append((record.run.display_name, record.run.project))
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): item.value_json for item in items})
    assert {*runs} == {("mine", project or "hierrouter")}
    known = [{name: row[name] for name in row if not name.startswith("_")} for row in rows]
    assert known == [
        {"train": "0.25", "validation": "0.5"},
        {"train": "0.5", "validation": "0.75", "loss": "1.5"},
    ]
    assert [row["_step"] for row in rows] == ["2", "4"]


def test_wandb_without_a_login_is_refused(tmp_path: Path) -> None:
    said = logged_to_wandb(tmp_path / "mine", NETRC=str(tmp_path / "netrc"))
    assert said.startswith("error: cannot log to wandb: ")
    assert said.endswith("; set it up as its own documentation says, or log to csv\n")
    assert said.count("\n") == 1


def test_the_curve_is_in_the_checkpoint_too(tmp_path: Path) -> None:
    curve, _ = logged(tmp_path, "csv")
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, TrainedRouter)
    assert [row["validation"] for _, row in curve] == list(loaded.history)
