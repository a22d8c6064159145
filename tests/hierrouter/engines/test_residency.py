"""Which models stay loaded, shown with the shipped ones and a limit on their memory."""

import json
import weakref
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import save_file

from hierrouter.engines import backend
from hierrouter.engines.generator import Residency, room_for_weights
from hierrouter.engines.identity import INDEX_FILE, WEIGHTS_FILE, weight_bytes, weight_files
from hierrouter.engines.local import TransformersBackend
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import ModelSpec
from hierrouter_cache.errors import WorldError
from tests.engines import answers_in_order

MODELS = load_pool("testbed").models
LARGEST = max(weight_bytes(model) for model in MODELS)


@dataclass
class Loading(TransformersBackend):
    """The transformers engine; knows which of the models that it loaded are still in memory."""

    limit: int
    loads: Counter[str] = field(default_factory=Counter)
    held: dict[str, weakref.ref[Any]] = field(default_factory=dict)

    def load(self, spec: ModelSpec) -> Any:
        self.loads[spec.name] += 1
        generator = super().load(spec)
        self.held[spec.name] = weakref.ref(generator._decoder._model)
        return generator

    def alive(self) -> set[str]:
        return {name for name, reference in self.held.items() if reference() is not None}

    def room(self, spec: ModelSpec) -> int:
        return self.limit - sum(weight_bytes(m) for m in MODELS if m.name in self.alive())

    def residency(self) -> Residency:
        return Residency(lambda name: self, self.room)


def ask_all(residency: Residency, models: list[ModelSpec]) -> None:
    for model in models:
        assert len(answers_in_order(residency.generator(model), ["compute 1+2"])) == 1


def test_all_stay_where_they_fit_until_they_are_called_no_more() -> None:
    engine = Loading(3 * LARGEST)
    ask_all(residency := engine.residency(), [*MODELS, *MODELS, *MODELS])
    assert set(engine.loads.values()) == {1}
    assert all(model.name in residency for model in MODELS)
    residency.release(MODELS[0].name)
    residency.release("never loaded")
    assert engine.alive() == {model.name for model in MODELS[1:]}


@pytest.mark.parametrize("limit", [LARGEST, 1])
def test_one_stays_where_memory_is_short_and_the_others_are_freed(limit: int) -> None:
    """Also where none fits: that is a guess, so each is tried alone."""
    engine = Loading(limit)
    residency = engine.residency()
    for model in [*MODELS, *MODELS]:
        ask_all(residency, [model])
        assert engine.alive() == {model.name}
        assert model.name in residency
    assert set(engine.loads.values()) == {2}


def test_the_one_called_longest_ago_goes_first() -> None:
    engine = Loading(2 * LARGEST)
    first, second, third = MODELS
    ask_all(residency := engine.residency(), [first, second, first, third])
    assert engine.alive() == {first.name, third.name}
    assert second.name not in residency


def test_weights_take_what_is_estimated(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(3, 5), "b": torch.zeros(7)}
    (tmp_path / "config.json").write_text("{}")
    save_file(tensors, tmp_path / "one.safetensors")
    save_file({"c": torch.zeros(10, dtype=torch.bfloat16)}, tmp_path / "two.safetensors")
    assert weight_bytes(ModelSpec("m", str(tmp_path))) == 22 * 4 + 10 * 2
    assert weight_bytes(ModelSpec("m", str(tmp_path), dtype="bfloat16")) == 32 * 2
    model = backend("transformers").load(MODELS[0])._decoder._model  # type: ignore[attr-defined]
    unique = {p.data_ptr(): p.nbytes for p in model.parameters()}
    assert weight_bytes(MODELS[0]) == pytest.approx(sum(unique.values()), rel=0.01)


def test_weights_that_lie_there_twice_are_counted_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in ("consolidated", "1-of-2", "2-of-2"):
        save_file({"a": torch.zeros(10)}, tmp_path / f"{name}.safetensors")
    spec = ModelSpec("m", str(tmp_path))
    assert weight_bytes(spec) == 3 * 40  # nothing says which are meant
    parts = {"a": "1-of-2.safetensors", "b": "2-of-2.safetensors", "c": "2-of-2.safetensors"}
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": parts}))
    assert weight_bytes(spec) == 2 * 40
    save_file({"a": torch.zeros(5)}, tmp_path / WEIGHTS_FILE)
    assert weight_bytes(spec) == 20
    (tmp_path / WEIGHTS_FILE).write_bytes(b"x" * 100)
    with pytest.raises(WorldError, match=r"damaged: .*model\.safetensors; download them again"):
        weight_bytes(spec)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 10**5, '{"weight_map": 1}'])
def test_an_index_that_is_none_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX_FILE).write_text(text)
    (tmp_path / "one.safetensors").touch()
    assert [file.name for file in weight_files(tmp_path)] == ["one.safetensors"]


def test_a_quarter_of_the_memory_is_left_to_batches() -> None:
    seen = psutil.virtual_memory()
    room = room_for_weights(ModelSpec("m", "testbed:calc", device="cpu"))
    assert room == pytest.approx(seen.available - seen.total / 4, abs=0.05 * seen.total)
