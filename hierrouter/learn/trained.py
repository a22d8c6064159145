"""A router that has been trained.

In: a `Router` with its weights. Out: action probabilities on every state of a tree or on a single
live state, and the exact outcome on a tree. Not covered: where it comes from (`origin`), files
(`checkpoint`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hierrouter.actions import Actions
from hierrouter.evaluate.ceilings import Ceilings, affordable_at
from hierrouter.evaluate.exact import ending, greedy
from hierrouter.evaluate.outcome import ROUTER, Outcome, from_endings
from hierrouter.learn.objective import Objective
from hierrouter.learn.origin import Origin
from hierrouter.learn.router import Router, action_probabilities
from hierrouter.learn.states import live_states, state_table
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class TrainedRouter:
    """The weights of the best iterate and everything needed to use and to reproduce them.

    Attributes:
        router: the network, frozen.
        objective: what it was trained for.
        origin: where it comes from.
        history: exact greedy R on the validation fold at each evaluation; empty for a router that
            was read off a sweep, which was valued at its whole grid (`TrainedSweep.history`).
        ceilings: what calls may cost at most, where the objective limits the cost of a query.
        budget: mean cost of a query, in price * token, that alpha was chosen to keep within; None
            where alpha was given.
        kept: index in `history` of the iterate that was kept; None where it is not known.
    """

    router: Router
    objective: Objective
    origin: Origin
    history: tuple[float, ...]
    ceilings: Ceilings | None = None
    budget: float | None = None
    kept: int | None = None

    @property
    def alpha(self) -> float:
        """The cost penalty it was trained for."""
        return self.objective.alpha

    @property
    def actions(self) -> Actions:
        """What it chooses from."""
        return Actions(self.origin.routes, self.objective.allow_stop)

    def probabilities(self, tree: RouteTree) -> NDArray[np.float64]:
        """float64[queries, states, A]: the stochastic policy at every state.

        Raises:
            InputError: the tree is not one this router can read.
        """
        self.origin.check_matches(tree, self.router.shape.dim)
        table = state_table(tree, self.objective, self.ceilings)
        probabilities = action_probabilities(self.router, table)
        return probabilities.reshape(len(tree), tree.routes.states, -1)

    def outcome(self, tree: RouteTree) -> Outcome:
        """The exact outcome of the greedy policy on every query of `tree`.

        Raises:
            InputError: the tree is not one this router can read.
        """
        return from_endings(tree, self.endings(tree), ROUTER, "router")

    def endings(self, tree: RouteTree) -> NDArray[np.float64]:
        """float64[queries, nodes]: where the greedy policy ends, 1 at one node of each query.

        Raises:
            InputError: the tree is not one this router can read.
        """
        return ending(self.actions, greedy(self.probabilities(tree), tree.base_rate))

    @torch.no_grad()
    def decide_each(
        self,
        embedding: NDArray[np.float32],
        paths: Sequence[tuple[int, ...]],
        costs: Sequence[float],
        prompts: Sequence[NDArray[np.int64] | None],
    ) -> NDArray[np.float64]:
        """float64[n, A]: the stochastic policy at some live states, worked out together.

        Args:
            embedding: float32[n, dim], the encoder's vectors of the view.
            paths: of each state, as `decide` has it.
            costs: of each state.
            prompts: of each state.

        Raises:
            ValueError: prompts are needed, and are not given or not M; or ceilings are, and there
                are none.
        """
        known = zip(paths, costs, prompts, strict=True)
        legal = np.stack([self._legal(*one) for one in known])
        states = live_states(embedding, [len(path) for path in paths], costs, legal)
        logits, _ = self.router(states)
        chances: NDArray[np.float64] = torch.softmax(logits.double(), dim=1).numpy()
        return chances

    def decide(
        self,
        embedding: NDArray[np.float32],
        path: tuple[int, ...],
        cost: float,
        prompts: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        """float64[A]: the stochastic policy at one live state.

        Args:
            embedding: float32[dim], the encoder's vectors of the view.
            path: the models called so far, by number; fewer than L.
            cost: C so far, in price * token.
            prompts: int64[M], tokens of the prompt that each model would be asked with next, as it
                counts them; needed, and read, only where the objective limits the cost of a query.
                Calls are priced as at the time of training.

        Raises:
            ValueError: prompts are needed, and are not given or not M; or ceilings are, and there
                are none.
        """
        found: NDArray[np.float64] = self.decide_each(embedding[None], [path], [cost], [prompts])[0]
        return found

    def choose(
        self,
        embedding: NDArray[np.float32],
        path: tuple[int, ...],
        cost: float,
        prompts: NDArray[np.int64] | None = None,
    ) -> int:
        """The action to take next: the greedy policy at one live state; see `decide`."""
        probabilities = self.decide(embedding, path, cost, prompts)
        return int(greedy(probabilities, self.origin.base_rate).argmax())

    def _legal(
        self, path: tuple[int, ...], cost: float, prompts: NDArray[np.int64] | None
    ) -> NDArray[np.bool_]:
        """bool[A]: what may be chosen at one live state."""
        limit, actions = self.objective.max_cost, self.actions
        if limit is None:
            legal: NDArray[np.bool_] = actions.legal()[actions.routes.node(path)]
            return legal
        if self.ceilings is None:
            raise ValueError("a limit on the cost of a query needs `ceilings` of the router")
        if prompts is None:
            raise ValueError("a limit on the cost of a query needs `prompts`, the tokens of each")
        rate = np.array(self.origin.rate)
        return affordable_at(self.ceilings, actions, rate, limit, path, prompts, cost)
