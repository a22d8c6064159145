"""Fuzz the importers: `python -m tests.fuzz.importers -max_total_time=600`.

Not covered: what `tests.properties.test_importers` does not draw.
"""

import atheris

with atheris.instrument_imports(include=["hierrouter", "hierrouter_cache"]):
    from tests.properties import test_importers

from tests.fuzz.noting import fuzz

if __name__ == "__main__":
    fuzz(
        [
            test_importers.test_any_table_is_taken_or_refused.hypothesis.fuzz_one_input,
            test_importers.test_any_lines_of_ours_are_taken_or_refused.hypothesis.fuzz_one_input,
        ]
    )
