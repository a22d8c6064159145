"""Trees with draws and holes, against recursion over what each query has."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hierrouter.evaluation.bounds import (
    best_ahead,
    best_ending,
    best_fixed_route,
    best_nodes,
    best_route_per_dataset,
    clairvoyant_endings,
    greedy_decisions,
    ladder,
    luck_of_regret,
    oracle,
    random_policy,
    rank_routes,
    split_oracle,
    split_plan_oracle,
    split_regret,
)
from hierrouter.evaluation.budget import RouteHull, optimum_at_mean_cost, policy_break_points
from hierrouter.evaluation.intervals import interval
from hierrouter.evaluation.outcome import (
    Actions,
    FixedRoutes,
    LegalActions,
    RouteMeans,
    ending_probabilities,
    fixed_routes,
    from_endings,
    policy_outcome,
    route_policy,
)
from hierrouter.evaluation.policies import policy_table
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import NEWEST, Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluation.enumeration import (
    Path,
    alphas,
    draws,
    ends_by_plan,
    followed,
    may_end,
    node_cost,
    node_value,
    offers,
    ragged_layouts,
    seeds,
    unhurried,
    worlds,
)
from tests.hierrouter.evaluation.simulated import lucky_truth
from tests.hierrouter.trees import lucky_tree, ragged_tree, random_tree


@st.composite
def ragged_trees(draw: st.DrawFn, max_draws: int = 2, max_nodes: int = 40) -> RouteTree:
    layout = draw(ragged_layouts(max_draws=max_draws, max_nodes=max_nodes))
    unjudged = draw(st.sampled_from([0.0, 0.3]))
    missing = draw(st.sampled_from([0.0, 0.3]))
    queries = draw(st.integers(1, 3))
    return ragged_tree(layout, queries, draw(seeds), missing=missing, unjudged=unjudged)


def all_paths(tree: RouteTree) -> set[Path]:
    return {tree.layout.path(node) for node in range(1, tree.layout.nodes)}


@unhurried
@given(ragged_trees(), st.booleans(), alphas)
def test_a_fixed_route_is_the_mean_over_its_draws(
    tree: RouteTree, stop: bool, alpha: float
) -> None:
    means = RouteMeans(tree, stop)
    names = [tree.layout.path(node) for node in means.node.tolist()]
    assert len(set(names)) == len(names)
    if stop:
        assert set(names) == all_paths(tree)
    expected = {}
    for column, path in enumerate(names):
        for query in range(len(tree)):
            ends = followed(tree, query, path, stop)
            assert means.available[query, column] == (ends is not None)
            if ends is not None:
                for values, node_values in (
                    (means.quality, tree.score[query]),
                    (means.accuracy, tree.accuracy[query]),
                    (means.cost, [node_cost(tree, query, n) for n in range(tree.layout.nodes)]),
                ):
                    mean = sum(share * node_values[end] for share, end in ends)
                    assert values[query, column] == pytest.approx(mean, abs=1e-12)
                reward = sum(share * node_value(tree, query, end, alpha) for share, end in ends)
                expected[query, path] = reward
    assert len(fixed_routes(tree, stop)) == len(names) or not means.available.all()
    if not means.available.all():
        return
    totals = {path: sum(expected[q, path] for q in range(len(tree))) for path in names}
    best = best_ending(tree, alpha, stop)
    assert totals[tree.layout.path(best)] == pytest.approx(max(totals.values()))
    assert best_fixed_route(tree, alpha, tree, stop).reward(alpha).sum() == pytest.approx(
        max(totals.values())
    )
    per_dataset = best_route_per_dataset(tree, alpha, tree, stop)
    assert per_dataset.reward(alpha).sum() == pytest.approx(max(totals.values()))
    hull = RouteHull.of(tree, stop)
    assert totals[tree.layout.path(hull.best(alpha))] == pytest.approx(max(totals.values()))
    assert np.isfinite(policy_break_points(tree, stop)).all()


def planned_rewards(tree: RouteTree, routes: list[Path], stop: bool, alpha: float) -> list[float]:
    """R of the first of some routes that is offered, by query."""
    return [
        sum(
            share * node_value(tree, query, end, alpha)
            for share, end in ends_by_plan(tree, query, routes, stop)
        )
        for query in range(len(tree))
    ]


def followed_shares(tree: RouteTree, paths: dict[int, Path], stop: bool) -> dict[int, float]:
    """How often each route is offered up to an end, by recursion."""
    stop = stop or NEWEST in tree.layout.give_backs

    def share(query: int, path: Path, state: int) -> float:
        if may_end(tree, query, state, stop and not path):
            return 1.0
        if not path:
            return 0.0
        after = draws(tree, query, state, path[0])
        return sum(weight * share(query, path[1:], child) for weight, child in after)

    return {
        node: sum(share(query, path, 0) for query in range(len(tree)))
        for node, path in paths.items()
    }


@settings(unhurried, suppress_health_check=[HealthCheck.filter_too_much])
@given(ragged_trees(max_nodes=12), st.booleans(), st.booleans(), seeds, alphas)
def test_where_a_route_is_not_offered_others_are_taken(
    tree: RouteTree, stop: bool, newest: bool, seed: int, alpha: float
) -> None:
    if newest:
        tree = tree.with_layout(tree.layout.with_give_backs((NEWEST,)))
    chance = FixedRoutes(tree, stop)
    assume(not chance.is_complete)
    paths = {int(node): tree.layout.path(int(node)) for node in chance.node}
    ranking = np.random.default_rng(seed).permutation(chance.node).tolist()
    ranked = FixedRoutes(tree, stop, ranking)
    actions = Actions(tree.layout, stop)
    by_plan = {}
    for column, node in enumerate(chance.node.tolist()):
        alone = planned_rewards(tree, [paths[node]], stop, alpha)
        np.testing.assert_allclose(chance.reward(alpha)[:, column], alone, atol=1e-9)
        routes = [paths[node], *(paths[other] for other in ranking)]
        planned = planned_rewards(tree, routes, stop, alpha)
        np.testing.assert_allclose(ranked.reward(alpha)[:, column], planned, atol=1e-9)
        table = route_policy(tree, actions, [node, *ranking])
        outcome = policy_outcome(tree, actions, table, "x", "route")
        np.testing.assert_allclose(outcome.reward(alpha), planned, atol=1e-9)
        by_plan[node] = sum(alone)
    # The ranking is that of the means; the best route is the best one that goes on by it.
    best, *others = rank_routes(tree, alpha, stop)
    assert sorted([best, *others]) == sorted(by_plan)
    rewards = [by_plan[node] for node in others]
    assert all(one >= other - 1e-9 for one, other in pairwise(rewards))
    listed = chance.node[chance.listed].tolist()
    assert best in listed
    values = [
        sum(planned_rewards(tree, [paths[node], *(paths[n] for n in (best, *others))], stop, alpha))
        for node in listed
    ]
    fixed = best_fixed_route(tree, alpha, tree, stop).reward(alpha)
    assert fixed.sum() == pytest.approx(
        sum(planned_rewards(tree, [paths[best], *(paths[n] for n in others)], stop, alpha))
    )
    if best == max(by_plan, key=lambda node: by_plan[node]):
        assert fixed.sum() == pytest.approx(max(values))
    per_dataset = best_route_per_dataset(tree, alpha, tree, stop).reward(alpha)
    assert (per_dataset <= best_ahead(tree, alpha, stop)[:, 0] + 1e-9).all()
    assert np.isfinite(policy_break_points(tree, stop)).all()
    assert RouteHull.of(tree, stop).best(alpha) in listed
    shares = followed_shares(tree, paths, stop)
    assert listed == [node for node in paths if shares[node] >= max(shares.values()) / 2 - 1e-9]
    assert len(fixed_routes(tree, stop)) == len(listed)


@unhurried
@given(ragged_trees(max_nodes=16), st.booleans(), alphas)
def test_the_clairvoyant_oracle_knows_which_draw_comes(
    tree: RouteTree, stop: bool, alpha: float
) -> None:
    reward = oracle(tree, alpha, stop).reward(alpha)
    for query in range(len(tree)):
        sizes = [
            len(draws(tree, query, s, a))
            for s in range(tree.layout.inner)
            for a in offers(tree, query, s)
        ]
        assume(math.prod(sizes) <= 2000)
        expected = 0.0
        for probability, drawn in worlds(tree, query):
            ends = []
            reached = [0]
            for state in reached:
                if may_end(tree, query, state, stop):
                    ends.append(node_value(tree, query, state, alpha))
                reached += [child for (parent, _), child in drawn.items() if parent == state]
            expected += probability * max(ends)
        assert reward[query] == pytest.approx(expected, abs=1e-9)
    endings = clairvoyant_endings(tree, alpha, stop)
    np.testing.assert_allclose(endings.sum(axis=1), 1)
    assert (
        (reward >= RouteMeans(tree, stop).reward(alpha).T - 1e-9)
        .T[RouteMeans(tree, stop).available]
        .all()
    )


@unhurried
@given(st.builds(Layout.full, st.integers(1, 3), st.integers(1, 3)), seeds, st.booleans(), alphas)
def test_with_one_draw_a_call_the_clairvoyant_oracle_is_the_tree_oracle(
    layout: Layout, seed: int, stop: bool, alpha: float
) -> None:
    tree = random_tree(layout, 3, seed)
    endings = clairvoyant_endings(tree, alpha, stop)
    chosen = endings.argmax(axis=1)
    np.testing.assert_array_equal(endings.max(axis=1), 1)
    np.testing.assert_array_equal(chosen, best_nodes(tree, alpha, stop))


def best_rule(tree: RouteTree, query: int, state: int, alpha: float, stop: bool) -> float:
    """The value of the best rule that knows the means; a stop is chosen before the draw comes."""
    offered = offers(tree, query, state)
    if not offered:
        return node_value(tree, query, state, alpha)
    values = []
    for action in offered:
        drawn = draws(tree, query, state, action)
        values.append(sum(w * best_rule(tree, query, n, alpha, stop) for w, n in drawn))
        if stop and all(may_end(tree, query, n, stop) for _, n in drawn):
            values.append(sum(w * node_value(tree, query, n, alpha) for w, n in drawn))
    judged = tree.can_end is None or tree.can_end[query, state]
    if NEWEST in tree.layout.give_backs and state and judged:
        values.append(node_value(tree, query, state, alpha))
    return max(values)


@unhurried
@given(ragged_trees(), st.booleans(), st.booleans(), alphas)
def test_the_best_rule_knows_means_and_no_draw(
    tree: RouteTree, stop: bool, ends: bool, alpha: float
) -> None:
    if ends:
        tree = tree.with_layout(tree.layout.with_give_backs((NEWEST,)))
    root = best_ahead(tree, alpha, stop)[:, 0]
    expected = [best_rule(tree, query, 0, alpha, stop) for query in range(len(tree))]
    np.testing.assert_allclose(root, expected, atol=1e-9)
    assert (oracle(tree, alpha, stop).reward(alpha) >= root - 1e-9).all()


def random_legal_table(tree: RouteTree, actions: Actions, seed: int) -> np.ndarray:
    legal = LegalActions.of(tree, actions).table
    shape = (len(tree), actions.states, actions.count)
    table = np.random.default_rng(seed).gamma(1.0, size=shape) * legal
    return table / np.maximum(table.sum(axis=2, keepdims=True), 1e-300)


def played(
    tree: RouteTree, table: np.ndarray, query: int, state: int, stop: bool
) -> dict[int, float]:
    """Where the episodes of a policy end, by walking each of them."""
    if not offers(tree, query, state):
        return {state: 1.0}
    ends: dict[int, float] = {}
    for action, probability in enumerate(table[query, state]):
        if not probability:
            continue
        if action >= tree.layout.call_actions * (2 if stop else 1):
            ends[state] = ends.get(state, 0.0) + probability
            continue
        for weight, child in draws(tree, query, state, action % tree.layout.call_actions):
            over = action >= tree.layout.call_actions
            after = {child: 1.0} if over else played(tree, table, query, child, stop)
            for end, share in after.items():
                ends[end] = ends.get(end, 0.0) + probability * weight * share
    return ends


@unhurried
@given(ragged_trees(), st.booleans(), seeds, alphas)
def test_a_policy_is_worth_what_its_episodes_are(
    tree: RouteTree, stop: bool, seed: int, alpha: float
) -> None:
    tree = tree.with_layout(tree.layout.with_give_backs((NEWEST,)))
    tree = replace(tree, can_end=None)
    actions = Actions(tree.layout, stop)
    table = random_legal_table(tree, actions, seed)
    tabled = policy_table(tree, table, alpha, stop)
    outcome = policy_outcome(tree, actions, tabled, "x", "router")
    for query in range(len(tree)):
        ends = played(tree, table, query, 0, stop)
        assert sum(ends.values()) == pytest.approx(1)
        expected = sum(share * node_value(tree, query, n, alpha) for n, share in ends.items())
        assert outcome.reward(alpha)[query] == pytest.approx(expected, abs=1e-9)


@unhurried
@given(ragged_trees(max_draws=1), st.booleans())
def test_chance_takes_every_route_of_a_query_as_often(tree: RouteTree, stop: bool) -> None:
    chance = random_policy(tree, stop)
    for query in range(len(tree)):
        ends = [
            n
            for n in range(1, tree.layout.nodes)
            if (tree.weight is None or tree.weight[query, n] > 0) and may_end(tree, query, n, stop)
        ]
        assert chance.quality[query] == pytest.approx(tree.score[query, ends].mean())
        costs = [node_cost(tree, query, n) for n in ends]
        assert chance.cost[query] == pytest.approx(np.mean(costs))


@unhurried
@given(ragged_trees(max_nodes=16), st.booleans(), st.floats(0.05, 0.95))
def test_the_optimum_at_a_mean_cost_has_no_duality_gap(
    tree: RouteTree, stop: bool, share: float
) -> None:
    cheapest = from_endings(tree, clairvoyant_endings(tree, 1e6, stop), "", "oracle").cost.mean()
    dearest = from_endings(tree, clairvoyant_endings(tree, 0, stop), "", "oracle").cost.mean()
    budget = float(cheapest + share * (dearest - cheapest)) + 1e-6
    best = optimum_at_mean_cost(tree, budget, stop)
    assert best.cost.mean() <= budget * (1 + 1e-6)
    bound = min(
        oracle(tree, alpha, stop).reward(alpha).mean() + alpha * budget
        for alpha in (*np.linspace(0, 1, 41), *np.geomspace(1, 1e3, 20))
    )
    assert best.quality.mean() <= bound + 1e-6
    with pytest.raises(InputError, match="no policy is that cheap"):
        optimum_at_mean_cost(tree, cheapest * 0.5, stop)


@unhurried
@given(ragged_trees(), st.data())
def test_a_policy_that_chooses_what_a_question_does_not_offer_is_named(
    tree: RouteTree, data: st.DataObject
) -> None:
    tree = tree.with_layout(tree.layout.with_give_backs((NEWEST,)))
    actions = Actions(tree.layout)
    legal = LegalActions.of(tree, actions).table
    legal = np.broadcast_to(legal, (len(tree), *legal.shape[1:]))
    table = random_legal_table(tree, actions, seed=0)
    calls = slice(tree.layout.call_actions)
    # Where a call is offered, another one that is not offered.
    wrong = ~legal[..., calls] & legal[..., calls].any(axis=2, keepdims=True)
    weight = np.ones(tree.score.shape) if tree.weight is None else tree.weight
    wrong &= weight[:, : tree.layout.states, None] > 0
    if not wrong.any():
        policy_table(tree, table, 0.1)
        return
    query, node, action = data.draw(st.sampled_from(np.argwhere(wrong).tolist()))
    table[query, node] = 0
    table[query, node, action] = 1
    name = tree.models[action]
    with pytest.raises(
        InputError,
        match=rf"not offered: {name}: table: query {tree.query_ids[query]}, stage \d, node {node}",
    ) as error:
        policy_table(tree, table, 0.1)
    assert "\n" not in str(error.value)


@given(ragged_trees(), st.booleans(), seeds, alphas)
def test_regret_and_decisions_go_over_draws_and_holes(
    tree: RouteTree, stop: bool, seed: int, alpha: float
) -> None:
    tree = replace(tree.with_layout(tree.layout.with_give_backs((NEWEST,))), can_end=None)
    actions = Actions(tree.layout, stop)
    table = random_legal_table(tree, actions, seed)
    outcome = policy_outcome(tree, actions, table, "x", "router")
    endings = ending_probabilities(actions, table, tree.weight)
    regret = split_regret(tree, alpha, endings, stop)
    expected = best_ahead(tree, alpha, stop)[:, 0] - outcome.reward(alpha)
    np.testing.assert_allclose(regret.sum(axis=1), expected, atol=1e-9)
    assert (regret >= -1e-9).all()
    query, probability, is_best, weight = greedy_decisions(
        tree, actions, table.argmax(axis=2), table.max(axis=2), alpha
    )
    assert len(query) == len(probability) == len(is_best)
    # On each level the decisions of a query are due with a probability of at most 1.
    assert (weight > 0).all()
    due = np.bincount(query, weight, len(tree))
    assert (due <= actions.steps + 1e-9).all()


def test_an_illegal_choice_counts_nowhere_where_it_is_never_due() -> None:
    # Three hops of two models. After the second one only the first may be called last, and the
    # policy, which always calls the first one first, names the second.
    layout = Layout.full(2, 3)
    tree = random_tree(layout, 4, 0)
    weight = np.ones(tree.score.shape)
    weight[:, [12, 14]] = 0
    tree = replace(tree, weight=weight)
    choice = np.zeros((4, layout.states), np.int64)
    before = greedy_decisions(tree, Actions(layout), choice, np.ones(choice.shape), 0.1)
    choice[:, [5, 6]] = 1
    with np.errstate(invalid="raise"):
        after = greedy_decisions(tree, Actions(layout), choice, np.ones(choice.shape), 0.1)
    np.testing.assert_equal(after[0], before[0])
    np.testing.assert_equal(after[3], before[3])
    assert len(after[0])


def test_decisions_after_several_draws_count_as_one() -> None:
    tree = lucky_tree(4, 5, 2, 0)
    actions = Actions(tree.layout)
    table = random_legal_table(tree, actions, 0)
    query, _, _, weight = greedy_decisions(
        tree, actions, table.argmax(axis=2), table.max(axis=2), 0.1
    )
    for number in range(5):
        assert sorted(weight[query == number]) == pytest.approx([0.25] * 4 + [1.0])


def test_a_route_that_some_queries_lack_is_replaced_there() -> None:
    layout = Layout.full(2, 1)
    tree = random_tree(layout, 3, 0)
    weight = np.ones(tree.score.shape)
    weight[2, 1] = 0
    tree = replace(tree, weight=weight)
    tree = replace(tree, score=np.array([[0, 1, 0], [0, 1, 0], [0, 0, 1.0]]))
    first, second = fixed_routes(tree)
    assert [first.name, second.name] == [">model-0", ">model-1"]
    assert first.quality.tolist() == [1, 1, 1]  # the other call, where this one is not offered
    assert second.quality.tolist() == [0, 0, 1]
    assert rank_routes(tree, 0.0) == (1, 2)
    best = best_fixed_route(tree, 0.0, tree)
    assert best.quality.tolist() == [1, 1, 1]
    assert set(ladder(tree, 0.1, tree)) >= {"random", "best fixed route", "tree oracle"}


def per_query_mean(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


@pytest.mark.parametrize("draws", [2, 4, 8])
def test_the_split_oracle_is_worth_what_its_rule_is(draws: int) -> None:
    truth = lucky_truth(draws, hops=1)
    tree = lucky_tree(draws, 3000, 1, 5)
    for bound, expected in (
        (split_oracle(tree, 1.0), truth["split oracle"]),
        (split_plan_oracle(tree, 1.0), truth["split oracle"]),
        (oracle(tree, 1.0), truth["oracle"]),
    ):
        assert bound is not None
        mean, error = per_query_mean(bound.reward(1.0))
        assert abs(mean - expected) < 4 * error
    assert truth["split oracle"] <= truth["best"] <= truth["oracle"]


@pytest.mark.parametrize("draws", [2, 4])
def test_both_bounds_hold_the_best_rule_between_them(draws: int) -> None:
    truth = lucky_truth(draws, hops=2)
    tree = lucky_tree(draws, 600, 2, 5)
    split = split_oracle(tree, 1.0)
    assert split is not None
    lower, error = per_query_mean(split.reward(1.0))
    assert lower < truth["best"] + 3 * error
    upper, error = per_query_mean(oracle(tree, 1.0).reward(1.0))
    assert abs(upper - truth["oracle"]) < 4 * error
    plan = split_plan_oracle(tree, 1.0)
    assert plan is not None
    assert plan.reward(1.0).mean() < lower  # the first response tells which call is the next
    # More draws close the distance.
    assert split_oracle(lucky_tree(6, 400, 2, 5), 1.0).reward(1.0).mean() > lower  # type: ignore[union-attr]


def test_intervals_of_the_split_oracle_hold_its_true_value() -> None:
    truth = lucky_truth(4, hops=1)["split oracle"]
    covered = 0
    rng = np.random.default_rng(0)
    for seed in range(100):
        split = split_oracle(lucky_tree(4, 60, 1, seed), 1.0)
        assert split is not None
        low, high = interval(split.reward(1.0), 500, rng=rng)
        covered += low <= truth <= high
    assert 88 <= covered <= 99


def test_with_one_draw_luck_is_not_told() -> None:
    tree = lucky_tree(1, 20, 2, 0)
    assert split_oracle(tree, 1.0) is None
    assert split_plan_oracle(tree, 1.0) is None
    route = fixed_routes(tree)[0]
    assert luck_of_regret(tree, 1.0, route, route) is None


@unhurried
@given(ragged_trees(), st.booleans(), seeds, alphas)
def test_the_terms_of_regret_sum_to_it(
    tree: RouteTree, stop: bool, seed: int, alpha: float
) -> None:
    tree = replace(tree.with_layout(tree.layout.with_give_backs((NEWEST,))), can_end=None)
    actions = Actions(tree.layout, stop)
    policy = policy_outcome(tree, actions, random_legal_table(tree, actions, seed), "x", "router")
    split = split_oracle(tree, alpha, stop)
    if split is not None:
        assert np.isfinite(split.reward(alpha)).all()
    routes = fixed_routes(tree, stop)
    terms = luck_of_regret(tree, alpha, policy, routes[0] if routes else None, stop)
    if terms is None:
        return
    whole = terms.pop("whole")
    assert list(terms) == ["luck", "adaptivity", "plan", "generalisation"]
    np.testing.assert_allclose(sum(terms.values()), whole, atol=1e-9)
    expected = oracle(tree, alpha, stop).reward(alpha) - policy.reward(alpha)
    np.testing.assert_array_equal(whole, expected)


def test_an_action_that_is_certain_is_in_both_halves() -> None:
    """The certain action, always right, is chosen wherever two draws of the other are not."""
    layout = Layout.grown(2, lambda path: () if path else (0, 1), lambda action: 1 + action)
    tree = random_tree(layout, 4, 0)
    score = np.zeros(tree.score.shape)
    score[:, 1] = 0.75
    score[:, 2:] = [[0, 0], [0, 1], [1, 0], [1, 1]]
    weight = np.tile([1.0, 1.0, 0.5, 0.5], (4, 1))
    tree = replace(tree, score=score, weight=weight, sampled=(False, True))
    split = split_oracle(tree, 0.0)
    assert split is not None
    # Chosen on a wrong draw: .75; on a right one: the other draw.
    np.testing.assert_allclose(split.quality, [0.75, 0.375, 0.375, 1.0])


def test_a_single_draw_is_estimated_by_the_other_questions() -> None:
    """Of action 0 there is one draw at a temperature: its own result decides nothing."""
    layout = Layout.grown(2, lambda path: () if path else (0, 1), lambda action: 1 + action)
    tree = random_tree(layout, 3, 0)
    score = np.zeros(tree.score.shape)
    score[:, 1] = [1.0, 0.0, 0.8]
    score[:, 2:] = 0.45
    weight = np.tile([1.0, 1.0, 0.5, 0.5], (3, 1))
    tree = replace(tree, score=score, weight=weight, sampled=(True, True))
    split = split_oracle(tree, 0.0)
    assert split is not None
    # The others say .4, .9 and .5 of action 0: so action 1, action 0, action 0.
    np.testing.assert_allclose(split.quality, [0.45, 0.0, 0.8])


def test_a_response_that_came_several_times_is_several_draws() -> None:
    layout = Layout.grown(1, lambda path: () if path else (0,), lambda action: 2)
    tree = random_tree(layout, 2, 0)
    score = np.tile([0.0, 1.0, 0.0], (2, 1))
    weight = np.array([[1.0, 0.25, 0.75], [1.0, 0.5, 0.5]])
    split = split_oracle(replace(tree, score=score, weight=weight), 0.0)
    assert split is not None
    np.testing.assert_allclose(split.quality, [0.25, 0.5])


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.75, 0.25), (0.9, 0.1)])
def test_what_follows_a_draw_of_several_runs_is_chosen_by_other_draws(
    shares: tuple[float, float],
) -> None:
    """The second answers are coins; the first draw is in both halves where it is many runs."""
    layout = Layout.grown(3, lambda path: (0, 1, 2) if len(path) < 2 else (), lambda action: 2)
    tree = random_tree(layout, 1000, 0)
    rng = np.random.default_rng(2)
    score = np.zeros(tree.score.shape)
    score[:, layout.leaves] = rng.random(score[:, layout.leaves].shape) < 0.5
    weight = np.full(score.shape, 0.5)
    weight[:, 0] = 1.0
    first = layout.level(1)
    weight[:, first] = np.array(shares)[layout.draw[first]]
    tree = replace(tree, score=score, weight=weight)
    for bound in (split_oracle(tree, 0.0), split_plan_oracle(tree, 0.0)):
        assert bound is not None
        assert bound.quality.mean() == pytest.approx(0.5, abs=0.04)
