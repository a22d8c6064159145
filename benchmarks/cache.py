"""Open a cache: hash, check, join, dense arrays; against a flat file that promises nothing.

    python benchmarks/cache.py                    21,600 nodes
    python benchmarks/cache.py --nodes 1000000    half a minute to make the rows first

Each side runs in a process of its own, once to warm the disk cache and once to measure: CPU
seconds and peak memory, imports not counted. The alternatives hold one row a (query, node) with
tokens and score and nothing else: no texts, no keys, no hash, so they cannot tell a flipped bit,
another model's answer or another price from the right one.
"""

import argparse
import hashlib
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measuring import versions

from hierrouter_cache.embeddings import EmbeddingStore
from hierrouter_cache.keys import call_key, digest, next_context, references_key, root_context
from hierrouter_cache.maintenance import compact
from hierrouter_cache.parts import CALLS_SCHEMA, PLANS_SCHEMA, QUERIES_SCHEMA, SCORES_SCHEMA
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import Rate, RouteTree, StatePart
from hierrouter_cache.walk import TreeSpec, load_tree, stored_scores, walk
from hierrouter_cache.writer import PartWriter

MODELS = ("a", "b", "c")
HOPS = 2
STEPS = tuple(tuple(digest([level, model]) for model in MODELS) for level in range(HOPS))
SPEC = TreeSpec(MODELS, STEPS, tuple(zip(MODELS, STEPS[0], strict=True)))
SCORERS = ("token_f1@1", "accuracy@1")
ROWS_A_PART = 2_048  # what `collect` writes at most
DIM = 64
ALPHAS = np.linspace(0, 0.02, 10)


class Rows:
    """Columns of one kind, committed part by part."""

    def __init__(self, writer: PartWriter, kind: str, schema: pa.Schema) -> None:
        self.writer, self.kind, self.schema = writer, kind, schema
        self.rows: list[tuple[object, ...]] = []

    def add(self, *row: object) -> None:
        self.rows.append(row)
        if len(self.rows) == ROWS_A_PART:
            self.flush()

    def flush(self) -> None:
        if self.rows:
            names = self.schema.names  # of columns that came later the rows have no values
            rows = [dict(zip(names, row, strict=False)) for row in self.rows]
            self.writer.append(self.kind, pa.Table.from_pylist(rows, schema=self.schema))
            self.rows = []


def make_cache(root: Path, queries: int, text: int) -> None:
    """A whole 3 x 2 tree a query, answers of about `text` characters, two scores a call."""
    rng = random.Random(0)
    letters = "".join(rng.choice("etaoin shrdlu cmfwyp .,") for _ in range(1 << 20))

    def words(length: int) -> str:
        start = rng.randrange(len(letters) - length)
        return letters[start : start + length]

    writer = PartWriter(root)
    calls, scores = (
        Rows(writer, "calls", CALLS_SCHEMA),
        [Rows(writer, "scores", SCORES_SCHEMA) for _ in SCORERS],
    )
    asked, keys = Rows(writer, "queries", QUERIES_SCHEMA), []

    def call(step: str, context: str, references: str) -> str:
        key, response = call_key(step, context), words(rng.randrange(text // 2, text * 3 // 2))
        outcome = next_context(context, response)
        tokens = rng.randrange(50, 500), rng.randrange(20, 400)
        calls.add(key, step, context, outcome, "m", words(60), response, *tokens, "stop", 0.01)
        for scorer, rows in zip(SCORERS, scores, strict=True):
            rows.add(key, references, scorer, rng.random())
        return outcome

    for number in range(queries):
        question, answer = f"{number} {words(150)}", f"answer {number}"
        context, references = root_context(question), references_key([answer])
        keys.append(digest(["query", number]))
        split = ("train", "validation", "test")[number % 3]
        asked.add(keys[-1], context, references, str(number), "d", split, question, [answer], None)
        for step in STEPS[0]:
            outcome = call(step, context, references)
            for following in STEPS[1]:
                call(following, outcome, references)
    for rows in (calls, asked, *scores):
        rows.flush()
    writer.append("plans", pa.table([["plan"], ["{}"], [keys]], schema=PLANS_SCHEMA))
    compact(root)
    _embed(root, keys)


def _embed(root: Path, keys: list[str]) -> None:
    """Random vectors for every state, in one file."""
    reader = CacheReader(root)
    states = reader.sql(
        "SELECT context FROM queries_rows UNION ALL "
        f"SELECT outcome FROM calls_rows WHERE step IN {STEPS[0]}"
    )["context"].to_pylist()
    vectors = np.random.default_rng(0).normal(size=(len(states), DIM)).astype(np.float32)
    EmbeddingStore(reader, "random").append(states, vectors)


def open_ours(root: Path) -> RouteTree:
    """Hash every byte, find every node, join scores and prices, map the embeddings."""
    reader = CacheReader(root)
    forest = walk(reader, SPEC, reader.latest_plan().queries)
    score, accuracy = (stored_scores(reader, forest, scorer) for scorer in SCORERS)
    prices = dict.fromkeys(MODELS, Rate.base(0.003))
    store = EmbeddingStore(reader, "random")
    row = store.rows(forest.tree.outcome[:, : SPEC.layout.inner])
    parts = (StatePart(store.vectors(), row),)
    return load_tree(reader, SPEC, forest, parts, "random", prices, score, accuracy, SCORERS[0])


def make_flat(root: Path, folder: Path) -> None:
    """What the alternatives read: one Parquet file and one DuckDB file of the same numbers."""
    tree = open_ours(root)
    position, node = (grid.ravel() for grid in np.indices(tree.score.shape))
    flat = pa.table(
        {
            "position": position.astype(np.int32),
            "node": node.astype(np.int32),
            "tokens_in": tree.tokens_in.ravel(),
            "tokens_out": tree.tokens_out.ravel(),
            "score": tree.score.ravel(),
            "accuracy": tree.accuracy.ravel(),
        }
    )
    pq.write_table(flat, folder / "flat.parquet", compression="zstd")
    with duckdb.connect(str(folder / "flat.duckdb")) as file:
        file.register("flat", flat)
        file.execute("CREATE TABLE nodes AS SELECT * FROM flat")


def _dense(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    position, node = columns.pop("position"), columns.pop("node")
    shape = (int(position.max()) + 1, int(node.max()) + 1)
    dense = {}
    for name, values in columns.items():
        dense[name] = np.zeros(shape, values.dtype)
        dense[name][position, node] = values
    return dense


def hash_and_scan(root: Path) -> object:
    """The limit: hash the same bytes, scan the same columns, do nothing with them."""
    for path in (*root.glob("parts/*"), *root.glob("derived/*/*")):
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")
    with duckdb.connect() as connection:
        for kind, columns in (
            ("calls", "step, context, outcome, key, tokens_in, tokens_out"),
            ("scores", 'call, "references", scorer, value'),
        ):
            files = f"{root}/parts/{kind}-*.parquet"
            connection.sql(f"SELECT {columns} FROM read_parquet('{files}')").to_arrow_table()
    return None


def open_pyarrow(folder: Path) -> object:
    """Plain pyarrow on one flat file."""
    table = pq.read_table(folder / "flat.parquet")
    return _dense({name: table[name].to_numpy() for name in table.column_names})


def open_duckdb(folder: Path) -> object:
    """A DuckDB database file."""
    with duckdb.connect(str(folder / "flat.duckdb"), read_only=True) as file:
        return _dense(file.sql("SELECT * FROM nodes").fetchnumpy())


def map_embeddings(root: Path) -> object:
    """The largest embedding file, opened."""
    path = max(root.glob("derived/*/emb-*.npy"), key=lambda file: file.stat().st_size)
    return np.load(path, mmap_mode="r")


def sweep(root: Path) -> object:
    """The oracle's reward at ten alphas; loading is not counted."""
    tree = open_ours(root)
    before = _used()[0]
    rewards = [tree.reward(alpha).max(axis=1).mean() for alpha in ALPHAS]
    return {"after_loading": _used()[0] - before, "rewards": rewards}


SIDES: dict[str, Callable[[Path], object]] = {
    "ours": open_ours,
    "limit": hash_and_scan,
    "pyarrow": open_pyarrow,
    "duckdb": open_duckdb,
    "embeddings": map_embeddings,
    "sweep": sweep,
}


def _used() -> tuple[float, float]:
    """CPU seconds, and MB of memory at the peak; ru_maxrss would begin with the parent's."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return usage.ru_utime + usage.ru_stime, int(peak[1]) / 1024 if peak else float("nan")


def measure(side: str, place: Path) -> dict[str, float]:
    """CPU seconds and MB of peak memory of one side, in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--place", str(place)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def run_side(side: str, place: Path) -> None:
    """In the child: what `measure` reads."""
    cpu, memory = _used()
    result = SIDES[side](place)
    after = _used()
    found = {"cpu_s": after[0] - cpu, "mb": after[1] - memory}
    if isinstance(result, dict) and "after_loading" in result:
        found["after_loading"] = result["after_loading"]
    if isinstance(result, RouteTree):
        arrays = (
            *(result.score, result.accuracy, result.tokens_in, result.tokens_out),
            *(part.row for part in result.parts),
        )
        found["arrays_mb"] = sum(array.nbytes for array in arrays) / 2**20
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=21_600)
    parser.add_argument("--text", type=int, default=800, help="characters of an answer, about")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        run_side(args.side, args.place)
        return
    with tempfile.TemporaryDirectory() as scratch:
        root, folder = Path(scratch) / "cache", Path(scratch)
        make_cache(root, -(-args.nodes // 12), args.text)
        make_flat(root, folder)
        size = sum(path.stat().st_size for path in root.glob("parts/*")) / 2**20
        print(versions(np, pa, duckdb))
        print(f"{args.nodes:,} nodes, {len(list(root.glob('parts/*')))} parts, {size:.0f} MB")
        show(root, folder)


def show(root: Path, folder: Path) -> None:
    """Measure every side and print it beside ours."""
    ours = measure("ours", root)
    print(
        f"ours: hashed, checked, joined, dense  {ours['cpu_s']:7.2f} CPU-s {ours['mb']:7.0f} MB "
        f"at most, of it {ours['arrays_mb']:.0f} MB arrays"
    )
    others = (
        ("limit", "the same bytes, hashed and scanned", root),
        ("pyarrow", "flat file, plain pyarrow", folder),
        ("duckdb", "DuckDB file", folder),
    )
    for name, words, place in others:
        other = measure(name, place)
        print(
            f"{words:<36}  {other['cpu_s']:7.2f} CPU-s {other['mb']:7.0f} MB; "
            f"ours takes {ours['cpu_s'] / other['cpu_s']:.1f} times its CPU"
        )
    mapped = measure("embeddings", root)
    print(
        f"embeddings, mapped                    {mapped['cpu_s']:7.2f} CPU-s {mapped['mb']:7.0f} MB"
    )
    swept = measure("sweep", root)["after_loading"]
    print(f"{len(ALPHAS)} alphas over all nodes, loaded      {swept:7.2f} CPU-s")


if __name__ == "__main__":
    main()
