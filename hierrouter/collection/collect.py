"""Collecting every route of every query: what can be asked for, and `hr.collect`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter.declarations import flags
from hierrouter.declarations.checks import check_alphas, check_cost, check_draws, check_text, one_of
from hierrouter.declarations.declaration import Flag, OnNote, declaration, function_of, ignore_note
from hierrouter.paper import PAPER_SEED
from hierrouter_cache import CACHE
from hierrouter_cache.errors import InputError

if TYPE_CHECKING:
    from hierrouter.collection.adaptive import Adaptive
    from hierrouter.collection.collection_plan import CollectionPlan
    from hierrouter.pools.pool import Pool
    from hierrouter.questions.query import Query

TESTBED_DATASET = "testbed"
PAPER_POOL = "paper"
DATA = Path("data")  # of <dataset>.jsonl or .parquet files
ENGINES = ("local", "ray")


@declaration
class Collect:
    """Run every model sequence for each query and store what came back.

    `collect` explains the attributes. `adaptive` may be an `Adaptive` from Python; on the command
    line its settings are flags of their own.
    """

    datasets: flags.DatasetsToDraw = None
    pool: flags.PoolToUse = None
    cache: flags.Cache = CACHE
    limit: flags.LimitToDraw = None
    seed: flags.SeedToDraw = None
    draws: Annotated[
        int | str | None,
        Flag(
            "--draws",
            "K|A..B",
            "Responses of each call at a temperature above 0; A..B: more where they decide most.",
            check=check_draws,
        ),
    ] = None
    data: flags.Data = DATA
    group_by: flags.GroupBy = None
    encoder: flags.Encoder = None
    show_signature: flags.ShowSignature = False
    run_code: flags.RunCode = False
    no_references: Annotated[
        bool, Flag("--no-references", help="Without the pool's reference models, now and later.")
    ] = False
    adaptive: Annotated[
        Any,
        Flag("--adaptive", help="On train questions make only calls that may be best at --alphas."),
    ] = False
    alphas: Annotated[
        Sequence[float] | str | None,
        Flag(
            "--alphas", "A,B", "With --adaptive or --draws A..B: these count.", check=check_alphas
        ),
    ] = None
    until: Annotated[
        float | None, Flag("--until", "R", "With --adaptive: stop where more gains less than R.")
    ] = None
    allow_stop: flags.AllowStop = False
    allow_return: flags.AllowReturn = False
    max_spend: Annotated[
        float | None,
        Flag(
            "--max-spend",
            "X",
            "Begin no call once those in the cache have cost so much, in the pool's currency.",
            check=check_cost,
        ),
    ] = None
    allow_large: Annotated[bool, Flag("--yes", help="Start even a very large collection.")] = False
    backend: flags.Backend = None
    base_url: flags.BaseUrl = None
    api_key_env: flags.ApiKeyEnv = None
    timeout: flags.Timeout = None
    insecure: flags.Insecure = False
    allow_endpoints: flags.AllowEndpoints = ()
    device: flags.Device = None
    shard: Annotated[
        str | None,
        flags.machines(
            "--shard", "I/N", "Only share I of N of the queries, beside others.", check=check_text
        ),
    ] = None
    engine: Annotated[
        str,
        Flag(
            "--engine",
            "|".join(ENGINES),
            "Here, or on a Ray cluster.",
            flags.MACHINES,
            check=one_of("engine", ENGINES),
            completions=ENGINES,
        ),
    ] = "local"
    workers: Annotated[
        int | None,
        flags.machines(
            "--workers", "N", "Shards at work on Ray; default: one a GPU, or a core.", minimum=1
        ),
    ] = None
    ray_address: Annotated[
        str | None,
        flags.machines(
            "--ray-address", "ADDRESS", "auto, HOST:PORT or ray://HOST:PORT; else one is started."
        ),
    ] = None
    remote: Annotated[
        str | None,
        flags.machines("--remote", "URL", "Mirror of the cache: fetch first, copy parts."),
    ] = None

    def check(self) -> None:
        """Refuse whatever can be refused before a dataset or a cache is read.

        Raises:
            InputError: settings that contradict each other.
        """
        from hierrouter.collection.cluster import parse_ray_address
        from hierrouter.collection.plan import parse_shard

        on_ray = self.engine == "ray"
        if on_ray and self.shard:
            raise InputError("--shard and --engine ray: Ray makes shards itself; leave --shard out")
        if not on_ray and (self.workers or self.ray_address):
            raise InputError("--workers and --ray-address are for Ray; add --engine ray")
        if self.ray_address is not None:
            parse_ray_address(self.ray_address)
        if self.shard:
            parse_shard(self.shard)
        self.adaptive_request()

    def adaptive_request(self) -> Adaptive | None:
        """Return for which routers calls may matter; None if every call is to be made.

        Raises:
            InputError: settings of adaptive collection without `adaptive`, or no alphas with it.
        """
        from hierrouter.collection.adaptive import Adaptive

        if isinstance(self.adaptive, Adaptive):
            return self.adaptive
        if self.adaptive:
            alphas = self.alphas
            if alphas is None or isinstance(alphas, str):  # no list, or "auto"
                alphas = ()
            return Adaptive(tuple(alphas), self.allow_stop, self.allow_return, self.until)
        for_draws = isinstance(self.draws, str) and self.until is None and not self.allow_return
        if for_draws:
            return None
        if self.alphas or self.until is not None or self.allow_stop or self.allow_return:
            raise InputError(
                "--alphas, --until, --allow-stop and --allow-return are for --adaptive; add it"
            )
        return None

    def plan(self, on_note: OnNote = ignore_note, with_mirror: bool = True) -> CollectionPlan:
        """Return what is to be collected: what is asked for, or what the cache was last.

        Args:
            on_note: called with each line that a person should know.
            with_mirror: fetch what the mirror has first, if there is one.

        Raises:
            InputError: a name, a file or a number that does not fit.
            CacheError: the cache is damaged.
            WorldError: the mirror cannot be reached.
        """
        from hierrouter.collection.adaptive import FurtherDraws
        from hierrouter.collection.collection_plan import CollectionPlan
        from hierrouter.collection.plan import parse_shard, scorer_for
        from hierrouter.pools.files import override_pool, with_draws
        from hierrouter_cache.mirror import exchange
        from hierrouter_cache.stores import store_at

        if self.remote and with_mirror:
            mirror_note = exchange(self.cache, store_at(self.remote)).note
            if mirror_note:
                on_note(f"note: {mirror_note}")
        elif self.remote:
            on_note("note: a dry run does not look at the mirror; `hierrouter cache pull` does")
        pool, queries, datasets = self._pool_and_queries(on_note)
        pool = override_pool(
            pool,
            backend=self.backend,
            base_url=self.base_url,
            api_key_env=self.api_key_env,
            timeout_s=self.timeout,
            insecure=self.insecure or None,
            device=self.device,
        )
        if self.no_references:
            pool = replace(pool, references=())
        pool = with_draws(pool, self.draws)
        scorer = scorer_for(self.cache, pool, self.datasets or (), queries, self.group_by)
        pool = replace(pool, scorer=scorer)
        return CollectionPlan(
            pool=pool,
            queries=queries,
            cache=self.cache,
            shard=parse_shard(self.shard) if self.shard else None,
            on_ray=self.engine == "ray",
            workers=self.workers,
            address=self.ray_address,
            remote=self.remote,
            adaptive=self.adaptive_request(),
            choices=FurtherDraws(
                () if isinstance(self.alphas, str) else tuple(self.alphas or ()), self.allow_stop
            ),
            encoder=self.encoder,
            run_code=self.run_code,
            max_spend=self.max_spend,
            datasets=datasets,
        )

    def _pool_and_queries(self, on_note: OnNote) -> tuple[Pool, Sequence[Query], Mapping[str, str]]:
        """Return what is asked for, or what the cache was collected for last.

        Returns:
            The pool; the queries; and the commits of the hub's datasets that were drawn from.
        """
        from hierrouter.collection.plan import last_plan
        from hierrouter.pools.files import load_pool
        from hierrouter.pools.pool import refuse_stored_keys, restrict_hosts
        from hierrouter.questions.shipped import group_of

        stored = None
        datasets: Mapping[str, str] = {}
        if self.datasets is None and self.limit is None and self.seed is None:
            stored = last_plan(self.cache)
        if stored is not None and self.show_signature:
            raise InputError(
                f"{self.cache} has its questions: --show-signature; give --datasets with it"
            )
        if stored is not None and self.group_by is not None:
            raise InputError(f"{self.cache} has its questions: --group-by; give --datasets with it")
        if stored is None:
            names = list(self.datasets or [TESTBED_DATASET])
            pool = load_pool(self.pool or group_of(names) or PAPER_POOL)
            queries: Sequence[Query]
            queries, datasets = self._drawn_queries(names, on_note)
        else:
            on_note(f"collect: going on with what {self.cache} was collected for last")
            pool, queries = stored
            if self.pool:
                pool = load_pool(self.pool)
        if self.pool:
            unit_note = pool.unit_note()
            if unit_note:
                on_note(f"collect: {unit_note}")
        elif stored is not None:
            # The stored plan may come from other people, so it may use no key of this user's and
            # call no private host that the user has not named.
            if not (self.api_key_env or self.base_url):
                refuse_stored_keys(pool.all_models, "the stored plan", self.cache, collects=True)
            allowed = None if self.base_url else self.allow_endpoints
            pool = restrict_hosts(pool, allowed, f"the stored plan of {self.cache}")
        return pool, queries, datasets

    def _drawn_queries(
        self, names: list[str], on_note: OnNote
    ) -> tuple[tuple[Query, ...], Mapping[str, str]]:
        """Draw the queries of some datasets; note how many hold text that had to be repaired.

        Returns:
            The queries, and the commits of the hub's datasets that they are from.
        """
        from hierrouter.collection.plan import recorded_datasets
        from hierrouter.questions.datasets import draw_queries

        seed = PAPER_SEED if self.seed is None else self.seed
        recorded = recorded_datasets(self.cache)
        queries, datasets = draw_queries(
            names,
            self.limit,
            seed,
            self.data,
            on_note,
            recorded,
            self.show_signature,
            self.group_by,
        )
        replaced = sum("\N{REPLACEMENT CHARACTER}" in query.question for query in queries)
        if replaced:
            on_note(f"collect: U+FFFD in {replaced} questions: the file had invalid unicode there")
        return tuple(queries), datasets

    def run(
        self,
        on_progress: Callable[[str, int, int], None] | None = None,
        on_note: OnNote = ignore_note,
    ) -> Path:
        """Collect, embed and score; see `collect` for arguments and errors.

        Args:
            on_progress: called with (label of a model's level, calls done, calls of that level).
            on_note: called with each line that a person should know.

        Returns:
            The cache's folder.
        """
        from hierrouter.collection.progress import Meter, require_answers

        self.check()
        plan = self.plan(on_note)
        plan.check(self.allow_large)
        meter = Meter()

        def show(calls: int) -> None:
            if on_progress:
                on_progress(meter.label, meter.done, meter.of)

        def on_level(label: str, calls: int) -> None:
            meter.on_level(label, calls)
            show(0)

        meter.on_done = show
        progress = replace(meter.progress(on_note), on_level=on_level)
        require_answers(plan.run(progress, on_note))
        plan.finish(on_note=on_note)
        return self.cache


@function_of(Collect)
def collect(
    datasets: str | Sequence[str] | None = None,
    *,
    pool: str | Path | None = None,
    cache: str | Path = CACHE,
    limit: int | None = None,
    seed: int | None = None,
    draws: int | str | None = None,
    data: str | Path = DATA,
    group_by: str | None = None,
    encoder: str | None = None,
    show_signature: bool = False,
    run_code: bool = False,
    no_references: bool = False,
    backend: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    timeout: float | None = None,
    insecure: bool = False,
    allow_endpoints: Collection[str] = (),
    device: str | None = None,
    allow_large: bool = False,
    adaptive: Adaptive | bool | None = None,
    alphas: str | Sequence[float] | None = None,
    until: float | None = None,
    allow_stop: bool = False,
    allow_return: bool = False,
    max_spend: float | None = None,
    shard: str | None = None,
    engine: str = "local",
    workers: int | None = None,
    ray_address: str | None = None,
    remote: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    on_note: OnNote | None = None,
) -> Path:
    """Run every model sequence for each query and store what came back.

    Only calls that are not in the cache are made, so the same call goes on after any interruption.
    Without datasets, limit and seed it goes on with what the cache was collected for last.

    Args:
        datasets: names, or .jsonl or .parquet files, as a list or as "a,b".
        pool: name or TOML file; default: that of the questions' group, else "paper".
        cache: its folder, which is made if it does not exist.
        limit: at most so many queries of each dataset; default 300, of a file all.
        seed: of the draw of queries and of the folds; default 42.
        draws: responses of each call at a temperature above 0, to tell luck from skill; None is
            the pool's number, or that of the last collection. More can be added later: what is
            there is not asked for again. "2..8" makes 2 of each, and up to 8 where these leave open
            which call is the best.
        data: folder of files that replace the paper's datasets.
        group_by: the field of a file's questions, such as "kind", whose value takes the place of
            their dataset: routes are chosen, and figures are shown, for each value.
        encoder: embeds the states, so that the tree opens at once; None is the pool's, and if that
            cannot be had embedding waits for the training.
        show_signature: show the first line of the function that tests call below each question.
        run_code: whether to run the programs in answers, confined, to questions with tests; then
            their accuracy is known. See docs/security.md.
        no_references: leave the pool's reference models out, now and later.
        backend: of all models, instead of what the pool says: "transformers" or "openai".
        base_url: an OpenAI-compatible server that answers for all models.
        api_key_env: environment variable that holds its key.
        timeout: seconds for one call of a server.
        insecure: send the key over plain http to another machine.
        allow_endpoints: hosts on this machine or a private network that a stored pool may call.
        device: "auto", "cpu", "cuda", "cuda:N" or "balanced", of all models.
        allow_large: make more than 100,000 calls, or calls for more than a day.
        adaptive: make only calls that may be the best ones for the routers of `alphas`, or of an
            `Adaptive`; validation and test get complete trees.
        alphas: with `adaptive` or a range of `draws`, prices of cost of the routers; of `draws`
            default 0.
        until: with `adaptive`, ask no further query once more would gain less than this R.
        allow_stop: with `adaptive` or a range of `draws`, the routers may stop early.
        allow_return: with `adaptive`, the routers may return an earlier answer.
        max_spend: begin no call once those in the cache have cost so much, in the pool's currency.
        shard: "i/n": only the i-th of n shares of the queries, beside others.
        engine: "local", or "ray" for a Ray cluster.
        workers: shards at work on Ray; default: one for each GPU, or core.
        ray_address: of the cluster, "auto", "HOST:PORT" of its head, or "ray://HOST:PORT" from
            outside; None starts one.
        remote: URL of the cache's mirror: fetch from it first, and copy each part to it.
        progress: called with (label of a model's level, calls done, calls of that level).
        on_note: called with each line that a person should know.

    Returns:
        The cache's folder, for `open`.

    Raises:
        InputError: a name, a file or a number that does not fit.
        CacheError: the cache is damaged, in use or cannot be written.
        WorldError: a model, a server or the disk failed; what was committed is safe.
        Interrupted: `max_spend` is reached, and calls are missing.
    """
    collecting = Collect(
        datasets=datasets,
        pool=None if pool is None else str(pool),
        cache=Path(cache),
        limit=limit,
        seed=seed,
        draws=draws,
        data=Path(data),
        group_by=group_by,
        encoder=encoder,
        show_signature=show_signature,
        run_code=run_code,
        no_references=no_references,
        backend=backend,
        base_url=base_url,
        api_key_env=api_key_env,
        timeout=timeout,
        insecure=insecure,
        allow_endpoints=tuple(allow_endpoints),
        device=device,
        allow_large=allow_large,
        adaptive=adaptive or False,
        alphas=alphas,
        until=until,
        allow_stop=allow_stop,
        allow_return=allow_return,
        max_spend=max_spend,
        shard=shard,
        engine=engine,
        workers=workers,
        ray_address=ray_address,
        remote=remote,
    )
    return collecting.run(progress, on_note or ignore_note)
