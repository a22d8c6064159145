"""Compare a commit to the cache with a bare write and fsync of the same bytes.

    python benchmarks/commit.py [--dir DIR] [--rounds 200]

A commit encodes 192 rows with texts of about 1.2 KB, hashes and writes them, calls fsync, renames
the file and calls fsync on the folder. The bare write only writes the encoded bytes to a new file
and calls fsync. Both alternate in one process; the figures are medians. `--dir` names the disk to
measure. The second pair of lines is for a cache that already holds 500 parts: a commit must not
read them. The script exits with 1 if it takes over four times the CPU seconds of one on an empty
cache.
"""

import argparse
import os
import platform
import random
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

import measuring  # noqa: F401  makes `tests` importable
import pyarrow as pa

from hierrouter_cache.parts import parts_folder
from hierrouter_cache.writer import PartWriter
from tests.cache import rows

ROWS = 192
CHARACTERS = 1200  # of a text
MAX_GROWTH = 4.0  # 1.9 when measured: the names of the parts are listed
WORDS = "the of answer is number each first then so total cost per day we have gives how many"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    print(f"{platform.platform()}, pyarrow {pa.__version__}, {ROWS} rows, {args.rounds} rounds")
    cpu_ms = []
    for parts in (0, 500):
        with tempfile.TemporaryDirectory(prefix="commit-", dir=args.dir) as folder:
            cpu_ms.append(measure(Path(folder), parts, args.rounds))
    growth = cpu_ms[1] / cpu_ms[0]
    print(f"CPU of a commit with 500 parts: {growth:.1f} times that on an empty cache")
    if growth > MAX_GROWTH:
        sys.exit("broken: a commit takes longer, the more parts there are")


def measure(folder: Path, parts: int, rounds: int) -> float:
    """Alternate commits and bare writes on a cache of `parts` parts, and print a line for each.

    Returns:
        CPU milliseconds of a commit, the median.
    """
    writer = PartWriter(folder / "cache")
    bare = folder / "bare"
    bare.mkdir()
    for number in range(parts):
        writer.append("calls", rows.calls(("m", str(number), "r")))
    tables = [table(number) for number in range(rounds)]
    # Wall-clock and CPU seconds of each round.
    commits: list[tuple[float, float]] = []
    bare_writes: list[tuple[float, float]] = []
    size = 0
    for number, rows_table in enumerate(tables):
        wall_start = perf_counter()
        cpu_start = process_time()
        part = writer.append("calls", rows_table)
        commits.append((perf_counter() - wall_start, process_time() - cpu_start))
        data = part.read_bytes()
        part.unlink()
        size += len(data)
        wall_start = perf_counter()
        cpu_start = process_time()
        write_and_sync(bare / str(number), data)
        bare_writes.append((perf_counter() - wall_start, process_time() - cpu_start))
    part_count = len(list(parts_folder(folder / "cache").iterdir()))
    print(f"{part_count} parts there, {size // rounds:,} bytes a commit")
    show("commit", commits)
    show("bare", bare_writes)
    commit_wall = statistics.median(wall for wall, _ in commits)
    bare_wall = statistics.median(wall for wall, _ in bare_writes)
    print(f"  ratio {commit_wall / bare_wall:.2f}")
    return 1e3 * statistics.median(cpu for _, cpu in commits)


def show(name: str, times: list[tuple[float, float]]) -> None:
    wall, cpu = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    print(f"  {name:<8}{wall:8.2f} ms, of which {cpu:6.2f} ms CPU")


def table(number: int) -> pa.Table:
    """Make a table of calls whose texts compress about as well as prose does."""
    rng = random.Random(number)
    words = [*WORDS.split(), *(str(rng.randrange(1000)) for _ in range(300))]
    texts = [" ".join(rng.choices(words, k=CHARACTERS // 5))[:CHARACTERS] for _ in range(ROWS)]
    return rows.calls(*[("m", f"{number}-{row}", text) for row, text in enumerate(texts)])


def write_and_sync(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, data)
    os.fsync(descriptor)
    os.close(descriptor)


if __name__ == "__main__":
    main()
