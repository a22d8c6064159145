"""Which collections are not started by mistake."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from hierrouter.collection.estimate import (
    MOST_CALLS,
    MOST_SECONDS,
    Amount,
    Estimate,
    StageEstimate,
    exactly,
    refuse_large,
    require_consent,
)
from hierrouter.collection.scheduler import collect
from hierrouter.pools.files import load_pool
from hierrouter.questions.datasets import load_queries
from hierrouter_cache.errors import InputError
from hierrouter_cache.parts import CALLS
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter

POOL = load_pool("testbed")


def estimated(calls: Amount, seconds: Amount) -> Estimate:
    return Estimate(7, 0, 0, (StageEstimate("hop 1 a", calls=calls, seconds=seconds),), ())


@pytest.mark.parametrize(
    ("calls", "seconds", "message"),
    [
        (exactly(MOST_CALLS + 1), Amount(None, None), "about 100,001 model calls are due for 7"),
        (Amount(None, 2e6), Amount(None, None), "at most 2,000,000 model calls"),
        (Amount(900, 2e6), Amount(MOST_SECONDS + 1, None), "about 900 model calls and 24 hours"),
    ],
)
def test_what_is_large_needs_a_word(calls: Amount, seconds: Amount, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        refuse_large(estimated(calls, seconds))
    assert "--dry-run" in str(refused.value)
    assert "--yes" in str(refused.value)


def test_what_is_expected_counts_and_not_what_could_be() -> None:
    refuse_large(estimated(Amount(MOST_CALLS, 2e6), Amount(MOST_SECONDS, 1e9)))


def test_a_large_plan_is_refused_before_any_call(tmp_path: Path) -> None:
    deep = replace(POOL, hops=7)
    queries = load_queries(["arith"], 40, 42, Path())
    with pytest.raises(InputError, match=r"at most 131,160 model calls are due for 40 queries"):
        require_consent(deep, queries, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_quickstart_is_small(tmp_path: Path) -> None:
    require_consent(POOL, load_queries(["testbed"], 300, 42, Path()), tmp_path)


def test_a_few_very_slow_calls_are_large(tmp_path: Path) -> None:
    collect(POOL, load_queries(["arith"], 10, 42, Path()), tmp_path)
    queries = load_queries(["arith"], 60, 42, Path())
    require_consent(POOL, queries, tmp_path)
    calls = CacheReader(tmp_path).sql("SELECT * FROM calls").cast(CALLS)
    for part in (tmp_path / "parts").glob("calls-*"):
        part.unlink()
    at = calls.schema.get_field_index("latency_s")
    slow = calls.set_column(at, "latency_s", pa.array([600.0] * len(calls)))
    PartWriter(tmp_path).append("calls", slow)
    with pytest.raises(InputError, match=r"about \d+ model calls and \d+ hours"):
        require_consent(POOL, queries, tmp_path)
