"""Which calls a budget for every query leaves open.

In: a training fold, a tree, a budget for the cost C of each query. Out: `Ceilings` of the fold, and
with them a mask over actions, made only of what a router knows before it calls. Not covered: the
best that a mask leaves; see `budget`.

Known before a call: what was spent, and the length of the call's prompt, which can be counted. Not
known: the length of the answer, and so of the prompts of later calls. For these the largest values
of the training fold are taken, node by node:

    tokens_out(n)  at most the largest tokens_out of node n
    tokens_in(n)   at most tokens_in(parent) + the largest growth from the parent's prompt to n's

A call is affordable if its own ceiling and those of the cheapest way to finish after it are
within what is left. As long as no answer is longer and no prompt grows more than on the training
fold, a query with an affordable call at the root never exceeds the budget, whatever it calls among
what is affordable. A new query may break the ceilings: `budget.share_over` says how often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import Actions
from hierrouter.evaluate.budget import within
from hierrouter_cache.pricing import cost_of
from hierrouter_cache.routes import Routes
from hierrouter_cache.tree import RouteTree


def affordable(
    ceilings: Ceilings, tree: RouteTree, budget: float, actions: Actions
) -> NDArray[np.bool_]:
    """What may be called at each state so that the cost of a query stays within a budget.

    Where nothing is affordable, the action with the lowest ceiling stays: an answer is owed, even
    to a query whose bare question costs more than the budget.

    Args:
        ceilings: of the training fold.
        tree: queries of any fold, with the same pool and hops.
        budget: greatest C of a query, in price * token.
        actions: what may be chosen at all.

    Returns:
        bool[queries, states, A], at least one True in each row.
    """
    total = tree.cost[:, : tree.routes.states, None] + _to_the_end(ceilings, tree, actions)
    fits = within(total, budget) & actions.legal()
    lowest = np.arange(actions.count) == total.argmin(axis=2)[:, :, None]
    return np.where(fits.any(axis=2, keepdims=True), fits, lowest)


@dataclass(frozen=True)
class Ceilings:
    """The largest unknowns of a fold at each node.

    Attributes:
        longest: int64[nodes], tokens of the longest answer.
        growth: int64[nodes], largest number of tokens that a prompt has more than its parent's,
            each counted by the model that is asked.
    """

    longest: NDArray[np.int64]
    growth: NDArray[np.int64]

    @classmethod
    def of(cls, fold: RouteTree) -> Ceilings:
        """The ceilings of one fold, which is not empty."""
        nodes = np.arange(1, fold.routes.nodes)
        parent = np.concatenate([[0], (nodes - 1) // fold.routes.models])
        growth = (fold.tokens_in - fold.tokens_in[:, parent]).max(axis=0)
        return cls(fold.tokens_out.max(axis=0), growth)


@dataclass(frozen=True)
class _Priced:
    """Ceilings under the prices of a tree."""

    ceilings: Ceilings
    routes: Routes
    rate: NDArray[np.float64]

    def call(self, level: int, prompt: NDArray[np.int64]) -> NDArray[np.float64]:
        """Ceiling of the calls that lead to a level, whose prompts are known or bounded.

        Args:
            prompt: int64[queries, M^level], tokens.
        """
        rate = np.tile(self.rate, (self.routes.models ** (level - 1), 1))
        return cost_of(prompt, self.ceilings.longest[self.routes.level(level)], rate)

    def rest(self, level: int, prompt: NDArray[np.int64], allow_stop: bool) -> NDArray[np.float64]:
        """Ceiling of the cheapest way to finish after each node of a level, shaped as `prompt`."""
        if level == self.routes.hops:
            return np.zeros(prompt.shape)
        grown = np.repeat(prompt, self.routes.models, axis=1)
        grown += self.ceilings.growth[self.routes.level(level + 1)]
        total = self.call(level + 1, grown)
        if not allow_stop:
            total += self.rest(level + 1, grown, allow_stop)
        cheapest: NDArray[np.float64] = total.reshape(*prompt.shape, -1).min(axis=2)
        return cheapest


def _to_the_end(ceilings: Ceilings, tree: RouteTree, actions: Actions) -> NDArray[np.float64]:
    """float64[queries, states, A]: ceiling of an action and of what must follow; inf: illegal."""
    routes, columns = tree.routes, []
    priced = _Priced(ceilings, routes, tree.rate)
    for level in range(1, routes.hops + 1):
        prompt = tree.tokens_in[:, routes.level(level)]
        call = priced.call(level, prompt)
        choices = [call + priced.rest(level, prompt, actions.allow_stop)]
        if actions.allow_stop:
            choices.append(call)
        shape = (len(tree), -1, routes.models)
        columns.append(np.concatenate([choice.reshape(shape) for choice in choices], axis=2))
    total = np.concatenate(columns, axis=1)
    return np.where(actions.legal(), total, np.inf)
