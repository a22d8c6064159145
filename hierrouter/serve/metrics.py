"""Counters for Prometheus, one set a server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from hierrouter.live.routed import Hop

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class Metrics:
    """What a server has done so far."""

    def __init__(self) -> None:
        self._registry = all_of_it = CollectorRegistry()
        self._requests = Counter(
            "hierrouter_requests", "Requests by HTTP status.", ["status"], registry=all_of_it
        )
        self._seconds = Histogram(
            "hierrouter_request_seconds", "Requests.", buckets=SECONDS, registry=all_of_it
        )
        self._router = Histogram(
            "hierrouter_router_seconds", "Decisions.", buckets=SECONDS, registry=all_of_it
        )
        self._calls = Counter(
            "hierrouter_calls", "Answers by model.", ["model"], registry=all_of_it
        )
        self._failed = Counter(
            "hierrouter_failed_calls", "Calls without one.", ["model"], registry=all_of_it
        )
        self._tokens = Counter(
            "hierrouter_tokens", "Tokens.", ["model", "direction"], registry=all_of_it
        )
        self._cost = Counter("hierrouter_cost", "Price times tokens.", registry=all_of_it)

    def ended(self, status: int, seconds: float) -> None:
        """One request is over."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def called(self, hop: Hop) -> None:
        """One call has its answer."""
        self._router.observe(hop.router_s)
        self._calls.labels(hop.model).inc()
        self._tokens.labels(hop.model, "in").inc(hop.tokens_in)
        self._tokens.labels(hop.model, "out").inc(hop.tokens_out)
        self._cost.inc(hop.cost)
        for model, _ in hop.instead_of:
            self.failed(model)

    def failed(self, model: str) -> None:
        """A model gave no answer."""
        self._failed.labels(model).inc()

    def text(self) -> bytes:
        """All of it, in the text format of Prometheus."""
        return generate_latest(self._registry)
