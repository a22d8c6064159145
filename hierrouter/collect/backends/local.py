"""The transformers engine: local weights.

Decoding is a function of the prompt in exact arithmetic; so is sampling, since each prompt brings
its own random numbers (`sampling`). But floating-point sums depend on the shape of a batch. So a
prompt's own length decides the shape of its batch: the width is the length rounded up, the height
follows from the width, and missing rows are filled with copies of the first. What a prompt is
batched with, and in which order, then cannot change its response (tests/contract shows it).
Another dtype, version of transformers or torch, or kind of device may, and is in the identity;
another machine of the same kind may too, and is not.

A prompt that leaves no room for the response in the model's window is a failure, found out before
anything is generated. Not covered: several devices, other engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from hierrouter.collect.backends import Answer, Failure, Response, Stop, never
from hierrouter.collect.backends.sampling import processors
from hierrouter.collect.identity import hub_commit, local_folder, weights_of
from hierrouter.pool import Identity, ModelSpec
from hierrouter_cache.errors import WorldError
from hierrouter_cache.fingerprint import digest

NARROWEST = 16  # tokens; widths are this times 1, 2, 3, 4, 6, 8, 12, 16, ...
TALLEST = 64
TOKENS_PER_BATCH = {"cpu": 2_048, "cuda": 65_536}
# Below this size an operation is over before a second thread has woken up.
ONE_THREAD_PARAMETERS = 10_000_000


class TransformersBackend:
    """Models from a local folder or the hub's cache, through `from_pretrained`."""

    def identify(self, spec: ModelSpec) -> Identity:
        """Engine, kind of device, and what decides the answers of the model itself.

        Raises:
            InputError: a folder that is not a saved model.
            WorldError: a hub id that is neither cached nor reachable.
        """
        return {
            "engine": f"transformers {version('transformers')}, torch {version('torch')}",
            "device": _device(),
            "weights": weights_of(spec),
            "dtype": spec.dtype,
        }

    def load(self, spec: ModelSpec) -> TransformersGenerator:
        """Load weights and tokenizer; remote code is never run.

        Raises:
            WorldError: the files are missing, damaged or need code of their own.
        """
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        folder = local_folder(spec)
        source = str(folder or spec.model)
        # The very commit that `identify` names: a branch may have moved in between.
        commit = None if folder else hub_commit(spec.model, spec.revision)
        options: dict[str, Any] = {"revision": commit, "trust_remote_code": False}
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left", **options)
            model = AutoModelForCausalLM.from_pretrained(
                source, dtype=spec.dtype, use_safetensors=True, **options
            )
            model = model.to(_device()).eval()
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:160]
            raise WorldError(f"cannot load model {spec.name}: {spec.model}: {reason}") from error
        # Greedy decoding needs no random numbers; hashing large weights once more takes time.
        weights = self.identify(spec)["weights"] if spec.generation.temperature else ""
        return TransformersGenerator(model, tokenizer, spec, weights)


class TransformersGenerator:
    """A causal language model with its tokenizer.

    Args:
        model, tokenizer: as loaded.
        spec: its name and decoding settings.
        weights: name of the content of the weights; models of a pool so draw independently.
    """

    def __init__(self, model: Any, tokenizer: Any, spec: ModelSpec, weights: str) -> None:
        if tokenizer.chat_template is None:
            raise WorldError(
                f"model {spec.name} has no chat template: {spec.model}; use an instruct model"
            )
        self._model = model
        self._tokenizer = tokenizer
        self._generation = spec.generation
        self._weights = weights
        self._window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._budget = TOKENS_PER_BATCH[model.device.type]
        self._is_tiny = model.num_parameters() < ONE_THREAD_PARAMETERS
        ends = model.generation_config.eos_token_id
        if ends is None:
            ends = tokenizer.eos_token_id
        self._ends = frozenset(ends if isinstance(ends, list) else [ends])
        self._pad = tokenizer.pad_token_id
        if self._pad is None:
            self._pad = min(self._ends)

    def generate(self, prompts: Sequence[str], stop: Stop = never) -> Iterator[tuple[int, Answer]]:
        """The answers batch by batch; `too_long` where the window is too small comes first."""
        encoded = [self._encode(prompt) for prompt in prompts]
        lengths = {row: len(tokens) for row, tokens in enumerate(encoded)}
        fitting = {row: length for row, length in lengths.items() if self._fits(length)}
        for row in lengths.keys() - fitting.keys():
            yield row, self._too_long(lengths[row])
        for shape, rows in _batches(fitting, self._budget):
            if stop():
                return
            seeds = [self._seed(prompts[row]) for row in rows]
            with _threads(1 if self._is_tiny else torch.get_num_threads()):
                generated = self._decode_batch([encoded[row] for row in rows], seeds, *shape)
            for row, tokens in zip(rows, generated, strict=True):
                yield row, self._response(lengths[row], tokens)

    def _fits(self, length: int) -> bool:
        return self._window is None or length + self._generation.max_new_tokens <= self._window

    def _too_long(self, length: int) -> Failure:
        return Failure(
            "too_long",
            f"{length} tokens of prompt and {self._generation.max_new_tokens} new ones exceed the "
            f"window of {self._window}",
        )

    def _seed(self, prompt: str) -> int:
        """60 bits that are this prompt's own."""
        return int(digest(["draw", self._weights, self._generation.seed, prompt])[:15], 16)

    def _encode(self, prompt: str) -> list[int]:
        message = [{"role": "user", "content": prompt}]
        encoded = self._tokenizer.apply_chat_template(
            message, add_generation_prompt=True, tokenize=True, return_dict=True
        )
        return list(encoded["input_ids"])

    @torch.inference_mode()
    def _decode_batch(
        self, prompts: list[list[int]], seeds: list[int], height: int, width: int
    ) -> list[list[int]]:
        filled = prompts + [prompts[0]] * (height - len(prompts))
        tokens = torch.full((height, width), self._pad)
        mask = torch.zeros((height, width), dtype=torch.long)
        for row, prompt in enumerate(filled):
            tokens[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        device = self._model.device
        output = self._model.generate(
            input_ids=tokens.to(device),
            attention_mask=mask.to(device),
            logits_processor=processors(self._generation, seeds, device),
            max_new_tokens=self._generation.max_new_tokens,
            do_sample=False,  # where sampling is on, the processors have drawn already
            num_beams=1,
            temperature=None,
            top_p=None,
            top_k=None,
            pad_token_id=self._pad,
        )
        rows: list[list[int]] = output[: len(prompts), width:].tolist()
        return rows

    def _response(self, tokens_in: int, generated: list[int]) -> Response:
        end = next((i for i, token in enumerate(generated) if token in self._ends), None)
        kept = generated if end is None else generated[:end]
        return Response(
            text=self._tokenizer.decode(kept, skip_special_tokens=True).strip(),
            tokens_in=tokens_in,
            tokens_out=len(kept) + (end is not None),
            finish_reason="length" if end is None else "stop",
        )


def _device() -> str:
    """The kind of device that models run on here: greedy bfloat16 differs between the two."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _batches(
    lengths: Mapping[int, int], budget: int
) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """((height, width), rows) of each batch, widest first: out of memory then shows at once.

    `lengths` is by row.
    """
    by_width: dict[int, list[int]] = {}
    for row, length in lengths.items():
        by_width.setdefault(_width(length), []).append(row)
    for width, rows in sorted(by_width.items(), reverse=True):
        height = min(TALLEST, max(1, budget // width))
        for start in range(0, len(rows), height):
            yield (height, width), rows[start : start + height]


def _width(length: int) -> int:
    """The next width that holds `length` tokens; at most a third of it is padding."""
    width = NARROWEST
    while width < length:
        # 1, 2, 3, 4, 6, 8, 12, ...: doubling, with one step halfway
        width = width * 4 // 3 if (width // NARROWEST) % 3 == 0 else max(width * 3 // 2, 32)
    return width


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
