"""Synthetic trees with a planted right answer.

A query belongs to a family, visible in its embedding as a direction among noise. Each family has
one right route. In the last family the second model depends on the query and shows only in the
state after the right first call: no fixed route, and no look at the question alone, finds it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import CALL_MEASURES, DirectCalls, RouteTree, StatePart

FOLDS = ("train", "validation", "test")
LARGE = "large"  # a model outside the pool


def planted_tree(
    *,
    families: int = 5,
    per_family: tuple[int, int, int] = (60, 20, 30),
    models: int = 3,
    hops: int = 2,
    dim: int = 64,
    luck: float = 0.02,
    noise: float = 1.0,
    spread: float | None = None,
    seed: int = 0,
) -> RouteTree:
    """A tree of `families * sum(per_family)` queries.

    `per_family`: queries of each family in the train, validation and test fold; `luck`: probability
    that a route's answer is right where it should be wrong, or vice versa; `noise`: length of an
    embedding's random part; its family's direction has length 1; `spread`: of the dearest model's
    price to the cheapest's, the others in equal ratios; None has them in equal steps.
    """
    rng = np.random.default_rng(seed)
    routes = Layout.full(models, hops)
    family = np.repeat(np.arange(families), sum(per_family))
    splits = np.tile(np.repeat(FOLDS, per_family), families)
    queries = len(family)
    right = right_paths(routes, family, rng)
    answers = np.zeros((queries, routes.nodes), dtype=bool)
    answers[np.arange(queries), [routes.node(tuple(path)) for path in right.tolist()]] = True
    answers ^= rng.random(answers.shape) < luck
    answers[:, 0] = False
    accuracy = answers.astype(np.float64)
    score = accuracy * rng.uniform(0.9, 1.0, accuracy.shape)
    tokens_out = rng.integers(20, 60, (queries, routes.nodes))
    tokens_in = 60 + 90 * routes.depth() + rng.integers(0, 30, (queries, 1))
    tokens_in[:, 0] = tokens_out[:, 0] = 0
    steps = 1 + np.arange(models) if spread is None else np.geomspace(1, spread, models)
    return _tree(
        routes,
        rate=0.002 * steps,
        datasets=tuple(f"family-{number}" for number in family),
        splits=tuple(splits.tolist()),
        score=score,
        accuracy=accuracy,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        parts=one_part(_embeddings(routes, family, right, dim, noise, rng)),
        rng=rng,
    )


def doubtful_tree() -> RouteTree:
    """The planted tree without one of its models: nobody left can answer some of the families.

    The direct calls of `LARGE` answer four questions in five, whichever, and dearly.
    """
    whole = planted_tree(models=4, families=8)
    part = sub_pool(whole, whole.models[1:])
    right = np.random.default_rng(0).random(len(part)) < 0.8
    score = part.direct.score.copy()
    score[:, part.direct.models.index(LARGE)] = np.where(right, 0.95, 0.0)
    return replace(part, direct=replace(part.direct, score=score))


def sub_pool(tree: RouteTree, models: Sequence[str]) -> RouteTree:
    """The tree of some of the models, in this order; of the direct calls theirs and references'."""
    chosen = np.array([tree.models.index(name) for name in models])
    levels = [np.zeros(1, dtype=np.int64)]
    for _ in range(tree.hops):
        levels.append(tree.layout.child(levels[-1][:, None], chosen).ravel())
    kept, direct = np.concatenate(levels), tree.direct
    alone = [name for name in direct.models if name not in tree.models or name in models]
    column = [direct.models.index(name) for name in alone]
    called = {name: getattr(direct, name)[:, column] for name in CALL_MEASURES}
    return replace(
        tree,
        models=tuple(models),
        layout=Layout.full(len(models), tree.hops),
        **{name: getattr(tree, name)[:, kept] for name in CALL_MEASURES},
        rate=tree.rate[chosen],
        parts=tuple(
            replace(part, row=part.row[:, kept[kept < part.row.shape[1]]]) for part in tree.parts
        ),
        direct=DirectCalls(tuple(alone), **called, rate=direct.rate[column]),
        content=hashlib.sha256(f"{tree.content}:{','.join(models)}".encode()).hexdigest()[:32],
    )


def random_tree(routes: Layout, queries: int, seed: int) -> RouteTree:
    """A tree without any structure, with scores and costs that tie often."""
    rng = np.random.default_rng(seed)
    shape = (queries, routes.nodes)
    rate = 0.25 * (1 + rng.integers(0, 3, routes.call_actions))
    score = rng.integers(0, 3, shape) / 2
    return _tree(
        routes,
        rate=rate,
        datasets=("one",) * queries,
        splits=("train",) * queries,
        score=score,
        accuracy=(score == 1).astype(np.float64),
        tokens_in=rng.integers(1, 4, shape),
        tokens_out=rng.integers(1, 4, shape),
        parts=one_part(rng.normal(size=(queries, routes.inner, 4))),
        rng=rng,
        content=f"{seed:032x}",
    )


def ragged_tree(
    routes: Layout, queries: int, seed: int, *, missing: float = 0.3, unjudged: float = 0.0
) -> RouteTree:
    """A random tree whose queries lack nodes, each with the draws that are left, of unequal weight.

    `missing`: probability that a query lacks a node, and all that follows it; `unjudged`: that the
    response of a node is not judged. Every query has at least one call.
    """
    rng = np.random.default_rng(seed)
    tree = random_tree(routes, queries, seed)
    present = rng.random(tree.score.shape) >= missing
    present[:, 0] = True
    first = 1 + np.flatnonzero(routes.parent[1:] == 0)
    present[np.arange(queries), rng.choice(first, queries)] = True
    for node in range(1, routes.nodes):
        present[:, node] &= present[:, routes.parent[node]]
    weight = np.where(present, rng.integers(1, 4, present.shape), 0).astype(np.float64)
    weight[:, 0] = 1
    for node in range(routes.inner):
        for action in range(routes.call_actions):
            draws = routes.draws_of_calls[node, action]
            draws = draws[draws >= 0]
            total = weight[:, draws].sum(axis=1, keepdims=True)
            weight[:, draws] /= np.where(total > 0, total, 1)
    return replace(
        tree,
        **{name: np.where(present, getattr(tree, name), 0) for name in CALL_MEASURES},
        weight=weight,
        can_end=None if not unjudged else rng.random(present.shape) >= unjudged,
    )


def tree_with_roles(models: int, count: int, seed: int) -> RouteTree:
    """A random tree of models that write first, and of a role that checks what they wrote.

    The check is offered after an answer only, and ends the route; after the last model, nothing is.
    """
    check = models

    def offered(path: tuple[int, ...]) -> Sequence[int]:
        if not path:
            return range(models)
        if len(path) == 1:
            return [check] if path[0] == models - 1 else [*range(models - 1), check]
        return ()

    tree = random_tree(Layout.grown(models + 1, offered), count, seed)
    callers = (*tree.models[:models], tree.models[0])
    direct = tree.direct
    columns = [number for number in range(len(direct.models)) if number != check]
    measures = ("score", "accuracy", "tokens_in", "tokens_out")
    return replace(
        tree,
        models=(*tree.models[:models], "check"),
        callers=callers,
        direct=replace(
            direct,
            models=tuple(direct.models[column] for column in columns),
            rate=direct.rate[columns],
            **{name: getattr(direct, name)[:, columns] for name in measures},
            seconds=np.array(np.nan),
            tokens_cached=np.array(0),
            tokens_thoughts=np.array(0),
        ),
    )


# Probability of a right answer by kind of question, first action, what the first response shows
# (twice as likely 0 as 1), and second action; with one hop only the first action counts.
LUCKY_ONE_HOP = np.array([[0.9, 0.5, 0.2], [0.3, 0.6, 0.4], [0.5, 0.5, 0.5], [0.2, 0.1, 0.7]])
LUCKY_TWO_HOPS = np.array(
    [
        [[[0.8, 0.3], [0.2, 0.7]], [[0.5, 0.4], [0.5, 0.4]]],
        [[[0.3, 0.2], [0.3, 0.4]], [[0.9, 0.6], [0.1, 0.5]]],
        [[[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]],
    ]
)
LUCKY_SHOWN = 1 / 3  # probability that the first response shows 1


def lucky_tree(draws: int, queries: int, hops: int, seed: int) -> RouteTree:
    """Queries of equally likely kinds, whose answers are drawn anew at each call.

    A call of action i costs .01 * (1 + i).
    """
    rng = np.random.default_rng(seed)
    table = LUCKY_ONE_HOP if hops == 1 else LUCKY_TWO_HOPS
    actions = table.shape[-1]
    layout = Layout.grown(
        actions, lambda path: range(actions) if len(path) < hops else (), lambda _: draws
    )
    kind = rng.integers(0, len(table), queries)
    chance = np.zeros((queries, layout.nodes))
    shown = (rng.random(chance.shape) < LUCKY_SHOWN).astype(np.int64)
    for node in range(1, layout.nodes):
        parent = int(layout.parent[node])
        action = layout.action[node]
        if hops == 1:
            chance[:, node] = table[kind, action]
        elif parent:
            chance[:, node] = table[kind, layout.action[parent], shown[:, parent], action]
    right = (rng.random(chance.shape) < chance).astype(np.float64)
    weight = np.full(chance.shape, 1 / draws)
    weight[:, 0] = 1
    tokens = np.full(chance.shape, 5)
    tokens[:, 0] = 0
    return _tree(
        layout,
        rate=0.001 * (1 + np.arange(actions)),
        datasets=("lucky",) * queries,
        splits=("test",) * queries,
        score=right,
        accuracy=right,
        tokens_in=tokens,
        tokens_out=tokens,
        parts=one_part(shown[:, : layout.inner, None].astype(np.float64)),
        rng=rng,
        weight=weight,
    )


def two_step_tree(
    *,
    models: int = 3,
    copies: tuple[int, int, int] = (10, 5, 5),
    view: str = "context",
    dim: int = 16,
) -> RouteTree:
    """Two hops; the question tells the right first model, its answer the right second one.

    Question k of M wants model k first. Of M + 1 queries that ask it, the answer names model k + 1
    to two and each other model to one; who calls it second is right. After a wrong first call the
    answer is blank and nothing is right. Every call costs 1. So the mean score is at most

        1                  for who sees question and answer,
        2 / (M + 1)        for who sees the question only,
        2 / (M * (M + 1))  for who sees neither.

    All folds hold the same queries, the train fold `copies[0]` times.
    """
    routes, rng = Layout.full(models, 2), np.random.default_rng(0)
    once = np.repeat(np.arange(models), models + 1)
    asked = np.tile(once, sum(copies))
    # The model that the right first answer names.
    named = (asked + 1 + np.tile([0, *range(models)], models * sum(copies))) % models
    score = np.zeros((len(asked), routes.nodes))
    score[np.arange(len(asked)), routes.child(1 + asked, named)] = 1
    tokens = np.full(score.shape, 50)
    tokens[:, 0] = 0
    questions = _directions(models, dim, rng).astype(np.float32)
    answers = _directions(models + 2, dim, rng).astype(np.float32)
    # 0 is no answer yet, 1 + m names model m, the last is blank.
    first = np.where(np.arange(models) == asked[:, None], 1 + named[:, None], models + 1)
    answer = np.pad(first, ((0, 0), (1, 0)))
    question = np.broadcast_to(asked[:, None], answer.shape)
    contexts = np.concatenate([questions[:, None], questions[:, None] + answers[1:]], axis=1)
    return _tree(
        routes,
        rate=np.full(models, 0.01),
        datasets=tuple(f"question-{number}" for number in asked),
        splits=tuple(np.repeat(np.repeat(FOLDS, copies), len(once)).tolist()),
        score=score,
        accuracy=score,
        tokens_in=tokens,
        tokens_out=tokens,
        parts={
            "context": (StatePart(contexts.reshape(-1, dim), question * (models + 2) + answer),),
            "query+answer": (StatePart(questions, question), StatePart(answers, answer)),
            "query": (StatePart(questions, question),),
            "stage": (),
        }[view],
        rng=rng,
        view=view,
    )


def returning(tree: RouteTree, returns: bool = True) -> RouteTree:
    """The tree, where a policy may return any answer of its route if `returns`."""
    return tree.with_returns if returns else tree


def one_part(embedding: NDArray[np.floating]) -> tuple[StatePart, ...]:
    """Every state, [queries, states, dim], with a vector of its own."""
    queries, states, dim = embedding.shape
    row = np.arange(queries * states).reshape(queries, states)
    return (StatePart(embedding.reshape(-1, dim).astype(np.float32), row),)


def _tree(
    routes: Layout,
    *,
    rate: NDArray[np.float64],
    score: NDArray[np.float64],
    rng: np.random.Generator,
    content: str | None = None,
    **columns: Any,
) -> RouteTree:
    """A tree of models called by number, with direct calls drawn from `rng`.

    `rate`: float64[models], price of a token, in and out; `columns`: the rest of a `RouteTree`.
    """
    names = tuple(f"model-{number}" for number in range(routes.call_actions))
    shape = (len(score), len(names) + 1)
    right = (rng.random(shape) < 0.3).astype(np.float64)
    return RouteTree(
        models=names,
        layout=routes,
        query_ids=tuple(f"q{number}" for number in range(len(score))),
        score=score,
        rate=np.stack([rate, rate], axis=1),
        direct=DirectCalls(
            models=(*names, LARGE),
            score=right,
            accuracy=right,
            tokens_in=rng.integers(40, 100, shape),
            tokens_out=rng.integers(40, 100, shape),
            rate=np.repeat(np.append(rate, 5 * rate.max()), 2).reshape(-1, 2),
        ),
        scorer="token_f1",
        content=content or hashlib.sha256(score.tobytes()).hexdigest()[:32],
        **columns,
    )


def right_paths(
    routes: Layout, family: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """int64[queries, hops]: the models to call; the last family's second one varies."""
    right = rng.integers(0, routes.call_actions, (family.max() + 1, routes.hops))[family]
    if routes.hops > 1:
        branching = family == family.max()
        right[branching, 1] = rng.integers(0, routes.call_actions, branching.sum())
    return right


def _embeddings(
    routes: Layout,
    family: NDArray[np.int64],
    right: NDArray[np.int64],
    dim: int,
    noise: float,
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """float32[queries, states, dim] of length 1: family, answers so far, hint, and noise."""
    kinds = _directions(family.max() + 1, dim, rng)
    answers = _directions(routes.inner, dim, rng)
    hints = _directions(routes.call_actions, dim, rng)
    state = (kinds[family] + noise * _directions(len(family), dim, rng))[:, None] + 0.5 * answers
    state[:, 1:] += 0.5 * noise * rng.normal(size=state[:, 1:].shape) / np.sqrt(dim)
    branching = np.flatnonzero(family == family.max())
    if routes.hops > 1:
        state[branching, 1 + right[branching, 0]] += hints[right[branching, 1]]
    state /= np.linalg.norm(state, axis=2, keepdims=True)
    return state.astype(np.float32)


def _directions(count: int, dim: int, rng: np.random.Generator) -> NDArray[np.float64]:
    vectors = rng.normal(size=(count, dim))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def showing_leaves(tree: RouteTree) -> RouteTree:
    """The same with a vector of its own for what follows each last call, for who may return."""
    rng, parts = np.random.default_rng(0), []
    for part in tree.parts:
        size = len(tree), tree.layout.nodes - tree.layout.inner
        more = rng.normal(size=(size[0] * size[1], part.width)).astype(np.float32)
        row = len(part.vectors) + np.arange(len(more)).reshape(size)
        vectors = np.concatenate([part.vectors, more])
        parts.append(StatePart(vectors, np.concatenate([part.row, row], axis=1)))
    return replace(tree, parts=tuple(parts))
