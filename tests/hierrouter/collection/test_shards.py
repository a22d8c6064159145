"""Shards: together they make every call once; what strikes one costs only what it was doing."""

import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from hierrouter.collection import scheduler
from hierrouter.collection.plan import Shard, parse_shard, shard_status
from hierrouter.collection.scheduler import fill_cache
from hierrouter.pools.pool import Endpoint, ModelSpec, Pool
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.errors import CacheLocked, InputError, WorldError
from hierrouter_cache.locks import shard_lock
from hierrouter_cache.maintenance import compact
from hierrouter_cache.mirror import exchange, part_copier
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.stores import FolderStore
from tests.conftest import SOURCES, environment
from tests.engines import Scripted
from tests.hierrouter.collection import noted
from tests.hierrouter.collection.examples import POOL, sums
from tests.warm import Running, Warm

QUERIES = sums(23)


def test_every_question_is_in_one_shard_whatever_their_order() -> None:
    queries = [*QUERIES, *(replace(query, id=f"{query.id}b") for query in QUERIES[:5])]
    shares = [Shard(index, 4).own(queries) for index in range(1, 5)]
    assert sorted(query.key for share in shares for query in share) == sorted(
        query.key for query in queries
    )
    questions = [{query.question for query in share} for share in shares]
    assert sum(map(len, questions)) == len(QUERIES)  # twins are in one shard
    assert Counter(map(len, questions)) == {6: 3, 5: 1}
    mixed = Random(0).sample(queries, len(queries))
    assert [set(Shard(index, 4).own(mixed)) for index in range(1, 5)] == list(map(set, shares))


@pytest.mark.parametrize(
    "text", ["0/4", "5/4", "1", "1/", "/4", "a/b", "-1/4", "1/4/2", "", "1.0/2"]
)
def test_a_shard_is_named_by_its_share_and_nothing_else(text: str) -> None:
    assert parse_shard(str(Shard(2, 8))) == Shard(2, 8)
    with pytest.raises(InputError, match="not a shard: --shard"):
        parse_shard(text)


def test_shards_one_after_the_other_make_the_tree(tmp_path: Path) -> None:
    engine, root = Scripted(), tmp_path / "parts"
    for index in (1, 2, 3):
        summary = fill_cache(POOL, QUERIES, root, engines=engine, shard=Shard(index, 3))
        assert summary.queries == len(Shard(index, 3).own(QUERIES))
        assert summary.calls == summary.wanted
        done = shard_status(root, 3)
        assert done.complete == tuple(Shard(number, 3) for number in range(1, index + 1))
        assert done.expected == len(QUERIES) * (12 + 3)
        reader = CacheReader(root)  # the plan of a shard is that of all
        assert list(reader.latest_plan().queries) == [query.key for query in QUERIES]
        assert [part.kind for part in reader.parts].count("plans") == 1
    assert done.present == done.expected
    assert set(engine.asked.values()) == {1}
    fill_cache(POOL, QUERIES, tmp_path / "whole", engines=Scripted())
    assert (
        OpenTree(cache=root).run().fingerprint
        == OpenTree(cache=tmp_path / "whole").run().fingerprint
    )
    assert fill_cache(POOL, QUERIES, root, engines=engine).calls == 0


def test_shards_of_a_new_plan_may_begin_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_cache(POOL, QUERIES[:3], tmp_path, engines=Scripted())
    # Each has its lock by then, if nothing but its lock is taken alone.
    monkeypatch.setattr(scheduler, "sweep_drafts", lambda root: time.sleep(0.3))

    def work(index: int) -> None:
        fill_cache(POOL, QUERIES, tmp_path, engines=Scripted(), shard=Shard(index, 2))

    with ThreadPoolExecutor(2) as both:
        list(both.map(work, (1, 2)))
    assert len(shard_status(tmp_path, 2).complete) == 2


def test_more_shards_than_questions_leave_some_without_work(tmp_path: Path) -> None:
    summary = fill_cache(POOL, QUERIES[:1], tmp_path, engines=Scripted(), shard=Shard(2, 2))
    assert (summary.queries, summary.calls) == (0, 0)


def test_a_shard_beside_its_like_is_refused(tmp_path: Path) -> None:
    fill_cache(POOL, QUERIES[:3], tmp_path, engines=Scripted(), shard=Shard(1, 2))
    with shard_lock(tmp_path, 1, 2):
        for shard in (None, Shard(1, 2), Shard(1, 3)):
            with pytest.raises(CacheLocked, match="at work"):
                fill_cache(POOL, QUERIES[:3], tmp_path, engines=Scripted(), shard=shard)
        with pytest.raises(CacheLocked):
            compact(tmp_path)


def test_a_shard_on_another_kind_of_machine_is_refused_before_a_call(tmp_path: Path) -> None:
    fill_cache(POOL, QUERIES, tmp_path, engines=Scripted(), shard=Shard(1, 2))
    engine = noted.Various()
    with shard_lock(tmp_path, 1, 2):  # still at work
        with pytest.raises(InputError, match="shard 2/2 has other models than the shards at work"):
            fill_cache(POOL, QUERIES, tmp_path, engines=engine, shard=Shard(2, 2))
        with pytest.raises(InputError, match="shard 2/2 has other queries"):
            fill_cache(POOL, QUERIES[1:], tmp_path, engines=Scripted(), shard=Shard(2, 2))
        assert fill_cache(POOL, QUERIES, tmp_path, engines=Scripted(), shard=Shard(2, 2)).calls
    assert not engine.asked
    assert fill_cache(POOL, QUERIES, tmp_path, engines=engine, shard=Shard(2, 2)).calls  # nobody is


def test_what_changes_no_answer_may_differ_between_shards(tmp_path: Path) -> None:
    """Another timeout or price makes another plan, but the same calls."""

    def pool(timeout_s: float, rate: float, url: str) -> Pool:
        server = Endpoint(url, timeout_s=timeout_s, deployment="d")
        return replace(POOL, models=(ModelSpec("a", "org/a", rate, endpoint=server),))

    engine = Scripted()
    one = pool(600.0, 1.0, "http://127.0.0.1:1/v1")
    other = pool(300.0, 2.0, "http://127.0.0.1:2/v1")
    fill_cache(one, QUERIES, tmp_path, engines=engine, shard=Shard(1, 2))
    with shard_lock(tmp_path, 1, 2):  # still at work
        fill_cache(other, QUERIES, tmp_path, engines=engine, shard=Shard(2, 2))
        with pytest.raises(InputError, match="shard 2/2 has other models"):
            fill_cache(replace(one, hops=3), QUERIES, tmp_path, engines=engine, shard=Shard(2, 2))
    assert set(engine.asked.values()) == {1}
    done = shard_status(tmp_path, 2)
    assert (len(done.complete), done.present) == (2, done.expected)


class Failing(FolderStore):
    """A mirror that goes away when it has five parts."""

    def write(self, name: str, data: bytes | memoryview) -> None:
        if len(self.sizes()) == 5:
            raise OSError("the net is gone")
        super().write(name, data)


def test_a_mirror_that_fails_in_the_middle_costs_no_call(tmp_path: Path) -> None:
    engine, root = Scripted(), tmp_path / "cache"
    copy = part_copier(Failing(tmp_path / "mirror"))
    with pytest.raises(WorldError, match=r"cannot use the mirror: .*the net is gone"):
        fill_cache(POOL, QUERIES, root, engines=engine, on_part=copy)
    there = engine.asked.total()
    assert 0 < there == len(noted.rows(root)) < len(QUERIES) * 15
    exchange(root, FolderStore(tmp_path / "mirror"))
    copy = part_copier(FolderStore(tmp_path / "mirror"))
    summary = fill_cache(POOL, QUERIES, root, engines=engine, on_part=copy)
    assert (summary.earlier, summary.missing) == (there, 0)
    assert set(engine.asked.values()) == {1}
    assert noted.rows(tmp_path / "mirror") == noted.rows(root)


def begin(warm: Warm, root: Path, shard: str, log: Path, *after: str) -> Running:
    log.mkdir(exist_ok=True)
    command = ("-m", "tests.hierrouter.collection.noted", str(root), shard, str(log), *after)
    return warm.start(*command, cwd=SOURCES, env=environment())


def test_two_shards_at_once_make_the_tree_of_one(tmp_path: Path, whole: Path, warm: Warm) -> None:
    root, log = tmp_path / "cache", tmp_path / "log"
    for process in [begin(warm, root, shard, log) for shard in ("1/2", "2/2")]:
        done = process.result()
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 0
    assert noted.rows(root) == noted.rows(whole)
    assert OpenTree(cache=root).run().fingerprint == OpenTree(cache=whole).run().fingerprint
    assert set(sum(noted.answers(log).values(), Counter()).values()) == {1}
    assert [part.kind for part in CacheReader(root).parts].count("plans") == 1
    compact(root)
    assert noted.rows(root) == noted.rows(whole)


def test_a_killed_shard_loses_only_its_own_work(tmp_path: Path, whole: Path, warm: Warm) -> None:
    root, log = tmp_path / "cache", tmp_path / "log"
    running = [begin(warm, root, shard, log, "30") for shard in ("1/2", "2/2")]
    codes = [process.result().returncode for process in running]
    assert sorted(codes) == [-signal.SIGKILL, 0]
    again = begin(warm, root, "1/2" if codes[0] else "2/2", log)
    done = again.result()
    assert done.returncode == 0, done.stderr
    noted.check_after_an_accident(root, whole, log)
    assert int(done.stdout) == noted.answers(log)[again.pid].total()
    assert list((root / "tmp").iterdir()) == []
