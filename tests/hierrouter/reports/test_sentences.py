"""What a report says in words: its message in every case, three figures, sentences of tables."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.outcome import Kind, Outcome
from hierrouter.reports.report import as_object
from hierrouter.reports.results import ReportData
from hierrouter.reports.sentences import (
    claims_sentence,
    headlines,
    message,
    savings_sentence,
    verdict,
)
from tests.hierrouter.reports.examples import (
    ALPHA,
    DATASETS,
    example,
    hostile,
    outcome,
    policies,
    untrained,
)


def many(lead: float = 0.0, **fields: object) -> ReportData:
    """`example` with 40 queries, on which the router's Q is so much more than that of `a>b`."""

    def ten_times(one: Outcome) -> Outcome:
        return outcome(one.name, one.kind, [*one.quality] * 10, [*one.cost] * 10)

    others = [ten_times(one) for one in policies() if one.kind != "router"]
    fixed = next(one for one in others if one.name == "a>b")
    router = outcome("hierrouter", "router", [*(fixed.quality + lead)], [*fixed.cost])
    return example([*others, router], DATASETS * 10, **fields)


BOUND = "No router that makes all its calls can have more than R 0.800 here, that of the oracle."
COST = "at a cost C of 1.00 per question, net reward R = Q - 0.1 C ="
BETTER = "HierRouter is better than every fixed choice of one model or route"
MESSAGES = {
    f"{BETTER}: it has Q 0.700 {COST} 0.600; the best of these, always taking a>b, has Q 0.500 at "
    f"1.00, R 0.400. {BOUND}": many(0.2),
    f"{BETTER}: it answers right in 70.0% of the questions (Q) at a cost C of 1.00 USD per "
    "question, net reward R = Q - 0.1 C = 0.600; the best of these, always taking a>b, answers "
    f"right in 50.0% at 1.00, R 0.400. {BOUND}": many(
        0.2, scorer="exact_match", cost_unit="USD per question"
    ),
    f"HierRouter is not shown to be better than always taking a>b: it has Q 0.500 {COST} 0.400; "
    f"a>b has Q 0.500 at 1.00, R 0.400. {BOUND}": many(),
    f"HierRouter is worse than always taking a>b: it has Q 0.400 {COST} 0.300; a>b has Q 0.500 at "
    f"1.00, R 0.400. {BOUND}": many(-0.1),
    "HierRouter takes a>b for every question, because no router showed a gain over it in training: "
    f"it has Q 0.500 {COST} 0.400. {BOUND}": many(constant="a>b"),
    f"HierRouter takes a>a for every question: it has Q 0.400 {COST} 0.300. The best fixed route, "
    "a>b, is ahead, and not shown to be better: it has Q 0.500 at 1.00, R 0.400, +0.100 […] over "
    "HierRouter. "
    f"{BOUND}": many(-0.1, fixed_route="a>a"),
    f"HierRouter takes a>b for every question: it has Q 0.500 {COST} 0.400. {BOUND}": many(
        fixed_route="a>b"
    ),
    f"No router is trained here: the best fixed route, a>b, has Q 0.500 {COST} 0.400. {BOUND}": (
        untrained()
    ),
}
VERDICTS = ("better", "better", "open", "worse", "constant", "fixed", "fixed", "untrained")


@pytest.mark.parametrize(
    ("said", "expected"), zip(MESSAGES, VERDICTS, strict=True), ids=lambda text: text[:30]
)
def test_the_message_says_whether_the_router_is_any_good(said: str, expected: str) -> None:
    report = MESSAGES[said]
    assert as_object(report)["message"] == message(report)
    without_ends = re.sub(r"\[.*?\]", "[…]", message(report))
    assert (without_ends, verdict(report)) == (said, expected)


def test_the_message_needs_no_sweep_no_oracle_and_no_second_policy() -> None:
    assert message(many(0.2, frontier=())) == message(many(0.2))
    alone = example([one for one in policies() if one.kind == "router"])
    assert message(alone) == (
        f"There is no fixed choice to compare HierRouter with: it has Q 0.700 {COST} 0.600."
    )
    models = [one for one in policies() if one.kind == "single"]
    assert message(example(models)).startswith("No router is trained here: the best single model, ")
    assert "\n" not in message(hostile()) and "\x1b" not in message(hostile())


def test_three_figures_of_a_trained_router_and_of_none() -> None:
    shown = {label: told for label, *told in headlines(example())}
    [lead, closed, cost] = shown.values()
    assert [*shown] == [
        "R over the best fixed choice",
        "gap to the oracle closed",
        "cost of 1,000 questions",
    ]
    assert lead[0] == "+0.200" and lead[1].endswith("] over a>b")
    assert closed == ["50.0%", "[< -100%, 92.5%] of 0.400 in R above a>b"]
    assert cost == ["1,000", "1,000 for a>b"]
    assert [value for _, value, _ in headlines(untrained())] == ["0.250", "0.400", "0.800"]


def test_sentences_below_the_tables() -> None:
    report = example()
    said = savings_sentence(report, report.savings[0])
    assert said.startswith(
        "HierRouter saves 75.0% of the cost of big, the model with the highest Q"
    )
    # Four queries show nothing, whatever the intervals say: ten times as many do.
    assert claims_sentence(report).startswith("HierRouter beats 0 of 5 policies")
    assert claims_sentence(many(0.2)).startswith("HierRouter beats 5 of 5 policies")
    assert claims_sentence(untrained()) == ""


# What a sentence may say, worked out anew from the numbers of the JSON.

FIXED_KINDS = ("single", "reference", "route")
ROUNDING = 1e-9


def over_all(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in told["rows"] if row["dataset"] == "all"]


def strength(row: dict[str, Any], told: dict[str, Any]) -> int:
    """How the router compares with a policy: 2 better, 1 barely, 0 open, -1 barely worse, -2."""
    rows = over_all(told)
    fixed = max(row["reward"] for row in rows if row["kind"] in FIXED_KINDS)
    oracles = [row["reward"] for row in rows if row["kind"] == "oracle"]
    size = max([0.001, *(0.01 * (reward - fixed) for reward in oracles)])
    if row["n"] < 6 or row["difference_low"] is None:
        return 0
    weight = 2 if abs(row["difference"]) >= size else 1
    return weight * ((row["difference_low"] > ROUNDING) - (row["difference_high"] < -ROUNDING))


def require_true(told: dict[str, Any], constant: str, fixed_route: str) -> None:
    """Fail if the message of a report says what its numbers do not; see the checker for the rest.

    `benchmarks/sentence_checker.py` reads every sentence of reports that are made as a user's are.
    These are made of outcomes alone, such as that of a router that is better by a hair.
    """
    rows, said = over_all(told), told["message"]
    fixed = [row for row in rows if row["kind"] in FIXED_KINDS]
    routers = [row for row in rows if row["kind"] == "router"]
    for row in rows:
        if row["kind"] == "oracle":
            assert (
                f"R {row['reward']:,.3f} here, that of the oracle".replace("-0.000", "0.000")
                in said
            )
    highest = max(row["reward"] for row in rows if row["kind"] != "oracle")
    named = [row for row in rows if re.search(rf"\b{row['policy']}\b", said)] + routers
    assert max(row["reward"] for row in named if row["kind"] != "oracle") >= highest - ROUNDING
    if not routers:
        assert said.startswith("No router is trained here: the best ")
        return
    if constant or fixed_route:
        assert said.startswith(f"HierRouter takes {constant or fixed_route} for every question")
        assert (", because no router showed a gain" in said) == bool(constant)
        return
    weakest = min(strength(row, told) for row in fixed)
    starts = {
        2: BETTER,
        1: r"HierRouter is barely better than always (?:calling|taking) (\S+), by \+",
        0: r"HierRouter is not shown to be better than always (?:calling|taking) (\S+):",
        -1: r"HierRouter is barely worse than always (?:calling|taking) (\S+), by -",
        -2: r"HierRouter is worse than always (?:calling|taking) (\S+):",
    }
    match = re.match(starts[weakest], said)
    assert match, (weakest, said)
    if weakest < 2:
        among = [row for row in fixed if strength(row, told) == weakest]
        [other] = [row for row in among if row["policy"] == match[1]]
        assert other["reward"] == max(row["reward"] for row in among)


def drawn(rng: np.random.Generator, queries: int, router: str, scale: float) -> list[Outcome]:
    """Fixed choices, an oracle and a baseline, and a router of one kind, at costs of one scale."""

    def any_outcome(name: str, kind: Kind) -> Outcome:
        quality = (rng.integers(0, 3, queries) + rng.integers(0, 3)) / 4
        return outcome(name, kind, quality, scale * rng.integers(1, 5) * np.ones(queries))

    others = [
        any_outcome("a", "single"),
        any_outcome("big", "reference"),
        any_outcome("a>a", "route"),
        any_outcome("a>b", "route"),
    ]
    best = max(others, key=lambda one: one.reward(ALPHA).mean())
    lifted = {"slightly": 2e-4, "clearly": 0.15, "below": -0.15, "hardly below": -2e-4, "tie": 0.0}
    if router in lifted:
        others.append(outcome("hierrouter", "router", best.quality + lifted[router], best.cost))
    elif router == "cheaper":  # the same quality for less
        others.append(outcome("hierrouter", "router", best.quality, best.cost / 2))
    elif router in ("a>a", "a>b"):
        [route] = [one for one in others if one.name == router]
        others.append(replace(route, name="hierrouter", kind="router"))
    elif router == "noise":
        others.append(any_outcome("hierrouter", "router"))
    top = np.max([one.quality for one in others if one.kind in ("route", "router")], axis=0)
    others.append(outcome("oracle", "oracle", top, others[2].cost.clip(max=others[3].cost)))
    others.append(any_outcome("rule", "baseline"))
    return others


ROUTERS = (
    *("none", "slightly", "clearly", "below", "hardly below", "tie", "cheaper", "noise"),
    *("a>a", "a>b"),
)


@given(
    seed=st.integers(0, 2**16),
    queries=st.sampled_from([1, 2, 5, 6, 40]),
    router=st.sampled_from(ROUTERS),
    scale=st.sampled_from([1e-6, 0.01, 1.0, 1e6]),
    alpha=st.sampled_from([0.0, 0.005, 0.1, 2.0]),
    always=st.booleans(),
)
def test_no_sentence_says_what_the_numbers_do_not(
    seed: int, queries: int, router: str, scale: float, alpha: float, always: bool
) -> None:
    outcomes = drawn(np.random.default_rng(seed), queries, router, scale)
    is_route = router in ("a>a", "a>b")
    constant = router if is_route and always else ""
    fixed_route = router if is_route and not always else ""
    report = example(
        outcomes, ("one",) * queries, alpha=alpha, constant=constant, fixed_route=fixed_route
    )
    require_true(as_object(report), constant, fixed_route)


STEADY_QUERIES = 100_000


def steady(**choices: tuple[str, float, float]) -> list[Outcome]:
    """Policies whose Q and C are the same on each of 100,000 queries: name=(kind, Q, C).

    So many show that a tiny gain is not due to losses that are too rare to be seen.
    """
    names = {name: name.replace("_", ">") for name in choices}
    return [
        outcome(names[name], kind, [quality] * STEADY_QUERIES, [cost] * STEADY_QUERIES)  # type: ignore[arg-type]
        for name, (kind, quality, cost) in choices.items()
    ]


ROUTE = ("route", 0.5, 1.0)
ORACLE = ("oracle", 0.9, 1.0)
# Of each case the policies, the settings, how the sentence begins, and what else it has.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "a direct call beats the best route, and the router": (
        {"a_b": ROUTE, "a": ("single", 0.7, 1.0), "hierrouter": ("router", 0.6, 1.0)},
        {},
        "HierRouter is worse than always calling a: it has Q 0.600",
        "; a has Q 0.700 at 1.00, R 0.600. No router",
    ),
    "a reference beats the router": (
        {"a_b": ROUTE, "big": ("reference", 0.8, 1.0), "hierrouter": ("router", 0.6, 1.0)},
        {},
        "HierRouter is worse than always calling big:",
        "; big has Q 0.800 at 1.00, R 0.700. No router",
    ),
    "a constant choice that a direct call beats": (
        {"a_b": ROUTE, "a": ("single", 0.7, 1.0), "hierrouter": ("router", 0.5, 1.0)},
        {"constant": "a>b"},
        "HierRouter takes a>b for every question, because no router showed a gain over it",
        ". The best single model, a, is better: it has Q 0.700 at 1.00, R 0.600, +0.200 [",
    ),
    "a constant choice that a rule of the user beats": (
        {"a_b": ROUTE, "rule": ("baseline", 0.7, 1.0), "hierrouter": ("router", 0.5, 1.0)},
        {"constant": "a>b"},
        "HierRouter takes a>b for every question,",
        ". The policy rule is better: it has Q 0.700 at 1.00, R 0.600, +0.200 [+0.200, +0.200]",
    ),
    "a direct call beats the oracle, whose routes have other prompts": (
        {"a_b": ROUTE, "a": ("single", 0.95, 1.0), "hierrouter": ("router", 0.8, 1.0)},
        {},
        "HierRouter is worse than always calling a:",
        "R 0.850. No router that makes all its calls can have more than R 0.800 here, that of the",
    ),
    "a gain of cost alone, too small to name": (
        {"a_b": ("route", 0.5, 1e-3), "hierrouter": ("router", 0.5, 1e-4)},
        {},
        "HierRouter is barely better than always taking a>b, by +9e-05 in R: it has Q 0.500 at",
        "; a>b has Q 0.500 at 0.00100",
    ),
    "a gain of cost alone that is worth naming": (
        {"a_b": ROUTE, "hierrouter": ("router", 0.5, 0.5)},
        {},
        f"{BETTER}: it has Q 0.500 at a cost C of 0.500 per question",
        "; the best of these, always taking a>b, has Q 0.500 at 1.00",
    ),
    "a saving at alpha 0, where cost counts for nothing": (
        {"a_b": ROUTE, "hierrouter": ("router", 0.5, 0.001)},
        {"alpha": 0.0},
        "HierRouter is not shown to be better than always taking a>b:",
        "it has Q 0.500 at a cost C of 0.00100",
    ),
    "a gain of quality at alpha 0": (
        {"a_b": ROUTE, "hierrouter": ("router", 0.6, 9.0)},
        {"alpha": 0.0},
        f"{BETTER}: it has Q 0.600 at a cost C of 9.00 per question",
        "; the best of these, always taking a>b, has Q 0.500 at 1.00",
    ),
    "a gain of a thousandth of what is there to gain": (
        {
            "a_b": ("route", 0.5, 1e6),
            "hierrouter": ("router", 0.5, 0.9995e6),
            "oracle": ("oracle", 0.5, 0.1e6),
        },
        {},
        "HierRouter is barely better than always taking a>b, by +50.000 in R: it has",
        "; a>b has Q 0.500 at 1,000,000",
    ),
    "a router that is a fixed route, where a reference is better": (
        {"a_b": ROUTE, "big": ("reference", 0.8, 1.0), "hierrouter": ("router", 0.5, 1.0)},
        {"fixed_route": "a>b"},
        "HierRouter takes a>b for every question: it has Q 0.500",
        ". The best reference model, big, is better: it has Q 0.800 at 1.00",
    ),
    "no router, and a reference is the best fixed choice": (
        {"a_b": ROUTE, "big": ("reference", 0.8, 1.0)},
        {},
        "No router is trained here: the best reference model, big, has Q 0.800",
        " = 0.700. No router that makes all its calls can have more than R 0.800 here",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_headline_compares_with_every_fixed_choice(
    case: tuple[dict[str, Any], dict[str, Any], str, str],
) -> None:
    choices, fields, start, rest = case
    report = example(steady(**{"oracle": ORACLE, **choices}), ("one",) * STEADY_QUERIES, **fields)
    told = as_object(report)
    assert told["message"].startswith(start)
    assert rest in told["message"]
    require_true(told, fields.get("constant", ""), fields.get("fixed_route", ""))


def test_a_run_that_does_not_fit_is_not_called_untrained() -> None:
    report = replace(untrained(), unfit="runs/a was trained with another --state or --encoder")
    assert message(report).startswith(
        "No router that was trained fits what is opened here: the best fixed route, a>b, has"
    )


@pytest.mark.parametrize(("queries", "expected"), [(5, "open"), (6, "open"), (20, "better")])
def test_few_queries_show_nothing_however_equal_they_are(queries: int, expected: str) -> None:
    policies = [
        outcome("a>b", "route", [0.5] * queries),
        outcome("hierrouter", "router", [0.9] * queries),
    ]
    assert verdict(example(policies, ("one",) * queries)) == expected


def test_a_gap_too_small_for_a_share_says_so_and_a_great_loss_is_not_spelled_out() -> None:
    def closed(router: float, oracle: float) -> list[str]:
        policies = steady(
            a_b=ROUTE, hierrouter=("router", router, 1.0), oracle=("oracle", oracle, 1.0)
        )
        report = example(policies, ("one",) * STEADY_QUERIES)
        headline = {label: told for label, *told in headlines(report)}
        return headline["gap to the oracle closed"]

    assert closed(0.4, 0.502) == ["-", "of 0.002 in R above a>b: too small"]
    assert closed(0.5, 0.5) == ["-", "of 0 in R above a>b: too small"]
    assert closed(0.1, 0.51) == ["< -100%", "[< -100%, < -100%] of 0.010 in R above a>b"]
    assert closed(0.55, 0.6)[0] == "50.0%"
