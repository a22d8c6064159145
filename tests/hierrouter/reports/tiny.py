"""A tree that can be worked out on paper.

Two models, two hops, no direct calls. A call of model a costs 1, one of model b 2, so routes cost
a>a 2, a>b 3, b>a 3, b>b 4. In the test fold a>b alone is right for the first query, b>a alone for
the second; in the train fold a>b for both.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hierrouter_cache.tree import DirectCalls, Routes, RouteTree
from tests.hierrouter.trees import random_tree

ALPHA = 0.1
AB, BA = 4, 5  # nodes of these routes


def without_direct_calls(tree: RouteTree) -> RouteTree:
    """The same tree where no model was ever asked directly."""
    none, tokens = np.empty((len(tree), 0)), np.empty((len(tree), 0), dtype=np.int64)
    return replace(tree, direct=DirectCalls((), none, none, tokens, tokens, np.empty((0, 2))))


def tiny() -> RouteTree:
    """Two queries in the train fold, two in the test fold, in datasets "one" and "two"."""
    tree = without_direct_calls(random_tree(Routes(2, 2), 4, 0))
    score = np.zeros_like(tree.score)
    score[[0, 1, 2, 3], [AB, AB, AB, BA]] = 1
    tokens = np.ones_like(tree.tokens_in)
    tokens[:, 0] = 0
    return replace(
        tree,
        models=("a", "b"),
        datasets=("one", "two", "one", "two"),
        splits=("train", "train", "test", "test"),
        score=score,
        accuracy=score,
        tokens_in=np.zeros_like(tokens),
        tokens_out=tokens,
        rate=np.array([[1.0, 1.0], [2.0, 2.0]]),
    )
