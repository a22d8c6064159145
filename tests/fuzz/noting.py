"""Atheris on properties of hypothesis, for as long as asked.

In: properties, and libFuzzer's flags on the command line. Out: each failure once, with its trace;
its input stands in a file `failed-N`, which the same command takes as an argument to run it again.
Atheris is no dependency of the project: `pip install atheris`. Not covered: code in C, which is not
instrumented; Arrow and DuckDB are reached all the same.
"""

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import atheris

Property = Callable[[bytes], object]
TAIL = 4096  # bytes after an input: hypothesis drops what ends too early
# An input that takes a minute hangs; one that takes 4 GiB has no bound.
LIMITS = ("-timeout=60", "-rss_limit_mb=4096", "-len_control=0", "-max_len=512")


def fuzz(properties: Sequence[Property]) -> None:
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

    atheris.Setup([sys.argv[0], *LIMITS, *sys.argv[1:]], one)
    atheris.Fuzz()
