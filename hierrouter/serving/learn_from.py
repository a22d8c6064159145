"""Learning from a server's log: what can be asked for, and `hr.learn_from`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter.declarations import flags
from hierrouter.declarations.checks import check_path, check_text, each
from hierrouter.declarations.declaration import (
    Flag,
    OnNote,
    declaration,
    function_of,
    ignore_note,
    shown_name,
)
from hierrouter.paper import PAPER_SCORER, PAPER_SEED
from hierrouter.runs.folders import RUNS, Checkpoint, check_out, check_run, find_run
from hierrouter_cache.errors import InputError, WorldError

if TYPE_CHECKING:
    from hierrouter.collection.collection_plan import CollectionPlan
    from hierrouter.pools.pool import Pool
    from hierrouter.runs.training import RunCallbacks
    from hierrouter.serving.learn import Traffic, Verdict
    from hierrouter.serving.versions import Service

TRAFFIC_CACHE = Path("caches/traffic")
MAX_SAMPLED_QUESTIONS = 500

# Makes every missing call of a plan, and stores the responses in its cache.
MakeCalls = Callable[["CollectionPlan"], object]


def make_calls_quietly(plan: CollectionPlan) -> None:
    """Make every missing call without showing the progress.

    Raises:
        CacheError: the cache is damaged, in use or cannot be written.
        WorldError: a model, a server or the disk failed; what was committed is safe.
    """
    from hierrouter.collection.progress import Progress, require_answers

    require_answers(plan.run(Progress(), ignore_note))


@dataclass(frozen=True)
class LearningResult:
    """The result of learning from a log.

    Attributes:
        traffic: the questions of the log.
        judged_queries: how many of the sampled queries have references.
        candidate: folder of the new router.
        verdict: whether it is better than the one in service.
    """

    traffic: Traffic
    judged_queries: int
    candidate: Path
    verdict: Verdict

    def as_object(self) -> dict[str, Any]:
        """Return JSON values."""
        from hierrouter.serving.learn import as_json

        return as_json(self.traffic, self.judged_queries, self.candidate, self.verdict)


@declaration
class LearnFrom:
    """Learn a router from the questions of a log; see `learn_from` for the attributes."""

    log: Annotated[Path, Flag("", "LOG", "What `hierrouter serve --log` wrote.", check=check_path)]
    judge: Annotated[
        str,
        Flag(
            "--judge",
            "consensus|thumbs|JUDGE.toml|FILE",
            "What is right: what the pool's answers agree on; answers whose line has a good "
            "`quality`; a model, see docs/scorers.md; or JSON lines of question and answers.",
            check=check_text,
        ),
    ] = "consensus"
    checkpoint: Checkpoint = None
    alpha: flags.Alpha = None
    candidate: Annotated[
        Path | None,
        Flag(
            "--candidate", "NAME|DIR", "Judge this router instead of training one.", check=check_run
        ),
    ] = None
    pool: flags.PoolToUse = None
    allow_endpoints: flags.AllowEndpoints = ()
    encoder: flags.LiveEncoder = None
    cache: flags.Cache = TRAFFIC_CACHE
    limit: Annotated[
        int, Flag("--limit", "N", "Questions that are sampled, at most.", minimum=1)
    ] = MAX_SAMPLED_QUESTIONS
    scorer: flags.ScorerOfTraffic = PAPER_SCORER
    seed: flags.Seed = PAPER_SEED
    out: flags.Out = None
    allow_large: Annotated[bool, Flag("--yes", help="Start even a very large collection.")] = False

    def run(
        self,
        make_calls: MakeCalls = make_calls_quietly,
        on_note: OnNote = ignore_note,
        callbacks: RunCallbacks | None = None,
    ) -> LearningResult:
        """Collect, learn and compare; see `learn_from` for the errors.

        Args:
            make_calls: makes the missing calls of the sampled questions.
            on_note: receives how many questions the log has.
            callbacks: for the progress of the training.
        """
        from hierrouter.collection.collection_plan import CollectionPlan
        from hierrouter.replay.inspection import left_out_note
        from hierrouter.runs.bundle import encoder_commit
        from hierrouter.runs.checkpoint import router_at
        from hierrouter.runs.training import RunCallbacks
        from hierrouter.serving import learn
        from hierrouter.serving.open_router import live_encoder
        from hierrouter.serving.router import live_run
        from hierrouter.serving.versions import load_service

        check_out(self.out, "train")  # before calls are paid for
        traffic = learn.read_traffic(self.log, self.limit, self.seed, on_note)
        service = load_service(RUNS)
        in_service = self.checkpoint
        if in_service is None:
            in_service = Path(service.run) if service else live_run(self.alpha)
            if service:
                service.require_unchanged(service.run)
        old = router_at(in_service, self.alpha)
        if self.encoder is not None:
            live_encoder(self.encoder, old.origin.encoder)
        pool = self._pool_of(in_service)
        queries = traffic.queries
        needs_calls_first = self.judge == learn.CONSENSUS_JUDGE
        if not needs_calls_first:
            queries = learn.judge_queries(traffic, self.judge, self.cache)
        on_note(
            f"{traffic.lines:,} lines, {traffic.distinct:,} questions, {len(queries):,} taken, as "
            f"{in_service} is in service"
        )
        plan = CollectionPlan(pool, queries, self.cache)
        plan.check(self.allow_large)
        make_calls(plan)
        if needs_calls_first:
            queries = learn.judge_queries(traffic, self.judge, self.cache)
            # All calls are there by now; this stores the references.
            make_calls(CollectionPlan(pool, queries, self.cache))
        scorer = self.judge if self.judge.endswith(".toml") else self.scorer
        tree = learn.open_traffic(
            self.cache, old, scorer, encoder_commit=encoder_commit(in_service)
        )
        if tree.left_out:
            on_note(left_out_note(tree))
        candidate = self.candidate
        if candidate is None:
            candidate = learn.retrain(tree, old, self.out, callbacks or RunCallbacks()).folder
        new = router_at(candidate, old.alpha)
        verdict = learn.compare_routers(old, new, tree.split("test"))
        self._record(verdict, candidate, in_service, on_note)
        return LearningResult(traffic, len(queries), candidate, verdict)

    def _record(self, verdict: Verdict, candidate: Path, in_service: Path, on_note: OnNote) -> None:
        """Store the verdict; what was deployed while this job was at work stays.

        Args:
            verdict: on the candidate.
            candidate: folder of the new run.
            in_service: folder of the run that it was compared with.
            on_note: receives which run was deployed meanwhile.

        Raises:
            InputError: the state was damaged meanwhile; the candidate is there.
            WorldError: it cannot be written; the candidate is there.
        """
        from hierrouter.serving.versions import Service, change_service

        deployed = ""

        def with_verdict(present: Service | None) -> Service:
            nonlocal deployed
            refusal = "" if verdict.is_better else str(verdict)
            is_same = present is None or present.is_run(present.run, str(in_service))
            if present and not is_same and self.checkpoint is None:
                deployed = present.run
                refusal = f"compared with {in_service} alone, and {deployed} is in service by now"
            service = present or Service(str(in_service))
            return service.with_verdict(str(candidate), refusal)

        try:
            change_service(with_verdict, RUNS, str(candidate))
        except (InputError, WorldError) as error:
            raise type(error)(f"{error}; the new run is safe: {candidate}: {verdict}") from error
        if deployed:
            name = shown_name(LearnFrom, "candidate")
            on_note(
                f"{deployed} was deployed meanwhile, and stays in service; {candidate} was "
                f"compared with {in_service} alone: compare it by {name}"
            )

    def _pool_of(self, run: Path) -> Pool:
        """Return the models that a run's router calls, without reference models.

        Raises:
            InputError: the run has no pool, and none is given.
        """
        from hierrouter.engines.generator import at_commit, recorded_commits
        from hierrouter.pools.files import load_pool
        from hierrouter.pools.pool import with_each_model
        from hierrouter.runs import bundle

        if self.pool is not None:
            return replace(load_pool(self.pool), references=())
        stored = bundle.load_bundle(run)
        if stored is None:
            raise InputError(
                f"no live.json, so no pool: {run}; give {shown_name(LearnFrom, 'pool')}"
            )
        pool = replace(bundle.callable_pool(stored, run, self.allow_endpoints), references=())
        commits = recorded_commits(pool, stored.identities)
        return with_each_model(pool, lambda model: at_commit(model, commits))


@function_of(LearnFrom)
def learn_from(
    log: str | os.PathLike[str],
    *,
    judge: str | Path = "consensus",
    run: str | os.PathLike[str] | None = None,
    alpha: float | None = None,
    candidate: str | os.PathLike[str] | None = None,
    pool: str | Path | None = None,
    allow_endpoints: str | Sequence[str] = (),
    encoder: str | None = None,
    cache: str | Path = TRAFFIC_CACHE,
    limit: int = MAX_SAMPLED_QUESTIONS,
    scorer: str = PAPER_SCORER,
    seed: int = PAPER_SEED,
    out: str | Path | None = None,
    allow_large: bool = False,
    on_note: OnNote = ignore_note,
) -> LearningResult:
    """Collect a sample of the questions of a log, learn from it, and compare with the old router.

    The new router and the one in service are compared on questions that neither of them learned
    from. `deploy` refuses one that is not better, except as a shadow.

    Args:
        log: of `hierrouter serve --log`.
        judge: gives the references: "consensus" takes what the pool's calls agree on, "thumbs"
            answers whose line has a good `quality`; a judge's TOML file is a model; another file
            has JSON lines with `question` and `answers`.
        run: the run in service; default: the one that was deployed, else the newest.
        alpha: price of cost; default: the one the run was trained for.
        candidate: a run to compare, instead of training one.
        pool: name or TOML file; default: the pool in the run's `live.json`.
        allow_endpoints: hosts on this machine or a private network that `live.json` may name.
        encoder: the server that embeds, if the run reads a server's embeddings.
        cache: folder of the calls.
        limit: the largest number of questions.
        scorer: name of Q, or "module:function".
        seed: of the sample and the folds.
        out: folder of the new run; default: a new one below `runs`.
        allow_large: make more than 100,000 calls, or calls that take more than a day.
        on_note: called with how many questions the log has.

    Returns:
        The new run, and whether it is better.

    Raises:
        InputError: no such run, a bad line in the log, too few questions with references, or too
            many calls.
        CacheError: the cache is damaged, in use or cannot be written.
        WorldError: a model, a server or the disk failed; what was committed is safe.
    """
    return LearnFrom(
        log=Path(log),
        judge=str(judge),
        checkpoint=None if run is None else find_run(run),
        alpha=alpha,
        candidate=None if candidate is None else find_run(candidate),
        pool=None if pool is None else str(pool),
        allow_endpoints=each(check_text)(allow_endpoints, "allow_endpoints="),
        encoder=encoder,
        cache=Path(cache),
        limit=limit,
        scorer=scorer,
        seed=seed,
        out=None if out is None else Path(out),
        allow_large=allow_large,
    ).run(on_note=on_note)
