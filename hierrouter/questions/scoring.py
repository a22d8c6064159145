"""Scorers by name: functions that give a response its quality Q.

The built-in ones are functions of `hierrouter.questions.answers`. A user's own function is named by
its import path, `module:function`.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import version
from itertools import zip_longest
from typing import Any, Literal, Protocol

from hierrouter.questions.answers import boxed, choice, exact_match, numeric, token_f1
from hierrouter.questions.final import BOX_PATTERN, GSM8K_MARK, without_thoughts
from hierrouter.questions.labels import label_of_reference, labels_of_reference
from hierrouter.questions.numbers import parse_number
from hierrouter.questions.own_code import import_path, own_code, source_digest, source_file
from hierrouter.questions.programs import (
    JUDGE_VERSION,
    PYTHON,
    NoConfinement,
    Program,
    is_code,
    judge,
    program_of,
)
from hierrouter.questions.reading import READERS, Reading, read_answer
from hierrouter_cache.errors import InputError, WorldError, suggestion
from hierrouter_cache.keys import Choices, digest
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.walk import RUNS_SCORER_NAME, RUNS_SCORER_VERSION


class ScoreFunction(Protocol):
    """Quality of `response` in [0, 1]: the best over all `references`."""

    def __call__(self, response: str, references: Sequence[str], /) -> float: ...


@dataclass(frozen=True)
class ScorerInput:
    """All that a scorer can read about one response.

    Attributes:
        response: text of the model.
        references: reference answers; empty if the query has none.
        question: text of the query, with a line for each choice.
        context: text that the model was given.
        choices: label and text of each choice; empty if the query has none.
        model: name of the model.
        tests: statements that judge a program; empty if the query has none.
    """

    response: str
    references: tuple[str, ...] = ()
    question: str = ""
    context: str = ""
    choices: Choices = ()
    model: str = ""
    tests: tuple[str, ...] = ()
    answer_type: str = ""


SCORER_ARGUMENTS = tuple(field.name for field in fields(ScorerInput))
# Arguments of a function that scores several responses at once: each is a list of the values of one
# field of `ScorerInput`.
BATCH_ARGUMENTS = {
    "responses": "response",
    "references": "references",
    "questions": "question",
    "contexts": "context",
    "choices": "choices",
    "models": "model",
    "tests": "tests",
    "answer_types": "answer_type",
}
Tags = Sequence[tuple[str, str]]  # opening and closing tag of each kind of thought
SCORING_BATCH_SIZE = 256  # responses in one call of such a function


@dataclass(frozen=True)
class Verdict:
    """What a judge says of one response.

    Attributes:
        value: the quality, in [0, 1]; None if there is none.
        fault: why there is none, a key of `hierrouter.engines.judge.FAULTS`; else "".
        detail: what came instead, for messages.
    """

    value: float | None
    fault: str = ""
    detail: str = ""


class Judge(Protocol):
    """Scores responses by calls that may fail, and keeps what came in the cache.

    Attributes:
        name: of the model.
        currency: of what its calls cost.
        paid_calls: calls that it has answered for this object.
        paid: what they have cost.
    """

    name: str
    currency: str
    paid_calls: int
    paid: float

    def verdicts(
        self,
        reader: CacheReader,
        inputs: Sequence[ScorerInput],
        on_scored: Callable[[int, int], None],
        max_spend: float | None = None,
    ) -> list[Verdict]:
        """Judge responses, see `hierrouter.engines.judge.ModelJudge.verdicts`."""
        ...


@dataclass(frozen=True)
class Scorer:
    """One way to measure Q.

    Attributes:
        name: what a user types.
        version: changes whenever the same response could get another value.
        function: takes the fields that it reads, in that order, and returns the value. A function
            that scores in batches takes a list for each field and returns the values.
        reads: fields of `ScorerInput`.
        in_batches: whether the function scores several responses at once.
        thought_tags: further tags of thoughts, which the scorer does not read, by model.
        judge: gives the values if they are verdicts that are paid for, and may be missing; None for
            all scorers that compute them.
    """

    name: str
    version: str
    function: Callable[..., Any]
    reads: tuple[str, ...] = ("response", "references")
    in_batches: bool = False
    thought_tags: Mapping[str, Tags] = field(default_factory=dict)
    judge: Judge | None = None

    @property
    def key(self) -> str:
        """Name and version, as stored in a cache: values of another version are not read."""
        tags = f"-tags-{digest(self.thought_tags)[:8]}" if self.thought_tags else ""
        return f"{self.name}@{self.version}{tags}"

    def for_models(self, thought_tags: Mapping[str, Tags]) -> Scorer:
        """The scorer for models that write thoughts in tags of their own.

        Args:
            thought_tags: of each model that has some, by name.

        Returns:
            a scorer that does not read these thoughts; this one if it reads no answer, as
            `token_f1` and a user's own.
        """
        reads_answers = self.name in (ACCURACY, *READERS) and self in SCORERS_BY_NAME.values()
        return replace(self, thought_tags=thought_tags) if reads_answers and thought_tags else self

    def __call__(
        self,
        response: str,
        references: Sequence[str] = (),
        choices: Choices = (),
        *,
        question: str = "",
        context: str = "",
        model: str = "",
        answer_type: str = "",
    ) -> float:
        """Score one response.

        Args:
            response: text of a model.
            references: reference answers.
            choices: label and text of each choice.
            question: for scorers that read it.
            context: for scorers that read it.
            model: name of the model, for scorers that read it.
            answer_type: declared or inferred type of the answer, see `TYPE_SCORERS`.

        Returns:
            the quality, in [0, 1].

        Raises:
            InputError: the scorer reads references and there are none, or a user's own function
                failed or returned something else than a number in [0, 1].
        """
        scorer_input = ScorerInput(
            response, tuple(references), question, context, tuple(choices), model, (), answer_type
        )
        return self.values([scorer_input])[0]

    def values(self, inputs: Sequence[ScorerInput]) -> list[float]:
        """Score several responses.

        Returns:
            the quality of each response, in [0, 1].

        Raises:
            InputError: see `__call__`.
        """
        if "references" in self.reads and not all(row.references for row in inputs):
            raise InputError(
                f"{self.name} needs reference answers, and a query has none; "
                "imported without them it has given scores: --scorer given"
            )
        rows = [self.arguments(row) for row in inputs]
        if not self.in_batches:
            return [self.function(*row) for row in rows]
        if not rows:
            return []
        columns = [list(column) for column in zip(*rows, strict=True)]
        return list(self.function(*columns))

    def reading(self, scorer_input: ScorerInput) -> Reading | None:
        """What the scorer reads of a response; None for `token_f1` and a user's own scorer."""
        name = self.name
        if name == ACCURACY:
            name = _accuracy_reader(scorer_input.references, scorer_input.choices)
            if scorer_input.answer_type:
                name = TYPE_SCORERS[scorer_input.answer_type].__name__
        if name not in READERS:
            return None
        response = self._without_thoughts(scorer_input).response
        reading = read_answer(name, response, scorer_input.references, scorer_input.choices)
        return reading.moved(max(scorer_input.response.rfind(response), 0))

    def _without_thoughts(self, scorer_input: ScorerInput) -> ScorerInput:
        """The input without the thoughts that only the tags of its model show."""
        tags = self.thought_tags.get(scorer_input.model)
        if not tags:
            return scorer_input
        return replace(scorer_input, response=without_thoughts(scorer_input.response, tags))

    def arguments(self, scorer_input: ScorerInput) -> tuple[Any, ...]:
        """The fields that the scorer reads; the value depends on nothing else."""
        scorer_input = self._without_thoughts(scorer_input)
        return tuple(getattr(scorer_input, name) for name in self.reads)


def scorer(name: str) -> Scorer:
    """The scorer of this name, or the user's own function at `module:function`.

    Raises:
        InputError: there is no scorer of this name, or the function cannot be used.
    """
    registered = {**SCORERS_BY_NAME, GIVEN_SCORER.name: GIVEN_SCORER}
    if name in registered:
        return registered[name]
    if ":" in name:
        return own_scorer(name)
    hint = suggestion(name, [*registered])
    raise InputError(f"unknown scorer: {name}; {hint}or give your own as module:function")


def score_all(
    scorer: Scorer,
    inputs: Sequence[ScorerInput],
    on_scored: Callable[[int, int], None] = lambda done, total: None,
) -> list[float]:
    """Score many responses; inputs that are equal for the scorer are scored once.

    Args:
        scorer: any scorer.
        inputs: one for each response.
        on_scored: called after each batch with (values computed, values to compute in all).

    Returns:
        the quality of each response, in [0, 1].

    Raises:
        InputError: see `Scorer.__call__`.
    """
    return [value for value, _ in judge_all(scorer, inputs, on_scored)]


def judge_all(
    scorer: Scorer,
    inputs: Sequence[ScorerInput],
    on_scored: Callable[[int, int], None] = lambda done, total: None,
) -> list[tuple[float, Reading | None]]:
    """Score many responses as `score_all` does, and return what was read of each as well."""
    arguments = [scorer.arguments(row) for row in inputs]
    distinct: dict[tuple[Any, ...], ScorerInput] = {}
    for key, row in zip(arguments, inputs, strict=True):
        distinct.setdefault(key, row)
    keys = list(distinct)
    batch_size = SCORING_BATCH_SIZE if scorer.in_batches else 1
    judged: dict[tuple[Any, ...], tuple[float, Reading | None]] = {}
    for start in range(0, len(keys), batch_size):
        batch = keys[start : start + batch_size]
        rows = [distinct[key] for key in batch]
        readings = map(scorer.reading, rows)
        judged.update(zip(batch, zip(scorer.values(rows), readings, strict=True), strict=True))
        on_scored(len(judged), len(keys))
    return [judged[key] for key in arguments]


ACCURACY = "accuracy"


# The scorer `accuracy`: right or wrong, by the form of each reference.

# A formula without a box: a command that only mathematics has.
MATH_COMMAND_PATTERN = re.compile(
    r"\\(?:[dt]?frac|sqrt|pi|left|text|begin|infty|cup|circ|cdot|in|pm)(?![a-z])"
)


# How an answer of each type is compared, if its type is declared, or inferred from a whole dataset.
TYPE_SCORERS: Mapping[str, Callable[..., float]] = {
    "number": numeric,
    "expression": boxed,
    "set": boxed,
    "interval": boxed,
    "label": choice,
    "labels": choice,
    "text": exact_match,
}


def accuracy(
    response: str, references: Sequence[str], choices: Choices = (), answer_type: str = ""
) -> float:
    """1 if the response is right, else 0.

    Each reference is compared by the scorer for its form: a number, a formula, a label or a text.

    Args:
        response: text of a model.
        references: reference answers; one match is enough.
        choices: label and text of each choice.
        answer_type: a key of `TYPE_SCORERS`; "" if the form of each reference tells its type.

    Returns:
        1 or 0; NaN if all references are programs: the text of a program is not right or wrong.
    """
    texts = [reference for reference in references if not is_code(reference)]
    if references and not texts:
        return math.nan
    if answer_type:
        function = TYPE_SCORERS[answer_type]
        further = (choices,) if function is choice else ()
        return function(response, texts, *further)
    return max(_accuracy_for(response, reference, choices) for reference in texts)


def _accuracy_for(response: str, reference: str, choices: Choices) -> float:
    function = score_function_for(reference)
    is_label = reference in {label for label, _ in choices}  # perhaps beyond the usual A to J
    if is_label or function is choice:
        return choice(response, [reference], choices)
    return function(response, [reference])


def _accuracy_reader(references: Sequence[str], choices: Choices = ()) -> str:
    """Name of the scorer by which `accuracy` compares references: the first that is no text's."""
    if not {label for label, _ in choices}.isdisjoint(references):
        return choice.__name__
    functions = [score_function_for(reference) for reference in references]
    names = [getattr(function, "__name__", "") for function in functions]
    text = exact_match.__name__
    return next((name for name in names if name != text), text)


# What references of a form are, for messages; by the scorer that fits them.
REFERENCE_FORMS = {
    "numeric": "numbers",
    "choice": "labels of choices",
    "boxed": "formulas",
    "accuracy": "of several forms",
}


def fitting_scorer(
    references: Sequence[Sequence[str]],
    choices: Sequence[Choices] = (),
    answer_types: Sequence[str] = (),
) -> Literal["numeric", "choice", "boxed", "accuracy"] | None:
    """The scorer that tells right from wrong for all references of some queries.

    Args:
        references: of each query.
        choices: of each query, label and text of each; empty if no query has any.
        answer_types: of each query, see `TYPE_SCORERS`; empty if no query has any.

    Returns:
        a key of `REFERENCE_FORMS`; None if references are texts, which `token_f1` fits, or missing.
    """
    if not references or not all(references):
        return None
    if any(is_code(answer) for answers in references for answer in answers):
        return None
    names = {
        TYPE_SCORERS[answer_type].__name__ if answer_type else _accuracy_reader(answers, offered)
        for answers, offered, answer_type in zip_longest(
            references, choices or [()] * len(references), answer_types
        )
    }
    if exact_match.__name__ in names:
        return None
    if names == {"numeric"}:
        return "numeric"
    if names == {"choice"}:
        return "choice"
    return "boxed" if names == {"boxed"} else "accuracy"


def look_of(references: Sequence[str]) -> str:
    """Name of the scorer that fits the look of a query's references."""
    return _accuracy_reader(references)


def score_function_for(reference: str) -> ScoreFunction:
    """The function that tells right from wrong for a reference of this form."""
    if GSM8K_MARK in reference or parse_number(reference) is not None:
        return numeric
    if label_of_reference(reference) or labels_of_reference(reference):
        return choice
    if BOX_PATTERN.search(reference) or MATH_COMMAND_PATTERN.search(reference):
        return boxed
    return exact_match


# References of GSM8K contain sums for a calculator, <<3*4=12>>, which no reader should see.
CALCULATOR_PATTERN = re.compile(r"<<[^<>\n]{1,200}>>")


def without_annotations(answer: str) -> str:
    """A reference without the calculator's sums, if it marks its result as GSM8K does."""
    return CALCULATOR_PATTERN.sub("", answer) if GSM8K_MARK in answer else answer


def with_final_answer(answers: Sequence[str], final_answer: str) -> tuple[str, ...]:
    """The references of a query, with its result as one more if no answer states it.

    An answer states its result if it is a number, a formula or a label; see `score_function_for`.
    """
    if any(score_function_for(answer) is not exact_match for answer in answers):
        return tuple(answers)
    return tuple(dict.fromkeys((*answers, final_answer)))


CHOICE_ARGUMENTS = ("response", "references", "choices")

# The scorers that `accuracy` uses. Raise the version of a scorer whenever one of its values can
# change.
ACCURACY_SCORERS = (
    Scorer("numeric", f"3-math-verify-{version('math-verify')}", numeric),
    Scorer("boxed", f"3-math-verify-{version('math-verify')}", boxed),
    Scorer("choice", "4", choice, CHOICE_ARGUMENTS),
    Scorer("exact_match", "3", exact_match),
)
BUILT_IN_SCORERS = (
    Scorer("token_f1", "2", token_f1),
    Scorer(
        ACCURACY,
        # Its values are those of the other scorers, so their versions are part of its version.
        f"4-{digest([scorer.key for scorer in ACCURACY_SCORERS])[:8]}",
        accuracy,
        (*CHOICE_ARGUMENTS, "answer_type"),
    ),
    *ACCURACY_SCORERS,
)
SCORERS_BY_NAME: Mapping[str, Scorer] = {scorer.name: scorer for scorer in BUILT_IN_SCORERS}


def passes_tests(responses: Sequence[str], tests: Sequence[Sequence[str]]) -> list[float]:
    """1 for each response whose program passes all tests, else 0.

    Programs run in confined processes, see `hierrouter.questions.programs`. Call it only if the
    user has asked for it (`--run-code`).

    Args:
        responses: texts of models.
        tests: those of each response.

    Raises:
        WorldError: programs cannot be confined on this machine; none was run.
    """
    programs = [
        Program(program_of(without_thoughts(response), statements), tuple(statements))
        for response, statements in zip(responses, tests, strict=True)
    ]
    try:
        return [float(verdict.is_right) for verdict in judge(programs)]
    except NoConfinement as error:
        raise WorldError(
            f"programs cannot be confined here, so none was run: --run-code: {error}; take Linux "
            "5.14 or later with user namespaces, or leave it out, see docs/security.md"
        ) from error


# Verdicts of tests depend on the version of Python. `accuracy` takes them for programs.
TEST_SCORER = Scorer(
    "tests",
    f"{JUDGE_VERSION}-run-code-py{PYTHON}",
    passes_tests,
    ("response", "tests"),
    in_batches=True,
)


def _refuse_to_score(response: str, references: Sequence[str]) -> float:
    raise InputError(
        f"no score was imported with the response {response!r:.40}; "
        "take another --scorer, or import a file that has one for each answer"
    )


# Scores that were imported with the responses; they are read from the cache and never computed.
GIVEN_SCORER = Scorer("given", "1", _refuse_to_score)
# No scorer for users: under this name a cache keeps, of an imported log, the share of the runs of a
# call that had the response.
RUNS_SCORER = Scorer(RUNS_SCORER_NAME, RUNS_SCORER_VERSION, _refuse_to_score)


# A user's own function.

MAX_QUOTED_CHARACTERS = 40  # of a response in an error


def own_scorer(path: str) -> Scorer:
    """The function at an import path; what it returns is checked at every call.

    Args:
        path: `module:function`.

    Raises:
        InputError: the path has another form, the module cannot be imported, it has no such
            function, or the function takes arguments that no scorer has.
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
    required, optional = _argument_names(function, path)
    in_batches = required[0] == "responses"
    reads = [*required, *optional]
    if in_batches:
        reads = [BATCH_ARGUMENTS[name] for name in reads]

    def call(*values: Any) -> Any:
        count = len(required)
        keywords = dict(zip(optional, values[count:], strict=True))
        return function(*values[:count], **keywords)

    check = _checked_batch_function if in_batches else _checked_function
    return Scorer(
        path, source_digest(module, function), check(call, path), tuple(reads), in_batches
    )


def _argument_names(function: Any, path: str) -> tuple[list[str], list[str]]:
    """The arguments of a user's own function by the names that scorers have.

    A function with two required arguments, or with one, may call them as it likes: they are the
    response and its references.

    Returns:
        the required arguments, in the order of the positions, and the optional ones that a scorer
        can give by keyword.

    Raises:
        InputError: an argument that no scorer has, or no argument at all.
    """
    usual_names = ["response", "references"]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a function written in C may have no signature
        return usual_names, []
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return usual_names, []
    required = [
        parameter.name
        for parameter in parameters
        if parameter.kind in POSITIONAL_KINDS and parameter.default is inspect.Parameter.empty
    ]
    allowed = tuple(BATCH_ARGUMENTS) if required[:1] == ["responses"] else SCORER_ARGUMENTS
    if len(required) == 2 and required[0] != "responses" and required[1] not in allowed:
        required = usual_names
    elif required and required[0] not in allowed and len(required) <= 2:
        required[0] = "response"
    optional = [
        parameter.name
        for parameter in parameters
        if parameter.kind in KEYWORD_KINDS
        and parameter.name in allowed
        and parameter.name not in required
    ]
    required_keywords = [
        parameter.name
        for parameter in parameters
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        and parameter.default is inspect.Parameter.empty
    ]
    unknown = [name for name in (*required, *required_keywords) if name not in allowed]
    if unknown or not required:
        problem = f"takes {unknown[0]}, which is not known" if unknown else "takes nothing"
        raise InputError(
            f"scorer {problem}: {path}; it may take {', '.join(SCORER_ARGUMENTS)}, or for batches "
            f"{', '.join(BATCH_ARGUMENTS)}"
        )
    return required, optional


POSITIONAL_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _checked_function(function: Any, path: str) -> Callable[..., float]:
    def score(response: str, *arguments: Any) -> float:
        call = f"on the response {_excerpt(response)!r}"
        with own_code(f"scorer failed: {path}", call):
            value = function(response, *arguments)
        return _checked_score(value, path, call)

    return score


def _checked_batch_function(function: Any, path: str) -> Callable[..., list[float]]:
    def scores(responses: list[str], *arguments: Any) -> list[float]:
        call = f"on {len(responses)} responses, the first {_excerpt(responses[0])!r}"
        with own_code(f"scorer failed: {path}", call):
            values = list(function(responses, *arguments))
        if len(values) != len(responses):
            raise InputError(
                f"scorer gave {len(values)} numbers: {path}; {call}; a batch gets one for each"
            )
        return [
            _checked_score(value, path, f"on the response {_excerpt(response)!r}")
            for value, response in zip(values, responses, strict=True)
        ]

    return scores


def _checked_score(value: Any, path: str, call: str) -> float:
    """The value as a number.

    Raises:
        InputError: it is no number in [0, 1].
    """
    number = math.nan
    if not isinstance(value, str | bytes):  # float() would read a text
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value)
    if not 0 <= number <= 1:  # NaN fails, too
        raise InputError(
            f"scorer gave {_excerpt(repr(value))}: {path}; {call}; a score is from 0 to 1"
        )
    return number


def _excerpt(text: str) -> str:
    if len(text) <= MAX_QUOTED_CHARACTERS:
        return text
    return f"{text[:MAX_QUOTED_CHARACTERS]}..."
