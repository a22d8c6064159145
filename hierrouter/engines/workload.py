"""How much work a local model has with many prompts, before it is loaded.

Batches have fixed shapes, see `batches`: a batch with one prompt takes as long as a full one. So a
small number of calls says how fast a large one will be only if its batches are counted.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig

from hierrouter.engines.batches import (
    MIN_BATCHES_PER_PROCESS,
    ONE_THREAD_PARAMETERS,
    Limits,
    batch_limits,
)
from hierrouter.engines.devices import candidates, memory
from hierrouter.engines.identity import DTYPE_BYTES, bytes_in, saved_folder
from hierrouter.pools.pool import ModelSpec
from hierrouter_cache.errors import HierRouterError

# Work on a token of a prompt, as a share of that on a generated one: prompts are read at once.
PROMPT_TOKEN_WORK = 0.2
# What a second process adds, as a share of the first one: cores share caches and memory.
PROCESS_GAIN = 0.85


@dataclass(frozen=True)
class Prompts:
    """Prompts that a model gets at once, by their lengths.

    Attributes:
        lengths: int64[n], tokens of prompts.
        counts: float64[n], how many prompts have that length; expected numbers, so not whole.
        response_lengths: int64[m], tokens of responses to such prompts.
    """

    lengths: NDArray[np.int64]
    counts: NDArray[np.float64]
    response_lengths: NDArray[np.int64]


@dataclass(frozen=True)
class LocalModel:
    """How a model would decode on this machine.

    Attributes:
        limits: of its batches.
        max_processes: the most processes that decode side by side.
        weight_bytes: of the loaded weights.
    """

    limits: Limits
    max_processes: int
    weight_bytes: int

    def work(self, prompts: Prompts) -> float:
        """Return how long all prompts take, in the time that a row of a batch needs for a token.

        Args:
            prompts: the prompts.
        """
        batches = Counter[tuple[int, int]]()  # prompts by height and width of their batch
        for length, count in zip(prompts.lengths.tolist(), prompts.counts.tolist(), strict=True):
            shape = self.limits.shape(length)
            batches[shape.height, shape.width] += count
        work = 0.0
        total = 0
        for (height, width), count in batches.items():
            number = ceil(count / height)
            rows = min(count, height)
            # A batch goes on until its longest response ends: of r draws, the r-th of r + 1 parts.
            longest = np.quantile(prompts.response_lengths, rows / (rows + 1), method="higher")
            work += number * height * (PROMPT_TOKEN_WORK * width + float(longest))
            total += number
        processes = max(1, min(self.max_processes, total // MIN_BATCHES_PER_PROCESS))
        return work / (1 + PROCESS_GAIN * (processes - 1))


def local_model(spec: ModelSpec) -> LocalModel | None:
    """Look up how a model would decode on this machine; None if its files are not here.

    Args:
        spec: a model of the transformers engine.
    """
    try:
        folder = saved_folder(spec)
        if folder is None:
            return None
        config: Any = AutoConfig.from_pretrained(str(folder), local_files_only=True)
        weight_bytes = bytes_in(folder, spec)
        parameters = bytes_in(folder, replace(spec, dtype="float32")) // DTYPE_BYTES["F32"]
        devices = candidates(spec)
    except (HierRouterError, OSError, ValueError):  # loading the model will say what is wrong
        return None
    free, _ = memory(devices)
    dtype = getattr(torch, spec.dtype, None) or config.dtype or torch.float32
    kind = devices[0].type
    limits = batch_limits(
        config.get_text_config(),
        dtype,
        kind,
        parameters,
        max(free - weight_bytes, 0),
        spec.generation.max_new_tokens,
    )
    is_forked = kind == "cpu" and sys.platform == "linux" and parameters < ONE_THREAD_PARAMETERS
    return LocalModel(limits, torch.get_num_threads() if is_forked else 1, weight_bytes)
