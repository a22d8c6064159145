"""Devices for local models: which one a model may use, free memory, and threads."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psutil
import torch

from hierrouter.pools.pool import ModelSpec
from hierrouter_cache.errors import InputError

BALANCED = "balanced"
# A batch needs memory beside the weights, so weights may not fill a whole GPU.
WEIGHTS_SHARE = 0.8
# Texts by which torch reports a failed allocation on a CPU or in a CUDA library.
OUT_OF_MEMORY_TEXTS = (
    "not enough memory",
    "can't allocate memory",
    "out of memory",
    "ALLOC_FAILED",
)


def candidates(spec: ModelSpec) -> list[torch.device]:
    """List the devices that a model may use.

    Args:
        spec: the model; its `device` is "auto", "balanced", "cpu", "cuda" or "cuda:N".

    Returns:
        One device or more.

    Raises:
        InputError: the GPU that it names does not exist.
    """
    count = torch.cuda.device_count()
    if spec.device == "cpu" or (spec.device == "auto" and not count):
        return [torch.device("cpu")]
    if not count:
        raise InputError(
            f"cuda is not available on this machine: device {spec.device} of model {spec.name}; "
            "use --device cpu"
        )
    if spec.device in ("auto", BALANCED):
        return [torch.device("cuda", index) for index in range(count)]
    device = torch.device("cuda", torch.device(spec.device).index or 0)
    if device.index >= count:
        raise InputError(
            f"{device} is not available on this machine: device of model {spec.name}; "
            f"use cuda:0 to cuda:{count - 1}, or --device cpu"
        )
    return [device]


def placement(spec: ModelSpec, weight_bytes: int) -> str:
    """Decide on which device the weights of a model are loaded.

    Args:
        spec: the model.
        weight_bytes: size of its weights in bytes.

    Returns:
        The `device_map` of `from_pretrained`: `cpu`, `cuda:N` or `balanced`, which spreads the
        weights over all GPUs.

    Raises:
        InputError: the GPU that the model names does not exist.
    """
    devices = candidates(spec)
    if len(devices) > 1 and spec.device == BALANCED:
        return BALANCED
    emptiest = max(devices, key=lambda device: memory([device])[0])
    if len(devices) > 1 and weight_bytes > WEIGHTS_SHARE * memory([emptiest])[0]:
        return BALANCED
    return str(emptiest)


def memory(devices: Iterable[torch.device]) -> tuple[int, int]:
    """Measure the memory of several devices together.

    Torch first releases the GPU memory that it keeps for later, so that it counts as free.

    Args:
        devices: CPU or GPUs.

    Returns:
        Free bytes and total bytes.
    """
    free = 0
    total = 0
    for device in devices:
        if device.type == "cpu":
            usage = psutil.virtual_memory()
            device_free = usage.available
            device_total = usage.total
        else:
            torch.cuda.empty_cache()
            device_free, device_total = torch.cuda.mem_get_info(device)
        free += device_free
        total += device_total
    return free, total


def give_back_memory() -> None:
    """Free unreferenced objects, and the GPU memory that torch keeps for later."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error is a failed allocation.

    On a CPU, torch raises a plain RuntimeError: only its text tells.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = str(error)
    return any(text in message for text in OUT_OF_MEMORY_TEXTS)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute with `count` threads within the block, when called from this thread."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
