"""The models that come with the package, whole and damaged."""

import hashlib
import shutil
from pathlib import Path

import pytest

from hierrouter_cache.errors import WorldError
from hierrouter_cli.doctor_checks import MODELS, WEIGHTS, paper_encoder, shipped_models

COMMIT = "0" * 40


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODELS, tmp_path / "models"))


def test_what_is_shipped_is_whole(models: Path) -> None:
    (found,) = shipped_models(models)
    assert found.state == "ok"


def test_missing_weights_are_a_problem(models: Path) -> None:
    (models / "text" / WEIGHTS).unlink()
    shutil.rmtree(models / "facts")
    with pytest.raises(WorldError, match=r"damaged or missing: text, facts in .*; install"):
        list(shipped_models(models))


def test_one_changed_byte_is_a_problem(models: Path) -> None:
    file = models / "calc" / "tokenizer.json"
    file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(WorldError, match="damaged or missing: calc in "):
        list(shipped_models(models))


def hub_cache(folder: Path, weights: bytes) -> Path:
    """A folder as the hub's library leaves it: a commit's files are links to bytes by digest."""
    model = folder / "models--sentence-transformers--all-mpnet-base-v2"
    blob = model / "blobs" / hashlib.sha256(b"weights").hexdigest()
    link = model / "snapshots" / COMMIT / WEIGHTS
    for made in (blob, link, model / "refs" / "main"):
        made.parent.mkdir(parents=True)
    blob.write_bytes(weights)
    link.symlink_to(blob)
    (model / "refs" / "main").write_text(COMMIT)
    return folder


def test_the_encoder_is_looked_for(tmp_path: Path) -> None:
    assert [found.state for found in paper_encoder(tmp_path)] == ["note"]
    assert [found.state for found in paper_encoder(hub_cache(tmp_path, b"weights"))] == ["ok"]


def test_an_encoder_cut_short_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=r"damaged weights: .*; remove the file"):
        list(paper_encoder(hub_cache(tmp_path, b"weigh")))
