"""What a report may say: the forms of its sentences, and the figures that each claim comes from.

The grammar is written by hand. It reads figures from the JSON object of the report, the arrays of
the tree and the settings of the case, never from the functions that write the sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from random_reports import BINARY_SCORERS, Case

from hierrouter.learning.policy_classes import TableRouter
from hierrouter.runs.run import Performance
from tests.hierrouter.evaluation.enumeration import (
    enumerable_ends,
    enumerated_oracle,
    enumerated_quality,
)

ROUNDING = 1e-9  # differences in R up to this are rounding errors
FIXED_KINDS = ("single", "reference", "route")
SMALLEST_DIFFERENCE = 0.001  # in R, that is called better or worse
SMALLEST_SHARE_OF_GAP = 0.01
FEWEST_QUESTIONS = 6  # of fewer, all differences have one sign by chance too easily

# ------------------------------------------------------------------------------------- Figures


class Claim(NamedTuple):
    """Something that a sentence says.

    Attributes:
        kind: what it is about: a number, a name, an action set, ...
        holds: whether the figures say it, too.
        detail: what the figures say.
    """

    kind: str
    holds: bool
    detail: str = ""


NUMBER = r"[+-]?(?:\d[\d,]*(?:\.\d+)?)(?:e[+-]?\d+)?"


def close(text: str, value: float | None, scale: float = 1.0) -> bool:
    """Whether a number that is written out is the value, up to its last digit.

    Args:
        text: as written, with a sign, commas, or an exponent.
        value: the figure; None equals nothing.
        scale: 100 for a percentage.
    """
    if value is None:
        return False
    mantissa, _, exponent = text.replace(",", "").partition("e")
    decimals = len(mantissa.partition(".")[2])
    unit = 10.0 ** (int(exponent or 0) - decimals)
    rounding = ROUNDING * max(1.0, abs(value))
    return abs(float(text.replace(",", "")) - value * scale) <= 0.5001 * unit + rounding


def close_significant(text: str, value: float, digits: int) -> bool:
    """Whether a number is the value, written with so many significant digits."""
    return bool(np.isclose(float(text.replace(",", "")), float(f"{value:.{digits}g}"), rtol=1e-6))


def number(text: str, value: float | None, what: str, scale: float = 1.0) -> Claim:
    """The claim that a figure is this number."""
    return Claim("number", close(text, value, scale), f"{what} is {value}, not {text}")


def alpha_claim(text: str, alpha: float) -> Claim:
    """The claim that alpha is this number, with six digits at most."""
    return Claim("formula", float(text) == float(f"{alpha:g}"), f"alpha is {alpha}")


@dataclass(frozen=True)
class Figures:
    """What the sentences of a report are compared with.

    Attributes:
        case: the tree and the settings.
        report: the JSON object.
        named: R of each policy whose Q, C and R were read so far.
    """

    case: Case
    report: Mapping[str, Any]
    named: list[float] = field(default_factory=list)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows over all queries."""
        return [row for row in self.report["rows"] if row["dataset"] == "all"]

    def of(self, kinds: Sequence[str], policy: str | None = None) -> list[dict[str, Any]]:
        """The rows of some kinds, or of one policy of them."""
        rows = [row for row in self.rows if row["kind"] in kinds]
        return [row for row in rows if policy in (None, row["policy"])]

    @property
    def router(self) -> dict[str, Any] | None:
        """The router's row."""
        rows = self.of(["router"])
        return rows[0] if rows else None

    @property
    def oracle(self) -> dict[str, Any]:
        """The oracle's row."""
        return self.of(["oracle"])[0]

    @property
    def ability(self) -> str:
        """When an episode may end, by the settings of the case."""
        objective = self.case.objective
        if objective.allow_return:
            return "may return an earlier answer"
        return "may stop early" if objective.allow_stop else "makes all its calls"

    def best(self, *kinds: str) -> dict[str, Any] | None:
        """The row of the highest R, the cheaper one on a tie; only names count beyond that."""
        rows = self.of(kinds)
        return max(rows, key=lambda row: (row["reward"], -row["cost"]), default=None)

    def is_best(self, row: Mapping[str, Any], *kinds: str) -> bool:
        """Whether no policy of these kinds has a higher R."""
        return all(row["reward"] >= other["reward"] - ROUNDING for other in self.of(kinds))

    def is_router(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is of the route that is the router's constant choice."""
        trained = self.case.trained
        if trained is None or self.router is None or row["difference_low"] is not None:
            return False
        is_constant = (row["kind"], row["policy"]) == ("route", trained.constant_route)
        # Where questions lack routes, the two need not take the same one in its place.
        same = (row["quality"], row["cost"]) == (self.router["quality"], self.router["cost"])
        return is_constant and same

    def relation(self, row: Mapping[str, Any], *, at_once: bool = False) -> int:
        """How the router compares with a policy: 2 better, 1 barely, 0 open, -1, -2 worse.

        Args:
            row: the policy's row.
            at_once: by the interval that holds for all policies.
        """
        low = row["difference_low"]
        high = row["difference_high"]
        if at_once:
            pair = [
                other
                for other in self.report["comparisons"]
                if (other["policy"], other["kind"]) == (row["policy"], row["kind"])
            ]
            low = pair[0]["low"] if pair else None
            high = pair[0]["high"] if pair else None
        if row["n"] < FEWEST_QUESTIONS or low is None or high is None:
            return 0
        fixed = self.best(*FIXED_KINDS)
        gap = self.oracle["reward"] - fixed["reward"] if fixed else 0.0
        smallest = max(SMALLEST_DIFFERENCE, SMALLEST_SHARE_OF_GAP * gap)
        strength = 2 if abs(row["difference"]) >= smallest else 1
        return strength * ((low > ROUNDING) - (high < -ROUNDING))


# ------------------------------------------------------------------------------------- Grammar

Check = Callable[[re.Match[str], Figures], Iterator[Claim]]


class Rule(NamedTuple):
    """A form of sentence.

    Attributes:
        start: how it begins; empty if that is part of the pattern.
        pattern: what follows.
        check: yields the claims of a sentence of this form.
    """

    start: str
    pattern: re.Pattern[str]
    check: Check


RULES: list[Rule] = []


def rule(start: str, pattern: str = "") -> Callable[[Check], Check]:
    """Register a form of sentence with the function that checks it; `start` is taken literally."""

    def register(check: Check) -> Check:
        RULES.append(Rule(start, re.compile(re.escape(start) + pattern), check))
        return check

    return register


def n(name: str) -> str:
    """A pattern of a number in a group of this name."""
    return f"(?P<{name}>{NUMBER})"


def interval(name: str, unit: str = "") -> str:
    """A pattern of an interval, its ends in two groups."""
    ends = rf"(?P<{name}_low>{NUMBER}){unit}, (?P<{name}_high>{NUMBER}){unit}"
    return rf"\[{ends}\]"


UNIT = r"(?:[A-Z]{3} )?per question"


def full(name: str) -> str:
    """A pattern of the Q, C and R of a policy, with words for each."""
    quality = (
        rf"(?:has Q {n(f'{name}_q')}|answers right in {n(f'{name}_share')}% of the questions \(Q\))"
    )
    cost = rf"at a cost C of {n(f'{name}_c')} {UNIT}"
    return rf"{quality} {cost}, net reward R = Q - {n(f'{name}_alpha')} C = {n(f'{name}_r')}"


def short(name: str) -> str:
    """A pattern of the same without the words."""
    quality = rf"(?:has Q {n(f'{name}_q')}|answers right in {n(f'{name}_share')}%)"
    return rf"{quality} at {n(f'{name}_c')}, R {n(f'{name}_r')}"


def facts(
    match: re.Match[str], name: str, row: Mapping[str, Any], figures: Figures
) -> Iterator[Claim]:
    """Yield the claims of `full` and `short` on a policy."""
    groups = match.groupdict()
    is_share = groups[f"{name}_share"] is not None
    is_binary = figures.report["scorer"] in BINARY_SCORERS
    yield Claim("quantity", is_share == is_binary, f"Q is {figures.report['scorer']}")
    if is_share:
        yield number(groups[f"{name}_share"], row["quality"], "Q", 100)
    else:
        yield number(groups[f"{name}_q"], row["quality"], "Q")
    yield number(groups[f"{name}_c"], row["cost"], "C")
    yield number(groups[f"{name}_r"], row["reward"], "R")
    alpha = groups.get(f"{name}_alpha")
    if alpha is not None:
        yield alpha_claim(alpha, figures.case.alpha)
    reward = row["quality"] - figures.case.alpha * row["cost"]
    yield Claim("formula", bool(np.isclose(reward, row["reward"])), f"Q - alpha C is {reward}")
    figures.named.append(row["reward"])


def policy_row(
    figures: Figures, policy: str, kinds: Sequence[str]
) -> tuple[Claim, Mapping[str, Any] | None]:
    """Find the row of a policy, and say whether it exists."""
    policy = policy.replace("HierRouter", "hierrouter")
    rows = figures.of(kinds, policy)
    return Claim("name", bool(rows), f"{policy} is no {' or '.join(kinds)}"), (
        max(rows, key=lambda row: (row["reward"], -row["cost"])) if rows else None
    )


VERBS = {"calling": ("single", "reference"), "taking": ("route",)}


def beside_fixed(
    match: re.Match[str], figures: Figures
) -> Generator[Claim, None, Mapping[str, Any] | None]:
    """Yield the claims on the router and on the fixed choice it is compared with; return its row.

    Args:
        match: has the groups `own`, `verb`, `policy` and `other`.
        figures: of the report.
    """
    assert figures.router is not None
    yield from facts(match, "own", figures.router, figures)
    claim, row = policy_row(figures, match["policy"], VERBS[match["verb"]])
    yield claim
    if row is not None:
        yield from facts(match, "other", row, figures)
    return row


@rule(
    "HierRouter is better than every fixed choice of one model or route: it ",
    f"{full('own')}; the best of these, always (?P<verb>calling|taking) "
    rf"(?P<policy>.+?), (?:it )?{short('other')}\.",
)
def _better(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    row = yield from beside_fixed(match, figures)
    if row is None:
        return
    yield Claim("best", figures.is_best(row, *FIXED_KINDS), "another fixed choice has a higher R")
    for other in figures.of(FIXED_KINDS):
        relation = figures.relation(other)
        yield Claim("better", relation == 2, f"of {other['policy']} it is {relation}")


RELATIONS = {
    "is barely better": 1,
    "is not shown to be better": 0,
    "is barely worse": -1,
    "is worse": -2,
}


@rule(
    "HierRouter is ",
    r"(?P<relation>barely better|not shown to be better|barely worse|worse) than always "
    rf"(?P<verb>calling|taking) (?P<policy>.+?)(?:, by {n('difference')} in R)?: it {full('own')}; "
    rf"(?P=policy) {short('other')}\.",
)
def _relation(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    row = yield from beside_fixed(match, figures)
    if row is None:
        return
    said = RELATIONS[f"is {match['relation']}"]
    kind = {0: "open", 1: "better"}.get(said, "worse")
    yield Claim(kind, figures.relation(row) == said, f"it is {figures.relation(row)}")
    if match["difference"] is not None:
        yield number(match["difference"], row["difference"], "the difference")
    for other in figures.of(FIXED_KINDS):
        relation = figures.relation(other)
        yield Claim(kind, relation >= said, f"of {other['policy']} it is {relation}")
        if relation == said:
            is_less = other["reward"] <= row["reward"] + ROUNDING
            yield Claim("best", is_less, f"{other['policy']} has a higher R")


@rule(
    "HierRouter takes ",
    rf"(?P<route>.+?) for every question(?P<why>, because no router showed a gain over it in "
    rf"training)?: it {full('own')}\.",
)
def _takes(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    router = figures.router
    trained = figures.case.trained
    assert router is not None and trained is not None
    yield from facts(match, "own", router, figures)
    yield from one_route(match["route"], figures)
    has_constant = trained.constant is not None
    yield Claim("reason", (match["why"] is not None) == has_constant, f"constant: {has_constant}")


def one_route(route: str, figures: Figures) -> Iterator[Claim]:
    """Yield the claims that the router takes this route for every question."""
    trained = figures.case.trained
    router = figures.router
    assert trained is not None and router is not None
    fold = trained.objective.view(figures.case.fold)
    endings = trained.endings(figures.case.fold)
    node = fold.layout.ending_node[endings.argmax(axis=1)]
    if fold.weight is None:
        yield Claim("name", bool((node == node[0]).all()), "it takes several routes")
    rows = figures.of(["route"], route)
    if rows and fold.weight is None:
        same = all(np.isclose(rows[0][name], router[name]) for name in ("quality", "cost"))
        yield Claim("name", bool(same), f"{route} has other figures than the router")


@rule("There is no fixed choice to compare HierRouter with: it ", rf"{full('own')}\.")
def _nothing_fixed(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    router = figures.router
    assert router is not None
    yield from facts(match, "own", router, figures)
    yield Claim("best", not figures.of(FIXED_KINDS), "there are fixed choices")


TITLES = {"single model": "single", "fixed route": "route", "reference model": "reference"}
REASONS = (
    "No router is trained here|(?P<count>1|2) questions? (?:is|are) too few for a "
    "router, and for intervals"
)


@rule(
    "",
    rf"(?P<reason>{REASONS}): the best (?P<title>single model|fixed route|reference model), "
    rf"(?P<policy>.+?), {full('own')}\.",
)
def _no_router(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield Claim("reason", figures.router is None, "there is a router")
    if match["count"]:
        yield Claim("count", int(match["count"]) == len(figures.case.tree), "other questions")
    claim, row = policy_row(figures, match["policy"], [TITLES[match["title"]]])
    yield claim
    if row is None:
        return
    yield Claim("best", figures.is_best(row, *FIXED_KINDS), "another fixed choice has a higher R")
    yield from facts(match, "own", row, figures)


EVERY_KIND = ("single", "reference", "route", "router", "baseline")


@rule(
    "The ",
    r"(?:policy (?P<policy>.+?)|best (?P<title>single model|fixed route|reference model), "
    r"(?P<fixed>.+?),) (?P<relation>has a higher R|is better|is barely better|is ahead, and not "
    rf"shown to be better): it {short('own')}(?:, {n('difference')}(?: {interval('d')})? over "
    r"HierRouter)?\.",
)
def _ahead(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    kinds = [TITLES[match["title"]]] if match["title"] else ["baseline", "router"]
    claim, row = policy_row(figures, match["policy"] or match["fixed"], kinds)
    yield claim
    if row is None:
        return
    yield Claim("best", figures.is_best(row, *EVERY_KIND), "another policy has a higher R")
    yield from facts(match, "own", row, figures)
    if match["relation"] == "has a higher R":
        yield Claim("reason", figures.router is None, "there is a router")
        return
    yield number(match["difference"], -row["difference"], "the difference")
    relation = figures.relation(row, at_once=True)
    expected = {"is better": -2, "is barely better": -1}.get(match["relation"], 0)
    kind = "open" if not expected else "worse"
    # A point estimate may be ahead although its interval is on the other side of no line.
    holds = relation == expected or (expected == 0 and relation > 0)
    yield Claim(kind, holds, f"the router is {relation}")
    if match["d_low"] is not None:
        pair = [
            other
            for other in figures.report["comparisons"]
            if (other["policy"], other["kind"]) == (row["policy"], row["kind"])
        ]
        yield number(match["d_low"], -pair[0]["high"], "the lower end")
        yield number(match["d_high"], -pair[0]["low"], "the upper end")


@rule(
    "No router that ",
    rf"(?P<ability>.+?) can have more than R {n('r')} here, that of the oracle"
    r"(?P<draws>, which knows what each call draws)?\.",
)
def _bound(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield Claim("action set", match["ability"] == figures.ability, figures.ability)
    yield Claim("oracle", True)
    yield number(match["r"], figures.oracle["reward"], "R of the oracle")
    if figures.router is not None:
        holds = figures.router["reward"] <= figures.oracle["reward"] + ROUNDING
        yield Claim("oracle", holds, f"the router has R {figures.router['reward']}")
    case = figures.case
    own = enumerated_oracle(case.fold, case.alpha, case.objective.ends_early)
    if own is not None:
        yield Claim(
            "oracle", bool(np.isclose(own, figures.oracle["reward"])), f"by hand it is {own}"
        )
    has_draws = "split oracle" in {row["rung"] for row in ladder(figures)}
    yield Claim("oracle", (match["draws"] is not None) == has_draws, f"draws: {has_draws}")


def ladder(figures: Figures) -> list[dict[str, Any]]:
    """The rungs over all queries."""
    return [row for row in figures.report["analysis"]["ladder"] if row["dataset"] == "all"]


def rung(figures: Figures, name: str) -> float | None:
    """R of a rung; None if there is none."""
    rewards = [row["reward"]["mean"] for row in ladder(figures) if row["rung"] == name]
    return rewards[0] if rewards else None


@rule("Without luck R ", rf"{n('r')} is possible, that of the split oracle\.")
def _luckless(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    split = rung(figures, "split oracle")
    yield number(match["r"], split, "R of the split oracle")
    holds = split is not None and split <= figures.oracle["reward"] + ROUNDING
    yield Claim("oracle", holds, f"the oracle has {figures.oracle['reward']}")


@rule(
    "Luck cannot be told from skill with one draw of each call at a temperature above 0, so part "
    "of the gap to the oracle is luck."
)
def _luck_unknown(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    holds = any(figures.case.tree.sampled or ()) and rung(figures, "split oracle") is None
    yield Claim("reason", holds, "nothing is drawn, or there are several draws")


# ---------------------------------------------------------------------------- Headline figures


@rule(
    "figure: R over the best fixed choice ",
    rf"{n('d')} (?:same choices as (?P<same>.+) on all questions|"
    rf"(?:without an interval|{interval('i')}) over (?P<policy>.+))",
)
def _lead(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    claim, row = policy_row(figures, match["policy"] or match["same"], FIXED_KINDS)
    yield claim
    if row is None:
        return
    yield Claim("best", figures.is_best(row, *FIXED_KINDS), "another fixed choice has a higher R")
    yield number(match["d"], row["difference"], "the difference")
    is_same = match["policy"] is None
    yield Claim("reason", is_same == figures.is_router(row), "the other way round")
    if is_same:
        yield from one_route(row["policy"], figures)
    has_interval = row["difference_low"] is not None
    yield Claim("count", has_interval == (match["i_low"] is not None), f"{has_interval}")
    if match["i_low"]:
        yield number(match["i_low"], row["difference_low"], "the lower end")
        yield number(match["i_high"], row["difference_high"], "the upper end")


SHARE = r"(?:-|< -100%|> 99\.9%|-?[\d.]+%)"
SHARES = rf"(?:without bounds|\[(?P<low>{SHARE}), (?P<high>{SHARE})\])"


def share_claim(text: str, share: float | None) -> Claim:
    """The claim that a share is this one; "-" is none."""
    expected = "-"
    if share is not None:
        expected = "< -100%" if share < -1 else f"{share:.1%}"
        if 0.9995 <= share < 1:
            expected = "> 99.9%"
    holds = text == expected
    if share is not None and text.endswith("%") and text[0] not in "<>":
        holds = close(text[:-1], share, 100)
    return Claim("number", holds, f"the share is {share}, not {text}")


@rule(
    "Over all: ",
    f"gap to the oracle closed (?P<share>{SHARE}) (?:{SHARES} )?of {n('gap')} in R "
    r"above (?P<route>.+?)(?P<small>: too small)?\.$",
)
@rule(
    "figure: gap to the oracle closed ",
    f"(?P<share>{SHARE}) (?:{SHARES} )?of {n('gap')} in R above "
    "(?P<route>.+?)(?P<small>: too small)?$",
)
def _gap(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    share = figures.report["gap_closed"].get("all")
    yield share_claim(match["share"], share)
    yield Claim("count", (match["small"] is not None) == (share is None), "the gap's size")
    if match["low"]:
        low, high = figures.report["gap_closed_intervals"]["all"]
        yield share_claim(match["low"], low)
        yield share_claim(match["high"], high)
    rows = figures.of(["route"], match["route"])
    yield Claim("name", bool(rows), "no such route")
    if rows:
        yield Claim("best", figures.is_best(rows[0], "route"), "another route has a higher R")
        gap = figures.oracle["reward"] - rows[0]["reward"]
        yield Claim("oracle", close(match["gap"], gap), f"the gap is {gap}")


@rule(
    "figure: gap to the split oracle closed ",
    f"(?P<share>{SHARE}) (?:{SHARES} )?of {n('gap')} in R above (?P<route>.+?), "
    "without luck(?P<small>: too small)?$",
)
def _split_gap(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    told = figures.report["luck"]["split_gap"]
    yield share_claim(match["share"], told["share"])
    if match["low"]:
        yield share_claim(match["low"], told["ends"][0])
        yield share_claim(match["high"], told["ends"][1])
    rows = figures.of(["route"], match["route"])
    yield Claim("name", bool(rows), "no such route")
    if rows:
        split = rung(figures, "split oracle")
        gap = None if split is None else split - rows[0]["reward"]
        yield Claim("oracle", close(match["gap"], gap), f"the gap is {gap}")


@rule("figure: cost of 1,000 questions ", rf"{n('c')} (?:{n('other')} for (?P<policy>.+))?$")
def _cost(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    router = figures.router
    yield number(match["c"], 1000 * router["cost"] if router else None, "the cost")
    if match["policy"]:
        claim, row = policy_row(figures, match["policy"], FIXED_KINDS)
        yield claim
        yield number(match["other"], 1000 * row["cost"] if row else None, "the other cost")


@rule(
    "figure: R of the ",
    "(?P<what>best single model|best fixed route|best reference model|oracle) "
    f"{n('r')} (?P<policy>.+)$",
)
def _rewards(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    kind = TITLES.get(match["what"].removeprefix("best "), "oracle")
    claim, row = policy_row(figures, match["policy"], [kind])
    yield claim
    if row:
        yield number(match["r"], row["reward"], "R")
        yield Claim("best", figures.is_best(row, kind), "another has a higher R")


# --------------------------------------------------------------------------- Notes of a report


@rule("HierRouter is one fixed route here: ", r"(?P<route>.+?) for every question\.?")
@rule(
    "HierRouter is one fixed route here: its policy takes ", r"(?P<route>.+?) for every question\."
)
def _fixed_note(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield from one_route(match["route"], figures)


CONSTANT = (
    r"no gain is shown at alpha (?P<alpha>\S+): always (?P<route>.+?)"
    r"(?P<rest>, or the next best route where that is not offered)?; the best router found "
    rf"(?:(?P<same>does the same)|would be {n('gain')}(?: {interval('gain')})?)"
    rf"(?: at alpha {n('where')})?"
    rf"(?:; (?:about {n('needed')}|its {n('judged')}|not even {n('most')}|about {n('further')} "
    rf"more train and validation) questions(?: \(about {n('collect')} to collect\))? could show a "
    r"gain of 0\.01)?"
)


@rule("HierRouter is one fixed route here: ", rf"{CONSTANT}\.")
@rule("train: ", rf"{CONSTANT}$")
def _constant(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    """Yield the claims on a route that is shipped because no gain was shown."""
    trained = figures.case.trained
    assert trained is not None and trained.constant is not None
    constant = trained.constant
    yield alpha_claim(match["alpha"], trained.alpha)
    name = trained.actions.layout.name(constant.node, trained.origin.models)
    yield Claim("name", match["route"] == name, name)
    yield Claim("reason", (match["rest"] is not None) == bool(constant.others), "other routes")
    if match["same"]:
        yield Claim("open", abs(constant.gain) <= ROUNDING, f"the gain is {constant.gain}")
    else:
        yield number(match["gain"], constant.gain, "the gain")
        # A gain is not shown where the interval, or the lack of one, leaves 0 open.
        yield Claim("open", constant.low <= ROUNDING, f"the gain is above {constant.low}")
    if match["gain_low"]:
        yield number(match["gain_low"], constant.low, "the lower end")
        yield number(match["gain_high"], constant.high, "the upper end")
    if match["judged"]:
        yield Claim("count", int(match["judged"].replace(",", "")) == constant.judged, "judged")
        yield Claim("count", constant.needed <= constant.judged, f"{constant.needed} are needed")
    if match["further"]:
        further = constant.needed - constant.judged
        yield number(match["further"], further, "the number of further questions")
        yield Claim("count", further > 0, f"{constant.judged} are enough")
        # Of what is collected, 30 % are test questions, as in the paper.
        yield number(match["collect"], round(further / 0.7), "the number to collect")
    if match["needed"]:
        yield number(match["needed"], constant.needed, "the number needed")
        yield Claim("count", constant.needed > constant.judged, f"{constant.judged} are enough")


@rule(
    "One direct call of ",
    rf"(?P<model>.+?) earns {n('lead')} R more than HierRouter here(?P<all>, which makes all its "
    r"hops: --allow-stop trains one that need not)?\.",
)
def _direct(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    claim, row = policy_row(figures, match["model"], ["single"])
    yield claim
    router = figures.router
    if row and router:
        lead = row["reward"] - router["reward"]
        yield number(match["lead"], lead, "the lead")
        yield Claim("better", lead > 0, f"the lead is {lead}")
    early = figures.case.objective.ends_early
    yield Claim("action set", (match["all"] is not None) != early, f"it may end early: {early}")


@rule(
    "HierRouter was trained for a mean cost of ",
    rf"{n('budget')} a query; on this fold it costs {n('c')}, with Q {n('q')}\. In hindsight Q is "
    rf"at most {n('most')} at a mean cost of {n('same')}\.",
)
def _budget(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    router = figures.router
    trained = figures.case.trained
    assert router is not None and trained is not None and trained.budget is not None
    yield Claim("number", close_significant(match["budget"], trained.budget, 6), "the budget")
    yield number(match["c"], router["cost"], "C")
    yield number(match["same"], router["cost"], "C")
    yield number(match["q"], router["quality"], "Q")
    most = float(match["most"])
    yield Claim("oracle", most >= router["quality"] - 0.5001e-4, f"Q is {router['quality']}")
    ends_early = figures.case.objective.ends_early
    highest = enumerated_quality(figures.case.fold, router["cost"], ends_early)
    if highest is not None:
        yield Claim("oracle", close(match["most"], highest), f"by hand it is {highest}")


@rule(
    "",
    f"{n('lacking')} of {n('all')} fixed routes are not offered for all of these "
    r"questions; where one is not, the next best one is taken\.",
)
def _not_offered(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    lacking, total = (int(match[name].replace(",", "")) for name in ("lacking", "all"))
    yield Claim("count", 0 < lacking <= total, "counts")


@rule("HierRouter was trained under other prices than ", r"(?P<lists>.+?)\.$")
def _prices(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    lists = figures.case.more.get("price_lists", {})
    yield Claim("name", set(match["lists"].split(", ")) == set(lists) - {"own"}, f"{list(lists)}")


@rule("", r"The router of the tables may stop early, those of the frontier may not\.")
def _router_stops(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    case = figures.case
    holds = case.objective.ends_early and case.sweep is not None
    yield Claim("action set", holds and not case.sweep.objective.ends_early)  # type: ignore[union-attr]


@rule("", r"The routers of the frontier may stop early, the one of the tables may not\.")
def _frontier_stops(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    case = figures.case
    holds = not case.objective.ends_early and case.sweep is not None
    yield Claim("action set", holds and case.sweep.objective.ends_early)  # type: ignore[union-attr]


@rule(
    "Over the ",
    rf"{n('seeds')} seeds of the sweep, of which the one that is best on validation is shown, the "
    f"standard deviation of R is {n('mean')} in the mean of all alphas and "
    f"{n('most')} at most, at "
    rf"alpha {n('alpha')}\.",
)
def _seeds(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    by_alpha: dict[float, list[float]] = {}
    for row in figures.report["frontier"]:
        # Of the sweeps beside it only other seeds have one in their name.
        if row["kind"] == "router" and (row["policy"] == "hierrouter" or "seed" in row["policy"]):
            by_alpha.setdefault(row["alpha"], []).append(row["reward"])
    spreads = [float(np.std(rewards, ddof=1)) for rewards in by_alpha.values()]
    yield number(match["seeds"], len(next(iter(by_alpha.values()))), "the number of seeds")
    yield number(match["mean"], float(np.mean(spreads)), "the mean deviation")
    yield number(match["most"], max(spreads), "the greatest deviation")


@rule(
    "At alpha ",
    rf"{n('alpha')} cost decides next to nothing: between the cheapest and the dearest route of a "
    rf"query it moves R by {n('moves')}\. It moves R by 0\.1 at alpha {n('other')}; `sweep-alpha` "
    r"chooses alphas for these prices\.",
)
def _small_alpha(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    fold = figures.case.fold
    cost = fold.cost[:, fold.layout.leaves]
    spread = float((cost.max(axis=1) - cost.min(axis=1)).mean())
    moves = figures.case.alpha * spread
    yield Claim("number", close_significant(match["moves"], moves, 1), f"it moves R by {moves}")
    yield Claim("number", close_significant(match["other"], 0.1 / spread, 1), f"{0.1 / spread}")


@rule(
    "No accuracy on ",
    rf"{n('rows')} of {n('all')} queries \((?P<datasets>.+?)\): their answers are "
    r"programs, and only --run-code judges these by their tests\.",
)
def _unjudged(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    tree = figures.case.tree
    rows = np.isnan(tree.accuracy).any(axis=1)
    yield number(match["rows"], int(rows.sum()), "the number of queries")
    yield number(match["all"], len(tree), "all queries")
    names = {tree.datasets[row] for row in np.flatnonzero(rows)}
    yield Claim("name", set(match["datasets"].split(", ")) == names, f"{names}")


@rule(
    "Q is ",
    f"{n('q')} on (?P<dataset>.+?), where {n('right')}% of the answers are right by "
    r"accuracy: (?P<scorer>\w+) scores most right answers below 0\.5; --scorer "
    r"accuracy tells right from wrong\.",
)
def _low_score(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    tree = figures.case.tree
    rows = np.array(tree.datasets) == match["dataset"]
    score = np.hstack([tree.score[:, 1:], tree.direct.score])[rows]
    right = np.hstack([tree.accuracy[:, 1:], tree.direct.accuracy])[rows] == 1
    yield number(match["q"], float(score.mean()), "Q")
    yield number(match["right"], float(right.mean()), "the share", 100)
    yield Claim("number", float((score[right] < 0.5).mean()) > 0.5, "most are above")


# ----------------------------------------------------------------------------- Notes of tables


@rule(
    "HierRouter beats ",
    rf"{n('singly')} of {n('all')} policies one at a time and {n('once')} when all {n('again')} "
    r"comparisons are to hold at once \(95%, min-p\)(?:: all but (?P<names>.+?)(?: "
    r"and (?P<more>\d+) more)?)?\.(?= |$)",
)
def _claims(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    others = [row for row in figures.of((*FIXED_KINDS, "baseline")) if not figures.is_router(row)]
    total = len(others)
    yield Claim("count", int(match["all"]) == int(match["again"]) == total, f"{total} policies")
    singly = sum(figures.relation(row) == 2 for row in others)
    beaten = [figures.relation(row, at_once=True) == 2 for row in others]
    yield Claim("better", int(match["singly"]) == singly, f"{singly} one at a time")
    yield Claim("better", int(match["once"]) == sum(beaten), f"{sum(beaten)} at once")
    if match["names"]:
        rest = total - sum(beaten)
        unbeaten = [
            row["policy"] for row, is_beaten in zip(others, beaten, strict=True) if not is_beaten
        ]
        listed = ", ".join(unbeaten[: rest - int(match["more"] or 0)])
        yield Claim("name", match["names"] == listed, listed)


@rule(
    "Against ",
    "(?P<model>.+?), (?P<title>the model with the highest Q|the dearest model), "
    rf"nothing is saved at equal quality: Q {n('q')} {interval('q')}\.",
)
def _no_saving(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    saving = yield from _saving_claims(match, figures)
    if saving:
        yield Claim("worse", saving["quality"] < 0, f"Q {saving['quality']}")


AGAINST = (
    r"(?P<model>.+?), (?P<title>the model with the highest Q|the dearest model) "
    rf"\(95% interval {interval('share', '%')}\), with Q {n('q')} {interval('q')}\."
)


@rule("HierRouter saves ", f"{n('share')}% of the cost of {AGAINST}")
@rule("HierRouter costs ", f"{n('share')}% (?P<more>more) than {AGAINST}")
def _saving(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    saving = yield from _saving_claims(match, figures)
    if saving:
        ends = [saving[name] for name in ("share", "low", "high")]
        if "more" in match.re.groupindex:
            ends = [-ends[0], -ends[2], -ends[1]]
        for group, end in zip(("share", "share_low", "share_high"), ends, strict=True):
            yield number(match[group], end, group, 100)


def _saving_claims(match: re.Match[str], figures: Figures) -> Any:
    """Yield the claims that all sentences on savings make; return the saving."""
    which = "best" if match["title"] == "the model with the highest Q" else "dearest"
    models = figures.of(("single", "reference"))
    saving = next((one for one in figures.report["savings"] if one["which"] == which), None)
    yield Claim("name", bool(saving and saving["policy"] == match["model"]), f"{saving}")
    metric = "quality" if which == "best" else "cost"
    rows = [row for row in models if row["policy"] == match["model"]]
    is_most = bool(rows) and rows[0][metric] >= max(row[metric] for row in models) - ROUNDING
    yield Claim("best", is_most, f"another has a higher {metric}")
    router = figures.router
    if saving and rows and router:
        yield number(match["q"], router["quality"] - rows[0]["quality"], "the difference in Q")
        yield number(match["q_low"], saving["quality_low"], "the lower end")
        yield number(match["q_high"], saving["quality_high"], "the upper end")
    return saving


@rule(
    "Cost decides which route is best, of one query or of many taken together, at alphas from ",
    f"{n('low')} to {n('high')}: below, quality alone does, above, the cheapest is "
    r"the best of every one\.",
)
def _deciding(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    low, high = figures.report["deciding_alphas"]
    yield Claim("number", close_significant(match["low"], low, 3), f"from {low}")
    yield Claim("number", close_significant(match["high"], high, 3), f"to {high}")
    fold = figures.case.fold
    ends = enumerable_ends(fold, figures.case.objective.ends_early)
    if ends is None:
        return
    quality, cost = fold.score[:, ends], fold.cost[:, ends]
    below, above = quality - 0.99 * low * cost, quality - 1.01 * high * cost
    rows = np.arange(len(fold))
    best = quality[rows, below.argmax(axis=1)]
    yield Claim("action set", bool(np.allclose(best, quality.max(axis=1))), "below, cost decides")
    cheapest = cost[rows, above.argmax(axis=1)]
    yield Claim("action set", bool(np.allclose(cheapest, cost.min(axis=1))), "above, Q decides")


@rule(
    "The best ",
    f"{n('shown')} of {n('all')} fixed routes by R over all; JSON and CSV hold them "
    r"all\.(?: The best one under each price list is among them\.)?",
)
def _routes(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    total = len(figures.of(["route"]))
    yield Claim("count", int(match["all"]) == total >= int(match["shown"]), f"{total} routes")


@rule(
    "The best fixed route or direct call with p95 within ",
    rf"{n('limit')} s (?:is (?P<policy>.+?), with R {n('r')}|does not exist)\.",
)
def _in_time(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    limit = figures.case.more["p95_below"]
    quick = {
        (row["policy"], row["kind"])
        for row in figures.report.get("latency", {}).get("rows", [])
        if row["p95"] <= limit
    }
    rows = [row for row in figures.of(FIXED_KINDS) if (row["policy"], row["kind"]) in quick]
    yield Claim("count", (match["policy"] is None) == (not rows), f"{len(rows)} are in time")
    if match["policy"]:
        highest = max(row["reward"] for row in rows)
        named = [row for row in rows if row["policy"] == match["policy"]]
        yield Claim("best", bool(named) and named[0]["reward"] >= highest - ROUNDING, f"{highest}")
        yield number(match["r"], highest, "R")


@rule(
    "In hindsight the best ",
    rf"(?P<what>direct call|complete route) of each query has R {n('r')}\.",
)
def _hindsight(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    name = {"direct call": "one-hop oracle", "complete route": "tree oracle"}[match["what"]]
    yield number(match["r"], rung(figures, name), f"R of the {name}")
    yield Claim("action set", True)
    fold = figures.case.fold
    if match["what"] == "direct call":
        columns = [model in fold.callers for model in fold.direct.models]
        reward = fold.direct.score[:, columns] - figures.case.alpha * fold.direct.cost[:, columns]
        own: float | None = float(reward.max(axis=1).mean())
    else:
        own = enumerated_oracle(fold, figures.case.alpha, ends_early=False)
    if own is not None:
        yield Claim("oracle", close(match["r"], own), f"by hand it is {own}")


@rule(
    "",
    "(?:Nowhere is the interval of R above 0|The interval of R is above 0 in "
    r"(?P<where>.+?))\. A rule calls one model, and how sure that is of its answer, "
    r"or how long the answer is where no engine told, decides how to go on\.",
)
def _looks(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    told = figures.report["analysis"]["looks"]
    above = [
        row["dataset"]
        for row in told
        if row["dataset"] != "all" and (row["reward"]["low"] or 0) > 0
    ]
    yield Claim("better", (match["where"] or "") == ", ".join(above), f"{above}")


@rule(
    "The threshold is the one with ",
    f"(?:the highest R at the router's alpha|the greatest share up to {n('share')}%) "
    r"on the (?P<fold>validation|train) fold\.",
)
def _threshold(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    deferral = figures.report["deferral"]
    allowed = deferral["share_allowed"]
    yield Claim("name", match["fold"] == deferral["chosen_on"], deferral["chosen_on"])
    yield Claim("number", (match["share"] is None) == (allowed is None), f"{allowed}")
    if match["share"]:
        yield number(match["share"], allowed, "the share", 100)


# Sentences and titles without a figure, that say how to read a table, one a line. Each was read
# against the code once.
EXPLANATIONS = Path(__file__).with_name("explanations.txt").read_text().splitlines()


def _explains(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield Claim("explanation", True)


for _text in EXPLANATIONS:
    rule(_text, "$" if _text.startswith("title: ") else "")(_explains)


@rule("The split oracle, the last one, knows less again: it knows no draw.")
def _split_note(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield Claim("oracle", ladder(figures)[-1]["rung"] == "split oracle", "it is not the last one")


# ------------------------------------------------------------------------- Titles and captions

TITLE = r"(?P<unit>(?:[A-Z]{3}|money) per question)"


def title(start: str, pattern: str = "") -> Callable[[Check], Check]:
    """Register a form of title."""
    return rule(f"title: {start}", f"{pattern}$")


@title(
    "Net reward R = Q - ",
    rf"{n('alpha')} C(?: over {n('all')} queries, C in {TITLE}| by dataset, higher is better)?",
)
def _reward_title(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield alpha_claim(match["alpha"], figures.case.alpha)
    if match["all"]:
        yield number(match["all"], len(figures.case.fold), "the number of queries")


@title("C in ", rf"{TITLE} and R = Q - {n('alpha')} C by price list")
@title("Bound ladder, R = Q - ", rf"{n('alpha')} C, C in {TITLE}")
@title("Deferral to large, R = Q - ", rf"{n('alpha')} C, C in {TITLE}")
def _alpha_title(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield alpha_claim(match["alpha"], figures.case.alpha)


TRAINING = (
    r"(?:\. HierRouter (?P<is>is one fixed route here: (?P<route>.+) for every "
    "question|here: (?P<training>.+?), not .+))?"
)


@title(
    "Quality Q (",
    rf"(?P<scorer>\w+)\)(?: on {n('all')} (?P<split>\w+) questions)?, higher is better{TRAINING}",
)
@title(
    "Cost C (", rf"{TITLE}\)(?: on {n('all')} (?P<split>\w+) questions)?, lower is better{TRAINING}"
)
@title(
    "Net reward R = Q - ",
    rf"{n('alpha')} C on {n('all')} (?P<split>\w+) questions, higher is better{TRAINING}",
)
def _paper_title(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    groups = match.groupdict()
    if groups.get("scorer"):
        yield Claim("name", match["scorer"] == figures.report["scorer"], figures.report["scorer"])
    if groups["all"]:
        yield number(match["all"], len(figures.case.fold), "the number of questions")
        yield Claim("name", match["split"] == figures.report["split"], figures.report["split"])
    if groups["route"]:
        yield from one_route(match["route"], figures)
    if groups["training"]:
        yield Claim("name", match["training"] == figures.report["training"], "the training")


@title("Where HierRouter stops, C in ", TITLE)
@title("By dataset: Q and C, in ", TITLE)
@title("Quality, share of right answers, cost C in ", TITLE)
def _plain_title(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield Claim("explanation", True)


@rule("HierRouter here: ", r"(?P<training>.+?), not (?P<paper>.+)\.$")
def _router_sentence(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield Claim("name", match["training"] == figures.report["training"], "the training")


@rule("no ", r"(?P<what>reference models|direct calls|router)(?:, | of ).+$")
def _lacking(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    kind = {"reference models": "reference", "direct calls": "single"}.get(match["what"], "router")
    yield Claim("count", not figures.of([kind]), f"there is a {kind}")


# --------------------------------------------------------------------------- Training, compare


@rule(
    "train: R ",
    rf"{n('r')} on (?:(?P<count>[\d,]+) held-out questions|(?P<fold>validation|train)) "
    rf"\((?:best fixed route {n('fixed')}|no fixed route is offered for all), "
    rf"(?:best direct call (?P<model>.+?) {n('direct')}, )?oracle {n('oracle')}\)"
    r"(?:; always calling (?P<better>.+) alone is better)?$",
)
def _performance(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    trained = figures.case.trained
    assert trained is not None
    told = asdict(Performance.of(trained, figures.case.tree))
    fold = trained.judging_fold(figures.case.tree)
    if match["count"]:
        yield number(match["count"], len(fold), "the number of questions")
    for group, key in (("r", "reward"), ("fixed", "fixed"), ("oracle", "oracle")):
        yield number(match[group], told[key], f"R, {key}")
    own = enumerated_oracle(fold, trained.alpha, trained.objective.ends_early)
    if own is not None:
        yield Claim("oracle", close(match["oracle"], own), f"by hand it is {own}")
    if match["direct"]:
        yield number(match["direct"], told["direct"], "R of the direct call")
        yield Claim("name", match["model"] == told["direct_model"], told["direct_model"])
    if match["better"]:
        yield Claim("worse", told["direct"] > told["reward"], "it is not")


@rule(
    "train: cross-fitted: ",
    r"(?P<best>\w+) is taken; gains over the best fixed route: (?P<all>.+)$",
)
def _ladder(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    trained = figures.case.trained
    assert trained is not None
    yield Claim("name", match["best"] == trained.origin.config.algo, trained.origin.config.algo)
    gains = dict(trained.ladder)
    yield Claim("best", gains[match["best"]] == max(gains.values()), f"{gains}")
    for part in match["all"].split(", "):
        name, gain = part.split(" ")
        yield number(gain, gains.pop(name), f"the gain of {name}")
    yield Claim("count", not gains, f"left out: {gains}")


@rule(
    "train: budget ",
    rf"{n('budget')}: alpha {n('alpha')}; Q {n('q')} at C {n('c')} on {n('count')} held-out "
    rf"questions; with hindsight at most Q {n('most')}$",
)
def _budget_of_train(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    trained = figures.case.trained
    assert trained is not None and trained.budget is not None
    fold = trained.judging_fold(figures.case.tree)
    outcome = trained.outcome(fold)
    yield Claim("number", close_significant(match["budget"], trained.budget, 6), "the budget")
    yield Claim("number", close_significant(match["alpha"], trained.alpha, 4), "alpha")
    yield number(match["q"], float(outcome.quality.mean()), "Q")
    yield number(match["c"], float(outcome.cost.mean()), "C")
    yield number(match["count"], len(fold), "the number of questions")
    highest = enumerated_quality(fold, trained.budget, trained.objective.ends_early)
    if highest is not None:
        yield Claim("oracle", close(match["most"], highest), f"by hand it is {highest}")


TABLE = "HierRouter is a table of routes: "


@rule(f"{TABLE}no grouping did better than one route on left-out questions: ", r"(?P<route>.+)\.$")
@rule("train: no grouping did better than one route on left-out questions: ", "(?P<route>.+)$")
def _no_groups(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    trained = figures.case.trained
    assert trained is not None and isinstance(trained.router, TableRouter)
    # On questions that it learned from it takes the route that is best without each of them.
    name = trained.actions.layout.name(int(trained.router.table.best[0]), trained.origin.models)
    yield Claim("name", match["route"] == name and not trained.router.table.groups, name)


@rule(f"{TABLE}a route for each group: ", r"(?P<groups>.+); other questions: (?P<others>.+)\.$")
@rule("train: a route for each group: ", "(?P<groups>.+); other questions: (?P<others>.+)$")
def _groups(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    trained = figures.case.trained
    assert trained is not None and isinstance(trained.router, TableRouter)
    table = trained.router.table
    names = [trained.actions.layout.name(int(node), trained.origin.models) for node in table.best]
    yield Claim("name", match["others"] == names[0], names[0])
    listed = "; ".join(map(": ".join, zip(table.names, names[1:], strict=True)))
    yield Claim("name", match["groups"] == listed, listed)


@rule(f"{TABLE}a route for each of ", rf"{n('clusters')} clusters of questions: (?P<routes>.+)\.$")
@rule("train: a route for each of ", rf"{n('clusters')} clusters of questions: (?P<routes>.+)$")
def _clusters(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    trained = figures.case.trained
    assert trained is not None and isinstance(trained.router, TableRouter)
    table = trained.router.table
    yield number(match["clusters"], table.groups, "the number of clusters")
    names = {trained.actions.layout.name(int(node), trained.origin.models) for node in table.best}
    for part in re.split("(?<=%); ", match["routes"]):  # a name may have "; " in it
        route = re.sub(r" for [\d]+%$", "", part)
        known = route in names or bool(re.fullmatch(r"[\d,]+ more routes", part))
        yield Claim("name", known, f"{names}")


@dataclass(frozen=True)
class ComparisonFigures(Figures):
    """What the sentences of a comparison are compared with.

    Attributes:
        standings: the JSON object of the comparison.
    """

    standings: Mapping[str, Any] = field(default_factory=dict)


def compared(figures: Figures) -> Mapping[str, Any]:
    """The JSON object of a comparison."""
    assert isinstance(figures, ComparisonFigures)
    return figures.standings


@title(
    "Net reward R = Q - ",
    rf"{n('alpha')} C on {n('all')} queries \((?P<split>\w+) fold\), Q is "
    rf"(?P<scorer>\w+), C in {TITLE}",
)
def _contest_title(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    standings = compared(figures)
    yield alpha_claim(match["alpha"], standings["alpha"])
    yield number(match["all"], standings["queries"], "the number of queries")
    yield Claim("name", match["split"] == standings["split"], standings["split"])


@rule(
    "HierRouter may ",
    r"(?P<what>return earlier answers|stop early) and the routes of set B may not: what stopping "
    r"saves counts as adaptivity here\.",
)
def _may_stop(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    objective = figures.case.objective
    expected = "return earlier answers" if objective.allow_return else "stop early"
    yield Claim("action set", objective.ends_early and match["what"] == expected, expected)


@rule("No learned router: the baselines are compared among themselves.")
def _no_learned(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield Claim("reason", figures.case.trained is None, "there is one")


@rule("No validation fold: baselines take the first of their settings.")
def _no_validation(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield Claim("reason", "validation" not in figures.case.tree.splits, "there is one")


@rule(
    "Shown on the train fold, to which all policies were fitted: expect lower "
    "figures on other queries."
)
def _on_train(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield Claim("reason", figures.case.split == "train", figures.case.split)


@rule("Shown on the fold that chose the settings: tuned policies look better.")
def _on_validation(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield Claim("reason", figures.case.split == "validation", figures.case.split)


@rule(
    "Set B has the ",
    rf"{n('routes')} routes that are offered most often in the train fold\. Where a "
    "question does not offer the next step of one, the best route of the train fold "
    r"that is offered there takes its place\.",
)
def _set_b(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield Claim("count", figures.case.tree.weight is not None, "all questions have all routes")


@rule("Set ", r"(?P<set>[AB]) is left out: (?P<why>.+)\.")
def _set_left_out(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield Claim("reason", match["set"] not in compared(figures)["sets"], "it takes part")


@rule("CPU seconds of fitting and tuning; seed ", rf"{n('seed')}\.")
def _cpu(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    yield number(match["seed"], compared(figures)["seed"], "the seed")


@rule(
    "value: ",
    r"(?P<title>.+): (?P<first>.+) less (?P<second>.+), as the (?P<fold>\w+) fold has "
    f"it, {n('d')}$",
)
def _value(match: re.Match[str], figures: Figures) -> Iterator[Claim]:
    rows = compared(figures)["rows"]
    names = {
        f"{row['router']} on {row['arms']}" if row["arms"] else row["router"]: row for row in rows
    }
    first, second = (
        names.get(match[name].replace("HierRouter", "hierrouter")) for name in ("first", "second")
    )
    yield Claim("name", first is not None and second is not None, f"{list(names)}")
    if first is None or second is None:
        return
    yield number(match["d"], first["reward"] - second["reward"], "the difference")
    metric = "reward" if match["fold"] == compared(figures)["split"] else "validation_reward"
    sets = {"second hop": ("B", "A"), "adaptivity": (None, "B")}.get(
        match["title"].partition(":")[0]
    )
    if match["title"].startswith("regret"):
        settings = second["settings"]
        may = settings["allow_stop"] or settings.get("allow_return")
        expected = "anytime oracle" if may else "tree oracle"
        yield Claim("action set", first["router"] == expected, expected)
        yield Claim("oracle", float(match["d"]) >= -ROUNDING, "below 0")
        return
    blind = [row for row in rows if row["kind"] == "baseline" and row["arms"]]
    for row, arms in zip((first, second), sets or (None, "*"), strict=True):
        if arms is None:
            continue
        rivals = [
            other[metric]
            for other in (rows if arms == "*" else blind)
            if other["kind"] == "baseline"
            and other[metric] is not None
            and (arms == "*" or (other["arms"] == arms and not other["reads_answers"]))
        ]
        yield Claim("action set", arms == "*" or row["arms"] == arms, f"set {row['arms']}")
        yield Claim("best", row[metric] >= max(rivals) - ROUNDING, f"the best has {max(rivals)}")


def parse(text: str, figures: Figures) -> Iterator[tuple[str, list[Claim]]]:
    """Split a text into the longest sentences that rules match; yield each with its claims."""
    position = 0
    while position < len(text):
        matches = []
        for candidate in RULES:
            if text.startswith(candidate.start, position):
                match = candidate.pattern.match(text, position)
                if match and (match.end() == len(text) or text[match.end()] == " "):
                    matches.append((match.end(), candidate, match))
        if not matches:
            yield text[position:], [Claim("parsed", False, "no rule reads this")]
            return
        end, candidate, match = max(matches, key=lambda found: found[0])
        try:
            claims = list(candidate.check(match, figures))
        except (AssertionError, KeyError, TypeError, ValueError, IndexError) as error:
            claims = [Claim("parsed", False, f"its check fails: {error!r}")]
        yield match.group(), claims
        position = end + 1
