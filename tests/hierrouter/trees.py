"""Synthetic trees with a planted right answer.

A query belongs to a family, visible in its embedding as a direction among noise. Each family has
one right route. In the last family the second model depends on the query and shows only in the
state after the right first call: no fixed route, and no look at the question alone, finds it.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.routes import Routes
from hierrouter_cache.tree import DirectCalls, RouteTree

FOLDS = ("train", "validation", "test")


def planted_tree(
    *,
    families: int = 5,
    per_family: tuple[int, int, int] = (60, 20, 30),
    models: int = 3,
    hops: int = 2,
    dim: int = 64,
    luck: float = 0.02,
    noise: float = 1.0,
    seed: int = 0,
) -> RouteTree:
    """A tree of `families * sum(per_family)` queries.

    Args:
        per_family: queries of each family in the train, validation and test fold.
        luck: probability that a route's answer is right where it should be wrong, or vice versa.
        noise: length of an embedding's random part; its family's direction has length 1.
    """
    rng = np.random.default_rng(seed)
    routes = Routes(models, hops)
    family = np.repeat(np.arange(families), sum(per_family))
    splits = np.tile(np.repeat(FOLDS, per_family), families)
    queries = len(family)
    right = _right_paths(routes, family, rng)
    accuracy = _answers(routes, right, luck, rng)
    score = accuracy * rng.uniform(0.9, 1.0, accuracy.shape)
    tokens_out = rng.integers(20, 60, (queries, routes.nodes))
    tokens_in = 60 + 90 * routes.depth() + rng.integers(0, 30, (queries, 1))
    tokens_in[:, 0] = tokens_out[:, 0] = 0
    names = tuple(f"model-{number}" for number in range(models))
    rate = 0.002 * (1 + np.arange(models))
    return RouteTree(
        models=names,
        hops=hops,
        query_ids=tuple(f"q{number}" for number in range(queries)),
        datasets=tuple(f"family-{number}" for number in family),
        splits=tuple(splits.tolist()),
        score=score,
        accuracy=accuracy,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        rate=np.stack([rate, rate], axis=1),
        vectors=_embeddings(routes, family, right, dim, noise, rng).reshape(-1, dim),
        state=np.arange(queries * routes.states).reshape(queries, -1),
        direct=_direct(names, rate, queries, rng),
        scorer="token_f1",
        content=hashlib.sha256(score.tobytes()).hexdigest()[:32],
    )


def random_tree(routes: Routes, queries: int, seed: int) -> RouteTree:
    """A tree without any structure, with scores and costs that tie often."""
    rng = np.random.default_rng(seed)
    shape = (queries, routes.nodes)
    names = tuple(f"model-{number}" for number in range(routes.models))
    rate = 0.25 * (1 + rng.integers(0, 3, routes.models))
    score = rng.integers(0, 3, shape) / 2
    return RouteTree(
        models=names,
        hops=routes.hops,
        query_ids=tuple(f"q{number}" for number in range(queries)),
        datasets=("one",) * queries,
        splits=("train",) * queries,
        score=score,
        accuracy=(score == 1).astype(np.float64),
        tokens_in=rng.integers(1, 4, shape),
        tokens_out=rng.integers(1, 4, shape),
        rate=np.stack([rate, rate], axis=1),
        vectors=rng.normal(size=(queries * routes.states, 4)).astype(np.float32),
        state=np.arange(queries * routes.states).reshape(queries, -1),
        direct=_direct(names, rate, queries, rng),
        scorer="token_f1",
        content=f"{seed:032x}",
    )


def _right_paths(
    routes: Routes, family: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """int64[queries, hops]: the models to call; the last family's second one varies."""
    plan = rng.integers(0, routes.models, (family.max() + 1, routes.hops))
    right = plan[family]
    if routes.hops > 1:
        branching = family == family.max()
        right[branching, 1] = rng.integers(0, routes.models, branching.sum())
    return right


def _answers(
    routes: Routes, right: NDArray[np.int64], luck: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    answers = np.zeros((len(right), routes.nodes), dtype=bool)
    target = np.array([routes.node(tuple(path)) for path in right.tolist()])
    answers[np.arange(len(right)), target] = True
    answers ^= rng.random(answers.shape) < luck
    answers[:, 0] = False
    return answers.astype(np.float64)


def _embeddings(
    routes: Routes,
    family: NDArray[np.int64],
    right: NDArray[np.int64],
    dim: int,
    noise: float,
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """float32[queries, states, dim] of length 1: family, answers so far, hint, and noise."""
    kinds = _directions(family.max() + 1, dim, rng)
    answers = _directions(routes.states, dim, rng)
    hints = _directions(routes.models, dim, rng)
    question = kinds[family] + noise * _directions(len(family), dim, rng)
    state = question[:, None] + 0.5 * answers
    state[:, 1:] += 0.5 * noise * rng.normal(size=state[:, 1:].shape) / np.sqrt(dim)
    branching = np.flatnonzero(family == family.max())
    if routes.hops > 1:
        state[branching, 1 + right[branching, 0]] += hints[right[branching, 1]]
    state /= np.linalg.norm(state, axis=2, keepdims=True)
    return state.astype(np.float32)


def _directions(count: int, dim: int, rng: np.random.Generator) -> NDArray[np.float64]:
    vectors = rng.normal(size=(count, dim))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _direct(
    names: tuple[str, ...], rate: NDArray[np.float64], queries: int, rng: np.random.Generator
) -> DirectCalls:
    shape = (queries, len(names) + 1)
    accuracy = (rng.random(shape) < 0.3).astype(np.float64)
    return DirectCalls(
        models=(*names, "large"),
        score=accuracy,
        accuracy=accuracy,
        tokens_in=rng.integers(40, 100, shape),
        tokens_out=rng.integers(40, 100, shape),
        rate=np.repeat(np.append(rate, 5 * rate.max()), 2).reshape(-1, 2),
    )
