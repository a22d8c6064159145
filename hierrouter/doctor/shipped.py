"""Are the shipped models and the encoder whole?

In: files on this machine, and what their bytes should hash to. Out: findings. Nothing is loaded and
nothing fetched. Not covered: models of other pools; `hierrouter pools` tells whether they are here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from hierrouter import testbed
from hierrouter.collect.encoders import PAPER_ENCODER
from hierrouter.collect.identity import folder_digest
from hierrouter.doctor.finding import Finding
from hierrouter_cache.errors import InputError, WorldError

# `folder_digest` of each shipped model; new weights come with new digests.
DIGESTS = {
    "calc": "81e2fb3912fa797badad212db6af727e",
    "text": "c50b0e506343dc375414a9002d05b6b6",
    "facts": "00f5032cc4487ff13ffa92669a87f098",
}
MODELS = testbed.model_path("calc").parent
WEIGHTS = "model.safetensors"
SHA256_DIGITS = 64


def shipped_models(folder: Path = MODELS) -> Iterator[Finding]:
    """Every file of the testbed's models, hashed.

    Args:
        folder: where they lie, one folder each.

    Raises:
        WorldError: a file is missing or altered.
    """
    damaged = [name for name, digest in DIGESTS.items() if _digest(folder / name) != digest]
    if damaged:
        raise WorldError(
            f"damaged or missing: {', '.join(damaged)} in {folder}; install the package again"
        )
    yield Finding("testbed", "ok", f"{', '.join(DIGESTS)}: every byte as shipped")


def _digest(folder: Path) -> str | None:
    try:
        return folder_digest(folder)
    except InputError:  # no weights there
        return None


def paper_encoder(hub_cache: Path | None = None) -> Iterator[Finding]:
    """The weights of all-mpnet-base-v2, whose file is named by what its bytes hash to.

    Args:
        hub_cache: where the hub's files lie; None is where its library looks.

    Raises:
        WorldError: they are damaged.
    """
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(PAPER_ENCODER, WEIGHTS, cache_dir=hub_cache)
    if not isinstance(found, str):
        text = "not on this machine; `--encoder paper` fetches it, the default encoder is built in"
        yield Finding("paper's encoder", "note", text)
        return
    file = Path(found).resolve()
    if len(file.name) == SHA256_DIGITS and _sha256(file) != file.name:
        raise WorldError(f"damaged weights: {file}; remove the file, it is fetched again")
    yield Finding("paper's encoder", "ok", "on this machine, every byte as on the hub")


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
