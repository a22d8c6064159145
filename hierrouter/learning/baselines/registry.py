"""The built-in baselines by name, and the checks of users' own ones."""

import importlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from hierrouter.engines.devices import torch_threads
from hierrouter.learning.baselines import cascades, classifiers, simple
from hierrouter.learning.baselines.arms import Arms, Baseline, FitResult, Play, RouterInputs
from hierrouter.questions.own_code import import_path, own_code
from hierrouter_cache.errors import InputError, suggestion

BUILT_IN_BASELINES: tuple[Baseline, ...] = (  # pyright: ignore  class variables do for properties
    simple.Random(),
    simple.BestStatic(),
    simple.DatasetOracle(),
    classifiers.NearestNeighbours(),
    classifiers.Clusters(),
    classifiers.RidgePerArm(),
    classifiers.Mlp(),
    classifiers.Svm(),
    classifiers.Factorisation(),
    *cascades.CASCADES,
    cascades.CascadeRouting(),
)
PROBABILITY_TOLERANCE = 1e-6  # how far probabilities may be from their bounds and sums


def flag_name(name: str) -> str:
    """The name of a baseline on the command line: `best-static` for "best static"."""
    return "-".join(name.lower().split())


BASELINES_BY_NAME: Mapping[str, Baseline] = {
    flag_name(baseline.name): baseline for baseline in BUILT_IN_BASELINES
}


def baselines(names: Sequence[str] | None = None) -> tuple[Baseline, ...]:
    """The baselines of these names, or the user's own classes at `module:Class`; None is all.

    Raises:
        InputError: there is no baseline of such a name, a class cannot be used, or two baselines
            have one name.
    """
    if names is None:
        return BUILT_IN_BASELINES
    requested = tuple(_baseline(name) for name in names)
    flag_names = [flag_name(baseline.name) for baseline in requested]
    for name in flag_names:
        if flag_names.count(name) > 1:
            raise InputError(f"baseline given twice: {name}: --baselines; names must differ")
    return requested


def _baseline(name: str) -> Baseline:
    """The baseline of a name or at an import path."""
    if ":" in name:
        return own_baseline(name)
    if name not in BASELINES_BY_NAME:
        hint = suggestion(name, BASELINES_BY_NAME)
        raise InputError(f"unknown baseline: {name}; {hint}or give your own as module:Class")
    return BASELINES_BY_NAME[name]


def own_baseline(path: str) -> Baseline:
    """An object of the class at an import path.

    Raises:
        InputError: the path is not `module:Class`, the module cannot be imported or has no such
            class, or the class is no `Baseline`.
    """
    module_name, attribute = import_path(path, "--baselines module:Class")
    remedy = "it must be a class that can be imported from here, and made without arguments"
    with own_code(f"baseline cannot be made: {path}", remedy):
        baseline = getattr(importlib.import_module(module_name), attribute)()
    _require_protocol(baseline, path)
    return OwnBaseline(path, baseline)


class OwnBaseline:
    """A user's baseline; its errors become one line with its import path."""

    def __init__(self, path: str, baseline: Baseline) -> None:
        self.path = path
        self.baseline = baseline
        self.name = baseline.name
        self.source = baseline.source
        self.reads_answers = baseline.reads_answers

    def fit(
        self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator
    ) -> FitResult:
        """Fit the user's baseline, see `Baseline.fit`.

        Raises:
            InputError: it fails, or returns something else than a `FitResult`. The fitted router
                raises it, too, if it fails or its decisions are impossible.
        """
        result = self._call("fit", self.baseline.fit, train, validation, alpha, rng)
        if not isinstance(result, FitResult) or not callable(result.play):
            raise InputError(
                f"baseline gave no FitResult: {self.path}: fit; return FitResult(play, {{}})"
            )
        if not isinstance(result.settings, dict):
            raise InputError(f"baseline gave no settings: {self.path}: fit; give a dict, or {{}}")
        self._call("settings as JSON", partial(json.dumps, allow_nan=False), result.settings)

        def play(inputs: RouterInputs) -> Play:
            decisions: Play = self._call("play", result.play, inputs)
            message = self._call("play", fault, decisions, inputs)
            if message:
                raise InputError(
                    f"baseline plays wrong: {self.path}: {message}; see docs/compare.md"
                )
            return decisions

        return FitResult(play, result.settings)

    def _call(self, step: str, function: Any, *arguments: Any) -> Any:
        """Call a user's function; `step` names it in the error."""
        failure = f"baseline failed: {self.path}: {step}"
        with own_code(failure, "correct it, or leave it out", passing=(InputError,)):
            return function(*arguments)


def _require_protocol(baseline: Any, path: str) -> None:
    """Check that an object has the attributes and the method of a `Baseline`."""
    missing = [
        name for name in ("name", "source") if not isinstance(getattr(baseline, name, None), str)
    ]
    if not isinstance(getattr(baseline, "reads_answers", None), bool):
        missing.append("reads_answers")
    if missing:
        raise InputError(
            f"baseline lacks {missing[0]}: {path}; it needs name and source, texts, and "
            "reads_answers, True or False"
        )
    try:
        inspect.signature(baseline.fit).bind("train", "validation", 0.0, "rng")
    except (AttributeError, TypeError):
        raise InputError(
            f"baseline cannot be fitted: {path}; write def fit(self, train, validation, alpha, rng)"
        ) from None


def fault(play: Any, inputs: RouterInputs) -> str:
    """The first fault of a router's decisions, in words; empty if there is none."""
    if not isinstance(play, Play):
        return "it gave no Play"
    expected_columns = (
        ("answer", play.answer, inputs.arms),
        ("called", play.called, inputs.calls.shape[1]),
    )
    for name, values, columns in expected_columns:
        if np.shape(values) != (len(inputs), columns):
            return f"{name} is {np.shape(values)}, not {(len(inputs), columns)}"
        is_possible = (values >= -PROBABILITY_TOLERANCE) & (values <= 1 + PROBABILITY_TOLERANCE)
        if not is_possible.all():  # NaN is not possible either
            return f"{name} holds what is no probability"
    if np.abs(play.answer.sum(axis=1) - 1).max(initial=0) > PROBABILITY_TOLERANCE:
        return "the probabilities of its answers do not add up to 1"
    if (play.answer @ inputs.calls > play.called + PROBABILITY_TOLERANCE).any():
        return "it gives an answer whose calls were not made"
    return ""


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit fitting and playing of baselines to one thread, for the same bits on any machine."""
    with threadpool_limits(1), torch_threads(1):
        yield
