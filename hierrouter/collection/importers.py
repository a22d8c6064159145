"""Add the rows of a file of any known format to a cache; the work of `transfer.Import`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hierrouter.collection import files, peers, storing, tables
from hierrouter.collection.formats import IMPORTS, OWN
from hierrouter.collection.transfer import ImportResult
from hierrouter.questions.duplicates import near_duplicates_note
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Rate

# Reads a file's answers and, if the format has costs, the rate at which tokens have these costs.
Reader = Callable[[Path], tuple[Iterator[tables.Answer], Rate | None]]

READERS: Mapping[str, Reader] = {
    "table": lambda path: (tables.read_table(path), None),
    "llmrouter": lambda path: (peers.read_llmrouter(path), None),
    "routerbench": peers.read_routerbench,
}


def import_cache(
    path: Path, root: Path, on_progress: storing.OnProgress = storing.ignore_progress
) -> ImportResult:
    """Add an exported cache, a file in the project's own format, to a cache.

    Args:
        path: the file.
        root: the cache's folder, made if it does not exist.
        on_progress: called with ("check" or "import", done, total).

    Raises:
        InputError: a bad line; nothing was written.
        CacheError: the cache is damaged, in use by a collector, or cannot be written.
        WorldError: the disk is full or failed.
    """
    _, digest = files.read_header(path)
    merge = files.import_jsonl(path, root, on_progress)
    return ImportResult(root, OWN, merge, digest_known=digest is not None)


def import_answers(
    path: Path,
    format: str,
    root: Path,
    hops: int | None,
    seed: int,
    rates: Mapping[str, Rate],
    on_progress: storing.OnProgress = storing.ignore_progress,
) -> ImportResult:
    """Add the answers of models in a file to a cache.

    Args:
        path: the file.
        format: one of `READERS`.
        root: the cache's folder, made if it does not exist.
        hops: of the trees; None is 2, or the hops of the file's chains.
        seed: of the folds, if the file has none.
        rates: prices by name of a model.
        on_progress: called with ("import", done, total).

    Raises:
        InputError: a bad row, or an argument that does not fit the format; nothing was written.
        CacheError: the cache is damaged, in use by a collector, or cannot be written.
        WorldError: the disk is full or failed.
    """
    rows, rate_of_format = READERS[format](path)
    if rate_of_format and rates:
        raise InputError(
            f"a {format} file says what calls cost and has no token counts: --price; leave it out"
        )
    answers = tables.gather(rows, seed)
    pool = storing.pool_of(answers, hops)
    if rate_of_format:
        rates = dict.fromkeys((model.name for model in pool.models), rate_of_format)
    unpriced = not rates and bool(storing.names_without_size(pool))
    pool = storing.with_prices(pool, rates)
    duplicates_note = near_duplicates_note(answers.queries)
    merge = storing.store_answers(answers, pool, root, on_progress)
    return ImportResult(
        root, format, merge, answers, pool, unpriced, duplicates_note=duplicates_note
    )


def guess_format(path: Path) -> str:
    """Recognise the format of a file by the columns of its first row.

    Raises:
        InputError: the file is not readable, or has the columns of no known format.
    """
    if path.is_dir():
        return "llmrouter"
    row = next(tables.read_rows(path)).values
    if row.get("kind") == files.HEADER_KIND:
        return OWN
    if row.get("kind") in tuple(files.LINE_KINDS):
        raise InputError(
            f'the header line {{"kind": "{files.HEADER_KIND}", ...}} is gone: {path}; export again'
        )
    if {"model_name", "task_name"} <= set(row):
        return "llmrouter"
    if any(name.endswith((peers.RESPONSE_SUFFIX, peers.COST_SUFFIX)) for name in row):
        return "routerbench"
    if set(row) & set(tables.TABLE_COLUMNS):
        return "table"
    raise InputError(
        f"columns of no known format: {path}: {', '.join(row):.80}; see docs/interchange.md or "
        f"name one: --format {'|'.join(IMPORTS)}"
    )
