"""`hierrouter pools`, `datasets`, `runs`, `verify`: what there is, and whether it is sound."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from hierrouter.collection.catalogue import ListPools, ShowDatasets, pool_tables, pools_object
from hierrouter.runs.verify import Verify, inspection_lines, require_sound
from hierrouter.tables import COLUMN_GAP, safe_text
from hierrouter_cache.errors import InputError
from hierrouter_cli import console, declared
from hierrouter_cli.declared import with_flags

if TYPE_CHECKING:
    from hierrouter.questions.datasets import DatasetSummary


@with_flags
def pools(*, listing: ListPools, format: declared.ShortFormat = "text") -> None:
    """List the pools that come with the package; with --pool check and show that one.

    Tells of each model its size, price and window, and whether its weights and tokenizer are
    on this machine, complete or in part; of each pool likewise its encoder. No network is asked.
    """
    pools_by_name = listing.run()
    for pool in pools_by_name.values():
        note = pool.unit_note()
        if note:
            console.say(note)
    if format == "json":
        console.put_json(pools_object(pools_by_name))
    else:
        console.put_tables(pool_tables(pools_by_name, instructions=listing.pool is not None))


@with_flags
def datasets(*, showing: ShowDatasets, format: declared.ShortFormat = "text") -> None:
    """List the known datasets; with --datasets show questions and folds of these.

    The folds are those that `collect` would make with the same --limit and --seed.
    """
    if showing.datasets is None:
        _list_datasets(showing, format)
        return
    summaries = showing.run(console.say)
    if format == "json":
        console.put_json({"datasets": [asdict(summary) for summary in summaries]})
    else:
        console.put(_as_text(summaries))


def _list_datasets(showing: ShowDatasets, format: str) -> None:
    known_datasets = showing.known()
    if format == "json":
        console.put_json([asdict(dataset) for dataset in known_datasets])
        return
    name_width = max([15, *(len(dataset.name) + COLUMN_GAP for dataset in known_datasets)])
    origin_width = max([9, *(len(dataset.origin) + COLUMN_GAP for dataset in known_datasets)])
    for dataset in known_datasets:
        count = "any number" if dataset.questions is None else f"{dataset.questions:,}"
        console.put(
            f"{dataset.name:<{name_width}}{dataset.origin:<{origin_width}}{count:>10}  "
            f"{dataset.place}\n"
        )


def _as_text(summaries: list[DatasetSummary]) -> str:
    """Return the folds of each dataset in a line, with its questions below."""
    lines = []
    for dataset in summaries:
        folds = ", ".join(f"{count:,} {fold}" for fold, count in dataset.folds.items())
        lines.append(f"{dataset.name}: {folds}")
        for query in dataset.samples:
            answers = " | ".join(query.answers)
            lines.append(f"  {query.id} [{query.split}] {query.question!r} -> {answers!r}")
    return "".join(safe_text(line) + "\n" for line in lines)


def runs(format: declared.ShortFormat = "text") -> None:
    """List the runs here, the newest first: how each was trained, what it reaches, if it fits.

    The reward R is on validation, or on held-out questions of a value model; the gain is over the
    best fixed route. A run fits where its cache still has the models, prices and questions that it
    learned from. A run that is damaged is named, and the exit code is 2 then.
    """
    from hierrouter.runs.freshness import damaged_runs, list_runs, runs_table

    listed_runs = list_runs()
    if format == "json":
        console.put_json({"runs": listed_runs})
    elif listed_runs:
        console.put_tables([runs_table(listed_runs)])
    damaged = damaged_runs(listed_runs)
    if damaged:
        raise InputError(f"damaged runs: {', '.join(damaged)}; `hierrouter verify` says more")


@with_flags
def verify(*, verifying: Verify) -> None:
    """Check all that figures rest on: cache, embeddings, runs and reports; exit 3 names damage.

    Every byte is hashed, every row's key computed again, and what is missing is named, too.
    """
    inspection = verifying.inspect()
    lines = inspection_lines(inspection)
    if inspection.faults:
        damaged = [f"damaged: {file}: {fault}" for _, file, fault in inspection.faults]
        console.say("\n".join([*lines, *damaged]))
    require_sound(inspection)
    with console.progress_bars() as bars:
        bar = bars.add_task("checking rows", total=None, note="")
        lines += verifying.check_rows(
            lambda rows, total: bars.update(bar, advance=rows, total=total)
        )
    console.put("\n".join(lines) + "\n")
