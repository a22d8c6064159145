"""CPU seconds of opening a cache as a tree: with the tree that is kept beside it, and without.

    python benchmarks/opening.py [--questions 83334] [--rounds 3] [--keep FOLDER]

Makes a cache of so many questions (12 calls each, `scale_cache.py`; compacted, embedded), and opens
it in processes of their own, one after the other, with the built-in encoder. `imports` is duckdb,
pyarrow and numpy alone, `hash` every byte of the parts (and of the vectors) hashed and nothing
else. What a row takes does not count what it imports. `copied` is after `cp -r`: all is hashed,
the tree is taken. `one more part` adds a part of 2,048 calls that nobody asked for, beside it the
same part hashed and scanned alone; `one more, again` is the opening after that one.
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
LONG_AGO = (1e9, 1e9)  # a file that was written this moment is hashed once more
PREPARE = "import sys, time, duckdb, numpy, pyarrow, pyarrow.parquet; from pathlib import Path\n"
MEASURE = """
began = time.process_time()
{work}
print(time.process_time() - began)
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
    """What a process says it took."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, words)]
    return float(subprocess.check_output(command, env=environment, text=True))


def settle(root: Path) -> None:
    for file in root.rglob("*"):
        os.utime(file, LONG_AGO)


def one_more(root: Path) -> Path:
    """A part of calls of a step that no pool has."""
    rows = []
    for number in range(2_048):
        step, context, said = digest("nobody's"), digest(number), f"said {number} " * 20
        key, outcome = call_key(step, context), next_context(context, said)
        row = (key, step, context, outcome, "m", "prompt " * 60, said, 99, 50, "stop", 0.1)
        rows.append(dict(zip(CALLS_SCHEMA.names, row, strict=False)))
    part = PartWriter(root).append("calls", pa.Table.from_pylist(rows, schema=CALLS_SCHEMA))
    os.utime(part, LONG_AGO)
    return part


def once(root: Path, found: dict[str, list[float]]) -> None:
    """One round on a copy of the cache, in which nothing is kept yet."""

    def note(name: str, code: str, *words: object) -> None:
        found.setdefault(name, []).append(cpu(code, *words))

    copy = root.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)
    settle(copy)
    cpu(HASH, *copy.glob("parts/*"), *copy.glob("derived/*/*"))  # warms the disk's cache
    note("imports", IMPORT)
    note("hash of the parts", HASH, *copy.glob("parts/*"))
    note("hash of parts and vectors", HASH, *copy.glob("parts/*"), *copy.glob("derived/*/*"))
    note("no tree kept, all is hashed", OPEN, copy)
    note("unchanged", OPEN, copy)
    for tree in copy.glob("derived/trees/tree-*"):
        tree.unlink()
    note("no tree kept, nothing is hashed", OPEN, copy)
    for note_of_hashes in copy.glob("derived/*/hashed.json"):
        note_of_hashes.unlink()
    note("copied: all is hashed", OPEN, copy)
    part = one_more(copy)
    note("one more part: it alone, hashed and read", SCAN, part)
    note("one more part", OPEN, copy)
    note("one more part, again", OPEN, copy)


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
        sizes = {
            name: sum(file.stat().st_size for file in root.glob(form)) >> 20
            for name, form in (("parts", "parts/*"), ("vectors", "derived/*/*.npy"))
        }
        print(f"{args.questions * 12:,} nodes, {len([*root.glob('parts/*.parquet')])} parts, MiB:")
        print(json.dumps(sizes))
        found: dict[str, list[float]] = {}
        for _ in range(args.rounds):
            once(root, found)
        for name, seconds in found.items():
            print(f"{name:<42}{median(seconds):7.3f} CPU-s ({min(seconds):.3f}-{max(seconds):.3f})")


if __name__ == "__main__":
    main()
