"""What a policy answers after how many calls."""

from dataclasses import dataclass

from hierrouter.evaluation.outcome import Floats, ended_at, worth
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Depth:
    """What a policy answers after a given number of calls.

    Attributes:
        calls: 1 to L.
        share: expected share of the queries that are answered here.
        quality: mean Q of these, in [0, 1]; None where there are none.
        cost: mean C of these, in money; None where there are none.
    """

    calls: int
    share: float
    quality: float | None
    cost: float | None


def by_depth(tree: RouteTree, endings: Floats) -> list[Depth]:
    """One entry for each number of calls from 1 to L; the shares sum to 1.

    Quality and cost of a depth are means over the queries that the policy stops there, so depths
    differ by the queries they are given as well as by their calls.

    `endings`: float64[queries, endings], rows sum to 1.
    """
    (score, _, cost), found = worth(tree, endings.shape[1]), []
    ended, *parts = (ended_at(tree.routes, endings * one) for one in (1, score, cost))
    for calls in range(1, tree.hops + 1):
        level = tree.routes.level(calls)
        total = float(ended[:, level].sum())
        if total == 0:
            found.append(Depth(calls, 0.0, None, None))
            continue
        quality, spent = (float(part[:, level].copy().sum() / total) for part in parts)
        found.append(Depth(calls, total / len(tree), quality, spent))
    return found
