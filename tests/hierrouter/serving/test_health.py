"""A model or an encoder is down: decisions go without it, `/ready` tells, gateways fail over."""

import time
from pathlib import Path
from typing import Any

import anyio
import httpx2
import numpy as np
import pytest

from hierrouter.engines import health
from hierrouter.engines.encoders import EndpointEncoder, HashedNgrams
from hierrouter.serving.decisions import LivePolicy
from hierrouter.serving.models import CallFailed
from hierrouter.serving.router import Router
from tests.hierrouter.serving.serving import (
    MODELS,
    QUESTION,
    Double,
    ask,
    lines_of,
    over,
    served,
    user,
    with_server,
)
from tests.servers import MODEL, Reply, Server, completion, embedded, good, late, refusal, serving


def decide(url: str, **changed: Any) -> httpx2.Response:
    body = {"messages": user(QUESTION), **changed}
    return httpx2.post(f"{url}/v1/decide", json=body, timeout=60)


def test_what_a_gateway_cannot_call_is_left_out(live_run: Path) -> None:
    with served(over(live_run, Double())) as url:
        usual = decide(url).json()
        assert usual["unavailable"] == []
        first = usual["call"]
        others = [name for name in MODELS if name != first]
        without = decide(url, unavailable=[first, "a model of another group"]).json()
        assert without["call"] in others
        assert without["unavailable"] == [first]
        assert without["chances"] == usual["chances"]  # the policy is what it was
        last = decide(url, unavailable=[first, without["call"]]).json()
        assert last["call"] not in (first, without["call"])
        none = decide(url, unavailable=list(MODELS))
        assert none.status_code == 400
        assert "unavailable: every model is" in none.json()["error"]["message"]
        assert decide(url, unavailable=[]).json()["call"] == first
        for odd in ("calc", [5], {"calc": True}):
            assert decide(url, unavailable=odd).status_code == 400


def test_a_model_that_is_down_is_left_out_and_the_decision_says_so(
    live_run: Path, tmp_path: Path
) -> None:
    doubles = {name: Double() for name in MODELS}
    router = over(live_run, *doubles.values())
    log = tmp_path / "log.jsonl"
    with served(router, log=log) as url:
        first = ask(url).json()["hierrouter"]["steps"][0]["model"]
        doubles[first].fault = "cannot connect"
        steps = ask(url).json()["hierrouter"]["steps"]
        assert first not in [step["model"] for step in steps]
        assert all(step["unavailable"] == [first] for step in steps)
        assert all(step["propensity"] == 1 for step in steps)
        assert [step["unavailable"] for step in lines_of(log)[-1]["steps"]] == [[first]] * len(
            steps
        )
        assert decide(url).json()["unavailable"] == [first]
        assert decide(url, unavailable=[]).json()["call"] == first  # the gateway knows better
        for double in doubles.values():
            double.fault = "cannot connect"
        # Where no other model can do, they are called all the same.
        assert ask(url).json()["hierrouter"]["steps"][0]["model"] == first
        assert httpx2.get(f"{url}/ready").status_code == 503


def test_draws_are_made_among_the_others(live_run: Path) -> None:
    doubles = {name: Double() for name in MODELS}
    router = over(live_run, *doubles.values())
    doubles["calc"].fault = "cannot connect"
    with served(router, seed=3) as url:
        for _ in range(20):
            for step in ask(url).json()["hierrouter"]["steps"]:
                assert step["model"] != "calc"
                assert 0 < step["propensity"] <= 1


@pytest.mark.parametrize("fault", [refusal(500, "oh"), refusal(503), refusal(401)])
def test_a_model_comes_back_by_a_test_call_and_no_question_is_risked(
    live_run: Path, monkeypatch: pytest.MonkeyPatch, fault: Reply
) -> None:
    for name in ("FIRST_REST_S", "FIRST_PAUSE_S", "FIRST_BACKOFF_S"):
        monkeypatch.setattr(health, name, 0.05)
    state = {"is_well": True}

    def script(prompt: str, before: int) -> Reply:
        return good(prompt) if state["is_well"] else fault

    with serving(Server(script)) as upstream:
        pool = with_server(live_run, upstream, "calc")
        with served(Router(live_run, pool)) as url:
            assert "calc" in ask(url).json()["hierrouter"]["route"]
            state["is_well"] = False
            assert ask(url).status_code == 502
            questions = upstream.asked[QUESTION]
            for _ in range(4):
                assert ask(url).status_code == 200
            assert httpx2.get(f"{url}/ready").json()["models"]["calc"] == "down"
            # Neither of these questions was sent to it.
            assert upstream.asked[QUESTION] == questions
            state["is_well"] = True
            wait_until_ready(url)
            assert "calc" in ask(url).json()["hierrouter"]["route"]


def test_a_model_that_hangs_keeps_one_question_and_no_other(live_run: Path) -> None:
    state = {"hangs": False}

    def script(prompt: str, before: int) -> Reply:
        return late(good(prompt), 60) if state["hangs"] else good(prompt)

    with serving(Server(script)) as upstream:
        pool = with_server(live_run, upstream, "calc", timeout_s=1.0, attempts=1)
        with served(Router(live_run, pool)) as url:
            assert "calc" in ask(url).json()["hierrouter"]["route"]
            state["hangs"] = True
            assert ask(url).status_code == 502
            started = time.monotonic()
            assert ask(url).status_code == 200
            assert time.monotonic() - started < 1


def wait_until_ready(url: str) -> None:
    for _ in range(200):
        if httpx2.get(f"{url}/ready").json()["status"] == "ready":
            return
        time.sleep(0.05)
    raise AssertionError("still not ready")


def test_a_refused_question_does_not_make_its_model_down(live_run: Path) -> None:
    def script(prompt: str, before: int) -> Reply:
        return refusal(400, "this is not a question") if "never" in prompt else good(prompt)

    with serving(Server(script)) as upstream:
        pool = with_server(live_run, upstream)
        with served(Router(live_run, pool)) as url:
            assert ask(url).status_code == 200
            for _ in range(4):
                assert ask(url, messages=user("never 1+2")).status_code == 502
            assert httpx2.get(f"{url}/ready").json()["status"] == "ready"


def test_an_encoder_that_is_down_is_told_soon_and_fails_at_once(
    live_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_REST_S", "FIRST_PAUSE_S", "FIRST_BACKOFF_S"):
        monkeypatch.setattr(health, name, 0.3)
    state = {"is_well": True}
    dim = HashedNgrams().encode([QUESTION]).shape[1]  # the encoder that the router learned with

    def embed(texts: list[str]) -> Reply:
        if not state["is_well"]:
            return refusal(503, "gone", Retry_After="500")
        return embedded(np.ones((len(texts), dim)))

    with serving(Server(embed=embed)) as upstream:
        encoder = EndpointEncoder.of(f"{upstream.url}#{MODEL}")
        router = over(live_run, Double())
        policy = LivePolicy(router.policy._policy, encoder)
        router.policy = policy
        router._batcher._policy = policy
        with served(router) as url:
            assert ask(url).status_code == 200
            assert httpx2.get(f"{url}/ready").json()["encoder"] == "up"
            state["is_well"] = False
            started = time.monotonic()
            reply = ask(url, messages=user("another one"))
            assert reply.status_code == 503
            assert upstream.address not in reply.text
            assert time.monotonic() - started < 12
            started = time.monotonic()
            assert ask(url, messages=user("a third one")).status_code == 503
            assert time.monotonic() - started < 1
            ready = httpx2.get(f"{url}/ready")
            assert (ready.status_code, ready.json()["encoder"]) == (503, "down")
            assert decide(url).status_code == 503


def test_a_stream_that_breaks_is_not_glued_to_another_replica(live_run: Path) -> None:
    def cut(prompt: str, before: int) -> Reply:
        return Reply(completion("one two three four"), cut=True)

    with serving(Server(cut)) as one, serving(Server()) as other:
        pool = with_server(live_run, one, replicas=(other.url,))
        texts: list[str] = []
        with Router(live_run, pool) as router:
            model = router.models["calc"]

            async def stream() -> None:
                await model.answer("x", texts.append)

            with pytest.raises(CallFailed, match="broke off"):
                anyio.run(stream)
        assert other.asked.total() == 0
    assert texts
