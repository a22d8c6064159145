"""`hierrouter pools`, `datasets`, `runs`, `verify`: what there is, and whether it is sound."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hierrouter_cache.errors import InputError
from hierrouter_cli import console, options

if TYPE_CHECKING:
    from hierrouter.questions.datasets import DatasetSummary


def pools(pool: options.AnyPool = None, format: options.ShortFormat = "text") -> None:
    """List the pools that come with the package; with --pool check and show that one.

    Tells of each model its size, price, window, and whether its weights are on this
    machine. No network is asked.
    """
    from hierrouter.engines.listing import model_details, pool_table
    from hierrouter.pools.files import load_pool, pool_names

    known = {name: load_pool(name) for name in ([pool] if pool else pool_names())}
    for each in known.values():
        if note := each.unit_note():
            console.say(note)
    if format == "json":
        found = {
            name: {
                **asdict(each),
                "listing": [model_details(model) for model in (*each.models, *each.references)],
            }
            for name, each in known.items()
        }
        console.put_json(found)
        return
    console.put_tables([pool_table(name, each, bool(pool)) for name, each in known.items()])


Show = Annotated[int, options.value("--show", "N", "So many questions of each dataset.", min=0)]


def datasets(
    names: options.DatasetsOfDraw = None,
    limit: options.LimitOfDraw = None,
    seed: options.Seed = options.DEFAULT_SEED,
    data: options.Data = Path("data"),
    show: Show = 2,
    format: options.ShortFormat = "text",
) -> None:
    """List the known datasets; with --datasets show questions and folds of these.

    The folds are those that `collect` would make with the same --limit and --seed.
    """
    from hierrouter.questions.datasets import describe, load_queries

    chosen = options.split_names(names)
    if chosen is None:
        _list(data, format)
        return
    queries = load_queries(chosen, limit, seed, data, console.say)
    described = describe(queries, show)
    if format == "json":
        console.put_json({"datasets": [asdict(dataset) for dataset in described]})
    else:
        console.put(_as_text(described))


def _list(data: Path, format: str) -> None:
    from hierrouter.questions.datasets import known_datasets
    from hierrouter.questions.sources import hub_installed

    known = known_datasets(data)
    if format == "json":
        console.put_json([asdict(dataset) for dataset in known])
        return
    for dataset in known:
        count = "any number" if dataset.questions is None else f"{dataset.questions:,}"
        console.put(f"{dataset.name:<15}{dataset.origin:<9}{count:>10}  {dataset.place}\n")
    if not hub_installed():
        console.say('note: to load from the hub, pip install "hierrouter[hub]"')


def _as_text(described: list[DatasetSummary]) -> str:
    from hierrouter.tables import safe_text

    lines = []
    for dataset in described:
        folds = ", ".join(f"{count:,} {fold}" for fold, count in dataset.folds.items())
        lines.append(f"{dataset.name}: {folds}")
        for query in dataset.samples:
            answers = " | ".join(query.answers)
            lines.append(f"  {query.id} [{query.split}] {query.question!r} -> {answers!r}")
    return "".join(safe_text(line) + "\n" for line in lines)


def runs(format: options.ShortFormat = "text") -> None:
    """List the runs here, the newest first: how each was trained, what it reaches, if it fits.

    The reward R is on validation, or on held-out questions of a value model; the gain is over the
    best fixed route. A run fits where its cache still has the models, prices and questions that it
    learned from. A run that is damaged is named, and the exit code is 2 then.
    """
    from hierrouter.runs.fitting import DAMAGED, list_runs
    from hierrouter.tables import Column, Line, Table, duration

    found = list_runs()
    damaged = [run["name"] for run in found if str(run["fits"]).startswith(DAMAGED)]
    if format == "json":
        console.put_json({"runs": found})
    elif found:
        rows = []
        for run in found:
            run["alphas"] = ", ".join(f"{alpha:g}" for alpha in run["alphas"] or ())
            run["age"] = None if (age := run.pop("age_s")) is None else duration(age)
            rows.append(Line("", tuple(run.values())))
        columns = (Column(name, signed=name in ("gain", "low", "high")) for name in found[0])
        console.put_tables([Table("Runs, the newest first", tuple(columns), tuple(rows))])
    if damaged:
        raise InputError(f"damaged runs: {', '.join(damaged)}; `hierrouter verify` says more")


def verify(
    cache: options.Cache = options.DEFAULT_CACHE,
    rescore: Annotated[
        bool, options.switch("--rescore", "Compute every score again, too.")
    ] = False,
) -> None:
    """Check all that figures rest on: cache, embeddings, runs and reports; exit 3 names damage.

    Every byte is hashed, every row's key computed again, and what is missing is named, too.
    """
    from hierrouter.replay.inspection import verify_cache
    from hierrouter.runs.integrity import inspect_files
    from hierrouter.tables import safe_text
    from hierrouter_cache.errors import DamagedPart

    found = inspect_files(cache)
    wrong = Counter(kind for kind, _, _ in found.faults)
    table = []
    for kind, count in found.files.items():
        if count:
            state = f"{wrong[kind]:,} damaged or missing" if wrong[kind] else "sound"
            table.append(f"{kind:<20}{count:>8,}  {state}")
    if found.faults:
        damaged = (f"damaged: {file}: {why}" for _, file, why in found.faults)
        console.say(safe_text("\n".join((*table, *damaged))))
        raise DamagedPart(
            f"damaged or missing: {len(found.faults)} files; `hierrouter cache repair` moves those "
            "of a cache aside, runs are trained again"
        )
    with console.progress_bars() as bars:
        bar = bars.add_task("checking rows", total=None, note="")
        lines = verify_cache(
            cache, rescore, lambda rows, total: bars.update(bar, advance=rows, total=total)
        )
    console.put("\n".join((*table, *lines)) + "\n")
