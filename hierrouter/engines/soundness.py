"""Whether a local model can answer at all, checked before its first call, and how sure it is.

A loader fills the weights that a checkpoint lacks with random numbers, and a network of NaN
answers nothing. To the loader neither is an error, and both would fill a cache with garbage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from hierrouter.engines.generator import message_of
from hierrouter_cache.errors import typed_reason

# Buffers that older checkpoints hold and no version reads.
UNREAD_BUFFERS = ("inv_freq", "masked_bias", "attn.bias", "position_ids")
PROBE_QUESTION = "What is 7319 plus 2?"
LOGITS_FAULT = "its logits are NaN or infinite"


def fault_of(
    model: Any, tokenizer: Any, loaded: Mapping[str, Collection[str]], ends: Collection[object]
) -> str | None:
    """Return the first fault of a model.

    Args:
        model: a causal language model, as loaded.
        tokenizer: its tokenizer, as loaded.
        loaded: the loader's report, `output_loading_info` of transformers.
        ends: the tokens that end a response.

    Returns:
        The fault in words; None if the model is sound.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    # From cheap to expensive; the last one calls the model.
    checks: tuple[Callable[[], str | None], ...] = (
        lambda: _loading_fault(loaded),
        lambda: _weights_fault(model),
        lambda: template_fault(tokenizer),
        lambda: _vocabulary_fault(rows, tokenizer),
        lambda: _end_fault(rows, ends),
        lambda: _answer_fault(model, tokenizer),
    )
    for check in checks:
        fault = check()
        if fault:
            return fault
    return None


def _loading_fault(loaded: Mapping[str, Collection[str]]) -> str | None:
    """Compare weights and architecture. Tied weights, saved once, count as present."""
    for kind, description in (
        ("missing_keys", "weights are missing"),
        ("mismatched_keys", "weights have another shape"),
        ("unexpected_keys", "weights are not of this architecture"),
    ):
        names = sorted(str(name) for name in loaded.get(kind, ()))
        faulty = [name for name in names if not name.endswith(UNREAD_BUFFERS)]
        if faulty:
            return f"{len(faulty)} of its {description}: {faulty[0]}"
    return None


def _weights_fault(model: Any) -> str | None:
    for name, value in chain(model.named_parameters(), model.named_buffers()):
        if value.is_floating_point() and value.numel() and not value.is_meta:
            # If there is a NaN, both are NaN. `isfinite` on all values would copy large weights.
            lowest, highest = value.detach().aminmax()
            if not (lowest.isfinite() and highest.isfinite()):
                return f"its weights hold NaN or infinity: {name}"
    return None


def template_fault(tokenizer: Any) -> str | None:
    """Return the fault of a chat template.

    Args:
        tokenizer: the tokenizer with the template.

    Returns:
        The fault in words: it fails, gives nothing, or omits the question. None if it is sound.
    """
    try:
        text = tokenizer.apply_chat_template(
            message_of(PROBE_QUESTION), add_generation_prompt=True, tokenize=False
        )
    except Exception as error:  # the template is third-party code, run in a sandbox
        return f"its chat template fails: {typed_reason(error)}"
    if not text.strip():
        return "its chat template gives nothing"
    return None if PROBE_QUESTION in text else "its chat template leaves the question out"


def _vocabulary_fault(rows: int, tokenizer: Any) -> str | None:
    """Check that the model has an embedding for each token that can occur in a prompt.

    Some tokenizers have a special token that their model has no embedding for. It never occurs in a
    text, so it counts only if batches are padded with it.
    """
    added_tokens = tokenizer.added_tokens_decoder.items()
    special = {number for number, token in added_tokens if token.special}
    ordinary = set(tokenizer.get_vocab().values()) - special
    largest = max(ordinary | {tokenizer.pad_token_id or 0})
    if largest < rows:
        return None
    return f"its tokenizer has token {largest}, the model knows {rows}"


def _end_fault(rows: int, ends: Collection[object]) -> str | None:
    is_token = [isinstance(end, int) and 0 <= end < rows for end in ends]
    return None if is_token and all(is_token) else "it has no end token"


@torch.inference_mode()
def _answer_fault(model: Any, tokenizer: Any) -> str | None:
    """Try one prompt, before any response is paid for."""
    try:
        prompt = tokenizer.apply_chat_template(
            message_of(PROBE_QUESTION),
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        logits = model(input_ids=prompt["input_ids"].to(model.device)).logits[0, -1]
    except (RuntimeError, ValueError, IndexError) as error:
        return f"it cannot read a question: {typed_reason(error)}"
    return None if logits.amax().isfinite() else LOGITS_FAULT


class Recorder:
    """Records, while a batch is decoded, how sure the model is of each row, and checks its logits.

    A forward hook sees the logits of each step as the model returns them, before temperature or a
    penalty changes them. The recorder is a logits processor as well: in the next step it receives
    the tokens that were chosen. So it needs the memory of one step only.

    Args:
        model: the model that decodes.
        total: float32[rows], sum of the log-probabilities of the tokens so far, in nats, of as many
            rows as are recorded, from the first one of the batch. It is brought up to date.
        lowest: float32[rows], the lowest of these log-probabilities, likewise.
        remaining: how many further tokens of each row count at most.
        ends: the tokens that end a response; tokens after one do not count.
    """

    def __init__(
        self,
        model: Any,
        total: torch.Tensor,
        lowest: torch.Tensor,
        remaining: Sequence[int],
        ends: Collection[int],
    ) -> None:
        rows = len(total)
        device = model.device
        self._total = total
        self._lowest = lowest
        self._remaining = torch.tensor(remaining, device=device)
        self._model = model
        self._ends = torch.tensor(sorted(ends), device=device)
        self._is_over = torch.zeros(rows, dtype=torch.bool, device=device)
        self._has_fault = torch.zeros((), dtype=torch.bool, device=device)
        self._logits: torch.Tensor | None = None  # of the step whose tokens are not known yet
        self._newest: torch.Tensor | None = None

    def __enter__(self) -> Recorder:
        self._hook = self._model.register_forward_hook(self._store_logits)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _store_logits(self, model: Any, inputs: object, output: Any) -> None:
        self._newest = output.logits[: len(self._total), -1]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Record the tokens of the previous step, as a logits processor.

        Args:
            input_ids: int64[rows, length], all tokens so far.
            scores: float32[rows, vocabulary], the logits of this step.

        Returns:
            `scores`, unchanged.
        """
        if self._logits is not None:
            self._record(self._logits, input_ids[:, -1])
        self._logits = self._newest
        return scores

    def finish(self, tokens: torch.Tensor) -> None:
        """Record the last step.

        Args:
            tokens: int64[rows], the last token of each row.

        Raises:
            RuntimeError: the logits of some step were not finite.
        """
        if self._logits is not None:
            self._record(self._logits, tokens)
        if self._has_fault.item():
            raise RuntimeError(f"{LOGITS_FAULT}; nothing of this batch is kept")

    def _record(self, logits: torch.Tensor, tokens: torch.Tensor) -> None:
        logits = logits.float()
        tokens = tokens[: len(logits)]
        normaliser = logits.logsumexp(dim=-1)
        # Kept on the device and read once at the end: reading it would wait for the GPU.
        self._has_fault |= ~normaliser.isfinite().all()
        logprobs = logits.gather(1, tokens[:, None])[:, 0] - normaliser
        logprobs = logprobs.masked_fill(self._is_over, 0.0).clamp(max=0.0)
        self._total += logprobs
        torch.minimum(self._lowest, logprobs, out=self._lowest)
        self._remaining -= 1
        self._is_over |= torch.isin(tokens, self._ends) | (self._remaining <= 0)
