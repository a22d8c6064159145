"""Cut the power of a collection many times; count what that costs.

    sudo python benchmarks/power.py [--cuts 100] [--seed 1]

The cache lies on an ext4 image of its own, on a loop device. A cut is ext4's forced shutdown
without a flush of the journal: nothing that has not reached the disk by then ever does. Then the
image is mounted anew and everything that was acknowledged is compared with what a reader is
served; see `killing.py`. Linux only; needs root, `mkfs.ext4` and loop devices. What the
workers say about their dying disk goes to stderr.
"""

import argparse
import contextlib
import fcntl
import os
import platform
import random
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import measuring  # noqa: F401  makes `tests` importable
from killing import Harness, inspect

IMAGE_BYTES = 256 << 20
LOOP_DEVICES = 7  # major number
SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
WITHOUT_JOURNAL_FLUSH = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    moments = random.Random(args.seed)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="power-") as folder:
        image, disk = Path(folder) / "disk.img", Path(folder) / "disk"
        disk.mkdir()
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        call("mkfs.ext4", "-q", "-F", str(image))
        cache = Harness(disk / "cache")
        for _ in range(args.cuts):
            with mounted(image, disk) as device:
                cache.run_and_kill(moments, partial(cut_power, disk, device))
            with mounted(image, disk):
                found.update(asdict(inspect(cache.root, cache.acked)))
    print(f"{platform.platform()}, {args.cuts} cuts, {len(cache.acked)} parts acknowledged")
    print(", ".join(f"{name} {count}" for name, count in found.items()))


@contextlib.contextmanager
def mounted(image: Path, disk: Path) -> Iterator[str]:
    """The image, mounted at `disk`; gives the loop device."""
    device = call("losetup", "--find", "--show", str(image))
    try:
        call("mount", "-t", "ext4", device, str(disk))
        try:
            yield device
        finally:
            call("umount", str(disk))
    finally:
        call("losetup", "--detach", device)


def cut_power(disk: Path, device: str) -> None:
    """Shut the file system down; refuses any but one on our own loop device."""
    descriptor = os.open(disk, os.O_RDONLY)
    try:
        ours = os.fstat(descriptor).st_dev
        if os.major(ours) != LOOP_DEVICES or ours != os.stat(device).st_rdev:  # noqa: PTH116
            raise SystemExit(f"{disk} is not on {device}; nothing was cut")
        fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", WITHOUT_JOURNAL_FLUSH))
    finally:
        os.close(descriptor)


def call(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
