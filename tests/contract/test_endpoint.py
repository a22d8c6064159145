"""The openai engine against a real server: `transformers serve` with the testbed's weights."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.engines import backend
from hierrouter.engines.generator import Response
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec
from hierrouter.questions.datasets import load_queries
from hierrouter.replay.inspection import ask_cache
from tests.cli.conftest import Place
from tests.cli.test_collect import COLLECT, MADE_UP, pool_of, write_questions
from tests.conftest import Run
from tests.engines import answers_in_order
from tests.servers import servable, transformers_serve

NAMES = ("calc", "text")
SHORT = 300  # characters; the testbed's models take 512 tokens, and servers never say too_long


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the server."""
    with transformers_serve(tmp_path_factory.mktemp("served") / "serve.log") as url:
        yield url


@pytest.fixture(scope="module")
def specs(url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSpec]:
    """Each model, as the server answers for it; run here with backend transformers."""
    root = tmp_path_factory.mktemp("models")
    return {
        name: ModelSpec(
            name,
            str(servable(name, root)),
            backend="openai",
            dtype="float32",
            generation=Generation(16),
            endpoint=Endpoint(url),
        )
        for name in NAMES
    }


QUESTIONS = [query.question for query in load_queries(["testbed"], 3, 42, Path())]


@pytest.mark.parametrize("model", NAMES)
def test_the_answers_and_counts_are_those_of_the_weights_themselves(
    specs: dict[str, ModelSpec], model: str
) -> None:
    here, there = (backend(name).load(specs[model]) for name in ("transformers", "openai"))
    first = [answer for answer in answers_in_order(here, QUESTIONS) if isinstance(answer, Response)]
    assert len(set(first)) > 10
    pairs = zip(QUESTIONS, first, strict=True)
    asked = [*QUESTIONS, *(f"{question}\n\n{answer.text}" for question, answer in pairs)]
    assert answers_in_order(there, asked) == answers_in_order(here, asked)


def test_company_and_order_change_no_answer(specs: dict[str, ModelSpec]) -> None:
    there, asked = backend("openai").load(specs["calc"]), QUESTIONS[:20]
    alone = dict(zip(asked, answers_in_order(there, asked), strict=True))
    shuffled = random.Random(1).sample(asked, len(asked)) + asked[:3]
    assert answers_in_order(there, shuffled) == [alone[prompt] for prompt in shuffled]


def test_a_cut_answer_is_marked(specs: dict[str, ModelSpec]) -> None:
    spec = replace(specs["calc"], generation=Generation(1))
    (answer,) = answers_in_order(backend("openai").load(spec), ["compute 12+7"])
    assert isinstance(answer, Response)
    assert (answer.tokens_out, answer.finish_reason) == (1, "length")


NODES = """SELECT query, route, hop, model, prompt, response, tokens_in, tokens_out, finish_reason
FROM nodes ORDER BY query, hop, route"""
SCORES = "SELECT query, route, hop, scorer, value FROM scores ORDER BY query, hop, route, scorer"


def test_the_trees_of_both_engines_are_equal(url: str, tmp_path: Path, hierrouter: Run) -> None:
    """Whole trees that the command collects, here and through the server."""
    place = Place(tmp_path, hierrouter)
    (place / "data").mkdir()
    for name in MADE_UP:
        write_questions(name, file := place / "data" / f"{name}.jsonl")
        lines = file.read_text().splitlines(keepends=True)
        short = [line for line in lines if len(json.loads(line)["question"]) <= SHORT]
        file.write_text("".join(short))
    models = [servable(name, place.folder) for name in NAMES]
    pool_of(place.folder, models, 16, 'dtype = "float32"\n')
    for cache, more in (("here", ""), ("there", f"--base-url {url}")):
        place.does(f"{COLLECT} --cache {cache} {more}")
    here, there = (ask_cache(place / cache, NODES).to_pylist() for cache in ("here", "there"))
    queries = len({row["query"] for row in here})
    assert queries > 15
    assert len(here) == queries * (2 + 4 + 2)  # both hops, and direct calls without instructions
    assert len({row["response"] for row in here}) > queries  # else equality would say little
    assert there == here
    here, there = (ask_cache(place / cache, SCORES).to_pylist() for cache in ("here", "there"))
    assert len(here) == 2 * queries * (2 + 4 + 2)  # token_f1 and accuracy
    assert there == here
