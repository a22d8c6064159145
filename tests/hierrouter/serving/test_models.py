"""Live models: one prompt at a time, many at once, each its own answer."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from hierrouter.engines import backend, health
from hierrouter.engines.endpoint import Caller
from hierrouter.engines.generator import Answer, Failure, Response
from hierrouter.engines.identity import endpoint_of
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec
from hierrouter.serving.models import BatchedModel, CallFailed
from hierrouter.serving.remote_model import ServedModel
from tests.engines import Scripted, answers_in_order, scripted_answer
from tests.servers import MODEL, Reply, Script, Server, completion, good, late, refusal, serving

PROMPTS = [f"compute {n}+{2 * n}" for n in range(20)]
CALC = ModelSpec("calc", "testbed:calc", 0.03, generation=Generation(12))


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(health, "FIRST_BACKOFF_S", 0.005)


def ask(
    model: BatchedModel | ServedModel, prompts: Sequence[str], texts: list[str] | None = None
) -> list[Response]:
    """Responses to concurrent prompts; their texts are streamed into the list, if there is one."""

    async def all_of() -> list[Response]:
        on_text = None if texts is None else texts.append
        try:
            return list(
                await asyncio.gather(*(model.answer(prompt, on_text) for prompt in prompts))
            )
        finally:
            await model.close()

    return asyncio.run(all_of())


def test_local_answers_are_those_of_the_engine_token_by_token() -> None:
    generator = backend("transformers").load(CALC)
    expected = answers_in_order(generator, PROMPTS)
    assert ask(BatchedModel("calc", generator), PROMPTS) == expected
    texts: list[str] = []
    assert ask(BatchedModel("calc", generator), PROMPTS[7:8], texts) == expected[7:8]
    assert "".join(texts) == expected[7].text
    assert len(texts) > 1


def test_waiting_prompts_are_answered_in_one_batch() -> None:
    heights = []

    class Noting:
        def generate(self, prompts: Any, stop: Any = None) -> Iterator[tuple[int, Answer]]:
            heights.append(len(prompts))
            for position, prompt in enumerate(prompts):
                yield position, scripted_answer("m", prompt)

    assert ask(BatchedModel("m", Noting()), PROMPTS) == [
        scripted_answer("m", prompt) for prompt in PROMPTS
    ]
    assert sum(heights) == 20
    assert len(heights) < 5


def test_an_engine_that_breaks_fails_its_batch_and_lives_on() -> None:
    def script(model: str, prompt: str) -> Answer:
        if prompt == "break":
            raise ZeroDivisionError("no such luck")
        return (
            Failure("too_long", "no room") if prompt == "long" else scripted_answer(model, prompt)
        )

    model = BatchedModel("m", Scripted(script).load(CALC))

    async def four() -> None:
        with pytest.raises(CallFailed, match="m gave no answer: no such luck"):
            await model.answer("break")
        with pytest.raises(CallFailed, match="no room") as caught:
            await model.answer("long")
        assert caught.value.status == "too_long"
        assert await model.answer("well") == scripted_answer("calc", "well")
        await model.close()
        with pytest.raises(CallFailed, match="closed"):
            await model.answer("late")

    asyncio.run(four())


@contextmanager
def served(script: Script, **endpoint: Any) -> Iterator[tuple[Server, ServedModel]]:
    with serving(Server(script)) as server:
        where = Endpoint(server.url, **endpoint)
        spec = ModelSpec("m", MODEL, 0.1, "openai", generation=Generation(8), endpoint=where)
        yield server, ServedModel(spec, Caller(spec, endpoint_of(spec)))


def test_served_answers_are_those_of_the_server() -> None:
    with served(lambda prompt, before: good(prompt), concurrency=4) as (server, model):
        assert ask(model, PROMPTS) == [scripted_answer(MODEL, prompt) for prompt in PROMPTS]
        assert set(server.asked.values()) == {1}
        assert server.widest <= 4


def test_a_served_answer_grows_word_by_word() -> None:
    texts: list[str] = []
    words = Reply(completion("one two three"))
    with served(lambda prompt, before: words) as (server, model):
        assert ask(model, ["count"], texts) == [Response("one two three", 7, 3, "stop")]
        assert server.requests[-1]["stream_options"] == {"include_usage": True}
    assert texts == ["one ", "two ", "three "]


@pytest.mark.parametrize("texts", [None, []])
@pytest.mark.parametrize("status", [500, 429, 503])
def test_a_passing_fault_is_tried_again(status: int, texts: list[str] | None) -> None:
    with served(lambda prompt, before: good(prompt) if before else refusal(status)) as (
        server,
        model,
    ):
        assert ask(model, ["hello"], texts) == [scripted_answer(MODEL, "hello")]
        assert server.asked["hello"] == 2


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (refusal(500, "oh no"), "500: oh no"),
        (refusal(429, "slow down"), "429: slow down; still so after 2 waits"),
        (refusal(429, "quota", Retry_After="3600"), "asks to wait 3600 s, more than 10"),
        (refusal(400, "bad temperature"), "bad temperature"),
        (late(good("hello"), 30), "timed out after 0.5 s"),
        (Reply(completion("x", usage=None)), "without usage"),
        (Reply(completion("x", model="other")), "answers come from 'other'"),
    ],
)
def test_a_lasting_fault_fails_the_call(fault: Reply, message: str) -> None:
    with (
        served(lambda prompt, before: fault, timeout_s=0.5, attempts=2) as (_, model),
        pytest.raises(CallFailed, match=f"m gave no answer: .*{re.escape(message)}"),
    ):
        ask(model, ["hello"])


def test_a_broken_stream_is_not_tried_again() -> None:
    broken = Reply(completion("one two three four"), cut=True)
    texts: list[str] = []
    with served(lambda prompt, before: broken) as (server, model):
        with pytest.raises(CallFailed, match="the answer broke off"):
            ask(model, ["hello"], texts)
        assert server.asked["hello"] == 1
    assert texts[0] == "one "
