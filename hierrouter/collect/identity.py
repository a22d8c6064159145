"""What a folder, a hub id or a served name stands for.

In: the place of a saved model. Out: its folder, where it has one, and a name of its content: a
digest of the files that decide its answers, or the commit on the hub. Of a served model what its
spec says of it. Nothing is loaded, no server is asked. Not covered: settings of a call, see
`hierrouter.pool`; the engines of saved models, see `backends`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from pathlib import Path

from hierrouter import testbed
from hierrouter.endpoint import Endpoint
from hierrouter.pool import Identity, ModelSpec
from hierrouter_cache.errors import InputError, WorldError

TESTBED = "testbed:"
CONTINUOUS = "continuous"
HUB_TIMEOUT_S = 5.0  # a hub that says nothing is not waited for, model after model
# One of them is in every repository: of a language model, of a sentence encoder without one.
CONFIGS = ("config.json", "modules.json")
# Never pickled weights, which are not loaded.
WEIGHTS = "*.safetensors"
BESIDE_WEIGHTS = ("*.json", "*.jinja", "*.model", "*.txt")  # settings, tokenizer, chat template


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


def saved_identity(spec: ModelSpec) -> Identity:
    """What decides the answers of a saved model besides engine and device.

    Raises:
        InputError, WorldError: as `weights_of`.
    """
    identity = {"weights": weights_of(spec), "dtype": spec.dtype}
    # vLLM always batches so and says nothing of it.
    if spec.backend != "vllm" and spec.batching == CONTINUOUS:
        identity["batching"] = CONTINUOUS
    return identity


def served_identity(spec: ModelSpec) -> Identity:
    """The served name and the deployment; the server is not asked, it may serve one at a time.

    Raises:
        InputError: no base_url, or one that cannot be called.
    """
    endpoint = endpoint_of(spec)
    identity = {
        "engine": "openai",
        "served": spec.model,
        "deployment": endpoint.deployment or endpoint.base_url,
    }
    optional = {
        "answers_as": endpoint.answers_as,
        "revision": spec.revision,
        "tokenizer": endpoint.tokenizer,
    }
    return identity | {name: value for name, value in optional.items() if value is not None}


def endpoint_of(spec: ModelSpec) -> Endpoint:
    """The server of a model.

    Raises:
        InputError: see `served_identity`.
    """
    if spec.endpoint is None or not spec.endpoint.base_url:
        raise InputError(
            f"base_url is missing: model {spec.name}; set it in [models.endpoint], or --base-url"
        )
    spec.endpoint.check(f"model {spec.name} endpoint")
    return spec.endpoint


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
    files = sorted(
        {path for pattern in (WEIGHTS, *BESIDE_WEIGHTS) for path in folder.rglob(pattern)}
    )
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


@functools.cache
def hub_commit(model: str, revision: str | None) -> str:
    """The commit that a hub id and revision stand for; taken from the local cache when offline.

    Asked once in a process: what is named and what is loaded stay the same when a branch moves.

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
