"""An algorithm of the user: a factory of any Tianshou algorithm, given from Python or by a flag.

Its code is imported only because the user names it, never because a file does. A run records the
name, so that a reader knows what trained it; the trained network is ours, and needs no such code.
`own_learner` drives the algorithm.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hierrouter.learning.config import TianshouConfig, TrainConfig
from hierrouter.questions.own_code import (
    DIGEST_CHARACTERS,
    NO_SOURCE,
    import_path,
    own_code,
    source_digest,
)
from hierrouter_cache.errors import InputError

if TYPE_CHECKING:
    from hierrouter.learning.own_learner import AlgorithmParts

# Makes a Tianshou algorithm from the router's network.
Factory = Callable[["AlgorithmParts"], Any]
USAGE = "--algo module:factory"


@dataclass(frozen=True)
class OwnAlgorithm:
    """A factory of the user, and what a run records of it.

    Attributes:
        path: `module:factory`.
        source: digest of the source, see `hierrouter.questions.own_code.source_digest`.
        factory: the function.
    """

    path: str
    source: str
    factory: Factory

    def applied_to(self, config: TianshouConfig) -> TianshouConfig:
        """Return settings that name this factory."""
        return replace(config, factory=self.path, source=self.source)


def own_algorithm(algorithm: str | Factory) -> OwnAlgorithm:
    """Import a factory, or take one that is given as a function.

    Args:
        algorithm: an import path, or a function.

    Raises:
        InputError: the path is not `module:factory`, the module cannot be imported or has no such
            function, or the function has no name, by which a run could record it.
    """
    if isinstance(algorithm, str):
        module_name, attribute = import_path(algorithm, USAGE)
        with own_code(
            f"algorithm cannot be imported: {algorithm}",
            "the module must be importable from here or installed",
        ):
            module = importlib.import_module(module_name)
            factory = getattr(module, attribute)
        return _described(algorithm, module, factory)
    module_name = getattr(algorithm, "__module__", None) or ""
    name = getattr(algorithm, "__qualname__", None) or ""
    path = f"{module_name}:{name}"
    if not TianshouConfig.is_factory(path):
        raise InputError(
            f"an algorithm without a name: algo={algorithm!r:.80}; give a function that is defined "
            "in a module"
        )
    return _described(path, sys.modules.get(module_name, ModuleType(module_name)), algorithm)


def _described(path: str, module: ModuleType, factory: Any) -> OwnAlgorithm:
    if not callable(factory):
        raise InputError(
            f"not a factory of an algorithm: {path}, {type(factory).__name__}; give a function "
            "that takes the parts of a router and returns an algorithm of Tianshou"
        )
    source = source_digest(module, factory)
    if source == NO_SOURCE:  # typed into an interpreter or a notebook
        try:
            text = inspect.getsource(factory)
        except (OSError, TypeError):
            text = ""
        source = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]
    return OwnAlgorithm(path, source, factory)


def require_given(config: TrainConfig, algorithm: OwnAlgorithm | None) -> None:
    """Require the factory that settings name; it is never imported for them.

    Raises:
        InputError: it is not given, or another one is.
    """
    if not isinstance(config, TianshouConfig):
        return
    if algorithm is None or algorithm.path != config.factory:
        raise InputError(
            f"the router was trained with an algorithm of its user's own: {config.factory}; no "
            f"file may name code to run, so give it again: `hierrouter train --algo "
            f"{config.factory}`"
        )
