"""`hierrouter collect --datasets gsm8k,math` here and through a real server: equal trees."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hierrouter.replay.inspection import ask_cache
from tests.cli.test_collect import MADE_UP, write_questions
from tests.conftest import Run, works
from tests.servers import servable, transformers_serve

MODELS = ("calc", "text")
WINDOW = 300  # characters; the testbed's models take 512 tokens, and servers never say too_long
ARGUMENTS = ["collect", "--datasets", "gsm8k,math", "--pool", "pool.toml", "--limit", "20"]
NODES = """SELECT query, route, hop, model, prompt, response, tokens_in, tokens_out, finish_reason
FROM nodes ORDER BY query, hop, route"""
SCORES = "SELECT query, route, hop, scorer, value FROM scores ORDER BY query, hop, route, scorer"


def write_short_questions(name: str, path: Path) -> None:
    write_questions(name, path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if len(json.loads(line)["question"]) <= WINDOW))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("both")
    (folder / "data").mkdir()
    for name in MADE_UP:
        write_short_questions(name, folder / "data" / f"{name}.jsonl")
    pool = '[pool]\nhops = 2\nstage_prompts = ["Plan.", "Solve."]\n'
    for name in MODELS:
        pool += (
            f'[[models]]\nname = "{name}"\nmodel = "{servable(name, folder)}"\nbase_rate = 0.01\n'
            'dtype = "float32"\ngeneration = { max_new_tokens = 16 }\n'
        )
    (folder / "pool.toml").write_text(pool)
    return folder


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with transformers_serve(tmp_path_factory.mktemp("log") / "serve.log") as base_url:
        yield base_url


def test_the_trees_are_equal(home: Path, url: str, hierrouter: Run) -> None:
    for cache, more in (("here", []), ("there", ["--base-url", url])):
        works(hierrouter(*ARGUMENTS, "--cache", cache, *more, cwd=home))
    here, there = (ask_cache(home / cache, NODES).to_pylist() for cache in ("here", "there"))
    queries = len({row["query"] for row in here})
    assert queries > 30
    assert len(here) == queries * (2 + 4 + 2)  # both hops, and direct calls without instructions
    assert len({row["response"] for row in here}) > queries  # else equality would say little
    assert there == here
    here, there = (ask_cache(home / cache, SCORES).to_pylist() for cache in ("here", "there"))
    assert len(here) == 2 * queries * (2 + 4 + 2)  # token_f1 and accuracy
    assert there == here
