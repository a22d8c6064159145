"""A disk that is full in the middle of a collection, and has room again afterwards."""

import re
from pathlib import Path

import pytest

from hierrouter.collection.ledger import FIRST_PART_ROWS
from tests.acceptance.place import Answering, listing, pool_text, questions, write_rows
from tests.conftest import COMMAND, calls_made, spawned
from tests.servers import serving

QUESTIONS = 16
# A file system of 60 KB of its own, for this shell and what it starts.
STEPS = """
mount -t tmpfs -o size=60k none small || exit 77
"$@" 2> first.txt; echo $? > first.code
ls small/cache/tmp > drafts.txt
mount -o remount,size=64m small
"$@" 2> second.txt; echo $? > second.code
"""


def test_a_full_disk_costs_nothing_that_was_committed(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    rows = [
        {**row, "id": f"{batch}-{row['id']}", "question": f"{batch} {row['question']}"}
        for batch in range(QUESTIONS)
        for row in questions("math")[:1]
    ]
    write_rows(tmp_path / "big.jsonl", rows)
    collect = ["collect", "--pool", "pool.toml", "--datasets", "big.jsonl"]
    with serving(Answering(listing=listing())) as server:
        (tmp_path / "pool.toml").write_text(pool_text(server.url))
        said = happened(tmp_path, [*COMMAND, *collect, "--cache", "small/cache"])
    assert said["first.code"] == "1", said
    assert re.search(r"error: .*No space left on device.*safe, rerun", said["first.txt"])
    assert said["drafts.txt"] == ""
    assert said["second.code"] == "0", said
    made, committed = calls_made(said["second.txt"])
    lost = server.asked.total() - made - committed
    assert committed > 0 and 0 <= lost <= FIRST_PART_ROWS  # what was being written


def happened(folder: Path, command: list[str]) -> dict[str, str]:
    """What the steps wrote, by file."""
    space = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", STEPS, "sh"]
    try:
        done = spawned(*space, *command, cwd=folder)
    except OSError as error:
        pytest.skip(f"no small file system here: {error}")
    if not (folder / "first.code").exists():
        pytest.skip(f"no small file system here: {done.stderr.strip()}")
    return {path.name: path.read_text().strip() for path in folder.glob("*.[tc][xo]*")}
