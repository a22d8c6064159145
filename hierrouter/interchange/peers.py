"""Formats of others: which module reads or writes each.

In: a format's name, or a file to tell it from. Out: what it holds, as the trees of a cache. Not
covered: what a format looks like; each has a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hierrouter.interchange import llmrouter, routellm, routerbench, table
from hierrouter.interchange.answers import Answer, gather
from hierrouter.interchange.direct import DirectTable
from hierrouter.interchange.formats import IMPORTS, OWN
from hierrouter.interchange.jsonl import HEADER
from hierrouter.interchange.lines import LINES
from hierrouter.interchange.rows import read_rows
from hierrouter.interchange.storing import Imported, Progress, pool_of, store_answers
from hierrouter_cache.errors import InputError
from hierrouter_cache.pricing import Rate

# A file's answers and, where the format says what calls cost, the rate that gives that cost.
Reader = Callable[[Path], tuple[Iterator[Answer], Rate | None]]
Writer = Callable[[DirectTable, Path], None]

READERS: Mapping[str, Reader] = {
    "table": lambda path: (table.read_table(path), None),
    "llmrouter": lambda path: (llmrouter.read_llmrouter(path), None),
    "routerbench": routerbench.read_routerbench,
}
WRITERS: Mapping[str, Writer] = {
    "llmrouter": llmrouter.write_llmrouter,
    "routerbench": routerbench.write_routerbench,
    "routellm": routellm.write_routellm,
}


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
    found, rate = READERS[name](path)
    if rate and rates:
        raise InputError(
            f"a {name} file says what calls cost and has no token counts: --price; leave it out"
        )
    answers = gather(found, seed)
    pool = pool_of(answers, hops)
    if rate:
        rates = dict.fromkeys((model.name for model in pool.models), rate)
    return store_answers(answers, pool, rates, root, on_progress)


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
    if row.get("kind") in tuple(LINES):
        raise InputError(
            f'the header line {{"kind": "{HEADER}", ...}} is gone: {path}; export again'
        )
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
