"""Replies that no honest server sends, and servers that refuse what we ask: each costs its call."""

import asyncio
import gzip
import itertools
import json
import re
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines import backend, identify_pool
from hierrouter.engines.dialects import MEMORY, Complaint, Dialect, other_url, read_finish
from hierrouter.engines.endpoint import PROBE_PROMPT, Caller
from hierrouter.engines.endpoint_client import parse_retry_after, reply_limit
from hierrouter.engines.generator import Failure, Outage, Response
from hierrouter.engines.identity import served_identity
from hierrouter.pools.files import stored_pool
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec, Pool, Role, RoleGeneration
from hierrouter.questions.query import Query
from hierrouter.replay.inspection import ask_cache
from hierrouter.replay.stored_pool import open_pool
from hierrouter.serving.models import CallFailed
from hierrouter.serving.remote_model import ServedModel
from hierrouter_cache.errors import WorldError
from hierrouter_cache.reader import CacheReader
from tests.servers import MODEL, Reply, Server, completion, good, pieces, refusal, serving

pytestmark = pytest.mark.usefixtures("short_waits")
PROMPTS = [f"question {n}" for n in range(6)]
Write = Callable[[Any], None]
MAX_TOKENS = 8


def spec(url: str, generation: Generation | None = None, **endpoint: Any) -> ModelSpec:
    where = Endpoint(url, **{"concurrency": 1, "attempts": 2, "timeout_s": 20.0, **endpoint})
    generation = generation or Generation(MAX_TOKENS)
    return ModelSpec("m", MODEL, 0.1, backend="openai", generation=generation, endpoint=where)


@contextmanager
def raw_server(write: Write) -> Iterator[tuple[str, list[str]]]:
    """A server that writes all bytes of its reply to one prompt itself; its address, and prompts.

    All other prompts get good answers.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply({"data": [{"id": MODEL}]})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = request["messages"][0]["content"]
            asked.append(prompt)
            if prompt != PROMPTS[1]:
                body = good(prompt).body
                assert isinstance(body, dict)
                self.reply(body)
                return
            self.close_connection = True
            with suppress(OSError):  # the caller has had enough
                write(self.wfile)

        def reply(self, value: Mapping[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    MEMORY.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
        finally:
            server.shutdown()
            thread.join()


def packed(coding: str, body: bytes) -> Write:
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {len(body)}\r\n\r\n"
    return lambda wire: wire.write(head.encode() + body)


def text_of(size: int) -> bytes:
    return json.dumps(completion("a" * size)).encode()


def endless(head: str, piece: bytes) -> Write:
    """A reply in chunks that never ends."""

    def write(wire: Any) -> None:
        wire.write(f"HTTP/1.1 200 OK\r\n{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"%x\r\n%s\r\n" % (len(piece), piece)
        while True:
            wire.write(chunk)

    return write


BOMB = 64_000_000
EVENTS = "Content-Type: text/event-stream\r\n"
LARGE: dict[str, tuple[Write, str]] = {
    "gzip": (packed("gzip", gzip.compress(text_of(BOMB))), "more than 8.0 MB"),
    "deflate": (packed("deflate", zlib.compress(text_of(BOMB))), "more than 8.0 MB"),
    "gzip twice": (
        packed("gzip, gzip", gzip.compress(gzip.compress(text_of(BOMB)))),
        "more than 8.0 MB",
    ),
    "a row of gzip members": (
        packed("gzip", gzip.compress(b" ") * 500_000),
        "more than 8.0 MB|broken JSON",
    ),
    "not packed": (packed("identity", text_of(9_000_000)), "more than 8.0 MB"),
    "without an end": (endless("", b" " * 65_536), "more than 8.0 MB"),
    "brotli": (packed("br", b"\x0b\x02\x80"), "packed as br, which was not asked for"),
    "zstd": (packed("zstd", b"\x28\xb5\x2f\xfd"), "packed as zstd, which was not asked for"),
    "broken gzip": (packed("gzip", b"no gzip at all"), "was cut: .*incorrect header"),
    "an error": (
        lambda wire: wire.write(
            b"HTTP/1.1 400 No\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 9**7 * 2
        ),
        "more than 8.0 MB",
    ),
    "a header": (
        lambda wire: wire.write(b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 9_000_000 + b"\r\n\r\n{}"),
        "was cut",
    ),
    "many headers": (
        lambda wire: wire.write(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 900_000 + b"\r\n{}"),
        "was cut",
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_reply_is_bounded_before_it_is_unpacked(name: str) -> None:
    """Its call fails with one line, the others are answered, and memory stays small."""
    write, said = LARGE[name]
    with raw_server(write) as (url, _):
        generator = backend("openai").load(spec(url))
        tracemalloc.start()
        answers = dict(generator.generate(PROMPTS))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    failure = answers.pop(1)
    assert isinstance(failure, Failure)
    assert failure.status == "error"
    assert re.search(said, failure.detail), failure.detail
    assert all(isinstance(answer, Response) for answer in answers.values())
    assert len(answers) == len(PROMPTS) - 1
    assert peak < 60_000_000


STREAMS: dict[str, Write] = {
    "a line without an end": endless(EVENTS, b"data: " + b"a" * 65_536),
    "lines without an event": endless(EVENTS, b"data: a\n" * 4_096),
    "comments": endless(EVENTS, b": working\n\n" * 4_096),
    "empty pieces": endless(EVENTS, b'data: {"choices": []}\n\n' * 1_024),
    "gzip": packed("gzip", gzip.compress(b"data: " + b"a" * BOMB)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_bounded(name: str) -> None:
    with raw_server(STREAMS[name]) as (url, _):
        began = time.monotonic()
        if name != "empty pieces":  # it would take ten times as long
            tracemalloc.start()
        with pytest.raises(CallFailed, match=r"more than (8\.0 MB|20,020 lines),? (and )?cut off"):
            live(spec(url), PROMPTS[1])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 100_000_000
    assert time.monotonic() - began < 15.0


def live(model: ModelSpec, prompt: str) -> tuple[Response, list[str]]:
    """The streamed answer to a prompt, and the pieces of its text."""
    texts: list[str] = []

    async def ask() -> Response:
        assert model.endpoint
        served = ServedModel(model, Caller(model, model.endpoint))
        try:
            return await served.answer(prompt, texts.append)
        finally:
            await served.close()

    try:
        return asyncio.run(ask()), texts
    except CallFailed as failed:
        failed.add_note("".join(texts))
        raise


def test_a_long_response_has_room() -> None:
    """The bound grows with the longest response that is asked for."""
    assert reply_limit({"max_tokens": 8}) == 8_008_000
    assert reply_limit({"max_completion_tokens": 100_000}) == 108_000_000
    assert reply_limit({"max_tokens": 8, "n": 4}) == 8_032_000
    assert reply_limit({}) == reply_limit({"max_tokens": "many"}) == 40_768_000
    body = {**completion("a" * 9_000_000, tokens_out=2_000_000)}
    with serving(Server(lambda prompt, before: Reply(body))) as server:
        generator = backend("openai").load(spec(server.url, Generation(2_000_000)))
        [(_, answer)] = generator.generate(["q"])
    assert isinstance(answer, Response)
    assert len(answer.text) == 9_000_000


# What a server refuses.


def refusing(field: str, status: int = 400, message: str = "", param: str | None = None) -> Server:
    """A server that refuses requests with a field."""
    server = Server()
    message = message or f"{field} is not supported"
    error = {"error": {"message": message, "param": param}}

    def script(prompt: str, before: int) -> Reply:
        return Reply(error, status) if field in server.requests[-1] else good(prompt)

    server.script = script
    return server


COMPLAINTS = [
    ("temperature", {"error": {"message": "only the default (1) value is accepted: temperature"}}),
    ("temperature", {"detail": [{"loc": ["body", "temperature"], "type": "extra_forbidden"}]}),
    ("top_p", {"error": {"message": "temperature and top_p cannot both be specified"}}),
    ("logprobs", {"error": {"message": "top_logprobs needs another model"}}),
    ("logprobs", {"error": {"message": "this model has no log probabilities"}}),
    ("top_k", {"error": {"message": "top_k must be at least 1"}}),
    ("min_p", "unknown field min_p, expected one of top_k, seed, logprobs"),
    ("seed", [{"error": {"message": "Unknown name seed: cannot find field"}}]),
    ("stream_options", {"error": {"message": "bad", "param": "stream_options.include_usage"}}),
    ("", {"error": {"message": "temperature must be between 0 and 2"}}),
    ("", {"error": {"message": "max_tokens is too large: 9. At most 8 are possible"}}),
    ("", {"error": {"message": "the prompt has no words"}}),
    ("", {"error": {"message": "use one of these supported parameters: top_k, min_p"}}),
    ("", 7),
    ("", {"detail": [{"loc": None}, 5, {"loc": ["body"]}]}),
    ("", {"error": {"error": {"error": []}}}),
]


@pytest.mark.parametrize(("field", "body"), COMPLAINTS, ids=range(len(COMPLAINTS)))
def test_the_field_that_an_error_is_about(field: str, body: Any) -> None:
    sampled = ("temperature", "top_p", "seed", "top_k", "min_p", "logprobs", "stream_options")
    sent: dict[str, Any] = dict.fromkeys((*sampled, "max_tokens"), 1)
    learned = Dialect().after(Complaint.of(body), sent)
    assert learned.refused == ({field} if field else set())
    assert learned.max_tokens_field == "max_tokens"


def test_an_error_of_any_length_is_searched_in_no_time() -> None:
    began = time.monotonic()
    for text in ("x" * 100_000, "max_tokens " * 10_000, "log " * 30_000, "only " * 20_000):
        Complaint.of({"error": {"message": text}})
    assert time.monotonic() - began < 1.0


def test_a_refused_field_is_learned_once_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with serving(refusing("repeat_penalty", param="repeat_penalty")) as server:
        for _ in range(2):
            generator = backend("openai").load(spec(server.url))
            assert len(dict(generator.generate(PROMPTS))) == len(PROMPTS)
        response, _ = live(spec(server.url), "once more")
    assert isinstance(response, Response)
    assert ["repeat_penalty" in request for request in server.requests] == [True, *[False] * 13]
    [line] = [record.getMessage() for record in caplog.records]
    assert line == f"model m at {server.address} accepts no repeat_penalty"


@pytest.mark.parametrize("field", ["messages", "model"])
def test_what_a_request_needs_is_never_left_out(field: str) -> None:
    with serving(refusing(field)) as server:
        generator = backend("openai").load(spec(server.url))
        with pytest.raises(Outage, match=f"{field} is not supported"):
            list(generator.generate(PROMPTS))
    assert server.asked[PROMPTS[0]] == 1


def test_streams_without_counts_become_answers_in_one_piece() -> None:
    """Refused stream_options or ignored ones: a call is paid for with a count, or counted again."""
    with serving(refusing("stream_options", 422)) as server:
        response, texts = live(spec(server.url), "compute 4+8")
        assert texts == [response.text]
        assert [bool(request.get("stream")) for request in server.requests] == [True, False]
        server.script = lambda prompt, before: Reply(completion("1 and 2", usage=None))
        response, texts = live(spec(server.url, tokenizer="testbed:calc"), "compute 4+8")
        assert len(texts) == 3
        assert response.tokens_out > 1


def test_a_stream_whose_usage_is_missing_is_no_answer_and_not_glued_to_another() -> None:
    server = Server()

    def script(prompt: str, before: int) -> Reply:
        body = good(prompt).body
        assert isinstance(body, dict)
        if not server.requests[-1].get("stream"):
            return Reply(body)
        events = [piece for piece in pieces(body) if not piece.get("usage")]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        return Reply(f"{text}data: [DONE]\n\n", headers={"Content-Type": "text/event-stream"})

    server.script = script
    with serving(server):
        with pytest.raises(CallFailed, match="broke off: answers come without usage") as caught:
            live(spec(server.url), "compute 4+8")
        # The text has been passed on, once.
        [note] = caught.value.__notes__
        body = good("compute 4+8").body
        assert isinstance(body, dict)
        assert note.strip() == body["choices"][0]["message"]["content"]
        assert server.asked["compute 4+8"] == 1
        # From now on it is asked for in one piece.
        response, texts = live(spec(server.url), "compute 5+8")
        assert texts == [response.text]


def test_a_refusal_in_the_middle_of_a_stream_begins_no_other_answer() -> None:
    server = Server()

    def script(prompt: str, before: int) -> Reply:
        body = good(prompt).body
        assert isinstance(body, dict)
        first, *_ = pieces(body)
        error = {"error": {"message": "logprobs is not supported", "code": 400}}
        text = f"data: {json.dumps(first)}\n\ndata: {json.dumps(error)}\n\n"
        return Reply(text, headers={"Content-Type": "text/event-stream"})

    server.script = script
    with serving(server), pytest.raises(CallFailed, match="logprobs is not supported"):
        live(spec(server.url), "compute 4+8")
    assert server.asked["compute 4+8"] == 1


# Settings without which a model answers otherwise.

QUERIES = [Query(str(n), "own", f"question {n}", ("7",), "train") for n in range(6)]


def test_answers_without_a_setting_have_an_identity_of_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A model that takes no temperature but its own: found by the first call, never mixed."""
    message = "Unsupported value: temperature does not accept 0 with this model, only the default"
    with serving(refusing("temperature", message=message, param="temperature")) as server:
        model = spec(server.url, deployment="hosted")
        before = served_identity(model)
        assert "left_out" not in before
        pool = Pool((model,), hops=1)
        summary = fill_cache(pool, QUERIES, tmp_path)
        assert served_identity(model) == {**before, "left_out": "temperature"}
        assert (summary.calls, summary.missing, summary.failed.total()) == (6, 0, 0)
        assert server.requests[-1].keys() >= {"max_tokens"}
        answered = [request for request in server.requests if "temperature" not in request]
        assert len(answered) == 6
        # Another process knows it from the plan, and has nothing to ask.
        MEMORY.clear()
        again = fill_cache(pool, QUERIES, tmp_path)
        assert (again.calls, again.earlier, len(server.requests)) == (0, 6, len(answered) + 1)
    rows = ask_cache(tmp_path, "SELECT DISTINCT call FROM nodes").to_pylist()
    assert len(rows) == 6
    lines = [record.getMessage() for record in caplog.records]
    assert any("accepts no temperature, so its answers are kept apart" in line for line in lines)


@pytest.mark.parametrize(
    ("own", "settings"),
    [("temperature", RoleGeneration(temperature=0.2)), ("top_p", RoleGeneration(top_p=0.2))],
)
def test_an_action_without_its_own_setting_has_an_identity_of_its_own(
    tmp_path: Path, own: str, settings: RoleGeneration
) -> None:
    """A model that takes no other sampling than its default, and an action that asks for one."""
    message = f"Unsupported value: {own}, only the default is supported"
    server = Server()

    def script(prompt: str, before: int) -> Reply:
        is_default = server.requests[-1].get(own, 1) == 1
        return good(prompt) if is_default else refusal(400, message, own)

    server.script = script
    with serving(server):
        model = spec(server.url, Generation(MAX_TOKENS, temperature=1.0), deployment="hosted")
        roles = (Role("cool@m", "m", "Solve.", generation=settings), Role("plain@m", "m", "Solve."))
        pool = Pool((model,), hops=1, per_tokens=1, roles=roles, encoder="hashed-ngrams")
        before = identify_pool(pool)
        assert before.keys() == {"m"}
        summary = fill_cache(pool, QUERIES, tmp_path)
        assert (summary.calls, summary.missing) == (18, 0)
        stored = stored_pool(CacheReader(tmp_path).latest_plan().pool, "plan")[1]
        assert stored == {**before, "cool@m": {**before["m"], "left_out": own}}
        assert identify_pool(pool) == stored
        steps = pool.tree_spec(stored).steps[0]
        assert steps[1] == pool.tree_spec(before).steps[0][1]
        assert steps[0] != pool.tree_spec(before).steps[0][0]
        count = len(server.requests)
        MEMORY.clear()
        again = fill_cache(pool, QUERIES, tmp_path)
        assert (again.calls, again.earlier, len(server.requests)) == (0, 18, count)
        plan = open_pool(CacheReader(tmp_path).latest_plan().pool)
        assert plan.spec.steps == pool.tree_spec(stored).steps


def test_a_setting_that_changes_nothing_changes_no_identity() -> None:
    refused = Dialect(refused=frozenset({"temperature", "top_p", "seed", "logprobs", "min_p"}))
    assert refused.left_out(Generation(8)) == ("temperature",)
    assert refused.left_out(Generation(8, temperature=1.0)) == ()
    assert refused.left_out(Generation(8, temperature=1.0, top_p=0.5)) == ("top_p",)
    penalties = Dialect(refused=frozenset({"repetition_penalty"}))
    assert penalties.left_out(Generation(8, repetition_penalty=1.5)) == ()
    penalties = Dialect(refused=frozenset({"repetition_penalty", "repeat_penalty"}))
    assert penalties.left_out(Generation(8, repetition_penalty=1.5)) == ("repetition_penalty",)


def test_one_model_without_counts_ends_itself_and_no_other(tmp_path: Path) -> None:
    """The others are collected; the exit code and one line say which model failed."""

    def script(prompt: str, before: int) -> Reply:
        request = server.requests[-1]
        return (
            Reply(completion("7", model="odd", usage=None))
            if request["model"] == "odd"
            else (good(prompt))
        )

    server = Server(script, listing=Reply({"data": [{"id": "odd"}, {"id": MODEL}]}))
    with serving(server):
        well = spec(server.url)
        odd = ModelSpec("odd", "odd", 0.1, backend="openai", endpoint=well.endpoint)
        pool = Pool((well, odd), hops=1)
        with pytest.raises(WorldError, match=r"without usage .*calls committed"):
            fill_cache(pool, QUERIES, tmp_path)
    asked = [request["messages"][0]["content"] for request in server.requests]
    assert len([request for request in server.requests if request["model"] == "odd"]) == 2
    assert asked.count(PROBE_PROMPT) == 1
    rows = ask_cache(tmp_path, "SELECT DISTINCT call, model FROM nodes").to_pylist()
    assert [row["model"] for row in rows] == ["m"] * len(QUERIES)


# Addresses, waits and ends.

URLS = [
    ("http://h:1", "http://h:1/v1"),
    ("http://h:1/", "http://h:1/v1"),
    ("http://h:1/api", "http://h:1/api/v1"),
    ("http://h:1/v1/chat/completions", "http://h:1/v1"),
    ("http://h:1/v1/models/", "http://h:1/v1"),
    ("http://h:1/v1", None),
    ("http://h:1/v1/", None),
    ("http://h:1/v1beta/openai", None),
    ("http://h:1/openai/v1", None),
]


@pytest.mark.parametrize(("stated", "other"), URLS)
def test_where_else_the_routes_may_be(stated: str, other: str | None) -> None:
    assert other_url(stated) == other


@pytest.mark.parametrize("end", ["", "/", "/v1/chat/completions"])
@pytest.mark.parametrize("missing", [404, 200])
def test_a_base_url_without_its_version_is_corrected(
    end: str, missing: int, caplog: pytest.LogCaptureFixture
) -> None:
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self, value: Any) -> None:
            paths.append(self.path)
            is_there = self.path in ("/v1/models", "/v1/chat/completions")
            body = json.dumps(value).encode() if is_there else b"<html>nothing</html>"
            self.send_response(200 if is_there else missing)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.answer({"data": [{"id": MODEL}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(completion("7"))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    MEMORY.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}{end}"
            answers = dict(backend("openai").load(spec(url)).generate(PROMPTS))
        finally:
            server.shutdown()
            thread.join()
    assert [answer for answer in answers.values() if not isinstance(answer, Response)] == []
    assert [path for path in paths[1:] if not path.startswith("/v1/")] == []
    assert len(paths) == 2 + len(PROMPTS)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.endswith("/v1, as base_url should say")


NOW = 1_795_800_000.0
WAITS = [
    ("2", "", 2.0),
    ("0", "", 0.0),
    ("-5", "", 0.0),
    ("1e400", "", None),
    ("nan", "", None),
    ("soon", "", None),
    ("", "", None),
    # The server's clock is a day ahead, or a year behind: its own date tells.
    (formatdate(NOW + 86_400 + 7, usegmt=True), formatdate(NOW + 86_400, usegmt=True), 7.0),
    (formatdate(NOW - 3e7 + 7, usegmt=True), formatdate(NOW - 3e7, usegmt=True), 7.0),
    (
        "Fri, 31 Dec 9999 23:59:59 GMT",
        formatdate(NOW, usegmt=True),
        pytest.approx(2.516e11, rel=0.01),
    ),
    ("Fri, 31 Dec 99999 23:59:59 GMT", "", None),
]


@pytest.mark.parametrize(("header", "date", "seconds"), WAITS, ids=range(len(WAITS)))
def test_how_long_a_server_asks_to_wait(header: str, date: str, seconds: float | None) -> None:
    assert parse_retry_after(header, date) == seconds


ENDS = [
    ("stop", "stop", ""),
    ("EOS", "stop", ""),
    ("end_turn", "stop", ""),
    ("function_call", "stop", ""),
    ("tool_calls", "stop", ""),
    ("MAX_TOKENS", "length", ""),
    ("model_length", "length", ""),
    ("max_output_tokens", "length", ""),
    ("Length", "length", ""),
    ("content_filter", "stop", "filtered"),
    ("SAFETY", "stop", "filtered"),
    ("content_filter: PROHIBITED_CONTENT", "stop", "filtered"),
    ("refusal", "stop", "refusal"),
    (None, "stop", ""),
    ("", "stop", ""),
]


@pytest.mark.parametrize(("word", "reason", "kind"), ENDS)
def test_how_servers_say_why_a_response_ended(word: Any, reason: str, kind: str) -> None:
    assert read_finish(word, 3, 8) == (reason, kind)


def test_an_end_that_nobody_knows_is_none() -> None:
    assert read_finish(None, 8, 8).reason == "length"
    for word, tokens_out in itertools.product(("abort", "error", 7, [], {}), (3, None)):
        with pytest.raises(ValueError, match="finish_reason"):
            read_finish(word, tokens_out, 8)
    with pytest.raises(ValueError, match="finish_reason None"):
        read_finish(None, None, 8)


ODD_USAGES = [
    {"prompt_tokens": 9, "completion_tokens": float("inf")},
    {"prompt_tokens": float("nan"), "completion_tokens": 3},
    {"prompt_tokens": 10**30, "completion_tokens": 3},
    {"prompt_tokens": -1, "completion_tokens": 3},
    {"prompt_tokens": "nine", "completion_tokens": 3},
    {"prompt_tokens": [9], "completion_tokens": {}},
    {},
    None,
    [],
    "9 and 3",
    float("nan"),
]


@pytest.mark.parametrize("usage", ODD_USAGES, ids=range(len(ODD_USAGES)))
def test_an_impossible_usage_costs_its_call_or_is_counted_by_the_tokenizer(usage: Any) -> None:
    odd = Reply({**completion("19"), "usage": usage})
    with serving(
        Server(lambda prompt, before: odd if prompt == PROMPTS[2] else good(prompt))
    ) as server:
        answers = dict(backend("openai").load(spec(server.url)).generate(PROMPTS))
        assert isinstance(answers.pop(2), Failure)
        assert all(isinstance(answer, Response) for answer in answers.values())
        counting = backend("openai").load(spec(server.url, tokenizer="testbed:calc"))
        [(_, answer)] = counting.generate([PROMPTS[2]])
        assert isinstance(answer, Response)
        assert answer.tokens_out == 3
        assert "NaN" not in answer.bill.usage
        assert "Infinity" not in answer.bill.usage


def test_numbers_as_texts_are_numbers() -> None:
    usage = {"prompt_tokens": "9", "completion_tokens": "3", "total_tokens": 12.0}
    with serving(Server(lambda prompt, before: Reply(completion("x", usage=usage)))) as server:
        [(_, answer)] = backend("openai").load(spec(server.url)).generate(["q"])
    assert isinstance(answer, Response)
    assert (answer.tokens_in, answer.tokens_out) == (9, 3)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply({"error": {"message": "wrong key", "code": 401}}), "wrong key; is the API key"),
        (Reply({"error": "bad", "detail": "x"}), "an error: bad"),
        (Reply({"detail": "not here"}), "an error: not here"),
        (Reply({"object": "error", "message": "no", "code": 404}), "is the model there"),
        (refusal(500, "x" * 100_000), "answered 500: x{150}"),
        (Reply("<html>" + "a" * 100_000), "HTML"),
        (Reply('{"a":' * 5_000), "broken JSON"),
        (Reply("9" * 10_000), "broken JSON|no object"),
    ],
    ids=range(8),
)
def test_an_error_with_status_200_is_named_in_one_short_line(reply: Reply, said: str) -> None:
    with (
        serving(Server(lambda prompt, before: reply)) as server,
        pytest.raises(Outage, match=said) as caught,
    ):
        list(backend("openai").load(spec(server.url)).generate(PROMPTS))
    assert len(str(caught.value)) < 300
