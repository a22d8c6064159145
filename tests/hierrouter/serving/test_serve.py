"""The official client gets the router's answers, and its errors."""

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx2
import openai
import pytest

from hierrouter.engines import backend
from hierrouter.engines.generator import Failure, Response
from hierrouter.learning.config import Objective
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import load_texts
from hierrouter.runs.bundle import load_bundle
from hierrouter.runs.checkpoint import router_at
from hierrouter.serving import guard
from hierrouter.serving.results import Hop
from hierrouter.serving.router import Router
from tests.cli.pages import DOCS, blocks
from tests.conftest import Run, as_json, works
from tests.engines import Scripted, answers_in_order, scripted_answer
from tests.hierrouter.serving.serving import (
    GOOD,
    MODELS,
    QUESTION,
    Double,
    ask,
    figures_of,
    lines_of,
    over,
    run_in,
    served,
    user,
    with_server,
)
from tests.servers import Reply, Server, completion, good, late, refusal, serving

KEY = "sk-CANARY-1234"
TOKENS = ("tokens_in", "tokens_out")
T = TypeVar("T")


class Replay(NamedTuple):
    question: str
    answer: str
    route: str
    cost: float


@pytest.fixture(scope="module")
def replays(live_run: Path, testbed_cache: Path) -> list[Replay]:
    """Test questions, and what the router makes of them in the tree."""
    fold = OpenTree(cache=testbed_cache).run().split("test")
    ends = router_at(live_run, None).endings(fold).argmax(axis=1).tolist()
    return [
        Replay(
            texts.question,
            texts.answers[end],
            fold.layout.name(end, fold.models),
            fold.cost[row, end],
        )
        for row, (texts, end) in enumerate(zip(load_texts(testbed_cache, fold), ends, strict=True))
    ]


@pytest.fixture(scope="module")
def server_and_log(
    live_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """Address of a server, and its log."""
    log = tmp_path_factory.mktemp("log") / "requests.jsonl"
    with served(Router(live_run), log=log) as url:
        yield url, log


@pytest.fixture(scope="module")
def url(server_and_log: tuple[str, Path]) -> str:
    return server_and_log[0]


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)


@pytest.fixture(scope="module")
def hops(live_run: Path) -> tuple[Hop, ...]:
    """The two calls that the router makes for `QUESTION`."""
    with Router(live_run) as router:
        return router.route(QUESTION).hops


def test_many_clients_at_once_get_what_the_replayed_tree_has(
    url: str, replays: list[Replay]
) -> None:
    async def ask_all() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            create = client.chat.completions.create
            return await asyncio.gather(
                *(create(model="hierrouter", messages=user(replay.question)) for replay in replays)
            )

    for answer, replay in zip(asyncio.run(ask_all()), replays, strict=True):
        [choice] = answer.choices
        extension = answer.model_extra["hierrouter"]
        assert choice.finish_reason in ("stop", "length")
        assert (choice.message.content, extension["route"]) == (replay.answer, replay.route)
        assert extension["cost"] == pytest.approx(replay.cost)


def test_streams_are_the_same(client: openai.OpenAI, replays: list[Replay]) -> None:
    """Without `include_usage` each chunk has a choice, as the usual loop over a stream wants."""
    for replay, usage in zip(replays[:6], [True, False] * 3, strict=True):
        stream = client.chat.completions.create(
            model="hierrouter",
            messages=user(replay.question),
            stream=True,
            stream_options={"include_usage": usage},
        )
        chunks = list(stream)
        if usage:
            last = chunks.pop()
            assert not last.choices
            assert last.usage and last.usage.total_tokens > 0
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == replay.answer
        assert chunks[-1].choices[0].finish_reason in ("stop", "length")
        assert chunks[-1].model_extra and ">" in chunks[-1].model_extra["hierrouter"]["route"]


def test_route_and_cost_are_in_header_and_body(client: openai.OpenAI) -> None:
    turns = [*user("hello"), {"role": "assistant", "content": "hi"}, *user(QUESTION)]
    reply = client.chat.completions.with_raw_response.create(
        model="hierrouter", messages=turns, temperature=0.3, max_tokens=5
    )
    answer = reply.parse()
    extension = answer.model_extra["hierrouter"]
    assert reply.headers["x-hierrouter-route"] == extension["route"]
    assert float(reply.headers["x-hierrouter-cost"]) == pytest.approx(extension["cost"])
    assert reply.headers["x-hierrouter-ignored"] == "max_tokens, temperature"
    assert extension["route"] == ">".join(step["model"] for step in extension["steps"])
    assert answer.usage
    assert answer.usage.prompt_tokens == sum(step["tokens_in"] for step in extension["steps"]) > 20
    assert answer.usage.completion_tokens == sum(step["tokens_out"] for step in extension["steps"])
    assert "response" not in extension["steps"][0]


def decide(url: str, question: str, answers: Sequence[dict[str, Any]], **settings: Any) -> Any:
    body = {"messages": user(question), "answers": list(answers), **settings}
    return httpx2.post(f"{url}/v1/decide", json=body, timeout=60)


def test_decide_gives_the_same_route_to_a_client_that_makes_the_calls(
    url: str, replays: list[Replay], testbed_cache: Path
) -> None:
    fold = OpenTree(cache=testbed_cache).run().split("test")
    rows = zip(replays[:20], load_texts(testbed_cache, fold)[:20], strict=True)
    for row, (replay, texts) in enumerate(rows):
        answers: list[dict[str, Any]] = []
        path: tuple[int, ...] = ()
        decision: dict[str, Any] = {"last": False}
        while not decision["last"]:
            decision = decide(url, replay.question, answers).json()
            assert decision["messages"][0]["content"].startswith(replay.question)
            assert sum(decision["chances"].values()) == pytest.approx(1)
            path = (*path, fold.models.index(decision["call"]))
            node = fold.layout.node(path)
            counts = {name: int(getattr(fold, name)[row, node]) for name in TOKENS}
            answers.append({"model": decision["call"], "content": texts.answers[node], **counts})
        assert ">".join(answer["model"] for answer in answers) == replay.route
        assert answers[-1]["content"] == replay.answer
        assert decision["expected"] is None  # a network does not say
        assert decision["best_probability"] is None
    refused = decide(url, replay.question, answers)
    assert refused.status_code == 400
    assert "nothing is left to decide" in refused.json()["error"]["message"]


def test_the_client_of_the_docs_gets_the_answer_of_the_server(
    url: str, replays: list[Replay], live_run: Path
) -> None:
    client = blocks("python", DOCS / "live.md")[1]
    namespace: dict[str, Any] = {}
    exec(client, namespace)
    pool = load_bundle(live_run).pool
    models = {spec.name: backend(spec.backend).load(spec) for spec in pool.models}

    def ask(model: str, messages: list[dict[str, str]]) -> tuple[str, int, int]:
        [answer] = answers_in_order(models[model], [messages[-1]["content"]])
        assert isinstance(answer, Response)
        return answer.text, answer.tokens_in, answer.tokens_out

    for replay in replays[:5]:
        assert namespace["route"](replay.question, ask, url) == replay.answer


def test_a_value_model_predicts_quality_and_cost_of_each_action(
    testbed_cache: Path, tmp_path: Path
) -> None:
    run = run_in(tmp_path, OpenTree(cache=testbed_cache).run(), Objective(0.1))
    router = Router(run, load=False)  # no model is needed
    with served(router) as url:
        decision = decide(url, QUESTION, []).json()
        other = decide(url, QUESTION, [], unavailable=[decision["call"]]).json()
    expected = decision["expected"]
    reward = {name: values["quality"] - 0.1 * values["cost"] for name, values in expected.items()}
    assert decision["call"] == max(reward, key=reward.__getitem__)
    assert all(values["cost"] > 0 for values in expected.values())
    assert 0 < decision["best_probability"] < 1
    assert other["call"] != decision["call"] and other["best_probability"] is None


ANSWER = {"model": "calc", "content": "19", "tokens_in": 9, "tokens_out": 2}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([{**ANSWER, "model": "cals"}], "no model of the router: cals; did you mean calc"),
        ([{**ANSWER, "tokens_in": -1}], "answers.0.tokens_in"),
        ([{**ANSWER, "tokens_out": 1.5}], "answers.0.tokens_out"),
        ([{**ANSWER, "text": "19"}], "answers.0.text"),
        ([{**ANSWER, "finish_reason": "tired"}], "answers.0.finish_reason"),
        ([{"model": "calc"}], "answers.0.content"),
        ("19", "answers"),
    ],
)
def test_invalid_answers_are_refused(url: str, answers: Any, message: str) -> None:
    reply = httpx2.post(f"{url}/v1/decide", json={"messages": user("x"), "answers": answers})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(message)


def test_models_are_listed_and_nothing_else_is_there(client: openai.OpenAI, url: str) -> None:
    assert [model.id for model in client.models.list()] == ["hierrouter"]
    assert client.models.retrieve("hierrouter").id == "hierrouter"
    with pytest.raises(openai.NotFoundError, match="model not found: 'gpt'"):
        client.models.retrieve("gpt")
    reply = httpx2.get(f"{url}/v1/embeddings")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, None)
    assert httpx2.get(f"{url}/v1/chat/completions").status_code == 405
    assert httpx2.get(f"{url}/docs").status_code == 404  # it would load scripts from elsewhere


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "JSON"),
        (b"[]", 400, "dictionary|object"),
        (b"\xff\xfe", 400, ""),
        ({}, 400, "messages"),
        ({**GOOD, "stream": True, "messages": []}, 400, "no message"),
        ({**GOOD, "messages": "hello"}, 400, "messages"),
        ({**GOOD, "messages": user("word " * 200_000)}, 400, "exceed the window"),
        ({**GOOD, "model": "nope"}, 404, "model not found: 'nope'"),
        ({**GOOD, "model": "a\nb\ud800"}, 404, "model not found"),
        ({**GOOD, "model": "hierrouter@x"}, 404, "model not found"),
        ({**GOOD, "model": "hierrouter@0.7"}, 404, "model not found"),
        ({**GOOD, "hierrouter": {"alpha": 0.7}}, 400, "alpha 0.1 alone"),
        ({**GOOD, "n": 2}, 400, "n: "),
        ({**GOOD, "n": 0}, 400, "^n: "),
        ({**GOOD, "temperature": -1}, 400, "^temperature: "),
        ({**GOOD, "temperature": "hot"}, 400, "^temperature: "),
        ({**GOOD, "max_tokens": 0}, 400, "^max_tokens: "),
        ({**GOOD, "stop": 3}, 400, "^stop"),
        ({**GOOD, "top_p": 2}, 400, "^top_p: "),
        ({**GOOD, "seed": "x"}, 400, "^seed: "),
        ({**GOOD, "tools": [{}]}, 400, "no model takes tools"),
        ({**GOOD, "hierrouter": {"alpa": 1}}, 400, "alpa"),
        ({**GOOD, "hierrouter": {"alpha": -1}}, 400, "alpha"),
        (b'{"messages": "' + b"x" * 8_000_001 + b'"}', 413, "8,000,000 bytes"),
    ],
)
def test_a_bad_request_gets_an_error_as_openai_has_it(
    url: str, body: object, status: int, message: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    reply = httpx2.post(f"{url}/v1/chat/completions", content=content, headers=headers, timeout=60)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert re.search(message, error["message"]), error
    assert "\n" not in error["message"]
    assert ask(url).status_code == 200


def test_a_client_that_leaves_in_the_middle_disturbs_nobody(url: str) -> None:
    address = urlsplit(url)
    body = json.dumps({**GOOD, "stream": True}).encode()
    for _ in range(5):
        with socket.create_connection((address.hostname, address.port)) as connection:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\n"
            kind = f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n\r\n"
            connection.sendall((head + kind).encode() + body)
            connection.recv(10)
    assert ask(url).status_code == 200


def test_an_answer_is_counted_and_a_line_of_the_log(server_and_log: tuple[str, Path]) -> None:
    url, log = server_and_log
    answer = ask(url).json()
    assert httpx2.get(f"{url}/ready").json() == {
        "status": "ready",
        "models": dict.fromkeys(MODELS, "up"),
    }
    text = httpx2.get(f"{url}/metrics").text
    assert 'hierrouter_requests_total{status="200"}' in text
    assert 'hierrouter_calls_total{model="calc"}' in text
    assert "hierrouter_router_seconds_bucket" in text
    [line] = [line for line in lines_of(log) if line["id"] == answer["id"]]
    assert line["question"] == QUESTION
    assert line["answer"] == answer["choices"][0]["message"]["content"] == "19"
    assert [step["propensity"] for step in line["steps"]] == [1, 1]


def test_a_server_with_a_key_requires_it(live_run: Path) -> None:
    with served(Router(live_run), key=KEY) as url:
        for key in ("none", "sk-other"):
            reply = httpx2.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
            assert reply.status_code == 401
            assert reply.json()["error"]["code"] == "invalid_api_key"
            assert KEY not in reply.text
        assert httpx2.get(f"{url}/metrics").status_code == 401
        assert httpx2.get(f"{url}/live").status_code == 200
        assert openai.OpenAI(base_url=f"{url}/v1", api_key=KEY).models.list().data


FAILED = "hierrouter_failed_calls_total"


@pytest.mark.parametrize(
    ("fault", "message", "stream"),
    [
        (refusal(500, "oh no"), "500: oh no", True),
        (late(good(""), 60), "timed out after 0.5 s", True),
        (None, "cannot connect|refused", False),  # the server is gone
    ],
)
def test_an_upstream_fault_is_502_and_no_other_model_answers(
    live_run: Path, tmp_path: Path, fault: Reply | None, message: str, stream: bool
) -> None:
    log = tmp_path / "requests.jsonl"
    with serving(Server(lambda prompt, before: fault or good(prompt))) as upstream:
        pool = with_server(live_run, upstream, "calc", timeout_s=0.5, attempts=2)
        router = Router(live_run, pool)
        if fault is None:
            upstream.stop()
        with served(router, log=log) as url:
            reply = ask(url, stream=stream)
            assert figures_of(url, FAILED) == {"calc": 1.0}
            assert not figures_of(url, "hierrouter_calls_total")  # nobody answered in its place
    assert reply.status_code == 502, reply.text
    [line] = lines_of(log)
    assert (line["status"], line["question"], line["steps"]) == (502, QUESTION, [])
    assert "instead_of" not in line
    error = reply.json()["error"]
    assert error["type"] == "upstream_error"
    assert re.search(f"calc gave no answer: .*({message})", error["message"])


def test_models_that_fail_are_counted_logged_and_named(live_run: Path, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    broken = {"calc"}

    def script(model: str, prompt: str) -> Response | Failure:
        return (
            Failure("error", f"no {model}") if model in broken else scripted_answer(model, prompt)
        )

    engines = Scripted(script)
    with served(Router(live_run, engines=engines), reroute=True, log=log) as url:
        rerouted = ask(url).json()["hierrouter"]
        assert "calc" not in rerouted["route"].split(">")
        assert rerouted["steps"][0]["instead_of"] == [{"model": "calc", "reason": "no calc"}]
        assert rerouted["steps"][0]["propensity"] is None
        before = figures_of(url, FAILED)["calc"]
        broken |= set(MODELS)
        engines.asked.clear()
        assert ask(url).status_code == 502
        assert figures_of(url, FAILED) == {**dict.fromkeys(MODELS, 1.0), "calc": before + 1}
    line = lines_of(log)[-1]
    *earlier, last = [model for model, _ in engines.asked]
    assert line["instead_of"] == [{"model": name, "reason": f"no {name}"} for name in earlier]
    assert line["error"] == f"{last} gave no answer: no {last}"


@contextmanager
def streaming(
    run: Path, first: Hop, reply: Callable[[int], Reply], *names: str, **settings: Any
) -> Iterator[str]:
    """A server where a stream, so the last call, gets this reply, by its number.

    `first`: the call before it; it is answered as here; `names`: of the models that a server has;
    without any all of them.
    """

    def script(prompt: str, before: int) -> Reply:
        streams = sum(request.get("stream", False) for request in upstream.requests)
        is_last = upstream.requests[-1].get("stream", False)
        return reply(streams) if is_last else Reply(completion(first.response.text))

    with serving(Server(script)) as upstream:
        pool = with_server(run, upstream, *names, attempts=1)
        with served(Router(run, pool), **settings) as url:
            yield url


def events(reply: httpx2.Response) -> list[Any]:
    """Of a stream that does not end well."""
    assert "[DONE]" not in reply.text
    return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("reroute", [False, True])
def test_no_other_model_continues_an_answer_that_was_begun(
    live_run: Path, hops: tuple[Hop, ...], reroute: bool
) -> None:
    broken = Reply(completion("one two three four"), cut=True)
    first, last = hops
    with streaming(live_run, first, lambda _: broken, last.model, reroute=reroute) as url:
        reply = ask(url, stream=True)
    assert reply.status_code == 200  # its first words were out by then
    assert events(reply)[1]["choices"][0]["delta"]["content"] == "one "
    assert "the answer broke off" in events(reply)[-1]["error"]["message"]


def test_an_answer_that_broke_off_hides_no_failure_before_it(
    live_run: Path, tmp_path: Path, hops: tuple[Hop, ...]
) -> None:
    """The last hop: one model refuses, the next breaks off after its first words."""
    log = tmp_path / "requests.jsonl"
    broken = Reply(completion("one two three"), cut=True)
    replies = {1: refusal(400), 2: broken}
    with streaming(live_run, hops[0], replies.__getitem__, reroute=True, log=log) as url:
        ask(url, stream=True)
        counted = figures_of(url, FAILED)
    [line] = lines_of(log)
    [refused] = line["instead_of"]
    assert "broke off" in line["error"]
    assert (len(counted), counted[refused["model"]]) == (2, 1)


JUNK_STREAMS = (
    "{oops",
    '{"model": "served", "choices": [null]}',
    '{"model": "served", "choices": [{"delta": "x"}]}',
    "[1]",
    '{"model": "other", "choices": [{"delta": {"content": "x"}}]}',
)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_server_that_streams_junk_ends_in_an_error(
    live_run: Path, hops: tuple[Hop, ...], has_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each time, though decisions would do without such a model from the first time on.
    monkeypatch.setattr(Router, "unavailable_models", lambda self: frozenset())
    start = 'data: {"model": "served", "choices": [{"delta": {"content": "one "}}]}\n\n' * has_begun
    first, last = hops

    def reply(number: int) -> Reply:
        body = f"{start}data: {JUNK_STREAMS[number - 1]}\n\n"
        return Reply(body, headers={"Content-Type": "text/event-stream"})

    with streaming(live_run, first, reply, last.model) as url:
        for junk in JUNK_STREAMS:
            response = ask(url, stream=True)
            assert response.status_code == (200 if has_begun else 502), (junk, response.text)
            error = (events(response)[-1] if has_begun else response.json())["error"]
            assert error["type"] == "upstream_error", junk


@pytest.mark.parametrize("stream", [False, True])
def test_calls_before_an_unexpected_error_are_logged(
    live_run: Path, tmp_path: Path, stream: bool
) -> None:
    log = tmp_path / "requests.jsonl"
    answers = iter([scripted_answer("m", "once")])
    with served(over(live_run, Double(lambda prompt: next(answers))), log=log) as url:
        answer = ask(url, stream=stream)
        # Refused, so of no concern to the log.
        assert ask(url, hierrouter={"alpha": 0.7}).status_code == 400
    assert answer.status_code == 500
    [line] = lines_of(log)
    assert (line["status"], len(line["steps"])) == (500, 1)
    assert line["error"].startswith("unexpected: ")


@pytest.mark.parametrize(
    "extra",
    [
        {"stream": None, "n": None, "logprobs": False, "response_format": {"type": "text"}},
        {"tools": [], "tool_choice": "none", "user": "x"},
        {"é€": 1, "a\r\nSet-Cookie: x": 1},
        {f"key{n}": 1 for n in range(5_000)},
    ],
)
def test_settings_that_ask_for_nothing_are_accepted(url: str, extra: dict[str, object]) -> None:
    reply = ask(url, **extra)
    assert reply.status_code == 200, reply.text
    assert "set-cookie" not in reply.headers
    assert len(reply.headers.get("x-hierrouter-ignored", "")) < 3_000


def test_a_full_disk_costs_log_lines_but_no_answers(live_run: Path) -> None:
    with served(over(live_run, Double()), log=Path("/dev/full")) as url:
        assert ask(url).status_code == 200


class Gate:
    """Holds whoever comes until it is opened."""

    def __init__(self) -> None:
        self.come = threading.Event()
        self.open = threading.Event()

    def through(self, value: T) -> T:
        self.come.set()
        assert self.open.wait(60)
        return value


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()  # nobody is left waiting


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_a_client_that_left_are_cancelled(
    live_run: Path, stream: bool, gate: Gate
) -> None:
    """The first call is answered after its caller has left, so the second one is not made."""
    with (
        serving(Server(lambda prompt, before: gate.through(good(prompt)))) as upstream,
        served(Router(live_run, with_server(live_run, upstream))) as url,
    ):
        with pytest.raises(httpx2.ReadTimeout):
            ask(url, timeout=0.4, stream=stream)
        while "499" not in figures_of(url, "hierrouter_requests_total"):
            time.sleep(0.01)
        gate.open.set()
        other = ask(url, messages=user("compute 1+1"))  # takes as long as the second call would
    assert other.status_code == 200
    assert sum(QUESTION in prompt for prompt in upstream.asked) <= 1


def test_a_request_beyond_the_limit_gets_503_with_retry_after(live_run: Path, gate: Gate) -> None:
    with (
        serving(Server(lambda prompt, before: gate.through(good(prompt)))) as upstream,
        served(Router(live_run, with_server(live_run, upstream)), max_requests=1) as url,
        ThreadPoolExecutor(1) as other,
    ):
        first = other.submit(ask, url)
        assert gate.come.wait(60)
        busy = ask(url)
        assert (busy.status_code, busy.headers["Retry-After"]) == (503, "1")
        assert busy.json()["error"]["code"] == "overloaded"
        assert "1 requests are under way" in busy.json()["error"]["message"]
        assert httpx2.get(f"{url}/live").status_code == 200
        gate.open.set()
        assert first.result().json()["choices"] == ask(url).json()["choices"]


def test_off_policy_reads_the_log(live_run: Path, tmp_path: Path, hierrouter: Run) -> None:
    def script(model: str, prompt: str) -> Response | Failure:
        return Failure("error", "no") if model == "facts" else scripted_answer(model, prompt)

    log = tmp_path / "requests.jsonl"
    with served(Router(live_run, engines=Scripted(script)), log=log, seed=3) as url:
        for n in range(12):
            ask(url, messages=user(f"compute {n}+{n}"))
    lines = lines_of(log)
    answered = [line for line in lines if line["status"] == 200]
    assert len(lines) == 12
    assert 0 < len(answered) < 12
    log.write_text("".join(json.dumps({**line, "quality": 1.0}) + "\n" for line in lines))
    flags = ["--log", log, "--checkpoint", live_run, "--format", "json"]
    done = works(hierrouter("off-policy", *flags, cwd=tmp_path))
    assert as_json(done)["episodes"] == len(answered)
    assert f"{12 - len(answered)} lines are left out" in done.stderr


def test_a_request_whose_body_never_comes_times_out(
    live_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BODY_TIMEOUT_S", 0.5)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
    with served(Router(live_run)) as url, ExitStack() as stack:
        port = urlsplit(url).port
        for _ in range(64):
            connection = stack.enter_context(socket.create_connection(("localhost", port)))
            connection.sendall(head)
        time.sleep(1.5)
        assert ask(url).status_code == 200
        assert b"408" in connection.recv(100)
