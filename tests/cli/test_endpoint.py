"""`hierrouter collect` through a server: what goes wrong is one line, and costs nothing twice."""

import hashlib
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hierrouter_cache.reader import CacheReader
from tests.conftest import Run, Start, works
from tests.servers import (
    JUNK,
    LISTED,
    Reply,
    Script,
    Server,
    completion,
    free_port,
    good,
    late,
    refusal,
    serving,
)

KEY = "sk-CANARY"
POOL = """[pool]
hops = 2
stage_prompts = ["", "Solve."]
"""
ENTRY = """[[models]]
name = "{name}"
model = "served"
base_rate = 1
backend = "openai"
generation = {{ max_new_tokens = {limit} }}
[models.endpoint]
base_url = "{url}"
deployment = "test"
{more}
"""


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    for name, count in (("math", 3), ("big", 40)):
        rows = [
            {"id": f"{name}{n}", "question": f"{name} {n}?", "answer": str(n)} for n in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def collected_once(
    questions: Path, hierrouter: Run, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("collected") / "home"
    shutil.copytree(questions, folder)
    with serving(Server()) as server:
        done = collect(folder, hierrouter, server.url, "math.jsonl")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def home(questions: Path, tmp_path: Path) -> Path:
    return shutil.copytree(questions, tmp_path / "home")


@pytest.fixture
def collected(collected_once: Path, tmp_path: Path) -> Path:
    """A folder whose cache holds `math`."""
    return shutil.copytree(collected_once, tmp_path / "home")


def write_pool(home: Path, url: str, more: str = "") -> None:
    entries = (
        ENTRY.format(name=name, limit=limit, url=url, more=more)
        for name, limit in (("short", 8), ("long", 9))
    )
    (home / "pool.toml").write_text(POOL + "".join(entries))


ARGUMENTS = ["collect", "--pool", "pool.toml", "--cache", "cache", "--datasets"]


def collect(
    home: Path, hierrouter: Run, url: str, datasets: str = "big.jsonl", more: str = ""
) -> subprocess.CompletedProcess[str]:
    write_pool(home, url, more)
    return hierrouter(*ARGUMENTS, datasets, cwd=home)


@contextmanager
def scripted(script: Script, listing: Reply = LISTED) -> Iterator[Server]:
    with serving(Server(script, listing)) as server:
        yield server


def parts(home: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (home / "cache" / "parts").iterdir()
    }


def calls(home: Path) -> int:
    return len(CacheReader(home / "cache").responses())


def failed(home: Path, hierrouter: Run, url: str, more: str = "", code: int = 1) -> tuple[str, str]:
    """The last line of a collection that must fail and leave what was there, and all it said."""
    before, answered = parts(home), calls(home)
    done = collect(home, hierrouter, url, more=more)
    assert done.returncode == code, done.stderr
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: ")
    assert len(error) <= 300
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert before.items() <= parts(home).items()
    assert calls(home) == answered  # nothing of it was taken for an answer
    return error, done.stdout + done.stderr


def test_no_server_listens(collected: Path, hierrouter: Run) -> None:
    port = free_port()
    error, _ = failed(collected, hierrouter, f"http://127.0.0.1:{port}/v1")
    assert re.search(rf"cannot connect to 127.0.0.1:{port}: .*refused", error)
    assert "0 calls committed, the same command makes the rest" in error


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://169.254.169.254/v1"])
def test_an_address_that_is_no_server(collected: Path, hierrouter: Run, url: str) -> None:
    error, _ = failed(collected, hierrouter, url, code=2)
    assert re.search("base_url.*http", error)


def test_a_key_over_plain_http(
    collected: Path, hierrouter: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HR_API_KEY", KEY)
    url = "http://example.invalid/v1"
    error, said = failed(collected, hierrouter, url, 'api_key_env = "HR_API_KEY"', code=2)
    assert re.search("plain http.*use https.*--insecure", error)
    assert KEY not in said


def test_a_wrong_key(collected: Path, hierrouter: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HR_API_KEY", KEY)
    no = refusal(401, f"Incorrect API key provided: {KEY}")
    with scripted(lambda prompt, before: no, no) as server:
        error, said = failed(collected, hierrouter, server.url, 'api_key_env = "HR_API_KEY"')
        assert not server.asked
    assert re.search("401.*key", error)
    assert KEY not in said
    assert all(KEY.encode() not in path.read_bytes() for path in collected.rglob("*.parquet"))


def test_a_busy_server_is_waited_for(home: Path, hierrouter: Run) -> None:
    def script(prompt: str, before: int) -> Reply:
        return good(prompt) if server.asked.total() > 3 else refusal(429, Retry_After="1")

    with scripted(script) as server:
        done = collect(home, hierrouter, server.url, "math.jsonl")
    assert done.returncode == 0, done.stderr
    assert calls(home) == 3 * 4


@pytest.mark.parametrize("junk", ["html", "cut json", "no choices", "null content"])
def test_answers_that_are_none(collected: Path, hierrouter: Run, junk: str) -> None:
    with scripted(lambda prompt, before: JUNK[junk]) as server:
        error, _ = failed(collected, hierrouter, server.url)
    assert f"unexpected answer from {server.address}" in error


def test_a_server_that_hangs(collected: Path, hierrouter: Run) -> None:
    with scripted(lambda prompt, before: late(good(prompt), 100)) as server:
        error, _ = failed(collected, hierrouter, server.url, "timeout_s = 2")
    assert "timed out after 2 s" in error


def test_a_redirect(collected: Path, hierrouter: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HR_API_KEY", KEY)
    with scripted(lambda prompt, before: good(prompt)) as other:
        away = Reply("", 308, {"Location": f"{other.url}/chat/completions"})
        with scripted(lambda prompt, before: away) as server:
            error, _ = failed(collected, hierrouter, server.url, 'api_key_env = "HR_API_KEY"')
        assert other.seen == []
    assert "redirect" in error


NASTY = "\x1b]52;c;aGk=\x07 [/INST] \x00 \ud800 <script>alert(1)</script> =cmd()"


def test_a_nasty_text_is_an_answer(home: Path, hierrouter: Run) -> None:
    with scripted(lambda prompt, before: Reply(completion(NASTY))) as server:
        done = collect(home, hierrouter, server.url, "math.jsonl")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    query = "SELECT DISTINCT response FROM nodes"
    shown = hierrouter("cache", "sql", query, "--cache", "cache", "--format", "json", cwd=home)
    assert "\\ufffd <script>" in shown.stdout or "\ufffd <script>" in shown.stdout


def test_usage_is_missing(collected: Path, hierrouter: Run) -> None:
    with scripted(lambda prompt, before: Reply(completion("x", usage={}))) as server:
        error, _ = failed(collected, hierrouter, server.url)
        assert "usage" in error and "name a tokenizer" in error
        counted = collect(
            collected, hierrouter, server.url, "math.jsonl", 'tokenizer = "testbed:calc"'
        )
    assert counted.returncode == 0, counted.stderr


def test_another_model_answers(collected: Path, hierrouter: Run) -> None:
    with scripted(lambda prompt, before: Reply(completion("x", model="other"))) as server:
        error, _ = failed(collected, hierrouter, server.url)
    assert "answers come from 'other'" in error


def test_a_model_that_is_not_served(collected: Path, hierrouter: Run) -> None:
    listing = Reply({"data": [{"id": "other"}]})
    with scripted(lambda prompt, before: good(prompt), listing) as server:
        error, _ = failed(collected, hierrouter, server.url)
    assert f"model served is not served at {server.address}, which serves other" in error


def test_a_moved_server_keeps_its_answers(collected: Path, hierrouter: Run) -> None:
    with scripted(lambda prompt, before: good(prompt)) as server:
        done = collect(collected, hierrouter, server.url, "math.jsonl")
        assert not server.asked
    assert done.returncode == 0, done.stderr
    assert " 0 calls made" in done.stderr


def test_ctrl_c_commits_what_is_under_way(home: Path, start: Start) -> None:
    def script(prompt: str, before: int) -> Reply:
        if server.asked.total() == 40:
            process.send_signal(signal.SIGINT)
        return late(good(prompt), 0.1)

    with scripted(script) as server:
        write_pool(home, server.url)
        process = start(*ARGUMENTS, "big.jsonl", cwd=home)
        done = process.result()
        assert done.returncode == 130, done.stderr
        asked = server.asked.total()
    assert 40 <= asked < 100
    assert calls(home) == asked


LOCAL = "".join(
    f'[[models]]\nname = "{name}"\nmodel = "served"\nbase_rate = 1\n'
    f"generation = {{ max_new_tokens = {limit} }}\n"
    for name, limit in (("short", 8), ("long", 9))
)


def with_flags(home: Path, hierrouter: Run, *flags: str) -> subprocess.CompletedProcess[str]:
    """A collection with a pool that knows nothing of servers."""
    (home / "pool.toml").write_text(POOL + LOCAL)
    return hierrouter(*ARGUMENTS, "math.jsonl", *flags, cwd=home)


def test_a_pool_of_local_models_is_asked_of_a_server(home: Path, hierrouter: Run) -> None:
    with scripted(lambda prompt, before: good(prompt)) as server:
        works(with_flags(home, hierrouter, "--base-url", server.url, "--timeout", "5"))
        assert server.asked.total() == calls(home) == 3 * 4


def test_the_flags_of_a_server_are_checked_first(
    home: Path, hierrouter: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HR_API_KEY", KEY)
    remote = ["--base-url", "http://example.invalid/v1"]
    for flags, said in [
        (["--base-url", "file:///etc/passwd"], "base_url must be http"),
        ([*remote, "--api-key-env", "HR_API_KEY"], "plain http.*--insecure"),
        ([*remote, "--api-key-env", "NOT_THERE", "--insecure"], "NOT_THERE is not set"),
        ([*remote, "--backend", "transformers"], "--base-url needs --backend openai"),
        (["--backend", "openai"], "base_url is missing"),
    ]:
        done = with_flags(home, hierrouter, *flags)
        assert done.returncode == 2, done.stderr
        assert re.search(said, done.stderr.splitlines()[-1])
        assert KEY not in done.stderr
    assert not (home / "cache").exists()
