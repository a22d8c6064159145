"""Two collectors of one cache at once, for some minutes, while others read, merge and copy it.

    python benchmarks/writers.py [--minutes 10]

In each round two shards of a growing collection run side by side; meanwhile the cache is pushed to
a mirror, and `verify` looks at it all the time, which must find the chain whole. Between rounds it
is merged, or brought back from the mirror into another cache. At the end that cache, and one that
was collected by one process alone, hold the same rows.
"""

import argparse
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
CACHE, PULLED, ALONE = "caches/default", "caches/pulled", "caches/alone"
STEP = 2  # questions of each of ten kinds more in a round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes
    process = WarmProcess(environment(), SOURCES)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="writers-") as name:
        place = Path(name)

        def begin(words: str) -> Running:
            given = ("-c", BRIEF + COMMAND, *words.split())
            return process.warm.start(*given, cwd=place, env=environment())

        def works(words: str, begun: Running | None = None) -> None:
            done = (begun or begin(words)).result()
            assert done.returncode == 0, (words, done.stderr)
            counts[" ".join(words.split()[:2]) if words.startswith("cache") else words[:7]] += 1

        limit, until = 0, time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            limit += STEP
            collect = f"collect --datasets testbed --limit {limit}"
            writers = [begin(f"{collect} --shard {index}/2") for index in (1, 2)]
            while any(writer.poll() is None for writer in writers):
                if any((place / CACHE).glob("parts/*.parquet")):
                    works("verify")
                    works("cache push mirror")
            for writer in writers:
                works(collect, writer)
            works("cache compact" if limit % 4 else f"cache pull mirror --cache {PULLED}")
        works("cache push mirror")
        works(f"cache pull mirror --cache {PULLED}")
        works(f"{collect} --cache {ALONE}")
        for cache in (CACHE, PULLED, ALONE):
            works(f"verify --cache {cache}")
        held = [ask_cache(place / cache, ROWS).to_pylist() for cache in (CACHE, PULLED)]
        alone = ask_cache(place / ALONE, ROWS).to_pylist()
        print(f"{limit // STEP} rounds, {dict(counts)}; {len(alone)} rows")
        print(f"different: {sum(rows != alone for rows in held)} of 2 caches")
    process.close()


if __name__ == "__main__":
    main()
