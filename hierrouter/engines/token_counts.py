"""Count the tokens of prompts before a model is loaded or a server is asked.

A tokenizer that is on this machine counts exactly, chat template included. Without it, the number
of a prompt's bytes is an upper bound, because a token has at least one byte. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.engines.generator import tokenize_prompts
from hierrouter.engines.identity import saved_folder
from hierrouter.engines.listing import model_details
from hierrouter.pools.pool import OPENAI, ModelSpec
from hierrouter_cache.errors import InputError
from hierrouter_cache.keys import text_digest

# The longest chat template of a common model, with its system prompt, has some 240 tokens.
MAX_TEMPLATE_TOKENS = 256
# Tokens that a model reads for each token that another one wrote, if a tokenizer is not here.
# Tokens of usual texts have four bytes, and a token has at least one.
MAX_READ_TOKENS = 4


class TokenCounter:
    """Counts the tokens of one model's prompts.

    Args:
        spec: the model.
        tokenizer: its tokenizer; None if it is not on this machine.
        window: tokens of prompt and response together; None if unknown.

    Attributes:
        spec: as passed.
        is_exact: whether a tokenizer counts; else counts are upper bounds.
        max_prompt_tokens: of the longest prompt that leaves room for the longest response, 0 or
            more; None if unknown. A local model refuses longer prompts.
        vocabulary: digest of a fast tokenizer; empty without one.
        template_tokens: the most that the chat template may have, if no tokenizer counts it.
    """

    def __init__(self, spec: ModelSpec, tokenizer: Any = None, window: int | None = None) -> None:
        self.spec = spec
        self.is_exact = tokenizer is not None
        self.max_prompt_tokens = None
        if window is not None:
            self.max_prompt_tokens = max(window - spec.generation.max_new_tokens, 0)
        self.template_tokens = MAX_TEMPLATE_TOKENS
        self.vocabulary = ""
        if getattr(tokenizer, "is_fast", False):
            self.vocabulary = text_digest(tokenizer.backend_tokenizer.to_str())
        self._tokenizer = tokenizer
        self._counts: dict[str, int] = {}  # by prompt
        self._read_tokens: dict[str, int] = {}  # by vocabulary of the model that wrote

    def count(self, prompts: Sequence[str]) -> NDArray[np.int64]:
        """Count the tokens of prompts, chat template included; or bound them, see `is_exact`.

        Args:
            prompts: n prompts.

        Returns:
            int64[n].
        """
        missing = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._counts]
        self._counts.update(zip(missing, self._count_anew(missing), strict=True))
        return np.array([self._counts[prompt] for prompt in prompts], dtype=np.int64)

    def _count_anew(self, prompts: Sequence[str]) -> Iterable[int]:
        if self.is_exact:
            try:
                return [len(tokens) for tokens in tokenize_prompts(self._tokenizer, prompts)]
            except RuntimeError:  # the chat template fails; loading the model will say why
                self.is_exact = False
        return [len(prompt.encode()) + self.template_tokens for prompt in prompts]

    def read_tokens(self, writer: TokenCounter) -> int:
        """Return how many tokens of a prompt a token of another model's response can become.

        A model may write tokens that its own tokenizer would not choose: a word without a space
        before it may be read letter by letter. So each token of the vocabulary is read, twice in a
        row.

        Args:
            writer: counter of the model that wrote the response.

        Returns:
            The most tokens for one; `MAX_READ_TOKENS` unless both tokenizers are here.
        """
        # Slow tokenizers, which few models have, would take minutes for a vocabulary.
        if not (self.vocabulary and writer.vocabulary):
            return MAX_READ_TOKENS
        if writer.vocabulary not in self._read_tokens:
            pairs = [[token, token] for token in range(len(writer._tokenizer))]
            texts = writer._tokenizer.batch_decode(pairs, skip_special_tokens=True)
            encoded = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
            longest = max(map(len, encoded))
            self._read_tokens[writer.vocabulary] = max(-(-longest // 2), 1)
        return self._read_tokens[writer.vocabulary]


def token_counter(spec: ModelSpec) -> TokenCounter:
    """Return the counter of a model: exact if its tokenizer is on this machine.

    Args:
        spec: a model of a pool. On a server, its endpoint may name a tokenizer.

    Returns:
        The counter.
    """
    if spec.backend == OPENAI:
        name = spec.endpoint.tokenizer if spec.endpoint else None
        return TokenCounter(spec, _tokenizer(replace(spec, model=name)) if name else None)
    try:
        model_window = model_details(spec)["window"]
    except InputError:  # no such folder: loading the model will fail
        return TokenCounter(spec, None, spec.window)
    windows = [size for size in (model_window, spec.window) if isinstance(size, int)]
    return TokenCounter(spec, _tokenizer(spec), min(windows, default=None))


def _tokenizer(spec: ModelSpec) -> Any:
    """Load the tokenizer of a saved model; None if it is not here, or cannot chat."""
    try:
        folder = saved_folder(spec)
    except InputError:
        folder = None
    if folder is None:
        return None
    from transformers import AutoTokenizer  # slow to import

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception:  # of its library too, if a file is damaged; loading the model will say why
        return None
    return tokenizer if tokenizer.chat_template else None
