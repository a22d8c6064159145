"""Draw tokens so that a prompt's draws are its own.

In: decoding settings, a seed for each row of a batch. Out: logits processors after which the
largest logit is a draw from the softmax (Gumbel-max: Gumbel 1954; Maddison, Tarlow and Minka
2014). Each row has its own generator of random numbers, so what else is in the batch changes
nothing. Not covered: greedy decoding, which needs none of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from hierrouter.pool import Generation
from hierrouter_cache.fingerprint import digest


def prompt_seed(weights: str, seed: int, prompt: str) -> int:
    """60 bits that are this prompt's own.

    Args:
        weights: name of the content of the weights; with the same numbers the models of a pool
            would tend to be right and wrong together.
        seed: of the decoding settings.
        prompt: the text.
    """
    return int(digest(["draw", weights, seed, prompt])[:15], 16)


class GumbelNoise(LogitsProcessor):  # type: ignore[misc]
    """Add standard Gumbel noise to the logits of the first `len(seeds)` rows.

    Args:
        seeds: one a row; rows beyond are left as they are.
        device: where the logits are.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._sources = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """float32[rows, vocabulary]: the logits with this step's noise."""
        waits = torch.ones_like(scores)
        for row, source in zip(waits, self._sources, strict=False):
            row.exponential_(generator=source)
        # -log of an exponential draw is a Gumbel draw; 0 would win against every logit.
        return scores - waits.clamp_min_(torch.finfo(waits.dtype).tiny).log_()


def processors(
    generation: Generation, seeds: Sequence[int], device: torch.device
) -> LogitsProcessorList:
    """What greedy `generate` must apply to draw by these settings; nothing at temperature 0."""
    chain = LogitsProcessorList()
    if generation.temperature == 0:
        return chain
    chain.append(TemperatureLogitsWarper(generation.temperature))
    if generation.top_p < 1:
        chain.append(TopPLogitsWarper(generation.top_p))
    chain.append(GumbelNoise(seeds, device))
    return chain
