"""Count tokens for a server that does not.

In: a tokenizer's folder or hub id. Out: a function that counts prompt and response as the model
sees them. Not covered: servers that send `usage`; theirs are the real counts.
"""

from __future__ import annotations

from transformers import AutoTokenizer

from hierrouter.collect.backends.chat import prompt_tokens
from hierrouter.collect.backends.endpoint.completion import Count
from hierrouter.collect.identity import named_folder
from hierrouter.pool import ModelSpec
from hierrouter_cache.errors import WorldError, reason_of


def counter(tokenizer: str, place: str) -> Count:
    """What counts with this tokenizer and its chat template.

    Args:
        tokenizer: folder, hub id or `testbed:NAME`.
        place: whose it is, for messages.

    Raises:
        WorldError: it cannot be loaded, or has no chat template.
        RuntimeError: what it returns, where the template fails.
    """
    source = str(named_folder(ModelSpec(place, tokenizer)) or tokenizer)
    try:
        loaded = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        raise WorldError(
            f"cannot load tokenizer {tokenizer}: {place}: {reason}; name another"
        ) from error
    if loaded.chat_template is None:
        raise WorldError(f"tokenizer {tokenizer} has no chat template: {place}; name another")

    def count(prompt: str, text: str, ended: bool) -> tuple[int, int]:
        shown = prompt_tokens(loaded, prompt)
        said = loaded(text, add_special_tokens=False)["input_ids"]
        return len(shown), len(said) + ended  # the end token counts too

    return count
