"""What this machine has: processors, memory, the hub.

In: what torch, the system and the hub's own library say. Out: findings; a GPU or a hub that is not
there is a note, for all can be done without. Not covered: whether a model fits
(`hierrouter.collect.residency`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from hierrouter.doctor.finding import Finding

TIMEOUT_S = 3.0
GIB = 2**30


def devices() -> Iterator[Finding]:
    """Cores, threads and memory; every GPU."""
    import torch

    from hierrouter.collect.backends.devices import memory

    here = memory([torch.device("cpu")])
    yield Finding(
        "cpu",
        "ok",
        f"{os.cpu_count()} cores, torch takes {torch.get_num_threads()} threads; "
        f"{_gib(here.free)} of {_gib(here.total)} memory free",
    )
    if not torch.cuda.is_available():
        yield Finding("gpu", "note", "none that torch can use; models run on the CPU")
    for index in range(torch.cuda.device_count()):
        there = memory([torch.device("cuda", index)])
        name = torch.cuda.get_device_name(index)
        yield Finding(
            f"cuda:{index}", "ok", f"{name}, {_gib(there.free)} of {_gib(there.total)} free"
        )


def hub() -> Iterator[Finding]:
    """Whether models and datasets can be fetched; asked once, and not for long."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    from hierrouter.collect.encoders import PAPER_ENCODER

    try:
        HfApi().model_info(PAPER_ENCODER, timeout=TIMEOUT_S)
    except OfflineModeIsEnabled:
        text = "switched off by HF_HUB_OFFLINE; what was downloaded before is used"
        yield Finding("hub", "note", text)
    except Exception as error:  # its HTTP client's too, which is not the same in all versions
        yield Finding(
            "hub",
            "note",
            f"not reached ({type(error).__name__}); the testbed needs none, and what was "
            "downloaded before is used",
        )
    else:
        yield Finding("hub", "ok", "reached; models and datasets can be fetched")


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
