"""Fuzz the part reader: `python -m tests.fuzz.parts -max_total_time=600`.

Not covered: what `tests.properties.test_parts` does not draw.
"""

import atheris

with atheris.instrument_imports(include=["hierrouter", "hierrouter_cache"]):
    from tests.properties import test_parts

from tests.fuzz.noting import fuzz

if __name__ == "__main__":
    test_parts.sound()
    fuzz([test_parts.test_any_part_is_served_or_refused.hypothesis.fuzz_one_input])
