"""The exact value of anybody's policy.

A policy says at each state of a query's tree which model to call next. It may be a function, an
object with `act`, a model of Stable-Baselines3, a table of probabilities, a router that was trained
here, or the name of a fixed route. It is asked once at every state that it can come to, and valued
by enumeration: no episode is drawn. So it must be a function of what it is shown; one that throws
dice gives its probabilities instead.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.bounds import oracle
from hierrouter.evaluation.outcome import (
    Actions,
    Outcome,
    ending,
    fixed_routes,
    policy_outcome,
    single_calls,
)
from hierrouter.questions.own_code import import_path, own_code, source_digest
from hierrouter_cache.errors import HierRouterError, InputError
from hierrouter_cache.tree import RouteTree

if TYPE_CHECKING:
    import pandas

SEEN = ("question", "answers", "models", "stage", "cost", "embedding", "alpha", "actions")
ANSWER_TO_WRONG = "mend it, or leave it out"
TOLERANCE = 1e-6  # by how much probabilities may miss 1
MANY = 4096  # states that a model of Stable-Baselines3 is asked about at once
EXCERPT = 40  # characters of what a policy gave, in an error
DEFAULT_FOLD = "validation"
ASKED = ("act", "predict")  # what `_kind` calls policies that are asked state by state

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Ask = Callable[[Integers, Integers], Floats]  # from queries and nodes, int64[n], to float64[n, A]


class QueryTexts(Protocol):
    """What was asked and answered in one query's tree, see `hierrouter.replay.tree.Texts`."""

    @property
    def question(self) -> str:
        """Text of the query."""
        ...

    @property
    def answers(self) -> Sequence[str]:
        """The response at each node, by number."""
        ...


TextsOf = Callable[[RouteTree], Sequence[QueryTexts]]


@runtime_checkable
class ActingPolicy(Protocol):
    """A policy as an object; a function of the same argument does as well."""

    def act(self, observation: Mapping[str, Any]) -> Any:
        """What to do at one state.

        Args:
            observation: see `Observation`.

        Returns:
            The number of an action, its name, or float[A], the probability of each action.
        """
        ...


@runtime_checkable
class LearnedRouter(Protocol):
    """A router that was trained here, see `hierrouter.learning.trained.TrainedRouter`."""

    @property
    def alpha(self) -> float:
        """The cost penalty it was trained for."""
        ...

    @property
    def actions(self) -> Actions:
        """What it chooses from."""
        ...

    def outcome(self, tree: RouteTree) -> Outcome:
        """Of its greedy policy."""
        ...


class Observation(Mapping[str, Any]):
    """What a policy sees of one state; texts and embedding are read when they are asked for.

    | key         | value                                                          |
    |-------------|----------------------------------------------------------------|
    | `question`  | str                                                            |
    | `answers`   | tuple of str, of the calls made so far                         |
    | `models`    | tuple of str, the models called so far                         |
    | `stage`     | int, how many these are                                        |
    | `cost`      | float, C of these calls, in price * token                      |
    | `embedding` | float32[dim], what a router sees of the texts                  |
    | `alpha`     | float, of R = Q - alpha * C                                    |
    | `actions`   | tuple of str, names of the actions; `model>stop` ends with it  |

    Raises:
        InputError: question or answers are asked for, and the tree has no texts.
    """

    def __init__(
        self,
        tree: RouteTree,
        texts: Callable[[], Sequence[QueryTexts]],
        query: int,
        node: int,
        alpha: float,
        actions: tuple[str, ...],
    ) -> None:
        self._tree, self._texts, self._query, self._node = tree, texts, query, node
        self._path = tree.routes.path(node)
        self._known = {
            "models": tuple(tree.models[action] for action in self._path),
            "stage": len(self._path),
            "cost": float(tree.cost[query, node]),
            "alpha": alpha,
            "actions": actions,
        }

    def __getitem__(self, key: str) -> Any:
        if key == "question":
            return self._texts()[self._query].question
        if key == "answers":
            answers, routes = self._texts()[self._query].answers, self._tree.routes
            ways = (self._path[: calls + 1] for calls in range(len(self._path)))
            return tuple(answers[routes.node(way)] for way in ways)
        if key == "embedding":
            return self._tree.embedding_at(np.array([self._query]), np.array([self._node]))[0]
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(SEEN)

    def __len__(self) -> int:
        return len(SEEN)

    def __repr__(self) -> str:
        return f"<observation at {self.place}: {', '.join(SEEN)}>"

    @property
    def place(self) -> str:
        """Which state it is, in words."""
        return _place(self._tree, self._query, len(self._path))


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """What a policy is worth on each query of a fold, in expectation and without sampling error.

    Attributes:
        name: of the policy.
        alpha: cost penalty of `reward`.
        split: the fold: "train", "validation" or "test".
        query_ids: of the queries, in the order of the arrays.
        datasets: of the queries.
        quality: float64[queries], expected Q, in [0, 1].
        accuracy: float64[queries], probability of a right answer.
        cost: float64[queries], expected C, in price * token.
    """

    name: str
    alpha: float
    split: str
    query_ids: tuple[str, ...]
    datasets: tuple[str, ...]
    quality: Floats
    accuracy: Floats
    cost: Floats

    @property
    def reward(self) -> Floats:
        """float64[queries]: expected R = Q - alpha * C (paper section 3.1)."""
        return self.quality - self.alpha * self.cost

    @property
    def mean_reward(self) -> float:
        """Mean of R over the queries."""
        return float(self.reward.mean())

    @property
    def mean_quality(self) -> float:
        """Mean of Q over the queries."""
        return float(self.quality.mean())

    @property
    def mean_cost(self) -> float:
        """Mean of C over the queries."""
        return float(self.cost.mean())

    def __len__(self) -> int:
        return len(self.query_ids)

    def __repr__(self) -> str:
        return (
            f"<{self.name} on {len(self)} {self.split} queries at alpha {self.alpha:g}: "
            f"R {self.mean_reward:.4f}, Q {self.mean_quality:.4f}, C {self.mean_cost:.4g}, "
            f"right {self.accuracy.mean():.4f}>"
        )

    def to_pandas(self) -> pandas.DataFrame:
        """One row a query: query, dataset, split, quality, accuracy, cost, reward."""
        import pandas

        return pandas.DataFrame(
            {
                "query": self.query_ids,
                "dataset": self.datasets,
                "split": self.split,
                "quality": self.quality,
                "accuracy": self.accuracy,
                "cost": self.cost,
                "reward": self.reward,
            }
        )


@dataclass(frozen=True)
class OwnPolicy:
    """A policy of the user's own, from a module.

    Attributes:
        path: `module:object`.
        name: the object's own `name`, where it has one; else the path.
        made: the object, or what was made of the class.
        version: digest of its source, see `hierrouter.questions.own_code.source_digest`; empty
            where it does not come from a path.
    """

    path: str
    name: str
    made: Any
    version: str


def own_policy(path: str) -> OwnPolicy:
    """The policy at an import path; a class is made without arguments.

    Raises:
        InputError: the path is not `module:object`, the module cannot be imported or has no such
            object, or the object is no policy.
    """
    module_name, attribute = import_path(path, "--policy module:object")
    remedy = "it must be importable from here; a class is made without arguments"
    with own_code(f"policy cannot be made: {path}", remedy):
        module = importlib.import_module(module_name)
        found = getattr(module, attribute)
        made = found() if isinstance(found, type) else found
    if _kind(made) not in ASKED:
        raise _not_askable(made, path)
    named = policy_name(made) if isinstance(getattr(made, "name", None), str) else path
    return OwnPolicy(path, named, made, source_digest(module, found))


def own_object(policy: Any) -> OwnPolicy:
    """A policy that somebody holds in their hands.

    Raises:
        InputError: it is no policy that can be asked.
    """
    name = policy_name(policy)
    if _kind(policy) not in ASKED:
        raise _not_askable(policy, name)
    return OwnPolicy(name, name, policy, "")


def own_policies(policies: Sequence[Any]) -> tuple[OwnPolicy, ...]:
    """Policies of the user's own, as `module:object` or as they are.

    Raises:
        InputError: as `own_policy`, or two of one name.
    """
    found = tuple(own_policy(one) if isinstance(one, str) else own_object(one) for one in policies)
    require_other_names(found)
    return found


def require_other_names(policies: Sequence[OwnPolicy], taken: Iterable[str] = ()) -> None:
    """Refuse two policies of one name, and one that is called as somebody else in the tables.

    Raises:
        InputError: with the name.
    """
    known = set(taken)
    for policy in policies:
        if policy.name in known:
            raise InputError(
                f"two policies of one name: {policy.name}: {policy.path}; give yours another name"
            )
        known.add(policy.name)


def evaluate(
    tree: RouteTree,
    policy: Any,
    alpha: float | None = None,
    *,
    allow_stop: bool | None = None,
    split: str | None = None,
    texts: TextsOf | None = None,
) -> Evaluation:
    """The exact value of a policy on each query of a fold.

    Args:
        tree: one fold, or several.
        policy: a function of an `Observation` or an object with `act`; a model of
            Stable-Baselines3, which is asked deterministically; float64[queries, states, A], a row
            for each query of `tree`; a router that was trained here; or a name: `calc` is a direct
            call, `text>calc` a fixed route, `oracle` the best route in hindsight.
        alpha: cost penalty of R = Q - alpha * C (paper section 3.1); None is what a router was
            trained for.
        allow_stop: whether the policy may end before L calls (paper appendix A); None is what
            a router, a table or a model of Stable-Baselines3 can do, and False for all others.
        split: the fold; None is that of the tree, and validation where the tree has several.
        texts: from a tree to the texts of its queries, for policies that read them; None takes the
            tree's own `texts`, where it has them.

    Raises:
        InputError: nothing to value it on, no alpha, or a policy that fails or gives what is
            neither an action nor probabilities; the message names the query and the stage.
    """
    rows, name = _fold_of(tree, split)
    fold = tree.select(rows)
    if isinstance(policy, OwnPolicy):
        called, policy = policy.name, policy.made
    else:
        called = policy_name(policy)
    kind = _kind(policy)
    value = _alpha_of(policy, alpha)
    if kind == "table":
        policy = _table_of(policy, tree)[rows]
    if kind == "name":
        outcome = _named(fold, policy, value, bool(allow_stop))
    elif kind == "router":
        outcome = _router_outcome(fold, policy, allow_stop)
    else:
        stop = _can_stop(policy, fold) if allow_stop is None else allow_stop
        table = policy_table(fold, policy, value, stop, name=called, texts=texts)
        actions = Actions(fold.routes, stop)
        outcome = policy_outcome(fold, actions, table, called, "baseline")
    return Evaluation(
        name=outcome.name,
        alpha=value,
        split=name,
        query_ids=fold.query_ids,
        datasets=fold.datasets,
        quality=outcome.quality,
        accuracy=outcome.accuracy,
        cost=outcome.cost,
    )


def policy_table(
    tree: RouteTree,
    policy: Any,
    alpha: float,
    allow_stop: bool = False,
    *,
    name: str | None = None,
    texts: TextsOf | None = None,
) -> Floats:
    """What a policy does at every state, asked where it can come to.

    Args:
        tree: all its queries are asked about.
        policy: as in `evaluate`, but for routers and names.
        alpha: what the policy is told.
        allow_stop: whether it may end before L calls.
        name: what errors call it; None is its own.
        texts: as in `evaluate`.

    Returns:
        float64[queries, states, A], rows sum to 1. Before the last call, stopping is added to not
        stopping, which is the same (`Actions.legal`). At states that the policy does not come to,
        every legal action has the same probability.

    Raises:
        InputError: as `evaluate`.
    """
    actions, routes = Actions(tree.routes, allow_stop), tree.routes
    ask = _asking(tree, policy, alpha, actions, name or policy_name(policy), texts)
    legal = actions.legal()
    table = np.tile(legal / legal.sum(axis=1, keepdims=True), (len(tree), 1, 1))
    reached = np.ones((len(tree), 1))
    for level in range(routes.hops):
        query, place = np.nonzero(reached > 0)
        if not len(query):  # all have stopped
            break
        given = ask(query, place + routes.level_start(level))
        if level == routes.hops - 1 and allow_stop:
            given[:, : routes.models] += given[:, routes.models :]
            given[:, routes.models :] = 0.0
        table[query, place + routes.level_start(level)] = given
        going_on = table[:, routes.level(level), : routes.models]
        reached = (reached[:, :, None] * going_on).reshape(len(tree), -1)
    return table


def policy_endings(tree: RouteTree, policy: OwnPolicy, alpha: float, allow_stop: bool) -> Floats:
    """float64[queries, nodes]: where a policy of the user's own ends; see `policy_table`."""
    table = policy_table(tree, policy.made, alpha, allow_stop, name=policy.name)
    return ending(Actions(tree.routes, allow_stop), table)


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


def _kind(policy: Any) -> str | None:
    """Which sort of policy it is: "name", "table", "router", "predict", "act"; None is none."""
    if isinstance(policy, str):
        return "name"
    if isinstance(policy, np.ndarray):
        return "table"
    if isinstance(policy, type):  # it was forgotten to make an object of it
        return None
    if isinstance(policy, LearnedRouter):
        return "router"
    if isinstance(policy, ActingPolicy):
        return "act"
    if callable(getattr(policy, "predict", None)):
        return "predict"
    return "act" if callable(policy) else None


def _fold_of(tree: RouteTree, split: str | None) -> tuple[Integers, str]:
    """Positions of the queries to value a policy on, and the name of their fold."""
    folds = sorted(set(tree.splits))
    name = split or (folds[0] if len(folds) == 1 else DEFAULT_FOLD)
    rows = np.flatnonzero(np.array(tree.splits) == name)
    if not len(rows):
        raise InputError(
            f"no query to value a policy on: the {name} fold is empty; this tree has "
            f"{', '.join(folds) or 'none'}"
        )
    return rows, name


def _alpha_of(policy: Any, alpha: float | None) -> float:
    if alpha is None and _kind(policy) == "router":
        alpha = policy.alpha
    if alpha is None:
        raise InputError(
            "no alpha to value a policy at: only a trained router has its own; give alpha=0.005"
        )
    if not (math.isfinite(alpha) and alpha >= 0):
        raise InputError(f"alpha must be a finite number >= 0, got {alpha}")
    return float(alpha)


def _can_stop(policy: Any, tree: RouteTree) -> bool:
    """Whether it has an action for every model that ends with its call."""
    count = Actions(tree.routes, allow_stop=True).count
    if isinstance(policy, np.ndarray):
        return bool(policy.shape[-1] == count)
    return bool(getattr(getattr(policy, "action_space", None), "n", None) == count)


def _named(fold: RouteTree, name: str, alpha: float, allow_stop: bool) -> Outcome:
    known = [*single_calls(fold), *fixed_routes(fold, True), oracle(fold, alpha, allow_stop)]
    found = next((outcome for outcome in known if outcome.name == name), None)
    if found is None:
        raise InputError(
            f"unknown policy: {name}; give a model for its direct call "
            f"({', '.join(fold.direct.models) or 'none here'}), a route such as "
            f"{fold.routes.name(fold.routes.states, fold.models)}, or oracle"
        )
    return found


def _router_outcome(fold: RouteTree, router: LearnedRouter, allow_stop: bool | None) -> Outcome:
    if allow_stop is not None and allow_stop != router.actions.allow_stop:
        may = "may stop early" if router.actions.allow_stop else "makes all its calls"
        raise InputError(
            f"the router was trained otherwise: it {may}, allow_stop is {allow_stop}; leave "
            "allow_stop out"
        )
    return router.outcome(fold)


def _asking(
    tree: RouteTree,
    policy: Any,
    alpha: float,
    actions: Actions,
    name: str,
    texts: TextsOf | None,
) -> Ask:
    """How to get the probabilities at some states, checked."""
    kind = _kind(policy)
    if kind == "table":
        return _ask_table(tree, _table_of(policy, tree), actions, name)
    if kind == "predict":
        return _ask_at_once(tree, policy, actions, name)
    if kind == "act":
        return _ask_each(tree, policy, alpha, actions, name, texts)
    raise _not_askable(policy, name)


def _ask_each(
    tree: RouteTree,
    policy: Any,
    alpha: float,
    actions: Actions,
    name: str,
    texts: TextsOf | None,
) -> Ask:
    """State by state."""
    decide = policy.act if isinstance(policy, ActingPolicy) else policy
    names = actions.names(tree.models)
    load = _loading(tree, texts)

    def ask(query: Integers, node: Integers) -> Floats:
        chances = np.empty((len(query), len(names)))
        for row, place in enumerate(zip(query.tolist(), node.tolist(), strict=True)):
            seen = Observation(tree, load, *place, alpha, names)
            where = f"{name}: {seen.place}"
            with own_code(f"policy failed: {where}", ANSWER_TO_WRONG, (HierRouterError,)):
                given = decide(seen)
            chances[row] = _chances(given, names, where)
        return chances

    return ask


def _ask_at_once(tree: RouteTree, model: Any, actions: Actions, name: str) -> Ask:
    """A model of Stable-Baselines3, with the observations of `hierrouter.replay.env.ReplayEnv`."""
    names, depth = actions.names(tree.models), tree.routes.depth()

    def chosen(query: Integers, node: Integers) -> Integers:
        seen = {
            "embedding": tree.embedding_at(query, node),
            "stage": depth[node],
            "cost": tree.cost[query, node].astype(np.float32)[:, None],
        }
        stage = f"stage {depth[node[0]]}"
        remedy = "train it on ReplayEnv of such a tree, or give an object with act(observation)"
        with own_code(f"policy failed: {name}: {stage}", remedy):
            given = np.asarray(model.predict(seen, deterministic=True)[0])
        if given.shape != (len(query),) or not np.issubdtype(given.dtype, np.integer):
            raise InputError(
                f"policy gave {given.dtype}{list(given.shape)}: {name}: {stage}; predict must "
                f"give a whole number for each of {len(query)} states"
            )
        return given.astype(np.int64)

    def ask(query: Integers, node: Integers) -> Floats:
        parts = [slice(start, start + MANY) for start in range(0, len(query), MANY)]
        action = np.concatenate([chosen(query[part], node[part]) for part in parts])
        wrong = np.flatnonzero((action < 0) | (action >= len(names)))
        if len(wrong):
            row = wrong[0]
            where = f"{name}: {_place(tree, query[row], depth[node[row]])}"
            raise _no_such_action(int(action[row]), names, where)
        one_hot: Floats = np.eye(len(names))[action]
        return one_hot

    return ask


def _ask_table(tree: RouteTree, table: Floats, actions: Actions, name: str) -> Ask:
    names, depth = actions.names(tree.models), tree.routes.depth()
    if table.shape[2] != actions.count:
        raise InputError(
            f"table of {table.shape[2]} actions: {name}; there are {actions.count}: "
            f"{', '.join(names)}"
        )

    def ask(query: Integers, node: Integers) -> Floats:
        chances = table[query, node]
        for row in np.flatnonzero(~_add_up(chances)):
            where = f"{name}: {_place(tree, query[row], depth[node[row]])}"
            raise _no_probabilities(chances[row], where)
        return _summing_to_1(chances)

    return ask


def _table_of(given: NDArray[Any], tree: RouteTree) -> Floats:
    """A table with a row for each query and state of the tree."""
    wanted = (len(tree), tree.routes.states)
    if given.ndim != 3 or given.shape[:2] != wanted or given.dtype.kind not in "fiu":
        raise InputError(
            f"not a table of this tree: {given.dtype}{list(given.shape)}; a policy as an array is "
            f"float64[{wanted[0]}, {wanted[1]}, A]: queries, states, actions"
        )
    return given.astype(np.float64)


def _loading(tree: RouteTree, texts: TextsOf | None) -> Callable[[], Sequence[QueryTexts]]:
    """Loads the texts of all queries, once."""

    @cache
    def load() -> Sequence[QueryTexts]:
        found = texts(tree) if texts else getattr(tree, "texts", None)
        if found is None:
            raise InputError(
                "no texts to read: this tree holds numbers only; open the cache with "
                "hierrouter.open, or give texts"
            )
        loaded: Sequence[QueryTexts] = found
        return loaded

    return load


def _chances(given: Any, names: tuple[str, ...], where: str) -> Floats:
    """float64[A]: what a policy gave for one state, as probabilities."""
    action = _action(given, names)
    if action is None:
        return _probabilities(given, names, where)
    if not 0 <= action < len(names):
        raise _no_such_action(given, names, where)
    one_hot = np.zeros(len(names))
    one_hot[action] = 1.0
    return one_hot


def _action(given: Any, names: tuple[str, ...]) -> int | None:
    """The number of an action, -1 for a name that is none; None where it is no single action."""
    if isinstance(given, str):
        return names.index(given) if given in names else -1
    try:
        return None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        return None


def _probabilities(given: Any, names: tuple[str, ...], where: str) -> Floats:
    try:
        values = np.asarray(given)
    except Exception:  # whatever a foreign type raises, it is no array
        values = np.empty(0)
    if values.shape != (len(names),) or values.dtype.kind not in "fiu":
        raise InputError(
            f"policy gave {_short(given)}: {where}; give an action from 0 to {len(names) - 1}, its "
            f"name, or {len(names)} probabilities"
        )
    chances = values.astype(np.float64)
    if not _add_up(chances):
        raise _no_probabilities(chances, where)
    return _summing_to_1(chances)


def _add_up(chances: Floats) -> Any:
    """bool[...]: whether the last axis holds probabilities that sum to 1."""
    with np.errstate(invalid="ignore"):  # inf - inf, which is refused
        whole = np.abs(chances.sum(axis=-1) - 1) <= TOLERANCE  # nor is NaN
        return whole & (chances >= 0).all(axis=-1)


def _summing_to_1(chances: Floats) -> Floats:
    """The same without the rounding of float32."""
    whole: Floats = chances / chances.sum(axis=-1, keepdims=True)
    return whole


def _not_askable(policy: Any, name: str) -> InputError:
    what = "a class" if isinstance(policy, type) else type(policy).__name__
    return InputError(
        f"not a policy to be asked: {name}, {what}; give a function of one observation, or an "
        "object with act(observation) or predict(observations, deterministic)"
    )


def _no_such_action(given: Any, names: tuple[str, ...], where: str) -> InputError:
    listed = ", ".join(f"{number} {name}" for number, name in enumerate(names))
    return InputError(
        f"policy gave no such action: {_short(given)}: {where}; actions: {_cut(listed)}"
    )


def _no_probabilities(chances: Floats, where: str) -> InputError:
    shown = _cut(" ".join(f"{chance:.6g}" for chance in chances.tolist()))
    return InputError(
        f"policy gave no probabilities: {shown}: {where}; they must be >= 0 and sum to 1"
    )


def _place(tree: RouteTree, query: int, stage: int) -> str:
    return f"query {tree.query_ids[query]}, stage {stage}"


def _short(given: Any) -> str:
    """A value in an error, on one line."""
    try:
        return _cut(" ".join(repr(given).split()))
    except Exception:  # a repr of the user's own
        return type(given).__name__


def _cut(text: str) -> str:
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}..."
