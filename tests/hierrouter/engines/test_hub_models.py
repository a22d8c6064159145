"""Models of the hub, from one on this machine: which commit is loaded, and which files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from hierrouter.engines.identity import INDEX, SINGLE, weight_bytes
from hierrouter.pools.pool import ModelSpec
from tests.conftest import environment
from tests.hub import Files, Model, hub
from tests.models import save_random_model

FIRST, SECOND = "a" * 40, "b" * 40
COPY = "consolidated.safetensors"
USE = """
import json
from hierrouter.engines import backend
from hierrouter.engines.identity import weight_bytes
from hierrouter.pools.pool import ModelSpec
engine, spec = backend("transformers"), ModelSpec("m", "made/up", 0.1, device="cpu")
weights = engine.identify(spec)["weights"]
model = engine.load(spec)._decoder._model
total = sum(each.detach().double().sum().item() for each in model.parameters())
in_parts = ModelSpec("n", "made/in-parts", 0.1)
print(json.dumps([weights, total, weight_bytes(spec), weight_bytes(in_parts)]))
"""


def files_of(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def in_two_parts(files: Files) -> Files:
    """Sharded, and all of it once more beside. Equal parts would be one download."""
    index = {"weight_map": {"x": "model-1-of-2.safetensors", "y": "model-2-of-2.safetensors"}}
    whole = files[SINGLE]
    parts = dict(zip(index["weight_map"].values(), (whole, whole[:-1] + b"\0"), strict=True))
    rest = {name: data for name, data in files.items() if name != SINGLE}
    return {**rest, **parts, COPY: files[SINGLE], INDEX: json.dumps(index).encode()}


def total_of(folder: Path) -> float:
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return sum(each.detach().double().sum().item() for each in loaded.parameters())


def test_what_is_loaded_is_the_commit_that_was_named(tmp_path: Path) -> None:
    """The branch moves right after it was asked for. Of two copies the indexed one is fetched."""
    one, two = (save_random_model(tmp_path / name, "llama", int(name)) for name in "12")
    first = files_of(one)
    model = Model({FIRST: {**first, COPY: first[SINGLE]}, SECOND: files_of(two)})
    sharded = Model({FIRST: in_two_parts(first)})
    with hub({}, {"made/up": model, "made/in-parts": sharded}) as url:
        settings = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", USE],
            env={**environment(), **settings, "HF_HUB_DISABLE_TELEMETRY": "1"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    weights, total, size, size_in_parts = json.loads(done.stdout)
    assert weights == f"made/up@{FIRST}"
    assert total == pytest.approx(total_of(one), rel=1e-12)
    assert total != pytest.approx(total_of(two), rel=1e-3)
    assert size == weight_bytes(ModelSpec("m", str(one), 0.1)) == size_in_parts / 2
    assert model.asked == 1
    assert COPY not in model.fetched | sharded.fetched
    assert {"model-1-of-2.safetensors", "model-2-of-2.safetensors"} <= sharded.fetched
