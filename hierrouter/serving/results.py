"""The result of a routed question: its calls, what each model returned, and which response counts.

`RouteResult` is the one record of an answered question. The line of the request log and the body of
an HTTP answer are views of it: both are made from `RouteResult.as_object`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hierrouter.engines.generator import Response
from hierrouter.tables import significant
from hierrouter_cache.layout import route_name

# The calls that failed before another action took their place: (model, reason) of each.
FailedCalls = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call on a route, made by the router or by its client.

    Attributes:
        model: name of the model that was called.
        response: what the model returned.
        model_s: seconds until the response was complete; 0 if they were not measured.
    """

    model: str
    response: Response
    model_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Hop(Call):
    """A call that the router made, and the decision that led to it.

    Attributes:
        propensity: probability with which the policy takes this action here: 1 if it is greedy;
            None if it took another action because a model gave no response.
        chances: probability of each action under the stochastic policy: model by model, then model
            by model with stop if the policy may stop, then answer by answer if it may return one.
        stops: whether the policy chose to end with this call; False if it had to end anyway.
        cost: of the call, in money.
        router_s: seconds that encoder and policy took to decide, for this question and for those
            decided in the same batch. Waiting for the batch is counted neither here nor in
            `model_s`.
        instead_of: the models that were called first and failed, with the reasons.
        is_deferred: whether this call is a deferral: the policy was in doubt. Its propensity is 1,
            because deferrals are not drawn.
        visible: what the next call and the policy read of the response, if that is not all of it.
        unavailable: the models that the decision left out, because they could not be called.
    """

    propensity: float | None
    chances: tuple[float, ...]
    stops: bool
    cost: float
    router_s: float
    instead_of: FailedCalls = ()
    is_deferred: bool = False
    visible: str | None = None
    unavailable: tuple[str, ...] = ()

    def as_object(self) -> dict[str, Any]:
        """Return JSON values, with the keys of logged episodes (`hierrouter.serving.logs`)."""
        response = self.response
        step: dict[str, Any] = {
            "model": self.model,
            "propensity": self.propensity,
            "chances": list(self.chances),
            "stop": self.stops,
            "cost": significant(self.cost),
            "tokens_in": response.tokens_in,
            "tokens_out": response.tokens_out,
            "finish_reason": response.finish_reason,
            "router_s": round(self.router_s, 6),
            "model_s": round(self.model_s, 6),
            "response": response.complete_text,
        }
        if self.visible is not None:
            step["visible"] = self.visible
        if confidence := response.confidence:
            step["logprob_sum"] = round(confidence.total, 6)
            step["logprob_min"] = round(confidence.lowest, 6)
            step["logprob_tokens"] = confidence.tokens
        if response.tool_calls:
            step["tool_calls"] = list(response.tool_calls)
        if self.is_deferred:
            step["deferred"] = True
        if self.instead_of:
            step["instead_of"] = _failed_objects(self.instead_of)
        if self.unavailable:
            step["unavailable"] = list(self.unavailable)
        return step


@dataclass(frozen=True)
class ReturnAction:
    """The policy's choice to end with an answer that was given earlier on the route.

    Attributes:
        answer: number of the answer; 1 is the response of the first call.
        propensity, chances, router_s, instead_of: as in a `Hop`.
    """

    answer: int
    propensity: float | None
    chances: tuple[float, ...]
    router_s: float
    instead_of: FailedCalls = ()

    def as_object(self) -> dict[str, Any]:
        """Return JSON values, with the keys of a `Hop` where both have them."""
        action: dict[str, Any] = {
            "answer": self.answer,
            "propensity": self.propensity,
            "chances": list(self.chances),
            "router_s": round(self.router_s, 6),
        }
        if self.instead_of:
            action["instead_of"] = _failed_objects(self.instead_of)
        return action


def _failed_objects(failed_calls: FailedCalls) -> list[dict[str, str]]:
    return [{"model": model, "reason": reason} for model, reason in failed_calls]


@dataclass(frozen=True)
class RouteResult:
    """An answered question and the calls that were made for it.

    Attributes:
        question: as the models saw it.
        alpha: the cost penalty that it was routed for.
        hops: the calls, 1 to L.
        returned: the choice of an earlier answer; None if the last call gave the answer.
        group: data set or label of the question; "" if none was given.
        is_unknown_group: whether the router has routes for groups, and none for this one: it took
            that of all questions.
    """

    question: str
    alpha: float
    hops: tuple[Hop, ...]
    returned: ReturnAction | None = None
    group: str = ""
    is_unknown_group: bool = False

    @property
    def route(self) -> str:
        """The models in order, `first>second`, or `>first`."""
        return route_name([hop.model for hop in self.hops])

    @property
    def answer_hop(self) -> Hop:
        """The call whose response is the answer: the last one unless an earlier one was chosen."""
        return self.hops[self.returned.answer - 1 if self.returned else -1]

    @property
    def answer(self) -> str:
        """The text that is returned to the user."""
        return self.answer_hop.response.text

    @property
    def deferred_to(self) -> str:
        """Name of the model that the question was deferred to; "" without a deferral."""
        return self.hops[-1].model if self.hops[-1].is_deferred else ""

    @property
    def tokens_in(self) -> int:
        """Prompt tokens of all calls."""
        return sum(hop.response.tokens_in for hop in self.hops)

    @property
    def tokens_out(self) -> int:
        """Generated tokens of all calls."""
        return sum(hop.response.tokens_out for hop in self.hops)

    @property
    def cost(self) -> float:
        """C of all calls, in money."""
        return sum(hop.cost for hop in self.hops)

    def as_object(self) -> dict[str, Any]:
        """Return JSON values: the route, its cost, and each of its calls."""
        result: dict[str, Any] = {
            "question": self.question,
            "answer": self.answer,
            "route": self.route,
            "alpha": self.alpha,
            "cost": significant(self.cost),
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "finish_reason": self.answer_hop.response.finish_reason,
            "steps": [hop.as_object() for hop in self.hops],
        }
        if self.returned:
            result["returned"] = self.returned.as_object()
        if self.deferred_to:
            result["deferred_to"] = self.deferred_to
        if self.group:
            result["group"] = self.group
        if self.is_unknown_group:
            result["unknown_group"] = True
        return result
