"""The vLLM engine, where vLLM and a GPU are; elsewhere that it says what is missing."""

import importlib.util
from pathlib import Path

import pytest
import torch

from hierrouter.collect.backends import backend
from hierrouter.collect.generator import Failure, Response, answers_in_order
from hierrouter.pool import Generation, ModelSpec
from hierrouter_cache.errors import InputError
from tests.models import save_random_model

IS_THERE = importlib.util.find_spec("vllm") is not None
SPEC = ModelSpec("calc", "testbed:calc", 0.1, backend="vllm", generation=Generation(16))


@pytest.mark.skipif(IS_THERE, reason="needs a machine without vllm")
def test_what_is_missing_is_named() -> None:
    with pytest.raises(InputError, match=r"vllm is not installed: .* pip install"):
        backend("vllm").identify(SPEC)


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
