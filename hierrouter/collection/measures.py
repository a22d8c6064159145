"""Tokens and seconds of the calls in a cache, by step, depth and dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.reader import CacheReader

STANDARD_ERRORS = 2.0  # on either side of a mean


@dataclass(frozen=True)
class Range:
    """A number of which only a range is known; all three are equal if it is known.

    Attributes:
        low: it is hardly less.
        likely: the best guess.
        high: it is hardly more.
    """

    # A dry run prints these names as JSON.
    low: float
    likely: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Range:
        """The range of a number that is known."""
        return cls(value, value, value)

    def __add__(self, other: Range) -> Range:
        """The range of the sum, if both err in the same direction."""
        return Range(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def __mul__(self, other: Range) -> Range:
        """The range of the product of two numbers from 0 on."""
        return Range(self.low * other.low, self.likely * other.likely, self.high * other.high)

    def at_least(self, other: Range) -> Range:
        """The range of the larger one of two numbers."""
        return Range(
            max(self.low, other.low), max(self.likely, other.likely), max(self.high, other.high)
        )


@dataclass(frozen=True)
class Sample:
    """Calls of one step whose prompts have the same number of responses.

    Attributes:
        tokens_in: int64[n], tokens of the prompts.
        tokens_out: int64[n], tokens of the responses.
        prompt_bytes: of all prompts.
        seconds: of all calls; None if those of some are not recorded.
    """

    tokens_in: NDArray[np.int64]
    tokens_out: NDArray[np.int64]
    prompt_bytes: int
    seconds: float | None

    def __len__(self) -> int:
        return len(self.tokens_in)

    def __add__(self, other: Sample) -> Sample:
        has_seconds = self.seconds is not None and other.seconds is not None
        return Sample(
            tokens_in=np.concatenate([self.tokens_in, other.tokens_in]),
            tokens_out=np.concatenate([self.tokens_out, other.tokens_out]),
            prompt_bytes=self.prompt_bytes + other.prompt_bytes,
            seconds=(self.seconds or 0) + (other.seconds or 0) if has_seconds else None,
        )

    def at_depth(self, responses: int) -> Sample:
        """The sample as if prompts had more responses, or fewer if the number is negative."""
        further = round(responses * float(self.tokens_out.mean()))
        return replace(self, tokens_in=np.maximum(self.tokens_in + further, 1))

    @property
    def tokens_per_byte(self) -> float:
        """Tokens of a prompt for each of its bytes."""
        return float(self.tokens_in.sum()) / max(self.prompt_bytes, 1)


# Where a call was made: responses in its prompt, and the dataset of its question; the first one by
# name if it is a question of several.
SAMPLES = (
    "WITH RECURSIVE reached AS ("
    "SELECT context, min(dataset) AS dataset, 0 AS depth FROM queries_rows GROUP BY context "
    "UNION "
    "SELECT c.outcome, r.dataset, r.depth + 1 FROM reached r JOIN calls_rows c USING (context)"
    "), places AS ("
    "SELECT context, min(dataset) AS dataset, min(depth) AS depth FROM reached GROUP BY context"
    ") SELECT step, depth, dataset, list(tokens_in ORDER BY key), list(tokens_out ORDER BY key), "
    "sum(strlen(prompt))::BIGINT, sum(latency_s), count(latency_s) "
    "FROM calls_rows JOIN places USING (context) GROUP BY step, depth, dataset "
    "ORDER BY step, depth, dataset"
)


class Measures:
    """The calls in a cache, as samples of calls that are to be made.

    Args:
        reader: of the cache; None if it does not exist yet.
    """

    def __init__(self, reader: CacheReader | None) -> None:
        self._samples: dict[str, dict[int, dict[str, Sample]]] = {}  # by step, depth, dataset
        self._questions: dict[str, int] = {}  # with an answer, by dataset
        if reader is None:
            return
        rows = zip(*(column.to_pylist() for column in reader.sql(SAMPLES).columns), strict=True)
        for step, depth, dataset, tokens_in, tokens_out, prompt_bytes, seconds, timed in rows:
            sample = Sample(
                np.array(tokens_in, dtype=np.int64),
                np.array(tokens_out, dtype=np.int64),
                prompt_bytes,
                seconds if timed == len(tokens_in) else None,
            )
            self._samples.setdefault(step, {}).setdefault(depth, {})[dataset] = sample
            if depth == 0:
                self._questions[dataset] = max(self._questions.get(dataset, 0), len(sample))

    def __bool__(self) -> bool:
        return bool(self._samples)

    def depths(self, step: str) -> Mapping[int, Sample]:
        """The sample of each depth at which a step was called, all datasets together."""
        by_depth = {}
        for depth, by_dataset in self._samples.get(step, {}).items():
            first, *others = by_dataset.values()
            by_depth[depth] = sum(others, first)
        return by_depth

    def sample(self, step: str, depth: int, dataset: str | None = None) -> Sample | None:
        """The calls that tell most about a call: of its dataset and depth if there are any.

        Args:
            step: of the call.
            depth: responses in its prompt.
            dataset: of its question; None for all.

        Returns:
            The sample: calls of all datasets if this one has none; those of the nearest depth, made
            as long as prompts of this one, if this depth has none. None if the step was never
            called.
        """
        by_depth = self._samples.get(step)
        if not by_depth:
            return None
        if dataset in by_depth.get(depth, {}):
            return by_depth[depth][dataset]
        depths = self.depths(step)
        nearest = min(depths, key=lambda other: (abs(other - depth), -other))
        return depths[nearest].at_depth(depth - nearest)

    def has(self, dataset: str) -> bool:
        """Whether there are calls on questions of a dataset."""
        return dataset in self._questions

    def mean(self, values: NDArray[np.int64], dataset: str) -> Range:
        """The mean of some calls, with two standard errors on either side; more for a new dataset.

        Calls on one question are much alike, so each question counts as one draw.

        Args:
            values: int64[n], of the calls of a sample, not empty.
            dataset: for which the sample is taken.
        """
        mean = float(values.mean())
        draws = min(self._draws(dataset), len(values))
        spread = STANDARD_ERRORS * float(values.std()) / draws**0.5
        around = Range(max(mean - spread, 0.0), mean, mean + spread)
        # Of another dataset little is known: mean tokens of usual datasets differ by a factor of 2.
        return around if self.has(dataset) else around * Range(0.5, 1.0, 2.0)

    def _draws(self, dataset: str) -> int:
        """Questions of a dataset that have calls; of all datasets if this one has none."""
        return max(self._questions.get(dataset) or sum(self._questions.values()), 1)
