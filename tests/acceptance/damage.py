"""What is done to a place before the command.

A row of the table names a function here and its further arguments. Each takes the place first.
"""

import fcntl
import gzip
import json
import os
import pickle
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hierrouter.pools.files import stored_pool
from hierrouter.questions.shipped import model_path
from hierrouter.replay.inspection import ask_cache
from hierrouter.runs.checkpoint import read_tensors, write_tensors
from hierrouter_cache.parts import Link, sha16
from hierrouter_cache.writer import PartWriter
from tests.acceptance.place import COLLECT, Place, questions
from tests.cache.rows import parquet, put, take, with_column
from tests.holes import drop_calls, drop_five_leaves_of_three_queries

# Parts, embeddings and locks of the collected cache.


def truncated(place: Place) -> None:
    os.truncate(place.part(), place.part().stat().st_size // 2)


def flipped(place: Place) -> None:
    """One bit of one part; the checks are told which."""
    path = place.part()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    place.noted["damaged"] = path.name


def emptied(place: Place) -> None:
    place.part().write_bytes(b"")


def repaired(place: Place) -> None:
    place.does("cache", "repair")


def strays(place: Place) -> None:
    """Files of others in the folder of the parts."""
    for name in (".DS_Store", "README.txt", "x.tmp", "y.csv", "calls-1-x.parquet"):
        (place.parts / name).write_text("stray")


def rewritten(place: Place, kind: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """The first part of a kind, replaced by a changed one with a right name."""
    old = place.part(kind)
    table = change(pq.read_table(old))
    take(old)
    put(place.cache, kind, table, 99)


def set_column(place: Place, kind: str, name: str, value: float | str) -> None:
    """Every row gets this value; a text in a column of numbers makes it one of texts."""

    def change(table: pa.Table) -> pa.Table:
        values = [value] * len(table)
        return with_column(table, name, pa.array(values) if isinstance(value, str) else values)

    rewritten(place, kind, change)


def drop_column(place: Place, kind: str, name: str) -> None:
    rewritten(place, kind, lambda table: table.drop_columns([name]))


def five_nodes_missing_in_three_queries(place: Place) -> None:
    drop_five_leaves_of_three_queries(place.cache)


def parent_missing(place: Place) -> None:
    first = "SELECT call FROM nodes WHERE hop = 1 ORDER BY call LIMIT 1"
    drop_calls(place.cache, set(ask_cache(place.cache, first)["call"].to_pylist()))


def every_row_twice(place: Place) -> None:
    """As after two collectors."""
    writer = PartWriter(place.cache)
    for path in list(place.parts.glob("*.parquet")):
        writer.append(path.name.split("-")[0], pq.read_table(path))


def newer(place: Place) -> None:
    table = pq.read_table(place.part())
    put(place.cache, "calls", parquet(table, b'{"format": 99}'), 99, rows=len(table))


def foreign_parts(place: Place) -> None:
    """Calls, questions and scores of a place where other questions were collected."""
    other = Place(place.home.parent / "elsewhere", place.run, place.server)
    shutil.copytree(place.home, other.home, ignore=shutil.ignore_patterns("caches"))
    file = dataset(other)
    file.write_text(file.read_text().replace("math", "other"))
    other.does(*COLLECT)
    for kind in ("calls", "queries", "scores"):
        shutil.copy(other.part(kind), place.parts)


def plan_of(place: Place, **pool: Any) -> None:
    """The pool of the plan has other values, as others may have written them."""
    table = pq.read_table(place.part("plans"))
    stored = json.loads(table["pool"][0].as_py())
    stored["pool"] |= pool
    changed = with_column(table, "pool", [json.dumps(stored)])
    PartWriter(place.cache).append("plans", with_column(changed, "plan", ["0" * 32]))


def plan_of_routes(place: Place) -> None:
    """Every model at each of twenty hops."""
    plan_of(place, hops=20)


def plan_of_actions(place: Place, actions: int) -> None:
    """So many actions at each of twenty hops."""
    roles = [{"name": f"a{number}", "model": "small"} for number in range(actions)]
    plan_of(place, hops=20, roles=roles)


def plan_of_a_log(place: Place) -> None:
    """The routes are those that the cache has, and its calls follow themselves."""
    stored = json.loads(pq.read_table(place.part("plans"))["pool"][0].as_py())
    pool, identities = stored_pool(json.dumps(stored), "the plan")
    pool = replace(pool, hops=20, as_stored=True)
    parts = place.parts.glob("calls-*.parquet")
    calls = pa.concat_tables([pq.read_table(part) for part in parts])
    # Where a route of the collected tree ends.
    ends = set(calls["outcome"].to_pylist()) - set(calls["context"].to_pylist())
    context = min(ends)
    table = calls.slice(0, len(pool.models))
    for name, values in (
        ("step", list(pool.tree_spec(identities).steps[0])),
        ("key", [f"{number:032}" for number in range(len(table))]),
        ("context", [context] * len(table)),
        ("outcome", [context] * len(table)),
    ):
        table = with_column(table, name, values)
    PartWriter(place.cache).append("calls", table)
    plan_of(place, hops=20, as_stored=True)


def foreign_plan(place: Place) -> None:
    plan = pq.read_table(place.part("plans"))
    header = Link("plans", 99, "a" * 8, "f" * 16, ()).header()
    put(place.cache, "plans", parquet(with_column(plan, "queries", [["0" * 32]]), header), 99)


def held(place: Place) -> None:
    """Another collector is at work."""
    file = (place.cache / "collect.lock").open("a+")
    fcntl.flock(file, fcntl.LOCK_EX)
    file.truncate(0)
    file.write("pid 4711")
    file.flush()
    place.noted["held"] = file  # let go with the row


def left_by_a_dead_collector(place: Place) -> None:
    """Its lock file, and not yet its last part."""
    (place.cache / "collect.lock").write_text("pid 999999999")
    take(place.part())


def clock_set_back(place: Place) -> None:
    """Half of the files get a date a year back."""
    for number, path in enumerate(sorted(place.cache.rglob("*"))):
        past = time.time() - 365 * 24 * 3600 * (number % 2)
        os.utime(path, (past, past))


def link(place: Place) -> None:
    """A link to a file outside, under the name of a part."""
    (place.parts / f"calls-00000098-00000000-r1-{'0' * 16}.parquet").symlink_to("/etc/passwd")


def bomb(place: Place) -> None:
    """A few kilobytes that decode to 20 million rows and 20 GB of text."""
    rows = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1_000_000, np.int8)), ["x" * 1000])
    table, sink = pa.table({"key": rows}), pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema) as writer:
        for _ in range(20):
            writer.write_table(table)
    put(place.cache, "calls", sink.getvalue().to_pybytes(), 98, rows=20_000_000)


def embedding_file(place: Place) -> Path:
    return next((place.cache / "derived").glob("*/emb-*"))


def embeddings_truncated(place: Place) -> None:
    path = embedding_file(place)
    os.truncate(path, path.stat().st_size - 1000)


def embeddings(place: Place, rows: NDArray[Any], beside: bool = False) -> None:
    """These instead of those that are there, or beside them."""
    old, file = embedding_file(place), place.home / "new.npy"
    np.save(file, rows)
    said = json.loads(b'{"encoder"' + old.read_bytes().rpartition(b'{"encoder"')[2])
    if rows.dtype.names:
        said["dim"] = rows.dtype["vector"].shape[0]
    with file.open("ab") as stream:
        stream.write(json.dumps(said).encode())
    if not beside:
        old.unlink()
    name = f"emb-00000000-00000000-r{len(rows)}-{sha16(file.read_bytes())}.npy"
    shutil.move(file, old.with_name(name))


def embeddings_of_another_width(place: Place) -> None:
    embeddings(place, np.zeros(1, [("context", "S32"), ("vector", "<f4", (3,))]), beside=True)


def embeddings_not_finite(place: Place) -> None:
    rows = np.load(embedding_file(place))
    rows["vector"][0] = np.nan
    embeddings(place, rows)


def embeddings_of_something_else(place: Place) -> None:
    embeddings(place, np.full((5, 4), np.nan, np.float32))


def collected(place: Place, name: str) -> None:
    """Another cache, of what data/math.jsonl holds now."""
    place.does("collect", "--pool", "pool.toml", "--datasets", "math", "--cache", name)


# Files that are given for a trained router, made from the one in `trained`.

WEIGHTS = "trained/policy.safetensors"
Tensors = dict[str, NDArray[Any]]


def cut(place: Place, name: str, size: int) -> None:
    """The first `size` bytes of the weights."""
    (place.home / name).write_bytes((place.home / WEIGHTS).read_bytes()[:size])


def weights(place: Place) -> tuple[dict[str, Any], Tensors]:
    """Their description, and themselves."""
    tensors, text = read_tensors(place.home / WEIGHTS)
    return json.loads(text), tensors


def save(place: Place, name: str, description: dict[str, Any], tensors: Tensors) -> None:
    write_tensors(place.home / name, tensors, json.dumps(description))


def of_other_models(place: Place, name: str) -> None:
    description, tensors = weights(place)
    save(place, name, description | {"models": ["coder", "mini", "tiny"]}, tensors)


def of_another_encoder(place: Place, name: str, dim: int) -> None:
    description, tensors = weights(place)
    old, description["shape"]["dim"] = description["shape"]["dim"], dim
    for key, value in tensors.items():
        if value.ndim == 2 and value.shape[1] == old:
            tensors[key] = np.ascontiguousarray(value[:, :dim])
    save(place, name, description, tensors)


def of_routes(place: Place, name: str, layout: dict[str, Any]) -> None:
    """The routes of a router, and those of its network, are what others have written."""
    description, tensors = weights(place)
    description["layout"] = layout
    description["shape"]["layout"] = layout
    save(place, name, description, tensors)


def not_a_number(place: Place, name: str) -> None:
    description, tensors = weights(place)
    tensors["context.weight"][0, 0] = np.nan
    save(place, name, description, tensors)


class _Evil:
    """Makes a file where it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


def pickled(place: Place, name: str) -> None:
    (place.home / name).write_bytes(pickle.dumps(_Evil(place.home / "pwned")))


# The rows of data/math.jsonl, and the same rows as a table.


def dataset(place: Place) -> Path:
    return place.home / "data" / "math.jsonl"


def no_dataset(place: Place) -> None:
    dataset(place).unlink()


def dataset_text(place: Place, text: str) -> None:
    dataset(place).write_text(text)


def line(place: Place, number: int, text: str) -> None:
    """Replace a line, counted from 1."""
    lines = dataset(place).read_text().splitlines()
    lines[number - 1] = text
    dataset(place).write_text("\n".join(lines) + "\n")


def field(place: Place, number: int, key: str, value: Any) -> None:
    """Set a field of the row on this line."""
    line(place, number, json.dumps({**questions("math")[number - 1], key: value}))


def long_question(place: Place, number: int, size: int) -> None:
    field(place, number, "question", "x" * size)


def array(place: Place, indent: int | None = None) -> None:
    """One JSON list instead of a line a row."""
    dataset(place).write_text(json.dumps(questions("math"), indent=indent))


def not_utf_8(place: Place) -> None:
    with dataset(place).open("ab") as file:
        file.write(b'\xff\xfe{"id":1}\n')


def windows_text(place: Place) -> None:
    """As an editor there saves it: a byte order mark and CRLF."""
    data = dataset(place).read_bytes()
    dataset(place).write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))


def compressed(place: Place) -> None:
    dataset(place).write_bytes(gzip.compress(dataset(place).read_bytes()))


def table(place: Place, columns: dict[str, list[Any]] | None = None, without: str = "") -> Path:
    """The rows as Parquet instead, with these columns replaced; the file."""
    rows = questions("math")
    content = {name: [row[name] for row in rows] for name in rows[0]} | (columns or {})
    content.pop(without, None)
    dataset(place).unlink()
    file = dataset(place).with_suffix(".parquet")
    pq.write_table(pa.table(content), file)
    return file


def table_with_a_hole(place: Place) -> None:
    table(place, {"answer": ["1", None, "3", "4", "5", "6"]})


def torn_table(place: Place) -> None:
    file = table(place)
    file.write_bytes(file.read_bytes()[:-20])


# A log: rows that say which row they follow.


def log(place: Place, *rows: dict[str, Any]) -> None:
    """A log of one question as log.jsonl; each row is sound but for what is changed in it."""
    sound = {"query_id": "q0", "question": "What is 1+1?", "action": "solve", "response": "2"}
    write(place, "log.jsonl", "".join(json.dumps({**sound, **row}) + "\n" for row in rows))


def long_log(place: Place, is_action: bool = False) -> None:
    """Two rows of one node; its name, or that of its action, has a megabyte."""
    if is_action:
        log(place, {"node": "a", "action": "x" * 1_000_000})
        return
    name = "\x1b[2J" + "x" * 1_000_000
    log(place, {"node": name}, {"node": name})


def deep_log(place: Place, calls: int) -> None:
    """A log of one route."""
    rows: list[dict[str, Any]] = [{"node": "0"}]
    rows += [{"node": str(number), "parent": str(number - 1)} for number in range(1, calls)]
    log(place, *rows)


def log_of_own_actions(place: Place, rows: int) -> None:
    """A log of one question in which each row has another action, and half of them a parent."""
    first = [{"node": f"{number}", "action": f"a{number}"} for number in range(rows // 2)]
    second = [
        {"node": f"{number}b", "parent": f"{number}", "action": f"b{number}"}
        for number in range(rows // 2)
    ]
    log(place, *first, *second)


def large_log(place: Place, rows: int, draws: bool) -> None:
    """A log of one question in which each row is a draw of one call, or a route of its own."""
    numbers = [str(number) for number in range(rows)]
    columns = {
        "query_id": ["q0"] * rows,
        "question": ["What is 1+1?"] * rows,
        "node": numbers,
        "parent": [None] * rows,
        "action": ["solve"] * rows if draws else numbers,
        "response": numbers,
        "score": [1.0] * rows,
    }
    pq.write_table(pa.table(columns), place.home / "log.parquet")


# Pools, price files and what else lies in the folder.


def write(place: Place, name: str, text: str) -> None:
    (place.home / name).write_text(text)


def folder(place: Place, name: str) -> None:
    (place.home / name).mkdir()


def pool(place: Place, name: str, old: str, new: str, encoding: str = "utf-8") -> None:
    """A file like pool.toml, with the first `old` replaced."""
    text = (place.home / "pool.toml").read_text()
    assert old in text
    (place.home / name).write_text(text.replace(old, new, 1), encoding)


def large_pool(place: Place, name: str, actions: int, instruction: int) -> None:
    """Twenty hops with this many actions, each with an instruction of this many characters."""
    model = '[[models]]\nname = "small"\nmodel = "testbed:calc"\nbase_rate = 1\n'
    entries = "".join(
        f'[[actions]]\nname = "a{number}"\nmodel = "small"\ninstruction = "{"x" * instruction}"\n'
        for number in range(actions)
    )
    if actions == 1:
        entries = entries.replace('"a0"', '"plan"')
    write(place, name, f"[pool]\nhops = 20\n{model}{entries}")


def pool_without_models(place: Place, name: str) -> None:
    text = (place.home / "pool.toml").read_text()
    write(place, name, text[: text.index("[[models]]")])


def local_pool(place: Place, name: str, model: str) -> None:
    """A pool of one model that this machine has to run."""
    write(place, name, f'[[models]]\nname = "a"\nmodel = "{model}"\nbase_rate = 1\n')


def nested(place: Place, name: str) -> None:
    """Lists in lists, deeper than a parser's stack."""
    write(place, name, "models = " + "[" * 100_000)


def model_with_code(place: Place, name: str) -> None:
    """A saved model that brings Python of its own."""
    folder = Path(shutil.copytree(model_path("testbed:calc"), place.home / name))
    config = json.loads((folder / "config.json").read_text()) | {
        "model_type": "evil",
        "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(place.home / 'pwned')!r}, 'w')")


def unwritable(place: Place, name: str) -> None:
    """A folder that nobody may write into; root may anywhere but in /sys."""
    if os.geteuid() == 0:
        (place.home / name).symlink_to("/sys/kernel")
    else:
        (place.home / name).mkdir(mode=0o555)
