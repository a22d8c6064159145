"""Where a trained policy comes from.

In: the tree, the configuration and the seed of a training. Out: `Origin`, which refuses trees that
its policy cannot read. Not covered: what was trained for (`objective`), files (`description`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter import __version__
from hierrouter.learn.config import TrainConfig
from hierrouter_cache.errors import InputError
from hierrouter_cache.routes import Routes
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Origin:
    """Where a policy comes from: what it reads, calls, and was trained with.

    Attributes:
        models: M names; action a calls `models[a % M]`.
        hops: L.
        rate: M pairs, cost of a token in and of a token out at the time of training.
        encoder: name of the encoder whose embeddings are read.
        view: which texts these are of, see `hierrouter.collect.views`.
        config: settings of the training.
        seed: seed of the training.
        fingerprint: of the tree it was trained on.
        version: of hierrouter, at the time of training.
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
        )

    @property
    def routes(self) -> Routes:
        """The shape of the trees that the policy walks."""
        return Routes(len(self.models), self.hops)

    @property
    def base_rate(self) -> NDArray[np.float64]:
        """float64[M]: cost per token, the mean of both rates; ties go to the cheaper model."""
        mean: NDArray[np.float64] = np.array(self.rate).mean(axis=1)
        return mean

    def check_matches(self, tree: RouteTree, dim: int) -> None:
        """Make sure that a policy of this origin can read the states of `tree`.

        Args:
            dim: length of the embeddings that it reads.

        Raises:
            InputError: other models, hops, view, encoder or length of embedding.
        """
        remedy = "train again on this cache, or give the checkpoint that belongs to it"
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
