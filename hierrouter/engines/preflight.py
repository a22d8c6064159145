"""Whether the models of a pool can be had, and what they take, before one of them is loaded.

The hub is asked for what it knows of a repository and for the head of one small file, as a download
would ask: a gated repository shows its list of files to everybody, and refuses the files.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from hierrouter.engines import identity
from hierrouter.engines.identity import BYTES, CONFIGS, HUB_TIMEOUT_S, INDEX, SINGLE, WANTED
from hierrouter.pools.pool import OPENAI, ModelSpec, Pool
from hierrouter_cache.errors import WorldError

CONFIG = CONFIGS[0]  # of every language model
SHARDS = "model-*-of-*.safetensors"  # as `save_pretrained` calls them, beside their index
GB = 1e9


@dataclass(frozen=True)
class Weights:
    """What stands between this machine and a loaded model.

    Attributes:
        name, model: as in the pool.
        download: bytes of weights still to be fetched, 0 where all are here; None where the hub
            could not be asked.
        memory: bytes of the weights in memory, without those of activations and of the cache of
            keys and values; None where nobody says.
        problem: why it cannot be had, and what to do; empty where nothing speaks against it.
    """

    name: str
    model: str
    download: int | None = None
    memory: int | None = None
    problem: str = ""


def weights_needed(models: Iterable[ModelSpec]) -> Iterator[Weights]:
    """Look for each model that this machine would load; those of a server are left out.

    Raises InputError: a local folder that is no saved model; WorldError: damaged weights.
    """
    for spec in models:
        if spec.backend != OPENAI:
            if identity.named_folder(spec) is None:
                yield _of_hub(spec)
            else:
                yield Weights(spec.name, spec.model, 0, identity.weight_bytes(spec))


def _here(spec: ModelSpec, commit: str | None = None) -> Weights | None:
    """Of a model whose weights are all on this machine; None of another."""
    folder = identity.saved_folder(spec, commit)
    files = identity.weight_files(folder) if folder else []
    if folder is None or not files or not all(file.is_file() for file in files):
        return None
    return Weights(spec.name, spec.model, 0, identity.bytes_in(folder, spec))


def _of_hub(spec: ModelSpec) -> Weights:
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url

    try:
        info = HfApi().model_info(
            spec.model, revision=spec.revision, files_metadata=True, timeout=HUB_TIMEOUT_S
        )
        if here := _here(spec, info.sha):
            return here
        address = hf_hub_url(spec.model, CONFIG, revision=info.sha)
        get_hf_file_metadata(address, timeout=HUB_TIMEOUT_S)
    except Exception as error:  # its HTTP client's too, which is not the same in all versions
        if problem := _refusal(spec, error):
            return Weights(spec.name, spec.model, problem=problem)
        return _here(spec) or Weights(spec.name, spec.model)
    sizes = {each.rfilename: each.size or 0 for each in info.siblings or ()}
    pattern = SINGLE if SINGLE in sizes else SHARDS if INDEX in sizes else identity.WEIGHTS
    download = [size for name, size in sizes.items() if fnmatch(name, pattern)]
    if not download:
        problem = f"{_named(spec)} has no .safetensors; other weights are not loaded"
        return Weights(spec.name, spec.model, problem=problem)
    counts = info.safetensors.parameters if info.safetensors else {}
    told = (n * WANTED.get(spec.dtype, BYTES.get(dtype, 4)) for dtype, n in counts.items())
    return Weights(spec.name, spec.model, sum(download), sum(told) or sum(download))


def _named(spec: ModelSpec) -> str:
    return f"model {spec.name} ({spec.model})"


def _refusal(spec: ModelSpec, error: Exception) -> str:
    from huggingface_hub import constants, errors

    named = _named(spec)
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{named} is gated: accept its licence at {constants.ENDPOINT}/{spec.model}, then "
            "`hf auth login` with a token of that account, or set HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{named} has no revision {spec.revision}; take a branch, a tag or a commit of it"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{named} is not on the hub, or is private; correct its id, or set HF_TOKEN"
    if isinstance(error, errors.EntryNotFoundError):
        return f"{named} has no {CONFIG}; take a model that transformers can load"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"{named} is refused by the hub (HTTP {status}); look at HF_TOKEN"
    return ""  # switched off, not reached or out of order, which passes


def require_models(pool: Pool, found: Sequence[Weights]) -> None:
    """Refuse a pool of which a model cannot be had.

    Raises WorldError: with the names of all such models, or what the disk lacks.
    """
    problems = [each for each in found if each.problem]
    if problems:
        names, told = [each.name for each in problems], problems[0].problem
        if len(names) > 1:
            told = f"{len(names)} models cannot be had ({', '.join(names)}), the first: {told}"
        if {spec.name for spec in pool.references}.issuperset(names):
            told += "; or --no-references"
        raise WorldError(told)
    place, free = _hub_disk()
    if (size := _total(found)) > free:
        raise WorldError(
            f"{size / GB:.1f} GB of weights are still to be downloaded and {place} has "
            f"{free / GB:.1f} GB free; make room, or set HF_HOME to a larger disk"
        )


def _total(found: Iterable[Weights]) -> int:
    return sum(each.download or 0 for each in found)


def _hub_disk() -> tuple[Path, int]:
    """Where the hub's files go, and the free bytes there."""
    from huggingface_hub import constants

    place = Path(constants.HF_HUB_CACHE).expanduser().absolute()
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    return place, shutil.disk_usage(there).free


def weights_notes(pool: Pool, found: Sequence[Weights]) -> Iterator[str]:
    """What is wrong with each of several models, the download, and what exceeds the memory."""
    from hierrouter.engines.devices import candidates, memory

    problems = [each.problem for each in found if each.problem]
    yield from problems if len(problems) > 1 else ()
    if size := _total(found):
        place, free = _hub_disk()
        yield f"{size / GB:.1f} GB of weights to download; {place} has {free / GB:.1f} GB free"
    specs = {spec.name: spec for spec in pool.everyone}
    for each in found:
        devices = candidates(specs[each.name]) if each.memory else []
        room = memory(devices)[1]
        if each.memory and each.memory > room:
            yield (
                f"{each.name} takes {each.memory / GB:.1f} GB for its weights alone, and "
                f"{' and '.join(map(str, devices))} have {room / GB:.1f} GB; "
                "load it on a larger machine, or leave it out"
            )
