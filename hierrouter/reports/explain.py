"""The whole tree of one query: every answer, what it is worth, and what a router does in it."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.text import Text
from rich.tree import Tree as RichTree

from hierrouter.declarations.declaration import shown_name
from hierrouter.evaluation.bounds import best_nodes, cheapest_best, rank_routes, split_regret
from hierrouter.evaluation.outcome import (
    Integers,
    MakeCall,
    draw_suffix,
    ending_probabilities,
    endings_by_node,
    greedy,
    possible_ends,
    route_endings,
)
from hierrouter.learning.policy_classes import TableRouter
from hierrouter.questions.query import find_query
from hierrouter.questions.reading import NO_ANSWER
from hierrouter.questions.scoring import ACCURACY, SCORERS_BY_NAME, ScorerInput
from hierrouter.replay.inspection import holes_words
from hierrouter.replay.tree import Texts, Tree, load_texts
from hierrouter.reports.estimates import POLICY_GROUPS
from hierrouter.reports.sentences import log_looks, selection_notes, warn_of_test_fold
from hierrouter.runs.selection import SelectedRun, select_run
from hierrouter.tables import (
    REPR_WIDTH,
    Cell,
    Column,
    Line,
    Table,
    as_rich,
    finite_or_none,
    json_text,
    money,
    one_line,
    safe_text,
)
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import NOT_OFFERED
from hierrouter_cache.tree import RouteTree, net_reward
from hierrouter_cache.walk import log_holes

if TYPE_CHECKING:
    from hierrouter.learning.router import TrainedRouter
    from hierrouter.reports.jobs import Explain

REGRET_TOLERANCE = 1e-9  # a regret up to it is rounding
# Labels of the nodes where the routes end.
ROUTER_LABEL = "HierRouter"
RETURNED_LABEL = "HierRouter's answer"  # if the router returns an earlier answer of its route
ORACLE_LABEL = "oracle"
FIXED_LABEL = "best fixed route"
MAX_READ_LENGTH = 60  # characters of what was read of an answer
MAX_ANSWER_LENGTH = 400  # characters of an answer on a terminal
MAX_QUESTION_LENGTH = 60  # characters of a question in a list of queries
EMPTY_ANSWER = "(empty)"


@dataclass(frozen=True)
class ReadAnswer:
    """The answer that a scorer read in a response.

    Attributes:
        kind: its type, see `hierrouter.questions.reading`.
        start: position of its first character in the response; None if there is no answer.
        end: position after its last character.
        text: what stands there.
        scorer: name of the scorer.
    """

    kind: str
    start: int | None
    end: int | None
    text: str
    scorer: str


@dataclass(frozen=True)
class Node:
    """One call of a query's tree.

    Attributes:
        number: number of the node, see `hierrouter_cache.tree`.
        parent: number of the node whose answer is the context of the call; 0 is the question.
        model: name of the model that is called.
        route: names of all models called up to this node, `first>second`.
        answer: text of the response.
        quality: Q of the answer.
        accuracy: 1.0 for right, 0.0 for wrong; None if nothing judges the answer.
        tokens_in: tokens of the prompt.
        tokens_out: tokens of the response.
        cost: C, of all calls up to this node, in money.
        reward: R = Q - alpha * C if the route ends at this node.
        visible: what the next call reads of the answer, if that is not all of it.
        read: the answer that was read for `accuracy`, or for Q if its scorer reads one.
    """

    number: int
    parent: int
    model: str
    route: str
    answer: str
    quality: float
    accuracy: float | None
    tokens_in: int
    tokens_out: int
    cost: float
    reward: float
    visible: str | None = None
    read: ReadAnswer | None = None


@dataclass(frozen=True)
class Choice:
    """A router's choice at one state of its route.

    Attributes:
        state: number of the node where the choice is made; 0 is the question.
        actions: names of the possible actions: a model, `model>stop`, or `return>1`.
        probabilities: probabilities of the actions under the stochastic policy, in their order.
        chosen: the action that the greedy policy takes.
        regret: R of the best ending that was possible before the choice, less R of the best one
            that is possible after it.
        best_probability: how probable the router says it is that no other action leads to a higher
            R; None if it does not predict that.
    """

    state: int
    actions: tuple[str, ...]
    probabilities: tuple[float, ...]
    chosen: str
    regret: float
    best_probability: float | None = None


@dataclass(frozen=True)
class GreedyRoute:
    """The greedy route of a router through a query's tree.

    Attributes:
        node: number of the node at which it ends.
        choices: one a hop, from the question on; one more if an earlier answer is returned.
        given: number of the node whose answer is returned, if it is not the last one.
    """

    node: int
    choices: tuple[Choice, ...]
    given: int | None = None


@dataclass(frozen=True)
class QueryExplanation:
    """A query, its tree, and the routes to compare.

    Attributes:
        id: id of the query.
        dataset: name of its dataset.
        split: its fold.
        question: its question.
        references: its reference answers.
        scorer: name of the scorer that Q comes from.
        alpha: weight of cost in R.
        hops: most calls of a route.
        nodes: all calls of the tree by number; the first is number 1.
        best: number of the node where the best route in hindsight ends.
        fixed: number of the node where the fixed route ends that is best on the train fold; None if
            that fold is empty.
        router: the router's route; None without a router.
        holes: number of calls that other queries of a log have and this one has not, by reason, see
            `hierrouter_cache.walk.log_holes`.
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
    router: GreedyRoute | None
    holes: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`dataset/id`."""
        return f"{self.dataset}/{self.id}"

    @property
    def regret(self) -> float | None:
        """R of the best route in hindsight less R of the router's; None without a router."""
        if self.router is None:
            return None
        return self.node(self.best).reward - self.ending(self.router).reward

    def node(self, number: int) -> Node:
        """Return the node of this number, from 1; the root, 0, is the question."""
        return self._by_number[number]

    def ending(self, route: GreedyRoute) -> Node:
        """Return the node where a route ends, with Q, accuracy and R of the answer it returns."""
        last = self.node(route.node)
        returned = self.node(route.given or route.node)
        reward = net_reward(returned.quality, last.cost, self.alpha)
        return replace(last, quality=returned.quality, accuracy=returned.accuracy, reward=reward)

    def children(self, number: int) -> tuple[Node, ...]:
        """Return the calls made from a node, in action order; none after the last hop."""
        return self._children.get(number, ())

    def ancestors(self, number: int) -> tuple[int, ...]:
        """Return the numbers of the nodes from the first call to this one, which is included."""
        numbers = []
        while number:
            numbers.append(number)
            number = self.node(number).parent
        return tuple(reversed(numbers))

    @cached_property
    def _by_number(self) -> dict[int, Node]:
        return {node.number: node for node in self.nodes}

    @cached_property
    def _children(self) -> dict[int, tuple[Node, ...]]:
        children: dict[int, tuple[Node, ...]] = {}
        for node in self.nodes:
            children[node.parent] = (*children.get(node.parent, ()), node)
        return children


@dataclass(frozen=True, repr=False)
class Explanations:
    """The queries that a job of `Explain` explained.

    Attributes:
        queries: the queries; of several that with the largest regret first.
        split: the fold on which the queries with the largest regret were looked for; None for a
            single query.
    """

    queries: tuple[QueryExplanation, ...]
    split: str | None = None

    def to_json(self) -> str:
        """Return a single query as one JSON object, several as one object with a list."""
        if self.split is None:
            [query] = self.queries
            return json_text(as_object(query), "query")
        queries = [as_object(query) for query in self.queries]
        return json_text({"split": self.split, "queries": queries}, "queries")

    def to_text(self, width: int, colour: bool = False) -> str:
        """Return a single query as text for a terminal; see `as_text` for the arguments."""
        [query] = self.queries
        return as_text(query, width, colour)

    @property
    def table(self) -> Table:
        """A line a query, see `worst_table`; only of queries of one fold."""
        return worst_table(self.queries, self.split or self.queries[0].split)

    def __repr__(self) -> str:
        return self.to_text(REPR_WIDTH) if self.split is None else repr(self.table)


@dataclass(frozen=True)
class GroupRoute:
    """The route that a table of routes has for a group of questions.

    Q, C and R are those that the table expects: means over the questions of the group that it
    learned from, drawn towards those of all questions. They are no test.

    Attributes:
        group: data set or label; `cluster N`; "" for all questions, whose route those of unknown
            groups take.
        route: the models to call, `first>second`.
        questions: how many of the group it learned from.
        quality: mean Q of the route.
        cost: mean C of it, in money.
        reward: mean R of it.
        gain: R less that of the route for all questions, in this group.
        mostly: of a cluster the data set that most of its questions are from; else None.
    """

    group: str
    route: str
    questions: int
    quality: float
    cost: float
    reward: float
    gain: float
    mostly: str | None = None


@dataclass(frozen=True, repr=False)
class RouteList:
    """A router that is a table of routes, or one route, as a table to read and to take elsewhere.

    Attributes:
        alpha: weight of cost in R.
        cost_unit: unit of C.
        routes: one for each group; the last one is for all questions.
    """

    alpha: float
    cost_unit: str
    routes: tuple[GroupRoute, ...]

    def to_json(self) -> str:
        """Return one JSON object with `alpha` and the `routes`."""
        return json_text({"alpha": self.alpha, "routes": list(map(asdict, self.routes))}, "routes")

    @property
    def table(self) -> Table:
        """A line a group."""
        has_clusters = any(route.mostly for route in self.routes)
        columns = [
            Column("Group"),
            Column("Route"),
            Column("Questions"),
            Column("Q"),
            Column("C", money=True),
            Column("R", 4),
            Column("R over one route", 4, signed=True),
        ]
        lines = []
        for route in self.routes:
            figures = (route.quality, route.cost, route.reward, route.gain)
            group = route.group or ("other questions" if len(self.routes) > 1 else "all questions")
            cells: tuple[Cell, ...] = (group, route.route, route.questions, *figures)
            lines.append(Line("", (*cells, route.mostly or "") if has_clusters else cells))
        if has_clusters:
            columns.append(Column("Mostly"))
        title = f"Routes of {ROUTER_LABEL}, R = Q - {self.alpha:g} C, C in {self.cost_unit}"
        note = (
            "Means over the questions that the routes were chosen on, those of a group drawn "
            "towards the means of all: expect lower figures on other questions."
        )
        return Table(title, tuple(columns), tuple(lines), note)

    def __repr__(self) -> str:
        return repr(self.table)


def list_routes(trained: TrainedRouter, tree: RouteTree) -> RouteList:
    """Return the routes of a router that is a table of routes, or one route for all questions.

    Args:
        trained: the router.
        tree: all folds of the tree that it learned from.

    Raises:
        InputError: the router decides otherwise, or learned from another tree.
    """
    if not tree.same_content(trained.origin.fingerprint):
        raise InputError(
            "the router learned from other data or scores, whose questions its routes are of: "
            "--routes; open the cache with the settings of its training"
        )
    fitted = trained.fitted_to(tree)
    learned = fitted.constant_fold(tree)
    if fitted.constant:
        outcome = fitted.outcome(learned)
        reward = float(outcome.reward(fitted.alpha).mean())
        quality = float(outcome.quality.mean())
        cost = float(outcome.cost.mean())
        one = GroupRoute("", fitted.constant_route, len(learned), quality, cost, reward, 0.0)
        return RouteList(fitted.alpha, tree.cost_unit, (one,))
    if not isinstance(fitted.router, TableRouter):
        raise InputError(
            f"--algo {fitted.origin.config.algo} decides question by question and has no table of "
            "routes: --routes; take a run of --algo groups or clusters, or give QUERY_ID"
        )
    table = fitted.router.table
    of_all = table.position(int(table.best[0]))
    mostly: dict[int, str] = {}
    if len(table.centres):
        row = fitted.router.rows(learned)
        datasets = np.array(learned.datasets)
        mostly = {
            number: _most_frequent(datasets[row == number]) for number in range(len(table.count))
        }
    routes = []
    for number, node in enumerate(table.best.tolist()):
        values = table.values[number]
        quality, cost = values[table.position(node)].tolist()
        reward = net_reward(values[:, 0], values[:, 1], table.alpha)
        name = ""
        if number:
            name = table.names[number - 1] if table.names else f"cluster {number}"
        route = GroupRoute(
            group=name,
            route=fitted.actions.layout.name(node, fitted.origin.models),
            questions=int(table.count[number]),
            quality=quality,
            cost=cost,
            reward=float(reward[table.position(node)]),
            gain=float(reward[table.position(node)] - reward[of_all]),
            mostly=mostly.get(number) if number else None,
        )
        routes.append(route)
    return RouteList(table.alpha, tree.cost_unit, (*routes[1:], routes[0]))


def _most_frequent(datasets: NDArray[Any]) -> str:
    """The data set of most of some questions with its share, `math 80%`; "" of none."""
    if not len(datasets):
        return ""
    names, counts = np.unique(datasets, return_counts=True)
    return f"{names[counts.argmax()]} {counts.max() / counts.sum():.0%}"


def explain_selection(
    job: Explain, tree: Tree, on_note: Callable[[str], None]
) -> Explanations | RouteList:
    """Do the job of `Explain.run`, which has the arguments and the errors."""
    row = None if job.query is None else find_query(tree, job.query)
    selected = select_run(tree, job.alpha, job.checkpoint)
    for note in selection_notes("explain", selected):
        on_note(note)
    if job.routes:
        if selected.trained is None:
            tree.require_embedded()
            raise InputError("no router, so no routes: --routes; run `hierrouter train` first")
        return list_routes(selected.trained, tree)
    if row is not None:
        name = [tree.datasets[row], tree.query_ids[row]]
        _log_look(tree, tree.splits[row], selected, on_note, query=name)
        queries = explain_queries(
            tree.root, tree, [row], selected.alpha, selected.trained, tree.pool
        )
        return Explanations(tuple(queries))
    assert job.worst is not None  # as `Explain.check` has it
    if selected.trained is None:
        tree.require_embedded()
        worst = shown_name(type(job), "worst").rstrip("=")
        raise InputError(f"no router, so no regret: {worst}; run `hierrouter train` first")
    split = job.worst_fold
    rows = worst_queries(tree, split, selected.alpha, selected.trained, job.worst)
    queries = explain_queries(tree.root, tree, rows, selected.alpha, selected.trained, tree.pool)
    _log_look(tree, split, selected, on_note, worst=job.worst)
    return Explanations(tuple(queries), split)


def _log_look(
    tree: Tree, split: str, selected: SelectedRun, on_note: Callable[[str], None], **look: Any
) -> None:
    """Warn of a look at the test fold, and log it; do nothing on other folds."""
    look = {"alpha": selected.alpha, **look}
    logged = log_looks("explain", tree, split, [selected.run], look)
    for note in (*warn_of_test_fold("explain", split), *logged):
        on_note(note)


def explain_queries(
    root: Path,
    tree: RouteTree,
    rows: Sequence[int],
    alpha: float,
    trained: TrainedRouter | None = None,
    pool: str | None = None,
) -> list[QueryExplanation]:
    """Explain some queries of a tree: all answers, and the routes to compare.

    If the router may stop early, the other routes may, too.

    Args:
        root: folder of the cache that the tree was opened from.
        tree: all folds; the fixed route is chosen on "train".
        rows: positions of the queries in `tree`.
        alpha: weight of cost in R.
        trained: the router; None without one.
        pool: name of the pool, if the cache has several.

    Raises:
        CacheError: the folder has no cache, a damaged one, or not the one of this tree.
        InputError: the router was made for another tree.
    """
    if not rows:  # for example if a router has no regret anywhere
        return []
    selected = tree.select(np.array(rows, dtype=np.int64))
    stop = trained is not None and trained.objective.ends_early
    train = tree.split("train")
    fixed: list[int | None] = [None] * len(selected)
    # With several draws a fixed route has no node of its own.
    if len(train) and tree.layout.draws == 1:
        fixed = [*_fixed_ends(selected, stop, rank_routes(train, alpha, stop))]
    best = _best_draws(selected, alpha, stop).tolist()
    router_routes = _greedy_routes(selected, alpha, trained) if trained else None
    texts = load_texts(root, selected, pool)
    return [
        QueryExplanation(
            id=selected.query_ids[row],
            dataset=selected.datasets[row],
            split=selected.splits[row],
            question=texts[row].question,
            references=texts[row].references,
            scorer=selected.scorer,
            alpha=alpha,
            hops=selected.hops,
            nodes=_nodes(selected, row, alpha, texts[row]),
            best=best[row],
            fixed=fixed[row],
            router=router_routes[row] if router_routes else None,
            holes={}
            if selected.weight is None
            else log_holes(selected.layout, selected.weight[[row]] > 0),
        )
        for row in range(len(selected))
    ]


def _fixed_ends(tree: RouteTree, stop: bool, ranking: Sequence[int]) -> list[int]:
    """The node at which the best fixed route ends on each query, if each call has one draw."""
    if tree.weight is None:
        return [ranking[0]] * len(tree)
    endings = route_endings(tree, ranking, stop)
    ends: list[int] = endings_by_node(tree.layout, endings).argmax(axis=1).tolist()
    return ends


def _best_draws(tree: RouteTree, alpha: float, stop: bool) -> Integers:
    """int64[queries]: the node with the highest R at which an episode may end, of all draws."""
    if tree.layout.draws == 1:
        return best_nodes(tree, alpha, stop)
    reward = np.where(possible_ends(tree, stop), tree.node_reward(alpha), -np.inf)
    return cheapest_best(reward, tree.cost)


def worst_queries(
    tree: RouteTree, split: str, alpha: float, trained: TrainedRouter, count: int
) -> list[int]:
    """Return the queries of a fold with the largest regret of a router.

    Args:
        tree: all folds.
        split: the fold.
        alpha: weight of cost in R.
        trained: the router.
        count: most queries to return; queries without regret are left out.

    Returns:
        Positions in `tree`, the largest regret first; of equal ones the first query.

    Raises:
        InputError: the router was made for another tree.
    """
    rows = tree.rows(split)
    objective = trained.objective
    fold = objective.view(tree.select(rows))
    endings = trained.endings(fold)
    by_choice = split_regret(fold, alpha, endings, objective.allow_stop)
    # To the digits that are printed, so that rounding errors do not order equal regrets.
    regret = by_choice.sum(axis=1).round(9)
    worst = np.argsort(-regret, kind="stable")[:count]
    return rows[worst[regret[worst] > REGRET_TOLERANCE]].tolist()


def _nodes(tree: RouteTree, row: int, alpha: float, texts: Texts) -> tuple[Node, ...]:
    layout = tree.layout
    reward = tree.node_reward(alpha)[row]
    return tuple(
        Node(
            number=number,
            parent=int(layout.parent[number]),
            model=tree.models[layout.action[number]] + draw_suffix(layout, number),
            route=layout.name(number, tree.models) + draw_suffix(layout, number),
            answer=texts.answers[number],
            quality=float(tree.score[row, number]),
            accuracy=_accuracy(tree, row, number),
            tokens_in=int(tree.tokens_in[row, number]),
            tokens_out=int(tree.tokens_out[row, number]),
            cost=float(tree.cost[row, number]),
            reward=float(reward[number]),
            visible=_visible(texts, number),
            read=_read(tree, texts, number),
        )
        for number in range(1, layout.nodes)
        if tree.weight is None or tree.weight[row, number] > 0
    )


def _accuracy(tree: RouteTree, row: int, number: int) -> float | None:
    """Whether the response at a node is right; None if nothing judges it."""
    if tree.can_end is not None and not tree.can_end[row, number]:
        return None
    return finite_or_none(float(tree.accuracy[row, number]))


def _visible(texts: Texts, number: int) -> str | None:
    """What the next call reads of the answer at a node; None if it reads all."""
    visible = texts.visible[number]
    return None if visible == texts.answers[number] else visible


def _read(tree: RouteTree, texts: Texts, number: int) -> ReadAnswer | None:
    """What the scorer of Q reads of the answer at a node, or else `accuracy`."""
    if not texts.references:
        return None
    visible = texts.visible[number]
    answer = ScorerInput(
        response=visible,
        references=texts.references,
        question=texts.question,
        choices=texts.choices,
        answer_type=texts.answer_type,
        model=tree.models[tree.layout.action[number]],
    )
    for name in dict.fromkeys((tree.scorer, ACCURACY)):
        if name not in SCORERS_BY_NAME:
            continue
        # Only a `Tree`, which was opened from a cache, has `thought_tags`.
        scorer = SCORERS_BY_NAME[name].for_models(getattr(tree, "thought_tags", {}))
        reading = scorer.reading(answer)
        if reading is None:
            continue
        response = texts.answers[number]
        reading = reading.moved(max(response.rfind(visible), 0))
        text = response[reading.start or 0 : reading.end or 0]
        return ReadAnswer(reading.kind, reading.start, reading.end, text, name)
    return None


def _greedy_routes(tree: RouteTree, alpha: float, trained: TrainedRouter) -> list[GreedyRoute]:
    """Follow the greedy route of a router through each query's tree, choice by choice."""
    # Query by query: in float32 the last digits depend on how many are computed together, and a
    # query must look the same whichever others are explained with it.
    tree = trained.objective.view(tree)
    singles = [tree.select(np.array([row])) for row in range(len(tree))]
    probabilities = np.concatenate([trained.probabilities(single) for single in singles])
    actions = trained.actions
    names = actions.names(tree.models)
    one_hot = greedy(probabilities, tree.base_rate, actions.returns)
    choice = one_hot.argmax(axis=2)
    is_best = [
        trained.choice_probability(single, choice[row : row + 1])
        for row, single in enumerate(singles)
    ]
    endings = ending_probabilities(actions, one_hot, tree.weight)
    regret = split_regret(tree, alpha, endings, actions.allow_stop)
    greedy_actions = choice.tolist()
    routes = []
    for row in range(len(tree)):
        choices: list[Choice] = []
        state = 0
        end = 0
        is_over = False
        while not is_over:
            action = greedy_actions[row][state]
            action_probabilities = tuple(probabilities[row, state].tolist())
            node, end, is_over = actions.transition(state, action, _likeliest_draws(tree, row))
            # The last choice also has the regret of the answer that is returned: with a call that
            # ends the route, an earlier answer might have been the better one.
            remaining = regret[row].tolist()[len(choices) :]
            choice_regret = math.fsum(remaining) if is_over else remaining[0]
            probability = is_best[row]
            choices.append(
                Choice(
                    state=state,
                    actions=names,
                    probabilities=action_probabilities,
                    chosen=names[action],
                    best_probability=None if probability is None else float(probability[0, state]),
                    regret=choice_regret,
                )
            )
            state = int(node)
        returned = int(tree.layout.answer_node[end])
        routes.append(GreedyRoute(state, tuple(choices), None if returned == state else returned))
    return routes


def as_text(query: QueryExplanation, width: int, colour: bool = False) -> str:
    """Return the query as text for a terminal.

    Args:
        query: the query.
        width: characters of a line.
        colour: with escape sequences for colours.
    """
    sink = io.StringIO()
    page = Console(file=sink, width=width, force_terminal=colour)
    heading = Text(one_line(query.name), style="bold")
    facts = f"{query.split} fold; Q is {query.scorer}; R = Q - {query.alpha:g} C"
    heading.append(f"  {one_line(facts)}", style="dim not bold")
    question = Text.assemble(("Question   ", "dim"), safe_text(query.question))
    references = Text.assemble(("Reference  ", "dim"), safe_text(" | ".join(query.references)))
    page.print(Group(heading, Text(), question, references, Text()))
    page.print(_tree(query))
    if query.holes:
        page.print(Text(f"\n{holes_words(query.holes)}", style="dim"))
    for table in (_routes_table(query), *_choices_tables(query)):
        page.print(Text(), as_rich(table, width))
    return sink.getvalue()


def as_object(query: QueryExplanation) -> dict[str, Any]:
    """Return the query as JSON values with complete answers.

    The keys are the attributes of `QueryExplanation`, and `regret`. A node has `visible` only if
    the next call does not read all of its answer.
    """
    keys = {**asdict(query), "regret": query.regret}
    if query.router and query.router.given is None:
        del keys["router"]["given"]
    if not query.holes:
        del keys["holes"]
    for node in keys["nodes"]:
        if node["visible"] is None:
            del node["visible"]
        if node["read"] is None:
            del node["read"]
        else:
            node["read"]["type"] = node["read"].pop("kind")
    return keys


def worst_table(queries: Sequence[QueryExplanation], split: str) -> Table:
    """A line a query, in the order given: the router's regret, hop by hop.

    Args:
        queries: of one fold, explained with a router.
        split: name of the fold.
    """
    hop_count = 0
    for query in queries:
        if query.router:
            # A router that returns an earlier answer makes one more choice than there are hops.
            hop_count = max(hop_count, query.hops, len(query.router.choices))
    columns = (
        Column("Query"),
        Column("Regret", 4),
        *(Column(f"hop {hop}", 4) for hop in range(1, hop_count + 1)),
        Column(ROUTER_LABEL),
        Column(ORACLE_LABEL),
        Column("Question"),
    )
    lines = tuple(Line(split, _worst_cells(query, hop_count)) for query in queries)
    title = f"The largest regrets of {ROUTER_LABEL} on the {split} fold"
    note = f"No regret on the {split} fold."
    if lines:
        note = "Regret is R of the best route in hindsight less R of the router's, hop by hop."
    return Table(title, columns, lines, note)


def _worst_cells(query: QueryExplanation, hop_count: int) -> tuple[Cell, ...]:
    assert query.router
    regrets = [choice.regret for choice in query.router.choices]
    regrets += [0.0] * (hop_count - len(regrets))  # a route that stopped early
    router_route = query.node(query.router.node).route
    best_route = query.node(query.best).route
    question = one_line(query.question, MAX_QUESTION_LENGTH)
    return (query.name, query.regret, *regrets, router_route, best_route, question)


def _likeliest_draws(tree: RouteTree, row: int) -> MakeCall | None:
    """Return what makes a call of a query: its draw of the highest weight, the first of equals.

    None if each call has one draw, and the query has all nodes.
    """
    weights = tree.weight
    if weights is None:
        return None

    def make_call(node: Any, call: Any) -> Any:
        draws = tree.layout.draws_of_calls[int(node), int(call)]
        weight = np.where(draws == NOT_OFFERED, 0.0, weights[row, draws])
        return np.asarray(draws[weight.argmax()] if weight.any() else NOT_OFFERED)

    return make_call


def figures_text(node: Node) -> str:
    """Return the figures of a call in one line; C and R are those of the route up to it."""
    tokens = f"{node.tokens_in:,}+{node.tokens_out:,} tokens"
    # Imported accuracies may lie between right and wrong.
    right = "not judged"
    if node.accuracy is not None:
        right = {1.0: "right", 0.0: "wrong"}.get(node.accuracy, f"{node.accuracy:.2f} right")
    return f"Q {node.quality:.3f}, {right}, {tokens}, C {money(node.cost)}, R {node.reward:.4f}"


def route_labels(query: QueryExplanation, number: int) -> tuple[str, ...]:
    """Return the labels of the routes that end at a node, or return its answer."""
    ends = {
        ROUTER_LABEL: query.router.node if query.router else None,
        RETURNED_LABEL: query.router.given if query.router else None,
        ORACLE_LABEL: query.best,
        FIXED_LABEL: query.fixed,
    }
    return tuple(label for label, end in ends.items() if end == number)


def in_order(query: QueryExplanation, number: int = 0) -> list[Node]:
    """Return the calls below a node, each before the calls that follow it."""
    ordered = []
    for node in query.children(number):
        ordered.append(node)
        ordered += in_order(query, node.number)
    return ordered


def _tree(query: QueryExplanation) -> RichTree:
    """The tree with two lines a call: model, figures and routes; then the answer."""
    router_nodes = query.ancestors(query.router.node) if query.router else ()
    root = RichTree(Text("question", style="dim"), guide_style="dim")
    branches = {0: root}
    for node in in_order(query):
        entry = Text(one_line(node.model), style="bold" if node.number in router_nodes else "")
        entry.append(f"  {figures_text(node)}", style="dim")
        for label in route_labels(query, node.number):
            entry.append(f"  < {label}", style="bold")
        entry.append("\n")
        if node.visible is not None:
            thought_length = len(node.answer) - len(node.visible)
            entry.append(f"(a thought of {thought_length:,} characters is dropped) ", style="dim")
        answer = node.answer if node.visible is None else node.visible
        if node.read is not None and answer.strip() != node.read.text.strip():
            entry.append(f"[{_read_words(node.read)}] ", style="dim")
        entry.append(one_line(answer, MAX_ANSWER_LENGTH) or EMPTY_ANSWER, style="not bold")
        branches[node.number] = branches[node.parent].add(entry)
    return root


def _read_words(read: ReadAnswer) -> str:
    """What was read of an answer, in words."""
    if read.kind == NO_ANSWER:
        return "no answer is read"
    return f"{read.kind} {one_line(read.text, MAX_READ_LENGTH)}"


def _routes_table(query: QueryExplanation) -> Table:
    """A line a route: that of the router, the best fixed one, and the best in hindsight."""
    columns = (
        Column("Policy"),
        Column("Route"),
        Column("Q"),
        Column("C", money=True),
        Column("R", 4),
        Column("Regret", 4),
    )
    best = query.node(query.best)
    ends = {"oracle": (ORACLE_LABEL, best)}
    if query.router:
        ends["router"] = (ROUTER_LABEL, query.ending(query.router))
    if query.fixed is not None:
        ends["route"] = (FIXED_LABEL, query.node(query.fixed))
    lines = []
    for kind, group in POLICY_GROUPS.items():
        if kind in ends:
            label, node = ends[kind]
            regret = best.reward - node.reward
            cells = (label, node.route, node.quality, node.cost, node.reward, regret)
            lines.append(Line(group, cells))
    note = "The fixed route is the best one on the train fold." if query.fixed else ""
    return Table(f"Routes for {query.name}", columns, tuple(lines), note)


def _choices_tables(query: QueryExplanation) -> Iterator[Table]:
    """Yield the table of the router's choices; nothing without a router."""
    if query.router is None:
        return
    actions = query.router.choices[0].actions
    predicts = query.router.choices[0].best_probability is not None
    columns = (
        Column("After"),
        *(Column(f"p({action})") for action in actions),
        Column("Chosen"),
        *([Column("P(best)")] if predicts else []),
        Column("Regret", 4),
    )
    lines = []
    for choice in query.router.choices:
        after = query.node(choice.state).route if choice.state else "the question"
        cells: list[Cell] = [after, *choice.probabilities, choice.chosen]
        if predicts:
            cells.append(choice.best_probability)
        cells.append(choice.regret)
        lines.append(Line(ROUTER_LABEL, tuple(cells)))
    note = (
        "p is how often sampling takes an action, not how probable it is that the action is the "
        "best."
    )
    if predicts:
        note += " P(best): of the chosen action, as the router predicts it."
    note += " Regret by hop: R that can no longer be reached after the choice."
    yield Table(f"What {ROUTER_LABEL} chose", columns, tuple(lines), note)
