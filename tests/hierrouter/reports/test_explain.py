"""Explained queries against tree, cache and outcomes; as text, Markdown, JSON, list and page."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from hierrouter.evaluation.bounds import best_fixed_route, oracle
from hierrouter.evaluation.outcome import greedy
from hierrouter.learning.config import (
    ClustersConfig,
    GroupsConfig,
    MeanConfig,
    Objective,
    RidgeConfig,
    TrainConfig,
    ValueConfig,
)
from hierrouter.learning.policy_classes import TableRouter
from hierrouter.learning.router import Constant, TrainedRouter
from hierrouter.learning.training import train
from hierrouter.replay.inspection import ask_cache
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Texts
from hierrouter.reports import explain
from hierrouter.reports.explain import (
    Choice,
    GreedyRoute,
    Node,
    QueryExplanation,
    as_object,
    as_text,
    explain_queries,
    in_order,
    list_routes,
    worst_queries,
    worst_table,
)
from hierrouter.tables import json_text
from hierrouter_cache.errors import CacheError, InputError
from hierrouter_cache.layout import route_name
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.trainings import ALPHA, EXACT_GLIMPSE
from tests.hierrouter.reports.examples import HOSTILE
from tests.hierrouter.trees import lucky_tree
from tests.hostile import HARM, collect_hostile

DEAR = 0.4  # an alpha at which short routes are the best ones
CALLS = """SELECT route, hop, model, response, tokens_in, tokens_out, total_cost FROM nodes
WHERE hop > 0 AND dataset || '/' || id = '{name}'"""
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def tree(testbed_cache: Path) -> RouteTree:
    return OpenTree(cache=testbed_cache).run()


ROUTERS: dict[str, tuple[float, bool, TrainConfig]] = {
    "exact": (ALPHA, False, EXACT_GLIMPSE),
    "exact, stop": (DEAR, True, EXACT_GLIMPSE),
    "groups": (DEAR, True, GroupsConfig()),
    "clusters": (ALPHA, False, ClustersConfig()),
    "ridge": (ALPHA, False, RidgeConfig()),
    "mean": (DEAR, True, MeanConfig()),
}


@pytest.fixture(scope="module", params=ROUTERS)
def trained(request: pytest.FixtureRequest, tree: RouteTree) -> TrainedRouter:
    alpha, stop, config = ROUTERS[request.param]
    return train(tree, Objective(alpha, allow_stop=stop), config, 0)


@pytest.fixture(scope="module")
def all_of_test(
    testbed_cache: Path, tree: RouteTree, trained: TrainedRouter
) -> list[QueryExplanation]:
    rows = np.flatnonzero(np.array(tree.splits) == "test").tolist()
    return explain_queries(testbed_cache, tree, rows, trained.alpha, trained)


def test_nodes_are_those_of_tree_and_cache(testbed_cache: Path, tree: RouteTree) -> None:
    [explanation] = explain_queries(testbed_cache, tree, [7], ALPHA)
    stored = ask_cache(testbed_cache, CALLS.format(name=explanation.name)).to_pylist()
    assert len(explanation.nodes) == len(stored) == tree.layout.calls
    by_route = {row["route"]: row for row in stored}
    for node in explanation.nodes:
        row = by_route[node.route]
        assert (node.model, node.answer) == (row["model"], row["response"])
        assert (node.tokens_in, node.tokens_out) == (row["tokens_in"], row["tokens_out"])
        assert node.cost == pytest.approx(row["total_cost"])
        assert node.quality == tree.score[7, node.number]
        assert node.accuracy == tree.accuracy[7, node.number]
        assert node.reward == tree.node_reward(ALPHA)[7, node.number]
        assert len(explanation.ancestors(node.number)) == row["hop"]
    [asked] = ask_cache(
        testbed_cache, f"SELECT * FROM queries WHERE id = '{explanation.id}'"
    ).to_pylist()
    assert (explanation.question, list(explanation.references)) == (
        asked["question"],
        asked["answers"],
    )
    assert (explanation.dataset, explanation.split) == (asked["dataset"], asked["split"])
    assert explanation.router is None and explanation.regret is None


def test_routes_are_worth_what_the_outcomes_say(
    tree: RouteTree, trained: TrainedRouter, all_of_test: list[QueryExplanation]
) -> None:
    """Summed up again over the fold: the router, the oracle, and the best fixed route."""
    fold, alpha, stop = tree.split("test"), trained.alpha, trained.objective.allow_stop
    fixed = best_fixed_route(tree.split("train"), alpha, fold, stop)
    assert {explanation.node(explanation.fixed).route for explanation in all_of_test} == {
        fixed.name
    }
    for end, outcome in [
        (lambda explanation: explanation.router.node, trained.outcome(fold)),
        (lambda explanation: explanation.best, oracle(fold, alpha, stop)),
        (lambda explanation: explanation.fixed, fixed),
    ]:
        nodes = [explanation.node(end(explanation)) for explanation in all_of_test]
        assert [node.quality for node in nodes] == pytest.approx(outcome.quality.tolist())
        assert [node.cost for node in nodes] == pytest.approx(outcome.cost.tolist())
        assert [node.reward for node in nodes] == pytest.approx(outcome.reward(alpha).tolist())


def test_choices_are_those_of_the_greedy_policy(
    tree: RouteTree, trained: TrainedRouter, all_of_test: list[QueryExplanation]
) -> None:
    fold = tree.split("test")
    probabilities = trained.probabilities(fold)
    taken = greedy(probabilities, fold.base_rate).argmax(axis=2)
    for row, explanation in enumerate(all_of_test):
        way = explanation.ancestors(explanation.router.node)
        assert [choice.state for choice in explanation.router.choices] == [0, *way[:-1]]
        for choice in explanation.router.choices:
            assert choice.probabilities == pytest.approx(probabilities[row, choice.state], abs=1e-6)
            assert choice.chosen == choice.actions[taken[row, choice.state]]
        assert explanation.router.choices[-1].chosen.endswith(">stop") == (len(way) < tree.hops)
        assert explanation.node(explanation.router.node).route.count(">") == max(1, len(way) - 1)


def test_regret_is_the_sum_over_the_choices(all_of_test: list[QueryExplanation]) -> None:
    for explanation in all_of_test:
        parts = [choice.regret for choice in explanation.router.choices]
        assert explanation.regret == pytest.approx(sum(parts), abs=1e-9)
        assert min(parts) >= -1e-12
    assert max(explanation.regret for explanation in all_of_test) > 0.001


def test_the_worst_lose_most_and_nothing_lost_is_left_out(
    testbed_cache: Path,
    tree: RouteTree,
    trained: TrainedRouter,
    all_of_test: list[QueryExplanation],
) -> None:
    every = worst_queries(tree, "test", trained.alpha, trained, len(tree))
    regrets = {explanation.name: explanation.regret for explanation in all_of_test}
    shown = explain_queries(testbed_cache, tree, every, trained.alpha, trained)
    ordered = [explanation.regret for explanation in shown]
    assert ordered == pytest.approx(sorted(ordered, reverse=True), abs=2e-9)
    assert {explanation.name for explanation in shown} == {
        n for n, lost in regrets.items() if lost > 1e-8
    }
    assert worst_queries(tree, "test", trained.alpha, trained, 3) == every[:3]


def test_the_fixed_route_is_chosen_on_train_alone(testbed_cache: Path, tree: RouteTree) -> None:
    [explanation] = explain_queries(
        testbed_cache, replace(tree, splits=("test",) * len(tree)), [0], ALPHA
    )
    assert explanation.fixed is None


def test_hostile_answers_are_kept_and_other_caches_refused(tmp_path: Path, tree: RouteTree) -> None:
    collect_hostile(tmp_path)
    explanations = explain_queries(
        tmp_path, OpenTree(cache=tmp_path).run(), list(range(len(HARM))), ALPHA
    )
    assert {node.answer for query in explanations for node in query.nodes} == set(HARM)
    assert [query.references for query in explanations] == [(text,) for text in HARM]
    with pytest.raises(CacheError, match="1 of 1 queries are not in the cache"):
        explain_queries(tmp_path, tree, [0], ALPHA)


# --- a router that is a table of routes


def test_each_group_has_its_route_and_what_that_is_worth(tree: RouteTree) -> None:
    trained = train(tree, Objective(DEAR), GroupsConfig(), 0)
    assert isinstance(trained.router, TableRouter)
    listed = list_routes(trained, tree)
    *groups, others = listed.routes
    assert [route.group for route in groups] == sorted(set(tree.datasets))
    learned = tree.select(np.flatnonzero(np.array(tree.splits) != "test"))
    reward = learned.node_reward(DEAR)
    mean = reward[:, learned.layout.leaves].mean(axis=0).max()
    assert (others.group, others.gain) == ("", 0)
    assert (others.questions, others.reward) == (len(learned), pytest.approx(mean))
    pooling = trained.router.table.pooling
    for route in groups:
        rows = np.array(learned.datasets) == route.group
        node = learned.layout.node([tree.models.index(name) for name in route.route.split(">")])
        share = rows.sum() / (rows.sum() + pooling)
        pooled = share * reward[rows, node].mean() + (1 - share) * reward[:, node].mean()
        assert (route.questions, route.reward) == (rows.sum(), pytest.approx(pooled))
        assert route.gain >= 0
    # What the list says is what the router does.
    test = tree.split("test")
    names = {route.group: route.route for route in groups}
    ends = trained.endings(test).argmax(axis=1)
    taken = [test.layout.name(int(end), test.models) for end in ends]
    assert taken == [names[dataset] for dataset in test.datasets]
    told = json.loads(listed.to_json())
    assert told["alpha"] == DEAR
    assert [route["route"] for route in told["routes"]] == [route.route for route in listed.routes]
    assert listed.table.rows[-1].cells[0] == "other questions"


def test_a_cluster_says_what_most_of_its_questions_are(tree: RouteTree) -> None:
    trained = train(tree, Objective(DEAR), ClustersConfig(), 0)
    *clusters, _ = list_routes(trained, tree).routes
    assert [route.group for route in clusters] == [
        f"cluster {number}" for number in range(1, len(clusters) + 1)
    ]
    assert len(clusters) > 1
    for route in clusters:
        name, _, share = (route.mostly or "").rpartition(" ")
        assert name in tree.datasets
        assert 0 < int(share.removesuffix("%")) <= 100


def test_routes_are_listed_on_the_questions_that_they_were_learned_from(tree: RouteTree) -> None:
    trained = train(tree, Objective(DEAR), ClustersConfig(), 0)
    with pytest.raises(InputError, match="the router learned from other data or scores"):
        list_routes(trained, replace(tree, content="f" * 32))


def test_a_constant_is_a_list_of_one_and_others_have_none(tree: RouteTree) -> None:
    value = train(tree, Objective(ALPHA), ValueConfig(), 0)
    with pytest.raises(InputError, match="--algo value decides question by question"):
        list_routes(value, tree)
    end = int(tree.layout.leaves.start)
    one = replace(value, constant=Constant(end, 0.0, -0.1, 0.1, 900, 40))
    [route] = list_routes(one, tree).routes
    learned = tree.select(np.flatnonzero(np.array(tree.splits) != "test"))
    assert (route.group, route.route) == ("", tree.layout.name(end, tree.models))
    assert route.reward == pytest.approx(learned.node_reward(ALPHA)[:, end].mean())
    assert route.questions == len(learned)
    assert list_routes(one, tree).table.rows[0].cells[0] == "all questions"


# --- how a query is shown


def node(number: int, quality: float, answer: str, models: int = 2) -> Node:
    parent, depth = (number - 1) // models, 1 if number <= models else 2
    names = [f"m{(n - 1) % models}" for n in (parent, number) if n]
    return Node(
        number=number,
        parent=parent,
        model=names[-1],
        route=route_name(names),
        answer=answer,
        quality=quality,
        accuracy=float(quality > 0.5),
        tokens_in=1_000,
        tokens_out=2,
        cost=float(depth),
        reward=quality - 0.1 * depth,
    )


def query(answers: tuple[str, ...] = tuple("abcdef"), question: str = "why?") -> QueryExplanation:
    """Two models and hops; node 6 (m1>m1) is right, the router ends at 5 (m1>m0)."""
    nodes = tuple(
        node(number, 1.0 if number == 6 else 0.2, answer)
        for number, answer in enumerate(answers, 1)
    )
    choices = (
        Choice(0, ("m0", "m1"), (0.25, 0.75), "m1", 0.0, best_probability=0.875),
        Choice(2, ("m0", "m1"), (0.625, 0.375), "m0", 0.8, best_probability=0.5),
    )
    return QueryExplanation(
        id="7",
        dataset="set",
        split="test",
        question=question,
        references=("f", "F"),
        scorer="token_f1",
        alpha=0.1,
        hops=2,
        nodes=nodes,
        best=6,
        fixed=3,
        router=GreedyRoute(5, choices),
    )


def stopped() -> QueryExplanation:
    """The same query with a router that ends after m1."""
    return replace(query(), router=GreedyRoute(2, query().router.choices[:1]))


def hostile() -> QueryExplanation:
    texts = tuple(f"{text} {HOSTILE[-1]}" for text in HOSTILE[:6])
    explanation = query(texts, question="\n".join(HOSTILE))
    return replace(explanation, id=HOSTILE[0], dataset=HOSTILE[6], references=HOSTILE)


def test_text_shows_every_node_with_its_numbers_and_whose_it_is() -> None:
    text = as_text(query(), 160)
    assert "set/7  test fold; Q is token_f1; R = Q - 0.1 C" in text
    assert "Question   why?" in text and "Reference  f | F" in text
    for letter in "abcdef":
        assert re.search(rf"[│ ]   ?{letter}\n", text), letter
    assert "m1  Q 1.000, right, 1,000+2 tokens, C 2.00, R 0.8000  < oracle" in text
    assert "m0  Q 0.200, wrong, 1,000+2 tokens, C 2.00, R 0.0000  < HierRouter" in text
    assert text.count("<") == 3
    assert "\x1b" not in text and "\x1b" in as_text(query(), 160, colour=True)


def test_text_has_the_routes_and_choices_as_tables() -> None:
    lines = [" ".join(line.split()) for line in as_text(query(), 160).splitlines()]
    assert "HierRouter m1>m0 0.200 2.00 0.0000 0.8000" in lines
    assert "oracle m1>m1 1.000 2.00 0.8000 0.0000" in lines
    assert "best fixed route m0>m0 0.200 2.00 0.0000 0.8000" in lines
    assert "the question 0.250 0.750 m1 0.875 0.0000" in lines
    assert ">m1 0.625 0.375 m0 0.500 0.8000" in lines
    network = Choice(0, ("m0", "m1"), (0.25, 0.75), "m1", 0.0)
    silent = replace(query(), router=GreedyRoute(2, (network,)))
    assert "P(best)" in as_text(query(), 160) and "P(best)" not in as_text(silent, 160)
    assert re.search(r"HierRouter +>m1", as_text(stopped(), 160))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_text_fits_the_terminal(width: int) -> None:
    assert max(map(cell_len, as_text(hostile(), width).splitlines())) <= width


def test_calls_come_before_those_made_after_them() -> None:
    assert [node.number for node in in_order(query())] == [1, 3, 4, 2, 5, 6]


def test_hostile_text_is_shown_and_steers_nothing() -> None:
    text = as_text(hostile(), 200)
    assert not STEERING.search(text)
    assert "x1b" in text and "u202egpj" in text
    assert "[/INST] [red]x[i]" in text


def test_json_holds_everything_whole() -> None:
    text = json_text(as_object(hostile()), "query")
    data = json.loads(text)
    assert [item["answer"] for item in data["nodes"]] == [item.answer for item in hostile().nodes]
    assert data["question"] == hostile().question
    assert data["regret"] == pytest.approx(0.8)
    assert data["router"]["choices"][1]["probabilities"] == [0.625, 0.375]
    assert data["router"]["choices"][1]["best_probability"] == 0.5
    assert not STEERING.search(text)


def test_a_list_has_one_line_for_each_query() -> None:
    assert [row.cells for row in worst_table([query(), stopped()], "test").rows] == [
        ("set/7", pytest.approx(0.8), 0.0, 0.8, "m1>m0", "m1>m1", "why?"),
        ("set/7", pytest.approx(0.7), 0.0, 0.0, ">m1", "m1>m1", "why?"),
    ]
    assert worst_table([], "validation").note == "No regret on the validation fold."


def test_draws_are_named_and_what_a_question_lacks_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tree = lucky_tree(2, 40, 2, 1)
    weight = np.array(tree.weight)
    number = tree.layout.node((0, 1))
    [second] = np.setdiff1d(tree.layout.draws_of_calls[tree.layout.parent[number], 1], [number])
    weight[0, number] = 0
    weight[0, second] = 1
    tree = replace(tree, weight=weight, splits=("train", "test") * 20)
    texts = Texts("question", ("yes",), tuple(f"answer {n}" for n in range(tree.layout.nodes)))
    monkeypatch.setattr(explain, "load_texts", lambda root, tree, pool: [texts] * len(tree))
    trained = train(tree, Objective(0.1), EXACT_GLIMPSE, 0)
    first, other = explain_queries(tmp_path, tree, [0, 1], 0.1, trained)
    assert len(other.nodes) == tree.layout.nodes - 1
    assert len(first.nodes) == len(other.nodes) - 1
    assert other.node(number).route == "model-0>model-1 #1"
    assert first.node(int(second)).model == "model-1 #2"
    for query in (first, other):
        assert query.node(query.best).reward == max(
            node.reward for node in query.nodes if node.number >= tree.layout.inner
        )
        shown = as_text(query, 100)
        assert "model-1 #2" in shown
        assert "Routes for" in shown
