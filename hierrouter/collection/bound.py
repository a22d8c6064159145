"""An upper bound of what a collection takes, from caps, windows, rates and counts.

It needs no call in the cache: each prompt has the tokens of its known texts, and the longest
response of each model that answers before. A response has at most its cap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.collection.due import DueStage, HiddenContexts
from hierrouter.engines.generator import prompt_text
from hierrouter.engines.token_counts import MAX_READ_TOKENS, MAX_TEMPLATE_TOKENS, TokenCounter
from hierrouter.pools.pool import OPENAI

SEPARATOR_TOKENS = 2  # of the two line breaks between two texts of a prompt


@dataclass(frozen=True)
class Bound:
    """The most that some calls take.

    Attributes:
        calls: number of calls.
        tokens_in: of their prompts.
        tokens_out: of their responses.
        cost: in the pool's currency.
        seconds: at the speed of earlier calls, and at the limits per minute; None if unknown.
    """

    # A dry run prints these names as JSON.
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    seconds: float | None = None

    def __add__(self, other: Bound) -> Bound:
        """The sum of all but the seconds."""
        return Bound(
            calls=self.calls + other.calls,
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            cost=self.cost + other.cost,
        )


def bound_stage(due: DueStage, counters: Mapping[str, TokenCounter]) -> tuple[int, int]:
    """Bound the tokens of a stage's calls.

    Args:
        due: the calls to make.
        counters: of every model of the pool, by name.

    Returns:
        The most tokens of prompts and of responses.
    """
    model = due.stage.model
    counter = counters[model.name]
    lengths = counter.count([call.prompt for call in due.calls])
    tokens_in, answered = _answerable(counter, lengths)
    for contexts in due.hidden:
        beginnings = _beginnings(counter, contexts, due.stage.instruction)
        for further, chains in _response_tokens(counter, contexts, counters).items():
            longest, calls = _answerable(counter, beginnings, further)
            tokens_in += chains * longest
            answered += chains * calls
    return tokens_in, answered * model.generation.max_new_tokens


def _beginnings(
    counter: TokenCounter, contexts: HiddenContexts, instruction: str
) -> NDArray[np.int64]:
    """Count the tokens of prompts as if nothing followed their known texts."""
    return counter.count(
        [prompt_text(question, responses, instruction) for question, *responses in contexts.texts]
    )


def _response_tokens(
    counter: TokenCounter, contexts: HiddenContexts, counters: Mapping[str, TokenCounter]
) -> Counter[int]:
    """Count the chains of responses by the most tokens that they add to a prompt."""
    tokens_of = {
        writer.spec.name: writer.spec.generation.max_new_tokens * counter.read_tokens(writer)
        + SEPARATOR_TOKENS
        for writer in counters.values()
    }
    return Counter(sum(tokens_of[model.name] for model in chain) for chain in contexts.chains)


def _answerable(
    counter: TokenCounter, lengths: NDArray[np.int64], further: int = 0
) -> tuple[int, int]:
    """Bound the tokens of prompts that a model may answer: it refuses those beyond its window.

    Args:
        counter: of the model.
        lengths: int64[n], tokens that each prompt has at least, or a bound of them.
        further: the most tokens that come on top.

    Returns:
        Tokens of all prompts that may be answered, and the number of these prompts.
    """
    longest = lengths + further
    limit = counter.max_prompt_tokens
    if limit is None:
        return int(longest.sum()), len(lengths)
    if counter.is_exact:
        longest = longest[lengths <= limit]
    elif limit == 0:
        longest = longest[:0]
    return int(np.minimum(longest, limit).sum()), len(longest)


def bound_notes(counters: Sequence[TokenCounter]) -> Iterator[str]:
    """Explain what the bound assumes, and what it cannot bound.

    Args:
        counters: of the models that have calls to make.

    Yields:
        A sentence for people each.
    """
    by_bytes = [counter.spec.name for counter in counters if not counter.is_exact]
    if by_bytes:
        yield (
            f"no tokenizer here of {', '.join(by_bytes)}: at most, a prompt has a token a byte, "
            f"those of the chat template ({MAX_TEMPLATE_TOKENS}, or the shortest prompt so far), "
            f"and {MAX_READ_TOKENS} times the cap of each earlier answer"
        )
    for counter in counters:
        if counter.max_prompt_tokens == 0:
            cap = counter.spec.generation.max_new_tokens
            yield (
                f"{counter.spec.name} can answer nothing: its window has no room beside "
                f"max_new_tokens = {cap}; give it less"
            )
    served = [counter.spec.name for counter in counters if counter.spec.backend == OPENAI]
    if served:
        yield (
            f"a server may do what is not in the bound: bill failed attempts, answer beyond the "
            f"cap, count other tokens ({', '.join(served)})"
        )
