"""What a model is shown: context, then instruction.

The stage instruction comes last, so that all prompts of one context share their beginning and an
engine's prefix cache can serve them. Bump `hierrouter_cache.fingerprint.PROMPT_LAYOUT` when the
layout changes. Not covered: chat templates, which are each model's own.
"""

from __future__ import annotations

from collections.abc import Sequence

PART_BREAK = "\n\n"


def context_text(question: str, responses: Sequence[str]) -> str:
    """The context c_t: the question and every response so far, newest last."""
    return PART_BREAK.join([question, *responses])


def prompt_text(question: str, responses: Sequence[str], instruction: str) -> str:
    """The user message of one call: the context, then the stage instruction if there is one."""
    context = context_text(question, responses)
    return PART_BREAK.join([context, instruction]) if instruction else context
