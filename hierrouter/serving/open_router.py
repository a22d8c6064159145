"""Opening a live router: what the commands can ask for. In Python it is `hr.Router`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter.declarations import flags
from hierrouter.declarations.declaration import (
    OnNote,
    declaration,
    ignore_note,
    shown_name,
    shown_value,
)
from hierrouter.runs.folders import Checkpoint
from hierrouter_cache import CACHE
from hierrouter_cache.errors import InputError

if TYPE_CHECKING:
    from hierrouter.engines.encoders import Encoder
    from hierrouter.serving.router import Router

# Called with the name of a stage of the work; the stage lasts as long as the block.
OnStage = Callable[[str], AbstractContextManager[object]]


def ignore_stage(name: str) -> AbstractContextManager[object]:
    """Do nothing at a stage: the `OnStage` of a job without progress bars."""
    return nullcontext()


@declaration
class OpenRouter:
    """Open the router of a run with the models that it calls.

    Attributes:
        checkpoint: the run; None is the newest of `train` for this alpha, else the newest sweep.
        pool: name or file; None is the pool in the run's `live.json`.
        allow_endpoints: hosts on this machine or a private network that `live.json` may name.
        encoder: the server that embeds, if the run reads a server's embeddings; see `load_encoder`.
        alpha: that the router will be asked for first; None is the one it was trained for.
        defer_to: name of the model that gets questions in doubt; None defers none.
        defer_share: of the questions to defer at most; see `Router.defer_to`.
        cache: with the questions that deferrals are calibrated on.
        scorer: that this cache is opened with.
    """

    checkpoint: Checkpoint = None
    pool: flags.LivePool = None
    allow_endpoints: flags.AllowEndpoints = ()
    encoder: flags.LiveEncoder = None
    alpha: flags.Alpha = None
    defer_to: flags.DeferTo = None
    defer_share: flags.DeferShare = None
    cache: flags.Cache = CACHE
    scorer: flags.Scorer = None

    def check(self) -> None:
        """Refuse whatever can be refused before anything is loaded.

        Raises:
            InputError: a share to defer, and no model to defer to.
        """
        if self.defer_share is not None and self.defer_to is None:
            share = shown_value(shown_name(OpenRouter, "defer_share"), self.defer_share)
            model = shown_value(shown_name(OpenRouter, "defer_to"), "MODEL")
            raise InputError(f"no model to hand over to: {share}; give {model}")

    @property
    def run_folder(self) -> Path:
        """Folder of the run.

        Raises:
            InputError: there is none that can answer live questions.
        """
        from hierrouter.serving.router import live_run

        return self.checkpoint or live_run(self.alpha)

    def run(
        self,
        on_note: OnNote = ignore_note,
        on_stage: OnStage = ignore_stage,
        load_models: bool = True,
    ) -> Router:
        """Open the router.

        Args:
            on_note: receives which models are called, and when questions are deferred.
            on_stage: called with the stages of loading.
            load_models: False gives a router that decides but calls no model.

        Raises:
            CacheError: the cache lacks what deferrals are calibrated on.
            InputError: there is no such run, or run, pool, encoder and alpha do not fit together;
                see `Router`.
            WorldError: a model or the encoder cannot be loaded, or a server does not answer.
        """
        self.check()
        with on_stage("start"):
            run = self.run_folder
        with on_stage("load router"):
            router = self.unloaded(run)
            router.policy.at(self.alpha)  # refuse the alpha before any model is loaded
            remark = router.policy.remark(self.alpha)
            if remark:
                on_note(remark)
        self.defer(router, [self.alpha], on_note)
        if load_models:
            with on_stage("load models"):
                router.load_models()
        on_note(called_models_note(run, router))
        return router

    def unloaded(self, run: Path) -> Router:
        """Return the router of a run, without its models.

        Raises:
            InputError: the router reads another encoder; or see `Router`.
        """
        from hierrouter.pools.files import load_pool
        from hierrouter.runs.checkpoint import load_checkpoint
        from hierrouter.serving.router import Router

        pool = load_pool(self.pool) if self.pool else None
        encoder = None
        if self.encoder:
            loaded = live_encoder(self.encoder, load_checkpoint(run).origin.encoder)
            encoder = (loaded.description, loaded)
        return Router(run, pool, load=False, allow_endpoints=self.allow_endpoints, encoder=encoder)

    def defer(self, router: Router, alphas: Iterable[float | None], on_note: OnNote) -> None:
        """Let a router defer questions in doubt, if there is a model to defer to.

        Args:
            router: of the run, before its models are loaded.
            alphas: that it will be asked for.
            on_note: receives how many questions are deferred.

        Raises:
            CacheError: see `Router.defer_to`.
            InputError: see `Router.defer_to`.
        """
        if self.defer_to is None:
            return
        router.defer_to(
            self.defer_to,
            self.cache,
            alphas,
            share=self.defer_share,
            scorer=self.scorer,
            pool=self.pool,
            allow_endpoints=self.allow_endpoints,
        )
        on_note(self._deferral_note(router))

    def _deferral_note(self, router: Router) -> str:
        live_deferral = router.policy.deferral
        assert live_deferral
        shares = []
        for alpha, deferral in live_deferral.deferrals.items():
            if deferral.point:
                shares.append(f"{deferral.point.share:.1%} at alpha {alpha:g}")
        endpoint = live_deferral.model.endpoint
        where = f"{self.defer_to} at {endpoint.base_url}" if endpoint else self.defer_to
        # All are calibrated on the same fold.
        fold = next(iter(live_deferral.deferrals.values())).chosen_on
        return (
            f"hands over to {where} in doubt; of the {fold} questions in {self.cache} that is "
            f"{', '.join(shares)}"
        )


def live_encoder(name: str, expected: str) -> Encoder:
    """Return the server's encoder that a user names for a router.

    Args:
        name: as the user gave it, see `load_encoder`.
        expected: description of the encoder that the router reads.

    Raises:
        InputError: it is another one.
        WorldError: its server does not answer.
    """
    from hierrouter.engines.encoders import SERVED_PREFIX, load_encoder

    loaded = load_encoder(name)
    if loaded.description != expected:
        flag = shown_name(OpenRouter, "encoder")
        is_served = expected.startswith(SERVED_PREFIX)
        remedy = "give the server of that model" if is_served else "leave it out"
        raise InputError(f"the router reads {expected}, not {loaded.description}: {flag}; {remedy}")
    return loaded


def called_models_note(run: Path, router: Router) -> str:
    """Describe a router: its run and the models that it calls, with the addresses of servers."""
    from hierrouter.runs.bundle import other_prices
    from hierrouter.runs.freshness import run_status

    models = []
    for spec in router.pool.models:
        address = f" at {spec.endpoint.base_url}" if spec.endpoint else ""
        models.append(f"{spec.name}{address}")
    description = run_status(run)
    suffix = f" ({description})" if description else ""
    note = f"{run}{suffix}, {', '.join(models)}"
    differing = [name for name, _, _ in other_prices(router.policy.origin, router.pool)]
    if differing:
        # Prices of `train --price` or `--prices`, which the pool in live.json does not have.
        note += f"; C at the prices it learned with, not the pool's: {', '.join(differing)}"
    return note
