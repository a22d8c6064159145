"""An audit of responses: do our scorers agree with given verdicts, and can the responses be judged?

A file of responses may have verdicts of its own, `given` scores. Where these and `accuracy` differ
often, one of them is wrong: references may be option numbers, or programs. Responses may be empty,
cut, or an error page that was stored as an answer. Token counts may be made up. All of this makes
the figures of a report wrong, and none of it raises an error, so it is counted and said.

An audit looks at up to `MAX_AUDITED` responses, drawn by a digest, so that it is the same each
time. It judges no verdict: a disagreement is a thing for a person to look at.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hierrouter.questions import final
from hierrouter.questions.answers import boxed, choice, exact_match, numeric
from hierrouter.questions.formulas import final_expressions
from hierrouter.questions.labels import label_of_reference, label_of_text, stated_labels
from hierrouter.questions.numbers import read_number
from hierrouter.questions.scoring import (
    ACCURACY,
    SCORERS_BY_NAME,
    ScorerInput,
    score_all,
    score_function_for,
)
from hierrouter_cache.keys import Choices, digest

MAX_AUDITED = 2000  # responses; the share of one kind is then known to about two percent
MAX_DISAGREEMENTS = 10  # that are shown
MAX_EXCERPT_CHARACTERS = 300  # of a response that is shown: its end, where its answer is
MIN_AGREEMENT = 0.95  # below, verdicts and `accuracy` measure something else
MIN_JUDGED = 10  # fewer verdicts of a dataset say nothing about agreement
MIN_DIFFERING = 3  # and so do fewer that differ
MIN_NOTABLE = 3  # responses of a kind; an error page is always named
MAX_LISTED = 4  # models or datasets in one sentence

# Why a response cannot be judged as an answer; the first one that fits counts.
ERROR_PAGE = "error page"
EMPTY = "empty"
CUT_THINKING = "cut while thinking"
CUT = "cut"
REFUSAL = "refusal"
SEVERAL = "two answers"
UNREAD = "unread"
# By kind: the share of a model's responses at which it is said. An answer that `accuracy` does not
# read is often just wrong, a word where a number was asked for.
NOTABLE_SHARES = {
    ERROR_PAGE: 0.0,
    EMPTY: 0.02,
    CUT_THINKING: 0.02,
    CUT: 0.05,
    REFUSAL: 0.02,
    SEVERAL: 0.1,
    UNREAD: 0.5,
}
KINDS = tuple(NOTABLE_SHARES)


@dataclass(frozen=True)
class Response:
    """One response as it is audited.

    Attributes:
        query: `dataset/id` of its query.
        dataset: name of the dataset.
        model: name of the model.
        question: text of the query.
        references: reference answers; empty if the query has none.
        choices: label and text of each choice, if they are known.
        prompt: text that the model was given.
        text: what the model wrote.
        verdict: the given score; None if there is none.
        is_cut: whether it ended at its cap of new tokens.
        tokens_in: tokens of the prompt.
        tokens_out: tokens of the response.
        where: file and row, for messages; empty if it is from a cache.
    """

    query: str
    dataset: str
    model: str
    question: str
    references: tuple[str, ...]
    choices: Choices
    prompt: str
    text: str
    verdict: float | None
    is_cut: bool
    tokens_in: int
    tokens_out: int
    where: str = ""

    @property
    def scorer_input(self) -> ScorerInput:
        """What a scorer can read about it."""
        return ScorerInput(
            self.text, self.references, self.question, self.prompt, self.choices, self.model
        )


@dataclass(frozen=True)
class ModelAudit:
    """The responses of one model.

    Attributes:
        model: its name.
        n: responses that were looked at.
        counts: how many of them are of each of `KINDS`; kinds without any are absent.
    """

    model: str
    n: int
    counts: Mapping[str, int]

    def share(self, kind: str) -> float:
        """The share of the responses that are of this kind."""
        return self.counts.get(kind, 0) / self.n


@dataclass(frozen=True)
class Agreement:
    """How often `accuracy` gives the given verdict.

    Attributes:
        dataset: name of the dataset.
        model: name of the model; "" for all of them.
        n: responses with a verdict of 0 or 1 that `accuracy` can judge.
        agreeing: how many of them have the same value by both.
    """

    dataset: str
    model: str
    n: int
    agreeing: int

    @property
    def share(self) -> float:
        """The share of the responses with the same value by both."""
        return self.agreeing / self.n


@dataclass(frozen=True)
class Disagreement:
    """A response that has one value by `accuracy` and another as given.

    Attributes:
        query: `dataset/id` of its query.
        model: name of the model.
        reference: the reference answers.
        read: what `accuracy` reads as the answer; "" if it reads none.
        accuracy: its value.
        verdict: the given value.
        response: the end of the response.
    """

    query: str
    model: str
    reference: str
    read: str
    accuracy: float
    verdict: float
    response: str


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        n: responses that were looked at.
        total: responses that there are.
        models: the responses of each model.
        agreements: of each dataset and model; none where no dataset has verdicts of 0 and 1 alone.
        disagreements: up to `MAX_DISAGREEMENTS`, spread over datasets and models.
        warnings: what makes figures wrong, most important first, a sentence each.
    """

    n: int
    total: int
    models: tuple[ModelAudit, ...]
    agreements: tuple[Agreement, ...]
    disagreements: tuple[Disagreement, ...]
    warnings: tuple[str, ...]

    @property
    def by_dataset(self) -> tuple[Agreement, ...]:
        """The agreement on each dataset, over all models."""
        return _agreements_by_dataset(self.agreements)

    @property
    def agreement_line(self) -> str:
        """The agreement in one sentence without a full stop; "" without verdicts to compare."""
        low = _low_agreements(self.agreements)
        if not self.agreements or len(low) == len(self.by_dataset):  # the warnings say all
            return ""
        n = sum(agreement.n for agreement in self.agreements)
        agreeing = sum(agreement.agreeing for agreement in self.agreements)
        line = f"accuracy agrees with the given scores on {_share(agreeing / n)} of {n:,} answers"
        datasets = sorted(self.by_dataset, key=lambda agreement: agreement.share)
        if len(datasets) > 1:
            shares = [f"{agreement.dataset} {_share(agreement.share)}" for agreement in datasets]
            line += f" ({_listed(shares)})"
        if self.n < self.total:
            line += f", drawn from {self.total:,}"
        return line


def audit_responses(
    responses: Sequence[Response],
    total: int | None = None,
    accuracy: Sequence[float | None] | None = None,
    counts_tokens: bool = True,
) -> Audit:
    """Audit responses that were drawn with `is_audited`, or all of them.

    Args:
        responses: to look at.
        total: responses that there are; default: these.
        accuracy: the value of each by `accuracy`, None for those that it cannot judge; default: it
            is computed.
        counts_tokens: whether `tokens_in` and `tokens_out` are counts of tokens.
    """
    if accuracy is None:
        accuracy = accuracy_values(responses)
    # A report says itself which models were cut, if engines say why a response ended.
    silent = {CUT} if any(response.is_cut for response in responses) else set()
    if counts_tokens:
        responses = _with_caps(responses)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    kinds = []
    for response, value in zip(responses, accuracy, strict=True):
        is_right = value == 1 or response.verdict == 1
        kind = kind_of(response, is_right)
        kinds.append(kind)
        counts[response.model][kind] += 1
    models = tuple(
        ModelAudit(
            model, of_model.total(), {kind: of_model[kind] for kind in KINDS if of_model[kind]}
        )
        for model, of_model in counts.items()
    )
    judged = _judged(responses, accuracy)
    agreements = _agreements(judged)
    low = _low_agreements(agreements)
    misread = {agreement.dataset for agreement in low}
    warnings = [
        *_disagreement_warnings(low, judged),
        *_unjudged_warnings(responses, accuracy),
        *_verdict_warnings(responses),
        *_kind_warnings(models, responses, kinds, misread, silent),
        *(token_doubts(responses) if counts_tokens else ()),
    ]
    return Audit(
        len(responses),
        len(responses) if total is None else total,
        models,
        agreements,
        _disagreements(judged),
        tuple(warnings),
    )


MIN_AT_CAP = 5  # responses of a model with its largest count of tokens, so that it is a cap
MIN_CAP = 64  # tokens
CAP_SHARE = 0.01  # of a model's responses that end at its cap, at least


def _with_caps(responses: Sequence[Response]) -> list[Response]:
    """Mark responses as cut if they have the largest number of tokens of their model, as many do.

    Most files do not say why a response ended.
    """
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for response in responses:
        counts[response.model][response.tokens_out] += 1
    caps = {}
    for model, of_model in counts.items():
        cap = max(of_model)
        needed = max(MIN_AT_CAP, CAP_SHARE * of_model.total())
        # If half of the counts are the same one, nobody counted them.
        if cap >= MIN_CAP and needed <= of_model[cap] < of_model.total() / 2:
            caps[model] = cap
    return [
        replace(response, is_cut=True)
        if response.tokens_out == caps.get(response.model)
        else response
        for response in responses
    ]


def draw_audited(names: Sequence[tuple[str, str]]) -> list[int]:
    """Draw up to `MAX_AUDITED` responses, always the same ones.

    Args:
        names: (query, model) of each response.

    Returns:
        Their positions, in order.
    """
    positions = range(len(names))
    if len(names) <= MAX_AUDITED:
        return list(positions)
    drawn = sorted(positions, key=lambda position: digest(["audit", *names[position]]))
    return sorted(drawn[:MAX_AUDITED])


def accuracy_values(responses: Sequence[Response]) -> list[float | None]:
    """The value of each response by `accuracy`; None for those that it cannot judge."""
    positions = [number for number, response in enumerate(responses) if response.references]
    inputs = [responses[number].scorer_input for number in positions]
    scores = score_all(SCORERS_BY_NAME[ACCURACY], inputs)
    values: list[float | None] = [None] * len(responses)
    for number, score in zip(positions, scores, strict=True):
        values[number] = None if math.isnan(score) else score  # NaN for programs
    return values


# Kinds of responses.

# What a server or a client says instead of an answer, at the beginning of a short text.
STATUS_REGEX = (
    r"(?:bad request|unauthorized|forbidden|not found|request time-?out|payload too large"
    r"|too many requests|internal server error|bad gateway|service (?:temporarily )?unavailable"
    r"|gateway time-?out)"
)
# "Error: ", "API error during the request: ", before what went wrong.
ERROR_PREFIX_REGEX = (
    r"[\W_]*(?:(?:api|server|request|litellm|openai)[ ._-]*)?(?:an? )?"
    r"(?:(?:error|exception|failed|failure)"
    r"(?: (?:code|calling|communicating with|during|in|occurred)[^:\n]{0,60})?\W{1,4})?"
)
ERROR_REGEXES = (
    r"http(?:s|/\d(?:\.\d)?)?[ :_-]*(?:status|error|code|response)?[ :_-]*(?:code)?[ :_-]*"
    r"[45]\d\d\b",
    rf"[45]\d\d\b\W{{0,4}}(?:client error|server error|{STATUS_REGEX})",
    r"(?:too many requests|internal server error|bad gateway|gateway time-?out"
    r"|service (?:temporarily )?unavailable)\W*$",
    r"(?:status|error)[ _]code\W{0,4}[45]\d\d\b",
    r"(?:the |your )?rate[ _-]?limit(?:s|ed)?(?: (?:is|was|has been))?(?: exceeded| reached|\W*$)",
    r"(?:rate ?limit|api(?:connection|status|timeout)?|service ?unavailable|timeout|connection"
    r"|authentication|badrequest|internalserver)error\b",
    r"(?:the )?(?:request |read |connection )?(?:timed out|timeout|refused|reset|aborted)\W*$",
    r"(?:the )?request failed with status code",
    r"connection error\W*$|max retries exceeded|upstream (?:connect error|request timeout)",
    r"(?:requests|urllib3|httpx|aiohttp|openai|anthropic|litellm|google)\.[\w.]+:",
    r"(?:you )?exceeded your current quota|insufficient[ _]quota|quota exceeded",
    r"(?:the )?model is (?:currently )?(?:overloaded|unavailable|loading)",
    r"this model's maximum context length is|context[ _]length[ _]exceeded",
    r"invalid (?:api key|request error)|incorrect api key",
    r"remote(?:disconnected| end closed connection)|ssl ?error",
)
ERROR_PAGE_PATTERN = re.compile(rf"{ERROR_PREFIX_REGEX}(?:{'|'.join(ERROR_REGEXES)})", re.I)
# A JSON object or a page of HTML whose only content is an error.
ERROR_OBJECT_PATTERN = re.compile(r'\s*\{\s*"?\'?(?:error|detail|object"?\s*:\s*"error)\b', re.I)
ERROR_HTML_PATTERN = re.compile(
    rf"\s*(?:<!doctype html[^>]*>\s*)?<html.{{0,400}}?<(?:title|h1)>\W*(?:error\W*)?"
    rf"(?:[45]\d\d\b|{STATUS_REGEX})",
    re.I | re.S,
)
MAX_ERROR_CHARACTERS = 2000  # a longer text is no error page
# "I'm sorry, but as an AI model", before what is refused.
APOLOGY_REGEX = (
    r"(?:(?:i['’]?m|i am|we['’]?re)? ?(?:very |so |really )?(?:sorry|afraid)\b"
    r"[^.!\n]{0,60}?[,.;!]? ?(?:but )?)?"
    r"(?:unfortunately,? )?(?:as an? (?:ai|artificial|large|language)[^,.]{0,60}, ?)?"
)
NOT_ABLE_REGEX = (
    r"(?:i|we) (?:can['’]?t|cannot|can not|could not|couldn['’]?t|won['’]?t|will not"
    r"|(?:am|['’]m|are) (?:not able|unable|not allowed|not permitted) to"
    r"|(?:do|don['’]?t) (?:not )?feel comfortable)"
)
REFUSED_REGEX = (
    r"(?:help|assist|fulfil|comply|provide|answer|discuss|respond|engage|continue|do that|create"
    r"|generate|support|complete|participate|with)"
)
REFUSAL_REGEXES = (
    rf"{APOLOGY_REGEX}{NOT_ABLE_REGEX} ?(?:in good conscience )?{REFUSED_REGEX}",
    rf"{APOLOGY_REGEX}i (?:must|have to) (?:decline|refuse)\b",
    r"(?:sorry|抱歉|对不起)\W{0,3}我?(?:无法|不能)",
    r"(?:this|the) (?:request|prompt|response|content) (?:was|has been|is) (?:blocked|filtered"
    r"|flagged)",
    r"content (?:policy|filter)",
)
REFUSAL_PATTERN = re.compile(rf"\W*(?:{'|'.join(REFUSAL_REGEXES)})", re.I)
MAX_REFUSAL_CHARACTERS = 1500
NULL_TEXTS = frozenset({"nan", "null", "none", "<na>", "n/a", "undefined"})  # of an empty cell


def kind_of(response: Response, is_right: bool = False) -> str:
    """Why a response cannot be judged as an answer, one of `KINDS`; "" if it can.

    Args:
        response: to look at.
        is_right: whether it is right by some scorer, so that it is an answer whatever it looks
            like.
    """
    text = response.text.strip()
    if is_right:
        return ""
    if is_error_page(text):
        return ERROR_PAGE
    if not text or (text.lower() in NULL_TEXTS and text not in response.references):
        return EMPTY
    readable = final.readable_text(response.text)
    if not readable.strip():
        # A finished thought without anything after it is as good as empty.
        is_open = final.CLOSING_TAG_PATTERN.search(text) is None
        return CUT_THINKING if response.is_cut or is_open else EMPTY
    if response.is_cut:
        return CUT
    if len(readable) <= MAX_REFUSAL_CHARACTERS and REFUSAL_PATTERN.match(readable):
        return REFUSAL
    if not response.references:
        return ""
    read, count = read_answer(readable, response.references, response.choices)
    if read:
        return ""
    return SEVERAL if count > 1 else UNREAD


def is_error_page(text: str) -> bool:
    """Whether a text is what a server or a client says instead of an answer."""
    if len(text) > MAX_ERROR_CHARACTERS:
        return False
    patterns = (ERROR_PAGE_PATTERN, ERROR_OBJECT_PATTERN, ERROR_HTML_PATTERN)
    return any(pattern.match(text) for pattern in patterns)


def read_answer(readable: str, references: Sequence[str], choices: Choices = ()) -> tuple[str, int]:
    """What `accuracy` reads of a response.

    Args:
        readable: see `hierrouter.questions.final.readable_text`.
        references: reference answers; the first one that is no text decides how it is read.
        choices: label and text of each choice, if they are known.

    Returns:
        (the answer, "" if there is none or more than one; how many answers there are).
    """
    functions = [score_function_for(reference) for reference in references]
    function = next((other for other in functions if other is not exact_match), exact_match)
    if function is numeric:
        reading = read_number(readable)
        if reading.value is not None or reading.is_formula:
            return reading.text.strip() or str(reading.value), 1
        return "", len(set(NUMBERS_PATTERN.findall(reading.text)))
    if function is choice:
        labels = stated_labels(readable, choices)
        if not labels:
            label = label_of_text(readable, choices)
            return label or "", int(label is not None)
        is_single = all(label_of_reference(reference) for reference in references)
        if is_single and len(labels) > 1:
            return "", len(labels)
        return ", ".join(sorted(labels)), 1
    if function is boxed:
        expression = final_expressions(readable)[-1]
        return expression, int(bool(expression))
    stated = final.stated_text(readable)
    text = readable.strip() if stated is None else stated
    return text, int(bool(text))


NUMBERS_PATTERN = re.compile(r"\d+(?:[.,]\d+)*")


# Agreement with given verdicts.

Judged = tuple[Response, float, float]  # a response, its value by `accuracy`, its verdict


def _judged(responses: Sequence[Response], accuracy: Sequence[float | None]) -> list[Judged]:
    """The responses of datasets all of whose verdicts are 0 or 1."""
    graded = {response.dataset for response in responses if response.verdict not in (None, 0, 1)}
    return [
        (response, value, response.verdict)
        for response, value in zip(responses, accuracy, strict=True)
        if response.verdict is not None and value is not None and response.dataset not in graded
    ]


def _agreements(judged: Sequence[Judged]) -> tuple[Agreement, ...]:
    n: Counter[tuple[str, str]] = Counter()
    agreeing: Counter[tuple[str, str]] = Counter()
    for response, value, verdict in judged:
        name = (response.dataset, response.model)
        n[name] += 1
        agreeing[name] += value == verdict
    return tuple(Agreement(*name, count, agreeing[name]) for name, count in sorted(n.items()))


def _agreements_by_dataset(agreements: Iterable[Agreement]) -> tuple[Agreement, ...]:
    totals: dict[str, Agreement] = {}
    for agreement in agreements:
        total = totals.get(agreement.dataset, Agreement(agreement.dataset, "", 0, 0))
        totals[agreement.dataset] = replace(
            total, n=total.n + agreement.n, agreeing=total.agreeing + agreement.agreeing
        )
    return tuple(totals.values())


def _disagreements(judged: Sequence[Judged]) -> tuple[Disagreement, ...]:
    """Some disagreements, of each dataset and model one before a second one of any."""
    differing = [row for row in judged if row[1] != row[2]]
    differing.sort(key=lambda row: digest(["disagreement", row[0].query, row[0].model]))
    seen: Counter[tuple[str, str]] = Counter()
    ranked: list[tuple[int, int, Judged]] = []
    for row in differing:
        name = (row[0].dataset, row[0].model)
        ranked.append((seen[name], len(ranked), row))
        seen[name] += 1
    ranked.sort(key=lambda entry: entry[:2])
    return tuple(_disagreement(*row) for *_, row in ranked[:MAX_DISAGREEMENTS])


def _disagreement(response: Response, value: float, verdict: float) -> Disagreement:
    readable = final.readable_text(response.text)
    read, _ = read_answer(readable, response.references, response.choices)
    text = response.text
    if len(text) > MAX_EXCERPT_CHARACTERS:
        text = f"…{text[-MAX_EXCERPT_CHARACTERS:]}"
    return Disagreement(
        query=response.query,
        model=response.model,
        reference=" | ".join(response.references)[:MAX_EXCERPT_CHARACTERS],
        read=read[:MAX_EXCERPT_CHARACTERS],
        accuracy=value,
        verdict=verdict,
        response=text,
    )


def _low_agreements(agreements: Sequence[Agreement]) -> list[Agreement]:
    """The datasets on which `accuracy` and the verdicts often differ, the worst one first."""
    by_dataset = sorted(_agreements_by_dataset(agreements), key=lambda agreement: agreement.share)
    return [
        agreement
        for agreement in by_dataset
        if agreement.n >= MIN_JUDGED
        and agreement.n - agreement.agreeing >= MIN_DIFFERING
        and agreement.share < MIN_AGREEMENT
    ]


def _disagreement_warnings(low: Sequence[Agreement], judged: Sequence[Judged]) -> list[str]:
    """A sentence for each dataset on which `accuracy` and the verdicts often differ."""
    warnings = []
    for agreement in low[:MAX_LISTED]:
        rows = [row for row in judged if row[0].dataset == agreement.dataset]
        warnings.append(
            f"{agreement.dataset}: accuracy agrees with the given scores on only "
            f"{_share(agreement.share)} of {agreement.n:,} answers: {likely_cause(rows)}"
        )
    if len(low) > MAX_LISTED:
        warnings.append(
            f"accuracy agrees with the given scores below {_share(MIN_AGREEMENT)} on "
            f"{len(low) - MAX_LISTED} more datasets: trust --scorer given there"
        )
    return warnings


def _unjudged_warnings(
    responses: Sequence[Response], accuracy: Sequence[float | None]
) -> list[str]:
    """Name datasets with given scores that cannot be compared, because answers are programs."""
    unjudged = Counter(
        response.dataset
        for response, value in zip(responses, accuracy, strict=True)
        if response.verdict is not None and response.references and value is None
    )
    if not unjudged:
        return []
    return [
        f"given scores of {_listed(list(unjudged))} are not compared: the references are programs, "
        "which only tests judge"
    ]


MAX_TRIED = 200  # responses on which a cause is tried
CLEAR_AGREEMENT = 0.9  # with which a cause is taken for the right one
MAX_OPTIONS = 26
OPTION_LINE_PATTERN = re.compile(r"^[ \t]*\(?([A-Z])[.):][ \t]*(.+?)[ \t]*$", re.M)
LONG_REFERENCE_WORDS = 12


def likely_cause(judged: Sequence[Judged]) -> str:
    """The likely cause of a low agreement on one dataset, with a remedy.

    A cause is tried where that is possible: the references are changed, and the responses are
    judged again.
    """
    rows = judged[:MAX_TRIED]
    for cause, change in REFERENCE_CHANGES.items():
        changed = [(_with_references(response, change), verdict) for response, _, verdict in rows]
        fitting = [(response, verdict) for response, verdict in changed if response is not None]
        if len(fitting) <= len(rows) / 2:
            continue
        values = accuracy_values([response for response, _ in fitting])
        agreeing = sum(
            value == verdict for value, (_, verdict) in zip(values, fitting, strict=True)
        )
        if agreeing / len(fitting) >= CLEAR_AGREEMENT:
            return cause
    agreeing = sum(value == verdict for _, value, verdict in judged)
    if 1 - agreeing / len(judged) >= CLEAR_AGREEMENT:
        return "the scores seem to be 1 where the answer is wrong; turn them round, 1 - score"
    long = sum(
        all(len(reference.split()) > LONG_REFERENCE_WORDS for reference in response.references)
        and all(score_function_for(text) is exact_match for text in response.references)
        for response, *_ in rows
    )
    if long > len(rows) / 2:
        return (
            "references are worked out; put the result alone into a column final_answer, or use "
            "--scorer given"
        )
    differing = [response for response, value, verdict in rows if value != verdict]
    unread = sum(kind_of(response) != "" for response in differing)
    if unread > len(differing) / 2:
        return (
            f"{unread} of {len(differing)} that differ state no answer that it can read; look at "
            "some of them in the report, or use --scorer given"
        )
    return "look at some of them in the report's page or JSON; until then use --scorer given"


def _option_number(first: int) -> Callable[[Response], str | None]:
    """A change of a reference that is the number of an option, counted from `first`."""

    def change(response: Response) -> str | None:
        reference = response.references[0].strip()
        if not (reference.isascii() and reference.isdigit() and len(reference) <= 2):
            return None
        number = int(reference) - first
        return chr(ord("A") + number) if 0 <= number < MAX_OPTIONS else None

    return change


def _option_text(response: Response) -> str | None:
    """The label of the option whose text the reference is."""
    options = response.choices or OPTION_LINE_PATTERN.findall(response.question)
    reference = response.references[0].strip().casefold()
    labels = [label for label, text in options if text.strip().casefold() == reference]
    return labels[0] if len(labels) == 1 else None


# By the cause of a low agreement, with its remedy: the reference as it would have to be.
REFERENCE_CHANGES: Mapping[str, Callable[[Response], str | None]] = {
    "references are numbers of options from 0; write their labels (A for 0), or use --scorer "
    "given": _option_number(0),
    "references are numbers of options from 1; write their labels (A for 1), or use --scorer "
    "given": _option_number(1),
    "references are texts of options and answers are labels; write the labels, or use --scorer "
    "given": _option_text,
}


def _with_references(
    response: Response, change: Callable[[Response], str | None]
) -> Response | None:
    """The response with another reference; None if the change does not fit its reference."""
    reference = change(response)
    return None if reference is None else replace(response, references=(reference,))


def _verdict_warnings(responses: Sequence[Response]) -> list[str]:
    """Say that verdicts are all the same."""
    verdicts = [response.verdict for response in responses if response.verdict is not None]
    if len(verdicts) < MIN_JUDGED or len(set(verdicts)) > 1:
        return []
    return [
        f"all given scores are {verdicts[0]:g}: they tell no answer from another; are they "
        "verdicts?"
    ]


def _kind_warnings(
    models: Sequence[ModelAudit],
    responses: Sequence[Response],
    kinds: Sequence[str],
    misread: Collection[str],
    silent: Collection[str],
) -> list[str]:
    """A sentence for each kind of response that some model has often.

    Args:
        models: the responses of each model, by kind.
        responses: all of them.
        kinds: the kind of each.
        misread: datasets on which `accuracy` reads something else than was asked for, so that it
            does not matter what it does not read.
        silent: kinds of which nothing is said.
    """
    warnings = []
    for kind in KINDS:
        if kind in silent:
            continue
        is_reading = kind in (SEVERAL, UNREAD)
        of_kind = [
            response
            for response, other in zip(responses, kinds, strict=True)
            if other == kind and not (is_reading and response.dataset in misread)
        ]
        notable = [model for model in models if of_kind and _is_notable(model, kind)]
        notable.sort(key=lambda model: -model.share(kind))
        if not notable:
            continue
        shares = [f"{_share(model.share(kind))} of {model.model}" for model in notable]
        example = of_kind[0]
        named = example.where or f"{example.query} of {example.model}"
        quoted = f": {' '.join(example.text.split())[:60]!r}" if kind == ERROR_PAGE else ""
        warnings.append(
            f"{KIND_WORDS[kind]}: {_listed(shares)}, e.g. {named}{quoted}; {KIND_REMEDIES[kind]}"
        )
    return warnings


def _is_notable(model: ModelAudit, kind: str) -> bool:
    if kind == ERROR_PAGE:
        return kind in model.counts
    return model.share(kind) >= NOTABLE_SHARES[kind] and model.counts.get(kind, 0) >= MIN_NOTABLE


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many there are more."""
    more = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


KIND_WORDS = {
    ERROR_PAGE: "answers that are error messages of a server",
    EMPTY: "empty answers",
    CUT_THINKING: "answers that were cut while the model was thinking",
    CUT: "answers that were cut at their cap of tokens",
    REFUSAL: "answers that refuse",
    SEVERAL: "answers that state two answers, which count as none",
    UNREAD: "answers in which accuracy reads no answer",
}
KIND_REMEDIES = {
    ERROR_PAGE: "these calls failed, make them again or take the rows out",
    EMPTY: "they count as wrong",
    CUT_THINKING: "give the model more max_new_tokens",
    CUT: "give the model more max_new_tokens",
    REFUSAL: "they count as wrong",
    SEVERAL: "ask for one in the prompt",
    UNREAD: "ask for one in the prompt, or use another --scorer",
}


# Token counts that nobody counted.

MIN_COUNTED = 5  # responses of a model, to doubt its counts
MIN_WORD_RATIO = 2  # by which texts with equal counts differ at least, in words
MIN_WORD_DIFFERENCE = 3
# More characters than this a token, over all texts of a model, no tokenizer gives: 3 to 5 are usual
# in English, up to 8 in words and code that a tokenizer knows, 1 to 2 in Chinese.
MAX_CHARACTERS_PER_TOKEN = 10
MIN_COUNTED_CHARACTERS = 1000  # of the texts of a model, so that a long word is no evidence
ZERO_SHARE = 0.02  # of the responses that have a text, but no tokens
SAME_AS_SHARE = 0.98  # of the responses whose count is that of something else


def token_doubts(responses: Sequence[Response]) -> list[str]:
    """Doubt counts of tokens that no tokenizer can have given, a sentence each.

    Counts are doubted if they are all zero or all the same although the texts differ, if they are
    too small for the texts, or if they are the numbers of words or characters.
    """
    by_model: dict[str, list[Response]] = defaultdict(list)
    for response in responses:
        by_model[response.model].append(response)
    columns: dict[str, Callable[[Response], tuple[int, str]]] = {
        "tokens_in": lambda response: (response.tokens_in, response.prompt),
        "tokens_out": lambda response: (response.tokens_out, response.text),
    }
    models_by_doubt: dict[tuple[str, str], list[str]] = {}
    for name, column in columns.items():
        for model, of_model in by_model.items():
            doubt, detail = _count_doubt(name, [column(response) for response in of_model])
            if doubt:
                detailed = f"{model} ({detail})" if detail else model
                models_by_doubt.setdefault((name, doubt), []).append(detailed)
    return [
        f"the counts of {name} of {_listed(models)} look made up: {doubt}; C rests on them, so "
        "count tokens with the models' own tokenizers"
        for (name, doubt), models in models_by_doubt.items()
    ]


def _count_doubt(name: str, counted: Sequence[tuple[int, str]]) -> tuple[str, str]:
    """Why the counts of one model's texts cannot be right.

    Args:
        name: of the column.
        counted: the count of each text, and the text.

    Returns:
        (the reason in words, "" if they can be right; a detail of this model, which may be empty).
    """
    written = [(count, text) for count, text in counted if text.strip()]
    if len(written) < MIN_COUNTED:
        return "", ""
    counts = [count for count, _ in written]
    zeros = counts.count(0)
    if zeros == len(counts):
        return f"{name} is 0, zero tokens, on all answers", ""
    words = [len(text.split()) for _, text in written]
    least = min(words)
    most = max(words)
    differ = most >= MIN_WORD_RATIO * least and most - least >= MIN_WORD_DIFFERENCE
    if differ and len(set(counts)) == 1:
        reason = f"{name} is the same number of tokens on every answer, though the texts differ"
        return reason, f"{counts[0]:,} for {least:,} to {most:,} words"
    characters = sum(len(text) for _, text in written)
    if characters >= MIN_COUNTED_CHARACTERS and characters > MAX_CHARACTERS_PER_TOKEN * sum(counts):
        reason = f"{name} is too small for the texts, of which 3 to 5 characters are a token"
        return reason, f"{characters / sum(counts):,.0f} characters a token"
    if zeros >= max(MIN_COUNTED, ZERO_SHARE * len(counts)):
        reason = f"{name} is 0, zero tokens, on answers that have a text"
        return reason, f"{zeros:,} of {len(counts):,}"
    if differ:
        for unit, measure in TEXT_MEASURES.items():
            same = sum(count == measure(text) for count, text in written)
            if same >= SAME_AS_SHARE * len(written):
                return f"{name} is the number of {unit}", ""
    return "", ""


TEXT_MEASURES: Mapping[str, Callable[[str], int]] = {
    "characters": len,
    "words": lambda text: len(text.split()),
}


def _share(share: float) -> str:
    """A share with three digits, as scores are printed."""
    return f"{share:.3f}"
