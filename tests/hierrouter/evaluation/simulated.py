"""Made-up queries shaped like real ones: scores from 0 to 1 with lumps at both ends, skewed costs.

Each population has 20,000 queries, so that what intervals should cover is known.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
QUERIES = 20_000
ALPHA = 0.02
RIVALS = 15


def costs(rng: np.random.Generator, mean: float, spread: float = 0.6) -> Floats:
    """float64[queries], lognormal."""
    return mean * rng.lognormal(-(spread**2) / 2, spread, QUERIES)


def contest(seed: int) -> Floats:
    """float64[rivals, queries]: R of a router less R of models of rising skill and cost."""
    rng = np.random.default_rng(seed)
    skill = np.linspace(-0.6, 0.5, RIVALS)[:, None]
    merit = skill + rng.normal(0, 1.3, QUERIES) + rng.normal(0, 0.5, (RIVALS, QUERIES))
    score = np.where(merit > 0, 1.0, np.clip((merit + 0.6) / 0.6, 0, 1) * 0.8)
    price = np.linspace(0.5, 3, RIVALS)[:, None]
    reward = score - ALPHA * price * np.array([costs(rng, 1) for _ in range(RIVALS)])
    choice = np.where(rng.random(QUERIES) < 0.65, RIVALS - 4, rng.integers(RIVALS, size=QUERIES))
    return reward[choice, np.arange(QUERIES)] - reward


def coverage(
    population: Floats,
    queries: int,
    samples: int,
    covers: Callable[[Floats, np.random.Generator], NDArray[np.bool_]],
    seed: int = 0,
) -> Floats:
    """How often `covers` is true of samples of the population, on average.

    `population`: float64[rows, queries]; `queries`: of each sample, drawn with replacement;
    `samples`: how many; `covers`: told the sample, float64[rows, queries], and a generator; says
    bool[...].
    """
    sampling, covering = np.random.default_rng(seed).spawn(2)
    found = [
        covers(population[:, sampling.integers(population.shape[1], size=queries)], covering)
        for _ in range(samples)
    ]
    return np.mean(found, axis=0)
