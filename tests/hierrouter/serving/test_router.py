"""Draws, refusals, returned answers and the end of a router; more answers in `test_serve`."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx2
import numpy as np
import pytest

from hierrouter.engines.generator import Answer, Failure
from hierrouter.evaluation.outcome import greedy
from hierrouter.learning.config import Objective, training_config
from hierrouter.learning.router import Constant, TrainedRouter
from hierrouter.learning.training import train
from hierrouter.replay.env import ReplayEnv
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Tree, load_texts
from hierrouter.runs.bundle import load_bundle
from hierrouter.runs.checkpoint import router_at, save_checkpoint
from hierrouter.runs.folders import LIVE
from hierrouter.serving.decisions import Decision
from hierrouter.serving.logs import LogShape, read_log
from hierrouter.serving.messages import GROUP_HEADER, group_in
from hierrouter.serving.off_policy import value_from_log
from hierrouter.serving.open_router import called_models_note
from hierrouter.serving.results import Call, Hop, RouteResult
from hierrouter.serving.route import Route
from hierrouter.serving.router import RouteOptions, Router
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Rate, reprice
from tests.engines import Scripted, scripted_answer
from tests.hierrouter.learning.trainings import VALUE, decided
from tests.hierrouter.serving.serving import (
    GOOD,
    QUESTION,
    Double,
    ask,
    lines_of,
    over,
    run_in,
    served,
    with_server,
)
from tests.hostile import resealed
from tests.servers import Server, serving


@pytest.mark.parametrize(("algo", "epochs"), [("exact", 3), ("value", None)])
def test_a_router_that_reads_confidence_takes_the_replayed_routes(
    algo: str, epochs: int | None, testbed_cache: Path, tmp_path: Path
) -> None:
    """And takes no server that says nothing of it."""
    tree = OpenTree(cache=testbed_cache, state="query+answer+signals").run()
    config = training_config("default", algo, epochs)
    run_in(tmp_path, tree, Objective(0.1), config, seed=1)
    fold = tree.split("test").select(np.arange(20))
    ends = router_at(tmp_path, None).endings(fold).argmax(axis=1)
    with Router(tmp_path) as router:
        for end, text in zip(ends, load_texts(testbed_cache, fold), strict=True):
            assert router.route(text.question).route == fold.layout.name(end, fold.models)
    with serving(Server()) as upstream:
        pool = with_server(tmp_path, upstream, "facts")
        with pytest.raises(InputError, match=r"model facts does not say how sure it is"):
            Router(tmp_path, pool)
        assert len(upstream.requests) == 1


def test_the_last_answer_grows_and_json_says_what_was_called(live_run: Path) -> None:
    texts: list[str] = []
    hops: list[Hop] = []
    with Router(live_run) as router:
        routed = router.route(QUESTION, RouteOptions(on_text=texts.append, on_hop=hops.append))
    assert "".join(texts) == routed.answer
    assert tuple(hops) == routed.hops
    assert len(hops) == 2
    body = routed.as_object()
    assert body["route"] == ">".join(step["model"] for step in body["steps"])
    assert body["cost"] == pytest.approx(sum(step["cost"] for step in body["steps"]))
    assert [step["propensity"] for step in body["steps"]] == [1, 1]
    assert all(sum(step["chances"]) == pytest.approx(1) for step in body["steps"])


def test_drawn_calls_have_the_probability_they_are_drawn_with(live_run: Path) -> None:
    with over(live_run, Double()) as router:
        rng = np.random.default_rng(0)
        routes = [router.route("the word takomi", RouteOptions(rng=rng)) for _ in range(40)]
        first = [routed.hops[0] for routed in routes]
        names = [model.name for model in router.pool.models]
        for hop in first:
            assert hop.propensity == hop.chances[names.index(hop.model)]
        counts = np.array([sum(hop.model == name for hop in first) for name in names])
        assert np.abs(counts / 40 - np.array(first[0].chances)).max() < 0.3
        again = RouteOptions(rng=np.random.default_rng(0))
        assert router.route("the word takomi", again).route == routes[0].route


def test_a_model_that_fails_to_close_does_not_keep_others_open(live_run: Path) -> None:
    before = set(threading.enumerate())
    closed = []

    def stuck() -> None:
        raise OSError("stuck")

    ready = Double(closes=lambda: closed.append(1))
    router = over(live_run, ready, Double(closes=stuck), ready)
    assert router.route(QUESTION).hops
    with pytest.raises(OSError, match="stuck"):
        router.close()
    assert len(closed) == 2
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "router"]


def test_another_pool_is_refused(live_run: Path) -> None:
    pool = load_bundle(live_run).pool
    with pytest.raises(InputError, match="the pool is not the policy's: facts, text, calc"):
        Router(live_run, replace(pool, models=pool.models[::-1]))
    with pytest.raises(InputError, match=r"the pool is not the policy.s.*3 hops"):
        Router(live_run, replace(pool, hops=3))


def test_a_damaged_or_missing_bundle_is_refused(live_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(live_run, tmp_path / "run")
    for text, message in (
        ("", "damaged"),
        ('{"format": 9}', "format 9, this version reads 2"),
        (resealed({"format": 2, "pool": {}, "identities": {}}), "hops|models|damaged"),
    ):
        (run / LIVE).write_text(text)
        with pytest.raises(InputError, match=message):
            Router(run)
    (run / LIVE).unlink()
    with pytest.raises(InputError, match=r"no live.json, so no pool"):
        Router(run)


# --- a run that is one fixed route, and a model that is down

OWN_PROCESS = """
from tests.servers import Server, serving

with serving(Server()) as server:
    print(server.port, flush=True)
    input()
"""


@contextmanager
def in_a_process() -> Iterator[tuple[subprocess.Popen[str], Server]]:
    """A server in a process of its own, which can be killed."""
    with subprocess.Popen(
        [sys.executable, "-c", OWN_PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        try:
            yield process, Server(port=int(process.stdout.readline()))
        finally:
            process.kill()


def fixed_run(folder: Path, live_run: Path, route: str, trained: TrainedRouter) -> Path:
    """A run like `live_run`, of a router that showed no gain over a fixed route."""
    shutil.copytree(live_run, folder)
    routes = trained.origin.layout
    path = tuple(trained.origin.models.index(name) for name in route.split(">"))
    constant = Constant(routes.node(path), -0.01, -0.02, 0.005, 900, 90)
    save_checkpoint(replace(trained, constant=constant), folder)
    return folder


@pytest.mark.parametrize("algo", ["exact", "value"])
@pytest.mark.parametrize("route", ["calc>text", "text>calc", "calc>calc"])
def test_a_fixed_route_goes_on_without_a_model_that_was_killed(
    live_run: Path, testbed_cache: Path, tmp_path: Path, algo: str, route: str
) -> None:
    """The router that it stands for says what to call instead, and at the hops after that."""
    learned = router_at(live_run, None)
    if algo == "value":
        learned = train(OpenTree(cache=testbed_cache).run(), Objective(0.1), VALUE, seed=0)
    run = fixed_run(tmp_path / "run", live_run, route, learned)
    log = tmp_path / "log.jsonl"
    with in_a_process() as (process, upstream):
        pool = with_server(run, upstream, "calc", attempts=1)
        router = Router(run, pool)
        with served(router, reroute=True, log=log) as url:
            whole = ask(url).json()["hierrouter"]
            assert whole["route"] == route
            assert not any("instead_of" in step for step in whole["steps"])
            process.kill()
            process.wait()
            response = ask(url)
            assert response.status_code == 200
            without = response.json()["hierrouter"]
            # From then on it is left out, though no failed model is to be replaced.
            later = router.route(QUESTION)
        assert "calc" not in later.route.split(">")
        assert not any(hop.instead_of for hop in later.hops)
        assert later.hops[0].unavailable == ("calc",)
    models = without["route"].split(">")
    assert len(models) == 2 and "calc" not in models
    step = without["steps"][route.split(">").index("calc")]
    assert [failed["model"] for failed in step["instead_of"]] == ["calc"]
    assert step["propensity"] is None
    logged = lines_of(log)[-1]["steps"]
    assert [one.get("instead_of") for one in logged] == [
        one.get("instead_of") for one in without["steps"]
    ]
    if route.startswith("text"):
        assert models[0] == "text"  # what still answers on the route is called as before
        return
    # Beside its route the learned router decides, and not whichever model is the first.
    learned_run = tmp_path / "learned"
    shutil.copytree(live_run, learned_run)
    save_checkpoint(learned, learned_run)
    with over(run, Double()) as fixed, over(learned_run, Double()) as free:
        calls = [Call(model=models[0], response=scripted_answer("m", QUESTION))]

        async def decisions() -> list[Decision]:
            return [
                await router.decide(QUESTION, so_far)
                for router in (fixed, free)
                for so_far in ((), calls)
            ]

        start, beside, free_start, free_beside = anyio.run(decisions)
    assert beside.chances.tolist() == free_beside.chances.tolist()
    assert start.chances.tolist() == [1.0, 0.0, 0.0]
    # Every action may be tried: the route's, then the others as the learned router has them.
    assert list(start.order) == [0, *(number for number in free_start.order if number)]


def test_a_choice_of_no_chance_is_still_tried_after_a_failure(live_run: Path) -> None:
    """Chances of very different rewards are 0 in floating point; the actions stay legal."""
    trained = router_at(live_run, None)
    chances = np.array([[0.0, 1.0, 0.0]])
    states = trained.live_states(np.zeros((1, trained.dim), np.float32), [()], [0.0])
    [order] = trained.rank_each(states, chances)
    assert order == (1, 0, 2)


# --- prices of a pool that is given

PRICES = {
    "dearer": ({"base_rate": 2.0, "rate_in": None, "rate_out": None}, True),
    "as it learned": ({}, False),
    "a millionth apart": ({"per_million": True}, True),
    "a price of a call": ({"rate_call": 0.5}, True),
    "cached tokens at another price": ({"rate_cached": 0.001}, True),
    "cached tokens at the same price": ({"rate_cached": 0.03}, False),
    "guessed from a size": (
        {"base_rate": None, "rate_in": None, "rate_out": None, "parameters": 3e9},
        False,
    ),
}


@pytest.mark.parametrize(("changes", "is_refused"), PRICES.values(), ids=PRICES)
def test_a_pool_with_other_prices_than_the_policy_learned_with_is_refused(
    live_run: Path, changes: dict[str, Any], is_refused: bool
) -> None:
    stored = load_bundle(live_run)
    assert stored
    first, *others = stored.pool.models
    changes = dict(changes)
    if changes.pop("per_million", False):
        rate = first.price().rate
        factor = 1 + 1e-6
        changes = {
            "base_rate": None,
            "rate_in": rate.tokens_in * factor,
            "rate_out": rate.tokens_out * factor,
        }
    pool = replace(stored.pool, models=(replace(first, **changes), *others))
    if not is_refused:
        Router(live_run, pool, load=False).stop_deciding()
        return
    with pytest.raises(InputError) as error:
        Router(live_run, pool, load=False)
    said = str(error.value)
    start = "the pool has other prices than the policy learned with, per token in and out: calc: "
    assert said.startswith(start) and ", it learned with 0.03 and 0.03; " in said
    assert said.endswith("; train again with this pool, or write those") and "\n" not in said


def test_prices_of_the_training_count_where_the_pool_asks_for_no_others(
    testbed_cache: Path, tmp_path: Path
) -> None:
    """`train --price calc=...`: live.json has the pool's price, bills have that of the training."""
    tree = OpenTree(cache=testbed_cache).run()
    pairs = zip(tree.direct.models, tree.direct.rate.tolist(), strict=True)
    rates = {name: Rate(*pair) for name, pair in pairs}
    dear = reprice(tree, {**rates, "calc": Rate(5.0, 7.0)})
    run = run_in(tmp_path / "run", dear, Objective(0.0), training_config("default", "exact", 3))
    stored = load_bundle(run)
    assert stored
    with Router(run, stored.pool) as router:
        note = called_models_note(run, router)
        assert note.endswith("; C at the prices it learned with, not the pool's: calc")
        result = router.route(QUESTION)
    for hop in result.hops:
        rate = {**rates, "calc": Rate(5.0, 7.0)}[hop.model]
        assert hop.cost == rate.cost(hop.response.tokens_in, hop.response.tokens_out)


# --- routers that may return earlier answers: the same as on the replayed tree, and logged

ALPHA = 0.02


@pytest.fixture(scope="module", params=["context", "query+answer", "query+signals"])
def tree(testbed_cache: Path, request: pytest.FixtureRequest) -> Tree:
    return OpenTree(cache=testbed_cache, allow_return=True, state=request.param).run()


@pytest.fixture(scope="module")
def run(tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    config = training_config("default", "exact", 12)
    return run_in(folder, tree, Objective(ALPHA, allow_return=True), config, seed=1)


@pytest.fixture
def router(run: Path) -> Iterator[Router]:
    with Router(run) as live_router:
        yield live_router


def test_environment_evaluation_and_live_router_agree_on_every_question(
    router: Router, run: Path, tree: Tree, tmp_path: Path
) -> None:
    trained = router_at(run, None)
    fold = tree.split("test")
    assert isinstance(trained, TrainedRouter)
    end_node = fold.layout.with_returns.ending_node
    answer_node = fold.layout.with_returns.answer_node
    outcome = trained.outcome(fold)
    ends = trained.endings(fold).argmax(axis=1)
    env = ReplayEnv(fold.with_returns, ALPHA)
    results: list[RouteResult] = []
    for row, text in enumerate(load_texts(tree.root, fold)):
        texts: list[str] = []
        routed = router.route(text.question, RouteOptions(on_text=texts.append))
        results.append(routed)
        assert routed.route == fold.layout.name(end_node[ends[row]], fold.models)
        assert routed.answer == text.answers[answer_node[ends[row]]] == "".join(texts)
        assert routed.cost == pytest.approx(fold.cost[row, end_node[ends[row]]])
        observation, info = env.reset(options={"query": row})
        ended = False
        while not ended:
            path = fold.layout.path(info["node"])
            chances = decided(
                trained, observation["embedding"], path, float(observation["cost"][0])
            )
            action = greedy(chances, trained.origin.base_rate, trained.actions.returns).argmax()
            observation, reward, ended, _, info = env.step(np.int64(action))
        assert info["node"] == end_node[ends[row]]
        assert reward == pytest.approx(outcome.reward(ALPHA)[row])
    earlier = answer_node[ends] != end_node[ends]
    assert earlier.any()  # or this would show nothing
    log = [
        {"quality": outcome.quality[row], **routed.as_object()}
        for row, routed in enumerate(results)
    ]
    assert all(line["returned"]["propensity"] == 1 for line in log)
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, log)))
    episodes = read_log(tmp_path / "log.jsonl", LogShape(fold.models, fold.hops, fold.rate))
    evaluation = value_from_log(trained, episodes, ALPHA, {}).evaluation
    assert evaluation.overlap.effective == pytest.approx(len(fold))
    assert evaluation.estimates["SNIPS"].value == pytest.approx(outcome.reward(ALPHA).mean())
    with pytest.raises(InputError, match=r"an answer is returned: .*log.jsonl:1"):
        steady = replace(trained, objective=Objective(ALPHA))
        value_from_log(steady, episodes, ALPHA, {})


def test_drawn_answers_have_the_probability_they_are_drawn_with(router: Router, run: Path) -> None:
    rng = np.random.default_rng(0)
    for routed in (router.route("the word takomi", RouteOptions(rng=rng)) for _ in range(10)):
        assert routed.returned
        chances = routed.returned.chances
        calls = len(router.pool.models)
        assert routed.returned.propensity == chances[calls + routed.returned.answer - 1]
        left = len(routed.hops) < 2
        assert [chance > 0 for chance in chances] == [left] * calls + [True, not left]


def test_a_server_returns_earlier_answers_too(router: Router, run: Path, tmp_path: Path) -> None:
    with served(router, log=tmp_path / "served.jsonl") as url:
        body = ask(url).json()
    [line] = lines_of(tmp_path / "served.jsonl")
    number = line["returned"]["answer"]
    assert body["choices"][0]["message"]["content"] == line["steps"][number - 1]["response"]
    assert line["answer"] == line["steps"][number - 1]["response"]


def test_an_earlier_answer_replaces_a_model_that_fails(run: Path, tree: Tree) -> None:
    broken: list[str] = []
    if tree.numbers:  # these models do not say how sure they are
        return

    def script(model: str, prompt: str) -> Answer:
        if model in broken:
            return Failure("error", f"{model} is broken")
        broken.extend({"calc", "text", "facts"})  # from the second call on all fail
        return scripted_answer(model, prompt)

    with Router(run, engines=Scripted(script)) as router:
        result = router.route("compute 12+7", RouteOptions(reroute=True))
    assert len(result.hops) == 1
    assert result.returned
    assert (result.returned.answer, result.answer) == (1, result.hops[0].response.text)


@pytest.mark.parametrize("algo", ["groups", "clusters"])
def test_a_table_of_routes_takes_the_replayed_routes(
    algo: str, testbed_cache: Path, tmp_path: Path
) -> None:
    """Also at the second hop, where the state shows an answer and the question tells the group."""
    tree = OpenTree(cache=testbed_cache).run()
    run_in(tmp_path, tree, Objective(0.1), training_config("default", algo))
    fold = tree.split("test").select(np.arange(20))
    ends = router_at(tmp_path, None).endings(fold).argmax(axis=1)
    assert len(set(ends.tolist())) > 1
    with Router(tmp_path) as router:
        texts = load_texts(testbed_cache, fold)
        for end, text, dataset in zip(ends, texts, fold.datasets, strict=True):
            routed = router.route(text.question, RouteOptions(group=dataset))
            assert routed.route == fold.layout.name(end, fold.models)
            assert routed.as_object()["group"] == dataset
            assert "unknown_group" not in routed.as_object()


def test_a_group_comes_with_the_request_and_an_unknown_one_is_said(
    testbed_cache: Path, tmp_path: Path
) -> None:
    tree = OpenTree(cache=testbed_cache).run()
    run = run_in(tmp_path / "run", tree, Objective(0.1), training_config("default", "groups"))
    trained = router_at(run, None)
    layout = tree.layout

    def route_of(group: str) -> str:
        root = np.zeros((1, tree.dim), np.float32)
        chances = trained.decide_each(trained.live_states(root, [()], [0.0], [group]))
        return tree.models[int(chances.argmax())]

    names = ("arith", "fact", "string")
    assert len({route_of(name) for name in names}) > 1
    of_all = route_of("")
    file = tmp_path / "questions.jsonl"
    lines = [
        {"question": QUESTION, "group": "fact", "dataset": "arith"},
        {"question": QUESTION, "dataset": "arith"},
        {"question": QUESTION},
        {"question": QUESTION, "group": "unheard-of"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found: list[dict[str, Any]] = []
    assert not Route(file=file).run_file(
        over(run, Double()), lambda line: found.append(line) is None
    )
    first = [line["steps"][0]["model"] for line in found]
    assert first == [route_of("fact"), route_of("arith"), of_all, of_all]
    assert [line.get("unknown_group", False) for line in found] == [False, False, True, True]
    file.write_text(json.dumps({**lines[0], "kind": "string"}) + "\n")
    Route(file=file, group_by="kind").run_file(
        over(run, Double()), lambda line: found.append(line) is None
    )
    assert found[-1]["group"] == "string"
    assert found[-1]["steps"][0]["model"] == route_of("string")
    with served(over(run, Double()), log=tmp_path / "log.jsonl") as url:
        body = ask(url, hierrouter={"group": "fact"}).json()["hierrouter"]
        assert body["steps"][0]["model"] == route_of("fact")
        assert body["group"] == "fact"
        assert ask(url, hierrouter={"group": "new"}).json()["hierrouter"]["unknown_group"]
        assert ask(url, hierrouter={"group": "x" * 201}).status_code == 400
        assert ask(url, hierrouter={"group": 7}).status_code == 400

        def with_header(group: str, path: str, **changed: Any) -> httpx2.Response:
            body = {"messages": GOOD["messages"], **changed}
            return httpx2.post(f"{url}/v1/{path}", json=body, headers={GROUP_HEADER: group})

        completion = "chat/completions"
        in_header = with_header("%66act", completion).json()["hierrouter"]
        assert in_header["group"] == "fact"
        in_both = with_header("fact", completion, hierrouter={"group": "arith"}).json()
        assert in_both["hierrouter"]["group"] == "arith"
        assert with_header("x" * 201, completion).status_code == 400
        assert with_header("new", "decide").json()["unknown_group"]
        assert "unknown_group" not in with_header("fact", "decide").json()
    logged = [line["group"] for line in lines_of(tmp_path / "log.jsonl")]
    assert logged == ["fact", "new", "fact", "arith"]
    assert layout.hops == 2


@pytest.mark.parametrize("row", [{"group": {}}, {"group": ["a"]}, {"dataset": "x" * 201}])
def test_a_group_that_is_no_name_is_refused_by_its_line(row: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"is no name of up to 200 characters: f:1; give"):
        group_in(row, "f:1")
