"""Train a router for one alpha, and what a trained router is: its weights, origin and decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hierrouter import __version__
from hierrouter.evaluation.bounds import best_ending
from hierrouter.evaluation.intervals import interval, queries_needed
from hierrouter.evaluation.outcome import (
    ROUTER,
    Actions,
    Floats,
    Outcome,
    ending_probabilities,
    fixed_route,
    from_endings,
    greedy,
)
from hierrouter.learning.config import (
    ExactConfig,
    NetworkConfig,
    Objective,
    PPOConfig,
    TrainConfig,
    ValueConfig,
)
from hierrouter.learning.forward import Network
from hierrouter.learning.value import ValueModel, ValueRouter, fit, learned_from
from hierrouter.tables import safe_text
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes, RouteTree

if TYPE_CHECKING:  # what trains a network needs torch, what a trained one decides does not
    from hierrouter.learning.loop import Learner, OnEpoch, TrainingFold
    from hierrouter.learning.network import Router


def train(
    tree: RouteTree,
    objective: Objective,
    config: TrainConfig,
    seed: int,
    on_epoch: OnEpoch | None = None,
) -> TrainedRouter:
    """Train a router for one alpha.

    A network learns from the fold "train", and the iterate that is best on the fold "validation" is
    kept: of two that are equally good there the better one on train, then the earlier one. Without
    a validation fold the train fold chooses. The value model learns from both folds.

    Args:
        tree: all folds.
        on_epoch: told of each evaluation.

    Raises:
        InputError: there is nothing to train on, or the training diverged.
    """
    origin, alpha = Origin.of(tree, config, seed), objective.alpha
    if isinstance(config, ValueConfig):
        model = fit_value(tree, [alpha], objective, config, on_epoch)
        return TrainedRouter(ValueRouter(model, alpha), objective, origin, history=())
    assert isinstance(config, NetworkConfig)
    from hierrouter.learning import loop, network

    trees = training_folds(tree)
    folds = learn_from, _ = loop.fold_pair(trees, objective)

    def start() -> Learner[Router]:
        router = network.Router(network.shape_for(trees[0], learn_from.actions, config))
        router.standardise(learn_from.table)
        rng = np.random.default_rng(seed)
        if isinstance(config, PPOConfig):
            # Tianshou takes longer to import than a training by enumeration takes.
            from hierrouter.learning.ppo import PPOLearner

            return PPOLearner(router, learn_from, alpha, config, rng)
        assert isinstance(config, ExactConfig)
        from hierrouter.learning.exact import ExactLearner

        return ExactLearner(router, learn_from, alpha, config, rng)

    def value(router: Router, fold: TrainingFold) -> float:
        return fold.value(router, alpha)

    router, best = loop.best_iterate(start, value, folds, config, seed, on_epoch or loop.nobody)
    return TrainedRouter(router.trained(), objective, origin, tuple(best.history))


def fit_value(
    tree: RouteTree,
    alphas: Sequence[float],
    objective: Objective,
    config: ValueConfig,
    on_epoch: OnEpoch | None = None,
) -> ValueModel:
    """`value.fit`; each state is an epoch to those who are told."""

    def told(done: int, total: int) -> None:
        if on_epoch:
            on_epoch(done, total, math.nan, math.nan)  # nothing is valued on the way

    return fit(tree, alphas, objective, config, told)


def training_folds(tree: RouteTree) -> tuple[RouteTree, RouteTree]:
    """The fold to learn from and the one that chooses the iterate; one tree where it does both.

    Raises InputError: there is nothing to train on.
    """
    learn_from = tree.split("train")
    if not len(learn_from):
        raise InputError("no query to train on: the train fold is empty; add queries")
    chooser = choosing_fold(tree)
    return learn_from, learn_from if chooser == "train" else tree.split(chooser)


def choosing_fold(tree: RouteTree) -> str:
    """Name of the fold that chooses: "validation", or "train" where there is none."""
    return "validation" if "validation" in tree.splits else "train"


@dataclass(frozen=True)
class Origin:
    """Where a policy comes from: what it reads, calls, and was trained with.

    Attributes:
        models: M names; action a calls `models[a % M]`.
        rate: M pairs, cost of a token in and of a token out at the time of training.
        encoder: name of the encoder whose embeddings are read.
        view: which texts these are of, see `hierrouter.replay.states`.
        second: cost of a second of a call.
    """

    models: tuple[str, ...]
    hops: int
    rate: tuple[tuple[float, float], ...]
    encoder: str
    view: str
    config: TrainConfig
    seed: int
    fingerprint: str
    version: str
    second: float = 0.0

    @classmethod
    def of(cls, tree: RouteTree, config: TrainConfig, seed: int) -> Origin:
        """A training on `tree`, today."""
        return cls(
            models=tree.models,
            hops=tree.hops,
            rate=tuple((tokens_in, tokens_out) for tokens_in, tokens_out in tree.rate.tolist()),
            encoder=tree.encoder,
            view=tree.view,
            config=config,
            seed=seed,
            fingerprint=tree.fingerprint,
            version=__version__,
            second=tree.second,
        )

    @property
    def routes(self) -> Routes:
        """The shape of the trees that the policy walks."""
        return Routes(len(self.models), self.hops)

    @property
    def base_rate(self) -> NDArray[np.float64]:
        """float64[M]: cost per token, the mean of both rates; ties go to the cheaper model."""
        return np.array(self.rate).mean(axis=1)

    def check_matches(self, tree: RouteTree, dim: int) -> None:
        """Make sure that a policy of this origin can read the states of `tree`.

        Raises InputError: other models, hops, view, encoder or length of embedding.

        `dim`: length of the embeddings that it reads.
        """
        remedy = "`hierrouter report --retrain` trains it on this cache; or give one that fits"
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


WORTHWHILE = 0.01  # a gain of R that one would like to be shown
PLENTY = 10_000_000  # more questions than anybody has


@dataclass(frozen=True)
class Constant:
    """One route for every question, shipped because nothing better was shown.

    Attributes:
        node: number of the node where the route ends.
        gain: mean R of the router that was learned, less that of the route.
        low, high: 95 % interval of the gain, over the queries.
        needed: questions with which a gain of `WORTHWHILE` would show; 0 where both do the same.
    """

    node: int
    gain: float
    low: float
    high: float
    needed: int

    def policy(self, actions: Actions) -> Floats:
        """float64[S, A], one-hot: the route, and off it the first action that is legal."""
        routes, at = actions.routes, 0
        choice = actions.legal().argmax(axis=1)
        path = routes.path(self.node)
        stops = actions.allow_stop and len(path) < routes.hops
        for model in path:
            reached = int(routes.child(at, model))
            choice[at] = model + (routes.models if stops and reached == self.node else 0)
            at = reached
        if actions.allow_return and not stops:
            choice[at] = actions.calls + len(path) - 1
        return np.eye(actions.count)[choice]

    def sentence(self, alpha: float, actions: Actions, models: tuple[str, ...]) -> str:
        """Why it is shipped, with the figures."""
        route = safe_text(actions.routes.name(self.node, models))
        said = f"nothing learnable here at alpha {alpha:g}: always {route}"
        if not self.needed:
            return f"{said}; the best router found does the same"
        more = f"about {self.needed:,} questions could show a gain of {WORTHWHILE:g}"
        return (
            f"{said}; the best router found would be {self.gain:+.4f} "
            f"[{self.low:+.4f}, {self.high:+.4f}]; {more}"
        )


@dataclass(frozen=True)
class TrainedRouter:
    """The weights of the best iterate and everything needed to use and to reproduce them.

    Attributes:
        origin: where it comes from.
        history: exact greedy R of a network on the validation fold at each evaluation.
        budget: mean cost of a query, in money, that alpha was chosen to keep within; None
            where alpha was given.
        constant: the choice that is made instead, because the router showed no gain; None where it
            decides itself.
    """

    router: Network | ValueRouter
    objective: Objective
    origin: Origin
    history: tuple[float, ...]
    budget: float | None = None
    constant: Constant | None = None

    def shipped(self, tree: RouteTree) -> TrainedRouter:
        """The router, and a constant choice instead of it where it shows no gain.

        The gain is that over the best fixed route, one of fewer calls where the router may stop, on
        the queries that judge the router, see `judged`; a gain is shown where the whole interval is
        above 0.
        """
        if self.origin.config.keep_anyway:
            return self
        judged = self.judged(tree)
        chooses = judged if self.holds_out else tree.split("train")
        node = best_ending(chooses, self.alpha, self.objective.ends_early)
        constant = fixed_route(judged, node)
        gains = self.outcome(judged).reward(self.alpha) - constant.reward(self.alpha)
        low, high = interval(gains, rng=np.random.default_rng(0))
        if low > 0 and len(judged) > 1:
            return self
        spread = float(gains.std(ddof=1)) if len(judged) > 1 else 0.0
        needed = min(queries_needed(WORTHWHILE, spread), PLENTY) if spread else 0
        return replace(self, constant=Constant(node, float(gains.mean()), low, high, needed))

    @property
    def constant_route(self) -> str:
        """The constant choice in words; empty where the router decides."""
        node = self.constant and self.constant.node
        return self.actions.routes.name(node, self.origin.models) if node else ""

    @property
    def why_constant(self) -> str:
        """Why a constant choice is made, with the figures; empty where the router decides."""
        if self.constant is None:
            return ""
        return self.constant.sentence(self.alpha, self.actions, self.origin.models)

    @property
    def alpha(self) -> float:
        """The cost penalty it was trained for."""
        return self.objective.alpha

    @property
    def actions(self) -> Actions:
        """What it chooses from."""
        may = self.objective
        return Actions(self.origin.routes, may.allow_stop, may.allow_return)

    def probabilities(self, tree: RouteTree) -> NDArray[np.float64]:
        """float64[queries, S, A]: the stochastic policy at every state.

        The value model decides on a query that it learned from as if it had not. Raises InputError:
        the tree is not one this router can read.
        """
        self.origin.check_matches(tree, self.dim)
        if self.constant:
            return np.repeat(self.constant.policy(self.actions)[None], len(tree), axis=0)
        if isinstance(self.router, ValueRouter):
            return self.router.probabilities(tree)
        return self.router.policy(tree, self.actions)

    @property
    def dim(self) -> int:
        """Length of the embeddings that it reads."""
        router = self.router
        return router.model.dim if isinstance(router, ValueRouter) else router.shape.dim

    @property
    def holds_out(self) -> bool:
        """Whether a query it learned from is decided on without it, and so flatters nobody."""
        return isinstance(self.router, ValueRouter)

    def features(self, tree: RouteTree) -> NDArray[np.float64]:
        """float64[queries, S, width]: what a network's heads read at every state, or R expected."""
        if isinstance(self.router, ValueRouter):
            rewards = self.router.rewards(tree)
            return np.where(np.isfinite(rewards), rewards, 0.0)
        return self.router.all_features(tree, self.actions)

    def judged(self, tree: RouteTree) -> RouteTree:
        """The queries whose R flatters nobody: those it learned from, where it decides on each as
        if it had not; else the fold that chose its weights.

        `tree`: that it learned from; of all folds, or without the test fold.
        """
        return learned_from(tree) if self.holds_out else tree.split(choosing_fold(tree))

    def outcome(self, tree: RouteTree) -> Outcome:
        """The exact outcome of the greedy policy on every query of `tree`.

        Raises InputError: the tree is not one this router can read.
        """
        return from_endings(tree, self.endings(tree), ROUTER, "router")

    def endings(self, tree: RouteTree) -> NDArray[np.float64]:
        """float64[queries, endings]: how the greedy policy ends, 1 in one place of each row.

        Endings are nodes, but where earlier answers may be given, see
        `hierrouter.evaluation.outcome.ending_table`. Raises InputError: the tree is not one this
        router can read.
        """
        chances, actions = self.probabilities(tree), self.actions
        return ending_probabilities(actions, greedy(chances, tree.base_rate, actions.returns))

    def expected_each(
        self,
        embedding: NDArray[np.float32],
        paths: Sequence[tuple[int, ...]],
        costs: Sequence[float],
    ) -> NDArray[np.float64] | None:
        """float64[n, A, 2]: Q, and C from there on, after each action at some live states.

        NaN where an action is not legal; None where the router does not say, as networks do not.
        The arguments are those of `decide_each`.
        """
        if not isinstance(self.router, ValueRouter):
            return None
        return self.router.expected(embedding, list(map(self.actions.routes.node, paths)), costs)

    def decide_each(
        self,
        embedding: NDArray[np.float32],
        paths: Sequence[tuple[int, ...]],
        costs: Sequence[float],
    ) -> NDArray[np.float64]:
        """float64[n, A]: the stochastic policy at some live states, worked out together.

        `embedding`: float32[n, dim], the encoder's vectors of the view; `paths`: the models called
        so far, by number, fewer than L but with `allow_return`; `costs`: C so far, in money.
        """
        nodes = [self.actions.routes.node(path) for path in paths]
        if self.constant:
            return self.constant.policy(self.actions)[nodes]
        if isinstance(self.router, ValueRouter):
            return self.router.live(embedding, nodes, costs)
        node = np.array(nodes)
        seen, spent = np.asarray(embedding, np.float32), np.array(costs, np.float32)
        return self.router.probabilities(seen, node, spent, self.actions.legal()[node])


def training_remarks(
    trained: TrainedRouter, alpha: float, tree: RouteTree | None = None
) -> tuple[str, ...]:
    """How a router is shown otherwise than it was trained.

    `alpha`: that it is shown at; `tree`: that it is shown on; None where there is none.
    """
    found = []
    fingerprint = trained.origin.fingerprint
    if tree is not None and fingerprint != tree.fingerprint:
        what = "under other prices" if tree.same_content(fingerprint) else "on other data or scores"
        found.append(f"the router was trained {what} than shown here")
    if trained.alpha != alpha:
        found.append(f"the router was trained at alpha {trained.alpha:g}, shown at {alpha:g}")
    return tuple(found)
