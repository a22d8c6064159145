"""kill -9 anywhere: nothing acknowledged is lost, torn or doubled, and a rerun finishes."""

import random
from pathlib import Path

import pytest

from benchmarks import killing
from hierrouter_cache.parts import list_parts
from hierrouter_cache.writer import PartWriter
from tests.cache import rows

BATCHES = 4


@pytest.mark.parametrize("time", [1, 5])
@pytest.mark.parametrize("point", killing.POINTS)
def test_a_kill_at_a_named_point_costs_nothing(tmp_path: Path, point: str, time: int) -> None:
    cache = killing.Harness(tmp_path)
    assert cache.run(BATCHES, kill_at=(point, time)) == -9
    assert killing.inspect(tmp_path, cache.acked) == killing.Findings()
    assert cache.run(BATCHES) == 0
    assert killing.inspect(tmp_path, killing.whole(BATCHES)) == killing.Findings()
    assert killing.leftovers(tmp_path) == []
    assert killing.rows_stored(tmp_path) == BATCHES * (4 * killing.ROWS + 1)
    assert len(list_parts(tmp_path)) == 5


def test_twenty_random_kills_of_one_cache_cost_nothing(tmp_path: Path) -> None:
    cache = killing.Harness(tmp_path)
    moments = random.Random(42)
    for _ in range(20):
        cache.run_and_kill(moments, milestones=60)
        assert killing.inspect(tmp_path, cache.acked) == killing.Findings()
    assert len(cache.acked) > 20


def test_readers_without_a_lock_miss_nothing_while_parts_are_merged(tmp_path: Path) -> None:
    missed = killing.Harness(tmp_path).run_and_look(20)
    assert len(missed) > 5
    assert not any(missed)


def test_the_inspection_sees_what_is_lost_torn_wrong_or_damaged(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    paths = [
        writer.append(kind, table.slice(0, 2) if kind == "calls" else table)
        for kind, table in killing.batch(0).items()
    ]
    scores = killing.batch(1)["scores"]
    writer.append("scores", rows.with_column(scores, "value", [0.0] * killing.ROWS))
    found = killing.inspect(tmp_path, {*killing.whole(1), (1, "plans")})
    assert (found.lost, found.torn, found.wrong, found.older) == (4 + 1, 2, 6, 1)
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    assert killing.inspect(tmp_path, set()) == killing.Findings(unreadable=1)
