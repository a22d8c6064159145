"""Decode prompts as places become free.

In: a loaded model, tokens of prompts. Out: tokens of responses, each when it is finished. The
engine is the continuous batching of transformers: a short response makes room for the next prompt,
and equal beginnings of prompts are computed once. What a prompt is decoded with changes from run
to run, and so may the last bit of a sum; `static` promises more. Greedy only, one device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import islice
from typing import Any

from transformers import ContinuousBatchingConfig

from hierrouter.collect.backends.static import Prompt
from hierrouter.collect.generator import Stop
from hierrouter.pool import ModelSpec
from hierrouter_cache.errors import InputError, WorldError

IN_FLIGHT = {"cpu": 64, "cuda": 1_024}
# On CPU the engine would take nine tenths of the memory, and touch all of it at every step.
CPU_PAGE_TOKENS = 32
CPU_BATCH_TOKENS = 512
# What a checkpoint's generation settings may hold; anything else would be left out silently.
HEEDED = {
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "max_length",
    "max_new_tokens",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "use_cache",
    "transformers_version",
    "_from_model_config",
}


def require_continuous(spec: ModelSpec) -> None:
    """Refuse settings that continuous batching does not know.

    Raises:
        InputError: sampling, or one model on several GPUs.
    """
    if spec.generation.temperature:
        raise InputError(
            f"continuous batching decodes greedily: model {spec.name} has a temperature; "
            'set it to 0, or batching = "static"'
        )
    if spec.device == "balanced":
        raise InputError(
            f"continuous batching takes one device: model {spec.name} is balanced over several; "
            'name one, or batching = "static"'
        )


class ContinuousBatches:
    """Prompts enter and leave one by one.

    Args:
        model: a causal language model on one device.
        pad: the token that fills up.
        ends: the tokens that end a response.
        spec: its name and decoding settings.

    Raises:
        WorldError: the checkpoint has generation settings that the engine does not heed.
    """

    def __init__(self, model: Any, pad: int, ends: frozenset[int], spec: ModelSpec) -> None:
        self._model = model
        self._settings = deepcopy(model.generation_config)
        if unheeded := _unheeded(self._settings.to_diff_dict()):
            raise WorldError(
                f"model {spec.name} cannot be batched continuously: its generation_config sets "
                f'{", ".join(unheeded)}; use batching = "static"'
            )
        self._settings.update(
            max_new_tokens=spec.generation.max_new_tokens,
            max_length=None,
            do_sample=False,
            temperature=None,
            top_k=None,
            top_p=None,
            eos_token_id=sorted(ends),
            pad_token_id=pad,
        )

    def decode(self, prompts: Mapping[int, Prompt], stop: Stop) -> Iterator[tuple[int, list[int]]]:
        """(key, response tokens) of each prompt, as they are finished.

        Raises:
            RuntimeError: the engine failed.
        """
        if not prompts:
            return
        kind = self._model.device.type
        with self._model.continuous_batching_context_manager(
            generation_config=self._settings,
            continuous_batching_config=self._config(prompts),
            warmup=kind == "cuda",  # which captures graphs
        ) as manager:
            waiting = iter(prompts.items())
            flying: set[int] = set()
            try:
                while True:
                    free = 0 if stop() else IN_FLIGHT[kind] - len(flying)
                    for row, prompt in islice(waiting, free):
                        manager.add_request(list(prompt.tokens), request_id=str(row))
                        flying.add(row)
                    if not flying:
                        return
                    done, tokens = _next_result(manager)
                    flying.remove(done)
                    yield done, tokens
            finally:
                for row in flying:
                    manager.cancel_request(str(row))

    def _config(self, prompts: Mapping[int, Prompt]) -> ContinuousBatchingConfig:
        if self._model.device.type != "cpu":
            return ContinuousBatchingConfig()
        longest = max(len(prompt.tokens) for prompt in prompts.values())
        pages = -(-(longest + self._settings.max_new_tokens) // CPU_PAGE_TOKENS)
        return ContinuousBatchingConfig(
            page_size=CPU_PAGE_TOKENS,
            num_blocks=(pages + 1) * IN_FLIGHT["cpu"],
            max_batch_tokens=CPU_BATCH_TOKENS,
            max_requests_per_batch=IN_FLIGHT["cpu"],
        )


def _unheeded(settings: Mapping[str, Any]) -> list[str]:
    """Names of settings that change greedy responses and that the engine would drop."""
    return sorted(
        name
        for name, value in settings.items()
        if name not in HEEDED and (value is True or value not in (None, 0, 1))
    )


def _next_result(manager: Any) -> tuple[int, list[int]]:
    while True:
        result = manager.get_result(timeout=1.0)
        if result is None and not manager.is_running():
            raise RuntimeError("continuous batching ended unexpectedly")
        if result is not None and result.is_finished():
            if result.error:
                raise RuntimeError(result.error)
            return int(result.request_id), list(result.generated_tokens)
