"""Where weights and batches live, how much room there is, and how many threads compute."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psutil
import torch

from hierrouter.pools.pool import ModelSpec
from hierrouter_cache.errors import InputError

BALANCED = "balanced"
# Beside the weights a batch needs room: a GPU that they fill is of no use.
WEIGHTS_SHARE = 0.8
EXHAUSTED = ("not enough memory", "can't allocate memory", "out of memory", "ALLOC_FAILED")


def candidates(spec: ModelSpec) -> list[torch.device]:
    """The devices that this model may use; raises InputError: a GPU that is not there."""
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
    chosen = torch.device("cuda", torch.device(spec.device).index or 0)
    if chosen.index >= count:
        raise InputError(
            f"{chosen} is not available on this machine: device of model {spec.name}; "
            f"use cuda:0 to cuda:{count - 1}, or --device cpu"
        )
    return [chosen]


def placement(spec: ModelSpec, weight_bytes: int) -> str:
    """Where `from_pretrained` shall put the weights: `cpu`, `cuda:N` or `balanced`.

    Raises InputError: a GPU that is not there.
    """
    devices = candidates(spec)
    if len(devices) > 1 and spec.device == BALANCED:
        return BALANCED
    emptiest = max(devices, key=lambda device: memory([device])[0])
    if len(devices) > 1 and weight_bytes > WEIGHTS_SHARE * memory([emptiest])[0]:
        return BALANCED
    return str(emptiest)


def memory(devices: Iterable[torch.device]) -> tuple[int, int]:
    """Bytes of these together: free (torch first gives back what it keeps of a GPU), and in all."""
    free = total = 0
    for device in devices:
        if device.type == "cpu":
            seen = psutil.virtual_memory()
            here = seen.available, seen.total
        else:
            torch.cuda.empty_cache()
            here = torch.cuda.mem_get_info(device)
        free, total = free + here[0], total + here[1]
    return free, total


def give_back_memory() -> None:
    """Free what nobody refers to any more, also what torch keeps of a GPU for later."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; on CPU torch says so in words only."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in EXHAUSTED)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Within it, torch computes with so many threads, when asked from this one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
