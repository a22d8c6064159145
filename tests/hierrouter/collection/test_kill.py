"""kill -9 at random moments: nothing committed is lost, nothing is asked twice."""

import random
import re
import signal
import time
from pathlib import Path

from hierrouter_cache.errors import NoCache
from hierrouter_cache.reader import CacheReader
from tests.conftest import Run, Start
from tests.warm import Running

KILLS = 10
ARGUMENTS = ["collect", "--limit", "12", "--cache"]


def committed(root: Path) -> dict[str, str]:
    """Response by key, after proof that no key stands in two rows."""
    try:
        reader = CacheReader(root)
    except NoCache:
        return {}
    if not any(part.kind == "calls" for part in reader.parts):
        return {}
    rows = reader.sql("SELECT count(*) AS n FROM calls_rows")["n"][0].as_py()
    responses = reader.responses()
    assert rows == len(responses)
    return responses


def calls_made(stderr: str) -> int:
    found = re.search(r"([\d,]+) calls made", stderr)
    assert found, stderr
    return int(found[1].replace(",", ""))


def wait_for_a_commit(process: Running, root: Path) -> None:
    """Until a part more than now has been committed, or the process has ended."""

    def parts() -> int:
        return len(list(root.glob("parts/calls-*")))

    before = parts()
    while parts() == before and process.poll() is None:
        time.sleep(0.005)


def test_ten_kills_then_a_rerun(tmp_path: Path, hierrouter: Run, start: Start) -> None:
    whole = hierrouter(*ARGUMENTS, tmp_path / "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    expected = committed(tmp_path / "whole")

    rng = random.Random(0)
    root = tmp_path / "killed"
    seen: dict[str, str] = {}
    sizes = []
    for _ in range(KILLS):
        process = start(*ARGUMENTS, root, cwd=tmp_path)
        wait_for_a_commit(process, root)
        time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.result()
        now = committed(root)
        assert seen.items() <= now.items()
        seen = now
        sizes.append(len(seen))

    between = {size for size in sizes if 0 < size < len(expected)}
    assert len(between) > 2  # so many kills came in the middle, each later than the one before
    last = hierrouter(*ARGUMENTS, root, cwd=tmp_path)
    assert last.returncode == 0, last.stderr
    assert calls_made(last.stderr) == len(expected) - len(seen)
    assert committed(root) == expected
    assert list((root / "tmp").iterdir()) == []
