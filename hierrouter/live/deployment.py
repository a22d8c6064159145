"""A trained policy and the pool that it is to call.

In: a run of `train` or `sweep-alpha`. Out: its policy, ready to decide, and the pool, of which
nothing is loaded yet: what does not fit is refused before gigabytes are. Not covered: asking the
models (`router`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hierrouter.collect.backends import backend
from hierrouter.collect.encoders import load_encoder
from hierrouter.collect.generator import Engines
from hierrouter.learn.checkpoint import load_checkpoint
from hierrouter.live.bundle import (
    Bundle,
    load_bundle,
    refuse_stored_keys,
    require_pool,
    require_same_weights,
)
from hierrouter.live.loading import load_models
from hierrouter.live.models import LiveModel
from hierrouter.live.policy import LivePolicy
from hierrouter.pool import Pool
from hierrouter_cache.errors import InputError


@dataclass(frozen=True)
class Deployment:
    """What a run left for live questions.

    Attributes:
        policy: decides.
        pool: the models that it learned with, in the order of its actions.
        bundle: what stands beside the policy; None where nothing does.
    """

    policy: LivePolicy
    pool: Pool
    bundle: Bundle | None

    @classmethod
    def from_run(cls, run: str | Path, pool: Pool | None = None) -> Deployment:
        """The policy of a run, its encoder loaded.

        Args:
            run: folder of the run, or of one seed of a sweep.
            pool: call these models instead of those in the run's `live.json`; same names and order.

        Raises:
            InputError: there is no policy, or no pool, or they do not fit together; or the run
                wants a key from the environment.
            WorldError: the encoder cannot be loaded.
        """
        folder = Path(run)
        checkpoint = load_checkpoint(folder)
        bundle = load_bundle(folder if folder.is_dir() else folder.parent)
        if bundle and pool is None:
            refuse_stored_keys(bundle, folder)
            pool = bundle.pool
        if pool is None:
            raise InputError(f"no live.json, so no pool: {folder}; give the pool it learned with")
        require_pool(checkpoint.origin, pool)
        encoder = load_encoder(checkpoint.origin.encoder)
        policy = LivePolicy(checkpoint, encoder, bundle.ceilings if bundle else None)
        return cls(policy, pool, bundle)

    def load_models(self, engines: Engines = backend) -> dict[str, LiveModel]:
        """All models of the pool, by name.

        Args:
            engines: the backend of a name.

        Raises:
            InputError: a model has other weights than the one that the policy learned with.
            WorldError: a model cannot be loaded, or a server does not answer.
        """
        if self.bundle:
            require_same_weights(self.pool, self.bundle, engines)
        return load_models(self.pool, engines)
