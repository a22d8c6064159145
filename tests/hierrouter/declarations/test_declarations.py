"""A job is declared once: Python and the command line have the same arguments and rules."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest

import hierrouter as hr
from hierrouter.declarations.checks import check_alpha, check_alphas, check_cost, check_share
from hierrouter.declarations.declaration import (
    Flag,
    Parameter,
    declaration,
    messages_name_flags,
    parameters_of,
)
from hierrouter.runs.train import Sweep, Train
from hierrouter_cache.errors import InputError
from hierrouter_cli.declared import declaration_arguments
from tests.cli.commands import commands

# What a function has besides the fields of its declaration: what it works on, and callbacks.
BESIDES = {"tree", "price_lists", "run", "progress", "on_note"}
# Values that mean that an argument was not given.
ABSENT: tuple[Any, ...] = (None, (), False, inspect.Parameter.empty)
# Fields of a declaration that a function takes under another name, as an object.
OTHERWISE = {"checkpoint": "run", "price": "prices"}


def declared_functions() -> dict[str, Callable[..., Any]]:
    """The functions of the package's face that have a declaration, by name."""
    functions = {name: getattr(hr, name) for name in hr.__all__}
    return {name: each for name, each in functions.items() if hasattr(each, "declaration")}


FUNCTIONS = declared_functions()


def test_jobs_are_declared() -> None:
    assert {"open", "train", "sweep"} <= set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_arguments_of_its_declaration(name: str) -> None:
    function = FUNCTIONS[name]
    arguments = dict(inspect.signature(function).parameters)
    for argument in arguments.values():  # so that editors can complete them
        assert argument.kind is not argument.VAR_KEYWORD
        assert argument.annotation is not argument.empty
    expected = {}
    for parameter in parameters_of(function.declaration):
        argument_name = parameter.name
        if argument_name not in arguments:
            argument_name = OTHERWISE.get(argument_name, argument_name)
        expected[argument_name] = parameter.default
    assert set(arguments) - BESIDES == set(expected) - BESIDES
    for argument_name, default in expected.items():
        given = arguments[argument_name].default
        both_absent = given in ABSENT and default in ABSENT
        assert given == default or both_absent or given is inspect.Parameter.empty, argument_name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_documents_every_argument(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    documented = textwrap.dedent(text.partition("Args:\n")[2].partition("\n\n")[0])
    names = {line.partition(":")[0] for line in documented.splitlines() if line[:1].strip()}
    assert names == set(inspect.signature(FUNCTIONS[name]).parameters)


# A value of each field that is not its default.
SAMPLES: dict[str, Any] = {
    "draw": "mean",
    "adaptive": True,
    "algo": "exact",
    "allow_endpoints": ["localhost"],
    "alpha": 0.25,
    "alphas": [0.0, 0.25],
    "base_url": "http://127.0.0.1:1",
    "baselines": ["knn"],
    "budget": 2.5,
    "datasets": ["arith"],
    "defer_share": 0.5,
    "engine": "ray",
    "figures": ["svg"],
    "format": "llmrouter",
    "log_to": ["csv"],
    "max_spend": 2.5,
    "models": ["calc"],
    "p95_below": 2.5,
    "policies": ["module:name"],
    "preset": "paper",
    "price": ["calc=1"],
    "price_of_second": 0.5,
    "prices": {"calc": 1.0},
    "sets": ["A"],
    "share": 0.5,
    "split": "train",
    "timeout": 2.5,
    "until": 0.5,
    "without": ["calc"],
}


def sample(parameter: Parameter) -> Any:
    """A value that the flag takes, other than the default."""
    if parameter.name in SAMPLES:
        return SAMPLES[parameter.name]
    if not parameter.flag.metavar:
        return True
    kinds = [parameter.type, *get_args(parameter.type)]
    if int in kinds:
        return 7
    if float in kinds:
        return 0.5
    return Path("given") if Path in kinds else "given"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_reaches_its_declaration(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    function = FUNCTIONS[name]
    declared = function.declaration
    monkeypatch.chdir(tmp_path)
    jobs: list[Any] = []

    def keep(job: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        jobs.append(job)
        return job, job

    # A declaration may have a second function, called as its method.
    monkeypatch.setattr(declared, name if hasattr(declared, name) else "run", keep)
    signature = inspect.signature(function)
    arguments: dict[str, Any] = {}
    expected = {}
    for parameter in parameters_of(declared):
        if parameter.name in signature.parameters:
            arguments[parameter.name] = sample(parameter)
            job = declared(**{**required(declared), parameter.name: sample(parameter)})
            expected[parameter.name] = getattr(job, parameter.name)
    for argument in signature.parameters.values():
        if argument.name not in arguments and argument.default is argument.empty:
            arguments[argument.name] = "given"
    function(**arguments)
    [job] = jobs
    for field, value in expected.items():
        assert getattr(job, field) == value, field


def required(declared: type) -> dict[str, Any]:
    """A value of each field without a default."""
    return {
        parameter.name: sample(parameter)
        for parameter in parameters_of(declared)
        if parameter.default is inspect.Parameter.empty
    }


def declarations_of(command: Any) -> list[type]:
    """The declarations among the arguments of a command's function."""
    return list(declaration_arguments(inspect.unwrap(command.callback)).values())


def test_a_command_has_the_flags_of_its_declarations() -> None:
    with_declarations = 0
    for path, command in commands():
        options = {option.name: option for option in command.params}
        for declared in declarations_of(command):
            with_declarations += 1
            for parameter in parameters_of(declared):
                option = options[parameter.name]
                if parameter.flag.name:
                    assert parameter.flag.name in option.opts, path
                    assert option.help == parameter.flag.help, path
    assert with_declarations >= 4


def test_one_flag_has_one_meaning_in_a_command() -> None:
    for path, command in commands():
        flags: dict[str, Flag] = {}
        for declared in declarations_of(command):
            for parameter in parameters_of(declared):
                assert flags.setdefault(parameter.name, parameter.flag) == parameter.flag, path


def test_a_misspelt_name_gets_the_nearest_one() -> None:
    with pytest.raises(TypeError, match=r"train\(\) has no argument 'alhpa'; did you mean alpha\?"):
        hr.train(None, alhpa=1.0)  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match=r"Sweep\(\) has no argument 'alpas'; did you mean alphas"):
        Sweep(alpas=[1.0])  # type: ignore[call-arg]


def test_messages_name_what_the_user_typed() -> None:
    with pytest.raises(InputError, match=r"alpha must be >= 0, not negative: alpha=-1\.0"):
        Train(alpha=-1.0)
    with messages_name_flags(), pytest.raises(InputError, match="not negative: --alpha -1"):
        Train(alpha=-1.0)
    with pytest.raises(InputError, match="must be at least 1: seeds=0"):
        Train(seeds=0)


@pytest.mark.parametrize("wrong", ["x", "", None, float("nan"), float("inf"), -1, 1e10])
def test_what_is_no_alpha_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="alpha must be"):
        check_alpha(wrong)


def test_checks_take_text_and_values_and_what_they_returned() -> None:
    assert check_alphas("0.2,0,0.2") == check_alphas([0.2, 0.0]) == (0.0, 0.2)
    assert check_alphas(check_alphas("1,0")) == (0.0, 1.0)
    assert check_alphas("auto") == "auto"
    assert check_share("0.5", "s") == 0.5
    with pytest.raises(InputError, match="empty item in alphas"):
        check_alphas("1,,2")
    for wrong in ("0", -1, "nan", "cheap"):
        with pytest.raises(InputError, match="a cost must be"):
            check_cost(wrong, "--budget")


def test_a_replaced_declaration_is_checked_again() -> None:
    training = dataclasses.replace(Train(alpha=0.5, out=Path("x")), seed=7)
    assert (training.alpha, training.out, training.seed) == (0.5, Path("x"), 7)
    with pytest.raises(InputError, match="alpha must be"):
        dataclasses.replace(training, alpha=-1.0)


def test_a_declaration_checks_its_values() -> None:
    @declaration
    class Bake:
        degrees: Annotated[int, Flag("--degrees", "N", "Of the oven.", minimum=50)] = 180
        note: str = ""

    assert Bake(degrees=200).degrees == 200
    assert [parameter.name for parameter in parameters_of(Bake)] == ["degrees"]
    with pytest.raises(InputError, match="must be at least 50: degrees=20"):
        Bake(degrees=20)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Bake().degrees = 1  # type: ignore[misc]
