"""A prompt as a chat model sees it.

In: a tokenizer with a chat template, one prompt. Out: tokens. Not covered: several turns; a hop's
prompt is one message of a user.
"""

from __future__ import annotations

from typing import Any

from hierrouter_cache.errors import named_reason


def message_of(prompt: str) -> list[dict[str, str]]:
    """The conversation that a prompt is."""
    return [{"role": "user", "content": prompt}]


def prompt_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """The tokens that a model is given, chat template included.

    Raises:
        RuntimeError: the template fails.
    """
    try:
        encoded = tokenizer.apply_chat_template(
            message_of(prompt), add_generation_prompt=True, tokenize=True, return_dict=True
        )
    except Exception as error:  # it is a program of others, in a sandbox
        raise RuntimeError(f"its chat template fails: {named_reason(error)}") from error
    return list(encoded["input_ids"])
