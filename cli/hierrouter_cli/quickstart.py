"""`hierrouter quickstart`: the whole job on the testbed."""

from pathlib import Path
from typing import Annotated

from hierrouter.collection.collect import Collect
from hierrouter.declarations import flags
from hierrouter.declarations.checks import check_path
from hierrouter.declarations.declaration import Flag, declaration
from hierrouter.paper import PAPER_SEED
from hierrouter.replay.open_tree import OpenTree
from hierrouter.reports.jobs import Report
from hierrouter.runs.folders import RUNS, check_place, draft_of
from hierrouter.runs.train import Sweep, Train
from hierrouter_cache import CACHE
from hierrouter_cli import console
from hierrouter_cli.collect import make_calls
from hierrouter_cli.declared import open_tree, with_flags
from hierrouter_cli.report import show_message
from hierrouter_cli.train import callbacks_with_bars

# One call of the testbed costs about .6, so a second one must be worth a quarter of Q.
QUICKSTART_ALPHA = 0.4
STAGES = (
    ("collect", "every route of every question, each model call once"),
    ("train", "PPO on the replayed tree, no model is called any more"),
    ("sweep-alpha", "the best policy class for every price of cost"),
    ("report", "exact values on the test fold, intervals by bootstrap over queries"),
)


@declaration
class Quickstart:
    """The settings of a quickstart.

    Attributes:
        alpha: of the router and of the report.
        limit: the largest number of queries of each dataset; None is 300.
        seed: of the draw and of the training.
        out: folder for cache, runs and report; None is the usual folders.
    """

    alpha: Annotated[float, flags.alpha_flag("Price of cost in R = Q - alpha * C.")] = (
        QUICKSTART_ALPHA
    )
    limit: flags.LimitToDraw = None
    seed: flags.Seed = PAPER_SEED
    out: Annotated[
        Path | None,
        Flag(
            "--out",
            "DIR",
            "For everything; default caches/default and runs/quickstart-*.",
            check=check_path,
        ),
    ] = None

    @property
    def cache(self) -> Path:
        """Folder of the cache."""
        return self.out / "cache" if self.out else CACHE

    def folder(self, command: str) -> Path:
        """Return the folder of a command's run or report."""
        return self.out / "runs" / command if self.out else RUNS / f"quickstart-{command}"


@with_flags
def quickstart(*, settings: Quickstart) -> None:
    """Collect, train, sweep alpha and report on three tiny models that come with the package.

    About a minute on two cores. Interrupted, it goes on where it stopped.
    """
    from hierrouter.pools.pool import POOL_PRICES

    if settings.out:
        check_place(settings.out)
    alpha = settings.alpha
    seed = settings.seed
    cache = settings.cache
    train = settings.folder("train")
    sweep = settings.folder("sweep-alpha")
    report = settings.folder("report")
    with console.one_bar(len(STAGES)) as begin:

        def stage(number: int) -> None:
            name, what = STAGES[number - 1]
            console.say(f"{number}/{len(STAGES)} {name}: {what}")
            begin(number - 1, f"{number}/{len(STAGES)} {name}")

        stage(1)
        collecting = Collect(
            datasets=["testbed"], pool="testbed", cache=cache, limit=settings.limit, seed=seed
        )
        make_calls(collecting.plan(console.say), brief=True)
        tree = open_tree(OpenTree(cache=cache))
        callbacks = callbacks_with_bars()
        stage(2)
        training = Train(alpha=alpha, allow_stop=True, seed=seed, out=train)
        trained = training.run(tree, callbacks, replace_existing=True)
        console.say(f"trained: {trained.reached}")
        stage(3)
        Sweep(allow_stop=True, seed=seed, out=sweep).run(tree, callbacks, replace_existing=True)
        stage(4)
        reporting = Report(alpha=alpha, checkpoint=train, sweep=sweep)
        finished = reporting.evaluate({POOL_PRICES: tree}, console.say)
        with draft_of(report) as draft:
            page = report / finished.write(draft).name
    show_message(finished.result, page, cache, train if settings.out else None)
