"""A Ray cluster on this machine: two workers, one of which is killed."""

import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hierrouter.collection.cluster import (
    OWN_CLUSTER_ENVIRONMENT,
    Board,
    Job,
    cluster_at,
    collect_on_ray,
    landmark,
    work,
)
from hierrouter.collection.plan import Shard
from hierrouter.collection.progress import Progress, Summary
from hierrouter.engines import backend
from hierrouter.engines.generator import Failure
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter_cache import writer
from hierrouter_cache.errors import HierRouterError, InputError, Interrupted, WorldError
from hierrouter_cache.keys import next_context
from hierrouter_cache.mirror import push
from hierrouter_cache.parts import CALLS_SCHEMA, list_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.stores import FolderStore
from hierrouter_cache.writer import PartWriter, sweep_drafts
from tests.conftest import COMMAND, spawned
from tests.engines import Scripted, scripted_answer
from tests.hierrouter.collection import noted
from tests.hierrouter.collection.examples import POOL

# Not imported here: it reads its settings when it is.
pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="ray is not installed"),
    pytest.mark.usefixtures("cluster"),
]
WORKERS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One cluster for all: it takes seconds to start."""
    with cluster_at(None, WORKERS):
        yield


def on_ray(root: Path, **how: Any) -> Summary:
    """The trees that all tests of clusters collect, by two workers unless told otherwise."""
    return collect_on_ray(POOL, noted.QUERIES, root, **{"workers": WORKERS, **how})


def engine(tmp_path: Path, after: int = 0, pause_s: float = 0.0) -> Scripted:
    """Scripted models that note what they say; after so many answers of a worker, one dies."""
    (tmp_path / "log").mkdir(exist_ok=True)
    return Scripted(noted.Noting(tmp_path / "log", after, pause_s))


def made(tmp_path: Path) -> int:
    """How many answers all workers gave."""
    return sum(count.total() for count in noted.answers(tmp_path / "log").values())


@pytest.mark.parametrize("shared", [True, False], ids=["shared-disk", "mirror"])
def test_a_killed_worker_loses_only_its_own_work(tmp_path: Path, whole: Path, shared: bool) -> None:
    reports = []
    summary = on_ray(
        tmp_path / "cache",
        remote=None if shared else f"file://{tmp_path}/mirror",
        progress=Progress(on_calls=lambda calls, tokens, cost: reports.append((calls, cost))),
        engines=engine(tmp_path, after=30),
    )
    noted.check_after_an_accident(tmp_path / "cache", whole, tmp_path / "log")
    distinct = len(noted.rows(whole))
    assert (summary.queries, summary.calls, summary.earlier) == (len(noted.QUERIES), distinct, 0)
    tokens = CacheReader(whole).number("SELECT sum(tokens_in + tokens_out)::BIGINT FROM calls")
    assert summary.tokens_in + summary.tokens_out == tokens
    assert sum(calls for calls, _ in reports) >= distinct - 30  # what the killed one had not told
    assert sum(cost for _, cost in reports) > 0
    assert not list((tmp_path / "cache").glob("cluster-*"))
    if shared:
        assert not list((tmp_path / "cache" / "tmp").iterdir())
    else:
        assert noted.rows(tmp_path / "mirror") == noted.rows(whole)


def test_an_interruption_finishes_parts_and_a_rerun_the_tree(tmp_path: Path, whole: Path) -> None:
    root, slow = tmp_path / "cache", engine(tmp_path, pause_s=0.05)
    with pytest.raises(Interrupted, match=r"interrupted: \d+ calls committed; rerun the same"):
        on_ray(root, stop=lambda: any(root.glob("parts/calls-*")), engines=slow)
    there = len(noted.rows(root))
    assert 0 < there < len(noted.rows(whole))
    assert there == made(tmp_path)
    summary = on_ray(root, engines=Scripted())
    assert (summary.calls, summary.earlier) == (len(noted.rows(whole)) - there, there)
    assert noted.rows(root) == noted.rows(whole)


def test_workers_of_two_kinds_are_noticed(tmp_path: Path) -> None:
    (log := tmp_path / "log").mkdir()
    with pytest.raises(
        WorldError, match=r"differ in versions or kind of device: .* no answer is lost"
    ):
        on_ray(tmp_path / "cache", remote=str(tmp_path / "mirror"), engines=noted.Various(log=log))


def test_a_landmark_stands_for_days_and_goes_with_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = PartWriter(tmp_path).root
    before = set(root.iterdir())
    with landmark(root) as mark:
        os.utime(mark, (0, 0))
        monkeypatch.setattr(writer, "_host", lambda: "another-machine")
        sweep_drafts(root)
        assert mark.exists()
        with landmark(root) as other:
            assert other != mark  # what a kill left is nobody else's
    assert set(root.iterdir()) == before


def test_workers_go_on_from_the_answers_here_beside_rivals(tmp_path: Path, whole: Path) -> None:
    """The mirror holds another answer to a first call, with a smaller name than ours."""
    first = "SELECT * EXCLUDE (filename, file_row_number) FROM calls_rows ORDER BY filename LIMIT 1"
    (row,) = CacheReader(whole).sql(first).to_pylist()
    row["response"] += " or not"
    row["outcome"] = next_context(row["context"], row["response"])
    other = pa.Table.from_pylist([row], schema=CALLS_SCHEMA)
    rival = PartWriter(tmp_path / "rival").append("calls", other)
    mirror = FolderStore(tmp_path / "mirror")
    push(tmp_path / "rival", mirror)
    root = tmp_path / "cache"
    PartWriter(root)
    calls, *later = (part for part in list_parts(whole) if part.kind == "calls")
    assert later
    assert rival.name < calls.path.name
    FolderStore(root).write(calls.path.name, calls.path.read_bytes())
    there = len(noted.rows(root))
    notes: list[str] = []
    for _ in range(2):
        on_ray(root, remote=str(mirror.root), engines=engine(tmp_path), on_note=notes.append)
    assert len(notes) == 2
    assert "1 parts of the mirror answer calls in other words" in notes[0]
    assert noted.rows(root) == noted.rows(whole)
    assert made(tmp_path) == len(noted.rows(whole)) - there


def test_a_worker_says_what_went_wrong_before_its_first_part(tmp_path: Path) -> None:
    import ray

    board, queries = ray.remote(num_cpus=0)(Board).remote(), noted.QUERIES
    alone = Job(POOL, queries, engine(tmp_path), tmp_path, tmp_path / "no", None)
    said = work(alone, Shard(1, 2), board)
    assert isinstance(said, WorldError) and "does not see the cache" in str(said)
    unknown = Pool((ModelSpec("a", "testbed:nobody", 0.1),), 1, ("",))
    mirrored = Job(unknown, queries, backend, tmp_path, tmp_path / "no", str(tmp_path / "mirror"))
    said = work(mirrored, Shard(1, 1), board)
    assert isinstance(said, HierRouterError) and "nobody" in str(said)


def test_calls_without_an_answer_are_told_as_lost(tmp_path: Path) -> None:
    counts, silent = Counter[str](), Failure("too_long", "long")  # for good
    summary = on_ray(
        tmp_path / "cache",
        progress=Progress(
            on_calls=lambda calls, tokens, cost: counts.update(answered=calls),
            on_lost=lambda calls: counts.update(lost=calls),
        ),
        engines=Scripted(
            lambda model, prompt: silent if model == "a" else scripted_answer(model, prompt)
        ),
    )
    assert counts["lost"] == summary.failed.total() > 0
    assert counts["answered"] == summary.calls > 0


def test_the_command_takes_a_heads_address_and_prints_json_alone(tmp_path: Path) -> None:
    """Without an address it starts a cluster, whose lines stay off stdout as well."""
    import ray

    head = ray.get_runtime_context().gcs_address
    words = "collect --datasets arith --limit 2 --engine ray --workers 1 --format json --cache"
    for cache, address in (("given", ["--ray-address", head]), ("own", [])):
        command = [*COMMAND, *words.split(), cache, *address]
        # Else Ray takes another address of this machine for 127.0.0.1, where this one listens only.
        done = spawned(*command, cwd=tmp_path, **OWN_CLUSTER_ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["queries"] == 2
        assert len(CacheReader(tmp_path / cache).query_keys()) == 2
    assert noted.rows(tmp_path / "given") == noted.rows(tmp_path / "own")


def test_without_ray_another_way_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"ray is not installed.*hierrouter\[ray\].*--shard"):
        on_ray(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_summaries_of_shards_add_up() -> None:
    one = Summary(3, 30, calls=10, earlier=5, tokens_in=7, tokens_out=2, seconds=4.0)
    two = Summary(2, 20, calls=8, earlier=1, seconds=9.0, example="b: no", missing=4, incomplete=1)
    two.failed["error"] = 2
    assert one + two == Summary(
        5, 50, 18, 6, 7, 2, 9.0, two.failed, "b: no", missing=4, incomplete=1
    )
