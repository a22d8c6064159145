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
print(json.dumps([weights, total, weight_bytes(spec)]))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("models")
    return [save_random_model(place / str(seed), "llama", seed) for seed in (1, 2)]


def files_of(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def in_two_parts(files: Files) -> Files:
    """Sharded, and all of it once more beside; a part's content is never looked at."""
    index = {"weight_map": {"x": "model-1-of-2.safetensors", "y": "model-2-of-2.safetensors"}}
    parts = dict.fromkeys(index["weight_map"].values(), files[SINGLE])
    rest = {name: data for name, data in files.items() if name != SINGLE}
    return {**rest, **parts, COPY: files[SINGLE], INDEX: json.dumps(index).encode()}


def used(model: Model, script: str, home: Path) -> str:
    """What a script prints that finds `model` on the hub as made/up."""
    with hub({}, {"made/up": model}) as url:
        settings = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**environment(), **settings, "HF_HUB_DISABLE_TELEMETRY": "1"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def total_of(folder: Path) -> float:
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return sum(each.detach().double().sum().item() for each in loaded.parameters())


def test_what_is_loaded_is_the_commit_that_was_named(folders: list[Path], tmp_path: Path) -> None:
    """The branch moves right after it was asked for."""
    first, second = map(files_of, folders)
    model = Model({FIRST: {**first, COPY: first[SINGLE]}, SECOND: second})
    weights, total, size = json.loads(used(model, USE, tmp_path))
    assert weights == f"made/up@{FIRST}"
    assert total == pytest.approx(total_of(folders[0]), rel=1e-12)
    assert total != pytest.approx(total_of(folders[1]), rel=1e-3)
    assert size == weight_bytes(ModelSpec("m", str(folders[0]), 0.1))
    assert model.asked == 1
    assert COPY not in model.fetched


def test_of_two_copies_the_indexed_one_is_fetched(folders: list[Path], tmp_path: Path) -> None:
    model = Model({FIRST: in_two_parts(files_of(folders[0]))})
    script = USE.partition("weights =")[0] + "print(weight_bytes(spec))"
    found = int(used(model, script, tmp_path))
    assert found == 2 * weight_bytes(ModelSpec("m", str(folders[0]), 0.1))
    safetensors = {name for name in model.fetched if name.endswith(".safetensors")}
    assert safetensors == {"model-1-of-2.safetensors", "model-2-of-2.safetensors"}
