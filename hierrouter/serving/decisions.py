"""Decisions of a trained policy at the states of live questions, made in batches."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from hierrouter.engines.encoders import Encoder, EndpointEncoder
from hierrouter.engines.generator import Response
from hierrouter.evaluation.outcome import Actions, greedy
from hierrouter.learning.deferral import Deferral
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.sweep import Policy
from hierrouter.pools.pool import ModelSpec
from hierrouter.replay.states import (
    SIGNALS,
    AnswerFeatures,
    confidence_flag_column,
    numbers_kind,
    state_numbers,
    state_texts,
)
from hierrouter.serving.results import Call
from hierrouter_cache.errors import InputError, WorldError

LOG = logging.getLogger(__name__)
# Routers that a policy for every alpha keeps, one an alpha; each is as large as the policy.
MAX_CACHED_ROUTERS = 64


@dataclass(frozen=True)
class Decision:
    """The action at one state, and how it was decided.

    Attributes:
        action: its number.
        propensity: the probability with which it is taken.
        chances: float64[A], the stochastic policy.
        order: all legal actions, the likeliest first; see `TrainedRouter.rank_each`.
        router_s: seconds that the decision took; 0 if they were not measured.
        expected: float64[A, 2], Q, and C from there on, of each action; None if nobody asked, or if
            the router predicts neither.
        best_probability: how probable the router says it is that no other action leads to a higher
            R; None if nobody asked, the router does not predict it, or the action is not the one
            that the router would choose.
        deferred_to: name of the model that the question is deferred to, because the policy is in
            doubt; "" if it is not in doubt.
        unavailable: names of the models that were left out, because they cannot be called.
    """

    action: int
    propensity: float
    chances: NDArray[np.float64]
    order: tuple[int, ...]
    router_s: float = 0.0
    expected: NDArray[np.float64] | None = None
    best_probability: float | None = None
    deferred_to: str = ""
    unavailable: tuple[str, ...] = ()


class EncoderDown(WorldError):
    """The encoder's server gives no embeddings, so that no policy can decide."""


@dataclass(frozen=True)
class LiveDeferral:
    """The model that questions in doubt are deferred to, and when a policy is in doubt.

    Attributes:
        model: its direct call is made instead of the policy's action, and ends the route.
        rate: cost of one of its tokens in and of one token out, in money; then perhaps further
            prices, see `hierrouter_cache.tree.rate_table`.
        deferrals: the calibrated thresholds, by alpha.
    """

    model: ModelSpec
    rate: tuple[float, ...]
    deferrals: Mapping[float, Deferral]

    def at(self, alpha: float) -> Deferral:
        """Return the deferral that was calibrated for an alpha.

        Raises:
            InputError: none was calibrated for this alpha.
        """
        if alpha in self.deferrals:
            return self.deferrals[alpha]
        calibrated = ", ".join(f"{calibrated:g}" for calibrated in sorted(self.deferrals))
        raise InputError(
            f"no threshold to hand over at alpha {alpha:g}: --defer-to {self.model.name:.40} was "
            f"calibrated for {calibrated}; ask for one of these"
        )


@dataclass(frozen=True)
class LiveState:
    """The state of one live question.

    Attributes:
        trained: the router that decides, from `LivePolicy.at`.
        question: as the models see it.
        calls: those so far, oldest first.
        cost: C so far, in money.
        rng: draws the action from the stochastic policy; None takes the greedy one.
        explain: whether to predict Q and C of each action as well.
        group: data set or label of the question; "" if it is unknown.
    """

    trained: TrainedRouter
    question: str
    calls: tuple[Call, ...] = ()
    cost: float = 0.0
    rng: np.random.Generator | None = None
    explain: bool = False
    group: str = ""

    @property
    def path(self) -> tuple[int, ...]:
        """The models called so far, by number."""
        models = self.trained.origin.models
        return tuple(models.index(call.model) for call in self.calls)

    @property
    def responses(self) -> list[Response]:
        """The responses so far, oldest first."""
        return [call.response for call in self.calls]


class LivePolicy:
    """One checkpoint, for every alpha that it can be asked for.

    Args:
        policy: the checkpoint.
        encoder: the one that it reads.

    Attributes:
        at: returns the router for an alpha. None is the alpha it was trained for; of a policy for
            every alpha, the smallest of its grid. It raises InputError if the policy was trained
            for another alpha only.
        deferral: the model that gets questions in doubt; None if the policy decides all itself.

    Raises:
        InputError: the encoder gives vectors of another length than the policy reads.
    """

    def __init__(self, policy: Policy, encoder: Encoder) -> None:
        if isinstance(encoder, EndpointEncoder):
            encoder.be_live()
        self.origin = policy.origin
        self._policy = policy
        self._encoder = encoder
        self.deferral: LiveDeferral | None = None
        self.at: Callable[[float | None], TrainedRouter] = lru_cache(MAX_CACHED_ROUTERS)(self._at)
        trained = self.at(None)
        dim = self.embed([LiveState(trained, "")]).shape[1]
        if dim != trained.dim:
            raise InputError(
                f"the policy reads embeddings of {trained.dim} numbers ({self.origin.encoder}), "
                f"the encoder gives {dim}; train again with this encoder"
            )

    @property
    def alphas(self) -> tuple[float, ...]:
        """The alpha it was trained for; of a policy for every alpha, the grid it was chosen on."""
        return self._policy.alphas

    @property
    def any_alpha(self) -> bool:
        """Whether it can be asked for any alpha."""
        return not isinstance(self._policy, TrainedRouter)

    def remark(self, alpha: float | None) -> str:
        """What a user should know about the router for an alpha; see `TrainedSweep.remark`."""
        return "" if alpha is None else self._policy.remark(alpha)

    @property
    def encoder_fault(self) -> str | None:
        """Why the encoder's server cannot be called; "" if it can; None without a server."""
        return self._encoder.fault if isinstance(self._encoder, EndpointEncoder) else None

    async def check_encoder(self) -> None:
        """If the encoder's server has failed and its rest is over, try whether it answers again."""
        if isinstance(self._encoder, EndpointEncoder):
            await asyncio.to_thread(self._encoder.check)

    def embed(self, states: Sequence[LiveState]) -> NDArray[np.float32]:
        """Return what the policy reads of each state: float32[n, dim]."""
        view = self.origin.view
        texts: list[str] = []
        for state in states:
            texts += state_texts(
                view, state.question, [response.complete_text for response in state.responses]
            )
        vectors = np.empty((len(states), 0), dtype=np.float32)
        if texts:
            try:
                vectors = self._encoder.encode(texts).reshape(len(states), -1)
            except WorldError as error:  # its message names the server, which clients need not know
                LOG.warning("no question can be routed: %s", error)
                raise EncoderDown("no question can be routed now: no embeddings") from error
        numbers = live_numbers(
            view,
            self.at(None).actions,
            [state.path for state in states],
            [state.responses for state in states],
        )
        return np.concatenate([vectors, numbers], axis=1)

    @property
    def confidence_models(self) -> tuple[str, ...]:
        """Names of the models whose confidence the policy reads; their engines must report it."""
        models = self.origin.models
        trained = self.at(None)
        if numbers_kind(self.origin.view) != SIGNALS or trained.actions.steps == 1:
            return ()
        return tuple(
            name
            for number, name in enumerate(models)
            if trained.router.has_learned(confidence_flag_column(len(models), number))
        )

    def decide(self, states: Sequence[LiveState], embedded: NDArray[np.float32]) -> list[Decision]:
        """Decide the next action at each of some live states.

        It is the greedy action, or a drawn one if the state has a generator.

        Args:
            states: any number of them.
            embedded: float32[n, dim], from `embed`.
        """
        decisions: dict[int, Decision] = {}
        # States with the same router go through its network together.
        routers = {id(state.trained): state.trained for state in states}
        for trained in routers.values():
            rows = [row for row, state in enumerate(states) if state.trained is trained]
            group = self._decide_group(trained, [states[row] for row in rows], embedded[rows])
            decisions.update(zip(rows, group, strict=True))
        return [decisions[row] for row in range(len(states))]

    def _decide_group(
        self, trained: TrainedRouter, states: Sequence[LiveState], embedded: NDArray[np.float32]
    ) -> list[Decision]:
        """Decide at states that have the same router."""
        batch = trained.live_states(
            embedded,
            [state.path for state in states],
            [state.cost for state in states],
            [state.group for state in states],
            self._roots(trained, states, embedded),
        )
        chances = trained.decide_each(batch)
        table = greedy(chances, self.origin.base_rate, trained.actions.returns)
        likeliest = table.argmax(axis=1)
        expected = None
        best_probability = None
        if any(state.explain for state in states):
            best_probability = trained.choice_probability_each(batch, likeliest)
            expected = trained.router.expected(batch)
        is_in_doubt = np.zeros(len(states), np.bool_)
        deferral_model = ""
        if self.deferral:
            is_in_doubt = self.deferral.at(trained.alpha).defers(batch)
            deferral_model = self.deferral.model.name
        orders = trained.rank_each(batch, chances)
        decisions = []
        for row, state in enumerate(states):
            action = int(likeliest[row])
            propensity = 1.0
            if state.rng is not None:
                action = int(
                    state.rng.choice(chances.shape[1], p=chances[row] / chances[row].sum())
                )
                propensity = float(chances[row, action])
            probability = None
            if best_probability is not None and action == likeliest[row]:
                probability = float(best_probability[row])
            decision = Decision(
                action=action,
                propensity=propensity,
                chances=chances[row],
                order=orders[row],
                expected=None if expected is None else expected[row],
                best_probability=probability,
                deferred_to=deferral_model if is_in_doubt[row] else "",
            )
            decisions.append(decision)
        return decisions

    def _roots(
        self, trained: TrainedRouter, states: Sequence[LiveState], embedded: NDArray[np.float32]
    ) -> NDArray[np.float32] | None:
        """What the policy reads of each question before any answer; None if it reads states alone.

        Args:
            trained: decides at all of the states.
            states: the states.
            embedded: float32[n, dim], of the states.
        """
        later = [row for row, state in enumerate(states) if state.calls]
        if not trained.router.reads_question or not later:
            return None
        roots = embedded.copy()
        roots[later] = self.embed([LiveState(trained, states[row].question) for row in later])
        return roots

    def _at(self, alpha: float | None) -> TrainedRouter:
        if not self.any_alpha and alpha not in (None, *self.alphas):
            raise InputError(
                f"this policy was trained for alpha {self.alphas[0]:g} alone, asked for was "
                f"{alpha:g}; that of `sweep-alpha` answers any"
            )
        return self._policy.for_alpha(alpha)


def live_numbers(
    view: str,
    actions: Actions,
    paths: Sequence[Sequence[int]],
    responses: Sequence[Sequence[Response]],
) -> NDArray[np.float32]:
    """Return the numbers of some live states: float32[n, width]; width 0 if the view has none.

    Args:
        view: one of `STATE_VIEWS`.
        actions: what the policy may do.
        paths: of each state, the numbers of the models called so far.
        responses: of each state, what these models returned.
    """
    kind = numbers_kind(view)
    if kind is None:
        return np.empty((len(paths), 0), dtype=np.float32)
    features = AnswerFeatures.live(paths, responses, actions.steps - 1)
    return state_numbers(kind, actions.layout.call_actions, features)


class DecisionBatcher:
    """Decides for all waiting questions together, in a separate thread.

    The encoder may use all threads; the network is small and runs on one.

    Args:
        policy: decides.
    """

    def __init__(self, policy: LivePolicy) -> None:
        self._policy = policy
        self._executor = ThreadPoolExecutor(1, "router")
        self._thread_pools = ThreadpoolController()
        self._waiting: list[tuple[LiveState, asyncio.Future[Decision]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def decide(self, state: LiveState) -> Decision:
        """Decide at one state.

        Raises:
            Exception: whatever the policy raises.
        """
        future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._waiting.append((state, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    def close(self) -> None:
        """End the thread after its current batch."""
        self._executor.shutdown(wait=False)

    async def _work(self) -> None:
        """Decide for batches until no question waits."""
        while self._waiting:
            batch = self._waiting
            self._waiting = []
            if not await self._settle(batch):
                # The batch failed: decide one by one, so that only the cause of the error gets it.
                for request in batch:
                    await self._settle([request])

    async def _settle(self, batch: Sequence[tuple[LiveState, asyncio.Future[Decision]]]) -> bool:
        """Set the result of each future, or the error of a single one.

        Returns:
            Whether all futures are settled: False if a batch of several states failed.
        """
        states = [state for state, _ in batch]
        loop = asyncio.get_running_loop()
        try:
            decisions = await loop.run_in_executor(self._executor, self._decide, states)
        except Exception as error:
            if len(batch) > 1:
                return False
            [(_, future)] = batch
            if not future.done():
                future.set_exception(error)
            return True
        for (_, future), decision in zip(batch, decisions, strict=True):
            if not future.done():  # it is done if its client has left
                future.set_result(decision)
        return True

    def _decide(self, states: Sequence[LiveState]) -> list[Decision]:
        started = perf_counter()
        embedded = self._policy.embed(states)
        with self._thread_pools.limit(limits=1):
            decisions = self._policy.decide(states, embedded)
        seconds = perf_counter() - started
        return [replace(decision, router_s=seconds) for decision in decisions]
