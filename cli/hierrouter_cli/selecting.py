"""The flags that say which tree to open, and opening it with a bar."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierrouter_cache.errors import InputError
from hierrouter_cli import console, options

if TYPE_CHECKING:
    from hierrouter.evaluation.policies import OwnPolicy
    from hierrouter.learning.baselines.arms import Baseline
    from hierrouter.pools.pool import Price
    from hierrouter.replay.opening import Selection
    from hierrouter.replay.tree import Tree


def make_importable(folder: Path) -> None:
    """Let `module:name` on the command line find a module there, after all that is installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def own_policies(paths: Sequence[str] | None) -> tuple[OwnPolicy, ...]:
    """The policies of the user's own at these import paths."""
    from hierrouter.evaluation.policies import own_policies as own

    if paths:
        make_importable(Path.cwd())
    with contextlib.redirect_stdout(sys.stderr):  # what a user's module prints is no result
        return own(paths or ())


def named_baselines(names: str | None) -> tuple[Baseline, ...]:
    """The baselines of `--baselines`, the user's own among them; None is all that are built in."""
    from hierrouter.learning.baselines.registry import baselines

    make_importable(Path.cwd())
    with contextlib.redirect_stdout(sys.stderr):  # what a user's module prints is no result
        return baselines(options.split_names(names))


def open_trees(
    cache: Path, selection: Selection, price_lists: Sequence[Mapping[str, Price]]
) -> list[Tree]:
    """The tree in `cache` under each price list."""
    from hierrouter.pools.files import load_pool
    from hierrouter.pools.pool import guesses
    from hierrouter.replay.inspection import left_out_note, pruned_note
    from hierrouter.replay.opening import open_trees as open_selected

    labels = {"embed": "embed states", "score": "score responses"}
    # What a user's own scorer prints is no result of ours.
    with console.bar("open") as show, contextlib.redirect_stdout(sys.stderr):
        trees = open_selected(
            cache,
            selection,
            price_lists,
            lambda what, done, total: show(done, total, label=labels[what]),
        )
    if selection.pool and (note := load_pool(selection.pool).unit_note()):
        console.say(note)
    if trees[0].left_out:
        console.say(f"note: {left_out_note(trees[0])}")
    if trees[0].pruned:
        console.say(f"note: {pruned_note(trees[0])}")
    for line in dict.fromkeys(guesses(tree) for tree in trees):
        if line:
            console.say(line)
    return trees


@dataclass(frozen=True)
class Selected:
    """What the user gave, a field for each flag; see `options`."""

    cache: options.Cache = options.DEFAULT_CACHE
    pool: options.PoolName = None
    models: options.Models = None
    without: options.Without = None
    hops: options.Hops = None
    datasets: options.Datasets = None
    limit: options.Limit = None
    encoder: options.Encoder = None
    state: options.State = None
    scorer: options.Scorer = options.DEFAULT_SCORER
    prices: options.PriceFiles = None
    price: options.Price = None
    price_of_second: options.PriceOfSecond = None
    allow_incomplete: options.AllowIncomplete = False
    allow_return: options.AllowReturn = False

    def selection(self) -> Selection:
        """The part of the cache that is meant.

        Raises InputError: several price files; only a report shows them side by side.
        """
        from hierrouter.pools.files import price_lists
        from hierrouter.replay.opening import Selection
        from hierrouter.replay.states import DEFAULT_VIEW

        if ":" in self.scorer:
            make_importable(Path.cwd())
        files = self.prices or []
        if len(files) > 1:
            raise InputError(
                f"{len(files)} price files: --prices; one at a time here, `hierrouter report` "
                "shows several side by side"
            )
        [prices] = price_lists(files, self.price or []).values()
        return Selection(
            pool=self.pool,
            models=options.split_names(self.models),
            without=options.split_names(self.without) or (),
            hops=self.hops,
            datasets=options.split_names(self.datasets),
            limit=self.limit,
            encoder=self.encoder,
            view=DEFAULT_VIEW if self.state is None else self.state,
            scorer=self.scorer,
            prices=prices,
            price_of_second=self.price_of_second or 0.0,
            allow_incomplete=self.allow_incomplete,
            allow_return=self.allow_return,
        )

    def open(self) -> Tree:
        """The tree; see `hierrouter.replay.opening.open_tree` for the errors."""
        selection = self.selection()
        return open_trees(self.cache, selection, [selection.prices])[0]


def as_trained(selected: Selected, checkpoint: Path | None) -> Selected:
    """The same, seen as a checkpoint sees it where the user does not say how.

    Raises InputError: there is no such checkpoint.
    """
    if checkpoint is None:
        return selected
    from hierrouter.runs.checkpoint import load_checkpoint

    policy, second = load_checkpoint(checkpoint), selected.price_of_second
    return replace(
        selected,
        encoder=selected.encoder or policy.origin.encoder,
        state=selected.state or policy.origin.view,
        price_of_second=policy.origin.second if second is None else second,
        allow_return=selected.allow_return or policy.objective.allow_return,
    )


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the flags of `Selected`, as typer reads them off its signature."""
    flags = inspect.signature(Selected, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def run(**given: Any) -> None:
        selected = Selected(**{name: given.pop(name) for name in flags})
        command(selected=selected, **given)

    shown: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        shown += flags.values() if parameter.name == "selected" else [parameter]
    by_name = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in shown]
    run.__signature__ = own.replace(parameters=by_name)  # type: ignore[attr-defined]
    return run
