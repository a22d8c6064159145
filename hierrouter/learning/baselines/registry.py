"""The baselines there are, by name, and the user's own."""

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
from hierrouter.learning.baselines.arms import Arms, Baseline, Play, Seen, Tuned
from hierrouter.questions.own_code import import_path, own_code
from hierrouter_cache.errors import InputError, suggestion

BUILT_IN: tuple[Baseline, ...] = (  # pyright: ignore  class variables do for properties
    simple.Random(),
    simple.BestStatic(),
    simple.DatasetOracle(),
    classifiers.NearestNeighbours(),
    classifiers.RidgePerArm(),
    classifiers.Mlp(),
    classifiers.Svm(),
    simple.Factorisation(),
    *cascades.CASCADES,
    cascades.CascadeRouting(),
)


def typed(name: str) -> str:
    """What a user types for the name of a baseline: `best-static` for "best static"."""
    return "-".join(name.lower().split())


BASELINES: Mapping[str, Baseline] = {typed(baseline.name): baseline for baseline in BUILT_IN}


def baselines(names: Sequence[str] | None = None) -> tuple[Baseline, ...]:
    """The baselines of these names, or the user's own classes at `module:Class`; None is all.

    Raises InputError: nothing of such a name, a class that cannot be used, or two of one name.
    """
    if names is None:
        return BUILT_IN
    found = tuple(_baseline(name) for name in names)
    called = [typed(baseline.name) for baseline in found]
    for name in called:
        if called.count(name) > 1:
            raise InputError(f"baseline given twice: {name}: --baselines; names must differ")
    return found


def _baseline(name: str) -> Baseline:
    if ":" in name:
        return own_baseline(name)
    if name not in BASELINES:
        known = suggestion(name, BASELINES)
        raise InputError(f"unknown baseline: {name}; {known}or give your own as module:Class")
    return BASELINES[name]


EXACT = 1e-6  # by how much probabilities may miss what they must add up to


def own_baseline(path: str) -> Baseline:
    """An object of the class at an import path.

    Raises InputError: the path is not `module:Class`, the module cannot be imported, has no such
    class, or the class is no `Baseline`.
    """
    module_name, attribute = import_path(path, "--baselines module:Class")
    remedy = "it must be a class that can be imported from here, and made without arguments"
    with own_code(f"baseline cannot be made: {path}", remedy):
        made = getattr(importlib.import_module(module_name), attribute)()
    _require_protocol(made, path)
    return OwnBaseline(path, made)


class OwnBaseline:
    """The user's object; what it does wrong is one line with its path."""

    def __init__(self, path: str, made: Baseline) -> None:
        self.path, self.made = path, made
        self.name, self.source, self.reads_answers = made.name, made.source, made.reads_answers

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`.

        Raises InputError: it failed, or gave something else; so does the router, when it plays.
        """
        tuned = self._called("fit", self.made.fit, train, validation, alpha, rng)
        if not isinstance(tuned, Tuned) or not callable(tuned.play):
            raise InputError(f"baseline gave no Tuned: {self.path}: fit; return Tuned(play, {{}})")
        if not isinstance(tuned.settings, dict):
            raise InputError(f"baseline gave no settings: {self.path}: fit; give a dict, or {{}}")
        self._called("settings as JSON", partial(json.dumps, allow_nan=False), tuned.settings)

        def play(seen: Seen) -> Play:
            played: Play = self._called("play", tuned.play, seen)
            if wrong := self._called("play", fault, played, seen):
                raise InputError(f"baseline plays wrong: {self.path}: {wrong}; see docs/compare.md")
            return played

        return Tuned(play, tuned.settings)

    def _called(self, what: str, function: Any, *arguments: Any) -> Any:
        failure = f"baseline failed: {self.path}: {what}"
        with own_code(failure, "mend it, or leave it out", passing=(InputError,)):
            return function(*arguments)


def _require_protocol(made: Any, path: str) -> None:
    texts = [name for name in ("name", "source") if not isinstance(getattr(made, name, None), str)]
    if texts or not isinstance(getattr(made, "reads_answers", None), bool):
        lacking = texts or ["reads_answers"]
        raise InputError(
            f"baseline lacks {lacking[0]}: {path}; it needs name and source, texts, and "
            "reads_answers, True or False"
        )
    try:
        inspect.signature(made.fit).bind("train", "validation", 0.0, "rng")
    except (AttributeError, TypeError):
        raise InputError(
            f"baseline cannot be fitted: {path}; write def fit(self, train, validation, alpha, rng)"
        ) from None


def fault(played: Any, seen: Seen) -> str:
    """What is wrong with a play, in words; empty where nothing is."""
    if not isinstance(played, Play):
        return "it gave no Play"
    shapes = ("answer", played.answer, seen.arms), ("called", played.called, seen.calls.shape[1])
    for name, values, columns in shapes:
        if np.shape(values) != (len(seen), columns):
            return f"{name} is {np.shape(values)}, not {(len(seen), columns)}"
        if not ((values >= -EXACT) & (values <= 1 + EXACT)).all():  # NaN is none
            return f"{name} holds what is no probability"
    if np.abs(played.answer.sum(axis=1) - 1).max(initial=0) > EXACT:
        return "the probabilities of its answers do not add up to 1"
    if (played.answer @ seen.calls > played.called + EXACT).any():
        return "it gives an answer whose calls were not made"
    return ""


@contextmanager
def one_thread() -> Iterator[None]:
    """Fit and play every baseline in it; `contest` does."""
    with threadpool_limits(1), torch_threads(1):
        yield
