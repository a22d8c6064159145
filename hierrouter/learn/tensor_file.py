"""Tensors and a text in one safetensors file.

In: named tensors, a text that goes into the header. Out: the file, whole or not there at all, and
both read back; a wrong file is named for what it is. Nothing is ever unpickled. Not covered: what
the tensors mean, see `checkpoint` and `resume`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hierrouter_cache.atomic_files import write_atomically
from hierrouter_cache.errors import InputError

HEADER = "hierrouter"
LFS_POINTER = b"version https://git-lfs"
PICKLE_STARTS = (b"\x80", b"PK\x03\x04")  # a bare pickle, and torch's zip around one
RETRAIN = "train again"


def write_tensors(file: Path, tensors: Mapping[str, Tensor], text: str) -> None:
    """Replace `file`; the same tensors and text give the same bytes.

    Raises:
        WorldError: the disk is full or failed; the old file is untouched then.
    """
    whole = {name: value.contiguous() for name, value in tensors.items()}
    write_atomically(file, save(whole, metadata={HEADER: text}))


def read_tensors(file: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of a file that `write_tensors` wrote, and the text in its header.

    Raises:
        InputError: there is none, or it is something else.
    """
    _check_start(file)
    try:
        with safe_open(file, framework="pt") as opened:
            text = (opened.metadata() or {}).get(HEADER)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"checkpoint is truncated, damaged or not a safetensors file: {file}; {RETRAIN}"
        ) from error
    if text is None:
        raise InputError(f"checkpoint was not written by hierrouter: {file}; {RETRAIN}")
    return tensors, text


def _check_start(file: Path) -> None:
    """Name the usual wrong files for what they are."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(LFS_POINTER))
    except FileNotFoundError:
        raise InputError(f"checkpoint not found: {file}; run `hierrouter train` first") from None
    except OSError as error:
        raise InputError(
            f"checkpoint cannot be read: {file}: {error.strerror}; give another --checkpoint"
        ) from None
    if start == LFS_POINTER:
        raise InputError(
            f"checkpoint is a git-lfs pointer, not a safetensors file: {file}; run `git lfs pull`"
        )
    # A safetensors file starts with 8 bytes of length, which may look like anything, then a brace.
    if start.startswith(PICKLE_STARTS) and start[8:9] != b"{":
        raise InputError(
            f"checkpoint is not a safetensors file: {file}; pickles are unsafe and refused"
        )
