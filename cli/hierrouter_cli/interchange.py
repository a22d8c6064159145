"""`hierrouter cache import` and `export`: caches to files that others read, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter.interchange.formats import EXPORTS, FORMATS, IMPORTS, OWN
from hierrouter_cli import console, options, parsing

if TYPE_CHECKING:
    from hierrouter.interchange.storing import Imported
    from hierrouter.interchange.transfer import Received

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
    from hierrouter.interchange.transfer import receive
    from hierrouter.price_lists import price_lists
    from hierrouter.pricing import rates_of

    if format:
        parsing.check_format(format, IMPORTS)
    rates = rates_of(price_lists([], price or [])[0].prices)
    with _progress() as on_progress:
        found = receive(file, cache, format, hops, seed, rates, on_progress)
    if not found.digest_known:
        console.say("import: no sha256 in the header, so nobody can tell whether a line was edited")
    if found.imported:
        _say_imported(found.format, found.imported)
    if found.leak:
        console.say(f"import: {found.leak}")
    _say_merge(found)


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
    from hierrouter.interchange.transfer import export

    with _progress() as on_progress:
        found = export(
            cache,
            out,
            format=parsing.check_format(format, EXPORTS),
            models=models,
            scorer=scorer,
            encoder=encoder,
            allow_incomplete=allow_incomplete,
            progress=on_progress,
        )
    if found.counts:
        rows = ", ".join(f"{count:,} {kind}" for kind, count in found.counts.items())
        console.say(f"export: {rows}")
    else:
        left_out = f", {found.left_out} left out" if found.left_out else ""
        console.say(
            f"export: direct calls of {found.queries:,} queries x {found.models} models, "
            f"score {found.scorer}{left_out}"
        )
        console.say(f"export: {format} has no place for: {'; '.join(FORMATS[format].lost)}")
    console.put(f"{out}\n")


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


def _say_merge(found: Received) -> None:
    console.put(f"{found.line}\n")
    if found.merge.another_plan and not any(found.merge.added.values()):
        console.say("import: train and report now open the models and queries of this file")
    for kind, count in found.merge.different.items():
        if count:
            console.say(
                f"import: {count:,} {kind} with another content under a key of the cache; "
                "what was there stays"
            )


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    with console.bar("open") as show:
        yield lambda what, done, total: show(done, total, label=LABELS[what])
