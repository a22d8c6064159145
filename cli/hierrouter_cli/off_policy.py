"""`hierrouter off-policy`: what a router would earn, from another policy's log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter_cache.errors import InputError
from hierrouter_cli import console, options
from hierrouter_cli.report import look_at, say_if_few, say_shown
from hierrouter_cli.selecting import Selected, as_trained, selecting

if TYPE_CHECKING:
    from hierrouter.learning.selection import SelectedRun
    from hierrouter.learning.trained import TrainedRouter
    from hierrouter.serving.logs import Episode
    from hierrouter.serving.off_policy_result import Result
    from hierrouter.serving.off_policy_study import LoggingPolicy
    from hierrouter_cache.tree import RouteTree

SPLIT = "validation"
FEWEST = 10  # episodes of a log


@selecting
def off_policy(
    selected: Selected,
    log: Annotated[
        Path | None,
        options.value("--log", "FILE", "Episodes as JSON lines, from a server, say."),
    ] = None,
    simulate: Annotated[
        str | None,
        options.value(
            "--simulate",
            "uniform|epsilon=E|temperature=T",
            "Play logs of this policy on the cache, where the exact value is known.",
            offer=options.SIMULATED,
        ),
    ] = None,
    checkpoint: options.Checkpoint = None,
    alpha: options.ShownAlpha = None,
    split: Annotated[
        str | None,
        options.split_flag(f"Of --simulate; default {SPLIT}."),
    ] = None,
    episodes: Annotated[
        int | None,
        options.value(
            "--episodes", "N", "Length of a log; default: one for each question.", min=FEWEST
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        options.value("--repeats", "N", "How many fresh logs; default 1.", min=1),
    ] = None,
    keep: Annotated[
        Path | None, options.value("--keep", "FILE", "Write the first log there.")
    ] = None,
    seed: options.Seed = options.DEFAULT_SEED,
    format: options.Format = "text",
) -> None:
    """Estimate what a trained router would earn, from episodes that another policy played.

    With --log from a file; with --simulate from logs played on the cache, beside the exact value,
    which shows how far to trust each estimator. No model is called.
    """
    from hierrouter.collection.files import require_free
    from hierrouter.serving.logs import has_texts, write_log
    from hierrouter.serving.off_policy_result import as_json, long_table, result_tables
    from hierrouter.serving.off_policy_study import value_by_simulation

    only_simulated = {
        "--split": split,
        "--episodes": episodes,
        "--repeats": repeats,
        "--keep": keep,
    }
    logging = _logging_policy(log, simulate, only_simulated)
    if keep:
        require_free(keep, "--keep")
    texts = log is not None and has_texts(log)
    if texts and (selected.prices or selected.price):
        raise InputError(
            f"prices are for a cache: --prices, --price; {log} carries its texts and is priced as "
            "logged, tokens as the router was trained; leave them out"
        )
    shown, tree = _router(selected, checkpoint, alpha, needs_tree=not texts)
    run, trained = shown.required()
    say_shown("off-policy", shown, with_alpha=True)
    if logging is None or tree is None:
        assert log is not None
        result = _from_log(log, selected, shown, None if texts else tree)
    else:
        fold = split or SPLIT
        look_at("off-policy", tree, fold, shown)
        say_if_few(tree, fold, "every figure rests on them")
        played = tree.split(fold)
        source = _provenance(selected, tree, run, trained)
        with console.bar("logs", repeats or 1) as on_log:
            result, first = value_by_simulation(
                trained,
                played,
                shown.alpha,
                logging,
                {**source, "split": fold, "log_seed": seed},
                episodes=episodes or max(len(played), FEWEST),
                repeats=repeats or 1,
                seed=seed,
                on_log=on_log,
            )
        if keep:
            write_log(first, tree.models, keep)
            console.say(f"off-policy: log {keep}, {len(first):,} episodes")
    console.put_as(format, result, as_json, long_table, result_tables)


def _logging_policy(
    log: Path | None, simulate: str | None, only_simulated: Mapping[str, object]
) -> LoggingPolicy | None:
    """The policy to play logs of; None where there is a log.

    Raises:
        InputError: both or neither was asked for, an unknown policy, or a flag of the other way.
    """
    from hierrouter.serving.off_policy_study import USAGE, LoggingPolicy

    if (log is None) == (simulate is None):
        which = "no log" if log is None else "--log and --simulate contradict each other"
        raise InputError(f"{which}; give --log FILE or --simulate {USAGE}")
    if simulate is not None:
        return LoggingPolicy.named(simulate)
    if given := [flag for flag, value in only_simulated.items() if value is not None]:
        raise InputError(f"{given[0]} is for --simulate; a log from a file is what it is")
    return None


def _router(
    selected: Selected, checkpoint: Path | None, alpha: float | None, needs_tree: bool
) -> tuple[SelectedRun, RouteTree | None]:
    """The router to be valued, and the tree where it was opened."""
    from hierrouter.learning.checkpoint import router_at
    from hierrouter.learning.selection import SelectedRun, select_run, training_remarks

    if checkpoint and not needs_tree:
        trained = router_at(checkpoint, alpha)
        value = trained.alpha if alpha is None else alpha
        return SelectedRun(
            checkpoint, trained, value, remarks=training_remarks(trained, value)
        ), None
    tree = as_trained(selected, checkpoint).open()
    return select_run(tree, alpha, checkpoint), tree


def _from_log(log: Path, selected: Selected, shown: SelectedRun, tree: RouteTree | None) -> Result:
    """From a file; without a tree from the texts in it."""
    from hierrouter.serving.logs import LogShape, read_log
    from hierrouter.serving.off_policy_study import value_from_log

    run, trained = shown.required()
    rate = trained.origin.rate if tree is None else [(a, b) for a, b in tree.rate.tolist()]
    shape = LogShape(trained.origin.models, trained.origin.hops, rate)
    read = read_log(log, shape, lambda said: console.say(f"off-policy: {said}"))
    if tree is not None and _is_tested(read, tree):
        look_at("off-policy", tree, "test", shown, log=str(log))
    source = {**_provenance(selected, tree, run, trained), "log": str(log)}
    with console.bar("estimate", note=f"{len(read):,} episodes"):
        return value_from_log(trained, read, tree, shown.alpha, source)


def _is_tested(episodes: Iterable[Episode], tree: RouteTree) -> bool:
    """Whether a log has a question of the test fold."""
    named = zip(tree.query_ids, tree.datasets, tree.splits, strict=True)
    tested = {
        (query, name)
        for query, dataset, split in named
        if split == "test"
        for name in (dataset, "")
    }
    return any((episode.query, episode.dataset) in tested for episode in episodes)


def _provenance(
    selected: Selected, tree: RouteTree | None, run: Path, trained: TrainedRouter
) -> dict[str, Any]:
    """Where every number comes from."""
    from hierrouter import __version__
    from hierrouter.learning.selection import provenance

    if tree is not None:
        return provenance(tree, selected.cache, run, trained, None, {})
    return {
        "version": __version__,
        "checkpoint": str(run),
        "seed": trained.origin.seed,
        "trained_on": trained.origin.fingerprint,
    }
