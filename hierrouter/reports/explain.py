"""One query's whole tree, and what a router does in it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.text import Text
from rich.tree import Tree

from hierrouter.evaluation.bounds import best_ending, best_nodes, split_regret
from hierrouter.evaluation.outcome import Actions, ending, greedy
from hierrouter.replay.tree import Texts, load_texts
from hierrouter.reports.tables import GROUPS
from hierrouter.reports.values import Choice, Explained, Node, Routed
from hierrouter.tables import (
    Column,
    Line,
    Table,
    as_rich,
    digits_for,
    markdown_text,
    one_line,
    safe_text,
)
from hierrouter.tables import as_markdown as table_as_markdown
from hierrouter_cache.tree import RouteTree

if TYPE_CHECKING:
    from hierrouter.learning.trained import TrainedRouter

NOTHING = 1e-9  # a regret below it is rounding


def explain(
    root: Path,
    tree: RouteTree,
    rows: Sequence[int],
    alpha: float,
    trained: TrainedRouter | None = None,
    pool: str | None = None,
) -> list[Explained]:
    """Some queries of a tree, each with its answers and routes.

    Where the router may stop early, the other routes may, too.

    Args:
        root: the cache that the tree was opened from.
        tree: all folds; the fixed route is chosen on "train".
        rows: positions of queries in `tree`.
        alpha: price of cost in R = Q - alpha * C.
        trained: the router, if any.
        pool: as in `hierrouter.replay.opening.Selection`.

    Raises:
        CacheError: nothing there, damaged, or not the cache of this tree.
        InputError: a router made for another tree.
    """
    if not rows:  # a router may have no regret anywhere
        return []
    chosen = tree.select(np.array(rows, dtype=np.int64))
    stop = trained is not None and trained.objective.allow_stop
    train = tree.split("train")
    fixed = best_ending(train, alpha, stop) if len(train) else None
    best = best_nodes(chosen, alpha, stop).tolist()
    routed = _routed(chosen, alpha, trained) if trained else [None] * len(chosen)
    texts = load_texts(root, chosen, pool)
    return [
        Explained(
            id=chosen.query_ids[row],
            dataset=chosen.datasets[row],
            split=chosen.splits[row],
            question=texts[row].question,
            references=texts[row].references,
            scorer=chosen.scorer,
            alpha=alpha,
            hops=chosen.hops,
            nodes=_nodes(chosen, row, alpha, texts[row]),
            best=best[row],
            fixed=fixed,
            router=routed[row],
        )
        for row in range(len(chosen))
    ]


def worst_queries(
    tree: RouteTree, split: str, alpha: float, trained: TrainedRouter, count: int
) -> list[int]:
    """Positions in `tree` of the queries of a fold on which a router loses most to hindsight.

    Args:
        split: the fold to look at.
        count: at most so many; queries on which nothing is lost are left out.

    Returns:
        the largest regret first; of equal ones the first query.

    Raises:
        InputError: a router made for another tree.
    """
    rows = np.flatnonzero(np.array(tree.splits) == split)
    fold = tree.select(rows)
    stop = trained.objective.allow_stop
    # To the digits that are shown, so that rounding does not order what is equal.
    regret = split_regret(fold, alpha, trained.endings(fold), stop).total.round(9)
    worst = np.argsort(-regret, kind="stable")[:count]
    found: list[int] = rows[worst[regret[worst] > NOTHING]].tolist()
    return found


def explain_worst(
    root: Path,
    tree: RouteTree,
    split: str,
    alpha: float,
    trained: TrainedRouter,
    count: int,
    pool: str | None = None,
) -> list[Explained]:
    """The queries of `worst_queries`, explained; see `explain` for the rest.

    Raises:
        CacheError: nothing there, damaged, or not the cache of this tree.
        InputError: a router made for another tree.
    """
    rows = worst_queries(tree, split, alpha, trained, count)
    return explain(root, tree, rows, alpha, trained, pool)


def _nodes(tree: RouteTree, row: int, alpha: float, texts: Texts) -> tuple[Node, ...]:
    routes, reward = tree.routes, tree.node_reward(alpha)[row]
    return tuple(
        Node(
            number=number,
            parent=routes.parent(number),
            model=tree.models[routes.action(number)],
            route=routes.name(number, tree.models),
            answer=texts.answers[number],
            quality=float(tree.score[row, number]),
            accuracy=float(tree.accuracy[row, number]),
            tokens_in=int(tree.tokens_in[row, number]),
            tokens_out=int(tree.tokens_out[row, number]),
            cost=float(tree.cost[row, number]),
            reward=float(reward[number]),
        )
        for number in range(1, routes.nodes)
    )


def _routed(tree: RouteTree, alpha: float, trained: TrainedRouter) -> list[Routed | None]:
    """The greedy way of a router through each query's tree."""
    # Each query alone: in float32 the last digits depend on how many are computed together.
    alone = [trained.probabilities(tree.select(np.array([row]))) for row in range(len(tree))]
    actions, probabilities = trained.actions, np.concatenate(alone)
    one_hot = greedy(probabilities, tree.base_rate)
    lost = split_regret(tree, alpha, ending(actions, one_hot), actions.allow_stop).parts
    taken = one_hot.argmax(axis=2)
    return [
        _way(tree.models, actions, probabilities[row], taken[row].tolist(), lost[row].tolist())
        for row in range(len(tree))
    ]


def _way(
    models: tuple[str, ...],
    actions: Actions,
    probabilities: NDArray[np.float64],
    taken: Sequence[int],
    lost: Sequence[float],
) -> Routed:
    """From the question to where the router ends.

    Args:
        probabilities: float64[states, A].
        taken: the action at each state.
        lost: regret by hop.
    """
    names = actions.names(models)
    state, node, choices = 0, 0, []
    for regret in lost:
        action = taken[state]
        made = tuple(probabilities[state].tolist())
        choices.append(Choice(state, names, made, names[action], regret))
        node = actions.routes.child(state, action % len(models))
        if node >= actions.routes.states or action >= len(models):
            break
        state = node
    return Routed(node, tuple(choices))


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
