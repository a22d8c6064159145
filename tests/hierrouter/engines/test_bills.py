"""What a server's usage says, under whichever names, and what each token of it costs."""

import json
from typing import Any

import numpy as np
import pytest

from hierrouter.engines.bills import (
    BIG_THOUGHTS,
    NO_BILL,
    TOTAL_ABOVE,
    TOTAL_BELOW,
    given_cost_notes,
    implausible_counts,
    read_usage,
)
from hierrouter.engines.generator import Response
from hierrouter_cache.tree import Rate, cost_of, rate_table

# By what is billed: tokens in and out, cached ones and thoughts.
DIALECTS: list[tuple[dict[str, Any], tuple[int, int, int | None, int | None]]] = [
    # Thoughts within completion_tokens: OpenAI.
    (
        {
            "prompt_tokens": 32,
            "completion_tokens": 103,
            "total_tokens": 135,
            "completion_tokens_details": {"reasoning_tokens": 94},
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        (32, 103, 0, 94),
    ),
    # On top of them: xAI and others.
    (
        {
            "prompt_tokens": 32,
            "completion_tokens": 9,
            "total_tokens": 135,
            "completion_tokens_details": {"reasoning_tokens": 94},
        },
        (32, 103, None, 94),
    ),
    ({"prompt_tokens": 5, "completion_tokens": 7, "reasoning_tokens": 3}, (5, 7, None, 3)),
    ({"prompt_tokens": 2006, "completion_tokens": 9, "cached_tokens": 1920}, (2006, 9, 1920, None)),
    # Anthropic: the cache is beside the rest of the prompt, in its own dialect only.
    (
        {
            "input_tokens": 20,
            "output_tokens": 9,
            "cache_read_input_tokens": 1000,
            "cache_creation_input_tokens": 50,
        },
        (1070, 9, 1000, None),
    ),
    (
        {
            "prompt_tokens": 1070,
            "completion_tokens": 9,
            "total_tokens": 1079,
            "cache_read_input_tokens": 1000,
            "cache_creation_input_tokens": 50,
        },
        (1070, 9, 1000, None),
    ),
    (
        {
            "prompt_tokens": 20,
            "completion_tokens": 9,
            "total_tokens": 1029,
            "prompt_tokens_details": {"cached_tokens": 1000},
        },
        (1020, 9, 1000, None),
    ),
    # OpenAI's Responses.
    (
        {
            "input_tokens": 20,
            "output_tokens": 9,
            "input_tokens_details": {"cached_tokens": 16},
            "output_tokens_details": {"reasoning_tokens": 4},
        },
        (20, 9, 16, 4),
    ),
    # DeepSeek.
    (
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "prompt_cache_hit_tokens": 4,
            "prompt_cache_miss_tokens": 6,
        },
        (10, 5, 4, None),
    ),
    # Gemini: its own names, and its thoughts through a proxy.
    (
        {
            "promptTokenCount": 10,
            "candidatesTokenCount": 5,
            "thoughtsTokenCount": 100,
            "cachedContentTokenCount": 8,
            "totalTokenCount": 115,
        },
        (10, 105, 8, 100),
    ),
    (
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "thoughtsTokenCount": 100,
            "total_tokens": 115,
        },
        (10, 105, None, 100),
    ),
    # A count that follows from the others; null details; numbers with a point.
    ({"prompt_tokens": 10, "total_tokens": 15}, (10, 5, None, None)),
    (
        {"prompt_tokens": 10, "completion_tokens": 5, "completion_tokens_details": None},
        (10, 5, None, None),
    ),
    ({"prompt_tokens": 10.0, "completion_tokens": 5.0}, (10, 5, None, None)),
]


@pytest.mark.parametrize(("usage", "billed"), DIALECTS, ids=range(len(DIALECTS)))
def test_the_bill_is_what_the_server_bills(
    usage: dict[str, Any], billed: tuple[int, int, int | None, int | None]
) -> None:
    bill = read_usage(usage)
    assert (bill.tokens_in, bill.tokens_out, bill.cached, bill.thoughts) == billed
    assert bill.remarks == ()
    assert json.loads(bill.usage) == usage  # all of it is kept


@pytest.mark.parametrize(
    ("further", "billed", "remark"),
    [
        ({"total_tokens": 300}, (20, 280), TOTAL_ABOVE),
        ({"total_tokens": 200}, (20, 198), TOTAL_BELOW),
        ({"reasoning_tokens": 405}, (20, 603), BIG_THOUGHTS),
        ({"reasoning_tokens": 405, "total_tokens": 218}, (20, 603), BIG_THOUGHTS),
        ({"reasoning_tokens": 40, "total_tokens": 300}, (20, 280), TOTAL_ABOVE),
        ({"reasoning_tokens": "many"}, (20, 198), "reasoning_tokens is no number of tokens"),
        ({"cached_tokens": -1}, (20, 198), "cached_tokens is no number of tokens"),
        ({"cached_tokens": 25}, (20, 198), "more prompt tokens are from a cache"),
    ],
)
def test_counts_that_contradict_each_other_are_remarked_on(
    further: dict[str, Any], billed: tuple[int, int], remark: str
) -> None:
    bill = read_usage({"prompt_tokens": 20, "completion_tokens": 198, **further})
    assert (bill.tokens_in, bill.tokens_out) == billed
    assert len(bill.remarks) == 1
    assert bill.remarks[0].startswith(remark)


@pytest.mark.parametrize(
    "odd", ["7.0", "", -1, 1.5, True, 2**31, float("nan"), float("inf"), [7], {}]
)
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens", "total_tokens"])
def test_an_impossible_count_is_no_bill(name: str, odd: object) -> None:
    with pytest.raises(ValueError, match=r"tokens$"):
        read_usage({"prompt_tokens": 7, "completion_tokens": 3, name: odd})


@pytest.mark.parametrize("usage", [None, [], "x", 7, {}, {"prompt_tokens": 7}])
def test_a_missing_count_is_not_0(usage: object) -> None:
    bill = read_usage(usage)
    assert bill.tokens_out is None
    assert bill.tokens_in in (None, 7)
    assert read_usage(None) == NO_BILL


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"cost": 0.25}, 0.25),
        ({"cost": {"total_cost": 0.5, "request_cost": 0.1}}, 0.5),
        ({"estimated_cost": 0}, 0.0),
        ({"cost": "0.1"}, None),
        ({"cost": -1}, None),
        ({"cost": True}, None),
        ({"cost": 10**400}, None),
    ],
)
def test_a_cost_that_the_server_states_is_kept(usage: dict[str, Any], cost: float | None) -> None:
    assert read_usage({"prompt_tokens": 1, "completion_tokens": 1, **usage}).cost == cost


def test_a_usage_object_of_a_megabyte_is_not_stored() -> None:
    bill = read_usage({"prompt_tokens": 1, "completion_tokens": 1, "x": "y" * 1_000_000})
    assert (bill.tokens_in, bill.tokens_out, bill.usage) == (1, 1, "")


def test_each_kind_of_token_has_its_price() -> None:
    """(2006 - 1920) * 1 + 1920 * 0.1 + (103 - 94) * 10 + 94 * 4 + 5, one by one and as arrays."""
    rate = Rate(1.0, 10.0, cached=0.1, thoughts=4.0, call=5.0)
    bill = read_usage(
        {
            "prompt_tokens": 2006,
            "completion_tokens": 103,
            "completion_tokens_details": {"reasoning_tokens": 94},
            "prompt_tokens_details": {"cached_tokens": 1920},
        }
    )
    response = Response("7", 2006, 103, "stop", bill=bill)
    assert response.cost(rate) == pytest.approx(749)
    table = rate_table(["a", "b"], {"a": rate, "b": Rate(1.0, 2.0)})
    assert table.tolist() == [[1, 10, 0.1, 4, 5], [1, 2, 1, 2, 0]]
    tokens_in = np.array([2006, 2006])
    tokens_out = np.array([103, 103])
    cost = cost_of(tokens_in, tokens_out, table, np.array([1920, 1920]), np.array([94, 94]))
    assert cost.tolist() == pytest.approx([749, 2006 + 206])


def test_rates_without_further_prices_cost_what_they_did_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    tokens_in, tokens_out, cached = rng.integers(0, 2000, (3, 500))
    for first, second in rng.random((20, 2)) / 1e3:
        table = rate_table(["a"], {"a": Rate(first, second)})
        assert table.shape == (1, 2)
        plain = first * tokens_in + second * tokens_out
        assert (cost_of(tokens_in, tokens_out, table[0], cached, cached) == plain).all()
        assert Rate(first, second).cost(700, 30, 600, 20) == first * 700 + second * 30


def test_no_bill_is_above_the_highest_rate() -> None:
    rate = Rate(1.0, 2.0, cached=3.0, thoughts=1.0, call=5.0)
    most = rate.highest.cost(100, 50, calls=2)
    for cached in (0, 50, 100):
        for thoughts in (0, 25, 50):
            assert rate.cost(100, 50, cached, thoughts, calls=2) <= most


LENGTHS = np.arange(15, 915, 30)


@pytest.mark.parametrize(
    ("tokens", "doubt"),
    [
        (LENGTHS // 4, None),
        (LENGTHS // 1 + 1, None),  # a token a character, as in Chinese
        (np.full(30, 40), "the same number, 40, for texts of 15 to 885 characters"),
        (np.zeros(30, int), "all 0"),
        (np.where(np.arange(30) < 25, 0, 90), "0 for 25 texts that are not empty"),
        (LENGTHS // 20 + 1, "too few for any tokenizer, 20 characters a token"),
    ],
)
def test_counts_that_nobody_counted_are_doubted(tokens: Any, doubt: str | None) -> None:
    assert implausible_counts(LENGTHS, tokens) == doubt
    assert implausible_counts(LENGTHS[:5], tokens[:5]) is None  # too few to doubt
    assert implausible_counts(np.zeros(30, np.int64), tokens) is None  # of no text


def test_equal_texts_may_have_equal_counts() -> None:
    assert implausible_counts(np.full(30, 8), np.full(30, 2)) is None


def test_a_given_cost_is_compared_with_tokens_times_rates() -> None:
    costs = {"same": (1.02, 1.0, 10), "dear": (8.7, 1.0, 10), "free": (0.0, 0.0, 3)}
    assert list(given_cost_notes(costs, "USD")) == [
        "dear costs 1 USD by its tokens and rates, and 8.7 by the cost given with its 10 calls, "
        "8.7 times as much; look at its rates and per_tokens"
    ]
