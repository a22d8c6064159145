"""A Ray cluster on this machine: two workers, one of which is killed."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hierrouter.collection.cluster import (
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
from hierrouter.engines.generator import Answer, Failure
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter_cache import writer
from hierrouter_cache.errors import HierRouterError, InputError, Interrupted, WorldError
from hierrouter_cache.keys import next_context
from hierrouter_cache.mirror import push
from hierrouter_cache.parts import CALLS, list_parts, part_name
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.stores import FolderStore
from hierrouter_cache.writer import (
    WHILE_COLLECTING,
    PartWriter,
    commit,
    encode,
    no_steps,
    sweep_drafts,
)
from tests.conftest import SOURCES, environment
from tests.engines import Scripted
from tests.engines import told as scripted_answer
from tests.hierrouter.collection import noted

# Not imported here: it reads its settings when it is.
pytestmark = pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="ray is not installed")
WORKERS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One cluster for all: it takes seconds to start."""
    with cluster_at(None, WORKERS):
        yield


def collect(root: Path, **how: Any) -> Summary:
    """The trees that all tests of clusters collect, by two workers unless told otherwise."""
    return collect_on_ray(noted.pool(), noted.QUERIES, root, **{"workers": WORKERS, **how})


def notes(tmp_path: Path, after: int = 0) -> noted.Noted:
    (tmp_path / "log").mkdir(exist_ok=True)
    return noted.Noted(tmp_path / "log", after, noted.die if after else None)


def said_by(script: str, folder: Path) -> str:
    """What a script prints in a process of its own, given the folder of a cache."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        cwd=SOURCES,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("shared", [True, False], ids=["shared-disk", "mirror"])
def test_a_killed_worker_costs_only_what_it_was_doing(
    tmp_path: Path, whole: Path, shared: bool
) -> None:
    told = []
    summary = collect(
        tmp_path / "cache",
        remote=None if shared else f"file://{tmp_path}/mirror",
        progress=Progress(on_calls=lambda calls, tokens, cost: told.append((calls, cost))),
        engines=notes(tmp_path, after=30),
    )
    noted.check_after_an_accident(tmp_path / "cache", whole, tmp_path / "log")
    distinct = len(noted.rows(whole))
    assert (summary.calls, summary.earlier) == (distinct, 0)
    assert summary.queries == len(noted.QUERIES)
    tokens = CacheReader(whole).number("SELECT sum(tokens_in + tokens_out)::BIGINT FROM calls")
    assert summary.tokens_in + summary.tokens_out == tokens
    assert sum(calls for calls, _ in told) >= distinct - 30  # what the killed one had not told
    assert sum(cost for _, cost in told) > 0
    assert not list((tmp_path / "cache").glob("cluster-*"))
    if shared:
        assert not list((tmp_path / "cache" / "tmp").iterdir())
    else:
        assert noted.rows(tmp_path / "mirror") == noted.rows(whole)


@pytest.mark.usefixtures("cluster")
def test_an_interruption_finishes_parts_and_a_rerun_the_tree(tmp_path: Path, whole: Path) -> None:
    root = tmp_path / "cache"
    engine = notes(tmp_path)

    def some_are_there() -> bool:
        return bool(list(root.glob("parts/calls-*")))

    with pytest.raises(Interrupted, match=r"interrupted: \d+ calls committed; rerun the same"):
        collect(root, stop=some_are_there, engines=noted.Slowly(engine.log))
    there = len(noted.rows(root))
    assert 0 < there < len(noted.rows(whole))
    assert there == sum(count.total() for count in noted.answers(engine.log).values())
    summary = collect(root, engines=engine)
    assert (summary.calls, summary.earlier) == (len(noted.rows(whole)) - there, there)
    assert noted.rows(root) == noted.rows(whole)


LOOK = """
import sys
from pathlib import Path
import psutil
from hierrouter.collection.cluster import collect_on_ray
from hierrouter.collection.progress import Progress
from tests.hierrouter.collection import noted
me, seen = psutil.Process(), set()
def look(calls, tokens, cost):
    for process in (me, *me.children(recursive=True)):
        for socket in process.net_connections("inet"):
            if socket.status == "LISTEN":
                seen.add(socket.laddr.ip)
summary = collect_on_ray(
    noted.pool(), noted.QUERIES, Path(sys.argv[1]), workers=1, progress=Progress(on_calls=look)
)
print(summary.calls, summary.earlier, *sorted(seen), len(me.children(recursive=True)))
"""


def test_a_cluster_of_our_own_is_open_to_this_machine_only_and_ends(whole: Path) -> None:
    """In a process of its own, as the command starts it; a collected cache needs no call."""
    calls, earlier, *addresses, children = said_by(LOOK, whole).split()
    assert (calls, earlier, children) == ("0", str(len(noted.rows(whole))), "0")
    assert set(addresses) == {"127.0.0.1", "::ffff:127.0.0.1"}


@pytest.mark.usefixtures("cluster")
def test_workers_of_two_kinds_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(
        WorldError, match=r"differ in versions or kind of device: .* no answer is lost"
    ):
        collect(tmp_path / "cache", remote=str(tmp_path / "mirror"), engines=noted.Various())


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


@pytest.mark.usefixtures("cluster")
def test_workers_go_on_from_the_answers_here_beside_rivals(tmp_path: Path, whole: Path) -> None:
    """The mirror holds another answer to a first call, with a smaller name than ours."""
    rival, mirror = rival_of(whole, tmp_path / "rival"), FolderStore(tmp_path / "mirror")
    push(rival, mirror)
    root = tmp_path / "cache"
    PartWriter(root)
    calls, *later = (part for part in list_parts(whole) if part.kind == "calls")
    assert later
    shutil.copy(calls.path, root / "parts" / calls.path.name)
    there = len(noted.rows(root))
    notes_said: list[str] = []
    engine = notes(tmp_path)
    for _ in range(2):
        collect(root, remote=str(mirror.root), engines=engine, on_note=notes_said.append)
    assert len(notes_said) == 2
    assert "1 parts of the mirror answer calls in other words" in notes_said[0]
    assert noted.rows(root) == noted.rows(whole)
    made = sum(count.total() for count in noted.answers(tmp_path / "log").values())
    assert made == len(noted.rows(whole)) - there


def rival_of(root: Path, folder: Path) -> Path:
    """A cache with another answer to the first call of `root`, before all others by name."""
    reader = CacheReader(root)
    row = reader.sql("SELECT * EXCLUDE (filename, file_row_number) FROM calls_rows").to_pylist()[0]
    row["response"] += " or not"
    row["outcome"] = next_context(row["context"], row["response"])
    data = encode("calls", pa.Table.from_pylist([row], schema=CALLS), WHILE_COLLECTING)
    commit(PartWriter(folder).root, part_name("calls", 0, "0" * 8, 1, data), data, no_steps)
    return folder


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_does_not_share_the_disk_says_so(tmp_path: Path) -> None:
    import ray

    job = Job(noted.pool(), noted.QUERIES, notes(tmp_path), tmp_path, tmp_path / "no", None)
    said = work(job, Shard(1, 2), ray.remote(Board).remote())
    assert isinstance(said, WorldError)
    assert "does not see the cache" in str(said)
    assert "--remote" in str(said)


@pytest.mark.usefixtures("cluster")
def test_a_worker_with_a_mirror_says_what_went_wrong_before_the_first_part(tmp_path: Path) -> None:
    import ray

    pool = Pool((ModelSpec("a", "testbed:nobody", 0.1),), 1, ("",))
    mirror = str(tmp_path / "mirror")
    job = Job(pool, noted.QUERIES, backend, tmp_path, tmp_path / "no", mirror)
    said = work(job, Shard(1, 1), ray.remote(Board).remote())
    assert isinstance(said, HierRouterError)
    assert "nobody" in str(said)


@pytest.mark.usefixtures("cluster")
def test_calls_without_an_answer_are_told_as_lost(tmp_path: Path) -> None:
    told: Counter[str] = Counter()
    summary = collect(
        tmp_path / "cache",
        workers=1,
        progress=Progress(
            on_calls=lambda calls, tokens, cost: told.update(answered=calls),
            on_lost=lambda calls: told.update(lost=calls),
        ),
        engines=Scripted(silent),
    )
    assert told["lost"] == summary.failed.total() > 0
    assert told["answered"] == summary.calls > 0


def silent(model: str, prompt: str) -> Answer:
    """Nothing from one model, for good."""
    return Failure("too_long", "long") if model == "calc" else scripted_answer(model, prompt)


NOWHERE = """
import sys
from pathlib import Path
from hierrouter.collection.cluster import collect_on_ray
from hierrouter_cache.errors import InputError
from tests.hierrouter.collection import noted
try:
    collect_on_ray(noted.pool(), noted.QUERIES, Path(sys.argv[1]) / "cache", address="nowhere")
except InputError as error:
    print(error)
"""


def test_no_cluster_at_an_address_is_one_line(tmp_path: Path) -> None:
    said = said_by(NOWHERE, tmp_path)
    assert said.startswith("no Ray cluster: nowhere: Invalid address format")
    assert said.count("\n") == 1


def test_without_ray_another_way_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"ray is not installed.*hierrouter\[ray\].*--shard"):
        collect(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_summaries_of_shards_add_up() -> None:
    one = Summary(3, 30, calls=10, earlier=5, tokens_in=7, tokens_out=2, seconds=4.0)
    two = Summary(2, 20, calls=8, earlier=1, seconds=9.0, example="b: no", missing=4, incomplete=1)
    two.failed["error"] = 2
    assert one + two == Summary(
        5, 50, 18, 6, 7, 2, 9.0, two.failed, "b: no", missing=4, incomplete=1
    )
