"""Seconds of a collection from recorded ones: batches here, rounds of calls at servers."""

from math import ceil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hierrouter.collection.estimate import Estimate, estimate
from hierrouter.collection.expected import Bound
from hierrouter.collection.measures import Measures, Range
from hierrouter.collection.scheduler import fill_cache
from hierrouter.collection.speed import STARTUP_S, bound_seconds, limited_seconds
from hierrouter.engines import backend
from hierrouter.engines.batches import limits_for
from hierrouter.engines.workload import LocalModel, Prompts, local_model
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec, Pool
from hierrouter.questions.datasets import load_queries
from hierrouter.questions.query import Query
from hierrouter_cache.parts import CALLS_SCHEMA
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.cache.rows import take
from tests.engines import Scripted

SLOTS = 4


def drawn(limit: int) -> list[Query]:
    return load_queries(["arith"], limit, 42, Path())


def served_pool(models: int = 1, hops: int = 1, **limits: float) -> Pool:
    """A pool of scripted models, which answer with 6 tokens each."""
    endpoint = Endpoint("http://127.0.0.1:9/v1", concurrency=SLOTS, **limits)
    specs = tuple(
        ModelSpec(name, name, 0.1, backend="openai", generation=Generation(8), endpoint=endpoint)
        for name in "abc"[:models]
    )
    return Pool(specs, hops, ("Plan.", "Solve."))


def record_seconds(root: Path, seconds: float | dict[str, float] | None) -> None:
    """Let each call in a cache have taken so long, or as long as its model takes."""
    calls = CacheReader(root).sql("SELECT * FROM calls").cast(CALLS_SCHEMA)
    for part in (root / "parts").glob("calls-*"):
        take(part)
    at = calls.schema.get_field_index("latency_s")
    by_model = seconds if isinstance(seconds, dict) else {}
    names = calls["model"].to_pylist()
    values = [by_model[name] if by_model else seconds for name in names]
    column = pa.array(values, pa.float64())
    PartWriter(root).append("calls", calls.set_column(at, "latency_s", column))


def likely(found: Estimate, name: str) -> float:
    seconds = found.expected[name].seconds
    assert seconds is not None
    assert seconds.low <= seconds.likely <= seconds.high
    return seconds.likely


def test_a_batch_takes_as_long_with_one_prompt_as_with_all() -> None:
    model = local_model(load_pool("testbed").models[0])
    assert isinstance(model, LocalModel)
    height = model.limits.shape(12).height

    def work(count: int) -> float:
        lengths, counts = np.array([12]), np.array([float(count)])
        return model.work(Prompts(lengths, counts, np.array([5, 5])))

    assert height > 8
    assert work(1) == work(height) == work(height + 1) / 2
    many = work(100 * height)
    assert many == pytest.approx(100 * work(1) / (1 + 0.85 * (model.max_processes - 1)))


@pytest.mark.parametrize("name", ["testbed", "graded"])
def test_the_batches_of_a_model_are_those_that_it_has_when_it_is_loaded(name: str) -> None:
    for spec in load_pool(name).models:
        model = local_model(spec)
        assert model
        loaded = backend(spec.backend).load(spec)
        limits = limits_for(loaded._model, spec.generation.max_new_tokens)
        assert (model.limits.rows, model.limits.prompt_tokens) == (
            limits.rows,
            limits.prompt_tokens,
        )
        assert model.limits.cache_tokens == pytest.approx(limits.cache_tokens, rel=0.2)
        assert model.max_processes == loaded._decoder._processes
        assert model.weight_bytes == backend(spec.backend).weight_bytes(spec)


def test_a_model_whose_files_are_gone_has_no_batches() -> None:
    assert local_model(ModelSpec("a", "nobody/has-this", 0.1)) is None


def test_calls_at_a_server_go_in_rounds(tmp_path: Path) -> None:
    """Ten questions, two calls each, were five rounds of four; sixty questions are thirty."""
    pool = served_pool()
    fill_cache(pool, drawn(10), tmp_path, engines=Scripted())
    record_seconds(tmp_path, 0.5)  # ten in all, two a round
    found = estimate(pool, drawn(60), tmp_path, Scripted())
    assert found.expected["a"].calls == Range.exact(100)
    assert likely(found, "a") == 2.0 * ceil(100 / SLOTS)
    total = found.expected_total.seconds
    assert total and total.likely == STARTUP_S.likely + likely(found, "a")
    assert found.total.seconds == total.likely


def test_a_pilot_of_less_than_a_round_is_a_round(tmp_path: Path) -> None:
    pool = served_pool()
    fill_cache(pool, drawn(1), tmp_path, engines=Scripted())
    record_seconds(tmp_path, 3.0)  # two calls at once took six seconds
    found = estimate(pool, drawn(9), tmp_path, Scripted())
    seconds = found.expected["a"].seconds
    assert seconds and seconds.likely == 6.0 * ceil(16 / SLOTS)
    # The server may have been busy with these two already.
    assert seconds.high == pytest.approx(1.5 * 6.0 * 16 / 2)


def test_servers_work_side_by_side(tmp_path: Path) -> None:
    pool = served_pool(models=3, hops=2)
    fill_cache(pool, drawn(4), tmp_path, engines=Scripted())
    record_seconds(tmp_path, 0.25)
    found = estimate(pool, drawn(20), tmp_path, Scripted())
    slowest = max(likely(found, name) for name in "abc")
    total = found.expected_total.seconds
    assert total and total.likely == STARTUP_S.likely + slowest


def test_a_limit_a_minute_makes_calls_wait(tmp_path: Path) -> None:
    endpoint = Endpoint("http://127.0.0.1:9/v1", requests_per_minute=30, tokens_per_minute=600)
    assert limited_seconds(endpoint, 10, 50) == 20  # of calls
    assert limited_seconds(endpoint, 10, 500) == 50  # of tokens
    pool = served_pool(requests_per_minute=6)
    before = estimate(pool, drawn(12), tmp_path / "none", Scripted())
    assert before.bounds["a"].seconds == 24 * 10
    fill_cache(pool, drawn(2), tmp_path, engines=Scripted())
    record_seconds(tmp_path, 0.001)
    assert likely(estimate(pool, drawn(12), tmp_path, Scripted()), "a") == 20 * 10


def test_seconds_that_were_not_recorded_tell_nothing(tmp_path: Path) -> None:
    pool = served_pool()
    fill_cache(pool, drawn(2), tmp_path, engines=Scripted())
    record_seconds(tmp_path, None)
    found = estimate(pool, drawn(4), tmp_path, Scripted())
    assert (
        found.expected["a"].seconds is found.expected_total.seconds is found.total.seconds is None
    )
    assert found.bounds["a"].seconds is None
    assert found.expected["a"].tokens_out == Range.exact(4 * 6)


def test_the_bound_of_time_has_each_answer_as_long_as_its_cap(tmp_path: Path) -> None:
    pool = served_pool()
    fill_cache(pool, drawn(5), tmp_path, engines=Scripted())
    record_seconds(tmp_path, 0.3)  # for six tokens
    step = CacheReader(tmp_path).sql("SELECT step FROM calls")[0][0].as_py()
    bound = Bound(calls=10, tokens_in=99, tokens_out=80)
    measures = Measures(CacheReader(tmp_path))
    assert bound_seconds(pool.models[0], bound, [step], measures) == pytest.approx(80 * 0.3 / 6)


def test_time_in_which_a_server_waited_for_a_local_model_is_not_its_own(tmp_path: Path) -> None:
    served, local = served_pool().models[0], load_pool("testbed").models[0]
    pool = Pool((served, local), 1, ("",))
    fill_cache(pool, drawn(6), tmp_path, engines=Scripted())
    # Six calls each: the server had 12 s, and in 6 of them the local model worked.
    record_seconds(tmp_path, {"a": 2.0, local.name: 1.0})
    found = estimate(pool, drawn(12), tmp_path, Scripted())
    assert likely(found, "a") == 12 - 6  # two rounds again
