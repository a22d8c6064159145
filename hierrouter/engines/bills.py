"""The bill of a call: what the usage of a server's reply says, under whichever names it says it.

Servers agree on neither the names nor on what a count includes. OpenAI counts thoughts and cached
tokens within its two totals, others on top of them; so the totals are reconciled with the sum that
most servers send too. What does not add up is remarked on, and never taken for 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.pools.pool import DEFAULT_CURRENCY
from hierrouter_cache.keys import sound_text
from hierrouter_cache.tree import Rate

MAX_TOKEN_COUNT = 2**31 - 1  # what the cache can store
MAX_COUNT_DIGITS = 12  # of a number in a text: enough for a count that is refused
MAX_USAGE_LENGTH = 20_000  # characters of a usage object; a longer one is no bill
# Names of each count, by dialect, the usual one first; a dot leads into an object.
PROMPT_NAMES = ("prompt_tokens", "input_tokens", "promptTokenCount", "prompt_token_count")
RESPONSE_NAMES = (
    "completion_tokens",
    "output_tokens",
    "candidatesTokenCount",
    "candidates_token_count",
)
TOTAL_NAMES = ("total_tokens", "totalTokenCount", "total_token_count")
THOUGHT_NAMES = (
    "completion_tokens_details.reasoning_tokens",  # OpenAI, and most others
    "output_tokens_details.reasoning_tokens",  # OpenAI's Responses
    "completion_tokens_details.thinking_tokens",
    "reasoning_tokens",
    "thoughtsTokenCount",  # Gemini
    "thoughts_token_count",
)
CACHED_NAMES = (
    "prompt_tokens_details.cached_tokens",  # OpenAI, vLLM
    "input_tokens_details.cached_tokens",
    "cache_read_input_tokens",  # Anthropic
    "prompt_cache_hit_tokens",  # DeepSeek
    "cachedContentTokenCount",  # Gemini
    "cached_content_token_count",
    "cached_tokens",
)
WRITTEN_NAME = "cache_creation_input_tokens"  # Anthropic: prompt tokens that were put into a cache
COST_NAMES = (
    "cost",
    "cost.total_cost",
    "total_cost",
    "estimated_cost",
    "cost_usd",
    "response_cost",
)
ANTHROPIC_CACHE_NAMES = ("cache_read_input_tokens", WRITTEN_NAME)
# Dialects whose thoughts are never within the tokens of the response.
SEPARATE_THOUGHTS = ("candidatesTokenCount", "candidates_token_count")
# Remarks on counts that contradict each other.
BIG_THOUGHTS = "reasoning_tokens are more than completion_tokens: they are billed on top of them"
TOTAL_ABOVE = (
    "total_tokens is more than prompt_tokens and completion_tokens, and no field says why: the "
    "rest is billed as generated"
)
TOTAL_BELOW = "total_tokens is less than prompt_tokens and completion_tokens: these two are billed"


@dataclass(frozen=True)
class Bill:
    """What a call is billed for.

    Attributes:
        tokens_in: tokens of the prompt, cached ones included; None if the server does not say.
        tokens_out: generated tokens, thoughts included; None if the server does not say.
        cached: the prompt tokens that were read from a cache; None if the server does not say.
        thoughts: the generated tokens that belong to a thought; None if the server does not say.
        cost: in the server's currency, if it says what the call costs.
        usage: the whole usage object as the server sent it, JSON; "" if there was none.
        remarks: what does not add up, each a sentence that goes on from "in answers of M".
    """

    tokens_in: int | None = None
    tokens_out: int | None = None
    cached: int | None = None
    thoughts: int | None = None
    cost: float | None = None
    usage: str = ""
    remarks: tuple[str, ...] = ()

    def cost_at(self, rate: Rate, tokens_in: int, tokens_out: int) -> float:
        """Compute what a call with this bill costs at a rate, in money.

        Args:
            rate: prices of its model.
            tokens_in: tokens of its prompt, cached ones included.
            tokens_out: its generated tokens, thoughts included.
        """
        return rate.cost(tokens_in, tokens_out, self.cached or 0, self.thoughts or 0)


NO_BILL = Bill()

# Where servers send counts, beside `usage` of a completion; a dot leads into an object or a list.
USAGE_PLACES = (
    "usage",
    "usageMetadata",  # Gemini's own names
    "usage_metadata",
    "x_groq.usage",  # Groq, in the last piece of a stream
    "choices.0.usage",  # Moonshot, likewise
)
# Counts that stand beside each other somewhere else: prompt, response.
LOOSE_COUNTS = (
    ("prompt_eval_count", "eval_count"),  # Ollama's own names
    ("x-prompt-tokens", "x-generated-tokens"),  # headers of TGI
    ("x-amzn-bedrock-input-token-count", "x-amzn-bedrock-output-token-count"),
)
# Fields of a piece of a stream that may hold counts.
USAGE_FIELDS = ("usage", "usageMetadata", "usage_metadata", "x_groq", "timings", *LOOSE_COUNTS[0])


def usage_in(completion: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
    """Return the usage object of a reply, wherever the server puts it.

    Args:
        completion: the body of the reply.
        headers: of the reply.

    Returns:
        The object, not validated; None if there is none.
    """
    for place in USAGE_PLACES:
        usage = _value_in(completion, place)
        if isinstance(usage, Mapping) and any(value is not None for value in usage.values()):
            return usage
    timings = completion.get("timings")  # llama.cpp counts cached tokens of the prompt apart
    if isinstance(timings, Mapping) and {"prompt_n", "cache_n", "predicted_n"} <= timings.keys():
        try:
            cached = token_count(timings["cache_n"])
            prompt = token_count(timings["prompt_n"]) + cached
        except ValueError:
            return None
        details = {"cached_tokens": cached}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": timings["predicted_n"],
            "prompt_tokens_details": details,
        }
    for source in (completion, headers or {}):
        for prompt_name, response_name in LOOSE_COUNTS:
            if source.get(prompt_name) is not None and source.get(response_name) is not None:
                return {
                    "prompt_tokens": source[prompt_name],
                    "completion_tokens": source[response_name],
                }
    return completion.get("usage")


def _value_in(value: Any, name: str) -> Any:
    """Return the value under a name that leads into objects and lists; None if there is none."""
    for key in name.split("."):
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def read_usage(usage: Any) -> Bill:
    """Read the usage object of a reply, in any of the dialects above.

    Args:
        usage: as the server sent it, not validated.

    Returns:
        The bill. It has no counts if there is no usage object.

    Raises:
        ValueError: the tokens of prompt, response or both are no possible count.
    """
    return _UsageReader(usage).bill() if isinstance(usage, Mapping) else NO_BILL


class _UsageReader:
    """Reads one usage object.

    Args:
        usage: the object.
    """

    def __init__(self, usage: Mapping[str, Any]) -> None:
        self._usage = usage
        self._remarks: list[str] = []

    def bill(self) -> Bill:
        """Read the bill.

        Raises:
            ValueError: as `read_usage`.
        """
        response_name = self._name(RESPONSE_NAMES)
        tokens_in = self._count(self._name(PROMPT_NAMES))
        tokens_out = self._count(response_name)
        total = self._count(self._name(TOTAL_NAMES))
        cached = self._part(CACHED_NAMES)
        thoughts = self._part(THOUGHT_NAMES)
        in_cache = (cached or 0) + (self._part((WRITTEN_NAME,)) or 0)
        if tokens_in is not None and tokens_out is None and total is not None and total > tokens_in:
            tokens_out = total - tokens_in  # some proxies leave out what follows from the others
        if tokens_in is not None and tokens_out is not None:
            is_apart = response_name in SEPARATE_THOUGHTS or (thoughts or 0) > tokens_out
            cache_on_top, thoughts_on_top = self._on_top(
                tokens_in + tokens_out, total, in_cache, thoughts or 0, is_apart
            )
            tokens_in += in_cache if cache_on_top else 0
            tokens_out += (thoughts or 0) if thoughts_on_top else 0
            billed = tokens_in + tokens_out
            if total is not None and total > billed:
                tokens_out += total - billed
                self._remarks.append(TOTAL_ABOVE)
            elif is_apart and total != billed and response_name not in SEPARATE_THOUGHTS:
                self._remarks.append(BIG_THOUGHTS)
            elif total is not None and total < billed:
                self._remarks.append(TOTAL_BELOW)
            if cached is not None and cached > tokens_in:
                self._remarks.append(
                    "more prompt tokens are from a cache than the prompt has; all count as cached"
                )
                cached = tokens_in
            thoughts = None if thoughts is None else min(thoughts, tokens_out)
        return Bill(
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            cached=cached,
            thoughts=thoughts,
            cost=self._cost(),
            usage=usage_text(self._usage),
            remarks=tuple(self._remarks),
        )

    def _on_top(
        self, plain: int, total: int | None, in_cache: int, thoughts: int, is_apart: bool
    ) -> tuple[bool, bool]:
        """Find out what is billed on top of the tokens of prompt and response.

        Args:
            plain: tokens of prompt and response as they stand.
            total: of both; None if the server sends none.
            in_cache: prompt tokens that were read from a cache, or put into one.
            thoughts: tokens of a thought.
            is_apart: whether the thought cannot be within the tokens of the response.

        Returns:
            Whether the tokens in the cache, and whether those of the thought, are on top.
        """
        has_own_names = "prompt_tokens" not in self._usage and "input_tokens" in self._usage
        # Anthropic's own dialect counts its cache beside the rest of the prompt.
        cache_beside = has_own_names and any(name in self._usage for name in ANTHROPIC_CACHE_NAMES)
        likeliest = (cache_beside, is_apart)
        if total is None:
            return likeliest
        for with_cache in (cache_beside, not cache_beside):
            for with_thoughts in (True,) if is_apart else (False, True):
                if total == plain + with_cache * in_cache + with_thoughts * thoughts:
                    return with_cache, with_thoughts
        return likeliest

    def _value(self, name: str) -> Any:
        """Return the value under a name, which may lead into objects; None if there is none."""
        return _value_in(self._usage, name)

    def _name(self, names: Sequence[str]) -> str:
        """Return the first name with a value; the usual one if none has."""
        return next((name for name in names if self._value(name) is not None), names[0])

    def _count(self, name: str) -> int | None:
        """Return a count that decides about the bill.

        Raises:
            ValueError: it is no possible count.
        """
        value = self._value(name)
        return None if value is None else token_count(value)

    def _part(self, names: Sequence[str]) -> int | None:
        """Return a count of some of the tokens; an impossible one is remarked on and ignored."""
        name = self._name(names)
        try:
            return self._count(name)
        except ValueError:
            self._remarks.append(f"{name} is no number of tokens: it is ignored")
            return None

    def _cost(self) -> float | None:
        for name in COST_NAMES:
            cost = cost_number(self._value(name))
            if cost is not None:
                return cost
        return None


def token_count(value: Any) -> int:
    """Check a number of tokens; a float without a fraction and a text of digits count as numbers.

    Args:
        value: as it was read, not validated.

    Raises:
        ValueError: it is no number of tokens that a call can have.
    """
    number = value
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        number = int(value[:MAX_COUNT_DIGITS])
    is_whole = isinstance(number, float) and number.is_integer()
    is_number = isinstance(number, int) and not isinstance(number, bool)
    if not (is_number or is_whole):
        raise ValueError(f"{value!r:.20} tokens")
    count = int(number)
    if not 0 <= count <= MAX_TOKEN_COUNT:
        raise ValueError(f"{value!r:.20} tokens")
    return count


def cost_number(value: Any) -> float | None:
    """Return a cost that somebody states; None if it is no number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        cost = float(value)
    except OverflowError:
        return None
    return cost if isfinite(cost) and cost >= 0 else None


def usage_text(usage: Mapping[str, Any]) -> str:
    """Return a usage object as it is stored; "" if it is too long or too deep."""
    try:
        text = json.dumps(usage, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return ""
    if "NaN" in text or "Infinity" in text:  # no JSON, although Python reads and writes it
        finite = json.loads(text, parse_constant=lambda name: None)
        text = json.dumps(finite, ensure_ascii=False, separators=(",", ":"))
    return sound_text(text) if len(text) <= MAX_USAGE_LENGTH else ""


# Counts that nobody counted.

MIN_COUNTED_TEXTS = 6
# English has 4 to 5 characters a token, long words without spaces 8, and rows of spaces in code up
# to 12; the mean over many calls is never above.
MAX_CHARACTERS_PER_TOKEN = 12.0
# Equal counts are doubted if the longest text has so many times the characters of the shortest one;
# or if there are so many texts, and this share of their lengths differs.
MIN_LENGTH_RATIO = 2.0
DIFFERENT_SHARE = 0.25
MANY_TEXTS = 20


@dataclass
class CountedTexts:
    """The lengths of texts and the tokens that somebody says they have, of one model.

    Attributes:
        characters: of each text.
        tokens: of each text.
    """

    characters: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def add(self, text: str, tokens: int) -> None:
        """Add one text and its tokens."""
        self.characters.append(len(text))
        self.tokens.append(tokens)

    def doubt(self) -> str | None:
        """Return the doubt of `implausible_counts`."""
        return implausible_counts(
            np.array(self.characters, dtype=np.int64), np.array(self.tokens, dtype=np.int64)
        )


def implausible_counts(characters: NDArray[np.int64], tokens: NDArray[np.int64]) -> str | None:
    """Doubt numbers of tokens that no tokenizer can have counted.

    Args:
        characters: int64[n], lengths of texts.
        tokens: int64[n], the number of tokens that a server or a file gives for each.

    Returns:
        What is wrong, which goes on from "the tokens of the prompts are"; None if nothing is, or if
        there are too few texts.
    """
    has_text = characters > 0
    if int(has_text.sum()) < MIN_COUNTED_TEXTS:
        return None
    lengths = characters[has_text]
    counts = tokens[has_text]
    if not counts.any():
        return "all 0"
    zeros = int((counts == 0).sum())
    if zeros >= MIN_COUNTED_TEXTS:
        return f"0 for {zeros:,} texts that are not empty"
    differ = lengths.max() >= MIN_LENGTH_RATIO * lengths.min() or (
        len(lengths) >= MANY_TEXTS and len(np.unique(lengths)) >= DIFFERENT_SHARE * len(lengths)
    )
    if differ and counts.min() == counts.max():
        return f"the same number, {int(counts[0])}, for texts of {_range_of(lengths)} characters"
    ratio = float(lengths.sum()) / float(counts.sum())
    if ratio > MAX_CHARACTERS_PER_TOKEN:
        return f"too few for any tokenizer, {ratio:.0f} characters a token"
    return None


def _range_of(lengths: NDArray[np.int64]) -> str:
    return f"{int(lengths.min()):,} to {int(lengths.max()):,}"


# Costs that a server or an imported file states.

GIVEN_COST_TOLERANCE = 0.03
GIVEN_COST_CURRENCIES = (DEFAULT_CURRENCY, "USD")  # those that a stated cost may be in


def given_cost_notes(costs: Mapping[str, tuple[float, float, int]], currency: str) -> Iterator[str]:
    """Compare the costs that servers or a file state with tokens times rates.

    Args:
        costs: by model: (sum of the given costs, tokens of the same calls times the rates, number
            of these calls).
        currency: of the rates.

    Yields:
        A line for each model whose two costs differ by more than `GIVEN_COST_TOLERANCE`; none if
        the costs are surely stated in another currency.
    """
    if currency not in GIVEN_COST_CURRENCIES:
        return
    for model, (given, own, calls) in costs.items():
        if abs(given - own) <= GIVEN_COST_TOLERANCE * max(given, own):
            continue
        factor = f", {given / own:.3g} times as much" if own else ""
        yield (
            f"{model} costs {own:.4g} {currency} by its tokens and rates, and {given:.4g} by the "
            f"cost given with its {calls:,} calls{factor}; look at its rates and per_tokens"
        )
