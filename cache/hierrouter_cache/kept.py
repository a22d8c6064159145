"""Trees kept beside the cache that they were made of, one file each, as dense as they are opened.

A file's name says what was asked for, of what it was made, and the hash of its bytes; inside it
says the first two again. All is derived: a file that is damaged, or made of something else, is
never used, and made again.
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
from hierrouter_cache.parts import METADATA_KEY, sha16, trees_folder
from hierrouter_cache.reader import as_arrow
from hierrouter_cache.tree import MEASURED, DirectCalls, RouteTree, StatePart
from hierrouter_cache.writer import writable, write_derived

LOG = logging.getLogger(__name__)
FORMAT = 1  # raise it whenever a tree of the same cache could come out otherwise
NAME = re.compile(r"tree-(?P<key>[0-9a-f]{32}-[0-9a-f]{32})-(?P<sha>[0-9a-f]{16})\.arrow")
KEPT = 4  # trees at most, the last ones made
KNOWN = ("models", "hops", "query_ids", "datasets", "splits", "scorer", "content")
Facts = Mapping[str, Any]  # JSON


def kept_trees(root: Path) -> list[Path]:
    """All trees that are kept beside a cache."""
    return sorted(path for path in trees_folder(root).glob("tree-*") if NAME.fullmatch(path.name))


def tree_fault(path: Path) -> str | None:
    """What is wrong with a kept tree, or None; reads every byte. One that is gone is not wrong."""
    try:
        _checked(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        return str(error)
    return None


def _checked(path: Path) -> tuple[NDArray[np.uint8], pa.RecordBatch, dict[str, Any]]:
    """The bytes, their rows and facts; raises ValueError: they are not what the name says."""
    name = NAME.fullmatch(path.name)
    try:
        if not name or path.is_symlink() or not path.is_file():
            path.lstat()
            raise ValueError("not a regular file of ours")
        # Read and not mapped: what was hashed stays so, and a bad sector is an error and no crash.
        data = np.frombuffer(path.read_bytes(), np.uint8)
        if sha16(data.data) != name["sha"]:
            raise ValueError("checksum mismatch")
        rows = pa.ipc.open_file(pa.py_buffer(data)).get_batch(0)
        rows.validate(full=True)
        facts = json.loads(rows.schema.metadata[METADATA_KEY])
        if facts.pop("key") != name["key"]:
            raise ValueError("renamed")
        return data, rows, facts
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(reason_of(error, 80)) from error


def load_kept(
    root: Path, asked: str, made: str, vectors: Callable[[int], NDArray[np.float32]]
) -> tuple[RouteTree, Facts] | None:
    """The tree that was kept, without prices, and what was kept with it; None where there is none.

    One that is damaged is told to the log. Raises what `vectors` raises.

    Args:
        asked, made: 32 hexadecimal digits each, as given to `keep_tree`.
        vectors: those of the text part of this number.
    """
    for path in trees_folder(root).glob(f"tree-{asked}-{made}-*.arrow"):
        try:
            data, rows, facts = _checked(path)
            return _tree(data, rows, facts, vectors), facts
        except FileNotFoundError:
            continue  # another process has taken it away
        except (ValueError, TypeError, KeyError) as error:
            LOG.warning("damaged: %s: %s; not used, it is made again", path, reason_of(error, 80))
            with contextlib.suppress(OSError):
                path.unlink()
    return None


def keep_tree(root: Path, asked: str, made: str, tree: RouteTree, facts: Facts) -> None:
    """Keep a tree; where that fails nothing is lost.

    Args:
        asked: digest of what was asked for, and how it is computed.
        made: digest of the parts and vectors that it was made of.
        facts: what else is to be kept of it.
    """
    if not writable(root):
        return
    table = _table(tree, {**facts, "key": f"{asked}-{made}", "whole": len(tree)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    data = memoryview(sink.getvalue())
    path = trees_folder(root) / f"tree-{asked}-{made}-{sha16(data)}.arrow"
    with contextlib.suppress(OSError, WorldError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_derived(root, path, [data])
        others = [old for old in kept_trees(root) if old != path]
        others.sort(key=lambda old: old.stat().st_mtime_ns, reverse=True)
        ours = [old for old in others if f"-{made}-" in old.name]
        for old in set(others).difference(ours[: KEPT - 1]):
            old.unlink()


def _table(tree: RouteTree, facts: Facts) -> pa.Table:
    """A row a query, those that stand apart last."""
    every, columns, shape = tree.with_pruned(), dict[str, pa.Array](), list[tuple[bool, int]]()
    for at, calls in enumerate((every, every.direct)):
        columns |= {f"{name} {at}": _listed(getattr(calls, name)) for name in MEASURED}
    for at, part in enumerate(every.parts):
        shape.append((part.is_text, part.row.shape[1]))
        seen = part.row if part.is_text else part.vectors[part.row].reshape(len(every), -1)
        if seen.shape[1]:
            columns[f"part {at}"] = _listed(seen)
    # Arrow would import pandas to make columns of texts, and reads them no faster.
    known = {name: getattr(every, name) for name in KNOWN}
    said = json.dumps({**facts, "tree": known, "direct": every.direct.models, "parts": shape})
    return pa.table(columns).replace_schema_metadata({METADATA_KEY: said})


def _listed(rows: NDArray[Any]) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(as_arrow(rows.ravel()), rows.shape[1])


def _tree(
    data: NDArray[np.uint8],
    batch: pa.RecordBatch,
    facts: dict[str, Any],
    vectors: Callable[[int], NDArray[np.float32]],
) -> RouteTree:
    """The tree in these bytes, not copied; takes what makes it up out of `facts`."""

    def column(name: str) -> NDArray[Any]:
        """[queries, width]: the bytes themselves; numbers of width 0 have no column."""
        if name not in batch.schema.names:
            return np.empty((len(batch), 0), np.float32)
        values = batch[name].values
        of = "f" if pa.types.is_floating(values.type) else "i"
        kind = np.dtype(f"{of}{values.type.byte_width}")
        start = values.buffers()[1].address - data.ctypes.data
        flat: NDArray[Any] = data[start : start + len(values) * kind.itemsize].view(kind)
        return flat.reshape(len(batch), -1)

    def measured(at: int) -> dict[str, Any]:
        return {name: column(f"{name} {at}") for name in MEASURED}

    parts = []
    for at, (is_text, states) in enumerate(facts.pop("parts")):
        seen = column(f"part {at}")
        if not is_text:
            numbers = seen.reshape(len(batch) * states, seen.shape[1] // states)
            seen = np.arange(len(numbers)).reshape(-1, states)
        parts.append(StatePart(vectors(at) if is_text else numbers, seen, is_text))
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in facts.pop("tree").items()
    }
    alone = tuple(facts.pop("direct"))
    direct = DirectCalls(alone, **measured(1), rate=np.zeros((len(alone), 2)))
    free = np.zeros((len(known["models"]), 2))
    tree = RouteTree(**known, **measured(0), rate=free, parts=tuple(parts), direct=direct)
    rows, whole = np.arange(len(batch)), facts.pop("whole")
    if whole == len(batch):
        return tree
    return replace(tree.select(rows[:whole]), pruned=tree.select(rows[whole:]))
