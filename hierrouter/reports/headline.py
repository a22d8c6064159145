"""The numbers at the top of a page, what every column means, and where it all comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hierrouter.reports.results import Report
from hierrouter.reports.values import ALL, Row
from hierrouter.tables import one_line


@dataclass(frozen=True)
class Headline:
    """One number at the top of the page, what it is, and what it is compared with."""

    label: str
    value: str
    detail: str


def headlines(report: Report) -> tuple[Headline, ...]:
    """What a reader in a hurry wants to know; baselines only where nothing has been trained."""
    router, single = report.router, report.best("single")
    if router is None:
        bounds = [single, report.best("route"), report.best("oracle")]
        labels = ["Best pool model", "Best fixed route", "Oracle"]
        return tuple(
            Headline(f"{label}, R", f"{row.reward:.3f}", f"{row.policy}, {_span(row)}")
            for label, row in zip(labels, bounds, strict=True)
            if row is not None
        )
    found = [Headline("Net reward R of HierRouter", f"{router.reward:.3f}", _span(router))]
    closed, route, factor = (
        report.gap_closed.get("all"),
        report.best("route"),
        report.quality_factor,
    )
    if closed is not None:
        found.append(
            Headline(
                "Gap closed",
                _share(closed),
                f"{_share_span(report)}of the {report.gap('all'):.3f} from the best fixed route to "
                "the oracle",
            )
        )
    if route is not None and route.difference is not None:
        found.append(
            Headline(
                "R over the best fixed route",
                f"{route.difference:+.3f}",
                f"{route.policy}, the best one on these queries, "
                f"[{route.difference_low:+.3f}, {route.difference_high:+.3f}]",
            )
        )
    best = report.best("single", by="quality")
    if factor is not None and best is not None:
        found.append(
            Headline(
                "Quality over the best pool model",
                f"{factor:.2f}×",
                f"Q {router.quality:.3f} against {best.quality:.3f} of {best.policy}",
            )
        )
    return tuple(found)


def _span(row: Row) -> str:
    return f"[{row.reward_low:.3f}, {row.reward_high:.3f}] over {row.n} queries"


def _share_span(report: Report) -> str:
    """The interval of the share of the gap closed, where it has bounds."""
    ends = report.gap_closed_intervals.get(ALL)
    return f"[{_share(ends[0])}, {_share(ends[1])}] " if ends else ""


def _share(share: float) -> str:
    """In percent; what is not quite all of it is not called so."""
    return "> 99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"


# Keys of the provenance, and how a sentence says them where there is something to say.
TRAINING = {
    "algo": "{}",
    "preset": "preset {}",
    "trained_alpha": "alpha {:g}",
    "view": "state view {}",
    "allow_stop": "may stop early",
    "max_cost": "at most {:g} a query",
}


def training_sentence(source: Mapping[str, Any]) -> str:
    """How the router was trained; empty where nothing was, or nobody says.

    Args:
        source: the provenance of a report.
    """
    if not source.get("algo"):
        return ""
    told = [
        said.format(value)
        for key, said in TRAINING.items()
        if (value := source.get(key)) is not None and value is not False  # alpha may be 0
    ]
    return f"HierRouter was trained by {', '.join(told)}."


# What `hierrouter.questions.scoring` does.
ACCURACY = (
    "by the scorer `accuracy`, whatever Q is: the reference's form, number, box, letter of a "
    "choice or other text, says how answers are compared"
)

Terms = tuple[tuple[str, str], ...]
TRAINED: Terms = (
    (
        "ppo, exact",
        "how the router learned: ppo from sampled episodes, as in the paper; exact by enumeration: "
        "every answer of the train fold is in the cache, so what each choice is worth is worked "
        "out, not sampled",
    ),
    (
        "state view",
        "what the router reads besides the number of calls made and their cost: context is all "
        "text so far, as in the paper; query+answer the question and the newest answer apart; "
        "query the question alone; stage no text",
    ),
)
STOP: Terms = (
    (
        "stop",
        "the router may end after any call. The route first>stop makes one call, with the "
        "instruction of the first stage; a direct call of the same model has none, so the two "
        "answers differ",
    ),
)
DEPTH_CURVE: Terms = (
    (
        "depth curve",
        "a query is deferred if its first answer is not the last one; the curve shows mean Q over "
        "the share of deferred queries, a point for each alpha: how much the further calls bring",
    ),
)
DEFERRAL: Terms = (
    (
        "deferral",
        "before each call a query may be handed over to a stronger model, whose direct call is the "
        "last; what was spent is spent. It is handed over where going on is expected to gain less "
        "over that call than a threshold; a linear head on the router's features expects it",
    ),
    (
        "chance, oracle of the deferral",
        "R where as many queries, drawn at random, are handed over at once; and where those are "
        "that gain most, known only afterwards",
    ),
)
SEEDS: Terms = (
    (
        "seeds",
        "the frontier of a sweep is the mean of its seeds; bars reach from the lowest to the "
        "highest of them and are no intervals; the band is for other seeds and other queries",
    ),
)
ALL_AT_ONCE: Terms = (
    (
        "all at once",
        "of many intervals some miss by chance; those for all at once are wider, so that none "
        "misses with the same probability (max-t over the same resamples)",
    ),
)
SHOWABLE: Terms = (
    (
        "what queries can show",
        "the smallest true difference that a two-sided paired t test finds as often as its power "
        "says; four times the queries show half of it",
    ),
)

ANALYSIS: Terms = (
    (
        "bound ladder",
        "what each kind of knowledge is worth: from chance, over what is best on the train fold, "
        "to the oracles, which know all answers; anytime: may stop after any call",
    ),
    (
        "regret, plan, later choices",
        "R of the oracle - R of HierRouter; plan is the part lost by the first choice, later "
        "choices the part lost by all others, where the rest of the route would have been the best "
        "in hindsight",
    ),
    (
        "repair, damage",
        "share of all queries whose wrong answer a further call makes right, and the other way "
        "round, whoever would have made that call",
    ),
    (
        "static arm, CostSave, PerfGain",
        "a static arm is one direct call or fixed route for all; CostSave the share of the best "
        "one's cost that is saved at its Q, PerfGain the Q that is gained at its cost, by mixtures",
    ),
    (
        "ParetoDist",
        "distance from the frontier of the oracle, where the width of the cost range counts as "
        "much as 1 of Q; 0 is not behind",
    ),
    (
        "Shapley value",
        "what a model adds to the oracle when it joins the pool, on average over all orders in "
        "which the models could have joined",
    ),
)


def definitions(report: Report) -> Terms:
    """Terms with their meaning, in the order in which a reader meets them."""
    level = f"{report.bootstrap.level:.0%}"
    return (
        ("Q", f"quality of the last response, scored by {report.scorer}; mean, from 0 to 1"),
        ("accuracy", f"share of queries whose last response is right; {ACCURACY}"),
        ("C", f"cost of all calls of a query, {report.cost_unit}, prompt and answer; per 1,000"),
        ("R", f"net reward Q - alpha * C with alpha = {report.alpha:g} and C not divided by 1,000"),
        (
            "interval",
            f"{level} bootstrap, {report.bootstrap.n:,} resamples of whole queries, percentiles "
            "expanded for few queries: what other queries of the same kind would give",
        ),
        (
            "difference",
            "R of HierRouter minus R of the policy on the same queries; "
            "an interval that leaves out 0 is hard to put down to chance",
        ),
        (
            "gap closed",
            "(R of HierRouter - R of the best fixed route) / (R of the oracle - R of the best "
            "fixed route), the route being the best one on these very queries; its interval is for "
            "the share against that route",
        ),
        *(ALL_AT_ONCE if report.comparisons else ()),
        *(SHOWABLE if report.power else ()),
        (
            "fixed route",
            "the same models in the same order for every query, first>second; one that ends with "
            ">stop makes fewer calls than there are hops",
        ),
        ("oracle", "the best route of each query, known only afterwards: an upper bound"),
        ("pool model", "one direct call, the question alone, without stage instruction"),
        ("reference model", "the same for a larger model that the router may not call"),
        ("all", "every query counts once, whatever its dataset"),
        *(TRAINED if report.provenance.get("algo") else ()),
        *(STOP if report.depths or report.depth_curve else ()),
        *(DEPTH_CURVE if report.depth_curve else ()),
        *(DEFERRAL if report.deferral else ()),
        *(SEEDS if report.has_spread else ()),
        *(ANALYSIS if report.ladder else ()),
    )


MEANINGS = {
    "test_looks": (
        "looks at the test fold",
        "different figures of the test fold that were made before, with those shown: of this "
        "router, and of all finished runs on the same data. Who looks often and keeps the best "
        "router tunes on the test fold",
    ),
}


def source_lines(provenance: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested provenance as lines `a.b` -> text, sorted by key."""
    lines: list[tuple[str, str]] = []
    for key, value in sorted(provenance.items()):
        if isinstance(value, Mapping):
            lines.extend(source_lines(value, f"{prefix}{key}."))
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            lines.append((one_line(f"{prefix}{key}"), text))
    return lines


def source_terms(provenance: Mapping[str, Any]) -> Terms:
    """What keys mean that do not speak for themselves; those that occur."""
    return tuple(meaning for key, meaning in MEANINGS.items() if key in provenance)
