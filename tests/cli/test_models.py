"""Models of a pool that cannot be run: one line that says so, before the first call."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.conftest import Run
from tests.models import save_random_model


def collected(hierrouter: Run, folder: Path, model: str, *settings: str) -> tuple[int, str]:
    """Exit code and last line of collecting one question with this model alone."""
    lines = ["[[models]]", 'name = "a"', f'model = "{model}"', "base_rate = 1", *settings]
    (folder / "p.toml").write_text("\n".join(lines))
    (folder / "d.jsonl").write_text(json.dumps({"question": "q", "answer": "a"}) + "\n")
    done = hierrouter("collect", "--datasets", "d.jsonl", "--pool", "p.toml", cwd=folder)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert len(last) <= 307
    return done.returncode, last


def test_m01_a_hub_model_that_is_not_here_and_no_network(tmp_path: Path, hierrouter: Run) -> None:
    code, line = collected(hierrouter, tmp_path, "nobody/nothing")
    assert code == 1
    assert line.startswith("error: model nobody/nothing not found on this machine")
    assert "download it first, or give the folder of a saved model" in line
    assert not (tmp_path / "caches").exists()


@pytest.fixture
def model_with_code(tmp_path: Path) -> Path:
    """A saved model whose configuration names classes in a file beside it."""
    folder = save_random_model(tmp_path / "rc", "llama")
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    changed = {**config, "model_type": "evil", "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps(changed))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')")
    return folder


def test_m02_code_of_a_model_is_never_run(
    tmp_path: Path, model_with_code: Path, hierrouter: Run
) -> None:
    code, line = collected(hierrouter, tmp_path, str(model_with_code))
    assert code == 1
    assert line.startswith("error: cannot load model a")
    assert "trust_remote_code" in line or "custom code" in line
    assert not (tmp_path / "pwned").exists()


def test_m03_a_model_with_parts_of_a_path(tmp_path: Path, hierrouter: Run) -> None:
    work = tmp_path / "work"
    work.mkdir()
    code, line = collected(hierrouter, work, "../../evil")
    assert code == 2
    assert "invalid model path with ../" in line
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_m14_a_gpu_that_is_not_there(tmp_path: Path, hierrouter: Run) -> None:
    code, line = collected(hierrouter, tmp_path, "testbed:calc", 'device = "cuda"')
    assert code == 2
    assert "cuda is not available" in line
    assert "use --device cpu" in line
    assert not (tmp_path / "caches").exists()


@pytest.mark.skipif(find_spec("vllm") is not None, reason="needs a machine without vllm")
def test_vllm_that_is_not_there(tmp_path: Path, hierrouter: Run) -> None:
    code, line = collected(hierrouter, tmp_path, "testbed:calc", 'backend = "vllm"')
    assert code == 2
    assert 'pip install "hierrouter[vllm]"' in line
