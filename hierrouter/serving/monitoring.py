"""How a server is observed: metrics for Prometheus, a log of its requests, and model canaries.

This module only writes the log; `hierrouter.serving.logs` reads it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from hierrouter.engines.bills import Bill
from hierrouter.questions.answers import token_f1
from hierrouter.questions.files import line_fault
from hierrouter.runs.bundle import Canary
from hierrouter.serving.models import CallFailed, LiveModel
from hierrouter.serving.results import Hop, RouteResult
from hierrouter.serving.router import Router
from hierrouter.tables import significant
from hierrouter_cache.errors import WorldError
from hierrouter_cache.keys import text_digest

DURATION_BUCKETS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 30, 60, 120, 300),
)
LOG_VERSION = 1  # of the format of log lines
MAX_SHORT_TEXT = 1000  # characters of a text that stays in a line that is too long
# A model has changed if its responses have lost more than this likeness (token F1) to the stored
# ones. Likeness that two responses of the model to the same prompt lack does not count.
MAX_LOST_LIKENESS = 0.25
# The folder where several workers put their metrics together; the name is prometheus_client's.
METRICS_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

LOG = logging.getLogger(__name__)


class Metrics:
    """The metrics of a server; counters without a method here are incremented by their users."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, buckets=DURATION_BUCKETS_S, registry=self._registry)
        self._requests = counter("hierrouter_requests", "Requests by HTTP status.", ["status"])
        self._seconds = histogram("hierrouter_request_seconds", "Requests.")
        self._router = histogram("hierrouter_router_seconds", "Decisions.")
        self._calls = counter("hierrouter_calls", "Answers by model.", ["model"])
        self.failed = counter("hierrouter_failed_calls", "Calls without one.", ["model"])
        self._tokens = counter("hierrouter_tokens", "Tokens.", ["model", "direction"])
        self._cost = counter("hierrouter_cost", "Price times tokens.")
        self._deferred = counter("hierrouter_deferred", "Questions handed over in doubt.")
        self.otherwise = counter("hierrouter_otherwise", "Requests that no route could take.")
        self._uncounted = counter("hierrouter_uncounted", "Answers to them without counts.")
        self.answered = counter("hierrouter_answered", "Answers by version.", ["version"])
        self.shadow = counter("hierrouter_shadow", "Decisions of a shadow.", ["same"])
        self._up = Gauge(
            "hierrouter_model_up",
            "Whether a model gave an answer when it was last asked.",
            ["model"],
            registry=self._registry,
            multiprocess_mode="livemin",
        )
        self._changed = Gauge(
            "hierrouter_model_changed",
            "Whether it answers otherwise than when its answers were collected.",
            ["model"],
            registry=self._registry,
            multiprocess_mode="livemax",
        )

    def count_request(self, status: int, seconds: float) -> None:
        """Count a request that has ended."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def count_hop(self, hop: Hop) -> None:
        """Count a call that has its response, and the failed calls that it replaced."""
        self._router.observe(hop.router_s)
        self._calls.labels(hop.model).inc()
        self._tokens.labels(hop.model, "in").inc(hop.response.tokens_in)
        self._tokens.labels(hop.model, "out").inc(hop.response.tokens_out)
        self._cost.inc(hop.cost)
        self._deferred.inc(hop.is_deferred)
        for model, _ in hop.instead_of:
            self.failed.labels(model).inc()

    def count_forward(
        self, model: str, bill: Bill, cost: float | None, is_complete: bool = True
    ) -> None:
        """Count a request that was passed on, and its tokens if the server said how many.

        Args:
            model: that answered.
            bill: of the call.
            cost: of the call; None if it is not known.
            is_complete: whether the client has the complete answer.
        """
        self._calls.labels(model).inc(is_complete)
        if bill.tokens_in is None or bill.tokens_out is None:
            self._uncounted.inc()
            return
        self._tokens.labels(model, "in").inc(bill.tokens_in)
        self._tokens.labels(model, "out").inc(bill.tokens_out)
        self._cost.inc(cost or 0.0)

    def text(self, models: Mapping[str, LiveModel]) -> bytes:
        """Return all metrics in the text format of Prometheus.

        Args:
            models: by name; their state is included.
        """
        for name, model in models.items():
            self._up.labels(name).set(not model.fault)
            self._changed.labels(name).set(model.has_changed)
        if METRICS_FOLDER_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        all_workers = CollectorRegistry()
        MultiProcessCollector(all_workers)  # type: ignore[no-untyped-call]
        return generate_latest(all_workers)


class RequestLog:
    """A file of JSON lines, one a request. If the file is moved away, a new one is begun.

    Every line can be read again: one beyond the limits of `hierrouter.questions.files` is written
    with null for its long texts, and says so under `left_out`.

    Args:
        path: of the file; None logs nothing.

    Raises:
        WorldError: it cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._is_torn = False  # whether the last line in the file lacks its end
        self._file: int | None = None
        if path is not None:
            try:
                self._file = self._open(path)
            except OSError as error:
                raise WorldError(
                    f"cannot write the log: {path}: {error.strerror}; give another --log"
                ) from error

    def log_answer(
        self,
        completion_id: str,
        model: str,
        policy: str,
        result: RouteResult,
        shadow: Mapping[str, Any] | None = None,
    ) -> None:
        """Log an answered question.

        Args:
            completion_id: of the chat completion.
            model: name that the client asked for.
            policy: name of the policy that chose the calls.
            result: of the question.
            shadow: what another policy would have done; JSON values.
        """
        line = {
            "id": completion_id,
            "query": query_id(result.question),
            "asked_for": model,
            "policy": policy,
            "status": 200,
            **result.as_object(),
        }
        if shadow:
            line["shadow"] = shadow
        self._write(line)

    def log_failure(
        self,
        completion_id: str,
        model: str,
        question: str,
        hops: Sequence[Hop],
        status: int,
        reason: str,
        instead_of: Sequence[CallFailed] = (),
    ) -> None:
        """Log a question without an answer, with the calls that were made for it.

        Args:
            completion_id: as in `log_answer`.
            model: as in `log_answer`.
            question: as models see it.
            hops: the calls that have a response.
            status: of the HTTP reply.
            reason: why there is no answer.
            instead_of: calls of the next hop that failed before the one that `reason` is about.
        """
        line: dict[str, Any] = {
            "id": completion_id,
            "query": query_id(question),
            "asked_for": model,
            "status": status,
            "error": reason,
            "question": question,
            "steps": [hop.as_object() for hop in hops],
        }
        if instead_of:
            line["instead_of"] = [
                {"model": call.model, "reason": call.reason} for call in instead_of
            ]
        self._write(line)

    def log_forward(
        self,
        completion_id: str,
        model: str,
        otherwise: str,
        reason: str,
        usage: Mapping[str, float],
        error: str = "",
        status: int = 200,
    ) -> None:
        """Log a request that was passed on unchanged.

        Args:
            completion_id: as in `log_answer`.
            model: as in `log_answer`.
            otherwise: name of the model that answered.
            reason: why the request was not routed.
            usage: tokens and their cost, if the server reported them.
            error: why there is no answer, or no complete one; "" if there is.
            status: of the HTTP reply.
        """
        line: dict[str, Any] = {
            "id": completion_id,
            "asked_for": model,
            "status": status,
            "otherwise": otherwise,
            "reason": reason,
        }
        if error:
            line["error"] = error
        line.update({key: significant(value) for key, value in usage.items()})
        self._write(line)

    def log_change(self, model: str, has_changed: bool, lost: float) -> None:
        """Log that a model has changed, or answers as collected again.

        Args:
            model: its name.
            has_changed: which of the two.
            lost: likeness to the stored responses, see `check_canaries`.
        """
        event = "changed" if has_changed else "as collected"
        self._write({"event": event, "model": model, "lost": significant(lost)})

    def close(self) -> None:
        """Close the file; later lines are dropped."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        """Append a line in one write, so that lines of several workers do not mix."""
        if self._file is None or self._path is None:
            return
        data = self._readable_line({"log": LOG_VERSION, "time": round(time.time(), 3), **line})
        if self._is_torn:
            data = b"\n" + data
        problem = ""
        try:
            self._reopen_if_moved(self._path, self._file)
            self._is_torn = os.write(self._file, data) < len(data)
            if self._is_torn:
                problem = "the disk is full"
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            LOG.error("a line of the log is lost: %s: %s", self._path, problem)

    def _readable_line(self, line: dict[str, Any]) -> bytes:
        """Return a line as it is written; without long texts if it could not be read again."""
        data = _json_line(line)
        fault = line_fault(data)
        if not fault:
            return data
        LOG.warning("a line of the log is without its texts, %s: %s", fault, self._path)
        shortened = {name: _without_long_texts(value) for name, value in line.items()}
        data = _json_line({**shortened, "left_out": f"texts: {fault}"})
        if not line_fault(data):
            return data
        facts = {name: value for name, value in shortened.items() if not _is_nested(value)}
        return _json_line({**facts, "left_out": f"texts and steps: {fault}"})

    def _reopen_if_moved(self, path: Path, file: int) -> None:
        """Open a new file if the path names another file now, or none."""
        try:
            if os.path.samestat(path.stat(), os.fstat(file)):
                return
        except FileNotFoundError:
            pass
        self._file = self._open(path)
        self._is_torn = False
        os.close(file)

    @staticmethod
    def _open(path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _json_line(line: dict[str, Any]) -> bytes:
    return f"{json.dumps(line, allow_nan=False)}\n".encode()


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)


def _without_long_texts(value: Any) -> Any:
    """Return a JSON value with null for each long text in it."""
    if isinstance(value, str):
        return value if len(value) <= MAX_SHORT_TEXT else None
    if isinstance(value, dict):
        return {name: _without_long_texts(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_without_long_texts(element) for element in value]
    return value


async def check_canaries(router: Router, log: RequestLog) -> None:
    """Repeat calls of the collection, and report models that answer otherwise now.

    A model has changed if its responses are less like the stored ones than like second responses to
    the same prompts (token F1, on average of its canaries): a model that varies has not changed.
    One that gives no response keeps its state. Changes are logged here and in the request log.

    Args:
        router: with the models and their canaries.
        log: of the server.
    """
    for name, calls in router.canaries.items():
        model = router.models[name]
        try:
            lost = fmean([await _lost_likeness(model, call) for call in calls] or [0.0])
        except CallFailed:
            continue
        has_changed = lost > MAX_LOST_LIKENESS
        if has_changed == model.has_changed:
            continue
        model.has_changed = has_changed
        if has_changed:
            LOG.warning(
                "%s no longer answers as it did when it was collected: %.0f %% of %d answers is "
                "other than then; look at its server, or collect and train again",
                name,
                100 * lost,
                len(calls),
            )
        else:
            LOG.warning("%s answers as it did when it was collected", name)
        log.log_change(name, has_changed, lost)


async def _lost_likeness(model: LiveModel, canary: Canary) -> float:
    """Likeness that a response has lost to the stored one, in [0, 1].

    The model is asked a second time only if its first response differs from the stored one.
    """
    first = (await model.answer(canary.prompt)).complete_text
    if first == canary.response:
        return 0.0
    second = (await model.answer(canary.prompt)).complete_text
    own_likeness = 1.0 if second == first else token_f1(first, [second])
    return max(own_likeness - token_f1(first, [canary.response]), 0.0)


def query_id(question: str) -> str:
    """Return the id of a question in a log: the same text always has the same id."""
    return text_digest(question)
