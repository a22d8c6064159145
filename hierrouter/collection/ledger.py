"""The calls of a collection: which are answered, failed or left out, and how they are committed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import pyarrow as pa

from hierrouter.collection.plan import Call, call_row, failures_table
from hierrouter.collection.progress import Progress, Spending, Summary
from hierrouter.engines.generator import Failure, Response, visible_text
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter_cache.parts import CALLS_SCHEMA, DECISIONS_SCHEMA
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter

# A part is small enough that an interruption costs little, large enough that reading stays fast.
FIRST_PART_ROWS = 32  # each part may have twice as many rows as the one before
LARGEST_PART_ROWS = 2048
# A fault is reported once a model has this many responses and at least this share has the fault.
MIN_CHECKED_RESPONSES = 20
FAULTY_SHARE = 0.5

LOG = logging.getLogger(__name__)


class Ledger:
    """The state of each call, in memory and in the cache.

    Responses are known here as soon as they are recorded, and safe once they are committed.

    Attributes:
        responses: what the next call reads of each answered call's response, by key; committed or
            not.
        pruned: keys of calls that are not to be made.
        part_rows: rows of the next part, at most.
        summary: counts of what was done.
    """

    def __init__(
        self,
        pool: Pool,
        reader: CacheReader | None,
        writer: PartWriter,
        progress: Progress,
        summary: Summary,
    ) -> None:
        """Take over what is in the cache.

        Args:
            pool: the models and their rates.
            reader: of the cache; None if it does not exist yet.
            writer: into the cache.
            progress: takes counts of answered and failed calls.
            summary: is counted up from here on.
        """
        self.writer = writer
        self.progress = progress
        self.summary = summary
        self._pool = pool
        self.responses = reader.responses() if reader else {}
        self.pruned = set[str]()
        self.part_rows = FIRST_PART_ROWS
        self._rates = pool.rates()
        # Answered before this collection, and not yet counted as reused.
        self._uncounted = set(self.responses)
        # Failed for good in this collection, and status of earlier failures by key.
        self._failed = set[str]()
        self._stored_failures = reader.failures() if reader else {}
        self._checks = ResponseChecks()
        self._counting = Lock()  # lanes count, each in its thread

    def response(self, key: str) -> str | None:
        """Look up a call's response; it is counted as reused the first time."""
        if key in self._uncounted:
            self._uncounted.discard(key)
            self.summary.earlier += 1
        return self.responses.get(key)

    def is_settled(self, key: str) -> bool:
        """Whether the call needs no request: answered, failed for good, or left out."""
        return key in self.responses or key in self._failed or key in self.pruned

    def record(self, model: ModelSpec, call: Call, response: Response) -> str:
        """Note a response that is not committed yet; return what the next call reads of it."""
        visible = visible_text(self._pool, model.name, response.text)
        self.responses[call.key] = visible
        return visible

    def count_response(self, model: ModelSpec, response: Response) -> None:
        """Count one more response, for the summary and the progress; thread-safe."""
        rate = self._rates[model.name]
        cost = rate.cost(response.tokens_in, response.tokens_out)
        spending = Spending(1, 0, response.tokens_in, response.tokens_out, cost)
        with self._counting:
            self.summary.spend(model.name, spending)
            self.progress.on_calls(1, response.tokens_in + response.tokens_out, cost)

    def commit(
        self, model: ModelSpec, part: Sequence[tuple[Call, Response]], seconds: float
    ) -> None:
        """Write answered calls to the cache; an interruption does not undo that.

        Args:
            model: that answered.
            part: the calls with their responses; may be empty.
            seconds: from the first request of the part to its last response.

        Raises:
            CacheError: the cache cannot be written.
            WorldError: the disk is full or failed.
        """
        if not part:
            return
        latency = seconds / len(part)
        rows = [
            call_row(model.name, call, response, latency, self.responses[call.key])
            for call, response in part
        ]
        self.writer.append("calls", pa.Table.from_pylist(rows, schema=CALLS_SCHEMA))
        self.part_rows = min(2 * self.part_rows, LARGEST_PART_ROWS)
        responses = [response for _, response in part]
        self._checks.check(model.name, responses)
        self.summary.calls += len(part)
        self.summary.tokens_in += sum(response.tokens_in for response in responses)
        self.summary.tokens_out += sum(response.tokens_out for response in responses)
        self.summary.seconds += seconds

    def give_up(
        self, model: ModelSpec, failures: Sequence[tuple[Call, Failure]], attempts: int
    ) -> None:
        """Write calls that failed for good to the cache, so that they count as requested.

        A failure that the cache has already, with the same status, is not written again.

        Args:
            model: that failed.
            failures: the calls, each with the failure of its last attempt; may be empty.
            attempts: of each of these calls.

        Raises:
            CacheError: the cache cannot be written.
            WorldError: the disk is full or failed.
        """
        if not failures:
            return
        new = [
            (call, failure)
            for call, failure in failures
            if self._stored_failures.get(call.key) != failure.status
        ]
        if new:
            self.writer.append("failures", failures_table(model.name, new, attempts))
        self._failed.update(call.key for call, _ in failures)
        summary = self.summary
        summary.failed.update(failure.status for _, failure in failures)
        summary.spend(model.name, Spending(failed=len(failures)))
        if not summary.example:
            _, first_failure = failures[0]
            summary.example = f"{model.name}: {first_failure.detail}"
        self.progress.on_lost(len(failures))

    def decide(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write which calls are to be made and which are left out.

        Args:
            rows: of `decisions`.
        """
        self.writer.append("decisions", pa.Table.from_pylist(rows, schema=DECISIONS_SCHEMA))
        for row in rows:
            if row["made"]:
                self.pruned.discard(row["key"])
            else:
                self.pruned.add(row["key"])


@dataclass(frozen=True)
class ResponseCheck:
    """A fault that a response may have.

    Attributes:
        fault: completes "the answers are …".
        has_fault: whether a response has it.
        remedy: what to do about it.
    """

    fault: str
    has_fault: Callable[[Response], bool]
    remedy: str


RESPONSE_CHECKS = (
    ResponseCheck("empty", lambda response: not response.text, "look at its settings and template"),
    ResponseCheck(
        "cut at the cap",
        lambda response: response.finish_reason == "length",
        "look at its settings",
    ),
    ResponseCheck(
        "without log-probabilities",
        lambda response: response.confidence is None,
        "no router can see how sure it is",
    ),
)


class ResponseChecks:
    """Warn early, and once for each model and fault, if a model's responses look wrong."""

    def __init__(self) -> None:
        self._responses: Counter[str] = Counter()  # by model
        self._faults: Counter[tuple[str, str]] = Counter()  # by model and fault
        self._warned: set[tuple[str, str]] = set()

    def check(self, model: str, responses: Sequence[Response]) -> None:
        """Count the faults of these responses, and warn if they are frequent."""
        self._responses[model] += len(responses)
        total = self._responses[model]
        for check in RESPONSE_CHECKS:
            name = (model, check.fault)
            self._faults[name] += sum(map(check.has_fault, responses))
            share = self._faults[name] / total
            is_frequent = total >= MIN_CHECKED_RESPONSES and share >= FAULTY_SHARE
            if is_frequent and name not in self._warned:
                self._warned.add(name)
                LOG.warning(
                    "%.0f%% of the answers of %s are %s; %s",
                    100 * share,
                    model,
                    check.fault,
                    check.remedy,
                )
