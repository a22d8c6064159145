"""One query's tree as text: terminal, Markdown, JSON.

In: `Explained` values. Out: text in which answers are shown and steer nothing: no terminal, no
markup. Not covered: what is shown of them on the HTML page (`worst`).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.text import Text
from rich.tree import Tree

from hierrouter.explained import Choice, Explained, Node
from hierrouter.report.render import as_markdown as table_as_markdown
from hierrouter.report.render import as_rich
from hierrouter.report.table import Column, Line, Table, digits_for
from hierrouter.report.tables import GROUPS
from hierrouter.report.text import markdown_text, one_line, safe_text

ROUTER, BEST, FIXED = "HierRouter", "best in hindsight", "best fixed route"
LONGEST_ANSWER = 400  # characters of an answer on a terminal
LONGEST_QUESTION = 60  # characters of a question in a list of queries
EMPTY = "(empty)"


def as_text(found: Explained, width: int, colour: bool = False) -> str:
    """The query for a terminal of `width` characters."""
    sink = io.StringIO()
    page = Console(file=sink, width=width, force_terminal=colour)
    for part in (_head(found), _tree(found)):
        page.print(part)
    for table in tables(found):
        page.print(Text(), as_rich(table, width))
    return sink.getvalue()


def as_markdown(found: Explained) -> str:
    """The query as Markdown, every answer whole, the tree as a nested list."""
    lines = [f"## {markdown_text(found.name)}", "", markdown_text(facts(found)), ""]
    lines += [f"**Question** {markdown_text(found.question)}", ""]
    lines += [f"**Reference** {markdown_text(' | '.join(found.references))}", ""]
    lines += [
        f"{'  ' * (len(found.on_way(node.number)) - 1)}- **{markdown_text(node.model)}** "
        f"{_marked(found, node)}{markdown_text(numbers(found, node))}: "
        f"{markdown_text(node.answer) or EMPTY}"
        for node in in_order(found)
    ]
    return "\n".join([*lines, "", *(table_as_markdown(table) for table in tables(found))])


def as_object(found: Explained) -> dict[str, Any]:
    """The query as JSON values, answers whole; the keys are those of `Explained`."""
    return {**asdict(found), "regret": found.regret}


def worst_table(found: Sequence[Explained], split: str) -> Table:
    """One line a query, in the order given: what a router lost on it, and how."""
    hops = [f"hop {hop + 1}" for hop in range(max((query.hops for query in found), default=0))]
    columns = (
        Column("Query"),
        Column("Regret", 4),
        *(Column(hop, 4) for hop in hops),
        Column(ROUTER),
        Column(BEST),
        Column("Question"),
    )
    lines = tuple(_worst_line(query) for query in found)
    title = f"The largest regrets of {ROUTER} on the {split} fold"
    note = "Regret is R of the best route in hindsight less R of the router's, hop by hop."
    return Table(title, columns, lines, note if lines else f"No regret on the {split} fold.")


def tables(found: Explained) -> list[Table]:
    """The routes to compare, and what the router chose on its own."""
    return [_routes_table(found), *([_choices_table(found)] if found.router else [])]


def facts(found: Explained) -> str:
    """Which query it is, and how it is valued, in one line."""
    return f"{found.split} fold; Q is {found.scorer}; R = Q - {found.alpha:g} C"


def numbers(found: Explained, node: Node) -> str:
    """What a call gave and took, in one line; C and R are of the route so far."""
    tokens = f"{node.tokens_in:,}+{node.tokens_out:,} tokens"
    cost = f"C {node.cost:.{_cost_digits(found)}f}"
    return f"Q {node.quality:.3f}, {_verdict(node)}, {tokens}, {cost}, R {node.reward:.4f}"


def marks(found: Explained, number: int) -> tuple[str, ...]:
    """Whose routes end at a node."""
    ends = {
        ROUTER: found.router.node if found.router else None,
        BEST: found.best,
        FIXED: found.fixed,
    }
    return tuple(name for name, node in ends.items() if node == number)


def in_order(found: Explained, number: int = 0) -> list[Node]:
    """The calls below a node, each before those made after it."""
    return [item for node in found.below(number) for item in (node, *in_order(found, node.number))]


def _head(found: Explained) -> Group:
    head = Text(one_line(found.name), style="bold")
    head.append(f"  {one_line(facts(found))}", style="dim not bold")
    asked = Text.assemble(("Question   ", "dim"), safe_text(found.question))
    right = Text.assemble(("Reference  ", "dim"), safe_text(" | ".join(found.references)))
    return Group(head, Text(), asked, right, Text())


def _tree(found: Explained) -> Tree:
    taken = set(found.on_way(found.router.node)) if found.router else set()
    root = Tree(Text("question", style="dim"), guide_style="dim")
    branches = {0: root}
    for node in in_order(found):
        label = _label(found, node, node.number in taken)
        branches[node.number] = branches[node.parent].add(label)
    return root


def _label(found: Explained, node: Node, taken: bool) -> Text:
    """Two lines: whose call it is and what it is worth; what it said."""
    label = Text(one_line(node.model), style="bold" if taken else "")
    label.append(f"  {numbers(found, node)}", style="dim")
    for mark in marks(found, node.number):
        label.append(f"  < {mark}", style="bold")
    label.append("\n")
    label.append(one_line(node.answer, LONGEST_ANSWER) or EMPTY, style="not bold")
    return label


def _routes_table(found: Explained) -> Table:
    columns = (
        Column("Policy"),
        Column("Route"),
        Column("Q"),
        Column("C", _cost_digits(found)),
        Column("R", 4),
        Column("Regret", 4),
    )
    ends = {"oracle": (BEST, found.best)}
    if found.router:
        ends["router"] = (ROUTER, found.router.node)
    if found.fixed is not None:
        ends["route"] = (FIXED, found.fixed)
    lines = tuple(_route_line(found, kind, *ends[kind]) for kind in GROUPS if kind in ends)
    fixed = "The fixed route is the best one on the train fold." if found.fixed else ""
    return Table(f"Routes for {found.name}", columns, lines, fixed)


def _route_line(found: Explained, kind: str, name: str, number: int) -> Line:
    node, best = found.node(number), found.node(found.best)
    regret = best.reward - node.reward
    cells = (name, found.route(number), node.quality, node.cost, node.reward, regret)
    return Line(GROUPS[kind], cells)


def _choices_table(found: Explained) -> Table:
    assert found.router
    actions = found.router.choices[0].actions
    columns = (
        Column("After"),
        *(Column(f"p({action})") for action in actions),
        Column("Chosen"),
        Column("Regret", 4),
    )
    lines = tuple(_choice_line(found, choice) for choice in found.router.choices)
    note = "Regret by hop: R that can no longer be reached after the choice."
    return Table(f"What {ROUTER} chose", columns, lines, note)


def _choice_line(found: Explained, choice: Choice) -> Line:
    after = found.node(choice.state).route if choice.state else "the question"
    return Line(ROUTER, (after, *choice.probabilities, choice.chosen, choice.regret))


def _worst_line(found: Explained) -> Line:
    assert found.router
    lost = [choice.regret for choice in found.router.choices]
    lost += [0.0] * (found.hops - len(lost))
    ends = (found.route(found.router.node), found.route(found.best))
    question = one_line(found.question, LONGEST_QUESTION)
    return Line(found.split, (found.name, found.regret, *lost, *ends, question))


def _marked(found: Explained, node: Node) -> str:
    return "".join(f"*{mark}* " for mark in marks(found, node.number))


def _verdict(node: Node) -> str:
    """Right or wrong; imported scores may lie between."""
    known = {1.0: "right", 0.0: "wrong"}
    return known.get(node.accuracy, f"{node.accuracy:.2f} right")


def _cost_digits(found: Explained) -> int:
    return digits_for(node.cost for node in found.nodes)
