"""Tools, images and settings go to the call that gives the answer, or to a named model."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from hierrouter.pools.pool import Pool
from hierrouter.serving.router import Router
from tests.hierrouter.serving.serving import (
    MODELS,
    QUESTION,
    ask,
    figures_of,
    lines_of,
    served,
    user,
    with_server,
)
from tests.servers import MODEL, Reply, Server, completion, good, refusal, serving

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 12}'}}
JSON = {"type": "json_object"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
SETTINGS = {"temperature": 0.3, "max_tokens": 5, "stop": ["\n"], "top_k": 7}


def able(run: Path, upstream: Server, **takes: tuple[Any, ...]) -> Pool:
    """All models of a run on a server, which takes more of some of them."""
    pool = with_server(run, upstream)
    models = (
        replace(model, endpoint=replace(model.endpoint, takes=takes.get(model.name, ())))
        for model in pool.models
    )
    return replace(pool, models=tuple(models))


@contextmanager
def passing(
    run: Path, upstream: Server | None = None, **takes: Any
) -> Iterator[tuple[str, Server]]:
    """A server over one that answers for all models, and that one."""
    with (
        serving(upstream or Server()) as upstream_server,
        served(Router(run, able(run, upstream_server, **takes))) as url,
    ):
        yield url, upstream_server


@pytest.mark.parametrize("stream", [False, True])
def test_decoding_settings_go_to_the_last_call_alone(live_run: Path, stream: bool) -> None:
    with passing(live_run) as (url, upstream):
        reply = ask(url, **SETTINGS, user="somebody", stream=stream)
    assert reply.status_code == 200, reply.text
    assert "x-hierrouter-ignored" not in reply.headers
    first, last = upstream.requests
    assert first["temperature"] == 0
    assert not {"stop", "top_k", "user"} & first.keys()
    assert {name: last.get(name) for name in SETTINGS} == SETTINGS
    assert "user" not in last


def test_a_local_model_decodes_as_its_pool_says(live_run: Path) -> None:
    with served(Router(live_run)) as url:
        reply = ask(url, **SETTINGS)
    assert reply.headers["x-hierrouter-ignored"] == "max_tokens, stop, temperature, top_k"


def script(prompt: str, before: int) -> Reply:
    """A server that calls a tool if it gets any."""
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    is_given = "tools" in scripted.requests[-1]
    return Reply(completion("", choices=[choice])) if is_given else good(prompt)


scripted = Server(script)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("able_one", MODELS)
def test_tools_go_to_a_model_that_takes_them(live_run: Path, able_one: str, stream: bool) -> None:
    """The router's own choice does not matter; the official client gets the call."""
    request: dict[str, Any] = {"model": "hierrouter", "messages": user(QUESTION), "tools": [TOOL]}
    with passing(live_run, scripted, **{able_one: ("tools",)}) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        if stream:
            chunks = list(client.chat.completions.create(**request, stream=True))
            [delta] = [
                chunk.choices[0].delta for chunk in chunks if chunk.choices[0].delta.tool_calls
            ]
            calls = delta.tool_calls
            reason = chunks[-1].choices[0].finish_reason
            route = chunks[-1].model_extra["hierrouter"]["route"]
        else:
            answer = client.chat.completions.create(**request)
            calls = answer.choices[0].message.tool_calls
            reason = answer.choices[0].finish_reason
            route = answer.model_extra["hierrouter"]["route"]
    assert route.split(">")[-1] == able_one
    assert reason == "tool_calls"
    assert calls[0].function.arguments == '{"a": 12}'


def test_an_image_goes_along_with_the_text(live_run: Path) -> None:
    content = [{"type": "text", "text": QUESTION}, IMAGE]
    takes = dict.fromkeys(MODELS, ("images", "response_format"))
    with passing(live_run, Anything(Reply(completion("a cat"))), **takes) as (url, upstream):
        reply = ask(url, messages=user(content), response_format=JSON)
    assert reply.status_code == 200, reply.text
    first, last = upstream.requests
    assert first["messages"][0]["content"].startswith(QUESTION)
    text, image = last["messages"][0]["content"]
    assert (image, last["response_format"]) == (IMAGE, JSON)
    assert text["text"].startswith(QUESTION)


class Anything(Server):
    """Answers whatever it is asked."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply = reply

    def completed(self, request: dict[str, Any]) -> Reply:
        self.requests.append(request)
        return self.reply


TURNS = [
    *user("add 12 and 7"),
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "19"},
]
AUDIO = {"type": "input_audio", "input_audio": {"data": "x"}}
UNROUTABLE: list[tuple[dict[str, Any], str]] = [
    ({"tools": [TOOL]}, "no model takes tools; name it in `takes`"),
    ({"response_format": JSON}, "no model takes response_format"),
    ({"messages": user([{"type": "text", "text": "x"}, IMAGE])}, "no model takes images"),
    ({"messages": TURNS, "tools": [TOOL]}, "a tool was called: messages[1]"),
    ({"messages": user([AUDIO])}, "content of type 'input_audio'"),
    ({"n": 3}, "n: 3 answers; a route gives one"),
    ({"logprobs": True}, "logprobs is not supported"),
]


@pytest.mark.parametrize(("body", "message"), UNROUTABLE)
def test_requests_that_no_route_can_satisfy_are_refused_or_forwarded(
    live_run: Path, tmp_path: Path, body: dict[str, Any], message: str
) -> None:
    with passing(live_run) as (url, upstream):
        refused = ask(url, **body)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith(message)
        assert not upstream.requests
    request = {"model": "hierrouter", "messages": user(QUESTION), **body}
    answer = completion("as asked")
    with serving(Anything(Reply(answer))) as upstream:
        log = tmp_path / "log"
        router = Router(live_run, with_server(live_run, upstream))
        with served(router, otherwise="facts", log=log) as url:
            reply = ask(url, **body)
            streamed = ask(url, **body, stream=True)
    assert reply.json() == answer
    assert reply.headers["x-hierrouter-otherwise"].startswith("facts; ")
    assert upstream.requests[0] == {**request, "model": MODEL}
    assert streamed.headers["x-hierrouter-otherwise"].startswith("facts; ")
    events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    deltas = [json.loads(event)["choices"] for event in events]
    assert "".join(d[0]["delta"].get("content") or "" for d in deltas if d).strip() == "as asked"
    lines = lines_of(log)
    assert [line["otherwise"] for line in lines] == ["facts"] * 2
    assert lines[0]["tokens_out"] == answer["usage"]["completion_tokens"]


def test_a_model_whose_window_is_too_small_is_skipped(live_run: Path) -> None:
    """Without `reroute`, too: a server refuses a long prompt before it does any work."""
    with served(Router(live_run)) as url:
        usual = ask(url).json()["hierrouter"]["route"].split(">")[0]

    def short(prompt: str, before: int) -> Reply:
        return refusal(400, "maximum context length is 5 tokens")

    with serving(Server(short)) as upstream:
        with served(Router(live_run, with_server(live_run, upstream, usual))) as url:
            body = ask(url).json()["hierrouter"]
        assert usual not in body["route"].split(">")
        assert body["steps"][0]["instead_of"][0]["model"] == usual
        everyone = with_server(live_run, upstream)
        with served(Router(live_run, everyone)) as url:
            refused = ask(url)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_forward_refused", [False, True])
def test_a_question_too_long_for_every_model_has_one_line_in_the_log(
    live_run: Path, tmp_path: Path, is_forward_refused: bool, stream: bool
) -> None:
    def short(prompt: str, before: int) -> Reply:
        is_forward = "user" in upstream.requests[-1]  # routed calls do not name the client
        if is_forward and not is_forward_refused:
            return good(prompt)
        return refusal(400, "maximum context length is 5 tokens")

    log = tmp_path / "log"
    with serving(Server(short)) as upstream:
        router = Router(live_run, with_server(live_run, upstream))
        with served(router, otherwise="facts", log=log) as url:
            reply = ask(url, user="somebody", stream=stream)
    assert len(upstream.requests) == len(MODELS) + 1
    [line] = lines_of(log)
    assert line["status"] == reply.status_code
    if is_forward_refused:
        assert reply.status_code == 502
        assert line["error"] == reply.json()["error"]["message"]
        assert line["question"] == QUESTION
        assert sorted(call["model"] for call in line["instead_of"]) == sorted(MODELS)
    else:
        assert reply.status_code == 200
        assert line["otherwise"] == "facts"
        assert "maximum context length" in line["reason"]


def stream_of(*events: str, ending: str = "\n") -> str:
    """The bytes of a stream with these events."""
    return "".join(event.replace("\n", ending) + 2 * ending for event in events)


def piece(text: str = "", **fields: Any) -> str:
    """An event with a piece of an answer, with a field that no client of OpenAI's knows."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, "odd": [1, {}]}
    return "data: " + json.dumps({"id": "x", "choices": [choice], **fields}, ensure_ascii=False)


LAST = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = 'data:{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}'
DONE = "data: [DONE]"
COMMENT = ": still at work"
EVENTS = (COMMENT, piece("Grüße "), "event: odd\ndata: no JSON", piece("日本", usage=None), LAST)


@contextmanager
def forwarding(run: Path, log: Path, *replies: Reply) -> Iterator[tuple[str, Anything]]:
    """A server that passes requests with tools on to one with these replies, the last for ever."""
    coming = list(replies)

    class Scripted(Anything):
        def completed(self, request: dict[str, Any]) -> Reply:
            super().completed(request)
            return coming.pop(0) if len(coming) > 1 else coming[0]

    with serving(Scripted(replies[0])) as upstream:
        assert isinstance(upstream, Anything)
        router = Router(run, with_server(run, upstream, "facts", attempts=3))
        upstream.requests.clear()
        with served(router, otherwise="facts", log=log) as url:
            yield url, upstream


def events_reply(*events: str, ending: str = "\n", cut: bool = False) -> Reply:
    headers = {"Content-Type": "text/event-stream; charset=utf-8"}
    return Reply(stream_of(*events, ending=ending), headers=headers, cut=cut)


ASKED = {"tools": [TOOL], "stream": True, "stream_options": {"include_usage": True}}
UNASKED = {"tools": [TOOL], "stream": True}


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("asked", [ASKED, UNASKED])
def test_a_stream_is_passed_on_byte_for_byte_and_counted(
    live_run: Path, tmp_path: Path, ending: str, asked: dict[str, Any]
) -> None:
    """All but the counts, where the client did not ask for them."""
    log = tmp_path / "log"
    reply = events_reply(*EVENTS, USAGE, DONE, ending=ending)
    with forwarding(live_run, log, reply) as (url, upstream):
        passed = ask(url, **asked)
        tokens = figures_of(url, "hierrouter_tokens_total")
        cost = figures_of(url, "hierrouter_cost_total")[""]
    expected = (*EVENTS, USAGE, DONE) if asked is ASKED else (*EVENTS, DONE)
    assert passed.content == stream_of(*expected, ending=ending).encode()
    [request] = upstream.requests
    assert request["stream_options"] == {"include_usage": True}
    [line] = lines_of(log)
    assert (line["tokens_in"], line["tokens_out"], line["status"]) == (7, 3, 200)
    assert "error" not in line
    assert cost == pytest.approx(line["cost"]) != 0
    assert tokens


@pytest.mark.parametrize(
    "reply",
    [
        events_reply(*EVENTS[:2], cut=True),
        events_reply(*EVENTS[:2]),  # it ends well, but no word says why
        events_reply(*EVENTS[:2], 'data: {"error": {"message": "out of memory"}}', DONE),
    ],
    ids=["cut", "no end", "error"],
)
def test_a_stream_that_breaks_is_never_glued_to_another_one(
    live_run: Path, tmp_path: Path, reply: Reply
) -> None:
    log = tmp_path / "log"
    whole = events_reply(*EVENTS, DONE)
    with forwarding(live_run, log, reply, whole) as (url, upstream):
        passed = ask(url, **UNASKED)
        failed = figures_of(url, "hierrouter_failed_calls_total")
    assert len(upstream.requests) == 1
    assert passed.text.startswith(stream_of(*EVENTS[:2]))
    rest = passed.text.removeprefix(stream_of(*EVENTS[:2]))
    assert json.loads(rest.removeprefix("data: "))["error"]["type"] == "upstream_error"
    assert "[DONE]" not in passed.text
    assert failed == {"facts": 1}
    [line] = lines_of(log)
    assert line["otherwise"] == "facts"
    assert line["error"]


def test_a_stream_that_has_not_begun_is_asked_for_again(live_run: Path, tmp_path: Path) -> None:
    replies = (refusal(500), events_reply(*EVENTS, DONE))
    with forwarding(live_run, tmp_path / "log", *replies) as (url, upstream):
        passed = ask(url, **UNASKED)
    assert len(upstream.requests) == 2
    assert passed.content == stream_of(*EVENTS, DONE).encode()


def test_counts_that_a_server_refuses_are_not_asked_for(live_run: Path, tmp_path: Path) -> None:
    """Then nobody knows what the answer costs, which is counted."""
    replies = (refusal(400, "Unrecognized field: stream_options"), events_reply(*EVENTS, DONE))
    with forwarding(live_run, tmp_path / "log", *replies) as (url, upstream):
        passed = ask(url, **UNASKED)
        uncounted = figures_of(url, "hierrouter_uncounted_total")
    assert "stream_options" in upstream.requests[0]
    assert "stream_options" not in upstream.requests[1]
    assert passed.content == stream_of(*EVENTS, DONE).encode()
    assert uncounted == {"": 1}


def test_an_end_that_a_server_leaves_out_is_added(live_run: Path, tmp_path: Path) -> None:
    with forwarding(live_run, tmp_path / "log", events_reply(*EVENTS)) as (url, _):
        assert ask(url, **UNASKED).content == stream_of(*EVENTS, DONE).encode()


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_passed_on_is_counted_and_logged(
    live_run: Path, tmp_path: Path, stream: bool
) -> None:
    log = tmp_path / "log"
    with forwarding(live_run, log, refusal(422, "no such tool")) as (url, _):
        passed = ask(url, tools=[TOOL], stream=stream)
        failed = figures_of(url, "hierrouter_failed_calls_total")
    assert passed.status_code == 502
    assert failed == {"facts": 1}
    [line] = lines_of(log)
    assert (line["otherwise"], line["status"]) == ("facts", 502)
    assert "no such tool" in line["error"]


def test_a_page_instead_of_a_stream_is_no_answer(live_run: Path, tmp_path: Path) -> None:
    plain = Reply(json.dumps(completion("whole")))
    with forwarding(live_run, tmp_path / "log", plain) as (url, upstream):
        passed = ask(url, **UNASKED)
    assert passed.status_code == 502
    assert "sends no stream" in passed.json()["error"]["message"]
    assert len(upstream.requests) == 1
