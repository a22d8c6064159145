"""The protocol of a baseline.

In: `Arms` of the train and of the validation fold, alpha, a generator. Out: a `Fitted` router, a
function from what is `Seen` of other queries to a `Play`. Not covered: which baselines there are
(`registry`), and who is compared with whom (`contest`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hierrouter.baselines.arms import Arms, Play, Seen

Fitted = Callable[[Seen], Play]
DIGITS = 9  # two values of R that differ by less are a tie


class Baseline(Protocol):
    """A router that is fitted on one fold and tuned on another."""

    @property
    def name(self) -> str:
        """How tables call it; on the command line small letters, and dashes for spaces."""
        ...

    @property
    def source(self) -> str:
        """Whose idea it is, with where to read about it."""
        ...

    @property
    def reads_answers(self) -> bool:
        """It needs `Seen.answers`."""
        ...

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """Learn from `train`; choose settings by mean R on `validation`.

        Args:
            alpha: of R = Q - alpha * C, which the router is to make as high as it can.
            rng: the only source of chance.
        """
        ...


@dataclass(frozen=True)
class Tuned:
    """A fitted router, and what the validation fold chose.

    Attributes:
        play: the router.
        settings: chosen settings by name, as JSON values; empty where there is nothing to choose.
    """

    play: Fitted
    settings: dict[str, Any]


def best_of(
    candidates: Sequence[tuple[dict[str, Any], Fitted]], validation: Arms, alpha: float
) -> Tuned:
    """The candidate with the highest mean R on the validation fold; of equals the first.

    Args:
        candidates: settings and router, at least one.
    """
    if not len(validation):
        settings, play = candidates[0]
        return Tuned(play, settings)
    rewards = [value_of(play, validation, alpha) for _, play in candidates]
    settings, play = candidates[int(np.round(rewards, DIGITS).argmax())]
    return Tuned(play, settings)


def value_of(play: Fitted, arms: Arms, alpha: float) -> float:
    """Mean R of a router on a fold."""
    return mean_reward(play(arms.seen), arms, alpha)


def mean_reward(played: Play, arms: Arms, alpha: float) -> float:
    """Mean R of what a router does on a fold."""
    return float(played.outcome(arms, "").reward(alpha).mean())
