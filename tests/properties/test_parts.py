"""Whatever stands in a part under a right name: it is served, or refused in one line."""

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierrouter.collection.files import export_jsonl
from hierrouter.collection.scheduler import fill_cache
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter.replay.inspection import ask_cache, cache_info, verify_cache
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.errors import HierRouterError
from hierrouter_cache.keys import plan_key
from hierrouter_cache.maintenance import compact, damaged_files, quarantine
from hierrouter_cache.mirror import pull
from hierrouter_cache.parts import METADATA_KEY, Link, Part, list_parts, listing
from hierrouter_cache.stores import FolderStore
from tests.cache import rows
from tests.engines import Scripted
from tests.properties.near import TEXT, VALUE, damaged, edited

READERS: dict[str, Callable[[Path], object]] = {
    "info": lambda root: cache_info(root, incomplete=True),
    "verify": lambda root: verify_cache(root, rescore=True),
    "sql": lambda root: ask_cache(root, "SELECT * FROM nodes"),
    "open": lambda root: OpenTree(cache=root).run(),
    "export": lambda root: export_jsonl(root, root.parent / "out.jsonl"),
    "faults": damaged_files,
    "pull": lambda root: pull(FolderStore(root), root.parent / "pulled", lambda *_: None),
    "compact": compact,
    "repair": quarantine,
}
READ_ONLY = ("info", "verify", "sql", "export", "faults", "pull")
HEADERS = (b"[]", b'{"format": Infinity}', b"[" * 10_000, b'{"format": 1e400}', b"\xff")


@cache
def home() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@cache
def sound() -> Path:
    """A cache with three queries, two models and two hops, opened once."""
    root = Path(home().name) / "cache"
    models = tuple(ModelSpec(name, name, rate) for name, rate in (("a", 1.0), ("b", 2.0)))
    queries = [
        Query(f"{number}", "d", f"question {number}", ("1",), fold)
        for number, fold in enumerate(("train", "validation", "test"))
    ]
    fill_cache(Pool(models, 2, ("",), encoder="hashed-ngrams"), queries, root, engines=Scripted())
    OpenTree(cache=root).run()
    return root


@st.composite
def columns(draw: st.DrawFn, sound: pa.Table) -> pa.Table:
    """A table with a few rows or columns that are odd; of types that Arrow can hold."""
    table = sound.slice(0, draw(st.integers(0, len(sound)))) if draw(st.booleans()) else sound
    name = draw(st.sampled_from(table.column_names))
    index, field = table.schema.get_field_index(name), table.schema.field(name)
    if draw(st.booleans()):
        values = table[name].to_pylist()
        if name == "pool" and values:
            values = [json.dumps(draw(edited(json.loads(values[0]))))]
        else:
            values = draw(edited(values, VALUE | TEXT))
    else:
        values = [draw(VALUE)] * len(table)
    try:
        array = pa.array(values, field.type if draw(st.booleans()) else None)
        table = table.set_column(index, field.name, array)
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError, ValueError):
        bad = pa.array([draw(st.binary(max_size=8))] * len(table), pa.binary())
        table = table.set_column(index, field.name, bad.view(pa.string()))
    header = draw(st.sampled_from((None, *HEADERS)))
    return table.replace_schema_metadata(header and {METADATA_KEY: header})


@st.composite
def parts(draw: st.DrawFn) -> tuple[Part, int, bytes]:
    """(the part it replaces, rows that its name says, its bytes)."""
    part = draw(st.sampled_from(list_parts(sound())))
    if draw(st.integers(0, 3)) == 0:
        return part, part.rows, draw(damaged(part.path.read_bytes()))
    table = draw(columns(pq.read_table(part.path)))
    if part.kind == "plans" and len(table) == 1:
        table = _rekeyed(table)
    try:
        cache = min(listing(sound()).caches)
        header = Link(part.kind, part.seq, "a" * 8, cache, ()).header()
        return part, len(table), rows.parquet(table, None if table.schema.metadata else header)
    except (pa.ArrowException, OSError):
        return part, part.rows, b""


def _rekeyed(table: pa.Table) -> pa.Table:
    try:
        row = table.to_pylist()[0]
        key = plan_key(row["pool"], row["queries"])
    except (TypeError, ValueError, KeyError):
        return table
    return rows.with_column(table, "plan", pa.array([key]))


def contents(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "parts").iterdir()}


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(parts(), st.sampled_from(sorted(READERS)))
def test_any_part_is_served_or_refused(odd: tuple[Part, int, bytes], reader: str) -> None:
    part, count, data = odd
    with tempfile.TemporaryDirectory() as folder:
        root = Path(shutil.copytree(sound(), Path(folder) / "cache"))
        rows.take(root / "parts" / part.path.name)
        rows.put(root, part.kind, data, part.seq, rows=count)
        before = contents(root)
        try:
            READERS[reader](root)
        except HierRouterError as error:
            assert str(error)
        if reader in READ_ONLY:
            assert contents(root) == before
        if reader == "repair":
            kept = {path.name: path.read_bytes() for path in root.glob("quarantine/*")}
            assert before.items() <= (contents(root) | kept).items()  # seals came
        assert {path.name for path in Path(folder).iterdir()} <= {"cache", "out.jsonl", "pulled"}


@pytest.mark.parametrize("reader", READERS)
def test_a_sound_cache_is_served(reader: str, tmp_path: Path) -> None:
    """Without this, a property that refuses all would pass."""
    READERS[reader](Path(shutil.copytree(sound(), tmp_path / "cache")))
