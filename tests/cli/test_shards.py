"""`collect --shard`, `--remote`, `--engine ray`, and `cache push` and `pull`."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from hierrouter.collection.progress import Summary
from hierrouter_cache.keys import next_context
from hierrouter_cache.locks import shard_lock
from hierrouter_cache.parts import CALLS_SCHEMA, list_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.stores import FolderStore
from hierrouter_cache.writer import PartWriter
from hierrouter_cli.collect import summary_line
from tests.cli.conftest import Place
from tests.conftest import COMMAND, calls_made, environment, spawned
from tests.hierrouter.collection.examples import save

COLLECT = "collect --datasets mine.jsonl --pool testbed --cache"


@pytest.fixture
def asked(place: Place) -> Place:
    """A folder with twelve questions."""
    rows = [{"question": f"compute {n}+{n + 1}", "answer": 2 * n + 1} for n in range(12)]
    save(rows, place / "mine.jsonl")
    return place


def rows(root: Path) -> int:
    return CacheReader(root).number("SELECT count(*) FROM calls_rows")


def names(root: Path) -> set[str]:
    return {part.path.name for part in list_parts(root)}


def list_calls(root: Path) -> list[Path]:
    return list(root.glob("parts/calls-*"))


def test_shards_say_how_far_all_are(asked: Place) -> None:
    first, second = (asked.does(f"{COLLECT} c --shard {index}/2").stderr for index in (1, 2))
    assert "shard 1/2 is complete: 1 of 2 shards are" in first
    assert "all shards are complete" not in first
    assert "2 of 2 shards are" in second and "all shards are complete" in second
    assert calls_made(first)[0] + calls_made(second)[0] == rows(asked / "c")
    assert calls_made(asked.does("collect --cache c").stderr)[0] == 0
    assert list((asked / "c").glob("derived/*/emb-*"))
    assert asked.tells("cache info --cache c")["complete_queries"] == 12


def test_machines_without_a_common_disk_meet_in_a_mirror(asked: Place) -> None:
    said = [asked.does(f"{COLLECT} c{n} --shard {n}/2 --remote m").stderr for n in (1, 2)]
    assert "all shards are complete" in said[1]
    pulled = asked.does("cache pull m --cache c3")
    assert pulled.stdout == f"{len(names(asked / 'm'))} parts copied from m\n"
    assert rows(asked / "c3") == sum(calls_made(one)[0] for one in said)
    assert calls_made(asked.does("collect --cache c3 --remote m").stderr)[0] == 0
    pushed = asked.does("cache push --cache c3", (asked / "m2").as_uri())
    assert pushed.stdout.endswith(f"parts copied to {asked / 'm2'}\n")
    assert names(asked / "m2") == names(asked / "c3")
    asked.does("verify --cache m2")


def test_two_answers_to_one_call_stop_nobody(asked: Place) -> None:
    """Two machines made the same calls, and one model did not repeat a direct call of its own."""
    asked.does(f"{COLLECT} c1 --remote m")
    direct_first = "SELECT * FROM calls ORDER BY context NOT IN (SELECT context FROM queries)"
    calls = CacheReader(asked / "c1").sql(direct_first).to_pylist()
    calls[0]["response"] += " or not"
    calls[0]["outcome"] = next_context(calls[0]["context"], calls[0]["response"])
    key, writer = calls[0]["key"], PartWriter(asked / "c2")
    for part in list_parts(asked / "c1"):
        if part.kind in ("queries", "plans"):
            FolderStore(asked / "c2").write(part.path.name, part.path.read_bytes())
    for some in (calls[:3], calls[3:]):
        writer.append("calls", pa.Table.from_pylist(some, schema=CALLS_SCHEMA))
    said = [CacheReader(asked / side).responses()[key] for side in ("c1", "c2")]
    assert said[0] != said[1]
    note = "note: 1 parts of the mirror answer calls in other words"
    assert note in asked.does(f"{COLLECT} c2 --remote m").stderr
    assert CacheReader(asked / "c2").responses()[key] == said[1]
    made = {name for name in names(asked / "c2") if not name.startswith("scores")}
    assert made <= names(asked / "m")
    line = asked.asks("cache pull m --cache c4")
    assert line.returncode == 3
    assert "error: 1 parts of the mirror answer calls in other words" in line.stderr
    assert CacheReader(asked / "c4").responses()[key] in said
    assert names(asked / "c4") <= names(asked / "m")
    asked.does("verify --cache c4")


def test_no_time_gives_no_rate() -> None:
    line = summary_line(Summary(1, 1, calls=1, tokens_out=5))
    assert line.endswith("1 calls made, 0 already there")
    assert summary_line(Summary(1, 1, tokens_out=5, seconds=2.0)).endswith(", 2 tokens/s")


def test_a_mirror_that_is_a_file_is_refused_before_a_call(asked: Place) -> None:
    (asked / "m").write_text("not a folder")
    assert "not a directory: m; name a folder" in asked.refuses(f"{COLLECT} c --remote m")
    assert not list_calls(asked / "c")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("collect --shard 3/2", 2, "not a shard: --shard 3/2"),
        ("collect --shard 1/2 --engine ray", 2, "--shard and --engine ray"),
        ("collect --workers 2", 2, "--engine ray"),
        ("collect --remote nosuch://x/y", 2, "no such place for a mirror: nosuch://x/y"),
        ("cache push m", 3, "no cache"),
        ("cache pull m", 3, "no parts in the mirror: m"),
        ("cache pull nosuch://k:secret@x/y", 2, "no such place for a mirror: nosuch://x/y"),
    ],
)
def test_what_cannot_be_is_one_line(place: Place, words: str, code: int, message: str) -> None:
    line = place.refuses(words, code=code)
    assert message in line and "secret" not in line


def test_no_cluster_is_one_line(tmp_path: Path) -> None:
    """By its address: `auto` would find those of other tests, which may end meanwhile."""
    words = "collect --engine ray --ray-address ray://127.0.0.1:1"
    done = spawned(*COMMAND, *words.split(), cwd=tmp_path)
    assert done.returncode == 1
    assert "error: no Ray cluster: ray://127.0.0.1:1: Connection refused; start" in done.stderr


# What a library may do, C code and other processes included, while a command has no result yet.
NOISY = """
import os, subprocess
from hierrouter_cli import console
with console.results_alone():
    print("from Python")
    os.write(1, b"from C")
    subprocess.run(["echo", "from another process"])
console.put_json({"calls": 1})
"""


@pytest.mark.parametrize("closed", ["", "2>&-"], ids=["open", "no stderr"])
def test_lines_of_others_stay_off_stdout(tmp_path: Path, closed: str) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    done = spawned("sh", "-c", f"{sys.executable} noisy.py {closed}", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, '{"calls": 1}\n'), done.stderr
    if not closed:
        for source in ("from Python", "from C", "from another process"):
            assert source in done.stderr


def test_a_whole_collection_is_refused_beside_a_shard(asked: Place) -> None:
    PartWriter(asked / "c")
    with shard_lock(asked / "c", 1, 2):
        line = asked.refuses(f"{COLLECT} c", code=3)
        asked.does(f"{COLLECT} c --shard 2/2")
    assert "another collector (shards or a transfer) is at work" in line


def test_ctrl_c_on_a_cluster_commits_and_a_rerun_goes_on(place: Place) -> None:
    """The signal goes to the whole group, as a terminal sends it; Ray is not needed to go on.

    The cluster is open to this machine only, and ends with the command.
    """
    pytest.importorskip("ray")
    command = "collect --limit 12 --cache c"
    process = subprocess.Popen(
        [*COMMAND, *command.split(), "--engine", "ray", "--workers", "1"],
        cwd=place.folder,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not list_calls(place / "c") and process.poll() is None:
        time.sleep(0.05)
    cluster = psutil.Process(process.pid).children(recursive=True)
    sockets = [socket for each in cluster for socket in each.net_connections("inet")]
    open_at = {socket.laddr.ip for socket in sockets if socket.status == "LISTEN"}
    assert open_at == {"127.0.0.1", "::ffff:127.0.0.1"}
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert not psutil.wait_procs(cluster, 30)[1]
    found = re.search(r"error: interrupted: (\d+) calls committed; rerun the same command", said)
    assert found, said
    there = rows(place / "c")
    assert int(found[1]) == there
    assert calls_made(place.does(command).stderr)[0] == rows(place / "c") - there > 0
