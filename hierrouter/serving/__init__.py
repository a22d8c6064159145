"""New questions, routed live, and what their log says."""

from dataclasses import dataclass

MAX_REQUESTS = 256  # under way at once, unless another number is asked for


@dataclass(frozen=True)
class Settings:
    """How a server works.

    Attributes:
        key: clients must send it; None lets everybody in.
        seed: draw calls from the stochastic policy; None takes the likeliest.
        reroute: where a model gives no answer, take the next likeliest action, and say so.
        max_requests: that are under way at once; more are refused.
        otherwise: name of the model for what cannot be routed; None refuses that.
        canary_minutes: from one look at whether models have changed to the next; 0 never looks.
        is_one_of_many: whether other processes share the address, and their parent reloads all.
    """

    key: str | None = None
    seed: int | None = None
    reroute: bool = False
    max_requests: int = MAX_REQUESTS
    otherwise: str | None = None
    canary_minutes: float = 0
    is_one_of_many: bool = False
