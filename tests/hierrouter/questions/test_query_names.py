"""Finding a query by what a person types."""

from dataclasses import replace

import pytest

from hierrouter.questions.query import find_query, full_names
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes
from tests.hierrouter.trees import random_tree

IDS = ("fact-1", "fact-10", "fact-2", "7", "7", "riddle-5")
DATASETS = ("fact", "fact", "fact", "left", "right", "riddle")
TREE = replace(random_tree(Routes(2, 1), len(IDS), 0), query_ids=IDS, datasets=DATASETS)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("fact-10", 1),
        ("fact-1", 0),  # the beginning of another one, too
        ("fact/fact-1", 0),
        ("fact/fact-10", 1),
        ("right/7", 4),
        ("rid", 5),
        ("riddle/", 5),
        ("left", 3),
    ],
)
def test_a_query_is_found_by_id_full_name_or_beginning(name: str, row: int) -> None:
    assert find_query(TREE, name) == row


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("7", "2 queries are meant by '7': left/7, right/7; give more of the name"),
        ("fact", "3 queries are meant by 'fact': fact/fact-1, fact/fact-10, fact/fact-2;"),
        ("", "6 queries are meant by '': .*, …; give"),
        ("fcat-10", r"no such query in this tree: fcat-10; did you mean fact-10\?"),
        ("facts/fact-2", r"facts/fact-2; did you mean fact/fact-2\?"),
        ("zzz", "no such query in this tree: zzz; names look like fact/fact-1$"),
    ],
)
def test_what_is_not_one_query_is_named(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_query(TREE, name)


def test_full_names_are_those_of_the_tree() -> None:
    assert full_names(TREE)[3:] == ["left/7", "right/7", "riddle/riddle-5"]
