"""The specialists' tokenizer: template words, else bytes.

A word of the question templates is one token, everything else falls apart into bytes, digits
one by one, and the blank line between the parts of a context is one token. Any text can be
encoded. Not covered: a vocabulary learnt from text; there are no merges.
"""

from __future__ import annotations

from typing import Any

from hierrouter.testbed.templates import vocabulary

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|user|>", "<|assistant|>", "<|system|>")
BLANK_LINE = "\n\n"
CONTEXT_TOKENS = 512
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer() -> Any:
    """A `transformers` fast tokenizer with chat template, padding on the left."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    bytes_and_words = models.BPE(vocab=_numbered(), merges=[], ignore_merges=True)
    backend = Tokenizer(bytes_and_words)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(BLANK_LINE, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        padding_side="left",
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _numbered() -> dict[str, int]:
    """Token to id. `Ġ` is the byte-level spelling of a space before a word."""
    from tokenizers import pre_tokenizers

    words = sorted(vocabulary())
    tokens = [PAD, END, *ROLES, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += ["Ġ?", "Ġ.", *words, *(f"Ġ{word}" for word in words)]
    return {token: number for number, token in enumerate(tokens)}
