"""Cut the power of a collection many times, and count what is lost.

    sudo python benchmarks/power.py [--cuts 100] [--seed 1]

The cache is on a separate ext4 image, on a loop device. A power cut is simulated by ext4's forced
shutdown without a flush of the journal: data that has not reached the disk by then is lost. Then
the image is mounted again, and all rows that were acknowledged are compared with the rows that a
reader returns; see `killing.py`. The script stops at the first cut after which they differ, and
exits with 1. Linux only; it needs root, `mkfs.ext4` and loop devices. Messages of the workers about
their failing disk go to stderr.
"""

import argparse
import contextlib
import fcntl
import os
import platform
import random
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import measuring  # noqa: F401  makes `tests` importable
from killing import Findings, Harness, inspect

IMAGE_BYTES = 256 << 20
LOOP_DEVICE_MAJOR = 7
SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
WITHOUT_JOURNAL_FLUSH = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    findings: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="power-") as folder:
        image = Path(folder) / "disk.img"
        disk = Path(folder) / "disk"
        disk.mkdir()
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        call("mkfs.ext4", "-q", "-F", str(image))
        cache = Harness(disk / "cache")
        for cut in range(1, args.cuts + 1):
            with mounted(image, disk) as device:
                cache.run_and_kill(rng, partial(cut_power, disk, device))
            with mounted(image, disk):
                found = inspect(cache.root, cache.acked)
            findings.update(asdict(found))
            if found != Findings():
                sys.exit(f"broken: after cut {cut}: {found}")
    print(f"{platform.platform()}, {args.cuts} cuts, {len(cache.acked)} parts acknowledged")
    print(", ".join(f"{name} {count}" for name, count in findings.items()))


@contextlib.contextmanager
def mounted(image: Path, disk: Path) -> Iterator[str]:
    """Mount the image at `disk`, and yield the loop device."""
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
    """Shut a file system down, after checking that it is the one on the loop device."""
    descriptor = os.open(disk, os.O_RDONLY)
    try:
        disk_device = os.fstat(descriptor).st_dev
        is_loop_device = os.major(disk_device) == LOOP_DEVICE_MAJOR
        if not is_loop_device or disk_device != os.stat(device).st_rdev:  # noqa: PTH116
            raise SystemExit(f"{disk} is not on {device}; nothing was cut")
        fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", WITHOUT_JOURNAL_FLUSH))
    finally:
        os.close(descriptor)


def call(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
