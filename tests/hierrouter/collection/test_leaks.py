"""An imported question of test that nearly stands in another fold is named."""

from pathlib import Path

import pytest

from hierrouter.collection import transfer
from hierrouter.collection.transfer import leak_line, receive
from tests.hierrouter.collection.examples import MODELS, save, single_answers


def imported(folder: Path, questions: list[str]) -> Path:
    """A cache of these questions, the first one of test and the others of train."""
    rows = single_answers(len(questions))
    for place, row in enumerate(rows):
        asked = place // len(MODELS)
        row |= {"question": questions[asked], "split": "train" if asked else "test"}
    table = save(rows, folder / "table.parquet")
    receive(table, folder / "cache", "table")
    return folder / "cache"


OTHERS = ["Name the river that runs through Paris.", "Which planet has the most moons?"]


def test_a_question_in_two_folds_is_named(tmp_path: Path) -> None:
    asked = "How many squares has a common chessboard?"
    line = leak_line(imported(tmp_path, [asked, asked.upper(), *OTHERS]))
    assert line.startswith("1 question of test is nearly the same as one in another fold: ")
    assert "(1.00)" in line


def test_nothing_is_said_where_folds_differ(tmp_path: Path) -> None:
    assert leak_line(imported(tmp_path, ["How many squares has a chessboard?", *OTHERS])) == ""


def test_too_many_questions_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "MOST", 2)
    line = leak_line(imported(tmp_path, ["How many?", *OTHERS]))
    assert "were not looked for" in line
