"""Replicas that fail in every way there is, over real sockets: the others do the work."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines import health
from hierrouter.engines.generator import Failure, Outage
from hierrouter.engines.health import FIRST_REST_S, MAX_REST_S, OPEN_AFTER, Health
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter_cache.errors import WorldError
from hierrouter_cache.reader import CacheReader
from tests.engines import answers_in_order
from tests.hierrouter.engines.test_endpoint import (
    ALL_GOOD,
    CUT,
    PROMPTS,
    after,
    load,
    scripted,
    wait_for,
    well,
)
from tests.servers import HTML, MODEL, Reply, Script, completion, free_port, good, late, refusal

pytestmark = pytest.mark.usefixtures("short_waits")


@contextmanager
def beside(script: Script | Reply, seconds: float = 0.05, **settings: Any) -> Iterator[Any]:
    """(generator, this server, a healthy one); the scripted one comes first."""
    with scripted(script) as bad, scripted(after(seconds)) as fine:
        yield load(bad, replicas=(fine.url,), **{"concurrency": 4, **settings}), bad, fine


# By what is wrong with a replica that answers nothing.
BROKEN = {
    "500": refusal(500, "CUDA error"),
    "502": Reply("<html>bad gateway</html>", 502),
    "503": refusal(503),
    "429 for ever": refusal(429, "slow down", Retry_After="0"),
    "429 for an hour": refusal(429, "slow down", Retry_After="3600"),
    "401": refusal(401, "no key"),
    "404": refusal(404, "no such model"),
    "400": refusal(400, "unknown engine"),
    "403": refusal(403, "not here"),
    "redirect": Reply("", 307, {"Location": "http://127.0.0.1:9/v1"}),
    "html": HTML,
    "cut": CUT,
    "closed": Reply("", 200, cut=True),
    "another model": Reply(completion("x", model="other")),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_replica_that_fails_at_once_gets_few_calls_and_loses_none(name: str) -> None:
    with beside(BROKEN[name]) as (generator, bad, fine):
        assert answers_in_order(generator, PROMPTS) == ALL_GOOD
    assert 1 <= bad.asked.total() <= 5
    assert set(fine.asked.values()) == {1}  # no answer is paid for twice
    assert fine.widest <= 4  # what the endpoint allows at each server


def test_a_replica_without_a_server_gets_no_calls() -> None:
    port = free_port()
    with scripted(after(0.02)) as fine:
        generator = load(fine, replicas=(f"http://127.0.0.1:{port}/v1",), concurrency=4)
        assert answers_in_order(generator, PROMPTS) == ALL_GOOD


def test_a_replica_with_another_list_of_models_gets_no_calls() -> None:
    listing = Reply({"data": [{"id": "other"}]})
    with scripted(BROKEN["404"], listing=listing) as bad, scripted(well) as fine:
        generator = load(bad, replicas=(fine.url,), concurrency=4)
        assert answers_in_order(generator, PROMPTS) == ALL_GOOD
    assert not bad.asked


def test_the_next_connection_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round of an adaptive collection opens its own."""
    monkeypatch.setattr(health, "FIRST_REST_S", 30.0)
    with beside(BROKEN["500"]) as (generator, bad, _):
        for _ in range(3):
            assert answers_in_order(generator, PROMPTS) == ALL_GOOD
        assert bad.asked.total() <= 2


def test_a_replica_that_hangs_is_left_while_the_other_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "MIN_PROBATION_S", 0.5)
    started = time.monotonic()
    with beside(late(good("x"), 60)) as (generator, bad, _):
        assert answers_in_order(generator, PROMPTS) == ALL_GOOD
    assert time.monotonic() - started < 20
    assert bad.asked.total() <= 8


def test_a_replica_that_answers_slowly_keeps_its_calls() -> None:
    with beside(after(0.4)) as (generator, slow, fine):
        assert answers_in_order(generator, PROMPTS) == ALL_GOOD
    assert slow.asked.total() >= 2
    assert (slow.asked + fine.asked).total() == len(PROMPTS)


def test_a_replica_that_recovers_gets_calls_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "FIRST_REST_S", 0.1)
    is_well = threading.Event()

    def script(prompt: str, before: int) -> Reply:
        return late(good(prompt), 0.05) if is_well.is_set() else refusal(500)

    with beside(script) as (generator, bad, fine):
        assert answers_in_order(generator, PROMPTS) == ALL_GOOD
        failed = bad.asked.total()
        is_well.set()
        time.sleep(health.FIRST_REST_S * 16)
        assert answers_in_order(generator, PROMPTS) == ALL_GOOD
        assert bad.asked.total() - failed >= len(PROMPTS) // 4
        assert (bad.asked + fine.asked).total() == failed + 2 * len(PROMPTS)


def test_a_replica_that_asks_to_wait_is_waited_for_alone() -> None:
    moments: list[float] = []

    def script(prompt: str, before: int) -> Reply:
        moments.append(time.monotonic())
        return late(good(prompt), 0.05) if len(moments) > 1 else refusal(429, Retry_After="1")

    with beside(script, concurrency=2) as (generator, _, fine):
        assert answers_in_order(generator, PROMPTS * 2) == ALL_GOOD * 2
    assert moments[1] - moments[0] >= 1
    between = [moment for moment in fine.moments if moments[0] < moment < moments[0] + 1]
    assert len(between) >= 10  # the other one did not wait


@pytest.mark.parametrize("name", ["500", "404", "cut", "503"])
def test_without_any_server_that_is_well_the_model_is_given_up(name: str, tmp_path: Path) -> None:
    """In one line, soon, and nothing of what was answered before is lost."""
    answered: list[str] = []

    def script(prompt: str, before: int) -> Reply:
        if len(answered) >= 50:
            return BROKEN[name]
        answered.append(prompt)
        return good(prompt)

    with scripted(script) as one, scripted(script) as other:
        where = Endpoint(one.url, replicas=(other.url,), concurrency=4, deployment="d")
        model = ModelSpec("m", MODEL, 0.1, "openai", generation=Generation(8), endpoint=where)
        queries = [Query(str(n), "own", f"question {n}", ("7",), "train") for n in range(100)]
        with pytest.raises(WorldError, match="calls committed, the same command") as caught:
            fill_cache(Pool((model,), 1, ("",)), queries, tmp_path)
        assert "\n" not in str(caught.value)
        assert (one.asked + other.asked).total() < 400
    assert CacheReader(tmp_path).number("SELECT count(*) FROM calls_rows") == len(answered)


def test_an_outage_of_all_names_how_many() -> None:
    with scripted(refusal(500, "oh")) as one, scripted(refusal(500, "oh")) as other:
        generator = load(one, replicas=(other.url,))
        with pytest.raises(Outage, match=r"answered 500: oh; so do all 2 servers; .* in a row"):
            answers_in_order(generator, PROMPTS)


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (refusal(400, "this is not a question"), "error"),
        (refusal(400, "refused", code="content_filter"), "filtered"),
        (refusal(413, "no"), "too_long"),
    ],
)
def test_a_refusal_is_asked_once_and_opens_no_circuit(reply: Reply, status: str) -> None:
    """By servers that have answered before; at every third prompt."""

    def script(prompt: str, before: int) -> Reply:
        number = int(prompt.split()[-1])
        return reply if number >= 8 and number % 3 == 0 else late(good(prompt), 0.05)

    with scripted(script) as one, scripted(script) as other:
        generator = load(one, replicas=(other.url,), concurrency=2)
        answers = answers_in_order(generator, PROMPTS)
        asked = one.asked + other.asked
    refused = [answer for answer in answers if isinstance(answer, Failure)]
    assert {answer.status for answer in refused} == {status}
    assert set(asked.values()) == {1}
    for server in (one, other):
        assert not health.health_of(server.url, MODEL).is_open
        assert server.asked.total() >= len(PROMPTS) // 4


def test_stopping_while_a_circuit_is_open_sends_no_further_call() -> None:
    asked = threading.Event()
    delivered = []
    with beside(BROKEN["500"], seconds=0.3, concurrency=2) as (generator, bad, fine):
        for place, answer in generator.generate(PROMPTS, asked.is_set):
            delivered.append(place)
            assert answer == ALL_GOOD[place]
            asked.set()
        assert len(delivered) == fine.asked.total() <= 4
        assert bad.asked.total() <= 2


def test_a_call_has_a_budget_of_time() -> None:
    """Twenty attempts that each time out would take ten seconds; two timeouts are the budget."""

    def script(prompt: str, before: int) -> Reply:
        return late(good(prompt), 60) if prompt == PROMPTS[0] else good(prompt)

    with scripted(script) as server:
        generator = load(server, timeout_s=0.5, attempts=20, concurrency=2)
        answers = answers_in_order(generator, PROMPTS[:4])
        assert isinstance(answers[0], Failure)
        assert re.search(r"timed out after 0.5 s \(\d attempts\)", answers[0].detail)
        assert answers[1:] == ALL_GOOD[1:4]
        assert server.asked[PROMPTS[0]] <= 4


def test_the_circuit_of_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(health, "monotonic", lambda: now)
    one = Health()
    assert not one.is_open
    assert one.fail("oh", now)  # it has never answered
    assert one.rest_s == FIRST_REST_S
    assert not one.fail("oh", now - 1)  # was under way when the first one failed
    assert one.rest_s == FIRST_REST_S
    rests = []
    for _ in range(8):
        now += one.rest_s
        assert one.rest_s == 0
        assert one.is_open  # a test is due
        one.fail("oh", now)
        rests.append(one.rest_s)
    assert rests[:3] == [2 * FIRST_REST_S, 4 * FIRST_REST_S, 8 * FIRST_REST_S]
    assert rests[-1] == MAX_REST_S
    assert not one.succeed(now - 100)  # a call from before the failure proves nothing
    now += 1
    assert one.succeed(now)
    assert not one.fault
    failures = [one.fail("oh", now) for _ in range(OPEN_AFTER)]
    assert failures == [False] * (OPEN_AFTER - 1) + [True]
    now += 100
    one.succeed(now)
    one.fail("busy", now, at_once=True, asks_to_wait=True, wait_s=7.0)
    assert one.rest_s == 7.0


def test_nothing_is_left_of_a_server_that_was_given_up() -> None:
    threads = set(threading.enumerate())
    with beside(BROKEN["cut"]) as (generator, _, _):
        answers_in_order(generator, PROMPTS[:8])
    wait_for(lambda: set(threading.enumerate()) <= threads)


def test_a_collection_asks_once_for_what_a_server_refuses(tmp_path: Path) -> None:
    """Not thrice, as for an error that may pass."""

    def script(prompt: str, before: int) -> Reply:
        if "question 3" in prompt:
            return refusal(400, "refused", code="content_filter")
        return refusal(400, "no question") if "question 5" in prompt else good(prompt)

    with scripted(script) as server:
        where = Endpoint(server.url, deployment="d")
        model = ModelSpec("m", MODEL, 0.1, "openai", generation=Generation(8), endpoint=where)
        queries = [Query(str(n), "own", f"question {n}", ("7",), "train") for n in range(9)]
        summary = fill_cache(Pool((model,), 1, ("",)), queries, tmp_path)
    assert summary.failed == {"filtered": 1, "error": 1}
    assert set(server.asked.values()) == {1}
