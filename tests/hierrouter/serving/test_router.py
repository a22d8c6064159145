"""A live route is the cached one: same models, same answers, same cost."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.engines.generator import Answer, Failure, Response
from hierrouter.learning.bundle import FILE, load_bundle
from hierrouter.learning.checkpoint import router_at
from hierrouter.replay.opening import open_tree
from hierrouter.replay.tree import load_texts
from hierrouter.serving.models import CallFailed, OnText
from hierrouter.serving.route import Hop, RouteOptions
from hierrouter.serving.router import Router
from hierrouter_cache.errors import InputError
from tests.engines import Scripted, told

QUESTION = "compute 12+7"


@pytest.fixture(scope="module")
def router(live_run: Path) -> Iterator[Router]:
    with Router(live_run) as made:
        yield made


def scripted(live_run: Path, broken: str = "") -> Router:
    """The same policy over models that say anything, one of which may fail."""

    def script(model: str, prompt: str) -> Answer:
        return Failure("error", "out of order") if model == broken else told(model, prompt)

    return Router(live_run, engines=Scripted(script))


def test_live_routes_are_those_of_the_replayed_tree(
    router: Router, live_run: Path, testbed_cache: Path
) -> None:
    fold = open_tree(testbed_cache).split("test")
    ends = router_at(live_run, None).endings(fold).argmax(axis=1)
    for row, text in enumerate(load_texts(testbed_cache, fold)):
        end = ends[row]
        routed = router.route(text.question)
        assert routed.route == fold.routes.name(end, fold.models)
        assert routed.answer == text.answers[end]
        assert routed.cost == pytest.approx(fold.cost[row, end])
        assert routed.tokens_out > 0


def test_questions_under_way_together_get_their_own_answers(router: Router) -> None:
    questions = [f"compute {n}+{n + 1}" for n in range(30)]
    alone = [router.route(question).answer for question in questions]

    async def together() -> list[str]:
        asked = await asyncio.gather(*(router.aroute(question) for question in questions))
        return [routed.answer for routed in asked]

    assert asyncio.run(together()) == alone


def test_the_last_answer_grows(router: Router) -> None:
    texts: list[str] = []
    hops: list[Hop] = []
    routed = router.route(QUESTION, RouteOptions(on_text=texts.append, on_hop=hops.append))
    assert "".join(texts) == routed.answer
    assert tuple(hops) == routed.hops
    assert len(hops) == 2


def test_json_says_what_was_called(router: Router) -> None:
    routed = router.route(QUESTION)
    found = routed.as_object()
    assert found["route"] == ">".join(step["model"] for step in found["steps"])
    assert found["cost"] == pytest.approx(sum(step["cost"] for step in found["steps"]))
    assert [step["propensity"] for step in found["steps"]] == [1, 1]
    assert all(sum(step["chances"]) == pytest.approx(1) for step in found["steps"])


def test_drawn_calls_have_the_probability_they_are_drawn_with(router: Router) -> None:
    rng = np.random.default_rng(0)
    routes = [router.route("the word takomi", RouteOptions(rng=rng)) for _ in range(40)]
    first = [routed.hops[0] for routed in routes]
    names = [model.name for model in router.pool.models]
    for hop in first:
        assert hop.propensity == hop.chances[names.index(hop.model)]
    chances = np.array(first[0].chances)
    counts = np.array([sum(hop.model == name for hop in first) for name in names])
    assert np.abs(counts / 40 - chances).max() < 0.3
    again = [router.route("the word takomi", RouteOptions(rng=np.random.default_rng(0)))]
    assert again[0].route == routes[0].route


def test_a_limit_on_cost_changes_the_route(router: Router) -> None:
    free = router.route(QUESTION)
    tight = router.route(QUESTION, RouteOptions(max_cost=free.cost * 0.99))
    assert tight.cost < free.cost or tight.is_over_limit
    assert tight.max_cost == pytest.approx(free.cost * 0.99)
    assert not router.route(QUESTION, RouteOptions(max_cost=1e6)).is_over_limit


def test_a_model_that_fails_fails_the_question(live_run: Path) -> None:
    with scripted(live_run) as router:
        first = router.route(QUESTION).hops[0].model
    with (
        scripted(live_run, broken=first) as router,
        pytest.raises(CallFailed, match=f"{first} gave no answer: out of order"),
    ):
        router.route(QUESTION)


def test_another_model_answers_only_where_it_is_asked_for(live_run: Path) -> None:
    with scripted(live_run) as router:
        first = router.route(QUESTION).hops[0].model
    with scripted(live_run, broken=first) as router:
        routed = router.route(QUESTION, RouteOptions(reroute=True))
    assert first not in routed.route.split(">")
    assert routed.hops[0].instead_of == ((first, "out of order"),)
    assert routed.hops[0].propensity is None
    assert "instead_of" in routed.as_object()["steps"][0]


def test_where_no_model_answers_every_failure_is_told(live_run: Path) -> None:
    def script(model: str, prompt: str) -> Answer:
        return Failure("error", f"{model} is out of order")

    engines = Scripted(script)
    with (
        Router(live_run, engines=engines) as router,
        pytest.raises(CallFailed) as caught,
    ):
        router.route(QUESTION, RouteOptions(reroute=True))
    called = [model for model, _ in engines.asked]
    failures = [*caught.value.earlier, caught.value]
    assert [failed.model for failed in failures] == called
    assert sorted(called) == ["calc", "facts", "text"]
    assert [len(failed.earlier) for failed in failures] == [0, 1, 2]


@dataclass
class Odd:
    """A model that counts what it is told to, and may not want to close."""

    counts: int = 1
    closes: bool = True
    closed: bool = False

    async def answer(self, prompt: str, on_text: OnText | None = None) -> Response:
        return told("odd", prompt)

    def count(self, prompt: str) -> int:
        return self.counts

    async def close(self) -> None:
        self.closed = True
        if not self.closes:
            raise OSError("stuck")


@pytest.mark.parametrize("names", [("calc", "text", "facts"), ("facts", "text", "calc")])
def test_tokens_are_those_of_the_model_that_counted_them(
    live_run: Path, names: tuple[str, ...]
) -> None:
    """A prompt that is too dear for `calc` alone, whatever the order the models come in."""
    with Router(live_run, load=False) as router:
        router.models = {name: Odd(10**9 if name == "calc" else 1) for name in names}
        decision = asyncio.run(router.first(QUESTION, RouteOptions(max_cost=1000.0)))
    chances = dict(zip(router.policy.action_names, decision.chances.tolist(), strict=True))
    possible = {name.partition(">")[0] for name, chance in chances.items() if chance > 0}
    assert possible == {"text", "facts"}


def test_a_model_that_does_not_close_holds_no_other(live_run: Path) -> None:
    before = set(threading.enumerate())
    router = Router(live_run, load=False)
    router.models = models = {
        name: Odd(closes=name != "text") for name in ("calc", "text", "facts")
    }
    assert router.route(QUESTION).hops
    with pytest.raises(OSError, match="stuck"):
        router.close()
    assert all(model.closed for model in models.values())
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name == "router"]


def test_another_alpha_is_refused_by_a_policy_for_one(router: Router) -> None:
    with pytest.raises(InputError, match=r"alpha 0.1 alone, asked for was 0.2; .*sweep-alpha"):
        router.route(QUESTION, RouteOptions(alpha=0.2))
    assert router.route(QUESTION, RouteOptions(alpha=0.1)).alpha == 0.1


def test_another_pool_is_refused(live_run: Path) -> None:
    bundle = load_bundle(live_run)
    assert bundle
    turned = replace(bundle.pool, models=bundle.pool.models[::-1])
    with pytest.raises(InputError, match="the pool is not the policy's: facts, text, calc"):
        Router(live_run, turned)
    with pytest.raises(InputError, match=r"the pool is not the policy.s.*3 hops"):
        Router(live_run, replace(bundle.pool, hops=3))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "damaged"),
        ("[]", "damaged"),
        ('{"format": 9}', "format 9, this version reads 1"),
        ('{"format": 1, "pool": {}, "identities": {}}', "hops|models|damaged"),
    ],
)
def test_a_damaged_bundle_is_refused(live_run: Path, tmp_path: Path, text: str, said: str) -> None:
    run = shutil.copytree(live_run, tmp_path / "run")
    (run / FILE).write_text(text)
    with pytest.raises(InputError, match=said):
        Router(run)


def test_a_run_without_a_bundle_needs_a_pool(live_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(live_run, tmp_path / "run")
    (run / FILE).unlink()
    with pytest.raises(InputError, match=r"no live.json, so no pool"):
        Router(run)
    bundle = load_bundle(live_run)
    assert bundle
    with (
        Router(run, bundle.pool, engines=Scripted()) as router,
        pytest.raises(InputError, match=r"max_cost needs live.json"),
    ):
        router.route(QUESTION, RouteOptions(max_cost=1))
