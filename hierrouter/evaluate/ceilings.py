"""Which calls a budget for every query leaves open.

In: a training fold, a tree or one live state, a budget for the cost C of each query. Out:
`Ceilings` of the fold, and with them a mask over actions, made only of what a router knows before
it calls. Not covered: the best that a mask leaves; see `budget`.

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
    routes = tree.routes
    priced = _Priced(ceilings, actions, tree.rate)
    ahead = [
        priced.ahead(level, tree.tokens_in[:, routes.level(level)])
        for level in range(1, routes.hops + 1)
    ]
    spent = tree.cost[:, : routes.states, None]
    return _within(spent + np.concatenate(ahead, axis=1), actions.legal(), budget)


def affordable_at(
    ceilings: Ceilings,
    actions: Actions,
    rate: NDArray[np.float64],
    budget: float,
    path: tuple[int, ...],
    prompts: NDArray[np.int64],
    cost: float,
) -> NDArray[np.bool_]:
    """What may be called at one live state: what `affordable` says of that state.

    Args:
        ceilings: of the training fold.
        actions: what may be chosen at all.
        rate: float64[M, 2], price of a token in and of a token out.
        budget: greatest C of a query, in price * token.
        path: the models called so far, by number; fewer than L.
        prompts: int64[M], tokens of the prompt that each model would be asked with next.
        cost: C so far, in price * token.

    Returns:
        bool[A], at least one True.

    Raises:
        ValueError: not M prompts.
    """
    routes, level = actions.routes, len(path) + 1
    if prompts.shape != (routes.models,):
        raise ValueError(f"{routes.models} models need as many prompts, got {prompts.shape}")
    state = routes.node(path)
    place = state - routes.level_start(len(path))  # among the states of its level
    prompt = np.zeros((1, routes.models**level), dtype=np.int64)
    prompt.reshape(-1, routes.models)[place] = prompts
    ahead = _Priced(ceilings, actions, rate).ahead(level, prompt)[0, place]
    return _within(cost + ahead, actions.legal()[state], budget)


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
    """Ceilings under some prices, float64[M, 2]."""

    ceilings: Ceilings
    actions: Actions
    rate: NDArray[np.float64]

    def ahead(self, level: int, prompt: NDArray[np.int64]) -> NDArray[np.float64]:
        """Ceiling of the actions that lead to a level and of what must follow; inf: illegal.

        Args:
            prompt: int64[queries, M^level], tokens, known.

        Returns:
            float64[queries, M^(level - 1), A].
        """
        routes = self.actions.routes
        call = self._call(level, prompt)
        choices = [call + self._rest(level, prompt)]
        if self.actions.allow_stop:
            choices.append(call)
        shape = (len(prompt), -1, routes.models)
        total = np.concatenate([choice.reshape(shape) for choice in choices], axis=2)
        return np.where(self.actions.legal()[routes.level(level - 1)], total, np.inf)

    def _call(self, level: int, prompt: NDArray[np.int64]) -> NDArray[np.float64]:
        """Ceiling of the calls that lead to a level, whose prompts are known or bounded."""
        routes = self.actions.routes
        rate = np.tile(self.rate, (routes.models ** (level - 1), 1))
        return cost_of(prompt, self.ceilings.longest[routes.level(level)], rate)

    def _rest(self, level: int, prompt: NDArray[np.int64]) -> NDArray[np.float64]:
        """Ceiling of the cheapest way to finish after each node of a level, shaped as `prompt`."""
        routes = self.actions.routes
        if level == routes.hops:
            return np.zeros(prompt.shape)
        grown = np.repeat(prompt, routes.models, axis=1)
        grown += self.ceilings.growth[routes.level(level + 1)]
        total = self._call(level + 1, grown)
        if not self.actions.allow_stop:
            total += self._rest(level + 1, grown)
        cheapest: NDArray[np.float64] = total.reshape(*prompt.shape, -1).min(axis=2)
        return cheapest


def _within(
    total: NDArray[np.float64], legal: NDArray[np.bool_], budget: float
) -> NDArray[np.bool_]:
    """Which totals, float64[..., A], fit; the lowest one where none does."""
    fits = within(total, budget) & legal
    lowest = np.arange(total.shape[-1]) == total.argmin(axis=-1)[..., None]
    return np.where(fits.any(axis=-1, keepdims=True), fits, lowest)
