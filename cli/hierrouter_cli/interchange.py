"""`hierrouter cache import` and `export`: caches to files that others read, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter.interchange.formats import EXPORTS, FORMATS, IMPORTS, OWN
from hierrouter_cache.errors import InputError
from hierrouter_cli import console, options, parsing

if TYPE_CHECKING:
    from hierrouter.interchange.merge import Merge
    from hierrouter.interchange.storing import Imported

LABELS = {"check": "check lines", "import": "import", "export": "export"}


def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to read.")],
    format: Annotated[
        str | None,
        options.choice("--format", IMPORTS, "Format of the file; default: by its columns."),
    ] = None,
    cache: options.Cache = options.DEFAULT_CACHE,
    hops: Annotated[
        int | None,
        typer.Option(
            "--hops",
            metavar="N",
            min=1,
            help="Hops of the trees; default: 2, or those of the chains.",
        ),
    ] = None,
    seed: options.Seed = options.DEFAULT_SEED,
    price: options.Price = None,
) -> None:
    """Add the answers in a file to a cache; nothing is written before all of it was checked.

    Tables of single answers become context-free trees: each hop carries its model's own answer.
    """
    from hierrouter.interchange.leaks import leak_line
    from hierrouter.interchange.peers import guess_format, import_answers
    from hierrouter.price_lists import price_lists
    from hierrouter.pricing import rates_of

    name = parsing.check_format(format, IMPORTS) if format else guess_format(file)
    rates = rates_of(price_lists([], price or [])[0].prices)
    if name == OWN:
        if hops or rates:
            raise InputError(
                "jsonl holds a whole cache: no --hops, no --price; they are `report`'s"
            )
        _say_merge(_import_own(file, cache), cache)
        return
    with _progress() as on_progress:
        imported = import_answers(name, file, cache, hops, seed, rates, on_progress)
    _say_imported(name, imported)
    if leak := leak_line(cache):
        console.say(f"import: {leak}")
    _say_merge(imported.merge, cache)


def _import_own(file: Path, cache: Path) -> Merge:
    from hierrouter.interchange.jsonl import import_jsonl, read_header

    header = read_header(file)
    with _progress() as on_progress:
        merge = import_jsonl(file, cache, on_progress)
    if header.sha256 is None:
        console.say("import: no sha256 in the header, so nobody can tell whether a line was edited")
    return merge


def export_file(
    out: Annotated[Path, typer.Option("--out", metavar="PATH", help="File or folder to make.")],
    format: Annotated[str, options.choice("--format", EXPORTS, "Format of the file.")] = OWN,
    cache: options.Cache = options.DEFAULT_CACHE,
    models: options.Models = None,
    scorer: options.Scorer = options.DEFAULT_SCORER,
    encoder: options.Encoder = None,
    allow_incomplete: options.AllowIncomplete = False,
) -> None:
    """Write a cache as our JSON lines, or its direct calls in the format of a peer.

    --models, --scorer, --encoder and --allow-incomplete are for the peers' formats: jsonl holds
    everything.
    """
    from hierrouter.interchange.files import require_free

    parsing.check_format(format, EXPORTS)
    require_free(out)
    if format != OWN:
        _export_direct(format, out, cache, models, scorer, encoder, allow_incomplete)
    elif models or encoder or allow_incomplete:
        raise InputError(
            "jsonl holds a whole cache: --models, --encoder, --allow-incomplete; leave them out"
        )
    else:
        if out.suffix != ".jsonl":
            raise InputError(f"jsonl is written as .jsonl: --out {out}; name such a file")
        _export_own(out, cache)
    console.put(f"{out}\n")


def _export_own(out: Path, cache: Path) -> None:
    from hierrouter.interchange.jsonl import export_jsonl

    with _progress() as on_progress:
        counts = export_jsonl(cache, out, on_progress)
    console.say("export: " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items()))


def _export_direct(
    name: str,
    out: Path,
    cache: Path,
    models: str | None,
    scorer: str,
    encoder: str | None,
    allow_incomplete: bool,
) -> None:
    from hierrouter.collect.encoders import BUILT_IN, load_encoder
    from hierrouter.interchange.direct import direct_table
    from hierrouter.interchange.peers import WRITERS
    from hierrouter.scoring import scorer as scorer_named

    table = direct_table(
        cache,
        scorer_named(scorer),
        load_encoder(encoder or BUILT_IN),
        parsing.split_names(models),
        allow_incomplete,
    )
    WRITERS[name](table, out)
    left_out = f", {table.left_out} left out" if table.left_out else ""
    console.say(
        f"export: direct calls of {len(table.queries):,} queries x {len(table.models)} models, "
        f"score {table.scorer}{left_out}"
    )
    console.say(f"export: {name} has no place for: {'; '.join(FORMATS[name].lost)}")


def _say_imported(name: str, imported: Imported) -> None:
    pool = imported.pool
    kind = (
        "context-free: later hops are the models' own answers, no model saw an earlier one"
        if pool.context_free
        else "chains: only the paths that the file has, so open some with --models"
    )
    console.say(
        f"import: {name}, {imported.queries:,} queries x {len(pool.models)} models, "
        f"{pool.hops} hops; {kind}"
    )
    for model in pool.models:
        if model.name != model.model:
            console.say(f"import: model {model.model} is called {model.name} here")
    if imported.lacking:
        console.say(
            f"import: {imported.lacking:,} queries lack the answer of some model; take fewer "
            "--models, or leave these queries out with --allow-incomplete"
        )
    if not imported.has_references:
        console.say("import: no reference answers in the file; use --scorer given")
    if imported.unpriced:
        console.say("import: prices unknown: 1 per token for every model; reprice with --prices")
        console.say("import: cost counts tokens; take a small alpha such as 1e-5")
    if imported.scored and imported.has_references:
        console.say("import: it has given scores: --scorer given")
    if imported.scored and imported.unscored:
        console.say(
            f"import: {imported.unscored:,} answers have no score; --scorer given will refuse them"
        )
    for note in FORMATS[name].notes:
        console.say(f"import: {note}")


def _say_merge(merge: Merge, cache: Path) -> None:
    new = ", ".join(f"{count:,} {kind}" for kind, count in merge.added.items() if count)
    known = merge.present.total() - merge.repeated.total()
    console.put(f"{cache}: {new or 'nothing'} new, {known:,} rows known already\n")
    if merge.another_plan and not new:
        console.say("import: train and report now open the models and queries of this file")
    for kind, count in merge.different.items():
        if count:
            console.say(
                f"import: {count:,} {kind} with another content under a key of the cache; "
                "what was there stays"
            )


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    with console.bar("open") as show:
        yield lambda what, done, total: show(done, total, label=LABELS[what])
