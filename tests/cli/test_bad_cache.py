"""What a damaged, foreign, busy or unfinished cache gets, from the command line.

Each case has a number that stands in its test's id. Whatever happens: the right exit code, one
line that says what is wrong, nothing on stdout, and every part that was sound is still there, byte
for byte.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hierrouter.inspection import ask_cache
from hierrouter_cache.parts import METADATA_KEY, sha16
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.conftest import COMMAND, Run, environment
from tests.holes import drop_calls, drop_five_leaves_of_three_queries

DATASETS = "arith,riddle"
COLLECT = ["collect", "--datasets", DATASETS, "--limit", "6", "--cache", "cache"]
TRAIN = ["train", "--dry-run", "--cache", "cache"]
REPORT = ["report", "--format", "json", "--cache", "cache"]
QUERIES, NODES = 12, 12


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Path:
    """A folder with a whole, embedded, scored cache."""
    folder = tmp_path_factory.mktemp("sound")
    done = hierrouter(*COLLECT, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def result(sound: Path, hierrouter: Run) -> str:
    """What `report --format json` says of it."""
    return report(sound, hierrouter)


@pytest.fixture
def home(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "home"))


def report(home: Path, hierrouter: Run) -> str:
    done = hierrouter(*REPORT, cwd=home)
    assert done.returncode == 0, done.stderr
    return done.stdout


def digests(home: Path) -> dict[str, str]:
    """SHA-256 of every part, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (home / "cache" / "parts").glob("*.parquet")
        if path.is_file() and not path.is_symlink()
    }


def nodes(home: Path) -> int:
    """Nodes and direct calls that are there."""
    reader = CacheReader(home / "cache")
    return int(reader.sql("SELECT count(*) AS n FROM calls")["n"][0].as_py())


def calls_made(stderr: str) -> int:
    found = re.search(r"(\d+) calls made", stderr)
    assert found, stderr
    return int(found[1])


def part(home: Path, kind: str = "calls") -> Path:
    return min((home / "cache" / "parts").glob(f"{kind}-*"))


def forge(home: Path, kind: str, table: pa.Table, header: str = '{"format": 1}') -> Path:
    """A part whose name is right and whose content is not what we write."""
    sink = pa.BufferOutputStream()
    metadata = {METADATA_KEY: header.encode()}
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    data = sink.getvalue().to_pybytes()
    name = f"{kind}-00000099-ffffffff-r{table.num_rows}-{sha16(data)}.parquet"
    path = home / "cache" / "parts" / name
    path.write_bytes(data)
    return path


def rewrite(home: Path, kind: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace the first part of a kind by a changed one with a right name."""
    old = part(home, kind)
    table = change(pq.read_table(old))
    old.unlink()
    forge(home, kind, table)


# What is done to a copy of the sound cache before the command.


def nothing(home: Path) -> None:
    pass


def a_file(home: Path) -> None:
    (home / "cf").write_text("x")


def truncated(home: Path) -> None:
    path = part(home)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(home: Path) -> None:
    path = part(home)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def emptied(home: Path) -> None:
    part(home).write_bytes(b"")


def column_dropped(home: Path) -> None:
    rewrite(home, "scores", lambda table: table.drop_columns(["value"]))


def column_retyped(home: Path) -> None:
    rewrite(home, "scores", lambda t: t.set_column(3, "value", pa.array(["1"] * t.num_rows)))


def impossible_score(home: Path) -> None:
    rewrite(home, "scores", lambda t: t.set_column(3, "value", pa.array([1.7] * t.num_rows)))


def score_not_a_number(home: Path) -> None:
    def spoil(table: pa.Table) -> pa.Table:
        return table.set_column(3, "value", pa.array([float("nan")] * table.num_rows))

    rewrite(home, "scores", spoil)


def negative_tokens(home: Path) -> None:
    def spoil(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index("tokens_in")
        return table.set_column(at, "tokens_in", pa.array([-3] * table.num_rows, pa.int32()))

    rewrite(home, "calls", spoil)


def five_nodes_missing_in_three_queries(home: Path) -> None:
    drop_five_leaves_of_three_queries(home / "cache")


def a_parent_missing(home: Path) -> None:
    first = "SELECT call FROM nodes WHERE hop = 1 ORDER BY call LIMIT 1"
    drop_calls(home / "cache", set(ask_cache(home / "cache", first)["call"].to_pylist()))


def newer(home: Path) -> None:
    forge(home, "calls", pq.read_table(part(home)), '{"format": 99}')


def stale_lock(home: Path) -> None:
    (home / "cache" / "collect.lock").write_text("pid 999999999")


def symlinked(home: Path) -> None:
    name = f"calls-00000098-00000000-r1-{'0' * 16}.parquet"
    (home / "cache" / "parts" / name).symlink_to("/etc/passwd")


def bomb(home: Path) -> None:
    """A few kilobytes that decode to 200 million rows."""
    rows = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1_000_000, np.int8)), ["x" * 1000])
    table = pa.table({"key": rows})
    path = home / "cache" / "parts" / "bomb"
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(200):
            writer.write_table(table)
    sha = sha16(path.read_bytes())
    path.rename(path.with_name(f"calls-00000098-00000000-r200000000-{sha}.parquet"))


def foreign_plan(home: Path) -> None:
    plan = pq.read_table(part(home, "plans"))
    strange = plan.set_column(2, "queries", pa.array([["0" * 32, "1" * 32]]))
    forge(home, "plans", strange)


def embeddings(home: Path) -> Path:
    return next((home / "cache" / "derived").glob("*/emb-*"))


def embeddings_truncated(home: Path) -> None:
    path = embeddings(home)
    path.write_bytes(path.read_bytes()[:-1000])


def replace_embeddings(home: Path, rows: np.ndarray) -> None:
    path = embeddings(home)
    np.save(home / "new.npy", rows)
    data = (home / "new.npy").read_bytes()
    path.unlink()
    (home / "new.npy").rename(
        path.with_name(f"emb-00000000-00000000-r{len(rows)}-{sha16(data)}.npy")
    )


def embeddings_of_another_width(home: Path) -> None:
    rows = np.load(embeddings(home))
    first = embeddings(home)
    kept = first.read_bytes(), first
    narrow = np.zeros(1, [("context", "S32"), ("vector", "<f4", (3,))])
    replace_embeddings(home, narrow)
    kept[1].write_bytes(kept[0])
    assert len(rows) > 1


def embeddings_not_finite(home: Path) -> None:
    rows = np.load(embeddings(home))
    rows["vector"][0] = np.nan
    replace_embeddings(home, rows)


def embeddings_of_something_else(home: Path) -> None:
    replace_embeddings(home, np.full((5, 4), np.nan, np.float32))


def setting_changed(home: Path) -> None:
    import hierrouter.pools

    text = (Path(hierrouter.pools.__file__).parent / "testbed.toml").read_text()
    changed = text.replace("{ max_new_tokens = 16 }", "{ max_new_tokens = 16, temperature = 0.7 }")
    assert changed != text
    (home / "hot.toml").write_text(changed)


@dataclass(frozen=True)
class Case:
    """A row: what is done, which command, and what it must say."""

    name: str
    damage: Callable[[Path], None]
    command: list[str]
    code: int
    words: list[str]  # regular expressions, any order, any case


REFUSED = [
    Case(
        "K01",
        nothing,
        ["train", "--cache", "nowhere"],
        3,
        ["no cache", "nowhere", "hierrouter collect"],
    ),
    Case("K02", a_file, [*COLLECT[:-1], "cf"], 2, ["cf", "not a directory"]),
    Case("K04", truncated, TRAIN, 3, ["damaged part", r"\.parquet", "cache repair"]),
    Case(
        "K05",
        flipped,
        ["cache", "verify", "--cache", "cache"],
        3,
        ["checksum", "damaged", r"\.parquet"],
    ),
    Case("K06", emptied, TRAIN, 3, ["damaged part", "0 bytes"]),
    Case("K10-plan", foreign_plan, TRAIN, 3, ["another run"]),
    Case("K11", column_dropped, TRAIN, 3, ["column", "value", "missing"]),
    Case("K12", column_retyped, TRAIN, 3, ["value", "type"]),
    Case("K13-range", impossible_score, TRAIN, 3, ["score", "range"]),
    Case("K13-nan", score_not_a_number, TRAIN, 3, ["score", "NaN"]),
    Case("K13-tokens", negative_tokens, TRAIN, 3, ["tokens", "negative"]),
    Case(
        "K14",
        five_nodes_missing_in_three_queries,
        TRAIN,
        3,
        ["3 of 12 quer", "5 nodes", "collect", "--allow-incomplete"],
    ),
    Case("K16", a_parent_missing, TRAIN, 3, ["parent"]),
    Case("K17", newer, TRAIN, 3, ["newer version", "format 99", "upgrade"]),
    Case("K23", symlinked, TRAIN, 3, ["not a regular file"]),
    Case(
        "K25",
        setting_changed,
        [*TRAIN, "--pool", "hot.toml"],
        3,
        ["not collected", "config", "temperature", "changed"],
    ),
    Case("K26-truncated", embeddings_truncated, TRAIN, 3, ["embedding", "expected"]),
    Case("K26-width", embeddings_of_another_width, TRAIN, 3, ["embedding", "dim"]),
    Case("K26-nan", embeddings_not_finite, TRAIN, 3, ["embedding", "NaN"]),
    Case("K26-shape", embeddings_of_something_else, TRAIN, 3, ["embedding", "expected 5 rows"]),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refused(home: Path, hierrouter: Run, case: Case) -> None:
    case.damage(home)
    before = digests(home)
    done = hierrouter(*case.command, cwd=home)
    assert done.returncode == case.code, done.stderr
    assert done.stdout == ""
    assert all(re.search(word, done.stderr, re.I) for word in case.words), done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert len(last) <= 307
    assert "Traceback" not in done.stderr
    assert digests(home) == before
    assert not list((home / "cache" / "tmp").glob("*"))


def test_k03_a_folder_that_cannot_be_written(home: Path, hierrouter: Run) -> None:
    """Root may write anywhere but into /sys."""
    folder = home / "ro"
    folder.mkdir(mode=0o555)
    place = "/sys/kernel/hierrouter" if os.geteuid() == 0 else str(folder)
    done = hierrouter(*COLLECT[:-1], place, cwd=home)
    assert done.returncode == 3, done.stderr
    assert place in done.stderr
    assert "not writable" in done.stderr


def test_k07_repair_moves_the_damaged_part_aside(home: Path, hierrouter: Run) -> None:
    before = digests(home)
    flipped(home)
    damaged = part(home).name
    done = hierrouter("cache", "repair", "--cache", "cache", cwd=home)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (home / "cache" / "quarantine").iterdir()] == [damaged]
    after = digests(home)
    assert after == {name: digest for name, digest in before.items() if name != damaged}


def test_k08_collect_asks_only_for_what_was_lost(home: Path, hierrouter: Run, result: str) -> None:
    flipped(home)
    lost = int(part(home).name.split("-r")[1].split("-")[0])
    hierrouter("cache", "repair", "--cache", "cache", cwd=home)
    done = hierrouter(*COLLECT, cwd=home)
    assert done.returncode == 0, done.stderr
    assert calls_made(done.stderr) == lost
    assert report(home, hierrouter) == result


def test_k09_stray_files_are_ignored(home: Path, hierrouter: Run, result: str) -> None:
    for name in (".DS_Store", "README.txt", "x.tmp", "y.csv", "calls-1-x.parquet"):
        (home / "cache" / "parts" / name).write_text("stray")
    assert report(home, hierrouter) == result


def test_k10_a_part_of_another_run_is_not_served(
    home: Path, hierrouter: Run, result: str, tmp_path: Path
) -> None:
    """Calls carry their own key, so another run's are simply not those that are asked for."""
    other = tmp_path / "other"
    other.mkdir()
    hierrouter("collect", "--datasets", "story", "--limit", "3", "--cache", "cache", cwd=other)
    for kind in ("calls", "queries", "scores"):
        foreign = part(other, kind)
        shutil.copy(foreign, home / "cache" / "parts" / foreign.name)
    assert report(home, hierrouter) == result


def test_k15_rows_of_two_collectors_count_once(home: Path, hierrouter: Run, result: str) -> None:
    writer = PartWriter(home / "cache")
    for path in list((home / "cache" / "parts").glob("*-*.parquet")):
        writer.append(path.name.split("-")[0], pq.read_table(path))
    assert report(home, hierrouter) == result


def test_k18_another_collector_is_at_work(home: Path, hierrouter: Run) -> None:
    before = digests(home)
    with (home / "cache" / "collect.lock").open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.truncate(0)
        held.write("pid 4711")
        held.flush()
        done = hierrouter(*COLLECT, cwd=home)
    assert done.returncode == 3
    assert "another collector (pid 4711) is at work" in done.stderr
    assert digests(home) == before


def test_k19_a_lock_of_a_dead_collector_holds_nobody(home: Path, hierrouter: Run) -> None:
    stale_lock(home)
    part(home).unlink()
    done = hierrouter(*COLLECT, cwd=home)
    assert done.returncode == 0, done.stderr
    assert calls_made(done.stderr) > 0


FULL_DISK = """
mount -t tmpfs -o size=300k none small || exit 77
"$@" 2> first.txt; echo $? > first.code
"$0" -m hierrouter_cli cache verify --cache small/cache > kept.txt 2>&1; echo $? > kept.code
ls small/cache/tmp > drafts.txt
mount -o remount,size=64m small
"$@" 2> second.txt; echo $? > second.code
"""


def test_k20_a_full_disk(home: Path) -> None:
    """On a file system of 300 kB; then the disk grows and the same command goes on."""
    (home / "small").mkdir()
    space = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FULL_DISK]
    collect = [*COMMAND, "collect", "--limit", "60", "--cache", "small/cache"]
    try:
        done = subprocess.run(
            [*space, sys.executable, *collect],
            cwd=home,
            env=environment(),
            capture_output=True,
            text=True,
        )
    except OSError as error:
        pytest.skip(f"no small file system here: {error}")
    if not (home / "first.code").exists():
        pytest.skip(f"no small file system here: {done.stderr.strip()}")
    said = {path.name: path.read_text().strip() for path in home.glob("*.[tc][xo]*")}
    assert said["first.code"] == "1", said
    assert re.search(r"error: .*No space left on device.*safe, rerun", said["first.txt"])
    assert (said["kept.code"], said["drafts.txt"]) == ("0", ""), said
    assert said["second.code"] == "0", said
    again = re.search(r"(\d+) calls made, (\d+) already there", said["second.txt"])
    assert again
    assert int(again[2]) > 0


def started(home: Path, cache: str) -> "subprocess.Popen[str]":
    """A collection of more queries, caught after its first commit."""
    command = [*COMMAND, "collect", "--limit", "40", "--cache", cache]
    process = subprocess.Popen(
        command, cwd=home, env=environment(), stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not list((home / cache).glob("parts/calls-*")):
        time.sleep(0.01)
    return process


def test_k21_kill_and_rerun(home: Path, hierrouter: Run) -> None:
    process = started(home, "killed")
    process.kill()
    process.communicate()
    kept = CacheReader(home / "killed").responses()
    done = hierrouter("collect", "--limit", "40", "--cache", "killed", cwd=home)
    assert done.returncode == 0, done.stderr
    now = CacheReader(home / "killed")
    assert kept.items() <= now.responses().items()
    assert calls_made(done.stderr) == len(now.responses()) - len(kept)
    assert now.sql("SELECT count(*) AS n FROM calls_rows")["n"][0].as_py() == len(now.responses())
    info = hierrouter("cache", "info", "--cache", "killed", "--format", "json", cwd=home)
    assert json.loads(info.stdout)["missing_nodes"] == 0


def test_k22_ctrl_c(home: Path, hierrouter: Run) -> None:
    process = started(home, "stopped")
    process.send_signal(signal.SIGINT)
    stderr = process.communicate(timeout=300)[1]
    assert process.returncode == 130, stderr
    assert re.search(r"interrupted: \d+ calls committed; rerun", stderr)
    assert not list((home / "stopped" / "tmp").iterdir())


def test_k24_a_decompression_bomb(home: Path) -> None:
    bomb(home)
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, (20, 20)); "
    limited += (
        "from hierrouter_cli.app import main; sys.argv = ['hierrouter', *sys.argv[1:]]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, *TRAIN],
        cwd=home,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3, done.stderr
    assert re.search(r"rows|limit|too large", done.stderr)


def test_k27_no_clock_decides_anything(home: Path, hierrouter: Run, result: str) -> None:
    """Half of the files get a date a year back, as after a wrong clock."""
    for number, path in enumerate(sorted((home / "cache").rglob("*"))):
        past = time.time() - 365 * 24 * 3600 * (number % 2)
        os.utime(path, (past, past))
    done = hierrouter(*COLLECT, cwd=home)
    assert calls_made(done.stderr) == 0
    assert report(home, hierrouter) == result
    keys = CacheReader(home / "cache").sql("SELECT key FROM calls_rows")["key"]
    assert len(pc.unique(keys)) == len(keys)
