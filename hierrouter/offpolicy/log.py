"""Logged episodes as arrays.

Out: `Log`: what was called, with which probability, what it cost and how good the answer was. It
holds what was done and nothing else: no estimator can look up what another call would have given.
Not covered: files, see `log_file`; what was seen before each call, see `states`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import Actions


@dataclass(frozen=True)
class Log:
    """Whole episodes, one a row (paper section 3.1), and how probable each call was.

    Attributes:
        actions: what the numbers in `action` mean.
        query: int64[episodes], number of the question; the same question has the same number.
        action: int64[episodes, L]; 0 after the end.
        propensity: float64[episodes, L], in (0, 1]: the probability with which the logging policy
            took the action where it took it; 1 after the end.
        length: int64[episodes], calls made, 1 to L.
        quality: float64[episodes], Q of the last answer.
        cost: float64[episodes, L], of each call, in price * token; 0 after the end.
    """

    actions: Actions
    query: NDArray[np.int64]
    action: NDArray[np.int64]
    propensity: NDArray[np.float64]
    length: NDArray[np.int64]
    quality: NDArray[np.float64]
    cost: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.length)

    @property
    def hops(self) -> int:
        """L."""
        return self.actions.routes.hops

    @cached_property
    def alive(self) -> NDArray[np.bool_]:
        """bool[episodes, L]: whether a call was made."""
        alive: NDArray[np.bool_] = np.arange(self.hops) < self.length[:, None]
        return alive

    @cached_property
    def node(self) -> NDArray[np.int64]:
        """int64[episodes, L]: the node at which each call was decided; 0 after the end."""
        node = np.zeros_like(self.action)
        for hop in range(1, self.hops):
            called = self.actions.model(self.action[:, hop - 1])
            node[:, hop] = self.actions.routes.child(node[:, hop - 1], called)
        return np.where(self.alive, node, 0)

    @cached_property
    def spent(self) -> NDArray[np.float64]:
        """float64[episodes, L]: C_t, what was spent before each call."""
        spent = np.zeros_like(self.cost)
        spent[:, 1:] = self.cost[:, :-1].cumsum(axis=1)
        return spent

    def reward(self, alpha: float) -> NDArray[np.float64]:
        """float64[episodes, L]: what each call earned; a row's sum is R = Q - alpha * C.

        The paper pays R at the end. A call's cost is known when it is made, so it is charged there,
        and Q is paid with the last call: the sum is the same, and estimators that go call by call
        need not carry a cost through the calls that follow it.
        """
        reward = -alpha * self.cost
        reward[np.arange(len(self)), self.length - 1] += self.quality
        return reward
