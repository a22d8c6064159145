"""The formats there are.

In: a format's name, or a file to tell it from. Out: its reader or writer. Not covered: what it
looks like; each has a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hierrouter.interchange import llmrouter, routellm, routerbench, table
from hierrouter.interchange.answers import Answer, gather
from hierrouter.interchange.direct import DirectTable
from hierrouter.interchange.lines import HEADER
from hierrouter.interchange.planting import (
    Imported,
    Progress,
    pool_of,
    priced,
    store_answers,
)
from hierrouter.interchange.rows import read_rows
from hierrouter.pool import Pool
from hierrouter_cache.errors import InputError
from hierrouter_cache.pricing import Rate

OWN = "jsonl"


@dataclass(frozen=True)
class Peer:
    """How a format of others is written, and what of a cache it has no place for."""

    write: Callable[[DirectTable, Path], None]
    lost: tuple[str, ...]


READERS: Mapping[str, Callable[[Path], Iterator[Answer]]] = {
    "table": table.read_table,
    "llmrouter": llmrouter.read_llmrouter,
    "routerbench": routerbench.read_routerbench,
}
PEERS: Mapping[str, Peer] = {
    "llmrouter": Peer(llmrouter.write_llmrouter, llmrouter.LOST),
    "routerbench": Peer(routerbench.write_routerbench, routerbench.LOST),
    "routellm": Peer(routellm.write_routellm, routellm.LOST),
}
# Formats that say what a call costs, and so need no prices.
PRICED: Mapping[str, Callable[[Path, Pool, Mapping[str, Rate]], Mapping[str, Rate]]] = {
    "routerbench": routerbench.frame_prices,
}
IMPORTS = (OWN, *READERS)
EXPORTS = (OWN, *PEERS)


def import_answers(
    name: str,
    path: Path,
    root: Path,
    hops: int | None,
    seed: int,
    rates: Mapping[str, Rate],
    on_progress: Progress,
) -> Imported:
    """Read a file in one of `READERS` and store it as the trees of the cache at `root`.

    Args:
        name: of the format.
        path: the file.
        root: the cache's folder, made where it does not exist.
        hops: depth of the trees; None is 2 for independent answers, else the longest chain.
        seed: of the folds that the file does not say.
        rates: cost of a token, by the model's name in the pool.
        on_progress: told ("import", done, total) as queries are written.

    Raises:
        InputError: a bad row, hops or rates; nothing was written.
        CacheError: the cache is damaged, in use by a collector, or cannot be written.
        WorldError: the disk is full or failed.
    """
    answers = gather(READERS[name](path), seed)
    pool = pool_of(answers, hops)
    if name in PRICED:
        rates = PRICED[name](path, pool, rates)
    return store_answers(answers, priced(pool, rates), root, on_progress)


def guess_format(path: Path) -> str:
    """The format whose columns the first row has.

    Raises:
        InputError: not readable, or columns of no known format.
    """
    if path.is_dir():
        return "llmrouter"
    row = next(read_rows(path)).values
    if row.get("kind") == HEADER:
        return OWN
    if {"model_name", "task_name"} <= set(row):
        return "llmrouter"
    if any(name.endswith((routerbench.RESPONSE, routerbench.COST)) for name in row):
        return "routerbench"
    if set(row) & set(table.COLUMNS):
        return "table"
    raise InputError(
        f"columns of no known format: {path}: {', '.join(row):.80}; see docs/interchange.md or "
        f"name one: --format {'|'.join(IMPORTS)}"
    )
