"""Kill a collection many times, at random moments, by kill -9, and count what is lost.

    python benchmarks/crash.py [--kills 1000] [--seed 1]

All runs use one cache. A worker appends parts of every kind and compacts the cache after every two
batches; each run continues where the last one was killed. After each kill, all rows that were
acknowledged are compared with the rows that a reader returns; see `killing.py`. The script stops
at the first kill after which they differ, and exits with 1.
"""

import argparse
import platform
import random
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import measuring  # noqa: F401  makes `tests` importable
import pyarrow
from killing import Findings, Harness, inspect, leftovers, rows_stored, stored_names

from hierrouter_cache.parts import list_parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    findings: Counter[str] = Counter()
    drafts = 0
    merging = 0
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        cache = Harness(Path(folder))
        for kill in range(1, args.kills + 1):
            cache.run_and_kill(rng)
            found = inspect(cache.root, cache.acked)
            findings.update(asdict(found))
            if found != Findings():
                sys.exit(f"broken: after kill {kill}: {found}")
            if leftovers(cache.root):
                drafts += 1
            distinct_rows = sum(map(len, stored_names(cache.root).values()))
            if rows_stored(cache.root) > distinct_rows:
                merging += 1
        print(f"{platform.platform()}, pyarrow {pyarrow.__version__}")
        print(f"{args.kills} kills, {len(cache.acked)} parts acknowledged")
        print(f"{drafts} kills left a draft, {merging} both a merged part and its sources")
        print(f"at the end {rows_stored(cache.root)} rows in {len(list_parts(cache.root))} parts")
    print(", ".join(f"{name} {count}" for name, count in findings.items()))


if __name__ == "__main__":
    main()
