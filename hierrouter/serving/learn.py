"""Learn a better router from the log of a server: sample its questions, judge them, and compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hierrouter.declarations.declaration import OnNote, ignore_note
from hierrouter.engines.encoder_names import with_commit
from hierrouter.evaluation.intervals import reward_interval
from hierrouter.learning.router import TrainedRouter
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
from hierrouter.serving.logs import read_lines
from hierrouter.serving.monitoring import LOG_VERSION, query_id
from hierrouter_cache.errors import InputError
from hierrouter_cache.reader import VISIBLE_SQL
from hierrouter_cache.tree import RouteTree

TRAFFIC_DATASET = "traffic"
# Names of judges; others are files.
CONSENSUS_JUDGE = "consensus"
THUMBS_JUDGE = "thumbs"
# Answers, as `agreement_key` has them, by which a model declines to answer.
DECLINING_ANSWERS = (
    *("", "unknown", "none"),
    *("i dont know", "i do not know", "not sure", "cannot say"),
)
MIN_LIKED_QUALITY = 0.5  # of an answer that somebody liked
MIN_TEST_QUERIES = 20  # fewer cannot show a difference between two routers


@dataclass(frozen=True)
class Traffic:
    """The questions of a log.

    Attributes:
        queries: a sample of them, each question once, with their folds; without references.
        liked: by question, the answers that somebody liked.
        lines: how many lines of the log have a question.
        distinct: how many distinct questions they have.
    """

    queries: list[Query]
    liked: Mapping[str, tuple[str, ...]]
    lines: int
    distinct: int


def read_traffic(log: Path, limit: int, seed: int, on_note: OnNote = ignore_note) -> Traffic:
    """Read the questions of a server's log, including failed ones: they can be asked again.

    Args:
        log: its file of JSON lines.
        limit: the largest number of questions; they are drawn from all.
        seed: of the sample and of the folds.
        on_note: receives a message if lines are left out: bad ones, and those of another version.

    Raises:
        InputError: the file cannot be read, has no questions, or has many bad lines.
    """
    liked: dict[str, list[str]] = {}

    def read(line: Mapping[str, Any], where: str) -> tuple[str, str | None] | None:
        version = line.get("log", LOG_VERSION)
        if version != LOG_VERSION:
            raise InputError(
                f"a line of log version {version!r:.20}, this version reads {LOG_VERSION}: "
                f"{where}; take it out"
            )
        question = line.get("question")
        if not isinstance(question, str) or not question.strip():
            return None  # a request that could not be routed
        quality = line.get("quality")
        answer = line.get("answer")
        is_liked = isinstance(quality, int | float) and quality >= MIN_LIKED_QUALITY
        return question, answer if is_liked and isinstance(answer, str) else None

    lines = read_lines(log, read, on_note)
    for question, liked_answer in lines:
        answers = liked.setdefault(question, [])
        if liked_answer is not None:
            answers.append(liked_answer)
    if not liked:
        raise InputError(f"no questions: {log}; give the log of `hierrouter serve --log`")
    queries = [Query(query_id(text), TRAFFIC_DATASET, text, (), "") for text in liked]
    return Traffic(
        queries=with_folds(sample(queries, limit, seed), seed),
        liked={question: tuple(dict.fromkeys(answers)) for question, answers in liked.items()},
        lines=len(lines),
        distinct=len(queries),
    )


def read_references(file: Path) -> dict[str, tuple[str, ...]]:
    """Read reference answers by question, from JSON lines with `question` and `answers`.

    Raises:
        InputError: the file cannot be read, or a line lacks one of them.
    """
    references: dict[str, tuple[str, ...]] = {}
    for number, line in json_lines(file):
        question = line.get("question")
        answers = line.get("answers", line.get("answer"))
        if isinstance(answers, str):
            answers = [answers]
        if not isinstance(question, str) or not isinstance(answers, list) or not answers:
            raise InputError(f"no question with answers: {file}:{number}; give both")
        references[question] = tuple(map(str, answers))
    return references


def consensus(cache: Path) -> dict[str, tuple[str, ...]]:
    """Find the answer of each query that most of the pool's calls agree on.

    Calls are weighted by their confidence: the probability of a token of the answer, on average
    (geometric mean), or 1 if the engine does not report it. Answers that differ only in wording
    count as the same, see `agreement_key`; a call that declines to answer has no vote.

    Args:
        cache: with the calls.

    Returns:
        By the id of the query.

    Raises:
        CacheError: there is no cache, or it is damaged.
    """
    rows = ask_cache(
        cache,
        f"SELECT id, {VISIBLE_SQL} AS response, logprob_sum, logprob_tokens "  # noqa: S608 - a constant
        f"FROM nodes WHERE dataset = '{TRAFFIC_DATASET}' ORDER BY id, route",
    ).to_pylist()
    votes: dict[str, dict[str, float]] = {}
    for row in rows:
        key = agreement_key(row["response"])
        if key in DECLINING_ANSWERS:
            continue
        tokens = row["logprob_tokens"]
        weight = math.exp(row["logprob_sum"] / tokens) if tokens else 1.0
        query_votes = votes.setdefault(row["id"], {})
        query_votes[key] = query_votes.get(key, 0.0) + weight
    return {name: (max(by_answer, key=by_answer.__getitem__),) for name, by_answer in votes.items()}


def judge_queries(traffic: Traffic, judge: str, cache: Path) -> list[Query]:
    """Give queries the references of a judge, and leave out those for which it has none.

    Args:
        traffic: with the queries.
        judge: `consensus`, `thumbs`, a judge's pool file (which needs no references), or a file of
            references, see `read_references`.
        cache: with the calls of the queries.

    Raises:
        InputError: a file that cannot be read, or too few queries have references.
    """
    if judge.endswith(".toml"):
        return traffic.queries
    if judge == CONSENSUS_JUDGE:
        by_id = consensus(cache)
        references = {query.question: by_id.get(query.id, ()) for query in traffic.queries}
    elif judge == THUMBS_JUDGE:
        references = dict(traffic.liked)
    else:
        references = read_references(Path(judge))
    queries = [
        replace(query, answers=references[query.question])
        for query in traffic.queries
        if references.get(query.question)
    ]
    test_queries = sum(query.split == "test" for query in queries)
    if test_queries < MIN_TEST_QUERIES:
        raise InputError(
            f"{judge} judges {len(queries)} of {len(traffic.queries)} questions, {test_queries} of "
            f"them in test; at least {MIN_TEST_QUERIES} there can tell anything: log more, or "
            "raise --limit"
        )
    return queries


@dataclass(frozen=True)
class Verdict:
    """Whether a new router is better than the one in service.

    Attributes:
        old: mean R of the router in service, on questions that neither router learned from.
        new: mean R of the new router, on the same questions.
        low: low end of the 95 % interval of the difference, new less old.
        high: high end of that interval.
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
        """Whether the interval of the difference is above 0."""
        return self.low > 0

    def __str__(self) -> str:
        """Return the verdict as a sentence."""
        word = "better" if self.is_better else "not shown to be better"
        return (
            f"{word} on {self.queries} questions of the test fold: R {self.new:.4f} instead of "
            f"{self.old:.4f} at alpha {self.alpha:g}, {self.new - self.old:+.4f} "
            f"[{self.low:+.4f}, {self.high:+.4f}]"
        )


def compare_routers(old: TrainedRouter, new: TrainedRouter, fold: RouteTree) -> Verdict:
    """Compare two routers on every question of a fold, exactly, at the alpha of the old one.

    Args:
        old: the router in service.
        new: the router that may replace it.
        fold: its questions.

    Raises:
        InputError: one of the routers cannot read the fold.
    """
    alpha = old.alpha
    old_outcome = old.outcome(fold)
    new_outcome = new.outcome(fold)
    low, high = reward_interval(new_outcome, old_outcome, alpha, fold.datasets)
    return Verdict(
        old=float(old_outcome.reward(alpha).mean()),
        new=float(new_outcome.reward(alpha).mean()),
        low=low,
        high=high,
        queries=len(fold),
        alpha=alpha,
    )


def open_traffic(
    cache: Path,
    router: TrainedRouter,
    scorer: str,
    pool: str | None = None,
    encoder_commit: str = "",
) -> Tree:
    """Open the traffic in a cache as a router reads it; queries with failed calls are left out.

    Args:
        cache: with the calls.
        router: the one in service.
        scorer: of the responses.
        pool: that the cache was collected for; None is that of its newest plan.
        encoder_commit: of the router's encoder on the hub; "" if it is not known.
    """
    origin = router.origin
    return OpenTree(
        cache=cache,
        pool=pool,
        datasets=(TRAFFIC_DATASET,),
        encoder=with_commit(origin.encoder, encoder_commit),
        state=origin.view,
        scorer=scorer,
        allow_incomplete=True,
        allow_return=router.objective.allow_return,
    ).run()


def retrain(tree: Tree, old: TrainedRouter, out: Path | None, callbacks: RunCallbacks) -> Run:
    """Train a router on the traffic, with the objective and the settings of the old one.

    Args:
        tree: of the traffic.
        old: the router in service.
        out: folder of the run; None chooses one.
        callbacks: for the progress.
    """
    config = replace(old.origin.config, keep_anyway=False)
    plan = TrainingPlan(training_tree(tree), old.objective, config, None, [old.origin.seed], out)
    return plan.run(callbacks)


def as_json(traffic: Traffic, judged_queries: int, run: Path, verdict: Verdict) -> dict[str, Any]:
    """Return what was learned from a log, as JSON values.

    Args:
        traffic: of the log.
        judged_queries: how many of its queries have references.
        run: folder of the new router.
        verdict: on it.
    """
    return {
        "lines": traffic.lines,
        "distinct": traffic.distinct,
        "sampled": len(traffic.queries),
        "judged": judged_queries,
        "run": str(run),
        "better": verdict.is_better,
        **asdict(verdict),
    }
