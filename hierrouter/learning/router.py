"""A trained router: the policy that it has learned, its origin and its constant choice."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from hierrouter import __version__
from hierrouter.evaluation.bounds import REWARD_ROUNDING
from hierrouter.evaluation.outcome import (
    ROUTER,
    Actions,
    Floats,
    Integers,
    Outcome,
    ending_probabilities,
    from_endings,
    greedy,
    route_policy,
)
from hierrouter.learning.config import PRESET_NOTES, BestConfig, Objective, TrainConfig
from hierrouter.questions.datasets import TEST_SHARE
from hierrouter.replay.opening import LEARNED_FROM
from hierrouter.tables import safe_text
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import NEWEST, Layout
from hierrouter_cache.tree import Rate, RouteTree

Tensors = dict[str, NDArray[Any]]  # the arrays of a checkpoint, by name
# The name of each policy class that was compared, and its mean gain; see `cross_fit.train_best`.
Ladder = tuple[tuple[str, float], ...]
WORTHWHILE_GAIN = 0.01  # a gain of R that a user would like to detect
MAX_QUERIES_NEEDED = 10_000_000  # far beyond any dataset


@dataclass(frozen=True, eq=False)
class StateBatch:
    """Some states of questions in service, at which a policy decides together.

    Attributes:
        embedding: float32[n, dim], the encoder's vectors of the view.
        node: int64[n], number of each state.
        cost: float64[n], C so far, in money.
        groups: data set or label of each question; "" is unknown.
        roots: float32[n, dim], the vectors of each question before any answer.
    """

    embedding: NDArray[np.float32]
    node: Integers
    cost: Floats
    groups: Sequence[str]
    roots: NDArray[np.float32]


class LearnedPolicy(Protocol):
    """A policy for one alpha, as a training leaves it.

    Letters of shapes: n states, S states of a query, A actions.

    Attributes:
        kind: what it is, with its article, for messages.
        holds_out: whether it decides on each query that it learned from as if it had not.
        can_defer: whether its features say when it is in doubt, see `deferral.calibrate`.
    """

    kind: ClassVar[str]
    holds_out: ClassVar[bool]
    can_defer: ClassVar[bool] = False

    @property
    def dim(self) -> int:
        """Length of the embeddings that it reads."""
        ...

    @property
    def reads_question(self) -> bool:
        """Whether it reads the embedding of the question itself after answers, too."""
        return False

    @property
    def groups(self) -> tuple[str, ...]:
        """The data sets or labels that it has routes for; empty if it does not read them."""
        return ()

    def as_object(self) -> dict[str, Any]:
        """The entries of a checkpoint's description that tell it, as JSON values by name."""
        ...

    def tensors(self) -> Tensors:
        """The arrays of a checkpoint, by name."""
        ...

    def has_learned(self, number: int) -> bool:
        """Whether it reads one of the numbers of a state, which was present in training."""
        return False

    def in_words(self, models: Sequence[str]) -> str:
        """The policy in a sentence, with these names of the actions; empty if it is too long."""
        return ""

    def on(self, actions: Actions, calls: Integers, head: Integers) -> LearnedPolicy | None:
        """Return the same policy on other routes; None if it knows those of its training only.

        Args:
            actions: what may be chosen there.
            calls: int64[actions that call], the number of each in this policy.
            head: int64[A], the number of each action in this policy.
        """
        return None

    def probabilities(self, tree: RouteTree) -> Floats:
        """float64[queries, S, A]: the stochastic policy at every state of a tree."""
        ...

    def features(self, tree: RouteTree) -> Floats:
        """float64[queries, S, width]: of every state what other models can learn from."""
        ...

    def live_probabilities(self, states: StateBatch) -> Floats:
        """float64[n, A]: the stochastic policy at some states."""
        ...

    def live_features(self, states: StateBatch) -> Floats:
        """float64[n, width]: the features of some states."""
        ...

    def expected(self, states: StateBatch) -> Floats | None:
        """Q, and C from the state on, that it expects after each action at some states.

        Returns:
            float64[n, A, 2]; NaN for an action that is not legal. None if it predicts neither.
        """
        ...

    def choice_probability(self, tree: RouteTree, choice: Integers) -> Floats | None:
        """How probable it is that a choice is the best: that no other action leads to a higher R.

        Args:
            tree: the queries.
            choice: int64[queries, S], the action of the greedy policy at each state.

        Returns:
            float64[queries, S]; None if it does not predict that: probabilities of a network are
            for exploration. NaN if it was learned by a version that did not.
        """
        return None

    def live_choice_probability(self, states: StateBatch, choice: Integers) -> Floats | None:
        """float64[n]: the same of the actions int64[n] at some states."""
        return None

    def preferences(self, states: StateBatch) -> Floats | None:
        """float64[n, A]: the order of the actions that it does not choose, the best one highest.

        None if that is the order of their probabilities.
        """
        return None


class RewardPolicy(LearnedPolicy, Protocol):
    """A policy that predicts Q and C of each action; R, which follows, is its feature of it."""

    holds_out: ClassVar[bool] = True

    def rewards(self, tree: RouteTree) -> Floats:
        """Compute the expected R; of a query that it learned from as if it had not.

        Returns:
            float64[queries, S, A]; -inf for an action that is not legal.
        """
        ...

    def expected(self, states: StateBatch) -> Floats:
        """Q, and C from the state on, that it expects, see `LearnedPolicy.expected`."""
        ...

    def features(self, tree: RouteTree) -> Floats:
        """float64[queries, S, A]: the expected R; 0 for an action that is not legal."""
        return _finite(self.rewards(tree))

    def live_features(self, states: StateBatch) -> Floats:
        """float64[n, A]: the expected R; 0 for an action that is not legal."""
        return _finite(self._reward(self.expected(states)))

    def _reward(self, values: Floats) -> Floats:
        """float64[...]: R of Q and C, float64[..., 2]; not finite where they are NaN."""
        ...


class PolicyFamily(Protocol):
    """Learned policies for every alpha; `alphas` is always the grid that they were learned for."""

    def at(self, alpha: float, alphas: Sequence[float], actions: Actions) -> LearnedPolicy:
        """The policy for one alpha.

        Args:
            alpha: any one >= 0.
            alphas: the grid, ascending.
            actions: what may be chosen.
        """
        ...

    def as_object(self) -> dict[str, Any]:
        """The entries of a checkpoint's description that tell it, as JSON values by name."""
        ...

    def tensors(self) -> Tensors:
        """The arrays of a checkpoint, by name."""
        ...

    def history(self, alpha: float, alphas: Sequence[float]) -> tuple[float, ...]:
        """The learning curve of the policy for one alpha, see `TrainedRouter.history`."""
        return ()

    def learning_curve(self, alphas: Sequence[float]) -> list[dict[str, float]]:
        """The learning curve of all policies, a row for each evaluation, see `sweep_rows`."""
        return []

    def changes(self, alphas: Sequence[float]) -> list[float]:
        """The alphas between those of the grid at which another policy of it becomes better."""
        return []

    def remark(self, alpha: float, alphas: Sequence[float]) -> str:
        """What a user should know about the policy for an alpha, in words; mostly nothing."""
        return ""


def nearest_alpha(alpha: float, alphas: Sequence[float]) -> int:
    """The position in a grid of the alpha with the smallest ratio to this one."""
    grid = np.array(alphas)
    # 0 has no ratio to anything; it counts as a tenth of the least alpha above it.
    offset = grid[grid > 0].min(initial=1.0) / 10
    return int(np.abs(np.log((grid + offset) / (alpha + offset))).argmin())


def _finite(rewards: Floats) -> Floats:
    """The rewards, with 0 for an action that is not legal."""
    return np.where(np.isfinite(rewards), rewards, 0.0)


@dataclass(frozen=True)
class Origin:
    """The origin of a policy: its pool, its inputs, and its training.

    Attributes:
        models: names of the M actions that call a model; in the paper's tree, of the models.
        hops: L.
        rate: M pairs, cost of a token in and of a token out at the time of training.
        encoder: name of the encoder whose embeddings are read.
        view: name of the texts and numbers of a state that the policy reads, see
            `hierrouter.replay.states`.
        config: the settings of the training.
        seed: of the training.
        fingerprint: of the tree it was trained on.
        version: hierrouter's at the time of training.
        second: cost of a second of a call.
        routes: the routes of the tree, if it is not the paper's tree of M models and L hops.
    """

    models: tuple[str, ...]
    hops: int
    rate: tuple[tuple[float, ...], ...]
    encoder: str
    view: str
    config: TrainConfig
    seed: int
    fingerprint: str
    version: str
    second: float = 0.0
    routes: Layout | None = None

    @classmethod
    def of(cls, tree: RouteTree, config: TrainConfig, seed: int) -> Origin:
        """The origin of a policy that is trained on `tree` by this version."""
        return cls(
            models=tree.models,
            hops=tree.hops,
            rate=tuple(map(tuple, tree.rate.tolist())),
            encoder=tree.encoder,
            view=tree.view,
            config=config,
            seed=seed,
            fingerprint=tree.fingerprint,
            version=__version__,
            second=tree.second,
            routes=None if tree.layout.is_full else _routes_without_returns(tree.layout),
        )

    @property
    def rates(self) -> dict[str, Rate]:
        """The prices of a token at the time of training, by model."""
        return {name: Rate(*row) for name, row in zip(self.models, self.rate, strict=True)}

    @property
    def layout(self) -> Layout:
        """The routes of the trees that the policy walks."""
        return self.routes or Layout.full(len(self.models), self.hops)

    @property
    def base_rate(self) -> NDArray[np.float64]:
        """float64[M]: cost per token, the mean of both rates; ties go to the cheaper model."""
        return np.array(self.rate)[:, :2].mean(axis=1)

    def has_routes_of(self, tree: RouteTree) -> bool:
        """Whether a tree has the actions and the routes, with their draws, of the training."""
        routes = self.layout.without_give_backs
        return self.models == tree.models and routes == tree.layout.without_give_backs

    def on(self, tree: RouteTree) -> Origin:
        """The same origin, as if the training had been on the routes of a tree.

        Args:
            tree: has no other actions.
        """
        return replace(
            self,
            models=tree.models,
            hops=tree.hops,
            rate=tuple(self.rate[self.models.index(name)] for name in tree.models),
            routes=None if tree.layout.is_full else _routes_without_returns(tree.layout),
        )

    def _check_routes(self, tree: RouteTree, remedy: str) -> None:
        """Check that a policy can read the states of a tree with other routes, by their actions.

        On the paper's tree it is one for its models and hops. On others the same actions may be
        offered elsewhere, or have another number of draws.

        Raises:
            InputError: the tree has other models, actions or more hops.
        """
        if self.routes is not None or not tree.layout.is_full:
            unknown = [name for name in tree.models if name not in self.models]
            if unknown:
                raise InputError(
                    f"checkpoint has not learned to call {', '.join(unknown):.80}, which the cache "
                    f"has: it knows {', '.join(self.models):.80}; {remedy}"
                )
            if tree.hops > self.hops:
                raise InputError(
                    f"checkpoint is for at most {self.hops} hops, the cache has {tree.hops}; "
                    f"{remedy}"
                )
            if NEWEST in tree.layout.give_backs and NEWEST not in self.layout.give_backs:
                raise InputError(
                    "checkpoint has not learned to stop after an answer, as the runs in the cache "
                    f"do; {remedy}"
                )
            return
        if self.models != tree.models:
            raise InputError(
                f"checkpoint is for other models: {len(self.models)} models"
                f" ({', '.join(self.models)}), the cache has {len(tree.models)}"
                f" ({', '.join(tree.models)}); {remedy}"
            )
        if self.hops != tree.hops:
            raise InputError(
                f"checkpoint is for {self.hops} hops, the cache has {tree.hops}; {remedy}"
            )

    def check_matches(self, tree: RouteTree, dim: int) -> None:
        """Check that a policy of this origin can read the states of a tree.

        Args:
            tree: the queries to decide on.
            dim: length of the embeddings that the policy reads.

        Raises:
            InputError: other models, hops, view, encoder or length of embedding.
        """
        remedy = "`hierrouter report --retrain` trains it on this cache; or give one that fits"
        if not self.has_routes_of(tree):
            self._check_routes(tree, remedy)
        if self.view != tree.view:
            raise InputError(
                f"checkpoint reads another view of the state: {self.view}, opened was {tree.view};"
                f" open it with --state {self.view}"
            )
        if self.second != tree.second:
            raise InputError(
                f"checkpoint was trained with a second at {self.second:g}, opened was "
                f"{tree.second:g}; give --price-of-second {self.second:g}, or none for 0"
            )
        if dim != tree.dim:
            raise InputError(
                f"checkpoint reads embeddings of {dim} numbers"
                f" ({self.encoder}), the cache has {tree.dim}; {remedy}"
            )
        if self.encoder != tree.encoder:
            raise InputError(
                f"checkpoint reads another encoder: {self.encoder}, opened was {tree.encoder};"
                f" open it with --encoder {self.encoder}"
            )


def _routes_without_returns(layout: Layout) -> Layout:
    """The layout of a tree without what an objective adds; a log's own offer to stop stays."""
    return layout.with_give_backs([answer for answer in layout.give_backs if answer == NEWEST])


def _route_differences(old: Layout, new: Layout, calls: NDArray[np.int64]) -> str:
    """Count the routes that one of two layouts has, and the draws, in words.

    Args:
        old: of the training.
        new: of a tree.
        calls: int64[call_actions of `new`], the number of each in `old`.
    """
    trained = {old.path(node) for node in range(1, old.nodes)}
    present = {tuple(calls[action] for action in new.path(node)) for node in range(1, new.nodes)}
    added = len(present - trained)
    lacking = len(trained - present)
    return (
        f"{added:,} routes are new, {lacking:,} of {len(trained):,} are not there, and calls have "
        f"up to {new.draws} draws, in the training {old.draws}"
    )


def requested_config(config: TrainConfig, ladder: Ladder) -> TrainConfig:
    """The settings that were asked for: those of the choice, if a policy is the best of several.

    Args:
        config: settings of the policy's own training.
        ladder: of the policy.
    """
    if not ladder:
        return config
    classes = ",".join(name for name, _ in ladder)
    return BestConfig(keep_anyway=config.keep_anyway, classes=classes)


@dataclass(frozen=True)
class Constant:
    """One route for every question, chosen because the learned router shows no gain over it.

    Attributes:
        node: number of the node where the route ends.
        gain: mean R of the learned router, less that of the route.
        low: lower end of the interval of the gain, over the queries; see `cross_fit.shown_gains`.
        high: its upper end.
        needed: queries with which a gain of `WORTHWHILE_GAIN` would show; 0 if both do the same.
        judged: queries on which the gain was measured; 0 in files of versions that did not count.
        alpha: at which the gain was measured; None if it is the router's own alpha.
        others: the routes that are taken where a query does not offer this one, the best first, see
            `hierrouter.evaluation.bounds.rank_routes`; empty if all queries offer it.
        cross_fitted: whether all queries of the folds "train" and "validation" have judged, see
            `hierrouter.learning.cross_fit`; False in files of versions that did not do that.
    """

    node: int
    gain: float
    low: float
    high: float
    needed: int
    judged: int = 0
    alpha: float | None = None
    others: tuple[int, ...] = ()
    cross_fitted: bool = False

    def policy(self, actions: Actions) -> Floats:
        """float64[S, A], one-hot: the route, and off it the first legal action."""
        return np.eye(actions.count)[self._choice(actions)]

    def policy_on(self, tree: RouteTree, actions: Actions) -> Floats:
        """float64[queries, S, A], one-hot: the route by query, see `route_policy`."""
        tree = tree.with_layout(actions.layout)
        if tree.weight is not None:
            return route_policy(tree, actions, (self.node, *self.others))
        return np.repeat(self.policy(actions)[None], len(tree), axis=0)

    def _choice(self, actions: Actions) -> NDArray[np.int64]:
        """int64[S], the action at each state."""
        layout = actions.layout
        legal = actions.legal()
        choice = legal.argmax(axis=1)
        route = layout.route[: actions.states]
        path = layout.path(self.node)
        # Inner nodes come first, so the route is that of one if a call is offered after it.
        stops = actions.allow_stop and bool(layout.route[self.node] < layout.inner)
        # All draws of a call are on the route.
        for step, state in enumerate(self.states(layout)):
            is_on = route == layout.route[state]
            if step < len(path):
                choice[is_on] = path[step]
                if stops and step == len(path) - 1:
                    # This calls the model and ends with its answer. After some draws of the calls
                    # before nothing is offered there, so that the call alone ends.
                    stop = path[step] + layout.call_actions
                    choice[is_on & legal[:, stop]] = stop
            elif actions.returns:
                # Where the route does not end by itself: give its last answer.
                nodes = np.flatnonzero(is_on)
                nodes = nodes[nodes >= layout.inner] if stops else nodes
                choice[nodes] = self._last_answer(actions, nodes)
        # Some draws of a call have no step of the route: they end, if they can.
        illegal = np.flatnonzero(~legal[np.arange(actions.states), choice])
        choice[illegal] = legal[illegal].argmax(axis=1)
        if actions.returns:
            ends = illegal[(layout.give_back[illegal] == illegal[:, None]).any(axis=1)]
            choice[ends] = self._last_answer(actions, ends)
        return choice

    @staticmethod
    def _last_answer(actions: Actions, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n], the action at each of some states that returns the answer there."""
        gives_last = actions.layout.give_back[nodes] == nodes[:, None]
        return actions.calls + gives_last.argmax(axis=1)

    def on(self, old: Layout, new: Layout, calls: NDArray[np.int64], name: str) -> Constant:
        """The same choice among the routes of another layout.

        Args:
            old: the layout of `node` and `others`.
            new: the other layout.
            calls: int64[call_actions of `new`], the number of each in `old`.
            name: of the route.

        Raises:
            InputError: it has none of these routes.
        """
        numbers = {number: action for action, number in enumerate(calls.tolist())}
        nodes = []
        for node in (self.node, *self.others):
            with contextlib.suppress(KeyError):
                nodes.append(new.node([numbers[action] for action in old.path(node)]))
        if not nodes:
            raise InputError(
                f"checkpoint is the route {name:.80} for every question, and the cache has no "
                "such route; `hierrouter report --retrain` trains it on this cache"
            )
        return replace(self, node=nodes[0], others=tuple(nodes[1:]))

    def states(self, layout: Layout) -> list[int]:
        """The nodes on the route, the root and its end included."""
        return [0, *layout.nodes_to(self.node)]

    def sentence(self, alpha: float, actions: Actions, models: tuple[str, ...]) -> str:
        """The reason for the constant choice in a sentence, with the figures."""
        route = safe_text(actions.layout.name(self.node, models))
        message = f"no gain is shown at alpha {alpha:g}: always {route}"
        if self.others:
            message = f"{message}, or the next best route where that is not offered"
        where = "" if self.alpha in (None, alpha) else f" at alpha {self.alpha:g}"
        if not self.needed and abs(self.gain) <= REWARD_ROUNDING:
            return f"{message}; the best router found does the same{where}"
        gain = f"{message}; the best router found would be {self.gain:+.4f}"
        if not self.needed:
            # The same difference on every question, or a single question: there is no spread.
            return f"{gain}{where}"
        worthwhile = f"could show a gain of {WORTHWHILE_GAIN:g}"
        power = f"about {self.needed:,} questions {worthwhile}"
        if self.cross_fitted:
            more = self.needed - self.judged
            # The test fold has its share of what is collected, and judges nothing here.
            to_collect = round(more / (1 - TEST_SHARE))
            power = (
                f"about {more:,} more train and validation questions (about {to_collect:,} to "
                f"collect) {worthwhile}"
            )
        if self.needed <= self.judged:
            # More questions are no remedy then: the gain is smaller than that.
            power = f"its {self.judged:,} questions {worthwhile}"
        elif self.needed >= MAX_QUERIES_NEEDED:
            power = f"not even {MAX_QUERIES_NEEDED:,} questions {worthwhile}"
        return f"{gain} [{self.low:+.4f}, {self.high:+.4f}]{where}; {power}"


@dataclass(frozen=True)
class TrainedRouter:
    """A router and everything needed to use and to reproduce it.

    Attributes:
        router: the policy: the network with its best weights, the value model at one alpha, a table
            of routes, or several of these.
        objective: what it was trained for.
        origin: its pool, inputs and training.
        history: exact greedy R of a network on the validation fold at each evaluation; empty for
            the value model.
        budget: mean cost of a query, in money, that alpha was chosen to keep within; None if alpha
            was chosen directly.
        constant: the choice that is made instead, because the router shows no gain; None if the
            router decides.
        statistics: further columns of the history, of its length: exact greedy R on the train fold
            as `train`, and what the learner says of the epoch before each evaluation; empty for the
            value model and for routers of versions that kept none.
        ladder: of the best of several policy classes, the name of each class and its mean gain over
            the best fixed route by cross-fitting; empty if the user chose the class.
    """

    router: LearnedPolicy
    objective: Objective
    origin: Origin
    history: tuple[float, ...]
    budget: float | None = None
    constant: Constant | None = None
    statistics: Mapping[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    ladder: Ladder = ()

    @property
    def constant_route(self) -> str:
        """The constant choice in words; empty if the router decides."""
        if self.constant is None:
            return ""
        return self.actions.layout.name(self.constant.node, self.origin.models)

    @property
    def why_constant(self) -> str:
        """The reason for a constant choice, with the figures; empty if the router decides."""
        if self.constant is None:
            return ""
        return self.constant.sentence(self.alpha, self.actions, self.origin.models)

    @property
    def alpha(self) -> float:
        """The reward lost per unit of cost that it was trained for."""
        return self.objective.alpha

    @property
    def alphas(self) -> tuple[float, ...]:
        """The alpha that it was trained for, as `TrainedSweep` has several."""
        return (self.alpha,)

    def for_alpha(self, alpha: float | None) -> TrainedRouter:
        """This router, whatever alpha is asked for; see `TrainedSweep.for_alpha`."""
        return self

    def remark(self, alpha: float) -> str:
        """Nothing, see `TrainedSweep.remark`; `training_remarks` compares alphas."""
        return ""

    @property
    def actions(self) -> Actions:
        """The actions it chooses from."""
        return self.objective.actions(self.origin.layout)

    def lacks_group(self, group: str) -> bool:
        """Whether it has routes for groups of questions, and none for this one."""
        groups = self.router.groups
        return bool(groups) and not self.constant and group not in groups

    def fitted_to(self, tree: RouteTree) -> TrainedRouter:
        """Return the router that decides as this one on a tree with other routes of its actions.

        A network reads a state by its stage and the names of the actions so far, so that it can
        decide where a call has more or fewer draws, or follows where it did not in the training.
        Actions that the tree does not offer are not chosen.

        Args:
            tree: the queries to decide on.

        Returns:
            This router if the tree has the routes of its training.

        Raises:
            InputError: this router cannot read the tree, see `Origin.check_matches`; or it is a
                value model or a table of routes, or one route that the tree has not.
        """
        self.origin.check_matches(tree, self.dim)
        if self.origin.has_routes_of(tree):
            return self
        origin = self.origin.on(tree)
        old = self.actions
        new = self.objective.actions(origin.layout)
        calls = np.array([self.origin.models.index(name) for name in tree.models])
        stops = calls + old.layout.call_actions if new.allow_stop else calls[:0]
        ends = [old.calls + old.layout.give_backs.index(end) for end in new.layout.give_backs]
        head = np.concatenate([calls, stops, np.array(ends, np.int64)])
        router = self.router.on(new, calls, head)
        if router is None:
            raise InputError(
                f"checkpoint is for other routes than those of the cache, and {self.router.kind} "
                "knows those of its training only: "
                f"{_route_differences(old.layout, new.layout, calls)}; "
                "`hierrouter report --retrain` trains it on this cache; or take --algo exact or ppo"
            )
        constant = self.constant
        if constant:
            constant = constant.on(old.layout, new.layout, calls, self.constant_route)
        return replace(self, router=router, origin=origin, constant=constant)

    def probabilities(self, tree: RouteTree) -> NDArray[np.float64]:
        """float64[queries, S, A]: the stochastic policy at every state of the tree.

        The value model decides on a query that it learned from as if it had not.

        Raises:
            InputError: this router cannot read the tree, see `fitted_to`.
        """
        fitted = self.fitted_to(tree)
        if fitted is not self:
            return fitted.probabilities(tree)
        if self.constant:
            return self.constant.policy_on(tree, self.actions)
        return self.router.probabilities(self.objective.view(tree))

    def choice_probability(
        self, tree: RouteTree, choice: NDArray[np.int64]
    ) -> NDArray[np.float64] | None:
        """How probable it is that its choices are the best, see `LearnedPolicy`.

        Args:
            tree: the queries.
            choice: int64[queries, S], the action of the greedy policy at each state.

        Returns:
            float64[queries, S]; None if it does not predict that, as a network, a table of routes,
            or a constant choice.

        Raises:
            InputError: this router cannot read the tree, see `fitted_to`.
        """
        fitted = self.fitted_to(tree)
        if self.constant:
            return None
        return _known(fitted.router.choice_probability(self.objective.view(tree), choice))

    @property
    def dim(self) -> int:
        """Length of the embeddings that it reads."""
        return self.router.dim

    @property
    def holds_out(self) -> bool:
        """Whether it decides on each query that it learned from as if it had not."""
        return self.router.holds_out

    @property
    def table_in_words(self) -> str:
        """The routes that it takes, by group of questions; empty unless it is a table of routes."""
        return "" if self.constant else self.router.in_words(self.origin.models)

    def features(self, tree: RouteTree) -> NDArray[np.float64]:
        """Features of every state, for other models to learn from.

        Returns:
            float64[queries, S, width]: the input of a network's heads, or the expected R of each
            action; 0 for an action that is not legal.
        """
        return self.fitted_to(tree).router.features(tree)

    def judging_fold(self, tree: RouteTree) -> RouteTree:
        """The queries on which its R is a fair estimate, without looking at the test fold.

        These are the queries it learned from, if it decides on each as if it had not; else the fold
        that chose its weights.

        Args:
            tree: the tree it learned from; all folds, or all but the test fold.
        """
        return training_queries(tree) if self.holds_out else tree.split(choosing_fold(tree))

    def constant_fold(self, tree: RouteTree) -> RouteTree:
        """The queries on which a fixed route is chosen to compare it with this router.

        These are the queries that the router learned from. Of a network's validation fold they are
        no part, because it judges both; a constant choice was made with it.
        """
        if self.holds_out or self.constant:
            return training_queries(tree)
        return tree.split("train")

    def outcome(self, tree: RouteTree) -> Outcome:
        """The exact outcome of the greedy policy on every query of a tree.

        Raises:
            InputError: this router cannot read the tree, see `fitted_to`.
        """
        return from_endings(self.objective.view(tree), self.endings(tree), ROUTER, "router")

    def endings(self, tree: RouteTree) -> NDArray[np.float64]:
        """float64[queries, endings]: the ending under the greedy policy, one-hot.

        Endings are nodes, and further ones if it may return answers, see `Layout`.

        Raises:
            InputError: this router cannot read the tree, see `fitted_to`.
        """
        fitted = self.fitted_to(tree)
        actions = fitted.actions
        choice = greedy(fitted.probabilities(tree), tree.base_rate, actions.returns)
        return ending_probabilities(actions, choice, tree.weight)

    def live_states(
        self,
        embedding: NDArray[np.float32],
        paths: Sequence[tuple[int, ...]],
        costs: Sequence[float],
        groups: Sequence[str] = (),
        roots: NDArray[np.float32] | None = None,
    ) -> StateBatch:
        """Some live states, on which the router decides together.

        Args:
            embedding: float32[n, dim], the encoder's vectors of the view.
            paths: of each state the models called so far, by number: fewer than L, or up to L with
                `allow_return`.
            costs: of each state C so far, in money.
            groups: data set or label of each question, "" if it is unknown; empty if none is known.
            roots: float32[n, dim], the vectors of each question before any answer, see
                `LearnedPolicy.reads_question`; None takes those of the states.
        """
        embedding = np.asarray(embedding, np.float32)
        return StateBatch(
            embedding=embedding,
            node=np.array([self.actions.layout.node(path) for path in paths], np.int64),
            cost=np.array(costs, np.float64),
            groups=groups if len(groups) else ("",) * len(embedding),
            roots=embedding if roots is None else roots,
        )

    def decide_each(self, states: StateBatch) -> NDArray[np.float64]:
        """The stochastic policy at some live states.

        Returns:
            float64[n, A]. Where a constant choice is made, the states beside its route, which are
            reached only after a failed call, have the chances of the router that it stands for.
        """
        chances = self.router.live_probabilities(states)
        if self.constant:
            route = self.actions.layout.route
            on_route = np.isin(route[states.node], route[self.constant.states(self.actions.layout)])
            chances[on_route] = self.constant.policy(self.actions)[states.node][on_route]
        return chances

    def choice_probability_each(
        self, states: StateBatch, choice: NDArray[np.int64]
    ) -> NDArray[np.float64] | None:
        """How probable it is that an action at each of some live states is the best.

        Args:
            states: see `live_states`.
            choice: int64[n], of each state the action of the greedy policy.

        Returns:
            float64[n], or None, as `choice_probability`.
        """
        if self.constant:
            return None
        return _known(self.router.live_choice_probability(states, choice))

    def rank_each(self, states: StateBatch, chances: NDArray[np.float64]) -> list[tuple[int, ...]]:
        """All legal actions at some live states, in the order in which they are to be tried.

        That is the order of their chances. A constant choice has one action with a chance; the
        others are in the order of the router that it stands for. Those of a table of routes are in
        the order of the routes that go on with them.

        Args:
            states: the states.
            chances: float64[n, A], what `decide_each` returned.
        """
        learned = self.router.preferences(states)
        if learned is None:
            learned = self.router.live_probabilities(states) if self.constant else chances
        legal = self.actions.legal()[states.node]
        orders = np.lexsort((-learned, -chances, ~legal))
        return [
            tuple(order[:count].tolist())
            for order, count in zip(orders, legal.sum(axis=1), strict=True)
        ]


def training_remarks(
    trained: TrainedRouter, alpha: float, tree: RouteTree | None = None
) -> tuple[str, ...]:
    """What a reader should know of the training of a router that is shown, in words.

    How it differs from the present use of the router, and what is recommended beside its preset.

    Args:
        trained: the router.
        alpha: the alpha at which it is shown.
        tree: the tree on which it is shown; None if there is no tree.
    """
    remarks = []
    fingerprint = trained.origin.fingerprint
    if tree is not None and fingerprint != tree.fingerprint:
        change = (
            "under other prices" if tree.same_content(fingerprint) else "on other data or scores"
        )
        remarks.append(f"the router was trained {change} than shown here")
    if trained.alpha != alpha:
        remarks.append(f"the router was trained at alpha {trained.alpha:g}, shown at {alpha:g}")
    preset_note = PRESET_NOTES.get(trained.origin.config.preset)
    if preset_note:
        remarks.append(preset_note)
    return tuple(remarks)


def training_queries(tree: RouteTree) -> RouteTree:
    """The queries of the folds "train" and "validation".

    Raises:
        InputError: there are none.
    """
    rows = np.flatnonzero(np.isin(tree.splits, LEARNED_FROM))
    if not len(rows):
        raise InputError("no query to train on: the train fold is empty; add queries")
    return tree.select(rows)


def training_folds(tree: RouteTree) -> tuple[RouteTree, RouteTree]:
    """The fold to learn from and the one that chooses the iterate; one tree if it does both.

    Raises:
        InputError: there is nothing to train on.
    """
    learn_from = tree.split("train")
    if not len(learn_from):
        raise InputError("no query to train on: the train fold is empty; add queries")
    chooser = choosing_fold(tree)
    if chooser == "train":
        return learn_from, learn_from
    return learn_from, tree.split(chooser)


def choosing_fold(tree: RouteTree) -> str:
    """Name of the fold that chooses: "validation", or "train" without a validation fold."""
    return "validation" if "validation" in tree.splits else "train"


def _known(probability: Floats | None) -> Floats | None:
    """Probabilities, or None if a version that did not predict them has learned the policy."""
    if probability is None or np.isnan(probability).all():
        return None
    return probability
