"""The state of a training between two epochs, from which a training goes on.

Where and when states are saved is not decided here; see `hierrouter.runs.saved_states`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from hierrouter.learning.sweep import Policy

Array = NDArray[Any]


@dataclass(frozen=True)
class TrainingState:
    """Everything that the rest of a training depends on, apart from its settings and its data.

    Attributes:
        epoch: number of epochs done.
        arrays: float32, float64 or int64 arrays by name: weights, moments of the optimiser,
            generators.
        values: the rest, as JSON values by name.
        file: the file that it was read from; None if it was read from none.
        remedy: what to do if it does not fit the training, as the end of a message.
        policy: the router, or the routers of a sweep, with the weights of this epoch, which need
            not be the best ones; only with the state of a checkpoint.
    """

    epoch: int
    arrays: Mapping[str, Array]
    values: Mapping[str, Any]
    file: Path | None = None
    remedy: str = "train from the start"
    policy: Policy | None = None


# Called after an epoch with a function that returns the state of the training.
OnState = Callable[[Callable[[], TrainingState]], None]
OnCheckpoint = Callable[[TrainingState], None]


def ignore_state(make_state: Callable[[], TrainingState]) -> None:
    """Do nothing: the `OnState` of a training whose states are not saved."""


def ignore_checkpoint(state: TrainingState) -> None:
    """Do nothing: the `OnCheckpoint` of a training without checkpoints."""


@dataclass(frozen=True)
class Resumption:
    """How a training begins, and what may be saved of it; by default nothing is.

    Attributes:
        state: the state to go on from; None begins with the first epoch. Settings, seed and data
            must be those of the training that it is a state of.
        on_state: called after each epoch. Making a state takes time, so the function that it is
            called with is only called for a state that is saved.
        checkpoint_every: epochs between two checkpoints; 0 makes none.
        on_checkpoint: called with the state after each of those epochs, and the policy in it.
    """

    state: TrainingState | None = None
    on_state: OnState = ignore_state
    checkpoint_every: int = 0
    on_checkpoint: OnCheckpoint = ignore_checkpoint

    def is_checkpoint(self, epoch: int) -> bool:
        """Whether the state after an epoch is a checkpoint."""
        return self.checkpoint_every > 0 and epoch % self.checkpoint_every == 0


def select(items: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return the items whose names begin with "group.", by the rest of their names."""
    start = f"{group}."
    return {
        name.removeprefix(start): item for name, item in items.items() if name.startswith(start)
    }


def prefix(group: str, items: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items with "group." before their names, as `select` takes them apart."""
    return {f"{group}.{name}": item for name, item in items.items()}
