"""The openai engine against a real server: `transformers serve` with the testbed's weights."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.collection.scheduler import collect
from hierrouter.engines import backend
from hierrouter.engines.generator import Generator, Response, answers_in_order
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec, Pool
from hierrouter.questions.datasets import load_queries
from hierrouter.replay.inspection import ask_cache
from tests.servers import servable, transformers_serve

NAMES = ("calc", "text")
GENERATION = Generation(16)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("served")
    return {name: servable(name, root) for name in NAMES}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with transformers_serve(tmp_path_factory.mktemp("log") / "serve.log") as base_url:
        yield base_url


@pytest.fixture(scope="module")
def pools(folders: dict[str, Path], url: str) -> dict[str, Pool]:
    """The same models, run here and by the server."""
    return {
        name: Pool(
            models=tuple(
                ModelSpec(
                    model,
                    str(folder),
                    0.1,
                    backend=name,
                    dtype="float32",
                    generation=GENERATION,
                    endpoint=Endpoint(url, deployment="test"),
                )
                for model, folder in folders.items()
            ),
            hops=2,
            stage_prompts=("", ""),
        )
        for name in ("transformers", "openai")
    }


@pytest.fixture(scope="module")
def engines(pools: dict[str, Pool]) -> dict[tuple[str, str], Generator]:
    return {
        (name, model.name): backend(name).load(model)
        for name, pool in pools.items()
        for model in pool.models
    }


def questions() -> list[str]:
    """Six of each of the ten families."""
    return [query.question for query in load_queries(["testbed"], 6, 42, Path())]


@pytest.mark.parametrize("model", NAMES)
def test_the_answers_and_counts_are_those_of_the_weights_themselves(
    engines: dict[tuple[str, str], Generator], model: str
) -> None:
    here, there = engines["transformers", model], engines["openai", model]
    asked = questions()
    first = answers_in_order(here, asked)
    assert len({answer for answer in first if isinstance(answer, Response)}) > 10
    asked += [
        f"{question}\n\n{answer.text}"
        for question, answer in zip(asked, first, strict=True)
        if isinstance(answer, Response)
    ]
    assert len(asked) == 120
    assert answers_in_order(there, asked) == answers_in_order(here, asked)


def test_company_and_order_change_no_answer(engines: dict[tuple[str, str], Generator]) -> None:
    there, asked = engines["openai", "calc"], questions()[:20]
    alone = dict(zip(asked, answers_in_order(there, asked), strict=True))
    shuffled = random.Random(1).sample(asked, len(asked)) + asked[:3]
    assert answers_in_order(there, shuffled) == [alone[prompt] for prompt in shuffled]


def test_a_cut_answer_is_marked(pools: dict[str, Pool]) -> None:
    spec = replace(pools["openai"].models[0], generation=Generation(1))
    (answer,) = answers_in_order(backend("openai").load(spec), ["compute 12+7"])
    assert isinstance(answer, Response)
    assert (answer.tokens_out, answer.finish_reason) == (1, "length")


NODES = """SELECT query, route, hop, model, prompt, response, tokens_in, tokens_out, finish_reason
FROM nodes ORDER BY query, hop, route"""


def test_the_trees_are_equal(pools: dict[str, Pool], tmp_path: Path) -> None:
    rows = [
        {"id": str(n), "question": question, "answer": "7"}
        for n, question in enumerate(questions()[::5])
    ]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = load_queries([str(tmp_path / "own.jsonl")], None, 42, tmp_path)
    trees = []
    for name, pool in pools.items():
        summary = collect(pool, queries, tmp_path / name)
        assert (summary.missing, len(queries)) == (0, 12)
        trees.append(ask_cache(tmp_path / name, NODES).to_pylist())
    assert len(trees[0]) == 12 * (2 + 4 + 2)  # nodes of both hops, direct calls
    assert trees[0] == trees[1]
