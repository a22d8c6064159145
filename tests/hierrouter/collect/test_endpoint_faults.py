"""A thousand calls to a server of which every fifth reply is a fault."""

import random
from collections import Counter
from pathlib import Path

import pytest

from hierrouter.collect.backends import Response, Stop
from hierrouter.collect.backends.endpoint import patience
from hierrouter.collect.backends.endpoint.engine import PROBE
from hierrouter.collect.scheduler import collect
from hierrouter.endpoint import Endpoint
from hierrouter.inspection import ask_cache
from hierrouter.pool import Generation, ModelSpec, Pool
from hierrouter.query import Query
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
TIMEOUT_S = 0.4
FAULTS = [
    refusal(429, Retry_After="0.05"),
    refusal(429),
    refusal(500),
    refusal(503),
    Reply(completion("cut"), cut=True),
    late(Reply(), 2 * TIMEOUT_S),
    *JUNK.values(),
]
SHARE = 0.2


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(patience, "FIRST_BACKOFF_S", 0.01)


def faulty(faults: Counter[int]) -> Script:
    """A fault at a fifth of all attempts, which ones is a matter of prompt and attempt alone."""

    def script(prompt: str, before: int) -> Reply:
        draw = random.Random(f"{prompt} {before}")
        if draw.random() >= SHARE:
            return good(prompt)
        number = draw.randrange(len(FAULTS))
        faults[number] += 1
        return FAULTS[number]

    return script


def pool(server: Server, hops: int = 2) -> Pool:
    """Two models that the server answers for, alike but for their limit."""
    endpoint = Endpoint(server.url, deployment="test", timeout_s=TIMEOUT_S)
    models = tuple(
        ModelSpec(
            name, MODEL, 0.1, backend="openai", generation=Generation(limit), endpoint=endpoint
        )
        for name, limit in (("short", 8), ("long", 9))
    )
    return Pool(models, hops=hops, stage_prompts=("", "Solve.")[:hops])


def stored(root: Path) -> list[dict[str, object]]:
    return ask_cache(root, "SELECT DISTINCT call, model, prompt, response FROM nodes").to_pylist()


def test_a_thousand_calls_with_a_fifth_of_faults(tmp_path: Path) -> None:
    faults: Counter[int] = Counter()
    with serving(Server(faulty(faults))) as server:
        summary = collect(pool(server), QUERIES, tmp_path / "c")
    assert set(faults) == set(range(len(FAULTS)))
    assert faults.total() > 0.15 * summary.calls
    rows = stored(tmp_path / "c")
    assert len(rows) == summary.calls == len({row["call"] for row in rows}) == CALLS
    assert (summary.missing, summary.failed.total()) == (0, 0)
    # One good reply a call, and the faults on top; nothing was paid for twice.
    assert server.asked.total() == summary.calls + faults.total()
    for row in rows:
        assert row["response"] == told(MODEL, str(row["prompt"])).text


def test_a_server_that_dies_in_the_middle(tmp_path: Path) -> None:
    """What it had answered is kept, and asked for no second time."""
    answered: Counter[str] = Counter()

    def dying(prompt: str, before: int) -> Reply:
        if answered.total() >= 200:
            return refusal(500, "out of memory")
        answered[prompt] += 1
        return good(prompt)

    with serving(Server(dying)) as server, pytest.raises(WorldError, match="out of memory"):
        collect(pool(server), QUERIES, tmp_path / "c")
    kept = len(stored(tmp_path / "c"))
    assert kept == answered.total() >= 200
    with serving(Server()) as server:
        summary = collect(pool(server), QUERIES, tmp_path / "c")
        assert server.asked.total() == summary.calls
    assert summary.missing == 0
    assert len(stored(tmp_path / "c")) == summary.calls + kept == CALLS


BAD = tuple(f"question {n}" for n in range(3, 50, 7))


def test_prompts_that_never_work_stop_nobody(tmp_path: Path) -> None:
    """They alone are written down as failed, and they alone are asked again."""

    def script(prompt: str, before: int) -> Reply:
        return refusal(500, "oh") if prompt in BAD else good(prompt)

    for calls in (2 * (60 - len(BAD)), 0):
        with serving(Server(script)) as server:
            summary = collect(pool(server, hops=1), QUERIES[:60], tmp_path / "c")
        assert (summary.calls, summary.incomplete) == (calls, len(BAD))
        assert set(summary.failed) == {"error"}
    assert set(server.asked) == {*BAD, PROBE}
    assert list(CacheReader(tmp_path / "c").failures().values()) == ["error"] * 2 * len(BAD)
    with serving(Server()) as server:
        healed = collect(pool(server, hops=1), QUERIES[:60], tmp_path / "c")
        assert set(server.asked) == set(BAD)
    assert (healed.calls, healed.missing) == (2 * len(BAD), 0)


def test_a_count_that_no_file_takes_loses_no_other_answer(tmp_path: Path) -> None:
    def script(prompt: str, before: int) -> Reply:
        odd = prompt == QUERIES[20].question
        return Reply(completion("x", tokens_out=2**31)) if odd else good(prompt)

    with serving(Server(script)) as server:
        summary = collect(pool(server, hops=1), QUERIES[:40], tmp_path / "c")
    assert (summary.calls, summary.incomplete) == (2 * 39, 1)
    assert {row["response"] for row in stored(tmp_path / "c")}.isdisjoint({"x"})


def test_a_stop_loses_no_answer(tmp_path: Path) -> None:
    with serving(Server(lambda prompt, before: late(good(prompt), 0.01))) as server:
        stop: Stop = lambda: server.asked.total() > 100  # noqa: E731
        with pytest.raises(Interrupted):
            collect(pool(server), QUERIES, tmp_path / "c", stop=stop)
        asked = server.asked.total()
        assert 100 < asked < 140
        assert len(stored(tmp_path / "c")) == asked


def test_a_response_is_what_the_double_says() -> None:
    """Else the comparisons above could not fail."""
    assert isinstance(told(MODEL, "a"), Response)
    assert told(MODEL, "a").text != told(MODEL, "b").text
