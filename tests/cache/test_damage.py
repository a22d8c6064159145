"""Damage is never silent: whatever happens to a part, the reader refuses it by name."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hierrouter_cache.embeddings import EmbeddingStore
from hierrouter_cache.errors import CacheError, DamagedPart, NoCache
from hierrouter_cache.parts import METADATA_KEY, sha16
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.repair import quarantine
from hierrouter_cache.schema import CALLS
from hierrouter_cache.writer import PartWriter
from tests.cache import rows


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return PartWriter(tmp_path).append(
        "calls", rows.calls(*[("m", f"c{i}", "r") for i in range(9)])
    )


def damage(kind: str, part: Path) -> None:
    data = bytearray(part.read_bytes())
    middle = len(data) // 2
    if kind == "flip":
        data[middle] ^= 1
    elif kind == "truncate":
        del data[middle:]
    elif kind == "zero block":
        data[middle : middle + 64] = bytes(64)
    elif kind == "empty":
        data.clear()
    part.write_bytes(data)


@pytest.mark.parametrize("kind", ["flip", "truncate", "zero block", "empty"])
def test_damage_is_named(tmp_path: Path, part: Path, kind: str) -> None:
    damage(kind, part)
    with pytest.raises(DamagedPart, match=rf"damaged part: {part.name}.*cache repair"):
        CacheReader(tmp_path)


def test_every_single_bit_matters(tmp_path: Path, part: Path) -> None:
    sound = part.read_bytes()
    for position in np.random.default_rng(0).choice(len(sound), 100, replace=False):
        data = bytearray(sound)
        data[position] ^= 1 << (position % 8)
        part.write_bytes(data)
        with pytest.raises(DamagedPart):
            CacheReader(tmp_path)
    part.write_bytes(sound)
    CacheReader(tmp_path)


def test_a_symlink_is_no_part(tmp_path: Path, part: Path) -> None:
    outside = tmp_path / "outside.parquet"
    part.rename(outside)
    part.symlink_to(outside)
    with pytest.raises(DamagedPart, match="not a regular file"):
        CacheReader(tmp_path)


def forge(folder: Path, table: pa.Table, header: bytes = b'{"format": 1}') -> None:
    """A part with a right hash but other content than we write."""
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: header}), sink)
    data = memoryview(sink.getvalue())
    name = f"calls-00000001-00000000-r{table.num_rows}-{sha16(data)}.parquet"
    (folder / name).write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    PartWriter(tmp_path)
    return tmp_path / "parts"


def test_a_missing_column_is_named(tmp_path: Path, folder: Path) -> None:
    forge(folder, rows.calls(("m", "c", "r")).drop_columns(["tokens_in"]))
    with pytest.raises(DamagedPart, match="column tokens_in is missing"):
        CacheReader(tmp_path)


def test_a_column_of_another_type_is_named(tmp_path: Path, folder: Path) -> None:
    index = CALLS.get_field_index("tokens_in")
    table = rows.calls(("m", "c", "r"))
    forge(folder, table.set_column(index, "tokens_in", pa.array([3.5])))
    with pytest.raises(DamagedPart, match="tokens_in has type double, not int32"):
        CacheReader(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path, folder: Path) -> None:
    forge(folder, rows.calls(("m", "c", "r")), b'{"format": 99}')
    with pytest.raises(CacheError, match=r"newer version \(format 99"):
        CacheReader(tmp_path)


def test_a_further_column_is_welcome(tmp_path: Path, folder: Path) -> None:
    forge(folder, rows.calls(("m", "c", "r")).append_column("judge", pa.array(["x"])))
    assert len(CacheReader(tmp_path).responses()) == 1


def test_strangers_are_ignored(tmp_path: Path, part: Path) -> None:
    for name in (".DS_Store", "README.txt", "x.tmp", "y.csv", "calls-1.parquet"):
        (part.parent / name).write_text("stranger")
    assert len(CacheReader(tmp_path).responses()) == 9


def test_no_cache_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(NoCache, match=r"no cache: .*nowhere; .*hierrouter collect"):
        CacheReader(tmp_path / "nowhere")


def test_repair_moves_the_damaged_and_keeps_the_others(tmp_path: Path, part: Path) -> None:
    other = PartWriter(tmp_path).append("calls", rows.calls(("m", "other", "r")))
    damage("flip", part)
    assert quarantine(tmp_path) == [(part.name, "checksum mismatch")]
    assert (tmp_path / "quarantine" / part.name).exists()
    assert [found.path for found in CacheReader(tmp_path).parts] == [other]


def test_damaged_embeddings_are_named(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path, "e")
    store.append(["a" * 32, "b" * 32], np.ones((2, 4), np.float32))
    (file,) = store.folder.iterdir()
    damage("flip", file)
    with pytest.raises(DamagedPart, match=file.name):
        EmbeddingStore(tmp_path, "e")
