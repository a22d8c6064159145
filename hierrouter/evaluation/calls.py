"""What a further call brings: depth and repair."""

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


@dataclass(frozen=True)
class Repair:
    """What the calls at one hop do to the answers before them.

    Row i, column j of a query: model j is called after model i; a mean over all routes whose last
    call but one is i's, M^(hop - 2) of them. Repair less damage is the change in accuracy.

    Attributes:
        hop: 2 to L.
        right: float64[queries, M], probability that the answer of model i before was right.
        repair: float64[queries, M, M], probability that wrong became right.
        damage: float64[queries, M, M], probability that right became wrong.
        quality: float64[queries, M, M], change in Q.
        cost: float64[queries, M, M], cost of the call of j, in money.
    """

    hop: int
    right: Floats
    repair: Floats
    damage: Floats
    quality: Floats
    cost: Floats


def repair_matrices(tree: RouteTree) -> list[Repair]:
    """One entry for each hop from the second on; none where L is 1.

    Where accuracies are 0 or 1, a call repairs, damages or does neither. Where they are fractions,
    say the means of several verdicts, both answers are taken to be right with these probabilities,
    independently of each other: repair is (1 - before) * after, damage before * (1 - after).
    """
    routes, shape = tree.routes, (len(tree), -1, tree.routes.models)

    def around(values: Floats, hop: int) -> tuple[Floats, Floats]:
        """Before and after the call: [queries, routes, M, 1] and [queries, routes, M, M]."""
        before = values[:, routes.level(hop - 1)].reshape(*shape, 1)
        return before, values[:, routes.level(hop)].reshape(*shape, routes.models)

    found = []
    for hop in range(2, tree.hops + 1):
        before, after = around(tree.accuracy, hop)
        (worth, new_worth), (spent, new_spent) = around(tree.score, hop), around(tree.cost, hop)
        found.append(
            Repair(
                hop=hop,
                right=before.mean(axis=1)[..., 0],
                repair=((1 - before) * after).mean(axis=1),
                damage=(before * (1 - after)).mean(axis=1),
                quality=(new_worth - worth).mean(axis=1),
                cost=(new_spent - spent).mean(axis=1),
            )
        )
    return found
