"""The exact value of a policy on each query of a fold: anybody's, or what was trained here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hierrouter.declarations.checks import check_alpha
from hierrouter.evaluation import policies
from hierrouter.evaluation.bounds import oracle
from hierrouter.evaluation.outcome import (
    Actions,
    Floats,
    Outcome,
    fixed_routes,
    policy_outcome,
    single_calls,
)
from hierrouter.runs.folders import find_run
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree, net_reward

if TYPE_CHECKING:
    import pandas

    from hierrouter.learning.training import TrainedRouter

DEFAULT_FOLD = "validation"


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """What a policy is worth on each query of a fold, in expectation and without sampling error.

    Attributes:
        split: the fold: "train", "validation" or "test".
        query_ids: of the queries, in the order of the arrays.
        quality: float64[queries], expected Q, in [0, 1].
        accuracy: float64[queries], probability of a right answer.
        cost: float64[queries], expected C, in money.
    """

    name: str
    alpha: float
    split: str
    query_ids: tuple[str, ...]
    datasets: tuple[str, ...]
    quality: Floats
    accuracy: Floats
    cost: Floats

    @property
    def reward(self) -> Floats:
        """float64[queries]: expected R = Q - alpha * C (paper section 3.1)."""
        return net_reward(self.quality, self.cost, self.alpha)

    def __len__(self) -> int:
        return len(self.query_ids)

    def __repr__(self) -> str:
        from hierrouter.tables import money

        return (
            f"<{self.name} on {len(self)} {self.split} queries at alpha {self.alpha:g}: "
            f"R {self.reward.mean():.4f}, Q {self.quality.mean():.4f}, "
            f"C {money(self.cost.mean())}, right {self.accuracy.mean():.4f}>"
        )

    def to_pandas(self) -> pandas.DataFrame:
        """One row a query: query, dataset, split, quality, accuracy, cost, reward."""
        import pandas

        names = ("split", "quality", "accuracy", "cost", "reward")
        columns = {name: getattr(self, name) for name in names}
        return pandas.DataFrame({"query": self.query_ids, "dataset": self.datasets, **columns})


def evaluate(
    tree: RouteTree,
    policy: Any,
    alpha: float | None = None,
    *,
    allow_stop: bool | None = None,
    allow_return: bool | None = None,
    split: str | None = None,
    texts: policies.TextLoader | None = None,
) -> Evaluation:
    """The exact value of a policy on each query of a fold.

    Args:
        tree: one fold, or several.
        policy: a function of an `Observation` or an object with `act(observation)`, which gives
            the number or the name of an action, or float[A], the probability of each; a model of
            Stable-Baselines3, which is asked deterministically; float64[queries, S, A], a row
            for each query of `tree`; a run, or its folder; or a name: `calc` is a direct call,
            `text>calc` a fixed route, `oracle` the best route in hindsight. Where stopping is
            allowed, probabilities of the M models alone are of calls that do not stop.
        alpha: cost penalty of R = Q - alpha * C (paper section 3.1); None is what a router was
            trained for.
        allow_stop: whether the policy may end before L calls (paper appendix A); None is what
            a router, a table or a model of Stable-Baselines3 can do, and False for all others.
        allow_return: whether it may end after any answer with any answer of its route; None is
            what a router can do, and False for all others.
        split: the fold; None is that of the tree, and validation where the tree has several.
        texts: from a tree to the texts of its queries, for policies that read them; None takes the
            tree's own `texts`, where it has them.

    Raises:
        InputError: nothing to value it on, no alpha, or a policy that fails or gives what is
            neither an action nor probabilities; the message names the query and the stage.
    """
    folds = sorted(set(tree.splits))
    fold_name = split or (folds[0] if len(folds) == 1 else DEFAULT_FOLD)
    fold = tree.split(fold_name)
    if not len(fold):
        raise InputError(
            f"no query to value a policy on: the {fold_name} fold is empty; this tree has "
            f"{', '.join(folds) or 'none'}"
        )
    named = None
    if policies.policy_kind(policy) == "name":
        policy = named = _named(fold, policy, alpha, bool(allow_stop or allow_return))
    alpha = _alpha_of(policy, alpha)
    if isinstance(named, Outcome):  # one that is handed in may be of other queries
        outcome = named
    elif policies.policy_kind(policy) == "router":
        outcome = _of_router(fold, policy, allow_stop, allow_return)
    else:
        returns = bool(allow_return)
        if isinstance(policy, np.ndarray):
            states = Actions(tree.routes, allow_return=returns).states
            policy = policies.as_table(policy, tree, states)[np.array(tree.splits) == fold_name]
        stop = policies.can_stop(policy, fold, returns) if allow_stop is None else allow_stop
        table = policies.policy_table(fold, policy, alpha, stop, texts, returns)
        actions, name = Actions(fold.routes, stop, returns), policies.policy_name(policy)
        outcome = policy_outcome(fold, actions, table, name, "baseline")
    return Evaluation(
        name=outcome.name,
        alpha=alpha,
        split=fold_name,
        query_ids=fold.query_ids,
        datasets=fold.datasets,
        quality=outcome.quality,
        accuracy=outcome.accuracy,
        cost=outcome.cost,
    )


def _alpha_of(policy: Any, alpha: float | None) -> float:
    if alpha is None and policies.policy_kind(policy) == "router":
        alpha = policy.alpha
    if alpha is None:
        raise InputError(
            "no alpha to value a policy at: only a trained router has its own; give alpha=0.005"
        )
    return check_alpha(alpha)


def _named(
    fold: RouteTree, given: str | os.PathLike[str], alpha: float | None, ends_early: bool
) -> Outcome | TrainedRouter:
    """The direct call, the route or the oracle of this name, or the router in this folder."""
    if given == "oracle":
        return oracle(fold, _alpha_of(given, alpha), ends_early)
    for outcome in (*single_calls(fold), *fixed_routes(fold, True)):
        if outcome.name == given:
            return outcome
    folder = find_run(given)
    if not folder.is_dir():
        raise InputError(
            f"unknown policy: {os.fspath(given)}; give a model for its direct call "
            f"({', '.join(fold.direct.models) or 'none here'}), a route such as "
            f"{fold.routes.name(fold.routes.states, fold.models)}, oracle, or the folder of a run"
        )
    from hierrouter.runs.checkpoint import router_at  # needs torch

    return router_at(folder, alpha)


def _of_router(
    fold: RouteTree, router: Any, allow_stop: bool | None, allow_return: bool | None
) -> Outcome:
    stop, back = router.actions.allow_stop, router.actions.allow_return
    for name, given, own, may in (
        ("allow_stop", allow_stop, stop, "may stop early" if stop else "makes all its calls"),
        ("allow_return", allow_return, back, "may return answers" if back else "returns none"),
    ):
        if given not in (None, own):
            raise InputError(
                f"the router was trained otherwise: it {may}, {name} is {given}; leave {name} out"
            )
    return router.outcome(fold)
