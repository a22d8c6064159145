"""Evaluate any policy exactly on each query of a fold: a router, or one of the user."""

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
    known_share,
    policy_outcome,
    single_calls,
)
from hierrouter.runs.folders import find_run
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree, net_reward

if TYPE_CHECKING:
    import pandas

    from hierrouter.learning.router import TrainedRouter

DEFAULT_FOLD = "validation"


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The value of a policy on each query of a fold, in expectation and without sampling error.

    Attributes:
        name: of the policy.
        alpha: price of cost in R.
        split: the fold: "train", "validation" or "test".
        query_ids: of the queries, in the order of the arrays.
        datasets: of the queries, likewise.
        quality: float64[queries], expected Q, in [0, 1].
        accuracy: float64[queries], probability of a right answer; NaN where nothing judges answers.
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
            f"C {money(self.cost.mean())}, right {known_share(self.accuracy)}>"
        )

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row for each query: query, dataset, split, quality, accuracy, cost, reward."""
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
    """Return the exact value of a policy on each query of a fold.

    Args:
        tree: one fold, or several.
        policy: one of:
            a function of an `Observation`, or an object with `act(observation)`, which returns the
            number or the name of an action, or float[A], the probability of each action;
            a model of Stable-Baselines3, whose deterministic actions are taken;
            float64[queries, S, A], a row for each query of `tree`;
            a run, or its folder;
            or a name: `calc` is a direct call, `text>calc` a fixed route, `oracle` the best route
            in hindsight. If stopping is allowed, probabilities of only the M models mean calls
            that do not stop.
        alpha: price of cost in R = Q - alpha * C (paper section 3.1); None is the one that a router
            was trained for.
        allow_stop: whether the policy may end before L calls (paper appendix A); None is the
            ability of a router, a table or a model of Stable-Baselines3, and False for all others.
        allow_return: whether it may end after any call with any response of its route; None is the
            ability of a router, and False for all others.
        split: the fold; None is that of the tree, or validation if the tree has several.
        texts: returns the texts of the queries of a tree, for policies that read them; None is the
            `texts` of the tree itself, if it has them.

    Raises:
        InputError: no queries to evaluate it on, no alpha, or a policy that fails or returns
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
    outcome_by_name = None
    if policies.policy_kind(policy) == "name":
        policy = _policy_by_name(fold, policy, alpha, bool(allow_stop or allow_return))
        # Only an outcome that was made here is known to be of the queries of this fold.
        if isinstance(policy, Outcome):
            outcome_by_name = policy
    alpha = _alpha_of(policy, alpha)
    if outcome_by_name is not None:
        outcome = outcome_by_name
    elif policies.policy_kind(policy) == "router":
        outcome = _router_outcome(fold, policy, allow_stop, allow_return)
    else:
        if allow_return:
            fold = fold.with_returns
        if isinstance(policy, np.ndarray):
            table = policies.as_table(policy, tree, fold.layout.states)
            policy = table[np.array(tree.splits) == fold_name]
        stop = policies.can_stop(policy, fold) if allow_stop is None else allow_stop
        table = policies.policy_table(fold, policy, alpha, stop, texts)
        actions = Actions(fold.layout, stop)
        name = policies.policy_name(policy)
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
    """Return alpha, or else the one that a router was trained for.

    Raises:
        InputError: there is none, or it is no alpha.
    """
    if alpha is None and policies.policy_kind(policy) == "router":
        alpha = policy.alpha
    if alpha is None:
        raise InputError(
            "no alpha to value a policy at: only a trained router has its own; give alpha=0.005"
        )
    return check_alpha(alpha)


def _policy_by_name(
    fold: RouteTree, name: str | os.PathLike[str], alpha: float | None, ends_early: bool
) -> Outcome | TrainedRouter:
    """Return the direct call, the route or the oracle of a name, or the router in a folder.

    Raises:
        InputError: there is no policy of this name.
    """
    if name == "oracle":
        return oracle(fold, _alpha_of(name, alpha), ends_early)
    for outcome in (*single_calls(fold), *fixed_routes(fold, True)):
        if outcome.name == name:
            return outcome
    folder = find_run(name)
    if not folder.is_dir():
        raise InputError(
            f"unknown policy: {os.fspath(name)}; give a model for its direct call "
            f"({', '.join(fold.direct.models) or 'none here'}), a route such as "
            f"{fold.layout.name(fold.layout.inner, fold.models)}, oracle, or the folder of a run"
        )
    from hierrouter.runs.checkpoint import router_at  # imports torch

    return router_at(folder, alpha)


def _router_outcome(
    fold: RouteTree, router: Any, allow_stop: bool | None, allow_return: bool | None
) -> Outcome:
    """Evaluate a router, whose abilities cannot be changed any more.

    Raises:
        InputError: an argument contradicts the router.
    """
    can_stop = router.actions.allow_stop
    can_return = router.actions.returns > 0
    ability = ""
    contradiction = ""
    if allow_stop not in (None, can_stop):
        ability = "may stop early" if can_stop else "makes all its calls"
        contradiction = f"allow_stop is {allow_stop}; leave allow_stop out"
    elif allow_return not in (None, can_return):
        ability = "may return answers" if can_return else "returns none"
        contradiction = f"allow_return is {allow_return}; leave allow_return out"
    if ability:
        raise InputError(f"the router was trained otherwise: it {ability}, {contradiction}")
    return router.outcome(fold)
