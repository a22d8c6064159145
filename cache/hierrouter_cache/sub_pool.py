"""A tree without some of its models.

In: a `RouteTree`, names of some of its models. Out: the tree of these alone: every route that calls
no other model has its column already, so this is index arithmetic; nothing is read or computed.
Not covered: models that the tree does not have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.errors import InputError
from hierrouter_cache.routes import Routes
from hierrouter_cache.tree import AnyTree, DirectCalls, RouteTree, StatePart


def sub_pool(tree: AnyTree, models: Sequence[str]) -> AnyTree:
    """The tree of some of the models, in the order given; but for `content`, as if opened so.

    Direct calls of models that are left out go too, those of reference models stay.

    Args:
        models: distinct names among `tree.models`, at least one.

    Raises:
        InputError: no name, one twice, or one that the tree does not have.
    """
    if not models or len(set(models)) < len(models) or not set(models) <= set(tree.models):
        raise InputError(
            f"no sub-pool: {', '.join(models) or 'no model'}; name different models among "
            f"{', '.join(tree.models)}"
        )
    chosen = np.array([tree.models.index(name) for name in models])
    kept = kept_nodes(tree.routes, chosen)
    states = kept[kept < tree.routes.states]
    return replace(
        tree,
        models=tuple(models),
        score=tree.score[:, kept],
        accuracy=tree.accuracy[:, kept],
        tokens_in=tree.tokens_in[:, kept],
        tokens_out=tree.tokens_out[:, kept],
        rate=tree.rate[chosen],
        parts=tuple(StatePart(part.vectors, part.row[:, states]) for part in tree.parts),
        direct=_direct(tree, models),
        content=hashlib.sha256(f"{tree.content}:{','.join(models)}".encode()).hexdigest()[:32],
    )


def kept_nodes(routes: Routes, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[nodes of the sub-pool]: the number that each of its nodes has in the whole tree.

    Args:
        routes: shape of the whole tree.
        chosen: int64[models of the sub-pool], their numbers in the whole pool.
    """
    levels = [np.zeros(1, dtype=np.int64)]
    for _ in range(routes.hops):
        levels.append(routes.child(levels[-1][:, None], chosen).ravel())
    return np.concatenate(levels)


def _direct(tree: RouteTree, models: Sequence[str]) -> DirectCalls:
    """The direct calls of these models first, then those of reference models."""
    direct = tree.direct
    names = [name for name in models if name in direct.models]
    names += [name for name in direct.models if name not in tree.models]
    column = [direct.models.index(name) for name in names]
    return DirectCalls(
        models=tuple(names),
        score=direct.score[:, column],
        accuracy=direct.accuracy[:, column],
        tokens_in=direct.tokens_in[:, column],
        tokens_out=direct.tokens_out[:, column],
        rate=direct.rate[column],
    )
