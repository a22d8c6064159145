"""A thousand calls to a server of which every fifth reply is a fault."""

import random
from pathlib import Path
from typing import Any

import pytest

from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines.endpoint import PROBE
from hierrouter.engines.generator import Response, Stop
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter.replay.inspection import ask_cache
from hierrouter_cache.errors import Interrupted, WorldError
from hierrouter_cache.reader import CacheReader
from tests.engines import told
from tests.servers import (
    JUNK,
    MODEL,
    Reply,
    Script,
    Server,
    completion,
    good,
    late,
    refusal,
    serving,
)

QUERIES = [Query(str(n), "own", f"question {n}", ("7",), "train") for n in range(250)]
# Both models say the same, so the two nodes of the first hop lead to one context: 2 + 2 calls.
CALLS = 250 * 4
NAMES = {8: "short", 9: "long"}  # by the most tokens of an answer
# An answer that is not meant to be late is there sooner, on a busy machine too.
TIMEOUT_S = 5.0
FAULTS = [
    late(Reply(), 2 * TIMEOUT_S),
    refusal(429, Retry_After="0.05"),
    refusal(429),
    refusal(500),
    refusal(503),
    Reply(completion("cut"), cut=True),
    *JUNK.values(),
]
LATE = 0
WAITED_FOR = {query.question for query in QUERIES[:5]}  # not more: each one costs the timeout
SHARE = 0.2
pytestmark = pytest.mark.usefixtures("short_waits")


def faulty(faults: list[int]) -> Script:
    """A fault at a fifth of all attempts, its number noted in `faults`.

    Which attempts and which faults is a matter of prompt and attempt alone.
    """

    def script(prompt: str, before: int) -> Reply:
        draw = random.Random(f"{prompt} {before}")
        if prompt in WAITED_FOR and not before:
            number = LATE
        elif draw.random() < SHARE:
            number = draw.randrange(LATE + 1, len(FAULTS))
        else:
            return good(prompt)
        faults.append(number)
        return FAULTS[number]

    return script


def pool(server: Server, hops: int = 2, **endpoint: Any) -> Pool:
    """Two models that the server answers for, alike but for their limit."""
    where = Endpoint(server.url, deployment="test", **endpoint)
    models = tuple(
        ModelSpec(name, MODEL, 0.1, backend="openai", generation=Generation(limit), endpoint=where)
        for limit, name in NAMES.items()
    )
    return Pool(models, hops=hops, stage_prompts=("", "Solve.")[:hops])


def stored(root: Path) -> list[dict[str, object]]:
    return ask_cache(root, "SELECT DISTINCT call, model, prompt, response FROM nodes").to_pylist()


def stored_calls(root: Path) -> set[tuple[str, str]]:
    """(model, prompt) of each stored call, after proof that none stands in two rows."""
    calls = {(str(row["model"]), str(row["prompt"])) for row in stored(root)}
    assert CacheReader(root).number("SELECT count(*) FROM calls_rows") == len(calls)
    return calls


def asked_calls(server: Server) -> set[tuple[str, str]]:
    """(model, prompt) of each call that the server was asked for."""
    return {
        (NAMES[request["max_tokens"]], request["messages"][0]["content"])
        for request in server.requests
    }


def test_a_thousand_calls_with_a_fifth_of_faults(tmp_path: Path) -> None:
    faults: list[int] = []
    with serving(Server(faulty(faults))) as server:
        summary = fill_cache(pool(server, timeout_s=TIMEOUT_S), QUERIES, tmp_path / "c")
    assert set(faults) == set(range(len(FAULTS)))
    assert len(faults) > 0.15 * summary.calls
    rows = stored(tmp_path / "c")
    assert len(rows) == summary.calls == len({row["call"] for row in rows}) == CALLS
    assert (summary.missing, summary.failed.total()) == (0, 0)
    # One good reply a call, and the faults on top; nothing was paid for twice.
    assert server.asked.total() == summary.calls + len(faults)
    for row in rows:
        assert row["response"] == told(MODEL, str(row["prompt"])).text


def test_a_server_that_dies_in_the_middle(tmp_path: Path) -> None:
    """What it had answered is kept, and asked for no second time."""
    answered: list[str] = []

    def dying(prompt: str, before: int) -> Reply:
        if len(answered) >= 200:
            return refusal(500, "out of memory")
        answered.append(prompt)
        return good(prompt)

    with serving(Server(dying)) as server, pytest.raises(WorldError, match="out of memory"):
        fill_cache(pool(server), QUERIES, tmp_path / "c")
    kept = stored_calls(tmp_path / "c")
    assert len(kept) == len(answered) >= 200
    with serving(Server()) as server:
        summary = fill_cache(pool(server), QUERIES, tmp_path / "c")
    there = stored_calls(tmp_path / "c")
    assert asked_calls(server) == there - kept
    assert (summary.calls, summary.missing) == (len(there - kept), 0)
    assert len(there) == CALLS


BAD = tuple(f"question {n}" for n in range(3, 50, 7))


def test_prompts_that_never_work_stop_nobody(tmp_path: Path) -> None:
    """They alone are written down as failed, and they alone are asked again."""

    def script(prompt: str, before: int) -> Reply:
        return refusal(500, "oh") if prompt in BAD else good(prompt)

    for calls in (2 * (60 - len(BAD)), 0):
        with serving(Server(script)) as server:
            summary = fill_cache(pool(server, hops=1), QUERIES[:60], tmp_path / "c")
        assert (summary.calls, summary.incomplete) == (calls, len(BAD))
        assert set(summary.failed) == {"error"}
    assert set(server.asked) == {*BAD, PROBE}
    assert list(CacheReader(tmp_path / "c").failures().values()) == ["error"] * 2 * len(BAD)
    with serving(Server()) as server:
        healed = fill_cache(pool(server, hops=1), QUERIES[:60], tmp_path / "c")
        assert set(server.asked) == set(BAD)
    assert (healed.calls, healed.missing) == (2 * len(BAD), 0)


def test_a_stop_loses_no_answer(tmp_path: Path) -> None:
    with serving(Server(lambda prompt, before: late(good(prompt), 0.01))) as server:
        stop: Stop = lambda: server.asked.total() > 100  # noqa: E731
        with pytest.raises(Interrupted):
            fill_cache(pool(server), QUERIES, tmp_path / "c", stop=stop)
        asked = server.asked.total()
        assert 100 < asked < 140
        assert len(stored(tmp_path / "c")) == asked


def test_a_response_is_what_the_double_says() -> None:
    """Else the comparisons above could not fail."""
    assert isinstance(told(MODEL, "a"), Response)
    assert told(MODEL, "a").text != told(MODEL, "b").text
