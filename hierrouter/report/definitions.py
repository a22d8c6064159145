"""What every column means, one line each.

In: a `Report`, for the numbers that a definition depends on. Out: terms and plain sentences for
the page and the terminal.
"""

from __future__ import annotations

from hierrouter.report.results import Report

# What `hierrouter.scoring.accuracy` does.
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
        *(ANALYSIS if report.analysis else ()),
    )
