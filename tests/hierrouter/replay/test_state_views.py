"""A real cache opened in each view, with real encoders."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hierrouter.engines.encoders import BUILT_IN, Encoder, load_encoder
from hierrouter.replay.inspection import ask_cache
from hierrouter.replay.opening import VIEWS, Selection, open_tree, state_texts
from hierrouter_cache.embeddings import embedding_files
from hierrouter_cache.errors import DamagedPart, InputError
from hierrouter_cache.tree import RouteTree
from tests.models import save_random_encoder

ENCODERS: dict[str, Callable[[Path], str]] = {
    "hashed": lambda folder: BUILT_IN,
    "sentence": lambda folder: str(save_random_encoder(folder)),
}


@pytest.fixture
def cache(tmp_path: Path, testbed_cache: Path) -> Path:
    """The testbed without any embedding."""
    root = Path(shutil.copytree(testbed_cache, tmp_path / "cache"))
    shutil.rmtree(root / "derived", ignore_errors=True)
    return root


def files(cache: Path) -> dict[str, int]:
    """Rows of each embedding file, by folder."""
    return {file.path.parent.name: file.rows for file in embedding_files(cache)}


def words(cache: Path, tree: RouteTree) -> list[list[tuple[str, list[str]]]]:
    """Question and responses at each state of each query, as `cache sql` tells them."""
    asked = ask_cache(cache, "SELECT id, question FROM queries").to_pylist()
    question = {row["id"]: row["question"] for row in asked}
    said = ask_cache(cache, "SELECT id, route, response FROM nodes WHERE hop > 0").to_pylist()
    response = {(row["id"], row["route"]): row["response"] for row in said}
    states = range(tree.routes.states)
    paths = [[tree.models[action] for action in tree.routes.path(state)] for state in states]
    return [
        [
            (
                question[name],
                [response[name, ">".join(path[:hop])] for hop in range(1, len(path) + 1)],
            )
            for path in paths
        ]
        for name in tree.query_ids
    ]


def live(encoder: Encoder, view: str, states: list[tuple[str, list[str]]]) -> NDArray[np.float32]:
    """float32[states, dim]: what a router that serves would make of these states."""
    shown = [state_texts(view, question, responses) for question, responses in states]
    return np.concatenate([encoder.encode(column) for column in zip(*shown, strict=True)], axis=1)


@pytest.mark.parametrize("view", ["context", "query+answer", "query"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_stored_state_is_what_a_live_one_would_be(
    cache: Path, encoder: str, view: str, tmp_path: Path
) -> None:
    name = ENCODERS[encoder](tmp_path / "encoder")
    tree = open_tree(cache, Selection(encoder=name, view=view, limit=1))
    assert (tree.encoder, tree.view) == (name, view)
    expected = [live(load_encoder(name), view, states) for states in words(cache, tree)]
    np.testing.assert_allclose(tree.embedding, expected, atol=1e-5)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_equal_answers_look_the_same_after_different_contexts(
    cache: Path, encoder: str, tmp_path: Path
) -> None:
    """To the bit, although they were not encoded in one batch."""
    name = ENCODERS[encoder](tmp_path / "encoder")
    for dataset in ("arith", "string", "room"):
        open_tree(cache, Selection(encoder=name, view="query+answer", datasets=(dataset,)))
    tree = open_tree(cache, Selection(encoder=name, view="query+answer"))
    answers = [responses[-1:] for states in words(cache, tree) for _, responses in states]
    _, text = np.unique(["".join(answer) for answer in answers], return_inverse=True)
    vectors = tree.parts[1].vectors[tree.parts[1].row].reshape(len(text), -1)
    kinds = len(np.unique(text))
    assert kinds < len(text) - len(tree)  # some answers were given twice
    assert len(np.unique(tree.parts[1].row)) == kinds
    assert len(np.unique(np.column_stack([text, vectors]), axis=0)) == kinds


def test_the_question_is_seen_at_every_state(cache: Path) -> None:
    seen = open_tree(cache, Selection(view="query")).embedding
    root = open_tree(cache).embedding[:, :1]
    assert np.array_equal(seen, np.repeat(root, seen.shape[1], axis=1))
    both = open_tree(cache, Selection(view="query+answer")).embedding
    assert np.array_equal(both[..., : seen.shape[2]], seen)


def test_only_what_a_view_shows_is_embedded(cache: Path) -> None:
    blind = open_tree(cache, Selection(view="stage"))
    assert (blind.dim, files(cache)) == (0, {})
    queries, states = len(blind), blind.routes.states
    open_tree(cache, Selection(view="query"))
    [asked] = files(cache).values()
    assert asked <= queries
    whole = open_tree(cache)
    [folder] = files(cache)
    assert asked < sum(file.rows for file in embedding_files(cache)) <= queries * states
    open_tree(cache, Selection(view="query+answer"))
    [answers] = set(files(cache)) - {folder}
    distinct = {"".join(said[-1:]) for row in words(cache, whole) for _, said in row}
    assert files(cache)[answers] == len(distinct)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_embedded_once(cache: Path, view: str) -> None:
    told: list[str] = []

    def opened() -> RouteTree:
        return open_tree(cache, Selection(view=view), lambda what, *_: told.append(what))

    first = opened()
    told.clear()
    again = opened()
    assert "embed" not in told
    assert np.array_equal(again.embedding, first.embedding)


def test_every_view_is_of_the_same_data(cache: Path) -> None:
    opened = [open_tree(cache, Selection(view=view)) for view in VIEWS]
    assert len({tree.fingerprint for tree in opened}) == 1
    dims = {tree.view: tree.dim for tree in opened}
    assert dims == {"context": 512, "query+answer": 1024, "query": 512, "stage": 0}


@pytest.mark.parametrize("view", VIEWS)
def test_a_read_only_cache_is_opened_in_every_view(
    cache: Path, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    expected = open_tree(cache, Selection(view=view)).embedding
    shutil.rmtree(cache / "derived", ignore_errors=True)
    monkeypatch.setattr("os.access", lambda path, mode: False)  # tests may run as root
    assert np.array_equal(open_tree(cache, Selection(view=view)).embedding, expected)
    assert embedding_files(cache) == []


def test_one_hop_shows_an_empty_answer(cache: Path) -> None:
    tree = open_tree(cache, Selection(view="query+answer", hops=1))
    empty = load_encoder(BUILT_IN).encode([""])
    assert tree.embedding.shape == (len(tree), 1, 1024)
    assert np.array_equal(tree.embedding[:, 0, 512:], np.repeat(empty, len(tree), axis=0))


def test_damaged_answers_are_named(cache: Path) -> None:
    open_tree(cache, Selection(view="query+answer"))
    for file in embedding_files(cache):
        data = bytearray(file.path.read_bytes())
        data[-1] ^= 1
        file.path.write_bytes(data)
    with pytest.raises(DamagedPart, match=r"damaged embedding file: .*cache repair"):
        open_tree(cache, Selection(view="query+answer"))


def test_an_unknown_view_is_refused_before_a_cache_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown state view: queri; did you mean query"):
        open_tree(tmp_path / "nothing", Selection(view="queri"))
