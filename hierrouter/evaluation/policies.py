"""Anybody's policy, as a table of what it does at each state of each query.

A policy says at each state of a query's tree which model to call next. It may be a function, an
object with `act`, a model of Stable-Baselines3, a table of probabilities, a router that was trained
here, or the name of a fixed route. It is asked once at every state that it can come to, and valued
by enumeration, see `hierrouter.runs.evaluate`: no episode is drawn. So it must be a function of
what it is shown; one that throws dice gives its probabilities instead.
"""

from __future__ import annotations

import importlib
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.outcome import Actions, Floats, Integers, ending_probabilities
from hierrouter.questions.own_code import import_path, own_code, source_digest
from hierrouter_cache.errors import HierRouterError, InputError
from hierrouter_cache.tree import RouteTree

OBSERVED = ("question", "answers", "models", "stage", "cost", "embedding", "alpha", "actions")
TOLERANCE = 1e-6  # by how much probabilities may miss 1
MANY = 4096  # states that a model of Stable-Baselines3 is asked about at once
EXCERPT = 40  # characters of what a policy gave, in an error
LISTED = 12  # actions in an error, at most

# From a tree to the texts of each of its queries: objects with `question`, a text, and `answers`,
# the response at each node by number; see `hierrouter.replay.tree.Texts`.
TextLoader = Callable[[RouteTree], Sequence[Any]]


def policy_table(
    tree: RouteTree,
    policy: Any,
    alpha: float,
    allow_stop: bool = False,
    texts: TextLoader | None = None,
    allow_return: bool = False,
) -> Floats:
    """What a policy does at every state, asked where it can come to.

    Raises InputError: as `evaluate`.

    Args:
        tree: all its queries are asked about.
        policy: as in `evaluate`, but for routers and names.
        allow_stop: whether it may end before L calls.
        texts: as in `evaluate`.
        allow_return: whether it may end after any answer with any answer of its route.

    Returns:
        float64[queries, S, A], rows sum to 1. Before the last call, stopping is added to not
        stopping, which is the same, as is what else is not legal, see `Actions.after`. At states
        that the policy does not come to, every legal action has the same probability.
    """
    actions, routes = Actions(tree.routes, allow_stop, allow_return), tree.routes
    asked = _Asked(tree, policy, alpha, actions, texts)
    legal = actions.legal()
    table = np.tile(legal / legal.sum(axis=1, keepdims=True), (len(tree), 1, 1))
    reached = np.ones((len(tree), 1))
    for level in range(actions.steps):
        query, place = np.nonzero(reached > 0)
        if not len(query):  # all have stopped
            break
        node = place + routes.level_start(level)
        given = asked.at(query, node)
        if level == routes.hops - 1 and allow_stop:
            given[:, : routes.models] += given[:, routes.models : actions.calls]
            given[:, routes.models : actions.calls] = 0.0
        if allow_return:
            asked.settle(given, level, query, node)
        table[query, node] = given
        if level == routes.hops:
            break
        going_on = table[:, routes.level(level), : routes.models]
        reached = (reached[:, :, None] * going_on).reshape(len(tree), -1)
    return table


def policy_endings(
    tree: RouteTree, policy: Any, alpha: float, allow_stop: bool, allow_return: bool = False
) -> Floats:
    """float64[queries, endings]: the probability that a policy ends so; see `policy_table`."""
    table = policy_table(tree, policy, alpha, allow_stop, allow_return=allow_return)
    return ending_probabilities(Actions(tree.routes, allow_stop, allow_return), table)


class Observation(Mapping[str, Any]):
    """What a policy sees of one state; texts and embedding are read when they are asked for.

    | key         | value                                                          |
    |-------------|----------------------------------------------------------------|
    | `question`  | str                                                            |
    | `answers`   | tuple of str, of the calls made so far                         |
    | `models`    | tuple of str, the models called so far                         |
    | `stage`     | int, how many these are                                        |
    | `cost`      | float, C of these calls, in money                      |
    | `embedding` | float32[dim], what a router sees of the texts                  |
    | `alpha`     | float, of R = Q - alpha * C                                    |
    | `actions`   | tuple of str, names of the actions; `model>stop` ends with it, |
    |             | `return>1` with the first answer and no call                   |

    Raises:
        InputError: question or answers are asked for, and the tree has no texts.
    """

    def __init__(self, asked: _Asked, query: int, node: int) -> None:
        self._asked, self._query, self._node = asked, query, node

    def __getitem__(self, key: str) -> Any:
        asked, query, node = self._asked, self._query, self._node
        asked.read.add(key)
        tree, path = asked.tree, asked.tree.routes.path(node)
        calls = range(1, len(path) + 1)
        read: dict[str, Callable[[], Any]] = {
            "question": lambda: asked.loaded[query].question,
            "answers": lambda: tuple(
                asked.loaded[query].answers[tree.routes.node(path[:call])] for call in calls
            ),
            "models": lambda: tuple(tree.models[action] for action in path),
            "stage": lambda: len(path),
            "cost": lambda: float(tree.cost[query, node]),
            "embedding": lambda: tree.embedding_at(np.array([query]), np.array([node]))[0],
            "alpha": lambda: asked.alpha,
            "actions": lambda: asked.names,
        }
        return read[key]()

    def __iter__(self) -> Iterator[str]:
        return iter(OBSERVED)

    def __len__(self) -> int:
        return len(OBSERVED)

    def __repr__(self) -> str:
        place = self._asked.place(self._query, self._node)
        return f"<observation at {place}: {', '.join(OBSERVED)}>"


class _Asked:
    """A policy that is asked at states of one tree; `at` gives its probabilities, checked."""

    def __init__(
        self, tree: RouteTree, policy: Any, alpha: float, actions: Actions, texts: TextLoader | None
    ) -> None:
        self.tree, self.alpha, self.texts, self.actions = tree, alpha, texts, actions
        self.names, self.policy_name = actions.names(tree.models), policy_name(policy)
        self.read = policy.read if isinstance(policy, OwnPolicy) else set[str]()
        self.policy = policy.made if isinstance(policy, OwnPolicy) else policy
        self.kind = policy_kind(self.policy)
        if self.kind in (None, "name", "router"):
            raise _not_askable(self.policy, self.policy_name)
        if self.kind == "table":
            self.policy = as_table(policy, tree, actions.states)
            if policy.shape[2] == len(tree.models):
                self.policy = self._never_stopping(self.policy)
            elif policy.shape[2] != actions.count:
                raise InputError(
                    f"table of {policy.shape[2]} actions: {self.policy_name}; there are "
                    f"{actions.count}: {', '.join(self.names)}"
                )

    @cached_property
    def loaded(self) -> Sequence[Any]:
        """The texts of each query."""
        found = self.texts(self.tree) if self.texts else getattr(self.tree, "texts", None)
        if found is None:
            raise InputError(
                "no texts to read: this tree holds numbers only; open the cache with "
                "hierrouter.open, or give texts"
            )
        loaded: Sequence[Any] = found
        return loaded

    def at(self, query: Integers, node: Integers) -> Floats:
        """float64[n, A]: the probability of each action at some states, int64[n] each."""
        if self.kind == "table":
            return self._probabilities(self.policy[query, node], query, node)
        if self.kind == "predict":
            parts = [slice(start, start + MANY) for start in range(0, len(query), MANY)]
            chosen = np.concatenate([self._predicted(query[part], node[part]) for part in parts])
            for row in np.flatnonzero((chosen < 0) | (chosen >= len(self.names))):
                raise self._no_such_action(int(chosen[row]), query[row], node[row])
            return np.eye(len(self.names))[chosen]
        states = zip(query.tolist(), node.tolist(), strict=True)
        return np.stack([self._at_one(*state) for state in states])

    def settle(self, given: Floats, level: int, query: Integers, node: Integers) -> None:
        """Count what is not legal at states of one level as giving the last answer, in place."""
        wrong = given * ~self.actions.legal()[node]
        for row in np.flatnonzero(wrong.any(axis=1)) if level == 0 else ():
            raise self._no_such_action(self.names[wrong[row].argmax()], query[row], node[row])
        given -= wrong
        given[:, self.actions.calls + level - 1] += wrong.sum(axis=1)

    def _predicted(self, query: Integers, node: Integers) -> Integers:
        """int64[n]: actions of a model that was trained on `hierrouter.replay.env.ReplayEnv`."""
        depth = self.tree.routes.depth()[node]
        seen = {
            "embedding": self.tree.embedding_at(query, node),
            "stage": depth,
            "cost": self.tree.cost[query, node].astype(np.float32)[:, None],
        }
        where = f"{self.policy_name}: stage {depth[0]}"
        remedy = "train it on ReplayEnv of such a tree, or give an object with act(observation)"
        with own_code(f"policy failed: {where}", remedy):
            given = np.asarray(self.policy.predict(seen, deterministic=True)[0])
        if given.shape != (len(query),) or not np.issubdtype(given.dtype, np.integer):
            raise InputError(
                f"policy gave {given.dtype}{list(given.shape)}: {where}; predict must give a whole "
                f"number for each of {len(query)} states"
            )
        return given.astype(np.int64)

    def _at_one(self, query: int, node: int) -> Floats:
        """float64[A]: what a function or an `act` says of one state."""
        where = self._where(query, node)
        decide = getattr(self.policy, "act", self.policy)
        with own_code(f"policy failed: {where}", "mend it, or leave it out", (HierRouterError,)):
            given = decide(Observation(self, query, node))
        action = _action(given, self.names)
        if action is not None:
            if not 0 <= action < len(self.names):
                raise self._no_such_action(given, query, node)
            return np.eye(len(self.names))[action]
        try:
            values = np.asarray(given)
        except Exception:  # whatever a foreign type raises, it is no array
            values = np.empty(0)
        if values.shape == (len(self.tree.models),):
            values = self._never_stopping(values)
        if values.shape != (len(self.names),) or values.dtype.kind not in "fiu":
            raise InputError(
                f"policy gave {_short(given)}: {where}; give an action from 0 to "
                f"{len(self.names) - 1}, its name, or {len(self.names)} probabilities"
            )
        chances = values.astype(np.float64)[None]
        return self._probabilities(chances, np.array([query]), np.array([node])).ravel()

    def _never_stopping(self, chances: NDArray[Any]) -> NDArray[Any]:
        """[..., A]: probabilities of the M models, where the actions that stop are not named."""
        more = len(self.names) - chances.shape[-1]
        return np.pad(chances, [(0, 0)] * (chances.ndim - 1) + [(0, more)])

    def _probabilities(self, chances: Floats, query: Integers, node: Integers) -> Floats:
        """float64[n, A], refused unless they sum to 1; the rounding of float32 is taken out."""
        with np.errstate(invalid="ignore"):  # inf - inf, which is refused
            total = chances.sum(axis=-1, keepdims=True)
            whole = np.abs(total[:, 0] - 1) <= TOLERANCE  # nor is NaN
        for row in np.flatnonzero(~(whole & (chances >= 0).all(axis=-1))):
            given = _cut(" ".join(f"{chance:.6g}" for chance in chances[row].tolist()))
            raise InputError(
                f"policy gave no probabilities: {given}: {self._where(query[row], node[row])}; "
                "they must be >= 0 and sum to 1"
            )
        return chances / total

    def _no_such_action(self, given: Any, query: int, node: int) -> InputError:
        legal = np.flatnonzero(self.actions.legal()[node])
        listed = [f"{number} {self.names[number]}" for number in legal]
        more = [f"{len(listed) - LISTED} more"] if len(listed) > LISTED else []
        return InputError(
            f"policy gave no such action: {_short(given)}: {self._where(query, node)}; "
            f"actions: {', '.join([*listed[:LISTED], *more])}"
        )

    def _where(self, query: int, node: int) -> str:
        return f"{self.policy_name}: {self.place(query, node)}"

    def place(self, query: int, node: int) -> str:
        """Which state it is, in words."""
        return f"query {self.tree.query_ids[query]}, stage {len(self.tree.routes.path(node))}"


def _action(given: Any, names: tuple[str, ...]) -> int | None:
    """The number of an action, -1 for a name that is none; None where it is no single action."""
    if isinstance(given, str):
        return names.index(given) if given in names else -1
    try:
        return None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        return None


@dataclass(frozen=True)
class OwnPolicy:
    """A policy of the user's own.

    Attributes:
        path: `module:object` where it comes from a module, else its name.
        name: the object's own `name`, where it has one; else the path.
        made: the object, or what was made of the class.
        version: digest of its source, see `hierrouter.questions.own_code.source_digest`; empty
            where it does not come from a path.
        read: what it has read of any observation so far.
    """

    path: str
    name: str
    made: Any
    version: str
    read: set[str] = field(default_factory=set, compare=False)


def own_policy(given: Any, name: str | None = None) -> OwnPolicy:
    """A policy of the user's own, as an object or as `module:object`.

    Raises InputError: the path is not `module:object`, the module cannot be imported or has no such
    object, or the object is no policy that can be asked.

    `given`: what can be asked; or its import path, where a class is made without arguments; `name`:
    how tables call it; None is its own name.
    """
    made, path, version = given, name or policy_name(given), ""
    if isinstance(given, str):
        path = given
        module_name, attribute = import_path(path, "module:object")
        remedy = "it must be importable from here; a class is made without arguments"
        with own_code(f"policy cannot be made: {path}", remedy):
            module = importlib.import_module(module_name)
            found = getattr(module, attribute)
            made = found() if isinstance(found, type) else found
        version = source_digest(module, found)
        if not isinstance(getattr(made, "name", None), str):
            name = name or path
    if policy_kind(made) not in ("act", "predict"):
        raise _not_askable(made, path)
    return OwnPolicy(path, name or policy_name(made), made, version)


def own_policies(policies: Any) -> tuple[OwnPolicy, ...]:
    """Several at once: a list, a mapping by name, or one alone.

    Raises InputError: as `own_policy`, or two of one name.
    """
    if isinstance(policies, Mapping):
        found = tuple(own_policy(policy, name) for name, policy in policies.items())
    else:
        several = isinstance(policies, Iterable) and not isinstance(policies, str)
        found = tuple(own_policy(policy) for policy in (policies if several else [policies]))
    require_distinct_names(found)
    return found


def require_distinct_names(policies: Iterable[OwnPolicy], taken: Iterable[str] = ()) -> None:
    """Refuse two policies of one name, and one that is called as somebody else in the tables.

    Raises InputError: with the name.
    """
    names = set(taken)
    for policy in policies:
        if policy.name in names:
            raise InputError(
                f"two policies of one name: {policy.name}: {policy.path}; give yours another name"
            )
        names.add(policy.name)


def policy_name(policy: Any) -> str:
    """How tables call a policy: its own `name`, else that of the function or class."""
    if isinstance(policy, str):
        return policy
    if isinstance(policy, np.ndarray):
        return "table"
    for name in (getattr(policy, "name", None), getattr(policy, "__name__", None)):
        if isinstance(name, str) and name.strip():
            return name
    return type(policy).__name__


def policy_kind(policy: Any) -> Literal["name", "table", "router", "act", "predict"] | None:
    """Which sort of policy it is; None is none."""
    if isinstance(policy, np.ndarray):
        return "table"
    if isinstance(policy, type):  # it was forgotten to make an object of it
        return None
    if isinstance(getattr(policy, "actions", None), Actions):
        return "router"  # `hierrouter.runs.run.Run` or what it holds
    if isinstance(policy, str | os.PathLike):
        return "name"
    if callable(getattr(policy, "act", None)):
        return "act"
    if callable(getattr(policy, "predict", None)):
        return "predict"
    return "act" if callable(policy) else None


def can_stop(policy: Any, tree: RouteTree, allow_return: bool = False) -> bool:
    """Whether it has an action for every model that ends with its call."""
    made = policy.made if isinstance(policy, OwnPolicy) else policy
    count = Actions(tree.routes, True, allow_return).count
    if isinstance(made, np.ndarray):
        return bool(made.shape[-1] == count)
    return bool(getattr(getattr(made, "action_space", None), "n", None) == count)


def as_table(given: NDArray[Any], tree: RouteTree, states: int) -> Floats:
    """A table with a row for each query and each of so many states of the tree."""
    wanted = (len(tree), states)
    if given.ndim != 3 or given.shape[:2] != wanted or given.dtype.kind not in "fiu":
        raise InputError(
            f"not a table of this tree: {given.dtype}{list(given.shape)}; a policy as an array is "
            f"float64[{wanted[0]}, {wanted[1]}, A]: queries, states, actions"
        )
    return given.astype(np.float64)


def _not_askable(policy: Any, name: str) -> InputError:
    what = "a class" if isinstance(policy, type) else type(policy).__name__
    return InputError(
        f"not a policy to be asked: {name}, {what}; give a function of one observation, or an "
        "object with act(observation) or predict(observations, deterministic)"
    )


def _short(given: Any) -> str:
    """A value in an error, on one line."""
    try:
        return _cut(" ".join(repr(given).split()))
    except Exception:  # a repr of the user's own
        return type(given).__name__


def _cut(text: str) -> str:
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}..."
