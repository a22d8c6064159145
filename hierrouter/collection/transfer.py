"""Import and export: a cache from a file of whatever format, and to a file of ours."""

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
from hierrouter_cache import CACHE
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.tree import Rate

# A file's answers and, where the format says what calls cost, the rate that gives that cost.
Reader = Callable[[Path], tuple[Iterator[tables.Answer], Rate | None]]

READERS: Mapping[str, Reader] = {
    "table": lambda path: (tables.read_table(path), None),
    "llmrouter": lambda path: (peers.read_llmrouter(path), None),
    "routerbench": peers.read_routerbench,
}


@dataclass(frozen=True, repr=False)
class Received:
    """What came into a cache; anything that takes a path takes it as the cache's folder.

    Attributes:
        merge: counts of new and known rows.
        answers: of a table; None for our own format.
        pool: their models by their names here, with prices.
        unpriced: whether every token of every model costs 1, for want of a price.
        digest_known: whether our own format said what its lines were, so that an edit is seen.
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
        """What is new and what was known, in one line."""
        new = ", ".join(f"{count:,} {kind}" for kind, count in self.merge.added.items() if count)
        known = self.merge.present.total() - self.merge.repeated.total()
        return f"{self.cache}: {new or 'nothing'} new, {known:,} rows known already"

    def __fspath__(self) -> str:
        return str(self.cache)

    def __repr__(self) -> str:
        return f"Received({self.line})"


def import_(
    file: str | os.PathLike[str],
    cache: str | os.PathLike[str] = CACHE,
    *,
    format: str | None = None,
    hops: int | None = None,
    seed: int = PAPER_SEED,
    prices: str | Path | Mapping[str, Any] | None = None,
    progress: storing.OnProgress | None = None,
) -> Received:
    """Add the answers in a file to a cache; nothing is written before all of it was checked.

    Args:
        file: our JSON lines, a table, or a file of another tool, see docs/interchange.md.
        cache: its folder; made where there is none.
        format: of the file; default: by its columns.
        hops: of the trees; default: 2, or those of the chains.
        seed: of the folds that the file does not say.
        prices: as in `open`.
        progress: told ("check" or "import", done, total).

    Raises:
        InputError: a bad row, an unknown format, or what does not fit it; nothing was written.
        CacheError: the cache is damaged, in use by a collector, or cannot be written.
        WorldError: the disk is full or failed.
    """
    if format is not None and format not in IMPORTS:
        raise InputError(f"unknown format: {format}; {suggestion(format, IMPORTS)}".rstrip("; "))
    path, root, on_progress = Path(file), Path(cache), progress or storing.ignored
    rates = rates_of(parse_prices(prices))
    name = format or guess_format(path)
    if name == OWN:
        if hops or rates:
            raise InputError(
                "jsonl holds a whole cache: no --hops, no --price; they are `report`'s"
            )
        known = files.read_header(path)[1] is not None
        merge = files.import_jsonl(path, root, on_progress)
        return Received(root, name, merge, digest_known=known)
    found, rate = READERS[name](path)
    if rate and rates:
        raise InputError(
            f"a {name} file says what calls cost and has no token counts: --price; leave it out"
        )
    answers = tables.gather(found, seed)
    pool = storing.pool_of(answers, hops)
    if rate:
        rates = dict.fromkeys((model.name for model in pool.models), rate)
    unpriced = not rates and bool(storing.sizeless(pool))
    pool = storing.priced(pool, rates)
    merge = storing.store_answers(answers, pool, root, on_progress)
    return Received(root, name, merge, answers, pool, unpriced)


def guess_format(path: Path) -> str:
    """The format whose columns the first row has.

    Raises InputError: not readable, or columns of no known format.
    """
    if path.is_dir():
        return "llmrouter"
    row = next(tables.read_rows(path)).values
    if row.get("kind") == files.HEADER:
        return OWN
    if row.get("kind") in tuple(files.LINES):
        raise InputError(
            f'the header line {{"kind": "{files.HEADER}", ...}} is gone: {path}; export again'
        )
    if {"model_name", "task_name"} <= set(row):
        return "llmrouter"
    if any(name.endswith((peers.RESPONSE, peers.COST)) for name in row):
        return "routerbench"
    if set(row) & set(tables.COLUMNS):
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
    """Write a whole cache as our JSON lines; returns how many rows of each kind it has.

    Args:
        cache: its folder.
        out: the file to make, named .jsonl.
        progress: told ("export", done, total).

    Raises:
        InputError: `out` exists or has another name.
        CacheError: nothing there, or damaged.
        WorldError: the disk is full or failed.
    """
    path = Path(out)
    files.require_free(path)
    if path.suffix != ".jsonl":
        raise InputError(f"jsonl is written as .jsonl: --out {path}; name such a file")
    return files.export_jsonl(Path(cache), path, progress or storing.ignored)
