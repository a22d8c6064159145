"""A router over roles runs live: the same instructions, settings and states as on the tree."""

import json
from pathlib import Path
from typing import Any

import anyio
import httpx2
import numpy as np
import pytest

from hierrouter.collection.scheduler import fill_cache
from hierrouter.evaluation.confidence_rules import fit_rule
from hierrouter.evaluation.outcome import greedy
from hierrouter.learning.config import Objective, training_config
from hierrouter.learning.router import TrainedRouter
from hierrouter.pools.files import parse_pool, with_draws
from hierrouter.questions.datasets import load_queries
from hierrouter.replay.env import ReplayEnv
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Tree, first_call_confidence, load_texts
from hierrouter.runs.bundle import load_bundle
from hierrouter.runs.checkpoint import router_at
from hierrouter.serving.evaluate_log import OffPolicy
from hierrouter.serving.logs import LogShape, read_log
from hierrouter.serving.results import Call, Hop
from hierrouter.serving.router import RouteOptions, Router
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Rate
from tests.engines import Counting
from tests.hierrouter.learning.trainings import decided
from tests.hierrouter.serving.serving import figures_of, run_in, served, user

ALPHA = 0.02
MODEL = """
[[models]]
name = "{name}"
model = "testbed:{name}"
dtype = "float32"
base_rate = 0.03
generation = {{ max_new_tokens = 16 }}
"""
POOL = (
    '[pool]\nhops = 3\nper_tokens = 1\nencoder = "hashed-ngrams"\n'
    + "".join(MODEL.format(name=name) for name in ("calc", "text", "facts"))
    + """
[[actions]]
name = "solve@text"
model = "text"
after = []
[[actions]]
name = "solve@facts"
model = "facts"
after = []
[[actions]]
name = "short@text"
model = "text"
after = ["solve@facts"]
generation = { max_new_tokens = 1 }
[[actions]]
name = "tool"
model = "calc"
after = ["start", "solve@text"]
[[actions]]
name = "critic@facts"
model = "facts"
instruction = "Check the answer."
after = ["short@text", "tool"]
at = [2, 3]
base_rate = 0.05
"""
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("roles") / "cache"
    queries = load_queries(["arith", "copies"], 24, 8, Path())
    fill_cache(parse_pool(POOL, "roles.toml"), queries, folder, engines=Counting())
    return folder


@pytest.fixture(scope="module")
def tree(cache: Path) -> Tree:
    return OpenTree(cache=cache).run()


@pytest.fixture(scope="module", params=["exact", "value"])
def run(tree: Tree, tmp_path_factory: pytest.TempPathFactory, request: Any) -> Path:
    config = training_config("default", request.param, 1 if request.param == "exact" else None)
    return run_in(tmp_path_factory.mktemp("run"), tree, Objective(ALPHA), config, seed=1)


def test_environment_evaluation_and_live_router_agree_on_every_question(
    run: Path, tree: Tree
) -> None:
    trained = router_at(run, None)
    assert isinstance(trained, TrainedRouter)
    assert trained.origin.layout == tree.layout
    fold = tree.split("test")
    outcome = trained.outcome(fold)
    ends = trained.endings(fold).argmax(axis=1)
    env = ReplayEnv(fold, ALPHA)
    lengths = set()
    with Router(run, engines=Counting()) as router:
        for row, text in enumerate(load_texts(tree.root, fold)):
            routed = router.route(text.question)
            assert routed.route == fold.layout.name(int(ends[row]), fold.models)
            assert routed.answer == text.answers[ends[row]]
            assert routed.cost == pytest.approx(fold.cost[row, ends[row]])
            observation, info = env.reset(options={"query": row})
            ended = False
            reward = 0.0
            while not ended:
                path = fold.layout.path(info["node"])
                chances = decided(
                    trained, observation["embedding"], path, float(observation["cost"][0])
                )
                action = greedy(chances, trained.origin.base_rate, 0).argmax()
                observation, reward, ended, _, info = env.step(np.int64(action))
            assert info["node"] == ends[row]
            assert reward == pytest.approx(outcome.reward(ALPHA)[row])
            lengths.add(len(routed.hops))
    assert lengths <= {2, 3}


def test_routes_around_a_model_have_the_texts_of_the_tree(run: Path, tree: Tree) -> None:
    fold = tree.split("test")
    texts = load_texts(tree.root, fold)
    reached = set()
    with Router(run, engines=Counting()) as router:
        for row in range(6):
            for unavailable in ("text", "facts", "calc"):
                options = RouteOptions(unavailable=frozenset([unavailable]))
                routed = router.route(texts[row].question, options)
                path = [fold.models.index(hop.model) for hop in routed.hops]
                node = fold.layout.node(path)
                assert node >= fold.layout.inner  # ends where nothing more is offered
                for hop, call in zip(routed.hops, fold.layout.nodes_to(node), strict=True):
                    assert hop.response.text == texts[row].answers[call]
                reached.add(node)
    assert len(reached) > 1


def test_decide_names_the_action_and_has_its_prompt(run: Path, tree: Tree) -> None:
    question = load_texts(tree.root, tree.split("test"))[0].question
    hops: list[Hop] = []
    with Router(run, engines=Counting()) as router:
        router.route(question, RouteOptions(on_hop=hops.append))
        with served(router) as url:
            answers: list[dict[str, Any]] = []
            for number, hop in enumerate(hops):
                asked = {"messages": user(question), "answers": answers}
                body = httpx2.post(f"{url}/v1/decide", json=asked, timeout=60).json()
                assert body["call"] == hop.model
                assert body["last"] == (number == len(hops) - 1)
                instruction = "Check the answer." if hop.model == "critic@facts" else ""
                assert body["messages"][0]["content"].endswith(instruction or question) or answers
                answers.append(
                    {
                        "model": hop.model,
                        "content": hop.response.text,
                        "tokens_in": hop.response.tokens_in,
                        "tokens_out": hop.response.tokens_out,
                    }
                )
        with pytest.raises(InputError, match=r"no route of the router: critic@facts; each"):
            call = Call(model="critic@facts", response=hops[0].response)
            anyio.run(router.decide, question, [call])


def test_another_layout_is_refused(run: Path) -> None:
    bundle = load_bundle(run)
    assert bundle
    wider = POOL.replace('after = ["short@text", "tool"]', 'after = ["short@text", "solve@text"]')
    with pytest.raises(InputError, match=r"the pool has other routes than the policy learned"):
        Router(run, parse_pool(wider, "p.toml"), Counting())


def test_a_pool_with_another_number_of_draws_has_the_same_routes(tmp_path: Path) -> None:
    """`collect --draws 2` learns from two answers of a call; a route that is taken has one."""
    models = "".join(MODEL.format(name=name) for name in ("calc", "text"))
    drawn = models.replace("max_new_tokens = 16", "max_new_tokens = 4, temperature = 0.7")
    head = '[pool]\nhops = {hops}\nper_tokens = 1\nencoder = "hashed-ngrams"\n'
    pool = parse_pool(head.format(hops=2) + drawn, "p.toml")
    cache = tmp_path / "cache"
    queries = load_queries(["arith"], 16, 8, Path())
    fill_cache(with_draws(pool, 2), queries, cache, engines=Counting())
    tree = OpenTree(cache=cache).run()
    assert tree.layout.draws == 2
    run = tmp_path / "run"
    run.mkdir()
    run_in(run, tree, Objective(ALPHA), training_config("default", "exact", 1), seed=1)
    for draws in (1, 2, 3):
        assert Router(run, with_draws(pool, draws), Counting(), load=False).pool.draws == draws
    with Router(run, pool, Counting()) as router:
        question = load_texts(tree.root, tree.split("test"))[0].question
        assert router.route(question).route == Router(run, engines=Counting()).route(question).route
    solver = '[[actions]]\nname = "{name}"\nmodel = "{name}"\nafter = {after}\n'
    calc = solver.format(name="calc", after="[]")
    roles = calc + solver.format(name="text", after='["start", "calc"]')
    other = parse_pool(head.format(hops=2) + drawn + roles, "p.toml")
    with pytest.raises(InputError, match=r"with: 3 nodes, it learned with 6; give that pool"):
        Router(run, other, Counting(), load=False)


def test_a_rule_reads_the_confidence_of_actions_that_are_offered_first(tree: Tree) -> None:
    confidence = first_call_confidence(tree)
    assert np.isnan(confidence).all(axis=0).tolist() == [False, False, True, False, True]
    rule = fit_rule(tree, confidence, ALPHA)
    assert rule.first in (None, 0, 1, 3)


def test_a_server_answers_with_actions(run: Path, tree: Tree) -> None:
    """Its answers are those of the tree; settings that the last model does not heed are named."""
    fold = tree.split("test")
    trained = router_at(run, None)
    assert isinstance(trained, TrainedRouter)
    ends = trained.endings(fold).argmax(axis=1)
    with Router(run, engines=Counting()) as router, served(router, otherwise="text") as url:
        texts = load_texts(tree.root, fold)
        for row, text in enumerate(texts[:4]):
            body = {"model": "hierrouter", "messages": user(text.question), "temperature": 0.5}
            reply = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60)
            assert reply.status_code == 200, reply.text
            answer = reply.json()["choices"][0]["message"]["content"]
            assert answer == text.answers[ends[row]]
            route = fold.layout.name(int(ends[row]), fold.models)
            assert reply.headers["x-hierrouter-route"] == route
            assert reply.headers["x-hierrouter-ignored"] == "temperature"
        assert set(figures_of(url, "hierrouter_calls_total")) <= set(fold.models)
        # An action is left out by its own name; a model with all its actions.
        asked = {"messages": user(texts[3].question), "unavailable": ["solve@facts", "calc"]}
        body = httpx2.post(f"{url}/v1/decide", json=asked, timeout=60).json()
        assert body["call"] == "solve@text"
        assert body["unavailable"] == ["solve@facts", "tool"]
        # What a model costs that is asked by itself.
        assert router.rate_of("text") == Rate.base(0.03)


def every_route(fold: Tree, folder: Path) -> Path:
    """A log in which each question took each route once; the first call was drawn of three."""
    lines = []
    layout = fold.layout
    for row, text in enumerate(load_texts(fold.root, fold)):
        for end in range(layout.inner, layout.nodes):
            nodes = layout.nodes_to(end)
            before = (0, *nodes[:-1])
            steps = [
                {
                    "model": fold.models[layout.action[node]],
                    "propensity": 1 / 3 if node == nodes[0] else 1.0,
                    "cost": float(fold.cost[row, node] - fold.cost[row, previous]),
                    "response": text.answers[node],
                }
                for previous, node in zip(before, nodes, strict=True)
            ]
            quality = float(fold.score[row, end])
            lines.append({"question": text.question, "steps": steps, "quality": quality})
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_log_of_routes_of_unequal_length_has_the_exact_value(
    run: Path, tree: Tree, tmp_path: Path
) -> None:
    fold = tree.split("test")
    trained = router_at(run, None)
    assert isinstance(trained, TrainedRouter)
    log = every_route(fold, tmp_path)
    assert fold.layout.depth()[fold.layout.inner :].tolist().count(2) == 1
    result = OffPolicy(log=log, checkpoint=run).run()
    assert result.evaluation.episodes == 3 * len(fold)
    # Of each question one route is the router's: its weight is 3, that of the others 0.
    reward = trained.outcome(fold).reward(ALPHA)
    assert result.evaluation.estimates["SNIPS"].value == pytest.approx(reward.mean())
    assert result.evaluation.overlap.mean == pytest.approx(1)


def test_only_actions_that_are_offered_first_are_compared_alone(
    run: Path, tree: Tree, tmp_path: Path
) -> None:
    log = every_route(tree.split("test"), tmp_path)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        first = line["steps"][0]
        first["chances"] = [1 / 3, 1 / 3, 0.0, 1 / 3, 0.0]
        line["query"] = line["question"]
        for step in line["steps"]:
            step |= {"router_s": 0.0, "model_s": 1.0}
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows, _ = OffPolicy(log=log, checkpoint=run).savings()
    assert {row["model"] for row in rows} == {"solve@text", "solve@facts", "tool"}
    costs = {row["model"]: row["single"] for row in rows if row["measure"] == "C of 1,000"}
    fold = tree.split("test")
    expected = 1000 * fold.cost[:, fold.layout.node((3,))].mean()
    assert costs["tool"] == pytest.approx(expected)


BAD_ROUTES = [
    ([0], "1 of 3 steps and no stop"),
    ([0, 2], "no route of the router: solve@text>short@text: .*log.jsonl:1; give calls"),
    ([4], "no route of the router: >critic@facts"),
    ([3, 4, 4], "no route of the router: tool>critic@facts>critic@facts"),
]


@pytest.mark.parametrize(("path", "message"), BAD_ROUTES)
def test_a_log_of_other_routes_is_refused_in_one_line(
    path: list[int], message: str, tree: Tree, tmp_path: Path
) -> None:
    steps = [
        {"model": tree.models[action], "propensity": 0.5, "cost": 0.1, "response": "x"}
        for action in path
    ]
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"question": "q", "steps": steps, "quality": 1.0}) + "\n")
    shape = LogShape(tree.models, tree.hops, tree.rate.tolist(), tree.layout)
    with pytest.raises(InputError, match=message) as caught:
        read_log(log, shape)
    assert "\n" not in str(caught.value)
