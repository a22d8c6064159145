"""What a router has to beat, what it cannot, and where it loses."""

from dataclasses import replace

import numpy as np

from hierrouter.evaluation import outcome
from hierrouter_cache.tree import RouteTree, net_reward

# The share of a smaller gap is the quotient of two noises.
SMALLEST_GAP = 0.005
ONE_HOP, TREE, ANYTIME = "one-hop oracle", "tree oracle", "anytime oracle"
PER_DATASET = "best route per dataset"


def cheapest_best(reward: outcome.Floats, cost: outcome.Floats) -> outcome.Integers:
    """Column of the highest reward in each row; ties: lower cost, then lower column.

    `reward`: float64[rows, columns]; `cost`: float64[rows, columns]. Returns int64[rows].
    """
    best = reward.max(axis=1, keepdims=True)
    return np.where(reward == best, cost, np.inf).argmin(axis=1)


def best_ending(tree: RouteTree, alpha: float, allow_stop: bool = False) -> int:
    """Node number at the end of the fixed route with the highest mean reward on `tree`."""
    endings = outcome.Actions(tree.routes, allow_stop).endings
    reward = tree.node_reward(alpha)[:, endings].mean(axis=0, keepdims=True)
    cost = tree.cost[:, endings].mean(axis=0, keepdims=True)
    return int(endings.start + cheapest_best(reward, cost)[0])


def best_direct_call(chosen_on: RouteTree, alpha: float, tree: RouteTree) -> outcome.Outcome | None:
    """The pool's direct call that is best on `chosen_on`, made on `tree`; None if there is none."""
    direct, columns = chosen_on.direct, _pool_columns(chosen_on)
    if not len(columns):
        return None
    cost = direct.cost[:, columns].mean(axis=0, keepdims=True)
    quality = direct.score[:, columns].mean(axis=0, keepdims=True)
    best = int(columns[cheapest_best(net_reward(quality, cost, alpha), cost)[0]])
    return outcome.single_calls(tree)[best]


def best_fixed_route(
    chosen_on: RouteTree, alpha: float, tree: RouteTree, allow_stop: bool = False
) -> outcome.Outcome:
    """The fixed route that is best on `chosen_on`, taken on `tree`."""
    return outcome.fixed_route(tree, best_ending(chosen_on, alpha, allow_stop))


def best_route_per_dataset(
    chosen_on: RouteTree, alpha: float, tree: RouteTree, allow_stop: bool = False
) -> outcome.Outcome:
    """The best route of each dataset of `chosen_on`, taken on `tree`: a perfect classifier.

    Queries of a dataset that `chosen_on` does not have take its best route over all.
    """
    overall = best_ending(chosen_on, alpha, allow_stop)
    datasets = np.array(chosen_on.datasets)
    choice = {
        name: best_ending(chosen_on.select(np.flatnonzero(datasets == name)), alpha, allow_stop)
        for name in set(chosen_on.datasets)
    }
    node = np.array([choice.get(name, overall) for name in tree.datasets], dtype=np.int64)
    return outcome.at_nodes(tree, node, PER_DATASET, "baseline")


def oracle(tree: RouteTree, alpha: float, allow_stop: bool = False) -> outcome.Outcome:
    """The best route of every query, chosen knowing all answers: no policy does better.

    Where earlier answers may be given the bound is that with `allow_stop`: in hindsight nobody
    calls a model after the answer that is given.
    """
    return outcome.at_nodes(tree, best_nodes(tree, alpha, allow_stop), "oracle", "oracle")


def best_nodes(tree: RouteTree, alpha: float, allow_stop: bool = False) -> outcome.Integers:
    """int64[queries]: the node at which the best route of each query ends, in hindsight."""
    endings = outcome.Actions(tree.routes, allow_stop).endings
    best = cheapest_best(tree.node_reward(alpha)[:, endings], tree.cost[:, endings])
    return best + np.int64(endings.start)


def direct_oracle(tree: RouteTree, alpha: float) -> outcome.Outcome | None:
    """The best direct call of every query among the pool's, chosen knowing all answers.

    None where no model of the pool was called directly. Larger reference models are not in the
    choice. Direct calls are no routes of the tree, so this is no lower bound of `oracle`.
    """
    direct, columns, rows = tree.direct, _pool_columns(tree), np.arange(len(tree))
    if not len(columns):
        return None
    cost = direct.cost[:, columns]
    choice = columns[cheapest_best(net_reward(direct.score[:, columns], cost, alpha), cost)]
    return outcome.Outcome(
        name=ONE_HOP,
        kind="oracle",
        quality=direct.score[rows, choice],
        accuracy=direct.accuracy[rows, choice],
        cost=direct.cost[rows, choice],
    )


def random_policy(tree: RouteTree, allow_stop: bool = False) -> outcome.Outcome:
    """Every route with the same probability; with stop, the shorter ones too."""
    endings = outcome.Actions(tree.routes, allow_stop).endings
    probability = np.zeros((len(tree), tree.routes.nodes))
    probability[:, endings] = 1 / (endings.stop - endings.start)
    return outcome.from_endings(tree, probability, "random", "baseline")


def gap_closed(router: float, fixed: float, best: float) -> float | None:
    """(R(router) - R(best fixed route)) / (R(oracle) - R(best fixed route)).

    Returns 1 where the router is as good as the oracle, below 0 where it is worse than the fixed
    route, None where the gap is below `SMALLEST_GAP`.

    `router`: mean reward of the router; `fixed`: mean reward of the best fixed route; `best`: mean
    reward of the tree oracle.
    """
    gap = best - fixed
    return (router - fixed) / gap if gap >= SMALLEST_GAP else None


def _pool_columns(tree: RouteTree) -> outcome.Integers:
    """Columns of the direct calls of models that a router may call."""
    called = [column for column, name in enumerate(tree.direct.models) if name in tree.models]
    return np.array(called, dtype=np.int64)


def ladder(
    chosen_on: RouteTree, alpha: float, tree: RouteTree, allow_stop: bool = False
) -> dict[str, outcome.Outcome]:
    """The bounds by name, from chance to the anytime oracle; docs/metrics.md says what each is.

    An outcome's own name says which model or route was chosen.

    Their rewards need not rise. What is chosen on one fold may do worse on another. Direct calls
    lack the stage instructions, so they are no routes of the tree, and the one-hop oracle can beat
    the tree oracle. The anytime oracle never loses to the tree oracle.

    Args:
        chosen_on: the train fold. Rungs that choose on it are left out where it is empty.
        tree: the fold that is shown. Rungs of direct calls look only at models of the pool that
            have some, and are left out where none has.
        allow_stop: whether chance and the fixed routes, too, may end before L calls.
    """
    outcomes: dict[str, outcome.Outcome | None] = {"random": random_policy(tree, allow_stop)}
    if len(chosen_on):
        outcomes["best single call"] = best_direct_call(chosen_on, alpha, tree)
        outcomes["best fixed route"] = best_fixed_route(chosen_on, alpha, tree, allow_stop)
        informed = best_route_per_dataset(chosen_on, alpha, tree, allow_stop)
        outcomes[PER_DATASET] = informed
    outcomes[ONE_HOP] = direct_oracle(tree, alpha)
    outcomes[TREE] = oracle(tree, alpha)
    outcomes[ANYTIME] = replace(oracle(tree, alpha, True), name=ANYTIME)
    return {name: found for name, found in outcomes.items() if found}


def split_regret(
    tree: RouteTree,
    alpha: float,
    endings: outcome.Floats,
    allow_stop: bool = False,
    allow_return: bool = False,
) -> outcome.Floats:
    """The regret of a policy to the tree oracle, split by choice.

    Raises ValueError: episodes end where none can.

    Args:
        endings: float64[queries, endings], rows sum to 1. Of a stochastic policy all values are
            expectations; the mean of several seeds is one.
        allow_stop: whether the oracle, too, may end before L calls.
        allow_return: whether answers are given after they were seen. Then that is a choice of its
            own, also where a call was to be the last one.

    Returns:
        float64[queries, L], with return L + 1 columns: column 0 is what the first choice lost, the
        plan; column l what choice l + 1 lost. Not below 0, but for rounding. The sum of a row is R
        of the tree oracle less R of the policy.
    """
    possible = outcome.Actions(tree.routes, allow_stop, allow_return).endings
    if endings[:, : possible.start].any():
        raise ValueError("episodes end before L calls; allow the oracle to stop, too")
    routes, width = tree.routes, endings.shape[1]
    ended = endings * outcome.ending_reward(tree, alpha, width)
    ahead = best_ahead(tree, alpha, allow_stop, allow_return)
    deciding = outcome.called if allow_return else outcome.going_on
    rest = deciding(routes, endings) * ahead
    # W(l), the mean R of a policy that is helped by the oracle after l choices; the last is its R.
    helped = [ended.sum(axis=1)]
    if width > routes.nodes:
        ended = outcome.ended_at(routes, ended)
    for level in reversed(range(routes.hops + allow_return)):
        over = routes.level_start(level if allow_return else level + 1)
        helped.append(ended[:, :over].sum(axis=1) + rest[:, routes.level(level)].sum(axis=1))
    return -np.diff(np.stack(helped[::-1], axis=1), axis=1)


def best_ahead(
    tree: RouteTree, alpha: float, allow_stop: bool = False, allow_return: bool = False
) -> outcome.Floats:
    """float64[queries, S]: the highest R of all endings below each state, itself left out.

    With return S are the nodes: an ending at a state itself, with any answer so far, counts, too.
    """
    routes, reward = tree.routes, tree.node_reward(alpha)
    if allow_return:
        number = outcome.pairs(routes).number
        reward = outcome.ending_reward(tree, alpha, number.max() + 1)[:, number].max(axis=2)
        reward[:, 0] = -np.inf  # nothing can be given there
    best = reward[:, routes.leaves]
    ahead = [best] if allow_return else []
    for level in reversed(range(routes.hops)):
        best = best.reshape(len(tree), -1, routes.models).max(axis=2)
        if allow_return:
            best = np.maximum(best, reward[:, routes.level(level)])
        ahead.append(best)
        if allow_stop:
            best = np.maximum(best, reward[:, routes.level(level)])
    return np.concatenate(ahead[::-1], axis=1)
