"""What a folder or a hub id resolves to.

In: the place of a saved model. Out: its folder, where it has one, and a name of its content: a
digest of the files that decide its answers, or the commit on the hub. Nothing is loaded. Not
covered: settings of a call, see `hierrouter.pool`; the engine, see `backends`.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from hierrouter import testbed
from hierrouter.pool import ModelSpec
from hierrouter_cache.errors import InputError, WorldError

TESTBED = "testbed:"
HUB_TIMEOUT_S = 5.0  # a hub that says nothing is not waited for, model after model
# One of them is in every repository: of a language model, of a sentence encoder without one.
CONFIGS = ("config.json", "modules.json")
# Weights, configuration, tokenizer, chat template; never pickled weights, which are not loaded.
FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


def named_folder(spec: ModelSpec) -> Path | None:
    """The folder a spec names, whether it is there or not; None where it is a hub id.

    Raises:
        InputError: a model that the testbed does not have.
    """
    if spec.model.startswith(TESTBED):
        name = spec.model.removeprefix(TESTBED)
        if name not in testbed.MODELS:
            raise InputError(
                f"unknown testbed model {name}: model {spec.name}; known: "
                f"{', '.join(testbed.MODELS)}"
            )
        return testbed.model_path(name)
    folder = Path(spec.model).expanduser()
    is_path = folder.is_absolute() or spec.model.startswith(("./", "~"))
    return folder if is_path or folder.is_dir() else None


def local_folder(spec: ModelSpec) -> Path | None:
    """The folder a spec names, or None where it is a hub id.

    Raises:
        InputError: the folder is not there or holds no model.
    """
    folder = named_folder(spec)
    if folder is None:
        return None
    if not folder.is_dir():
        raise InputError(
            f"model folder not found: {folder}: model {spec.name}; give the folder of a saved model"
        )
    if not (folder / "config.json").is_file():
        raise InputError(
            f"not a saved model, config.json is missing: {folder}; give the folder that holds it"
        )
    return folder


def weights_of(spec: ModelSpec) -> str:
    """Digest of a local folder, or the hub id with its resolved commit.

    Raises:
        InputError: a folder that is not a saved model.
        WorldError: a hub id that is neither cached nor reachable.
    """
    folder = local_folder(spec)
    if folder:
        return folder_digest(folder)
    return f"{spec.model}@{hub_commit(spec.model, spec.revision)}"


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
    from huggingface_hub import HfApi, try_to_load_from_cache

    problem: Exception | None = None
    try:
        info = HfApi().model_info(model, revision=revision, timeout=HUB_TIMEOUT_S)
        if info.sha:
            return str(info.sha)
    except Exception as error:  # its HTTP client's too, which is not the same in all versions
        problem = error
    for name in CONFIGS:
        with contextlib.suppress(ValueError):  # not the form of a hub id
            file = try_to_load_from_cache(model, name, revision=revision)
            if isinstance(file, str):
                return Path(file).parent.name
    raise WorldError(
        f"model {model} not found on this machine and the hub cannot be reached or does "
        "not have it; download it first, or give the folder of a saved model"
    ) from problem
