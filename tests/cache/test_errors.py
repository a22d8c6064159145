"""What an error says on one line."""

import pytest

from hierrouter_cache.errors import named_reason, reason_of


@pytest.mark.parametrize(
    ("error", "limit", "said", "named"),
    [
        (ValueError("two\n  lines\t."), 120, "two lines .", "ValueError: two lines ."),
        (ValueError("12345"), 3, "123", "ValueError: 123"),
        (ValueError(), 120, "ValueError", "ValueError"),
        (OSError(" \n "), 120, "OSError", "OSError"),
    ],
)
def test_an_error_is_one_short_line(error: Exception, limit: int, said: str, named: str) -> None:
    assert reason_of(error, limit) == said
    assert named_reason(error, limit) == named
