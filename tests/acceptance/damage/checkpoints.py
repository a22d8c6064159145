"""Files that are given for a trained router, made from the one in `trained`."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.acceptance.place import Place

WEIGHTS = "trained/policy.safetensors"
Tensors = dict[str, NDArray[Any]]


def cut(place: Place, name: str, size: int) -> None:
    """The first `size` bytes of the weights."""
    (place.home / name).write_bytes((place.home / WEIGHTS).read_bytes()[:size])


def changed(place: Place, name: str, change: Callable[[dict[str, Any], Tensors], None]) -> None:
    """The weights with another description or other tensors."""
    source = place.home / WEIGHTS
    with safe_open(source, framework="numpy") as opened:
        metadata = opened.metadata()
    description, tensors = json.loads(metadata["hierrouter"]), load_file(source)
    change(description, tensors)
    save_file(tensors, place.home / name, {"hierrouter": json.dumps(description)})


def of_other_models(place: Place, name: str) -> None:
    def change(description: dict[str, Any], tensors: Tensors) -> None:
        description["models"] = ["coder", "mini", "tiny"]

    changed(place, name, change)


def of_another_encoder(place: Place, name: str, dim: int) -> None:
    def change(description: dict[str, Any], tensors: Tensors) -> None:
        old = description["shape"]["dim"]
        description["shape"]["dim"] = dim
        for key, value in tensors.items():
            if value.ndim == 2 and value.shape[1] == old:
                tensors[key] = np.ascontiguousarray(value[:, :dim])

    changed(place, name, change)


def not_a_number(place: Place, name: str) -> None:
    def change(description: dict[str, Any], tensors: Tensors) -> None:
        tensors["context.weight"][0, 0] = np.nan

    changed(place, name, change)


class _Evil:
    """Makes a file where it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


def pickled(place: Place, name: str) -> None:
    (place.home / name).write_bytes(pickle.dumps(_Evil(place.home / "pwned")))
