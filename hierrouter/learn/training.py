"""Train a router for one alpha on the cached tree.

In: a `RouteTree` with its folds, an `Objective`, a configuration, a seed. Out: the iterate with the
best exact value on the validation fold. The test fold is never looked at. Not covered: what an
epoch does (`ppo`, `exact`), the loop over epochs (`loop`), files (`checkpoint`, `resume`), all
alphas at once (`conditioned`).
"""

from __future__ import annotations

import numpy as np

from hierrouter.evaluate.ceilings import Ceilings
from hierrouter.learn.config import ExactConfig, PPOConfig, TrainConfig
from hierrouter.learn.exact import ExactLearner
from hierrouter.learn.folds import Fold, training_folds
from hierrouter.learn.loop import Learner, Snapshot, Watch, reproducible, run_epochs
from hierrouter.learn.objective import Objective
from hierrouter.learn.router import Router, shape_for
from hierrouter.learn.trained import Origin, TrainedRouter
from hierrouter_cache.tree import RouteTree


def train(
    tree: RouteTree,
    objective: Objective,
    config: TrainConfig,
    seed: int,
    watch: Watch | None = None,
    resumed: Snapshot | None = None,
) -> TrainedRouter:
    """Train on the fold "train", keep the iterate that is best on the fold "validation".

    Where two iterates are equally good on validation, the better one on train is kept, then the
    earlier one. Without a validation fold the train fold chooses.

    Args:
        tree: all folds.
        objective: what to train for.
        config: see `config.PRESETS`.
        seed: of everything random.
        watch: who is told.
        resumed: where to go on; everything else must be as it was.

    Raises:
        InputError: there is nothing to train on.
    """
    learn_from, choose_on = training_folds(tree)
    ceilings = None if objective.max_cost is None else Ceilings.of(learn_from)
    fold, chooser = (Fold.of(part, objective, ceilings) for part in (learn_from, choose_on))

    def values() -> tuple[float, float]:
        return fold.value(router, objective.alpha), chooser.value(router, objective.alpha)

    with reproducible(seed):
        router = Router(shape_for(learn_from, fold.actions, config))
        learner = _learner(router, fold, objective.alpha, config, np.random.default_rng(seed))
        best = run_epochs(learner, config, values, watch, resumed)
    router.load_state_dict(best.weights)
    return TrainedRouter(
        router=router.requires_grad_(False).eval(),
        objective=objective,
        origin=Origin.of(tree, config, seed),
        history=tuple(best.history),
        ceilings=ceilings,
        kept=best.kept,
    )


def _learner(
    router: Router, fold: Fold, alpha: float, config: TrainConfig, rng: np.random.Generator
) -> Learner:
    if isinstance(config, PPOConfig):
        # Tianshou takes longer to import than a training by enumeration takes.
        from hierrouter.learn.ppo import PPOLearner

        return PPOLearner(router, fold, alpha, config, rng)
    assert isinstance(config, ExactConfig)
    return ExactLearner(router, fold, alpha, config, rng)
