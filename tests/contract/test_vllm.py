"""The vLLM engine, where vLLM and a GPU are; elsewhere that it says what is missing."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer

from hierrouter.engines import backend, vllm
from hierrouter.engines.generator import Failure, Response, answers_in_order
from hierrouter.pools.pool import Generation, ModelSpec
from hierrouter.questions import testbed
from hierrouter_cache.errors import InputError
from tests.models import save_random_model

IS_THERE = importlib.util.find_spec("vllm") is not None
SPEC = ModelSpec("calc", "testbed:calc", 0.1, backend="vllm", generation=Generation(16))


@pytest.mark.skipif(IS_THERE, reason="needs a machine without vllm")
def test_what_is_missing_is_named() -> None:
    with pytest.raises(InputError, match=r"vllm is not installed: .* pip install"):
        backend("vllm").identify(SPEC)


def test_a_gpu_that_vllm_would_not_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with vllm and three GPUs."""
    monkeypatch.setattr(vllm, "version", lambda package: "0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    identify = backend("vllm").identify
    with pytest.raises(InputError, match=r"device cuda:2 of model calc.*CUDA_VISIBLE_DEVICES=2"):
        identify(replace(SPEC, device="cuda:2"))
    devices = ("auto", "cuda", "cuda:0", "balanced")
    (same,) = {tuple(identify(replace(SPEC, device=name)).items()) for name in devices}
    assert dict(same)["device"] == "cuda"
    batched = identify(replace(SPEC, batching="continuous"))  # which it does anyway
    assert tuple(batched.items()) == same


def test_a_chat_template_that_fails_is_named() -> None:
    """Found out before the engine is asked for anything; so this needs no more of it."""
    tokenizer = AutoTokenizer.from_pretrained(testbed.model_path("calc"))
    tokenizer.chat_template = "{{ raise_exception('roles only') }}"
    window = SimpleNamespace(max_model_len=256)
    engine = SimpleNamespace(model_config=window, get_tokenizer=lambda: tokenizer)
    generator = vllm.VllmGenerator(engine, SPEC, "")
    with pytest.raises(RuntimeError, match=r"its chat template fails: .*: roles only"):
        answers_in_order(generator, ["compute 12+7"])


@pytest.mark.skipif(not (IS_THERE and torch.cuda.is_available()), reason="needs vllm and a GPU")
def test_vllm_keeps_the_promises_of_a_generator(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path / "m", "llama", window=256)
    spec = ModelSpec("m", str(folder), 0.1, backend="vllm", dtype="float32")
    generator = backend("vllm").load(spec)
    asked = ["compute 12+7", "word " * 3000, "reverse takomi"]
    first, failure, second = answers_in_order(generator, asked)
    assert isinstance(failure, Failure)
    assert failure.status == "too_long"
    for answer in (first, second):
        assert isinstance(answer, Response)
        assert answer.tokens_in > 0
        assert 1 <= answer.tokens_out <= spec.generation.max_new_tokens
    assert list(generator.generate(asked[:1], lambda: True)) == []
    assert list(generator.generate([])) == []
