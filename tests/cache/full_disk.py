"""Run a cache into a full disk and out again; prints what happened as JSON.

    python -m tests.cache.full_disk FOLDER

FOLDER is an empty, very small file system of its own. See `test_full_disk`.
"""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from hierrouter_cache.errors import WorldError
from hierrouter_cache.maintenance import compact
from hierrouter_cache.mirror import pull, push
from hierrouter_cache.parts import list_parts, sound_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.stores import FolderStore
from hierrouter_cache.writer import PartWriter, write_atomically
from tests.cache import rows


def main(disk: Path) -> None:
    """Fill the disk with parts, try everything that writes, make room, go on."""
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
        "full": {
            "append": error,
            "compact": refusal(compact, root),
            "pull": refusal(pull, FolderStore(elsewhere), root),
            "push": refusal(push, elsewhere, mirror),
            "file": refusal(write_atomically, disk / "report.json", bytes(9000)),
        },
        "tmp": len(list((root / "tmp").iterdir())),
        "parts": len(sound_parts(root)),
        "names": sorted(path.name for path in disk.iterdir()),
    }
    reserve.unlink()
    writer.append("calls", part(done))
    compact(root)
    found["after"] = {"parts": len(list_parts(root)), "rows": len(CacheReader(root).responses())}
    found["copied"] = pull(FolderStore(elsewhere), root).copied, push(elsewhere, mirror)
    found["sound"] = len(sound_parts(root)), len(sound_parts(mirror.root))
    sys.stdout.write(json.dumps(found))


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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
