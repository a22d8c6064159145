"""Route live questions through the models of a pool.

In: a run of `train` or `sweep-alpha`. Out: `Router`: a question in, the route, its answer and what
it cost out, hop by hop as in the tree that the policy learned from. Models, encoder and policy are
loaded at the start; what is missing is an error then, never another model's answer later. Not
covered: HTTP, see the command `serve`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from threading import Lock
from types import TracebackType

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from hierrouter.collect.backends import backend
from hierrouter.collect.generator import Engines
from hierrouter.live.bundle import require_pool
from hierrouter.live.conversation import Message, question_of
from hierrouter.live.deployment import Deployment
from hierrouter.live.models import LiveModel
from hierrouter.live.policy import Decision, LivePolicy
from hierrouter.live.routed import Routed
from hierrouter.live.together import Together
from hierrouter.live.way import Asked, Follow, Way
from hierrouter.pool import Pool

__all__ = ["Asked", "Follow", "Router"]


class Router:
    """A trained policy with its models at hand.

    Use it in one event loop by `aroute`, or without one by `route`. Close it, or use it in a
    `with` block.

    Args:
        run: of `train`, or the folder of a run of `train` or `sweep-alpha`, or of one seed of a
            sweep.
        pool: call these models instead of those in the run's `live.json`; same names and order.
        engines: the backend of a name.

    Raises:
        InputError: there is no policy, or no pool, or they do not fit together; or a model has
            other weights than the one that the policy learned with.
        WorldError: a model or the encoder cannot be loaded, or a server does not answer.
    """

    policy: LivePolicy
    pool: Pool

    def __init__(
        self,
        run: str | os.PathLike[str],
        pool: Pool | None = None,
        engines: Engines = backend,
    ) -> None:
        found = Deployment.from_run(Path(run), pool)
        self._take(found.policy, found.pool, found.load_models(engines))

    @classmethod
    def of(cls, policy: LivePolicy, pool: Pool, models: Mapping[str, LiveModel]) -> Router:
        """One of parts that are there already.

        Args:
            policy: decides.
            pool: the models that it learned with, in the order of its actions.
            models: the same, ready to be asked, by name; without them it can only tell what it
                would do first.

        Raises:
            InputError: the pool is not the policy's.
        """
        router = cls.__new__(cls)
        router._take(policy, pool, models)
        return router

    def _take(self, policy: LivePolicy, pool: Pool, models: Mapping[str, LiveModel]) -> None:
        require_pool(policy.origin, pool)
        self.policy = policy
        self.pool = pool
        self._models = models
        self._deciding = Together(policy)
        self._lock = Lock()
        self._loop = ExitStack()
        self._portal: BlockingPortal | None = None

    async def aroute(
        self,
        messages: str | Sequence[Message],
        asked: Asked | None = None,
        follow: Follow | None = None,
    ) -> Routed:
        """Answer a question.

        Args:
            messages: the question, or messages as OpenAI's chat completions have them.
            asked: how it is to be routed.
            follow: told what happens on the way.

        Raises:
            InputError: no question, or an alpha or limit that the policy cannot be asked for.
            CallFailed: a model gave no answer.
        """
        return await self._way(messages, asked, follow).to_its_end()

    def route(
        self,
        messages: str | Sequence[Message],
        asked: Asked | None = None,
        follow: Follow | None = None,
    ) -> Routed:
        """As `aroute`, from a thread without an event loop; any number of threads may call it."""
        with self._lock:
            if self._portal is None:
                self._portal = self._loop.enter_context(
                    start_blocking_portal("asyncio", name="router")
                )
        return self._portal.call(self.aroute, messages, asked, follow)

    async def first(
        self, messages: str | Sequence[Message], asked: Asked | None = None
    ) -> Decision:
        """What the policy would do first; no model is called."""
        return (await self._way(messages, asked, None).decide())[0]

    async def aclose(self) -> None:
        """Let go of all models; one that fails at it keeps none of the others."""
        async with AsyncExitStack() as held:
            held.callback(self._deciding.close)
            for model in self._models.values():
                held.push_async_callback(model.close)

    def close(self) -> None:
        """As `aclose`, for who used `route`."""
        with self._lock:
            portal, self._portal = self._portal, None
            with self._loop:
                if portal is None:
                    anyio.run(self.aclose)
                else:
                    portal.call(self.aclose)

    def __enter__(self) -> Router:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _way(
        self, messages: str | Sequence[Message], asked: Asked | None, follow: Follow | None
    ) -> Way:
        asked = asked or Asked()
        return Way(
            question_of(messages),
            self.policy.at(asked.alpha, asked.max_cost),
            asked,
            follow or Follow(),
            self.pool,
            self._models,
            self._deciding,
        )
