"""The jobs of this room: what report, compare, explain and explore can be asked for.

Each job is declared once, for Python and for the command line, see `hierrouter.declarations`. The
modules that do the work are imported when a job runs, because they need torch and matplotlib.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter.declarations import flags
from hierrouter.declarations.checks import check_names, check_path
from hierrouter.declarations.declaration import (
    Flag,
    OnCount,
    OnNote,
    declaration,
    function_of,
    ignore_note,
    shown_name,
    shown_value,
)
from hierrouter.paper import PAPER_SEED
from hierrouter.runs import folders
from hierrouter.runs.folders import Checkpoint, SweepRun
from hierrouter_cache.errors import InputError

if TYPE_CHECKING:
    from hierrouter.evaluation.policies import OwnPolicy
    from hierrouter.learning.baselines.arms import Baseline
    from hierrouter.replay.tree import Tree
    from hierrouter.reports.comparison import Standings
    from hierrouter.reports.explain import Explanations, RouteList
    from hierrouter.reports.fold_report import DeferralTarget
    from hierrouter.reports.report import FinishedReport

# Called with how much is done, how much there is in all, and the name of what was done last.
OnFitted = Callable[[int, int, str], None]
# Makes the context in which the long part of a job runs, so that a command can show a bar around
# it; the context gives what is called after each step. Notes come before and after, not within.
FitContext = Callable[[], AbstractContextManager[OnFitted]]
AlphaContext = Callable[[], AbstractContextManager[OnCount]]

# The formats of `figures.FIGURE_FORMATS`, which needs matplotlib; a test holds them equal.
FIGURE_FORMATS = ("svg", "pdf", "png")
WORST_FOLD = "validation"  # the default of `Explain.worst_fold`
EXPLORE_PAGE = "explore.html"


def ignore_progress(*progress: int | str) -> None:
    """Do nothing after a step."""


def without_bar() -> AbstractContextManager[Callable[..., None]]:
    """Return a context that shows nothing: the `FitContext` and `AlphaContext` by default."""
    return nullcontext(ignore_progress)


class WithPolicies:
    """A job with policies of the user.

    Attributes:
        policies: policies, or their import paths; see `hierrouter.evaluation.policies`.
    """

    policies: flags.Policies

    @cached_property
    def own_policies(self) -> tuple[OwnPolicy, ...]:
        """The user's policies, imported.

        Raises:
            InputError: a policy cannot be imported or used, or two have the same name.
        """
        from hierrouter.evaluation.policies import own_policies

        return own_policies(self.policies)


def _baselines(names: Sequence[str] | None) -> tuple[Baseline, ...]:
    from hierrouter.learning.baselines.registry import baselines

    return baselines(names)


def _run_or_sweep(
    run: str | os.PathLike[str] | None, sweep: str | os.PathLike[str] | None
) -> tuple[Path | None, Path | None]:
    """Return the folders of a run of `train` and of a sweep; a sweep may be given as the run."""
    from hierrouter.runs.checkpoint import is_sweep

    run_folder = None if run is None else folders.find_run(run)
    sweep_folder = None if sweep is None else folders.find_run(sweep)
    if run_folder is not None and is_sweep(run_folder):
        return None, run_folder
    return run_folder, sweep_folder


@declaration
class Report(WithPolicies):
    """Report on a router; see `report` for the other attributes.

    Attributes:
        checkpoint: folder of the router's run; None is the latest that fits.
        price_lists: the same tree under other prices, by name.
    """

    alpha: flags.Alpha = None
    checkpoint: Checkpoint = None
    sweep: SweepRun = None
    retrain: Annotated[
        bool, Flag("--retrain", help="Train runs again that do not fit; they are new runs.")
    ] = False
    defer_to: flags.DeferTo = None
    defer_share: flags.DeferShare = None
    policies: flags.Policies = ()
    p95_below: flags.P95Below = None
    split: flags.SplitOrAll = flags.TEST_FOLD
    figures: Annotated[
        Sequence[str],
        Flag(
            "--figures",
            ",".join(FIGURE_FORMATS),
            "Also the figures, a file each.",
            check=check_names,
            completions=FIGURE_FORMATS,
            is_list=True,
        ),
    ] = ()
    out: flags.Out = None
    price_lists: Mapping[str, Any] | None = None

    @property
    def deferral(self) -> DeferralTarget | None:
        """The model that takes what the router doubts; None without deferral."""
        if self.defer_to is None:
            return None
        from hierrouter.reports.fold_report import DeferralTarget

        return DeferralTarget(self.defer_to, self.defer_share)

    def check(self) -> None:
        """Refuse whatever can be refused before a cache is read.

        Raises:
            InputError: the output folder is in use, a format of figures is unknown, a share to
                defer has no model, or a policy cannot be used.
        """
        folders.check_out(self.out)
        if self.figures:
            from hierrouter.reports.figures import check_formats

            check_formats(self.figures)
        if self.defer_share is not None and self.defer_to is None:
            share = shown_value(shown_name(Report, "defer_share"), self.defer_share)
            model = shown_value(shown_name(Report, "defer_to"), "MODEL")
            raise InputError(f"no model to hand over to: {share}; give {model}")
        self.own_policies  # noqa: B018  refuses what cannot be used

    def evaluate(
        self,
        trees: Mapping[str, Tree],
        on_note: OnNote = ignore_note,
        show_progress: Callable[[], AbstractContextManager[object]] = without_bar,
    ) -> FinishedReport:
        """Evaluate everything under the first price list, and log a look at the test fold.

        Args:
            trees: the tree under each price list, by the list's name; the first is the main one.
            on_note: called with each line on which router it is, and on looks at the test fold.
            show_progress: makes the context of the evaluation.

        Raises:
            InputError: something does not fit together, or there is nothing to report on.
            CacheError: the cache that the tree was opened from is gone or damaged.
        """
        self.check()
        # Last, because it needs torch: everything else is refused before it is imported.
        from hierrouter.reports.report import evaluate_report

        return evaluate_report(self, trees, on_note, show_progress)

    def run(self, tree: Tree, on_note: OnNote = ignore_note) -> FinishedReport:
        """Evaluate everything, and write files if `out` or `figures` ask for them.

        Args:
            tree: all folds; `price_lists` has it under other prices.
            on_note: as in `evaluate`.

        Raises:
            InputError: as `evaluate`.
            CacheError: as `evaluate`.
            WorldError: the disk is full or failed.
        """
        from hierrouter.pools.pool import POOL_PRICES

        finished = self.evaluate({POOL_PRICES: tree, **(self.price_lists or {})}, on_note)
        if self.out is not None or self.figures:
            finished.save(self.out, self.figures)
        return finished


@function_of(Report)
def report(
    tree: Tree,
    run: str | os.PathLike[str] | None = None,
    *,
    alpha: float | None = None,
    split: str = flags.TEST_FOLD,
    sweep: str | os.PathLike[str] | None = None,
    retrain: bool = False,
    defer_to: str | None = None,
    defer_share: float | None = None,
    policies: Sequence[Any] = (),
    price_lists: Mapping[str, Tree] | None = None,
    p95_below: float | None = None,
    figures: str | Sequence[str] = (),
    out: str | Path | None = None,
    on_note: OnNote = ignore_note,
) -> FinishedReport:
    """Evaluate everything on one fold, exactly, with intervals by bootstrap over the queries.

    A look at the test fold is logged in the folders of the runs.

    Args:
        tree: all folds.
        run: a run of `train` or `sweep`, or its folder; default: the newest that learned from the
            tree.
        alpha: price of cost; default: the one that the router was trained for.
        split: the fold to evaluate on; "all" is all of them, which is no test.
        sweep: a run of `sweep`, or its folder, for the frontier; default: the newest.
        retrain: train the run and the sweep again if they do not fit the tree; they are new runs.
        defer_to: a model whose direct call takes what the router doubts.
        defer_share: at most this share of the queries; default: the share that gives the highest R.
        policies: your own policies, to be evaluated beside the router; see
            `hierrouter.evaluation.policies`.
        price_lists: the same tree under other prices, by name, for a table side by side.
        p95_below: name the best fixed route whose 95th percentile has at most this many seconds.
        figures: formats of figures to write beside the page: "svg", "pdf", "png".
        out: folder for the page, the JSON and the figures; default: nothing is written, or, with
            `figures`, a new folder below `runs`.
        on_note: called with each line on which router it is, and on looks at the test fold.

    Returns:
        The report, with its tables, its page and its JSON.

    Raises:
        InputError: something does not fit together, or there is nothing to report on.
        CacheError: the cache that the tree was opened from is gone or damaged.
        WorldError: the disk is full or failed.
    """
    checkpoint, sweep_folder = _run_or_sweep(run, sweep)
    return Report(
        alpha=alpha,
        checkpoint=checkpoint,
        sweep=sweep_folder,
        retrain=retrain,
        defer_to=defer_to,
        defer_share=defer_share,
        policies=policies,
        p95_below=p95_below,
        split=split,
        figures=figures,
        out=None if out is None else Path(out),
        price_lists=price_lists,
    ).run(tree, on_note)


@declaration
class Compare(WithPolicies):
    """Compare a router with baselines; see `compare` for the other attributes.

    Attributes:
        checkpoint: folder of the router's run; None is the latest that fits.
    """

    alpha: flags.Alpha = None
    checkpoint: Checkpoint = None
    sweep: SweepRun = None
    split: flags.Split = flags.TEST_FOLD
    baselines: Annotated[
        Sequence[str] | None,
        flags.baselines_flag("Names, or your own; default: all.", check=check_names),
    ] = None
    sets: Annotated[
        Sequence[str],
        Flag("--sets", "A,B", "A: one direct call; B: whole routes.", check=check_names),
    ] = ("A", "B")
    policies: flags.Policies = ()
    seed: flags.Seed = PAPER_SEED
    out: flags.Out = None

    @cached_property
    def loaded_baselines(self) -> tuple[Baseline, ...]:
        """The baselines, the user's own among them.

        Raises:
            InputError: a baseline is unknown, cannot be imported, or is given twice.
        """
        return _baselines(self.baselines)

    def check(self) -> None:
        """Refuse whatever can be refused before a cache is read.

        Raises:
            InputError: the output folder is in use, or a baseline, a policy or a set of arms
                cannot be used.
        """
        from hierrouter.learning.baselines.arms import require_sets

        folders.check_out(self.out)
        self.loaded_baselines  # noqa: B018  refuses what cannot be used
        self.own_policies  # noqa: B018
        require_sets(self.sets)

    def evaluate(
        self, tree: Tree, on_note: OnNote = ignore_note, show_progress: FitContext = without_bar
    ) -> Standings:
        """Fit the baselines, evaluate everything, and log a look at the test fold.

        Args:
            tree: all folds.
            on_note: called with each line on which router it is, and on looks at the test fold.
            show_progress: makes the context of the fits; it gives what is called with (done, total,
                name) after each.

        Raises:
            InputError: something does not fit together, or there is nothing to compare on.
            CacheError: the cache that the tree was opened from is gone or damaged.
        """
        self.check()
        from hierrouter.reports.comparison import evaluate_comparison

        return evaluate_comparison(self, tree, on_note, show_progress)

    def run(
        self, tree: Tree, on_note: OnNote = ignore_note, show_progress: FitContext = without_bar
    ) -> Standings:
        """Compare, and write JSON and Markdown if `out` asks for them; see `evaluate`.

        Raises:
            InputError: as `evaluate`.
            CacheError: as `evaluate`.
            WorldError: the disk is full or failed.
        """
        standings = self.evaluate(tree, on_note, show_progress)
        if self.out is not None:
            standings.save(self.out)
        return standings


@function_of(Compare)
def compare(
    tree: Tree,
    run: str | os.PathLike[str] | None = None,
    *,
    alpha: float | None = None,
    split: str = flags.TEST_FOLD,
    baselines: str | Sequence[str] | None = None,
    sets: str | Sequence[str] = ("A", "B"),
    policies: Sequence[Any] = (),
    seed: int = PAPER_SEED,
    sweep: str | os.PathLike[str] | None = None,
    out: str | Path | None = None,
    progress: OnFitted | None = None,
    on_note: OnNote = ignore_note,
) -> Standings:
    """Fit the baselines on the train fold, and compare them with the learned router.

    At most 10,000 queries of each fold take part. A look at the test fold is logged in the folder
    of the run.

    Args:
        tree: all folds.
        run: a run of `train` or `sweep`, or its folder; default: the newest that learned from the
            tree.
        alpha: price of cost; default: the one that the router was trained for.
        split: the fold to compare on.
        baselines: names, or `module:Class`, as a list or as "a,b"; default: all built-in ones.
        sets: what they choose from: "A" one direct call, "B" whole routes.
        policies: your own policies, to be evaluated beside them; see
            `hierrouter.evaluation.policies`.
        seed: seed of the baselines' random draws.
        sweep: a run of `sweep`, or its folder, whose router takes part instead of that of `run`;
            default: the newest, if there is no run for this alpha.
        out: folder for the JSON and the tables as Markdown; default: nothing is written.
        progress: called with (done, total, name) after each fit.
        on_note: called with each line on which router it is, and on looks at the test fold.

    Returns:
        The comparison, with its tables and its JSON.

    Raises:
        InputError: something does not fit together, or there is nothing to compare on.
        CacheError: the cache that the tree was opened from is gone or damaged.
        WorldError: the disk is full or failed.
    """
    checkpoint, sweep_folder = _run_or_sweep(run, sweep)
    return Compare(
        alpha=alpha,
        checkpoint=checkpoint,
        sweep=sweep_folder,
        split=split,
        baselines=baselines,
        sets=sets,
        policies=policies,
        seed=seed,
        out=None if out is None else Path(out),
    ).run(tree, on_note, lambda: nullcontext(progress or ignore_progress))


@declaration
class Explain:
    """Explain one query, or those with the largest regret; see `explain` for the attributes.

    Attributes:
        checkpoint: folder of the router's run; None is the latest that fits.
    """

    query: Annotated[
        str | None, Flag("", "QUERY_ID", "An id, dataset/id, or the beginning of either.")
    ] = None
    worst: Annotated[
        int | None,
        Flag("--worst", "N", "Instead: the N queries with the largest regret.", minimum=1),
    ] = None
    split: Annotated[str | None, flags.split_flag(f"Of --worst; default {WORST_FOLD}.")] = None
    routes: Annotated[
        bool, Flag("--routes", help="Instead: the route of each group, if the router is a table.")
    ] = False
    checkpoint: Checkpoint = None
    alpha: flags.Alpha = None

    @property
    def worst_fold(self) -> str:
        """The fold on which the queries with the largest regret are looked for."""
        return self.split or WORST_FOLD

    def check(self) -> None:
        """Refuse whatever can be refused before a cache is read.

        Raises:
            InputError: there is neither a query nor a number of queries, or there are both, or a
                fold for a single query, or one of these with `routes`.
        """
        worst = shown_name(Explain, "worst")
        if self.routes:
            if self.query is not None or self.worst is not None or self.split is not None:
                raise InputError("--routes is of the router and not of queries; give it alone")
            return
        if (self.query is None) == (self.worst is None):
            problem = "no query"
            if self.query is not None:
                problem = f"a query and {worst} contradict each other"
            query = shown_name(Explain, "query")
            number = f"{worst}N" if worst.endswith("=") else f"{worst} N"
            raise InputError(f"{problem}; give {query} or {number}")
        if self.query is not None and self.split is not None:
            split = shown_value(shown_name(Explain, "split"), self.split)
            raise InputError(f"{split} is for {worst}; a query is looked for in all folds")

    def run(self, tree: Tree, on_note: OnNote = ignore_note) -> Explanations | RouteList:
        """Explain, and log a look at the test fold.

        Args:
            tree: all folds.
            on_note: called with each line on which router it is, and on looks at the test fold.

        Raises:
            InputError: there is no such query or fold, several queries begin so, or there is no
                router for a regret.
            CacheError: the cache that the tree was opened from is gone or damaged.
        """
        self.check()
        from hierrouter.reports.explain import explain_selection

        return explain_selection(self, tree, on_note)


@function_of(Explain)
def explain(
    tree: Tree,
    query: str | None = None,
    run: str | os.PathLike[str] | None = None,
    *,
    worst: int | None = None,
    split: str | None = None,
    routes: bool = False,
    alpha: float | None = None,
    on_note: OnNote = ignore_note,
) -> Explanations | RouteList:
    """Explain a query: every answer, what it is worth, the router's route and what it lost.

    Or the queries on which the router loses most, or the routes of a router that is a table of
    them. A look at the test fold is logged in the folder of the run.

    Args:
        tree: all folds.
        query: id of a query, its dataset and id as "dataset/id", or the beginning of either.
        run: a run of `train`, or its folder; default: the newest that learned from the tree.
        worst: instead of `query`: how many of the queries with the largest regret.
        split: fold of `worst`; default: "validation".
        routes: instead of `query`: the route of each group, of a router that is a table of routes
            or one route for all.
        alpha: price of cost; default: the one that the router was trained for.
        on_note: called with each line on which router it is, and on looks at the test fold.

    Returns:
        The explanations, as values, text and JSON.

    Raises:
        InputError: there is no such query or fold, several queries begin so, or there is no router
            for a regret.
        CacheError: the cache that the tree was opened from is gone or damaged.
    """
    return Explain(
        query=query,
        worst=worst,
        split=split,
        routes=routes,
        checkpoint=None if run is None else folders.find_run(run),
        alpha=alpha,
    ).run(tree, on_note)


@declaration
class Explore(WithPolicies):
    """Write an interactive page on a fold; see `explore` for the other attributes.

    Attributes:
        checkpoint: folder of the router's run; None is the latest that fits.
    """

    checkpoint: Checkpoint = None
    sweep: SweepRun = None
    policies: flags.Policies = ()
    baselines: Annotated[
        Sequence[str] | None,
        flags.baselines_flag(
            "Names, or your own, to be fitted and shown beside it.", check=check_names
        ),
    ] = None
    split: flags.Split = flags.TEST_FOLD
    texts: Annotated[
        int, Flag("--texts", "N", "How many queries come with question and answers.", minimum=0)
    ] = 500
    out: Annotated[
        Path | None,
        Flag(
            "--out",
            "FILE.html",
            f"The page; default runs/<time>-explore/{EXPLORE_PAGE}.",
            check=check_path,
        ),
    ] = None

    @cached_property
    def loaded_baselines(self) -> tuple[Baseline, ...]:
        """The baselines, the user's own among them; none by default.

        Raises:
            InputError: a baseline is unknown, cannot be imported, or is given twice.
        """
        return () if self.baselines is None else _baselines(self.baselines)

    @property
    def page_name(self) -> str:
        """Name of the page's file in a new folder."""
        return EXPLORE_PAGE

    def check(self) -> None:
        """Refuse whatever can be refused before a cache is read.

        Raises:
            InputError: the page's file exists or cannot be written, or a policy or a baseline
                cannot be used.
        """
        if self.out:
            folders.require_free_file(self.out)
        self.own_policies  # noqa: B018  refuses what cannot be used
        self.loaded_baselines  # noqa: B018

    def run(
        self, tree: Tree, on_note: OnNote = ignore_note, show_progress: AlphaContext = without_bar
    ) -> Path:
        """Evaluate everything, log a look at the test fold, and write the page.

        Args:
            tree: all folds.
            on_note: called with each line on which router it is, and on looks at the test fold.
            show_progress: makes the context of the evaluation; it gives what is called with (alphas
                done, all alphas) while a sweep is evaluated.

        Returns:
            The page's file.

        Raises:
            InputError: something does not fit together, or cannot be on a page.
            CacheError: the cache that the tree was opened from is gone or damaged.
            WorldError: the disk is full or failed.
        """
        self.check()
        from hierrouter.reports.explore import write_page

        return write_page(self, tree, on_note, show_progress)


@function_of(Explore)
def explore(
    tree: Tree,
    run: str | os.PathLike[str] | None = None,
    *,
    sweep: str | os.PathLike[str] | None = None,
    policies: Sequence[Any] = (),
    baselines: str | Sequence[str] | None = None,
    split: str = flags.TEST_FOLD,
    texts: int = 500,
    out: str | Path | None = None,
    progress: OnCount | None = None,
    on_note: OnNote = ignore_note,
) -> Path:
    """Write a page on which alpha, prices and models can be changed, query by query.

    It is one file, opens from disk and loads nothing. A look at the test fold is logged in the
    folders of the runs.

    Args:
        tree: all folds.
        run: a run of `train`, or its folder; default: the newest that learned from the tree.
        sweep: a run of `sweep`, or its folder; default: the newest, unless `run` is given.
        policies: your own policies, to be shown beside the router; see
            `hierrouter.evaluation.policies`.
        baselines: names, or `module:Class`, as a list or as "a,b", to be fitted and shown beside
            it; default: none.
        split: the fold of the page.
        texts: at most this many queries come with question and answers.
        out: the page's file; default: in a new folder below `runs`.
        progress: called with (alphas done, all alphas) while a sweep is evaluated.
        on_note: called with each line on which router it is, and on looks at the test fold.

    Returns:
        The page's file.

    Raises:
        InputError: something does not fit together, or cannot be on a page.
        CacheError: the cache that the tree was opened from is gone or damaged.
        WorldError: the disk is full or failed.
    """
    return Explore(
        checkpoint=None if run is None else folders.find_run(run),
        sweep=None if sweep is None else folders.find_run(sweep),
        policies=policies,
        baselines=baselines,
        split=split,
        texts=texts,
        out=None if out is None else Path(out),
    ).run(tree, on_note, lambda: nullcontext(progress or ignore_progress))
