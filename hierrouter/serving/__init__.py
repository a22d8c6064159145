"""Route new questions through live models, in a process or as a server, and learn from its log."""

from dataclasses import dataclass

DEFAULT_MAX_REQUESTS = 256


@dataclass(frozen=True)
class ServerSettings:
    """How a server works.

    Attributes:
        key: clients must send it; None admits every client.
        seed: of the draws from the stochastic policy; None takes the likeliest action.
        reroute: if a model gives no response, take the next likeliest action, and report that.
        max_requests: how many requests may be under way at once; more are refused.
        otherwise: name of the model for requests that cannot be routed; None refuses these.
        canary_minutes: time between two checks of whether models have changed; 0 never checks.
        parent: id of the process that starts the workers which share the address, and that reloads
            all of them; None without workers.
    """

    key: str | None = None
    seed: int | None = None
    reroute: bool = False
    max_requests: int = DEFAULT_MAX_REQUESTS
    otherwise: str | None = None
    canary_minutes: float = 0
    parent: int | None = None

    @property
    def is_worker(self) -> bool:
        """Whether other processes share the address."""
        return self.parent is not None
