"""Policies of any kind, as a table of what they do at each state of each query.

At each state of a query's tree a policy chooses the model to call next. It may be a function, an
object with `act`, a model of Stable-Baselines3, a table of probabilities, a router that was trained
here, or the name of a fixed route. It is called once at every state that it can reach, and
evaluated by enumeration, see `hierrouter.runs.evaluate`: no episode is sampled. So it must be a
function of its observation; a policy that would draw an action returns its probabilities instead.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.outcome import (
    Actions,
    Floats,
    Integers,
    LegalActions,
    ending_probabilities,
    states_reached,
)
from hierrouter.questions.own_code import import_path, own_code, source_digest
from hierrouter_cache.errors import HierRouterError, InputError
from hierrouter_cache.tree import RouteTree

OBSERVATION_KEYS = (
    "question",
    "answers",
    "models",
    "stage",
    "cost",
    "embedding",
    "alpha",
    "actions",
    "offered",
)
PROBABILITY_TOLERANCE = 1e-6  # by how much the sum of probabilities may differ from 1
STATES_PER_PREDICTION = 4096  # in one call of `predict` of a model of Stable-Baselines3
MAX_EXCERPT_LENGTH = 40  # characters of a policy's return value in an error
MAX_LISTED_ACTIONS = 12  # in an error

# From a tree to the texts of each of its queries: objects with `question`, a text, and `answers`,
# the response at each node by number; see `hierrouter.replay.tree.Texts`.
TextLoader = Callable[[RouteTree], Sequence[Any]]


def policy_table(
    tree: RouteTree,
    policy: Any,
    alpha: float,
    allow_stop: bool = False,
    texts: TextLoader | None = None,
) -> Floats:
    """Call a policy at every state that it can reach.

    Args:
        tree: the queries.
        policy: as in `evaluate`, except routers and names.
        alpha: cost penalty of R = Q - alpha * C; policies can read it.
        allow_stop: whether the policy may end before L calls.
        texts: as in `evaluate`.

    Returns:
        float64[queries, S, A], rows sum to 1. At the last call the probability of stopping is added
        to that of not stopping, which has the same effect; so is that of any other illegal action,
        see `Actions.transition`. At states that the policy cannot reach, every legal action has the
        same probability.

    Raises:
        InputError: as `evaluate`.
    """
    actions = Actions(tree.layout, allow_stop)
    layout = tree.layout
    tree_policy = _TreePolicy(tree, policy, alpha, actions, texts)
    legal = LegalActions.of(tree, actions).table
    # A state that a query lacks may have no legal action.
    uniform = legal / np.maximum(legal.sum(axis=2, keepdims=True), 1)
    table = np.repeat(uniform, len(tree), axis=0) if len(legal) < len(tree) else uniform
    reach = np.ones((len(tree), 1))  # probability of each state of the level
    for level in layout.levels:
        query, column = np.nonzero(reach > 0)
        if not len(query):  # all episodes have stopped
            break
        node = level.numbers[column]
        probabilities = tree_policy.probabilities(query, node)
        tree_policy.replace_illegal(probabilities, query, node)
        table[query, node] = probabilities
        calling = table[:, level.states, : layout.call_actions]
        reach = states_reached(layout, level, reach[:, :, None] * calling, tree.weight)
    return table


def policy_endings(tree: RouteTree, policy: Any, alpha: float, allow_stop: bool) -> Floats:
    """Compute the probability of each ending under a policy.

    Args:
        tree: the queries.
        policy: see `policy_table`, also for the other arguments.
        alpha: cost penalty of R = Q - alpha * C.
        allow_stop: whether the policy may end before L calls.

    Returns:
        float64[queries, endings].

    Raises:
        InputError: as `policy_table`.
    """
    table = policy_table(tree, policy, alpha, allow_stop)
    return ending_probabilities(Actions(tree.layout, allow_stop), table, tree.weight)


class Observation(Mapping[str, Any]):
    """A policy's observation of one state; texts and embedding are read when they are accessed.

    | key         | value                                                          |
    |-------------|----------------------------------------------------------------|
    | `question`  | str                                                            |
    | `answers`   | tuple of str, of the calls made so far                         |
    | `models`    | tuple of str, the models called so far                         |
    | `stage`     | int, the number of these calls                                 |
    | `cost`      | float, C of these calls, in money                              |
    | `embedding` | float32[dim], the vector of the texts that a router reads      |
    | `alpha`     | float, of R = Q - alpha * C                                    |
    | `actions`   | tuple of str, names of the actions; `model>stop` ends with it, |
    |             | `return>1` with the first answer and no call                   |
    | `offered`   | tuple of str, names of those that may be chosen here           |

    Raises:
        InputError: question or answers are accessed, and the tree has no texts.
    """

    def __init__(self, tree_policy: _TreePolicy, query: int, node: int) -> None:
        self._tree_policy = tree_policy
        self._query = query
        self._node = node

    def __getitem__(self, key: str) -> Any:
        self._tree_policy.keys_read.add(key)
        tree = self._tree_policy.tree
        path = tree.layout.path(self._node)
        match key:
            case "question":
                return self._tree_policy.loaded_texts[self._query].question
            case "answers":
                answers = self._tree_policy.loaded_texts[self._query].visible
                return tuple(answers[node] for node in tree.layout.nodes_to(self._node))
            case "models":
                return tuple(tree.models[action] for action in path)
            case "stage":
                return len(path)
            case "cost":
                return float(tree.cost[self._query, self._node])
            case "embedding":
                return tree.embedding_at(np.array([self._query]), np.array([self._node]))[0]
            case "alpha":
                return self._tree_policy.alpha
            case "actions":
                return self._tree_policy.action_names
            case "offered":
                return self._tree_policy.offered_names(self._query, self._node)
            case _:
                raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(OBSERVATION_KEYS)

    def __len__(self) -> int:
        return len(OBSERVATION_KEYS)

    def __repr__(self) -> str:
        state = self._tree_policy.describe_state(self._query, self._node)
        return f"<observation at {state}: {', '.join(OBSERVATION_KEYS)}>"


class _TreePolicy:
    """A policy on one tree: calls it at some states and checks the probabilities.

    Args:
        tree: the queries.
        policy: a function, an object with `act` or `predict`, an `OwnPolicy` of these, or a table.
        alpha: cost penalty that the policy can read.
        actions: the actions that it may choose.
        texts: loads the texts of the queries; None takes those of the tree.

    Raises:
        InputError: the policy is of no such kind, or a table of another shape.
    """

    def __init__(
        self, tree: RouteTree, policy: Any, alpha: float, actions: Actions, texts: TextLoader | None
    ) -> None:
        self.tree = tree
        self.alpha = alpha
        self.texts = texts
        self.actions = actions
        self.action_names = actions.names(tree.models)
        self.policy_name = policy_name(policy)
        self.policy: Any = policy
        self.keys_read = set[str]()
        if isinstance(policy, OwnPolicy):
            self.policy = policy.policy
            self.keys_read = policy.keys_read
        self.kind = policy_kind(self.policy)
        if self.kind in (None, "name", "router"):
            raise _not_callable(self.policy, self.policy_name)
        if self.kind == "table":
            table = as_table(self.policy, tree, actions.states)
            self.policy = table
            if table.shape[2] == len(tree.models):
                self.policy = self._never_stopping(table)
            elif table.shape[2] != actions.count:
                raise InputError(
                    f"table of {table.shape[2]} actions: {self.policy_name}; there are "
                    f"{actions.count}: {', '.join(self.action_names)}"
                )

    @cached_property
    def loaded_texts(self) -> Sequence[Any]:
        """The texts of each query.

        Raises:
            InputError: the tree has no texts.
        """
        loaded = self.texts(self.tree) if self.texts else getattr(self.tree, "texts", None)
        if loaded is None:
            raise InputError(
                "no texts to read: this tree holds numbers only; open the cache with "
                "hierrouter.open, or give texts"
            )
        texts: Sequence[Any] = loaded
        return texts

    def probabilities(self, query: Integers, node: Integers) -> Floats:
        """Call the policy at some states.

        Args:
            query: int64[n], positions of queries.
            node: int64[n], node numbers.

        Returns:
            float64[n, A], the probability of each action.

        Raises:
            InputError: the policy fails, or returns neither an action nor probabilities.
        """
        if self.kind == "table":
            return self._normalize(self.policy[query, node], query, node)
        if self.kind == "predict":
            starts = range(0, len(query), STATES_PER_PREDICTION)
            batches = [slice(start, start + STATES_PER_PREDICTION) for start in starts]
            predictions = [self._predict(query[batch], node[batch]) for batch in batches]
            action = np.concatenate(predictions)
            unknown = np.flatnonzero((action < 0) | (action >= len(self.action_names)))
            if len(unknown):
                row = int(unknown[0])
                raise self._no_such_action(int(action[row]), int(query[row]), int(node[row]))
            return np.eye(len(self.action_names))[action]
        states = zip(query.tolist(), node.tolist(), strict=True)
        return np.stack([self._act(*state) for state in states])

    def replace_illegal(self, probabilities: Floats, query: Integers, node: Integers) -> None:
        """Replace illegal actions by legal ones that have the same effect, in place.

        Stopping with the last call is making it. Where a policy may return answers, a call after
        the last call of the query and an answer that does not exist yet return the last answer.

        Args:
            probabilities: float64[n, A].
            query: int64[n], positions of queries.
            node: int64[n], node numbers, after the same number of calls.

        Raises:
            InputError: an action has no effect, because it is not offered there.
        """
        calls = self.tree.layout.call_actions
        legal = self._legal.at(query, node)
        illegal = probabilities * ~legal
        if not illegal.any():
            return
        if self.actions.allow_stop:
            stopping = slice(calls, self.actions.calls)
            is_last_call = ~self.actions.legal()[node][:, stopping] & legal[:, :calls]
            moved = illegal[:, stopping] * is_last_call
            probabilities[:, :calls] += moved
            probabilities[:, stopping] -= moved
            illegal[:, stopping] -= moved
        is_last = self.tree.layout.give_back[node] == node[:, None]
        lost = illegal.copy()
        if self.kind == "predict":  # in the environment it was trained on, such a call ends
            lost[is_last.any(axis=1)] = 0
        else:
            is_last &= legal[:, self.actions.calls :]
            ends = is_last.any(axis=1)
            # A call that other questions have here, and this one has not, is no wish to end.
            lost[ends, self.actions.calls :] = 0
            lost[ends & ~legal[:, :calls].any(axis=1)] = 0
        rows = np.flatnonzero(lost.any(axis=1))
        if len(rows):
            row = int(rows[0])
            action_name = self.action_names[lost[row].argmax()]
            raise self._not_offered(action_name, int(query[row]), int(node[row]))
        probabilities -= illegal
        probabilities[:, self.actions.calls :] += is_last * illegal.sum(axis=1, keepdims=True)

    @cached_property
    def _legal(self) -> LegalActions:
        """The legal actions at each state of each query."""
        return LegalActions.of(self.tree, self.actions)

    def offered_names(self, query: int, node: int) -> tuple[str, ...]:
        """The names of the actions that may be chosen at a state."""
        legal = self._legal.at(np.array([query]), np.array([node]))[0]
        return tuple(
            name for name, is_legal in zip(self.action_names, legal, strict=True) if is_legal
        )

    def _predict(self, query: Integers, node: Integers) -> Integers:
        """Call a model that was trained on `hierrouter.replay.env.ReplayEnv`: int64[n], actions."""
        depth = self.tree.layout.depth()[node]
        observations = {
            "embedding": self.tree.embedding_at(query, node),
            "stage": depth,
            "cost": self.tree.cost[query, node].astype(np.float32)[:, None],
        }
        where = f"{self.policy_name}: stage {depth[0]}"
        remedy = "train it on ReplayEnv of such a tree, or give an object with act(observation)"
        masks: dict[str, Any] = {}
        with own_code(f"policy failed: {where}", remedy):
            if takes_masks(self.policy.predict):
                masks["action_masks"] = self._legal.at(query, node)
            action = np.asarray(self.policy.predict(observations, deterministic=True, **masks)[0])
        if action.shape != (len(query),) or not np.issubdtype(action.dtype, np.integer):
            raise InputError(
                f"policy gave {action.dtype}{list(action.shape)}: {where}; predict must give a "
                f"whole number for each of {len(query)} states"
            )
        return action.astype(np.int64)

    def _act(self, query: int, node: int) -> Floats:
        """Call a function or an `act` at one state: float64[A]."""
        where = self._where(query, node)
        act = getattr(self.policy, "act", self.policy)
        with own_code(f"policy failed: {where}", "correct it, or leave it out", (HierRouterError,)):
            returned = act(Observation(self, query, node))
        action = _action_number(returned, self.action_names)
        if action is not None:
            if not 0 <= action < len(self.action_names):
                raise self._no_such_action(returned, query, node)
            return np.eye(len(self.action_names))[action]
        try:
            values = np.asarray(returned)
        except Exception:  # whatever a foreign type raises, it is no array
            values = np.empty(0)
        if values.shape == (len(self.tree.models),):
            values = self._never_stopping(values)
        if values.shape != (len(self.action_names),) or values.dtype.kind not in "fiu":
            raise InputError(
                f"policy gave {_excerpt(returned)}: {where}; give an action from 0 to "
                f"{len(self.action_names) - 1}, its name, or {len(self.action_names)} probabilities"
            )
        probabilities = values.astype(np.float64)[None]
        return self._normalize(probabilities, np.array([query]), np.array([node])).ravel()

    def _never_stopping(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        """Pad probabilities of the M models, [..., M], with 0 for all other actions: [..., A]."""
        other_actions = len(self.action_names) - probabilities.shape[-1]
        padding = [(0, 0)] * (probabilities.ndim - 1) + [(0, other_actions)]
        return np.pad(probabilities, padding)

    def _normalize(self, probabilities: Floats, query: Integers, node: Integers) -> Floats:
        """Check that rows sum to 1, and remove the rounding of float32: float64[n, A]."""
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is rejected below
            total = probabilities.sum(axis=-1, keepdims=True)
            sums_to_one = np.abs(total[:, 0] - 1) <= PROBABILITY_TOLERANCE  # False for NaN
        is_valid = sums_to_one & (probabilities >= 0).all(axis=-1)
        if not is_valid.all():
            row = int(np.flatnonzero(~is_valid)[0])
            numbers = " ".join(f"{number:.6g}" for number in probabilities[row].tolist())
            raise InputError(
                f"policy gave no probabilities: {_cut(numbers)}: "
                f"{self._where(int(query[row]), int(node[row]))}; they must be >= 0 and sum to 1"
            )
        return probabilities / total

    def _no_such_action(self, action: Any, query: int, node: int) -> InputError:
        """The error for an action that does not exist."""
        return InputError(
            f"policy gave no such action: {_excerpt(action)}: {self._where(query, node)}; "
            f"actions: {self._listed_actions(query, node)}"
        )

    def _not_offered(self, action: str, query: int, node: int) -> InputError:
        """The error for an action that is not offered at a state."""
        state = f"node {node}"
        if node:
            state += f" after {_cut(self.tree.layout.name(node, self.tree.models))}"
        return InputError(
            f"policy chose an action that is not offered: {_cut(action)}: "
            f"{self._where(query, node)}, {state}; "
            f"offered: {self._listed_actions(query, node) or 'nothing'}"
        )

    def _listed_actions(self, query: int, node: int) -> str:
        """The legal actions at a state, for errors."""
        legal = np.flatnonzero(self._legal.at(np.array([query]), np.array([node]))[0])
        listed = [f"{number} {self.action_names[number]}" for number in legal]
        if len(listed) > MAX_LISTED_ACTIONS:
            rest = len(listed) - MAX_LISTED_ACTIONS
            listed = [*listed[:MAX_LISTED_ACTIONS], f"{rest} more"]
        return ", ".join(listed)

    def _where(self, query: int, node: int) -> str:
        """The policy and a state, for errors."""
        return f"{self.policy_name}: {self.describe_state(query, node)}"

    def describe_state(self, query: int, node: int) -> str:
        """Name the query and the stage of a state."""
        return f"query {self.tree.query_ids[query]:.60}, stage {len(self.tree.layout.path(node))}"


def takes_masks(predict: Callable[..., Any]) -> bool:
    """Whether a model's `predict` asks which actions are legal, as that of `MaskablePPO` does.

    Such a model has learned nothing about the others, so without the masks it would choose them.
    """
    try:
        return "action_masks" in inspect.signature(predict).parameters
    except (TypeError, ValueError):  # built-in code has no signature
        return False


def _action_number(action: Any, names: tuple[str, ...]) -> int | None:
    """Read the number of an action.

    Args:
        action: what a policy returned.
        names: the name of each action.

    Returns:
        -1 for an unknown name; None if it is no single action.
    """
    if isinstance(action, str):
        return names.index(action) if action in names else -1
    if isinstance(action, bool):
        return None
    try:
        return operator.index(action)
    except TypeError:
        return None


@dataclass(frozen=True)
class OwnPolicy:
    """A policy of the user's own.

    Attributes:
        path: `module:object` if it was imported, else its name.
        name: the object's own `name`, if it has one; else the path.
        policy: the object; if the path names a class, an instance of it.
        version: digest of its source, see `hierrouter.questions.own_code.source_digest`; empty if
            it was not imported.
        keys_read: the keys that it has read of any observation so far.
    """

    path: str
    name: str
    policy: Any
    version: str
    keys_read: set[str] = field(default_factory=set, compare=False)


def own_policy(policy: Any, name: str | None = None) -> OwnPolicy:
    """Wrap or import a policy of the user's own.

    Args:
        policy: a policy, or its import path `module:object`; a class is instantiated without
            arguments.
        name: its name in tables; None is its own name.

    Raises:
        InputError: the path is not `module:object`, the module cannot be imported or lacks the
            object, or the object is no policy that can be called.
    """
    if not isinstance(policy, str):
        path = name or policy_name(policy)
        version = ""
    else:
        path = policy
        module_name, attribute = import_path(path, "module:object")
        remedy = "it must be importable from here; a class is made without arguments"
        with own_code(f"policy cannot be made: {path}", remedy):
            module = importlib.import_module(module_name)
            imported = getattr(module, attribute)
            policy = imported() if isinstance(imported, type) else imported
        version = source_digest(module, imported)
        if not isinstance(getattr(policy, "name", None), str):
            name = name or path
    if policy_kind(policy) not in ("act", "predict"):
        raise _not_callable(policy, path)
    return OwnPolicy(path, name or policy_name(policy), policy, version)


def own_policies(policies: Any) -> tuple[OwnPolicy, ...]:
    """Wrap or import several policies.

    Args:
        policies: a list, a mapping by name, or a single policy; see `own_policy`.

    Raises:
        InputError: as `own_policy`, or two policies have one name.
    """
    if isinstance(policies, Mapping):
        wrapped = tuple(own_policy(policy, name) for name, policy in policies.items())
    elif isinstance(policies, Iterable) and not isinstance(policies, str):
        wrapped = tuple(own_policy(policy) for policy in policies)
    else:
        wrapped = (own_policy(policies),)
    require_distinct_names(wrapped)
    return wrapped


def require_distinct_names(policies: Iterable[OwnPolicy], taken: Iterable[str] = ()) -> None:
    """Reject two policies of one name, and a policy with a name that tables use already.

    Args:
        policies: the policies.
        taken: names that tables use already.

    Raises:
        InputError: with the name.
    """
    names = set(taken)
    for policy in policies:
        if policy.name in names:
            raise InputError(
                f"two policies of one name: {policy.name}: {policy.path}; give yours another name"
            )
        names.add(policy.name)


def policy_name(policy: Any) -> str:
    """The policy's name in tables: its own `name`, else that of the function or class."""
    if isinstance(policy, str):
        return policy
    if isinstance(policy, np.ndarray):
        return "table"
    for name in (getattr(policy, "name", None), getattr(policy, "__name__", None)):
        if isinstance(name, str) and name.strip():
            return name
    return type(policy).__name__


def policy_kind(policy: Any) -> Literal["name", "table", "router", "act", "predict"] | None:
    """The kind of a policy; None if it is no policy."""
    if isinstance(policy, np.ndarray):
        return "table"
    if isinstance(policy, type):  # the user forgot to instantiate the class
        return None
    if isinstance(getattr(policy, "actions", None), Actions):
        return "router"  # `hierrouter.runs.run.Run` or the router in it
    if isinstance(policy, str | os.PathLike):
        return "name"
    if callable(getattr(policy, "act", None)):
        return "act"
    if callable(getattr(policy, "predict", None)):
        return "predict"
    return "act" if callable(policy) else None


def can_stop(policy: Any, tree: RouteTree) -> bool:
    """Whether a policy has, for every model, an action that stops after its call."""
    if isinstance(policy, OwnPolicy):
        policy = policy.policy
    count = Actions(tree.layout, True).count
    if isinstance(policy, np.ndarray):
        return bool(policy.shape[-1] == count)
    return bool(getattr(getattr(policy, "action_space", None), "n", None) == count)


def as_table(table: NDArray[Any], tree: RouteTree, states: int) -> Floats:
    """Check the shape of a table of probabilities.

    Args:
        table: [queries, S, A], of any type of number.
        tree: the queries.
        states: S.

    Returns:
        float64[queries, S, A].

    Raises:
        InputError: the table has another shape, or holds no numbers.
    """
    expected = (len(tree), states)
    if table.ndim != 3 or table.shape[:2] != expected or table.dtype.kind not in "fiu":
        raise InputError(
            f"not a table of this tree: {table.dtype}{list(table.shape)}; a policy as an array is "
            f"float64[{expected[0]}, {expected[1]}, A]: queries, states, actions"
        )
    return table.astype(np.float64)


def _not_callable(policy: Any, name: str) -> InputError:
    """The error for an object that is no policy."""
    kind = "a class" if isinstance(policy, type) else type(policy).__name__
    return InputError(
        f"not a policy to be asked: {name}, {kind}; give a function of one observation, or an "
        "object with act(observation) or predict(observations, deterministic)"
    )


def _excerpt(value: Any) -> str:
    """The start of a value's `repr`, on one line, for errors."""
    try:
        return _cut(" ".join(repr(value).split()))
    except Exception:  # the `repr` is the user's code
        return type(value).__name__


def _cut(text: str) -> str:
    """The start of a text, for errors."""
    return text if len(text) <= MAX_EXCERPT_LENGTH else f"{text[:MAX_EXCERPT_LENGTH]}..."
