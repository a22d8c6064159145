"""A language model as a judge: a scorer whose verdicts are calls, stored like those of a pool.

A verdict is what the judge says of one response to one question. It is kept with its prompt, text,
tokens and cost as a row of `calls`; a call that gave none is a row of `failures`. Scores are read
off these texts, so no verdict is paid twice. `ModelJudge` finds the stored ones and asks for the
others; `read_verdict` is the rule by which a text is a score.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any

import pyarrow as pa

from hierrouter.engines import backend
from hierrouter.engines.generator import (
    Answer,
    Call,
    Engines,
    Failure,
    Generator,
    Response,
    call_row,
    failures_table,
)
from hierrouter.pools.files import DEFAULT_SCALE, load_judge
from hierrouter.pools.pool import ModelSpec
from hierrouter.questions.final import fold, without_thoughts
from hierrouter.questions.scoring import Scorer, ScorerInput, Verdict
from hierrouter_cache.errors import CacheLocked, InputError, Interrupted, WorldError, reason_of
from hierrouter_cache.keys import call_key, digest, judged_context
from hierrouter_cache.locks import judge_lock, shared_lock
from hierrouter_cache.parts import CALLS_SCHEMA
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import Rate
from hierrouter_cache.writer import PartWriter

QUESTION_FIELD = "{question}"
ANSWER_FIELD = "{answer}"
REFERENCES_FIELD = "{references}"
LOWEST_FIELD = "{lowest}"
HIGHEST_FIELD = "{highest}"
JUDGE_PROMPT = f"""Question:
{QUESTION_FIELD}

Answer:
{ANSWER_FIELD}

How good is this answer? End with a line `Score: N`, where N is a number from {LOWEST_FIELD} (wrong, or of no
use) to {HIGHEST_FIELD} (right and complete)."""  # noqa: E501 - its text is a part of the judge's version
VERSION_LENGTH = 12  # of the digest that is a judge's version; its step begins with it
PROMPTS_PER_RUN = 4096  # in memory at once
MAX_ATTEMPTS = 2  # at a call that failed, beside those of the engine
# Answers without any score after which a judge is not asked any more: it has not understood.
HOPELESS_ANSWERS = 32
# Verdicts are committed after this share of the time since the first one, so that a kill costs no
# more, and parts are not too small; but after this many seconds at the latest, and at the soonest.
COMMIT_SHARE = 0.1
LATEST_COMMIT_S = 20.0
SOONEST_COMMIT_S = 0.1
TICK_S = 0.1  # between two looks at the clock

# Why an answer has no verdict; completes "3 of 40 answers are not judged: 3 …".
FAULTS = {
    "filtered": "withheld by a filter",
    "too_long": "too long for it",
    "error": "failed",
    "refusal": "declined by it",
    "empty": "with an empty verdict",
    "cut": "with a verdict that was cut",
    "no_score": "with a verdict without a score",
    "several": "with a verdict of several numbers",
    "off_scale": "with a score off its scale",
    "unasked": "not asked for",
}
ASKED_AGAIN = ("error",)  # faults that asking again may mend

OnScored = Callable[[int, int], None]

LOG = logging.getLogger(__name__)


def judge_scorer(file: str, engines: Engines = backend) -> Scorer:
    """Make a scorer that asks a model how good an answer is.

    The scorer's version is a digest of model, prompt, scale and decoding settings: if one of them
    changes, all answers are judged again.

    Args:
        file: a pool file with exactly one model. Its `stage_prompts` may hold the judge's prompt,
            with the fields `{question}`, `{answer}` and optionally `{references}`, `{lowest}` and
            `{highest}`; `scale` in its table `[judge]` has the lowest and the highest score.
        engines: returns the engine of a backend's name.

    Returns:
        The scorer. It loads the model when an answer is to be judged.

    Raises:
        InputError: the file has no model or several, or its prompt lacks a required field.
        WorldError: the model cannot be found.
    """
    pool, scale = load_judge(file)
    if len(pool.models) != 1:
        raise InputError(f"a judge is one model: {file}; it has {len(pool.models)}")
    [spec] = pool.models
    template = pool.stage_prompts[0] or JUDGE_PROMPT
    for name in (QUESTION_FIELD, ANSWER_FIELD):
        if name not in template:
            raise InputError(f"the judge's prompt has no {name}: {file}; put it in stage_prompts")
    for name, score in zip((LOWEST_FIELD, HIGHEST_FIELD), scale, strict=True):
        template = template.replace(name, f"{score:g}")
    identity = engines(spec.backend).identify(spec)
    # Without a scale of its own a judge has the version that it had before there were scales.
    further = [] if scale == DEFAULT_SCALE else [list(scale)]
    step = digest([identity, spec.generation.settings, template, *further])
    judge = ModelJudge(spec, pool.rates()[spec.name], template, scale, step, pool.currency, engines)
    columns = ["question", "response"]
    if judge.reads_references:
        columns.append("references")
    return Scorer(
        "judge", step[:VERSION_LENGTH], judge.score, tuple(columns), in_batches=True, judge=judge
    )


class ModelJudge:
    """A model, and how it is asked.

    Args:
        spec: the model.
        rate: its price.
        template: the prompt, with the fields of question, answer and perhaps references.
        scale: the lowest and the highest score.
        step: digest of the model, its settings, the template and the scale.
        currency: of the price.
        engines: load the model.

    Attributes:
        name: of the model, for messages.
        reads_references: whether the template shows the reference answers.
        paid_calls: calls that it has answered for this object.
        paid: what they have cost, in the currency of its file.
    """

    def __init__(
        self,
        spec: ModelSpec,
        rate: Rate,
        template: str,
        scale: tuple[float, float],
        step: str,
        currency: str,
        engines: Engines,
    ) -> None:
        self.currency = currency
        self.spec = spec
        self.name = spec.name
        self.rate = rate
        self.template = template
        self.scale = scale
        self.step = step
        self.reads_references = REFERENCES_FIELD in template
        self.paid_calls = 0
        self.paid = 0.0
        self._engines = engines

    @property
    def scale_text(self) -> str:
        """The scale as it is stored: "0 to 10"."""
        lowest, highest = self.scale
        return f"{lowest:g} to {highest:g}"

    @cached_property
    def generator(self) -> Generator:
        """The model, loaded when it is first asked.

        Raises:
            WorldError: it cannot be loaded.
        """
        return self._engines(self.spec.backend).load(self.spec)

    def call(self, scorer_input: ScorerInput) -> Call:
        """Return the call that judges a response."""
        references = "\n".join(scorer_input.references)
        prompt = self.template.replace(QUESTION_FIELD, scorer_input.question)
        # The response comes last: a field that it contains must not be filled in.
        prompt = prompt.replace(REFERENCES_FIELD, references)
        prompt = prompt.replace(ANSWER_FIELD, scorer_input.response)
        context = judged_context(
            scorer_input.question,
            scorer_input.response,
            references if self.reads_references else None,
        )
        return Call(call_key(self.step, context), self.step, context, prompt)

    def read(self, answer: Answer) -> Verdict:
        """Return the verdict of an answer of the model."""
        if isinstance(answer, Failure):
            return Verdict(None, answer.status, answer.detail)
        return read_verdict(answer.complete_text, answer.finish_reason, answer.kind, self.scale)

    def score(
        self,
        questions: Sequence[str],
        responses: Sequence[str],
        references: Sequence[Sequence[str]] = (),
    ) -> list[float]:
        """Judge responses that are in no cache; nothing is kept.

        Returns:
            A score from 0 to 1 for each response.

        Raises:
            WorldError: the judge gave no score for one of them.
        """
        rows = zip(questions, responses, references or [()] * len(questions), strict=True)
        inputs = [
            ScorerInput(response, tuple(answers), question) for question, response, answers in rows
        ]
        prompts = [self.call(scorer_input).prompt for scorer_input in inputs]
        verdicts = {
            position: self.read(answer) for position, answer in self.generator.generate(prompts)
        }
        scores: list[float] = []
        for position in range(len(inputs)):
            verdict = verdicts[position]
            if verdict.value is None:
                raise no_score_error(self.name, verdict.detail)
            scores.append(verdict.value)
        return scores

    def verdicts(
        self,
        reader: CacheReader,
        inputs: Sequence[ScorerInput],
        on_scored: OnScored,
        max_spend: float | None = None,
    ) -> list[Verdict]:
        """Judge responses; verdicts that the cache has are read, the others are asked for and kept.

        Args:
            reader: of the cache.
            inputs: the responses; equal ones are judged once.
            on_scored: called with (verdicts that came, verdicts that are asked for).
            max_spend: begin no call once this judge's verdicts in the cache have cost so much, in
                the currency of its file; None is no limit.

        Returns:
            The verdict on each response. One without a value says why: see `FAULTS`.

        Raises:
            Interrupted: the user has stopped it; the verdicts that came are kept.
            CacheError: the cache cannot be written, or a collection is at work there.
            WorldError: the judge cannot be reached, or the disk failed; likewise.
        """
        calls = [self.call(scorer_input) for scorer_input in inputs]
        known, _ = self._stored(reader)
        if any(_is_due(call, known) for call in calls):
            # Nothing is asked for that could not be kept, and nothing that another one asks for.
            with self._lock(reader.root):
                known, spent = self._stored(CacheReader(reader.root))
                due = {call.context: call for call in calls if _is_due(call, known)}
                if due:
                    judging = _Judging(self, reader.root, due, known, on_scored, max_spend, spent)
                    try:
                        known |= judging.run()
                    finally:
                        self.paid_calls += judging.paid_calls
                        self.paid += judging.spent - spent
        return [known[call.context] for call in calls]

    @contextmanager
    def _lock(self, root: Path) -> Iterator[None]:
        """Hold the right to ask this judge for verdicts on a cache; wait for another command."""
        name = self.step[:VERSION_LENGTH]
        with ExitStack() as locks:
            locks.enter_context(shared_lock(root))
            try:
                locks.enter_context(judge_lock(root, name, wait=False))
            except CacheLocked:
                LOG.warning("another command asks %s; waiting for its verdicts", self.name)
                locks.enter_context(judge_lock(root, name))
            yield

    def _stored(self, reader: CacheReader) -> tuple[dict[str, Verdict], float]:
        """Return the verdicts of this judge in a cache, by context, and what they have cost."""
        verdicts = {}
        for row in reader.sql(
            "SELECT context, status, detail FROM failures WHERE step = $1", [self.step]
        ).to_pylist():
            verdicts[row["context"]] = Verdict(None, row["status"], row["detail"])
        spent = 0.0
        for row in reader.sql(
            "SELECT context, response, finish_reason, kind, judge_cost FROM calls WHERE step = $1",
            [self.step],
        ).to_pylist():
            verdicts[row["context"]] = read_verdict(
                row["response"], row["finish_reason"], row["kind"] or "", self.scale
            )
            spent += row["judge_cost"] or 0.0
        return verdicts, spent


def _is_due(call: Call, known: Mapping[str, Verdict]) -> bool:
    """Whether a call is to be made: it was never made, or to make it again may help."""
    return call.context not in known or known[call.context].fault in ASKED_AGAIN


class _Judging:
    """Asking a judge for the verdicts that are missing; each is committed soon after it comes.

    The model answers in a thread, so that Ctrl-C ends the asking and not what is paid for.

    Args:
        judge: is asked.
        root: the cache, locked by the caller.
        due: the calls to make, by context.
        known: the judge's verdicts in the cache, by context.
        on_scored: called with (verdicts that came, verdicts that are asked for).
        max_spend: limit of the cost of the judge's verdicts in this cache; None is no limit.
        spent: what they have cost before.

    Attributes:
        spent: what they have cost by now.
        paid_calls: number of calls that were answered.
    """

    def __init__(
        self,
        judge: ModelJudge,
        root: Path,
        due: Mapping[str, Call],
        known: Mapping[str, Verdict],
        on_scored: OnScored,
        max_spend: float | None,
        spent: float,
    ) -> None:
        self._judge = judge
        self._writer = PartWriter(root)
        self._due = due
        self._earlier_faults = {context: verdict.fault for context, verdict in known.items()}
        self._on_scored = on_scored
        self._max_spend = max_spend
        self.spent = spent
        self.paid_calls = 0
        self._verdicts: dict[str, Verdict] = {}
        self._has_score = any(verdict.value is not None for verdict in known.values())
        self._is_interrupted = False
        # What is not committed yet.
        self._responses: list[tuple[Call, Response]] = []
        self._failures: dict[str, tuple[Call, Failure]] = {}
        self._began = perf_counter()
        self._last_commit = -inf  # the first verdict is committed at once

    def run(self) -> dict[str, Verdict]:
        """Ask for everything that is due; see `ModelJudge.verdicts`."""
        error: Exception | None = None
        try:
            calls = list(self._due.values())
            for _ in range(MAX_ATTEMPTS):
                for start in range(0, len(calls), PROMPTS_PER_RUN):
                    if not (self._is_over() or error):
                        error = self._ask(calls[start : start + PROMPTS_PER_RUN])
                calls = [
                    call
                    for call, failure in self._failures.values()
                    if failure.status in ASKED_AGAIN
                ]
        finally:
            self._commit(is_last=True)
        kept = sum(verdict.fault not in FAILURES for verdict in self._verdicts.values())
        summary = f"{kept:,} of {len(self._due):,} verdicts are kept, the same command goes on"
        if self._is_interrupted:
            raise Interrupted(f"interrupted: judge {self._judge.name}: {summary}")
        if isinstance(error, WorldError | RuntimeError | OSError):
            reason = str(error) if isinstance(error, WorldError) else reason_of(error)
            raise WorldError(f"the judge {self._judge.name} failed: {reason}; {summary}") from error
        if error:
            raise error
        unasked = Verdict(None, "unasked")
        return {context: self._verdicts.get(context, unasked) for context in self._due}

    def _is_over(self) -> bool:
        """Whether no further call is to be begun."""
        is_hopeless = not self._has_score and len(self._verdicts) >= HOPELESS_ANSWERS
        is_spent = self._max_spend is not None and self.spent >= self._max_spend
        return self._is_interrupted or is_hopeless or is_spent

    def _ask(self, calls: Sequence[Call]) -> Exception | None:
        """Make some calls, and take what comes; return the error that has ended it, if one has."""
        results: SimpleQueue[tuple[int, Answer] | Exception | None] = SimpleQueue()
        thread = Thread(target=self._generate, args=(calls, results), name="judge", daemon=True)
        thread.start()
        error: Exception | None = None
        while True:
            try:
                try:
                    result = results.get(timeout=TICK_S)
                except Empty:
                    self._commit()
                    continue
                if result is None:
                    return error
                if isinstance(result, Exception):
                    error = result
                    continue
                position, answer = result
                self._take(calls[position], answer)
                self._commit()
            except KeyboardInterrupt:
                if self._is_interrupted:  # the second one does not wait for what is under way
                    raise
                self._is_interrupted = True

    def _generate(self, calls: Sequence[Call], results: "SimpleQueue[Any]") -> None:
        """Answer prompts; runs in the thread."""
        try:
            prompts = [call.prompt for call in calls]
            for position, answer in self._judge.generator.generate(prompts, self._is_over):
                if isinstance(answer, Response):
                    # Here, because the next calls begin before the other thread sees this answer.
                    self.spent += answer.cost(self._judge.rate)
                results.put((position, answer))
        except Exception as error:  # whatever it is, the asking thread must know of it
            results.put(error)
        finally:
            results.put(None)

    def _take(self, call: Call, answer: Answer) -> None:
        """Keep an answer of the judge."""
        verdict = self._judge.read(answer)
        self._verdicts[call.context] = verdict
        self._has_score |= verdict.value is not None
        self._failures.pop(call.context, None)
        if isinstance(answer, Response):
            self.paid_calls += 1
            self._responses.append((call, answer))
        else:
            self._failures[call.context] = (call, answer)
        self._on_scored(len(self._verdicts), len(self._due))

    def _commit(self, is_last: bool = False) -> None:
        """Write the answers that came to the cache, if it is time; at the end failures as well."""
        now = perf_counter()
        pause = min(LATEST_COMMIT_S, max(SOONEST_COMMIT_S, COMMIT_SHARE * (now - self._began)))
        if self._responses and (is_last or now - self._last_commit >= pause):
            seconds = (now - max(self._last_commit, self._began)) / len(self._responses)
            rows = [self._row(call, response, seconds) for call, response in self._responses]
            self._writer.append("calls", pa.Table.from_pylist(rows, schema=CALLS_SCHEMA))
            self._responses.clear()
            self._last_commit = now
        if is_last:
            failures = [
                (call, failure)
                for call, failure in self._failures.values()
                if self._earlier_faults.get(call.context) != failure.status
            ]
            if failures:
                judge = self._judge
                self._writer.append(
                    "failures", failures_table(judge.name, failures, 1, judge.template)
                )
            self._failures.clear()

    def _row(self, call: Call, response: Response, seconds: float) -> dict[str, Any]:
        """Return the row of `calls` of a verdict."""
        judge = self._judge
        return {
            **call_row(judge.name, call, response, seconds),
            "judge_template": judge.template,
            "judge_scale": judge.scale_text,
            "judge_cost": response.cost(judge.rate),
        }


FAILURES = ("filtered", "too_long", "error")  # faults of calls that gave no response


def no_score_error(judge: str, detail: str) -> WorldError:
    """Return the error to raise if a judge has scored nothing.

    Args:
        judge: its name.
        detail: what it said instead.
    """
    return WorldError(
        f"the judge {judge} gave no score: {detail[-80:]!r}; what was scored before stays; "
        "change its prompt, or ask another model"
    )


# Reading a verdict.

# "Score: 7", "**Score:** 7.5 / 10", "score": 7; and what is no number in its place.
SCORE_PATTERN = re.compile(
    r"(?<![^\W_])score(?P<gap>\W{0,5}?)"
    r"(?:(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(?:nan|n/?a|none|null|unknown|inf(?:inity)?)\b)"
    r"(?=(?P<rest>[^\n]*))",
    re.IGNORECASE,
)
MARKS_REGEX = r"[\s*_`\"'(\[]*"
# "7/10", "7 out of 10": the highest score that the judge has in mind.
MAXIMUM_PATTERN = re.compile(
    rf"{MARKS_REGEX}(?:/|out\s+of\b|of\b){MARKS_REGEX}(?P<maximum>[0-9]+(?:\.[0-9]+)?)",
    re.IGNORECASE,
)
# What makes another number of it: "1.2.3", "1e5", "70%".
LONGER_NUMBER_PATTERN = re.compile(r"\.?\w|[%^]")
# "7 or 8", "7-8", "7, 8", "7,5": two numbers, or one that nobody can read for sure.
FURTHER_NUMBER_PATTERN = re.compile(
    rf"{MARKS_REGEX}(?:(?:[-~,;/+|]|or\b|to\b|and\b|\.\.+){MARKS_REGEX})?[-+.]?[0-9]", re.IGNORECASE
)
# The decimal separator of Arabic digits, which `fold` keeps.
DECIMAL_SEPARATORS = str.maketrans({"\N{ARABIC DECIMAL SEPARATOR}": "."})


def read_verdict(text: str, finish: str, kind: str, scale: tuple[float, float]) -> Verdict:
    """Read the score that a judge states last.

    A response that was cut is no verdict, whatever it states: "Score: 10" may have become
    "Score: 1". Nor is one that states two numbers, or one off the scale.

    Args:
        text: the judge's response; its thoughts do not count.
        finish: why it ended, as `Response.finish_reason`.
        kind: what it is if it is no answer, as `Response.kind`.
        scale: the lowest and the highest score.

    Returns:
        The verdict; its value is the score from 0 to 1, or None with the fault.
    """
    answer = without_thoughts(text)
    if finish == "length":
        return Verdict(None, "cut", answer)
    if kind or not answer.strip():
        return Verdict(None, kind or "empty", answer)
    score, fault = _last_score(fold(answer.translate(DECIMAL_SEPARATORS)), scale)
    return Verdict(score, fault, "" if fault == "" else answer)


def score_in(text: str, scale: tuple[float, float] = DEFAULT_SCALE) -> float | None:
    """Return the last score in a text, from 0 to 1; None if there is none, see `read_verdict`."""
    return read_verdict(text, "stop", "", scale).value


def _last_score(text: str, scale: tuple[float, float]) -> tuple[float | None, str]:
    """Return the last score in a text, from 0 to 1, or the fault."""
    match = _last(SCORE_PATTERN.finditer(text))
    if match is None or match["number"] is None:
        return None, "no_score"
    rest = match["rest"]
    lowest, highest = scale
    maximum = MAXIMUM_PATTERN.match(rest)
    if maximum:
        if float(maximum["maximum"]) != highest:
            return None, "off_scale"
        rest = rest[maximum.end() :]
    if LONGER_NUMBER_PATTERN.match(rest):
        return None, "no_score"
    if FURTHER_NUMBER_PATTERN.match(rest):
        return None, "several"
    number = float(match["number"])
    if match["gap"].endswith("-"):
        number = -number
    if not lowest <= number <= highest:
        return None, "off_scale"
    return (number - lowest) / (highest - lowest), ""


def _last(matches: Iterable[re.Match[str]]) -> re.Match[str] | None:
    last = None
    for match in matches:
        last = match
    return last
