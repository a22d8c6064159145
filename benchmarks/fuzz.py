"""Fuzz properties of hypothesis by Atheris.

    pip install atheris
    python benchmarks/fuzz.py importers|parts [-max_total_time=600] [failed-1]

The properties are those of `tests/properties/`; the flags are libFuzzer's. Each failure is printed
once, with its traceback. Its input is written to a file `failed-N`; give that file as an argument
to run it again. Not covered: values that these properties do not draw. Code in C, such as Arrow and
DuckDB, is run but not instrumented.
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
PADDING = 4096  # bytes after an input, because hypothesis rejects inputs that are too short
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
    test_parts.sound()  # prepared here, so that it does not count as a slow input
    properties = [test.hypothesis.fuzz_one_input for test in TARGETS[sys.argv[1]]]
    fuzz(properties, sys.argv[2:])


def fuzz(properties: Sequence[Property], flags: Sequence[str]) -> None:
    """Fuzz until the process ends.

    Args:
        properties: called with an input each; the input's first byte chooses the property.
        flags: of libFuzzer.
    """
    failures: set[tuple[str, str]] = set()

    def run_input(data: bytes) -> None:
        check = properties[data[0] % len(properties)] if data else properties[0]
        try:
            check(data[1:] + Random(data).randbytes(PADDING))
        except Exception as error:
            *_, last = traceback.extract_tb(error.__traceback__)
            failure = (type(error).__name__, f"{last.filename}:{last.lineno}")
            if failure not in failures:
                failures.add(failure)
                Path(f"failed-{len(failures)}").write_bytes(data)
                traceback.print_exc()

    atheris.Setup([sys.argv[0], *LIMITS, *flags], run_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
