"""Which files hold a model's weights, and their size.

In: a model of a pool, or the folder it is saved in. Out: those files; bytes in memory, read from
their headers; no weight is loaded. Not covered: keys, values and activations, which depend on the
batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

from hierrouter.collect.identity import BESIDE_WEIGHTS, WEIGHTS, hub_commit, local_folder
from hierrouter.pool import ModelSpec
from hierrouter_cache.errors import WorldError

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
WANTED = {"float32": 4, "float16": 2, "bfloat16": 2}


def weight_bytes(spec: ModelSpec) -> int:
    """Bytes of all weights in the dtype of the spec.

    A hub model whose files are not here yet is fetched, as loading it would.

    Raises:
        InputError: a folder that is not a saved model.
        WorldError: the files cannot be fetched or are damaged.
    """
    folder = local_folder(spec) or _fetched(spec)
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
    """The folder of a hub model, with one copy of its weights."""
    folder = _snapshot(spec, [SINGLE])
    if (folder / SINGLE).is_file():
        return folder
    return _snapshot(spec, _indexed(folder / INDEX) or [WEIGHTS])


def _snapshot(spec: ModelSpec, weights: Sequence[str]) -> Path:
    """The folder of a hub model, once these weights and all beside them are in it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    commit = hub_commit(spec.model, spec.revision)
    try:
        wanted = [*BESIDE_WEIGHTS, *weights]
        return Path(snapshot_download(spec.model, revision=commit, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise WorldError(
            f"model {spec.model} cannot be downloaded: {type(error).__name__}; "
            "try again, or give the folder of a saved model"
        ) from error
