"""What calls cost, by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hierrouter_cache.tree import Rate, Routes, cost_of, rate_table, total_cost

QUERIES = 2


def test_a_call_costs_its_tokens_times_their_rates() -> None:
    tokens_in, tokens_out = np.array([3, 0, 7]), np.array([2, 4, 0])
    assert cost_of(tokens_in, tokens_out, np.array([2.0, 5.0])).tolist() == [16, 20, 14]
    each = np.array([[2.0, 5.0], [1.0, 1.0], [0.0, 3.0]])
    assert cost_of(tokens_in, tokens_out, each).tolist() == [16, 4, 0]


def test_with_one_rate_tokens_are_added_first() -> None:
    assert 0.1 * 1 + 0.1 * 5 != 0.1 * (1 + 5)
    found = cost_of(np.array([1]), np.array([5]), np.array([0.1, 0.1]))
    assert found.tolist() == [0.1 * (1 + 5)]


@given(st.builds(Routes, st.integers(1, 3), st.integers(1, 3)), st.integers(0, 2**16))
def test_a_node_costs_all_calls_on_the_way_to_it(routes: Routes, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens_in, tokens_out = rng.integers(0, 9, (2, QUERIES, routes.nodes))
    rate = rng.integers(0, 3, (routes.models, 2)) / 4  # sums of quarters are exact
    found = total_cost(routes, tokens_in, tokens_out, rate)
    for node in range(routes.nodes):
        path = routes.path(node)
        made = [routes.node(path[: hop + 1]) for hop in range(len(path))]
        expected = sum(
            rate[model, 0] * tokens_in[:, call] + rate[model, 1] * tokens_out[:, call]
            for model, call in zip(path, made, strict=True)
        )
        assert (found[:, node] == expected).all()


def test_rates_are_in_the_order_of_the_models() -> None:
    prices = {"a": Rate.base(0.5), "b": Rate(1.0, 2.0), "c": Rate.base(9.0)}
    assert rate_table(("b", "a"), prices).tolist() == [[1.0, 2.0], [0.5, 0.5]]
    assert rate_table((), prices).shape == (0, 2)
