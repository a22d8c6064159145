"""The vLLM engine, offline: local weights on GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hierrouter.engines import generator, identity
from hierrouter.engines.batches import prompt_seed
from hierrouter.engines.devices import BALANCED, candidates
from hierrouter.engines.soundness import template_fault
from hierrouter.pools.pool import Identity, ModelSpec
from hierrouter_cache.errors import InputError, WorldError, reason_of

PORTION = 512  # prompts; twice what vLLM decodes at a time


class VllmBackend:
    """Models from a local folder or the hub's cache, through `vllm.LLM`."""

    def identify(self, spec: ModelSpec) -> Identity:
        """Engine, device, and what decides the answers of the model itself.

        Raises InputError: vLLM or a GPU is not there, the GPU is not the first one, or the folder
        is not a saved model; WorldError: a hub id that is neither cached nor reachable.
        """
        try:
            engine = f"vllm {version('vllm')}"
        except PackageNotFoundError:
            raise InputError(
                f"vllm is not installed: backend of model {spec.name}; "
                'pip install "hierrouter[vllm]", or use --backend transformers'
            ) from None
        _require_the_first_gpu(spec)
        return {"engine": engine, "device": "cuda", **identity.saved_identity(spec)}

    def weight_bytes(self, spec: ModelSpec) -> int:
        """As for any local model; vLLM takes most of what is left for its cache besides."""
        return identity.weight_bytes(spec)

    def load(self, spec: ModelSpec) -> VllmGenerator:
        """Start the engine; remote code is never run.

        Raises WorldError: vLLM cannot load the model, or it is broken.
        """
        import torch
        from vllm import LLM  # pyright: ignore  it takes this very file for the package

        folder = identity.local_folder(spec)
        devices = torch.cuda.device_count() if spec.device == BALANCED else 1
        try:
            engine = LLM(
                model=str(folder or spec.model),
                revision=None if folder else identity.hub_commit(spec.model, spec.revision),
                dtype=spec.dtype,
                max_model_len=spec.window,  # None is the model's own
                tensor_parallel_size=devices,
                trust_remote_code=False,
                load_format="safetensors",
            )
        except (OSError, ValueError, RuntimeError) as error:
            reason = reason_of(error, 160)
            raise WorldError(
                f"cannot load model {spec.name}: {spec.model}: {reason}; use --backend transformers"
            ) from error
        weights = identity.weights_of(spec) if spec.generation.temperature else ""
        return VllmGenerator(engine, spec, weights)


def _require_the_first_gpu(spec: ModelSpec) -> None:
    # vLLM takes the first ones that it sees; the number of another would have no effect.
    chosen = candidates(spec)[0]
    if chosen.type == "cpu":
        raise InputError(
            f"vllm needs a GPU: device {spec.device} of model {spec.name}; "
            "use --backend transformers"
        )
    if chosen.index:
        raise InputError(
            f"vllm takes the first GPU: device {spec.device} of model {spec.name}; set "
            f"CUDA_VISIBLE_DEVICES={chosen.index} and device cuda, or use --backend transformers"
        )


class VllmGenerator:
    """An engine with one model.

    Args:
        engine: a `vllm.LLM`.
        spec: decoding settings.
        weights: name of the content of the weights, for the seeds of draws.
    """

    def __init__(self, engine: Any, spec: ModelSpec, weights: str) -> None:
        if why := template_fault(engine.get_tokenizer()):
            raise WorldError(f"model {spec.name} is broken: {why}: {spec.model}; give another one")
        self._engine = engine
        self._generation = spec.generation
        self._weights = weights
        self._window: int = engine.model_config.max_model_len

    def generate(
        self, prompts: Sequence[str], stop: generator.Stop = generator.never
    ) -> Iterator[tuple[int, generator.Answer]]:
        """The answers portion by portion; `too_long` where the window is too small comes first.

        Raises RuntimeError: the engine or the chat template failed.
        """
        tokenizer, new = self._engine.get_tokenizer(), self._generation.max_new_tokens
        fitting, failures = generator.split_by_window(tokenizer, prompts, new, self._window)
        yield from failures.items()
        due = list(fitting)
        while due and not stop():
            places, due = due[:PORTION], due[PORTION:]
            asked = [prompts[place] for place in places]
            outputs = self._engine.chat(
                [generator.message_of(prompt) for prompt in asked],
                [self._settings(prompt) for prompt in asked],
                use_tqdm=False,
            )
            yield from zip(places, map(_answer, outputs), strict=True)

    def _settings(self, prompt: str) -> Any:
        from vllm import SamplingParams  # pyright: ignore

        wanted = self._generation
        return SamplingParams(
            max_tokens=wanted.max_new_tokens,
            temperature=wanted.temperature,
            top_p=wanted.top_p if wanted.temperature else 1.0,
            seed=prompt_seed(self._weights, wanted.seed, prompt) if wanted.temperature else None,
            logprobs=0,  # of the chosen token alone, before temperature
        )


def _answer(output: Any) -> generator.Answer:
    first = output.outputs[0]
    if first.finish_reason not in ("stop", "length"):
        return generator.Failure("error", f"vllm ended a response with {first.finish_reason}")
    tokens = list(first.token_ids)
    logprobs = [
        told[token].logprob for token, told in zip(tokens, first.logprobs or (), strict=False)
    ]
    return generator.Response(
        text=first.text.strip(),
        tokens_in=len(output.prompt_token_ids),
        tokens_out=len(tokens),
        finish_reason=first.finish_reason,
        confidence=generator.Confidence.of(logprobs, len(tokens), has_end=False),
    )
