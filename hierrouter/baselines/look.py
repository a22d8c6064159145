"""What a look at a contest shows.

In: a `Contest` and its baselines. Out: JSON values that differ where another contest was looked at,
for the log of looks at the test fold. A baseline of the user's own has a digest of what it reached,
so that an edit of its file is another look, where it changes a figure. Not covered: the log itself
(`hierrouter.looks`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from hierrouter.baselines.baseline import DIGITS, Baseline
from hierrouter.baselines.contest import Contest
from hierrouter.baselines.own import OwnBaseline
from hierrouter.evaluate.policies import OwnPolicy

OWN = (OwnBaseline, OwnPolicy)


def look_of(
    held: Contest, baselines: Sequence[Baseline], policies: Sequence[OwnPolicy] = ()
) -> dict[str, Any]:
    """Alpha, sets, seed and baselines of a contest; `own` only where one is the user's.

    Args:
        held: the contest.
        baselines: those it was held with.
        policies: of the user's own.
    """
    took_part = [one.outcome.name for one in held.entries if one.outcome.kind == "baseline"]
    users = [one.name for one in (*baselines, *policies) if isinstance(one, OWN)]
    own = {name: _digest(held, name) for name in users if name in took_part}
    return {
        "alpha": held.alpha,
        "baselines": list(dict.fromkeys(took_part)),
        "sets": list(held.sets),
        "seed": held.seed,
        **({"own": own} if own else {}),
    }


def _digest(held: Contest, name: str) -> str:
    """Of a baseline's R on each query, on all its sets."""
    rewards = [one.outcome.reward(held.alpha) for one in held.entries if one.outcome.name == name]
    values = np.round(np.array(rewards, dtype="<f8"), DIGITS) + 0.0  # no sign on zeros
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]
