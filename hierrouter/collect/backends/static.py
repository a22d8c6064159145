"""Decode prompts in batches of fixed shapes.

In: a loaded model, tokens of prompts. Out: tokens of responses, batch by batch. Where memory runs
out the batch is given up, its height halved, and the limit remembered as long as the model is
loaded. Where a person waits for an answer, batches are not filled up, tokens are told as they come,
and a lower limit is forgotten with the question. Not covered: text, see `local`; the shapes, see
`shapes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from hierrouter.collect.backends.devices import give_back_memory, is_out_of_memory, memory
from hierrouter.collect.backends.sampling import processors
from hierrouter.collect.backends.shapes import Limits, Shape, batches
from hierrouter.collect.generator import Stop, never
from hierrouter.pool import Generation
from hierrouter.threads import torch_threads

ROWS = {"cpu": 32, "cuda": 512}
PROMPT_TOKENS = {"cpu": 2_048, "cuda": 131_072}
# Keys, values and logits get this much of the free memory; the rest is for all between.
CACHE_SHARE = 0.6
# Below this size an operation is over before a second thread has woken up.
ONE_THREAD_PARAMETERS = 10_000_000

# (key of the prompt, the token it was continued with)
OnToken = Callable[[int, int], None]


@dataclass(frozen=True)
class Prompt:
    """Tokens as the model sees them, and the seed of the prompt's own draws."""

    tokens: Sequence[int]
    seed: int


class StaticBatches:
    """One rectangle of tokens after the other, each decoded to its end.

    Args:
        model: a causal language model.
        pad: the token that fills up.
        generation: decoding settings.
        limits: of a batch.
    """

    def __init__(self, model: Any, pad: int, generation: Generation, limits: Limits) -> None:
        self._model = model
        self._pad = pad
        self._generation = generation
        self.limits = limits
        is_tiny = model.num_parameters() < ONE_THREAD_PARAMETERS
        self._threads = 1 if is_tiny else torch.get_num_threads()

    def decode(self, prompts: Mapping[int, Prompt], stop: Stop) -> Iterator[tuple[int, list[int]]]:
        """(key, response tokens) of each prompt; longest prompts first.

        Raises:
            RuntimeError: the model failed, e.g. one prompt alone needs too much memory.
        """
        return self._decoded(prompts, stop, lambda rows: None)

    def decode_now(
        self, prompts: Mapping[int, Prompt], on_token: OnToken | None
    ) -> Iterator[tuple[int, list[int]]]:
        """As `decode`, in batches no higher than needed: sooner, but the last bit may differ.

        Args:
            on_token: told each token as it is generated, those after the end of a response too.

        Raises:
            RuntimeError: as `decode`, and where memory runs out after a token was told.
        """
        return self._decoded(prompts, never, lambda rows: _Following(rows, on_token))

    def _decoded(
        self,
        prompts: Mapping[int, Prompt],
        stop: Stop,
        following: Callable[[Sequence[int]], _Following | None],
    ) -> Iterator[tuple[int, list[int]]]:
        waiting = {row: len(prompt.tokens) for row, prompt in prompts.items()}
        limits = self.limits
        while waiting:
            for shape, rows in batches(waiting, limits):
                if stop():
                    return
                batch = [prompts[row] for row in rows]
                follower = following(rows)
                if follower:
                    shape = replace(shape, height=len(rows))
                generated = self._attempt(batch, shape, follower)
                if generated is None:
                    limits = self._less(limits, shape)
                    if not follower:
                        self.limits = limits
                    break
                for row, tokens in zip(rows, generated, strict=True):
                    del waiting[row]
                    yield row, tokens

    def _attempt(
        self, prompts: list[Prompt], shape: Shape, following: _Following | None
    ) -> list[list[int]] | None:
        """The responses, or None where memory ran out."""
        try:
            with torch_threads(self._threads):
                return self._decode_batch(prompts, shape, following)
        except (RuntimeError, MemoryError) as error:
            has_told = following is not None and following.has_told
            if has_told or not is_out_of_memory(error):  # what was told cannot be taken back
                raise
        return None  # not in the handler: the error's frames hold the batch

    def _less(self, limits: Limits, shape: Shape) -> Limits:
        """Limits after a batch of this shape was too much."""
        give_back_memory()
        if shape.height == 1:
            raise RuntimeError(
                f"out of memory with one prompt of {shape.width} tokens and "
                f"{self._generation.max_new_tokens} new ones; use less max_new_tokens or dtype"
            )
        return limits.halved(shape)

    @torch.inference_mode()
    def _decode_batch(
        self, prompts: list[Prompt], shape: Shape, following: _Following | None
    ) -> list[list[int]]:
        filled = prompts + [prompts[0]] * (shape.height - len(prompts))
        tokens = torch.full((shape.height, shape.width), self._pad)
        mask = torch.zeros((shape.height, shape.width), dtype=torch.long)
        for row, prompt in enumerate(filled):
            start = shape.width - len(prompt.tokens)
            tokens[row, start:] = torch.tensor(prompt.tokens)
            mask[row, start:] = 1
        device = self._model.device
        seeds = [prompt.seed for prompt in prompts]
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
            streamer=following if following and following.on_token else None,
        )
        rows: list[list[int]] = output[: len(prompts), shape.width :].tolist()
        return rows


class _Following(BaseStreamer):  # type: ignore[misc]
    """Hands on each row's tokens; the prompts come first and are left out.

    Attributes:
        on_token: told them; None where nobody follows.
        has_told: whether anything was told.
    """

    def __init__(self, rows: Sequence[int], on_token: OnToken | None) -> None:
        self._rows = rows
        self._has_begun = False
        self.on_token = on_token
        self.has_told = False

    def put(self, value: torch.Tensor) -> None:
        """The prompts, or one more token of each row."""
        if self._has_begun and self.on_token:
            self.has_told = True
            for row, token in zip(self._rows, value.tolist(), strict=True):
                self.on_token(row, token)
        self._has_begun = True

    def end(self) -> None:
        """Every row is finished."""


def limits_for(model: Any, new_tokens: int) -> Limits:
    """What fits the free memory beside the weights.

    Args:
        model: loaded already.
        new_tokens: the longest response.
    """
    room = memory({parameter.device for parameter in model.parameters()})
    config = model.config.get_text_config()
    logits = config.vocab_size * torch.float32.itemsize * 3  # as they come, processed, compared
    token = cache_bytes(config, model.dtype) + logits // (new_tokens + 1)
    kind = model.device.type
    cache_tokens = int(CACHE_SHARE * room.free) // token
    return Limits(ROWS[kind], PROMPT_TOKENS[kind], cache_tokens, new_tokens)


def cache_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes of one token's keys and values in all layers."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * dtype.itemsize)
