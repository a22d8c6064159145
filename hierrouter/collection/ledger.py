"""The calls of a collection: which are answered, failed or left out, and how they are committed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import pyarrow as pa

from hierrouter.collection.progress import Progress, Spending, Summary
from hierrouter.engines.bills import CountedTexts, given_cost_notes
from hierrouter.engines.generator import (
    RESPONSE_KINDS,
    Call,
    Failure,
    Response,
    call_row,
    failures_table,
    visible_text,
)
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
        callers: by step, the name of the action whose price its calls have.
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
        self.callers: dict[str, str] = {}
        # Answered before this collection, and not yet counted as reused.
        self._uncounted = set(self.responses)
        # Failed for good in this collection, and status of earlier failures by key.
        self._failed = set[str]()
        self._stored_failures = reader.failures() if reader else {}
        self._checks = ResponseChecks()
        self._bills = BillChecks(pool)
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
        visible = visible_text(self._pool, model.name, response.complete_text)
        self.responses[call.key] = visible
        return visible

    def count_response(self, model: ModelSpec, step: str, response: Response) -> None:
        """Count one more response, for the summary and the progress; thread-safe.

        Args:
            model: that answered.
            step: of the call; an action may have a price of its own.
            response: to count.
        """
        cost = response.cost(self._rates[self.callers.get(step, model.name)])
        spending = Spending(1, 0, response.tokens_in, response.tokens_out, cost)
        with self._counting:
            self.summary.spend(model.name, spending)
            self.progress.on_calls(1, response.tokens_in + response.tokens_out, cost)
            self._checks.warn_of_thought(model, response)

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
        self._bills.check(model.name, part)
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

    def say_what_came(self) -> None:
        """Log what the calls of this collection were, where that is out of the ordinary."""
        for line in (*self._checks.kinds(), *self._bills.given_costs()):
            LOG.warning("%s", line)

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
        self._kinds: dict[str, Counter[str]] = {}  # by model

    def warn_of_thought(self, model: ModelSpec, response: Response) -> None:
        """Warn at once, and once for each model, if all that came is a thought."""
        name = (model.name, "thought alone")
        if response.kind != "empty" or not response.thought or name in self._warned:
            return
        self._warned.add(name)
        LOG.warning(
            "%s answers with no content, only a thought in a field of its own (%d tokens, %s); "
            "give it more room: max_new_tokens above %d in its generation",
            model.name,
            response.tokens_out,
            "cut" if response.finish_reason == "length" else "not cut",
            model.generation.max_new_tokens,
        )

    def kinds(self) -> Iterator[str]:
        """Yield a line for each model that gave something else than answers: how much of what."""
        for model, kinds in self._kinds.items():
            total = self._responses[model]
            shares = ", ".join(
                f"{kinds[kind]:,} {words}" for kind, words in RESPONSE_KINDS.items() if kinds[kind]
            )
            yield (
                f"of {total:,} answers of {model}: {shares}; they are kept and paid for, scored "
                "like any answer, and not asked for again (column kind)"
            )

    def check(self, model: str, responses: Sequence[Response]) -> None:
        """Count the faults of these responses, and warn if they are frequent."""
        self._responses[model] += len(responses)
        kinds = Counter(response.kind for response in responses if response.kind)
        if kinds:
            self._kinds.setdefault(model, Counter()).update(kinds)
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


@dataclass
class ModelBills:
    """The bills of one model's server.

    Attributes:
        prompts: prompts, and the tokens that the server counts in them.
        responses: complete responses, likewise; without those that were cut, which may all have the
            same number.
        given: sum of the costs that the server states.
        own: cost of the same calls by their tokens and the pool's rates.
        calls: number of these calls.
    """

    prompts: CountedTexts = field(default_factory=CountedTexts)
    responses: CountedTexts = field(default_factory=CountedTexts)
    given: float = 0.0
    own: float = 0.0
    calls: int = 0


class BillChecks:
    """Say early, and once for each model, if the bills of its server cannot be right.

    Args:
        pool: has the rates to compare with.
    """

    def __init__(self, pool: Pool) -> None:
        self._rates = pool.rates()
        self._currency = pool.currency
        self._bills: dict[str, ModelBills] = {}
        self._warned: set[tuple[str, str]] = set()

    def check(self, model: str, part: Sequence[tuple[Call, Response]]) -> None:
        """Take the bills of these calls, and warn if counts contradict each other or the texts.

        Calls without a bill are of an engine that counts tokens itself.
        """
        billed = [(call, response) for call, response in part if response.bill.usage]
        if not billed:
            return
        bills = self._bills.setdefault(model, ModelBills())
        for call, response in billed:
            bill = response.bill
            for remark in bill.remarks:
                self._warn(model, remark, f"in answers of {model} {remark}")
            bills.prompts.add(call.prompt, response.tokens_in)
            if response.finish_reason != "length":
                bills.responses.add(response.complete_text, response.tokens_out)
            if bill.cost is not None:
                bills.given += bill.cost
                bills.own += response.cost(self._rates[model])
                bills.calls += 1
        for title, texts in (("prompts", bills.prompts), ("answers", bills.responses)):
            doubt = None if (model, title) in self._warned else texts.doubt()
            if doubt:
                line = f"the tokens of the {title} of {model} are {doubt}, says its server"
                self._warn(model, title, f"{line}; costs by such counts are made up")

    def given_costs(self) -> Iterator[str]:
        """Yield the lines of `bills.given_cost_notes`."""
        costs = {
            model: (bills.given, bills.own, bills.calls)
            for model, bills in self._bills.items()
            if bills.calls
        }
        yield from given_cost_notes(costs, self._currency)

    def _warn(self, model: str, what: str, line: str) -> None:
        if (model, what) not in self._warned:
            self._warned.add((model, what))
            LOG.warning("%s", line)
