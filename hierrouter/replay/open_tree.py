"""Opening a cache as a tree: what can be asked for, and `hr.open`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierrouter.declarations import flags
from hierrouter.declarations.checks import check_prices
from hierrouter.declarations.declaration import (
    OnNote,
    OnTask,
    declaration,
    function_of,
    ignore_note,
    ignore_task,
)
from hierrouter_cache import CACHE
from hierrouter_cache.errors import InputError

if TYPE_CHECKING:
    from hierrouter.pools.pool import Price
    from hierrouter.replay.tree import Tree


@declaration
class OpenTree:
    """Open what was collected last in a cache, or a part of it.

    Attributes:
        growing: set queries of the train fold apart whatever their holes, because more calls
            follow (adaptive collection).

    The other attributes are the arguments of `open`.
    """

    cache: flags.Cache = CACHE
    pool: flags.Pool = None
    models: flags.Models = None
    without: flags.Without = ()
    hops: flags.Hops = None
    draws: flags.OpenedDraws = None
    datasets: flags.Datasets = None
    limit: flags.Limit = None
    encoder: flags.Encoder = None
    state: flags.State = None
    scorer: flags.Scorer = None
    run_code: flags.RunCode = False
    prices: flags.Prices = ()
    price: flags.Price = ()
    price_of_second: flags.PriceOfSecond = None
    allow_incomplete: flags.AllowIncomplete = False
    allow_return: flags.AllowReturn = False
    max_spend: flags.MaxSpendOnVerdicts = None
    growing: bool = False

    @property
    def view(self) -> str:
        """The texts and numbers of a state that a policy reads: a name in `states.STATE_VIEWS`."""
        return self.state or flags.DEFAULT_VIEW

    def price_lists(self) -> dict[str, dict[str, Price]]:
        """Return the price lists by name; without files there is one, "pool".

        Raises:
            InputError: a file or a price that cannot be used.
        """
        from hierrouter.pools.files import parse_prices, price_lists
        from hierrouter.pools.pool import POOL_PRICES, Price

        if not isinstance(self.prices, Mapping):
            return price_lists(self.prices, self.price)
        ready = {name: price for name, price in self.prices.items() if isinstance(price, Price)}
        others = {name: price for name, price in self.prices.items() if name not in ready}
        [single_prices] = price_lists([], self.price).values()
        return {POOL_PRICES: {**ready, **parse_prices(others), **single_prices}}

    def run(self, on_derive: OnTask = ignore_task, on_note: OnNote = ignore_note) -> Tree:
        """Open the tree.

        Args:
            on_derive: called with ("embed" or "score", done, total) while something is derived.
            on_note: called with each line on what a reader of figures should know.

        Raises:
            CacheError: nothing there, damaged, or incomplete for this pool.
            InputError: a name that is not known, or several price lists, which only a report
                shows side by side.
        """
        lists = self.price_lists()
        if len(lists) > 1:
            raise InputError(
                f"{len(lists)} price files: --prices; one at a time here, `hierrouter report` "
                "shows several side by side"
            )
        [tree] = self.run_each(on_derive, on_note).values()
        return tree

    def run_each(
        self, on_derive: OnTask = ignore_task, on_note: OnNote = ignore_note
    ) -> dict[str, Tree]:
        """Open the tree under each price list; the cache is read once.

        Args:
            on_derive: as in `run`.
            on_note: as in `run`.

        Returns:
            The trees by the names of the price lists.

        Raises:
            CacheError: as `run`.
            InputError: a name that is not known, or a price list that cannot be used.
        """
        from hierrouter.replay.opening import open_trees, opening_notes

        lists = self.price_lists()
        # Output of a user's own scorer is no result, so it must not reach stdout.
        with contextlib.redirect_stdout(sys.stderr):
            trees = open_trees(self, list(lists.values()), on_derive)
        for note in opening_notes(trees, self.pool):
            on_note(note)
        return dict(zip(lists, trees, strict=True))


@function_of(OpenTree)
def open(
    cache: str | os.PathLike[str] = CACHE,
    *,
    prices: str | Path | Mapping[str, Any] | None = None,
    price: str | Sequence[str] = (),
    models: str | Sequence[str] | None = None,
    without: str | Sequence[str] = (),
    hops: int | None = None,
    draws: int | None = None,
    datasets: str | Sequence[str] | None = None,
    limit: int | None = None,
    price_of_second: float | None = None,
    scorer: str | None = None,
    run_code: bool = False,
    encoder: str | None = None,
    state: str | None = None,
    pool: str | Path | None = None,
    allow_incomplete: bool = False,
    allow_return: bool = False,
    max_spend: float | None = None,
    progress: OnTask | None = None,
) -> Tree:
    """Open what was collected last in a cache, or a part of it.

    Args:
        cache: its folder.
        prices: a TOML file, or by model a rate in the pool's unit, one or {"in": ..., "out": ...};
            models that are not named keep the pool's price.
        price: texts such as "calc=0.5" or "calc=0.5:1.5", on top of `prices`.
        models: some of the pool's, in this order, as a list or as "a,b"; None is all.
        without: models and references to leave out, given likewise.
        hops: the first so many; None is all.
        draws: the first so many of each call; None is all.
        datasets: some of those that were collected, given likewise; None is all.
        limit: at most so many queries of each dataset, the ones that `collect` draws with the same
            limit.
        price_of_second: price of a call's recorded seconds, in money; joins C.
        scorer: name of Q, or "module:function"; None is token_f1, or the given scores of an
            imported table all of whose answers have one.
        run_code: whether to run the programs in answers, confined, to questions with tests; then
            their accuracy is known. See docs/security.md.
        encoder: "hashed-ngrams", "paper", or a sentence-transformers model; None is the pool's. If
            that is not on this machine and cannot be fetched, the tree has no embeddings: whatever
            is exact can be asked of it, but no router can be trained or valued on it.
        state: what a policy sees: "context" (the default), "query+answer", "query" or "stage"; with
            "+signals" how sure models were of their answers, with "+agreement" only their length
            and whether they agree.
        pool: name or TOML file; None is the pool of the last collection.
        allow_incomplete: leave out queries whose trees have holes, instead of refusing.
        allow_return: embed what follows the last call, too: routers that may give any answer of
            their route see it before they choose one.
        max_spend: ask a judge for no more once its verdicts in the cache have cost so much, in the
            currency of its file.
        progress: called with ("embed" or "score", done, total) while something is derived.

    Raises:
        CacheError: nothing there, damaged, or incomplete for this pool.
        InputError: a name that is not known, or a number that does not fit.
        WorldError: programs are to be run and cannot be confined on this machine; or a judge
            cannot be reached.
        Interrupted: `max_spend` is reached, and answers are not judged.
    """
    # So that `gymnasium.make` knows the environment; commands open without it, faster.
    import_module("hierrouter.replay.env")
    return OpenTree(
        cache=Path(cache),
        prices=() if prices is None else check_prices(prices, "prices="),
        price=price,
        models=models,
        without=without,
        hops=hops,
        draws=draws,
        datasets=datasets,
        limit=limit,
        price_of_second=price_of_second,
        scorer=scorer,
        run_code=run_code,
        encoder=encoder,
        state=state,
        pool=None if pool is None else str(pool),
        allow_incomplete=allow_incomplete,
        allow_return=allow_return,
        max_spend=max_spend,
    ).run(progress or ignore_task)
