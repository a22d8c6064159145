"""The best policy of a kind.

In: outcomes over the same queries. Out: the one with the highest mean R, on all queries or on some.
Not covered: choices that are made on another fold (`hierrouter.evaluate.bounds`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluate.outcome import Outcome


def best_of_kind(
    outcomes: Sequence[Outcome],
    kind: str,
    alpha: float,
    queries: NDArray[np.int64] | slice = slice(None),
) -> Outcome | None:
    """The policy of a kind with the highest mean R, the cheaper on a tie; None without one.

    Args:
        alpha: weight of cost in R.
        queries: int64[n], positions of the queries that count; all if not given.
    """

    def worth(one: Outcome) -> tuple[float, float]:
        return float(one.reward(alpha)[queries].mean()), -float(one.cost[queries].mean())

    return max((one for one in outcomes if one.kind == kind), key=worth, default=None)
