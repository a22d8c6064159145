"""Import a cache from a file of any known format, and export one to the project's own format."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierrouter.collection import files, peers, storing, tables
from hierrouter.collection.formats import IMPORTS, OWN
from hierrouter.paper import PAPER_SEED
from hierrouter.pools.files import parse_prices
from hierrouter.pools.pool import Pool, rates_of
from hierrouter.runs.folders import require_free_file
from hierrouter_cache import CACHE
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.tree import Rate

# Reads a file's answers and, if the format has costs, the rate at which tokens have these costs.
Reader = Callable[[Path], tuple[Iterator[tables.Answer], Rate | None]]

READERS: Mapping[str, Reader] = {
    "table": lambda path: (tables.read_table(path), None),
    "llmrouter": lambda path: (peers.read_llmrouter(path), None),
    "routerbench": peers.read_routerbench,
}


@dataclass(frozen=True, repr=False)
class ImportResult:
    """The result of an import; it can be used as a path, which is the cache's folder.

    Attributes:
        cache: the cache's folder.
        format: of the file.
        merge: counts of new and known rows.
        answers: of a table; None for the project's own format.
        pool: the models of a table by their names in the cache, with prices.
        unpriced: whether every token of every model costs 1, because prices are unknown.
        digest_known: whether the project's own format had a digest, so that an edit is detected.
    """

    cache: Path
    format: str
    merge: storing.Merge
    answers: tables.Answers | None = None
    pool: Pool | None = None
    unpriced: bool = False
    digest_known: bool = True

    @property
    def line(self) -> str:
        """One line: how many rows are new, and how many were known."""
        new = ", ".join(f"{count:,} {kind}" for kind, count in self.merge.added.items() if count)
        present = self.merge.present.total() - self.merge.repeated.total()
        return f"{self.cache}: {new or 'nothing'} new, {present:,} rows known already"

    def __fspath__(self) -> str:
        return str(self.cache)

    def __repr__(self) -> str:
        return f"ImportResult({self.line})"


def import_(
    file: str | os.PathLike[str],
    cache: str | os.PathLike[str] = CACHE,
    *,
    format: str | None = None,
    hops: int | None = None,
    seed: int = PAPER_SEED,
    prices: str | Path | Mapping[str, Any] | None = None,
    progress: storing.OnProgress | None = None,
) -> ImportResult:
    """Add the answers in a file to a cache; nothing is written before all of it was checked.

    Args:
        file: JSON lines of an export, a table, or a file of another tool, see docs/interchange.md.
        cache: the cache's folder, made if it does not exist.
        format: of the file; None recognises it by the columns.
        hops: of the trees; None is 2, or the hops of the file's chains.
        seed: of the folds, if the file has none.
        prices: as in `open`.
        progress: called with ("check" or "import", done, total).

    Returns:
        Counts of new and known rows, and what else is worth knowing of the file.

    Raises:
        InputError: a bad row, an unknown format, or an argument that does not fit the format;
            nothing was written.
        CacheError: the cache is damaged, in use by a collector, or cannot be written.
        WorldError: the disk is full or failed.
    """
    if format is not None and format not in IMPORTS:
        raise InputError(f"unknown format: {format}; {suggestion(format, IMPORTS)}".rstrip("; "))
    path = Path(file)
    root = Path(cache)
    on_progress = progress or storing.ignore_progress
    rates = rates_of(parse_prices(prices))
    name = format or guess_format(path)
    if name == OWN:
        if hops or rates:
            raise InputError(
                "jsonl holds a whole cache: no --hops, no --price; they are `report`'s"
            )
        _, digest = files.read_header(path)
        merge = files.import_jsonl(path, root, on_progress)
        return ImportResult(root, name, merge, digest_known=digest is not None)
    rows, rate = READERS[name](path)
    if rate and rates:
        raise InputError(
            f"a {name} file says what calls cost and has no token counts: --price; leave it out"
        )
    answers = tables.gather(rows, seed)
    pool = storing.pool_of(answers, hops)
    if rate:
        rates = dict.fromkeys((model.name for model in pool.models), rate)
    unpriced = not rates and bool(storing.names_without_size(pool))
    pool = storing.with_prices(pool, rates)
    merge = storing.store_answers(answers, pool, root, on_progress)
    return ImportResult(root, name, merge, answers, pool, unpriced)


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


def export(
    cache: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    progress: storing.OnProgress | None = None,
) -> Mapping[str, int]:
    """Write a whole cache as JSON lines, the project's own format.

    Args:
        cache: the cache's folder.
        out: the file to make, named .jsonl.
        progress: called with ("export", done, total).

    Returns:
        Number of rows, by kind.

    Raises:
        InputError: `out` exists or has another suffix.
        CacheError: there is no cache, or it is damaged.
        WorldError: the disk is full or failed.
    """
    path = Path(out)
    require_free_file(path)
    if path.suffix != ".jsonl":
        raise InputError(f"jsonl is written as .jsonl: --out {path}; name such a file")
    return files.export_jsonl(Path(cache), path, progress or storing.ignore_progress)
