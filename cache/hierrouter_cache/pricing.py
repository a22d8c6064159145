"""Tokens times rates: what a call costs.

In: the rate of each model, per token. Out: arrays that a tree multiplies its tokens with. Prices
are in no content key: they are joined when a tree is opened, so that repricing needs no new call.
Not covered: where rates come from (`hierrouter.pricing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.routes import Routes


@dataclass(frozen=True)
class Rate:
    """Cost of one token of one model (paper section 3.1).

    Attributes:
        tokens_in: cost of a prompt token.
        tokens_out: cost of a generated token; the paper's base rate is both at once.
    """

    tokens_in: float
    tokens_out: float

    @classmethod
    def base(cls, rate: float) -> Rate:
        """The paper's single rate: the same for tokens in and out."""
        return cls(rate, rate)


def rate_table(models: Sequence[str], prices: Mapping[str, Rate]) -> NDArray[np.float64]:
    """float64[models, 2]: cost of a token in and of a token out, in the order of `models`."""
    rows = [(prices[name].tokens_in, prices[name].tokens_out) for name in models]
    return np.array(rows, dtype=np.float64).reshape(-1, 2)


def cost_of(
    tokens_in: NDArray[np.int64], tokens_out: NDArray[np.int64], rate: NDArray[np.float64]
) -> NDArray[np.float64]:
    """float64[...]: cost of calls; `rate` is float64[..., 2] and broadcasts with the tokens.

    With one rate for both, tokens are added before they are multiplied: the paper's formula, to
    the last bit.
    """
    same = rate[..., 0] == rate[..., 1]
    single = rate[..., 0] * (tokens_in + tokens_out)
    cost: NDArray[np.float64] = np.where(
        same, single, rate[..., 0] * tokens_in + rate[..., 1] * tokens_out
    )
    return cost


def total_cost(
    routes: Routes,
    tokens_in: NDArray[np.int64],
    tokens_out: NDArray[np.int64],
    rate: NDArray[np.float64],
) -> NDArray[np.float64]:
    """float64[queries, nodes]: C, the cost of all calls from the root to each node.

    Args:
        routes: shape of the tree.
        tokens_in, tokens_out: int64[queries, nodes], of the call that made the node.
        rate: float64[M, 2].
    """
    total = np.zeros(tokens_in.shape)
    for node in range(1, routes.nodes):
        delta = cost_of(tokens_in[:, node], tokens_out[:, node], rate[routes.action(node)])
        total[:, node] = total[:, routes.parent(node)] + delta
    return total
