"""Arms whose best choice is known, and a check that a router pays for every answer it reads."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.learning.baselines.arms import (
    Answers,
    Arms,
    Baseline,
    FitResult,
    FittedRouter,
    RouterInputs,
)

NOISE = 20  # vectors of answers that say nothing
EMPTY = np.zeros(0, dtype=np.int64)


def planted_arms(queries: int, arms: int = 3, seed: int = 0, noise: float = 0.3) -> Arms:
    """Arm `i % arms` is right on question `i`, and others are not; arm k costs about (k + 1) / 10.

    `noise`: length of the random part of an embedding; the direction of its group has length 1.
    """
    rng = np.random.default_rng(seed)
    group, dim = group_of(queries, arms), 2 * arms
    cost = (1 + np.arange(arms)) / 10 + rng.uniform(0, 0.01, (queries, arms))
    random = rng.normal(0, noise / dim**0.5, (queries, dim))
    question = (np.eye(arms, dim)[group] + random).astype(np.float32)
    return arms_with(np.eye(arms)[group], cost, question)


def group_of(queries: int, arms: int) -> NDArray[np.int64]:
    """int64[queries]: the group of each question, which is its right arm."""
    return np.arange(queries) % arms


def arms_with(
    quality: NDArray[np.float64], cost: NDArray[np.float64], question: NDArray[np.float32]
) -> Arms:
    """Arms of one call each, float64[queries, arms] twice, of which no answer can be read."""
    queries, arms = quality.shape
    return Arms(
        names=tuple(f"arm-{number}" for number in range(arms)),
        seen=RouterInputs(question, ("one",) * queries, np.eye(arms, dtype=np.bool_), answers=None),
        call_cost=cost,
        quality=quality,
        accuracy=(quality > 0.5).astype(np.float64),
    )


def answered(
    quality: NDArray[np.float64],
    call_cost: NDArray[np.float64],
    *,
    looks: NDArray[np.int64] | None = None,
    says: NDArray[np.int64] | None = None,
    sure: NDArray[np.float64] | None = None,
    question: NDArray[np.int64] | None = None,
    calls: NDArray[np.bool_] | None = None,
    seed: int = 0,
) -> Arms:
    """Arms with this quality, [queries, arms], these costs, [calls], and answers to read.

    `looks`: int64[queries, arms], what an answer's words show, 0 to 3; nothing by default; `says`:
    int64[queries, arms], equal where answers are; all differ by default; `sure`: float64[queries,
    arms], how sure an arm is; nobody tells by default; `question`: int64[queries], what the
    question shows, 0 to 3; nothing by default; `calls`: bool[arms, calls]; each arm makes its own
    by default.
    """
    queries, arms = quality.shape
    rng = np.random.default_rng(seed)
    shown = np.zeros(quality.shape, np.int64) if looks is None else np.asarray(looks, np.int64)
    question = np.zeros(queries, dtype=np.int64) if question is None else question
    noise = rng.normal(size=(4 * NOISE, 8)) / 4
    words = np.concatenate([np.repeat(np.eye(4), NOISE, axis=0), noise], axis=1)
    asked = np.concatenate([np.eye(4)[question], rng.normal(size=(queries, 8)) / 8], axis=1)
    answers = Answers(
        vectors=words.astype(np.float32),
        row=shown * NOISE + rng.integers(0, NOISE, quality.shape),
        group=np.arange(quality.size).reshape(quality.shape) if says is None else says,
        tokens=rng.integers(5, 30, quality.shape),
        sure=np.full(quality.shape, np.nan) if sure is None else sure,
    )
    calls = np.eye(arms, dtype=np.bool_) if calls is None else calls
    return Arms(
        names=tuple(f"arm-{number}" for number in range(arms)),
        seen=RouterInputs(asked.astype(np.float32), ("one",) * queries, calls, answers),
        call_cost=np.tile(call_cost, (queries, 1)),
        quality=quality.astype(np.float64),
        accuracy=quality.astype(np.float64),
    )


def folds(arms: Arms) -> tuple[Arms, Arms, Arms]:
    """A half to learn from, a quarter to choose on, a quarter to look at."""
    rows = np.arange(len(arms))
    return tuple(arms.select(part) for part in np.split(rows, [len(rows) // 2, len(rows) * 3 // 4]))


def fitted(
    baseline: Baseline,
    train: Arms,
    validation: Arms | None = None,
    alpha: float = 0.1,
    seed: int = 0,
) -> FitResult:
    """Fitted on one fold; tuned on it, too, where no other is given."""
    chosen_on = train if validation is None else validation
    return baseline.fit(train, chosen_on, alpha, np.random.default_rng(seed))


def choices(arms: Arms, play: FittedRouter) -> NDArray[np.int64]:
    """int64[queries]: the arm that a router takes."""
    return play(arms.seen).answer.argmax(axis=1)


def assert_reads_what_it_pays(play: FittedRouter, seen: RouterInputs) -> None:
    """It does the same where the answers of the calls it did not make are others."""
    played = play(seen)
    for seed in range(3):
        again = play(_scrambled(seen, played.called > 0, np.random.default_rng(seed)))
        assert np.array_equal(again.answer, played.answer)
        assert np.array_equal(again.called, played.called)


def _scrambled(
    seen: RouterInputs, made: NDArray[np.bool_], rng: np.random.Generator
) -> RouterInputs:
    """Other answers of the arms of which not all calls were made, bool[queries, calls]."""
    answers = seen.answers
    assert answers is not None
    unread = ~(made[:, None, :] | ~seen.calls).all(axis=2)
    # Another answer to the same question, so that answers agree that did not.
    other = rng.integers(0, seen.arms, unread.shape)

    def mixed(values: NDArray[Any]) -> NDArray[Any]:
        return np.where(unread, np.take_along_axis(values, other, axis=1), values)

    shuffled = Answers(
        answers.vectors,
        np.where(unread, rng.integers(0, len(answers.vectors), unread.shape), answers.row),
        mixed(answers.group),
        mixed(answers.tokens),
        mixed(answers.sure),
    )
    return replace(seen, answers=shuffled)
