from collections.abc import Sequence

import pytest

from hierrouter.questions.scoring import Scorer
from hierrouter_cache.errors import InputError
from hierrouter_cache.keys import Choices


def alone(response: str, references: Sequence[str], /) -> float:
    return 0.25


def either(response: str, references: Sequence[str], choices: Choices = ()) -> float:
    return 0.5 if choices else 0.25


def test_choices_are_looked_at_where_there_are_some_and_the_scorer_knows_what_to_do() -> None:
    one, two = Scorer("one", "1", alone), Scorer("two", "1", either, reads_choices=True)
    offered = (("A", "ice"),)
    assert one("x", ["y"]) == one("x", ["y"], offered) == two("x", ["y"]) == 0.25
    assert two("x", ["y"], offered) == 0.5


def test_without_references_nothing_is_measured() -> None:
    with pytest.raises(InputError, match="one needs reference answers, and a query has none"):
        Scorer("one", "1", alone)("x", [])
