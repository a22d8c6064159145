"""The cached tree as a Gymnasium environment.

In: a `RouteTree` and alpha. Out: `ReplayEnv`, the paper's finite-horizon MDP with every model
call looked up instead of made. Not covered: many episodes at once; see `vector` and `rollouts`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hierrouter.actions import Actions
from hierrouter_cache.tree import RouteTree

Observation = dict[str, Any]
Info = dict[str, Any]


class ReplayEnv(gymnasium.Env[Observation, np.int64]):  # type: ignore[misc]
    """Multi-hop routing of one query at a time (paper section 3.1 and appendix A).

    ## Description
    A router has a pool of M models and L hops. At each hop it calls one model on the context so
    far; the response r_t is appended, c_{t+1} = c_t || r_t. Every response has been collected
    beforehand, so a transition is a lookup and the same actions on the same query give the same
    episode.

    ## Action Space
    `Discrete(M)`: a_t is the model to call next, in the order of the tree's `models`. With
    `allow_stop` it is `Discrete(2M)`: action M + i calls model i, and the episode ends with that
    call. At the last hop it ends anyway, so M + i does there what i does.

    ## Observation Space
    `Dict` with the three parts of the state s_t = (c_t, l_t, C_t):

    | key         | space                     | meaning                                        |
    |-------------|---------------------------|------------------------------------------------|
    | `embedding` | `Box(float32, (dim,))`    | the frozen encoder's vector of the context c_t,|
    |             |                           | or of what else the tree's `view` shows        |
    | `stage`     | `Discrete(L + 1)`         | l_t, the number of models called so far        |
    | `cost`      | `Box(float32, (1,))`      | C_t, in price * token                          |

    Only contexts in which a decision is due are embedded. In the terminal observation `embedding`
    is all zeros; `stage` and `cost` are true.

    ## Starting State
    A query, drawn uniformly: c_0 is the question, l_0 = 0, C_0 = 0.
    `reset(options={"query": i})` takes the query at position i of the tree instead.

    ## Rewards
    0 before the last call; then R = Q(c_T) - alpha * C_T, with Q the score of the last response and
    C_T the cost of all calls.

    ## Episode End
    The episode terminates after L calls, or after a call that stops. It is never truncated.

    ## Information
    `reset()` and `step()` return the query's id under `query`, the `node` number (see
    `hierrouter_cache.routes.Routes`), and under `state` the number of the state in the tree,
    `position * states + node`, or `len(tree) * states` where the episode has ended.

    ## Arguments
    * `tree`: the queries to route, e.g. `tree.split("train")`.
    * `alpha`: reward lost per unit of cost; 0.005 in the paper.
    * `allow_stop`: whether an episode may end before L calls.

    ## Version History
    * v0: first version.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # pyright: ignore

    def __init__(self, tree: RouteTree, alpha: float, allow_stop: bool = False) -> None:
        self.tree = tree
        self.alpha = alpha
        self.actions = Actions(tree.routes, allow_stop)
        self.action_space = spaces.Discrete(self.actions.count)
        self.observation_space = feature_space(tree)
        self._query = 0
        self._node = 0
        self._stage = 0
        self._ended = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode; see the class docstring for `options`.

        Raises:
            ValueError: no query of the tree is at that position.
        """
        super().reset(seed=seed)
        chosen = chosen_queries(options, (), self.tree)
        self._query = int(self.np_random.integers(len(self.tree)) if chosen is None else chosen)
        self._node = 0
        self._stage = 0
        self._ended = False
        return self._observe(), self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, Info]:
        """Call one model.

        Raises:
            gymnasium.error.ResetNeeded: the episode has ended, or none has begun.
            gymnasium.error.InvalidAction: there is no such action.
        """
        if self._ended:
            raise gymnasium.error.ResetNeeded("no episode is under way; call reset()")
        if not 0 <= action < self.actions.count:
            raise gymnasium.error.InvalidAction(f"no action {action} among {self.actions.count}")
        stop, model = divmod(int(action), len(self.tree.models))
        self._node = self.tree.routes.child(self._node, model)
        self._stage += 1
        self._ended = bool(stop) or self._stage == self.tree.hops
        reward = self._return() if self._ended else 0.0
        return self._observe(), reward, self._ended, False, self._info()

    @property
    def _cost(self) -> float:
        return float(self.tree.cost[self._query, self._node])

    def _return(self) -> float:
        return float(self.tree.score[self._query, self._node]) - self.alpha * self._cost

    def _observe(self) -> Observation:
        return {
            "embedding": self._embedding(),
            "stage": np.int64(self._stage),
            "cost": np.array([self._cost], dtype=np.float32),
        }

    def _embedding(self) -> NDArray[np.float32]:
        if self._ended:
            return np.zeros(self.tree.dim, dtype=np.float32)
        place = np.array([self._query]), np.array([self._node])
        embedding: NDArray[np.float32] = self.tree.embedding_at(*place)[0]
        return embedding

    def _info(self) -> Info:
        states = self.tree.routes.states
        begun = self._query * states + self._node
        return {
            "query": self.tree.query_ids[self._query],
            "node": self._node,
            "state": len(self.tree) * states if self._ended else begun,
        }


def chosen_queries(
    options: dict[str, Any] | None, shape: tuple[int, ...], tree: RouteTree
) -> NDArray[np.int64] | None:
    """int64[*shape]: positions of the queries that `options` of a reset asks for, if it does.

    Raises:
        ValueError: as many were not wanted, or no query is at such a position.
    """
    asked = (options or {}).get("query")
    if asked is None:
        return None
    chosen = np.asarray(asked)
    if chosen.shape != shape or not np.issubdtype(chosen.dtype, np.integer):
        raise ValueError(f"query must be whole numbers of shape {shape}, got {asked!r:.60}")
    if (chosen < 0).any() or (chosen >= len(tree)).any():
        raise ValueError(f"query must be from 0 to {len(tree) - 1}, got {asked!r:.60}")
    return chosen.astype(np.int64)


def feature_space(tree: RouteTree) -> spaces.Dict:
    """The space of one observation."""
    longest = max((_longest(part.vectors) for part in tree.parts), default=1.0)
    dearest = float(np.float32(tree.cost.max(initial=0.0)))
    return spaces.Dict(
        {
            "embedding": spaces.Box(-longest, longest, (tree.dim,), np.float32),
            "stage": spaces.Discrete(tree.hops + 1),
            "cost": spaces.Box(0.0, dearest, (1,), np.float32),
        }
    )


def _longest(vectors: NDArray[np.float32]) -> float:
    """The largest number without its sign, at least 1; what is mapped is not copied."""
    return max(float(vectors.max(initial=1.0)), -float(vectors.min(initial=-1.0)))
