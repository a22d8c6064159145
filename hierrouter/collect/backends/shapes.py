"""The shapes of batches.

In: lengths of prompts, limits. Out: which prompts are decoded together, and how high and wide.

The width is a prompt's length rounded up, and the height follows from the width and the limits; so
both are functions of the prompt alone as long as the limits are the same. Missing rows are filled
with copies. The limit by memory is a number of tokens rounded down to a few values, so that a
little more or less free memory is the same limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

NARROWEST = 16  # tokens; widths are this times 1, 2, 3, 4, 6, 8, 12, 16, ...


@dataclass(frozen=True)
class Shape:
    """Rows and columns of a batch of prompts, in tokens."""

    height: int
    width: int


@dataclass(frozen=True)
class Limits:
    """What a batch may be at most.

    Attributes:
        rows: prompts at a time.
        prompt_tokens: height times width, since more than a device can work on at once is no gain.
        cache_tokens: height times width and response, for memory.
        new_tokens: the longest response.
    """

    rows: int
    prompt_tokens: int
    cache_tokens: int
    new_tokens: int

    def shape(self, length: int) -> Shape:
        """The shape of the batch in which a prompt of `length` tokens is decoded."""
        width = step_above(length, NARROWEST)
        room = step_below(self.cache_tokens // (width + self.new_tokens))
        return Shape(max(1, min(self.rows, self.prompt_tokens // width, room)), width)

    def halved(self, shape: Shape) -> Limits:
        """Limits under which a batch of this width has half the rows.

        Raises:
            ValueError: it has one row.
        """
        if shape.height == 1:
            raise ValueError("a batch of one row cannot be halved")
        rows = step_below(shape.height // 2)
        return replace(self, cache_tokens=rows * (shape.width + self.new_tokens))


def batches(lengths: Mapping[int, int], limits: Limits) -> list[tuple[Shape, list[int]]]:
    """Shape and rows of each batch, widest first: out of memory then shows at once.

    Args:
        lengths: of the prompts in tokens, by row.
        limits: of each batch.
    """
    by_shape: dict[Shape, list[int]] = {}
    for row, length in lengths.items():
        by_shape.setdefault(limits.shape(length), []).append(row)
    ordered = sorted(by_shape.items(), key=lambda item: item[0].width, reverse=True)
    return [(shape, part) for shape, rows in ordered for part in _parts(rows, shape.height)]


def _parts(rows: list[int], height: int) -> Iterator[list[int]]:
    for start in range(0, len(rows), height):
        yield rows[start : start + height]


def step_above(number: int, first: int = 1) -> int:
    """The least of `first` times 1, 2, 3, 4, 6, 8, 12, 16, ... that is not below `number`."""
    step = first
    while step < number:
        step = _next_step(step, first)
    return step


def step_below(number: int) -> int:
    """The largest of 1, 2, 3, 4, 6, 8, 12, 16, ... that is not above `number`; 0 below 1."""
    step = 0
    following = 1
    while following <= number:
        step, following = following, _next_step(following, 1)
    return step


def _next_step(step: int, first: int) -> int:
    """Doubling, with one step halfway."""
    return step * 4 // 3 if (step // first) % 3 == 0 else max(step * 3 // 2, 2 * first)
