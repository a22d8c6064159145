"""Caches and runs that others made: links, odd files, huge numbers, odd shapes."""

import copy
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hierrouter.collection.scheduler import fill_cache
from hierrouter.learning.config import Objective, ValueConfig
from hierrouter.learning.sweep import train_sweep
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.opening import training_tree
from hierrouter.runs import checkpoint
from hierrouter.runs.bundle import load_bundle
from hierrouter.runs.checkpoint import save_checkpoint
from hierrouter.runs.folders import read_record
from hierrouter_cache.embeddings import EmbeddingFile, embedding_fault
from hierrouter_cache.errors import CacheError, HierRouterError
from hierrouter_cache.locks import collector_lock, shards_at_work
from hierrouter_cache.parts import METADATA_KEY, Link, file_sha16, list_parts, listing, part_name
from hierrouter_cache.writer import sweep_drafts
from tests.conftest import Run, spawned
from tests.engines import Scripted
from tests.hostile import resealed

Policies = dict[str, Path]
DEEP = ("[" * 100_000, '{"a":' * 100_000, "1" * 5_000)
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**9, 10**30, 10**400, 1e308, float("nan"), float("inf")),
    *("", "../../x", "\x1b]0;x\x07", "\ud800", [], {}, [[]], {"a": 1}),
)


def test_a_lock_that_is_a_link_empties_no_file(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("collect.lock", "shard-0-of-2.lock"):
        (tmp_path / name).symlink_to(precious)
    with pytest.raises(CacheError, match="not writable"), collector_lock(tmp_path):
        pass
    with pytest.raises(OSError):
        shards_at_work(tmp_path)
    assert precious.read_text() == "mine"


def test_nothing_is_swept_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "draft.tmp").write_text("mine")
    (tmp_path / "tmp").symlink_to(tmp_path / "mine")
    sweep_drafts(tmp_path)
    assert (tmp_path / "mine" / "draft.tmp").exists()


def embedding(folder: Path, rows: np.ndarray) -> EmbeddingFile:
    """A file whose name says what its bytes are."""
    np.save(folder / "x.npy", rows)
    sha = file_sha16(folder / "x.npy")
    path = (folder / "x.npy").rename(folder / f"emb-00000000-00000000-r{len(rows)}-{sha}.npy")
    return EmbeddingFile(path, len(rows), sha)


@pytest.mark.parametrize(
    "dtype",
    [
        [("context", "S1"), ("vector", "<f4", (8,))],
        [("context", "S32"), ("vector", "S4", (8,))],
        [("context", "S32"), ("vector", "<f4")],
        [("context", "S32"), ("vector", "<f4", (2, 4))],
        [("a", "S32"), ("b", "<f4", (8,))],
        "<f8",
    ],
)
def test_rows_of_another_kind_are_not_read_beyond_their_end(tmp_path: Path, dtype: Any) -> None:
    fault = embedding_fault(embedding(tmp_path, np.zeros(3, dtype)))
    assert fault and "expected 3 rows of context and vector" in fault


def test_a_pipe_is_no_embedding_file_and_a_link_is_what_it_leads_to(tmp_path: Path) -> None:
    sound = embedding(tmp_path, np.zeros(3, [("context", "S32"), ("vector", "<f4", (8,))]))
    assert "whose vectors" in (embedding_fault(sound) or "")  # it was read
    (tmp_path / "link").symlink_to(sound.path)
    linked = EmbeddingFile(tmp_path / "link", 3, sound.sha)
    assert embedding_fault(linked) == embedding_fault(sound)
    os.mkfifo(tmp_path / "pipe")  # whoever opened it would wait for ever
    pipe = EmbeddingFile(tmp_path / "pipe", 3, sound.sha)
    assert embedding_fault(pipe) == "not a regular file"
    (tmp_path / "lost").symlink_to("nowhere")
    with pytest.raises(CacheError, match="leads to a file that is not here"):
        embedding_fault(EmbeddingFile(tmp_path / "lost", 3, sound.sha))


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
runpy.run_module("hierrouter_cli", run_name="__main__")
"""


def test_a_text_that_is_said_a_million_times_takes_no_memory(
    testbed_cache: Path, tmp_path: Path
) -> None:
    """100 kB of Parquet that are 190 GB once they are read; its name is that of its bytes."""
    root = shutil.copytree(testbed_cache, tmp_path / "cache")
    part = next(part for part in list_parts(root) if part.kind == "calls")
    first, count = pq.read_table(part.path).slice(0, 1), 1_900_000
    columns = {
        name: pa.nulls(count, value.type)
        if value.null_count
        else pa.array(np.full(count, value[0].as_py()), value.type)
        if value.type != pa.string()
        else said_again("y" * 100_000 if name == "response" else value[0].as_py(), count)
        for name, value in zip(first.column_names, first.columns, strict=True)
    }
    sink = io.BytesIO()
    link = Link("calls", 1, "0" * 8, min(listing(root).caches), ())
    table = pa.table(columns)
    with pq.ParquetWriter(sink, table.schema, compression="zstd", store_schema=False) as file:
        file.write_table(table)
        file.add_key_value_metadata({METADATA_KEY: link.header()})
    data = sink.getvalue()
    assert len(data) < 200_000
    (part.path.parent / part_name("calls", 1, "0" * 8, count, data)).write_bytes(data)
    for command, code in ((["cache", "info"], 0), (["verify"], 3)):
        done = spawned(sys.executable, "-c", LIMITED, *command, "--cache", root)
        assert done.returncode == code, done.stderr
    assert "row 1: outcome is not that of the row's content" in done.stderr


def said_again(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a JSON value something else could stand; of lists, the first item."""
    yield before
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*before, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*before, 0))


def with_odd_values(found: Any) -> Iterator[str]:
    """The same JSON with each odd value at each place, one at a time; then what is none."""
    for place in places(found):
        for odd in ODD:
            changed = copy.deepcopy(found)
            inner = changed
            for name in place[:-1]:
                inner = inner[name]
            if place:
                inner[place[-1]] = odd
            yield json.dumps(changed if place else odd)
    yield from DEEP


def test_any_live_json_is_taken_or_refused(live_run: Path, tmp_path: Path) -> None:
    refused = 0
    for text in with_odd_values(json.loads((live_run / "live.json").read_text())):
        with suppress(ValueError, RecursionError):
            text = resealed(json.loads(text))
        (tmp_path / "live.json").write_text(text)
        try:
            load_bundle(tmp_path)
        except HierRouterError:
            refused += 1
    assert refused > 300


@pytest.fixture(scope="module")
def policies(
    live_run: Path, testbed_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Policies:
    """A network, the value model at one alpha, and at every alpha."""
    tree, folder = (
        training_tree(OpenTree(cache=testbed_cache).run()),
        tmp_path_factory.mktemp("policies"),
    )
    every = train_sweep(tree, (0.0, 0.1), Objective(0.0), ValueConfig(), 0)
    save_checkpoint(every, folder / "every")
    save_checkpoint(every.at(0.1), folder / "one")
    places = {"network": live_run, "value": folder / "one", "values": folder / "every"}
    return {name: place / "policy.safetensors" for name, place in places.items()}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", ["network", "value", "values"])
def test_any_description_of_a_policy_is_taken_or_refused(name: str, policies: Policies) -> None:
    tensors, text = checkpoint.read_tensors(file := policies[name])
    refused = 0
    for odd in with_odd_values(json.loads(text)):
        try:
            checkpoint.rebuild(odd, dict(tensors), file)
        except HierRouterError:
            refused += 1
    assert refused > 300


def test_any_weights_of_a_value_model_are_those_it_can_use_or_refused(policies: Policies) -> None:
    """Of another type, of another shape, or not there: each is said before a question is asked."""
    tensors, text = checkpoint.read_tensors(file := policies["value"])
    for name, held in tensors.items():
        other = np.float32 if held.dtype == np.int64 else np.int64
        wider = np.zeros((*held.shape, 2), dtype=held.dtype)
        changed = [{**tensors, name: odd} for odd in (held.astype(other), wider)]
        for odd in (*changed, {key: tensors[key] for key in tensors if key != name}):
            with pytest.raises(HierRouterError, match="weights and description do not fit"):
                checkpoint.rebuild(text, odd, file)


def test_a_shape_that_is_not_the_weights_takes_no_memory(policies: Policies) -> None:
    shape = json.loads(checkpoint.read_tensors(policies["network"])[1])["shape"]
    many = {"text0.basis": np.empty((20_000_000, 0), np.float32)}
    for name, changed, more, cause in (
        ("network", {"shape": shape | {"hidden": 10**9}}, {}, ""),
        ("network", {"shape": shape | {"stage_dim": 10**9}}, {}, ""),
        ("network", {"shape": shape | {"numbers": 10**9}}, {}, "do not fit"),
        ("network", {"hops": 10**9, "shape": shape | {"hops": 10**9}}, {}, "more nodes"),
        ("value", {"hops": 10**9}, {}, "more nodes"),
        ("value", {"texts": 10**9}, {}, "text1.mean"),
        ("value", {}, many, "do not fit"),
        ("value", {"objective": {"alpha": 0.1, "max_cost": 1.0}}, {}, "max_cost"),
    ):
        tensors, text = checkpoint.read_tensors(file := policies[name])
        told = json.dumps(json.loads(text) | changed)
        with pytest.raises(HierRouterError, match="weights and description do not fit") as refused:
            checkpoint.rebuild(told, {**tensors, **more}, file)
        assert cause in str(refused.value.__cause__)


@pytest.mark.parametrize("text", DEEP)
def test_json_that_has_no_end_is_no_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    for load in (read_record, checkpoint.load_sweep):
        with pytest.raises(HierRouterError, match="damaged"):
            load(tmp_path)


def test_ids_and_names_become_no_path(tmp_path: Path, hierrouter: Run) -> None:
    """Everything is named by hashes; what was written lies below the folder."""
    home = tmp_path / "outer" / "home"
    home.mkdir(parents=True)
    ids = ("../../1", "/tmp/" + "y" * 300, "..", "x/../../../y", "C:\\x")
    queries = [Query(name, "../../x", f"question {name}", ("1",), "train") for name in ids]
    pool = Pool((ModelSpec("a", "../../weights", 1.0),), hops=1, stage_prompts=("",))
    fill_cache(pool, queries, home / "cache", engines=Scripted())
    with pytest.raises(CacheError, match="invalid model path"):
        OpenTree(cache=home / "cache").run()
    for command in (
        ("cache", "export", "--cache", "cache", "--out", "cache.jsonl"),
        ("cache", "import", "cache.jsonl", "--cache", "other"),
    ):
        done = hierrouter(*command, cwd=home)
        assert done.returncode == (2 if "import" in command else 0), done.stderr
    assert "invalid model path with ../" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["outer"]
    assert [path.name for path in home.parent.iterdir()] == ["home"]
    assert not [path for path in home.rglob("*") if path.name == "x" or "y" * 9 in path.name]
