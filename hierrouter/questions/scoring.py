"""Scorers by name: the quality Q of a response, measured by us or by a function of the user's."""

import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.metadata import version
from typing import Any, Protocol

from hierrouter.questions.answers import boxed, choice, exact_match, numeric, plain_number, token_f1
from hierrouter.questions.final import BOX, MARK
from hierrouter.questions.own_code import import_path, own_code, source_digest, source_file
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import Choices, digest


class ScoreFunction(Protocol):
    """Quality of `response` in [0, 1] against the best matching of `references`."""

    def __call__(self, response: str, references: Sequence[str], /) -> float: ...


@dataclass(frozen=True)
class Asked:
    """All that a scorer may look at.

    Attributes:
        references: reference answers; none where the query has none.
        question: as it was asked, with a line for each choice.
        choices: label and text of each choice, where there are some.
    """

    response: str
    references: tuple[str, ...] = ()
    question: str = ""
    context: str = ""
    choices: Choices = ()
    model: str = ""


READABLE = tuple(field.name for field in fields(Asked))
# The same of a function that scores several at once: it is given lists.
IN_BATCHES = {
    "responses": "response",
    "references": "references",
    "questions": "question",
    "contexts": "context",
    "choices": "choices",
    "models": "model",
}
BATCH = 256  # asked at once


@dataclass(frozen=True)
class Scorer:
    """One way to measure Q.

    Attributes:
        name: what a user types.
        version: changes whenever the same response could get another value.
        function: is given what it reads, in that order, and returns the value; one that scores in
            batches is given a list of each and returns the values.
        reads: fields of `Asked`.
        in_batches: whether it scores several at once.
    """

    name: str
    version: str
    function: Callable[..., Any]
    reads: tuple[str, ...] = ("response", "references")
    in_batches: bool = False

    @property
    def key(self) -> str:
        """What a cache stores beside a value: one of another version is never read as this one."""
        return f"{self.name}@{self.version}"

    def __call__(
        self, response: str, references: Sequence[str] = (), choices: Choices = (), **more: str
    ) -> float:
        """The quality of `response` in [0, 1].

        Args:
            more: question, context and model, for scorers that read them.

        Raises:
            InputError: there are no references where it reads them, or a user's own function failed
                or gave no number in [0, 1].
        """
        return self.values([Asked(response, tuple(references), choices=tuple(choices), **more)])[0]

    def values(self, asked: Sequence[Asked]) -> list[float]:
        """The quality of each response, in [0, 1]; raises InputError: as above."""
        if "references" in self.reads and not all(one.references for one in asked):
            raise InputError(
                f"{self.name} needs reference answers, and a query has none; "
                "imported without them it has given scores: --scorer given"
            )
        rows = [self.seen(one) for one in asked]
        if self.in_batches:
            return list(self.function(*map(list, zip(*rows, strict=True)))) if rows else []
        return [self.function(*row) for row in rows]

    def seen(self, asked: Asked) -> tuple[Any, ...]:
        """What it looks at; the value depends on nothing else."""
        return tuple(getattr(asked, name) for name in self.reads)


def scorer(name: str) -> Scorer:
    """The scorer of this name, or the user's own function at `module:function`.

    Raises:
        InputError: nothing of this name, or a function that cannot be used.
    """
    known = {**SCORERS, GIVEN.name: GIVEN}
    if name in known:
        return known[name]
    if ":" in name:
        return own_scorer(name)
    meant = suggestion(name, [*known])
    raise InputError(f"unknown scorer: {name}; {meant}or give your own as module:function")


def score_all(
    scorer: Scorer,
    asked: Sequence[Asked],
    on_scored: Callable[[int, int], None] = lambda done, total: None,
) -> list[float]:
    """The value of each response; what looks the same to the scorer is computed once.

    Raises InputError: a user's own function failed or gave no number in [0, 1].
    """
    first = {scorer.seen(one): one for one in reversed(asked)}
    distinct = [*dict.fromkeys(map(scorer.seen, asked))]
    size = BATCH if scorer.in_batches else 1
    values: dict[Any, float] = {}
    for start in range(0, len(distinct), size):
        part = distinct[start : start + size]
        values |= zip(part, scorer.values([first[one] for one in part]), strict=True)
        on_scored(len(values), len(distinct))
    return [values[scorer.seen(one)] for one in asked]


LABEL = re.compile(r"[A-J]")
# A formula without a box: a command that only mathematics has.
FORMULA = re.compile(r"\\(?:[dt]?frac|sqrt|pi|left|text|begin|infty|cup|circ|cdot|in|pm)(?![a-z])")


def accuracy(response: str, references: Sequence[str], choices: Choices = ()) -> float:
    """1 where the response is right, by the scorer that each reference's form asks for."""
    return max(_judged(response, reference, choices) for reference in references)


def _judged(response: str, reference: str, choices: Choices) -> float:
    judge = judged_by(reference)
    if judge is choice:
        return choice(response, [reference], choices)
    return judge(response, [reference])


# GSM8K's references hold the sums of a calculator, <<3*4=12>>, which no reader is to see.
ANNOTATION = re.compile(r"<<[^<>\n]{1,200}>>")


def without_annotations(answer: str) -> str:
    """A reference that marks its result as GSM8K's do, without the calculator's sums."""
    return ANNOTATION.sub("", answer) if MARK in answer else answer


def with_final(answers: Sequence[str], final: str) -> tuple[str, ...]:
    """The references of a query whose result is `final`.

    That is one reference more where no answer states its result in a form of its own.
    """
    if any(judged_by(answer) is not exact_match for answer in answers):
        return tuple(answers)
    return tuple(dict.fromkeys((*answers, final)))


def judged_by(reference: str) -> ScoreFunction:
    """The scorer that tells right from wrong for a reference of this form."""
    if MARK in reference or plain_number(reference) is not None:
        return numeric
    if BOX.search(reference) or FORMULA.search(reference):
        return boxed
    return choice if LABEL.fullmatch(reference.strip()) else exact_match


WITH_CHOICES = ("response", "references", "choices")

# Raise the number of a scorer whenever one of its values can change.
JUDGES = (
    Scorer("numeric", "2", numeric),
    Scorer("boxed", f"2-math-verify-{version('math-verify')}", boxed),
    Scorer("choice", "3", choice, WITH_CHOICES),
    Scorer("exact_match", "2", exact_match),
)
BUILT_IN = (
    Scorer("token_f1", "2", token_f1),
    # Its values are those of the others, so their versions are part of its own.
    Scorer("accuracy", f"2-{digest([judge.key for judge in JUDGES])[:8]}", accuracy, WITH_CHOICES),
    *JUDGES,
)
SCORERS: Mapping[str, Scorer] = {scorer.name: scorer for scorer in BUILT_IN}


def _given(response: str, references: Sequence[str]) -> float:
    raise InputError(
        f"no score was imported with the response {response!r:.40}; "
        "take another --scorer, or import a file that has one for each answer"
    )


GIVEN = Scorer("given", "1", _given)


EXCERPT = 40  # characters of a response in an error


def own_scorer(path: str) -> Scorer:
    """The function at an import path, checked at every call.

    Raises InputError: the path is not `module:function`, the module cannot be imported, has no such
    function, or the function takes what there is not.
    """
    module_name, attribute = import_path(path, "--scorer module:function")
    remedy = "the module must be importable from here or installed"
    with own_code(f"scorer cannot be imported: {path}", remedy):
        module = importlib.import_module(module_name)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InputError(
            f"no function {attribute} in module {module_name}: {source_file(module)}; "
            f"--scorer {path} needs one"
        )
    needed, optional = _parameters(function, path)
    in_batches = needed[0] == "responses"
    reads = [IN_BATCHES[name] if in_batches else name for name in (*needed, *optional)]

    def call(*values: Any) -> Any:
        place = len(needed)
        return function(*values[:place], **dict(zip(optional, values[place:], strict=True)))

    checked = (_checked_batch if in_batches else _checked)(call, path)
    return Scorer(path, source_digest(module, function), checked, tuple(reads), in_batches)


def _parameters(function: Any, path: str) -> tuple[list[str], list[str]]:
    """What a function of the user's own reads, by place, and what it does by name if it is there.

    The first two may have any name where they are all that it needs: a response and its references.
    """
    usual = ["response", "references"]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # written in C, it does not tell
        return usual, []
    by_place = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, POSITIONAL)]
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return usual, []
    names = [one.name for one in by_place if one.default is one.empty]
    known = tuple(IN_BATCHES) if "responses" in names[:1] else READABLE
    if len(names) == 2 and names[0] != "responses" and names[1] not in known:
        names = usual
    elif names and names[0] not in known and len(names) <= 2:
        names[0] = "response"
    by_name = [one for one in parameters if one.kind in (POSITIONAL, one.KEYWORD_ONLY)]
    optional = [one.name for one in by_name if one.name in known and one.name not in names]
    left = [one for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    unknown = [name for name in (*names, *(one.name for one in left)) if name not in known]
    if unknown or not names:
        what = f"takes {unknown[0]}, which is not known" if unknown else "takes nothing"
        raise InputError(
            f"scorer {what}: {path}; it may take {', '.join(READABLE)}, or for batches "
            f"{', '.join(IN_BATCHES)}"
        )
    return names, optional


POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _checked(function: Any, path: str) -> Callable[..., float]:
    def score(response: str, *more: Any) -> float:
        call = f"on the response {_short(response)!r}"
        with own_code(f"scorer failed: {path}", call):
            value = function(response, *more)
        return _in_range(value, path, call)

    return score


def _checked_batch(function: Any, path: str) -> Callable[..., list[float]]:
    def scores(responses: list[str], *more: Any) -> list[float]:
        call = f"on {len(responses)} responses, the first {_short(responses[0])!r}"
        with own_code(f"scorer failed: {path}", call):
            values = list(function(responses, *more))
        if len(values) != len(responses):
            raise InputError(
                f"scorer gave {len(values)} numbers: {path}; {call}; a batch gets one for each"
            )
        pairs = zip(values, responses, strict=True)
        return [_in_range(one, path, f"on the response {_short(said)!r}") for one, said in pairs]

    return scores


def _in_range(value: Any, path: str, call: str) -> float:
    number = math.nan
    with suppress(TypeError, ValueError, OverflowError):
        number = math.nan if isinstance(value, str | bytes) else float(value)
    if not 0 <= number <= 1:  # nor is NaN
        raise InputError(
            f"scorer gave {_short(repr(value))}: {path}; {call}; a score is from 0 to 1"
        )
    return number


def _short(text: str) -> str:
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}..."
