"""Rows of every kind, small and made up, and caches made of them, for tests of the cache alone."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter_cache.embeddings import EmbeddingStore
from hierrouter_cache.keys import call_key, next_context, references_key, root_context
from hierrouter_cache.parts import METADATA_KEY, ROW_SCHEMAS, Link, listing, part_name
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import Rate, RouteTree, StatePart
from hierrouter_cache.walk import TreeSpec, load_tree, states, stored_scores, walk
from hierrouter_cache.writer import PartWriter, make_cache

QUESTIONS = ("one", "two")
KEYS = [f"q-{question}" for question in QUESTIONS]


def table(kind: str, *rows: tuple[object, ...]) -> pa.Table:
    """Rows of a kind, each with the values of its columns in their order; the last may be left out.

    Those then are null, as they are in parts from before they were added.
    """
    schema = ROW_SCHEMAS[kind]
    named = [dict(zip(schema.names, row, strict=False)) for row in rows]
    return pa.Table.from_pylist(named, schema=schema)


def calls(*made: tuple[str, str, str]) -> pa.Table:
    """(step, context, response) as rows of `calls`."""
    rows = []
    for step, context, response in made:
        key, outcome = call_key(step, context), next_context(context, response)
        rows.append((key, step, context, outcome, step, "p", response, 3, 2, "stop", 0.1))
    return table("calls", *rows)


def queries(*questions: str, answer: str = "yes") -> pa.Table:
    """One row of `queries` a question; its key is `q-<question>`."""
    rows = []
    for name in questions:
        digests = f"q-{name}", root_context(name), references_key([answer])
        rows.append((*digests, name, "d", "test", name, [answer], None))
    return table("queries", *rows)


def scores(of: pa.Table, answer: str = "yes") -> pa.Table:
    """A score of each scorer for each of these calls: 1 where the response is the answer."""
    return table(
        "scores",
        *(
            (row["key"], references_key([answer]), scorer, float(row["response"] == answer))
            for row in of.to_pylist()
            for scorer in ("token_f1", "exact_match")
        ),
    )


def plans(*names: str) -> pa.Table:
    """One plan a name, for a pool and a query of that name."""
    return table("plans", *((name, name, [name]) for name in names))


def with_column(of: pa.Table, name: str, values: list[object] | pa.Array) -> pa.Table:
    """The table with other values in a column; a list is of the column's type."""
    at = of.schema.get_field_index(name)
    if isinstance(values, list):
        values = pa.array(values, of.schema.field(name).type)
    return of.set_column(at, name, values)


def no_utf8(length: int = 1) -> pa.Array:
    """Texts that are none."""
    return pa.array([b"\xff"] * length, pa.binary()).view(pa.string())


def parquet(of: pa.Table, header: bytes | None = None) -> bytes:
    """The bytes of a file, with this header or the table's own."""
    sink = pa.BufferOutputStream()
    pq.write_table(of.replace_schema_metadata({METADATA_KEY: header}) if header else of, sink)
    return bytes(sink.getvalue().to_pybytes())


def put(
    root: Path, kind: str, of: pa.Table | bytes, seq: int = 1, writer: str = "a" * 8, rows: int = 1
) -> Path:
    """A part under a name that fits its bytes, whatever these are; a table tells the rest."""
    make_cache(root)
    if isinstance(of, pa.Table):
        link = Link(kind, seq, writer, min(listing(root).caches), ())
        rows, of = of.num_rows, parquet(of, link.header())
    path = root / "parts" / part_name(kind, seq, writer, rows, of)
    path.write_bytes(of)
    return path


def take(part: Path) -> None:
    """Remove a part, and all that names it, so that nobody misses it."""
    for path in (part, *part.parent.glob("head-*"), *part.parent.glob("seals-*")):
        path.unlink(missing_ok=True)


def spec(models: str, hops: int) -> TreeSpec:
    """One-letter models whose step keys are their names."""
    return TreeSpec(
        models=tuple(models),
        steps=tuple(tuple(models) for _ in range(hops)),
        direct=tuple((name, name) for name in models),
    )


def tree_calls(models: str, hops: int, question: str) -> list[tuple[str, str, str]]:
    """(step, context, response) of a whole tree; a response tells its route."""
    rows = []
    level = [(root_context(question), "")]
    for _ in range(hops):
        following = []
        for context, said in level:
            for model in models:
                response = said + model
                rows.append((model, context, response))
                following.append((next_context(context, response), response))
        level = following
    return rows


def fill(root: Path, models: str = "ab", hops: int = 2, drop: int = 0, scored: bool = True) -> Path:
    """Two questions and their trees in a cache; the right answer is `ab`."""
    made = [row for question in QUESTIONS for row in tree_calls(models, hops, question)]
    store(root, *made[: len(made) - drop], scored=scored)
    return root


def store(root: Path, *made: tuple[str, str, str], scored: bool = True) -> None:
    """The two questions, these calls, and their scores."""
    writer = PartWriter(root)
    writer.append("calls", calls(*made))
    writer.append("queries", queries(*QUESTIONS, answer="ab"))
    if scored:
        writer.append("scores", scores(calls(*made), answer="ab"))


def load(root: Path, models: str = "ab", hops: int = 2, rate: float = 1.0) -> RouteTree:
    """The tree of what `fill` made, priced at `rate` for model a and 1 for the others."""
    reader, pool = CacheReader(root), spec(models, hops)
    forest = walk(reader, pool, KEYS)
    embedded = EmbeddingStore(reader, "test")
    contexts = forest.tree.outcome[:, : pool.layout.inner]
    missing = embedded.missing(contexts)
    if len(missing):
        texts = [state.context for state in states(reader, pool, forest, missing)]
        embedded.append(texts, np.arange(len(missing) * 2, dtype=np.float32).reshape(-1, 2))
    prices = {name: Rate.base(rate if name == "a" else 1.0) for name in models}
    score, accuracy = (stored_scores(reader, forest, name) for name in ("token_f1", "exact_match"))
    parts = (StatePart(embedded.vectors(), embedded.rows(contexts)),)
    return load_tree(reader, pool, forest, parts, "test", prices, score, accuracy, "token_f1")
