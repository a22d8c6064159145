"""Run two collectors on one cache for some minutes, while others read, merge and copy it.

    python benchmarks/writers.py [--minutes 10]

In each round two shards of a growing collection run side by side. Meanwhile the cache is pushed to
a mirror again and again, and `verify` must find its chain complete each time. Between rounds the
cache is compacted, or the mirror is pulled into another cache. At the end, that cache must hold the
same rows as one that was collected by a single process. The script exits with 1 if a command fails
or rows differ.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import measuring  # noqa: F401  makes `tests` importable

from hierrouter.replay.inspection import ask_cache
from tests.cli.conftest import BRIEF, COMMAND
from tests.conftest import SOURCES, environment
from tests.warm import Running, WarmProcess

ROWS = "SELECT query, route, call, response FROM nodes ORDER BY ALL"
CACHE = "caches/default"
PULLED_CACHE = "caches/pulled"
SINGLE_CACHE = "caches/alone"
STEP = 2  # how many questions of each of the ten families a round adds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes
    process = WarmProcess(environment(), SOURCES)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="writers-") as name:
        folder = Path(name)

        def begin(words: str) -> Running:
            command = ("-c", BRIEF + COMMAND, *words.split())
            return process.warm.start(*command, cwd=folder, env=environment())

        def run(words: str, running: Running | None = None) -> None:
            """Wait for a command, which must succeed, and count it; begin it if necessary."""
            completed = (running or begin(words)).result()
            if completed.returncode:
                last = completed.stderr.strip().splitlines()[-1:]
                sys.exit(f"broken: {words} ended with {completed.returncode}: {last}")
            name = " ".join(words.split()[:2]) if words.startswith("cache") else words[:7]
            counts[name] += 1

        limit = 0
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            limit += STEP
            collect = f"collect --datasets testbed --limit {limit}"
            writers = [begin(f"{collect} --shard {index}/2") for index in (1, 2)]
            while any(writer.poll() is None for writer in writers):
                if any((folder / CACHE).glob("parts/*.parquet")):
                    run("verify")
                    run("cache push mirror")
            for writer in writers:
                run(collect, writer)
            run("cache compact" if limit % 4 else f"cache pull mirror --cache {PULLED_CACHE}")
        run("cache push mirror")
        run(f"cache pull mirror --cache {PULLED_CACHE}")
        run(f"{collect} --cache {SINGLE_CACHE}")
        for cache in (CACHE, PULLED_CACHE, SINGLE_CACHE):
            run(f"verify --cache {cache}")
        caches = [ask_cache(folder / cache, ROWS).to_pylist() for cache in (CACHE, PULLED_CACHE)]
        expected = ask_cache(folder / SINGLE_CACHE, ROWS).to_pylist()
        print(f"{limit // STEP} rounds, {dict(counts)}; {len(expected)} rows")
        different = sum(rows != expected for rows in caches)
        print(f"different: {different} of 2 caches")
    process.close()
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
