"""The flags that say which tree to open.

In: a command with a parameter `selected`. Out: the same command, on whose command line each field
of `Selected` is a flag, in the place of that parameter. Not covered: what the flags mean, see
`opening`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierrouter_cache.errors import InputError
from hierrouter_cli import options, parsing
from hierrouter_cli.opening import make_importable, open_trees

if TYPE_CHECKING:
    from hierrouter.replay.tree import Tree
    from hierrouter.trees import Selection


@dataclass(frozen=True)
class Selected:
    """What the user gave, a field for each flag; see `options`."""

    cache: options.Cache = options.DEFAULT_CACHE
    pool: options.PoolName = None
    models: options.Models = None
    hops: options.Hops = None
    datasets: options.Datasets = None
    limit: options.Limit = None
    encoder: options.Encoder = None
    state: options.State = None
    scorer: options.Scorer = options.DEFAULT_SCORER
    prices: options.PriceFiles = None
    price: options.Price = None
    allow_incomplete: options.AllowIncomplete = False

    def selection(self) -> Selection:
        """The part of the cache that is meant.

        Raises:
            InputError: several price files; only a report shows them side by side.
        """
        from hierrouter.collect.encoders import BUILT_IN
        from hierrouter.collect.views import DEFAULT_VIEW
        from hierrouter.price_lists import price_lists
        from hierrouter.trees import Selection

        if ":" in self.scorer:
            make_importable(Path.cwd())
        files = self.prices or []
        if len(files) > 1:
            raise InputError(
                f"{len(files)} price files: --prices; one at a time here, `hierrouter report` "
                "shows several side by side"
            )
        [given] = price_lists(files, self.price or [])
        return Selection(
            pool=self.pool,
            models=parsing.split_names(self.models),
            hops=self.hops,
            datasets=parsing.split_names(self.datasets),
            limit=self.limit,
            encoder=self.encoder or BUILT_IN,
            view=DEFAULT_VIEW if self.state is None else self.state,
            scorer=self.scorer,
            prices=given.prices,
            allow_incomplete=self.allow_incomplete,
        )

    def unpriced(self) -> Selection:
        """The same for a command that shows it under several price lists."""
        return replace(self, prices=None, price=None).selection()

    def open(self) -> Tree:
        """The tree; see `hierrouter.trees.open_tree` for the errors."""
        selection = self.selection()
        return open_trees(self.cache, selection, [selection.prices])[0]


def as_trained(selected: Selected, checkpoint: Path | None) -> Selected:
    """The same, seen as a checkpoint sees it where the user does not say how.

    Raises:
        InputError: there is no such checkpoint.
    """
    if checkpoint is None:
        return selected
    from hierrouter.learn.checkpoint import load_checkpoint

    origin = load_checkpoint(checkpoint).origin
    return replace(
        selected, encoder=selected.encoder or origin.encoder, state=selected.state or origin.view
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
