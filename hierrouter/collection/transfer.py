"""Import a cache from a file of any known format, and export one to the project's own format.

Both jobs are declared once, for Python and for the command line, see `hierrouter.declarations`. The
modules that do the work are imported when a job runs, because they need pyarrow and duckdb.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter.collection.formats import IMPORTS, OWN
from hierrouter.declarations import flags
from hierrouter.declarations.callbacks import OnTask, ignore_task
from hierrouter.declarations.checks import check_path
from hierrouter.declarations.declaration import Flag, declaration, function_of
from hierrouter.paper import PAPER_SEED
from hierrouter_cache import CACHE
from hierrouter_cache.errors import InputError

if TYPE_CHECKING:
    from hierrouter.collection.importers import ImportResult
    from hierrouter_cache.tree import Rate


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

    def run(self, on_progress: OnTask = ignore_task) -> ImportResult:
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

    def run(self, on_progress: OnTask = ignore_task) -> Mapping[str, int]:
        """Write the file; see `export` for results and errors.

        Args:
            on_progress: called with ("export", done, total).
        """
        self.check()
        from hierrouter.collection.files import export_jsonl
        from hierrouter.runs.folders import make_folder_of

        make_folder_of(self.out)
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
    progress: OnTask | None = None,
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
    return importing.run(progress or ignore_task)


@function_of(Export)
def export(
    cache: str | os.PathLike[str], out: str | os.PathLike[str], *, progress: OnTask | None = None
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
    return Export(cache=Path(cache), out=Path(out)).run(progress or ignore_task)
