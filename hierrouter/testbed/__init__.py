"""Three tiny specialists and the tasks that need them.

`calc`, `text` and `facts` are language models of 0.4 M parameters that come with the package;
ten families of questions need one of them, or two in the right order. In a minute on a laptop
they show what a router learns on real models. Nothing heavy is imported here; `train` holds the
recipe that made the weights.
"""

from __future__ import annotations

from pathlib import Path

from hierrouter.query import Query as Question
from hierrouter.testbed.dataset import questions
from hierrouter.testbed.families import FAMILIES as _FAMILIES
from hierrouter.testbed.families import MODELS
from hierrouter_cache.errors import InputError

__all__ = ["FAMILIES", "MODELS", "Question", "model_path", "questions"]

FAMILIES = tuple(_FAMILIES)


def model_path(name: str) -> Path:
    """The shipped `from_pretrained` folder of specialist `name`.

    Raises `InputError` where there is no such specialist.
    """
    if name not in MODELS:
        raise InputError(f"unknown testbed model: {name!r}; choose from {', '.join(MODELS)}")
    return Path(__file__).parent / "models" / name
