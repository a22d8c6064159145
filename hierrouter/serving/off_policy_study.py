"""Values of a router from logs: one from a file, or many played on a cached tree.

On a tree the exact value is known, so played logs show how far each estimator can be trusted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.engines.encoders import load_encoder
from hierrouter.evaluation.outcome import Actions, greedy, policy_outcome
from hierrouter.learning.trained import TrainedRouter
from hierrouter.replay.env import walk
from hierrouter.serving.logs import Episode, Step, from_texts, in_cache, states_in_tree
from hierrouter.serving.off_policy import Evaluation, Log, evaluate, scores
from hierrouter.serving.off_policy_result import Result, notes
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

OnLog = Callable[[int, int], None]
USAGE = "uniform, epsilon=0.1 or temperature=2"
RANGES = {"epsilon": (0.0, 1.0), "temperature": (0.01, 1e6)}


def value_from_log(
    trained: TrainedRouter,
    episodes: Sequence[Episode],
    tree: RouteTree | None,
    alpha: float,
    provenance: Mapping[str, Any],
) -> Result:
    """What a log from elsewhere says of a router.

    Args:
        trained: its greedy policy is valued.
        episodes: of the log.
        tree: that holds the questions; None where the episodes carry their texts.

    Raises:
        InputError: a question that is not in the tree, only one question, or a router for another
            tree.
    """
    truth = None
    if tree is None:
        encoder = load_encoder(trained.origin.encoder)
        log, states = from_texts(episodes, trained, encoder)
    else:
        target = greedy(trained.probabilities(tree), tree.base_rate)
        log = in_cache(episodes, trained, tree)
        states = states_in_tree(log, tree, target)
        truth = float(_exact(trained, tree, target, alpha)[log.query].mean())
    evaluation = evaluate(log, states, alpha)
    return Result(
        alpha=alpha,
        logged_by=Counter(episode.policy or "unnamed" for episode in episodes),
        evaluation=evaluation,
        truth=truth,
        truth_on="the questions of the log",
        scores=(),
        notes=notes(evaluation, trained),
        provenance=provenance,
    )


def value_by_simulation(
    trained: TrainedRouter,
    fold: RouteTree,
    alpha: float,
    logging: LoggingPolicy,
    provenance: Mapping[str, Any],
    *,
    episodes: int,
    repeats: int = 1,
    seed: int,
    on_log: OnLog = lambda done, total: None,
) -> tuple[Result, list[Episode]]:
    """Logs of a policy on a fold, and how well they tell the value of another one there.

    Args:
        trained: its greedy policy is valued; its probabilities make the logging policy.
        fold: the questions.
        logging: the policy that logs.
        episodes: of each log; each draws its question anew.
        repeats: how many logs.
        seed: of questions and calls.
        on_log: told (done, total) after each log.

    Returns:
        The result, and the episodes of the first log.

    Raises:
        InputError: fewer than 2 questions, or a router for another tree.
    """
    if len(fold) < 2:
        raise InputError(f"too few questions to estimate from: {len(fold)}; collect more")
    probabilities = trained.probabilities(fold)
    target = greedy(probabilities, fold.base_rate)
    table = logging.table(trained.actions, probabilities, fold.base_rate)
    setting = Setting(fold, trained.actions, table, target, alpha)
    truth = float(_exact(trained, fold, target, alpha).mean())
    first, found = repeated(setting, episodes, repeats, seed, on_log)
    result = Result(
        alpha=alpha,
        logged_by={str(logging): episodes},
        evaluation=found[0],
        truth=truth,
        truth_on=f"all {len(fold):,} questions of the fold",
        scores=scores(found, truth) if repeats > 1 else (),
        notes=notes(found[0], trained),
        provenance=provenance,
    )
    return result, episodes_of(first, fold, str(logging))


def _exact(
    trained: TrainedRouter, tree: RouteTree, target: NDArray[np.float64], alpha: float
) -> NDArray[np.float64]:
    """float64[queries]: R of the greedy policy, by enumeration."""
    return policy_outcome(tree, trained.actions, target, "hierrouter", "router").reward(alpha)


def episodes_of(log: Log, tree: RouteTree, policy: str) -> list[Episode]:
    """The episodes of a log of a tree, as a file says them."""
    models = len(tree.models)
    return [
        Episode(
            query=tree.query_ids[position],
            dataset=tree.datasets[position],
            steps=tuple(
                Step(
                    model=int(log.action[row, hop]) % models,
                    propensity=float(log.propensity[row, hop]),
                    stop=bool(log.actions.stops(log.action[row, hop])),
                    cost=float(log.cost[row, hop]),
                )
                for hop in range(log.length[row])
            ),
            quality=float(log.quality[row]),
            policy=policy,
        )
        for row, position in enumerate(log.query.tolist())
    ]


@dataclass(frozen=True)
class LoggingPolicy:
    """A way to choose calls, around a trained router.

    Attributes:
        kind: "uniform": every legal action alike; "epsilon": the router's own choice, and with this
            probability any legal action alike; "temperature": the router's probabilities to the
            power of 1 / temperature, scaled to sum to 1.
        number: epsilon, in [0, 1], or the temperature, above 0; 0 where there is neither.
    """

    kind: str
    number: float = 0.0

    @classmethod
    def named(cls, text: str) -> LoggingPolicy:
        """By what a user types.

        Raises:
            InputError: anything but `USAGE`, or a number out of range.
        """
        if text == "uniform":
            return cls("uniform")
        kind, _, number = text.partition("=")
        if kind not in RANGES:
            raise InputError(f"unknown logging policy: {text!r:.60}; give {USAGE}")
        low, high = RANGES[kind]
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise InputError(f"no number from {low:g} to {high:g}: --simulate {text!r:.60}")
        return cls(kind, value)

    def __str__(self) -> str:
        return self.kind if self.kind == "uniform" else f"{self.kind}={self.number:g}"

    def table(
        self, actions: Actions, router: NDArray[np.float64], base_rate: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """float64[queries, states, A], rows sum to 1: the policy at every state.

        Args:
            router: float64[queries, states, A], the router's own probabilities.
            base_rate: float64[M], cost per token, for ties; see `greedy`.
        """
        legal = actions.legal()
        alike = np.broadcast_to(legal / legal.sum(axis=1, keepdims=True), router.shape)
        if self.kind == "uniform":
            return alike
        if self.kind == "epsilon":
            return (1 - self.number) * greedy(router, base_rate) + self.number * alike
        # The likeliest action weighs 1, so that no power of small numbers makes all of them 0.
        tempered = (router / router.max(axis=-1, keepdims=True)) ** (1 / self.number)
        table: NDArray[np.float64] = tempered / tempered.sum(axis=-1, keepdims=True)
        return table


@dataclass(frozen=True)
class Setting:
    """Where logs come from and what they are to tell.

    Attributes:
        tree: the questions.
        actions: what the logging policy chooses from.
        logging: float64[queries, states, A], rows sum to 1, the policy that logs.
        target: float64[queries, states, A], the policy to be valued.
        alpha: of the reward.
    """

    tree: RouteTree
    actions: Actions
    logging: NDArray[np.float64]
    target: NDArray[np.float64]
    alpha: float

    def play(self, episodes: int, rng: np.random.Generator) -> Log:
        """A fresh log; each episode draws its question anew, from all of them."""
        return self.play_on(rng.integers(len(self.tree), size=episodes), rng)

    def play_on(self, position: NDArray[np.int64], rng: np.random.Generator) -> Log:
        """One episode on each of the given questions; the log has nothing of what was not called.

        Args:
            position: int64[episodes], of questions in the tree; they may repeat.
            rng: source of the calls.
        """
        tree, table = self.tree, self.logging.reshape(-1, self.actions.count)
        up_to = table.cumsum(axis=1)
        up_to /= up_to[:, -1:]

        def act(state: NDArray[np.int64]) -> NDArray[np.int64]:
            drawn: NDArray[np.int64] = (up_to[state] <= rng.random((len(state), 1))).sum(axis=1)
            return drawn

        unpaid = np.zeros(
            (len(tree), tree.routes.nodes)
        )  # Q and C are logged, R follows from alpha
        rollouts = walk(self.actions, unpaid, position, act)
        alive, action, query = rollouts.alive, rollouts.action, position[:, None]
        before = rollouts.state % tree.routes.states
        after = tree.routes.child(before, self.actions.model(action))
        last = after[np.arange(len(position)), rollouts.length - 1]
        return Log(
            actions=self.actions,
            query=position,
            action=action,
            propensity=np.where(alive, table[rollouts.state, action], 1.0),
            length=rollouts.length,
            quality=tree.score[position, last],
            cost=np.where(alive, tree.cost[query, after] - tree.cost[query, before], 0.0),
        )

    def evaluate(self, log: Log) -> Evaluation:
        """What a log of these questions says, without a look at the tree's rewards."""
        return evaluate(log, states_in_tree(log, self.tree, self.target), self.alpha)


def repeated(
    setting: Setting,
    episodes: int,
    repeats: int,
    seed: int,
    on_log: OnLog = lambda done, total: None,
) -> tuple[Log, list[Evaluation]]:
    """The first log, and what each of several fresh logs says.

    Args:
        episodes: of each log.
        repeats: how many logs, at least 1.
        seed: each log has a generator of its own that follows from it.
        on_log: told (done, total) after each.
    """
    first, found = None, []
    for done, source in enumerate(np.random.SeedSequence(seed).spawn(repeats), start=1):
        log = setting.play(episodes, np.random.default_rng(source))
        found.append(setting.evaluate(log))
        first = first or log
        on_log(done, repeats)
    assert first is not None
    return first, found
