"""One declaration for each job: a frozen dataclass whose fields are also the command's flags.

A job is declared like this:

    @declaration
    class Train:
        alpha: Annotated[float, Flag("--alpha", "X", "Price of cost.", check=check_alpha)] = 0.005

        def run(self, tree: Tree) -> Run: ...

`hr.train(tree, alpha=0.5)` is `Train(alpha=0.5).run(tree)`, and `hierrouter train --alpha 0.5`
makes the same object from its flags. So a default, a rule or a line of help has one place.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, dataclass_transform

from hierrouter_cache.errors import InputError, suggestion

Class = TypeVar("Class", bound=type)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# From the text or the value that the user gave, and the name to call it by in a message (see
# `shown_name`), to the value of the field. It raises InputError, and returns a value that it has
# returned before as it is.
Check = Callable[[Any, str], Any]


@dataclasses.dataclass(frozen=True)
class Flag:
    """How a field of a declaration appears on the command line.

    Attributes:
        name: the flag, such as `--alpha`; "" for a positional argument.
        metavar: what stands for its value in the help; "" for a switch without a value.
        help: one line.
        group: the heading that it stands below in a long help page; None for the command's own.
        check: turns text, or a value from Python, into the field's value, and refuses others.
        minimum: smallest number allowed.
        maximum: largest number allowed.
        completions: words that the shell offers.
        is_list: whether the value is a list with commas, of which each item is completed.
    """

    name: str
    metavar: str = ""
    help: str = ""
    group: str | None = None
    check: Check | None = None
    minimum: float | None = None
    maximum: float | None = None
    completions: Sequence[str] = ()
    is_list: bool = False


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One field of a declaration with its flag.

    Attributes:
        name: of the field, and of the argument in Python.
        type: as annotated, without the flag.
        default: of the field; `inspect.Parameter.empty` if it must be given.
    """

    name: str
    type: Any
    default: Any
    flag: Flag


# Whether messages name flags, as on the command line, or arguments, as in Python.
_names_flags: ContextVar[bool] = ContextVar("names_flags", default=False)


@contextmanager
def messages_name_flags() -> Iterator[None]:
    """Let messages name flags (`--alpha`) instead of arguments (`alpha=`) in this block."""
    token = _names_flags.set(True)
    try:
        yield
    finally:
        _names_flags.reset(token)


def shown_name(declared: type, field: str) -> str:
    """Return how messages call a field of a declaration now: `--alpha` or `alpha=`."""
    if _names_flags.get():
        for parameter in parameters_of(declared):
            if parameter.name == field:
                return parameter.flag.name or parameter.flag.metavar
    return f"{field}="


def shown_value(name: str, value: object) -> str:
    """Return how messages show a value below the name of `shown_name`: `--alpha -1`, `alpha=-1`."""
    return f"{name}{value!r}" if name.endswith("=") else f"{name} {value}"


@functools.cache
def parameters_of(declared: type) -> tuple[Parameter, ...]:
    """Return the fields of a declaration that have a flag, in their order."""
    hints = inspect.get_annotations(declared, eval_str=True)
    for base in declared.__mro__[1:-1]:
        hints = {**inspect.get_annotations(base, eval_str=True), **hints}
    parameters = []
    for field in dataclasses.fields(declared):
        annotation = hints[field.name]
        extras = getattr(annotation, "__metadata__", ())
        flags = [extra for extra in extras if isinstance(extra, Flag)]
        if not flags:
            continue
        default: Any = inspect.Parameter.empty
        if field.default is not dataclasses.MISSING:
            default = field.default
        parameters.append(Parameter(field.name, annotation.__origin__, default, flags[0]))
    return tuple(parameters)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def declaration(declared: Class) -> Class:
    """Make a class a declaration: a frozen dataclass with keyword arguments that checks them.

    Raises:
        TypeError: when an object is made, an argument has no such name; the message has the
            nearest one.
        InputError: when an object is made, a value is refused by its flag.
    """
    dataclasses.dataclass(frozen=True, kw_only=True)(declared)
    assign_fields: Callable[..., None] = vars(declared)["__init__"]
    names = [field.name for field in dataclasses.fields(declared)]

    @functools.wraps(assign_fields)
    def initialise(self: Any, /, **arguments: Any) -> None:
        refuse_unknown_names(declared.__name__, arguments, names)
        assign_fields(self, **_checked(declared, arguments))

    type.__setattr__(declared, "__init__", initialise)
    return declared


def _checked(declared: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as their flags turn them into values.

    Raises:
        InputError: a value is refused.
    """
    checked = dict(arguments)
    for parameter in parameters_of(declared):
        value = arguments.get(parameter.name)
        if value is None:
            continue
        flag = parameter.flag
        name = shown_name(declared, parameter.name)
        if flag.check:
            checked[parameter.name] = flag.check(value, name)
        if flag.minimum is not None and value < flag.minimum:
            raise InputError(f"must be at least {flag.minimum}: {shown_value(name, value)}")
        if flag.maximum is not None and value > flag.maximum:
            raise InputError(f"must be at most {flag.maximum}: {shown_value(name, value)}")
    return checked


def refuse_unknown_names(owner: str, arguments: Iterable[str], names: Sequence[str]) -> None:
    """Refuse arguments that a function or a class does not have.

    Args:
        owner: name of the function or class.
        arguments: names that were given.
        names: names that there are.

    Raises:
        TypeError: one is not there; the message has the nearest name.
    """
    for argument in arguments:
        if argument not in names:
            hint = suggestion(argument, names).rstrip("; ")
            raise TypeError(f"{owner}() has no argument {argument!r}; {hint}")


def function_of(
    declared: type,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Mark a function of the package's face as that of a declaration.

    The function has the fields of the declaration as arguments, written out for editors and type
    checkers. A test holds both equal.

    Args:
        declared: the declaration.

    Raises:
        TypeError: when the function is called, an argument has no such name; the message has the
            nearest one.
    """

    def mark(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        names = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            refuse_unknown_names(function.__name__, kwargs, names)
            return function(*args, **kwargs)

        call.declaration = declared  # type: ignore[attr-defined]
        return call

    return mark


# Callbacks that jobs call while they are at work, and functions that do nothing with them.

# Called with a line that a person should know.
OnNote = Callable[[str], None]
# Called with the name of a task of the job, how much of it is done, and how much there is in all.
OnTask = Callable[[str, int, int], None]
# Called with how much is done, and how much there is in all.
OnCount = Callable[[int, int], None]


def ignore_note(note: str) -> None:
    """Do nothing with a note: the `OnNote` of a caller that prints none."""


def ignore_task(task: str, done: int, total: int) -> None:
    """Do nothing: the `OnTask` of a caller without a progress bar."""


def ignore_count(done: int, total: int) -> None:
    """Do nothing: the `OnCount` of a caller without a progress bar."""
