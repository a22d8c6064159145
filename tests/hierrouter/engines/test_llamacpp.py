"""llama.cpp's own server, in an environment of its own, over the testbed's models as GGUF files."""

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from transformers import AutoTokenizer

from hierrouter.engines import backend
from hierrouter.engines.encoders import load_encoder
from hierrouter.engines.generator import Failure
from hierrouter.pools.files import load_pool
from hierrouter.questions.datasets import load_queries
from hierrouter.questions.shipped import model_path
from hierrouter.replay.inspection import ask_cache, verify_cache
from hierrouter_cache.reader import CacheReader
from tests.cli.conftest import COMMAND, Place
from tests.cli.test_route import serving
from tests.conftest import COMMAND as COMMAND_LINE
from tests.conftest import Run, Start, calls_made, environment, python_with, refused, spawned, works
from tests.engines import answers_in_order
from tests.servers import free_port, running
from tests.warm import Warm

PINNED = ("xllamacpp==2026.10.11549", "gguf==0.19.0", "numpy==2.4.6")
HERE = Path(__file__).parent
RATES = {"calc": 0.03, "text": 0.02, "facts": 0.03}
POOL = '[pool]\nhops = 2\nper_tokens = 1\nstage_prompts = ["", ""]\nencoder = "hashed-ngrams"\n'
ENTRY = """[[models]]
name = "{name}"
base_rate = {rate}
dtype = "float32"
generation = {{ max_new_tokens = 16 }}
"""
HERE_ENTRY = 'model = "testbed:{name}"\n'
THERE_ENTRY = """model = "{name}"
backend = "openai"
endpoint = {{ base_url = "http://127.0.0.1:{port}/v1", deployment = "llama.cpp" }}
"""


@dataclass
class Servers:
    """A process for each model; one that was killed can be started anew."""

    python: Path
    folder: Path
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in RATES})
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    stack: ExitStack = field(default_factory=ExitStack)

    def start(self, name: str, port: int = 0, *more: str) -> None:
        port, file = port or self.ports[name], self.folder / f"{name}.gguf"
        command = [self.python, HERE / "llamacpp_server.py", file, str(port), *more]
        ready = f"http://127.0.0.1:{port}/health"
        process = running(command, ready, self.folder / f"{name}.log")
        self.processes[name] = self.stack.enter_context(process)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All three, over files that were written just now."""
    folder = tmp_path_factory.mktemp("llamacpp")
    servers = Servers(python_with(*PINNED), folder)
    with servers.stack:
        for name in RATES:
            weights, file = model_path(f"testbed:{name}"), folder / f"{name}.gguf"
            works(spawned(servers.python, HERE / "gguf_of.py", weights, file))
            servers.start(name)
        yield servers


@pytest.fixture(scope="module")
def place(servers: Servers, tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Place:
    """A folder with a pool of these servers and one of the weights, and what each answered."""
    place = Place(tmp_path_factory.mktemp("both"), hierrouter)
    for file, entry in (("here.toml", HERE_ENTRY), ("there.toml", THERE_ENTRY)):
        models = (
            (ENTRY + entry).format(name=name, rate=rate, port=servers.ports[name])
            for name, rate in RATES.items()
        )
        (place / file).write_text(POOL + "".join(models))
    place.does(f"collect --pool here.toml --cache here --datasets testbed --limit {MANY}")
    place.does(f"{COLLECT} --cache there --limit {FEW}")
    return place


FEW, MANY = 2, 6  # questions of each of the ten families
COLLECT = "collect --pool there.toml --datasets testbed"
NODES = """SELECT question, route, response, tokens_in, tokens_out, finish_reason, logprob_tokens,
logprob_sum, logprob_min FROM nodes JOIN queries USING (query)"""
SAME = ("response", "tokens_in", "tokens_out", "finish_reason", "logprob_tokens")
PROBABILITY = ("logprob_sum", "logprob_min")
Nodes = dict[tuple[str, str], dict[str, Any]]


def nodes(place: Place, cache: str) -> Nodes:
    """By question and route."""
    found = ask_cache(place / cache, NODES).to_pylist()
    return {(row["question"], row["route"]): row for row in found}


def calls_in(cache: Path) -> int:
    return CacheReader(cache).number("SELECT count(*) FROM calls")


def require_same(here: Nodes, there: Nodes) -> None:
    """All of 900 were, log-probabilities to 4e-5; another processor may round another way."""
    equal = [key for key in there if all(there[key][name] == here[key][name] for name in SAME)]
    assert len(equal) > 0.95 * len(there)
    for key in equal:
        for name in PROBABILITY:
            assert there[key][name] == pytest.approx(here[key][name], abs=1e-3)


def test_questions_are_cut_into_the_tokens_of_the_shipped_tokenizer(servers: Servers) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_path("testbed:calc"))
    texts = [query.question for query in load_queries(["testbed"], 100, 42, Path())]
    assert len(texts) == 1000
    with httpx2.Client(base_url=f"http://127.0.0.1:{servers.ports['calc']}") as client:
        for text in (*texts, f"{texts[0]}\n\n19"):
            found = client.post("/tokenize", json={"content": text}).json()["tokens"]
            assert found == tokenizer.encode(text), text


def test_the_trees_are_those_of_the_weights_themselves(place: Place) -> None:
    here, there = nodes(place, "here"), nodes(place, "there")
    assert len(there) == 10 * FEW * (3 + 9 + 3)  # both hops, and direct calls
    assert len({row["response"] for row in there.values()}) > 30
    require_same(here, there)


def test_what_does_not_fit_is_said_to_be_too_long(place: Place) -> None:
    [spec, *_] = load_pool(str(place / "there.toml")).models
    [answer] = answers_in_order(backend("openai").load(spec), ["word " * 3000])
    assert isinstance(answer, Failure) and answer.status == "too_long"


def test_a_router_is_trained_and_streams_their_answers(place: Place, start: Start) -> None:
    shutil.copytree(place / "there", place / "more")
    place.does(f"{COLLECT} --cache more --limit {MANY}")
    place.does("train --cache more --out run")
    stored = nodes(place, "more")
    question = next(question for question, _ in stored if question.startswith("compute"))
    with serving(place, start, "--checkpoint", "run", "--allow-endpoint", "127.0.0.1") as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        asked: Any = [{"role": "user", "content": question}]
        wanted = client.chat.completions.create(messages=asked, model="hierrouter", stream=True)
        *chunks, last = wanted
    said = [chunk.choices[0].delta.content or "" for chunk in chunks]
    route = last.model_extra["hierrouter"]["route"]
    assert "".join(said) == stored[question, route]["response"]


def test_a_router_reads_what_a_server_embeds(place: Place, servers: Servers, start: Start) -> None:
    """And serves with it, in a process that loads neither torch nor a model."""
    port = free_port()
    servers.start("facts", port, "embeddings")
    server = f"http://127.0.0.1:{port}/v1#facts"
    shutil.copytree(place / "there", place / "embeds")
    place.does(f"{COLLECT} --cache embeds --limit {MANY}")
    train = f"train --cache embeds --algo value --keep-anyway --encoder {server} --alpha 0.1"
    place.does(f"{train} --out reads")
    report = "report --cache embeds --split train --checkpoint reads"
    assert place.tells(report)["provenance"]["encoder"].startswith("served:facts@http://127.0.0.1")
    vectors = load_encoder(server).encode(["compute 12+7", "word " * 900])
    assert vectors.shape == (2, 96) and vectors[0] @ vectors[1] < 0.999
    flags = ["--checkpoint", "reads", "--allow-endpoint", "127.0.0.1", "--canaries", "0"]
    words = [*COMMAND_LINE, "serve", "--port", "0", *flags, "--encoder", server]
    with subprocess.Popen(words, cwd=place.folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        said = (re.search(r"(http://127.0.0.1:\d+)/v1 as", line) for line in process.stderr)
        url = next(found[1] for found in said if found)
        body = {"model": "hierrouter", "messages": [{"role": "user", "content": "compute 12+7"}]}
        answered = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        assert answered.status_code == 200, answered.text
        mapped = Path(f"/proc/{process.pid}/maps").read_text()
        process.send_signal(signal.SIGINT)
    assert [name for name in ("torch", "transformers", "scipy") if f"/{name}/" in mapped] == []
    route = "route --checkpoint reads --allow-endpoint 127.0.0.1 'compute 1+1'"
    assert "on a server of unknown address: served:facts@http" in place.refuses(route)
    text = f"http://127.0.0.1:{servers.ports['text']}/v1#text"
    refused = place.refuses(f"{route} --encoder {text}")
    assert "not served:text@http" in refused and "give the server of that model" in refused


SHORT_WAITS = """from hierrouter.engines import health
health.FIRST_PAUSE_S = 0.02
"""


def test_a_server_killed_in_the_middle_costs_no_answer(
    place: Place, servers: Servers, warm: Warm
) -> None:
    cache = Path(shutil.copytree(place / "there", place / "killed"))
    words, before = f"{COLLECT} --cache killed --limit {MANY}", calls_in(cache)
    code = (SHORT_WAITS + COMMAND, *words.split())
    process = warm.start("-c", *code, cwd=place.folder, env=environment())
    while calls_in(cache) == before:
        assert process.poll() is None, process.said()
        time.sleep(0.01)
    servers.kill("text")
    error = refused(process.result(), code=1)
    assert f"cannot connect to 127.0.0.1:{servers.ports['text']}" in error
    assert error.endswith("the same command makes the rest")
    committed = calls_in(cache)
    servers.start("text")
    made, there = calls_made(place.does(words).stderr)
    assert there == committed > before and made > 0
    assert calls_in(cache) == made + there
    verify_cache(cache)
    here, found = nodes(place, "here"), nodes(place, "killed")
    assert found.keys() == here.keys()
    require_same(here, found)
