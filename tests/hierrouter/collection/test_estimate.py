"""What an estimate says, against the run that follows it, and what is refused without consent."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from hierrouter.collection.estimate import (
    CONSENT_CALLS,
    CONSENT_SECONDS,
    Estimate,
    StageEstimate,
    estimate,
    refuse_large,
    require_consent,
)
from hierrouter.collection.progress import Progress, Summary
from hierrouter.collection.scheduler import fill_cache
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import Generation, ModelSpec, Pool
from hierrouter.questions.datasets import load_queries
from hierrouter.questions.query import Query
from hierrouter_cache.errors import InputError
from hierrouter_cache.parts import CALLS_SCHEMA
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.cache.rows import take
from tests.engines import Scripted
from tests.models import ARCHITECTURES, save_random_model

POOL = load_pool("testbed")


def drawn(limit: int, *names: str) -> list[Query]:
    return load_queries(list(names) or ["testbed"], limit, 42, Path())


def due(found: Estimate) -> dict[str, float | None]:
    """Expected calls of the stages that have any."""
    return {stage.label: stage.calls for stage in found.stages if stage.most_calls}


def run(pool: Pool, queries: Sequence[Query], root: Path) -> tuple[dict[str, int], Summary]:
    """Calls of each stage as they were made, and the summary."""
    made: dict[str, int] = {}
    return made, fill_cache(pool, queries, root, Progress(on_level=made.__setitem__))


@pytest.fixture(scope="module")
def babbling(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """Random weights and stage instructions: hardly two answers are alike."""
    folder = tmp_path_factory.mktemp("models")
    models = tuple(
        ModelSpec(
            name,
            str(save_random_model(folder / name, name)),
            base_rate=0.001,
            generation=Generation(max_new_tokens=8),
        )
        for name in ARCHITECTURES
    )
    return Pool(models, 2, ("Plan.", "Solve."))


def test_what_is_known_is_exact_before_any_call(tmp_path: Path) -> None:
    queries = drawn(6, "arith", "story")
    found = estimate(POOL, queries, tmp_path / "cache")
    one = {f"direct {name}": 12 for name in ("calc", "text", "facts")}
    assert due(found) == one | {f"hop 2 {name}": None for name in ("calc", "text", "facts")}
    assert (found.total.calls, found.total.most_calls) == (None, 3 * 12 + 3 * 36)
    assert list(tmp_path.iterdir()) == []
    made, _ = run(POOL, queries, tmp_path / "cache")
    assert one == {label: calls for label, calls in made.items() if label.startswith("direct")}


def test_equal_questions_count_once(tmp_path: Path) -> None:
    [query] = drawn(1, "arith")
    twins = [query, replace(query, id="twin"), replace(query, dataset="other")]
    found = estimate(POOL, twins, tmp_path)
    assert (found.queries, found.nodes, found.direct) == (3, 36, 9)
    assert found.total.most_calls == 3 + 9


def test_below_collected_answers_everything_is_exact(tmp_path: Path) -> None:
    queries = drawn(6, "arith", "mirror")
    fill_cache(replace(POOL, hops=1), queries, tmp_path)
    found = estimate(POOL, queries, tmp_path)
    made, summary = run(POOL, queries, tmp_path)
    assert due(found) == made
    assert found.total.calls == found.total.most_calls == summary.calls
    assert found.total.there == summary.earlier


def test_a_complete_cache_has_nothing_due(testbed_cache: Path) -> None:
    found = estimate(POOL, drawn(20), testbed_cache)
    assert found.total == StageEstimate("all", found.total.there)
    assert (due(found), found.notes) == ({}, ())


def test_a_pilot_tells_calls_and_tokens(tmp_path: Path, testbed_cache: Path) -> None:
    """Twice as many queries of each family; that cache is the run that would follow."""
    pilot = fill_cache(POOL, drawn(10), tmp_path)
    total = estimate(POOL, drawn(20), tmp_path).total
    sums = "count(*) AS calls, sum(tokens_in) AS tokens_in, sum(tokens_out) AS tokens_out"
    [made] = CacheReader(testbed_cache).sql(f"SELECT {sums} FROM calls").to_pylist()
    assert total.there == pilot.calls
    for name in ("calls", "tokens_in", "tokens_out"):
        taken = int(made[name]) - getattr(pilot, name)
        assert getattr(total, name) == pytest.approx(taken, rel=0.05), name


def test_no_more_calls_are_made_than_at_most(babbling: Pool, tmp_path: Path) -> None:
    queries = drawn(3, "riddle", "story")
    for number, pool in enumerate((POOL, babbling)):
        root = tmp_path / str(number)
        before = estimate(pool, queries, root).total
        _, summary = run(pool, queries, root)
        assert summary.calls <= before.most_calls
    assert before.most_calls == summary.calls == 6 * 15  # where no answers are equal


def test_other_questions_of_a_cache_tell_what_to_expect_and_are_not_counted(tmp_path: Path) -> None:
    fill_cache(POOL, drawn(12, "arith"), tmp_path)
    there = fill_cache(POOL, drawn(4, "arith"), tmp_path).earlier
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("parts/*")}
    found = estimate(POOL, drawn(12, "story"), tmp_path)
    assert found.total.there == 0
    assert found.total.calls is not None
    assert found.total.seconds is not None
    found = estimate(POOL, drawn(4, "arith"), tmp_path)
    assert (found.total.there, due(found)) == (there, {})
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("parts/*")} == before


def test_cost_is_tokens_times_the_rates(tmp_path: Path) -> None:
    engines = Scripted()
    models = (ModelSpec("a", "a", rate_in=0.001, rate_out=0.5), ModelSpec("b", "b", base_rate=0.25))
    pool = Pool(models, 1, ("Solve.",))
    fill_cache(pool, drawn(10, "arith"), tmp_path, engines=engines)
    stages = estimate(pool, drawn(20, "arith"), tmp_path, engines).stages
    costs = {stage.label: stage for stage in stages}
    for label, rate_in, rate_out in (("hop 1 a", 0.001, 0.5), ("direct b", 0.25, 0.25)):
        stage = costs[label]
        assert stage.tokens_in
        assert stage.tokens_out == 60
        assert stage.cost == pytest.approx(stage.tokens_in * rate_in + 60 * rate_out)


def test_answers_of_one_model_do_not_tell_how_many_differ(tmp_path: Path) -> None:
    fill_cache(replace(POOL, models=POOL.models[:1], hops=1), drawn(12, "arith"), tmp_path)
    assert estimate(POOL, drawn(12, "arith"), tmp_path).total.calls is None


def test_three_hops_with_one_model_need_no_guess(tmp_path: Path) -> None:
    pool = Pool(POOL.models[:1], 3, ("",))
    found = estimate(pool, drawn(5, "arith"), tmp_path)
    made, _ = run(pool, drawn(5, "arith"), tmp_path)
    assert due(found) == made


def test_models_that_are_not_here_are_counted_and_named(tmp_path: Path) -> None:
    found = estimate(load_pool("cpu"), drawn(2, "arith"), tmp_path)
    assert found.total.most_calls == 2 * 15
    assert "smollm2-360m" in found.notes[-1]
    assert "--limit 10" in found.notes[0]


def test_a_longer_prompt_behind_an_answer_is_told_by_its_like(tmp_path: Path) -> None:
    """The testbed's model at hop 2 has the same instruction as at hop 1, and longer prompts."""
    pool = Pool(POOL.models[:1], 2, ("",))
    fill_cache(pool, drawn(10, "arith"), tmp_path)
    found = estimate(pool, drawn(20, "arith"), tmp_path)
    direct, first, second = (stage.tokens_in or 0 for stage in found.stages)
    assert first == 0  # the direct calls are the same
    assert 0 < 1.2 * direct < second


def estimated(calls: float | None, most: int, seconds: float | None) -> Estimate:
    return Estimate(7, 0, 0, (StageEstimate("hop 1 a", 0, calls, most, seconds=seconds),), ())


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (estimated(CONSENT_CALLS + 1, 2_000_000, None), "about 100,001 model calls are due for 7"),
        (estimated(None, 2_000_000, None), "at most 2,000,000 model calls"),
        (estimated(900, 900, CONSENT_SECONDS + 1), "about 900 model calls and 24 hours"),
    ],
)
def test_what_is_large_needs_a_word(found: Estimate, message: str) -> None:
    with pytest.raises(InputError, match=rf"{message}.*--dry-run.*--yes"):
        refuse_large(found)
    # What is expected counts, and not what could be.
    refuse_large(estimated(CONSENT_CALLS, 2_000_000, CONSENT_SECONDS))


def test_a_few_very_slow_calls_are_large(tmp_path: Path) -> None:
    fill_cache(POOL, drawn(10, "arith"), tmp_path)
    queries = drawn(60, "arith")
    require_consent(POOL, queries, tmp_path)
    calls = CacheReader(tmp_path).sql("SELECT * FROM calls").cast(CALLS_SCHEMA)
    for part in (tmp_path / "parts").glob("calls-*"):
        take(part)
    at = calls.schema.get_field_index("latency_s")
    # Ten prompts or sixty are one batch, but there are more at the second hop.
    slow = calls.set_column(at, "latency_s", pa.array([3_000.0] * len(calls)))
    PartWriter(tmp_path).append("calls", slow)
    with pytest.raises(InputError, match=r"about \d+ model calls and \d+ hours"):
        require_consent(POOL, queries, tmp_path)
