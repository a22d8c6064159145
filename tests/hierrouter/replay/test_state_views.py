"""What a view shows of a state, and a real cache opened in each view, with real encoders."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import hierrouter as hr
from hierrouter.collection.scheduler import fill_cache
from hierrouter.declarations.flags import DEFAULT_VIEW
from hierrouter.engines.encoder_names import BUILT_IN_ENCODER
from hierrouter.engines.encoders import Encoder, load_encoder
from hierrouter.engines.generator import Confidence, Response, context_text
from hierrouter.evaluation.outcome import Actions
from hierrouter.questions.datasets import load_queries
from hierrouter.replay.inspection import ask_cache, data_notes
from hierrouter.replay.states import STATE_VIEWS, state_texts
from hierrouter.serving.decisions import live_numbers
from hierrouter_cache.embeddings import embedding_files
from hierrouter_cache.errors import DamagedPart, InputError
from hierrouter_cache.tree import RouteTree
from tests.engines import Scripted, scripted_answer
from tests.models import save_random_encoder

ENCODERS: dict[str, Callable[[Path], str]] = {
    "hashed": lambda folder: BUILT_IN_ENCODER,
    "sentence": lambda folder: str(save_random_encoder(folder)),
}


@pytest.fixture
def bare(cache: Path) -> Path:
    """The testbed without any embedding."""
    shutil.rmtree(cache / "derived", ignore_errors=True)
    return cache


@pytest.mark.parametrize(
    ("view", "before", "after"),
    [
        ("context", ("q",), (context_text("q", ["first", "second"]),)),
        ("query+answer", ("q", ""), ("q", "second")),
        ("query", ("q",), ("q",)),
        ("stage", (), ()),
    ],
)
def test_what_each_view_shows(view: str, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    assert state_texts(view, "q", []) == before
    assert state_texts(view, "q", ["first", "second"]) == after
    assert (DEFAULT_VIEW, view in STATE_VIEWS) == ("context", True)  # the paper's is the first


def test_an_unknown_view_is_refused_before_a_cache_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown state view: queri; did you mean query"):
        hr.open(tmp_path / "nothing", state="queri")
    with pytest.raises(InputError, match=r"unknown .*: ; known: context, query\+answer, query, s"):
        state_texts("", "q", [])


def files(cache: Path) -> dict[str, int]:
    """Rows of each embedding file, by folder."""
    return {file.path.parent.name: file.rows for file in embedding_files(cache)}


ANSWERED = (
    "SELECT id, route, model, response, tokens_out, finish_reason, "
    "logprob_sum, logprob_min, logprob_tokens FROM nodes WHERE hop > 0"
)


Calls = list[tuple[int, Response]]  # the number of the model that was called, and its response


def live_calls(cache: Path, tree: RouteTree) -> list[Calls]:
    """The calls on the way to each state of each query, as they would be made live."""
    calls = {}
    for row in ask_cache(cache, ANSWERED).to_pylist():
        logprobs = [row[name] for name in ("logprob_sum", "logprob_min", "logprob_tokens")]
        confidence = None if logprobs[0] is None else Confidence(*logprobs)
        model = tree.models.index(row["model"])
        response = Response(row["response"], 0, row["tokens_out"], row["finish_reason"], confidence)
        calls[row["id"], row["route"]] = (model, response)
    paths = [tree.layout.path(state) for state in range(tree.layout.inner)]
    routes = [
        [
            tree.layout.name(tree.layout.node(path[: hop + 1]), tree.models)
            for hop in range(len(path))
        ]
        for path in paths
    ]
    return [[calls[query, name] for name in names] for query in tree.query_ids for names in routes]


def numbers_of(view: str, actions: Actions, states: list[Calls]) -> NDArray[np.float32]:
    """The numbers of live states, by the calls on the way to each."""
    paths = [[model for model, _ in calls] for calls in states]
    responses = [[response for _, response in calls] for calls in states]
    return live_numbers(view, actions, paths, responses)


def words(cache: Path, tree: RouteTree) -> list[list[tuple[str, list[str]]]]:
    """Question and responses at each state of each query, as `cache sql` tells them."""
    asked = ask_cache(cache, "SELECT id, question FROM queries").to_pylist()
    question = {row["id"]: row["question"] for row in asked}
    states = iter(live_calls(cache, tree))
    return [
        [
            (question[name], [response.text for _, response in next(states)])
            for _ in range(tree.layout.inner)
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
    bare: Path, encoder: str, view: str, tmp_path: Path
) -> None:
    name = ENCODERS[encoder](tmp_path / "encoder")
    tree = hr.open(bare, encoder=name, state=view, limit=1)
    assert (tree.encoder, tree.view) == (name, view)
    expected = [live(load_encoder(name), view, states) for states in words(bare, tree)]
    np.testing.assert_allclose(tree.embedding, expected, atol=1e-5)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_equal_answers_look_alike_in_any_context(bare: Path, encoder: str, tmp_path: Path) -> None:
    """To the bit, although they were not encoded in one batch."""
    name = ENCODERS[encoder](tmp_path / "encoder")
    for datasets in ("arith", "string", "room", None):
        tree = hr.open(bare, encoder=name, state="query+answer", datasets=datasets)
    answers = [responses[-1:] for states in words(bare, tree) for _, responses in states]
    _, text = np.unique(["".join(answer) for answer in answers], return_inverse=True)
    vectors = tree.parts[1].vectors[tree.parts[1].row].reshape(len(text), -1)
    kinds = len(np.unique(text))
    assert kinds < len(text) - len(tree)  # some answers were given twice
    assert len(np.unique(tree.parts[1].row)) == kinds
    assert len(np.unique(np.column_stack([text, vectors]), axis=0)) == kinds


def test_only_what_a_view_shows_is_embedded(bare: Path) -> None:
    blind = hr.open(bare, state="stage")
    assert (blind.dim, files(bare)) == (0, {})
    asked = hr.open(bare, state="query")
    [questions] = files(bare).values()
    assert questions <= len(blind)
    whole = hr.open(bare)
    assert np.array_equal(asked.embedding, np.repeat(whole.embedding[:, :1], 4, axis=1))
    [folder] = files(bare)
    contexts = sum(file.rows for file in embedding_files(bare))
    assert questions < contexts <= len(blind) * blind.layout.inner
    both = hr.open(bare, state="query+answer")
    assert np.array_equal(both.embedding[..., : asked.dim], asked.embedding)
    [answers] = set(files(bare)) - {folder}
    distinct = {"".join(said[-1:]) for row in words(bare, whole) for _, said in row}
    assert files(bare)[answers] == len(distinct)
    opened = (whole, both, asked, blind)
    assert [tree.dim for tree in opened] == [512, 1024, 512, 0]
    assert len({tree.fingerprint for tree in opened}) == 1


@pytest.mark.parametrize("view", STATE_VIEWS)
def test_a_view_is_embedded_once_and_not_kept_in_a_read_only_cache(
    bare: Path, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    told: list[str] = []

    def embedding() -> NDArray[np.float32]:
        told.clear()
        return hr.open(bare, state=view, progress=lambda what, *_: told.append(what)).embedding

    first = embedding()
    assert np.array_equal(embedding(), first)
    assert "embed" not in told
    shutil.rmtree(bare / "derived", ignore_errors=True)
    monkeypatch.setattr("os.access", lambda path, mode: False)  # tests may run as root
    assert np.array_equal(embedding(), first)
    assert embedding_files(bare) == []


def test_one_hop_shows_an_empty_answer(bare: Path) -> None:
    tree = hr.open(bare, state="query+answer", hops=1)
    empty = load_encoder(BUILT_IN_ENCODER).encode([""])
    assert tree.embedding.shape == (len(tree), 1, 1024)
    assert np.array_equal(tree.embedding[:, 0, 512:], np.repeat(empty, len(tree), axis=0))


def test_damaged_answers_are_named(bare: Path) -> None:
    hr.open(bare, state="query+answer")
    for file in embedding_files(bare):
        data = bytearray(file.path.read_bytes())
        data[-1] ^= 1
        file.path.write_bytes(data)
    with pytest.raises(DamagedPart, match=r"damaged embedding file: .*cache repair"):
        hr.open(bare, state="query+answer")


@pytest.fixture(scope="module")
def three_hops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one model most answers are cut."""
    pool = tmp_path_factory.mktemp("pool") / "three.toml"
    text = Path(hr.load_pool.__code__.co_filename).with_name("testbed.toml").read_text()
    text = text.replace("hops = 2", "hops = 3").replace('["", ""]', '["", "", ""]')
    pool.write_text(text.replace("max_new_tokens = 16", "max_new_tokens = 2", 1))
    return hr.collect("arith,string", pool=pool, cache=pool.with_name("cache"), limit=4)


def test_the_numbers_of_a_stored_state_are_those_of_a_live_one(three_hops: Path) -> None:
    for view, width in (("query+signals", 2 * (5 * 3 + 3)), ("stage+agreement", 2 * (3 + 3))):
        tree = hr.open(three_hops, state=view)
        assert (tree.numbers, tree.sure) == (width, 1.0)
        states = live_calls(three_hops, tree)
        numbers = tree.embedding[..., -width:].reshape(len(states), width)
        assert np.array_equal(numbers, numbers_of(view, Actions(tree.layout), states))
        assert not numbers.reshape(len(tree), -1, width)[:, 0].any()  # nothing to see at the root
    first, second = np.split(numbers, 2, axis=1)
    assert np.array_equal(np.unique(first[:, 4]), [0, 1])  # cut, or not
    assert np.array_equal(np.unique(second[:, 5]), [0, 1])  # says what the first one says
    assert not first[:, 5].any()


def test_what_is_not_known_is_marked(three_hops: Path) -> None:
    tree = hr.open(three_hops, state="stage+signals", hops=2)
    view, actions = "stage+signals", Actions(tree.layout)
    [(model, response)] = live_calls(three_hops, tree)[1]

    def with_confidence(confidence: Confidence | None) -> Calls:
        return [(model, replace(response, confidence=confidence))]

    states = [with_confidence(response.confidence), with_confidence(None)]
    known, unknown = numbers_of(view, actions, states)
    models = len(tree.models)
    assert known[models + 3 + model] == 1
    assert not unknown[models + 3 :].any()
    assert np.array_equal(known[: models + 3], unknown[: models + 3])
    for logprobs in ((-1.0, -1.0, 0), (800.0, -1.0, 2), (np.nan, -1.0, 2)):
        [numbers] = numbers_of(view, actions, [with_confidence(Confidence(*logprobs))])
        assert (numbers[models + 3 :] <= 1).all()
    unsure = with_confidence(Confidence(-1e5, -1e5, 1))
    assert numbers_of(view, actions, [unsure])[0, -models:].max() > 0


@pytest.mark.parametrize("view", ["query+signals", "stage+agreement"])
def test_one_hop_has_no_numbers_but_after_it(three_hops: Path, view: str) -> None:
    tree = hr.open(three_hops, state=view, hops=1)
    assert (tree.numbers, tree.sure) == (0, None)
    assert not any("How sure" in note for note in data_notes(tree))
    after = hr.open(three_hops, state=view, hops=1, allow_return=True)
    assert after.numbers == numbers_of(view, Actions(after.layout.with_returns), [[]]).shape[1] > 0


def test_answers_that_tell_nothing_of_how_sure_models_were(tmp_path: Path) -> None:
    pool, queries = hr.load_pool("testbed"), load_queries(["arith"], 5, 42, tmp_path)
    fill_cache(pool, queries, tmp_path, engines=Scripted(scripted_answer))
    with pytest.raises(InputError, match=r"no answer .* --state query\+answer\+agreement"):
        hr.open(tmp_path, state="query+signals")
    tree = hr.open(tmp_path, state="query+agreement")
    [note] = data_notes(tree)  # of the seconds, which these engines do not measure
    assert tree.sure == 0.0
    assert "shared time" in note
    half = replace(tree, sure=0.5, view="query+signals")
    known = "The model's confidence is known for 50% of the answers"
    assert any(note.startswith(known) for note in data_notes(half))
