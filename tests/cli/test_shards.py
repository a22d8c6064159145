"""`collect --shard`, `--remote`, `--engine ray`, and `cache push` and `pull`."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest

from hierrouter.collection.progress import Summary
from hierrouter_cache.keys import next_context
from hierrouter_cache.locks import shard_lock
from hierrouter_cache.parts import CALLS, list_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from hierrouter_cli.collect import summary_line
from tests.conftest import COMMAND, Run, environment, works

COLLECT = ["collect", "--datasets", "mine.jsonl", "--pool", "testbed"]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    lines = [
        json.dumps({"id": f"q{n}", "question": f"compute {n}+{n + 1}", "answer": f"{2 * n + 1}"})
        for n in range(12)
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def calls_made(stderr: str) -> int:
    found = re.search(r"([\d,]+) calls made", stderr)
    assert found, stderr
    return int(found[1].replace(",", ""))


def rows(root: Path) -> int:
    return CacheReader(root).number("SELECT count(*) FROM calls_rows")


def names(root: Path) -> set[str]:
    return {part.path.name for part in list_parts(root)}


def list_calls(root: Path) -> list[Path]:
    return list(root.glob("parts/calls-*"))


def test_shards_say_how_far_all_are(work: Path, hierrouter: Run) -> None:
    first, second, third = (
        hierrouter(*COLLECT, "--cache", "c", "--shard", f"{index}/3", cwd=work)
        for index in (1, 2, 3)
    )
    assert "shard 1/3 is complete: 1 of 3 shards are" in first.stderr
    assert "2 of 3 shards are" in second.stderr
    assert "all shards are complete" not in second.stderr
    assert "all shards are complete" in third.stderr
    made = sum(calls_made(done.stderr) for done in (first, second, third))
    assert made == rows(work / "c")
    last = works(hierrouter("collect", "--cache", "c", cwd=work))
    assert " 0 calls made" in last.stderr
    assert list((work / "c").glob("derived/*/emb-*"))
    info = hierrouter("cache", "info", "--cache", "c", "--format", "json", cwd=work)
    assert json.loads(info.stdout)["complete_queries"] == 12


def test_machines_without_a_common_disk_meet_in_a_mirror(work: Path, hierrouter: Run) -> None:
    made = 0
    for index in (1, 2):
        done = works(
            hierrouter(
                *COLLECT, "--cache", f"c{index}", "--shard", f"{index}/2", "--remote", "m", cwd=work
            )
        )
        made += calls_made(done.stderr)
    assert "all shards are complete" in done.stderr
    pulled = hierrouter("cache", "pull", "m", "--cache", "c3", cwd=work)
    assert pulled.stdout == f"{len(names(work / 'm'))} parts copied from m\n"
    assert rows(work / "c3") == made
    again = works(hierrouter("collect", "--cache", "c3", "--remote", "m", cwd=work))
    assert " 0 calls made" in again.stderr
    pushed = hierrouter("cache", "push", (work / "m2").as_uri(), "--cache", "c3", cwd=work)
    assert pushed.stdout.endswith(f"parts copied to {work / 'm2'}\n")
    assert names(work / "m2") == names(work / "c3")
    assert hierrouter("cache", "verify", "--cache", "m2", cwd=work).returncode == 0


def with_another_answer(root: Path, folder: Path) -> str:
    """A cache like `root` in which one direct call was answered otherwise; the call's key."""
    reader = CacheReader(root)
    table = reader.sql("SELECT * FROM calls ORDER BY context NOT IN (SELECT context FROM queries)")
    rows = table.to_pylist()
    rows[0]["response"] += " or not"
    rows[0]["outcome"] = next_context(rows[0]["context"], rows[0]["response"])
    writer = PartWriter(folder)
    for kind in ("queries", "plans"):
        for part in list_parts(root):
            if part.kind == kind:
                shutil.copy(part.path, folder / "parts" / part.path.name)
    for some in (rows[:3], rows[3:]):
        writer.append("calls", pa.Table.from_pylist(some, schema=CALLS))
    return str(rows[0]["key"])


def test_two_answers_to_one_call_stop_nobody(work: Path, hierrouter: Run) -> None:
    """Two machines made the same calls, and one model did not repeat itself."""
    hierrouter(*COLLECT, "--cache", "c1", cwd=work)
    key = with_another_answer(work / "c1", work / "c2")
    said = {side: CacheReader(work / side).responses()[key] for side in ("c1", "c2")}
    assert said["c1"] != said["c2"]
    own = {side: names(work / side) for side in said}
    for turn in (1, 2):
        for side, answer in said.items():
            done = works(hierrouter(*COLLECT, "--cache", side, "--remote", "m", cwd=work))
            noted = "note: 1 parts of the mirror answer calls in other words" in done.stderr
            assert noted == ((turn, side) != (1, "c1"))  # who comes first has no rival
            assert CacheReader(work / side).responses()[key] == answer
            assert own[side] <= names(work / "m")
    fresh = works(hierrouter(*COLLECT, "--cache", "c3", "--remote", "m", cwd=work))
    assert "note: 1 parts of the mirror" in fresh.stderr
    assert CacheReader(work / "c3").responses()[key] in said.values()
    pulled = hierrouter("cache", "pull", "m", "--cache", "c4", cwd=work)
    assert pulled.returncode == 3
    assert "error: 1 parts of the mirror answer calls in other words" in pulled.stderr
    assert names(work / "c4") <= names(work / "m")
    assert hierrouter("cache", "verify", "--cache", "c4", cwd=work).returncode == 0


def test_no_time_gives_no_rate() -> None:
    assert summary_line(Summary(1, 1, calls=1, tokens_out=5)).endswith(
        "1 calls made, 0 already there"
    )
    assert summary_line(Summary(1, 1, tokens_out=5, seconds=2.0)).endswith(", 2 tokens/s")


def test_a_mirror_that_is_a_file_is_refused_before_a_call(work: Path, hierrouter: Run) -> None:
    (work / "m").write_text("not a folder")
    refused = hierrouter(*COLLECT, "--cache", "c", "--remote", "m", cwd=work)
    assert refused.returncode == 2
    assert "not a directory: m; name a folder" in refused.stderr
    assert not list_calls(work / "c")
    (work / "m").unlink()
    works(hierrouter(*COLLECT, "--cache", "c", "--remote", "m", cwd=work))
    made = {name for name in names(work / "c") if not name.startswith("scores")}
    assert made <= names(work / "m")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["collect", "--shard", "3/2"], 2, "not a shard: --shard 3/2"),
        (["collect", "--shard", "1/2", "--engine", "ray"], 2, "--shard and --engine ray"),
        (["collect", "--workers", "2"], 2, "--engine ray"),
        (["collect", "--remote", "nosuch://x/y"], 2, "no such place for a mirror: nosuch://x/y"),
        (["cache", "push", "m"], 3, "no cache"),
        (["cache", "pull", "m"], 3, "no parts in the mirror: m"),
        (["cache", "pull", "nosuch://k:secret@x/y"], 2, "no such place for a mirror: nosuch://x/y"),
    ],
)
def test_what_cannot_be_is_one_line(
    work: Path, hierrouter: Run, arguments: list[str], code: int, message: str
) -> None:
    done = hierrouter(*arguments, cwd=work)
    assert done.returncode == code, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert message in line
    assert "secret" not in done.stderr


def test_a_whole_collection_is_refused_beside_a_shard(work: Path, hierrouter: Run) -> None:
    PartWriter(work / "c")
    with shard_lock(work / "c", 1, 2):
        refused = hierrouter(*COLLECT, "--cache", "c", cwd=work)
        beside = hierrouter(*COLLECT, "--cache", "c", "--shard", "2/2", cwd=work)
    assert refused.returncode == 3
    assert "another collector (shards or a transfer) is at work" in refused.stderr
    assert beside.returncode == 0, beside.stderr


def test_ctrl_c_on_a_cluster_commits_and_the_same_command_goes_on(
    work: Path, hierrouter: Run
) -> None:
    """The signal goes to the whole group, as a terminal sends it."""
    pytest.importorskip("ray")
    command = ["collect", "--limit", "12", "--cache", "c", "--engine", "ray", "--workers", "2"]
    process = subprocess.Popen(
        [*COMMAND, *command],
        cwd=work,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not list_calls(work / "c") and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    found = re.search(r"error: interrupted: (\d+) calls committed; rerun the same command", said)
    assert found, said
    there = rows(work / "c")
    assert int(found[1]) == there
    done = works(hierrouter(*command, cwd=work))
    assert calls_made(done.stderr) == rows(work / "c") - there > 0
