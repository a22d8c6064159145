"""The order of system calls that makes a power cut harmless, recorded from real runs."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hierrouter_cache.maintenance import compact
from hierrouter_cache.parts import list_parts
from hierrouter_cache.writer import PartWriter, draft_path, write_atomically
from tests.cache import rows

FILES = Path("/proc/self/fd")

pytestmark = pytest.mark.skipif(not FILES.is_dir(), reason="needs /proc to name open files")

Event = tuple[str, Path]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """(what, file or folder) of every system call that changes the disk, in order."""
    seen: list[Event] = []

    def record(name: str, path_of: Callable[..., Path]) -> None:
        real = getattr(os, name)

        def call(*args: Any, **more: Any) -> Any:
            path = path_of(*args)
            done = real(*args, **more)
            seen.append((name, path))
            return done

        monkeypatch.setattr(os, name, call)

    for name in ("write", "fsync"):
        record(name, lambda descriptor, *_: (FILES / str(descriptor)).readlink())
    for name in ("replace", "rename"):
        record(name, lambda source, target: Path(target))
    record("unlink", Path)
    return seen


def placed(draft: Path, target: Path) -> list[Event]:
    """A file is synced before it is visible, and its folder after."""
    return [("write", draft), ("fsync", draft), ("replace", target), ("fsync", target.parent)]


def test_a_part_is_synced_before_it_is_visible_and_the_folder_after(
    tmp_path: Path, events: list[Event]
) -> None:
    writer = PartWriter(tmp_path)
    events.clear()
    part = writer.append("calls", rows.calls(("m", "c", "r")))
    assert events == placed(draft_path(tmp_path, part.name), part)


def test_so_is_any_file_written_atomically(tmp_path: Path, events: list[Event]) -> None:
    write_atomically(tmp_path / "report.json", b"{}")
    draft = events[0][1]
    assert draft.parent == tmp_path
    assert events == placed(draft, tmp_path / "report.json")


def test_the_name_of_every_new_folder_is_synced(tmp_path: Path, events: list[Event]) -> None:
    root = tmp_path / "caches" / "default"
    PartWriter(root)
    assert {path for _, path in events} == {tmp_path, root.parent, root}
    assert {what for what, _ in events} == {"fsync"}


def test_sources_go_after_the_merged_part_is_safe_largest_first(
    tmp_path: Path, events: list[Event]
) -> None:
    writer = PartWriter(tmp_path)
    sources = [writer.append("calls", rows.calls(("m", f"c{n}", "r"))) for n in range(4)]
    events.clear()
    compact(tmp_path)
    (merged,) = [part.path for part in list_parts(tmp_path)]
    assert [(what, path) for what, path in events if path.name != "collect.lock"] == [
        *placed(draft_path(tmp_path, merged.name), merged),
        *(("unlink", path) for path in reversed(sources)),
        ("fsync", merged.parent),
    ]
