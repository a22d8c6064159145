"""Run a cache into a full disk and out again; prints what happened as JSON.

    python -m tests.cache.full_disk FOLDER

FOLDER is an empty, very small file system of its own. See `test_full_disk`.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

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
    reserve = disk / "reserve"
    reserve.write_bytes(bytes(700_000))
    root = disk / "cache"
    writer = PartWriter(root)
    elsewhere = disk.with_name(f"{disk.name}-elsewhere")
    for number in range(-3, 0):
        PartWriter(elsewhere).append("calls", part(number))
    done = 0
    while not (error := refusal(writer.append, "calls", part(done))):
        done += 1
    (disk / "crumbs").write_bytes(b"")
    fill(disk / "crumbs")
    full = {
        "append": error,
        "compact": refusal(compact, root),
        "pull": refusal(pull, FolderStore(elsewhere), root),
        "push": refusal(push, elsewhere, FolderStore(disk / "mirror")),
        "file": refusal(write_atomically, disk / "report.json", bytes(9000)),
    }
    state = {"tmp": len(list((root / "tmp").iterdir())), "parts": len(sound_parts(root))}
    names = sorted(path.name for path in disk.iterdir())
    reserve.unlink()
    writer.append("calls", part(done))
    compact(root)
    after = {"parts": len(list_parts(root)), "rows": len(CacheReader(root).responses())}
    pulled = pull(FolderStore(elsewhere), root).copied
    copied = pulled, push(elsewhere, FolderStore(disk / "mirror"))
    mirrored = {
        "copied": copied,
        "sound": len(sound_parts(root)) + len(sound_parts(disk / "mirror")),
    }
    found = {"done": done, "full": full, "state": state, "names": names, "after": after}
    found["mirrored"] = mirrored
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


def fill(path: Path) -> None:
    """Take the last bytes of the disk."""
    try:
        with path.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(1024))
    except OSError:
        return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
