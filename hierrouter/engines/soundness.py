"""Whether a local model can answer at all, looked at before its first call.

A loader fills what a checkpoint lacks with random numbers, and a network of NaN answers nothing.
Neither is an error to it, and both would fill a cache.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
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
    checks: tuple[Callable[[], str | None], ...] = (
        lambda: _not_as_saved(loaded),
        lambda: _not_finite(model),
        lambda: template_fault(tokenizer),
        lambda: _too_many_tokens(model, tokenizer),
        lambda: None if all(isinstance(end, int) for end in ends) else "it has no end token",
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
    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        yield from model.named_parameters()
        yield from model.named_buffers()

    for name, value in tensors():
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


def _too_many_tokens(model: Any, tokenizer: Any) -> str | None:
    """Special tokens that are never written count only where they fill up.

    Some tokenizers bring one that their model was never told of.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    special = {number for number, it in tokenizer.added_tokens_decoder.items() if it.special}
    written = set(tokenizer.get_vocab().values()) - special
    largest = max(written | {tokenizer.pad_token_id or 0})
    if largest < rows:
        return None
    return f"its tokenizer has token {largest}, the model knows {rows}"


@torch.inference_mode()
def _wrong_logits(model: Any, tokenizer: Any) -> str | None:
    """One prompt is tried, as continuous batches give no logits to look at later."""
    try:
        prompt = tokenizer.apply_chat_template(
            message_of(PROBE), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        logits = model(input_ids=prompt["input_ids"].to(model.device)).logits[0, -1]
    except (RuntimeError, ValueError, IndexError) as error:
        return f"it cannot read a question: {named_reason(error)}"
    return None if logits.amax().isfinite() else NO_LOGITS


class Finite:
    """A logits processor that watches a batch, without a wait at each step.

    Attributes:
        fault: bool[], on the model's device: whether a row had NaN, or infinity for its best token.
    """

    def __init__(self, device: torch.device) -> None:
        self.fault = torch.zeros((), dtype=torch.bool, device=device)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The same scores, float32[rows, vocabulary]; as a logits processor is called."""
        self.fault |= ~scores.amax(dim=-1).isfinite().all()
        return scores

    def require(self) -> None:
        """Raises RuntimeError: the logits of some step were not finite."""
        if self.fault.item():
            raise RuntimeError(f"{NO_LOGITS}; nothing of this batch is kept")
