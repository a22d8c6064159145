"""Import a cache from a file of any known format, and export one to the project's own format.

Both jobs are declared once, for Python and for the command line, see `hierrouter.declarations`. The
modules that do the work are imported when a job runs, because they need pyarrow and duckdb.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter.collection.formats import IMPORTS, NOTES, OWN
from hierrouter.declarations import flags
from hierrouter.declarations.checks import check_path
from hierrouter.declarations.declaration import Flag, declaration, function_of
from hierrouter.paper import PAPER_SEED
from hierrouter_cache import CACHE
from hierrouter_cache.errors import InputError

if TYPE_CHECKING:
    from hierrouter.collection.storing import Merge
    from hierrouter.collection.tables import Answers
    from hierrouter.pools.pool import Pool
    from hierrouter_cache.tree import Rate

OnTransfer = Callable[[str, int, int], None]  # called with (task, done, total)
MAX_LISTED_GAPS = 5  # models that lack answers, those that lack most first


def ignore_transfer(task: str, done: int, total: int) -> None:
    """Do nothing: the `OnTransfer` of a caller that shows no progress."""


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
        duplicates_note: describes near-duplicates across the folds of a table; None if it has none.
    """

    cache: Path
    format: str
    merge: Merge
    answers: Answers | None = None
    pool: Pool | None = None
    unpriced: bool = False
    digest_known: bool = True
    duplicates_note: str | None = None

    @property
    def line(self) -> str:
        """One line: how many rows are new, and how many were known."""
        new = ", ".join(f"{count:,} {kind}" for kind, count in self.merge.added.items() if count)
        present = self.merge.present.total() - self.merge.repeated.total()
        return f"{self.cache}: {new or 'nothing'} new, {present:,} rows known already"

    @property
    def notes(self) -> list[str]:
        """What a user of the cache should know about the file, a line each."""
        notes = []
        if not self.digest_known:
            notes.append("no sha256 in the header, so nobody can tell whether a line was edited")
        if self.answers and self.pool:
            notes += _table_notes(self.format, self.answers, self.pool, self.unpriced)
        if self.duplicates_note:
            notes.append(self.duplicates_note)
        if self.merge.another_plan and not any(self.merge.added.values()):
            notes.append("train and report now open the models and queries of this file")
        for kind, count in self.merge.different.items():
            if count:
                notes.append(
                    f"{count:,} {kind} with another content under a key of the cache; what was "
                    "there stays"
                )
        return notes

    def __fspath__(self) -> str:
        return str(self.cache)

    def __repr__(self) -> str:
        return f"ImportResult({self.line})"


def _table_notes(format: str, answers: Answers, pool: Pool, unpriced: bool) -> list[str]:
    """Describe a table of answers, with its gaps and what it does not say, a line each."""
    kind = "chains: only the paths that the file has, so open some with --models"
    if pool.context_free:
        kind = "context-free: later hops are the models' own answers, no model saw an earlier one"
    notes = [
        f"{format}, {len(answers.queries):,} queries x {len(pool.models)} models, "
        f"{pool.hops} hops; {kind}"
    ]
    for model in pool.models:
        if model.name != model.model:
            notes.append(f"model {model.model} is called {model.name} here")
    notes += _gap_notes(answers, pool)
    has_references = all(query.answers for query in answers.queries)
    if not has_references:
        notes.append("no reference answers in the file; use --scorer given")
    if unpriced:
        notes.append("prices unknown: 1 per token for every model; reprice with --prices")
        notes.append("cost counts tokens; take a small alpha such as 1e-5")
    unscored = answers.scores.count(None)
    has_scores = unscored < len(answers.scores)
    if has_scores and has_references:
        notes.append("it has given scores: --scorer given")
    if has_scores and unscored:
        notes.append(f"{unscored:,} answers have no score; --scorer given will refuse them")
    if format in NOTES:
        notes.append(NOTES[format])
    return notes


def _gap_notes(answers: Answers, pool: Pool) -> list[str]:
    """Say of which models answers are missing, and what to do about it."""
    lacking = answers.lacking
    if not lacking:
        return []
    name_in_pool = {model.model: model.name for model in pool.models}
    notes = [
        f"{count:,} queries lack an answer of {name_in_pool.get(model, model)}"
        for model, count in lacking.most_common(MAX_LISTED_GAPS)
    ]
    unlisted = len(lacking) - MAX_LISTED_GAPS
    others = f"{unlisted} more models lack some; " if unlisted > 0 else ""
    notes.append(
        f"{others}leave models out with --without, or these queries with --allow-incomplete"
    )
    return notes


@declaration
class Import:
    """Add the answers in a file to a cache; see `import_` for the other attributes.

    Attributes:
        price: texts such as "calc=0.5" or "calc=0.5:1.5", on top of `prices`.
    """

    file: Annotated[Path, Flag("", "FILE", "What to read.")]
    format: Annotated[
        str | None,
        flags.choice(
            "--format", IMPORTS, "Format of the file; default: by its columns.", subject="format"
        ),
    ] = None
    cache: flags.Cache = CACHE
    hops: Annotated[
        int | None,
        Flag("--hops", "N", "Hops of the trees; default: 2, or those of the chains.", minimum=1),
    ] = None
    seed: flags.Seed = PAPER_SEED
    price: flags.Price = ()
    prices: str | Path | Mapping[str, Any] | None = None

    @property
    def rates(self) -> dict[str, Rate]:
        """Prices of one token by name of a model.

        Raises:
            InputError: a file or a price that cannot be used.
        """
        from hierrouter.pools.files import parse_prices, price_lists
        from hierrouter.pools.pool import POOL_PRICES, rates_of

        single_prices = price_lists([], self.price)[POOL_PRICES]
        return rates_of({**parse_prices(self.prices), **single_prices})

    def run(self, on_progress: OnTransfer = ignore_transfer) -> ImportResult:
        """Check the whole file, then add its rows; see `import_` for results and errors.

        Args:
            on_progress: called with ("check" or "import", done, total).
        """
        from hierrouter.collection.importers import guess_format, import_answers, import_cache

        rates = self.rates
        format = self.format or guess_format(self.file)
        if format != OWN:
            return import_answers(
                self.file, format, self.cache, self.hops, self.seed, rates, on_progress
            )
        if self.hops or rates:
            raise InputError(
                "jsonl holds a whole cache: no --hops, no --price; they are `report`'s"
            )
        return import_cache(self.file, self.cache, on_progress)


@declaration
class Export:
    """Write a whole cache as JSON lines; see `export` for the attributes."""

    out: Annotated[Path, Flag("--out", "FILE", "File to make, named .jsonl.", check=check_path)]
    cache: flags.Cache = CACHE

    def check(self) -> None:
        """Refuse a file that cannot be made.

        Raises:
            InputError: `out` exists or has another suffix.
        """
        from hierrouter.runs.folders import require_free_file

        require_free_file(self.out)
        if self.out.suffix != ".jsonl":
            raise InputError(f"jsonl is written as .jsonl: --out {self.out}; name such a file")

    def run(self, on_progress: OnTransfer = ignore_transfer) -> Mapping[str, int]:
        """Write the file; see `export` for results and errors.

        Args:
            on_progress: called with ("export", done, total).
        """
        self.check()
        from hierrouter.collection.files import export_jsonl

        return export_jsonl(self.cache, self.out, on_progress)


@function_of(Import)
def import_(
    file: str | os.PathLike[str],
    cache: str | os.PathLike[str] = CACHE,
    *,
    format: str | None = None,
    hops: int | None = None,
    seed: int = PAPER_SEED,
    prices: str | Path | Mapping[str, Any] | None = None,
    progress: OnTransfer | None = None,
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
    importing = Import(
        file=Path(file), cache=Path(cache), format=format, hops=hops, seed=seed, prices=prices
    )
    return importing.run(progress or ignore_transfer)


@function_of(Export)
def export(
    cache: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    progress: OnTransfer | None = None,
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
    return Export(cache=Path(cache), out=Path(out)).run(progress or ignore_transfer)
