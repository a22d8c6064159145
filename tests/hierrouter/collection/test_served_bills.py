"""What servers bill, refuse and think, from the wire to C: seconds, kinds, thoughts, costs."""

import asyncio
import csv
import http.client
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from hierrouter.collection.progress import Progress, Summary, stored_spending
from hierrouter.collection.scheduler import fill_cache
from hierrouter.collection.transfer import Export, import_
from hierrouter.engines.endpoint import Caller
from hierrouter.engines.generator import Response
from hierrouter.engines.identity import endpoint_of
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter.replay.inspection import ask_cache, data_notes
from hierrouter.replay.open_tree import OpenTree
from hierrouter.serving.remote_model import ServedModel
from hierrouter_cache.tree import Rate, reprice
from tests.servers import MODEL, Reply, Server, completion, late, serving

QUERIES = [
    Query(str(n), "own", f"What is {n + 1} + {n + 1}?", (str(2 * n + 2),), fold)
    for n, fold in enumerate(["train", "train", "validation", "validation", "test", "test"])
]
SOLVE = "Solve."


def pool_of(url: str, hops: int = 2, concurrency: int = 4, **further: Any) -> Pool:
    """Two models of one server, told apart by their limit."""
    where = Endpoint(url, concurrency=concurrency, deployment="test", attempts=1)
    models = tuple(
        ModelSpec(
            name,
            MODEL,
            backend="openai",
            generation=Generation(limit),
            endpoint=where,
            **{"rate_in": 1.0, "rate_out": 10.0, **further},
        )
        for name, limit in (("short", 8), ("long", 9))
    )
    return Pool(models, hops, ("", SOLVE), per_tokens=1_000_000, currency="USD")


def collected(reply: Reply, root: Path) -> None:
    """Make all calls of a server that gives this reply to all."""
    with serving(Server(lambda prompt, before: reply)) as server:
        fill_cache(pool_of(server.url), QUERIES, root)


def rows(root: Path, columns: str) -> list[dict[str, Any]]:
    """Of each call, once."""
    return ask_cache(root, f"SELECT DISTINCT call, {columns} FROM nodes ORDER BY call").to_pylist()


# Seconds.


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on, and records how long each completion took."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second one would wait for an acknowledgement
    target: Server
    recorded: dict[str, list[float]]

    def do_GET(self) -> None:
        self._pass_on("GET", None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        started = time.perf_counter()
        self._pass_on("POST", body)
        [message] = json.loads(body)["messages"]
        key = f"{json.loads(body)['max_tokens']} {message['content']}"
        self.recorded.setdefault(key, []).append(time.perf_counter() - started)

    def _pass_on(self, method: str, body: bytes | None) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.target.port)
        connection.request(method, self.path, body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        data = reply.read()
        connection.close()
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextmanager
def recording(server: Server) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """A proxy before a server: its base_url, and the seconds by limit and prompt."""
    recorded: dict[str, list[float]] = {}
    handler = type("Recording", (Proxy,), {"target": server, "recorded": recorded})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_address[1]}/v1", recorded
        finally:
            listener.shutdown()
            thread.join()


LIMITS = {"short": 8, "long": 9}


def test_recorded_seconds_are_those_of_each_call_at_a_proxy(tmp_path: Path) -> None:
    """Calls of .6 to 2 s, four at a time: shares of a commit's time would all be alike.

    They are long, because server, proxy and client share the processor.
    """

    def script(prompt: str, before: int) -> Reply:
        seconds = 0.6 + 0.35 * (sum(prompt.encode()) % 5)
        return late(Reply(completion(f"answer {len(prompt)}")), seconds)

    with serving(Server(script)) as server, recording(server) as (url, recorded):
        fill_cache(pool_of(url).sub_pool(["short"], 2), QUERIES, tmp_path)
    stored = rows(tmp_path, "model, prompt, seconds, shared_time")
    assert len(stored) == len(recorded) == 12
    ratios = []
    for row in stored:
        assert not row["shared_time"]
        [seconds] = recorded[f"{LIMITS[row['model']]} {row['prompt']}"]
        ratios.append(row["seconds"] / seconds)
    assert 0.95 <= median(ratios) <= 1.05, ratios
    seconds = [row["seconds"] for row in stored]
    assert max(seconds) > 2 * min(seconds)
    tree = OpenTree(cache=tmp_path, encoder="hashed-ngrams").run()
    assert tree.shared_time == 0
    assert float(tree.seconds[:, 1:].max()) == pytest.approx(max(seconds))


def test_attempts_that_failed_are_not_in_the_seconds(tmp_path: Path) -> None:
    def script(prompt: str, before: int) -> Reply:
        if not before:
            return late(Reply("", 500), 0.4)
        return Reply(completion("7"))

    with serving(Server(script)) as server:
        pool = pool_of(server.url, hops=1)
        retried = [
            replace(model, endpoint=replace(model.endpoint, attempts=3))
            for model in pool.models
            if model.endpoint
        ]
        fill_cache(replace(pool, models=tuple(retried)), QUERIES[:1], tmp_path)
    assert all(row["seconds"] < 0.3 for row in rows(tmp_path, "seconds"))


def test_rows_of_earlier_versions_have_shared_time_and_say_so(tmp_path: Path) -> None:
    """Their scores, costs and content are as ever."""
    collected(Reply(completion("7")), tmp_path)
    tree = OpenTree(cache=tmp_path, encoder="hashed-ngrams").run()
    old = tmp_path / "old"
    _without_later_columns(tmp_path, old)
    older = OpenTree(cache=old, encoder="hashed-ngrams").run()
    assert older.shared_time == 1
    assert [note for note in data_notes(older) if "of 100% of the calls are shared time" in note]
    assert not [note for note in data_notes(tree) if "shared time" in note]
    assert (tree.score == older.score).all()
    assert (tree.cost == older.cost).all()
    assert older.content == tree.content
    assert all(row["shared_time"] for row in rows(old, "shared_time"))


def _without_later_columns(root: Path, old: Path) -> None:
    """Copy a cache as an earlier version would have written it."""
    import pyarrow.parquet as pq

    from hierrouter_cache.parts import LATER_COLUMNS, list_parts
    from hierrouter_cache.writer import append_part, make_cache

    make_cache(old)
    for number, part in enumerate(sorted(list_parts(root), key=lambda part: part.seq), 1):
        table = pq.read_table(part.path)
        later = [name for name in LATER_COLUMNS.get(part.kind, {}) if name in table.column_names]
        append_part(old, part.kind, table.drop_columns(later), f"{number:08x}")


# Thoughts.

THOUGHT = "The sum of both, so perhaps 1"


def thinking(prompt: str, before: int) -> Reply:
    """Thinks in a field of its own; its tokens are billed on top of those of the answer."""
    message = {"content": "It is 2.", "reasoning_content": f" {THOUGHT}\n"}
    usage = {
        "prompt_tokens": len(prompt.split()),
        "completion_tokens": 4,
        "total_tokens": len(prompt.split()) + 4 + 7,
        "completion_tokens_details": {"reasoning_tokens": 7},
    }
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return Reply(completion("", choices=choices, usage=usage))


@pytest.mark.parametrize("thoughts", ["keep", "drop"])
def test_the_next_call_reads_a_kept_thought_and_all_of_it_is_paid_for(
    thoughts: Any, tmp_path: Path
) -> None:
    with serving(Server(thinking)) as server:
        fill_cache(replace(pool_of(server.url), thoughts=thoughts), QUERIES, tmp_path)
    complete = f"<think>\n{THOUGHT}\n</think>\n\nIt is 2."
    visible = complete if thoughts == "keep" else "It is 2."
    seconds = [prompt for prompt in server.asked if prompt.endswith(f"\n\n{SOLVE}")]
    questions = {query.question for query in QUERIES}
    assert set(seconds) == {f"{question}\n\n{visible}\n\n{SOLVE}" for question in questions}
    for row in rows(tmp_path, "response, prompt, tokens_in, tokens_out, tokens_thoughts, kind"):
        assert row["response"] == complete
        assert row["tokens_in"] == len(row["prompt"].split())
        assert (row["tokens_out"], row["tokens_thoughts"], row["kind"]) == (11, 7, None)
    tree = OpenTree(cache=tmp_path, encoder="hashed-ngrams").run()
    first = len(QUERIES[0].question.split())
    second = first + len(visible.split()) + 1
    cost = (first + second + 2 * 11 * 10) / 1e6
    assert tree.cost[:, tree.layout.leaves] == pytest.approx(cost)
    # The word 1 of the thought is no answer; the paper's F1 reads the thought if it is kept.
    assert tree.accuracy[0, 1:].tolist() == [1.0] * (tree.layout.nodes - 1)
    assert (tree.score[0, 1] == pytest.approx(0.5)) == (thoughts == "drop")


def test_a_thought_that_was_cut_is_no_answer_and_said_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    message = {"content": None, "reasoning_content": "let me see"}
    choices = [{"index": 0, "message": message, "finish_reason": "length"}]
    with caplog.at_level(logging.WARNING):
        collected(Reply(completion("", choices=choices, tokens_out=8)), tmp_path)
    at_once = [line for line in caplog.messages if "only a thought" in line]
    assert sorted(at_once) == [
        f"{name} answers with no content, only a thought in a field of its own (8 tokens, cut); "
        f"give it more room: max_new_tokens above {limit} in its generation"
        for name, limit in (("long", 9), ("short", 8))
    ]
    assert {row["kind"] for row in rows(tmp_path, "kind")} == {"empty"}


# Kinds.


def test_refusals_are_kept_and_told_by_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def script(prompt: str, before: int) -> Reply:
        if "4 + 4" in prompt:
            message = {"content": None, "refusal": "I can't help with that."}
            reason = "stop"
        elif "5 + 5" in prompt:
            message = {"content": ""}
            reason = "content_filter"
        else:
            message = {"content": "7"}
            reason = "stop"
        choices = [{"index": 0, "message": message, "finish_reason": reason}]
        return Reply(completion("", choices=choices))

    with caplog.at_level(logging.WARNING), serving(Server(script)) as server:
        summary = fill_cache(pool_of(server.url, hops=1), QUERIES, tmp_path)
        again = fill_cache(pool_of(server.url, hops=1), QUERIES, tmp_path)
    assert (summary.calls, again.calls, summary.failed.total()) == (12, 0, 0)
    assert server.asked.total() == 12
    kinds = rows(tmp_path, "id, model, response, kind, tokens_out")
    by_id = {(row["id"], row["model"]): (row["response"], row["kind"]) for row in kinds}
    assert by_id["3", "short"] == ("I can't help with that.", "refusal")
    assert by_id["4", "short"] == ("", "filtered")
    assert by_id["5", "short"] == ("7", None)
    assert all(row["tokens_out"] == 3 for row in kinds)
    assert (
        "of 6 answers of short: 1 refusals, 1 withheld by a filter of the server; they are kept "
        "and paid for, scored like any answer, and not asked for again (column kind)"
    ) in caplog.messages
    lines = tmp_path / "lines.jsonl"
    Export(out=lines, cache=tmp_path).run()
    import_(lines, cache=tmp_path / "other")
    assert rows(tmp_path / "other", "id, model, response, kind, tokens_out") == kinds


# Bills.

USAGE = {
    "prompt_tokens": 2006,
    "completion_tokens": 9,
    "total_tokens": 2015,
    "prompt_tokens_details": {"cached_tokens": 1920},
    "completion_tokens_details": {"reasoning_tokens": 5},
    "cost": 0.002,
}
FURTHER: dict[str, Any] = {"rate_cached": 0.1, "rate_thoughts": 4.0, "rate_call": 0.001}
# (2006 - 1920) * 1 + 1920 * 0.1 + 4 * 10 + 5 * 4 for a million, and the call.
CALL_COST = 338e-6 + 0.001


def test_further_rates_count_wherever_a_call_has_a_cost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In C, in SQL, in what a collection says that it spent, and under other prices."""
    reply = Reply(completion("7", usage=USAGE))
    progress = Progress()
    with caplog.at_level(logging.WARNING), serving(Server(lambda *_: reply)) as server:
        pool = pool_of(server.url, **FURTHER)
        summary = fill_cache(pool, QUERIES, tmp_path, progress)
    calls = summary.calls
    assert summary.spent["short"].cost == pytest.approx(calls / 2 * CALL_COST)
    assert stored_spending(tmp_path, pool.rates())["short"].cost == pytest.approx(
        calls / 2 * CALL_COST
    )
    tree = OpenTree(cache=tmp_path, encoder="hashed-ngrams").run()
    assert tree.direct.cost == pytest.approx(CALL_COST)
    assert tree.cost[:, tree.layout.leaves] == pytest.approx(2 * CALL_COST)
    [spent] = ask_cache(tmp_path, "SELECT sum(cost) AS c, count(*) AS n FROM spend").to_pylist()
    assert spent["c"] == pytest.approx(spent["n"] * CALL_COST)
    [row] = ask_cache(
        tmp_path, "SELECT DISTINCT usage, cost_given, tokens_cached, tokens_thoughts FROM nodes"
    ).to_pylist()
    assert json.loads(row.pop("usage")) == USAGE
    assert row == {"cost_given": 0.002, "tokens_cached": 1920, "tokens_thoughts": 5}
    # Other prices, and the same again, without a look into the cache.
    dear = reprice(tree, dict.fromkeys(tree.direct.models, Rate(1.0, 2.0)))
    assert dear.direct.cost == pytest.approx(2006 + 18)
    assert dear.fingerprint != tree.fingerprint
    same = reprice(dear, pool.rates())
    assert (same.cost == tree.cost).all()
    assert same.fingerprint == tree.fingerprint
    opened = OpenTree(cache=tmp_path, encoder="hashed-ngrams").run()  # from the saved tree
    assert (opened.cost == tree.cost).all()
    # What the server says that its calls cost is another sum; the report says so, too.
    assert [note for note in data_notes(opened) if "by the cost given with its" in note]
    assert [line for line in caplog.messages if line.startswith("short costs")] == [
        f"short costs {calls / 2 * CALL_COST:.4g} USD by its tokens and rates, and "
        f"{calls / 2 * 0.002:.4g} by the cost given with its {calls // 2} calls, "
        f"{0.002 / CALL_COST:.3g} times as much; look at its rates and per_tokens"
    ]


def test_no_key_is_stored_with_a_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-1234567890abcdef"
    monkeypatch.setenv("BILLS_KEY", key)
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "billed_to": f"Bearer {key}"}
    with serving(Server(lambda *_: Reply(completion("7", usage=usage)))) as server:
        pool = pool_of(server.url, hops=1)
        keyed = [
            replace(model, endpoint=replace(model.endpoint, api_key_env="BILLS_KEY"))
            for model in pool.models
            if model.endpoint
        ]
        fill_cache(replace(pool, models=tuple(keyed)), QUERIES[:1], tmp_path)
    assert server.seen[-1]["authorization"] == f"Bearer {key}"
    assert {row["usage"] for row in rows(tmp_path, "usage")} == {
        json.dumps({**usage, "billed_to": "Bearer ***"}, separators=(",", ":"))
    }


def test_a_batch_api_costs_its_share_of_everything(tmp_path: Path) -> None:
    plain = pool_of("http://127.0.0.1:1/v1", **FURTHER).rates()["short"]
    half = pool_of("http://127.0.0.1:1/v1", **FURTHER, rate_batch=0.5).rates()["short"]
    assert half.as_row == pytest.approx([price / 2 for price in plain.as_row])


def test_plans_without_further_rates_are_those_of_earlier_versions() -> None:
    pool = pool_of("http://127.0.0.1:1/v1")
    assert "rate_cached" not in pool.to_json({"short": {}, "long": {}})
    assert "rate_batch" not in pool.to_json({"short": {}, "long": {}})
    further = pool_of("http://127.0.0.1:1/v1", rate_cached=0.1).to_json({"short": {}, "long": {}})
    assert '"rate_cached": 0.1' in further


@pytest.mark.parametrize(
    ("usage", "line"),
    [
        (
            {"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 90},
            "in answers of short total_tokens is more than prompt_tokens and completion_tokens, "
            "and no field says why: the rest is billed as generated",
        ),
        (
            {"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 10},
            "in answers of short total_tokens is less than prompt_tokens and completion_tokens: "
            "these two are billed",
        ),
        (
            {"prompt_tokens": 20, "completion_tokens": 9},
            "the tokens of the prompts of short are the same number, 20, for texts of 14 to 56 "
            "characters, says its server; costs by such counts are made up",
        ),
        ({"prompt_tokens": 1, "completion_tokens": 9}, "the tokens of the prompts of short are"),
    ],
)
def test_bills_that_cannot_be_right_are_said_once_by_model(
    usage: dict[str, int], line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "It is a long way to the answer 7"
    with caplog.at_level(logging.WARNING):
        collected(Reply(completion(text, usage=usage)), tmp_path)
    assert len([message for message in caplog.messages if message.startswith(line)]) == 1, (
        caplog.messages
    )


def test_the_seconds_of_a_local_row_are_from_its_admission_to_its_last_token(
    tmp_path: Path,
) -> None:
    """Rows of one batch overlap, so their times sum up to more than the batch's."""
    from hierrouter.pools.files import load_pool

    pool = load_pool("testbed").sub_pool(["calc"], 1)
    pool = replace(pool, references=())
    started = time.perf_counter()
    summary: Summary = fill_cache(pool, QUERIES, tmp_path)
    elapsed = time.perf_counter() - started
    stored = rows(tmp_path, "seconds, first_token_s, tokens_out")
    assert len(stored) == summary.calls
    for row in stored:
        assert 0 < row["first_token_s"] <= row["seconds"] < elapsed
    assert sum(row["seconds"] for row in stored) > summary.seconds
    tokens = np.array([row["tokens_out"] for row in stored])
    seconds = np.array([row["seconds"] for row in stored])
    if len(set(tokens.tolist())) > 1:
        assert seconds[tokens.argmax()] > seconds[tokens.argmin()]


def test_a_router_bills_what_its_tree_does(tmp_path: Path) -> None:
    """Trained, saved and read again, it answers a question at each price of its pool."""
    import hierrouter as hr

    reply = Reply(completion("7", usage=USAGE))
    with serving(Server(lambda *_: reply)) as server:
        fill_cache(pool_of(server.url, **FURTHER), QUERIES, tmp_path / "cache")
        tree = hr.open(tmp_path / "cache", encoder="hashed-ngrams")
        run = hr.train(tree, alpha=0.1, algo="value", out=tmp_path / "run")
        with hr.Router(run.folder, allow_endpoints=["127.0.0.1"]) as router:
            assert router.policy.origin.rate == tuple(map(tuple, tree.rate.tolist()))
            result = router.route("What is 9 + 9?")
    assert result.cost == pytest.approx(len(result.hops) * CALL_COST)
    assert all(hop.cost == pytest.approx(CALL_COST) for hop in result.hops)


# Imported bills.


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_an_imported_cost_is_kept_and_compared(suffix: str, tmp_path: Path) -> None:
    import hierrouter as hr

    rows = []
    for query in QUERIES:
        for model in ("lab-1b", "lab-9b"):
            row = {
                "query_id": query.id,
                "question": query.question,
                "answer": query.answers[0],
                "model": model,
                "response": query.answers[0],
                "cost": 0.01,
                "usage": json.dumps(USAGE) if model == "lab-1b" else None,
                "tokens_in": None if model == "lab-1b" else 2006,
                "tokens_out": None if model == "lab-1b" else 9,
            }
            rows.append(row)
    file = (tmp_path / "own").with_suffix(suffix)
    if suffix == ".csv":
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, [*rows[0]])
            writer.writeheader()
            writer.writerows(rows)
    else:
        file.write_text("\n".join(map(json.dumps, rows)))
    prices = {
        "lab-1b": {"in": 1e-6, "out": 1e-5, "cached": 1e-7, "call": 0.001},
        "lab-9b": {"in": 0.01 / 2015, "out": 0.01 / 2015},
    }
    result = hr.import_(file, cache=tmp_path / "cache", prices=prices)
    own = 6 * ((86 + 192 + 90) / 1e6 + 0.001)
    notes = [note for note in result.notes if "by the cost given" in note]
    assert len(notes) == 1
    assert notes[0].startswith(f"lab-1b costs {own:.4g} money by its tokens and rates, and 0.06")
    stored = ask_cache(
        tmp_path / "cache", "SELECT DISTINCT model, tokens_in, tokens_cached, cost_given FROM nodes"
    ).to_pylist()
    assert sorted(stored, key=lambda row: row["model"]) == [
        {"model": "lab-1b", "tokens_in": 2006, "tokens_cached": 1920, "cost_given": 0.01},
        {"model": "lab-9b", "tokens_in": 2006, "tokens_cached": None, "cost_given": 0.01},
    ]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"usage": {"prompt_tokens": -1, "completion_tokens": 2}}, "usage is no bill, -1 tokens"),
        ({"usage": None}, "tokens_in must be a whole number"),
        ({"usage": "no JSON"}, "tokens_in must be a whole number"),
    ],
)
def test_a_row_without_counts_is_named(cells: dict[str, Any], said: str, tmp_path: Path) -> None:
    import hierrouter as hr

    row = {
        "query_id": "1",
        "question": "q",
        "answer": "7",
        "model": "lab-1b",
        "response": "7",
        **cells,
    }
    (tmp_path / "own.jsonl").write_text(json.dumps(row))
    with pytest.raises(hr.InputError, match=said):
        hr.import_(tmp_path / "own.jsonl", cache=tmp_path / "cache")


# Live calls.


def test_a_streamed_thought_is_billed_and_kept_from_the_client() -> None:
    """The first token is that of the thought, and comes before the call ends."""
    texts: list[str] = []
    with serving(Server(lambda prompt, before: thinking(prompt, before))) as server:
        [spec, _] = pool_of(server.url).models

        async def streamed() -> Response:
            model = ServedModel(spec, Caller(spec, endpoint_of(spec)))
            try:
                return await model.answer("What is 1 + 1?", texts.append)
            finally:
                await model.close()

        response = asyncio.run(streamed())
    assert "".join(texts).strip() == response.text == "It is 2."
    assert response.thought == THOUGHT
    assert (response.tokens_out, response.bill.thoughts) == (11, 7)
    assert response.time is not None
    assert response.time.first_token_s is not None
    assert 0 < response.time.first_token_s <= response.time.seconds
