"""Multi-hop routing of language models, learned and evaluated on a cached tree of every route.

    import hierrouter as hr

    cache = hr.collect("testbed", cache="caches/mine")     # every route of every question, once
    tree = hr.open(cache)
    run = hr.train(tree, alpha=0.005)                      # no model is called any more
    print(hr.report(tree, run, split="validation"))
    with hr.Router(run) as router:
        print(router.route("compute 12 + 7").answer)

Every name below is loaded when it is used first: importing this package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hierrouter.collect.collecting import collect
    from hierrouter.evaluate.bounds import oracle
    from hierrouter.evaluate.outcome import fixed_routes
    from hierrouter.evaluate.policies import evaluate
    from hierrouter.interchange.transfer import export, import_
    from hierrouter.learn.run import Run, SweepRun, sweep, train
    from hierrouter.live.router import Router
    from hierrouter.pool import Pool
    from hierrouter.pool_file import load_pool
    from hierrouter.replay.env import ReplayEnv
    from hierrouter.replay.tree import Tree
    from hierrouter.report.comparing import compare
    from hierrouter.report.finished import report
    from hierrouter.scoring.registry import scorer
    from hierrouter.trees import open
    from hierrouter_cache.errors import (
        CacheError,
        HierRouterError,
        IncompleteTree,
        InputError,
        Interrupted,
        WorldError,
    )

__version__ = "0.1.0.dev0"

# Where each name lives.
_ROOMS = {
    "hierrouter.collect.collecting": ("collect",),
    "hierrouter.evaluate.bounds": ("oracle",),
    "hierrouter.evaluate.outcome": ("fixed_routes",),
    "hierrouter.evaluate.policies": ("evaluate",),
    "hierrouter.interchange.transfer": ("export", "import_"),
    "hierrouter.learn.run": ("Run", "SweepRun", "sweep", "train"),
    "hierrouter.live.router": ("Router",),
    "hierrouter.pool": ("Pool",),
    "hierrouter.pool_file": ("load_pool",),
    "hierrouter.replay.env": ("ReplayEnv",),
    "hierrouter.replay.tree": ("Tree",),
    "hierrouter.report.comparing": ("compare",),
    "hierrouter.report.finished": ("report",),
    "hierrouter.scoring.registry": ("scorer",),
    "hierrouter.trees": ("open",),
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

__all__ = [
    "CacheError",
    "HierRouterError",
    "IncompleteTree",
    "InputError",
    "Interrupted",
    "Pool",
    "ReplayEnv",
    "Router",
    "Run",
    "SweepRun",
    "Tree",
    "WorldError",
    "__version__",
    "collect",
    "compare",
    "evaluate",
    "export",
    "fixed_routes",
    "import_",
    "load_pool",
    "open",
    "oracle",
    "report",
    "scorer",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOME[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
