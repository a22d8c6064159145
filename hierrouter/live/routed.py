"""What one live route was.

Out: `Routed`, plain values, and as JSON. Costs are rates times tokens (paper section 3.1), at the
prices that the policy was trained with. Not covered: making the calls (`router`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hierrouter.plain_json import significant
from hierrouter_cache.routes import SEPARATOR


@dataclass(frozen=True)
class Hop:
    """One call of a route.

    Attributes:
        model: who was called.
        propensity: probability with which the policy does this here: 1 where it is greedy; None
            where it did something else, because a model gave no answer.
        chances: of each action, as the policy sees them; model by model, then model by model with
            stopping, where it may stop.
        stops: whether the policy chose to end with this call; not where it had to.
        response: the answer.
        finish_reason: "stop", or "length" where it was cut.
        tokens_in, tokens_out: of the call.
        cost: of the call, in price * token.
        router_s: seconds that encoder and policy took to decide, for this question and those that
            were decided together with it; what was waited before is in neither of the two.
        model_s: seconds until the answer was there.
        instead_of: the models that were to be called and failed, and why each did.
    """

    model: str
    propensity: float | None
    chances: tuple[float, ...]
    stops: bool
    response: str
    finish_reason: str
    tokens_in: int
    tokens_out: int
    cost: float
    router_s: float
    model_s: float
    instead_of: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Routed:
    """A question's way.

    Attributes:
        question: as the models saw it.
        alpha: the cost penalty that it was routed for.
        hops: the calls, 1 to L.
        max_cost: the limit that was set; None where none was.
    """

    question: str
    alpha: float
    hops: tuple[Hop, ...]
    max_cost: float | None = None

    @property
    def route(self) -> str:
        """The models in order, `first>second`."""
        return SEPARATOR.join(hop.model for hop in self.hops)

    @property
    def answer(self) -> str:
        """The last response."""
        return self.hops[-1].response

    @property
    def finish_reason(self) -> str:
        """Of the last response."""
        return self.hops[-1].finish_reason

    @property
    def tokens_in(self) -> int:
        """Of all calls."""
        return sum(hop.tokens_in for hop in self.hops)

    @property
    def tokens_out(self) -> int:
        """Of all calls."""
        return sum(hop.tokens_out for hop in self.hops)

    @property
    def cost(self) -> float:
        """C of all calls, in price * token."""
        return sum(hop.cost for hop in self.hops)

    @property
    def is_over_limit(self) -> bool:
        """Whether it cost more than it may: an answer is owed, even where no route is cheap enough,
        and an answer may be longer than any of the train fold."""
        return self.max_cost is not None and self.cost > self.max_cost

    def as_object(self) -> dict[str, Any]:
        """JSON values: the route, what it cost, and each call of it."""
        return {
            "question": self.question,
            "answer": self.answer,
            "route": self.route,
            "alpha": self.alpha,
            "max_cost": self.max_cost,
            "over_limit": self.is_over_limit,
            "cost": significant(self.cost),
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "finish_reason": self.finish_reason,
            "steps": [step_of(hop) for hop in self.hops],
        }


def step_of(hop: Hop) -> dict[str, Any]:
    """One call, under the names that logs of episodes have (`hierrouter.offpolicy.log_line`)."""
    found = {
        "model": hop.model,
        "propensity": hop.propensity,
        "chances": list(hop.chances),
        "stop": hop.stops,
        "cost": significant(hop.cost),
        "tokens_in": hop.tokens_in,
        "tokens_out": hop.tokens_out,
        "finish_reason": hop.finish_reason,
        "router_s": round(hop.router_s, 6),
        "model_s": round(hop.model_s, 6),
        "response": hop.response,
    }
    failed = [{"model": model, "reason": reason} for model, reason in hop.instead_of]
    return {**found, "instead_of": failed} if failed else found
