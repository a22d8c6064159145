"""The bound ladder: what each kind of knowledge is worth.

In: the train fold, the fold that is shown, alpha. Out: `Rung`s from chance to the oracle that may
stop; what is chosen from data is chosen on the train fold. Each keeps one outcome a query, so that
datasets and intervals follow. Not covered: routers; the best that can be told from given features
(`information.measurable_optimum`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hierrouter.evaluate.bounds import (
    best_direct_call,
    best_fixed_route,
    best_route_per_dataset,
    direct_oracle,
    oracle,
    random_policy,
)
from hierrouter.evaluate.outcome import Outcome
from hierrouter_cache.tree import RouteTree

MEANINGS = {
    "random": "every route with the same probability",
    "best single call": "one model of the pool asked directly, the same for every query; "
    "the best one on the train fold",
    "best fixed route": "the same models in the same order for every query; "
    "the best ones on the train fold",
    "best route per dataset": "the best fixed route of each dataset on the train fold: "
    "a router that tells the datasets apart without an error, and no more",
    "one-hop oracle": "the best direct call of each query among the pool's, knowing all answers: "
    "no router that makes one direct call does better",
    "tree oracle": "the best route of exactly L calls of each query, knowing all answers: "
    "no router of L calls does better",
    "anytime oracle": "the best route of up to L calls of each query, knowing all answers: "
    "no router that may stop does better",
}


@dataclass(frozen=True)
class Rung:
    """One bound of the ladder.

    Attributes:
        name: a key of `MEANINGS`; the outcome's own name says which model or route was chosen.
        meaning: what it knows and may do.
        outcome: on each query of the fold that is shown.
    """

    name: str
    meaning: str
    outcome: Outcome


def ladder(
    chosen_on: RouteTree, alpha: float, tree: RouteTree, allow_stop: bool = False
) -> list[Rung]:
    """The rungs in the order of `MEANINGS`, from chance to the anytime oracle.

    Their rewards need not rise. What is chosen on one fold may do worse on another. Direct calls
    lack the stage instructions, so they are no routes of the tree, and the one-hop oracle can beat
    the tree oracle. The anytime oracle never loses to the tree oracle.

    Args:
        chosen_on: the train fold. Rungs that choose on it are left out where it is empty.
        tree: the fold that is shown. Rungs of direct calls look only at models of the pool that
            have some, and are left out where none has.
        allow_stop: whether chance and the fixed routes, too, may end before L calls.
    """
    outcomes: dict[str, Outcome | None] = {"random": random_policy(tree, allow_stop)}
    if len(chosen_on):
        outcomes["best single call"] = best_direct_call(chosen_on, alpha, tree)
        outcomes["best fixed route"] = best_fixed_route(chosen_on, alpha, tree, allow_stop)
        informed = best_route_per_dataset(chosen_on, alpha, tree, allow_stop)
        outcomes["best route per dataset"] = informed
    outcomes["one-hop oracle"] = direct_oracle(tree, alpha)
    outcomes["tree oracle"] = oracle(tree, alpha)
    outcomes["anytime oracle"] = replace(oracle(tree, alpha, True), name="anytime oracle")
    return [Rung(name, MEANINGS[name], found) for name, found in outcomes.items() if found]
