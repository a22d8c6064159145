"""The identity of a model: its folder, hub id or served name, down to the files of its weights.

An identity is part of the key of every response in the cache. If it changes by one byte, the model
is called again.
"""

import functools
import hashlib
import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from hierrouter.engines.dialects import MEMORY
from hierrouter.hub.repository import DEFAULT_BRANCH, HubError, Repository, short
from hierrouter.pools.pool import Endpoint, Identity, ModelSpec
from hierrouter.questions import shipped
from hierrouter_cache.errors import InputError, WorldError

# Every repository has one of these files: a language model the first one, a sentence encoder at
# least the second one.
CONFIG_FILES = ("config.json", "modules.json")
# Pickled weights are never loaded, because they can run code.
WEIGHTS_PATTERN = "*.safetensors"
SETTINGS_PATTERNS = ("*.json", "*.jinja", "*.model", "*.txt")  # settings, tokenizer, chat template
# One of these holds the vocabulary.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
MAX_SETTINGS_BYTES = 100_000_000  # large tokenizers have 35 million
# The names that `save_pretrained` gives to weights.
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_LISTED_COMMITS = 3
# Bytes of one number, by the dtype's name in a .safetensors file and in a pool file.
DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "U8": 1,
}
# The value of "sampling" in an identity: nothing that a model's files or a server's defaults bring
# in changes which token is drawn, as far as hierrouter can say. Identities of older plans lack it.
NEUTRAL_SAMPLING = "neutral"
GENERATION_FILE = "generation_config.json"
# Settings of that file that change no response: numbers of tokens, what every call sets itself,
# what transformers heeds only if it samples itself, and what it notes for itself. A setting that is
# not listed, because it is new, counts as one that matters.
HARMLESS_SETTINGS = frozenset(
    {
        *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
        *("do_sample", "temperature", "top_p", "top_k", "num_beams"),
        *("max_length", "max_new_tokens"),
        *("min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
        *("length_penalty", "early_stopping", "use_cache", "return_dict_in_generate"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
        *("transformers_version", "_from_model_config", "_commit_hash"),
    }
)
# The values of settings that change nothing although they are not 0, false or empty.
NEUTRAL_VALUES: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "guidance_scale": 1.0,
    "num_return_sequences": 1,
    "num_beam_groups": 1,
    "no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "min_length": 0,
}
SPEC_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def saved_identity(spec: ModelSpec) -> Identity:
    """Identify a saved model by weights and dtype; engine and device are added by the backend.

    Args:
        spec: a model in a local folder or on the hub.

    Returns:
        "weights" and "dtype".

    Raises:
        InputError: as `weights_of`.
        WorldError: as `weights_of`.
    """
    return {"weights": weights_of(spec), "dtype": spec.dtype}


def served_identity(spec: ModelSpec) -> Identity:
    """Identify a served model by its name and deployment.

    The server is not asked: it may serve its models one at a time.

    Args:
        spec: a model with an endpoint.

    Returns:
        "engine", "served", "deployment" and "sampling", those of "answers_as", "revision" and
        "tokenizer" that are set, and "left_out" if the server is known to refuse settings of the
        pool that change responses: their names.

    Raises:
        InputError: as `endpoint_of`.
    """
    endpoint = endpoint_of(spec)
    left_out = MEMORY.identify(endpoint, spec.model).left_out(spec.generation)
    identity = {
        "engine": "openai",
        "served": spec.model,
        "deployment": endpoint.deployment or endpoint.base_url,
        "answers_as": endpoint.answers_as,
        "revision": spec.revision,
        "tokenizer": endpoint.tokenizer,
        "sampling": NEUTRAL_SAMPLING,
        "left_out": " ".join(left_out) or None,
    }
    return {name: value for name, value in identity.items() if value is not None}


def endpoint_of(spec: ModelSpec) -> Endpoint:
    """Return the endpoint of a model.

    Raises:
        InputError: it has no base_url, or one that cannot be called.
    """
    if spec.endpoint is None or not spec.endpoint.base_url:
        raise InputError(
            f"base_url is missing: model {spec.name}; set it in [models.endpoint], or --base-url"
        )
    spec.endpoint.check(f"model {spec.name} endpoint")
    return spec.endpoint


def weights_of(spec: ModelSpec) -> str:
    """Return a name for the content of a model's weights.

    Args:
        spec: a model in a local folder or on the hub.

    Returns:
        The digest of a local folder, or the hub id with its resolved commit.

    Raises:
        InputError: a folder is not a saved model.
        WorldError: a hub model is neither cached nor can it be found on the hub.
    """
    folder = local_folder(spec)
    if folder:
        return folder_digest(folder)
    return f"{spec.model}@{hub_commit(spec.model, spec.revision)}"


def ignored_settings(spec: ModelSpec) -> dict[str, Any]:
    """Return the settings that a model's files bring in, and that decoding ignores.

    Such as the repetition penalty of 1.05 that comes with Qwen2.5, also for greedy decoding. What a
    pool sets is set in `Generation`.

    Args:
        spec: a model in a local folder or on the hub.

    Returns:
        Values by name; none for a model on the hub whose settings cannot be read now, nor by the
        loader.
    """
    settings = _json_table(_settings_file(spec, GENERATION_FILE))
    if settings is None:
        # Older models have them among those of the architecture, and transformers takes them there.
        config = _json_table(_settings_file(spec, CONFIG_FILES[0])) or {}
        settings = {name: config[name] for name in config.keys() & NEUTRAL_VALUES.keys()}
    return {
        name: value
        for name, value in sorted(settings.items())
        if name not in HARMLESS_SETTINGS and value and value != NEUTRAL_VALUES.get(name)
    }


def _settings_file(spec: ModelSpec, name: str) -> Path | None:
    """Find a settings file of a model; of a model on the hub it is downloaded."""
    folder = local_folder(spec)
    if folder:
        return folder / name
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    commit = hub_commit(spec.model, spec.revision)
    cached = try_to_load_from_cache(spec.model, name, revision=commit)
    if isinstance(cached, str):
        return Path(cached)
    if cached is not None:  # the cache knows that the commit has no such file
        return None
    try:
        return Path(hf_hub_download(spec.model, name, revision=commit))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError):
        return None


def _json_table(path: Path | None) -> dict[str, Any] | None:
    """Read a JSON object; None if there is none."""
    try:
        value = json.loads(path.read_bytes()) if path else None
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def folder_digest(folder: Path) -> str:
    """Compute the digest of a saved model, sub-folders included.

    Args:
        folder: the model's folder.

    Returns:
        32 hexadecimal digits.

    Raises:
        InputError: the folder has no .safetensors file, or a file that is too large or not plain.
    """
    patterns = (WEIGHTS_PATTERN, *SETTINGS_PATTERNS)
    files = sorted({path for pattern in patterns for path in folder.rglob(pattern)})
    if not any(path.suffix == ".safetensors" for path in files):
        raise InputError(
            f"no .safetensors in the model folder: {folder}; save the model with safetensors"
        )
    total = hashlib.sha256()
    for path in files:
        if not path.is_file():  # reading from a pipe would never end
            raise InputError(f"not a plain file: {path}; give the folder of a saved model")
        if path.suffix != ".safetensors" and path.stat().st_size > MAX_SETTINGS_BYTES:
            raise InputError(
                f"larger than {MAX_SETTINGS_BYTES:,} bytes: {path}; no tokenizer is so large"
            )
        with path.open("rb") as file:
            name = path.relative_to(folder).as_posix().encode()
            total.update(name + hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:32]


@functools.cache
def hub_commit(model: str, revision: str | None) -> str:
    """Resolve a hub id and revision to a commit.

    That is the commit whose files are on this machine, see `Repository.resolve`; the hub is asked
    only if there is none. It is resolved once per process, so that the commit in an identity and
    the commit that is loaded are the same, even if a branch moves in between.

    Args:
        model: a hub id.
        revision: a branch, tag or commit; None for the default branch.

    Returns:
        The commit.

    Raises:
        WorldError: the model is not on this machine, or with several commits of which none is
            named, and the hub does not help.
    """
    try:
        return Repository(model).resolve(revision, holds_model)
    except HubError as error:
        if error.commits:
            raise WorldError(
                f"{unknown_commit(model, revision, error)}; give one of them as its revision"
            ) from error
        name = f"{model}@{revision}" if revision else model
        raise WorldError(
            f"model {name} is not on this machine: {error}; "
            "download it first, or give the folder of a saved model"
        ) from error


def unknown_commit(model: str, revision: str | None, error: HubError) -> str:
    """Say that none of the commits on this machine is chosen, and why.

    Args:
        model: a hub id.
        revision: a branch or tag; None for the default branch.
        error: has the commits, and the reason why the hub does not help.
    """
    listed = ", ".join(error.commits[:MAX_LISTED_COMMITS])
    rest = len(error.commits) - MAX_LISTED_COMMITS
    if rest > 0:
        listed += f" and {rest} more"
    return f"which commit is {model}@{revision or DEFAULT_BRANCH}? {error}; here are {listed}"


def holds_model(folder: Path) -> bool:
    """Tell whether a folder holds weights and settings, though perhaps not all of them."""
    has_settings = any((folder / name).is_file() for name in CONFIG_FILES)
    return has_settings and any(folder.rglob(WEIGHTS_PATTERN))


def named_folder(spec: ModelSpec) -> Path | None:
    """Return the folder that a model names, whether it exists or not; None for a hub id.

    Raises:
        InputError: the package does not have this model (`testbed:NAME`).
    """
    if shipped.is_shipped(spec.model):
        return shipped.model_path(spec.model)
    folder = Path(spec.model).expanduser()
    is_path = folder.is_absolute() or spec.model.startswith(("./", "~"))
    return folder if is_path or folder.is_dir() else None


def local_folder(spec: ModelSpec) -> Path | None:
    """Return the folder that a model names, after checking it; None for a hub id.

    Raises:
        InputError: the folder does not exist or holds no model.
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
    """Return the folder with a model's files on this machine, without downloading any.

    Args:
        spec: a model in a local folder or on the hub.
        commit: of a hub model, if it is known; else the revision of the spec counts.

    Returns:
        The folder; None for a hub model that is not in the local cache.

    Raises:
        InputError: as `local_folder`.
    """
    folder = local_folder(spec)
    if folder:
        return folder
    repository = Repository(spec.model)
    if commit is None:
        commit = repository.local_commit(spec.revision, holds_model)
    if commit is None:  # perhaps a download was begun
        commit = repository.local_commit(spec.revision, holds_settings)
    if commit is None or not holds_settings(repository.snapshot(commit)):
        return None
    return repository.snapshot(commit)


def holds_settings(folder: Path) -> bool:
    """Tell whether a folder holds the settings of a language model."""
    return (folder / CONFIG_FILES[0]).is_file()


def weight_bytes(spec: ModelSpec) -> int:
    """Compute the size of a model's weights once they are loaded.

    A hub model whose files are not on this machine is downloaded, as loading it would do.

    Args:
        spec: a model in a local folder or on the hub.

    Returns:
        Bytes of all weights in the dtype of the spec.

    Raises:
        InputError: a folder is not a saved model.
        WorldError: the files cannot be downloaded or are damaged.
    """
    return bytes_in(local_folder(spec) or hub_folder(spec), spec)


def bytes_in(folder: Path, spec: ModelSpec) -> int:
    """Compute the size of the weights in a folder once they are loaded.

    Args:
        folder: the folder of a saved model.
        spec: the model, for its dtype.

    Returns:
        Bytes of all weights in the dtype of the spec.

    Raises:
        WorldError: a file is damaged.
    """
    total = 0
    for path in weight_files(folder):
        for dtype, count in _tensors(path):
            total += count * SPEC_DTYPE_BYTES.get(spec.dtype, DTYPE_BYTES.get(dtype, 4))
    return total


def weight_files(folder: Path) -> list[Path]:
    """List the files that `from_pretrained` would read; a folder may hold the weights twice.

    Args:
        folder: the folder of a saved model.

    Returns:
        The files, whether they exist or not; all .safetensors files of a folder that has them
        under none of the usual names.
    """
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    indexed_names = _indexed_files(folder / INDEX_FILE)
    if indexed_names:
        return [folder / name for name in indexed_names]
    return sorted(folder.glob(WEIGHTS_PATTERN))


def _indexed_files(index: Path) -> list[str]:
    """List the files that an index names; none if the index is missing or unreadable."""
    try:
        return sorted(set(map(str, json.loads(index.read_bytes())["weight_map"].values())))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def _tensors(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the stored dtype and the number of elements of each tensor in a file."""
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


def hub_folder(spec: ModelSpec) -> Path:
    """Return the folder of a hub model with all its files, one copy of its weights among them.

    Files that are not on this machine are downloaded. Load the model from the local cache alone
    then: the loader would ask the hub again, also for files that the repository does not have.

    Args:
        spec: a model on the hub.

    Raises:
        WorldError: the files cannot be downloaded, or the repository lacks some.
    """
    commit = hub_commit(spec.model, spec.revision)
    repository = Repository(spec.model)
    try:
        folder = repository.fetch(commit, [*SETTINGS_PATTERNS, WEIGHTS_FILE])
        # Only the index, which has just arrived, tells which other files hold the weights.
        if not (folder / WEIGHTS_FILE).is_file():
            weights = _indexed_files(folder / INDEX_FILE) or [WEIGHTS_PATTERN]
            folder = repository.fetch(commit, [*SETTINGS_PATTERNS, *weights])
    except HubError as error:
        raise WorldError(
            f"model {spec.model} cannot be downloaded: {error}: commit {short(commit)}; "
            "try again, or give the folder of a saved model"
        ) from error
    missing = missing_parts(folder)
    if missing and repository.listing(commit) is None:
        raise WorldError(
            f"model {spec.model} is only in part on this machine: no {' and no '.join(missing)}, "
            f"commit {short(commit)}; download the rest, or give the folder of a saved model"
        )
    return folder


def tokenizer_commit(model: str) -> str:
    """Return the commit of a tokenizer on the hub, whose files are on this machine then.

    Args:
        model: a hub id.

    Raises:
        WorldError: the files are not on this machine and cannot be downloaded.
    """
    repository = Repository(model)
    try:
        commit = repository.resolve(None, holds_tokenizer)
        folder = repository.fetch(commit, SETTINGS_PATTERNS)
    except HubError as error:
        reason = unknown_commit(model, None, error) if error.commits else error
        raise WorldError(
            f"tokenizer {model} is not on this machine: {reason}; give the folder of a saved one"
        ) from error
    if not holds_tokenizer(folder):
        raise WorldError(
            f"tokenizer {model} is not on this machine: commit {short(commit)} has none; "
            "give the folder of a saved one"
        )
    return commit


def holds_tokenizer(folder: Path) -> bool:
    """Tell whether a folder holds the vocabulary of a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def missing_parts(folder: Path) -> list[str]:
    """Return what a saved model lacks, of "settings", "weights" and "tokenizer"."""
    files = weight_files(folder)
    parts = {
        "settings": holds_settings(folder),
        "weights": bool(files) and all(file.is_file() for file in files),
        "tokenizer": holds_tokenizer(folder),
    }
    return [name for name, is_present in parts.items() if not is_present]
