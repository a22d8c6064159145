"""`hierrouter collect` through a server: what goes wrong is one line, and costs nothing twice."""

import hashlib
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hierrouter_cache.reader import CacheReader
from tests.cli.conftest import Place
from tests.conftest import Run, Start, refused, works
from tests.hierrouter.collection.examples import save
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
encoder = "hashed-ngrams"
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
def collected_once(tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Place:
    place = Place(tmp_path_factory.mktemp("collected"), hierrouter)
    for name, count in (("math", 3), ("big", 40)):
        rows = [{"question": f"{name} {n}?", "answer": n} for n in range(count)]
        save(rows, place / f"{name}.jsonl")
    with serving(Server()) as server:
        works(collect(place, server.url, "math"))
    return place


@pytest.fixture
def collected(collected_once: Place, tmp_path: Path) -> Place:
    """A folder whose cache holds `math`."""
    return collected_once.copy(tmp_path / "home")


@pytest.fixture
def asking(collected: Place) -> Place:
    """The same without a cache."""
    shutil.rmtree(collected / "cache")
    return collected


def write_pool(place: Place, url: str, more: str = "") -> None:
    entries = (
        ENTRY.format(name=name, limit=limit, url=url, more=more)
        for name, limit in (("short", 8), ("long", 9))
    )
    (place / "pool.toml").write_text(POOL + "".join(entries))


COLLECT = "collect --pool pool.toml --cache cache --datasets"


def collect(place: Place, url: str, dataset: str, more: str = "") -> CompletedProcess[str]:
    write_pool(place, url, more)
    return place.asks(f"{COLLECT} {dataset}.jsonl")


def calls(place: Place) -> int:
    reader = CacheReader(place / "cache")
    return reader.number("SELECT count(*) FROM calls") if reader.parts else 0


def parts(place: Place) -> dict[Path, str]:
    files = (place / "cache").rglob("*.parquet")
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@contextmanager
def scripted(script: Script, listing: Reply = LISTED) -> Iterator[Server]:
    with serving(Server(script, listing)) as server:
        yield server


def failed(place: Place, url: str, more: str = "", code: int = 1) -> str:
    """The one line in which a collection of `big` failed; what `math` left is untouched."""
    before, answered = parts(place), calls(place)
    done = collect(place, url, "big", more)
    error = refused(done, code)
    assert len(error) <= 300
    assert "Traceback" not in done.stderr and KEY not in done.stderr
    assert before.items() <= parts(place).items()
    assert calls(place) == answered  # nothing of it was taken for an answer
    return error


def test_no_server_listens(collected: Place) -> None:
    port = free_port()
    error = failed(collected, f"http://127.0.0.1:{port}/v1")
    assert re.search(rf"cannot connect to 127.0.0.1:{port}: .*refused", error)
    assert "0 calls committed, the same command makes the rest" in error


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://169.254.169.254/v1"])
def test_an_address_that_is_no_server(collected: Place, url: str) -> None:
    assert re.search("base_url.*http", failed(collected, url, code=2))


def test_a_key_over_plain_http(collected: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HR_API_KEY", KEY)
    error = failed(collected, "http://example.invalid/v1", 'api_key_env = "HR_API_KEY"', code=2)
    assert re.search("plain http.*use https.*--insecure", error)


def test_a_wrong_key(collected: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HR_API_KEY", KEY)
    no = refusal(401, f"Incorrect API key provided: {KEY}")
    with scripted(lambda prompt, before: no, no) as server:
        error = failed(collected, server.url, 'api_key_env = "HR_API_KEY"')
        assert not server.asked
    assert re.search("401.*key", error)
    assert all(KEY.encode() not in path.read_bytes() for path in parts(collected))


def test_a_busy_server_is_waited_for(asking: Place) -> None:
    def script(prompt: str, before: int) -> Reply:
        return good(prompt) if server.asked.total() > 3 else refusal(429, Retry_After="1")

    with scripted(script) as server:
        works(collect(asking, server.url, "math"))
    assert calls(asking) == 3 * 4


def test_at_a_limit_what_is_under_way_is_kept_and_nothing_more_is_asked(asking: Place) -> None:
    with scripted(lambda prompt, before: Reply(completion("x", 4, 1))) as server:
        write_pool(asking, server.url, "concurrency = 2")
        error = asking.refuses(f"{COLLECT} big.jsonl --max-spend 50", code=130)
        assert error.startswith("error: the limit is reached: --max-spend 50, ")
        # 5 each: ten reach the limit, and two of each model are under way.
        assert 10 <= server.asked.total() == calls(asking) <= 10 + 2 * 2
        works(asking.asks(f"{COLLECT} big.jsonl --max-spend 5000"))
        assert server.asked.total() == calls(asking)


@pytest.mark.parametrize("junk", ["html", "no choices"])
def test_answers_that_are_none(collected: Place, junk: str) -> None:
    with scripted(lambda prompt, before: JUNK[junk]) as server:
        error = failed(collected, server.url)
    assert f"unexpected answer from {server.address}" in error


def test_a_server_that_hangs(collected: Place) -> None:
    with scripted(lambda prompt, before: late(good(prompt), 100)) as server:
        error = failed(collected, server.url, "timeout_s = 0.5")
    assert "timed out after 0.5 s" in error


def test_a_redirect(collected: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HR_API_KEY", KEY)
    with scripted(lambda prompt, before: good(prompt)) as other:
        away = Reply("", 308, {"Location": f"{other.url}/chat/completions"})
        with scripted(lambda prompt, before: away) as server:
            error = failed(collected, server.url, 'api_key_env = "HR_API_KEY"')
        assert other.seen == []
    assert "redirect" in error


NASTY = "\x1b]52;c;aGk=\x07 [/INST] \x00 \ud800 <script>alert(1)</script> =cmd()"


def test_a_nasty_text_is_an_answer(asking: Place) -> None:
    with scripted(lambda prompt, before: Reply(completion(NASTY))) as server:
        done = works(collect(asking, server.url, "math"))
    assert "\x1b" not in done.stdout + done.stderr
    query = "SELECT DISTINCT response FROM nodes"
    shown = asking.does("cache sql --cache cache --format json", query).stdout
    assert "\\ufffd <script>" in shown or "\ufffd <script>" in shown


def test_usage_is_missing(collected: Place) -> None:
    with scripted(lambda prompt, before: Reply(completion("x", usage={}))) as server:
        error = failed(collected, server.url)
        assert "usage" in error and "name a tokenizer" in error
        works(collect(collected, server.url, "math", 'tokenizer = "testbed:calc"'))


def test_another_model_answers_or_is_served(collected: Place) -> None:
    with scripted(lambda prompt, before: Reply(completion("x", model="other"))) as server:
        assert "answers come from 'other'" in failed(collected, server.url)
    listing = Reply({"data": [{"id": "other"}]})
    with scripted(lambda prompt, before: good(prompt), listing) as server:
        error = failed(collected, server.url)
    assert f"model served is not served at {server.address}, which serves other" in error


def test_a_moved_server_keeps_its_answers(collected: Place) -> None:
    with scripted(lambda prompt, before: good(prompt)) as server:
        done = works(collect(collected, server.url, "math"))
        assert not server.asked
    assert " 0 calls made" in done.stderr


def test_ctrl_c_commits_what_is_under_way(asking: Place, start: Start) -> None:
    def script(prompt: str, before: int) -> Reply:
        if server.asked.total() == 40:
            process.send_signal(signal.SIGINT)
        return late(good(prompt), 0.1)

    with scripted(script) as server:
        write_pool(asking, server.url)
        process = start(*COLLECT.split(), "big.jsonl", cwd=asking.folder)
        done = process.result()
        assert done.returncode == 130, done.stderr
        asked = server.asked.total()
    assert 40 <= asked < 100
    assert calls(asking) == asked


LOCAL = "".join(
    f'[[models]]\nname = "{name}"\nmodel = "served"\nbase_rate = 1\n'
    f"generation = {{ max_new_tokens = {limit} }}\n"
    for name, limit in (("short", 8), ("long", 9))
)


def test_a_pool_that_knows_nothing_of_servers_is_asked_of_one(
    asking: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HR_API_KEY", KEY)
    (asking / "pool.toml").write_text(POOL + LOCAL)
    command, remote = f"{COLLECT} math.jsonl", "--base-url http://example.invalid/v1"
    for flags, said in [
        ("--base-url file:///etc/passwd", "base_url must be http"),
        (f"{remote} --api-key-env HR_API_KEY", "plain http.*--insecure"),
        (f"{remote} --api-key-env NOT_THERE --insecure", "NOT_THERE is not set"),
        (f"{remote} --backend transformers", "--base-url needs --backend openai"),
        ("--backend openai", "base_url is missing"),
    ]:
        line = asking.refuses(f"{command} {flags}")
        assert re.search(said, line)
        assert KEY not in line
    assert not (asking / "cache").exists()
    with scripted(lambda prompt, before: good(prompt)) as server:
        asking.does(f"{command} --base-url {server.url} --timeout 5")
        assert server.asked.total() == calls(asking) == 3 * 4
