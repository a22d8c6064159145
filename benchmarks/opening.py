"""CPU seconds of opening a cache as a tree, with a stored tree and without.

    python benchmarks/opening.py [--questions 83334] [--rounds 3] [--keep FOLDER]

The script makes a cache of --questions questions (12 calls each, `scale_cache.py`; compacted and
embedded), and opens it with the built-in encoder, each time in a new process. `imports` is the
import of duckdb, pyarrow and numpy alone; all other rows do not count imports. `hash` is hashing
all bytes of the parts (and of the vectors), and nothing else. `copied` is the opening after `cp
-r`: all files are hashed, and the stored tree is used. `one more part` is the opening after adding
a part of 2,048 calls that are in no plan; above it is hashing and reading that part alone. `one
more, again` is the next opening.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import measuring  # noqa: F401  makes this copy of the project importable
import pyarrow as pa
from scale_cache import make_cache

from hierrouter_cache.embeddings import merge_embeddings
from hierrouter_cache.keys import call_key, digest, next_context
from hierrouter_cache.maintenance import compact
from hierrouter_cache.parts import CALLS_SCHEMA
from hierrouter_cache.writer import PartWriter

HERE = Path(__file__).parent
LONG_AGO = (1e9, 1e9)  # times of a file; one that was just written would be hashed once more
PREPARE = "import sys, time, duckdb, numpy, pyarrow, pyarrow.parquet; from pathlib import Path\n"
MEASURE = """
start = time.process_time()
{work}
print(time.process_time() - start)
"""
OPEN = PREPARE + "import measuring\nfrom hierrouter.replay.open_tree import OpenTree\n"
OPEN += "import pydantic\n" + MEASURE.format(
    work="OpenTree(cache=Path(sys.argv[1]), encoder='hashed-ngrams').run()"
)
HASH = "import sys, time, hashlib; from pathlib import Path\n" + MEASURE.format(
    work="""for path in sys.argv[1:]:
    with open(path, "rb") as file:
        hashlib.file_digest(file, "sha256")"""
)
SCAN = (
    PREPARE
    + "import hashlib\n"
    + MEASURE.format(
        work="""with open(sys.argv[1], "rb") as file:
    hashlib.file_digest(file, "sha256")
pyarrow.parquet.ParquetFile(sys.argv[1]).read(use_threads=False)"""
    )
)
IMPORT = "import sys, time\n" + MEASURE.format(work="import duckdb, pyarrow, numpy")


def cpu(code: str, *words: object) -> float:
    """Run code in a new process, and return the CPU seconds that it prints."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, words)]
    return float(subprocess.check_output(command, env=environment, text=True))


def settle(root: Path) -> None:
    """Make all files look old."""
    for file in root.rglob("*"):
        os.utime(file, LONG_AGO)


def add_part(root: Path) -> Path:
    """Add a part with calls of a step that no pool has, and return its path."""
    rows = []
    for number in range(2_048):
        step = digest("nobody's")
        context = digest(number)
        response = f"said {number} " * 20
        key = call_key(step, context)
        outcome = next_context(context, response)
        row = (key, step, context, outcome, "m", "prompt " * 60, response, 99, 50, "stop", 0.1)
        rows.append(dict(zip(CALLS_SCHEMA.names, row, strict=False)))
    part = PartWriter(root).append("calls", pa.Table.from_pylist(rows, schema=CALLS_SCHEMA))
    os.utime(part, LONG_AGO)
    return part


def run_round(root: Path, timings: dict[str, list[float]]) -> None:
    """Time all cases once, on a new copy of the cache."""

    def measure(name: str, code: str, *words: object) -> None:
        timings.setdefault(name, []).append(cpu(code, *words))

    copy = root.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)
    settle(copy)
    cpu(HASH, *copy.glob("parts/*"), *copy.glob("derived/*/*"))  # warms the disk's cache
    measure("imports", IMPORT)
    measure("hash of the parts", HASH, *copy.glob("parts/*"))
    measure("hash of parts and vectors", HASH, *copy.glob("parts/*"), *copy.glob("derived/*/*"))
    measure("no tree kept, all is hashed", OPEN, copy)
    measure("unchanged", OPEN, copy)
    for tree in copy.glob("derived/trees/tree-*"):
        tree.unlink()
    measure("no tree kept, nothing is hashed", OPEN, copy)
    for hashes in copy.glob("derived/*/hashed.json"):
        hashes.unlink()
    measure("copied: all is hashed", OPEN, copy)
    part = add_part(copy)
    measure("one more part: it alone, hashed and read", SCAN, part)
    measure("one more part", OPEN, copy)
    measure("one more part, again", OPEN, copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=83_334)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="opening-") as scratch:
        root = (args.keep or Path(scratch)) / "cache"
        if not root.exists():
            make_cache(root, args.questions)
            compact(root)
            merge_embeddings(root)
        shutil.rmtree(root / "derived/trees", ignore_errors=True)
        sizes = {}
        for name, pattern in (("parts", "parts/*"), ("vectors", "derived/*/*.npy")):
            sizes[name] = sum(file.stat().st_size for file in root.glob(pattern)) >> 20  # MiB
        print(f"{args.questions * 12:,} nodes, {len([*root.glob('parts/*.parquet')])} parts, MiB:")
        print(json.dumps(sizes))
        timings: dict[str, list[float]] = {}
        for _ in range(args.rounds):
            run_round(root, timings)
        for name, seconds in timings.items():
            print(f"{name:<42}{median(seconds):7.3f} CPU-s ({min(seconds):.3f}-{max(seconds):.3f})")


if __name__ == "__main__":
    main()
