"""A trained policy that answers live questions.

In: a checkpoint, ceilings. Out: for each alpha and limit a `TrainedRouter`, made once; the
decision at a live state. Not covered: calling models (`router`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hierrouter.collect.encoders import Encoder
from hierrouter.collect.views import state_texts
from hierrouter.evaluate.ceilings import Ceilings
from hierrouter.evaluate.exact import greedy
from hierrouter.learn.alpha_router import Policy
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.errors import InputError

ROUTERS_KEPT = 64  # of a policy for every alpha; each is the size of the policy
NO_CEILINGS = "max_cost needs live.json in the policy's folder, which `train` writes"


@dataclass(frozen=True)
class Decision:
    """What to do at one state.

    Attributes:
        action: its number.
        propensity: the probability with which it is taken.
        chances: float64[A], the stochastic policy.
        order: all legal actions, the likeliest first.
    """

    action: int
    propensity: float
    chances: NDArray[np.float64]
    order: tuple[int, ...]


@dataclass(frozen=True)
class LiveState:
    """Where one question stands.

    Attributes:
        trained: who decides, of `LivePolicy.at`.
        question: as the models see it.
        responses: the answers so far, oldest first.
        path: the models called so far, by number.
        cost: C so far, in price * token.
        prompts: int64[M], tokens of the next prompt as each model counts them; needed where there
            is a limit.
        rng: draws the action from the stochastic policy; None takes the greedy one.
    """

    trained: TrainedRouter
    question: str
    responses: tuple[str, ...] = ()
    path: tuple[int, ...] = ()
    cost: float = 0.0
    prompts: NDArray[np.int64] | None = None
    rng: np.random.Generator | None = None


class LivePolicy:
    """One checkpoint, for every alpha and limit that it can be asked for.

    Args:
        policy: the checkpoint.
        encoder: the one that it reads.
        ceilings: what calls cost at most; needed for a limit that it was not trained with.

    Raises:
        InputError: the encoder gives vectors of another length than the policy reads.
    """

    def __init__(self, policy: Policy, encoder: Encoder, ceilings: Ceilings | None = None) -> None:
        self.origin = policy.origin
        self._policy = policy
        self._encoder = encoder
        self._ceilings = ceilings
        self.at: Callable[[float | None, float | None], TrainedRouter]
        self.at = lru_cache(ROUTERS_KEPT)(self._at)
        trained = self.at(None, None)
        wanted, given = trained.router.shape.dim, self.embed([LiveState(trained, "")]).shape[1]
        if given != wanted:
            raise InputError(
                f"the policy reads embeddings of {wanted} numbers ({self.origin.encoder}), "
                f"the encoder gives {given}; train again with this encoder"
            )

    @property
    def alphas(self) -> tuple[float, ...]:
        """The alpha it was trained for; of a policy for every alpha, the grid it was chosen on."""
        policy = self._policy
        return (policy.alpha,) if isinstance(policy, TrainedRouter) else policy.alphas

    @property
    def any_alpha(self) -> bool:
        """Whether it can be asked for any alpha."""
        return not isinstance(self._policy, TrainedRouter)

    @property
    def action_names(self) -> tuple[str, ...]:
        """The name of each action: a model, or `model>stop`."""
        return self.at(None, None).actions.names(self.origin.models)

    def embed(self, states: Sequence[LiveState]) -> NDArray[np.float32]:
        """float32[n, dim]: what the policy sees of each state."""
        texts = [
            text
            for state in states
            for text in state_texts(self.origin.view, state.question, state.responses)
        ]
        if not texts:
            return np.empty((len(states), 0), dtype=np.float32)
        vectors: NDArray[np.float32] = self._encoder.encode(texts).reshape(len(states), -1)
        return vectors

    def decide(self, states: Sequence[LiveState], embedded: NDArray[np.float32]) -> list[Decision]:
        """The next action at each of some live states, worked out together.

        Args:
            states: any number.
            embedded: float32[n, dim], see `embed`.
        """
        decisions: dict[int, Decision] = {}
        for trained in {id(state.trained): state.trained for state in states}.values():
            places = [place for place, state in enumerate(states) if state.trained is trained]
            mine = [states[place] for place in places]
            chances = trained.decide_each(
                embedded[places],
                [state.path for state in mine],
                [state.cost for state in mine],
                [state.prompts for state in mine],
            )
            decisions.update(zip(places, self._decisions(mine, chances), strict=True))
        return [decisions[place] for place in range(len(states))]

    def _decisions(
        self, states: Sequence[LiveState], chances: NDArray[np.float64]
    ) -> Iterator[Decision]:
        """The greedy action of each state, or one that is drawn, where it has a generator."""
        likeliest = greedy(chances, self.origin.base_rate).argmax(axis=1).tolist()
        orders = np.argsort(-chances, axis=1, kind="stable").tolist()
        for state, action, row, order in zip(states, likeliest, chances, orders, strict=True):
            propensity = 1.0
            if state.rng is not None:
                action = int(state.rng.choice(len(row), p=row / row.sum()))
                propensity = float(row[action])
            yield Decision(action, propensity, row, tuple(a for a in order if row[a] > 0))

    def _at(self, alpha: float | None, max_cost: float | None) -> TrainedRouter:
        """The router for one alpha, with a limit on the cost of a query.

        Args:
            alpha: None is the one it was trained for; of a policy for every alpha, the smallest of
                its grid.
            max_cost: None is what it was trained with.

        Raises:
            InputError: it was trained for another alpha, or there are no ceilings.
        """
        policy = self._policy
        if not isinstance(policy, TrainedRouter):
            trained = policy.at(policy.alphas[0] if alpha is None else alpha)
        elif alpha in (None, policy.alpha):
            trained = policy
        else:
            raise InputError(
                f"this policy was trained for alpha {policy.alpha:g} alone, asked for was "
                f"{alpha:g}; that of `sweep-alpha` answers any"
            )
        if max_cost is None:
            return trained
        ceilings = trained.ceilings or self._ceilings
        if ceilings is None:
            raise InputError(NO_CEILINGS)
        objective = replace(trained.objective, max_cost=max_cost)
        return replace(trained, objective=objective, ceilings=ceilings)
