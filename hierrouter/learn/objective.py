"""What a router is trained for.

Out: `Objective`: the reward, what may be done, and what may be spent. Not covered: how it is
learned, see `config`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hierrouter_cache.errors import InputError

MAX_ALPHA = 1e9  # far beyond any use; float32 overflows near 1e38


@dataclass(frozen=True)
class Objective:
    """The decision problem, apart from the data (paper section 3.1).

    Attributes:
        alpha: cost penalty of the reward R = Q - alpha * C.
        allow_stop: whether an episode may end before L calls (paper appendix A).
        max_cost: what one query may cost at most, in price * token; None is no limit. Calls that
            could exceed it are not chosen, see `hierrouter.evaluate.ceilings`.

    Raises:
        InputError: a number is not finite or below 0, or alpha is above `MAX_ALPHA`.
    """

    alpha: float
    allow_stop: bool = False
    max_cost: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("max_cost", self.max_cost)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} must be a finite number >= 0, got {value}")
        if self.alpha > MAX_ALPHA:
            raise InputError(f"alpha must be at most 1e9, got {self.alpha}")
