"""Where prices come from, and what they make of a real cache."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.declarations.declaration import ignore_task
from hierrouter.pools import pool
from hierrouter.pools.files import currency_of, load_pool, parse_pool, price_lists, prices_of
from hierrouter.pools.validation import validate
from hierrouter.replay.inspection import data_notes
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.opening import open_trees
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Rate, RouteTree, reprice
from tests.hierrouter.trees import planted_tree

POOL = load_pool("testbed")


@pytest.mark.parametrize(
    ("name", "parameters", "rate", "source"),
    [
        ("Qwen2.5-Coder-3B-Instruct", 3e9, 0.003, "size (3B)"),
        ("DeepSeek-R1-Distill-Qwen-1.5B", 1.5e9, 0.0015, "size (1.5B)"),
        ("Mixtral-8x7B-v0.1", 56e9, 0.056, "size (56B)"),
        ("llama_7b_chat", 7e9, 0.007, "size (7B)"),
        ("x-1b", 1e9, 0.001, "size (1B)"),
        ("opt-999m", 999e6, 0.000999, "size (999M)"),
        ("480b-a35b", 480e9, 0.48, "size (480B)"),
    ],
)
def test_a_name_may_tell_a_size_which_is_a_price(
    name: str, parameters: float, rate: float, source: str
) -> None:
    assert pool.size_in_name(name) == parameters
    assert pool.price_by_size(parameters) == pool.Price(Rate.base(rate), source)


@pytest.mark.parametrize("name", ["Phi-3.5-mini", "v0.1b", "x-4bit", "x-0B"])
def test_other_names_tell_no_size(name: str) -> None:
    assert pool.size_in_name(name) is None


@pytest.mark.parametrize(
    ("value", "parameters"), [(3.0e9, 3e9), (1000, 1e3), ("3B", 3e9), (" 8x7b ", 56e9)]
)
def test_a_size_is_written_as_a_number_or_as_in_a_name(value: object, parameters: float) -> None:
    assert validate(pool.Parameters, value, "here", "parameters") == parameters


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, 'must be like "3B" or 3.0e9, got 3'),
        (999.0, 'must be like "3B" or 3.0e9, got 999'),
        ("x-3B", "must be like \"3B\" or 3.0e9, got 'x-3B'"),
        ("0B", "must be like \"3B\" or 3.0e9, got '0B'"),
        (True, "must be a number, got True"),
        (None, "must be a number, got None"),
        (-1e9, "must be finite and >= 0, got -1000000000.0"),
    ],
)
def test_what_is_no_size_is_refused(value: object, message: str) -> None:
    with pytest.raises(InputError, match=f"^parameters {message}: here$"):
        validate(pool.Parameters, value, "here", "parameters")


@pytest.mark.parametrize("value", [0, 0.0, -0.0])
def test_nothing_may_cost_nothing(value: float) -> None:
    assert str(validate(pool.TokenRate, value, "here", "price")) == "0.0"


def given(tmp_path: Path, text: str, items: Sequence[str] = ()) -> dict[str, pool.Price]:
    """The prices of the testbed's models under one price file."""
    file = tmp_path / "list.toml"
    file.write_text(text)
    [found] = price_lists([file], items).values()
    return prices_of(POOL, found, ["other"])


def test_a_flag_wins_over_a_file_and_a_file_over_the_pool(tmp_path: Path) -> None:
    text = "[prices]\ncalc = 1\nfacts = { in = 0.25, out = 0.5 }\nother = 9"
    assert given(tmp_path, text, ["calc=2:4"]) == {
        "calc": pool.Price(Rate(2.0, 4.0), "--price"),
        "text": pool.Price(Rate.base(0.02), "pool"),
        "facts": pool.Price(Rate(0.25, 0.5), "price file list.toml"),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("calc = 1", "unknown key calc: .*below \\[prices\\]"),
        ("[prices]", "no prices"),
        ("prices = 3", "no prices"),
        ("[prices]\ncalc = 1\ncalc = 2", "not TOML: .*list.toml:3: duplicate key calc; mend"),
        ("[prices]\nclac = 1", "unknown model: clac: price file list.toml; did you mean calc"),
        ("[prices]\ncalc = true", "price of calc must be a number, got True"),
        ("[prices]\ncalc = -1", "price of calc must be finite and >= 0, got -1"),
        ("[prices]\ncalc = inf", "price of calc must be finite"),
        (f"[prices]\ncalc = 1{'0' * 400}", "price of calc must be finite"),
        ("[prices]\ncalc = { in = 1 }", "price of calc must be a number or { in"),
        ("[prices]\ncalc = { in = 1, out = -2 }", "price of calc, out must be finite"),
        ("[prices]\nphi-3.5-mini = 1", "price of phi-3 must.*with a dot stands in quotes"),
    ],
)
def test_a_bad_price_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        given(tmp_path, text)
    assert "list.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["calc"], "not a price: --price calc; e.g."),
        (["=1"], "not a price"),
        (["calc=1:2:3"], "not a price"),
        (["calc="], "must be a number, got ''"),
        (["calc=1:nan"], "must be finite"),
        (["calc=1e999"], "must be finite"),
        (["calc=1", "calc=2"], "duplicate price for calc"),
    ],
)
def test_a_bad_price_flag_is_refused(items: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prices_of(POOL, price_lists([], items)["pool"], [])


@pytest.mark.parametrize(
    ("flag", "rate"),
    [
        ("calc=1", Rate(1.0, 1.0)),
        ("calc=1:2", Rate(1.0, 2.0)),
        ("calc=1:2:cached=0.5", Rate(1.0, 2.0, 0.5)),
        ("calc=1:call=3", Rate(1.0, 1.0, call=3.0)),
        ("calc=1:2:thoughts=4:call=3:cached=0", Rate(1.0, 2.0, 0.0, 4.0, 3.0)),
    ],
)
def test_a_flag_has_further_prices_by_name(flag: str, rate: Rate) -> None:
    [prices] = price_lists([], [flag]).values()
    assert prices["calc"].rate == rate


@pytest.mark.parametrize(
    "value", ["1:2:3", "cached=1", "1:2:dear=3", "1:cached=2:3", "1:2:call=1:call=2", "1::call=1"]
)
def test_further_prices_without_a_name_or_twice_are_refused(value: str) -> None:
    with pytest.raises(InputError, match="price"):
        price_lists([], [f"calc={value}"])


def test_a_price_file_has_further_prices_of_a_million_tokens(tmp_path: Path) -> None:
    file = tmp_path / "list.toml"
    text = "{ in = 2, out = 4, cached = 1, thoughts = 3, call = 0.5 }"
    file.write_text(f"per_tokens = 1_000_000\n[prices]\ncalc = {text}\n")
    [prices] = price_lists([file], []).values()
    assert prices["calc"].of_a_token(1).rate == Rate(2e-6, 4e-6, 1e-6, 3e-6, 0.5)
    file.write_text("[prices]\ncalc = { in = 2, cached = 1 }\n")
    with pytest.raises(InputError, match="cached, thoughts, call may follow"):
        price_lists([file], [])


def test_two_lists_need_two_names(tmp_path: Path) -> None:
    files = [tmp_path / folder / "x.toml" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("[prices]\ncalc = 1")
    with pytest.raises(InputError, match="two price files are called x"):
        price_lists(files, [])


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_repricing_a_collected_cache_asks_for_nothing(testbed_cache: Path) -> None:
    """Costs by hand: tokens in and out of each call on the way, times the model's two rates."""
    before, stored = OpenTree(cache=testbed_cache).run(), contents(testbed_cache / "parts")
    prices = {
        "calc": pool.Price(Rate(0.5, 2.0), "x"),
        "text": pool.Price(Rate(0.0, 1.0), "x"),
        "facts": pool.Price(Rate.base(3.0), "x"),
    }
    tree = OpenTree(cache=testbed_cache, prices=prices).run()
    node = tree.layout.node((0, 1))  # calc, then text
    first = tree.layout.node((0,))
    one = 0.5 * tree.tokens_in[:, first] + 2.0 * tree.tokens_out[:, first]
    by_hand = one + 1.0 * tree.tokens_out[:, node]
    assert tree.cost[:, node].tolist() == pytest.approx(by_hand.tolist())
    direct = tree.direct.tokens_in[:, 2] * 3.0 + tree.direct.tokens_out[:, 2] * 3.0
    assert tree.direct.cost[:, 2].tolist() == pytest.approx(direct.tolist())
    assert (tree.score == before.score).all()
    assert pool.price_table(tree)["calc"] == {"in": 0.5, "out": 2.0, "source": "x"}
    turned = OpenTree(cache=testbed_cache, models=["facts", "calc", "text"]).run()
    assert turned.models == ("facts", "calc", "text")
    there, here = before.layout.node((2, 0)), turned.layout.node((0, 1))  # facts, then calc
    assert (turned.cost[:, here] == before.cost[:, there]).all()
    assert contents(testbed_cache / "parts") == stored


def test_a_repriced_tree_is_the_one_opened_with_these_prices(testbed_cache: Path) -> None:
    before = OpenTree(cache=testbed_cache).run()
    dear = {"calc": pool.Price(Rate(1.0, 2.0), "x")}
    opened = OpenTree(cache=testbed_cache, prices=dear).run()
    rates = {**POOL.rates(), "calc": Rate(1.0, 2.0)}
    assert reprice(before, rates).fingerprint == opened.fingerprint != before.fingerprint
    assert reprice(opened, POOL.rates()).fingerprint == before.fingerprint
    assert opened.same_content(before.fingerprint)
    assert not opened.same_content(planted_tree().fingerprint)
    [own, other] = open_trees(OpenTree(cache=testbed_cache), [{}, dear], ignore_task)
    assert (own.fingerprint, other.fingerprint) == (before.fingerprint, opened.fingerprint)
    assert (other.cost == opened.cost).all()


def rates(tree: RouteTree) -> dict[str, Rate]:
    each = zip(tree.direct.models, tree.direct.rate.tolist(), strict=True)
    return {name: Rate(*rate) for name, rate in each}


def test_the_price_of_a_reference_is_in_the_fingerprint() -> None:
    tree = planted_tree()
    same = rates(tree)
    assert reprice(tree, same).fingerprint == tree.fingerprint
    dearer = reprice(tree, {**same, "large": Rate.base(9.0)})
    assert dearer.fingerprint != tree.fingerprint
    assert dearer.same_content(tree.fingerprint)


def test_unknown_models_are_refused_but_not_one_outside_the_sub_pool(testbed_cache: Path) -> None:
    selection = OpenTree(models=["calc", "text"], prices={"facts": pool.Price(Rate.base(1.0), "x")})
    assert replace(selection, cache=testbed_cache).run().models == ("calc", "text")
    with pytest.raises(InputError, match="unknown model: clac"):
        OpenTree(cache=testbed_cache, prices={"clac": pool.Price(Rate.base(1.0), "x")}).run()


def test_a_guessed_price_and_what_a_cache_lacks_are_said() -> None:
    tree = planted_tree()
    guessed = replace(tree, priced_by={"model-0": "size (2B)", "model-1": "pool"})
    assert pool.guessed_prices_note(guessed) == (
        "price of model-0 unknown: 0.002 per token by its size (2B); give base_rate or --price"
    )
    assert pool.guessed_prices_note(tree) is None
    marked = replace(planted_tree(per_family=(20, 5, 20)), left_out=3, context_free=True)
    assert [note.split(":")[0] for note in data_notes(marked)] == [
        "Later hops are independent answers of the models, as imported",
        "3 queries are left out",
    ]


def test_a_table_of_prices_says_whose_they_are() -> None:
    tree = planted_tree(models=2)
    dear = reprice(tree, {**rates(tree), "model-1": Rate(0.004, 0.008)})
    tree = replace(dear, priced_by={"model-1": "--price"})
    assert pool.price_table(tree) == {
        "model-0": {"in": 0.002, "out": 0.002, "source": "pool"},
        "model-1": {"in": 0.004, "out": 0.008, "source": "--price"},
        "large": {"in": 0.02, "out": 0.02, "source": "pool"},
    }


def test_a_new_price_of_a_model_is_that_of_the_tokens_of_its_actions() -> None:
    """Only what an action pays for itself stays: a call, cached tokens, a factor, or all tokens."""
    own_rates = {
        "plain@m": "",
        "search@m": "rate_call = 0.5",
        "batch@m": "rate_batch = 0.5",
        "cached@m": "rate_cached = 100\nrate_batch = 0.5",
        "thinking@m": "rate_thoughts = 2000",
        "dear@m": "base_rate = 7000\nrate_call = 2",
        "named@m": "rate_call = 9",
    }
    entries = [
        f'[[actions]]\nname = "{name}"\nmodel = "m"\ninstruction = "{name}"\n{rates}\n'
        for name, rates in own_rates.items()
    ]
    text = '[pool]\nhops = 1\nper_tokens = 1000\n[[models]]\nname = "m"\nmodel = "org/m"\n'
    actions = parse_pool(text + "base_rate = 10_000\n" + "".join(entries), "pool.toml")
    new = {name: pool.Price(Rate(1000.0, 2000.0), "--price") for name in ("m", "named@m")}
    rates = {name: price.rate for name, price in prices_of(actions, new, ()).items()}
    assert rates == {
        "m": Rate(1.0, 2.0),
        "plain@m": Rate(1.0, 2.0),
        "search@m": Rate(1.0, 2.0, call=0.5),
        "batch@m": Rate(0.5, 1.0),
        "cached@m": Rate(0.5, 1.0, cached=0.05),
        "thinking@m": Rate(1.0, 2.0, thoughts=2.0),
        "dear@m": Rate(7.0, 7.0, call=2.0),
        "named@m": Rate(1.0, 2.0),
    }
    assert prices_of(actions, {}, ()) == actions.prices()
    euros = {"m": pool.Price(Rate.base(1.0), "prices.toml", currency="EUR")}
    prices = prices_of(actions, euros, ())
    assert prices["batch@m"].rate == Rate.base(0.5e-3)
    with pytest.raises(InputError, match="prices in several currencies"):
        currency_of(actions, [prices])
