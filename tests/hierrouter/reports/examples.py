"""Hand-made outcomes, small enough to check on paper.

Four queries, two datasets, alpha 0.1. Mean rewards: router .6, best fixed route .4 (`a>b`),
oracle .8, so half of the gap is closed over all.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hierrouter.evaluation.deferral import DeferralPoint
from hierrouter.evaluation.outcome import Kind, Outcome
from hierrouter.reports.build import build_report
from hierrouter.reports.estimates import Bootstrap, Estimate, EstimateTable
from hierrouter.reports.results import DeferralSummary, ReportData

DATASETS = ("gsm8k", "gsm8k", "mbpp", "mbpp")
ALPHA = 0.1
HOSTILE = (
    "<script>alert(1)</script>",
    "=1+1",
    r"\input{/etc/passwd}",
    "[/INST] [red]x[i]",
    '"><img src=x onerror=alert(1)>',
    "a|b*c_d`e$f$",
    "\x1b]8;;http://x\x07link\x1b[31m \x9b1m \u202egpj",
    "_under",
)


def outcome(
    name: str, kind: Kind, quality: Sequence[float], cost: Sequence[float] | None = None
) -> Outcome:
    """Right where quality is above one half; costs 1 a query where nothing is said."""
    values = np.array(quality, dtype=np.float64)
    right = (values > 0.5).astype(np.float64)
    paid = np.array(cost, dtype=np.float64) if cost is not None else np.ones(len(values))
    return Outcome(name, kind, values, right, paid)


def policies() -> list[Outcome]:
    return [
        outcome("a", "single", [0.4, 0.4, 0.2, 0.2], [0.5] * 4),
        outcome("big", "reference", [0.6, 0.4, 0.4, 0.2], [4.0] * 4),
        outcome("a>a", "route", [0.9, 0.5, 0.2, 0.0]),
        outcome("a>b", "route", [0.2, 0.2, 0.9, 0.7]),
        outcome("hierrouter", "router", [0.9, 0.3, 0.9, 0.7]),
        outcome("oracle", "oracle", [1.0, 0.6, 1.1, 0.9]),
        outcome("random", "baseline", [0.5, 0.3, 0.5, 0.3]),
    ]


def example(
    outcomes: Sequence[Outcome] | None = None,
    datasets: Sequence[str] = DATASETS,
    resamples: int = 200,
    table: EstimateTable | None = None,
    **fields: Any,
) -> ReportData:
    """A report on these outcomes.

    Args:
        outcomes: default: `policies`.
        datasets: the dataset of each query.
        resamples: of the bootstrap.
        table: a table that has more lines already.
        fields: arguments of `build_report`, instead of the usual ones.
    """
    chosen = policies() if outcomes is None else list(outcomes)
    swept = [outcome for outcome in chosen if outcome.kind in ("router", "oracle")]
    usual: dict[str, Any] = {
        "alpha": ALPHA,
        "split": "test",
        "scorer": "token_f1",
        "provenance": {"cache": "caches/default", "seed": 42, "encoder": {"name": "mpnet"}},
        "frontier": [(alpha, one) for one in swept for alpha in (0.2, 0.1)],
    }
    table = table or EstimateTable(datasets, Bootstrap(n=resamples, seed=7))
    return build_report(table, chosen, **{**usual, **fields})


def untrained() -> ReportData:
    """`example` where nothing has been trained."""
    return example([policy for policy in policies() if policy.kind != "router"])


def two_prices(depths: bool = False) -> ReportData:
    """`example` under its own prices and where every query costs 2 more."""
    dearer = [replace(policy, cost=policy.cost + 2) for policy in policies()]
    lists = {"cheap": policies(), "dear": dearer}
    table = depths_added() if depths else None
    return example(table=table, price_lists=lists, cost_unit="USD per question")


def depths_added() -> EstimateTable:
    """A table of a router that stops; intervals reach a tenth to both sides."""
    table = EstimateTable(DATASETS, Bootstrap(n=200, seed=7))
    for hop, figures in enumerate(((0.25, 0.3, 0.6, 0.24), (0.75, 0.8, 1.2, 0.68)), start=1):
        estimates = [Estimate(value, value - 0.1, value + 0.1) for value in figures]
        names = ("share", "quality", "cost", "reward")
        table.add_values("depths", dict(zip(names, estimates, strict=True)), hop=hop)
    none = {"share": Estimate(0.0, -0.1, 0.1), "quality": None, "cost": None, "reward": None}
    table.add_values("depths", none, hop=3)
    return table


def stopping(**fields: Any) -> ReportData:
    """`example` of a router that may stop, trained by `exact`, and a sweep of one alpha."""
    [router] = [policy for policy in policies() if policy.kind == "router"]
    short = outcome(">a", "route", [0.4, 0.4, 0.2, 0.2], [0.6] * 4)
    usual: dict[str, Any] = {
        "provenance": {
            "algo": "exact",
            "preset": "default",
            "view": "query+answer",
            "allow_stop": True,
            "trained_alpha": ALPHA,
        },
        "frontier": [(ALPHA, router)],
    }
    return example([*policies(), short], table=depths_added(), **{**usual, **fields})


def deferring(stronger: str = "big", **changes: Any) -> ReportData:
    """`example` of a router that hands over; nothing between a share of .05 and one of .4.

    Args:
        stronger: the model that it hands over to.
        changes: fields of `DeferralSummary`.
    """
    both = outcome(f"hierrouter, else {stronger}", "baseline", [0.9, 0.4, 0.9, 0.8])
    curve = (
        DeferralPoint(-np.inf, 0.0, 0.7, 1.0, 0.6, 0.6, 0.6),
        DeferralPoint(-0.5, 0.05, 0.74, 1.2, 0.62, 0.59, 0.65),
        DeferralPoint(-0.1, 0.4, 0.8, 2.0, 0.6, 0.44, 0.66),
        DeferralPoint(0.9, 1.0, 0.4, 4.1, 0.19, 0.2, 0.2),  # some of them only after a call
        DeferralPoint(np.inf, 1.0, 0.4, 4.0, 0.2, 0.2, 0.2),
    )
    chosen = DeferralPoint(-0.2, 0.3, 0.77, 1.7, 0.6, 0.48, 0.67)
    summary = DeferralSummary(stronger, "validation", None, chosen, curve)
    return replace(example([*policies(), both]), deferral=replace(summary, **changes))


def hostile() -> ReportData:
    """Every foreign text of a report replaced by something that means harm."""
    singles = [outcome(name, "single", [0.5, 0.4, 0.3, 0.2]) for name in HOSTILE]
    routes = [outcome(f"{name}>{name}", "route", [0.5, 0.4, 0.3, 0.1]) for name in HOSTILE]
    router = outcome("hierrouter", "router", [0.5, 0.5, 0.5, 0.5])
    return example(
        [*singles, *routes, router, outcome("oracle", "oracle", [1.0] * 4)],
        ("<b>bold</b>", "=2+2", "<b>bold</b>", "\\end{tabular}\x1b"),
        50,
        split="</title>",
        scorer="</style><script>",
        provenance={name: {name: name} for name in HOSTILE},
        frontier=(),
    )
