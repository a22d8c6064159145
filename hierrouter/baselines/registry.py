"""The baselines there are, by name.

In: names that a user typed. Out: baselines, in the order in which tables show them. Not covered:
what a baseline is (`baseline`), and who runs them (`contest`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hierrouter.baselines.baseline import Baseline
from hierrouter.baselines.best_of import BestOf
from hierrouter.baselines.cascade import Cascade
from hierrouter.baselines.cascade_routing import CascadeRouting
from hierrouter.baselines.clusters import Clusters
from hierrouter.baselines.dual_encoder import DualEncoder
from hierrouter.baselines.elo import Elo
from hierrouter.baselines.factorisation import Factorisation
from hierrouter.baselines.knn import NearestNeighbours
from hierrouter.baselines.linucb import LinUCB
from hierrouter.baselines.mlp import Mlp
from hierrouter.baselines.own import own_baseline
from hierrouter.baselines.quality_gap import QualityGap
from hierrouter.baselines.regression import LogisticPerArm, RidgePerArm
from hierrouter.baselines.static import BestStatic, Cheapest, DatasetOracle, Largest, Random
from hierrouter.baselines.svm import Svm
from hierrouter.baselines.vote import MajorityVote
from hierrouter.pool import suggestion
from hierrouter_cache.errors import InputError

BUILT_IN: tuple[Baseline, ...] = (  # pyright: ignore  class variables do for properties
    Random(),
    Cheapest(),
    Largest(),
    BestStatic(),
    DatasetOracle(),
    NearestNeighbours(),
    Clusters(),
    RidgePerArm(),
    LogisticPerArm(),
    Mlp(),
    Svm(),
    Factorisation(),
    Elo(),
    DualEncoder(),
    QualityGap(),
    LinUCB(),
    Cascade(),
    CascadeRouting(),
    MajorityVote(),
    BestOf(),
)


def typed(name: str) -> str:
    """What a user types for the name of a baseline: `best-static` for "best static"."""
    return "-".join(name.lower().split())


BASELINES: Mapping[str, Baseline] = {typed(baseline.name): baseline for baseline in BUILT_IN}


def baselines(names: Sequence[str] | None = None) -> tuple[Baseline, ...]:
    """The baselines of these names, or the user's own classes at `module:Class`; None is all.

    Raises:
        InputError: nothing of such a name, a class that cannot be used, or two of one name.
    """
    if names is None:
        return BUILT_IN
    found = tuple(_baseline(name) for name in names)
    called = [typed(baseline.name) for baseline in found]
    for name in called:
        if called.count(name) > 1:
            raise InputError(f"baseline given twice: {name}: --baselines; names must differ")
    return found


def _baseline(name: str) -> Baseline:
    if ":" in name:
        return own_baseline(name)
    if name not in BASELINES:
        known = suggestion(name, BASELINES)
        raise InputError(f"unknown baseline: {name}; {known}or give your own as module:Class")
    return BASELINES[name]
