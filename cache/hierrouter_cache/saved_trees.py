"""Opened trees, saved beside the cache as dense as they are in memory, one file each.

The name of a file has a digest of the request for the tree, a digest of its sources, and the hash
of the file's bytes; the first two are repeated inside. All of it is derived data: a file that is
damaged, or made from other sources, is never used, and the tree is built again.
"""

import contextlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter_cache.errors import WorldError, reason_of
from hierrouter_cache.layout import Layout
from hierrouter_cache.parts import METADATA_KEY, sha16, trees_folder
from hierrouter_cache.reader import as_arrow
from hierrouter_cache.tree import CALL_MEASURES, DirectCalls, RouteTree, StatePart
from hierrouter_cache.writer import writable, write_derived

LOGGER = logging.getLogger(__name__)
TREE_FORMAT = 5  # increase it when a tree of the same cache could have another content
TREE_NAME_PATTERN = re.compile(
    r"tree-(?P<key>[0-9a-f]{32}-[0-9a-f]{32})-(?P<sha>[0-9a-f]{16})\.arrow"
)
MAX_SAVED_TREES = 4  # the newest ones are kept
# Attributes of a `RouteTree` that are stored as JSON.
JSON_ATTRIBUTES = (
    *("models", "callers", "query_ids", "datasets", "splits"),
    *("scorer", "content", "shared_time"),
)
# Measures that most trees have not; they are stored only if they are not 0.
RARE_MEASURES = ("tokens_cached", "tokens_thoughts")
# Arrays [queries, nodes] of trees with several draws of a call, or with missing nodes.
LAYOUT_MEASURES = ("weight", "same_call", "can_end")
Facts = Mapping[str, Any]  # JSON
GetVectors = Callable[[int], NDArray[np.float32]]  # vectors of the part with this number


def list_saved_trees(root: Path) -> list[Path]:
    """Return the files of all trees that are saved beside a cache, in name order."""
    files = trees_folder(root).glob("tree-*")
    return sorted(path for path in files if TREE_NAME_PATTERN.fullmatch(path.name))


def saved_tree_fault(path: Path) -> str | None:
    """Return what is wrong with a saved tree, or None; reads every byte.

    A file that does not exist any more is not at fault.
    """
    try:
        _read_checked(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        return str(error)
    return None


def _read_checked(path: Path) -> tuple[NDArray[np.uint8], pa.RecordBatch, dict[str, Any]]:
    """Read a saved tree, and check that it is what its name says.

    Returns:
        (bytes of the file, its rows in this memory, its facts).

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it is damaged or renamed.
    """
    match = TREE_NAME_PATTERN.fullmatch(path.name)
    try:
        if not match or not path.is_file():
            path.stat()  # raises FileNotFoundError
            raise ValueError("not a regular file of ours")
        # The file is read and not mapped. So the bytes stay as they were hashed, and a bad sector
        # causes an error and not a crash.
        data = np.frombuffer(path.read_bytes(), np.uint8)
        if sha16(data.data) != match["sha"]:
            raise ValueError("checksum mismatch")
        rows = pa.ipc.open_file(pa.py_buffer(data)).get_batch(0)
        rows.validate(full=True)
        facts = json.loads(rows.schema.metadata[METADATA_KEY])
        if facts.pop("key") != match["key"]:
            raise ValueError("renamed")
        return data, rows, facts
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(reason_of(error, 80)) from error


def load_tree(
    root: Path, request: str, sources: str, vectors: GetVectors
) -> tuple[RouteTree, Facts] | None:
    """Load a saved tree; a damaged one is logged and deleted.

    Args:
        root: the cache's folder.
        request: 32 hexadecimal digits, as passed to `save_tree`.
        sources: 32 hexadecimal digits, as passed to `save_tree`.
        vectors: returns the vectors of the text part with this number.

    Returns:
        (the tree without prices, the facts that were saved with it); None if there is none.

    Raises:
        Exception: what `vectors` raises.
    """
    for path in trees_folder(root).glob(f"tree-{request}-{sources}-*.arrow"):
        try:
            data, rows, facts = _read_checked(path)
            return _tree_of_rows(data, rows, facts, vectors), facts
        except FileNotFoundError:
            continue  # another process has deleted it
        except (ValueError, TypeError, KeyError) as error:
            LOGGER.warning(
                "damaged: %s: %s; not used, it is made again", path, reason_of(error, 80)
            )
            with contextlib.suppress(OSError):
                path.unlink()
    return None


def save_tree(root: Path, request: str, sources: str, tree: RouteTree, facts: Facts) -> None:
    """Save a tree; if that fails, nothing is lost but time.

    Trees from other sources are deleted, and the oldest ones if there are too many.

    Args:
        root: the cache's folder.
        request: digest of the requested tree and of the way to compute it.
        sources: digest of the parts and vectors that it was made from.
        tree: the tree.
        facts: what else to save with it.
    """
    if not writable(root):
        return
    table = _table_of_tree(tree, {**facts, "key": f"{request}-{sources}", "whole": len(tree)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    data = memoryview(sink.getvalue())
    path = trees_folder(root) / f"tree-{request}-{sources}-{sha16(data)}.arrow"
    with contextlib.suppress(OSError, WorldError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_derived(root, path, [data])
        others = [other for other in list_saved_trees(root) if other != path]
        others.sort(key=lambda other: other.stat().st_mtime_ns, reverse=True)
        same_sources = [other for other in others if f"-{sources}-" in other.name]
        for other in set(others).difference(same_sources[: MAX_SAVED_TREES - 1]):
            other.unlink()


def _table_of_tree(tree: RouteTree, facts: Facts) -> pa.Table:
    """Return a table with one row for each query; the pruned queries come last."""
    combined = tree.with_pruned()
    columns: dict[str, pa.Array] = {}
    for number, calls in enumerate((combined, combined.direct)):
        for name in CALL_MEASURES:
            values: NDArray[Any] = getattr(calls, name)
            if values.shape[1] and (name not in RARE_MEASURES or values.any()):
                columns[f"{name} {number}"] = _list_column(values)
    part_shapes: list[tuple[bool, int]] = []
    for number, part in enumerate(combined.parts):
        part_shapes.append((part.is_text, part.row.shape[1]))
        values = part.row
        if not part.is_text:  # the vectors of texts are in the files of embeddings
            values = part.vectors[part.row].reshape(len(combined), -1)
        if values.shape[1]:
            columns[f"part {number}"] = _list_column(values)
    for name in LAYOUT_MEASURES:
        values = getattr(combined, name)
        if values is not None:
            columns[name] = _list_column(values.astype(np.float64))
    # Texts are stored as JSON: Arrow would import pandas to make columns of them, and would read
    # them no faster.
    attributes = {name: getattr(combined, name) for name in JSON_ATTRIBUTES}
    description = {
        "tree": attributes,
        "layout": combined.layout.as_object(),
        "direct": combined.direct.models,
        "parts": part_shapes,
    }
    metadata = json.dumps({**facts, **description})
    return pa.table(columns).replace_schema_metadata({METADATA_KEY: metadata})


def _list_column(rows: NDArray[Any]) -> pa.Array:
    """Return an Arrow column of lists of equal length, from an array of shape [queries, width]."""
    return pa.FixedSizeListArray.from_arrays(as_arrow(rows.ravel()), rows.shape[1])


def _tree_of_rows(
    data: NDArray[np.uint8], batch: pa.RecordBatch, facts: dict[str, Any], vectors: GetVectors
) -> RouteTree:
    """Return the tree that the rows of a file describe; its arrays are views of the file's bytes.

    Args:
        data: bytes of the file.
        batch: the rows in these bytes.
        facts: the file's facts; those that describe the tree are removed from it.
        vectors: returns the vectors of the text part with this number.
    """

    def column(name: str) -> NDArray[Any]:
        """Return [queries, width]; numbers of width 0 have no column."""
        if name not in batch.schema.names:
            return np.empty((len(batch), 0), np.float32)
        values = batch[name].values
        type_letter = "f" if pa.types.is_floating(values.type) else "i"
        dtype = np.dtype(f"{type_letter}{values.type.byte_width}")
        start = values.buffers()[1].address - data.ctypes.data
        flat: NDArray[Any] = data[start : start + len(values) * dtype.itemsize].view(dtype)
        return flat.reshape(len(batch), -1)

    def measures(number: int) -> dict[str, Any]:
        stored = set(batch.schema.names)
        return {
            name: column(f"{name} {number}")
            for name in CALL_MEASURES
            if name not in RARE_MEASURES or f"{name} {number}" in stored
        }

    parts = []
    for number, (is_text, states) in enumerate(facts.pop("parts")):
        values = column(f"part {number}")
        if is_text:
            parts.append(StatePart(vectors(number), values, is_text))
        else:
            numbers = values.reshape(len(batch) * states, values.shape[1] // states)
            row = np.arange(len(numbers)).reshape(-1, states)
            parts.append(StatePart(numbers, row, is_text))
    attributes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in facts.pop("tree").items()
    }
    direct_models = tuple(facts.pop("direct"))
    direct = DirectCalls(direct_models, **measures(1), rate=np.zeros((len(direct_models), 2)))
    weight = column("weight") if "weight" in batch.schema.names else None
    can_end = column("can_end") > 0 if "can_end" in batch.schema.names else None
    same_call = column("same_call").astype(np.int64) if "same_call" in batch.schema.names else None
    tree = RouteTree(
        **attributes,
        **measures(0),
        layout=Layout.from_object(facts.pop("layout")),
        weight=weight,
        same_call=same_call,
        can_end=can_end,
        rate=np.zeros((len(attributes["models"]), 2)),
        parts=tuple(parts),
        direct=direct,
    )
    complete_queries = facts.pop("whole")  # the queries after these are pruned
    if complete_queries == len(batch):
        return tree
    rows = np.arange(len(batch))
    pruned = tree.select(rows[complete_queries:])
    return replace(tree.select(rows[:complete_queries]), pruned=pruned)
