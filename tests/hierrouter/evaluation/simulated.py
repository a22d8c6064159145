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


def scores(rng: np.random.Generator, wrong: float, right: float) -> Floats:
    """float64[queries]: 0 and 1 with these probabilities, else partly right."""
    kind = rng.random(QUERIES)
    partly = rng.beta(1.2, 2, QUERIES)
    return np.where(kind < wrong, 0.0, np.where(kind < wrong + right, 1.0, partly))


def costs(rng: np.random.Generator, mean: float, spread: float = 0.6) -> Floats:
    """float64[queries], lognormal."""
    return mean * rng.lognormal(-(spread**2) / 2, spread, QUERIES)


def figures(seed: int) -> dict[str, Floats]:
    """Rewards, a cost, and differences of two policies that often do the same."""
    rng = np.random.default_rng(seed)
    found = {
        f"R, {wrong:.0%} wrong, {right:.0%} right": scores(rng, wrong, right)
        - ALPHA * costs(rng, 1)
        for wrong, right in ((0.35, 0.45), (0.8, 0.1), (0.05, 0.9))
    }
    found["C"] = costs(rng, 1)
    for ties in (0.6, 0.7, 0.77):
        found[f"difference, {ties:.0%} ties"] = difference(rng, ties, scores(rng, 0.4, 0.4))
        worse = np.minimum(scores(rng, 0.35, 0.45), scores(rng, 0.6, 0.3))
        found[f"difference, {ties:.0%} ties, one-sided"] = difference(rng, ties, worse)
    return found


def difference(rng: np.random.Generator, ties: float, other: Floats) -> Floats:
    """float64[queries]: R of a policy less R of one that does the same on a share of the queries.

    `other`: float64[queries], score of the second policy where it does something else.
    """
    gained = scores(rng, 0.35, 0.45) - other - ALPHA * (costs(rng, 1.5) - costs(rng, 1))
    return np.where(rng.random(QUERIES) < ties, 0.0, gained)


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


def ladder(seed: int, apart: float) -> tuple[Floats, Floats, Floats]:
    """Rewards of 9 fixed routes, of a router that closes a third of the gap, and of the oracle.

    `apart`: how much the routes differ in skill; 0 makes all equally good. Returns float64[9,
    queries] and float64[queries] twice.
    """
    rng = np.random.default_rng(seed)
    skill = np.linspace(-apart, 0, 9)[:, None] + 0.4
    merit = skill + rng.normal(0, 1.3, QUERIES) + rng.normal(0, 0.8, (9, QUERIES))
    routes = (merit > 0) - ALPHA * np.array([costs(rng, 1.2) for _ in range(9)])
    oracle, best = routes.max(axis=0), routes[routes.mean(axis=1).argmax()]
    return routes, np.where(rng.random(QUERIES) < 0.35, oracle, best), oracle


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
