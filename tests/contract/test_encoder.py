"""Any encoder must pass these; a new one is one more entry in `ENCODERS`."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest

from hierrouter.engines import encoders
from hierrouter.engines.generator import context_text
from hierrouter.engines.identity import hub_commit
from hierrouter.pools.files import load_pool, pool_names
from hierrouter_cache.errors import InputError, WorldError
from tests.models import save_random_encoder
from tests.servers import MODEL, Reply, Server, embedded, refusal, serving

URL = ""  # of the server, while it is there
ENCODERS: dict[str, Callable[[Path], encoders.Encoder]] = {
    "hashed": lambda saved: encoders.HashedNgrams(),
    "sentence": lambda saved: encoders.load_encoder(str(saved)),
    "served": lambda saved: encoders.EndpointEncoder.of(f"{URL}#{MODEL}"),
}
TEXTS = ["compute 12+7", "reverse the word takomi", "", "compute 12+7\n\n19", "naïve ✓"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sentence encoder with a window of 64 tokens."""
    return save_random_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module", autouse=True)
def server(saved: Path) -> Iterator[Server]:
    """One that embeds with that encoder, no more than fits into its window."""
    global URL
    library = encoders.load_encoder(f"{saved}:truncate")

    def embed(texts: list[str]) -> Reply:
        if max(map(len, texts)) > 60:
            return refusal(500, "input (70 tokens) is too large to process. increase the batch")
        return embedded(library.encode(texts))

    with serving(Server(embed=embed)) as upstream:
        URL = upstream.url
        yield upstream


@pytest.fixture(scope="module", params=ENCODERS)
def encoder(request: pytest.FixtureRequest, saved: Path) -> encoders.Encoder:
    return ENCODERS[request.param](saved)


def test_rows_are_float32_and_of_unit_length(encoder: encoders.Encoder) -> None:
    vectors = encoder.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape[0] == len(TEXTS)
    assert np.allclose(np.linalg.norm(vectors, axis=1)[[0, 1, 3]], 1, atol=1e-5)


def test_a_vector_depends_on_its_own_text_alone(encoder: encoders.Encoder) -> None:
    together = encoder.encode(TEXTS)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert np.allclose(together, alone, atol=1e-5)


RESPONSES: list[list[str]] = [[], ["12+7"], ["reverse ab"]]
LONG = [context_text("word " * 600, responses) for responses in RESPONSES[1:]]


def test_the_newest_response_is_seen(encoder: encoders.Encoder) -> None:
    vectors = encoder.encode([context_text("solve the riddle of room 7", x) for x in RESPONSES])
    assert (vectors @ vectors.T)[np.triu_indices(3, 1)].max() < 0.99
    vectors = encoder.encode(LONG)
    assert vectors[0] @ vectors[1] < 1 - 1e-4


def test_the_papers_truncation_does_not_see_it(saved: Path) -> None:
    vectors = encoders.load_encoder(f"{saved}:truncate").encode(LONG)
    assert vectors[0] @ vectors[1] == pytest.approx(1, abs=1e-6)


def test_a_short_text_has_the_vector_that_the_library_gives(saved: Path) -> None:
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(str(saved))
    for end in ("", ":truncate"):
        ours = encoders.load_encoder(f"{saved}{end}").encode(TEXTS)
        assert np.allclose(ours, library.encode(TEXTS, normalize_embeddings=True), atol=1e-5)


def test_a_long_text_has_the_mean_direction_of_its_windows(saved: Path) -> None:
    encoder = encoders.load_encoder(str(saved))
    windows = ["a" * 20 + " " + "b" * 42 + " ", "c" * 62 + " ", "12+7"]  # 62 letters fill a window
    mean = encoder.encode(windows).sum(axis=0)
    assert np.allclose(
        encoder.encode(["".join(windows)])[0], mean / np.linalg.norm(mean), atol=1e-5
    )


def test_descriptions_keep_encoders_apart(saved: Path, tmp_path: Path) -> None:
    found = [
        encoders.load_encoder(str(saved)),
        encoders.load_encoder(f"{saved}:truncate"),
        encoders.load_encoder(str(save_random_encoder(tmp_path, seed=1))),
        encoders.HashedNgrams(),
        encoders.HashedNgrams(64),
    ]
    assert len({encoder.description for encoder in found}) == len(found)


@pytest.mark.parametrize(
    ("name", "folder"), [("org/mini", "org--mini"), ("mini", "sentence-transformers--mini")]
)
def test_another_commit_of_a_hub_encoder_is_another_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: Path, name: str, folder: str
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    model, seen = folder.replace("--", "/"), []
    for commit in ("1" * 40, "2" * 40):
        offer(tmp_path, model, saved, commit)
        seen.append(encoders.load_encoder(name).description)
    assert seen == [f"{model}@{'1' * 40}-windows", f"{model}@{'2' * 40}-windows"]


def offer(cache: Path, name: str, saved: Path, commit: str) -> None:
    """Let a folder be what was downloaded of a model of the hub."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "snapshots").mkdir(parents=True, exist_ok=True)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "snapshots" / commit).symlink_to(saved)
    (repository / "refs" / "main").write_text(commit)
    hub_commit.cache_clear()  # as in a new process


def test_the_paper_reads_512_tokens_of_a_model_whose_own_setting_is_384(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sentence_transformers import SentenceTransformer

    saved = save_random_encoder(tmp_path / "saved", window=512)
    library = SentenceTransformer(str(saved))
    library.max_seq_length = 384
    library.save(str(saved))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    offer(tmp_path, encoders.PAPER_ENCODER, saved, "1" * 40)

    def sees(name: str, token: int) -> bool:
        letters = ["a"] * 600  # a token each, after the one that begins every text
        changed = [*letters[: token - 2], "b", *letters[token - 1 :]]
        one, other = encoders.load_encoder(name).encode([" ".join(letters), " ".join(changed)])
        return bool(np.abs(one - other).max() > 1e-6)

    assert sees("paper", 400) and sees("paper", 511) and not sees("paper", 513)
    own = f"{encoders.PAPER_ENCODER}:truncate"
    assert sees(own, 383) and not sees(own, 400)
    assert sees(encoders.PAPER_ENCODER, 513)  # over windows
    assert (
        encoders.load_encoder("paper").description
        == f"{encoders.PAPER_ENCODER}@{'1' * 40}-512-truncate"
    )
    with pytest.raises(InputError, match="reads at most 512 tokens: 513"):
        encoders.load_encoder(f"{encoders.PAPER_ENCODER}:513")


def test_a_pool_names_its_encoder_and_the_built_in_one_is_for_the_testbed_alone() -> None:
    pools = {name: load_pool(name) for name in pool_names()}
    assert {name: encoders.default_encoder(pool) for name, pool in pools.items()} == {
        "cpu": encoders.PAPER_ENCODER,
        "graded": "hashed-ngrams",
        "paper": "paper",
        "testbed": "hashed-ngrams",
    }
    ours = replace(pools["testbed"], encoder=None)
    assert encoders.default_encoder(ours) == "hashed-ngrams"
    mixed = replace(ours, references=pools["paper"].references)
    assert encoders.default_encoder(mixed) == encoders.PAPER_ENCODER


def test_an_encoder_that_is_not_there() -> None:
    with pytest.raises(WorldError, match=r"nobody/nothing is not on this machine.*hashed-ngrams"):
        encoders.load_encoder("nobody/nothing")
    with pytest.raises(InputError, match="no such encoder: a/b/c"):
        encoders.load_encoder("a/b/c")


def test_a_server_gets_pieces_its_key_and_another_try(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: Path
) -> None:
    monkeypatch.setenv("EMBED_KEY", "sk-0123456789")
    monkeypatch.setattr("hierrouter.engines.health.FIRST_PAUSE_S", 0.01)
    (tmp_path / "encoder.toml").write_text(
        f'[[models]]\nname = "e"\nmodel = "{MODEL}"\nbase_rate = 0.0\nbackend = "openai"\n'
        "[models.endpoint]\n"
        f'base_url = "{URL}"\napi_key_env = "EMBED_KEY"\ndeployment = "here"\n'
    )
    found = encoders.load_encoder(str(tmp_path / "encoder.toml"))
    assert found.description == f"served:{MODEL}@here"
    assert encoders.load_encoder(found.description) is found  # a run knows it by that name
    embed, texts = server.embed, [f"compute {n}+1" for n in range(80)]
    replies = [refusal(503), Reply("{}"), Reply("no")]
    monkeypatch.setattr(server, "embed", lambda some: replies.pop() if replies else embed(some))
    server.requests.clear()
    ours = encoders.load_encoder(str(saved)).encode(texts)
    assert np.allclose(found.encode(texts), ours, atol=1e-5)
    assert len(server.requests) == 3 + 3
    assert {len(request["input"]) for request in server.requests} == {32, 16}
    assert server.seen[-1]["authorization"] == "Bearer sk-0123456789"
    assert not found.encode(["", " "]).any()


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (embedded([[1.0, 2.0]]), r"embeds by 'served' with 2 numbers, not by served with 32"),
        (embedded([[1.0] * 32], "other"), r"embeds by 'other' with 32 numbers, not by served"),
        (embedded([[1.0] * 32] * 2), r"no embeddings from"),
        (embedded([[float("nan")] * 32]), r"no embeddings from"),
        (refusal(400, "no such model"), r"no embeddings: served:served@http.*no such model"),
    ],
)
def test_a_server_that_embeds_otherwise_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, reply: Reply, said: str
) -> None:
    monkeypatch.setattr("hierrouter.engines.health.FIRST_BACKOFF_S", 0.01)
    encoder = encoders.EndpointEncoder.of(f"{URL}#{MODEL}")
    assert encoder.encode(["a"]).shape == (1, 32)
    monkeypatch.setattr(server, "embed", lambda texts: reply)
    with pytest.raises(WorldError, match=said):
        encoder.encode(["b"])


def test_a_server_is_named_by_the_user_alone(tmp_path: Path) -> None:
    """Not by a run, a cache or a pool, which may come from others."""
    with pytest.raises(
        InputError, match=r"on a server of unknown address: served:x@y.*give it by --enc"
    ):
        encoders.load_encoder("served:x@y").encode(["a"])
    pool = load_pool("testbed")
    with pytest.raises(InputError, match="a pool may not name a server as its encoder"):
        encoders.default_encoder(replace(pool, encoder=f"{URL}#{MODEL}"))
    (tmp_path / "two.toml").write_text('[[models]]\nname = "a"\nmodel = "b"\nbase_rate = 1.0\n')
    for name, error in (
        (str(tmp_path / "two.toml"), "no encoder on a server"),
        (URL, "which model of the server"),
        ("ftp://a/b#c", "must be http:// or https://"),
    ):
        with pytest.raises(InputError, match=error):
            encoders.load_encoder(name)
