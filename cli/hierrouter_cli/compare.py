"""`hierrouter compare`: the usual routers beside the learned one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter_cli import console, options, parsing
from hierrouter_cli.completing import BASELINES, some_of
from hierrouter_cli.looking import log_looks, say_if_few, say_shown
from hierrouter_cli.opening import make_importable
from hierrouter_cli.selecting import Selected, as_trained, selecting

if TYPE_CHECKING:
    from hierrouter.baselines.arms import Answers
    from hierrouter.baselines.baseline import Baseline
    from hierrouter.report.contests import Standings
    from hierrouter_cache.tree import RouteTree


@selecting
def compare(
    *,
    alpha: options.ShownAlpha = None,
    selected: Selected,
    checkpoint: options.Checkpoint = None,
    split: options.Split = "test",
    baselines: Annotated[
        str | None,
        typer.Option(
            "--baselines",
            metavar="A,B|MODULE:CLASS",
            autocompletion=some_of(BASELINES),
            help="Names, or your own; default: all.",
        ),
    ] = None,
    sets: Annotated[
        str, typer.Option("--sets", metavar="A,B", help="A: one direct call; B: whole routes.")
    ] = "A,B",
    seed: options.Seed = options.DEFAULT_SEED,
    format: options.Format = "text",
    out: options.Out = None,
) -> None:
    """Fit the baselines on the train fold, and compare them with the learned router.

    Text also writes everything as JSON; the other formats write it only where --out says.
    """
    from hierrouter.baselines.contest import contest
    from hierrouter.baselines.look import look_of
    from hierrouter.baselines.registry import baselines as named
    from hierrouter.baselines.sets import require_sets, usable_sets
    from hierrouter.comparison import cost_unit
    from hierrouter.provenance import provenance
    from hierrouter.report.contests import standings
    from hierrouter.runs import check_out, new_run
    from hierrouter.shown import shown_router

    parsing.check_format(format)
    parsing.check_split(split)
    check_out(out)
    value = parsing.parse_alpha(alpha)
    make_importable(Path.cwd())
    with contextlib.redirect_stdout(sys.stderr):  # what a user's module prints is no result
        chosen = named(parsing.split_names(baselines))
    wanted = require_sets(parsing.split_names(sets) or [])
    tree = as_trained(selected, checkpoint).open()
    usable = usable_sets(tree, wanted)
    answers = _answers(selected.cache, tree, chosen, usable, selected.pool)
    shown = shown_router(tree, value, checkpoint)
    say_if_few(tree, split, "every figure rests on them")
    say_shown("compare", shown, split, with_alpha=True)
    # What a user's own baseline prints is no result of ours.
    with console.bar("fit") as on_fitted, contextlib.redirect_stdout(sys.stderr):
        held = contest(
            tree, shown.alpha, chosen, wanted, shown.trained, split, seed, answers, on_fitted
        )
    log_looks("compare", tree, split, [shown.run], look_of(held, chosen))
    source = provenance(tree, selected.cache, shown.run, shown.trained, None, {})
    result = standings(held, tree.scorer, source, cost_unit=cost_unit([tree]))
    show(result, format)
    if out or format == "text":
        console.say(f"compare: {write(result, new_run('compare', out))}")


def _answers(
    cache: Path,
    tree: RouteTree,
    chosen: Sequence[Baseline],
    sets: Sequence[str],
    pool: str | None,
) -> Mapping[str, Answers] | None:
    """What can be read off the answers of these sets, where a baseline wants it."""
    from hierrouter.baselines.answers import load_answers

    if not any(baseline.reads_answers for baseline in chosen):
        return None
    return load_answers(cache, tree, sets, pool)


def write(result: Standings, folder: Path) -> Path:
    """The JSON and the tables as Markdown in `folder`; returns the JSON."""
    from hierrouter.report.contest_rows import as_json
    from hierrouter.report.contest_tables import contest_tables
    from hierrouter.report.render import as_markdown
    from hierrouter_cache.atomic_files import write_atomically

    tables = "\n".join(as_markdown(table) for table in contest_tables(result))
    write_atomically(folder / "compare.md", tables.encode())
    page = folder / "compare.json"
    write_atomically(page, as_json(result).encode())
    return page


def show(result: Standings, format: str) -> None:
    """The comparison on stdout."""
    from hierrouter.report.contest_rows import as_json, long_table
    from hierrouter.report.contest_tables import contest_tables

    console.put_as(format, result, as_json, long_table, contest_tables)
