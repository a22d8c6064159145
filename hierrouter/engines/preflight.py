"""Checks before models are loaded: can each one be had, and do its weights fit disk and memory?

The hub is asked only about models that are not completely on this machine: for what it knows of a
repository, and then for the head of one small file, as a download would ask: a gated repository
lists its files for everyone, but refuses to send them.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from hierrouter.engines import identity
from hierrouter.engines.identity import (
    CONFIG_FILES,
    DTYPE_BYTES,
    INDEX_FILE,
    SPEC_DTYPE_BYTES,
    WEIGHTS_FILE,
    WEIGHTS_PATTERN,
)
from hierrouter.hub.repository import REQUEST_TIMEOUT_S, Repository
from hierrouter.pools.pool import OPENAI, ModelSpec, Pool
from hierrouter_cache.errors import WorldError

MODEL_CONFIG = CONFIG_FILES[0]  # every language model has this file
SHARDS_PATTERN = "model-*-of-*.safetensors"  # as `save_pretrained` names them, beside their index
GIGABYTE = 1e9


@dataclass(frozen=True)
class Availability:
    """Whether a model can be had, and how much disk and memory its weights need.

    Attributes:
        name: the model's name in the pool.
        model: its folder or hub id.
        download: bytes of weights still to be downloaded; 0 if all are on this machine; None if the
            hub could not be asked.
        memory: bytes of the weights in memory, without activations and the cache of keys and
            values; None if unknown.
        problem: why the model cannot be had, and what to do; empty if no problem is known.
    """

    name: str
    model: str
    download: int | None = None
    memory: int | None = None
    problem: str = ""


def weights_needed(models: Iterable[ModelSpec]) -> Iterator[Availability]:
    """Check each model that this machine would load; models of a server are skipped.

    Args:
        models: the models of a pool.

    Yields:
        The availability of each model.

    Raises:
        InputError: a local folder is not a saved model.
        WorldError: weights are damaged.
    """
    for spec in models:
        if spec.backend == OPENAI:
            continue
        if identity.named_folder(spec) is None:
            yield _check_hub(spec)
        else:
            yield Availability(spec.name, spec.model, 0, identity.weight_bytes(spec))


def _check_local(spec: ModelSpec, commit: str | None = None) -> Availability | None:
    """Check a hub model in the local cache; None unless all its weights are on this machine."""
    folder = identity.saved_folder(spec, commit)
    if folder is None:
        return None
    files = identity.weight_files(folder)
    if not files or not all(file.is_file() for file in files):
        return None
    return Availability(spec.name, spec.model, 0, identity.bytes_in(folder, spec))


def _check_hub(spec: ModelSpec) -> Availability:
    """Check a hub model; if it is not in the local cache, ask the hub."""
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url

    local = _check_local(spec)
    if local:
        return local
    # The commit that would be loaded, if files of it are here already.
    begun = Repository(spec.model).local_commit(spec.revision, identity.holds_model)
    revision = begun or spec.revision
    try:
        info = HfApi().model_info(
            spec.model, revision=revision, files_metadata=True, timeout=REQUEST_TIMEOUT_S
        )
        local = _check_local(spec, info.sha)
        if local:
            return local
        url = hf_hub_url(spec.model, MODEL_CONFIG, revision=info.sha)
        get_hf_file_metadata(url, timeout=REQUEST_TIMEOUT_S)
    except Exception as error:  # its HTTP client's too, which is not the same in all versions
        problem = _hub_problem(spec, error)
        if problem:
            return Availability(spec.name, spec.model, problem=problem)
        return Availability(spec.name, spec.model)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    # The order in which `from_pretrained` looks for weights; a repository may hold them twice.
    if WEIGHTS_FILE in sizes:
        pattern = WEIGHTS_FILE
    elif INDEX_FILE in sizes:
        pattern = SHARDS_PATTERN
    else:
        pattern = WEIGHTS_PATTERN
    weight_sizes = [size for name, size in sizes.items() if fnmatch(name, pattern)]
    if not weight_sizes:
        problem = f"{_title(spec)} has no .safetensors; other weights are not loaded"
        return Availability(spec.name, spec.model, problem=problem)
    download = sum(weight_sizes)
    parameters = info.safetensors.parameters if info.safetensors else {}
    memory = 0
    for dtype, count in parameters.items():
        memory += count * SPEC_DTYPE_BYTES.get(spec.dtype, DTYPE_BYTES.get(dtype, 4))
    return Availability(spec.name, spec.model, download, memory or download)


def _title(spec: ModelSpec) -> str:
    return f"model {spec.name} ({spec.model})"


def _hub_problem(spec: ModelSpec, error: Exception) -> str:
    """Explain why the hub does not have a model; empty for an error of the network."""
    from huggingface_hub import constants, errors

    title = _title(spec)
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{title} is gated: accept its licence at {constants.ENDPOINT}/{spec.model}, then "
            "`hf auth login` with a token of that account, or set HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{title} has no revision {spec.revision}; take a branch, a tag or a commit of it"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{title} is not on the hub, or is private; correct its id, or set HF_TOKEN"
    if isinstance(error, errors.EntryNotFoundError):
        return f"{title} has no {MODEL_CONFIG}; take a model that transformers can load"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"{title} is refused by the hub (HTTP {status}); look at HF_TOKEN"
    # The hub is offline, unreachable or out of order: that passes, and is no fault of the model.
    return ""


def require_models(pool: Pool, checks: Sequence[Availability]) -> None:
    """Check that all models of a pool can be had, and that their weights fit the disk.

    Args:
        pool: the pool.
        checks: the availability of its models.

    Raises:
        WorldError: a model cannot be had (the message names all such models), or the disk is too
            small for the download.
    """
    problems = [check for check in checks if check.problem]
    if problems:
        names = [check.name for check in problems]
        message = problems[0].problem
        if len(names) > 1:
            message = (
                f"{len(names)} models cannot be had ({', '.join(names)}), the first: {message}"
            )
        if {spec.name for spec in pool.references}.issuperset(names):
            message += "; or --no-references"
        raise WorldError(message)
    folder, free = _hub_disk()
    size = _download_size(checks)
    if size > free:
        raise WorldError(
            f"{size / GIGABYTE:.1f} GB of weights are still to be downloaded and {folder} has "
            f"{free / GIGABYTE:.1f} GB free; make room, or set HF_HOME to a larger disk"
        )


def _download_size(checks: Iterable[Availability]) -> int:
    return sum(check.download or 0 for check in checks)


def _hub_disk() -> tuple[Path, int]:
    """Return the hub's folder on this machine, and the free bytes of its disk."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE).expanduser().absolute()
    # Before the first download the folder does not exist yet.
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return folder, shutil.disk_usage(existing).free


def weights_notes(pool: Pool, checks: Sequence[Availability]) -> Iterator[str]:
    """Describe the problems of several models, the download, and models too large for the memory.

    Args:
        pool: the pool.
        checks: the availability of its models.

    Yields:
        One sentence for each finding. A single problem is left to `require_models`.
    """
    from hierrouter.engines.devices import candidates, memory

    problems = [check.problem for check in checks if check.problem]
    if len(problems) > 1:
        yield from problems
    size = _download_size(checks)
    if size:
        folder, free = _hub_disk()
        yield (
            f"{size / GIGABYTE:.1f} GB of weights to download; "
            f"{folder} has {free / GIGABYTE:.1f} GB free"
        )
    specs = {spec.name: spec for spec in pool.all_models}
    for check in checks:
        if not check.memory:
            continue
        devices = candidates(specs[check.name])
        _, room = memory(devices)
        if check.memory > room:
            yield (
                f"{check.name} takes {check.memory / GIGABYTE:.1f} GB for its weights alone, and "
                f"{' and '.join(map(str, devices))} have {room / GIGABYTE:.1f} GB; "
                "load it on a larger machine, or leave it out"
            )
