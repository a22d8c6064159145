"""Hundreds of calls to a server of which every fifth reply is a fault."""

import random
from pathlib import Path
from typing import Any

import pytest

from hierrouter.collection.scheduler import fill_cache
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter.replay.inspection import ask_cache
from hierrouter_cache.errors import WorldError
from hierrouter_cache.reader import CacheReader
from tests.engines import told
from tests.servers import JUNK, MODEL, Reply, Server, completion, good, late, refusal, serving

QUERIES = [Query(str(n), "own", f"question {n}", ("7",), "train") for n in range(100)]
# Both models say the same, so the two nodes of the first hop lead to one context: 2 + 2 calls.
CALLS = 100 * 4
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
pytestmark = pytest.mark.usefixtures("short_waits")


def pool(server: Server, **endpoint: Any) -> Pool:
    """Two models that the server answers for, alike but for their limit."""
    where = Endpoint(server.url, deployment="test", **endpoint)
    models = tuple(
        ModelSpec(name, MODEL, 0.1, backend="openai", generation=Generation(limit), endpoint=where)
        for limit, name in NAMES.items()
    )
    return Pool(models, stage_prompts=("", "Solve."))


def stored(root: Path) -> dict[tuple[str, str], str]:
    """The response to each (model, prompt), after proof that none stands in two rows."""
    rows = ask_cache(root, "SELECT DISTINCT call, model, prompt, response FROM nodes").to_pylist()
    assert CacheReader(root).number("SELECT count(*) FROM calls_rows") == len(rows)
    return {(row["model"], row["prompt"]): row["response"] for row in rows}


def test_a_fifth_of_faults_costs_attempts_and_no_answer(tmp_path: Path) -> None:
    """Which attempts fail, and how, is a matter of prompt and attempt alone."""
    faults: list[int] = []

    def script(prompt: str, before: int) -> Reply:
        draw = random.Random(f"{prompt} {before}")
        if prompt in WAITED_FOR and not before:
            faults.append(LATE)
        elif draw.random() < 0.2:
            faults.append(draw.randrange(LATE + 1, len(FAULTS)))
        else:
            return good(prompt)
        return FAULTS[faults[-1]]

    with serving(Server(script)) as server:
        summary = fill_cache(pool(server, timeout_s=TIMEOUT_S), QUERIES, tmp_path)
    assert set(faults) == set(range(len(FAULTS)))
    assert len(faults) > 0.15 * summary.calls
    answers = stored(tmp_path)
    assert len(answers) == summary.calls == CALLS
    assert (summary.missing, summary.failed.total()) == (0, 0)
    # One good reply a call, and the faults on top; nothing was paid for twice.
    assert server.asked.total() == summary.calls + len(faults)
    assert all(said == told(MODEL, prompt).text for (_, prompt), said in answers.items())
    assert len(set(answers.values())) > 100  # else that could not fail


def test_a_server_that_dies_in_the_middle(tmp_path: Path) -> None:
    """What it had answered is kept, and asked for no second time."""
    answered: list[str] = []

    def dying(prompt: str, before: int) -> Reply:
        if len(answered) >= 80:
            return refusal(500, "out of memory")
        answered.append(prompt)
        return good(prompt)

    with serving(Server(dying)) as server, pytest.raises(WorldError, match="out of memory"):
        fill_cache(pool(server), QUERIES, tmp_path)
    kept = set(stored(tmp_path))
    assert len(kept) == len(answered) >= 80
    with serving(Server()) as server:
        summary = fill_cache(pool(server), QUERIES, tmp_path)
    there = set(stored(tmp_path))
    asked = {
        (NAMES[request["max_tokens"]], request["messages"][0]["content"])
        for request in server.requests
    }
    assert asked == there - kept
    assert (summary.calls, summary.missing, len(there)) == (len(asked), 0, CALLS)
