"""Import a cache from a file of any known format, and export one to most of them.

Both jobs are declared once, for Python and for the command line, see `hierrouter.declarations`. The
modules that do the work are imported when a job runs, because they need pyarrow and duckdb.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter.declarations import flags
from hierrouter.declarations.checks import check_path
from hierrouter.declarations.declaration import Flag, OnTask, declaration, function_of, ignore_task
from hierrouter.declarations.flags import DRAWS, EXPORTS, IMPORTS, OWN
from hierrouter.paper import PAPER_SCORER, PAPER_SEED
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
    draw: Annotated[
        str | None,
        flags.choice(
            "--draw",
            DRAWS,
            "Of several runs of one query: the first, means of their values, or all as draws.",
            subject="draw",
        ),
    ] = None

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
                self.file, format, self.cache, self.hops, self.seed, rates, on_progress, self.draw
            )
        if self.hops or rates:
            raise InputError(
                "jsonl holds a whole cache: no --hops, no --price; they are `report`'s"
            )
        if self.draw:
            raise InputError(
                f"jsonl holds a whole cache, with one run of each query: --draw {self.draw}; "
                "leave it out"
            )
        return import_cache(self.file, self.cache, on_progress)


# How a name ends at which a format is written; LLMRouter's is a folder.
SUFFIXES: Mapping[str, tuple[str, ...]] = {
    OWN: (".jsonl",),
    "llmrouter": (),
    "routerbench": (".parquet", ".csv"),
}
FILE_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")


@declaration
class Export:
    """Write a cache as JSON lines, or its direct calls in another tool's format; see `export`."""

    out: Annotated[
        Path,
        Flag(
            "--out",
            "PATH",
            "What to make: FILE.jsonl, a folder for llmrouter, FILE.parquet or .csv for "
            "routerbench.",
            check=check_path,
        ),
    ]
    cache: flags.Cache = CACHE
    format: Annotated[
        str, flags.choice("--format", EXPORTS, "Format to write.", subject="format")
    ] = OWN
    models: flags.Models = None
    without: flags.Without = ()
    scorer: flags.ScorerToWrite = None
    encoder: flags.Encoder = None
    allow_incomplete: flags.AllowIncomplete = False
    run_code: flags.RunCode = False

    @property
    def score_name(self) -> str:
        """Name of the score in another tool's format."""
        return self.scorer or PAPER_SCORER

    def check(self) -> None:
        """Refuse what cannot be made, before a cache is read.

        Raises:
            InputError: `out` exists or has another suffix, or settings that a format cannot have.
        """
        from hierrouter.runs.folders import require_free_file

        require_free_file(self.out)
        suffixes = SUFFIXES[self.format]
        if suffixes and self.out.suffix not in suffixes:
            raise InputError(
                f"{self.format} is written as {' or '.join(suffixes)}: --out {self.out}; name such "
                "a file"
            )
        if not suffixes and self.out.suffix in FILE_SUFFIXES:
            raise InputError(
                f"{self.format} is written as a folder: --out {self.out}; name a folder"
            )
        if self.format != OWN:
            if self.encoder and self.format == "routerbench":
                raise InputError("routerbench has no embeddings: --encoder; leave it out")
            return
        selects = self.models or self.without or self.allow_incomplete
        if selects or self.scorer or self.encoder or self.run_code:
            raise InputError(
                "jsonl holds a whole cache: --models, --without, --scorer, --encoder, --run-code, "
                "--allow-incomplete; leave them out, or give --format"
            )

    def run(self, on_progress: OnTask = ignore_task) -> Mapping[str, int]:
        """Write the file or folder; see `export` for results and errors.

        Args:
            on_progress: called with ("export", "score" or "embed", done, total).
        """
        self.check()
        from hierrouter.runs.folders import make_folder_of

        if self.format == OWN:
            from hierrouter.collection.files import export_jsonl

            make_folder_of(self.out)
            return export_jsonl(self.cache, self.out, on_progress)
        from hierrouter.collection.exporters import WRITERS, read_direct_calls

        calls = read_direct_calls(
            self.cache,
            self.score_name,
            self.models,
            self.without,
            self.allow_incomplete,
            self.run_code,
            on_progress,
        )
        make_folder_of(self.out)
        WRITERS[self.format](calls, self.out, self.encoder, on_progress)
        return {
            "queries": len(calls.queries),
            "models": len(calls.models),
            "left_out": calls.left_out,
        }


@function_of(Import)
def import_(
    file: str | os.PathLike[str],
    cache: str | os.PathLike[str] = CACHE,
    *,
    format: str | None = None,
    hops: int | None = None,
    seed: int = PAPER_SEED,
    prices: str | Path | Mapping[str, Any] | None = None,
    draw: str | None = None,
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
        draw: what to make of several runs of one query: "first" takes the first one, "mean" its
            text with the means of scores, tokens and seconds, "all" keeps each as a draw of its
            call; None refuses them.
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
        file=Path(file),
        cache=Path(cache),
        format=format,
        hops=hops,
        seed=seed,
        prices=prices,
        draw=draw,
    )
    return importing.run(progress or ignore_task)


@function_of(Export)
def export(
    cache: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str = OWN,
    models: str | Sequence[str] | None = None,
    without: str | Sequence[str] = (),
    scorer: str | None = None,
    encoder: str | None = None,
    allow_incomplete: bool = False,
    run_code: bool = False,
    progress: OnTask | None = None,
) -> Mapping[str, int]:
    """Write a whole cache as JSON lines, or its direct calls in the format of another tool.

    Args:
        cache: the cache's folder.
        out: what to make: a file named .jsonl; for LLMRouter a folder, for RouterBench a file named
            .parquet or .csv.
        format: "jsonl" is the project's own and holds everything; "llmrouter" and "routerbench"
            hold direct calls, see docs/interchange.md for what they lose.
        models: some of the pool's, as a list or as "a,b"; None is all, and the references.
        without: models and references to leave out, given likewise.
        scorer: gives the scores that are written; None is token_f1.
        encoder: embeds the questions for LLMRouter; None is the pool's.
        allow_incomplete: leave out queries that lack a direct call, instead of refusing.
        run_code: whether to run the programs in answers, confined, for the scorer accuracy.
        progress: called with ("export", "score" or "embed", done, total).

    Returns:
        Number of rows, by kind; of another tool's format the number of "queries", "models", and
        queries "left_out".

    Raises:
        InputError: `out` exists or has another suffix, a name that is not known, or an argument
            that does not fit the format.
        CacheError: there is no cache, it is damaged, or lacks a direct call.
        WorldError: the encoder cannot be had, or the disk is full or failed.
    """
    exporting = Export(
        cache=Path(cache),
        out=Path(out),
        format=format,
        models=models,
        without=without,
        scorer=scorer,
        encoder=encoder,
        allow_incomplete=allow_incomplete,
        run_code=run_code,
    )
    return exporting.run(progress or ignore_task)
