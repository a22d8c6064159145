"""Whether a local model can answer at all, looked at before its first call, and how sure it is.

A loader fills what a checkpoint lacks with random numbers, and a network of NaN answers nothing.
Neither is an error to it, and both would fill a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain
from typing import Any

import torch

from hierrouter.engines.generator import message_of
from hierrouter_cache.errors import named_reason

# Buffers that older checkpoints hold and no version reads.
NEVER_READ = ("inv_freq", "masked_bias", "attn.bias", "position_ids")
PROBE = "What is 7319 plus 2?"
NO_LOGITS = "its logits are NaN or infinite"


def fault_of(
    model: Any, tokenizer: Any, loaded: Mapping[str, Collection[str]], ends: Collection[object]
) -> str | None:
    """What is wrong with a model, in words; None where nothing is.

    `model`, `tokenizer`: as loaded; `loaded`: what the loader says of it, `output_loading_info` of
    transformers; `ends`: the tokens that end a response.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    is_known = [isinstance(end, int) and 0 <= end < rows for end in ends]
    checks: tuple[Callable[[], str | None], ...] = (
        lambda: _not_as_saved(loaded),
        lambda: _not_finite(model),
        lambda: template_fault(tokenizer),
        lambda: _too_many_tokens(rows, tokenizer),
        lambda: None if is_known and all(is_known) else "it has no end token",
        lambda: _wrong_logits(model, tokenizer),
    )
    return next((why for check in checks if (why := check())), None)


def _not_as_saved(loaded: Mapping[str, Collection[str]]) -> str | None:
    """Tied weights, which are saved once, are neither."""
    for kind, what in (
        ("missing_keys", "weights are missing"),
        ("mismatched_keys", "weights have another shape"),
        ("unexpected_keys", "weights are not of this architecture"),
    ):
        names = sorted(str(name) for name in loaded.get(kind, ()))
        if found := [name for name in names if not name.endswith(NEVER_READ)]:
            return f"{len(found)} of its {what}: {found[0]}"
    return None


def _not_finite(model: Any) -> str | None:
    for name, value in chain(model.named_parameters(), model.named_buffers()):
        if value.is_floating_point() and value.numel() and not value.is_meta:
            lowest, highest = value.detach().aminmax()  # NaN is both; no copy of large weights
            if not (lowest.isfinite() and highest.isfinite()):
                return f"its weights hold NaN or infinity: {name}"
    return None


def template_fault(tokenizer: Any) -> str | None:
    """What is wrong with a chat template: it fails, says nothing, or leaves the question out."""
    try:
        text = tokenizer.apply_chat_template(
            message_of(PROBE), add_generation_prompt=True, tokenize=False
        )
    except Exception as error:  # it is a program of others, in a sandbox
        return f"its chat template fails: {named_reason(error)}"
    if not text.strip():
        return "its chat template gives nothing"
    return None if PROBE in text else "its chat template leaves the question out"


def _too_many_tokens(rows: int, tokenizer: Any) -> str | None:
    """Special tokens that are never written count only where they fill up.

    Some tokenizers bring one that their model was never told of.
    """
    special = {number for number, it in tokenizer.added_tokens_decoder.items() if it.special}
    written = set(tokenizer.get_vocab().values()) - special
    largest = max(written | {tokenizer.pad_token_id or 0})
    if largest < rows:
        return None
    return f"its tokenizer has token {largest}, the model knows {rows}"


@torch.inference_mode()
def _wrong_logits(model: Any, tokenizer: Any) -> str | None:
    """One prompt is tried, before any answer is paid for."""
    try:
        prompt = tokenizer.apply_chat_template(
            message_of(PROBE), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        logits = model(input_ids=prompt["input_ids"].to(model.device)).logits[0, -1]
    except (RuntimeError, ValueError, IndexError) as error:
        return f"it cannot read a question: {named_reason(error)}"
    return None if logits.amax().isfinite() else NO_LOGITS


class Recorder:
    """Watches a batch being decoded: how sure the model is of each row, and that it is sound.

    Its hook sees the logits of each step as the model gives them, before temperature or a penalty
    changes them; as a logits processor it is told at the next step which tokens were chosen. So it
    takes the memory of one step.

    Args:
        rows: that are looked at, the first ones of the batch.
        ends: the tokens that end a response; what comes after one does not count.

    Attributes:
        total: float32[rows], sum of the log-probabilities of the chosen tokens, in nats.
        lowest: float32[rows], the least of them.
    """

    def __init__(self, model: Any, rows: int, ends: Collection[int]) -> None:
        device = model.device
        self.total = torch.zeros(rows, device=device)
        self.lowest = torch.zeros(rows, device=device)
        self._model = model
        self._ends = torch.tensor(sorted(ends), device=device)
        self._is_over = torch.zeros(rows, dtype=torch.bool, device=device)
        self._fault = torch.zeros((), dtype=torch.bool, device=device)
        self._logits: torch.Tensor | None = None  # of the step whose tokens are not known yet
        self._newest: torch.Tensor | None = None

    def __enter__(self) -> Recorder:
        self._hook = self._model.register_forward_hook(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _see(self, model: Any, inputs: object, output: Any) -> None:
        self._newest = output.logits[: len(self.total), -1]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The same scores, float32[rows, vocabulary]; as a logits processor is called."""
        if self._logits is not None:
            self._count(self._logits, input_ids[:, -1])
        self._logits = self._newest
        return scores

    def finish(self, tokens: torch.Tensor) -> None:
        """Count the last tokens, int64[rows].

        Raises RuntimeError: the logits of some step were not finite.
        """
        if self._logits is not None:
            self._count(self._logits, tokens)
        if self._fault.item():
            raise RuntimeError(f"{NO_LOGITS}; nothing of this batch is kept")

    def _count(self, logits: torch.Tensor, tokens: torch.Tensor) -> None:
        logits, tokens = logits.float(), tokens[: len(logits)]
        normaliser = logits.logsumexp(dim=-1)
        self._fault |= ~normaliser.isfinite().all()  # no wait at each step
        found = logits.gather(1, tokens[:, None])[:, 0] - normaliser
        found = found.masked_fill(self._is_over, 0.0).clamp(max=0.0)
        self.total += found
        self.lowest = torch.minimum(self.lowest, found)
        self._is_over |= torch.isin(tokens, self._ends)
