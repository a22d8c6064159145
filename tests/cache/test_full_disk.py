"""A disk that is full, and kill -9 anywhere: nothing acknowledged is lost, torn or doubled."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from benchmarks import killing
from hierrouter_cache.chain import sound_parts
from hierrouter_cache.errors import WorldError
from hierrouter_cache.maintenance import compact
from hierrouter_cache.mirror import pull, push
from hierrouter_cache.parts import ROW_SCHEMAS, list_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.stores import FolderStore
from hierrouter_cache.writer import PartWriter, write_atomically
from tests.cache import rows
from tests.conftest import SOURCES, spawned

MOUNT = 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'
INSIDE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT)


def fill_up(disk: Path) -> dict[str, Any]:
    """Fill a very small disk with parts, try everything that writes, make room, go on."""
    root, crumbs, reserve = disk / "cache", disk / "crumbs", disk / "reserve"
    elsewhere, mirror = disk.with_name(f"{disk.name}-elsewhere"), FolderStore(disk / "mirror")
    reserve.write_bytes(bytes(700_000))
    writer = PartWriter(root)
    for number in range(-3, 0):
        PartWriter(elsewhere).append("calls", part(number))
    done = 0
    while not (error := refusal(writer.append, "calls", part(done))):
        done += 1
    with suppress(OSError), crumbs.open("wb", buffering=0) as file:
        while True:  # take the last bytes of the disk
            file.write(bytes(1024))
    found: dict[str, Any] = {
        "done": done,
        "full": [
            error,
            refusal(compact, root),
            refusal(pull, FolderStore(elsewhere), root),
            refusal(push, elsewhere, mirror),
            refusal(write_atomically, disk / "report.json", bytes(9000)),
        ],
        "tmp": len(list((root / "tmp").iterdir())),
        "parts": len(sound_parts(root)),
        "names": sorted(path.name for path in disk.iterdir()),
    }
    reserve.unlink()
    writer.append("calls", part(done))
    compact(root)
    found["after"] = len(list_parts(root)), len(CacheReader(root).responses())
    found["copied"] = pull(FolderStore(elsewhere), root).copied, push(elsewhere, mirror)
    found["sound"] = len(sound_parts(root)), len(sound_parts(mirror.root))
    return found


def part(number: int) -> pa.Table:
    """Four calls whose text no compression makes smaller."""
    noise = Random(number)
    return rows.calls(*[("m", f"c{number}-{n}", noise.randbytes(4000).hex()) for n in range(4)])


def refusal(step: Callable[..., object], *arguments: object) -> str | None:
    """The message with which a step was refused."""
    try:
        step(*arguments)
    except WorldError as error:
        return str(error)
    return None


def inside(disk: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a tmpfs of 1 MB at `disk`, in a mount namespace of its own."""
    return spawned(*INSIDE, disk, *command, cwd=SOURCES)


def test_a_full_disk_costs_nothing_that_was_committed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        possible = inside(disk, "true")
    except OSError as error:
        pytest.skip(f"no small tmpfs here: {error}")
    if possible.returncode:
        pytest.skip(f"no small tmpfs here: {possible.stderr.strip()}")
    done = inside(disk, sys.executable, "-m", "tests.cache.test_full_disk", str(disk))
    assert done.returncode == 0, done.stderr
    happened = json.loads(done.stdout)
    for message in happened["full"]:
        assert "No space left on device" in message
        assert "\n" not in message
    committed = happened["done"]
    assert committed > 3
    assert (happened["tmp"], happened["parts"]) == (0, committed)
    assert "report.json" not in happened["names"]
    assert not any(name.endswith(".tmp") for name in happened["names"])
    # With room again it goes on; copies that found room before are not made again.
    assert happened["after"] == [1, 4 * (committed + 1)]
    assert all(0 < copied <= 3 for copied in happened["copied"])
    assert happened["sound"] == [1 + 3, 3]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(fill_up(Path(sys.argv[1]))))


BATCHES = 4


@pytest.mark.parametrize("time", [1, 5])
@pytest.mark.parametrize("point", killing.MILESTONES)
def test_a_kill_at_a_named_point_costs_nothing(tmp_path: Path, point: str, time: int) -> None:
    cache = killing.Harness(tmp_path)
    assert cache.run(BATCHES, kill_at=(point, time)) == -9
    assert killing.inspect(tmp_path, cache.acked) == killing.Findings()
    assert cache.run(BATCHES) == 0
    assert killing.inspect(tmp_path, killing.all_parts(BATCHES)) == killing.Findings()
    assert killing.leftovers(tmp_path) == []
    assert killing.rows_stored(tmp_path) == BATCHES * ((len(ROW_SCHEMAS) - 1) * killing.ROWS + 1)
    assert len(list_parts(tmp_path)) == len(ROW_SCHEMAS)


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_random_kills_of_one_cache_cost_nothing(kills: int, tmp_path: Path) -> None:
    cache = killing.Harness(tmp_path)
    moments = random.Random(42)
    for _ in range(kills):
        cache.run_and_kill(moments, milestones=60)
        assert killing.inspect(tmp_path, cache.acked) == killing.Findings()
    assert len(cache.acked) > kills


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
    found = killing.inspect(tmp_path, {*killing.all_parts(1), (1, "plans")})
    assert (found.lost, found.torn, found.wrong, found.older) == (4 + 1, 2, 6, 1)
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    assert killing.inspect(tmp_path, set()) == killing.Findings(unreadable=1)
