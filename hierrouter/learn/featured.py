"""A policy over features of models, for pools that change.

In: a state, and what is known of the models of a pool (`known`). Out: a logit for each action, from
one scorer that all models share: it reads what came of this action on train questions whose state
looked alike, which is the model's skill and price there. Nothing in it belongs to one model, so it
routes to models that were added after the training. Not covered: the training, see `dynamic`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hierrouter.learn.known import Known
from hierrouter.learn.router import NEVER
from hierrouter.learn.states import States

SHARPNESS = 10.0  # at the start: how much more the most similar questions count
FEATURES = 4  # of an action: with the best and with random choices afterwards; less the pool's best


@dataclass(frozen=True)
class FeaturedShape:
    """What must be known to build the network; the size of the pool is not part of it.

    Attributes:
        hops: L.
        dim: length of an embedding.
        rank: length of the vectors that are compared.
        hidden: width of the scorer.
    """

    hops: int
    dim: int
    rank: int = 64
    hidden: int = 32


class FeaturedRouter(nn.Module):
    """Attention over the train questions, then a shared scorer of each action.

    Two states are alike by the cosine of their embeddings, after a learned linear map. At each
    state only the train questions at the same node are looked at: those that have been asked of
    the same models in the same order.
    """

    def __init__(self, shape: FeaturedShape) -> None:
        super().__init__()
        self.shape = shape
        self.projection = nn.Parameter(torch.empty(shape.rank, shape.dim))
        nn.init.orthogonal_(self.projection)
        self.sharpness = nn.Parameter(torch.full((shape.hops,), math.log(SHARPNESS)))
        self.scorer = nn.Sequential(
            nn.Linear(FEATURES + shape.hops, shape.hidden),
            nn.Tanh(),
            nn.Linear(shape.hidden, 1),
        )

    def forward(self, states: States, known: Known, itself: Tensor | None = None) -> Tensor:
        """Logits float32[queries, S, A] of whole trees.

        Args:
            states: the S states of one query after those of another.
            known: what is known of the models.
            itself: int64[queries], positions of the queries where they are those of `known`; they
                are not looked up themselves.
        """
        routes = known.fold.actions.routes
        by_query = (len(states.stage) // routes.states, routes.states, -1)
        embedding, legal = states.embedding.reshape(by_query), states.legal.reshape(by_query)
        logits = [
            self.at_state(embedding[:, state], state, stage, known, itself)
            for state, stage in enumerate(routes.depth()[: routes.states].tolist())
        ]
        return torch.stack(logits, dim=1).masked_fill(~legal, NEVER)

    def at_state(
        self, embedding: Tensor, state: int, stage: int, known: Known, itself: Tensor | None = None
    ) -> Tensor:
        """Logits float32[n, A] of queries at the same state, float32[n, dim]; none is masked."""
        attention = self._attention(embedding, known.embedding[state], stage, itself)
        expected = torch.einsum("nq,qaf->naf", attention, known.values[state])
        to_best = expected - expected.amax(dim=1, keepdim=True)
        stage_bits = torch.eye(self.shape.hops)[stage].expand(*expected.shape[:2], -1)
        logits: Tensor = self.scorer(torch.cat([expected, to_best, stage_bits], dim=2))[..., 0]
        return logits

    def _attention(
        self, embedding: Tensor, others: Tensor, stage: int, itself: Tensor | None
    ) -> Tensor:
        """float32[n, train queries], rows sum to 1."""
        here, there = (
            nn.functional.normalize(vectors @ self.projection.T, dim=1)
            for vectors in (embedding, others)
        )
        similarity = self.sharpness[stage].exp() * (here @ there.T)
        if itself is not None:
            similarity = similarity.scatter(1, itself[:, None], NEVER)
        return torch.softmax(similarity, dim=1)
