"""The openai engine against a real server: `transformers serve` with the testbed's weights.

`tests/cli/test_collect.py` compares whole trees.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.engines import backend
from hierrouter.engines.generator import Response, answers_in_order
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec
from hierrouter.questions.datasets import load_queries
from tests.servers import servable, transformers_serve

NAMES = ("calc", "text")


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ModelSpec]]:
    """Each model, as the server answers for it; run here with backend transformers."""
    root = tmp_path_factory.mktemp("served")
    with transformers_serve(root / "serve.log") as url:
        yield {
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


QUESTIONS = [query.question for query in load_queries(["testbed"], 6, 42, Path())]


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
