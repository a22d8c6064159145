"""Files of peers as they are read."""

import json
from pathlib import Path
from typing import Any

import pytest

from hierrouter.collection import peers
from hierrouter.collection.importers import READERS, guess_format
from hierrouter.collection.tables import Answer
from hierrouter.collection.transfer import import_
from hierrouter.declarations.flags import IMPORTS, OWN
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Rate
from tests.hierrouter.collection import examples
from tests.properties.test_importers import llmrouter_rows, routerbench_rows

TRAIN, TEST = "routing_train_data.jsonl", "routing_test_data.jsonl"


def read(name: str, path: Path) -> list[Answer]:
    return list(READERS[name](path)[0])


def folder_of_rows(folder: Path) -> list[Answer]:
    """Its train and its test file in `folder`; returns the answers in them."""
    folder.mkdir()
    rows = llmrouter_rows()
    examples.save(rows[:4], folder / TRAIN)
    examples.save(rows[4:], folder / TEST)
    return read("llmrouter", folder)


def test_every_format_that_is_listed_can_be_read() -> None:
    assert set(IMPORTS) == {OWN, *READERS}


# LLMRouter


def test_a_folder_of_llmrouter_is_two_folds(tmp_path: Path) -> None:
    answers = folder_of_rows(tmp_path / "rows")
    assert guess_format(tmp_path / "rows") == "llmrouter"
    assert [answer.query.split for answer in answers] == ["test"] * 2 + ["train"] * 4
    assert {(answer.path, answer.tokens_in, answer.tokens_out) for answer in answers} == {
        (("x-1b",), 5, 1),
        (("x-7b",), 5, 1),
    }


def test_llmrouter_choices_become_lines_of_the_question(tmp_path: Path) -> None:
    row = {
        **llmrouter_rows()[0],
        "query": "Which one?",
        "choices": '{"text": ["Paris", "London"], "labels": ["A", "B"]}',
        "task_id": None,
    }
    file = examples.save([row], tmp_path / "rows.jsonl")
    assert guess_format(file) == "llmrouter"
    (answer,) = read("llmrouter", file)
    assert answer.query.question == "Which one?\nA. Paris\nB. London"
    assert answer.query.choices == (("A", "Paris"), ("B", "London"))
    assert len(answer.query.id) == 12
    examples.save([{**row, "choices": json.loads(row["choices"])}], file)
    assert read("llmrouter", file)[0].query == answer.query
    for choices, message in (
        ("[1]", "choices must be JSON"),
        ("[" * 100_000, "choices must be JSON"),
        ({"labels": ["A"], "text": [1]}, "choices must hold texts"),
    ):
        with pytest.raises(InputError, match=message):
            read("llmrouter", examples.save([{**row, "choices": choices}], file))


def test_llmrouter_files_are_told_apart_by_name(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    expected = folder_of_rows(rows)
    (rows / TRAIN).rename(rows / "latest_train_data.jsonl")
    (rows / "contest.jsonl").write_text("not of the format")
    found = read("llmrouter", rows)
    assert len(found) == len(expected)
    assert {answer.query for answer in found} == {answer.query for answer in expected}
    (rows / TEST).rename(rows / "train_test.jsonl")
    with pytest.raises(InputError, match=r"the name says both: .*train_test\.jsonl; rename it"):
        read("llmrouter", rows)
    with pytest.raises(InputError, match=r"no \*train\*\.jsonl"):
        read("llmrouter", tmp_path)


# RouterBench


def frame(path: Path, **changes: object) -> Path:
    return examples.save([routerbench_rows()[0] | changes], path)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_routerbench_frame_keeps_scores_and_costs(tmp_path: Path, kind: str) -> None:
    file = frame(tmp_path / f"frame.{kind}")
    assert guess_format(file) == "routerbench"
    assert read("routerbench", file)[0].response == "A\nB"
    assert not import_(file, tmp_path / "cache").unpriced
    tree = OpenTree(cache=tmp_path / "cache", scorer="given").run()
    assert tree.direct.score.tolist() == [[1.0, 0.0]]
    assert tree.direct.cost[0].tolist() == pytest.approx([0.001, 0.0], abs=1e-9)
    assert tree.direct.tokens_in.sum() == 0
    with pytest.raises(InputError, match="needs reference answers"):
        OpenTree(cache=tmp_path / "cache", scorer="token_f1").run()
    with pytest.raises(InputError, match="no token counts: --price; leave"):
        import_(file, tmp_path / "cache", prices={"x": 1})


def test_large_costs_take_a_larger_unit(tmp_path: Path) -> None:
    assert peers.cost_unit(7.4e-05) == 1e-9
    assert peers.cost_unit(300.0) == 1e-6
    file = frame(tmp_path / "frame.parquet", **{"x|total_cost": 300.0})
    answers, rate = READERS["routerbench"](file)
    assert rate == Rate.base(1e-6)
    assert next(answers).tokens_out == 300_000_000


def test_a_list_stays_a_text_where_other_texts_of_its_column_are_none(tmp_path: Path) -> None:
    row = routerbench_rows()[0]
    rows = [{**row, "x|model_response": text} for text in ("['x', 'y']", "a text")]
    rows[1]["sample_id"] = "other"
    answers = read("routerbench", examples.save(rows, tmp_path / "frame.parquet"))
    assert [answer.response for answer in answers] == ["['x', 'y']", "B", "a text", "B"]
    assert answers[0].query.question == "Which is 0?"


@pytest.mark.parametrize("text", ["[{[]: 1}]", "[{[1]}]", "[{{}}]"])
def test_a_list_that_python_cannot_make_is_a_text(tmp_path: Path, text: str) -> None:
    file = frame(tmp_path / "frame.jsonl", **{"x|model_response": text})
    assert read("routerbench", file)[0].response == text


BAD_FRAMES = {
    "no score": ({"x": None}, "x has no score or no cost"),
    "no cost": ({"y|total_cost": None}, "y has no score or no cost"),
    "negative": ({"y|total_cost": -1.0}, "y has no score or no cost"),
    "no question": ({"prompt": "['']"}, "prompt is blank"),
    "score of 10": ({"y": 10.0}, "y must be from 0 to 1"),
}


@pytest.mark.parametrize(("changes", "message"), BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_a_bad_frame_is_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read("routerbench", frame(tmp_path / "frame.parquet", **changes))


def test_a_frame_without_models(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no column ends in"):
        read("routerbench", examples.save([{"prompt": "a"}], tmp_path / "frame.parquet"))
