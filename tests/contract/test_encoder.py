"""Any encoder must pass these; a new one is one more entry in `ENCODERS`."""

from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest

from hierrouter.engines.encoders import Encoder, HashedNgrams, SentenceEncoder, load_encoder
from hierrouter.engines.generator import context_text
from hierrouter.engines.identity import hub_commit
from hierrouter_cache.errors import InputError, WorldError
from tests.models import save_random_encoder

ENCODERS: dict[str, Callable[[Path], Encoder]] = {
    "hashed": lambda saved: HashedNgrams(),
    "sentence": lambda saved: SentenceEncoder(str(saved)),
}
TEXTS = ["compute 12+7", "reverse the word takomi", "", "compute 12+7\n\n19", "naïve ✓"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sentence encoder with a window of 64 tokens."""
    return save_random_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module", params=ENCODERS)
def encoder(request: pytest.FixtureRequest, saved: Path) -> Encoder:
    return ENCODERS[request.param](saved)


def test_rows_are_float32_and_of_unit_length(encoder: Encoder) -> None:
    vectors = encoder.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape[0] == len(TEXTS)
    lengths = np.linalg.norm(vectors, axis=1)
    assert np.allclose(lengths[[0, 1, 3]], 1, atol=1e-5)


def test_a_vector_depends_on_its_own_text_alone(encoder: Encoder) -> None:
    together = encoder.encode(TEXTS)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert np.allclose(together, alone, atol=1e-5)


RESPONSES: list[list[str]] = [[], ["12+7"], ["reverse ab"]]
LONG = [context_text("word " * 600, responses) for responses in RESPONSES[1:]]


def test_the_newest_response_is_seen(encoder: Encoder) -> None:
    vectors = encoder.encode([context_text("solve the riddle of room 7", x) for x in RESPONSES])
    assert (vectors @ vectors.T)[np.triu_indices(3, 1)].max() < 0.99
    vectors = encoder.encode(LONG)
    assert vectors[0] @ vectors[1] < 1 - 1e-4


def test_the_papers_truncation_does_not_see_it(saved: Path) -> None:
    vectors = SentenceEncoder(str(saved), truncates=True).encode(LONG)
    assert vectors[0] @ vectors[1] == pytest.approx(1, abs=1e-6)


def test_a_short_text_has_the_vector_that_the_library_gives(saved: Path) -> None:
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(str(saved))
    for truncates in (False, True):
        ours = SentenceEncoder(str(saved), truncates).encode(TEXTS)
        assert np.allclose(ours, library.encode(TEXTS, normalize_embeddings=True), atol=1e-5)


def test_a_long_text_has_the_mean_direction_of_its_windows(saved: Path) -> None:
    encoder = SentenceEncoder(str(saved))
    windows = ["a" * 20 + " " + "b" * 42 + " ", "c" * 62 + " ", "12+7"]  # 62 letters fill a window
    mean = encoder.encode(windows).sum(axis=0)
    assert np.allclose(
        encoder.encode(["".join(windows)])[0], mean / np.linalg.norm(mean), atol=1e-5
    )


def test_descriptions_keep_encoders_apart(saved: Path, tmp_path: Path) -> None:
    found = [
        SentenceEncoder(str(saved)),
        SentenceEncoder(str(saved), truncates=True),
        SentenceEncoder(str(save_random_encoder(tmp_path, seed=1))),
        HashedNgrams(),
        HashedNgrams(64),
    ]
    assert len({encoder.description for encoder in found}) == len(found)


@pytest.mark.parametrize(
    ("name", "folder"), [("org/mini", "org--mini"), ("mini", "sentence-transformers--mini")]
)
def test_another_commit_of_a_hub_encoder_is_another_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: Path, name: str, folder: str
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / f"models--{folder}"
    seen = []
    for commit in ("1" * 40, "2" * 40):
        (repository / "snapshots").mkdir(parents=True, exist_ok=True)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "snapshots" / commit).symlink_to(saved)
        (repository / "refs" / "main").write_text(commit)
        hub_commit.cache_clear()  # as in a new process
        seen.append(load_encoder(name).description)
    model = folder.replace("--", "/")
    assert seen == [f"{model}@{'1' * 40}-windows", f"{model}@{'2' * 40}-windows"]


def test_an_encoder_that_is_not_there() -> None:
    with pytest.raises(WorldError, match="cannot load encoder nobody/nothing"):
        load_encoder("nobody/nothing")
    with pytest.raises(InputError, match="no such encoder: a/b/c"):
        load_encoder("a/b/c")
