"""How far to trust each estimator of `off-policy`: logs played on a cache, beside the exact value.

    python benchmarks/off_policy.py [--cache caches/default] [--checkpoint RUN] [--alpha X]
        [--logged-by uniform|epsilon=0.1|temperature=2] [--episodes N] [--repeats R] [--keep FILE]

Fresh logs of a policy around the router, on the validation fold; each episode draws its question
anew. Printed for each estimator: bias and its error, standard deviation, RMSE, and the share of the
intervals that hold the truth. --keep writes the first log, which `hierrouter off-policy --log`
reads.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.collection.files import json_line
from hierrouter.evaluation.outcome import Actions, greedy, policy_outcome
from hierrouter.replay.env import walk
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Texts
from hierrouter.runs.selection import select_run
from hierrouter.serving.estimators import (
    Estimate,
    Evaluation,
    Log,
    LoggedStates,
    evaluate,
    logged_states,
)
from hierrouter.tables import Column, Line, Table, as_markdown
from hierrouter_cache.tree import RouteTree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path("caches/default"))
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--alpha", type=float)
    parser.add_argument("--logged-by", default="uniform")
    parser.add_argument("--episodes", type=int)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    tree = OpenTree(cache=args.cache).run()
    shown = select_run(tree, args.alpha, args.checkpoint)
    run, trained = shown.required()
    fold = tree.split("validation")
    chances = trained.probabilities(fold)
    target = greedy(chances, fold.base_rate)
    logging = logging_table(args.logged_by, trained.actions, chances, target)
    setting = Setting(fold, trained.actions, logging, target, shown.alpha)
    first, found = repeated(setting, args.episodes or len(fold), args.repeats, args.seed)
    if args.keep:
        kept = lines_of(first, fold, args.logged_by, fold.texts)
        args.keep.write_bytes(b"".join(map(json_line, kept)))
    title = (
        f"{run} at alpha {shown.alpha:g}, exactly {setting.truth:.4f} on {len(fold):,} questions; "
        f"{args.repeats:,} logs of {len(first):,} episodes by {args.logged_by}"
    )
    columns = {
        "estimator": Column("estimator"),
        "bias": Column("bias", 4, signed=True),
        "bias_error": Column("its error", 4),
        "deviation": Column("deviation", 4),
        "rmse": Column("RMSE", 4, "lowest"),
        "coverage": Column("coverage", 3),
        "logs": Column("logs"),
    }
    lines = [
        Line(args.logged_by, tuple(getattr(score, name) for name in columns))
        for score in scores(found, setting.truth)
    ]
    print(as_markdown(Table(title, tuple(columns.values()), tuple(lines))))


def logging_table(
    kind: str, actions: Actions, router: NDArray[np.float64], target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """float64[queries, states, A], rows sum to 1: the policy that logs, at every state.

    Args:
        kind: "uniform": every legal action alike; "epsilon=E": the router's own choice, and with
            probability E any legal action alike; "temperature=T": the router's probabilities to
            the power of 1 / T, scaled to sum to 1.
        router: float64[queries, states, A], the router's own probabilities.
        target: the same, of its greedy policy.
    """
    legal = actions.legal()
    alike = np.broadcast_to(legal / legal.sum(axis=1, keepdims=True), router.shape)
    name, _, number = kind.partition("=")
    if name == "uniform":
        return alike
    if name == "epsilon":
        return (1 - float(number)) * target + float(number) * alike
    if name != "temperature":
        raise SystemExit(f"unknown logging policy: {kind}")
    # The likeliest action weighs 1, so that no power of small numbers makes all of them 0.
    tempered = (router / router.max(axis=-1, keepdims=True)) ** (1 / float(number))
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

    @property
    def truth(self) -> float:
        """Mean R of the policy to be valued, over all questions, by enumeration."""
        outcome = policy_outcome(self.tree, self.actions, self.target, "target", "baseline")
        return float(outcome.reward(self.alpha).mean())

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

        unpaid = np.zeros((len(tree), tree.layout.nodes))  # R follows from Q, C and alpha
        rollouts = walk(self.actions, unpaid, position, act)
        alive, action, query = rollouts.alive, rollouts.action, position[:, None]
        before = rollouts.state % tree.layout.inner
        after = tree.layout.child(before, self.actions.model(action))
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


def states_in_tree(log: Log, tree: RouteTree, target: NDArray[np.float64]) -> LoggedStates:
    """What was seen at the states of a log.

    `log`: episodes on the questions of `tree`, by their positions there; `target`: float64[queries,
    S, A'], the policy to be valued at every state.
    """
    states = log.actions.states
    number = log.query[:, None] * states + log.node
    visited, row = np.unique(number, return_inverse=True)
    query, node = np.divmod(visited, states)
    seen, spent = tree.embedding_at(query, node), tree.cost[query, node]
    return logged_states(log, row.reshape(number.shape), node, spent, seen, target[query, node])


def repeated(
    setting: Setting, episodes: int, repeats: int, seed: int
) -> tuple[Log, list[Evaluation]]:
    """The first log, and what each of several fresh logs says.

    Args:
        episodes: of each log.
        repeats: how many logs, at least 1.
        seed: each log has a generator of its own that follows from it.
    """
    sources = np.random.SeedSequence(seed).spawn(repeats)
    first = setting.play(episodes, np.random.default_rng(sources[0]))
    others = (setting.play(episodes, np.random.default_rng(source)) for source in sources[1:])
    return first, [setting.evaluate(first), *map(setting.evaluate, others)]


def lines_of(
    log: Log, tree: RouteTree, policy: str, texts: Sequence[Texts]
) -> Iterator[dict[str, Any]]:
    """The episodes of a log of a tree, as `off-policy --log` reads them."""
    for row, position in enumerate(log.query.tolist()):
        steps, node = [], 0
        for hop, action in enumerate(log.action[row, : log.length[row]].tolist()):
            model = int(log.actions.model(action))
            node = tree.layout.child(node, model)
            steps.append(
                {
                    "model": tree.models[model],
                    "propensity": float(log.propensity[row, hop]),
                    "stop": bool(log.actions.stops(action)),
                    "cost": float(log.cost[row, hop]),
                    "response": texts[position].answers[node],
                }
            )
        yield {
            "question": texts[position].question,
            "policy": policy,
            "steps": steps,
            "quality": float(log.quality[row]),
        }


@dataclass(frozen=True)
class Score:
    """How an estimator did on many logs.

    Attributes:
        estimator: its name.
        logs: on which it gave a value.
        bias: mean of value - truth.
        bias_error: standard error of that mean.
        deviation: standard deviation of the values over logs.
        rmse: root of the mean of (value - truth)^2.
        coverage: share of the logs whose interval holds the truth.
    """

    estimator: str
    logs: int
    bias: float
    bias_error: float
    deviation: float
    rmse: float
    coverage: float


def scores(evaluations: Sequence[Evaluation], truth: float) -> list[Score]:
    """How each estimator did on these logs.

    Args:
        truth: the value that all of them estimate.
    """
    return [
        _score(name, [found.estimates[name] for found in evaluations], truth)
        for name in evaluations[0].estimates
    ]


def _score(name: str, estimates: Sequence[Estimate], truth: float) -> Score:
    given = [estimate for estimate in estimates if np.isfinite(estimate.value)]
    values = np.array([estimate.value for estimate in given])
    holds = [low <= truth <= high for low, high in (estimate.interval() for estimate in given)]
    several = len(given) > 1
    deviation = float(values.std(ddof=1)) if several else math.nan
    return Score(
        estimator=name,
        logs=len(given),
        bias=float(values.mean() - truth) if given else math.nan,
        bias_error=deviation / np.sqrt(len(given)) if several else math.nan,
        deviation=deviation,
        rmse=float(np.sqrt(np.square(values - truth).mean())) if given else math.nan,
        coverage=float(np.mean(holds)) if given else math.nan,
    )


if __name__ == "__main__":
    main()
