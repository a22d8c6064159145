"""A router that has been trained, and where it comes from.

In: a `Router` with its weights. Out: action probabilities on every state of a tree or on a single
live state, and the exact outcome on a tree. Not covered: files, see `checkpoint`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hierrouter.evaluate.exact import greedy, policy_outcome
from hierrouter.evaluate.outcome import Outcome
from hierrouter.learn.config import PPOConfig
from hierrouter.learn.router import Router, action_probabilities, state_table
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class TrainedRouter:
    """The weights of the best iterate and everything needed to use and to reproduce them.

    Attributes:
        router: the network, frozen.
        models: M names; action a calls `models[a]`.
        base_rate: M costs per token at the time of training; ties go to the cheaper model.
        encoder: name of the encoder whose embeddings the router reads.
        alpha: cost penalty it was trained for.
        config: settings of the training.
        seed: seed of the training.
        fingerprint: of the tree it was trained on.
        history: exact greedy R on the validation fold at each evaluation.
        version: of hierrouter, at the time of training.
    """

    router: Router
    models: tuple[str, ...]
    base_rate: tuple[float, ...]
    encoder: str
    alpha: float
    config: PPOConfig
    seed: int
    fingerprint: str
    history: tuple[float, ...]
    version: str

    def probabilities(self, tree: RouteTree) -> NDArray[np.float64]:
        """float64[queries, states, M]: the stochastic policy at every state.

        Raises:
            InputError: the tree is not one this router can read.
        """
        self.check_matches(tree)
        table = action_probabilities(self.router, state_table(tree))
        return table.reshape(len(tree), tree.routes.states, len(self.models))

    def outcome(self, tree: RouteTree, name: str = "hierrouter") -> Outcome:
        """The exact outcome of the greedy policy on every query of `tree`.

        Raises:
            InputError: the tree is not one this router can read.
        """
        table = greedy(self.probabilities(tree), tree.base_rate)
        return policy_outcome(tree, table, name, "router")

    @torch.no_grad()
    def decide(
        self, embedding: NDArray[np.float32], stage: int, cost: float
    ) -> NDArray[np.float64]:
        """float64[M]: the stochastic policy at one live state.

        Args:
            embedding: float32[dim], the encoder's vector of the context.
            stage: how many models have been called, 0 to L - 1.
            cost: C so far, in base_rate * token.
        """
        logits, _ = self.router(
            torch.from_numpy(np.asarray(embedding, dtype=np.float32))[None],
            torch.tensor([stage]),
            torch.tensor([cost], dtype=torch.float32),
        )
        probabilities: NDArray[np.float64] = torch.softmax(logits[0].double(), dim=0).numpy()
        return probabilities

    def choose(self, embedding: NDArray[np.float32], stage: int, cost: float) -> int:
        """The model to call next, by number: the greedy policy at one live state."""
        table = greedy(self.decide(embedding, stage, cost), np.array(self.base_rate))
        return int(table.argmax())

    def check_matches(self, tree: RouteTree) -> None:
        """Make sure that this router can read the states of `tree`.

        Raises:
            InputError: other models, another number of hops or another length of embedding.
        """
        remedy = "train again on this cache, or give the checkpoint that belongs to it"
        if self.models != tree.models:
            raise InputError(
                f"checkpoint is for other models: {len(self.models)} models"
                f" ({', '.join(self.models)}), the cache has {len(tree.models)}"
                f" ({', '.join(tree.models)}); {remedy}"
            )
        if self.router.shape.hops != tree.hops:
            raise InputError(
                f"checkpoint is for {self.router.shape.hops} hops,"
                f" the cache has {tree.hops}; {remedy}"
            )
        dim = tree.dim
        if self.router.shape.dim != dim:
            raise InputError(
                f"checkpoint reads embeddings of {self.router.shape.dim} numbers"
                f" ({self.encoder}), the cache has {dim}; {remedy}"
            )
