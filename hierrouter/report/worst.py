"""The largest regrets, as a section of the page.

In: `Explained` values, the worst first. Out: `Case`s, which the template `worst.html.j2` shows one
below the other, folded; no script is needed. A large tree is cut to the calls that some route of
interest passed or passed over. Not covered: which queries these are (`hierrouter.explain`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hierrouter.explained import Explained, Node
from hierrouter.report.explained import EMPTY, facts, marks, numbers, tables
from hierrouter.report.table import Table
from hierrouter.report.text import one_line

CASES = 10  # that a page shows
LONGEST_ANSWER = 600  # characters; 10 cases of long answers shall not fill the page
WHOLE_TREE = 60  # calls; of larger trees only those beside a route are shown


@dataclass(frozen=True)
class Call:
    """A node as the page shows it.

    Attributes:
        model: that was called.
        numbers: what it gave and took.
        answer: its response, cut.
        marks: whose routes end here.
        taken: whether the router's route leads through it.
        below: the calls made after it.
    """

    model: str
    numbers: str
    answer: str
    marks: tuple[str, ...]
    taken: bool
    below: tuple[Call, ...]


@dataclass(frozen=True)
class Case:
    """A query as the page shows it.

    Attributes:
        name: `dataset/id`.
        loss: the router's route, the best one, and the regret.
        facts: which query it is, and how it is valued.
        question, reference: texts.
        calls: those made on the question, with all that is shown below them.
        hidden: how many calls of the tree are not shown.
        tables: the routes to compare, and the router's choices.
    """

    name: str
    loss: str
    facts: str
    question: str
    reference: str
    calls: tuple[Call, ...]
    hidden: int
    tables: tuple[Table, ...]


def cases(found: Sequence[Explained]) -> list[Case]:
    """What the page shows of these queries, at most `CASES` of them."""
    return [_case(query) for query in found[:CASES]]


def _case(found: Explained) -> Case:
    shown = _shown(found)
    return Case(
        name=found.name,
        loss=_loss(found),
        facts=facts(found),
        question=one_line(found.question, LONGEST_ANSWER),
        reference=one_line(" | ".join(found.references), LONGEST_ANSWER),
        calls=tuple(_call(found, node, shown) for node in found.below(0)),
        hidden=len(found.nodes) - len(shown),
        tables=tuple(tables(found)),
    )


def _loss(found: Explained) -> str:
    if found.router is None or found.regret is None:
        return f"best: {found.route(found.best)}"
    taken, best = found.route(found.router.node), found.route(found.best)
    return f"{taken} instead of {best}: regret {found.regret:.4f}"


def _call(found: Explained, node: Node, shown: frozenset[int]) -> Call:
    return Call(
        model=node.model,
        numbers=numbers(found, node),
        answer=one_line(node.answer, LONGEST_ANSWER) or EMPTY,
        marks=marks(found, node.number),
        taken=found.router is not None and node.number in found.on_way(found.router.node),
        below=tuple(
            _call(found, child, shown)
            for child in found.below(node.number)
            if child.number in shown
        ),
    )


def _shown(found: Explained) -> frozenset[int]:
    """Numbers of all calls; in a large tree, of those at the states that some route passes."""
    if len(found.nodes) <= WHOLE_TREE:
        return frozenset(node.number for node in found.nodes)
    ends = [found.best, found.fixed, found.router.node if found.router else None]
    states = {0, *(step for end in ends if end is not None for step in found.on_way(end))}
    return frozenset(child.number for state in states for child in found.below(state))
