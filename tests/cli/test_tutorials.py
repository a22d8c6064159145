"""What the tutorials show, runs; servers answer where a page has some."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.cli.pages import DOCS, follow
from tests.conftest import Run
from tests.servers import Reply, Server, completion, serving

# The paper's needs a GPU and a network; the one with servers is below.
WITHOUT_SERVERS = ("own_dataset", "prices_and_budgets", "add_a_model", "own_baseline")


@pytest.mark.parametrize("name", WITHOUT_SERVERS)
def test_a_tutorial_runs(name: str, own: Place) -> None:
    follow(DOCS / "tutorials" / f"{name}.md", own)


def test_the_tutorial_of_endpoints_runs(tmp_path: Path, brief: Run) -> None:
    small = speaking("small-3b", lambda prompt: "I do not know.")
    large = speaking("large-14b", total)
    with serving(small), serving(large):
        page = DOCS / "tutorials" / "own_models.md"
        follow(page, Place(tmp_path, brief), _8000=small.url, _8001=large.url)
    assert len(small.asked) == len(large.asked) > 40
    assert max([*small.asked.values(), *large.asked.values()]) == 1  # the pilot is not paid twice


def speaking(model: str, answer: Callable[[str], str]) -> Server:
    """A server with one model."""
    return Server(
        lambda prompt, before: Reply(completion(answer(prompt), model=model)),
        Reply({"object": "list", "data": [{"id": model}]}),
    )


def total(prompt: str) -> str:
    """The sum that a prompt asks for."""
    left, right = (int(number) for number in re.findall(r"\d+", prompt)[:2])
    return str(left - right if re.search(r"-|minus", prompt) else left + right)


def test_every_tutorial_is_here() -> None:
    found = {page.stem for page in (DOCS / "tutorials").glob("*.md")}
    assert found == {*WITHOUT_SERVERS, "own_models", "paper"}
