"""Let a hierrouter server choose which deployment of a LiteLLM router answers.

This file imports nothing of hierrouter, so that it can be copied beside a gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
from litellm.types.router import CustomRoutingStrategyBase


class HierRouterStrategy(CustomRoutingStrategyBase):  # type: ignore[misc]
    """Pick the deployment that `POST /v1/decide` names: the first call of a route.

    Keys, limits, retries, cooldowns, tools and streams stay with the gateway: deployments that it
    has in cooldown are named as unavailable, so that each retry goes to another one. A group of
    deployments needs one deployment for each model of the pool, with the model's name as its
    `model_info.id`.

    Args:
        router: of LiteLLM, whose `register_plugin` takes this strategy.
        url: of `hierrouter serve`.
        key: of the server; None sends none.
        model: name that the server is asked for, such as `hierrouter@0.02`.
        otherwise: id of the deployment if the server does not decide: it is down, the request
            cannot be routed, or it names a deployment in cooldown. None makes that an error.
        timeout_s: for a decision.
    """

    def __init__(
        self,
        router: Any,
        url: str = "http://127.0.0.1:8100",
        key: str | None = None,
        model: str = "hierrouter",
        otherwise: str | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self._router = router
        self._model = model
        self._otherwise = otherwise
        settings: dict[str, Any] = {
            "base_url": url,
            "headers": {"Authorization": f"Bearer {key}"} if key else {},
            "timeout": timeout_s,
        }
        self._client = httpx.Client(**settings)
        self._async_client = httpx.AsyncClient(**settings)

    async def async_get_available_deployment(
        self, model: str, messages: list[dict[str, Any]] | None = None, *_: Any, **__: Any
    ) -> Any:
        """Return the deployment that is to answer; see `get_available_deployment`."""
        cooling = await self._router.cooldown_cache.async_get_active_cooldowns(
            model_ids=self._ids(model), parent_otel_span=None
        )
        unavailable = [deployment for deployment, _ in cooling]
        try:
            body = self._body(messages, unavailable)
            reply = await self._async_client.post("/v1/decide", json=body)
            return self._deployment(model, reply, unavailable)
        except (httpx.HTTPError, LookupError, ValueError, TypeError) as error:
            return self._fallback(model, error, unavailable)

    def get_available_deployment(
        self, model: str, messages: list[dict[str, Any]] | None = None, *_: Any, **__: Any
    ) -> Any:
        """Return the deployment that is to answer.

        Args:
            model: name of the group of deployments.
            messages: of the chat.

        Raises:
            RuntimeError: the server does not decide, and there is no `otherwise`.
        """
        cooling = self._router.cooldown_cache.get_active_cooldowns(
            model_ids=self._ids(model), parent_otel_span=None
        )
        unavailable = [deployment for deployment, _ in cooling]
        try:
            reply = self._client.post("/v1/decide", json=self._body(messages, unavailable))
            return self._deployment(model, reply, unavailable)
        except (httpx.HTTPError, LookupError, ValueError, TypeError) as error:
            return self._fallback(model, error, unavailable)

    def _body(
        self, messages: list[dict[str, Any]] | None, unavailable: list[str]
    ) -> dict[str, Any]:
        return {"model": self._model, "messages": messages or [], "unavailable": unavailable}

    def _deployment(self, group: str, reply: httpx.Response, unavailable: list[str]) -> Any:
        decision = reply.json()
        if reply.is_error:
            # A proxy between may answer in other words than the server.
            error = decision.get("error") if isinstance(decision, dict) else decision
            raise ValueError(error.get("message") if isinstance(error, dict) else str(error))
        name = decision["call"]
        if name in unavailable:
            raise LookupError(f"{name} is in cooldown")
        return self._deployment_with_id(group, name)

    def _ids(self, group: str) -> list[str]:
        """Return the ids of the deployments of a group."""
        deployments = self._router.get_model_list(model_name=group) or ()
        ids = [(deployment.get("model_info") or {}).get("id") for deployment in deployments]
        return [name for name in ids if name]

    def _deployment_with_id(self, group: str, name: str) -> Any:
        for deployment in self._router.get_model_list(model_name=group) or ():
            info: Mapping[str, Any] = deployment.get("model_info") or {}
            if info.get("id") == name:
                return deployment
        raise LookupError(f"no deployment of {group} has model_info.id {name}")

    def _fallback(self, group: str, error: Exception, unavailable: list[str]) -> Any:
        if self._otherwise is None:
            reason = str(error) or type(error).__name__
            raise RuntimeError(f"hierrouter did not choose: {reason}") from error
        others = [name for name in self._ids(group) if name not in unavailable]
        if self._otherwise in unavailable and others:
            return self._deployment_with_id(group, others[0])
        return self._deployment_with_id(group, self._otherwise)
