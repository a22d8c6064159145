"""Rows of prompts while they are decoded, and how they change companions.

A batch lasts as long as its longest response. Where lengths differ, most of its rows have ended
long before. So a batch pauses at certain lengths of its rows, prompts included, if many of them
have ended: their responses are complete, and the other rows wait. As soon as enough rows of one
length wait, they go on together as a full batch, also if their prompts differ in width.

Every step then has the shapes that it would have had without a pause: the height of the batch, and
the length of the keys. So each response keeps its bits, whatever its companions are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, cast

import torch
from transformers import DynamicCache, StoppingCriteria
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

# A batch can pause at the lengths 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, ...: a pause costs some
# steps, and rows of prompts of different widths must meet.
PAUSES = frozenset(first << shift for shift in range(2, 30) for first in (4, 5, 6, 7))
# It pauses if at least this share of its rows has ended.
ENDED_SHARE = 0.25

# It does not pause if fewer steps than these are left at most: a pause would cost as much.
MIN_STEPS_LEFT = 16

# Decides, by the length of the rows and the number of those that have not ended, whether a batch
# pauses.
ShouldPause = Callable[[int, int], bool]


@dataclass
class Rows:
    """Rows of one length, prompts and new tokens together.

    Attributes:
        keys: of the prompts, one for each row.
        widths: tokens of each row before its new tokens.
        is_padded: whether a row of their first batch was filled up to the width. If none was,
            transformers drops the mask, and attention is computed by another kernel.
        tokens: int64[rows, length], prompts and new tokens.
        mask: int64[rows, length], 0 where a row was filled up.
        total: float32[rows], sum of the log-probabilities of the new tokens, in nats.
        lowest: float32[rows], the lowest of these log-probabilities, in nats.
        sources: of random draws, one for each row; none in greedy decoding.
        cache: keys and values of all tokens except the newest; None if transformers keeps them.
        admitted: moment of each row's admission to its first batch, by `perf_counter`.
        first_token_s: seconds from there to the first new token of each row; NaN before it.
    """

    keys: list[int]
    widths: list[int]
    is_padded: bool
    tokens: torch.Tensor
    mask: torch.Tensor
    total: torch.Tensor
    lowest: torch.Tensor
    sources: list[torch.Generator]
    cache: DynamicCache | None
    admitted: list[float]
    first_token_s: list[float]

    @classmethod
    def of_prompts(
        cls,
        prompts: Mapping[int, Sequence[int]],
        width: int,
        pad: int,
        sources: list[torch.Generator],
        cache: DynamicCache | None,
        device: torch.device,
    ) -> Rows:
        """Make the rows of prompts.

        Args:
            prompts: tokens of each prompt, by its key.
            width: tokens of a row.
            pad: the token that fills up rows, at their beginning.
            sources: of random draws, one for each prompt; none in greedy decoding.
            cache: an empty one, if the rows can pause.
            device: of the model.

        Returns:
            The rows, without new tokens.
        """
        tokens = torch.full((len(prompts), width), pad)
        mask = torch.zeros((len(prompts), width), dtype=torch.long)
        for row, prompt in enumerate(prompts.values()):
            start = width - len(prompt)
            tokens[row, start:] = torch.tensor(prompt)
            mask[row, start:] = 1
        return cls(
            keys=list(prompts),
            widths=[width] * len(prompts),
            is_padded=not bool(mask.all()),
            tokens=tokens.to(device),
            mask=mask.to(device),
            total=torch.zeros(len(prompts), device=device),
            lowest=torch.zeros(len(prompts), device=device),
            sources=sources,
            cache=cache,
            admitted=[perf_counter()] * len(prompts),
            first_token_s=[math.nan] * len(prompts),
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.keys)

    @property
    def length(self) -> int:
        """Tokens of each row."""
        return self.tokens.shape[1]

    def fill_up(self, height: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Fill up the cache to the height of a batch, with copies of the first row.

        Args:
            height: rows of the batch.

        Returns:
            Tokens and mask, int64[height, length] each.
        """
        rows = [*range(len(self)), *[0] * (height - len(self))]
        tokens = self.tokens[rows]
        mask = self.mask[rows]
        if self.is_padded and height > len(self) and bool(mask.all()):
            mask[-1, 0] = 0  # so that the batch has a mask, as the first batch of its rows had
        if self.cache is not None and height > len(self):
            self.cache.batch_select_indices(torch.tensor(rows))
        return tokens, mask

    def extend(self, sequences: torch.Tensor) -> None:
        """Add new tokens.

        Args:
            sequences: int64[rows or more, length], old and new tokens; further rows are ignored.
        """
        self.tokens = sequences[: len(self)]
        addition = self.tokens.shape[1] - self.mask.shape[1]
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self), addition)], dim=1)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep some rows, and release the others.

        Args:
            rows: their positions.
        """
        indices = torch.tensor(rows, dtype=torch.long)
        self.keys = [self.keys[row] for row in rows]
        self.widths = [self.widths[row] for row in rows]
        self.tokens = self.tokens[indices]
        self.mask = self.mask[indices]
        self.total = self.total[indices]
        self.lowest = self.lowest[indices]
        self.sources = [self.sources[row] for row in rows if self.sources]
        self.admitted = [self.admitted[row] for row in rows]
        self.first_token_s = [self.first_token_s[row] for row in rows]
        if self.cache is not None:
            self.cache.batch_select_indices(indices)

    def move_cache(self, to_host: bool) -> None:
        """Move keys and values to the memory of the processor, or back to that of the model."""
        # Only layers that keep keys and values are here, see `empty_cache`.
        layers = cast(Sequence[Any], self.cache.layers if self.cache is not None else ())
        for layer in layers:
            device = torch.device("cpu") if to_host else layer.device
            layer.keys = layer.keys.to(device)
            layer.values = layer.values.to(device)


def empty_cache(model: Any) -> DynamicCache | None:
    """Return an empty cache as `generate` makes it.

    Args:
        model: a causal language model.

    Returns:
        The cache; None if a layer of the model keeps something else than keys and values, so that
        its rows cannot be put together anew.
    """
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    # No sub-classes: those for linear or sparse attention have further states.
    known_layers = (DynamicLayer, DynamicSlidingWindowLayer)
    return cache if all(type(layer) in known_layers for layer in cache.layers) else None


def join(parts: Sequence[Rows]) -> Rows:
    """Put rows of one length together.

    Args:
        parts: of one length; their caches must not be used afterwards.

    Returns:
        All rows.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    caches = [part.cache for part in parts if part.cache is not None]
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        layers[0].keys = torch.cat([layer.keys for layer in layers])
        layers[0].values = torch.cat([layer.values for layer in layers])
        for layer in layers[1:]:
            layer.keys = None
            layer.values = None
    return replace(
        first,
        keys=[key for part in parts for key in part.keys],
        widths=[width for part in parts for width in part.widths],
        tokens=torch.cat([part.tokens for part in parts]),
        mask=torch.cat([part.mask for part in parts]),
        total=torch.cat([part.total for part in parts]),
        lowest=torch.cat([part.lowest for part in parts]),
        sources=[source for part in parts for source in part.sources],
        admitted=[moment for part in parts for moment in part.admitted],
        first_token_s=[seconds for part in parts for seconds in part.first_token_s],
    )


def split(rows: Rows, count: int) -> tuple[Rows, Rows]:
    """Split rows.

    Args:
        rows: the rows; they must not be used afterwards.
        count: rows of the first part.

    Returns:
        The first rows, and the others.
    """
    rest = replace(rows)
    if rows.cache is not None:
        rest.cache = copy.copy(rows.cache)
        rest.cache.layers = [copy.copy(layer) for layer in rows.cache.layers]
    rest.keep(range(count, len(rows)))
    rows.keep(range(count))
    return rows, rest


class WaitingRows:
    """Rows that have paused, until they go on.

    Args:
        height: rows of a full batch.
        new_tokens: the largest number of tokens of a response.
        room: tokens that may wait, prompts included, for memory.
        is_on_host: whether they wait in the memory of the processor, because that of the GPU is
            full.
    """

    def __init__(self, height: int, new_tokens: int, room: int, is_on_host: bool) -> None:
        self._height = height
        self._new_tokens = new_tokens
        self._room = room
        self._is_on_host = is_on_host
        # By length, and `Rows.is_padded`.
        self._rows: dict[tuple[int, bool], list[Rows]] = {}

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(len(rows) for parts in self._rows.values() for rows in parts)

    def should_pause(self, rows: Rows, has_more: bool, length: int, unfinished: int) -> bool:
        """Decide whether a batch pauses.

        Args:
            rows: its rows.
            has_more: whether further batches will begin.
            length: of the rows by now.
            unfinished: the number of rows that have not ended.

        Returns:
            True if the unfinished rows have steps left that are worth it, will get companions, and
            fit into memory.
        """
        if max(rows.widths) + self._new_tokens - length < MIN_STEPS_LEFT:
            return False
        waiting_tokens = sum(part.tokens.numel() for parts in self._rows.values() for part in parts)
        if waiting_tokens + unfinished * length > self._room:
            return False
        if not has_more and (length, rows.is_padded) in self._rows:
            return True
        has_ended = unfinished <= (1 - ENDED_SHARE) * self._height
        return has_ended and (has_more or any(shorter <= length for shorter, _ in self._rows))

    def add(self, rows: Rows) -> None:
        """Let rows wait."""
        if self._is_on_host:
            rows.move_cache(to_host=True)
        self._rows.setdefault((rows.length, rows.is_padded), []).append(rows)

    def take_full_batch(self) -> Rows | None:
        """Remove and return rows that fill a batch, the longest first; None if too few wait."""
        for group in sorted(self._rows, reverse=True):
            if sum(map(len, self._rows[group])) >= self._height:
                return self._take(group)
        return None

    def take_shortest(self) -> Rows | None:
        """Remove and return the shortest rows; None if none wait."""
        return self._take(min(self._rows)) if self._rows else None

    def _take(self, group: tuple[int, bool]) -> Rows:
        rows = join(self._rows.pop(group))
        count = min(len(rows), self._height)
        # A batch without any row that is filled up would lose its mask, see `Rows.is_padded`.
        if rows.is_padded and count == self._height and bool(rows.mask[:count].all()):
            count -= 1
        if count < len(rows):
            rows, rest = split(rows, count)
            self._rows[group] = [rest]
        if self._is_on_host:
            rows.move_cache(to_host=False)
        return rows


class PauseCriterion(StoppingCriteria):  # type: ignore[misc]
    """Ends the decoding of a batch at a pause; never waits for the rows that fill it up.

    Args:
        rows: the rows of the batch.
        height: rows of the batch, with those that fill it up.
        new_tokens: the largest number of tokens of a response.
        ends: the tokens that end a response.
        should_pause: decides on a pause; None if the batch must not pause.

    Attributes:
        moments: when the rows had each length, by `perf_counter`.
    """

    def __init__(
        self,
        rows: Rows,
        height: int,
        new_tokens: int,
        ends: Collection[int],
        should_pause: ShouldPause | None,
    ) -> None:
        device = rows.tokens.device
        fillers = [0] * (height - len(rows))
        self._widths = torch.tensor(rows.widths, device=device)
        self._longest = torch.tensor([*(w + new_tokens for w in rows.widths), *fillers]).to(device)
        self._ends = torch.tensor(sorted(ends), device=device)
        self._should_pause = should_pause
        self.moments: dict[int, float] = {}

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride] - it is bool all the same
        self, input_ids: torch.Tensor, scores: object, **_: object
    ) -> torch.Tensor:
        """Tell which rows need no further tokens.

        Args:
            input_ids: int64[height, length], all tokens so far.
            scores: ignored.

        Returns:
            bool[height].
        """
        length = input_ids.shape[1]
        self.moments[length] = perf_counter()
        is_over = self._longest <= length
        if self._should_pause is not None and length in PAUSES:
            count = len(self._widths)
            is_new = torch.arange(length, device=input_ids.device) >= self._widths[:, None]
            is_end = torch.isin(input_ids[:count], self._ends) & is_new
            unfinished = count - int((is_end.any(dim=1) | is_over[:count]).sum())
            if self._should_pause(length, unfinished):
                return torch.ones_like(is_over)
        return is_over
