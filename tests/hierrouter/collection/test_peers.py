"""What peers read, and what comes back of it."""

import csv
import errno
import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from hierrouter.collection import peers
from hierrouter.collection.formats import EXPORTS, IMPORTS, OWN
from hierrouter.collection.tables import Answer, gather
from hierrouter.collection.transfer import READERS, WRITERS, guess_format, import_
from hierrouter.engines.encoders import HashedNgrams
from hierrouter.questions.scoring import scorer
from hierrouter.replay.opening import Selection, open_tree
from hierrouter.tables import FORMULA_STARTS
from hierrouter_cache.errors import IncompleteTree, InputError, WorldError
from hierrouter_cache.tree import Rate
from tests.hierrouter.collection import examples
from tests.properties.test_importers import llmrouter_rows, routerbench_rows


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return examples.cache_of(examples.single_answers(), tmp_path)


@pytest.fixture
def table(cache: Path) -> peers.DirectTable:
    return peers.direct_table(cache, scorer("given"), "hashed-ngrams")


def table_of(rows: examples.Rows, folder: Path) -> peers.DirectTable:
    """The direct calls of a cache that these rows were imported into."""
    return peers.direct_table(examples.cache_of(rows, folder), scorer("given"), "hashed-ngrams")


def read(name: str, path: Path) -> list[Answer]:
    return list(READERS[name](path)[0])


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_only_direct_calls_travel(cache: Path, table: peers.DirectTable) -> None:
    assert table.models == examples.MODELS  # the file's own names
    assert len(table.queries) == 10
    assert table.score.tolist() == [[float(n % 2 == 0), 1.0] for n in range(10)]
    assert table.responses[1] == ["lab/tiny 1b: the answer is 0", "lab/large 10b: the answer is 2"]
    assert table.cost[3].tolist() == pytest.approx([0.001 * 15, 0.01 * 15])
    fewer = peers.direct_table(cache, scorer("given"), "hashed-ngrams", ["lab-large-10b"])
    assert (fewer.models, fewer.score.shape) == (examples.MODELS[1:], (10, 1))


def test_missing_direct_calls_are_refused_or_left_out(tmp_path: Path) -> None:
    root = examples.cache_of(examples.single_answers()[1:], tmp_path)
    with pytest.raises(IncompleteTree, match="1 of 10 queries lack direct calls"):
        peers.direct_table(root, scorer("given"), "hashed-ngrams")
    table = peers.direct_table(root, scorer("given"), "hashed-ngrams", allow_incomplete=True)
    assert (len(table.queries), table.left_out) == (9, 1)


def test_every_format_that_is_listed_can_be_read_or_written() -> None:
    assert set(IMPORTS) == {OWN, *READERS}
    assert set(EXPORTS) == {OWN, *WRITERS}


@pytest.mark.parametrize("name", ["llmrouter", "routellm"])
def test_a_folder_that_is_not_finished_never_appears(
    table: peers.DirectTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        for module, function in ((torch, "save"), (np, "save")):
            patch.setattr(module, function, disk_is_full)
        with pytest.raises(WorldError, match="No space left"):
            WRITERS[name](table, tmp_path / "rows")
    assert sorted(tmp_path.iterdir()) == before
    WRITERS[name](table, tmp_path / "rows")
    assert len(list((tmp_path / "rows").iterdir())) > 2


def disk_is_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_collected_cache_travels_too(whole: Path, tmp_path: Path) -> None:
    table = peers.direct_table(whole, scorer("token_f1"), "hashed-ngrams")
    tree = open_tree(whole)
    assert np.array_equal(table.score, tree.direct.score)
    assert np.array_equal(table.cost, tree.direct.cost)
    for name, write in WRITERS.items():
        out = tmp_path / (f"{name}.parquet" if name == "routerbench" else name)
        write(table, out)
        assert out.exists()


# LLMRouter


def test_llmrouter_rows_have_its_fields(table: peers.DirectTable, tmp_path: Path) -> None:
    WRITERS["llmrouter"](table, tmp_path / "rows")
    train, test = lines(tmp_path / "rows" / peers.TRAIN), lines(tmp_path / "rows" / peers.TEST)
    assert len(train) + len(test) == 20
    row = next(row for row in train + test if row["task_id"] == "q1")
    assert row["task_name"] == "sums"
    assert row["query"] == "What is 1 + 1?"
    assert (row["model_name"], row["performance"]) == (examples.MODELS[0], 0.0)
    assert (row["input_tokens"], row["output_tokens"], row["token_num"]) == (6, 7, 13)
    vectors = torch.load(tmp_path / "rows" / peers.EMBEDDINGS, weights_only=True)
    assert np.array_equal(
        vectors[row["embedding_id"]].numpy(), HashedNgrams().encode(["What is 1 + 1?"])[0]
    )


def test_a_tie_is_the_cheapest_models_and_what_nobody_answers_is_nobodys(tmp_path: Path) -> None:
    """As each format says it."""
    tied = [{**row, "score": 1.0} for row in reversed(examples.single_answers(1))]
    table = table_of(tied, tmp_path)
    assert table.models == examples.MODELS[::-1]
    WRITERS["llmrouter"](table, tmp_path / "rows")
    assert [row["model_name"] for row in lines(tmp_path / "rows" / peers.TRAIN)] == list(
        examples.MODELS
    )
    assert not (tmp_path / "rows" / peers.TEST).exists()
    WRITERS["routerbench"](table, tmp_path / "tied.parquet")
    assert oracle(tmp_path / "tied.parquet") == [examples.MODELS[0]]
    (tmp_path / "none").mkdir()
    table = table_of([{**row, "score": 0.0} for row in tied], tmp_path / "none")
    WRITERS["routerbench"](table, tmp_path / "none.parquet")
    assert oracle(tmp_path / "none.parquet") == ["no_model_correct"]
    WRITERS["routellm"](table, tmp_path / "battles")
    (battle,) = json.loads((tmp_path / "battles" / "train.json").read_text())
    assert battle["winner"] == "tie (bothbad)"


def oracle(frame: Path) -> list[str]:
    names: list[str] = pq.read_table(frame)["oracle_model_to_route_to"].to_pylist()
    return names


@pytest.mark.parametrize(("name", "out"), [("llmrouter", "rows"), ("routerbench", "frame.parquet")])
def test_rows_come_back_with_the_same_calls(
    cache: Path, table: peers.DirectTable, tmp_path: Path, name: str, out: str
) -> None:
    WRITERS[name](table, tmp_path / out)
    assert guess_format(tmp_path / out) == name
    back = gather(read(name, tmp_path / out), 42)
    examples.stored(back, tmp_path / "back")
    for column in ("context", "outcome", "model"):
        assert examples.keys(tmp_path / "back", name=column) == examples.keys(cache, name=column)
    if name == "llmrouter":  # a frame has no tokens and no folds; the step names the source
        assert examples.keys(tmp_path / "back") == examples.keys(cache)
        folds = [{query.id for query in table.queries if query.split == "test"}]
        folds.append({query.id for query in back.queries if query.split == "test"})
        assert folds[0] == folds[1]


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


def test_llmrouter_files_are_told_apart_by_name(table: peers.DirectTable, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    WRITERS["llmrouter"](table, rows)
    expected = read("llmrouter", rows)
    (rows / peers.TRAIN).rename(rows / "latest_train_data.jsonl")
    (rows / "contest.jsonl").write_text("not of the format")
    found = read("llmrouter", rows)
    assert len(found) == len(expected)
    assert {answer.query for answer in found} == {answer.query for answer in expected}
    (rows / peers.TEST).rename(rows / "train_test.jsonl")
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
    tree = open_tree(tmp_path / "cache", Selection(scorer="given"))
    assert tree.direct.score.tolist() == [[1.0, 0.0]]
    assert tree.direct.cost[0].tolist() == pytest.approx([0.001, 0.0], abs=1e-9)
    assert tree.direct.tokens_in.sum() == 0
    with pytest.raises(InputError, match="needs reference answers"):
        open_tree(tmp_path / "cache")
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


def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    rows = [{**row, "dataset": "=1+1", "model": "=cmd"} for row in examples.single_answers(1)[:1]]
    table = table_of(rows, tmp_path)
    WRITERS["routerbench"](table, tmp_path / "frame.csv")
    with (tmp_path / "frame.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert "'=1+1" in cells
    assert not [cell for cell in cells if cell.startswith(FORMULA_STARTS)]
    WRITERS["routerbench"](table, tmp_path / "frame.parquet")
    assert pq.read_table(tmp_path / "frame.parquet")["eval_name"].to_pylist() == ["=1+1"]


BAD_FRAMES = {
    "no score": ({"x": None}, "x has no score or no cost"),
    "no cost": ({"y|total_cost": None}, "y has no score or no cost"),
    "negative": ({"y|total_cost": -1.0}, "y has no score or no cost"),
    "no question": ({"prompt": "['']"}, "prompt is blank"),
    "score of 10": ({"y": 10.0}, "y must be from 0 to 1"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_bad_frame_is_one_line(tmp_path: Path, name: str) -> None:
    changes, message = BAD_FRAMES[name]
    with pytest.raises(InputError, match=message):
        read("routerbench", frame(tmp_path / "frame.parquet", **changes))


def test_a_frame_without_models_or_of_other_kind(table: peers.DirectTable, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no column ends in"):
        read("routerbench", examples.save([{"prompt": "a"}], tmp_path / "frame.parquet"))
    with pytest.raises(InputError, match=r"\.parquet or \.csv"):
        WRITERS["routerbench"](table, tmp_path / "frame.pkl")


# RouteLLM


def test_routellm_battles_name_the_winner(table: peers.DirectTable, tmp_path: Path) -> None:
    WRITERS["routellm"](table, tmp_path / "battles")
    battles = {}
    for name in ("train", "test"):
        rows = json.loads((tmp_path / "battles" / f"{name}.json").read_text())
        vectors = np.load(tmp_path / "battles" / f"{name}.npy")
        assert [row["idx"] for row in rows] == list(range(len(vectors)))
        assert np.array_equal(vectors, HashedNgrams().encode([row["prompt"] for row in rows]))
        battles |= {row["question_id"]: row for row in rows}
    assert len(battles) == 10
    assert battles["q1"]["winner"] == "model_b"
    assert (battles["q1"]["model_a"], battles["q1"]["model_b"]) == examples.MODELS
    assert battles["q2"]["winner"] == "tie"
