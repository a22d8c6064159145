"""Scorers by name: the quality Q of a response, measured by us or by a function of the user's."""

from __future__ import annotations

import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

from hierrouter.questions.answers import (
    BOX,
    MARK,
    boxed,
    choice,
    exact_match,
    numeric,
    plain_number,
    token_f1,
)
from hierrouter.questions.own_code import import_path, own_code, source_digest, source_file
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import Choices, digest


class ScoreFunction(Protocol):
    """Quality of `response` in [0, 1] against the best matching of `references`."""

    def __call__(self, response: str, references: Sequence[str], /) -> float: ...


@dataclass(frozen=True)
class Scorer:
    """One way to measure Q.

    Attributes:
        name: what a user types.
        version: changes whenever the same response could get another value.
        function: a `ScoreFunction`; computes the value from stored text alone.
        reads_choices: whether it takes label and text of each choice besides, where there are some.
    """

    name: str
    version: str
    function: Callable[..., float]
    reads_choices: bool = False

    @property
    def key(self) -> str:
        """What a cache stores beside a value: one of another version is never read as this one."""
        return f"{self.name}@{self.version}"

    def __call__(self, response: str, references: Sequence[str], choices: Choices = ()) -> float:
        """The quality of `response` in [0, 1].

        Raises:
            InputError: there are no references, or a user's own function failed or gave no number
                in [0, 1].
        """
        if not references:
            raise InputError(
                f"{self.name} needs reference answers, and a query has none; "
                "imported without them it has given scores: --scorer given"
            )
        if choices and self.reads_choices:
            return self.function(response, references, choices)
        return self.function(response, references)


def scorer(name: str) -> Scorer:
    """The scorer of this name, or the user's own function at `module:function`.

    Raises:
        InputError: nothing of this name, or a function that cannot be used.
    """
    if name == GIVEN.name:
        return GIVEN
    if name in SCORERS:
        return SCORERS[name]
    if ":" in name:
        return own_scorer(name)
    known = suggestion(name, [*SCORERS, GIVEN.name])
    raise InputError(f"unknown scorer: {name}; {known}or give your own as module:function")


def score_all(
    scorer: Scorer,
    asked: Sequence[tuple[str, Sequence[str], Choices]],
    on_scored: Callable[[int, int], None] = lambda done, total: None,
) -> list[float]:
    """The value of each (response, references, choices); equal ones are computed once.

    Args:
        scorer: how to measure.
        asked: what to measure.
        on_scored: told (done, total) of the distinct ones after each.

    Raises:
        InputError: a user's own function failed or gave no number in [0, 1].
    """
    items = [
        (response, tuple(references), tuple(choices)) for response, references, choices in asked
    ]
    distinct = dict.fromkeys(items, 0.0)
    for done, item in enumerate(distinct, start=1):
        distinct[item] = scorer(*item)
        on_scored(done, len(distinct))
    return [distinct[item] for item in items]


LABEL = re.compile(r"[A-J]")


def accuracy(response: str, references: Sequence[str], choices: Choices = ()) -> float:
    """1 where the response is right, by the scorer that each reference's form asks for."""
    return max(_judged(response, reference, choices) for reference in references)


def _judged(response: str, reference: str, choices: Choices) -> float:
    judge = judged_by(reference)
    if judge is choice:
        return choice(response, [reference], choices)
    return judge(response, [reference])


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
    if BOX.search(reference):
        return boxed
    return choice if LABEL.fullmatch(reference.strip()) else exact_match


# Raise the number of a scorer whenever one of its values can change.
JUDGES = (
    Scorer("numeric", "1", numeric),
    Scorer("boxed", f"1-math-verify-{version('math-verify')}", boxed),
    Scorer("choice", "2", choice, reads_choices=True),
    Scorer("exact_match", "1", exact_match),
)
BUILT_IN = (
    Scorer("token_f1", "1", token_f1),
    # Its values are those of the others, so their versions are part of its own.
    Scorer("accuracy", f"1-{digest([judge.key for judge in JUDGES])[:8]}", accuracy, True),
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

    Raises:
        InputError: the path is not `module:function`, the module cannot be imported, has no such
            function, or the function does not take (response, references).
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
    _require_two_arguments(function, path)
    return Scorer(path, source_digest(module, function), _checked(function, path))


def _require_two_arguments(function: Any, path: str) -> None:
    try:
        inspect.signature(function).bind("response", ("reference",))
    except TypeError:
        raise InputError(
            f"scorer takes other arguments: {path}; write def {path.partition(':')[2]}"
            "(response, references) -> float"
        ) from None
    except ValueError:  # written in C, it does not tell
        return


def _checked(function: Any, path: str) -> ScoreFunction:
    def score(response: str, references: Sequence[str], /) -> float:
        call = f"on the response {_short(response)!r}"
        with own_code(f"scorer failed: {path}", call):
            value = function(response, tuple(references))
        number = _number(value)
        if not 0 <= number <= 1:  # nor is NaN
            raise InputError(
                f"scorer gave {_short(repr(value))}: {path}; {call}; a score is from 0 to 1"
            )
        return number

    return score


def _number(value: Any) -> float:
    """The value as a float; NaN where it is no number."""
    if isinstance(value, str | bytes):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _short(text: str) -> str:
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}..."
