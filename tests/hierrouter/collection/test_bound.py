"""No collection takes more than its dry run says, and a person can work out what it says."""

from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.collection.collection_plan import CollectionPlan
from hierrouter.collection.estimate import Estimate, estimate
from hierrouter.collection.plan import Shard
from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines.token_counts import (
    MAX_READ_TOKENS,
    MAX_TEMPLATE_TOKENS,
    TokenCounter,
    token_counter,
)
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec, Pool
from hierrouter.questions.datasets import load_queries
from hierrouter.questions.query import Query
from hierrouter_cache.reader import CacheReader
from tests.engines import Scripted
from tests.models import ARCHITECTURES, save_random_model
from tests.servers import Reply, Server, completion, serving

TESTBED = load_pool("testbed")
MADE = (
    "count(*) AS calls, sum(tokens_in)::BIGINT AS tokens_in, sum(tokens_out)::BIGINT AS tokens_out"
)


UNCOUNTED = Reply(completion("7 8 9", usage=None))
Counts = dict[str, dict[str, int]]


def drawn(limit: int, *names: str) -> list[Query]:
    return load_queries(list(names), limit, 42, Path())


def made(root: Path) -> Counts:
    """Calls and tokens in a cache, by model."""
    rows = CacheReader(root).sql(f"SELECT model, {MADE} FROM calls GROUP BY model").to_pylist()
    return {row.pop("model"): row for row in rows}


def require_bounded(before: Estimate, pool: Pool, root: Path, there: Counts) -> None:
    """Every model has taken no more than the estimate said that it can take.

    Args:
        before: the estimate.
        pool: the models.
        root: of the cache.
        there: what was in the cache at the time of the estimate.
    """
    rates = pool.rates()
    for name, row in made(root).items():
        taken = {what: count - there.get(name, {}).get(what, 0) for what, count in row.items()}
        if not taken["calls"]:
            continue
        bound = before.bounds[name]
        assert taken["calls"] <= bound.calls, name
        assert taken["tokens_in"] <= bound.tokens_in, name
        assert taken["tokens_out"] <= bound.tokens_out, name
        assert rates[name].cost(taken["tokens_in"], taken["tokens_out"]) <= bound.cost, name


@pytest.fixture(scope="module")
def babbling(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """Random weights: responses as long as their caps, of words that are read letter by letter."""
    folder = tmp_path_factory.mktemp("models")
    models = tuple(
        ModelSpec(
            name,
            str(save_random_model(folder / name, name)),
            rate_in=0.001,
            rate_out=0.004,
            generation=Generation(max_new_tokens=cap),
        )
        for name, cap in zip(ARCHITECTURES, (4, 8, 24), strict=True)
    )
    return Pool(models[:2], 3, ("Plan.", "Solve."), references=models[2:])


def test_direct_calls_have_the_tokens_of_their_questions(tmp_path: Path) -> None:
    queries = drawn(7, "arith", "story")
    before = estimate(replace(TESTBED, hops=1), queries, tmp_path)
    fill_cache(replace(TESTBED, hops=1), queries, tmp_path)
    for name, row in made(tmp_path).items():
        bound = before.bounds[name]
        assert (bound.calls, bound.tokens_in) == (row["calls"], row["tokens_in"])
        assert bound.tokens_out == 16 * row["calls"]


@pytest.mark.parametrize("already", [0, 2])
def test_no_collection_takes_more(babbling: Pool, tmp_path: Path, already: int) -> None:
    queries = drawn(3, "riddle", "story")
    for number, pool in enumerate((TESTBED, babbling)):
        root = tmp_path / str(number)
        there: Counts = {}
        if already:
            fill_cache(pool, queries[:already], root)
            there = made(root)
        before = estimate(pool, queries, root)
        fill_cache(pool, queries, root)
        require_bounded(before, pool, root, there)
        assert before.bound_total.calls == before.total.most_calls
        # Nothing that is there is counted again.
        assert estimate(pool, queries, root).bound_total.calls == 0


def test_a_bound_of_a_pool_without_tokenizers_can_be_worked_out(tmp_path: Path) -> None:
    caps = {"a": 10, "b": 3}
    endpoint = Endpoint("http://127.0.0.1:9/v1")
    models = tuple(
        ModelSpec(
            name,
            name,
            rate_in=0.5,
            rate_out=2.0,
            backend="openai",
            generation=Generation(max_new_tokens=cap),
            endpoint=endpoint,
        )
        for name, cap in caps.items()
    )
    pool = Pool(models, 2, ("Plan.", "Solve."))
    found = estimate(pool, [Query("q", "own", "é+1", (), "test")], tmp_path)
    question = len("é+1".encode()) + MAX_TEMPLATE_TOKENS
    second_hops = [
        question + len("\n\nSolve.") + 2 + MAX_READ_TOKENS * cap for cap in caps.values()
    ]
    tokens_in = question + question + len("\n\nPlan.") + sum(second_hops)
    for name, cap in caps.items():
        bound = found.bounds[name]
        assert (bound.calls, bound.tokens_in, bound.tokens_out) == (4, tokens_in, 4 * cap)
        assert bound.cost == 0.5 * tokens_in + 2.0 * 4 * cap
        assert bound.seconds is None
    total = found.bound_total
    assert (total.calls, total.tokens_in, total.tokens_out) == (8, 2 * tokens_in, 4 * 13)
    assert total.cost == sum(bound.cost for bound in found.bounds.values())
    assert any("no tokenizer here of a, b" in note for note in found.notes)
    assert any("bill failed attempts" in note for note in found.notes)


def test_after_a_pilot_the_template_has_no_more_tokens_than_the_shortest_prompt(
    tmp_path: Path,
) -> None:
    """The scripted server counts letters, and no template."""
    endpoint = Endpoint("http://127.0.0.1:9/v1")
    model = ModelSpec("a", "a", 0.1, backend="openai", generation=Generation(8), endpoint=endpoint)
    pool = Pool((model,), 1, ("Solve.",))
    queries = [Query(text, "own", text, (), "test") for text in ("1+1", "12+30")]
    fill_cache(pool, queries[:1], tmp_path, engines=Scripted())
    found = estimate(pool, queries, tmp_path, Scripted())
    shortest = len("1+1")
    assert found.bound_total.tokens_in == 2 * (len("12+30") + shortest) + len("\n\nSolve.")


def test_a_prompt_beyond_the_window_is_refused_and_takes_nothing(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path / "small", "llama", window=60)
    model = ModelSpec("small", str(folder), 0.1, generation=Generation(max_new_tokens=40))
    pool = Pool((model,), 2, ("",))
    short, long = (Query(text, "own", text, (), "test") for text in ("1", "x" * 60))
    found = estimate(pool, [short, long], tmp_path / "cache")
    counter = token_counter(model)
    assert counter.max_prompt_tokens == 20
    [tokens] = counter.count(["1"])
    # The long question is refused at once; behind the short one, a prompt has 20 tokens at most.
    assert (found.bound_total.tokens_in, found.bound_total.tokens_out) == (tokens + 20, 2 * 40)
    assert found.bound_total.calls == found.total.most_calls == 4
    summary = fill_cache(pool, [short, long], tmp_path / "cache")
    assert summary.failed["too_long"]
    assert summary.tokens_in <= found.bound_total.tokens_in
    full = replace(model, generation=Generation(max_new_tokens=60))
    found = estimate(replace(pool, models=(full,)), [short], tmp_path / "other")
    assert (found.bound_total.tokens_in, found.bound_total.tokens_out) == (0, 0)
    assert any("small can answer nothing" in note for note in found.notes)


def test_equal_questions_and_the_share_of_others_are_not_counted(tmp_path: Path) -> None:
    queries = drawn(8, "arith")
    twins = [query for query in queries for _ in range(2)]
    whole = estimate(TESTBED, queries, tmp_path).bound_total
    assert estimate(TESTBED, twins, tmp_path).bound_total == whole
    shares = [
        CollectionPlan(TESTBED, twins, tmp_path, shard=Shard(index, 3)).estimate().calls.bound_total
        for index in (1, 2, 3)
    ]
    assert sum(share.calls for share in shares) == whole.calls
    assert sum(share.tokens_in for share in shares) == whole.tokens_in


def test_a_server_s_tokenizer_counts_if_it_is_here(tmp_path: Path) -> None:
    """The shipped tokenizer stands for that of the served model; the server sends no counts."""
    with serving(Server(script=lambda prompt, before: UNCOUNTED)) as server:
        endpoint = Endpoint(server.url, tokenizer="testbed:calc")
        model = ModelSpec(
            "served", "served", 0.1, backend="openai", generation=Generation(8), endpoint=endpoint
        )
        pool = Pool((model,), 2, ("Plan.", "Solve."))
        queries = drawn(3, "arith")
        before = estimate(pool, queries, tmp_path)
        summary = fill_cache(pool, queries, tmp_path)
    assert server.asked.total() == summary.calls
    require_bounded(before, pool, tmp_path, {})
    counter = token_counter(model)
    direct = counter.count([query.question for query in queries]).sum()
    assert before.stages[0].tokens_in == direct
    assert not any("no tokenizer" in note for note in before.notes)


def test_a_dry_run_of_a_server_asks_it_nothing(tmp_path: Path) -> None:
    with serving(Server()) as server:
        model = ModelSpec("m", "served", 0.1, backend="openai", endpoint=Endpoint(server.url))
        CollectionPlan(Pool((model,), 2, ("",)), drawn(3, "arith"), tmp_path).estimate()
        assert (server.seen, server.asked.total()) == ([], 0)
    assert list(tmp_path.iterdir()) == []


def test_each_token_of_a_vocabulary_is_read_by_the_other(tmp_path: Path) -> None:
    """Words of the testbed's tokenizer are read letter by letter if no space is before them."""
    counter = token_counter(TESTBED.models[0])
    worst = counter.read_tokens(counter)
    tokenizer = counter._tokenizer
    for token in range(0, len(tokenizer), 7):
        text = tokenizer.decode([token] * 16, skip_special_tokens=True)
        assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) <= 16 * worst
    assert counter.read_tokens(TokenCounter(TESTBED.models[1])) == MAX_READ_TOKENS


def test_a_limit_of_money_is_compared_with_the_bound_and_the_estimate(tmp_path: Path) -> None:
    queries = drawn(6, "arith")
    plan = CollectionPlan(TESTBED, queries, tmp_path)
    most = plan.estimate().calls.bound_total.cost

    def verdict(limit: float) -> tuple[bool | None, bool | None, str]:
        found = replace(plan, max_spend=limit).estimate()
        shown = found.as_object()
        return shown["above_max_spend"], shown["bound_above_max_spend"], found.notes[-1]

    assert verdict(most * 1.01)[:2] == (False, False)
    assert verdict(most * 0.9)[:2] == (None, True)  # nothing is known of the expected cost
    assert "due unknown, at most" in verdict(most * 0.9)[2]
    fill_cache(TESTBED, queries[:3], tmp_path)
    found = plan.estimate().calls
    assert found.total.cost is not None
    spent = plan.spent
    between = spent + (found.total.cost + found.bound_total.cost) / 2
    assert verdict(between)[:2] == (False, True)
    assert "perhaps above --max-spend" in verdict(between)[2]
    assert verdict(spent + found.total.cost * 0.9)[:2] == (True, True)
