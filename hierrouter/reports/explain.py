"""One query's whole tree, and what a router does in it."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group
from rich.text import Text
from rich.tree import Tree

from hierrouter.evaluation.bounds import best_ending, best_nodes, split_regret
from hierrouter.evaluation.outcome import ending_probabilities, ending_table, greedy
from hierrouter.replay.tree import Texts, load_texts
from hierrouter.reports.values import GROUPS
from hierrouter.tables import Cell, Column, Line, Table, as_rich, money, one_line, safe_text
from hierrouter_cache.tree import RouteTree, net_reward

if TYPE_CHECKING:
    from hierrouter.learning.training import TrainedRouter

NOTHING = 1e-9  # a regret below it is rounding
ROUTER, BEST, FIXED = "HierRouter", "oracle", "best fixed route"
GIVEN = "HierRouter's answer"  # where it is not the last one of its route
LONGEST_ANSWER = 400  # characters of an answer on a terminal
LONGEST_QUESTION = 60  # characters of a question in a list of queries
EMPTY = "(empty)"


@dataclass(frozen=True)
class Node:
    """One call of a query's tree.

    Attributes:
        number: of the node, see `hierrouter_cache.tree`.
        parent: number of the node whose answer the call saw; 0 is the question.
        route: all models called up to here, `first>second`.
        cost: C, of all calls up to here, in money.
        reward: R = Q - alpha * C, were the route to end here.
    """

    number: int
    parent: int
    model: str
    route: str
    answer: str
    quality: float
    accuracy: float
    tokens_in: int
    tokens_out: int
    cost: float
    reward: float


@dataclass(frozen=True)
class Choice:
    """What a router does at one state on its way.

    Attributes:
        state: number of the node where the choice is made; 0 is the question.
        actions: names of what may be chosen: a model, `model>stop`, or `return>1`.
        probabilities: of the actions under the stochastic policy, in their order.
        chosen: the action that the greedy policy takes.
        regret: how much less R the best ending after the choice has than the best one before it.
    """

    state: int
    actions: tuple[str, ...]
    probabilities: tuple[float, ...]
    chosen: str
    regret: float


@dataclass(frozen=True)
class Routed:
    """The greedy route of a router.

    Attributes:
        node: number of the node where it ends.
        choices: one a hop, from the question on, and one more where an answer is returned.
        given: number of the node whose answer it gives, where that is not the last one.
    """

    node: int
    choices: tuple[Choice, ...]
    given: int | None = None


@dataclass(frozen=True)
class Explained:
    """A query, its tree, and the routes to compare.

    Attributes:
        nodes: all calls of the tree by number, the first is number 1.
        best: number of the node where the best route in hindsight ends.
        fixed: where the fixed route ends that is best on the train fold; None where that is empty.
        router: what the router does; None where there is none.
    """

    id: str
    dataset: str
    split: str
    question: str
    references: tuple[str, ...]
    scorer: str
    alpha: float
    hops: int
    nodes: tuple[Node, ...]
    best: int
    fixed: int | None
    router: Routed | None

    @property
    def name(self) -> str:
        """`dataset/id`."""
        return f"{self.dataset}/{self.id}"

    @property
    def regret(self) -> float | None:
        """R of the best route in hindsight less R of the router's; None without a router."""
        if self.router is None:
            return None
        return self.node(self.best).reward - self.ended(self.router).reward

    def node(self, number: int) -> Node:
        """The node of this number; the root, 0, is none."""
        return self.nodes[number - 1]

    def ended(self, router: Routed) -> Node:
        """The node where a router ends, worth what the answer is worth that it gives."""
        last, given = self.node(router.node), self.node(router.given or router.node)
        reward = net_reward(given.quality, last.cost, self.alpha)
        return replace(last, quality=given.quality, accuracy=given.accuracy, reward=reward)

    def below(self, number: int) -> tuple[Node, ...]:
        """The calls made from a node, in action order; none after the last hop."""
        return self._children.get(number, ())

    def on_way(self, number: int) -> tuple[int, ...]:
        """Numbers from the first call to this node."""
        way = []
        while number:
            way.append(number)
            number = self.node(number).parent
        return tuple(reversed(way))

    @cached_property
    def _children(self) -> dict[int, tuple[Node, ...]]:
        found: dict[int, tuple[Node, ...]] = {}
        for node in self.nodes:
            found[node.parent] = (*found.get(node.parent, ()), node)
        return found


def explain(
    root: Path,
    tree: RouteTree,
    rows: Sequence[int],
    alpha: float,
    trained: TrainedRouter | None = None,
    pool: str | None = None,
) -> list[Explained]:
    """Some queries of a tree, each with its answers and routes.

    Where the router may stop early, the other routes may, too. Raises CacheError: nothing there,
    damaged, or not the cache of this tree; InputError: a router made for another tree.

    Args:
        tree: all folds; the fixed route is chosen on "train".
        rows: positions of queries in `tree`.
    """
    if not rows:  # a router may have no regret anywhere
        return []
    chosen = tree.select(np.array(rows, dtype=np.int64))
    stop = trained is not None and trained.objective.ends_early
    train = tree.split("train")
    fixed = best_ending(train, alpha, stop) if len(train) else None
    best = best_nodes(chosen, alpha, stop).tolist()
    routed = _routed(chosen, alpha, trained) if trained else None
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
            router=routed[row] if routed else None,
        )
        for row in range(len(chosen))
    ]


def worst_queries(
    tree: RouteTree, split: str, alpha: float, trained: TrainedRouter, count: int
) -> list[int]:
    """Positions in `tree` of the queries of a fold on which a router loses most to hindsight.

    Raises InputError: a router made for another tree.

    `split`: the fold to look at; `count`: at most so many; queries on which nothing is lost are
    left out. Returns the largest regret first; of equal ones the first query.
    """
    rows = tree.rows(split)
    fold = tree.select(rows)
    may = trained.objective
    # To the digits that are shown, so that rounding does not order what is equal.
    endings = trained.endings(fold)
    lost = split_regret(fold, alpha, endings, may.allow_stop, may.allow_return)
    regret = lost.sum(axis=1).round(9)
    worst = np.argsort(-regret, kind="stable")[:count]
    return rows[worst[regret[worst] > NOTHING]].tolist()


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


def _routed(tree: RouteTree, alpha: float, trained: TrainedRouter) -> list[Routed]:
    """The greedy route of a router through each query's tree, choice by choice."""
    # Each query alone: in float32 the last digits depend on how many are computed together.
    alone = [trained.probabilities(tree.select(np.array([row]))) for row in range(len(tree))]
    actions, probabilities = trained.actions, np.concatenate(alone)
    names = actions.names(tree.models)
    one_hot = greedy(probabilities, tree.base_rate, actions.returns)
    endings = ending_probabilities(actions, one_hot)
    lost = split_regret(tree, alpha, endings, actions.allow_stop, actions.allow_return)
    taken, found = one_hot.argmax(axis=2).tolist(), []
    for row in range(len(tree)):
        choices: list[Choice] = []
        state, over = 0, False
        while not over:
            action, chances = taken[row][state], tuple(probabilities[row, state].tolist())
            node, end, over = actions.transition(state, action)
            # Who ends with a call has lost there what another answer would have been worth.
            left = lost[row].tolist()[len(choices) :]
            regret = math.fsum(left) if over else left[0]
            choices.append(Choice(state, names, chances, names[action], regret))
            state = int(node)
        given = int(ending_table(tree.routes).answer_node[end])
        found.append(Routed(state, tuple(choices), None if given == state else given))
    return found


def as_text(found: Explained, width: int, colour: bool = False) -> str:
    """The query for a terminal of `width` characters."""
    sink = io.StringIO()
    page = Console(file=sink, width=width, force_terminal=colour)
    head = Text(one_line(found.name), style="bold")
    facts = f"{found.split} fold; Q is {found.scorer}; R = Q - {found.alpha:g} C"
    head.append(f"  {one_line(facts)}", style="dim not bold")
    asked = Text.assemble(("Question   ", "dim"), safe_text(found.question))
    right = Text.assemble(("Reference  ", "dim"), safe_text(" | ".join(found.references)))
    page.print(Group(head, Text(), asked, right, Text()))
    page.print(_tree(found))
    for table in (_routes_table(found), *_choices_tables(found)):
        page.print(Text(), as_rich(table, width))
    return sink.getvalue()


def as_object(found: Explained) -> dict[str, Any]:
    """The query as JSON values, answers whole; the keys are those of `Explained`."""
    keys = {**asdict(found), "regret": found.regret}
    if found.router and found.router.given is None:
        del keys["router"]["given"]
    return keys


def worst_table(found: Sequence[Explained], split: str) -> Table:
    """One line a query, in the order given: what a router lost on it, and how."""
    widths = [max(query.hops, len(query.router.choices)) for query in found if query.router]
    hops = [f"hop {hop + 1}" for hop in range(max(widths, default=0))]
    columns = (
        Column("Query"),
        Column("Regret", 4),
        *(Column(hop, 4) for hop in hops),
        Column(ROUTER),
        Column(BEST),
        Column("Question"),
    )
    lines = tuple(Line(split, _worst_cells(query, len(hops))) for query in found)
    title = f"The largest regrets of {ROUTER} on the {split} fold"
    note = "Regret is R of the best route in hindsight less R of the router's, hop by hop."
    return Table(title, columns, lines, note if lines else f"No regret on the {split} fold.")


def _worst_cells(found: Explained, hops: int) -> tuple[Cell, ...]:
    assert found.router
    lost = [choice.regret for choice in found.router.choices]
    lost += [0.0] * (hops - len(lost))
    ends = (found.node(found.router.node).route, found.node(found.best).route)
    return (found.name, found.regret, *lost, *ends, one_line(found.question, LONGEST_QUESTION))


def numbers(found: Explained, node: Node) -> str:
    """What a call gave and took, in one line; C and R are of the route so far."""
    tokens = f"{node.tokens_in:,}+{node.tokens_out:,} tokens"
    # Imported scores may lie between right and wrong.
    right = {1.0: "right", 0.0: "wrong"}.get(node.accuracy, f"{node.accuracy:.2f} right")
    return f"Q {node.quality:.3f}, {right}, {tokens}, C {money(node.cost)}, R {node.reward:.4f}"


def marks(found: Explained, number: int) -> tuple[str, ...]:
    """Whose routes end at a node."""
    ends = {
        ROUTER: found.router.node if found.router else None,
        GIVEN: found.router.given if found.router else None,
        BEST: found.best,
        FIXED: found.fixed,
    }
    return tuple(name for name, node in ends.items() if node == number)


def in_order(found: Explained, number: int = 0) -> list[Node]:
    """The calls below a node, each before those made after it."""
    return [item for node in found.below(number) for item in (node, *in_order(found, node.number))]


def _tree(found: Explained) -> Tree:
    """Two lines a call: whose it is and what it is worth; what it said."""
    taken = found.on_way(found.router.node) if found.router else ()
    root = Tree(Text("question", style="dim"), guide_style="dim")
    branches = {0: root}
    for node in in_order(found):
        label = Text(one_line(node.model), style="bold" if node.number in taken else "")
        label.append(f"  {numbers(found, node)}", style="dim")
        for mark in marks(found, node.number):
            label.append(f"  < {mark}", style="bold")
        label.append("\n")
        label.append(one_line(node.answer, LONGEST_ANSWER) or EMPTY, style="not bold")
        branches[node.number] = branches[node.parent].add(label)
    return root


def _routes_table(found: Explained) -> Table:
    columns = (
        Column("Policy"),
        Column("Route"),
        Column("Q"),
        Column("C", money=True),
        Column("R", 4),
        Column("Regret", 4),
    )
    ends = {"oracle": (BEST, found.node(found.best))}
    if found.router:
        ends["router"] = (ROUTER, found.ended(found.router))
    if found.fixed is not None:
        ends["route"] = (FIXED, found.node(found.fixed))
    best, lines = found.node(found.best).reward, []
    for kind, group in GROUPS.items():
        if kind in ends:
            name, node = ends[kind]
            cells = (name, node.route, node.quality, node.cost, node.reward, best - node.reward)
            lines.append(Line(group, cells))
    fixed = "The fixed route is the best one on the train fold." if found.fixed else ""
    return Table(f"Routes for {found.name}", columns, tuple(lines), fixed)


def _choices_tables(found: Explained) -> Iterator[Table]:
    """What the router chose; none without one."""
    if found.router is None:
        return
    actions = found.router.choices[0].actions
    columns = (
        Column("After"),
        *(Column(f"p({action})") for action in actions),
        Column("Chosen"),
        Column("Regret", 4),
    )
    lines = []
    for choice in found.router.choices:
        after = found.node(choice.state).route if choice.state else "the question"
        lines.append(Line(ROUTER, (after, *choice.probabilities, choice.chosen, choice.regret)))
    note = "Regret by hop: R that can no longer be reached after the choice."
    yield Table(f"What {ROUTER} chose", columns, tuple(lines), note)
