"""Trees kept beside a cache: opened without its parts, and never one that is stale or damaged."""

import os
import random
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hierrouter as hr
from hierrouter.questions import scoring
from hierrouter.replay import opening
from hierrouter.replay.inspection import verify_cache
from hierrouter.replay.tree import Tree
from hierrouter_cache import embeddings, parts
from hierrouter_cache import saved_trees as trees
from hierrouter_cache.chain import HASH_RECORD_FILE
from hierrouter_cache.errors import DamagedPart, IncompleteTree
from hierrouter_cache.maintenance import compact, quarantine
from hierrouter_cache.mirror import push
from hierrouter_cache.parts import list_parts, trees_folder
from hierrouter_cache.saved_trees import list_saved_trees
from hierrouter_cache.stores import FolderStore
from hierrouter_cache.tree import StatePart
from hierrouter_cache.writer import PartWriter
from tests.cache.rows import calls
from tests.conftest import environment
from tests.holes import drop_five_leaves_of_three_queries

OPEN = "import sys, hierrouter as hr; print(hr.open(sys.argv[1]).fingerprint)"
HASH = "file_sha16"
TESTBED = Path(hr.load_pool.__code__.co_filename).with_name("testbed.toml").read_text()


Seen = Callable[[Callable[[], Any]], tuple[int, int]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """How many trees one look reads from the parts, and how many files it hashes whole."""
    counts: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        real = getattr(module, name)

        def counted(*arguments: Any) -> Any:
            counts[name] += 1
            return real(*arguments)

        monkeypatch.setattr(module, name, counted)

    for module, name in ((opening, "_read_tree"), (parts, HASH), (embeddings, HASH)):
        count(module, name)

    def of(look: Callable[[], Any]) -> tuple[int, int]:
        counts.clear()
        look()
        return counts["_read_tree"], counts[HASH]

    return of


@pytest.fixture
def cache(cache: Path) -> Path:
    """A copy without the trees of other tests."""
    shutil.rmtree(trees_folder(cache), ignore_errors=True)
    return cache


@pytest.fixture
def kept(cache: Path) -> Path:
    """A cache whose tree is kept; nothing of it was written this moment."""
    hr.open(cache)  # scores and embeds
    settle(cache)
    hr.open(cache)
    assert len(list_saved_trees(cache)) == 1
    return cache


def settle(cache: Path) -> None:
    for file in cache.rglob("*"):
        os.utime(file, (1e9, 1e9))


def files(cache: Path, form: str = "*/emb-*") -> int:
    """How many there are to hash: the parts, and below derived/ those of this form."""
    return len([*cache.glob("parts/*.parquet"), *cache.glob(f"derived/{form}")])


def plain(value: Any) -> Any:
    """What numpy can compare to the last bit, NaN with NaN."""
    if isinstance(value, StatePart):
        return value.is_text, value.vectors[value.row]
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    return [*map(plain, value)] if isinstance(value, tuple) else value


def require_same(one: Tree, other: Tree) -> None:
    np.testing.assert_equal(plain(one), plain(other))
    assert one.score.dtype == other.score.dtype and one.tokens_in.dtype == other.tokens_in.dtype


def require_fresh(cache: Path, **asked: Any) -> Tree:
    """What is opened is what is opened without any tree kept."""
    found = hr.open(cache, **asked)
    shutil.rmtree(trees_folder(cache), ignore_errors=True)
    require_same(found, hr.open(cache, **asked))
    return found


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"state": "query+answer+agreement", "allow_return": True},
        {"models": "facts,calc", "hops": 1, "prices": {"calc": {"in": 1.0, "out": 3.0}}},
        {"scorer": "accuracy", "datasets": "arith,fact", "limit": 7, "state": "stage"},
    ],
    ids=str,
)
def test_a_kept_tree_is_the_tree_and_nothing_is_hashed(
    kept: Path, seen: Seen, asked: dict[str, Any]
) -> None:
    hr.open(kept, **asked)  # another encoder's or view's vectors are made now
    settle(kept)
    hr.open(kept, **asked)
    assert seen(lambda: hr.open(kept, **asked)) == (0, 0)
    require_fresh(kept, **asked)


def test_queries_left_out_are_told_again(kept: Path, seen: Seen) -> None:
    drop_five_leaves_of_three_queries(kept)
    with pytest.raises(IncompleteTree, match="3 of 200 queries lack 5 nodes"):
        hr.open(kept)
    hr.open(kept, allow_incomplete=True)
    assert seen(lambda: hr.open(kept, allow_incomplete=True))[0] == 0
    assert require_fresh(kept, allow_incomplete=True).left_out == 3


def test_a_part_more_is_read_and_the_others_are_not_hashed(kept: Path, seen: Seen) -> None:
    hr.open(kept, models="calc,text")
    step = PartWriter(kept).append("calls", calls(("s", "c", "said")))
    assert seen(lambda: hr.open(kept)) == (1, 1)
    assert len(list_saved_trees(kept)) == 1  # those made of the parts of before are gone
    assert seen(lambda: hr.open(kept)) == (0, 1)  # written this moment, it may change unseen
    os.utime(step, (1e9, 1e9))
    hr.open(kept)
    assert seen(lambda: require_fresh(kept)) == (1, files(kept, "none"))


def test_other_bytes_of_the_same_size_are_damage(kept: Path) -> None:
    part = list_parts(kept)[0].path
    before = part.stat()
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DamagedPart, match="checksum mismatch"):
        hr.open(kept)
    part.unlink()
    with pytest.raises(DamagedPart, match="missing"):
        hr.open(kept)


def test_what_was_touched_copied_or_noted_wrongly_is_hashed_again(
    kept: Path, seen: Seen, tmp_path: Path
) -> None:
    os.utime(list_parts(kept)[0].path, (1e9, 2e9 - 1e9 + 7))
    assert seen(lambda: hr.open(kept)) == (0, 1)
    copy = Path(shutil.copytree(kept, tmp_path / "copy"))
    assert seen(lambda: hr.open(copy)) == (0, files(kept))
    assert seen(lambda: hr.open(copy)) == (0, 0)
    note = trees_folder(copy) / HASH_RECORD_FILE
    for data in (note.read_bytes()[:-1], b"0" * 16 + b"{}", b""):
        note.write_bytes(data)
        assert seen(lambda: hr.open(copy)) == (0, files(kept, "none"))
    assert seen(lambda: verify_cache(copy))[1] == files(kept)


def test_a_pool_file_that_changed_is_seen(kept: Path, seen: Seen, tmp_path: Path) -> None:
    pool = tmp_path / "mine.toml"
    pool.write_text(TESTBED)
    cost = hr.open(kept, pool=pool).cost
    pool.write_text(TESTBED.replace("base_rate = 0.0", "base_rate = 9.0"))
    assert seen(lambda: hr.open(kept, pool=pool)) == (0, 0)
    assert hr.open(kept, pool=pool).cost.sum() > cost.sum()
    pool.write_text(TESTBED.replace("max_new_tokens = ", "max_new_tokens = 9"))
    with pytest.raises(IncompleteTree, match="max_new_tokens changed"):
        hr.open(kept, pool=pool)


def test_another_version_of_scorer_or_code_reads_anew(
    kept: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(scoring.SCORERS_BY_NAME["token_f1"], version="99")
    with monkeypatch.context() as later:
        later.setitem(scoring.SCORERS_BY_NAME, "token_f1", other)  # type: ignore[arg-type]
        assert seen(lambda: hr.open(kept))[0] == 1
    for module, name, value in ((trees, "TREE_FORMAT", 99), (opening, "__version__", "99")):
        hr.open(kept)
        with monkeypatch.context() as later:
            later.setattr(module, name, value)
            assert seen(lambda: hr.open(kept))[0] == 1


def test_a_scorer_without_source_keeps_nothing(
    cache: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nowhere", type(sys)("nowhere"))
    exec("def right(response, references): return 1.0", vars(sys.modules["nowhere"]))
    for _ in range(3):
        assert seen(lambda: hr.open(cache, scorer="nowhere:right"))[0] == 1
    assert list_saved_trees(cache) == []


def test_a_tree_of_another_cache_or_name_is_not_taken(
    kept: Path, seen: Seen, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [ours], other = list_saved_trees(kept), Path(shutil.copytree(kept, tmp_path / "other"))
    drop_five_leaves_of_three_queries(other)
    for _ in range(2):
        hr.open(other, allow_incomplete=True)
    [theirs] = list_saved_trees(other)
    shutil.copy(theirs, ours.parent)
    assert seen(lambda: hr.open(kept)) == (0, 0)
    ours.unlink()
    shutil.copy(theirs, ours.with_name(ours.name[:-22] + theirs.name[-22:]))
    assert seen(lambda: require_fresh(kept))[0] == 2
    assert [record.getMessage().count(": renamed; not used") for record in caplog.records] == [1]


def test_no_damage_is_trusted(kept: Path, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    [file], rng = list_saved_trees(kept), random.Random(5)
    sound, tree = file.read_bytes(), hr.open(kept)
    damaged = [sound[: rng.randrange(len(sound))] for _ in range(5)] + [b"", sound + b"\0"]
    for _ in range(25):
        data = bytearray(sound)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(data))
    for number, data in enumerate(damaged):
        file.write_bytes(data)
        if number % 8 == 0:
            with pytest.raises(DamagedPart, match="damaged tree"):
                verify_cache(kept)
        caplog.clear()
        assert seen(lambda: require_same(hr.open(kept), tree))[0] == 1
        assert ["not used, it is made again" in line for line in caplog.messages] == [True]
        assert file.read_bytes() == sound
    file.write_bytes(sound[:-1])
    assert [name for name, _ in quarantine(kept)] == [file.name]
    file.mkdir()
    require_same(hr.open(kept), tree)


def test_processes_keep_it_at_once(kept: Path) -> None:
    [file] = list_saved_trees(kept)
    sound = file.read_bytes()
    file.unlink()
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: in_a_process(OPEN, kept), range(3)))
    assert {one.stdout.strip() for one in done} == {hr.open(kept).fingerprint}
    assert list_saved_trees(kept) == [file] and file.read_bytes() == sound
    assert not [*kept.glob("tmp/*")]


def in_a_process(code: str, cache: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done


def test_where_nothing_can_be_kept_it_is_opened_all_the_same(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = hr.open(kept)
    folder = trees_folder(kept)
    shutil.rmtree(folder)
    limit = f"import resource; resource.setrlimit({resource.RLIMIT_FSIZE}, (999, 999))\n"
    assert in_a_process(limit + OPEN, kept).stdout.strip() == tree.fingerprint  # a full disk
    assert not [*folder.glob("*"), *kept.glob("tmp/*")]
    with monkeypatch.context() as read_only:
        read_only.setattr(trees, "writable", lambda root: False)  # nothing is refused to root
        require_same(hr.open(kept), tree)
        assert list_saved_trees(kept) == []
    shutil.rmtree(folder)
    folder.write_text("no folder")
    require_same(hr.open(kept), tree)


def test_mirrors_and_merged_parts_have_trees_of_their_own(kept: Path, tmp_path: Path) -> None:
    tree = hr.open(kept)
    push(kept, FolderStore(tmp_path / "mirror"))
    assert not [*(tmp_path / "mirror").glob("derived/**/*.arrow")]
    assert hr.open(tmp_path / "mirror").fingerprint == tree.fingerprint
    compact(kept)
    require_same(require_fresh(kept), tree)


def test_a_few_are_kept(kept: Path) -> None:
    for limit in range(1, 8):
        hr.open(kept, limit=limit)
        assert len(list_saved_trees(kept)) == min(1 + limit, trees.MAX_SAVED_TREES)
