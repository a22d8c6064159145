"""What a folder, a hub id or a served name stands for, down to the files of its weights.

An identity goes into the key of every answer: another byte of it, and the model is asked anew.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator
from math import prod
from pathlib import Path

from hierrouter.pools.pool import Endpoint, Identity, ModelSpec
from hierrouter.questions import shipped
from hierrouter_cache.errors import InputError, WorldError

HUB_TIMEOUT_S = 5.0  # a hub that says nothing is not waited for, model after model
# One of them is in every repository: of a language model, of a sentence encoder without one.
CONFIGS = ("config.json", "modules.json")
# Never pickled weights, which are not loaded.
WEIGHTS = "*.safetensors"
MAX_BESIDE = 100_000_000  # bytes; tokenizers are read whole, large ones have 35 million
BESIDE_WEIGHTS = ("*.json", "*.jinja", "*.model", "*.txt")  # settings, tokenizer, chat template


def saved_identity(spec: ModelSpec) -> Identity:
    """What decides the answers of a saved model besides engine and device.

    Raises InputError, WorldError: as `weights_of`.
    """
    return {"weights": weights_of(spec), "dtype": spec.dtype}


def served_identity(spec: ModelSpec) -> Identity:
    """The served name and the deployment; the server is not asked, it may serve one at a time.

    Raises InputError: no base_url, or one that cannot be called.
    """
    endpoint = endpoint_of(spec)
    identity = {
        "engine": "openai",
        "served": spec.model,
        "deployment": endpoint.deployment or endpoint.base_url,
        "answers_as": endpoint.answers_as,
        "revision": spec.revision,
        "tokenizer": endpoint.tokenizer,
    }
    return {name: value for name, value in identity.items() if value is not None}


def endpoint_of(spec: ModelSpec) -> Endpoint:
    """The server of a model; raises InputError: see `served_identity`."""
    if spec.endpoint is None or not spec.endpoint.base_url:
        raise InputError(
            f"base_url is missing: model {spec.name}; set it in [models.endpoint], or --base-url"
        )
    spec.endpoint.check(f"model {spec.name} endpoint")
    return spec.endpoint


def weights_of(spec: ModelSpec) -> str:
    """Digest of a local folder, or the hub id with its resolved commit.

    Raises InputError: a folder that is not a saved model; WorldError: a hub id that is neither
    cached nor reachable.
    """
    if folder := local_folder(spec):
        return folder_digest(folder)
    return f"{spec.model}@{hub_commit(spec.model, spec.revision)}"


def folder_digest(folder: Path) -> str:
    """Digest of a saved model, sub-folders included; 32 hexadecimal digits.

    Raises InputError: there are no safetensors in it, or a file that is too large or not plain.
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
        if not path.is_file():  # a pipe would be waited for
            raise InputError(f"not a plain file: {path}; give the folder of a saved model")
        if path.suffix != ".safetensors" and path.stat().st_size > MAX_BESIDE:
            raise InputError(f"larger than {MAX_BESIDE:,} bytes: {path}; no tokenizer is so large")
        with path.open("rb") as file:
            name = path.relative_to(folder).as_posix().encode()
            total.update(name + hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:32]


@functools.cache
def hub_commit(model: str, revision: str | None) -> str:
    """The commit that a hub id and revision stand for; taken from the local cache when offline.

    Asked once in a process: what is named and what is loaded stay the same when a branch moves.
    Raises WorldError: neither cached nor reachable.
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


def named_folder(spec: ModelSpec) -> Path | None:
    """The folder a spec names, whether it is there or not; None where it is a hub id.

    Raises InputError: a model that the package does not have.
    """
    if shipped.is_shipped(spec.model):
        return shipped.model_path(spec.model)
    folder = Path(spec.model).expanduser()
    is_path = folder.is_absolute() or spec.model.startswith(("./", "~"))
    return folder if is_path or folder.is_dir() else None


def local_folder(spec: ModelSpec) -> Path | None:
    """The folder a spec names, or None where it is a hub id.

    Raises InputError: the folder is not there or holds no model.
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


def saved_folder(spec: ModelSpec, commit: str | None = None) -> Path | None:
    """The folder with a model's files on this machine, or None.

    Raises InputError: as `local_folder`.
    """
    if folder := local_folder(spec):
        return folder
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(spec.model, CONFIGS[0], revision=commit or spec.revision)
    except ValueError:  # not the form of a hub id
        return None
    return Path(config).parent if isinstance(config, str) else None


BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
WANTED = {"float32": 4, "float16": 2, "bfloat16": 2}


def weight_bytes(spec: ModelSpec) -> int:
    """Bytes of all weights in the dtype of the spec.

    A hub model whose files are not here yet is fetched, as loading it would. Raises InputError: a
    folder that is not a saved model; WorldError: the files cannot be fetched or are damaged.
    """
    return bytes_in(local_folder(spec) or _fetched(spec), spec)


def bytes_in(folder: Path, spec: ModelSpec) -> int:
    """Bytes of the weights in a folder, in the dtype of the spec.

    Raises WorldError: a file is damaged.
    """
    return sum(
        count * WANTED.get(spec.dtype, BYTES.get(dtype, 4))
        for path in weight_files(folder)
        for dtype, count in _tensors(path)
    )


def weight_files(folder: Path) -> list[Path]:
    """The files that `from_pretrained` reads, there or not; the weights may lie there twice.

    Of a folder that has them under no known name, all there are.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if named := _indexed(folder / INDEX):
        return [folder / name for name in named]
    return sorted(folder.glob(WEIGHTS))


def _indexed(index: Path) -> list[str]:
    """The files that an index names; none where there is no index, or none that can be read."""
    try:
        return sorted(set(map(str, json.loads(index.read_bytes())["weight_map"].values())))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def _tensors(path: Path) -> Iterator[tuple[str, int]]:
    """Stored dtype and number of elements of each tensor of a file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            for name in file.keys():  # noqa: SIM118  no dict
                tensor = file.get_slice(name)
                yield tensor.get_dtype(), prod(tensor.get_shape())
    except (SafetensorError, OSError) as error:
        raise WorldError(
            f"the weights of a model are damaged: {path}; download them again"
        ) from error


def _fetched(spec: ModelSpec) -> Path:
    """The folder of a hub model, with one copy of its weights and all beside them."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    commit = hub_commit(spec.model, spec.revision)
    fetch = functools.partial(snapshot_download, spec.model, revision=commit)
    try:
        folder = Path(fetch(allow_patterns=[*BESIDE_WEIGHTS, SINGLE]))
        if not (folder / SINGLE).is_file():
            fetch(allow_patterns=[*BESIDE_WEIGHTS, *(_indexed(folder / INDEX) or [WEIGHTS])])
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise WorldError(
            f"model {spec.model} cannot be downloaded: {type(error).__name__}; "
            "try again, or give the folder of a saved model"
        ) from error
    return folder
