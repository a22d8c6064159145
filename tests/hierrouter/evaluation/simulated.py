"""Made-up queries shaped like real ones: scores from 0 to 1 with lumps at both ends, skewed costs.

Each population has 20,000 queries, so that what intervals should cover is known.
"""

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tests.hierrouter.trees import LUCKY_ONE_HOP, LUCKY_SHOWN, LUCKY_TWO_HOPS

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


def lucky_truth(draws: int, hops: int) -> dict[str, float]:
    """True values of rules on `tests.hierrouter.trees.lucky_tree` at alpha 1, by enumeration.

    "oracle": which draw comes is known; "best": the best rule that knows the probabilities;
    "split oracle", for one hop: the rule that chooses by half of `draws` draws; "fixed": the best
    fixed route for all, which calls action 0 last, after action 1 if there are two calls; "policy":
    the fixed route that calls action 1 only.
    """
    if hops == 1:
        kinds = [_lucky_kind(np.array(row), draws) for row in LUCKY_ONE_HOP]
        routes = LUCKY_ONE_HOP.mean(axis=0) - 0.01 * (1 + np.arange(3))
        policy = routes[1]
    else:
        kinds = [_lucky_two_hops(table) for table in LUCKY_TWO_HOPS]
        shown = np.array([1 - LUCKY_SHOWN, LUCKY_SHOWN])
        means = np.einsum("kasb,s->ab", LUCKY_TWO_HOPS, shown) / len(LUCKY_TWO_HOPS)
        routes = means - LUCKY_COST
        policy = routes[1, 1]
    truth = {name: float(np.mean([kind[name] for kind in kinds])) for name in kinds[0]}
    return {**truth, "fixed": float(routes.max()), "policy": float(policy)}


LUCKY_COST = 0.01 * np.array([[2, 3], [3, 4]])  # of both calls


def _lucky_kind(chance: Floats, draws: int) -> dict[str, float]:
    """One call: what each rule earns on one kind of question."""
    cost = 0.01 * (1 + np.arange(len(chance)))
    clairvoyant = 0.0
    for right in itertools.product((0, 1), repeat=len(chance)):
        probability = np.prod(np.where(right, chance, 1 - chance))
        clairvoyant += probability * (np.array(right) - cost).max()
    half = draws // 2
    split = 0.0
    for counts in itertools.product(range(half + 1), repeat=len(chance)):
        probability = np.prod(stats.binom.pmf(counts, half, chance))
        chosen = (np.array(counts) / max(half, 1) - cost).argmax()
        split += probability * (chance - cost)[chosen]
    best = (chance - cost).max()
    return {"oracle": clairvoyant, "best": float(best), "split oracle": split}


def _lucky_two_hops(chance: Floats) -> dict[str, float]:
    """Two calls: what each rule earns on one kind of question."""
    shown = np.array([1 - LUCKY_SHOWN, LUCKY_SHOWN])
    best = ((chance - LUCKY_COST[:, None]).max(axis=2) * shown).sum(axis=1).max()
    clairvoyant = 0.0
    for first in itertools.product((0, 1), repeat=2):
        ends = chance[[0, 1], first]  # float64[first action, second action]
        for right in itertools.product((0, 1), repeat=4):
            answers = np.array(right).reshape(2, 2)
            probability = np.prod(shown[list(first)])
            probability *= np.prod(np.where(answers, ends, 1 - ends))
            clairvoyant += probability * (answers - LUCKY_COST).max()
    return {"oracle": clairvoyant, "best": float(best)}
