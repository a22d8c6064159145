"""kill -9 a collection many times, at random moments; count what that costs.

    python benchmarks/crash.py [--kills 1000] [--seed 1]

One cache is kept over all kills. A worker appends parts of every kind and compacts after every
two batches; each run goes on where the last one was killed. After each kill everything that was
acknowledged is compared with what a reader is served, row by row; see `killing.py`.
"""

import argparse
import platform
import random
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import measuring  # noqa: F401  makes `tests` importable
import pyarrow
from killing import Harness, inspect, leftovers, rows_stored, stored_names

from hierrouter_cache.parts import list_parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    moments = random.Random(asked.seed)
    found: Counter[str] = Counter()
    drafts = merging = 0
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        cache = Harness(Path(folder))
        for _ in range(asked.kills):
            cache.run_and_kill(moments)
            drafts += bool(leftovers(cache.root))
            merging += rows_stored(cache.root) > sum(map(len, stored_names(cache.root).values()))
            found.update(asdict(inspect(cache.root, cache.acked)))
        print(f"{platform.platform()}, pyarrow {pyarrow.__version__}")
        print(f"{asked.kills} kills, {len(cache.acked)} parts acknowledged")
        print(f"{drafts} kills left a draft, {merging} both a merged part and its sources")
        print(f"at the end {rows_stored(cache.root)} rows in {len(list_parts(cache.root))} parts")
    print(", ".join(f"{name} {count}" for name, count in found.items()))


if __name__ == "__main__":
    main()
