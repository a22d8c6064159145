"""What a router may do: which model to call, and stop.

In: the shape of a tree and whether stopping early is allowed. Out: `Actions`, the arithmetic of
action numbers: `a % M` is the model to call, and where stopping is allowed `a >= M` says that the
episode ends with that call (paper appendix A: a_t = (i, stop)). Not covered: which action is good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.routes import SEPARATOR, Routes

# Ends the name of an action that stops, and of a route of fewer than L calls: `first>stop` is not
# the direct call of `first`, which has no stage instruction.
STOP = f"{SEPARATOR}stop"


@dataclass(frozen=True)
class Actions:
    """The action numbers of one tree: M, or 2M with stop.

    Attributes:
        routes: shape of the tree, for M models and L hops.
        allow_stop: whether an episode may end before L calls.
    """

    routes: Routes
    allow_stop: bool = False

    @property
    def count(self) -> int:
        """A: M, or 2M with stop."""
        return self.routes.models * (2 if self.allow_stop else 1)

    @property
    def endings(self) -> slice:
        """The node numbers at which an episode can end: the leaves; with stop, all but the root."""
        return slice(1, self.routes.nodes) if self.allow_stop else self.routes.leaves

    def model(self, action: NDArray[np.int64]) -> NDArray[np.int64]:
        """The model that `action` calls; works on arrays and on ints."""
        return action % self.routes.models

    def stops(self, action: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether `action` ends the episode with its call; works on arrays and on ints."""
        return action >= self.routes.models

    def ends(self, node: NDArray[np.int64], action: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the episode is over at `node`, reached by `action`; arrays or ints."""
        return (node >= self.routes.states) | self.stops(action)

    def names(self, models: Sequence[str]) -> tuple[str, ...]:
        """The name of each action: a model, then each `model>stop` where stopping is allowed."""
        return (*models, *(f"{name}{STOP}" for name in models))[: self.count]

    def legal(self) -> NDArray[np.bool_]:
        """bool[states, A]: what a policy may choose at each state.

        Before the last call only the half that does not stop is legal: the episode ends anyway,
        and there shall be one way to say so.
        """
        routes = self.routes
        legal = np.ones((routes.states, self.count), dtype=np.bool_)
        legal[routes.level(routes.hops - 1), routes.models :] = False
        return legal
