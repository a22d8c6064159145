"""A commit against a bare write and fsync of the same bytes.

    python benchmarks/commit.py [--dir DIR] [--rounds 200]

Ours encodes 192 rows with texts of about 1.2 KB, hashes, writes, fsyncs, renames and fsyncs the
folder. The bare side only writes the finished bytes to a new file and fsyncs it. Rounds alternate
in one process; medians. `--dir` says which disk is measured; the second line of each pair is a
cache that holds 500 parts already.
"""

import argparse
import os
import platform
import random
import statistics
import tempfile
from pathlib import Path
from time import perf_counter, process_time

import measuring  # noqa: F401  makes `tests` importable
import pyarrow as pa

from hierrouter_cache.parts import parts_folder
from hierrouter_cache.writer import PartWriter
from tests.cache import rows

ROWS = 192
CHARACTERS = 1200
WORDS = "the of answer is number each first then so total cost per day we have gives how many"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    print(f"{platform.platform()}, pyarrow {pa.__version__}, {ROWS} rows, {args.rounds} rounds")
    for parts in (0, 500):
        with tempfile.TemporaryDirectory(prefix="commit-", dir=args.dir) as folder:
            measure(Path(folder), parts, args.rounds)


def measure(folder: Path, parts: int, rounds: int) -> None:
    """Alternate both sides on a cache of `parts` parts and print a line for each."""
    writer = PartWriter(folder / "cache")
    bare = folder / "bare"
    bare.mkdir()
    for number in range(parts):
        writer.append("calls", rows.calls(("m", str(number), "r")))
    tables = [table(number) for number in range(rounds)]
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    size = 0
    for number, wanted in enumerate(tables):
        started = perf_counter(), process_time()
        part = writer.append("calls", wanted)
        ours.append((perf_counter() - started[0], process_time() - started[1]))
        data = part.read_bytes()
        part.unlink()
        size += len(data)
        started = perf_counter(), process_time()
        write_and_sync(bare / str(number), data)
        theirs.append((perf_counter() - started[0], process_time() - started[1]))
    held = len(list(parts_folder(folder / "cache").iterdir()))
    print(f"{held} parts there, {size // rounds:,} bytes a commit")
    show("commit", ours)
    show("bare", theirs)
    ratio = statistics.median(wall for wall, _ in ours) / statistics.median(w for w, _ in theirs)
    print(f"  ratio {ratio:.2f}")


def show(name: str, times: list[tuple[float, float]]) -> None:
    wall, cpu = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    print(f"  {name:<8}{wall:8.2f} ms, of which {cpu:6.2f} ms CPU")


def table(number: int) -> pa.Table:
    """Rows with prose that compresses about as prose does."""
    dice = random.Random(number)
    words = [*WORDS.split(), *(str(dice.randrange(1000)) for _ in range(300))]
    texts = [" ".join(dice.choices(words, k=CHARACTERS // 5))[:CHARACTERS] for _ in range(ROWS)]
    return rows.calls(*[("m", f"{number}-{row}", text) for row, text in enumerate(texts)])


def write_and_sync(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, data)
    os.fsync(descriptor)
    os.close(descriptor)


if __name__ == "__main__":
    main()
