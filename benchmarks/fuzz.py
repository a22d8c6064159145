"""Atheris on properties of hypothesis, for as long as asked.

    pip install atheris
    python benchmarks/fuzz.py importers|parts [-max_total_time=600] [failed-1]

In: the properties of `tests/properties/`, and libFuzzer's flags. Out: each failure once, with its
trace; its input stands in a file `failed-N`, which the same command takes as an argument to run it
again. Not covered: what those properties do not draw, and code in C, which is not instrumented;
Arrow and DuckDB are reached all the same.
"""

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import atheris
import measuring  # noqa: F401  makes `tests` importable

with atheris.instrument_imports(include=["hierrouter", "hierrouter_cache"]):
    from tests.properties import test_importers, test_parts

Property = Callable[[bytes], object]
TAIL = 4096  # bytes after an input: hypothesis drops what ends too early
# An input that takes a minute hangs; one that takes 4 GiB has no bound.
LIMITS = ("-timeout=60", "-rss_limit_mb=4096", "-len_control=0", "-max_len=512")


TARGETS: dict[str, list[Any]] = {
    "importers": [
        test_importers.test_any_table_is_taken_or_refused,
        test_importers.test_any_lines_of_ours_are_taken_or_refused,
    ],
    "parts": [test_parts.test_any_part_is_served_or_refused],
}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        raise SystemExit(__doc__)
    test_parts.sound()  # before anything is timed
    fuzz([each.hypothesis.fuzz_one_input for each in TARGETS[sys.argv[1]]], sys.argv[2:])


def fuzz(properties: Sequence[Property], flags: Sequence[str]) -> None:
    """Does not return; the first byte of an input chooses the property."""
    seen: set[tuple[str, str]] = set()

    def one(data: bytes) -> None:
        chosen = properties[data[0] % len(properties)] if data else properties[0]
        try:
            chosen(data[1:] + Random(data).randbytes(TAIL))
        except Exception as error:
            *_, last = traceback.extract_tb(error.__traceback__)
            if (where := (type(error).__name__, f"{last.filename}:{last.lineno}")) not in seen:
                seen.add(where)
                Path(f"failed-{len(seen)}").write_bytes(data)
                traceback.print_exc()

    atheris.Setup([sys.argv[0], *LIMITS, *flags], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
