"""Logs of learning curves for other programs: CSV, TensorBoard, MLflow, Weights & Biases.

Each client is used as its own documentation says, and finds its server and its login by its own
settings. All of them are imported only when a training logs to them. Every log has the complete
curve: a training that goes on writes the earlier rows again.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hierrouter.declarations.declaration import OnNote, shown_value
from hierrouter.learning.config import OnEvaluation
from hierrouter.tables import one_line
from hierrouter_cache.errors import HierRouterError, InputError, WorldError, reason_of

CSV_FILE = "history.csv"
TENSORBOARD_FOLDER = "tensorboard"
PROJECT = "hierrouter"  # at Weights & Biases, if WANDB_PROJECT names no other
# The package that a target needs, and what to install for it.
PACKAGES = {
    "mlflow": ("mlflow", "'hierrouter[mlflow]'"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "wandb": ("wandb", "'hierrouter[wandb]'"),
}
MAX_REASON_LENGTH = 160  # characters of a client's own message
# Writes the numbers of an evaluation, by name, at an epoch; NaN where a number is not known.
Write = Callable[[int, Mapping[str, float]], object]


def require_installed(targets: Sequence[str], name: str) -> None:
    """Require the packages of some log targets, without importing them.

    Args:
        targets: see `OPENERS`.
        name: of the flag or argument, for messages.

    Raises:
        InputError: one is not installed.
    """
    for target in targets:
        package, requirement = PACKAGES.get(target, ("csv", ""))
        spec = find_spec(package)
        # A folder of this name, such as one with a client's logs, is found as well, without a file.
        if spec is None or spec.origin is None:
            raise InputError(
                f"{package} is not installed: {shown_value(name, target)}; "
                f"pip install {requirement}, or log to csv"
            )


@contextmanager
def open_logs(
    targets: Sequence[str], folder: Path, settings: Mapping[str, Any], on_note: OnNote
) -> Iterator[OnEvaluation]:
    """Open logs of the learning curve of one training, and close them at the end of the block.

    A log that fails later ends no training: one note reports it, and the curve is in the checkpoint
    anyway.

    Args:
        targets: see `OPENERS`.
        folder: of the checkpoint; its name is that of the log.
        settings: of the training, JSON values by name, nested.
        on_note: called with the location of each log, and with a line on a log that fails.

    Returns:
        What to call with each row of the curve.

    Raises:
        InputError: a client refuses to open a log, for example because it has no login.
        WorldError: the disk is full or failed.
    """
    writers: dict[str, Write] = {}
    with ExitStack() as logs:
        for target in targets:
            folder.mkdir(parents=True, exist_ok=True)
            writers[target] = _entered(target, folder, settings, on_note, logs)

        def on_evaluation(epoch: int, row: Mapping[str, float]) -> None:
            for target, write in list(writers.items()):
                try:
                    write(epoch, row)
                except Exception as error:  # whatever a client or its server fails with
                    del writers[target]
                    on_note(
                        f"log to {target} failed at epoch {epoch}, the training goes on without "
                        f"it: {_reason(error)}"
                    )

        yield on_evaluation


def _entered(
    target: str, folder: Path, settings: Mapping[str, Any], on_note: OnNote, logs: ExitStack
) -> Write:
    """Open one log and return what writes to it; see `open_logs`."""
    log = OPENERS[target](folder, settings)
    try:
        write, location = log.__enter__()
    except HierRouterError:
        raise
    except OSError as error:
        raise WorldError(f"cannot log to {target}: {folder}: {_reason(error)}; see the disk") from (
            error
        )
    except Exception as error:  # a client's own errors, of which each has many
        raise InputError(
            f"cannot log to {target}: {_reason(error)}; set it up as its own documentation says, "
            "or log to csv"
        ) from error

    def close(kind: Any, error: Any, trace: Any) -> None:
        try:
            log.__exit__(kind, error, trace)
        except Exception as failure:  # the training is done by now, and must not be lost
            if failure is not error:
                on_note(f"log to {target} was not closed: {_reason(failure)}")

    logs.push(close)
    on_note(f"log to {target}: {location}")
    return write


def _reason(error: Exception) -> str:
    """Return the cause of a client's error on one short line."""
    return one_line(reason_of(error), MAX_REASON_LENGTH)


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under names such as `config.epochs`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _known(row: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers of a row that are known."""
    return {name: number for name, number in row.items() if _is_known(number)}


def _is_known(number: float | None) -> bool:
    return number is not None and not math.isnan(number)


# Opens a log, and gives a function that writes to it, and its location.
Log = AbstractContextManager[tuple[Write, str]]


@contextmanager
def csv_log(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[Write, str]]:
    """Write `history.csv` in the folder anew, a line for each evaluation."""
    file = folder / CSV_FILE
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        names: list[str] = []

        def write(epoch: int, row: Mapping[str, float]) -> None:
            if not names:
                names.extend(row)
                writer.writerow(["epoch", *names])
            numbers = [row.get(name) for name in names]
            cells = [repr(number) if _is_known(number) else "" for number in numbers]
            writer.writerow([epoch, *cells])
            stream.flush()

        yield write, str(file)


@contextmanager
def tensorboard_log(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[Write, str]]:
    """Write events into `tensorboard` in the folder; they replace those of an earlier log there."""
    from torch.utils.tensorboard import SummaryWriter

    events = folder / TENSORBOARD_FOLDER
    # TensorBoard drops what earlier files in this folder have from step 0 on.
    with SummaryWriter(str(events), purge_step=0) as writer:
        lines = [f"{name}: {value}" for name, value in flatten(settings).items()]
        writer.add_text("settings", "\n\n".join(lines), 0)

        def write(epoch: int, row: Mapping[str, float]) -> None:
            for name, number in _known(row).items():
                writer.add_scalar(name, number, epoch)
            writer.flush()

        yield write, f"tensorboard --logdir {events}"


@contextmanager
def mlflow_log(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[Write, str]]:
    """Make a run where MLFLOW_TRACKING_URI says, below the active run if there is one."""
    import mlflow  # pyright: ignore[reportMissingImports] - an extra

    with mlflow.start_run(run_name=folder.name, nested=True) as run:
        mlflow.log_params(flatten(settings))

        def write(epoch: int, row: Mapping[str, float]) -> None:
            mlflow.log_metrics(_known(row), step=epoch)

        yield write, f"run {run.info.run_id} at {mlflow.get_tracking_uri()}"


@contextmanager
def wandb_log(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[Write, str]]:
    """Make a run as WANDB_MODE and `wandb login` say; its local files are in the folder."""
    import wandb  # pyright: ignore[reportMissingImports] - an extra

    options = wandb.Settings(console="off", silent=True)  # our output is not the training's log
    with wandb.init(
        project=wandb.setup().settings.project or PROJECT,
        name=folder.name,
        dir=str(folder),
        config=dict(settings),
        settings=options,
        reinit="create_new",
    ) as run:

        def write(epoch: int, row: Mapping[str, float]) -> None:
            run.log(_known(row), step=epoch)

        yield write, str(Path(run.dir).parent) if run.offline else run.url


OPENERS: Mapping[str, Callable[[Path, Mapping[str, Any]], Log]] = {
    "csv": csv_log,
    "mlflow": mlflow_log,
    "tensorboard": tensorboard_log,
    "wandb": wandb_log,
}
