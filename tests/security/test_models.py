"""Folders of models that others made: their code is never run, their templates in a sandbox."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from hierrouter.engines import backend
from hierrouter.engines.encoders import load_encoder
from hierrouter.pools.pool import Generation, ModelSpec
from hierrouter_cache.errors import InputError, WorldError
from tests.conftest import Run
from tests.models import save_random_model

REACHES_OUT = "{{ cycler.__init__.__globals__.os.system('touch pwned') }}"
TEMPLATES = {
    "an attribute": "{{ ''.__class__.__mro__ }}",
    "a system call": REACHES_OUT,
    "a format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "a file": "{% include '/etc/passwd' %}",
    "a change": "{% set _ = messages.append(1) %}x",
    "a great range": "{% for i in range(10**9) %}x{% endfor %}",
    "its own error": "{{ raise_exception('\x1b]0;x\x07 no') }}",
    "no syntax": "{% for %}",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model") / "m", "llama")


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    """A folder to put things into; what is done is seen beside it."""
    return Path(shutil.copytree(made, tmp_path / "m"))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_template_reaches_nothing(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (model / "chat_template.jinja").write_text(TEMPLATES[name])
    spec = ModelSpec("m", str(model), 0.01, generation=Generation(4))
    with pytest.raises(WorldError, match="its chat template fails"):
        backend("transformers").load(spec)
    assert list(tmp_path.iterdir()) == [model]


def test_a_template_that_fails_is_one_line(model: Path, tmp_path: Path, hierrouter: Run) -> None:
    (model / "chat_template.jinja").write_text(TEMPLATES["its own error"])
    entry = f'[[models]]\nname = "a"\nmodel = "{model}"\nbase_rate = 1\n'
    (tmp_path / "pool.toml").write_text(f"[pool]\nhops = 1\n{entry}")
    (tmp_path / "d.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    asked = ("collect", "--pool", "pool.toml", "--datasets", "d.jsonl")
    done = hierrouter(*asked, cwd=tmp_path)
    assert done.returncode == 1
    assert "model a is broken" in done.stderr.splitlines()[-1]
    assert "its chat template fails: TemplateError: \\x1b]0;x" in done.stderr.splitlines()[-1]


def test_code_of_a_tokenizer_is_never_run(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "tokenizer_config.json").read_text())
    changed = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (model / "tokenizer_config.json").write_text(json.dumps(config | changed))
    (model / "evil.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')")
    try:
        backend("transformers").load(ModelSpec("m", str(model), 0.01))
    except WorldError as error:
        assert "trust_remote_code" in str(error) or "custom code" in str(error)
    assert not (tmp_path / "pwned").exists()


def test_code_of_an_encoder_is_never_run(model: Path, tmp_path: Path) -> None:
    modules = [{"idx": 0, "name": "0", "path": "", "type": "evil.Evil"}]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "evil.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')")
    with pytest.raises(WorldError, match=r"cannot load encoder .* references the module class"):
        load_encoder(str(model))
    assert not (tmp_path / "pwned").exists()


class Evil:
    """Runs a command where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.file,)


def test_pickled_weights_are_never_loaded(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").rename(model / "other.safetensors")
    torch.save(Evil(tmp_path / "pwned"), model / "pytorch_model.bin")
    with pytest.raises((WorldError, InputError)):
        load_encoder(str(model))
    with pytest.raises((WorldError, InputError)):
        backend("transformers").load(ModelSpec("m", str(model), 0.01))
    assert not (tmp_path / "pwned").exists()
    torch.load(model / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "pwned").exists()  # had it been, it would have run
