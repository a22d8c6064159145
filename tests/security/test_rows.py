"""Each exposure has its tests, and its line in the documentation."""

import re

import pytest

from tests.conftest import SOURCES
from tests.security.rows import ROWS


@pytest.mark.parametrize("row", ROWS)
def test_the_tests_of_a_row_are_there(row: str) -> None:
    assert ROWS[row]
    for named in ROWS[row]:
        file, _, function = named.partition("::")
        assert f"\ndef {function}(" in (SOURCES / file).read_text(), named


def test_the_page_tells_of_each_row() -> None:
    told = re.findall(r"^\| \*\*(.+?)\*\* \|", (SOURCES / "docs" / "security.md").read_text(), re.M)
    assert told == list(ROWS)
