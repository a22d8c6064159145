"""Route and serve: others' answers, others' pages, others' runs."""

import json
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from hierrouter.runs.bundle import load_bundle, save_bundle
from hierrouter.serving.router import Router
from hierrouter_cache.errors import InputError
from tests.conftest import Run
from tests.hierrouter.serving.serving import GOOD, ask, served, user, with_server
from tests.security.world import FAMILIES, STEERING, served_pool
from tests.servers import Reply, Server, completion, refusal, serving

KEY = "sk-CANARY-0123456789"
CHAT = "/v1/chat/completions"
BODY = json.dumps(GOOD)
JSON = "Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def url(live_run: Path) -> Iterator[str]:
    """A server without a key."""
    with served(Router(live_run)) as url:
        yield url


@pytest.mark.parametrize(("fails", "flags"), [(False, ()), (True, ("--format", "json"))])
def test_route_lets_no_family_of_a_server_through(
    fails: bool, flags: tuple[str, ...], live_run: Path, tmp_path: Path, hierrouter: Run
) -> None:
    said = " ".join(FAMILIES.values())
    reply = refusal(400, said) if fails else Reply(completion(said))
    with serving(Server(lambda prompt, before: reply)) as server:
        (tmp_path / "pool.toml").write_text(served_pool(server.url))
        asked = ("route", "--checkpoint", live_run, "--pool", "pool.toml", *flags, said)
        done = hierrouter(*asked, cwd=tmp_path)
    assert done.returncode == fails, done.stderr
    assert "x1b]0;owned" in done.stdout + done.stderr
    assert f"calc at {server.url}" in done.stderr.splitlines()[0]  # where questions go
    for shown in (done.stdout, done.stderr):
        assert not STEERING.search(shown)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8100", "127.0.0.1.evil.example", "10.0.0.1", "[::1"),
        *("localhost@evil.example", "127.0.0.1 evil.example", ""),
    ],
)
def test_a_page_whose_name_leads_here_is_refused(url: str, host: str) -> None:
    """DNS rebinding: the browser takes it for the page's own server, so it may read the answer."""
    for path in ("/live", "/ready", "/metrics", "/v1/models"):
        assert answer(url, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")[0] in (400, 421)
    assert answer(url, post(GOOD, host))[0] in (400, 421)


def test_this_machine_is_let_in_under_its_names_and_with_a_key_under_any(
    url: str, live_run: Path
) -> None:
    for host in ("localhost", "localhost:8100", "127.0.0.1:8100", "[::1]:8100"):
        assert answer(url, post(GOOD, host))[0] == 200
    head = f"GET /v1/models HTTP/1.1\r\nHost: llm.example\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    with served(Router(live_run), key=KEY) as url:
        assert answer(url, head)[0] == 200
        assert answer(url, head.replace(KEY, "sk-other"))[0] == 401


def test_no_page_of_another_origin_can_ask_or_read(url: str) -> None:
    origin = {"Origin": "http://evil.example"}
    may = {"Method": "POST", "Headers": "content-type"}
    wanted = {f"Access-Control-Request-{name}": value for name, value in may.items()}
    asked = httpx2.options(url + CHAT, headers=origin | wanted)
    assert not asked.is_success
    read = httpx2.get(f"{url}/v1/models", headers=origin)
    for found in (asked, read):
        assert not [name for name in found.headers if name.startswith("access-control")]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        found = httpx2.post(url + CHAT, content=BODY, headers={"Content-Type": kind})
        assert found.status_code == 415


NEXT = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
ODD = {
    "two lengths": f"Content-Length: {len(BODY)}\r\nContent-Length: 9\r\n\r\n{BODY}{NEXT}",
    "length and chunks": f"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{NEXT}",
    "odd chunks": f"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n{NEXT}",
    "a length below 0": f"Content-Length: -1\r\n\r\n{BODY}",
    "a length of letters": f"Content-Length: 0x10\r\n\r\n{BODY}",
    "a length with a sign": f"Content-Length: +{len(BODY)}\r\n\r\n{BODY}",
    "an endless length": f"Content-Length: {'9' * 5000}\r\n\r\n{BODY}",
    "a length in power": "Content-Length: \xb2\r\n\r\n{}",
    "a huge header": f"X: {'x' * 200_000}\r\n\r\n",
    "a header with a break": "X: a\nY: b\r\n\r\n{}",
    "a header with nothing": "X: \x00\r\n\r\n{}",
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_request_is_one_request_and_refused(url: str, name: str) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{JSON}"
    status, text = answer(url, head + ODD[name])
    assert status is None or 400 <= status < 500, text
    assert text.count("HTTP/1.1") <= 1
    assert httpx2.get(f"{url}/live").status_code == 200


def test_a_body_that_does_not_say_its_length_is_cut(url: str) -> None:
    body = iter([b" " * 1_000_000] * 9)
    found = httpx2.post(url + CHAT, content=body, headers={"Content-Type": "application/json"})
    assert found.status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        '{"messages": ' + "[" * 100_000,
        '{"a": ' * 100_000,
        '{"messages": [{"role": "user", "content": "x"}], "hierrouter": {"alpha": NaN}}',
        '{"messages": [{"role": "user", "content": "x"}], "hierrouter": {"alpha": 1e999}}',
        '{"messages": [{"role": "user", "content": "x"}], "n": ' + "9" * 5_000 + "}",
        json.dumps({"messages": [{"role": "user", "content": [{}]}] * 100_000}),
    ],
    ids=["deep lists", "deep objects", "NaN", "infinity", "a long number", "many messages"],
)
def test_a_body_that_means_harm_is_refused_in_one_line(url: str, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    found = httpx2.post(url + CHAT, content=body.encode(), headers=headers, timeout=60)
    assert found.status_code == 400, found.text
    assert "\n" not in found.json()["error"]["message"]


def test_a_run_of_others_does_not_decide_where_a_key_goes(
    live_run: Path, tmp_path: Path, hierrouter: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SECRET", KEY)
    run = shutil.copytree(live_run, tmp_path / "run")
    with serving(Server()) as server:
        pool = with_server(run, server, "calc", api_key_env="SOME_SECRET")
        save_bundle(replace(load_bundle(run), pool=pool), run)
        with pytest.raises(InputError, match=r"live\.json would send SOME_SECRET to 127.0.0.1"):
            Router(run)
        done = hierrouter("serve", "--port", "0", "--checkpoint", run, cwd=tmp_path)
        assert done.returncode == 2
        assert "say so yourself with --pool" in done.stderr
        assert server.seen == []
        with Router(run, pool):  # whoever names the pool says so himself
            assert server.seen[-1]["authorization"] == f"Bearer {KEY}"


def test_a_key_in_place_of_its_variable_is_not_repeated(
    live_run: Path, tmp_path: Path, hierrouter: Run
) -> None:
    done = hierrouter("serve", "--checkpoint", live_run, "--api-key-env", KEY, cwd=tmp_path)
    assert done.returncode == 2
    assert "must be the name of an environment variable" in done.stderr
    assert "CANARY" not in done.stderr


def test_the_log_of_questions_is_for_nobody_else(live_run: Path, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    said = "".join(FAMILIES.values())
    with served(Router(live_run), log=log) as url:
        assert ask(url, messages=user(said)).status_code == 200
    assert log.stat().st_mode & 0o077 == 0
    text = log.read_text("utf-8")
    assert text.count("\n") == 1 and text.isascii()
    assert json.loads(text)["question"] == said


def post(body: object, host: str = "localhost") -> str:
    text = json.dumps(body)
    return (
        f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\n{JSON}Content-Length: {len(text)}\r\n"
        f"Connection: close\r\n\r\n{text}"
    )


def answer(url: str, request: str) -> tuple[int | None, str]:
    """Status and text of what the server sends for these bytes; None where it only hangs up."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        connection.sendall(request.encode("latin-1"))
        time.sleep(0.05)
        text = connection.recv(100_000).decode("latin-1")
    return (int(text.split()[1]) if text else None), text
