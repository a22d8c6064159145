"""One unit of money: rates per so many tokens, C per question."""

from pathlib import Path

import numpy as np
import pytest

from hierrouter.pools.files import currency_of, load_pool, parse_pool, price_lists, prices_of
from hierrouter.pools.pool import Pool
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Rate, cost_of, net_reward
from tests.hierrouter.pools.examples import GOOD

DATASETS = ("MMLU", "GSM8K", "MBPP", "MATH", "ARC-Easy", "ARC-Challenge")
# Tables 1 and 2 of the paper: the quality of each policy on each dataset, then its cost.
TABLES = """
qwen2.5-14b               .003 .077 .028 .076 .003 .003   .0095 .0089 .0092 .0098 .0086 .0100
llama-3.1-8b              .005 .060 .025 .057 .006 .003   .0071 .0078 .0048 .0077 .0071 .0096
qwen2.5-coder-3b          .002 .067 .030 .069 .003 .003   .0025 .0030 .0028 .0031 .0029 .0030
deepseek-r1-distill-1.5b  .003 .054 .016 .053 .002 .002   .0013 .0015 .0012 .0016 .0016 .0017
phi-3.5-mini              .004 .067 .044 .068 .003 .003   .0025 .0027 .0021 .0029 .0027 .0030
hierrouter                .005 .139 .029 .105 .009 .010   .0178 .0163 .0183 .0159 .0184 .0188
"""
ROWS = map(str.split, TABLES.strip().splitlines())
PRINTED = {name: np.array(figures, float).reshape(2, 6) for name, *figures in ROWS}


def test_the_paper_s_tables_give_its_claims_in_this_unit() -> None:
    names = list(PRINTED)
    quality, cost = np.array([PRINTED[name] for name in names]).transpose(1, 0, 2)
    reward = net_reward(quality, cost, 0.005)
    assert dict(zip(DATASETS, [names[row] for row in reward.argmax(axis=0)], strict=True)) == {
        "MMLU": "llama-3.1-8b",
        "GSM8K": "hierrouter",
        "MBPP": "phi-3.5-mini",
        "MATH": "hierrouter",
        "ARC-Easy": "hierrouter",
        "ARC-Challenge": "hierrouter",
    }
    behind = reward[names.index("llama-3.1-8b"), 0] - reward[names.index("hierrouter"), 0]
    assert behind == pytest.approx(5e-5, abs=5e-6)


@pytest.mark.parametrize("name", [name for name in PRINTED if name != "hierrouter"])
def test_the_paper_s_pool_costs_what_the_paper_prints(name: str) -> None:
    """At the printed C a call has some hundred to 1,250 tokens: what its models are given."""
    rate = np.array([(each := load_pool("paper").rates()[name]).tokens_in, each.tokens_out])
    short, long = cost_of(np.array([300, 1_250]), np.zeros(2, np.int64), rate)
    assert all(short <= cost <= long for cost in PRINTED[name][1])


def pool(unit: str) -> Pool:
    return parse_pool(GOOD.replace("hops = 2", f"hops = 2\n{unit}"), "p.toml")


def test_rates_are_the_price_of_so_many_tokens() -> None:
    per_token, per_million = pool(""), pool('per_tokens = 1_000_000\ncurrency = "EUR"')
    assert per_token.rates()["a"] == Rate(0.002, 0.002)
    assert per_million.rates()["a"] == Rate(2e-9, 2e-9)
    assert load_pool("testbed").rates()["calc"] == Rate(0.03, 0.03)
    assert "read per token" in (per_token.unit_note() or "")
    assert per_million.unit_note() is None


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        ("per_tokens = 0", "per_tokens must be 1 to 1000000000, got 0"),
        ("per_tokens = 1.5", "per_tokens must be an integer, got 1.5"),
        ('currency = "$"', "currency must be 1 to 12 letters such as USD, got \\$"),
        ("per_token = 1", "unknown key per_token: .*did you mean per_tokens"),
    ],
)
def test_what_is_no_unit_is_refused(unit: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        pool(unit)
    if "did you mean" in message:
        return
    (tmp_path / "list.toml").write_text(f"{unit}\n[prices]\na = 1")
    with pytest.raises(InputError, match=message):
        price_lists([tmp_path / "list.toml"], [])


def test_a_price_without_a_unit_is_in_the_pool_s(tmp_path: Path) -> None:
    euros = pool('per_tokens = 1000\ncurrency = "EUR"')
    (tmp_path / "own.toml").write_text('per_tokens = 1_000_000\ncurrency = "EUR"\n[prices]\na = 5')
    (tmp_path / "bare.toml").write_text("[prices]\na = 5")
    (tmp_path / "mixed.toml").write_text('currency = "USD"\n[prices]\na = 5')
    (tmp_path / "all.toml").write_text('currency = "USD"\n[prices]\na = 5\nb = 5\nbig = 5')
    rate = {}
    tables = {}
    for name in ("own", "bare", "mixed", "all"):
        [given] = price_lists(
            [tmp_path / f"{name}.toml"], ["b=7"] if name == "own" else []
        ).values()
        tables[name] = prices_of(euros, given, [])
        rate[name] = tables[name]["a"].rate.tokens_in
    assert rate == {"own": 5e-6, "bare": 5e-3, "mixed": 5e-3, "all": 5e-3}
    assert tables["own"]["b"].rate == Rate(7e-3, 7e-3)
    assert currency_of(euros, [tables["own"], tables["bare"]]) == "EUR"
    assert currency_of(euros, [tables["all"]]) == "USD"
    for lists in (["mixed"], ["own", "all"]):
        with pytest.raises(InputError, match=r"several currencies: .*USD \(price file"):
            currency_of(euros, [tables[name] for name in lists])
