"""Arms whose answers are known, and a check that a router reads no answer it has not paid for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hierrouter.learning.baselines.arms import Answers, Arms, Fitted, Seen

NOISE = 20  # vectors of answers that say nothing


def answered(
    quality: NDArray[np.float64],
    call_cost: NDArray[np.float64],
    *,
    looks: NDArray[np.int64] | None = None,
    says: NDArray[np.int64] | None = None,
    question: NDArray[np.int64] | None = None,
    calls: NDArray[np.bool_] | None = None,
    seed: int = 0,
) -> Arms:
    """Arms with this quality, float64[queries, arms], and these costs, float64[calls].

    Args:
        looks: int64[queries, arms], what an answer's words show, 0 to 3; nothing by default.
        says: int64[queries, arms], equal where answers are; all differ by default.
        question: int64[queries], what the question shows, 0 to 3; nothing by default.
        calls: bool[arms, calls]; each arm makes its own by default.
    """
    queries, arms = quality.shape
    rng = np.random.default_rng(seed)
    looks = np.zeros_like(quality, dtype=np.int64) if looks is None else looks
    question = np.zeros(queries, dtype=np.int64) if question is None else question
    noise = rng.normal(size=(4 * NOISE, 8)) / 4
    words = np.concatenate([np.repeat(np.eye(4), NOISE, axis=0), noise], axis=1)
    asked = np.concatenate([np.eye(4)[question], rng.normal(size=(queries, 8)) / 8], axis=1)
    answers = Answers(
        vectors=words.astype(np.float32),
        row=looks * NOISE + rng.integers(0, NOISE, quality.shape),
        group=np.arange(quality.size).reshape(quality.shape) if says is None else says,
        tokens=rng.integers(5, 30, quality.shape),
    )
    seen = Seen(
        question=asked.astype(np.float32),
        datasets=("one",) * queries,
        calls=np.eye(arms, dtype=np.bool_) if calls is None else calls,
        answers=answers,
    )
    names = tuple(f"arm-{number}" for number in range(arms))
    return Arms(
        names=names,
        seen=seen,
        call_cost=np.tile(call_cost, (queries, 1)),
        rate=seen.calls @ call_cost,
        quality=quality,
        accuracy=quality,
    )


def folds(arms: Arms) -> tuple[Arms, Arms, Arms]:
    """A half to learn from, a quarter to choose on, a quarter to look at."""
    rows = np.arange(len(arms))
    return tuple(arms.select(part) for part in np.split(rows, [len(rows) // 2, len(rows) * 3 // 4]))


def assert_reads_what_it_pays(play: Fitted, seen: Seen) -> None:
    """It does the same where the answers of the calls it did not make are others."""
    played = play(seen)
    for seed in range(3):
        again = play(_scrambled(seen, played.called > 0, np.random.default_rng(seed)))
        assert np.array_equal(again.answer, played.answer)
        assert np.array_equal(again.called, played.called)


def _scrambled(seen: Seen, made: NDArray[np.bool_], rng: np.random.Generator) -> Seen:
    """Other answers of the arms of which not all calls were made, bool[queries, calls]."""
    answers = seen.answers
    assert answers is not None
    unread = ~(made[:, None, :] | ~seen.calls).all(axis=2)
    # Another answer to the same question, so that answers agree that did not.
    other = rng.integers(0, seen.arms, unread.shape)

    def mixed(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(unread, np.take_along_axis(values, other, axis=1), values)

    shuffled = Answers(
        answers.vectors,
        np.where(unread, rng.integers(0, len(answers.vectors), unread.shape), answers.row),
        mixed(answers.group),
        mixed(answers.tokens),
    )
    return replace(seen, answers=shuffled)
