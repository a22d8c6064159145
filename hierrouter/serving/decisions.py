"""What a trained policy does next at the states of live questions, worked out for many together."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from hierrouter.engines.encoders import Encoder
from hierrouter.evaluation.outcome import Actions, greedy
from hierrouter.learning.deferral import Deferral
from hierrouter.learning.sweep import Policy
from hierrouter.learning.training import TrainedRouter
from hierrouter.pools.pool import ModelSpec
from hierrouter.replay.states import (
    SIGNALS,
    AnswerFeatures,
    LiveAnswer,
    confidence_flag_column,
    numbers_kind,
    state_numbers,
    state_texts,
)
from hierrouter_cache.errors import InputError

ROUTERS_KEPT = 64  # of a policy for every alpha; each is the size of the policy


@dataclass(frozen=True)
class Decision:
    """What to do at one state.

    Attributes:
        action: its number.
        propensity: the probability with which it is taken.
        chances: float64[A], the stochastic policy.
        order: all legal actions, the likeliest first.
        router_s: seconds it took to work out; 0 where they were not taken.
        expected: float64[A, 2], Q, and C from there on, of each action; None where nobody asked, or
            the router does not say.
        hands_to: name of the model that gets the question instead, because the policy is in doubt;
            "" where it is not.
    """

    action: int
    propensity: float
    chances: NDArray[np.float64]
    order: tuple[int, ...]
    router_s: float = 0.0
    expected: NDArray[np.float64] | None = None
    hands_to: str = ""


@dataclass(frozen=True)
class HandOver:
    """Who gets the questions that a policy doubts.

    Attributes:
        model: its direct call is made instead, and ends the route.
        rate: what a token in and a token out cost there, in money.
        deferrals: by the alpha that each was calibrated for.
    """

    model: ModelSpec
    rate: tuple[float, float]
    deferrals: Mapping[float, Deferral]

    def at(self, alpha: float) -> Deferral:
        """When that is; raises InputError: no threshold was found for this alpha."""
        if alpha in self.deferrals:
            return self.deferrals[alpha]
        known = ", ".join(f"{known:g}" for known in sorted(self.deferrals))
        raise InputError(
            f"no threshold to hand over at alpha {alpha:g}: --defer-to {self.model.name:.40} was "
            f"calibrated for {known}; ask for one of these"
        )


@dataclass(frozen=True)
class LiveState:
    """Where one question stands.

    Attributes:
        trained: who decides, of `LivePolicy.at`.
        question: as the models see it.
        answers: those so far, oldest first.
        cost: C so far, in money.
        rng: draws the action from the stochastic policy; None takes the greedy one.
        explained: whether it is wanted what each action is expected to bring.
    """

    trained: TrainedRouter
    question: str
    answers: tuple[LiveAnswer, ...] = ()
    cost: float = 0.0
    rng: np.random.Generator | None = None
    explained: bool = False

    @property
    def path(self) -> tuple[int, ...]:
        """The models called so far, by number."""
        return tuple(answer.model for answer in self.answers)


class LivePolicy:
    """One checkpoint, for every alpha that it can be asked for.

    Args:
        policy: the checkpoint.
        encoder: the one that it reads.

    Attributes:
        at: the router for an alpha. None is the alpha it was trained for; of a policy for every
            alpha, the smallest of its grid. Raises InputError where it was trained for another
            alpha alone.
        handing: who gets what it doubts; None where it decides everything itself.

    Raises:
        InputError: the encoder gives vectors of another length than the policy reads.
    """

    def __init__(self, policy: Policy, encoder: Encoder) -> None:
        self.origin = policy.origin
        self._policy = policy
        self._encoder = encoder
        self.handing: HandOver | None = None
        self.at: Callable[[float | None], TrainedRouter] = lru_cache(ROUTERS_KEPT)(self._at)
        trained = self.at(None)
        wanted, given = trained.dim, self.embed([LiveState(trained, "")]).shape[1]
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

    def embed(self, states: Sequence[LiveState]) -> NDArray[np.float32]:
        """float32[n, dim]: what the policy sees of each state."""
        view, vectors = self.origin.view, np.empty((len(states), 0), dtype=np.float32)
        texts = [
            text
            for state in states
            for text in state_texts(view, state.question, [said.text for said in state.answers])
        ]
        if texts:
            vectors = self._encoder.encode(texts).reshape(len(states), -1)
        actions, answers = self.at(None).actions, [state.answers for state in states]
        return np.concatenate([vectors, live_numbers(view, actions, answers)], axis=1)

    @property
    def must_tell(self) -> tuple[str, ...]:
        """The models that must say how sure they are of their answers, for the policy reads it."""
        models, trained = self.origin.models, self.at(None)
        if numbers_kind(self.origin.view) != SIGNALS or trained.actions.steps == 1:
            return ()
        places = (confidence_flag_column(len(models), number) for number in range(len(models)))
        return tuple(
            name for name, at in zip(models, places, strict=True) if trained.router.has_learned(at)
        )

    def decide(self, states: Sequence[LiveState], embedded: NDArray[np.float32]) -> list[Decision]:
        """The next action at each of some live states, worked out together.

        It is the greedy one, or one that is drawn where the state has a generator.

        `states`: any number; `embedded`: float32[n, dim], see `embed`.
        """
        decisions: dict[int, Decision] = {}
        for trained in {id(state.trained): state.trained for state in states}.values():
            places = [place for place, state in enumerate(states) if state.trained is trained]
            paths = [states[place].path for place in places]
            costs = [states[place].cost for place in places]
            chances = trained.decide_each(embedded[places], paths, costs)
            expected = None
            if any(states[place].explained for place in places):
                expected = trained.expected_each(embedded[places], paths, costs)
            doubts, name = np.zeros(len(places), np.bool_), ""
            if self.handing:
                doubts = self.handing.at(trained.alpha).defers(embedded[places], paths, costs)
                name = self.handing.model.name
            table = greedy(chances, self.origin.base_rate, trained.actions.returns)
            likeliest = table.argmax(axis=1).tolist()
            orders = np.argsort(-chances, axis=1, kind="stable").tolist()
            columns = zip(places, likeliest, chances, orders, strict=True)
            for at, (place, action, row, order) in enumerate(columns):
                propensity, rng = 1.0, states[place].rng
                if rng is not None:
                    action = int(rng.choice(len(row), p=row / row.sum()))
                    propensity = float(row[action])
                legal = tuple(action for action in order if row[action] > 0)
                brings = None if expected is None else expected[at]
                decisions[place] = Decision(
                    action, propensity, row, legal, 0.0, brings, name if doubts[at] else ""
                )
        return [decisions[place] for place in range(len(states))]

    def _at(self, alpha: float | None) -> TrainedRouter:
        policy = self._policy
        if not isinstance(policy, TrainedRouter):
            return policy.at(policy.alphas[0] if alpha is None else alpha)
        if alpha not in (None, policy.alpha):
            raise InputError(
                f"this policy was trained for alpha {policy.alpha:g} alone, asked for was "
                f"{alpha:g}; that of `sweep-alpha` answers any"
            )
        return policy


def live_numbers(
    view: str, actions: Actions, answers: Sequence[Sequence[LiveAnswer]]
) -> NDArray[np.float32]:
    """float32[n, width]: the numbers of some live states; of no width where the view has none.

    `view`: one of `STATE_VIEWS`; `actions`: what may be done; `answers`: those so far, of each
    state.
    """
    if (kind := numbers_kind(view)) is None:
        return np.empty((len(answers), 0), dtype=np.float32)
    return state_numbers(
        kind, actions.routes.models, AnswerFeatures.live(answers, actions.steps - 1)
    )


class DecisionBatcher:
    """Decides for all questions that wait, together.

    The encoder takes the threads it gets; the network is small, and has one to itself.

    Args:
        policy: decides.
    """

    def __init__(self, policy: LivePolicy) -> None:
        self._policy = policy
        self._thread = ThreadPoolExecutor(1, "router")
        self._libraries = ThreadpoolController()
        self._waiting: list[tuple[LiveState, asyncio.Future[Decision]]] = []
        self._work: asyncio.Task[None] | None = None

    async def decide(self, state: LiveState) -> Decision:
        """What to do at one state; raises Exception: whatever the policy raises."""
        future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._waiting.append((state, future))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._until_nobody_waits())
        return await future

    def close(self) -> None:
        """Let go of the thread."""
        self._thread.shutdown(wait=False)

    async def _until_nobody_waits(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            if not await self._settle(batch):  # one by one, to find out whose the error is
                for one in batch:
                    await self._settle([one])

    async def _settle(self, batch: Sequence[tuple[LiveState, asyncio.Future[Decision]]]) -> bool:
        """Give each its decision; whether it is known whose fault it is where that fails."""
        try:
            loop, states = asyncio.get_running_loop(), [state for state, _ in batch]
            decisions = await loop.run_in_executor(self._thread, self._made, states)
        except Exception as error:
            [(_, future), *others] = batch
            if not others and not future.done():
                future.set_exception(error)
            return not others
        for (_, future), decision in zip(batch, decisions, strict=True):
            if not future.done():
                future.set_result(decision)
        return True

    def _made(self, states: Sequence[LiveState]) -> list[Decision]:
        started = perf_counter()
        embedded = self._policy.embed(states)
        with self._libraries.limit(limits=1):
            decisions = self._policy.decide(states, embedded)
        seconds = perf_counter() - started
        return [replace(decision, router_s=seconds) for decision in decisions]
