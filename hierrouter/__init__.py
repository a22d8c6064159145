"""Multi-hop routing of language models, learned and evaluated on a cached tree of every route.

    import hierrouter as hr

    cache = hr.collect("testbed", cache="caches/mine")     # every route of every question, once
    tree = hr.open(cache)
    run = hr.train(tree, alpha=0.005)                      # no model is called any more
    print(hr.report(tree, run, split="validation"))
    with hr.Router(run) as router:
        print(router.route("compute 12+7").answer)

Every name below is loaded when it is used first: importing this package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hierrouter.collection.collect import collect as collect
    from hierrouter.collection.transfer import export as export
    from hierrouter.collection.transfer import import_ as import_
    from hierrouter.evaluation.bounds import oracle as oracle
    from hierrouter.evaluation.outcome import fixed_routes as fixed_routes
    from hierrouter.pools.files import load_pool as load_pool
    from hierrouter.pools.pool import Pool as Pool
    from hierrouter.questions.scoring import scorer as scorer
    from hierrouter.replay.env import ReplayEnv as ReplayEnv
    from hierrouter.replay.open_tree import open as open
    from hierrouter.replay.tree import Tree as Tree
    from hierrouter.reports.jobs import compare as compare
    from hierrouter.reports.jobs import explain as explain
    from hierrouter.reports.jobs import explore as explore
    from hierrouter.reports.jobs import report as report
    from hierrouter.runs.evaluate import evaluate as evaluate
    from hierrouter.runs.run import Run as Run
    from hierrouter.runs.run import SweepRun as SweepRun
    from hierrouter.runs.train import sweep as sweep
    from hierrouter.runs.train import train as train
    from hierrouter.serving.deploy import deploy as deploy
    from hierrouter.serving.evaluate_log import off_policy as off_policy
    from hierrouter.serving.evaluate_log import savings as savings
    from hierrouter.serving.learn_from import learn_from as learn_from
    from hierrouter.serving.router import Router as Router
    from hierrouter_cache.errors import CacheError as CacheError
    from hierrouter_cache.errors import HierRouterError as HierRouterError
    from hierrouter_cache.errors import IncompleteTree as IncompleteTree
    from hierrouter_cache.errors import InputError as InputError
    from hierrouter_cache.errors import Interrupted as Interrupted
    from hierrouter_cache.errors import WorldError as WorldError

__version__ = "0.1.0.dev0"

# Where each name lives.
_ROOMS = {
    "hierrouter.collection.collect": ("collect",),
    "hierrouter.evaluation.bounds": ("oracle",),
    "hierrouter.evaluation.outcome": ("fixed_routes",),
    "hierrouter.collection.transfer": ("export", "import_"),
    "hierrouter.runs.evaluate": ("evaluate",),
    "hierrouter.runs.run": ("Run", "SweepRun"),
    "hierrouter.runs.train": ("sweep", "train"),
    "hierrouter.serving.deploy": ("deploy",),
    "hierrouter.serving.evaluate_log": ("off_policy", "savings"),
    "hierrouter.serving.learn_from": ("learn_from",),
    "hierrouter.serving.router": ("Router",),
    "hierrouter.pools.pool": ("Pool",),
    "hierrouter.pools.files": ("load_pool",),
    "hierrouter.replay.env": ("ReplayEnv",),
    "hierrouter.replay.tree": ("Tree",),
    "hierrouter.reports.jobs": ("compare", "explain", "explore", "report"),
    "hierrouter.questions.scoring": ("scorer",),
    "hierrouter.replay.open_tree": ("open",),
    "hierrouter_cache.errors": (
        "CacheError",
        "HierRouterError",
        "IncompleteTree",
        "InputError",
        "Interrupted",
        "WorldError",
    ),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = sorted(["__version__", *_HOME])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOME[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
