"""From the log of a server to a better router: which questions, judged how, and is it better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hierrouter.evaluation.intervals import interval
from hierrouter.learning.training import TrainedRouter
from hierrouter.questions.answers import agreement_key
from hierrouter.questions.datasets import sample, with_folds
from hierrouter.questions.files import json_lines
from hierrouter.questions.query import Query
from hierrouter.replay.inspection import ask_cache
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.opening import training_tree
from hierrouter.replay.tree import Tree
from hierrouter.runs.run import Run
from hierrouter.runs.training import RunCallbacks, TrainingPlan
from hierrouter.serving.watching import LOG_VERSION, query_of
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

TRAFFIC = "traffic"  # name of the data set
CONSENSUS, THUMBS = "consensus", "thumbs"
DECLINED = ("", "unknown", "none", "i dont know", "i do not know", "not sure", "cannot say")
LIKED = 0.5  # the least quality of an answer that somebody liked
FEWEST = 20  # questions of the test fold, on which one can tell anything


@dataclass(frozen=True)
class Traffic:
    """The questions of a log.

    Attributes:
        queries: a sample of them, each once, with their folds; without references.
        liked: by question, the answers that somebody liked.
        lines: how many lines had a question.
        distinct: how many questions these were.
    """

    queries: list[Query]
    liked: Mapping[str, tuple[str, ...]]
    lines: int
    distinct: int


def traffic_of(log: Path, limit: int, seed: int) -> Traffic:
    """The questions of a server's log; failed ones, too, for they can be asked again.

    Raises InputError: the file cannot be read, has no questions, or a line of another version.

    `limit`: at most so many, drawn with `seed`, as are the folds.
    """
    liked: dict[str, list[str]] = {}
    lines = 0
    for number, line in json_lines(log):
        version = line.get("log", LOG_VERSION)
        if version != LOG_VERSION:
            raise InputError(
                f"a line of log version {version!r:.20}, this version reads {LOG_VERSION}: "
                f"{log}:{number}; take it out"
            )
        question = line.get("question")
        if not isinstance(question, str) or not question.strip():
            continue  # passed on as it came, so nobody could have routed it
        lines += 1
        good = liked.setdefault(question, [])
        quality, answer = line.get("quality"), line.get("answer")
        if isinstance(quality, int | float) and quality >= LIKED and isinstance(answer, str):
            good.append(answer)
    if not liked:
        raise InputError(f"no questions: {log}; give the log of `hierrouter serve --log`")
    queries = [Query(query_of(text), TRAFFIC, text, (), "") for text in liked]
    drawn = with_folds(sample(queries, limit, seed), seed)
    answers = {question: tuple(dict.fromkeys(given)) for question, given in liked.items()}
    return Traffic(drawn, answers, lines, len(queries))


def references_in(file: Path) -> dict[str, tuple[str, ...]]:
    """Reference answers by question, from JSON lines with `question` and `answers`.

    Raises InputError: the file cannot be read, or a line lacks one of them.
    """
    found: dict[str, tuple[str, ...]] = {}
    for number, line in json_lines(file):
        question, answers = line.get("question"), line.get("answers", line.get("answer"))
        given = [answers] if isinstance(answers, str) else answers
        if not isinstance(question, str) or not isinstance(given, list) or not given:
            raise InputError(f"no question with answers: {file}:{number}; give both")
        found[question] = tuple(map(str, given))
    return found


def consensus(cache: Path) -> dict[str, tuple[str, ...]]:
    """By id, the answer that most of the pool's calls agree on, each weighed by its confidence.

    The weight of a call is the probability of a token of its answer, on average, or 1 where its
    engine does not tell; what is said in other words counts as the same, see `agreement_key`, and
    who declines to answer has no vote.
    Raises CacheError: nothing is there.
    """
    rows = ask_cache(
        cache,
        "SELECT id, response, logprob_sum, logprob_tokens FROM nodes "  # noqa: S608 - our own name
        f"WHERE dataset = '{TRAFFIC}' ORDER BY id, route",
    ).to_pylist()
    votes: dict[str, dict[str, float]] = {}
    for row in rows:
        key = agreement_key(row["response"])
        if key in DECLINED:
            continue
        tokens = row["logprob_tokens"]
        weight = math.exp(row["logprob_sum"] / tokens) if tokens else 1.0
        mine = votes.setdefault(row["id"], {})
        mine[key] = mine.get(key, 0.0) + weight
    return {name: (max(mine, key=mine.__getitem__),) for name, mine in votes.items()}


def judged(traffic: Traffic, judge: str, cache: Path) -> list[Query]:
    """The queries of which a judge says what is right.

    Raises InputError: a file that cannot be read, or too few are judged.

    `judge`: `consensus`, `thumbs`, a judge's pool file, or one of references, see `references_in`;
    `cache`: with their calls.
    """
    if judge.endswith(".toml"):  # a model that needs no references
        return traffic.queries
    if judge == CONSENSUS:
        by_id = consensus(cache)
        found = {query.question: by_id.get(query.id, ()) for query in traffic.queries}
    else:
        found = dict(traffic.liked if judge == THUMBS else references_in(Path(judge)))
    known = [
        replace(query, answers=found[query.question])
        for query in traffic.queries
        if found.get(query.question)
    ]
    tested = sum(query.split == "test" for query in known)
    if tested < FEWEST:
        raise InputError(
            f"{judge} judges {len(known)} of {len(traffic.queries)} questions, {tested} of them in "
            f"test; at least {FEWEST} there can tell anything: log more, or raise --limit"
        )
    return known


@dataclass(frozen=True)
class Verdict:
    """Whether a router is better than the one in service.

    Attributes:
        old, new: mean R of both on the questions that none of them learned from.
        low, high: 95 % interval of the difference, new less old.
        queries: how many questions these are.
        alpha: of R.
    """

    old: float
    new: float
    low: float
    high: float
    queries: int
    alpha: float

    @property
    def is_better(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low > 0

    def __str__(self) -> str:
        """In a sentence."""
        word = "better" if self.is_better else "not shown to be better"
        return (
            f"{word} on {self.queries} questions of the test fold: R {self.new:.4f} instead of "
            f"{self.old:.4f} at alpha {self.alpha:g}, {self.new - self.old:+.4f} "
            f"[{self.low:+.4f}, {self.high:+.4f}]"
        )


def compared(old: TrainedRouter, new: TrainedRouter, fold: RouteTree) -> Verdict:
    """Both routers on every question of a fold, exactly.

    Raises InputError: one of them cannot read it.
    """
    alpha = old.alpha
    before, after = (router.outcome(fold).reward(alpha) for router in (old, new))
    low, high = interval(after - before, rng=np.random.default_rng(0))
    return Verdict(float(before.mean()), float(after.mean()), low, high, len(fold), alpha)


def opened(cache: Path, router: TrainedRouter, scorer: str, pool: str | None = None) -> Tree:
    """The traffic in a cache, as a router sees it; queries with failed calls are left out."""
    origin = router.origin
    return OpenTree(
        cache=cache,
        pool=pool,
        datasets=(TRAFFIC,),
        encoder=origin.encoder,
        state=origin.view,
        scorer=scorer,
        allow_incomplete=True,
        allow_return=router.objective.allow_return,
    ).run()


def retrained(tree: Tree, old: TrainedRouter, out: Path | None, callbacks: RunCallbacks) -> Run:
    """A router for the same alpha that may do the same, learned from the traffic."""
    origin, config = old.origin, replace(old.origin.config, keep_anyway=False)
    learns_from = training_tree(tree)
    plan = TrainingPlan(learns_from, old.objective, config, None, [origin.seed], out)
    return plan.run(callbacks)


def as_json(traffic: Traffic, judged_queries: int, run: Path, verdict: Verdict) -> dict[str, Any]:
    """What was done, as JSON values."""
    return {
        "lines": traffic.lines,
        "distinct": traffic.distinct,
        "sampled": len(traffic.queries),
        "judged": judged_queries,
        "run": str(run),
        "better": verdict.is_better,
        **asdict(verdict),
    }
