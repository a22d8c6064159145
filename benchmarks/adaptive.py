"""Adaptive collection against full trees, fewer questions, random branches and a bandit.

    OMP_NUM_THREADS=1 python benchmarks/adaptive.py --cache DIR --at 0.005 1.6 3.2
        [--draws 20] [--questions 600] [--state VIEW] [--allow-stop] [--allow-return] [--until R]
        [--grown DIR]

Each draw collects so many train and validation questions of the cache anew, by the collector
itself: its models answer what the cache holds. The value model learns from what came, and its R on
the whole test fold is compared with that of the same questions as full trees. With as many calls:
full trees of fewer questions; the same questions with branches drawn at random; and LinUCB, which
plays one route a question and learns from its R alone. Calls are distinct ones of the train fold,
where calls are left out: equal answers lead to equal calls, which are made once.

With `--grown` no draw is made: that cache was collected with `--adaptive`, of the same questions,
by the models themselves.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from measuring import versions
from numpy.typing import NDArray

from hierrouter.collection.adaptive import Adaptive, fill_adaptively
from hierrouter.collection.plan import last_plan
from hierrouter.collection.scheduler import fill_cache
from hierrouter.declarations.flags import DEFAULT_VIEW
from hierrouter.engines.generator import Answer, Confidence, Response, Stop, never
from hierrouter.evaluation.bounds import best_ending, oracle
from hierrouter.evaluation.intervals import interval
from hierrouter.evaluation.outcome import fixed_route
from hierrouter.learning.config import Objective, ValueConfig
from hierrouter.learning.regression import TextProjection
from hierrouter.learning.router import training_queries
from hierrouter.learning.sweep import train_sweep
from hierrouter.pools.files import stored_pool
from hierrouter.pools.pool import Identity, ModelSpec
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.states import STATE_VIEWS
from hierrouter.replay.tree import calls_of
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import RouteTree

Booleans = NDArray[np.bool_]
Floats = NDArray[np.float64]
COMPONENTS = 16  # of a question that LinUCB sees


class Replayed:
    """An engine whose models answer what a cache holds."""

    def __init__(self, cache: Path) -> None:
        reader = CacheReader(cache)
        self.identities = stored_pool(reader.latest_plan().pool, str(cache))[1]
        rows = reader.sql(
            "SELECT c.model, c.prompt, c.response, c.tokens_in, c.tokens_out, c.finish_reason, "
            "c.logprob_sum, c.logprob_min, c.logprob_tokens FROM calls c"
        )
        self.answers = {
            (row["model"], row["prompt"]): Response(
                row["response"],
                row["tokens_in"],
                row["tokens_out"],
                row["finish_reason"],
                None
                if row["logprob_sum"] is None
                else Confidence(row["logprob_sum"], row["logprob_min"], row["logprob_tokens"]),
            )
            for row in rows.to_pylist()
        }

    def __call__(self, name: str) -> "Replayed":
        return self

    def identify(self, spec: ModelSpec) -> Identity:
        """As it is stored."""
        return self.identities[spec.name]

    def weight_bytes(self, spec: ModelSpec) -> int:
        """Nothing is loaded."""
        return 0

    def load(self, spec: ModelSpec) -> "_Model":
        """One model of the pool."""
        return _Model(self, spec.name)


@dataclass
class _Model:
    engine: Replayed
    name: str

    def generate(
        self, prompts: Sequence[str], stop: Stop = never, draws: Sequence[int] = ()
    ) -> Iterator[tuple[int, Answer]]:
        for place, prompt in enumerate(prompts):
            yield place, self.engine.answers[self.name, prompt]


def with_holes(tree: RouteTree, called: Booleans) -> RouteTree:
    """The tree as if only some calls had been made; `called`: bool[queries, nodes]."""
    holes = replace(
        tree,
        score=np.where(called, tree.score, np.nan),
        tokens_in=np.where(called, tree.tokens_in, 0),
        tokens_out=np.where(called, tree.tokens_out, 0),
    )
    whole = called.all(axis=1)
    kept = holes.select(np.flatnonzero(whole))
    return replace(kept, pruned=holes.select(np.flatnonzero(~whole)))


def at_random(tree: RouteTree, calls: int, rng: np.random.Generator) -> Booleans:
    """bool[queries, nodes]: 40 whole trees, and branches of the others, so many calls in all."""
    routes, count = tree.layout, len(tree)
    called = np.ones((count, routes.nodes), bool)
    low, high = 0.0, 1.0
    draws = rng.random((count, routes.nodes))
    for _ in range(30):
        share = (low + high) / 2
        for node in range(1, routes.nodes):
            called[40:, node] = called[40:, routes.parent[node]] & (draws[40:, node] < share)
        low, high = (share, high) if called[:, 1:].sum() < calls else (low, share)
    called[40:, 1] |= ~called[40:, 1 : 1 + routes.call_actions].any(axis=1)
    return called


class LinUCB:
    """One linear bandit whose arms are the fixed routes, at one alpha."""

    def __init__(self, dim: int, arms: int) -> None:
        self.inner = np.repeat(np.eye(dim)[None], arms, axis=0)
        self.seen = np.zeros((arms, dim))

    def choose(self, x: Floats, wide: float) -> NDArray[np.int64]:
        """int64[n]: the arm of each question, float64[n, dim]."""
        inverse = np.linalg.inv(self.inner)
        mean = x @ np.einsum("aij,aj->ai", inverse, self.seen).T
        spread = np.sqrt(np.einsum("ni,aij,nj->na", x, inverse, x))
        found: NDArray[np.int64] = (mean + wide * spread).argmax(axis=1)
        return found

    def learn(self, x: Floats, arm: int, reward: float) -> None:
        """What one question, float64[dim], brought."""
        self.inner[arm] += np.outer(x, x)
        self.seen[arm] += reward * x


def bandit(tree: RouteTree, test: RouteTree, alpha: float, calls: int, seed: int) -> Floats:
    """R of LinUCB on the test fold after so many calls; it asks all questions, then again."""
    parts = [part for part in tree.parts if part.is_text]
    text = TextProjection.of(parts[0].vectors[parts[0].row[:, 0]], COMPONENTS)

    def features(fold: RouteTree) -> Floats:
        seen = text(fold.parts[0].vectors[fold.parts[0].row[:, 0]])
        return np.hstack([np.ones((len(fold), 1)), seen])

    leaves = tree.layout.leaves
    reward, x = tree.reward(alpha), features(tree)
    arms = LinUCB(x.shape[1], leaves.stop - leaves.start)
    order, rng = np.empty(0, np.int64), np.random.default_rng(seed)
    for turn in range(calls // tree.hops):
        if turn % len(tree) == 0:
            order = rng.permutation(len(tree))
        row = order[turn % len(tree)]
        arm = int(arms.choose(x[row : row + 1], 0.5)[0])
        arms.learn(x[row], arm, reward[row, arm])
    chosen = arms.choose(features(test), 0.0)
    found: Floats = test.reward(alpha)[np.arange(len(test)), chosen]
    return found


KINDS = ("adaptive", "fewer questions", "random branches", "LinUCB")


@dataclass
class Study:
    """One full cache, and what is asked of it.

    Args:
        args: the flags.
    """

    args: argparse.Namespace

    def __post_init__(self) -> None:
        args = self.args
        self.alphas, early = tuple(sorted(args.at)), args.allow_stop or args.allow_return
        self.may = Objective(0.0, args.allow_stop, allow_return=args.allow_return)
        self.selection = OpenTree(state=args.state, allow_return=args.allow_return)
        tree = replace(self.selection, cache=args.cache).run()
        self.test, self.fold = tree.split("test"), training_queries(tree)
        self.calls = tree.layout.calls
        last = last_plan(args.cache)
        assert last is not None
        self.pool, self.queries = last[0], [query for query in last[1] if query.split != "test"]
        self.engine = Replayed(args.cache)
        fixed = [fixed_route(self.test, best_ending(self.test, a, early)) for a in self.alphas]
        self.gaps = [
            float((oracle(self.test, a, early).reward(a) - route.reward(a)).mean())
            for a, route in zip(self.alphas, fixed, strict=True)
        ]

    def reached(self, tree: RouteTree) -> list[Floats]:
        """R on each question of the test fold of what is learned from a tree, an alpha each."""
        sweep = train_sweep(tree, self.alphas, self.may, ValueConfig(), 0)
        return [sweep.at(alpha).outcome(self.test).reward(alpha) for alpha in self.alphas]

    def draw(self, seed: int) -> list[float]:
        """The share of calls left out; then for each of `KINDS` and alpha R less that of all."""
        args, rng = self.args, np.random.default_rng(seed)
        order = rng.permutation(len(self.queries))[: args.questions]
        asked = sorted((self.queries[at] for at in order), key=lambda query: query.split)
        names = zip(self.fold.datasets, self.fold.query_ids, strict=True)
        place = {name: row for row, name in enumerate(names)}
        part = self.fold.select(np.array([place[one.dataset, one.id] for one in asked]))
        train = part.splits.count("train")  # which come first
        with tempfile.TemporaryDirectory() as folder:
            root, engines = Path(folder), self.engine
            may = Adaptive(self.alphas, args.allow_stop, args.allow_return, args.until)
            made = fill_adaptively(self.pool, asked, root / "grown", may, engines=engines).calls
            judged = fill_cache(self.pool, asked[train:], root / "whole", engines=engines).calls
            every = judged + fill_cache(self.pool, asked, root / "whole", engines=engines).calls
            ways = [self.reached(replace(self.selection, cache=root / "grown").run())]
        left = 1 - (made - judged) / (every - judged)
        calls = round(self.calls * train * (1 - left))  # nodes, as many as that share of all
        kept = [*range(max(1, calls // self.calls)), *range(train, len(part))]
        ways.append(self.reached(part.select(np.array(kept))))
        called = np.ones((len(part), part.layout.nodes), bool)
        called[:train] = at_random(part.select(np.arange(train)), calls, rng)
        ways.append(self.reached(with_holes(part, called)))
        budget = calls + self.calls * (len(part) - train)
        ways.append([bandit(part, self.test, alpha, budget, seed) for alpha in self.alphas])
        full = self.reached(part)
        differences = [
            float((mine - theirs).mean())
            for way in ways
            for mine, theirs in zip(way, full, strict=True)
        ]
        return [left, *differences]

    def compared(self, grown: Path) -> None:
        """Print what another cache of the same questions left out, and R less that of this one."""
        calls = []
        for root in (self.args.cache, grown):
            reader = CacheReader(root)
            judged = OpenTree(cache=root, allow_incomplete=True).run()
            rows = np.flatnonzero(np.array(judged.splits) != "train")
            found = calls_of(root, judged.select(rows))[2]
            kept = np.unique(
                np.concatenate([found.tree.key[:, 1:].ravel(), found.direct.key.ravel()])
            )
            made = reader.hashes(reader.sql("SELECT key FROM calls")["key"].combine_chunks())
            calls.append(np.setdiff1d(made, kept).size)
        left = 1 - calls[1] / calls[0]
        print(f"calls of the train fold alone: {calls[1]:,} of {calls[0]:,}, left out {left:.4f}")
        here, there = (
            self.reached(replace(self.selection, cache=root).run())
            for root in (self.args.cache, grown)
        )
        for alpha, full, less in zip(self.alphas, here, there, strict=True):
            low, high = interval(less - full, rng=np.random.default_rng(0))
            print(f"alpha {alpha:<8g} {(less - full).mean():+.4f} [{low:+.4f}, {high:+.4f}]")


def main() -> None:
    """Print a row a draw, and the means with their intervals over the draws."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--at", type=float, nargs="+", required=True)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--state", default=DEFAULT_VIEW, choices=sorted(STATE_VIEWS))
    parser.add_argument("--allow-stop", action="store_true")
    parser.add_argument("--allow-return", action="store_true")
    parser.add_argument("--until", type=float)
    parser.add_argument("--grown", type=Path)
    args = parser.parse_args()
    study, rows = Study(args), []
    gaps = ", ".join(f"{gap:.3f}" for gap in study.gaps)
    print(f"{versions()}; {args.cache}; {args.questions} questions, gaps {gaps}")
    if args.grown:
        study.compared(args.grown)
        return
    for seed in range(args.draws):
        rows.append(study.draw(seed))
        print(seed, " ".join(f"{value:+.4f}" for value in rows[-1]), flush=True)
    print("share of the calls that was left out; R less that of full trees, an alpha each:")
    labels = ["left out", *(f"{kind} {alpha:g}" for kind in KINDS for alpha in study.alphas)]
    for label, column in zip(labels, np.array(rows).T, strict=True):
        low, high = interval(column, rng=np.random.default_rng(0))
        print(f"{label:28} {column.mean():+.4f} [{low:+.4f}, {high:+.4f}]")


if __name__ == "__main__":
    main()
