"""A real LiteLLM router, in a separate environment, sends each question to the decided model."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hierrouter.learning.config import Objective
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import load_texts
from hierrouter.serving.router import Router
from tests.conftest import SOURCES, Run, python_with, works
from tests.hierrouter.serving.serving import MODELS, run_in, served, user
from tests.servers import Reply, Server, completion, serving

LITELLM = "litellm==1.110.2"
CLIENT = Path(__file__).with_name("litellm_client.py")
STRATEGY = SOURCES / "docs" / "litellm_strategy.py"


@pytest.fixture(scope="module")
def litellm() -> Path:
    """The interpreter of a separate environment."""
    return python_with(LITELLM)


@pytest.fixture(scope="module")
def one_hop(testbed_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a router that makes one call."""
    tree = OpenTree(cache=testbed_cache, hops=1).run()
    return run_in(tmp_path_factory.mktemp("one-hop"), tree, Objective(0.1))


def chosen(
    python: Path, url: str, folder: Path, messages: Sequence[Any], otherwise: str | None = None
) -> tuple[list[str], Mapping[str, Server]]:
    """The model that answers each question, and the servers that were called."""
    upstreams = {name: Server(lambda prompt, before: Reply(completion("x"))) for name in MODELS}
    with ExitStack() as stack:
        for upstream in upstreams.values():
            stack.enter_context(serving(upstream))
        addresses = {name: upstream.url for name, upstream in upstreams.items()}
        request = {"models": addresses, "messages": messages, "otherwise": otherwise}
        (folder / "asked.json").write_text(json.dumps(request))
        words = [python, CLIENT, STRATEGY, url, folder / "asked.json"]
        local = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
        done = subprocess.run(words, capture_output=True, text=True, env=local, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), upstreams


def test_two_hundred_questions_go_where_route_sends_them(
    litellm: Path, one_hop: Path, testbed_cache: Path, tmp_path: Path, hierrouter: Run
) -> None:
    texts = load_texts(testbed_cache, OpenTree(cache=testbed_cache).run())
    questions = [text.question for text in texts]
    assert len(questions) == 200
    rows = [json.dumps({"question": question}) for question in questions]
    (tmp_path / "asked.jsonl").write_text("\n".join(rows))
    words = ("route", "--checkpoint", one_hop, "--file", "asked.jsonl")
    lines = works(hierrouter(*words, cwd=tmp_path)).stdout.splitlines()
    with served(Router(one_hop, load=False)) as url:
        models, upstreams = chosen(litellm, url, tmp_path, list(map(user, questions)))
    assert models == [json.loads(line)["route"].removeprefix(">") for line in lines]
    assert len(set(models)) == len(MODELS)
    for name, upstream in upstreams.items():
        assert sum(upstream.asked.values()) == models.count(name)


def test_undecidable_requests_go_to_the_named_deployment(
    litellm: Path, one_hop: Path, tmp_path: Path
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tools = [
        *user("x"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ]
    with served(Router(one_hop, load=False)) as url:
        [answer], upstreams = chosen(litellm, url, tmp_path, [tools])
        assert "a tool was called: messages[1]" in answer
        assert not any(upstream.requests for upstream in upstreams.values())
        assert chosen(litellm, url, tmp_path, [tools], "facts")[0] == ["facts"]
    assert chosen(litellm, url, tmp_path, [user("x")], "text")[0] == ["text"]  # it is down by now
