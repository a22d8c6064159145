"""Direct calls as files of LLMRouter and RouterBench, and what comes back of them."""

import csv
import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import hierrouter as hr
from hierrouter.collection import exporters
from hierrouter.collection.importers import READERS, guess_format
from hierrouter.collection.scheduler import fill_cache
from hierrouter.collection.tables import gather
from hierrouter.collection.transfer import SUFFIXES
from hierrouter.declarations.flags import EXPORTS, LOSSES, OWN
from hierrouter.engines.encoders import HashedNgrams
from hierrouter.questions.query import Query
from hierrouter.replay.open_tree import OpenTree
from hierrouter.tables import FORMULA_STARTS
from hierrouter_cache.errors import IncompleteTree, InputError, WorldError
from tests.engines import Scripted
from tests.hierrouter.collection import examples
from tests.holes import drop_five_leaves_of_three_queries

ENCODER = "hashed-ngrams"
SEED = 42
OUTS = {"llmrouter": "rows", "routerbench": "frame.parquet"}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of an imported table: two models, ten questions."""
    return examples.cache_of(examples.single_answers(), tmp_path)


def calls_of(rows: examples.Rows, folder: Path) -> exporters.DirectCalls:
    """The direct calls of a cache that these rows were imported into."""
    folder.mkdir(exist_ok=True)
    return exporters.read_direct_calls(examples.cache_of(rows, folder), "given")


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def routing_rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of an exported folder, those of train first."""
    files = (folder / exporters.TRAIN_FILE, folder / exporters.TEST_FILE)
    return [row for file in files if file.exists() for row in rows_of(file)]


def oracle(frame: Path) -> list[str]:
    names: list[str] = pq.read_table(frame)[exporters.ORACLE_COLUMN].to_pylist()
    return names


def test_every_format_of_others_is_written_read_and_says_its_losses() -> None:
    assert set(EXPORTS) == {OWN, *exporters.WRITERS} == set(SUFFIXES)
    assert set(LOSSES) == set(exporters.WRITERS)
    assert set(exporters.WRITERS) <= set(READERS)
    assert all(LOSSES.values())


def test_only_direct_calls_travel(cache: Path) -> None:
    calls = exporters.read_direct_calls(cache, "given")
    assert calls.names == examples.MODELS  # as the file called them
    assert len(calls.queries) == 10
    assert calls.score.tolist() == [[float(n % 2 == 0), 1.0] for n in range(10)]
    assert calls.responses[1] == ["lab/tiny 1b: the answer is 0", "lab/large 10b: the answer is 2"]
    assert calls.cost[3].tolist() == pytest.approx([0.001 * 15, 0.01 * 15])
    for selection in ({"models": ["lab-large-10b"]}, {"without": ["lab-tiny-1b"]}):
        fewer = exporters.read_direct_calls(cache, "given", **selection)
        assert (fewer.names, fewer.score.shape) == (examples.MODELS[1:], (10, 1))


def test_a_missing_direct_call_is_refused_or_left_out(tmp_path: Path) -> None:
    root = examples.cache_of(examples.single_answers()[1:], tmp_path)
    with pytest.raises(IncompleteTree, match=r"1 of 10 queries lack direct calls: .*/cache; "):
        exporters.read_direct_calls(root, "given")
    calls = exporters.read_direct_calls(root, "given", allow_incomplete=True)
    assert (len(calls.queries), calls.left_out) == (9, 1)


def test_holes_at_later_hops_do_not_matter(testbed_cache: Path, tmp_path: Path) -> None:
    """Nor are responses scored that are not written."""
    whole = exporters.read_direct_calls(testbed_cache, "token_f1")
    root = Path(shutil.copytree(testbed_cache, tmp_path / "cache"))
    drop_five_leaves_of_three_queries(root)
    calls = exporters.read_direct_calls(root, "exact_match")
    assert (len(calls.queries), calls.left_out) == (len(whole.queries), 0)
    tree = hr.open(testbed_cache)
    assert np.array_equal(whole.score, tree.direct.score)
    assert np.array_equal(whole.cost, tree.direct.cost)
    assert list(whole.names) == list(tree.direct.models)


# LLMRouter


def test_the_rows_of_llmrouter_have_its_fields(cache: Path, tmp_path: Path) -> None:
    calls = exporters.read_direct_calls(cache, "given")
    out = tmp_path / "rows"
    exporters.export_llmrouter(calls, out, ENCODER)
    rows = routing_rows(out)
    assert len(rows) == 20
    row = next(row for row in rows if row["task_id"] == "q1")
    assert {name: row[name] for name in ("task_name", "query", "model_name", "performance")} == {
        "task_name": "sums",
        "query": "What is 1 + 1?",
        "model_name": examples.MODELS[0],
        "performance": 0.0,
    }
    assert (row["input_tokens"], row["output_tokens"], row["token_num"]) == (6, 7, 13)
    assert (row["metric"], row["choices"], row["response_time"]) == ("given", None, None)
    vectors = torch.load(out / exporters.EMBEDDINGS_FILE, weights_only=True)
    assert list(vectors) == list(range(10))
    expected = HashedNgrams().encode(["What is 1 + 1?"])[0]
    assert np.array_equal(vectors[row["embedding_id"]].numpy(), expected)
    models = json.loads((out / exporters.MODELS_FILE).read_text())
    assert list(models) == list(examples.MODELS)
    # The prices that an import guesses from sizes: of a token in a cache, of a million here.
    assert models[examples.MODELS[1]] == {
        "size": "10B",
        "feature": examples.MODELS[1],
        "input_price": 10_000.0,
        "output_price": 10_000.0,
        "model": examples.MODELS[1],
        "service": "",
        "api_endpoint": "",
    }


def test_choices_stand_beside_the_question_and_seconds_are_kept(tmp_path: Path) -> None:
    choices = (("A", "ice"), ("B", 'größer, "so"'))
    lines = "".join(f"\n{label}. {text}" for label, text in choices)
    queries = [
        Query("one", "arc", f"What melts?{lines}", ("A", "ice"), "train", choices),
        Query("two", "arc", "Its choices are not below it.", ("A",), "train", choices),
        Query("three", "arc", lines, ("A",), "test", choices),
    ]
    root = tmp_path / "cache"
    fill_cache(examples.POOL, queries, root, engines=Scripted())
    calls = exporters.read_direct_calls(root, "token_f1")
    seconds = np.full_like(calls.seconds, 0.25)
    exporters.export_llmrouter(replace(calls, seconds=seconds), tmp_path / "rows", ENCODER)
    rows = {row["task_id"]: row for row in routing_rows(tmp_path / "rows")}
    assert rows["one"]["query"] == "What melts?"
    assert json.loads(rows["one"]["choices"]) == {
        "text": ["ice", 'größer, "so"'],
        "labels": ["A", "B"],
    }
    assert rows["two"]["query"] == queries[1].question
    assert rows["three"]["query"] == lines  # a question may not be blank
    assert rows["two"]["choices"] is rows["three"]["choices"] is None
    assert rows["one"]["ground_truth"] == "A"
    back = gather(READERS["llmrouter"](tmp_path / "rows")[0], SEED)
    restored = {query.id: query for query in back.queries}
    assert restored["one"].question == queries[0].question
    assert restored["one"].choices == choices
    answers = [answer for by_path in back.by_path for answer in by_path.values()]
    assert {answer.latency_s for answer in answers} == {0.25}


def test_a_tie_is_the_cheapest_models_and_an_unanswered_question_is_no_models(
    tmp_path: Path,
) -> None:
    """As each format says it."""
    tied = [{**row, "score": 1.0} for row in reversed(examples.single_answers(1))]
    calls = calls_of(tied, tmp_path)
    assert calls.names == examples.MODELS[::-1]
    exporters.export_llmrouter(calls, tmp_path / "rows", ENCODER)
    assert [row["model_name"] for row in routing_rows(tmp_path / "rows")] == list(examples.MODELS)
    assert not (tmp_path / "rows" / exporters.TEST_FILE).exists()
    exporters.export_routerbench(calls, tmp_path / "tied.parquet")
    assert oracle(tmp_path / "tied.parquet") == [examples.MODELS[0]]
    failed = calls_of([{**row, "score": 0.0} for row in tied], tmp_path / "none")
    exporters.export_routerbench(failed, tmp_path / "none.parquet")
    assert oracle(tmp_path / "none.parquet") == ["no_model_correct"]


@pytest.mark.parametrize(("format", "out"), [*OUTS.items(), ("routerbench", "frame.csv")])
def test_rows_come_back_with_the_same_calls(
    cache: Path, tmp_path: Path, format: str, out: str
) -> None:
    calls = exporters.read_direct_calls(cache, "given")
    exporters.WRITERS[format](calls, tmp_path / out, ENCODER, lambda *_: None)
    assert guess_format(tmp_path / out) == format
    back = hr.import_(tmp_path / out, tmp_path / "back")
    assert back.format == format
    for column in ("context", "outcome", "model"):
        assert examples.keys(tmp_path / "back", name=column) == examples.keys(cache, name=column)
    tree = OpenTree(cache=tmp_path / "back", scorer="given").run()
    order = [tree.query_ids.index(query.id) for query in calls.queries]
    assert tree.direct.score[order].tolist() == calls.score.tolist()
    if format == "llmrouter":
        # A frame has no tokens and no folds, so its models are others.
        assert examples.keys(tmp_path / "back") == examples.keys(cache)
        tests = {query.id for query in calls.queries if query.split == "test"}
        assert {
            id for id, fold in zip(tree.query_ids, tree.splits, strict=True) if fold == "test"
        } == tests
    else:
        assert tree.direct.cost[order] == pytest.approx(calls.cost, abs=1e-9)


def test_any_text_comes_back(tmp_path: Path) -> None:
    texts = ["'a'", '"b"\n', "['x', 'y']", "=1+1", "\u202e\x1b[31m", "ü\t, ;", "\\n", "]", " "]
    rows = [
        {**row, "response": text, "question": f"{text} is what? {number}"}
        for number, text in enumerate(texts)
        for row in examples.single_answers(number + 1)[-2:]
    ]
    calls = calls_of(rows, tmp_path)
    for format, out in (*OUTS.items(), ("routerbench", "frame.csv")):
        exporters.WRITERS[format](calls, tmp_path / out, ENCODER, lambda *_: None)
        answers = list(READERS[format](tmp_path / out)[0])
        by_question: dict[str, set[str]] = {query.question: set() for query in calls.queries}
        for answer in answers:
            by_question[answer.query.question].add(answer.response)
        assert by_question == {f"{text} is what? {n}": {text} for n, text in enumerate(texts)}


def test_an_embedding_is_that_of_the_encoder_that_is_named(cache: Path, tmp_path: Path) -> None:
    """The default of an imported pool is not on this machine."""
    calls = exporters.read_direct_calls(cache, "given")
    with pytest.raises(WorldError, match="all-mpnet-base-v2 is not on this machine"):
        exporters.export_llmrouter(calls, tmp_path / "rows", None)
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize("format", OUTS)
def test_what_is_not_finished_never_appears(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    calls = exporters.read_direct_calls(cache, "given")
    before = sorted(tmp_path.iterdir())
    write = exporters.WRITERS[format]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", disk_is_full)
        patch.setattr(pq, "write_table", disk_is_full)
        with pytest.raises(WorldError, match="No space left"):
            write(calls, tmp_path / OUTS[format], ENCODER, lambda *_: None)
    assert sorted(tmp_path.iterdir()) == before
    write(calls, tmp_path / OUTS[format], ENCODER, lambda *_: None)
    assert (tmp_path / OUTS[format]).exists()


def disk_is_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# RouterBench


def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    rows = [{**row, "dataset": "=1+1", "model": "=cmd"} for row in examples.single_answers(1)[:1]]
    calls = calls_of(rows, tmp_path)
    exporters.export_routerbench(calls, tmp_path / "frame.csv")
    with (tmp_path / "frame.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert "'=1+1" in cells
    assert not [cell for cell in cells if cell.startswith(FORMULA_STARTS)]
    exporters.export_routerbench(calls, tmp_path / "frame.parquet")
    assert pq.read_table(tmp_path / "frame.parquet")["eval_name"].to_pylist() == ["=1+1"]


@pytest.mark.parametrize("name", ["prompt", "sample_id", "oracle_model_to_route_to"])
def test_a_model_with_the_name_of_a_column_is_refused(tmp_path: Path, name: str) -> None:
    rows = [{**row, "model": name} for row in examples.single_answers(1)[:1]]
    calls = calls_of(rows, tmp_path)
    with pytest.raises(InputError, match=f"two columns .* called '{name}'.*--without"):
        exporters.export_routerbench(calls, tmp_path / "frame.parquet")
    assert not (tmp_path / "frame.parquet").exists()


# `hr.export`


@pytest.mark.parametrize(
    ("format", "out", "settings", "message"),
    [
        ("routerbench", "frame.pkl", {}, r"routerbench is written as \.parquet or \.csv: --out"),
        ("llmrouter", "rows.jsonl", {}, "llmrouter is written as a folder: --out"),
        ("jsonl", "frame.csv", {}, r"jsonl is written as \.jsonl: --out"),
        ("routellm", "battles", {}, "unknown format: routellm"),
        ("routerbench", "frame.csv", {"encoder": ENCODER}, "routerbench has no embeddings"),
        ("jsonl", "all.jsonl", {"models": "lab-tiny-1b"}, "jsonl holds a whole cache"),
        ("jsonl", "all.jsonl", {"scorer": "given"}, "jsonl holds a whole cache"),
        ("jsonl", "all.jsonl", {"allow_incomplete": True}, "jsonl holds a whole cache"),
        ("routerbench", "frame.csv", {"models": "lab"}, "unknown model: lab"),
        ("routerbench", "frame.csv", {"scorer": "f1"}, "f1"),
    ],
)
def test_what_does_not_fit_a_format_is_refused(
    cache: Path, tmp_path: Path, format: str, out: str, settings: dict[str, Any], message: str
) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=message):
        hr.export(cache, tmp_path / out, format=format, **settings)
    assert sorted(tmp_path.iterdir()) == before


def test_an_export_counts_what_it_wrote_and_reports_progress(cache: Path, tmp_path: Path) -> None:
    progress: list[tuple[str, int, int]] = []
    counts = hr.export(
        cache,
        tmp_path / "rows",
        format="llmrouter",
        scorer="given",
        encoder=ENCODER,
        progress=lambda *step: progress.append(step),
    )
    assert counts == {"queries": 10, "models": 2, "left_out": 0}
    assert progress[0] == ("embed", 10, 10)
    assert progress[-1] == ("export", 10, 10)
    with pytest.raises(InputError, match="output exists"):
        hr.export(cache, tmp_path / "rows", format="llmrouter")
