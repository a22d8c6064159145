"""Models of a pool that cannot be run: one line that says so, before the first call."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Place
from tests.models import save_random_model


def collected(place: Place, model: str | Path, *settings: str, code: int = 2) -> str:
    """The last line of collecting one question with this model alone, which cannot be."""
    lines = ["[[models]]", 'name = "a"', f'model = "{model}"', "base_rate = 1", *settings]
    (place / "p.toml").write_text("\n".join(lines))
    (place / "d.jsonl").write_text(json.dumps({"question": "q", "answer": "a"}) + "\n")
    line = place.refuses("collect --datasets d.jsonl --pool p.toml", code=code)
    assert len(line) <= 307
    return line


def test_m01_a_hub_model_that_is_not_here_and_no_network(place: Place) -> None:
    line = collected(place, "nobody/nothing", code=1)
    assert line.startswith("error: model nobody/nothing not found on this machine")
    assert "download it first, or give the folder of a saved model" in line
    assert not (place / "caches").exists()


def test_m02_code_of_a_model_is_never_run(place: Place) -> None:
    """A saved model whose configuration names classes in a file beside it."""
    folder = save_random_model(place / "rc", "llama")
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    changed = {**config, "model_type": "evil", "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps(changed))
    (folder / "evil.py").write_text(f"open({str(place / 'pwned')!r}, 'w')")
    line = collected(place, folder, code=1)
    assert line.startswith("error: cannot load model a")
    assert "trust_remote_code" in line or "custom code" in line
    assert not (place / "pwned").exists()


def test_m03_a_model_with_parts_of_a_path(place: Place) -> None:
    (place / "work").mkdir()
    line = collected(Place(place / "work", place.run), "../../evil")
    assert "invalid model path with ../" in line
    assert [path.name for path in place.folder.iterdir()] == ["work"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_m14_a_gpu_that_is_not_there(place: Place) -> None:
    line = collected(place, "testbed:calc", 'device = "cuda"')
    assert "cuda is not available" in line
    assert "use --device cpu" in line
    assert not (place / "caches").exists()


@pytest.mark.skipif(find_spec("vllm") is not None, reason="needs a machine without vllm")
def test_vllm_that_is_not_there(place: Place) -> None:
    line = collected(place, "testbed:calc", 'backend = "vllm"')
    assert 'pip install "hierrouter[vllm]"' in line
