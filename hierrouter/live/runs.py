"""Which run answers live questions.

In: the runs under `runs`. Out: the folder of the one to use. Not covered: what it takes to use it
(`router`).
"""

from __future__ import annotations

from pathlib import Path

from hierrouter.learn.checkpoint import DESCRIPTION, description_of
from hierrouter.live.bundle import FILE
from hierrouter.runs import finished_runs
from hierrouter_cache.errors import InputError


def live_run(alpha: float | None = None) -> Path:
    """The newest run of `train` for this alpha; else a network of the newest sweep.

    Args:
        alpha: None takes the newest run of `train`, whatever its alpha.

    Raises:
        InputError: there is none that can answer live questions.
    """
    for run in finished_runs("train"):
        its_alpha = description_of(run).get("objective", {}).get("alpha")
        if (run / FILE).is_file() and alpha in (None, its_alpha):
            return run
    for sweep in finished_runs("sweep-alpha"):
        if not (sweep / FILE).is_file():
            continue
        for network in sorted(file.parent for file in sweep.glob(f"*/{DESCRIPTION}")):
            if "alphas" in description_of(network):  # for every alpha
                return network
    wanted = "" if alpha is None else f" for alpha {alpha:g}, and no sweep"
    remedy = "`hierrouter train`" if alpha is None else "`hierrouter sweep-alpha`, or --checkpoint"
    raise InputError(f"no trained router{wanted}: runs; {remedy}")
