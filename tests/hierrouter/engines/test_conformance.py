"""What we read of servers that keep to their published protocols: `conformance.toml`, replayed."""

import asyncio
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hierrouter.engines import backend
from hierrouter.engines.endpoint import PROBE_PROMPT, Caller
from hierrouter.engines.generator import Failure, Outage, Response
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec
from hierrouter.serving.models import CallFailed
from hierrouter.serving.remote_model import ServedModel
from tests.servers import Reply, Server, serving

pytestmark = pytest.mark.usefixtures("short_waits")
CORPUS = tomllib.loads(Path(__file__).with_name("conformance.toml").read_text())
ENTRIES = {
    f"{server}: {entry['name']}": entry for server, entries in CORPUS.items() for entry in entries
}
LISTED = '{"object": "list", "data": [{"id": "m"}]}'
MAX_TOKENS = 16
OF_THE_BILL = ("cached", "thoughts", "cost")


def replies_of(entry: dict[str, Any], server: Server, number: int) -> Reply:
    """What the entry's server says to the last request, the first of which has number 0."""
    request = server.requests[-1]
    if "refuse" in entry:
        field, status, body = entry["refuse"]
        if field in request:
            return Reply(body, status)
    if "before" in entry and not number:
        status, body, *headers = entry["before"]
        return Reply(body, status, *headers)
    reply = entry["reply"]
    headers = entry.get("headers", {})
    if isinstance(reply, str):
        return Reply(reply, entry.get("status", 200), headers)
    comment = ": working\n\n" if entry.get("comments") else ""
    events = "".join(f"{comment}data: {piece}\n\n" for piece in reply)
    return Reply(f"{events}data: [DONE]\n\n", 200, {"Content-Type": "text/event-stream"})


def answer_of(entry: dict[str, Any], server: Server) -> Response | str:
    """The response that the real client reads, or what it says about the failure."""
    endpoint = Endpoint(
        server.url, concurrency=1, attempts=2, answers_as=entry.get("answers_as"), timeout_s=60.0
    )
    spec = ModelSpec(
        "m", "m", 0.1, backend="openai", generation=Generation(MAX_TOKENS), endpoint=endpoint
    )
    if entry.get("stream") or isinstance(entry["reply"], list):
        pieces: list[str] = []

        async def ask() -> Response:
            model = ServedModel(spec, Caller(spec, endpoint))
            try:
                return await model.answer("3 + 4", pieces.append)
            finally:
                await model.close()

        try:
            response = asyncio.run(ask())
        except CallFailed as failed:
            return f"{failed.status}: {failed.reason}"
        assert "".join(pieces).strip() == response.text
        return response
    try:
        [(_, answer)] = backend("openai").load(spec).generate(["3 + 4"])
    except Outage as outage:
        return str(outage)
    return f"{answer.status}: {answer.detail}" if isinstance(answer, Failure) else answer


@pytest.mark.parametrize("name", ENTRIES)
def test_a_reply_is_read_as_the_protocol_means_it(name: str) -> None:
    entry = ENTRIES[name]
    expected = dict(entry["expect"])
    server = Server(listing=Reply(entry.get("listing", LISTED)))
    server.script = lambda prompt, before: replies_of(entry, server, len(server.requests) - 1)
    with serving(server):
        answer = answer_of(entry, server)
    requests = [
        request for request in server.requests if request["messages"][0]["content"] != PROBE_PROMPT
    ]
    assert len(requests) == expected.pop("requests", len(requests))
    for field in expected.pop("left_out", ()):
        assert field not in requests[-1]
    for field in expected.pop("sent", ()):
        assert field in requests[-1]
    if "failure" in expected:
        assert isinstance(answer, str)
        assert re.search(expected["failure"], answer), answer
        return
    assert isinstance(answer, Response), answer
    assert len(requests) == 1 or "refuse" in entry or "before" in entry
    for field, value in expected.items():
        source = answer.bill if field in OF_THE_BILL else answer
        assert getattr(source, field) == value, field


@pytest.mark.parametrize("server", CORPUS)
def test_the_corpus_has_at_least_six_replies_of_each_server(server: str) -> None:
    assert len(CORPUS[server]) >= 6
    documentation = (Path(__file__).parents[3] / "docs" / "endpoints.md").read_text()
    assert f"{len(ENTRIES)} replies and refusals" in documentation
    assert len({entry["name"] for entry in CORPUS[server]}) == len(CORPUS[server])
