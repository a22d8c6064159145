"""The openai engine against a server that does what it is told, over real sockets."""

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import psutil
import pytest

from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines import backend
from hierrouter.engines.endpoint import PROBE_PROMPT
from hierrouter.engines.generator import Confidence, Failure, Outage, Response
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter.replay.inspection import ask_cache
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.reader import CacheReader
from tests.engines import answers_in_order, scripted_answer
from tests.servers import (
    HTML,
    JUNK,
    MODEL,
    Reply,
    Script,
    Server,
    completion,
    ended,
    good,
    late,
    refusal,
    serving,
)

PROMPTS = [f"question {n}" for n in range(40)]
GREEDY = Generation(8)
ALL_GOOD = [scripted_answer(MODEL, prompt) for prompt in PROMPTS]
CUT = Reply(completion("the answer"), cut=True)
pytestmark = pytest.mark.usefixtures("short_waits")


def spec(server: Server, generation: Generation = GREEDY, **endpoint: Any) -> ModelSpec:
    where = Endpoint(server.url, **endpoint)
    return ModelSpec("m", MODEL, 0.1, backend="openai", generation=generation, endpoint=where)


def load(server: Server, **endpoint: Any) -> Any:
    return backend("openai").load(spec(server, **endpoint))


@contextmanager
def scripted(script: Script | Reply, **settings: Any) -> Iterator[Server]:
    """A server with this script, or this reply to all."""
    asked = script if callable(script) else lambda prompt, before: script
    with serving(Server(asked, **settings)) as server:
        yield server


def well(prompt: str, before: int) -> Reply:
    return good(prompt)


def after(seconds: float) -> Script:
    return lambda prompt, before: late(good(prompt), seconds)


def test_every_prompt_is_answered_in_its_place_and_asked_once() -> None:
    with scripted(well) as server:
        assert answers_in_order(load(server), PROMPTS) == ALL_GOOD
        assert set(server.asked.values()) == {1}
        assert dict(load(server).generate([])) == {}


@pytest.mark.parametrize("width", [1, 6])
def test_as_many_calls_are_under_way_as_allowed(width: int) -> None:
    together, under_way, most = threading.Barrier(width, timeout=60), set[str](), 0

    def script(prompt: str, before: int) -> Reply:
        nonlocal most
        under_way.add(prompt)
        most = max(most, len(under_way))
        together.wait()
        under_way.remove(prompt)
        return good(prompt)

    with scripted(script) as server:
        answers_in_order(load(server, concurrency=width), PROMPTS[:36])
    assert most == width


def test_what_is_asked_for() -> None:
    sampled = Generation(9, temperature=0.5, top_p=0.9, seed=1)
    with scripted(well) as server:
        answers_in_order(load(server), ["hello"])
        answers_in_order(backend("openai").load(spec(server, sampled)), ["hello", "other"])
    greedy, one, two = server.requests
    assert greedy == {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0.0,
        "max_tokens": 8,
        "logprobs": True,
        # What a server's defaults would bring in.
        "repetition_penalty": 1.0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    assert (one["top_k"], one["min_p"]) == (-1, 0.0)
    assert (one["temperature"], one["top_p"], one["max_tokens"]) == (0.5, 0.9, 9)
    assert one["seed"] != two["seed"]


FAULTS = {
    "429": refusal(429),
    "500": refusal(500),
    "502": Reply("<html>bad gateway</html>", 502),
    "503": refusal(503),
    "cut stream": CUT,
    **JUNK,
    # These speak of too much, and mean time.
    "slow 504": refusal(504, "The server took too long to respond."),
    "slow 500": refusal(500, "Request took too long to process, please retry"),
    "slow 408": refusal(408, "client waited too long for this request: request too long in coming"),
    "slow 502": refusal(502, "upstream context length unknown"),
}


ODD_COUNTS = [
    (
        Reply(completion("x", usage={"prompt_tokens": 7, "completion_tokens": 3, field: odd})),
        rf"answers have impossible usage: {odd!r} tokens \(3 attempts\)$",
    )
    for field, odd in (
        *(("prompt_tokens", odd) for odd in (2**31, -1, True, "7.0", 1.5)),
        ("completion_tokens", -1),
    )
]
NEVER = [
    (FAULTS["500"], r"answered 500.* \(3 attempts\)$"),
    (CUT, r"was cut.* \(3 attempts\)$"),
    (HTML, r"unexpected answer from 127\.0\.0\.1:.*: HTML \(3 attempts\)$"),
    (
        Reply(completion("", choices=[{"message": None, "finish_reason": "stop"}])),
        r"unexpected answer from .*: no message \(3 attempts\)$",
    ),
    (Reply(completion("", choices=[{"message": {"content": 7}, "finish_reason": "stop"}])), "text"),
    *ODD_COUNTS,
    (refusal(429, "request too large"), "429: request too large; still so after 7 waits"),
]


def test_prompts_that_never_work_are_failures_and_spoil_no_other() -> None:
    replies = dict(zip(PROMPTS, (reply for reply, _ in NEVER), strict=False))
    with scripted(lambda prompt, before: replies.get(prompt) or good(prompt)) as server:
        answers = answers_in_order(load(server, attempts=3), PROMPTS)
    for (reply, said), prompt, failure in zip(NEVER, PROMPTS, answers, strict=False):
        assert isinstance(failure, Failure), said
        assert failure.status == "error"
        assert re.search(said, failure.detail), failure.detail
        assert server.asked[prompt] == 3 or reply.status == 429
    assert answers[len(NEVER) :] == ALL_GOOD[len(NEVER) :]


def said(reason: str = "stop", usage: bool = True, **message: Any) -> Reply:
    """A message with these fields, with or without a bill."""
    body = completion("", choices=[{"message": message, "finish_reason": reason}])
    return Reply(body if usage else {name: body[name] for name in body if name != "usage"})


REFUSED = [
    (refusal(400, "maximum context length is 8192 tokens"), "too_long"),
    (refusal(400, "the request exceeds the available context size"), "too_long"),
    (refusal(422, "`inputs` tokens + `max_new_tokens` must be <= 4096"), "too_long"),
    (refusal(400, "max_tokens must be at least 1, got -186."), "too_long"),
    (refusal(500, "the request exceeds the available context size"), "too_long"),
    (Reply({"error": {"message": "exceeds the available context size"}}), "too_long"),
    (Reply({"object": "error", "message": "maximum context length is 9"}), "too_long"),
    (refusal(413, "no"), "too_long"),
    (refusal(400, "prompt is too long: 9 tokens > 8 maximum"), "too_long"),
    (refusal(400, "refused", code="content_filter"), "filtered"),
    (refusal(403, "requires moderation and your input was flagged"), "filtered"),
    (refusal(403, "not for you"), "error"),
    (refusal(400, "the temperature is 9, which is too high"), "error"),
    (said("content_filter", usage=False, content=""), "filtered"),
    (ended("", "length", tokens_out=0), "too_long"),
]


def test_a_refused_prompt_is_not_asked_again() -> None:
    replies = dict(zip(PROMPTS, (reply for reply, _ in REFUSED), strict=False))
    with scripted(lambda prompt, before: replies.get(prompt) or good(prompt)) as server:
        answers = answers_in_order(load(server), PROMPTS)
    for (_, status), prompt, refused in zip(REFUSED, PROMPTS, answers, strict=False):
        assert isinstance(refused, Failure), refused
        assert refused.status == status, refused.detail
        assert server.asked[prompt] == 1
    assert answers[len(REFUSED) :] == ALL_GOOD[len(REFUSED) :]


MOST = 2**31 - 1
# Thoughts on top of completion_tokens.
TOP = {
    "prompt_tokens": 32,
    "completion_tokens": 9,
    "total_tokens": 135,
    "completion_tokens_details": {"reasoning_tokens": 94},
}
ANSWERS: list[tuple[Reply, dict[str, Any], Response]] = [
    (ended("", "stop"), {}, Response("", 7, 3, "stop")),
    (ended(None, "length", 8), {}, Response("", 7, 8, "length")),
    (Reply(completion("x", MOST, MOST)), {}, Response("x", MOST, MOST, "stop")),
    (Reply(completion("x", model="served@main")), {}, Response("x", 7, 3, "stop")),
    (Reply(completion("x", model="alias")), {"answers_as": "alias"}, Response("x", 7, 3, "stop")),
    (Reply(completion("x", usage=TOP)), {}, Response("x", 32, 103, "stop")),
]


@pytest.mark.parametrize(("reply", "endpoint", "answer"), ANSWERS, ids=range(len(ANSWERS)))
def test_what_is_an_answer(reply: Reply, endpoint: dict[str, Any], answer: Response) -> None:
    """An empty text, the largest count, another name of the same model."""
    with scripted(reply) as server:
        assert answers_in_order(load(server, **endpoint), ["q"]) == [answer]


THOUGHT_PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "3 + 4"}]},
    {"type": "text", "text": "7"},
]
THOUGHT_IN_BOTH = "<think>\n3 + 4\n</think>\n\n7"
# By what the response is: its text, its thought and its kind.
KINDS: list[tuple[Reply, tuple[str, str, str]]] = [
    (said(content="7", reasoning_content=" 3 + 4\n"), ("7", "3 + 4", "")),
    (said(content="7", reasoning="3 + 4"), ("7", "3 + 4", "")),
    (said(content=THOUGHT_PARTS), ("7", "3 + 4", "")),
    (said(content=THOUGHT_IN_BOTH, reasoning_content="3 + 4"), (THOUGHT_IN_BOTH, "", "")),
    (said(content=None, reasoning_content="3 + 4"), ("", "3 + 4", "empty")),
    (said("length", content="", reasoning_content="3 + 4"), ("", "3 + 4", "empty")),
    (said(content=None), ("", "", "empty")),
    (said(), ("", "", "empty")),
    (said(content=None, refusal="I can't help."), ("I can't help.", "", "refusal")),
    (said("refusal", content="No."), ("No.", "", "refusal")),
    (said("content_filter", content=None), ("", "", "filtered")),
    (said("content_filter", content="Take one"), ("Take one", "", "filtered")),
    (said(content="7", reasoning_content=None, refusal=None), ("7", "", "")),
    (said(content="7", reasoning_content={"a": 1}, refusal=""), ("7", "", "")),
]


@pytest.mark.parametrize(("reply", "response"), KINDS, ids=range(len(KINDS)))
def test_what_is_no_answer_is_a_response_and_asked_for_once(
    reply: Reply, response: tuple[str, str, str]
) -> None:
    with scripted(reply) as server:
        [answer] = answers_in_order(load(server), ["q"])
    assert isinstance(answer, Response)
    assert (answer.text, answer.thought, answer.kind) == response
    assert (answer.tokens_in, answer.tokens_out) == (7, 3)  # it is paid for
    assert server.asked["q"] == 1


def test_a_thought_is_stored_as_models_write_it() -> None:
    thinking = Response("7", 1, 2, "stop", thought="3 + 4")
    assert thinking.complete_text == "<think>\n3 + 4\n</think>\n\n7"
    assert Response("", 1, 2, "stop", thought="3").complete_text == "<think>\n3\n</think>"
    assert Response("7", 1, 2, "stop").complete_text == "7"


def test_the_other_name_of_the_length_limit() -> None:
    def script(prompt: str, before: int) -> Reply:
        if "max_completion_tokens" in server.requests[-1]:
            return good(prompt)
        return refusal(400, "max_tokens is not supported, use 'max_completion_tokens'")

    with scripted(script) as server:
        assert answers_in_order(load(server, concurrency=1), PROMPTS[:3]) == ALL_GOOD[:3]
    limits = [request.get("max_completion_tokens") for request in server.requests]
    assert limits == [None, 8, 8, 8]


def test_how_sure_a_server_says_that_it_is() -> None:
    """It is asked for that until it refuses; a server may send less than was asked for."""
    told = {"content": [{"token": "x", "logprob": value} for value in (-0.5, -0.25, 0.0)]}
    choice = {"message": {"content": "x"}, "finish_reason": "stop"}

    def script(prompt: str, before: int) -> Reply:
        if prompt == PROMPTS[0]:
            return Reply(completion("", choices=[{**choice, "logprobs": told}]))
        if "logprobs" in server.requests[-1] and prompt == PROMPTS[2]:
            return refusal(400, "logprobs are not supported with this model")
        return Reply(completion("", choices=[{**choice, "logprobs": {"content": [{}]}}]))

    with scripted(script) as server:
        found = answers_in_order(load(server, concurrency=1), PROMPTS[:4])
    assert [getattr(one, "confidence", "failed") for one in found] == [
        Confidence(-0.75, -0.5, 3),
        *[None] * 3,
    ]
    assert ["logprobs" in request for request in server.requests] == [*[True] * 3, *[False] * 2]


@pytest.mark.parametrize("kind", ["seconds", "date"])
def test_retry_after_is_honoured_by_all_callers(kind: str) -> None:
    """The first call is refused; nobody calls before the time is over."""
    wait = 1.0 if kind == "seconds" else 2.0  # a date has whole seconds

    def script(prompt: str, before: int) -> Reply:
        if before or prompt != server.requests[0]["messages"][0]["content"]:
            # The one under way is answered after the refusal was read.
            return late(good(prompt), 0.4 if len(server.moments) <= 2 else 0)
        asked = str(wait) if kind == "seconds" else formatdate(time.time() + wait, usegmt=True)
        return refusal(429, Retry_After=asked)

    with scripted(script) as server:
        assert answers_in_order(load(server, concurrency=2), PROMPTS[:8]) == ALL_GOOD[:8]
    first, *rest = server.moments
    together = [moment for moment in rest if moment - first < 0.7]
    assert len(together) <= 1  # the one that was under way at the same time
    assert len(rest) == 8


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (refusal(429, "slow down"), "answered 429: slow down; still so after 7 waits"),
        (refusal(429, Retry_After="3600"), "it asks to wait 3600 s, more than 600"),
        (refusal(500, "oh"), "answered 500: oh; .* failed attempts in a row"),
        (HTML, "unexpected answer from 127.0.0.1:.*HTML; .* failed attempts"),
        (refusal(400, "bad temperature"), "bad temperature.*failed attempts"),
        (refusal(401, "bad key"), "answered 401: bad key; is the API key right"),
        (refusal(403, "no scope"), "answered 403: no scope; is the API key right"),
        (refusal(403, "account flagged"), "answered 403: account flagged; is the API key right"),
        (refusal(404, "gone"), "answered 404: gone; is the model there"),
        (refusal(429, "pay", code="insufficient_quota"), "answered 429: pay"),
        (Reply("", 307, {"Location": "http://127.0.0.1:9/x"}), "redirect, not followed"),
        (late(Reply(), 60), r"no answer from .* timed out after 0\.2 s"),
    ],
)
def test_nothing_but_failures_is_an_outage(reply: Reply, said: str) -> None:
    with scripted(reply) as server:
        generator = load(server, timeout_s=0.2 if reply.delay_s else 600.0)
        with pytest.raises(Outage, match=said):
            answers_in_order(generator, PROMPTS)
        assert server.asked.total() < 160  # far from all attempts at all prompts
        if reply.status == 403:  # which may be meant for one prompt alone: a harmless one tells
            with pytest.raises(Outage, match=said):
                answers_in_order(generator, PROMPTS[:3])
            assert server.asked[PROBE_PROMPT] >= 1


@pytest.mark.parametrize("bad", [refusal(401), refusal(404)], ids=["401", "404"])
def test_an_outage_throws_no_answer_away(bad: Reply) -> None:
    """What the server was answering when it was given up is delivered; no more is asked."""

    def script(prompt: str, before: int) -> Reply:
        return bad if prompt == PROMPTS[5] else late(good(prompt), 0.5)

    delivered: dict[int, Any] = {}
    with scripted(script) as server:
        with pytest.raises(Outage, match="answered 40"):
            for place, answer in load(server, concurrency=8).generate(PROMPTS):
                delivered[place] = answer
        assert server.asked.total() == 8
    assert delivered == {place: ALL_GOOD[place] for place in range(8) if place != 5}


def test_an_outage_waits_for_no_call_longer_than_its_timeout() -> None:
    """Nor for a call's next attempt, nor is the server asked once more whether it is there."""
    replies = {
        PROMPTS[0]: refusal(500),
        PROMPTS[1]: late(refusal(401, "bad key"), 0.2),
        PROMPTS[2]: late(refusal(403), 0.5),
    }

    def script(prompt: str, before: int) -> Reply:
        return replies.get(prompt) or late(good(prompt), 60)

    with scripted(script) as server:
        generator = load(server, concurrency=8, timeout_s=1.0)
        with pytest.raises(Outage, match="bad key"):
            list(generator.generate(PROMPTS))
    assert {server.asked[prompt] for prompt in PROMPTS[1:8]} == {1}
    assert PROBE_PROMPT not in server.asked


def test_replicas_share_the_calls_and_do_without_one_that_is_gone() -> None:
    with scripted(after(0.05)) as first, scripted(after(0.05)) as second:
        with scripted(well) as gone:
            pass
        replicas = second.url, gone.url
        generator = load(first, replicas=replicas, concurrency=4)
        assert answers_in_order(generator, PROMPTS) == ALL_GOOD
        assert (first.asked + second.asked).total() == len(PROMPTS)
        assert min(first.asked.total(), second.asked.total()) >= len(PROMPTS) // 4
        assert max(first.widest, second.widest) <= 12


def test_limits_a_minute_are_kept() -> None:
    """Of requests, and of tokens: those of the longest answer, and a quarter of the characters."""

    def seconds(**limit: int) -> float:
        """From before the first prompt to the moment when the last one was there."""
        with scripted(well) as server:
            generator, started = load(server, **limit), time.monotonic()
            answers_in_order(generator, PROMPTS)
            return max(server.moments) - started

    # A burst of one second is free: 20 requests of 40, and 100 tokens of 40 times 10.5.
    assert seconds(requests_per_minute=1200) >= 20 / 20
    assert seconds(tokens_per_minute=6000) >= (40 * 10.5 - 100) / 100


def test_a_server_that_goes_away_is_an_outage() -> None:
    with scripted(well) as server:
        generator = load(server)
    with pytest.raises(Outage, match=f"cannot connect to {server.address}: .*refused"):
        answers_in_order(generator, PROMPTS)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (completion("x", model="other"), "answers come from 'other'.*set answers_as"),
        (completion("x", usage={}), "without usage.*name a tokenizer"),
        (completion("x", usage={"prompt_tokens": 0, "completion_tokens": 1}), "without usage"),
        (completion("x", tokens_out=0), "without usage"),
    ],
)
def test_answers_that_would_spoil_the_cache_are_the_end_for_their_model(
    body: dict[str, Any], said: str
) -> None:
    """Known after two answers: one, and that to a harmless prompt."""
    with scripted(Reply(body)) as server:
        with pytest.raises(Outage, match=said):
            answers_in_order(load(server, concurrency=1), PROMPTS)
        assert server.asked.total() == 2
    # One of them spoils no other, and may be better the next time.
    replies = {PROMPTS[3]: Reply(body)}
    with scripted(lambda prompt, before: replies.get(prompt) or good(prompt)) as server:
        answers = answers_in_order(load(server, concurrency=1, attempts=2), PROMPTS[:6])
        assert server.asked.total() == 7
        failure = answers.pop(3)
        assert isinstance(failure, Failure)
        assert re.search(said, failure.detail)
        assert answers == [*ALL_GOOD[:3], *ALL_GOOD[4:6]]

    def once(prompt: str, before: int) -> Reply:
        return Reply(body) if prompt == PROMPTS[0] and not before else good(prompt)

    with scripted(once) as server:
        assert answers_in_order(load(server, concurrency=1), PROMPTS[:1]) == ALL_GOOD[:1]


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 9, "completion_tokens": 0}])
def test_a_named_tokenizer_counts_where_the_server_does_not(usage: Any) -> None:
    calc = ModelSpec("calc", "testbed:calc", 0.1, generation=Generation(8))
    expected = answers_in_order(backend("transformers").load(calc), ["compute 12+7"])
    with scripted(Reply({**completion("19"), "usage": usage})) as server:
        found = answers_in_order(load(server, tokenizer="testbed:calc"), ["compute 12+7"])
    assert found == expected == [Response("19", 9, 3, "stop")]


def test_a_key_goes_to_the_server_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the server sends it back, and whatever else the environment holds."""
    monkeypatch.setenv("HR_KEY", "sk-CANARY")
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "sk-OTHER")

    def script(prompt: str, before: int) -> Reply:
        if prompt == "echo":
            return Reply(completion("your key is sk-CANARY"))
        return refusal(500, "sk-CANARY is not welcome")

    with scripted(script) as server:
        echo, failure = answers_in_order(load(server, api_key_env="HR_KEY"), ["echo", "fail"])
    assert isinstance(echo, Response)
    assert echo.text == "your key is ***"
    assert "CANARY" not in str(failure)
    assert {headers["authorization"] for headers in server.seen} == {"Bearer sk-CANARY"}
    assert "sk-OTHER" not in str(server.seen)


LONG_KEY = "sk-0123456789abcdefghijklmnopqrstuvwxyz"
TALKATIVE = "word " * 26 + LONG_KEY  # is cut in the middle of the key


@pytest.mark.parametrize(
    "reply",
    [
        refusal(401, TALKATIVE),
        refusal(400, TALKATIVE),
        Reply({"error": {"message": TALKATIVE}}),
        Reply("", 307, {"Location": f"http://127.0.0.1:9/v1/{LONG_KEY}?key={LONG_KEY}"}),
        Reply("", 307, {"Location": f"http://127.0.0.1:9/{'x' * 50}/{LONG_KEY}"}),
    ],
    ids=["401", "400", "200", "redirect", "long redirect"],
)
def test_a_key_is_not_shown_in_part(reply: Reply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HR_KEY", LONG_KEY)
    with scripted(reply) as server:
        generator = load(server, api_key_env="HR_KEY", attempts=1)
        try:
            said = str(answers_in_order(generator, ["q"]))
        except Outage as error:
            said = str(error)
    assert "***" in said
    assert "sk-0" not in said


def test_a_word_that_is_no_secret_may_be_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HR_KEY", "none")
    with scripted(Reply(completion("none of these"))) as server:
        (answer,) = answers_in_order(load(server, api_key_env="HR_KEY"), ["q"])
    assert answer == Response("none of these", 7, 3, "stop")


def test_what_is_missing_is_named_before_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    identify, keyed = backend("openai").identify, spec(Server(port=1), api_key_env="HR_KEY")
    monkeypatch.delenv("HR_KEY", raising=False)
    with pytest.raises(InputError, match="HR_KEY is not set: model m"):
        identify(keyed)
    monkeypatch.setenv("HR_KEY", "sk CANARY")
    with pytest.raises(InputError, match="HR_KEY holds characters that no key has") as caught:
        identify(keyed)
    assert "CANARY" not in str(caught.value)
    for endpoint in (None, Endpoint()):
        with pytest.raises(InputError, match="base_url is missing: model m"):
            identify(ModelSpec("m", MODEL, 0.1, endpoint=endpoint))


def test_a_redirect_takes_no_key_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HR_KEY", "sk-CANARY")
    with scripted(well) as other:
        away = Reply("", 307, {"Location": other.url + "/models"})
        with (
            scripted(away, listing=away) as server,
            pytest.raises(Outage, match="redirect, not followed"),
        ):
            load(server, api_key_env="HR_KEY")
        assert other.seen == []


LISTINGS: list[tuple[Reply, str]] = [
    (Reply({"data": [{"id": "a"}, {"id": "b"}]}), "model served is not served at .* serves [ab],"),
    (HTML, "unexpected answer from 127.0.0.1:.* no JSON; is base_url right"),
    (refusal(401, "no key"), "answered 401: no key"),
    (late(Reply({}), 60), "timed out after 0.3 s"),
]


@pytest.mark.parametrize(("listing", "said"), LISTINGS, ids=range(len(LISTINGS)))
def test_a_server_without_the_model_is_known_at_once(listing: Reply, said: str) -> None:
    with scripted(well, listing=listing) as server, pytest.raises(Outage, match=said):
        load(server, timeout_s=0.3)
    assert not server.asked


@pytest.mark.parametrize(
    "listing",
    [
        Reply({"data": []}),
        refusal(404),
        refusal(500),
        Reply({"data": [{"id": "served:latest"}]}),
        *(Reply({"data": odd}) for odd in (5, True, "served", {"id": "x"}, [1, ["x"], {"id": 5}])),
        Reply("[]"),
    ],
)
def test_a_server_that_does_not_tell_is_asked_all_the_same(listing: Reply) -> None:
    with scripted(well, listing=listing) as server:
        assert answers_in_order(load(server), PROMPTS[:2]) == ALL_GOOD[:2]


def test_stop_delivers_what_is_under_way_and_takes_up_no_more() -> None:
    delivered: dict[int, Any] = {}
    with scripted(after(0.05)) as server:
        for place, answer in load(server, concurrency=4).generate(PROMPTS, lambda: bool(delivered)):
            delivered[place] = answer
    assert 1 <= len(delivered) <= 8
    assert len(delivered) == sum(server.asked.values())
    assert all(answer == ALL_GOOD[place] for place, answer in delivered.items())


def test_stop_ends_a_long_wait() -> None:
    with scripted(refusal(429, Retry_After="500")) as server:
        asked = threading.Event()
        threading.Timer(0.3, asked.set).start()
        assert list(load(server).generate(PROMPTS, asked.is_set)) == []


def open_sockets() -> int:
    return len(psutil.Process().net_connections("inet"))


@pytest.mark.parametrize("how", ["finished", "closed", "failed"])
def test_nothing_is_left_behind(how: str) -> None:
    def script(prompt: str, before: int) -> Reply:
        if how == "failed":
            return Reply(completion("x", model="other"))
        return good(prompt) if prompt == PROMPTS[0] or how == "finished" else late(good(prompt), 60)

    threads, sockets = set(threading.enumerate()), open_sockets()
    with scripted(script) as server:
        generator = load(server)
        if how == "finished":
            answers_in_order(generator, PROMPTS)
        elif how == "closed":
            with closing(generator.generate(PROMPTS)) as answers:
                assert next(answers) == (0, ALL_GOOD[0])
        else:
            with pytest.raises(Outage):
                answers_in_order(generator, PROMPTS)
        names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if name.startswith("endpoint")]
    wait_for(lambda: set(threading.enumerate()) <= threads and open_sockets() <= sockets)


def wait_for(true: Callable[[], bool]) -> None:
    """The server's own threads take a moment to see that their caller has gone."""
    for _ in range(100):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("still not so after 5 s")


def test_identity_is_the_deployment_not_its_address() -> None:
    identify = backend("openai").identify
    here, there = Server(port=1), Server(port=2)
    assert identify(spec(here)) != identify(spec(there))
    assert identify(spec(here, deployment="gpu")) == identify(spec(there, deployment="gpu"))
    assert identify(spec(here, concurrency=2, timeout_s=9.0)) == identify(spec(here))
    different = [{}, {"deployment": "gpu"}, {"tokenizer": "t"}, {"answers_as": "alias"}]
    assert len({str(identify(spec(here, **changes))) for changes in different}) == len(different)


QUERIES = [Query(str(n), "own", f"question {n}", ("7",), "train") for n in range(100)]
# Both models say the same, so the two nodes of the first hop lead to one context: 2 + 2 calls.
CALLS = 100 * 4
NAMES = {8: "short", 9: "long"}  # by the most tokens of an answer
# An answer that is not meant to be late is there sooner, on a busy machine too.
TIMEOUT_S = 5.0
OFTEN = [late(Reply(), 2 * TIMEOUT_S), refusal(429, Retry_After="0.05"), *FAULTS.values()]
LATE = 0
WAITED_FOR = {query.question for query in QUERIES[:5]}  # not more: each one costs the timeout


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
            faults.append(draw.randrange(LATE + 1, len(OFTEN)))
        else:
            return good(prompt)
        return OFTEN[faults[-1]]

    with serving(Server(script)) as server:
        summary = fill_cache(pool(server, timeout_s=TIMEOUT_S), QUERIES, tmp_path)
    assert set(faults) == set(range(len(OFTEN)))
    assert len(faults) > 0.15 * summary.calls
    answers = stored(tmp_path)
    assert len(answers) == summary.calls == CALLS
    assert (summary.missing, summary.failed.total()) == (0, 0)
    # One good reply a call, and the faults on top; nothing was paid for twice.
    assert server.asked.total() == summary.calls + len(faults)
    assert all(said == scripted_answer(MODEL, prompt).text for (_, prompt), said in answers.items())
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
