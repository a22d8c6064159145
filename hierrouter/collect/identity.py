"""What a folder or a hub id resolves to.

In: the place of a saved model. Out: a name of its content: a digest of the files that decide its
answers, or the commit on the hub. Not covered: settings of a call, see `hierrouter.pool`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from hierrouter_cache.errors import InputError, WorldError

# Weights, configuration, tokenizer, chat template; never pickled weights, which are not loaded.
FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


def folder_digest(folder: Path) -> str:
    """Digest of a saved model, sub-folders included; 32 hexadecimal digits.

    Raises:
        InputError: there are no safetensors in it.
    """
    files = sorted({path for pattern in FILES for path in folder.rglob(pattern)})
    if not any(path.suffix == ".safetensors" for path in files):
        raise InputError(
            f"no .safetensors in the model folder: {folder}; save the model with safetensors"
        )
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            name = path.relative_to(folder).as_posix().encode()
            total.update(name + hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:32]


def hub_commit(model: str, revision: str | None) -> str:
    """The commit that a hub id and revision stand for; taken from the local cache when offline.

    Raises:
        WorldError: neither cached nor reachable.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        config = hf_hub_download(model, "config.json", revision=revision)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise WorldError(
            f"model {model} not found on this machine and the hub cannot be reached or does "
            "not have it; download it first, or give the folder of a saved model"
        ) from error
    return Path(config).parent.name
