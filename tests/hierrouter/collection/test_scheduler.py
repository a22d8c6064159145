"""Every distinct call is made once, failures cost no other, kills nothing that was committed."""

import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from threading import Event

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hierrouter.collection.plan import last_plan, store_plan
from hierrouter.collection.progress import Progress, Summary, require_answers
from hierrouter.collection.scheduler import MAX_ATTEMPTS, fill_cache
from hierrouter.engines import identify
from hierrouter.engines.generator import STATUSES, Answer, Failure, Outage, Response
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import ModelSpec
from hierrouter.questions.datasets import load_queries
from hierrouter.replay.inspection import cache_info
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.errors import DamagedPart, IncompleteTree, Interrupted, NoCache, WorldError
from hierrouter_cache.maintenance import quarantine
from hierrouter_cache.mirror import record_arrivals
from hierrouter_cache.parts import CALLS_SCHEMA, list_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.stores import FolderStore
from hierrouter_cache.writer import PartWriter
from tests.conftest import Run, Start, calls_made, works
from tests.engines import Counting, Scripted, scripted_answer
from tests.hierrouter.collection.examples import POOL, sums

QUERIES = sums(6)


def test_every_node_is_there_and_each_distinct_prompt_was_asked_once(tmp_path: Path) -> None:
    """On the testbed, whose models often give equal answers."""
    pool, counting = load_pool("testbed"), Counting()
    queries = load_queries(["arith", "story", "riddle"], 6, 42, Path())
    summary = fill_cache(pool, queries, tmp_path, engines=counting)
    info = cache_info(tmp_path)
    assert (info["queries"], info["nodes"], info["direct"]) == (18, 18 * 12, 18 * 3)
    assert (info["complete_queries"], info["missing_nodes"]) == (18, 0)
    assert set(counting.asked.values()) == {1}
    assert summary.calls == len(counting.asked) == info["calls"] < 18 * 15
    parts = set((tmp_path / "parts").iterdir())
    assert fill_cache(pool, queries, tmp_path, engines=counting).calls == 0
    assert set(counting.asked.values()) == {1}
    assert set((tmp_path / "parts").iterdir()) == parts
    assert OpenTree(cache=tmp_path, datasets=["story"], limit=4).run().datasets == ("story",) * 4


def test_a_pull_that_was_killed_is_judged_before_anything_is_asked(tmp_path: Path) -> None:
    fill_cache(POOL, QUERIES, tmp_path, engines=Scripted())
    responses = CacheReader(tmp_path).responses()
    call = CacheReader(tmp_path).sql("SELECT * FROM calls LIMIT 1").to_pylist()[0]
    other = pa.Table.from_pylist(
        [{**call, "response": "?", "outcome": "0" * 32}], schema=CALLS_SCHEMA
    )
    rival = PartWriter(tmp_path / "there").append("calls", other)
    record_arrivals(tmp_path, [rival.name])
    FolderStore(tmp_path).write(rival.name, rival.read_bytes())
    assert fill_cache(POOL, QUERIES, tmp_path, engines=Scripted()).calls == 0
    assert rival.name not in FolderStore(tmp_path).sizes()
    assert CacheReader(tmp_path).responses() == responses


@pytest.mark.parametrize("kind", ["calls", "queries", "scores", "plans"])
def test_repair_then_collect_heals_any_damaged_part(tmp_path: Path, kind: str) -> None:
    fill_cache(POOL, QUERIES, tmp_path, engines=Scripted())
    before = OpenTree(cache=tmp_path).run()
    part = next((tmp_path / "parts").glob(f"{kind}-*"))
    lost = set(pq.read_table(part)["key"].to_pylist()) if kind == "calls" else set()
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(DamagedPart, match=part.name):
        OpenTree(cache=tmp_path).run()
    quarantine(tmp_path)
    again = Scripted()
    fill_cache(POOL, QUERIES, tmp_path, engines=again)
    assert again.asked.total() == len(lost)
    assert OpenTree(cache=tmp_path).run().fingerprint == before.fingerprint


def test_many_queries_make_many_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierrouter.collection.plan.QUERIES_A_PART", 4)
    store_plan(PartWriter(tmp_path), None, POOL, identify(POOL.all_models, Scripted()), QUERIES)
    assert [part.rows for part in list_parts(tmp_path) if part.kind == "queries"] == [4, 2]
    assert last_plan(tmp_path) == (POOL, tuple(QUERIES))


ALL_CALLS = len(QUERIES) * (12 + 3)
# The first hop of model b for the first query: its three children hang on it.
LOST = "What is 0 + 0?\n\nPlan."


def saying(others: dict[tuple[str, str], Answer]) -> Scripted:
    """The scripted models, which answer some prompts otherwise."""
    return Scripted(
        lambda model, prompt: others.get((model, prompt)) or scripted_answer(model, prompt)
    )


def failing(status: str) -> Scripted:
    return saying({("b", LOST): Failure(status, "as scripted")})


def failures(root: Path) -> list[dict[str, object]]:
    return CacheReader(root).sql("SELECT * FROM failures_rows").to_pylist()


@pytest.mark.parametrize("status", STATUSES)
def test_a_failed_call_is_no_answer_and_asked_again_only_where_it_may_pass(
    tmp_path: Path, status: str
) -> None:
    engine = failing(status)
    summary = fill_cache(POOL, QUERIES, tmp_path, engines=engine)
    assert summary.failed == {status: 1}
    assert (summary.calls, summary.missing, summary.incomplete) == (ALL_CALLS - 4, 4, 1)
    attempts = MAX_ATTEMPTS if STATUSES[status] else 1
    assert engine.asked["b", LOST] == attempts
    assert sum(engine.asked.values()) == ALL_CALLS - 4 + attempts
    (row,) = failures(tmp_path)
    assert (row["model"], row["status"], row["detail"]) == ("b", status, "as scripted")
    assert row["attempts"] == attempts
    reader = CacheReader(tmp_path)
    assert row["key"] not in reader.responses()
    prompts = reader.sql("SELECT prompt FROM calls")["prompt"].to_pylist()
    assert LOST in prompts  # the other models answered it
    assert len(prompts) == len(reader.responses()) == ALL_CALLS - 4


def test_a_failure_that_passes_leaves_no_trace(tmp_path: Path) -> None:
    engine = Scripted()

    def script(model: str, prompt: str) -> Answer:
        if (model, prompt) == ("b", LOST) and engine.asked[model, prompt] < MAX_ATTEMPTS - 1:
            return Failure("error", "busy")
        return scripted_answer(model, prompt)

    engine.script = script
    summary = fill_cache(POOL, QUERIES, tmp_path, engines=engine)
    assert (summary.failed, summary.calls) == ({}, ALL_CALLS)
    assert failures(tmp_path) == []


def test_a_tree_with_a_failure_is_refused_or_left_out_but_never_scored(tmp_path: Path) -> None:
    fill_cache(POOL, QUERIES, tmp_path, engines=failing("filtered"))
    with pytest.raises(IncompleteTree, match="1 of 6 queries lack 4 nodes"):
        OpenTree(cache=tmp_path).run()
    whole = OpenTree(cache=tmp_path, allow_incomplete=True).run()
    assert whole.query_ids == tuple(query.id for query in QUERIES[1:])
    (failed,) = failures(tmp_path)
    scored = CacheReader(tmp_path).sql("SELECT call FROM scores_rows")["call"].to_pylist()
    assert scored
    assert failed["key"] not in scored


def test_a_rerun_asks_for_just_those_and_makes_the_tree_whole(tmp_path: Path) -> None:
    fill_cache(POOL, QUERIES, tmp_path / "hurt", engines=failing("error"))
    summary = fill_cache(POOL, QUERIES, tmp_path / "hurt", engines=failing("filtered"))
    assert (summary.failed, summary.calls) == ({"filtered": 1}, 0)
    assert [row["status"] for row in failures(tmp_path / "hurt")] == ["error", "filtered"]
    again = Scripted()
    summary = fill_cache(POOL, QUERIES, tmp_path / "hurt", engines=again)
    assert (summary.calls, summary.failed, summary.missing) == (4, {}, 0)
    assert set(again.asked.values()) == {1}
    assert ("b", LOST) in again.asked
    fill_cache(POOL, QUERIES, tmp_path / "whole", engines=Scripted())
    assert (
        OpenTree(cache=tmp_path / "hurt").run().fingerprint
        == OpenTree(cache=tmp_path / "whole").run().fingerprint
    )


def test_an_answer_that_no_file_takes_spoils_no_batch(tmp_path: Path) -> None:
    odd = Response("half a sign: \ud83d", 9, 5, "stop")
    engine = saying({("b", LOST): odd, ("c", LOST): Failure("error", "line\n\tand \ud83d")})
    fill_cache(POOL, QUERIES, tmp_path, engines=engine)
    assert "half a sign: \N{REPLACEMENT CHARACTER}" in CacheReader(tmp_path).responses().values()
    assert failures(tmp_path)[0]["detail"] == "line and \N{REPLACEMENT CHARACTER}"


def test_a_failed_direct_call_costs_the_tree_nothing(tmp_path: Path) -> None:
    refused, question = Failure("filtered", "refused"), QUERIES[0].question
    engine = saying({(model, question): refused for model in ("a", "b", "c", "big")})
    levels: list[str] = []
    progress = Progress(on_level=lambda label, calls: levels.append(label))
    big = replace(POOL, references=(ModelSpec("big", "org/big", 9.0),))
    summary = fill_cache(big, QUERIES, tmp_path, progress, engines=engine)
    assert summary.failed == {"filtered": 4}
    assert (summary.missing, summary.incomplete) == (4, 1)
    # References are the large ones: where memory is short, the others are loaded after them.
    assert levels[:2] == ["direct big", "direct a"]


def test_where_everything_fails_nothing_is_stored_as_an_answer(tmp_path: Path) -> None:
    """Without an instruction the first hop is the direct call, and given up once."""
    bare = replace(POOL, stage_prompts=("", "Solve."))
    engine = Scripted(lambda model, prompt: Failure("error", "no"))
    summary = fill_cache(bare, QUERIES, tmp_path, engines=engine)
    assert set(engine.asked.values()) == {MAX_ATTEMPTS}
    assert summary.failed == {"error": len(QUERIES) * 3}
    assert (summary.calls, summary.missing) == (0, ALL_CALLS)
    assert list((tmp_path / "parts").glob("calls-*")) == []
    with pytest.raises(WorldError, match="nothing was answered: look at the model's name"):
        require_answers(summary)


SERVED = replace(POOL, models=tuple(replace(model, backend="openai") for model in POOL.models))
BREAKS = {
    # the direct calls of model a, and two of model b
    "a model": (POOL, RuntimeError("no memory"), r"b failed: org/b: no memory; .* rerun", 6 + 2),
    # a and c: direct, first hop, second hop below each of the two; b: both of one question, and
    # what the others say after its first hop
    "a server": (
        SERVED,
        Outage("model b: nobody listens at 127.0.0.1:9"),
        r"nobody listens at 127.0.0.1:9; \d+ calls committed",
        6 * 2 * (1 + 1 + 2) + 2 + 2,
    ),
}


@pytest.mark.parametrize("what", BREAKS)
def test_what_was_answered_before_it_broke_is_kept(tmp_path: Path, what: str) -> None:
    """Model b breaks at its third call; after a server that is down the other models go on."""
    pool, error, message, kept = BREAKS[what]
    answered: list[str] = []

    def script(model: str, prompt: str) -> Answer:
        if model == "b":
            if len(answered) == 2:
                raise error
            answered.append(prompt)
        return scripted_answer(model, prompt)

    with pytest.raises(WorldError, match=message):
        fill_cache(pool, QUERIES, tmp_path, engines=Scripted(script))
    assert len(CacheReader(tmp_path).responses()) == kept
    again = Scripted()
    fill_cache(pool, QUERIES, tmp_path, engines=again)
    assert sum(again.asked.values()) == ALL_CALLS - kept


def test_a_slow_server_keeps_the_others_waiting_for_nothing(tmp_path: Path) -> None:
    """b and c are asked what follows their answers while a has not given its first one."""
    beyond = Event()

    def script(model: str, prompt: str) -> Answer:
        if model == "a" and not beyond.wait(60):
            raise RuntimeError("the others wait for me")
        if model == "c" and prompt.endswith("Solve."):
            beyond.set()
        return scripted_answer(model, prompt)

    summary = fill_cache(SERVED, QUERIES, tmp_path, engines=Scripted(script))
    assert (summary.calls, summary.missing) == (ALL_CALLS, 0)


def test_local_models_and_servers_fill_one_tree(tmp_path: Path) -> None:
    """A model on this machine is called after answers of servers that are not committed yet."""
    local, *_ = POOL.models
    engine = Scripted()
    mixed = replace(SERVED, models=(local, *SERVED.models[1:]))
    summary = fill_cache(mixed, QUERIES, tmp_path, engines=engine)
    assert (summary.calls, summary.missing) == (ALL_CALLS, 0)
    assert set(engine.asked.values()) == {1}
    assert len(CacheReader(tmp_path).responses()) == ALL_CALLS


def test_who_cannot_be_told_is_not_the_model(tmp_path: Path) -> None:
    def gone(calls: int, tokens: int, cost: float) -> None:
        raise BrokenPipeError("nobody reads stderr")

    with pytest.raises(BrokenPipeError):
        fill_cache(POOL, QUERIES, tmp_path, Progress(on_calls=gone), engines=Scripted())
    assert len(CacheReader(tmp_path).responses()) == 1  # and the answer is kept


def test_who_has_stopped_is_not_waited_for_by_those_who_have_not(tmp_path: Path) -> None:
    """b gives an answer after a has ended, and what follows it is nobody's."""
    ended, engine = Event(), Scripted()

    def script(model: str, prompt: str) -> Answer:
        if model == "b":
            ended.wait(60)
            time.sleep(0.2)  # so that a, which stops now, has ended
        return scripted_answer(model, prompt)

    def stop() -> bool:
        if any(model == "a" for model, _ in list(engine.asked)):
            ended.set()
        return ended.is_set()

    engine.script = script
    with pytest.raises(Interrupted, match=r"\d+ calls committed"):
        fill_cache(SERVED, QUERIES, tmp_path, engines=engine, stop=stop)
    kept = len(CacheReader(tmp_path).responses())
    assert 0 < kept == engine.asked.total() < ALL_CALLS
    again = Scripted()
    assert fill_cache(SERVED, QUERIES, tmp_path, engines=again).missing == 0
    assert again.asked.total() == ALL_CALLS - kept


def test_what_was_answered_before_a_stop_is_committed(tmp_path: Path) -> None:
    engine = Scripted()
    with pytest.raises(Interrupted, match="4 calls committed"):
        fill_cache(POOL, QUERIES, tmp_path, engines=engine, stop=lambda: engine.asked.total() == 4)
    assert len(CacheReader(tmp_path).responses()) == 4
    with pytest.raises(IncompleteTree, match="6 queries lack"):
        OpenTree(cache=tmp_path).run()
    summary = fill_cache(POOL, QUERIES, tmp_path, engines=engine)
    assert (summary.earlier, summary.missing) == (4, 0)
    assert set(engine.asked.values()) == {1}


def test_reruns_over_random_failures_end_where_none_would_have(tmp_path: Path) -> None:
    fill_cache(POOL, QUERIES, tmp_path / "calm", engines=Scripted())
    rng = random.Random(1)
    statuses = list(STATUSES)

    def script(model: str, prompt: str) -> Answer:
        if rng.random() < 0.6:
            return Failure(rng.choice(statuses), "chance")
        return scripted_answer(model, prompt)

    engine = Scripted(script)
    runs = 0
    while fill_cache(POOL, QUERIES, tmp_path / "rough", engines=engine).failed:
        runs += 1
    assert runs > 2  # else nothing was shown
    calm, rough = CacheReader(tmp_path / "calm"), CacheReader(tmp_path / "rough")
    assert rough.responses() == calm.responses()
    assert rough.number("SELECT count(*) FROM calls_rows") == len(calm.responses())


def test_failed_calls_end_in_one_line() -> None:
    require_answers(Summary(queries=9, wanted=135, calls=135))
    hurt = Summary(queries=9, wanted=135, calls=130, incomplete=2, example="model a: " + "x" * 500)
    hurt.failed.update({"filtered": 3, "too_long": 1})
    with pytest.raises(WorldError, match=r"4 calls failed \(3 filtered, 1 too_long\)") as caught:
        require_answers(hurt)
    line = str(caught.value)
    assert "2 of 9 queries are incomplete" in line
    assert "rerun the same command" in line
    assert len(line) <= 300


def test_an_unknown_status_is_a_mistake_in_the_backend() -> None:
    with pytest.raises(ValueError, match="unknown status 'odd'"):
        Failure("odd", "?")


KILLS = 10  # every night; four otherwise
ARGUMENTS = ["collect", "--limit", "12", "--cache"]


def committed(root: Path) -> dict[str, str]:
    """Response by key, after proof that no key stands in two rows."""
    try:
        reader = CacheReader(root)
    except NoCache:
        return {}
    if not any(part.kind == "calls" for part in reader.parts):
        return {}
    responses = reader.responses()
    assert reader.number("SELECT count(*) FROM calls_rows") == len(responses)
    return responses


@pytest.mark.parametrize("kills", [4, pytest.param(KILLS, marks=pytest.mark.slow)])
def test_kills_then_a_rerun(kills: int, tmp_path: Path, hierrouter: Run, start: Start) -> None:
    works(hierrouter(*ARGUMENTS, tmp_path / "whole", cwd=tmp_path))
    expected = committed(tmp_path / "whole")

    rng = random.Random(0)
    root = tmp_path / "killed"
    seen: dict[str, str] = {}
    sizes = []
    for _ in range(kills):
        process = start(*ARGUMENTS, root, cwd=tmp_path)
        before = set(root.glob("parts/calls-*"))
        while set(root.glob("parts/calls-*")) == before and process.poll() is None:
            time.sleep(0.005)  # until a part more has been committed
        time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.result()
        now = committed(root)
        assert seen.items() <= now.items()
        seen = now
        sizes.append(len(seen))

    between = {size for size in sizes if 0 < size < len(expected)}
    assert len(between) > 2  # so many kills came in the middle, each later than the one before
    last = works(hierrouter(*ARGUMENTS, root, cwd=tmp_path))
    assert calls_made(last.stderr)[0] == len(expected) - len(seen)
    assert committed(root) == expected
    assert list((root / "tmp").iterdir()) == []
