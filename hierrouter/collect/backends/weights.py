"""How much memory a model's weights take.

In: a model of a pool. Out: bytes, read from the headers of its safetensors; no weight is loaded.
Not covered: keys, values and activations, which depend on the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path

from hierrouter.collect.identity import FILES, hub_commit, local_folder
from hierrouter.pool import ModelSpec
from hierrouter_cache.errors import WorldError

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1}
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
        for path in sorted(folder.glob("*.safetensors"))
        for dtype, count in _tensors(path)
    )


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
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    commit = hub_commit(spec.model, spec.revision)
    try:
        return Path(snapshot_download(spec.model, revision=commit, allow_patterns=list(FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise WorldError(
            f"model {spec.model} cannot be downloaded: {type(error).__name__}; "
            "try again, or give the folder of a saved model"
        ) from error
