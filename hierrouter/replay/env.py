"""The cached tree as environments: single episodes, vectorized episodes and whole rollouts."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from hierrouter.evaluation.outcome import Actions, Draws, LegalActions, ending_reward
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree, net_reward

Observation = dict[str, Any]
Info = dict[str, Any]
Observations = NDArray[np.int64] | dict[str, NDArray[np.generic]]
Step = tuple[Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]
# A policy: from state numbers, int64[episodes], to actions, int64[episodes].
Act = Callable[[NDArray[np.int64]], NDArray[np.int64]]


class EndingRewards(Protocol):
    """Rewards of episodes with their endings: float64[queries, endings], or indexed like that."""

    def __getitem__(self, index: Any, /) -> NDArray[np.float64]:
        """The rewards of some queries, int64[n], or of pairs of queries and endings."""
        ...


register(
    "hierrouter/Replay-v0",
    entry_point="hierrouter.replay.env:ReplayEnv",
    vector_entry_point="hierrouter.replay.env:ReplayVectorEnv",
)


class ReplayEnv(gymnasium.Env[Observation, np.int64]):  # type: ignore[misc]
    """Multi-hop routing of one query at a time (paper section 3.1 and appendix A).

    ## Description
    A router has a pool of M models and L hops. At each hop it calls one model on the context so
    far; the response r_t is appended, c_{t+1} = c_t || r_t. Every response has been collected
    beforehand, so a transition is a lookup and the same actions on the same query give the same
    episode. If a call has several draws, one of them comes by chance, by `tree.weight`.

    ## Action Space
    `Discrete(M)`: a_t is the model to call next, in the order of the tree's `models`. With
    `allow_stop` it is `Discrete(2M)`: action M + i calls model i, and the episode ends with that
    call. At the last hop it ends anyway, so M + i and i have the same effect there. The actions
    `give_backs` of the tree's layout come last; they make no call. Those of `tree.with_returns` end
    the episode with answer 1, 2, ... of the route, and the last call does not end it. Returning an
    answer that does not exist yet returns the last one, and so does a call after the last call; at
    the root there is no answer, and Q is 0. The same holds for a call that the query does not
    offer, see `hierrouter_cache.layout.Layout`; models then are the layout's actions that call.

    `action_masks()` says which actions are legal, see `Actions.legal`: no two of them do the same,
    and none does nothing. An agent that keeps to it loses no route.

    ## Observation Space
    `Dict` with the three parts of the state s_t = (c_t, l_t, C_t):

    | key         | space                     | meaning                                        |
    |-------------|---------------------------|------------------------------------------------|
    | `embedding` | `Box(float32, (dim,))`    | the frozen encoder's vector of the context c_t,|
    |             |                           | or of the texts that the tree's `view` selects |
    | `stage`     | `Discrete(L + 1)`         | l_t, the number of models called so far        |
    | `cost`      | `Box(float32, (1,))`      | C_t, in money                                  |

    Only contexts in which a decision is due are embedded. With `tree.with_returns` these include
    those after L calls, and the tree must have been opened with them (`hierrouter.open(...,
    allow_return=True)`). In the terminal observation `embedding` is all zeros; `stage` and `cost`
    are true.

    ## Starting State
    A query, drawn uniformly: c_0 is the question, l_0 = 0, C_0 = 0.
    `reset(options={"query": i})` takes the query at position i of the tree instead.

    ## Rewards
    0 before the last step; then R = Q(c_T) - alpha * C_T. Q is the score of the response that is
    returned: the last one, or the one that is given back. C_T is the cost of all calls.

    ## Episode End
    The episode terminates after L calls, or after a call that stops; or when an answer is given
    back. It is never truncated.

    ## Information
    `reset()` and `step()` return the query's id under `query`, the `node` number (see
    `hierrouter_cache.layout.Layout`), and under `state` the number of the state in the tree,
    `position * states + node`, or `len(tree) * states` if the episode has ended; with
    `tree.with_returns` all nodes are states. `action_mask` is `action_masks()` as int8, as
    `action_space.sample(mask)` takes it.

    ## Arguments
    * `tree`: the queries to route, e.g. `tree.split("train")`.
    * `alpha`: cost penalty, the reward lost per unit of cost; 0.005 in the paper.
    * `allow_stop`: whether an episode may end before L calls.
    * `allow_return`: whether any answer of the route may be given back; the same as
      `tree.with_returns` for `tree`.

    ## Version History
    * v0: first version.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # pyright: ignore

    def __init__(
        self, tree: RouteTree, alpha: float, allow_stop: bool = False, allow_return: bool = False
    ) -> None:
        if allow_return:
            tree = tree.with_returns
        tree.require_embedded()
        self.tree = tree
        self.alpha = alpha
        self.actions = Actions(tree.layout, allow_stop)
        self.action_space = spaces.Discrete(self.actions.count)
        self.observation_space = feature_space(tree)
        self._legal = LegalActions.of(tree, self.actions)
        self._draws = Draws.of(tree, np.random.default_rng(0))
        self._query = 0
        self._node = 0
        self._stage = 0
        self._ended = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode; see the class docstring for `options`.

        Raises:
            ValueError: `options` ask for a position at which the tree has no query.
        """
        super().reset(seed=seed)
        requested = requested_queries(options, (), self.tree)
        if requested is None:
            self._query = int(self.np_random.integers(len(self.tree)))
        else:
            self._query = int(requested)
        self._node = 0
        self._stage = 0
        self._ended = False
        return self._observe(), self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, Info]:
        """Call one model, or return an answer.

        Raises:
            gymnasium.error.ResetNeeded: the episode has ended, or none has begun.
            gymnasium.error.InvalidAction: there is no such action.
        """
        if self._ended:
            raise gymnasium.error.ResetNeeded("no episode is under way; call reset()")
        if not 0 <= action < self.actions.count:
            raise gymnasium.error.InvalidAction(f"no action {action} among {self.actions.count}")
        node, ending, ended = self._transition(int(action))
        # Returning an answer stays at the node: no model was called.
        self._stage += int(node != self._node)
        self._node = int(node)
        self._ended = bool(ended)
        reward = 0.0
        if ended:
            layout = self.tree.layout
            quality = self.tree.score[self._query, layout.answer_node[ending]]
            cost = self.tree.cost[self._query, layout.ending_node[ending]]
            reward = float(net_reward(quality, cost, self.alpha))
        return self._observe(), reward, self._ended, False, self._info()

    def action_masks(self) -> NDArray[np.bool_]:
        """Return bool[actions]: which actions are legal now; none if no episode is under way.

        The name and the shape are those that `MaskablePPO` of sb3-contrib asks for.
        """
        if self._ended:
            return np.zeros(self.actions.count, dtype=np.bool_)
        return self._legal.at(np.array([self._query]), np.array([self._node]))[0]

    def _transition(self, action: int) -> tuple[int, int, bool]:
        """The next node, the number of the ending, and whether the episode ends."""
        if self._draws is None:
            return self.actions.transition(self._node, action)
        draws = replace(self._draws, rng=self.np_random)
        query, node, taken = (np.array([each]) for each in (self._query, self._node, action))
        child, ending, ended = draws.transition(self.actions, query, node, taken)
        return int(child[0]), int(ending[0]), bool(ended[0])

    def _observe(self) -> Observation:
        """The observation of the current state."""
        if self._ended:
            embedding = np.zeros(self.tree.dim, dtype=np.float32)
        else:
            query = np.array([self._query])
            node = np.array([self._node])
            embedding = self.tree.embedding_at(query, node)[0]
        return {
            "embedding": embedding,
            "stage": np.int64(self._stage),
            "cost": np.array([self.tree.cost[self._query, self._node]], dtype=np.float32),
        }

    def _info(self) -> Info:
        """The information on the current state, see the class docstring."""
        states = self.actions.states
        state = len(self.tree) * states if self._ended else self._query * states + self._node
        return {
            "query": self.tree.query_ids[self._query],
            "node": self._node,
            "state": state,
            "action_mask": self.action_masks().astype(np.int8),
        }


def requested_queries(
    options: dict[str, Any] | None, shape: tuple[int, ...], tree: RouteTree
) -> NDArray[np.int64] | None:
    """Read the positions of the queries that the options of a reset ask for.

    Args:
        options: the options of the reset; the positions are under "query".
        shape: the expected shape of the positions.
        tree: the queries.

    Returns:
        int64[*shape]; None if the options ask for no queries.

    Raises:
        ValueError: the positions have another shape, or the tree has no query at one of them.
    """
    requested = (options or {}).get("query")
    if requested is None:
        return None
    positions = np.asarray(requested)
    if positions.shape != shape or not np.issubdtype(positions.dtype, np.integer):
        raise ValueError(f"query must be whole numbers of shape {shape}, got {requested!r:.60}")
    if (positions < 0).any() or (positions >= len(tree)).any():
        raise ValueError(f"query must be from 0 to {len(tree) - 1}, got {requested!r:.60}")
    return positions.astype(np.int64)


def feature_space(tree: RouteTree) -> spaces.Dict:
    """Make the observation space of one episode, see `ReplayEnv`."""
    # The bound is the largest absolute value, at least 1. Minimum and maximum are taken apart,
    # because `abs` would copy vectors that are mapped from a file.
    bound = 1.0
    for part in tree.require_embedded():
        lowest = part.vectors.min(initial=-1)
        highest = part.vectors.max(initial=1)
        bound = max(bound, -float(lowest), float(highest))
    max_cost = float(np.float32(tree.cost.max(initial=0.0)))
    return spaces.Dict(
        {
            "embedding": spaces.Box(-bound, bound, (tree.dim,), np.float32),
            "stage": spaces.Discrete(tree.hops + 1),
            "cost": spaces.Box(0.0, max_cost, (1,), np.float32),
        }
    )


@dataclass(frozen=True)
class Rollouts:
    """Whole episodes, one per row (paper section 3.1).

    Columns are the decisions of an episode, at most T = `Actions.steps`: L, or L + 1 with return.

    Attributes:
        state: int64[episodes, T], the state number before each decision; 0 after the end.
        action: int64[episodes, T], see `Actions`; 0 after the end.
        reward: float64[episodes, T], R = Q - alpha * C at the last decision, else 0.
        length: int64[episodes], the number of decisions, 1 to T.
    """

    state: NDArray[np.int64]
    action: NDArray[np.int64]
    reward: NDArray[np.float64]
    length: NDArray[np.int64]

    @property
    def alive(self) -> NDArray[np.bool_]:
        """bool[episodes, T]: whether a decision was made."""
        return np.arange(self.state.shape[1]) < self.length[:, None]

    @property
    def last(self) -> NDArray[np.bool_]:
        """bool[episodes, T]: whether the decision was the last one of its episode."""
        return np.arange(1, self.state.shape[1] + 1) == self.length[:, None]

    def only(self, kept: NDArray[np.bool_]) -> Self:
        """Return the same episodes with some of their decisions; the last one has the reward.

        Args:
            kept: bool[episodes, T], at least one of each episode; none after its end.
        """
        order = np.argsort(~kept, axis=1, kind="stable")
        length = kept.sum(axis=1)
        is_kept = np.arange(kept.shape[1]) < length[:, None]
        state, action = (
            np.where(is_kept, np.take_along_axis(values, order, axis=1), 0)
            for values in (self.state, self.action)
        )
        reward = np.zeros(self.reward.shape)
        reward[np.arange(len(length)), length - 1] = self.reward.sum(axis=1)
        return replace(self, state=state, action=action, reward=reward, length=length)


def walk(
    actions: Actions,
    reward: EndingRewards,
    query: NDArray[np.int64],
    act: Act,
    draws: Draws | None = None,
) -> Rollouts:
    """Play one episode on each of some queries.

    Args:
        actions: the actions; the policy has to choose legal ones.
        reward: float64[queries, endings], see `hierrouter.evaluation.outcome.ending_reward`.
        query: int64[episodes], positions of queries; they may repeat.
        act: the policy; it is called at most T times, with the states of all episodes that have
            not ended.
        draws: chooses the draw of each call; None if every query has all nodes, and each call one
            draw.

    Raises:
        InputError: the policy makes a call that the query does not offer.
    """
    shape = (len(query), actions.steps)
    rollouts = Rollouts(
        state=np.zeros(shape, dtype=np.int64),
        action=np.zeros(shape, dtype=np.int64),
        reward=np.zeros(shape),
        length=np.full(len(query), actions.steps),
    )
    playing = np.arange(len(query))
    node = np.zeros(len(query), dtype=np.int64)
    for step in range(actions.steps):
        state = query[playing] * actions.states + node
        action = act(state)
        if draws is None:
            node, ending, over = actions.transition(node, action)
        else:
            before = node
            node, ending, over = draws.transition(actions, query[playing], before, action)
            _require_offered(actions, before, action, node)
        rollouts.state[playing, step] = state
        rollouts.action[playing, step] = action
        if over.any():
            ended = playing[over]
            rollouts.length[ended] = step + 1
            rollouts.reward[ended, step] = reward[query[ended], ending[over]]
            playing = playing[~over]
            node = node[~over]
        if not len(playing):
            break
    return rollouts


def _require_offered(
    actions: Actions, node: NDArray[np.int64], action: NDArray[np.int64], reached: NDArray[np.int64]
) -> None:
    """Require that each call was offered.

    Args:
        actions: the actions.
        node: int64[n], the states.
        action: int64[n], the actions that were taken there.
        reached: int64[n], the next nodes.

    Raises:
        InputError: a call led nowhere.
    """
    # After the last call a further one counts as returning the answer.
    lost = (action < actions.calls) & (reached == node) & (node < actions.layout.inner)
    if lost.any():
        row = int(lost.argmax())
        raise InputError(
            f"the policy takes action {action[row]} at node {node[row]} of a query that does not "
            "offer it there; choose among the legal actions"
        )


class QueryStream:
    """Positions of queries in random order; none is drawn twice before all were drawn once.

    Args:
        queries: number of queries; positions are 0 to `queries - 1`.
        rng: source of the order.

    Attributes:
        waiting: int64[n], the rest of the current order, without the positions drawn so far.

    Raises:
        ValueError: there are no queries.
    """

    def __init__(self, queries: int, rng: np.random.Generator) -> None:
        if queries < 1:
            raise ValueError("no queries to draw from")
        self._queries = queries
        self._rng = rng
        self.waiting = np.empty(0, dtype=np.int64)

    def draw(self, count: int) -> NDArray[np.int64]:
        """Draw int64[count], the next positions; start a new order whenever one is used up."""
        missing = count - len(self.waiting)
        if missing > 0:
            epochs = math.ceil(missing / self._queries)
            shuffled = [self._rng.permutation(self._queries) for _ in range(epochs)]
            self.waiting = np.concatenate([self.waiting, *shuffled])
        drawn = self.waiting[:count]
        self.waiting = self.waiting[count:]
        return drawn


class ReplayVectorEnv(VectorEnv[Observations, ArrayLike, NDArray[Any]]):  # type: ignore[misc]
    """Many `ReplayEnv` at once: the same actions on the same queries give the same episodes.

    ## Observation Space
    `observation="state"`: the number of the state, `position * states + node`, for policies that
    look up the tree's vectors themselves; 8 bytes. The highest number, `len(tree) * states`, is no
    state: it means the end, in `final_obs` only.
    `observation="features"`: the dictionary of `ReplayEnv`, batched.

    ## Starting State
    Queries in random order, none twice before all have been drawn once.
    `reset(options={"query": positions})` takes the query at one position for each episode instead.

    ## Episode End
    As in `ReplayEnv`; the next episode begins in the same step (`AutoresetMode.SAME_STEP`). The
    observation is that of the new episode; the last observation of the old one is in
    `infos["final_obs"]`, its information in `infos["final_info"]`, both for the episodes for which
    `infos["_final_obs"]` is true.

    ## Information
    `query`, `node`, `state` and `action_mask` as in `ReplayEnv`, each an array with a row for each
    episode. `action_masks()` is bool[num_envs, actions].

    ## Arguments
    * `tree`, `alpha`, `allow_stop`, `allow_return`: as in `ReplayEnv`.
    * `num_envs`: the number of episodes that are under way at any time.
    * `observation`: "state" or "features"; only the second needs a tree with embeddings, also of
      the leaves if the layout offers to return answers.
    """

    metadata: ClassVar[dict[str, Any]] = {  # pyright: ignore
        "render_modes": [],
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        tree: RouteTree,
        alpha: float,
        num_envs: int,
        allow_stop: bool = False,
        observation: Literal["state", "features"] = "state",
        allow_return: bool = False,
    ) -> None:
        if allow_return:
            tree = tree.with_returns
        if observation == "features":
            tree.require_embedded()
        self.tree = tree
        self.num_envs = num_envs
        self.actions = Actions(tree.layout, allow_stop)
        self.end = len(tree) * self.actions.states
        self.single_action_space = spaces.Discrete(self.actions.count)
        self.single_observation_space = (
            spaces.Discrete(self.end + 1) if observation == "state" else feature_space(tree)
        )
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._shows_state = observation == "state"
        self._reward = ending_reward(tree, alpha)
        self._depth = tree.layout.depth()
        self._ids = np.array(tree.query_ids, dtype=object)
        self._legal = LegalActions.of(tree, self.actions)
        self._draws = Draws.of(tree, np.random.default_rng(0))
        self._queries: QueryStream | None = None
        self._query = np.zeros(num_envs, dtype=np.int64)
        self._node = np.zeros(num_envs, dtype=np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, Info]:
        """Start all episodes; see the class docstring for `options`.

        A seed starts a new order of the queries; without a seed the order continues.

        Raises:
            ValueError: `options` do not ask for one query of the tree in each episode.
        """
        super().reset(seed=seed)
        if seed is not None or self._queries is None:
            self._queries = QueryStream(len(self.tree), self.np_random)
        requested = requested_queries(options, (self.num_envs,), self.tree)
        self._query = self._queries.draw(self.num_envs) if requested is None else requested
        self._node = np.zeros(self.num_envs, dtype=np.int64)
        return self._observe(), self._infos()

    def step(self, actions: ArrayLike) -> Step:
        """Call one model, or return an answer, in each episode.

        Args:
            actions: int64[num_envs].

        Raises:
            gymnasium.error.ResetNeeded: `reset` has not been called.
            gymnasium.error.InvalidAction: there is no such action.
        """
        if self._queries is None:
            raise gymnasium.error.ResetNeeded("no episode is under way; call reset()")
        action = np.asarray(actions, dtype=np.int64)
        if action.shape != self._node.shape:
            raise gymnasium.error.InvalidAction(
                f"{self.num_envs} actions wanted, got an array of shape {action.shape}"
            )
        if action.min() < 0 or action.max() >= self.actions.count:
            raise gymnasium.error.InvalidAction(f"an action is not among {self.actions.count}")
        draws = self._draws
        if draws is None:
            self._node, ending, ended = self.actions.transition(self._node, action)
        else:
            draws = replace(draws, rng=self.np_random)
            steps = draws.transition(self.actions, self._query, self._node, action)
            self._node, ending, ended = steps
        reward = np.where(ended, self._reward[self._query, ending], 0.0)
        final = self._start_next_episodes(ended, self._queries) if ended.any() else {}
        return self._observe(), reward, ended, np.zeros_like(ended), {**self._infos(), **final}

    def action_masks(self) -> NDArray[np.bool_]:
        """Return bool[num_envs, actions]: which actions are legal now; none before a reset.

        An episode that has just begun in place of another one has the actions of its start.
        """
        if self._queries is None:
            return np.zeros((self.num_envs, self.actions.count), dtype=np.bool_)
        return self._legal.at(self._query, self._node)

    def _start_next_episodes(self, ended: NDArray[np.bool_], queries: QueryStream) -> Info:
        """Start the next episode in place of each that has ended.

        Args:
            ended: bool[num_envs].
            queries: source of the next queries.

        Returns:
            The last observations of the old episodes and the information on them.
        """
        final = {
            "final_obs": self._last_observations(ended),
            "_final_obs": ended,
            "final_info": self._infos(ended),
            "_final_info": ended,
        }
        # The array may be a view of the stream's buffer.
        self._query = self._query.copy()
        self._query[ended] = queries.draw(int(ended.sum()))
        self._node = np.where(ended, 0, self._node)
        return final

    def _infos(self, ended: NDArray[np.bool_] | None = None) -> Info:
        """The information on all episodes, or on those that have ended.

        As in Gymnasium, `_key` says for which episodes `key` is valid.
        """
        is_valid = np.ones(self.num_envs, dtype=np.bool_) if ended is None else ended
        if ended is None:
            state = self._state()
            masks = self.action_masks().astype(np.int8)
        else:
            state = np.full(self.num_envs, self.end)
            masks = np.zeros((self.num_envs, self.actions.count), dtype=np.int8)
        values = {
            "query": self._ids[self._query],
            "node": self._node,
            "state": state,
            "action_mask": masks,
        }
        return {**values, **{f"_{key}": is_valid for key in values}}

    def _state(self) -> NDArray[np.int64]:
        """The state numbers of all episodes."""
        return self._query * self.actions.states + self._node

    def _observe(self) -> Observations:
        """The observations of all episodes."""
        if self._shows_state:
            return self._state()
        return {
            "embedding": self.tree.embedding_at(self._query, self._node),
            "stage": self._depth[self._node],
            "cost": self.tree.cost[self._query, self._node].astype(np.float32)[:, None],
        }

    def _last_observations(self, ended: NDArray[np.bool_]) -> NDArray[np.object_]:
        """The last observations, object[num_envs] as in Gymnasium.

        None for episodes that have not ended.
        """
        last = np.full(self.num_envs, None, dtype=object)
        if self._shows_state:
            last[ended] = self.end
            return last
        zeros = np.zeros(self.tree.dim, dtype=np.float32)
        zeros.flags.writeable = False  # all last observations share it
        cost = self.tree.cost[self._query, self._node].astype(np.float32)[:, None]
        for number in np.flatnonzero(ended):
            stage = self._depth[self._node[number]]
            last[number] = {"embedding": zeros, "stage": stage, "cost": cost[number]}
        return last
