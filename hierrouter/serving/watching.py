"""What a server tells about itself: figures for Prometheus, and a log of its requests."""

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

from hierrouter.questions.answers import token_f1
from hierrouter.runs.bundle import Canary
from hierrouter.serving.models import CallFailed, LiveModel
from hierrouter.serving.router import Hop, Router, RouteResult
from hierrouter.tables import significant
from hierrouter_cache.errors import WorldError
from hierrouter_cache.keys import text_digest

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
LOG_VERSION = 1  # of its lines
CHANGED = 0.25  # of likeness to the stored answers that is lost, beyond a model's own unrest
MANY = "PROMETHEUS_MULTIPROC_DIR"  # where several workers put their figures together

LOG = logging.getLogger(__name__)


class Metrics:
    """What a server has done so far; some counters are counted up where it happens."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, buckets=SECONDS, registry=self._registry)
        self._requests = counter("hierrouter_requests", "Requests by HTTP status.", ["status"])
        self._seconds = histogram("hierrouter_request_seconds", "Requests.")
        self._router = histogram("hierrouter_router_seconds", "Decisions.")
        self._calls = counter("hierrouter_calls", "Answers by model.", ["model"])
        self.failed = counter("hierrouter_failed_calls", "Calls without one.", ["model"])
        self._tokens = counter("hierrouter_tokens", "Tokens.", ["model", "direction"])
        self._cost = counter("hierrouter_cost", "Price times tokens.")
        self._deferred = counter("hierrouter_deferred", "Questions handed over in doubt.")
        self.otherwise = counter("hierrouter_otherwise", "Requests that no route could take.")
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
        self._deferred.inc(hop.deferred)
        for model, _ in hop.instead_of:
            self.failed.labels(model).inc()

    def text(self, models: Mapping[str, LiveModel]) -> bytes:
        """All of it, in the text format of Prometheus.

        `models`: whose state is told as well, by name.
        """
        for name, model in models.items():
            self._up.labels(name).set(not model.fault)
            self._changed.labels(name).set(model.changed)
        if MANY not in os.environ:
            return generate_latest(self._registry)
        everybody = CollectorRegistry()
        MultiProcessCollector(everybody)  # type: ignore[no-untyped-call]
        return generate_latest(everybody)


class RequestLog:
    """A file that lines are appended to; who moves it away gets a new one.

    Args:
        path: of the file; None logs nothing.

    Raises:
        WorldError: it cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._torn = path, False
        try:
            self._file = None if path is None else self._opened(path)
        except OSError as error:
            raise WorldError(
                f"cannot write the log: {path}: {error.strerror}; give another --log"
            ) from error

    def answered(
        self,
        name: str,
        model: str,
        policy: str,
        result: RouteResult,
        shadow: Mapping[str, Any] | None = None,
    ) -> None:
        """A question has its answer.

        `name`: id of the completion; `model`: name that the client asked for; `policy`: name of the
        policy that chose the calls; `shadow`: what another one would have done.
        """
        line = {"id": name, "query": query_of(result.question), "asked_for": model}
        found = {"policy": policy, "status": 200, **result.as_object()}
        self._write(line | found | ({"shadow": shadow} if shadow else {}))

    def failed(
        self,
        name: str,
        model: str,
        question: str,
        hops: Sequence[Hop],
        status: int,
        reason: str,
        instead_of: Sequence[CallFailed] = (),
    ) -> None:
        """A question has no answer; it and the calls that were made are named all the same.

        `name`, `model`: as in `answered`; `question`: as models see it; `hops`: those that have an
        answer; `instead_of`: those of the next hop that failed before the one that `reason` tells
        of.
        """
        line: dict[str, Any] = {"id": name, "query": query_of(question), "asked_for": model}
        line |= {"status": status, "error": reason, "question": question}
        line["steps"] = [hop.as_object() for hop in hops]
        failed = [{"model": call.model, "reason": call.reason} for call in instead_of]
        self._write({**line, "instead_of": failed} if failed else line)

    def passed_on(
        self, name: str, model: str, otherwise: str, reason: str, usage: Mapping[str, float]
    ) -> None:
        """A request went to another model as it came.

        `name`, `model`: as in `answered`; `otherwise`: who answered; `reason`: why it was not
        routed; `usage`: tokens and cost, where the server told.
        """
        line = {"id": name, "asked_for": model, "status": 200, "otherwise": otherwise}
        line |= {"reason": reason}
        self._write(line | {key: significant(value) for key, value in usage.items()})

    def changed(self, model: str, is_changed: bool, lost: float) -> None:
        """A model answers otherwise than when it was collected, or as then again.

        `lost`: see `look_again`.
        """
        event = "changed" if is_changed else "as collected"
        self._write({"event": event, "model": model, "lost": significant(lost)})

    def close(self) -> None:
        """No more lines."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        """One line in one write; after one that was cut, on a line of its own."""
        if self._file is None or self._path is None:
            return
        head = {"log": LOG_VERSION, "time": round(time.time(), 3)}
        text = json.dumps({**head, **line}, allow_nan=False)
        data = b"\n" * self._torn + f"{text}\n".encode()
        try:
            self._follow(self._path, self._file)
            self._torn = os.write(self._file, data) < len(data)
            problem = "the disk is full" if self._torn else ""
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            LOG.error("a line of the log is lost: %s: %s", self._path, problem)

    def _follow(self, path: Path, file: int) -> None:
        """Where another file, or none, has the name by now, write there."""
        try:
            if os.path.samestat(path.stat(), os.fstat(file)):
                return
        except FileNotFoundError:
            pass
        self._file, self._torn = self._opened(path), False
        os.close(file)

    @staticmethod
    def _opened(path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


async def look_again(router: Router, log: RequestLog) -> None:
    """Ask each served model its canaries; say, here and in the log, if that shows a change.

    What counts is how much less (token F1) an answer is like the stored one than like a second
    answer to the same prompt, on average of a model's canaries: its own unrest is no change. A
    model that gives no answer stays what it was.
    """
    for name, calls in router.canaries.items():
        model = router.models[name]
        try:
            lost = fmean([await _lost(model, call) for call in calls] or [0.0])
        except CallFailed:
            continue
        if (lost > CHANGED) == model.changed:
            continue
        model.changed = lost > CHANGED
        if model.changed:
            LOG.warning(
                "%s no longer answers as it did when it was collected: %.0f %% of %d answers is "
                "other than then; look at its server, or collect and train again",
                *(name, 100 * lost, len(calls)),
            )
        else:
            LOG.warning("%s answers as it did when it was collected", name)
        log.changed(name, model.changed, lost)


async def _lost(model: LiveModel, call: Canary) -> float:
    """Of one canary; asked twice only where the first answer is another one."""
    first = (await model.answer(call.prompt)).text
    if first == call.response:
        return 0.0
    again = (await model.answer(call.prompt)).text
    own = 1.0 if again == first else token_f1(first, [again])
    return max(own - token_f1(first, [call.response]), 0.0)


def query_of(question: str) -> str:
    """The name of a question in a log: one name for one question, however often it comes."""
    return text_digest(question)
