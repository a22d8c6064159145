"""What a router draws, refuses and lets go of; its other answers: `test_serve`."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.learning.checkpoint import router_at
from hierrouter.learning.config import Objective, training_config
from hierrouter.learning.run_folders import LIVE
from hierrouter.replay.opening import Selection, open_tree
from hierrouter.replay.tree import load_texts
from hierrouter.serving.router import Hop, RouteOptions, Router
from hierrouter_cache.errors import InputError
from tests.hierrouter.serving.serving import QUESTION, Double, bundle_in, over, run_in, with_server
from tests.hostile import resealed
from tests.servers import Server, serving


@pytest.mark.parametrize(("algo", "epochs"), [("exact", 3), ("value", None)])
def test_a_router_that_sees_how_sure_models_are_goes_the_replayed_routes(
    algo: str, epochs: int | None, testbed_cache: Path, tmp_path: Path
) -> None:
    """And takes no server that says nothing of it."""
    tree = open_tree(testbed_cache, Selection(view="query+answer+signals"))
    config = training_config("default", algo, epochs)
    run_in(tmp_path, tree, Objective(0.1), config, seed=1)
    fold = tree.split("test").select(np.arange(20))
    ends = router_at(tmp_path, None).endings(fold).argmax(axis=1)
    with Router(tmp_path) as router:
        for end, text in zip(ends, load_texts(testbed_cache, fold), strict=True):
            assert router.route(text.question).route == fold.routes.name(end, fold.models)
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
    found = routed.as_object()
    assert found["route"] == ">".join(step["model"] for step in found["steps"])
    assert found["cost"] == pytest.approx(sum(step["cost"] for step in found["steps"]))
    assert [step["propensity"] for step in found["steps"]] == [1, 1]
    assert all(sum(step["chances"]) == pytest.approx(1) for step in found["steps"])


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


def test_a_model_that_does_not_close_holds_no_other(live_run: Path) -> None:
    before, closed = set(threading.enumerate()), []

    def stuck() -> None:
        raise OSError("stuck")

    ready = Double(closes=lambda: closed.append(1))
    router = over(live_run, ready, Double(closes=stuck), ready)
    assert router.route(QUESTION).hops
    with pytest.raises(OSError, match="stuck"):
        router.close()
    assert len(closed) == 2
    assert not [each for each in set(threading.enumerate()) - before if each.name == "router"]


def test_another_pool_is_refused(live_run: Path) -> None:
    pool = bundle_in(live_run).pool
    with pytest.raises(InputError, match="the pool is not the policy's: facts, text, calc"):
        Router(live_run, replace(pool, models=pool.models[::-1]))
    with pytest.raises(InputError, match=r"the pool is not the policy.s.*3 hops"):
        Router(live_run, replace(pool, hops=3))


def test_a_bundle_that_is_damaged_or_not_there(live_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(live_run, tmp_path / "run")
    for text, said in (
        ("", "damaged"),
        ('{"format": 9}', "format 9, this version reads 2"),
        (resealed({"format": 2, "pool": {}, "identities": {}}), "hops|models|damaged"),
    ):
        (run / LIVE).write_text(text)
        with pytest.raises(InputError, match=said):
            Router(run)
    (run / LIVE).unlink()
    with pytest.raises(InputError, match=r"no live.json, so no pool"):
        Router(run)
